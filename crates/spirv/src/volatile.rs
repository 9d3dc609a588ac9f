//! Volatile loads, and values that go through volatile variables of a work-item.
//!
//! A compiler knows nothing of the value of a volatile load, so that it cannot load or calculate that value again where
//! it is used. A value that was stored in a volatile variable before has the same property, and a work-item may always
//! load its own variable.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rspirv::spirv::{MemoryAccess, Op, StorageClass};

use super::ids::IdSet;
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
pub fn split_volatile_loads(module: &mut Module) -> Result<bool> {
    let variables = variables(module);
    let mut values = HashSet::new();
    let mut is_changed = false;
    for function in &mut module.functions {
        if !function.body.iter().any(|i| volatile_operands(&i, &variables).is_some()) {
            continue;
        }
        is_changed = true;
        let mut plain = Stream::default();
        for i in function.body.iter() {
            let mut words: Vec<_> = i.words_from(0).collect();
            match i.op().zip(volatile_operands(&i, &variables)) {
                Some((op, operands)) => {
                    operands.into_iter().flatten().for_each(|at| words[at] &= !VOLATILE);
                    values.extend(i.result());
                    plain.push(op, words);
                }
                None => plain.push_instruction(&i),
            }
        }
        function.body = plain;
    }
    keep_values(module, &values)?;
    Ok(is_changed)
}

/// Lets the results of instructions go through volatile variables. `values` has the ids of the results. None of the
/// instructions may come before an `OpPhi` of its block.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported) if ids run out.
pub fn keep_values(module: &mut Module, values: &HashSet<u32>) -> Result<()> {
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

/// Returns the positions of the operands that make an instruction a volatile load or copy. Loads of whole variables
/// of the function have none.
fn volatile_operands(i: &Instruction<'_>, variables: &IdSet) -> Option<[Option<usize>; 2]> {
    let is_volatile = |at: &usize| i.word(*at).is_some_and(|mask| mask & VOLATILE != 0);
    let masks = match i.op() {
        Some(Op::Load) if i.word(2).is_some_and(|id| !variables.contains(id)) => [Some(3), None],
        Some(Op::CopyMemory) => [Some(2), second_mask(i, 2)],
        Some(Op::CopyMemorySized) => [Some(3), second_mask(i, 3)],
        _ => return None,
    };
    let masks = masks.map(|at| at.filter(is_volatile));
    masks.iter().any(Option::is_some).then_some(masks)
}

/// Returns the position of the operand that says how a copy reads memory, if it does not share the one for writes. The
/// operands that belong to the one for writes, which is at `first`, come in between.
fn second_mask(i: &Instruction<'_>, first: usize) -> Option<usize> {
    let mask = MemoryAccess::from_bits_truncate(i.word(first)?);
    let with_operand = [
        MemoryAccess::ALIGNED,
        MemoryAccess::MAKE_POINTER_AVAILABLE,
        MemoryAccess::MAKE_POINTER_VISIBLE,
        MemoryAccess::ALIAS_SCOPE_INTEL_MASK,
        MemoryAccess::NO_ALIAS_INTEL_MASK,
    ];
    let operands = with_operand.iter().filter(|&&bit| mask.contains(bit)).count();
    Some(first + 1 + operands)
}
