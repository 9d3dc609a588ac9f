//! Definition of values that SPIR-V leaves undefined, in all kernels of a checked program.
//!
//! Compilers may take code for unreachable that uses such a value, for instance as the argument of a function, as a
//! divisor, or as a condition. That is a matter of the whole kernel, not of the address that is proven or guarded:
//! no launch of a checked program may contain one.

use std::collections::{BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::{
    Class, Definitions, Instruction, Interner, Section, Stream, View, located, operand_ids,
};
use kiln_spirv::{Dominators, Module, Result};
use rspirv::spirv::{Decoration, Op, StorageClass};

use crate::analysis::blocks::blocks;
use crate::analysis::declaration::{Declaration, by_value};

/// Makes zeros of undefined values, lets private variables that may be read before they are written start as zeros,
/// saturates conversions to integers, and copies structs that are passed by value by an access of its own. Returns
/// whether the module changed.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out.
pub fn define(module: &mut Module) -> Result<bool> {
    let mut is_changed = saturate_conversions(module);
    is_changed |= copy_structs(module)?;
    is_changed |= define_globals(module);
    let mut interner = Interner::of(module);
    for at in 0..module.functions.len() {
        is_changed |= define_function(module, &mut interner, at)?;
    }
    Ok(is_changed)
}

/// Makes zeros of the undefined values outside of functions.
fn define_globals(module: &mut Module) -> bool {
    let is_undefined = |i: &Instruction<'_>| i.op() == Some(Op::Undef);
    if !module.section(Section::Globals).iter().any(|i| is_undefined(&i)) {
        return false;
    }
    let mut globals = Stream::default();
    for i in module.section(Section::Globals).iter() {
        match i.op() {
            Some(Op::Undef) => globals.push(Op::ConstantNull, i.words_from(0)),
            _ => globals.push_instruction(&i),
        }
    }
    *module.section_mut(Section::Globals) = globals;
    true
}

/// Defines the values of a function. Its variables keep their contents to its end: after the start of a lifetime, they
/// would be undefined again.
fn define_function(module: &mut Module, interner: &mut Interner, at: usize) -> Result<bool> {
    let pointees = unset_variables(module, at);
    let undefined = |i: &Instruction<'_>| match i.view() {
        View::Shuffle { lanes, .. } => lanes.iter().any(|lane| lane == u32::MAX),
        _ => i.op() == Some(Op::Undef) || i.class() == Some(Class::Lifetime),
    };
    if pointees.is_empty() && !module.functions[at].body.iter().any(|i| undefined(&i)) {
        return Ok(false);
    }
    let body = std::mem::take(&mut module.functions[at].body);
    let mut new = Stream::default();
    let mut pointees = pointees.into_iter().peekable();
    for i in body.iter() {
        match i.op() {
            _ if i.class() == Some(Class::Lifetime) => {}
            Some(Op::Variable) => match pointees.next_if(|(id, _)| i.result() == Some(*id)) {
                Some((_, pointee)) => {
                    let zero = interner.constant_id(module, Op::ConstantNull, pointee, &[])?;
                    new.push(Op::Variable, i.words_from(0).chain([zero]));
                }
                None => new.push_instruction(&i),
            },
            Some(Op::Undef) => {
                let ty = i.result_type().unwrap_or_default();
                let zero = interner.constant_id(module, Op::ConstantNull, ty, &[])?;
                new.push(Op::CopyObject, i.words_from(0).chain([zero]));
            }
            Some(Op::VectorShuffle) => {
                // The first four words are no components.
                let defined = |at| if at == u32::MAX { 0 } else { at };
                let words = i.words_from(0).enumerate();
                let words = words.map(|(word, at)| if word < 4 { at } else { defined(at) });
                new.push(Op::VectorShuffle, words);
            }
            _ => new.push_instruction(&i),
        }
    }
    module.functions[at].body = new;
    Ok(true)
}

/// Returns the variables of a function that have no initial value and may be read before they are written, in order, with
/// the types of their contents.
fn unset_variables(module: &Module, at: usize) -> Vec<(u32, u32)> {
    let definitions = module.definitions();
    let unset = |i: Instruction<'_>| {
        let View::Variable { class, initial: None } = i.view() else { return None };
        let pointee = definitions.get(i.result_type()?)?.pointee()?;
        let is_private = class == StorageClass::Function as u32;
        (is_private && has_zero(&definitions, pointee)).then_some((i.result()?, pointee))
    };
    let mut unset: Vec<_> = module.functions[at].body.iter().filter_map(unset).collect();
    if !unset.is_empty() {
        let uses = Uses::of(&definitions, at, unset.iter().map(|(id, _)| *id).collect());
        unset.retain(|(id, _)| !uses.are_after_a_store(*id));
    }
    unset
}

/// Position of an instruction: its block, and its place in that.
type Position = (usize, usize);

/// Uses of variables in a function.
struct Uses {
    dominators: Dominators,
    /// Stores of whole variables.
    stores: HashMap<u32, Vec<Position>>,
    /// All other uses.
    others: HashMap<u32, Vec<Position>>,
}

impl Uses {
    fn of(definitions: &Definitions<'_>, at: usize, variables: HashSet<u32>) -> Self {
        let function = &definitions.module().functions[at];
        let (_, blocks) = blocks(definitions, located((at as u32, &function.body)));
        let edges = blocks.iter().enumerate();
        let edges = edges.flat_map(|(at, block)| block.next.iter().map(move |&next| (at, next)));
        let dominators = Dominators::of(blocks.len().max(1), edges, 0);
        let (mut stores, mut others) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
        for (block, known) in blocks.iter().enumerate() {
            for (place, (_, i)) in known.body.iter().enumerate() {
                let whole = match i.view() {
                    View::Store { pointer, value, .. } if pointer != value => Some(pointer),
                    _ => None,
                };
                let is_marker = i.class() == Some(Class::Lifetime);
                let known = operand_ids(i, definitions, |id| {
                    if variables.contains(&id) && !is_marker {
                        let uses = if whole == Some(id) { &mut stores } else { &mut others };
                        uses.entry(id).or_default().push((block, place));
                    }
                });
                if known.is_err() {
                    // Any variable may be used here.
                    variables.iter().for_each(|id| others.entry(*id).or_default().push((0, 0)));
                }
            }
        }
        Self { dominators, stores, others }
    }

    /// Returns whether one store of a whole variable comes before all its other uses.
    fn are_after_a_store(&self, variable: u32) -> bool {
        let of =
            |uses: &HashMap<u32, Vec<Position>>| uses.get(&variable).cloned().unwrap_or_default();
        let others = of(&self.others);
        of(&self.stores).iter().any(|store| others.iter().all(|used| self.is_before(*store, *used)))
    }

    /// Returns whether an instruction runs before another one, whenever that runs.
    fn is_before(&self, one: Position, other: Position) -> bool {
        if one.0 == other.0 {
            return one.1 < other.1;
        }
        let mut above = self.dominators.all(other.0).into_iter().flatten();
        above.any(|block| block == one.0)
    }
}

/// Returns whether a type has a value of zeros. The analysis refuses pointers that were never set.
fn has_zero(definitions: &Definitions<'_>, ty: u32) -> bool {
    let op = definitions.get(ty).and_then(|ty| ty.op());
    matches!(
        op,
        Some(
            Op::TypeBool
                | Op::TypeInt
                | Op::TypeFloat
                | Op::TypeVector
                | Op::TypeArray
                | Op::TypeStruct
        )
    )
}

/// Saturates the conversions of floating-point numbers to integers of the usual widths. A conversion that is not
/// saturated has no value for numbers that are too large, nor for NaN.
fn saturate_conversions(module: &mut Module) -> bool {
    let definitions = module.definitions();
    let annotations = module.section(Section::Annotations).iter();
    let known: HashSet<_> = annotations
        .filter_map(|i| i.decoration(Decoration::SaturatedConversion))
        .map(|(id, _)| id)
        .collect();
    let is_usual = |i: &Instruction<'_>| {
        let declared = i.result_type().and_then(|ty| definitions.get(ty));
        let part = declared.and_then(|ty| match ty.vector() {
            Some((component, _)) => definitions.get(component)?.width(),
            None => ty.width(),
        });
        matches!(part, Some(8 | 16 | 32 | 64))
    };
    let all = module.functions.iter().flat_map(|function| function.body.iter());
    let conversions =
        all.filter(|i| matches!(i.op(), Some(Op::ConvertFToU | Op::ConvertFToS)) && is_usual(i));
    let new = conversions.filter_map(|i| i.result()).filter(|id| !known.contains(id));
    let new: BTreeSet<_> = new.collect();
    let annotations = module.section_mut(Section::Annotations);
    for &id in &new {
        annotations.push(Op::Decorate, [id, Decoration::SaturatedConversion as u32]);
    }
    !new.is_empty()
}

/// Struct that is passed by value from memory that may be smaller.
struct Copied {
    caller: usize,
    /// Result of the call.
    call: u32,
    /// Position of the argument.
    argument: usize,
    /// Type of the pointer to the struct.
    ty: u32,
}

/// Copies structs that are passed by value to variables of their own, unless they are whole variables. The driver copies
/// as many bytes as the struct has, wherever the pointer leads, which is no access of the module.
fn copy_structs(module: &mut Module) -> Result<bool> {
    let copied = copied_structs(module);
    for Copied { caller, call, argument, ty } in &copied {
        let variable = module.fresh_id()?;
        let body = std::mem::take(&mut module.functions[*caller].body);
        let (mut new, mut is_declared) = (Stream::default(), false);
        for i in body.iter() {
            if i.op() == Some(Op::FunctionCall) && i.result() == Some(*call) {
                // After the type, the result and the function.
                let at = 3 + argument;
                let mut words: Vec<_> = i.words_from(0).collect();
                new.push(Op::CopyMemory, [variable, words[at]]);
                words[at] = variable;
                new.push(Op::FunctionCall, words);
                continue;
            }
            new.push_instruction(&i);
            if i.op() == Some(Op::Label) && !std::mem::replace(&mut is_declared, true) {
                new.push(Op::Variable, [*ty, variable, StorageClass::Function as u32]);
            }
        }
        module.functions[*caller].body = new;
    }
    Ok(!copied.is_empty())
}

/// Returns the structs that calls pass by value, unless they are whole variables.
fn copied_structs(module: &Module) -> Vec<Copied> {
    let definitions = module.definitions();
    let by_value = by_value(module);
    let mut copied = Vec::new();
    if by_value.is_empty() {
        return copied;
    }
    let is_whole = |id: u32| match definitions.get(id).and_then(|i| i.op()) {
        Some(Op::Variable) => true,
        Some(Op::FunctionParameter) => by_value.contains(&id),
        _ => false,
    };
    for (caller, function) in module.functions.iter().enumerate() {
        for i in function.body.iter() {
            let (Some(called), Some(call)) = (i.called(), i.result()) else { continue };
            let callee = module.functions.iter().find(|known| known.id == called);
            let declared = callee.map(|known| Declaration::of(&known.body));
            let parameters = declared.map(|known| known.parameters).unwrap_or_default();
            for (argument, (id, &(parameter, ty))) in i.arguments().zip(&parameters).enumerate() {
                let class = definitions.get(ty).and_then(|ty| ty.storage_class());
                let is_private = class == Some(StorageClass::Function as u32);
                if by_value.contains(&parameter) && is_private && !is_whole(id) {
                    copied.push(Copied { caller, call, argument, ty });
                }
            }
        }
    }
    copied
}

/// Returns the reason why a kernel's module is refused for a struct that is passed by value, worded to follow "it".
pub(super) fn refused_struct(definitions: &Definitions<'_>) -> Option<String> {
    let module = definitions.module();
    let is_private = |id: &u32| {
        let class = definitions.type_of(*id).and_then(|ty| ty.storage_class());
        class == Some(StorageClass::Function as u32)
    };
    if !by_value(module).iter().all(is_private) {
        return Some("it passes a struct by value that is not in private memory".to_owned());
    }
    let is_unchecked = !copied_structs(module).is_empty();
    is_unchecked.then(|| "it passes a struct by value from memory that may be smaller".to_owned())
}
