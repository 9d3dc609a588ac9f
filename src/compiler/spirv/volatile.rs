//! Volatile loads, and values that go through volatile variables of a work-item.
//!
//! A compiler knows nothing of the value of a volatile load, so that it cannot load or calculate that value again where
//! it is used. A value that was stored in a volatile variable before has the same property, and a work-item may always
//! load its own variable.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rspirv::spirv::{MemoryAccess, Op, StorageClass};

use super::index::IdSet;
use super::intern::Interner;
use super::module::Module;
use super::stream::Stream;
use super::words::Instruction;
use crate::error::Result;

const VOLATILE: u32 = MemoryAccess::VOLATILE.bits();

/// Makes the volatile loads of all functions plain ones, whose values go through volatile variables. Loads of whole
/// variables stay. Volatile copies become plain, too. Returns whether there are any.
///
/// This is for drivers that do volatile loads regardless of the branches around them: see
/// `Workarounds::split_volatile_loads`.
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
        let loads = body.iter().filter(|i| is_split(i, &variables));
        let types: BTreeSet<_> = loads.filter_map(|i| i.result_type()).collect();
        is_changed |= !types.is_empty() || body.iter().any(|i| is_volatile_copy(&i));
        let mut new = Code::new(module, &mut interner, types)?;
        for i in body.iter() {
            let mut words: Vec<_> = i.words_from(0).collect();
            if is_split(&i, &variables) {
                words[3] &= !VOLATILE;
                new.through_variable(module, Op::Load, words)?;
            } else if let Some(op) = i.op().filter(|_| is_volatile_copy(&i)) {
                copy_masks(&i).for_each(|at| words[at] &= !VOLATILE);
                new.stream.push(op, words);
            } else {
                new.push(&i);
            }
        }
        module.functions[at].body = new.stream;
    }
    Ok(is_changed)
}

/// Lets the results of instructions go through volatile variables. `values` has the ids of the results. None of the
/// instructions may come before an `OpPhi` of its block.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported) if ids run out.
pub(crate) fn keep_values(module: &mut Module, values: &HashSet<u32>) -> Result<()> {
    let mut interner = Interner::of(module);
    let is_kept = |i: &Instruction<'_>| i.result().is_some_and(|id| values.contains(&id));
    for at in 0..module.functions.len() {
        if !module.functions[at].body.iter().any(|i| is_kept(&i)) {
            continue;
        }
        let body = std::mem::take(&mut module.functions[at].body);
        let types = body.iter().filter(is_kept).filter_map(|i| i.result_type()).collect();
        let mut new = Code::new(module, &mut interner, types)?;
        for i in body.iter() {
            match i.op().filter(|_| is_kept(&i)) {
                Some(op) => new.through_variable(module, op, i.words_from(0).collect())?,
                None => new.push(&i),
            }
        }
        module.functions[at].body = new.stream;
    }
    Ok(())
}

/// New body of a function.
struct Code {
    stream: Stream,
    /// Volatile variables of the function, by the types of their values.
    variables: BTreeMap<u32, Variable>,
    is_declared: bool,
}

/// Volatile variable of a function.
struct Variable {
    /// Type of the pointer to the variable.
    pointer: u32,
    id: u32,
}

impl Code {
    fn new(module: &mut Module, interner: &mut Interner, types: BTreeSet<u32>) -> Result<Self> {
        let class = StorageClass::Function as u32;
        let mut variables = BTreeMap::new();
        for ty in types {
            let pointer = interner.type_id(module, Op::TypePointer, &[class, ty])?;
            variables.insert(ty, Variable { pointer, id: module.fresh_id()? });
        }
        Ok(Self { stream: Stream::default(), variables, is_declared: false })
    }

    /// Writes an instruction as it is, and the variables at the beginning of the first block.
    fn push(&mut self, i: &Instruction<'_>) {
        self.stream.push_instruction(i);
        if i.op() == Some(Op::Label) && !self.is_declared {
            self.is_declared = true;
            for Variable { pointer, id } in self.variables.values() {
                self.stream.push(Op::Variable, [*pointer, *id, StorageClass::Function as u32]);
            }
        }
    }

    /// Writes an instruction whose result goes through a variable. `words` are its operands.
    fn through_variable(&mut self, module: &mut Module, op: Op, mut words: Vec<u32>) -> Result<()> {
        let (ty, result, value) = (words[0], words[1], module.fresh_id()?);
        let Some(Variable { id, .. }) = self.variables.get(&ty) else {
            self.stream.push(op, words);
            return Ok(());
        };
        words[1] = value;
        self.stream.push(op, words);
        self.stream.push(Op::Store, [*id, value, VOLATILE]);
        self.stream.push(Op::Load, [ty, result, *id, VOLATILE]);
        Ok(())
    }
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
