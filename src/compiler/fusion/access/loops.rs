//! Bounds of loop counters.
//!
//! A loop counter is a phi that is `initial` at first and `phi + step` in each further iteration, with a
//! positive step. The loop must compare the phi or `phi + step` with a bound, at its head or at its end.
//! The maximum number of iterations follows from `bound - initial`. The phi is then `initial` plus a
//! multiple of `step`, up to the last iteration's. If one more step could wrap, nothing is known.

use rspirv::spirv::{BuiltIn, Op};

use super::blocks::Blocks;
use super::eval::{Evaluation, Frame};
use super::values::{Arithmetic, Base, Known, Pointer};
use crate::compiler::fusion::affine::Form;

impl Evaluation<'_> {
    /// Returns the values of a phi at the head of a loop that is `initial` at first and grows by a
    /// constant while a condition holds. The condition is tested at the loop's head or end. `latch` is
    /// the block that leads back to the head, with `next` as the phi's value.
    pub(super) fn counted(
        &self,
        frame: &Frame<'_>,
        head: usize,
        phi: u32,
        initial: &Form,
        (next, latch): (u32, usize),
        arithmetic: &Arithmetic<'_>,
    ) -> Option<Form> {
        let blocks = &frame.function.blocks;
        let step = self.step(frame, phi, next)?;
        let at_latch = (latch, blocks.all[latch].next.iter().position(|&next| next == head)?);
        let at_head = self.branch_that_stays(blocks, head, latch).map(|stay| (head, stay));
        let tests = [Some(at_latch), at_head];
        tests.into_iter().flatten().find_map(|(block, stay)| {
            self.bounded(frame, block, stay, phi, next, initial, step, arithmetic)
        })
    }

    /// Returns the constant that is added to a phi in every iteration, if it is positive.
    fn step(&self, frame: &Frame<'_>, phi: u32, next: u32) -> Option<i128> {
        let next = self.definitions.get(next).filter(|next| next.op() == Some(Op::IAdd))?;
        let (a, b) = (next.word(2)?, next.word(3)?);
        let step = if a == phi {
            b
        } else if b == phi {
            a
        } else {
            return None;
        };
        let Known::Integer(step) = self.invariant(frame, step, 0)? else { return None };
        step.value().filter(|&step| step > 0)
    }

    /// Returns what is known of a value that does not change in a loop, though it may be calculated
    /// there.
    fn invariant(&self, frame: &Frame<'_>, id: u32, depth: usize) -> Option<Known> {
        if frame.values.contains_key(&id) || depth > 4 {
            return Some(self.value(frame, id));
        }
        let Some(i) = self.definitions.get(id) else { return Some(Known::Other) };
        match i.op() {
            Some(Op::Load) => match self.value(frame, i.word(2)?) {
                Known::Pointer(Pointer { base: Base::BuiltIn(variable), offset }) => {
                    let built_in = self.built_ins.get(&variable).copied();
                    let built_in = built_in.and_then(BuiltIn::from_u32)?;
                    self.built_in(built_in, offset?.value()?, i.result_type()?)
                }
                _ => None,
            },
            Some(Op::CompositeExtract) if i.word(4).is_none() => {
                let Known::Parts(parts) = self.invariant(frame, i.word(2)?, depth + 1)? else {
                    return None;
                };
                parts.get(i.word(3)? as usize).cloned()
            }
            Some(op @ (Op::UConvert | Op::SConvert)) => {
                let source = i.word(2)?;
                let Known::Integer(form) = self.invariant(frame, source, depth + 1)? else {
                    return None;
                };
                let width = self.width(i.result_type()?)?;
                let arithmetic = Arithmetic { space: self.space, width };
                arithmetic.convert(op, &form, self.width_of(source)?).map(Known::Integer)
            }
            Some(op @ (Op::IAdd | Op::IMul | Op::ShiftLeftLogical)) => {
                let operand = |word| match self.invariant(frame, i.word(word)?, depth + 1)? {
                    Known::Integer(form) => Some(form),
                    _ => None,
                };
                let arithmetic =
                    Arithmetic { space: self.space, width: self.width(i.result_type()?)? };
                arithmetic.binary(op, &operand(2)?, &operand(3)?).map(Known::Integer)
            }
            _ => Some(self.value(frame, id)),
        }
    }

    /// Returns the index of the branch target at a loop's head that stays in the loop, if exactly one of
    /// the two targets does.
    fn branch_that_stays(&self, blocks: &Blocks<'_>, head: usize, latch: usize) -> Option<usize> {
        let reaches = |from: usize| {
            let (mut seen, mut found) = (vec![false; blocks.all.len()], vec![from]);
            while let Some(at) = found.pop() {
                if at == latch {
                    return true;
                }
                for &next in &blocks.all[at].next {
                    if next != head && !std::mem::replace(&mut seen[next], true) {
                        found.push(next);
                    }
                }
            }
            false
        };
        match blocks.all[head].next.as_slice() {
            &[first, second] => match (reaches(first), reaches(second)) {
                (true, false) => Some(0),
                (false, true) => Some(1),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the values of the phi, as bounded by the comparison at the end of `block`. `stay` is the
    /// index of the branch target that continues the loop.
    #[allow(clippy::too_many_arguments, reason = "they describe one loop")]
    fn bounded(
        &self,
        frame: &Frame<'_>,
        block: usize,
        stay: usize,
        phi: u32,
        next: u32,
        initial: &Form,
        step: i128,
        arithmetic: &Arithmetic<'_>,
    ) -> Option<Form> {
        let space = arithmetic.space;
        let block = &frame.function.blocks.all[block];
        let (_, branch) = block.body.last()?;
        // A branch whose two targets are the same has only one successor.
        if branch.op() != Some(Op::BranchConditional) || block.next.len() != 2 {
            return None;
        }
        let condition = self.definitions.get(branch.word(0)?)?;
        let (mut op, mut tested, mut bound) =
            (condition.op()?, condition.word(2)?, condition.word(3)?);
        if bound == phi || bound == next {
            (op, tested, bound) = (mirrored(op)?, bound, tested);
        }
        if tested != phi && tested != next {
            return None;
        }
        if stay == 1 {
            op = negated(op)?;
        }
        let Known::Integer(bound) = self.value(frame, bound) else { return None };
        let is_signed = matches!(op, Op::SLessThan | Op::SLessThanEqual);
        let interpret = |form: &Form| {
            if is_signed { arithmetic.signed(form) } else { arithmetic.unsigned(form) }
        };
        let (first, bound) = (interpret(initial), interpret(&bound));
        let distance = bound.minus(&first, space)?;
        // Maximum distance of the tested value from `initial` if the loop continues.
        let max_distance = match op {
            Op::ULessThan | Op::SLessThan => (distance.bounds(space).1 - 1).div_euclid(step) * step,
            Op::ULessThanEqual | Op::SLessThanEqual => {
                distance.bounds(space).1.div_euclid(step) * step
            }
            Op::INotEqual => {
                let distance = distance.value().filter(|distance| distance % step == 0)?;
                // The counter must hit the bound exactly, and from below.
                let least = if tested == next { step } else { 0 };
                if distance < least {
                    return None;
                }
                distance - step
            }
            _ => return None,
        };
        let max_distance = if tested == phi { max_distance + step } else { max_distance }.max(0);
        let grown = first.plus(&Form::steps(max_distance, step), space)?;
        // The next value must be in range, too: nothing may wrap.
        let (low, high) = grown.bounds(space);
        let modulus = 1_i128 << arithmetic.width;
        let (least, most) =
            if is_signed { (-modulus / 2, modulus / 2 - 1) } else { (0, modulus - 1) };
        (least <= low && high + step <= most).then_some(grown)
    }
}

/// Returns the equivalent comparison for operands in the other order.
fn mirrored(op: Op) -> Option<Op> {
    Some(match op {
        Op::IEqual | Op::INotEqual => op,
        Op::ULessThan => Op::UGreaterThan,
        Op::UGreaterThan => Op::ULessThan,
        Op::ULessThanEqual => Op::UGreaterThanEqual,
        Op::UGreaterThanEqual => Op::ULessThanEqual,
        Op::SLessThan => Op::SGreaterThan,
        Op::SGreaterThan => Op::SLessThan,
        Op::SLessThanEqual => Op::SGreaterThanEqual,
        Op::SGreaterThanEqual => Op::SLessThanEqual,
        _ => return None,
    })
}

/// Returns the comparison that holds where `op` does not.
fn negated(op: Op) -> Option<Op> {
    Some(match op {
        Op::IEqual => Op::INotEqual,
        Op::INotEqual => Op::IEqual,
        Op::ULessThan => Op::UGreaterThanEqual,
        Op::UGreaterThanEqual => Op::ULessThan,
        Op::UGreaterThan => Op::ULessThanEqual,
        Op::ULessThanEqual => Op::UGreaterThan,
        Op::SLessThan => Op::SGreaterThanEqual,
        Op::SGreaterThanEqual => Op::SLessThan,
        Op::SGreaterThan => Op::SLessThanEqual,
        Op::SLessThanEqual => Op::SGreaterThan,
        _ => return None,
    })
}
