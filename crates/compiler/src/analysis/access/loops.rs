//! Bounds of loop counters.
//!
//! A loop counter is a phi that is `initial` at first and `phi + step` in each further iteration, with a step
//! that is not 0 and whose sign is known. The loop must compare the phi or `phi + step` with a bound, at its
//! head or at its end. The maximum number of iterations follows from `bound - initial`. The phi is then
//! `initial` plus a multiple of `step`, up to the last iteration's. If one more step could wrap, nothing is
//! known.

use kiln_spirv::edit::{Evaluation as Evaluated, Instruction, View};
use rspirv::spirv::{BuiltIn, Op, OpenclStd100Op};

use super::SHORT_SUM;
use super::arithmetic::{Arithmetic, mirrored, negated};
use super::blocks::Blocks;
use super::eval::{Evaluation, Frame};
use super::facts::Known;
use super::pointers::{Base, Pointer};
use crate::analysis::affine::Form;

/// Maximum number of operations from a phi to its value in the next iteration.
const MAX_CHAIN: usize = 4;

impl Evaluation<'_> {
    /// Returns the values of a phi at the head of a loop that is `initial` at first and grows by a constant
    /// while a condition holds. The condition is tested at the loop's head or end. `latch` is the block that
    /// leads back to the head, with `next` as the phi's value. Returns the distances from `initial`, too.
    pub(super) fn counted(
        &self,
        frame: &Frame<'_>,
        head: usize,
        phi: u32,
        initial: &Form,
        (next, latch): (u32, usize),
        arithmetic: &Arithmetic<'_>,
    ) -> Option<Counted> {
        let blocks = &frame.function.blocks;
        let step = self.step(frame, phi, next)?;
        let at_latch = (latch, blocks.all[latch].next.iter().position(|&next| next == head)?);
        let at_head = self.branch_that_stays(blocks, head, latch).map(|stay| (head, stay));
        let counter = Counter { phi, next, initial, step };
        let branches = [Some(at_latch), at_head];
        branches.into_iter().flatten().find_map(|branch| {
            let test = self.test(frame, &counter, branch)?;
            counter.bounded(&test, arithmetic)
        })
    }

    /// Returns the values of a phi that is another counter's value in the iteration before. Compilers make such
    /// a phi where the counter's next value is tested, too. `latch` is the counter, and the block that leads
    /// back to the head.
    pub(super) fn delayed(
        &self,
        frame: &Frame<'_>,
        head: usize,
        initial: &Form,
        (counter, latch): (u32, usize),
    ) -> Option<Form> {
        let blocks = &frame.function.blocks;
        let body = &blocks.all[head].body;
        let is_counter =
            |i: &Instruction<'_>| i.op() == Some(Op::Phi) && i.result() == Some(counter);
        let (_, phi) = body.iter().find(|(_, i)| is_counter(i))?;
        let (next, _) = phi.incoming().find(|&(_, from)| blocks.index(from) == Some(latch))?;
        let Step { multiple, most, sign } = self.step(frame, counter, next)?;
        let Known::Integer(form) = self.phi(frame, head, phi)? else { return None };
        let first = phi.incoming().filter_map(|(value, from)| {
            let from = blocks.index(from)?;
            frame.is_live(from, head).then(|| self.value(frame, value))
        });
        // The counter begins one step after this phi, so that it is one step after it in every iteration.
        let mut distances = first.map(|first| match first {
            Known::Integer(first) => first.minus(initial, self.space)?.value(),
            _ => None,
        });
        let step = multiple * sign;
        let is_after = multiple == most && distances.all(|distance| distance == Some(step));
        is_after.then(|| form.moved_by(-step))
    }

    /// Returns the values of a phi that never grows, such as a number that is halved in each iteration. Read as an
    /// unsigned number, it is at most `initial`. `next` is the phi's value in the next iteration.
    pub(super) fn shrinking(
        &self,
        frame: &Frame<'_>,
        phi: u32,
        initial: &Form,
        next: u32,
        arithmetic: &Arithmetic<'_>,
    ) -> Option<Form> {
        let (_, most) = arithmetic.unsigned(initial).bounds(self.space);
        let is_positive = most < 1 << (arithmetic.width - 1);
        let mut value = next;
        for _ in 0..MAX_CHAIN {
            if value == phi {
                return Some(Form::between(0, most));
            }
            let i = self.definitions.get(value)?;
            let (a, b) = i.both()?;
            value = match i.op()? {
                Op::UDiv | Op::UMod | Op::ShiftRightLogical => a,
                Op::ShiftRightArithmetic if is_positive => a,
                Op::SDiv | Op::SRem if is_positive => {
                    let Known::Integer(divisor) = self.value_anywhere(frame, b) else {
                        return None;
                    };
                    let divisor = divisor.value().filter(|&divisor| divisor > 0);
                    divisor.map(|_| a)?
                }
                Op::BitwiseAnd if frame.values.contains_key(&a) || a == phi => a,
                Op::BitwiseAnd => b,
                _ => return None,
            };
        }
        None
    }

    /// Returns whether a loop with the given head may add up more than [`SHORT_SUM`] floating-point numbers.
    pub(super) fn has_long_sum(&self, frame: &Frame<'_>, head: usize) -> bool {
        let blocks = &frame.function.blocks;
        let phis = || {
            let body = blocks.all[head].body.iter().map(|(_, i)| i);
            body.take_while(|i| i.op() == Some(Op::Phi))
        };
        let is_sum = |phi: &Instruction<'_>| {
            let ty = phi.result_type().and_then(|ty| self.definitions.get(ty));
            ty.is_some_and(|ty| ty.op() == Some(Op::TypeFloat))
                && phi.incoming().any(|(next, from)| {
                    let is_latch = blocks.index(from).is_some_and(|from| !frame.is_evaluated[from]);
                    is_latch && self.definitions.get(next).is_some_and(|next| adds_up(&next))
                })
        };
        let is_short = |phi: &Instruction<'_>| {
            let values = phi.result().and_then(|phi| frame.number_of_values(phi));
            values.is_some_and(|values| values <= SHORT_SUM)
        };
        phis().any(is_sum) && !phis().any(is_short)
    }

    /// Returns the value that is added to a phi in every iteration, if its sign is known.
    fn step(&self, frame: &Frame<'_>, phi: u32, next: u32) -> Option<Step> {
        let next = self.definitions.get(next).filter(|next| next.op() == Some(Op::IAdd))?;
        let (a, b) = next.both()?;
        let step = if a == phi {
            b
        } else if b == phi {
            a
        } else {
            return None;
        };
        let Known::Integer(step) = self.invariant(frame, step, 0)? else { return None };
        let (least, most) = step.bounds(self.space);
        // A value that may differ between evaluations has no other common divisor than 1.
        let multiple = step.value().map_or(1, i128::abs);
        if least > 0 {
            return Some(Step { multiple, most, sign: 1 });
        }
        (most < 0).then_some(Step { multiple, most: -least, sign: -1 })
    }

    /// Returns what is known of a value that is calculated in a loop from values that do not change there.
    fn invariant(&self, frame: &Frame<'_>, id: u32, depth: usize) -> Option<Known> {
        if frame.values.contains_key(&id) || depth > 4 {
            return Some(self.value(frame, id));
        }
        let Some(i) = self.definitions.get(id) else { return Some(Known::Other) };
        match i.op() {
            Some(Op::Load) => match self.value(frame, i.pointer()?) {
                Known::Pointer(Pointer { base: Base::BuiltIn(variable), offset }) => {
                    let built_in = self.built_ins.get(&variable).copied();
                    let built_in = built_in.and_then(BuiltIn::from_u32)?;
                    self.built_in(built_in, offset?.value()?, i.result_type()?)
                }
                Known::Pointer(Pointer { base: Base::Variable(variable), .. })
                    if i.pointer() == Some(variable) && !self.is_strict =>
                {
                    frame.stored.get(&variable).cloned()
                }
                _ => None,
            },
            Some(Op::CompositeExtract) if self.extracted(&i).is_some() => {
                let (whole, at) = self.extracted(&i)?;
                let Known::Parts(parts) = self.invariant(frame, whole, depth + 1)? else {
                    return None;
                };
                parts.get(at).cloned()
            }
            Some(_) if i.row().is_some_and(|row| row.evaluation == Evaluated::Invariant) => {
                let see = |id| self.invariant(frame, id, depth + 1).unwrap_or(Known::Other);
                self.arithmetic(&i, &see)
            }
            // A function such as `min`, whose call a compiler leaves in the loop.
            Some(Op::ExtInst) => {
                let see = |id| self.invariant(frame, id, depth + 1).unwrap_or(Known::Other);
                self.called(&i, &frame.facts, &see)
            }
            _ => Some(self.value(frame, id)),
        }
    }

    /// Returns the composite value and the number of the part that an instruction takes.
    fn extracted(&self, i: &Instruction<'_>) -> Option<(u32, usize)> {
        let View::Extract { whole, path } = i.view() else { return None };
        Some((whole, path.single()? as usize))
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

    /// Returns the test of a counter at the end of `block`. `stay` is the index of the branch target that
    /// continues the loop.
    fn test(
        &self,
        frame: &Frame<'_>,
        counter: &Counter<'_>,
        (block, stay): (usize, usize),
    ) -> Option<Test> {
        let &Counter { phi, next, step, .. } = counter;
        let block = &frame.function.blocks.all[block];
        let (_, branch) = block.body.last()?;
        // A branch whose two targets are the same has only one successor.
        if branch.op() != Some(Op::BranchConditional) || block.next.len() != 2 {
            return None;
        }
        let condition = self.definitions.get(branch.condition()?)?;
        let (mut op, (mut tested, mut bound)) = (condition.op()?, condition.both()?);
        if bound == phi || bound == next {
            (op, tested, bound) = (mirrored(op)?, bound, tested);
        }
        if tested != phi && tested != next {
            return None;
        }
        if stay == 1 {
            op = negated(op)?;
        }
        // A loop that counts down is one that counts up, with all values negated.
        if step.sign < 0 {
            op = mirrored(op)?;
        }
        let Known::Integer(bound) = self.invariant(frame, bound, 0)? else { return None };
        Some(Test { op, is_next: tested != phi, bound })
    }
}

/// Counter of a loop.
struct Counter<'a> {
    phi: u32,
    /// Value of the phi in the next iteration.
    next: u32,
    initial: &'a Form,
    step: Step,
}

/// Test of a counter, after which the loop continues.
struct Test {
    /// Comparison of the tested value with the bound, as if the loop counted up.
    op: Op,
    /// Whether the value of the next iteration is tested.
    is_next: bool,
    bound: Form,
}

impl Counter<'_> {
    /// Returns the values of the phi, as bounded by a test.
    fn bounded(&self, test: &Test, arithmetic: &Arithmetic<'_>) -> Option<Counted> {
        let space = arithmetic.space;
        let &Test { op, is_next, ref bound } = test;
        let Step { multiple, most: longest, sign } = self.step;
        let is_signed = match op {
            Op::SLessThan | Op::SLessThanEqual => true,
            // Either reading will do, as long as the bound is not below the initial value.
            Op::INotEqual => {
                let ends = (arithmetic.signed(bound), arithmetic.signed(self.initial));
                let distance = ends.0.minus(&ends.1, space)?.value();
                distance.is_some_and(|distance| distance * sign >= 0)
            }
            _ => false,
        };
        let interpret = |form: &Form| {
            let form = if is_signed { arithmetic.signed(form) } else { arithmetic.unsigned(form) };
            form.times(sign)
        };
        let (first, bound) = (interpret(self.initial)?, interpret(bound)?);
        let distance = bound.minus(&first, space)?;
        // Whether the tested value is the bound at most, and not below it.
        let (is_reached, most_tested) = match op {
            Op::ULessThan | Op::SLessThan => (false, bound.bounds(space).1 - 1),
            Op::ULessThanEqual | Op::SLessThanEqual => (true, bound.bounds(space).1),
            Op::INotEqual => {
                let distance = distance.value().filter(|distance| distance % multiple == 0)?;
                // The counter must hit the bound exactly, and from below.
                let least = if is_next { multiple } else { 0 };
                if distance < least || longest != multiple {
                    return None;
                }
                (false, bound.bounds(space).1 - 1)
            }
            _ => return None,
        };
        // Maximum distance of the tested value from `initial` if the loop continues, and of the phi.
        let distance = distance.bounds(space).1 - i128::from(!is_reached);
        let after = if is_next { 0 } else { longest };
        let distance = (distance.div_euclid(multiple) + after.div_euclid(multiple)) * multiple;
        let distances = Form::steps(distance.max(0), multiple);
        let mut grown = first.plus(&distances, space)?;
        // Each value but the first was tested, or comes one step after one that was tested.
        if multiple == 1 && first.line() == bound.line() {
            let most = bound.high.saturating_add(after) - i128::from(!is_reached);
            let most = most.max(first.high);
            if most < grown.high {
                grown = Form::along(*first.line(), first.low, most);
            }
        }
        let (low, high) = first.bounds(space);
        let grown = grown.clipped(low, high.max(most_tested + after), space);
        // The next value must be in range, too: nothing may wrap.
        let (low, high) = grown.bounds(space);
        let (grown, low, high) = match sign {
            1 => (grown, low, high + longest),
            _ => (grown.times(sign)?, -high - longest, -low),
        };
        let modulus = 1_i128 << arithmetic.width;
        let (least, most) =
            if is_signed { (-modulus / 2, modulus / 2 - 1) } else { (0, modulus - 1) };
        let distances = distances.times(sign)?;
        (least <= low && high <= most).then_some(Counted { values: grown, distances })
    }
}

/// Returns whether a value may be a sum of which a loop calculates the next part. The order in which the
/// largest or the smallest number is found does not matter.
fn adds_up(next: &Instruction<'_>) -> bool {
    match next.op() {
        Some(Op::FAdd | Op::FSub | Op::FMul | Op::Phi | Op::Select | Op::FunctionCall) => true,
        Some(Op::ExtInst) => {
            let known = next.extended().and_then(|(_, known)| OpenclStd100Op::from_u32(known));
            !matches!(
                known,
                Some(
                    OpenclStd100Op::fmax
                        | OpenclStd100Op::fmin
                        | OpenclStd100Op::fmax_common
                        | OpenclStd100Op::fmin_common
                )
            )
        }
        _ => false,
    }
}

/// Values of a loop's counter.
pub(super) struct Counted {
    pub(super) values: Form,
    /// Differences of the values from the first one.
    pub(super) distances: Form,
}

/// Value that a loop adds to its counter.
#[derive(Clone, Copy)]
struct Step {
    /// Positive number of which the value is a multiple.
    multiple: i128,
    /// Largest absolute value.
    most: i128,
    /// Either 1 or -1.
    sign: i128,
}
