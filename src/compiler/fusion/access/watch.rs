//! Findings about single instructions, for a proof that a kernel stays inside its memory.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::Kind;
use super::pointers::Base;
use crate::compiler::spirv::edit::Location;

/// Touch of memory by an instruction, in one call of its function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::compiler) struct Touch {
    pub(in crate::compiler) location: Location,
    pub(in crate::compiler) kind: Kind,
    pub(in crate::compiler) root: Root,
    /// Least and largest offset of the first byte from the root's; `None` if it may be any.
    pub(in crate::compiler) offsets: Option<(i128, i128)>,
    /// Number of bytes; `None` if it is not known.
    pub(in crate::compiler) width: Option<i128>,
    /// Alignment in bytes that the instruction requires.
    pub(in crate::compiler) alignment: i128,
    /// Whether the offset is known to be a multiple of the alignment.
    pub(in crate::compiler) is_aligned: bool,
    /// Reason why the pointer escapes, worded to follow the name of the memory.
    pub(in crate::compiler) note: Option<&'static str>,
}

/// Touch of a pixel by an instruction, in one call of its function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::compiler) struct PixelTouch {
    pub(in crate::compiler) location: Location,
    /// Least and largest value of each coordinate, if the coordinates are integers.
    pub(in crate::compiler) coordinates: Vec<(i128, i128)>,
}

/// Touches of memory, and operations whose results may not be defined.
#[derive(Debug)]
pub(in crate::compiler) struct Findings {
    pub(in crate::compiler) touches: Vec<Touch>,
    pub(in crate::compiler) pixels: Vec<PixelTouch>,
    pub(in crate::compiler) undefined: BTreeSet<(Location, Undefined)>,
}

/// Memory that a touch is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::compiler) enum Root {
    /// Memory of a kernel's parameter.
    Parameter(usize),
    /// Memory of one of several parameters.
    OneOf(BTreeSet<usize>),
    /// Variable, by its id.
    Variable(u32),
    /// Any memory.
    Unknown,
}

impl Root {
    pub(super) fn of(base: &Base) -> Self {
        match base {
            Base::Parameter(parameter) => Self::Parameter(*parameter),
            Base::OneOf(parameters, true) => Self::OneOf(parameters.clone()),
            Base::Variable(id) | Base::BuiltIn(id) => Self::Variable(*id),
            Base::OneOf(_, false) | Base::Harmless | Base::Null | Base::Anything => Self::Unknown,
        }
    }
}

/// Operation whose result may not be defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::compiler) enum Undefined {
    /// Division by zero, or with a quotient that is too large.
    Division,
    /// Shift by at least as many bits as the value has.
    Shift,
    /// Limits of a clamped value in the wrong order.
    Limits,
    /// Component of a vector that does not exist.
    Component,
    /// Code that is marked as never reached.
    Unreachable,
}

/// Findings of an evaluation.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Touches of memory, in the order of evaluation.
    pub(super) touches: RefCell<Vec<Touch>>,
    pub(super) pixels: RefCell<Vec<PixelTouch>>,
    pub(super) undefined: RefCell<BTreeSet<(Location, Undefined)>>,
}
