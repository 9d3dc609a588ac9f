//! Proof that a launch stays inside its memory.
//!
//! A [`Kernel`] is prepared once. Each launch is [checked](check): a nd-range, the values of the scalars, and the
//! lengths of the buffers and of local memory go in, and a verdict for each instruction that touches memory comes
//! out. An instruction is in bounds in every work-item, or it needs a guard. A kernel whose pointers cannot be
//! followed is [refused](refusal) by name.
//!
//! The proof relies on the [analysis of accesses](crate::compiler::fusion), which evaluates the kernel once for
//! all work-items. It relies on nothing that the author of the kernel or of the launch promises: buffers may
//! overlap, indexes may wrap, and work-groups may be smaller at the end of a dimension.

mod check;
mod kernel;
mod refusal;
mod report;
#[cfg(test)]
mod tests;

pub(crate) use check::check;
pub(crate) use kernel::Kernel;

use crate::compiler::nd_range::NdRange;

/// Launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) range: &'a NdRange,
    pub(crate) arguments: &'a [Argument],
    /// Whether all work-groups have the same size where the driver chooses it.
    pub(crate) uniform_groups: bool,
}

/// Argument of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Buffer, or a slice of one.
    Buffer {
        /// Length in bytes.
        length: usize,
        /// Number of bytes of which the address of the first byte is a multiple.
        alignment: usize,
    },
    /// Value, as bytes.
    Scalar(Vec<u8>),
    /// Local memory, by its length in bytes.
    Local(usize),
}
