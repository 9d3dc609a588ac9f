//! Findings about single instructions, for a proof that a kernel stays inside its memory.

use std::cell::RefCell;
use std::collections::BTreeSet;

use kiln_spirv::edit::Location;

use super::Kind;
use super::pointers::Base;

/// Touch of memory by an instruction, in one call of its function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) location: Location,
    pub(crate) kind: Kind,
    pub(crate) root: Root,
    /// Least and largest offset of the first byte from the root's; `None` if it may be any.
    pub(crate) offsets: Option<(i128, i128)>,
    /// Number of bytes; `None` if it is not known.
    pub(crate) width: Option<i128>,
    /// Alignment in bytes that the instruction requires.
    pub(crate) alignment: i128,
    /// Whether the offset is known to be a multiple of the alignment.
    pub(crate) is_aligned: bool,
    /// Reason why the pointer escapes, worded to follow the name of the memory.
    pub(crate) note: Option<&'static str>,
}

/// Touch of a pixel by an instruction, in one call of its function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PixelTouch {
    pub(crate) location: Location,
    /// Least and largest value of each coordinate, if the coordinates are integers.
    pub(crate) coordinates: Vec<(i128, i128)>,
}

/// Touches of memory, and operations whose results may not be defined.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) touches: Vec<Touch>,
    pub(crate) pixels: Vec<PixelTouch>,
    pub(crate) undefined: BTreeSet<(Location, Undefined)>,
}

/// Memory that a touch is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Root {
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
pub(crate) enum Undefined {
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
