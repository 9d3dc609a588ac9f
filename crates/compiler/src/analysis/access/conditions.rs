//! Values where conditions are known to hold: in blocks that only a branch leads to, and on edges.

use std::rc::Rc;

use kiln_spirv::edit::{Evaluation as Evaluated, Instruction, View};
use rspirv::spirv::Op;

use super::arithmetic::{Arithmetic, negated};
use super::eval::{Evaluation, Frame};
use super::facts::{Facts, Known};
use super::pointers::Pointer;
use crate::analysis::affine::Form;

/// Maximum depth of conditions that are parts of others, and of values calculated from others.
const MAX_DEPTH: usize = 6;

impl<'m> Evaluation<'m> {
    /// Returns the facts that hold in a block: those of the only edge that leads to it, or else those of the
    /// block that dominates it.
    pub(super) fn facts_at(&self, frame: &Frame<'m>, at: usize) -> Rc<Facts> {
        if at == 0 {
            return Rc::clone(&frame.block_facts[at]);
        }
        let is_open = |from: &usize| !frame.is_evaluated[*from] || frame.is_live(*from, at);
        let mut previous = frame.function.reachable_before(at).filter(is_open);
        match (previous.next(), previous.next()) {
            (Some(from), None) if frame.is_evaluated[from] => self.facts_on(frame, from, at),
            _ => {
                let parent = frame.function.parent(at);
                parent.map_or_else(Rc::default, |parent| Rc::clone(&frame.block_facts[parent]))
            }
        }
    }

    /// Returns the facts that hold where an edge is taken.
    pub(super) fn facts_on(&self, frame: &Frame<'m>, from: usize, to: usize) -> Rc<Facts> {
        let before = &frame.block_facts[from];
        let block = &frame.function.blocks.all[from];
        let branch = block.body.last().map(|(_, last)| last.view());
        let (Some(View::BranchIf { condition, .. }), &[yes, no]) = (branch, block.next.as_slice())
        else {
            return Rc::clone(before);
        };
        if let Some(known) = frame.edge_facts.borrow().get(&(from, to)) {
            return Rc::clone(known);
        }
        let is_known = matches!(
            self.value_where(frame, before, condition, 0),
            Known::Integer(form) if form.value().is_some()
        );
        let facts = if is_known || yes == no {
            Rc::clone(before)
        } else {
            let mut facts = before.copied();
            self.assume(frame, &mut facts, condition, to == yes, 0);
            Rc::new(facts)
        };
        frame.edge_facts.borrow_mut().insert((from, to), Rc::clone(&facts));
        facts
    }

    /// Returns what is known of a value in the block that is evaluated.
    pub(super) fn value(&self, frame: &Frame<'m>, id: u32) -> Known {
        self.value_where(frame, &frame.facts, id, 0)
    }

    /// Returns what is known of a value where facts hold.
    pub(super) fn value_where(
        &self,
        frame: &Frame<'m>,
        facts: &Facts,
        id: u32,
        depth: usize,
    ) -> Known {
        let known = self.value_anywhere(frame, id);
        if facts.is_empty() || !frame.values.contains_key(&id) {
            return known;
        }
        match known {
            Known::Integer(form) if form.value().is_none() => {}
            Known::Pointer(Pointer { offset: Some(_), .. }) => {}
            known => return known,
        }
        if let Some(found) = facts.found(id) {
            return found;
        }
        // The evaluation fails at its next instruction then.
        if !self.budget().step() {
            return known;
        }
        let again = (depth < MAX_DEPTH).then(|| self.recomputed(frame, facts, id, depth + 1));
        let known = match (known, again.flatten()) {
            (Known::Integer(form), again) => {
                let form = facts.value(id).copied().unwrap_or(form);
                let form = match (again, self.width_of(id)) {
                    (Some(Known::Integer(again)), Some(width)) => {
                        Arithmetic { space: self.space, width }.narrower(&form, &again)
                    }
                    _ => form,
                };
                Known::Integer(facts.refine(&form, self.space))
            }
            (Known::Pointer(Pointer { base, offset: Some(offset) }), again) => {
                let offset = match again {
                    Some(Known::Pointer(Pointer { base: same, offset: Some(again) }))
                        if same == base =>
                    {
                        let (low, high) = again.bounds(self.space);
                        offset.clipped(low, high, self.space)
                    }
                    _ => offset,
                };
                let offset = Some(facts.refine(&offset, self.space));
                Known::Pointer(Pointer { base, offset })
            }
            (known, _) => known,
        };
        facts.keep(id, &known);
        known
    }

    /// Calculates a value again, if an operand of its instruction is known better where facts hold.
    fn recomputed(&self, frame: &Frame<'m>, facts: &Facts, id: u32, depth: usize) -> Option<Known> {
        let i = self.definitions.get(id)?;
        let see = |id| self.value_where(frame, facts, id, depth);
        let is_better =
            |id: u32| frame.values.contains_key(&id) && see(id) != self.value_anywhere(frame, id);
        let is_recomputed = i.row()?.evaluation >= Evaluated::Recomputed;
        match i.view() {
            View::Select { .. } => self.select(frame, facts, &i, depth),
            View::Binary { left, right } if is_recomputed => {
                (is_better(left) || is_better(right)).then(|| self.arithmetic(&i, &see))?
            }
            View::Unary { value } if is_recomputed => {
                is_better(value).then(|| self.arithmetic(&i, &see))?
            }
            View::Unary { value } if i.op() == Some(Op::CopyObject) => {
                is_better(value).then(|| see(value))
            }
            View::ExtInst { operands, .. } if operands.iter().take(3).any(is_better) => {
                self.called(&i, facts, &see)
            }
            View::Chain { .. } | View::PtrChain { .. } => {
                let (base, mut indexes) = i.chain()?;
                let is_better = is_better(base) || indexes.by_ref().take(5).any(is_better);
                is_better.then(|| self.chain(&i, &see))?
            }
            _ => None,
        }
    }

    /// Returns the value that a selection chooses where facts hold.
    pub(super) fn select(
        &self,
        frame: &Frame<'m>,
        facts: &Facts,
        i: &Instruction<'m>,
        depth: usize,
    ) -> Option<Known> {
        let View::Select { condition, yes, no } = i.view() else { return None };
        let chosen = match self.value_where(frame, facts, condition, depth) {
            Known::Integer(form) => form.value(),
            _ => None,
        };
        let see = |id| self.value_where(frame, facts, id, depth);
        match chosen {
            Some(0) => return Some(see(no)),
            Some(_) => return Some(see(yes)),
            None => {}
        }
        if self.width(i.result_type()?) == Some(1) || depth >= MAX_DEPTH {
            return see(yes).or(&see(no), self.space);
        }
        let case = |holds, id| {
            let facts = self.facts_where(frame, facts, condition, holds, depth);
            let known = self.value_where(frame, &facts, id, depth);
            (known, Rc::new(facts))
        };
        self.joined(&[case(true, yes), case(false, no)])
    }

    /// Returns the facts with those that follow from a condition that holds, or does not hold.
    fn facts_where(
        &self,
        frame: &Frame<'m>,
        facts: &Facts,
        condition: u32,
        holds: bool,
        depth: usize,
    ) -> Facts {
        let mut facts = facts.copied();
        self.assume(frame, &mut facts, condition, holds, depth);
        facts
    }

    /// Returns a sum or difference with a selection between constants, such as `x - (x > 0)`: the result is
    /// known better for each constant alone.
    pub(super) fn with_selected(
        &self,
        frame: &Frame<'m>,
        facts: &Facts,
        i: &Instruction<'m>,
        depth: usize,
    ) -> Option<Known> {
        i.op().filter(|op| matches!(op, Op::IAdd | Op::ISub))?;
        let selection = |id: u32| {
            let selection = self.definitions.get(id).filter(|_| frame.values.contains_key(&id))?;
            let View::Select { condition, yes, no } = selection.view() else { return None };
            let constant = |id| {
                let is_constant = !frame.values.contains_key(&id);
                is_constant.then(|| self.value_anywhere(frame, id))
            };
            Some((id, condition, [constant(yes)?, constant(no)?]))
        };
        let (left, right) = i.both()?;
        let (selected, condition, constants) = selection(right).or_else(|| selection(left))?;
        let cases: Vec<_> = [true, false]
            .into_iter()
            .zip(constants)
            .map(|(holds, constant)| {
                let facts = self.facts_where(frame, facts, condition, holds, depth);
                let see = |id| match id == selected {
                    true => constant.clone(),
                    false => self.value_where(frame, &facts, id, depth),
                };
                Some((self.arithmetic(i, &see)?, Rc::new(facts)))
            })
            .collect::<Option<_>>()?;
        self.joined(&cases)
    }

    /// Adds what follows from a condition that holds, or does not hold.
    fn assume(
        &self,
        frame: &Frame<'m>,
        facts: &mut Facts,
        condition: u32,
        holds: bool,
        depth: usize,
    ) {
        if depth > MAX_DEPTH || !self.budget().step() {
            return;
        }
        _ = self.assume_parts(frame, facts, condition, holds, depth + 1);
        if frame.values.contains_key(&condition) {
            facts.add(condition, Form::constant(holds.into()));
        }
    }

    /// Adds what follows for the operands of a condition.
    fn assume_parts(
        &self,
        frame: &Frame<'m>,
        facts: &mut Facts,
        condition: u32,
        holds: bool,
        depth: usize,
    ) -> Option<()> {
        let i =
            self.definitions.get(condition).filter(|_| frame.values.contains_key(&condition))?;
        let op = i.op()?;
        let truth = |facts: &Facts, id: u32| match self.value_where(frame, facts, id, depth) {
            Known::Integer(form) => form.value(),
            _ => None,
        };
        match op {
            Op::LogicalNot => self.assume(frame, facts, i.operand()?, !holds, depth),
            Op::LogicalAnd | Op::LogicalOr => {
                let (a, b) = i.both()?;
                // A conjunction that is true has two true operands; a disjunction that is false, two false
                // ones.
                let agreed = op == Op::LogicalAnd;
                if holds == agreed {
                    self.assume(frame, facts, a, holds, depth);
                    self.assume(frame, facts, b, holds, depth);
                } else if truth(facts, a) == Some(agreed.into()) {
                    self.assume(frame, facts, b, holds, depth);
                } else if truth(facts, b) == Some(agreed.into()) {
                    self.assume(frame, facts, a, holds, depth);
                }
            }
            Op::Select => {
                let View::Select { condition: chosen, yes, no } = i.view() else { return None };
                let other = Some(i128::from(!holds));
                if truth(facts, yes) == other {
                    self.assume(frame, facts, chosen, false, depth);
                    self.assume(frame, facts, no, holds, depth);
                } else if truth(facts, no) == other {
                    self.assume(frame, facts, chosen, true, depth);
                    self.assume(frame, facts, yes, holds, depth);
                }
            }
            Op::Phi => self.assume_phi(frame, facts, &i, holds, depth)?,
            _ => self.assume_comparison(frame, facts, &i, holds, depth)?,
        }
        Some(())
    }

    /// Adds what follows from a phi of conditions that has a known value, if only one edge can give it that
    /// value.
    fn assume_phi(
        &self,
        frame: &Frame<'m>,
        facts: &mut Facts,
        i: &Instruction<'m>,
        holds: bool,
        depth: usize,
    ) -> Option<()> {
        let blocks = &frame.function.blocks;
        let at = blocks
            .all
            .iter()
            .position(|block| block.body.iter().any(|(_, other)| other.result() == i.result()))?;
        let position = |block: usize| blocks.order.iter().position(|&known| known == block);
        let mut possible = Vec::new();
        for (value, from) in i.incoming() {
            let from = blocks.index(from)?;
            // At the head of a loop, facts of the loop's own blocks are about values of the iteration before.
            if position(from)? >= position(at)? {
                return None;
            }
            if frame.is_live(from, at) {
                let edge = self.facts_on(frame, from, at);
                let is_other = matches!(
                    self.value_where(frame, &edge, value, depth),
                    Known::Integer(form) if form.value() == Some((!holds).into())
                );
                if !is_other {
                    possible.push((value, edge));
                }
            }
        }
        let [(value, edge)] = possible.as_slice() else { return None };
        facts.add_all(edge);
        self.assume(frame, facts, *value, holds, depth);
        Some(())
    }

    /// Adds what follows for the operands of a comparison.
    fn assume_comparison(
        &self,
        frame: &Frame<'m>,
        facts: &mut Facts,
        i: &Instruction<'m>,
        holds: bool,
        depth: usize,
    ) -> Option<()> {
        let op = if holds { i.op()? } else { negated(i.op()?)? };
        let (a, b) = i.both()?;
        let form = |facts: &Facts, id| match self.value_where(frame, facts, id, depth) {
            Known::Integer(form) => Some(form),
            _ => None,
        };
        let (first, second) = (form(facts, a)?, form(facts, b)?);
        let arithmetic = Arithmetic { space: self.space, width: self.width_of(a)? };
        let (below, above) = arithmetic.assume(facts, op, &first, &second);
        for (id, before, after) in [(a, first, below), (b, second, above)] {
            if before != after {
                self.learn(frame, facts, id, after, depth);
            }
        }
        self.assume_selected(frame, facts, op, (a, b), depth);
        Some(())
    }

    /// Adds what follows if a selection between two constants, such as a condition that was converted to an
    /// integer, is equal to a third constant or not.
    fn assume_selected(
        &self,
        frame: &Frame<'m>,
        facts: &mut Facts,
        op: Op,
        (a, b): (u32, u32),
        depth: usize,
    ) -> Option<()> {
        if !matches!(op, Op::IEqual | Op::INotEqual) {
            return None;
        }
        let View::Select { condition, yes, no } = self.definitions.get(a)?.view() else {
            return None;
        };
        let value = |id| match self.value_where(frame, facts, id, depth) {
            Known::Integer(form) => form.value(),
            _ => None,
        };
        let (bound, yes, no) = (value(b)?, value(yes)?, value(no)?);
        let is_chosen = |value| (value == bound) == (op == Op::IEqual);
        if is_chosen(yes) != is_chosen(no) {
            self.assume(frame, facts, condition, is_chosen(yes), depth);
        }
        Some(())
    }

    /// Adds the fact that a value has a form, and what follows for the value that it was calculated from.
    fn learn(&self, frame: &Frame<'m>, facts: &mut Facts, id: u32, form: Form, depth: usize) {
        if depth > MAX_DEPTH || !frame.values.contains_key(&id) {
            return;
        }
        facts.add(id, form);
        _ = self.learn_source(frame, facts, id, &form, depth + 1);
    }

    /// Adds what follows for the operand that a value with this form was calculated from: by adding a
    /// constant, by multiplying with one, by a conversion, or as a copy.
    fn learn_source(
        &self,
        frame: &Frame<'m>,
        facts: &mut Facts,
        id: u32,
        form: &Form,
        depth: usize,
    ) -> Option<()> {
        let i = self.definitions.get(id)?;
        let width = self.width_of(id)?;
        let constant = |id| match self.value_anywhere(frame, id) {
            Known::Integer(form) => form.value(),
            _ => None,
        };
        let own = Arithmetic { space: self.space, width };
        let (source, (low, high)) = match self.definitions.value_op(&i)? {
            Op::IAdd | Op::ISub => {
                let (low, high) = form.bounds(self.space);
                let is_sum = i.op() == Some(Op::IAdd);
                let (left, right) = i.both()?;
                let (source, by) = match (constant(left), constant(right)) {
                    (_, Some(by)) => (left, if is_sum { -by } else { by }),
                    (Some(by), _) if is_sum => (right, -by),
                    _ => return None,
                };
                (source, (low + by, high + by))
            }
            Op::IMul => {
                let (left, right) = i.both()?;
                let (source, by) = match (constant(left), constant(right)) {
                    (_, Some(by)) => (left, by),
                    (Some(by), _) => (right, by),
                    _ => return None,
                };
                let Known::Integer(before) = self.value_where(frame, facts, source, depth) else {
                    return None;
                };
                // Without a limit on the numbers, the product would be the same.
                let product = before.times(by).filter(|_| by > 0)?;
                if own.binary(Op::IMul, &before, &Form::constant(by)) != Some(product) {
                    return None;
                }
                let (low, high) = form.bounds(self.space);
                (source, (-(-low).div_euclid(by), high.div_euclid(by)))
            }
            Op::CopyObject => (i.operand()?, form.bounds(self.space)),
            Op::SConvert => (i.operand()?, own.signed(form).bounds(self.space)),
            Op::UConvert => (i.operand()?, own.unsigned(form).bounds(self.space)),
            _ => return None,
        };
        let width = self.width_of(source)?;
        if width > own.width {
            return None;
        }
        let Known::Integer(before) = self.value_where(frame, facts, source, depth) else {
            return None;
        };
        let arithmetic = Arithmetic { space: self.space, width };
        let (low, high) = arithmetic.bits_between(&before, (low, high))?;
        let after = before.clipped(low, high, self.space);
        if after != before {
            self.learn(frame, facts, source, after, depth);
        }
        Some(())
    }
}
