//! Splits parameters of functions that are vectors of three components into their components.
//!
//! Intel's runtime for CPUs (2026.22) makes work-items the lanes of vectors. Where it calls a function that must
//! not be inlined for some lanes only, the function gets the components of other lanes in each parameter that is
//! a vector of three components, whatever their type. Vectors of two, four or more components arrive as they are.

use std::collections::HashMap;

use rspirv::spirv::{Decoration, FunctionControl, Op};

use super::declaration::Declaration;
use crate::compiler::spirv::Module;
use crate::compiler::spirv::edit::{Function, Instruction, Interner, Section, Stream};
use crate::error::Result;

/// Number of components of the vectors that are split.
const COMPONENTS: u32 = 3;

/// Parameters of a function: for each in order, the vector's type and its component's type if it is split.
type Signature = Vec<Option<[u32; 2]>>;

/// Splits such parameters of all functions that must not be inlined, and passes components in their calls.
pub(super) fn split(module: &mut Module) -> Result<()> {
    let signatures = signatures(module);
    if signatures.is_empty() {
        return Ok(());
    }
    let mut interner = Interner::of(module);
    for at in 0..module.functions.len() {
        let Function { id, body } = &mut module.functions[at];
        let (signature, mut body) = (signatures.get(id), std::mem::take(body));
        if let Some(signature) = signature {
            body = take_components(module, &mut interner, &body, signature)?;
        }
        module.functions[at].body = pass_components(module, &body, &signatures)?;
    }
    Ok(())
}

/// Returns the functions with parameters to be split, by their ids.
fn signatures(module: &Module) -> HashMap<u32, Signature> {
    let definitions = module.definitions();
    let split = |ty: u32| {
        let defined = definitions.get(ty).filter(|i| i.op() == Some(Op::TypeVector))?;
        (defined.word(2) == Some(COMPONENTS)).then_some([ty, defined.word(1)?])
    };
    let signature = |function: &Function| {
        let head = function.body.iter().find(|i| i.op() == Some(Op::Function));
        let control = head.and_then(|i| i.word(2)).unwrap_or_default();
        let parameters = Declaration::of(&function.body).parameters;
        let signature: Signature = parameters.iter().map(|(_, ty)| split(*ty)).collect();
        let is_split = control & FunctionControl::DONT_INLINE.bits() != 0
            && !function.is_declaration()
            && signature.iter().any(Option::is_some);
        is_split.then_some((function.id, signature))
    };
    module.functions.iter().filter_map(signature).collect()
}

/// Returns the body of a function that takes components, and makes vectors of them first.
fn take_components(
    module: &mut Module,
    interner: &mut Interner,
    body: &Stream,
    signature: &Signature,
) -> Result<Stream> {
    let mut declaration = Declaration::of(body);
    let (mut parameters, mut vectors) = (Vec::new(), Stream::default());
    for (&(id, ty), split) in declaration.parameters.iter().zip(signature) {
        let Some([vector, component]) = *split else {
            parameters.push((id, ty));
            continue;
        };
        let mut words = vec![vector, id];
        for _ in 0..COMPONENTS {
            let part = module.fresh_id()?;
            parameters.push((part, component));
            words.push(part);
        }
        vectors.push(Op::CompositeConstruct, words);
        let annotations = module.section_mut(Section::Annotations);
        annotations.retain(|i| !is_attribute_of(i, id));
    }
    declaration.parameters = parameters;
    let (mut new, mut waiting) = (Stream::default(), Some(vectors));
    for i in body.iter() {
        if declaration.rewrite(&i, module, interner, &mut new)? {
            continue;
        }
        let is_head = matches!(i.op(), Some(Op::Label | Op::Variable | Op::Line | Op::NoLine));
        if !is_head && let Some(vectors) = waiting.take() {
            new.append(&vectors);
        }
        new.push_instruction(&i);
    }
    Ok(new)
}

/// Whether an instruction is an attribute of a parameter, which only parameters have.
fn is_attribute_of(i: &Instruction<'_>, parameter: u32) -> bool {
    i.op() == Some(Op::Decorate)
        && i.word(0) == Some(parameter)
        && i.word(1) == Some(Decoration::FuncParamAttr as u32)
}

/// Returns a body in which calls of the functions pass components.
fn pass_components(
    module: &mut Module,
    body: &Stream,
    signatures: &HashMap<u32, Signature>,
) -> Result<Stream> {
    let mut new = Stream::default();
    for i in body.iter() {
        let callee = i.word(2).filter(|_| i.op() == Some(Op::FunctionCall));
        let Some(signature) = callee.and_then(|callee| signatures.get(&callee)) else {
            new.push_instruction(&i);
            continue;
        };
        let mut words: Vec<_> = i.words_from(0).take(3).collect();
        for (argument, split) in i.words_from(3).zip(signature) {
            let Some([_, component]) = *split else {
                words.push(argument);
                continue;
            };
            for at in 0..COMPONENTS {
                let part = module.fresh_id()?;
                new.push(Op::CompositeExtract, [component, part, argument, at]);
                words.push(part);
            }
        }
        new.push(Op::FunctionCall, words);
    }
    Ok(new)
}
