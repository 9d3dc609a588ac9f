//! Pointers that move in loops, such as `p` in `for (i = 0; i < n; i++) sum += *p++;`.
//!
//! The analysis follows integers in loops, and pointers as a base with an integer offset. A pointer that
//! moves by the same number of elements in each iteration is its first value plus a multiple of that number,
//! and the multiple follows from the loop's counter. So the phi of such a pointer is replaced by that
//! calculation, from a counter that changes by 1 in each iteration.

use std::collections::{HashMap, HashSet};

use kiln_spirv::edit::{Class, Definitions, Instruction, Interner, Stream, View, located};
use kiln_spirv::{Module, Result};
use rspirv::spirv::Op;

use super::blocks::{Block, Blocks};
use crate::analysis::constants::{address_width, constant};

/// Replaces the phis of pointers that move in loops with counters. Functions for which `is_fixed` returns
/// true stay as they are.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out.
pub(crate) fn follow_moving_pointers(
    module: &mut Module,
    is_fixed: impl Fn(&Definitions<'_>, u32) -> bool,
) -> Result<()> {
    let snapshot = module.clone();
    let definitions = snapshot.definitions();
    let width = address_width(&snapshot);
    let mut interner = Interner::of(module);
    for (at, function) in snapshot.functions.iter().enumerate() {
        let Some(blocks) = Blocks::of(&snapshot, &definitions, at) else { continue };
        let moving: HashMap<_, _> =
            blocks.all.iter().flat_map(|block| moving(block, &definitions)).collect();
        if moving.is_empty() || is_fixed(&definitions, function.id) {
            continue;
        }
        let mut writer = Writer { module, interner: &mut interner, width, new: Stream::default() };
        let mut waiting = Vec::new();
        for (_, i) in located((0, &function.body)) {
            if let Some(moving) = i.result().and_then(|id| moving.get(&id)) {
                waiting.push(moving);
                continue;
            }
            if !matches!(i.class(), Some(Class::Phi | Class::Label | Class::Line)) {
                for moving in waiting.drain(..) {
                    writer.write(moving)?;
                }
            }
            writer.new.push_instruction(&i);
        }
        let new = writer.new;
        module.functions[at].body = new;
    }
    Ok(())
}

/// Pointer that moves in a loop.
struct Moving {
    /// Id of its phi, and the phi's type.
    pointer: u32,
    ty: u32,
    /// Value in the first iteration.
    first: u32,
    /// Number of elements by which it moves in each iteration.
    step: i128,
    counter: Counter,
}

/// Integer that changes by 1 in each iteration of a loop.
#[derive(Clone, Copy)]
struct Counter {
    id: u32,
    ty: u32,
    width: u32,
    /// Value in the first iteration.
    first: u32,
    grows: bool,
}

/// Returns the pointers that move in the loop that a block begins, by the ids of their phis.
fn moving(block: &Block<'_>, definitions: &Definitions<'_>) -> Vec<(u32, Moving)> {
    let phis: Vec<_> = block.body.iter().map(|(_, i)| *i).take_while(is_phi).collect();
    let own: HashSet<_> = phis.iter().filter_map(|phi| phi.result()).collect();
    let steps: Vec<_> = phis.iter().filter_map(|phi| Step::of(phi, &own, definitions)).collect();
    let counters = steps.iter().filter_map(|step| Some((step.latch, step.counter(definitions)?)));
    let counters: Vec<_> = counters.collect();
    let pointers = steps.iter().filter_map(|step| {
        let moves = step.pointer(definitions)?;
        let (_, counter) = counters.iter().find(|(latch, _)| *latch == step.latch)?;
        let Step { phi, ty, first, .. } = *step;
        Some((phi, Moving { pointer: phi, ty, first, step: moves, counter: *counter }))
    });
    pointers.collect()
}

fn is_phi(i: &Instruction<'_>) -> bool {
    i.op() == Some(Op::Phi)
}

/// Phi of two values: one in the first iteration, and one in all others.
struct Step<'m> {
    phi: u32,
    ty: u32,
    first: u32,
    /// Calculation of the value for the next iteration.
    next: Instruction<'m>,
    /// Label of the block that leads to the next iteration.
    latch: u32,
}

impl<'m> Step<'m> {
    /// Returns the values of a phi whose next value is calculated from itself. `own` are the phis of its block.
    fn of(
        phi: &Instruction<'m>,
        own: &HashSet<u32>,
        definitions: &Definitions<'m>,
    ) -> Option<Self> {
        let (id, ty) = phi.result().zip(phi.result_type())?;
        let incoming: Vec<_> = phi.incoming().collect();
        let &[(a, from_a), (b, from_b)] = incoming.as_slice() else { return None };
        let next_of = |value: u32| {
            let i = definitions.get(value)?;
            let is_own = match i.view() {
                View::Binary { left, right } => {
                    matches!(i.op()?, Op::IAdd | Op::ISub) && [left, right].contains(&id)
                }
                View::PtrChain { .. } => {
                    let (base, mut indexes) = i.chain()?;
                    base == id || indexes.any(|index| index == id)
                }
                _ => false,
            };
            is_own.then_some(i)
        };
        let (first, next, latch) = match (next_of(a), next_of(b)) {
            (None, Some(next)) => (a, next, from_b),
            (Some(next), None) => (b, next, from_a),
            _ => return None,
        };
        // Another phi of the block has a value of an earlier iteration.
        (!own.contains(&first)).then_some(Self { phi: id, ty, first, next, latch })
    }

    fn counter(&self, definitions: &Definitions<'_>) -> Option<Counter> {
        let (a, b) = self.next.both()?;
        let change = match self.next.op()? {
            Op::IAdd if a == self.phi => constant(definitions, b)?,
            Op::IAdd if b == self.phi => constant(definitions, a)?,
            Op::ISub if a == self.phi => -constant(definitions, b)?,
            _ => return None,
        };
        let ty = definitions.get(self.ty).filter(|ty| ty.op() == Some(Op::TypeInt))?;
        let width = ty.width().filter(|width| matches!(width, 32 | 64))?;
        let Self { phi: id, ty, first, .. } = *self;
        (change.abs() == 1).then_some(Counter { id, ty, width, first, grows: change == 1 })
    }

    /// Returns the number of elements by which a pointer moves.
    fn pointer(&self, definitions: &Definitions<'_>) -> Option<i128> {
        let View::PtrChain { base, element, indexes } = self.next.view() else { return None };
        let is_single = base == self.phi && indexes.is_empty();
        let is_moved = is_single && self.next.result_type() == Some(self.ty);
        constant(definitions, Some(element).filter(|_| is_moved)?)
    }
}

/// Writer of a function without such phis.
struct Writer<'w> {
    module: &'w mut Module,
    interner: &'w mut Interner,
    /// Width of addresses in bits.
    width: u32,
    new: Stream,
}

impl Writer<'_> {
    /// Writes the calculation of a pointer from the loop's counter.
    fn write(&mut self, moving: &Moving) -> Result<()> {
        let Counter { id, ty, width, first, grows } = moving.counter;
        let operands = if grows { [id, first] } else { [first, id] };
        let mut iterations = self.typed(ty, Op::ISub, &operands)?;
        let address = self.interner.type_id(self.module, Op::TypeInt, &[self.width, 0])?;
        if width != self.width {
            iterations = self.typed(address, Op::UConvert, &[iterations])?;
        }
        let bits = moving.step as u64;
        let words = [bits as u32, (bits >> 32) as u32];
        let words = &words[..(self.width / 32).clamp(1, 2) as usize];
        let step = self.interner.constant_id(self.module, Op::Constant, address, words)?;
        let index = self.typed(address, Op::IMul, &[iterations, step])?;
        let words = [moving.ty, moving.pointer, moving.first, index];
        self.new.push(Op::PtrAccessChain, words);
        Ok(())
    }

    fn typed(&mut self, ty: u32, op: Op, operands: &[u32]) -> Result<u32> {
        let id = self.module.fresh_id()?;
        self.new.push(op, [ty, id].into_iter().chain(operands.iter().copied()));
        Ok(id)
    }
}
