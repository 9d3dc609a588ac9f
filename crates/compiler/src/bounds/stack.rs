//! Memory that each work-item of a kernel needs on the stack of a thread, where a CPU's driver runs work-items.
//!
//! Drivers for CPUs run the work-items of a work-group on one thread, one after the other from barrier to barrier. What
//! they keep for each work-item is on the stack of that thread, for all work-items at the same time:
//!
//! * the variables of functions;
//! * structs and arrays that are values: those that are loaded, passed and returned, and the copies of structs that are
//!   passed by value;
//! * values that are set before a barrier and used after it.
//!
//! Drivers inline functions, so that the memory of a function counts as often as the function is called.

use std::collections::{BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::{Class, Definitions, Instruction, Section, located, operand_ids};
use rspirv::spirv::Op;

use crate::analysis::access::Layouts;
use crate::analysis::blocks::{Block, blocks};
use crate::analysis::declaration::by_value;
use crate::analysis::uniformity::Collectives;

/// Number of bytes of which the size of a value on the stack is taken to be a multiple.
const SLOT: u64 = 8;

/// Stack of the functions of a module.
pub(super) struct Stack<'a, 'm> {
    definitions: &'a Definitions<'m>,
    layouts: &'a Layouts,
    /// Parameters that are copies of structs.
    copied: HashSet<u32>,
    /// Bytes of the functions that were measured; `None` where a size is not known.
    measured: HashMap<u32, Option<u64>>,
    /// Instructions in which work-items wait for each other.
    barriers: Collectives,
}

impl<'a, 'm> Stack<'a, 'm> {
    pub(super) fn of(definitions: &'a Definitions<'m>, layouts: &'a Layouts) -> Self {
        let module = definitions.module();
        Self {
            definitions,
            layouts,
            copied: by_value(module),
            measured: HashMap::new(),
            barriers: Collectives::of(module),
        }
    }

    /// Returns the number of bytes that a function and the functions that it calls need at the same time, at most;
    /// `None` if the size of a value is not known. No function calls itself.
    pub(super) fn bytes(&mut self, function: u32) -> Option<u64> {
        if let Some(&known) = self.measured.get(&function) {
            return known;
        }
        let measured = self.measure(function);
        self.measured.insert(function, measured);
        measured
    }

    fn measure(&mut self, function: u32) -> Option<u64> {
        let functions = (Section::COUNT as u32..).zip(&self.definitions.module().functions);
        let (stream, known) = functions.into_iter().find(|(_, known)| known.id == function)?;
        let mut bytes = 0_u64;
        for i in known.body.iter() {
            bytes = bytes.saturating_add(self.of_instruction(&i)?);
            if i.op() == Some(Op::FunctionCall) {
                bytes = bytes.saturating_add(self.bytes(i.called()?)?);
            }
        }
        if self.barriers.are_in(function) {
            let (_, blocks) = blocks(self.definitions, located((stream, &known.body)));
            bytes = bytes.saturating_add(self.kept(&blocks)?);
        }
        Some(bytes)
    }

    /// Returns the number of bytes that an instruction takes by itself.
    fn of_instruction(&self, i: &Instruction<'m>) -> Option<u64> {
        let ty = i.result_type().and_then(|ty| self.definitions.get(ty));
        let op = ty.as_ref().and_then(Instruction::op);
        let is_copied = i.op() == Some(Op::FunctionParameter)
            && i.result().is_some_and(|id| self.copied.contains(&id));
        match op {
            Some(Op::TypePointer) if i.op() == Some(Op::Variable) || is_copied => {
                self.size(ty.and_then(|ty| ty.pointee())?)
            }
            Some(Op::TypeStruct | Op::TypeArray) if i.op() != Some(Op::Undef) => {
                self.size(i.result_type()?)
            }
            _ => Some(0),
        }
    }

    fn size(&self, ty: u32) -> Option<u64> {
        let bytes = u64::try_from(self.layouts.size(ty)?).ok()?;
        Some(bytes.next_multiple_of(SLOT))
    }

    /// Returns the number of bytes of the values of a function that may be kept for a work-item while others run: those
    /// that may be set before a barrier and used after one.
    fn kept(&self, blocks: &[Block<'m>]) -> Option<u64> {
        let barriers: Vec<Vec<usize>> = blocks.iter().map(|block| self.barriers(block)).collect();
        let with_barriers = (0..blocks.len()).filter(|&at| !barriers[at].is_empty());
        let with_barriers: Vec<_> = with_barriers.collect();
        let mut previous = vec![Vec::new(); blocks.len()];
        for (at, block) in blocks.iter().enumerate() {
            block.next.iter().for_each(|&next| previous[next].push(at));
        }
        // Blocks from whose end a barrier may be reached, and blocks that may begin after one.
        let before = reached(&with_barriers, &previous);
        let next: Vec<_> = blocks.iter().map(|block| block.next.clone()).collect();
        let after = reached(&with_barriers, &next);
        let mut set = HashMap::new();
        for (at, block) in blocks.iter().enumerate() {
            for (position, (_, i)) in block.body.iter().enumerate() {
                i.result().map(|id| set.insert(id, (at, position, *i)));
            }
        }
        let mut kept = BTreeSet::new();
        let mut use_at = |id: u32, (at, position): (usize, usize)| {
            let Some(&(own, from, _)) = set.get(&id) else { return };
            let is_set_before = before[own] || barriers[own].iter().any(|&barrier| barrier > from);
            let is_used_after = after[at] || barriers[at].iter().any(|&barrier| barrier < position);
            let is_between = own != at
                || position < from
                || barriers[at].iter().any(|barrier| (from + 1..position).contains(barrier));
            if is_set_before && is_used_after && is_between {
                kept.insert(id);
            }
        };
        let labels: HashMap<_, _> =
            blocks.iter().enumerate().map(|(at, block)| (block.label, at)).collect();
        for (at, block) in blocks.iter().enumerate() {
            for (position, (_, i)) in block.body.iter().enumerate() {
                if i.op() == Some(Op::Phi) {
                    for (value, from) in i.incoming() {
                        // The value is used at the end of the block that it comes from.
                        let from = labels.get(&from).copied().unwrap_or(at);
                        use_at(value, (from, usize::MAX));
                    }
                    continue;
                }
                _ = operand_ids(i, self.definitions, |id| use_at(id, (at, position)));
            }
        }
        let mut bytes = 0_u64;
        for id in kept {
            let (_, _, i) = set.get(&id)?;
            // Variables and composite values are counted already.
            if i.op() == Some(Op::Variable) || self.of_instruction(i)? > 0 {
                continue;
            }
            let ty = i.result_type()?;
            let declared = self.definitions.get(ty)?;
            let size = match (declared.op()?, declared.class()) {
                (Op::TypeBool | Op::TypeVoid, _) | (_, Some(Class::Object)) => SLOT,
                (Op::TypeVector, _) => self.size(ty).unwrap_or(16 * SLOT),
                _ => self.size(ty)?,
            };
            bytes = bytes.saturating_add(size);
        }
        Some(bytes)
    }

    /// Returns the positions of the barriers in a block.
    fn barriers(&self, block: &Block<'m>) -> Vec<usize> {
        let all = block.body.iter().enumerate();
        all.filter(|(_, (_, i))| self.barriers.include(i)).map(|(position, _)| position).collect()
    }
}

/// Returns which blocks are reached from the given ones by at least one step.
fn reached(from: &[usize], next: &[Vec<usize>]) -> Vec<bool> {
    let mut reached = vec![false; next.len()];
    let mut pending = from.to_vec();
    while let Some(at) = pending.pop() {
        for &block in &next[at] {
            if !std::mem::replace(&mut reached[block], true) {
                pending.push(block);
            }
        }
    }
    reached
}
