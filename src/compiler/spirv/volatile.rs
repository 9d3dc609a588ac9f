//! Takes volatile loads apart: a load that is not volatile, whose value then goes through a volatile variable of the
//! work-item.
//!
//! For drivers that do volatile loads regardless of the branches around them: see `Workarounds::split_volatile_loads`.
//! A work-item may always load its own variable. Its value is unknown to a compiler, as that of a volatile load is,
//! so that no compiler loads the memory again in place of using the value.

use std::collections::BTreeMap;

use rspirv::spirv::{MemoryAccess, Op, StorageClass};

use super::index::IdSet;
use super::intern::Interner;
use super::module::Module;
use super::stream::Stream;
use super::words::Instruction;
use crate::error::Result;

const VOLATILE: u32 = MemoryAccess::VOLATILE.bits();

/// Splits the volatile loads of all functions, besides those of whole variables. Volatile copies become copies that
/// are not volatile. Returns whether there are any.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported) if ids run out.
pub(crate) fn split_volatile_loads(module: &mut Module) -> Result<bool> {
    let variables = variables(module);
    let mut interner = Interner::of(module);
    let mut is_changed = false;
    for at in 0..module.functions.len() {
        let body = std::mem::take(&mut module.functions[at].body);
        let types = loaded_types(&body, &variables);
        let has_copies = body.iter().any(|i| is_volatile_copy(&i));
        if types.is_empty() && !has_copies {
            module.functions[at].body = body;
            continue;
        }
        is_changed = true;
        let mut own = BTreeMap::new();
        for ty in types {
            let class = StorageClass::Function as u32;
            let pointer = interner.type_id(module, Op::TypePointer, &[class, ty])?;
            own.insert(ty, Variable { pointer, id: module.fresh_id()? });
        }
        let new = split(module, &body, &variables, &own)?;
        module.functions[at].body = new;
    }
    Ok(is_changed)
}

/// Volatile variable of a function.
struct Variable {
    /// Type of the pointer to the variable.
    pointer: u32,
    id: u32,
}

/// Returns the ids of all variables.
fn variables(module: &Module) -> IdSet {
    let mut variables = IdSet::of(module);
    for function in &module.functions {
        for i in function.body.iter().filter(|i| i.op() == Some(Op::Variable)) {
            i.result().map(|id| variables.insert(id));
        }
    }
    variables
}

/// Returns the types of the values of the loads that are split, without duplicates.
fn loaded_types(body: &Stream, variables: &IdSet) -> Vec<u32> {
    let loads = body.iter().filter(|i| is_split(i, variables));
    let mut types: Vec<_> = loads.filter_map(|i| i.result_type()).collect();
    types.sort_unstable();
    types.dedup();
    types
}

/// Returns whether an instruction is a volatile load, besides that of a whole variable of the function.
fn is_split(i: &Instruction<'_>, variables: &IdSet) -> bool {
    i.op() == Some(Op::Load)
        && i.word(3).is_some_and(|mask| mask & VOLATILE != 0)
        && i.word(2).is_some_and(|pointer| !variables.contains(pointer))
}

/// Returns the positions of the operands of a copy that say how memory is accessed. There may be one for the memory
/// that is written, and another for the memory that is read. Operands that belong to the first one come in between.
fn copy_masks(i: &Instruction<'_>) -> impl Iterator<Item = usize> {
    let first = match i.op() {
        Some(Op::CopyMemory) => Some(2),
        Some(Op::CopyMemorySized) => Some(3),
        _ => None,
    };
    let first = first.filter(|&at| i.word(at).is_some());
    let second = first.and_then(|at| {
        let mask = MemoryAccess::from_bits_truncate(i.word(at)?);
        let with_operand = [
            MemoryAccess::ALIGNED,
            MemoryAccess::MAKE_POINTER_AVAILABLE,
            MemoryAccess::MAKE_POINTER_VISIBLE,
            MemoryAccess::ALIAS_SCOPE_INTEL_MASK,
            MemoryAccess::NO_ALIAS_INTEL_MASK,
        ];
        let operands = with_operand.iter().filter(|&&bit| mask.contains(bit)).count();
        Some(at + 1 + operands).filter(|&at| i.word(at).is_some())
    });
    first.into_iter().chain(second)
}

fn is_volatile_copy(i: &Instruction<'_>) -> bool {
    copy_masks(i).any(|at| i.word(at).is_some_and(|mask| mask & VOLATILE != 0))
}

/// Returns the new body of a function. `own` has its volatile variables, by the types of the values.
fn split(
    module: &mut Module,
    body: &Stream,
    variables: &IdSet,
    own: &BTreeMap<u32, Variable>,
) -> Result<Stream> {
    let (mut new, mut is_declared) = (Stream::default(), false);
    for i in body.iter() {
        let mut words: Vec<_> = i.words_from(0).collect();
        let variable = i.result_type().and_then(|ty| own.get(&ty));
        match (i.op(), variable) {
            (Some(Op::Load), Some(variable)) if is_split(&i, variables) => {
                let (ty, result, value) = (words[0], words[1], module.fresh_id()?);
                words[1] = value;
                words[3] &= !VOLATILE;
                new.push(Op::Load, words);
                new.push(Op::Store, [variable.id, value, VOLATILE]);
                new.push(Op::Load, [ty, result, variable.id, VOLATILE]);
            }
            (Some(op), _) if is_volatile_copy(&i) => {
                copy_masks(&i).for_each(|at| words[at] &= !VOLATILE);
                new.push(op, words);
            }
            _ => new.push_instruction(&i),
        }
        // Variables are declared at the beginning of the first block.
        if i.op() == Some(Op::Label) && !is_declared {
            is_declared = true;
            for Variable { pointer, id } in own.values() {
                new.push(Op::Variable, [*pointer, *id, StorageClass::Function as u32]);
            }
        }
    }
    Ok(new)
}
