//! Values as known to the evaluation, and facts about values that hold in a part of a function: where a
//! condition is known to hold.
//!
//! A fact about an instruction's result holds in all blocks that are dominated by an edge that is taken only if
//! the condition holds: whenever the instruction runs again, control passes the edge again before it reaches
//! these blocks. A fact about a [`Line`] holds for the work-item, wherever it is found.

use std::cell::RefCell;
use std::collections::HashMap;

use super::pointers::Pointer;
use crate::analysis::affine::{Form, Line, Space};

/// Value, as far as it is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Known {
    /// An integer, or a boolean as 0 or 1.
    Integer(Form),
    Pointer(Pointer),
    /// The components of a vector.
    Parts(Vec<Known>),
    /// Other value: neither a pointer, nor made of pointers.
    Other,
}

impl Known {
    /// Joins two values. Returns `None` if nothing but the type of the result is known.
    pub(super) fn or(&self, other: &Self, space: &Space) -> Option<Self> {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => Some(Self::Integer(a.or(b, space))),
            (Self::Pointer(a), Self::Pointer(b)) => Some(Self::Pointer(a.or(b, space))),
            (Self::Parts(a), Self::Parts(b)) if a.len() == b.len() => {
                let parts = a.iter().zip(b).map(|(a, b)| a.or(b, space));
                parts.collect::<Option<_>>().map(Self::Parts)
            }
            (a, b) => (a == b).then(|| a.clone()),
        }
    }
}

/// Facts that hold in a block, or on an edge between two blocks.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Forms of the results of instructions, by their ids, where these are narrower than elsewhere.
    values: HashMap<u32, Form>,
    /// Bounds of [primitive](Line::primitive) lines.
    lines: Vec<(Line, i128, i128)>,
    /// Values as known here, by their ids, as far as they have been asked for.
    known: RefCell<HashMap<u32, Known>>,
}

impl Facts {
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.lines.is_empty()
    }

    /// Returns a copy to which more facts can be added.
    pub(super) fn copied(&self) -> Self {
        let (values, lines) = (self.values.clone(), self.lines.clone());
        Self { values, lines, known: RefCell::default() }
    }

    /// Returns a copy without the facts about results of instructions.
    pub(super) fn only_lines(&self) -> Self {
        Self { lines: self.lines.clone(), ..Self::default() }
    }

    /// Returns the value of the result with the given id, if it was asked for before.
    pub(super) fn found(&self, id: u32) -> Option<Known> {
        self.known.borrow().get(&id).cloned()
    }

    /// Remembers the value of the result with the given id.
    pub(super) fn keep(&self, id: u32, known: &Known) {
        self.known.borrow_mut().insert(id, known.clone());
    }

    /// Returns the form that a fact gives the result with the given id.
    pub(super) fn value(&self, id: u32) -> Option<&Form> {
        self.values.get(&id)
    }

    /// Adds the fact that the result with the given id has this form.
    pub(super) fn add(&mut self, id: u32, form: Form) {
        self.known.get_mut().clear();
        self.values.insert(id, form);
    }

    /// Adds facts that hold at the same time.
    #[allow(clippy::iter_over_hash_type, reason = "each value has an entry of its own")]
    pub(super) fn add_all(&mut self, other: &Self) {
        self.known.get_mut().clear();
        for (&id, form) in &other.values {
            self.values.entry(id).or_insert(*form);
        }
        for (line, low, high) in &other.lines {
            self.bound(line, *low, *high);
        }
    }

    /// Adds the fact that a primitive line is between two bounds. Bounds that contradict known ones are
    /// ignored: where they hold, no code runs.
    fn bound(&mut self, line: &Line, low: i128, high: i128) {
        match self.lines.iter_mut().find(|(known, ..)| known == line) {
            Some((_, least, most)) => {
                let (low, high) = (low.max(*least), high.min(*most));
                if low <= high {
                    (*least, *most) = (low, high);
                }
            }
            None => self.lines.push((*line, low, high)),
        }
    }

    /// Adds the fact that a form is between two bounds, as a fact about its line.
    pub(super) fn bound_line(&mut self, form: &Form, low: i128, high: i128, space: &Space) {
        if form.line().is_zero() {
            return;
        }
        self.known.get_mut().clear();
        let (line, factor) = form.line().primitive();
        let (low, high) = (low.saturating_sub(form.high), high.saturating_sub(form.low));
        let (low, high) = if factor > 0 { (low, high) } else { (-high, -low) };
        let factor = factor.abs();
        // The line is an integer.
        self.bound(&line, -(-low).div_euclid(factor), high.div_euclid(factor));
        // Bounds of the row and the column of an id limit the id.
        if let Some([row, column]) = line.row_and_column() {
            let (rows, columns) = (self.bounds(&row, space), self.bounds(&column, space));
            let (id, low, high) = line.divided_id(rows, columns);
            self.bound(&id, low, high);
        }
    }

    /// Returns the bounds of a line where the facts hold.
    pub(super) fn bounds(&self, line: &Line, space: &Space) -> (i128, i128) {
        let known = |line: &Line| {
            let found = self.lines.iter().find(|(known, ..)| known == line);
            found.map(|&(_, low, high)| (low, high))
        };
        let meet = |(low, high): (i128, i128), other: Option<(i128, i128)>| match other {
            Some((least, most)) if low.max(least) <= high.min(most) => {
                (low.max(least), high.min(most))
            }
            _ => (low, high),
        };
        let by_ids =
            line.bounds_by(space, |id, d| meet(space.bounds(id, d), known(&Line::of_id(id, d))));
        let (primitive, factor) = line.primitive();
        let own = known(&primitive).map(|(low, high)| {
            let (low, high) = (low.saturating_mul(factor), high.saturating_mul(factor));
            (low.min(high), low.max(high))
        });
        meet(by_ids, own)
    }

    /// Returns the form, with limits that are narrower if the facts tell more about its line.
    pub(super) fn refine(&self, form: &Form, space: &Space) -> Form {
        if form.line().is_zero() || self.lines.is_empty() {
            return *form;
        }
        let (low, high) = self.bounds(form.line(), space);
        form.clipped(low.saturating_add(form.low), high.saturating_add(form.high), space)
    }
}

/// Returns a form that covers the forms of all cases. Each case has a form and the facts that hold where the
/// form is chosen.
///
/// A value that is not on the line of the others, such as the bound of a clamp, is known by its distance from
/// that line: with `t` between 0 and 9, `t - 2` is clamped to 0 only where `t` is at most 1, so that 0 is
/// `t` minus at most 1.
pub(super) fn join(cases: &[(Form, &Facts)], space: &Space) -> Option<Form> {
    let ((first, _), others) = cases.split_first()?;
    if others.iter().all(|(form, _)| form.line() == first.line()) {
        return Some(others.iter().fold(*first, |joined, (form, _)| joined.or(form, space)));
    }
    let ends = cases.iter().map(|(form, _)| form.bounds(space));
    let (low, high) = ends.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)))?;
    let mut best = Form::between(low, high);
    let mut tried: Vec<&Line> = vec![&Line::ZERO];
    for (form, _) in cases {
        if tried.contains(&form.line()) || tried.len() > 4 {
            continue;
        }
        tried.push(form.line());
        let line = *form.line();
        let along = cases.iter().map(|(form, facts)| {
            if *form.line() == line {
                return *form;
            }
            let ((low, high), (first, last)) = (form.bounds(space), facts.bounds(&line, space));
            let (least, most) = (low.saturating_sub(last), high.saturating_sub(first));
            Form::along(line, least, most).clipped(low, high, space)
        });
        let Some(joined) = along.reduce(|a, b| a.or(&b, space)) else { continue };
        if joined.high.saturating_sub(joined.low) < best.high - best.low {
            best = joined;
        }
    }
    Some(best)
}
