//! Kernels that the oracle tests: an instruction with a decoration at a width, and how its result becomes an
//! index.

use std::fmt;

use fastrand::Rng;
use rspirv::spirv::Op;

use super::list::{COVERED, Decorated, Form, Instruction};

/// Instruction at a width. The driver calculates a table of its results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) instruction: &'static Instruction,
    pub(super) decorated: Decorated,
    /// Number of bits of the operands.
    pub(super) width: u32,
    /// Whether the operands are components of vectors.
    pub(super) is_lanes: bool,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.instruction, other.instruction)
            && (self.decorated, self.width, self.is_lanes)
                == (other.decorated, other.width, other.is_lanes)
    }
}

impl Entry {
    /// Returns the number of bits of the result.
    pub(super) fn result_width(&self) -> u32 {
        match self.instruction.form {
            Form::Convert(to) | Form::FromFloat { to, .. } => to,
            Form::Double => 2 * self.width,
            _ => self.width,
        }
    }

    pub(super) fn gives_condition(&self) -> bool {
        matches!(self.instruction.form, Form::Comparison | Form::Logic(_) | Form::LogicOfVector)
    }

    /// Returns the entry with the same results whose results are always defined, as guarded variants have it.
    pub(super) fn mended(&self) -> Self {
        let is_conversion = matches!(self.instruction.form, Form::FromFloat { .. });
        let decorated = match self.decorated {
            Decorated::Plain if is_conversion => Decorated::Saturated,
            // The numbers have no fractions, so that they are not rounded.
            Decorated::RoundedToZero if is_conversion => Decorated::Saturated,
            Decorated::NoSignedWrap | Decorated::NoUnsignedWrap | Decorated::NoWrap => {
                Decorated::Plain
            }
            other => other,
        };
        Self { decorated, ..*self }
    }
}

/// Place of an instruction's result in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// The result is the index.
    Index,
    /// An operand is the index where the result is a condition that holds, or where this comparison with a
    /// limit does.
    Condition { compared: Op, stored: usize },
}

/// Kernel `y[index - base] = 1`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) entry: Entry,
    pub(super) usage: Usage,
    /// Whether the index is extended to 64 bits as a signed integer.
    pub(super) is_signed: bool,
}

impl Case {
    /// Returns the number of bits of the index, before it is extended.
    pub(super) fn index_width(&self) -> u32 {
        match self.usage {
            Usage::Index => self.entry.result_width(),
            Usage::Condition { .. } => self.entry.width,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry: Entry { instruction, decorated, width, is_lanes }, usage, is_signed } =
            self;
        let (name, form) = (instruction.code.name(), instruction.form);
        let lanes = if *is_lanes { "x4" } else { "" };
        write!(f, "{name} {form:?} {decorated:?} i{width}{lanes} {usage:?}")?;
        f.write_str(if *is_signed { " signed" } else { " unsigned" })
    }
}

const COMPARISONS: [Op; 10] = [
    Op::IEqual,
    Op::INotEqual,
    Op::ULessThan,
    Op::ULessThanEqual,
    Op::UGreaterThan,
    Op::UGreaterThanEqual,
    Op::SLessThan,
    Op::SLessThanEqual,
    Op::SGreaterThan,
    Op::SGreaterThanEqual,
];

/// Returns a case for each instruction, decoration, width and place, in a random order.
pub(super) fn all(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    for instruction in COVERED {
        for &width in instruction.widths {
            for &decorated in instruction.decorations {
                let entry = Entry { instruction, decorated, width, is_lanes: false };
                add(&mut cases, entry, rng);
            }
        }
    }
    rng.shuffle(&mut cases);
    cases
}

/// Adds the cases of an entry.
fn add(cases: &mut Vec<Case>, entry: Entry, rng: &mut Rng) {
    for is_signed in [false, true] {
        cases.push(Case { entry, usage: Usage::Index, is_signed });
    }
    if entry.instruction.has_lanes {
        let entry = Entry { is_lanes: true, ..entry };
        cases.push(Case { entry, usage: Usage::Index, is_signed: rng.bool() });
    }
    for _ in 0..2 {
        let compared = COMPARISONS[rng.usize(..COMPARISONS.len())];
        let stored = rng.usize(..entry.instruction.operands);
        let usage = Usage::Condition { compared, stored };
        cases.push(Case { entry, usage, is_signed: rng.bool() });
    }
}
