//! Gives functions vectors of four components in place of vectors of three, as parameters and as results.
//!
//! For drivers that pass vectors of three wrongly: see `Workarounds::widen_vectors`. A function makes vectors of
//! three of its parameters first, and its callers of its result, so that everything else stays as it is. Kernels keep
//! their parameters, which the host gives them.

use std::collections::{BTreeMap, HashMap, HashSet};

use rspirv::spirv::{Capability, Decoration, Op};

use super::intern::Interner;
use super::module::{Function, Module, Section};
use super::stream::Stream;
use super::table::Class;
use super::words::Instruction;
use crate::error::Result;

/// Number of components of the vectors that are widened.
const NARROW: u32 = 3;

const WIDE: u32 = 4;

/// Components of a vector that is widened: the last one occurs twice.
const TO_WIDE: [u32; 4] = [0, 1, 2, 2];

const TO_NARROW: [u32; 3] = [0, 1, 2];

/// Widens the vectors of all functions besides kernels. Returns whether there are any. A module with pointers to
/// functions stays as it is.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported) if ids run out.
pub fn widen_vectors(module: &mut Module) -> Result<bool> {
    let narrow = vectors(module);
    let signatures = signatures(module, &narrow);
    if signatures.is_empty() || has_function_pointers(module) {
        return Ok(false);
    }
    let mut interner = Interner::of(module);
    let mut wide = HashMap::new();
    for (&ty, &component) in &narrow {
        wide.insert(ty, interner.type_id(module, Op::TypeVector, &[component, WIDE])?);
    }
    let mut widening = Widening { module, interner, signatures, wide };
    for at in 0..widening.module.functions.len() {
        let Function { id, body } = &mut widening.module.functions[at];
        let (id, body) = (*id, std::mem::take(body));
        widening.module.functions[at].body = widening.function(id, &body)?;
    }
    Ok(true)
}

/// Returns the types of vectors of three components, with the type of the component.
fn vectors(module: &Module) -> BTreeMap<u32, u32> {
    let globals = module.section(Section::Globals).iter();
    let vectors = globals.filter(|i| i.op() == Some(Op::TypeVector) && i.word(2) == Some(NARROW));
    vectors.filter_map(|i| Some((i.word(0)?, i.word(1)?))).collect()
}

fn has_function_pointers(module: &Module) -> bool {
    let mut capabilities = module.section(Section::Capabilities).iter();
    capabilities.any(|i| i.word(0) == Some(Capability::FunctionPointersINTEL as u32))
}

/// Types of the parameters of a function, in order.
type Signature = Vec<u32>;

/// Returns the functions besides kernels that have such parameters or results, with the types of their parameters.
fn signatures(module: &Module, narrow: &BTreeMap<u32, u32>) -> HashMap<u32, Signature> {
    let entries = module.section(Section::EntryPoints).iter();
    let kernels: HashSet<_> = entries.filter_map(|i| i.word(1)).collect();
    let signature = |function: &Function| {
        let (mut result, mut parameters) = (None, Vec::new());
        for i in function.body.iter() {
            match i.op() {
                Some(Op::Function) => result = i.word(0),
                Some(Op::FunctionParameter) => parameters.extend(i.word(0)),
                Some(Op::Label) => break,
                _ => {}
            }
        }
        let mut types = result.iter().chain(&parameters);
        let is_widened = !kernels.contains(&function.id) && types.any(|ty| narrow.contains_key(ty));
        is_widened.then_some((function.id, parameters))
    };
    module.functions.iter().filter_map(signature).collect()
}

struct Widening<'a> {
    module: &'a mut Module,
    interner: Interner,
    signatures: HashMap<u32, Signature>,
    /// Types of vectors of four components, by the types of vectors of three.
    wide: HashMap<u32, u32>,
}

impl Widening<'_> {
    /// Returns the new body of a function.
    fn function(&mut self, id: u32, body: &Stream) -> Result<Stream> {
        let own = self.signatures.get(&id).cloned();
        let (mut new, mut parameters) = (Stream::default(), Stream::default());
        let (mut result, mut is_head) = (None, true);
        for i in body.iter() {
            let is_first = i.class().is_some_and(Class::precedes_code);
            if is_head && !is_first {
                is_head = false;
                new.append(&parameters);
            }
            match (i.op(), &own) {
                (Some(Op::Function), Some(types)) => {
                    result = i.word(0);
                    self.declaration(&i, types, &mut new)?;
                }
                (Some(Op::FunctionParameter), Some(_)) => {
                    self.parameter(&i, &mut new, &mut parameters)?;
                }
                (Some(Op::ReturnValue), Some(_)) => {
                    let value = i.word(0).unwrap_or_default();
                    let value = match result.and_then(|ty| self.wide.get(&ty).copied()) {
                        Some(wide) => self.shuffled(wide, value, &TO_WIDE, &mut new)?,
                        None => value,
                    };
                    new.push(Op::ReturnValue, [value]);
                }
                (Some(Op::FunctionCall), _) => self.call(&i, &mut new)?,
                _ => new.push_instruction(&i),
            }
        }
        Ok(new)
    }

    /// Writes the first instruction of a function that is widened.
    fn declaration(&mut self, i: &Instruction<'_>, types: &[u32], new: &mut Stream) -> Result<()> {
        let widened = |ty: &u32| self.wide.get(ty).copied().unwrap_or(*ty);
        let result = i.word(0).as_ref().map(widened).unwrap_or_default();
        let all: Vec<_> = [result].into_iter().chain(types.iter().map(widened)).collect();
        let ty = self.interner.type_id(self.module, Op::TypeFunction, &all)?;
        let words = [Some(result), i.word(1), i.word(2), Some(ty)];
        new.push(Op::Function, words.into_iter().flatten());
        Ok(())
    }

    /// Writes a parameter of a function that is widened, and the vector of three components that is made of it.
    fn parameter(
        &mut self,
        i: &Instruction<'_>,
        new: &mut Stream,
        vectors: &mut Stream,
    ) -> Result<()> {
        let (Some(ty), Some(id)) = (i.word(0), i.word(1)) else { return Ok(()) };
        let Some(&wide) = self.wide.get(&ty) else {
            new.push_instruction(i);
            return Ok(());
        };
        let parameter = self.module.fresh_id()?;
        new.push(Op::FunctionParameter, [wide, parameter]);
        let words = [ty, id, parameter, parameter].into_iter().chain(TO_NARROW);
        vectors.push(Op::VectorShuffle, words);
        // Only parameters have attributes.
        let is_attribute = |i: &Instruction<'_>| {
            i.op() == Some(Op::Decorate)
                && i.word(0) == Some(id)
                && i.word(1) == Some(Decoration::FuncParamAttr as u32)
        };
        self.module.section_mut(Section::Annotations).retain(|i| !is_attribute(i));
        Ok(())
    }

    /// Writes a call.
    fn call(&mut self, i: &Instruction<'_>, new: &mut Stream) -> Result<()> {
        let types = i.word(2).and_then(|callee| self.signatures.get(&callee)).cloned();
        let (Some(types), Some(ty), Some(result)) = (types, i.word(0), i.word(1)) else {
            new.push_instruction(i);
            return Ok(());
        };
        let mut words: Vec<_> = i.words_from(0).take(3).collect();
        for (argument, ty) in i.words_from(3).zip(types) {
            words.push(match self.wide.get(&ty).copied() {
                Some(wide) => self.shuffled(wide, argument, &TO_WIDE, new)?,
                None => argument,
            });
        }
        let Some(&wide) = self.wide.get(&ty) else {
            new.push(Op::FunctionCall, words);
            return Ok(());
        };
        let whole = self.module.fresh_id()?;
        (words[0], words[1]) = (wide, whole);
        new.push(Op::FunctionCall, words);
        new.push(Op::VectorShuffle, [ty, result, whole, whole].into_iter().chain(TO_NARROW));
        Ok(())
    }

    /// Writes a vector of components of another one. Returns its id.
    fn shuffled(
        &mut self,
        ty: u32,
        vector: u32,
        components: &[u32],
        new: &mut Stream,
    ) -> Result<u32> {
        let id = self.module.fresh_id()?;
        let words = [ty, id, vector, vector].into_iter().chain(components.iter().copied());
        new.push(Op::VectorShuffle, words);
        Ok(id)
    }
}
