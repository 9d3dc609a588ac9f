//! Proof that a launch stays inside its memory, and guards for what is not proven.
//!
//! A [`Kernel`] is prepared once. Each launch is [checked](check()): a nd-range, the values of the scalars, and
//! the lengths of the buffers and of local memory go in, and a verdict for each instruction that touches memory
//! comes out. An instruction is in bounds in every work-item, or it needs a guard. A [guarded variant](variant())
//! of the kernel has a check before each such instruction. A kernel whose pointers cannot be followed is
//! [refused](refusal) by name.
//!
//! # What a proof relies on
//!
//! The [analysis of accesses](crate::analysis::access) evaluates the kernel once for all work-items. Here it
//! relies on nothing that the author of the kernel or of the launch promises:
//!
//! * Buffers may overlap. Pointers to different arguments are not assumed to differ, and null is not assumed to
//!   be outside of local memory.
//! * Integers wrap as in SPIR-V, in their own width and when they are extended. An offset is proven as a number
//!   without a limit, so that a wrapped address is never in bounds.
//! * Work-groups at the end of a dimension may be smaller than others, unless the launch says otherwise. The
//!   global offset counts.
//! * Memory may hold any values. Nothing that is loaded is known before it is compared.
//! * A module [claims] only what the check covers: alignments are compared with the arguments, and
//!   floating-point numbers that a compiler may take for finite count as undefined.
//! * Buffers, local memory, structs that are passed by value, variables, arrays and built-in variables are all
//!   memory of known length.
//!
//! The proof is about the SPIR-V that was given. A device must run this SPIR-V, or text that was made of it.
//!
//! # What else a checked launch needs
//!
//! [`hazards`] lists the code that has to be mended besides accesses, with the reasons. A launch whose
//! [report](report::Report) is proven has none. Barriers that some work-items may not reach cannot be mended,
//! so that their kernels are refused. So are kernels that write through a parameter that is declared `const`:
//! the host may read such a buffer at the same time. An endless loop is not a hazard for the host. The device's
//! watchdog ends it, if it has one.

mod check;
mod claims;
mod defined;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod guard;
mod hazards;
#[cfg(any(test, fuzzing))]
mod interpreter;
mod kernel;
mod patterns;
mod pixels;
mod refusal;
mod report;
mod stack;
#[cfg(test)]
mod tests;
mod types;
mod verdict;

pub use check::{check, check_quickly};
pub use claims::without_false_claims;
pub use defined::define;
pub use guard::{Offset, variant};
pub use kernel::Kernel;
pub use report::Report;
pub use verdict::{Finding, LaunchVerdict};

use crate::NdRange;
use crate::Sampler;

/// Launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Range of the launch.
    pub range: &'a NdRange,
    /// Arguments, in the order of the parameters.
    pub arguments: &'a [Argument],
    /// Whether all work-groups have the same size where the driver chooses it.
    pub uniform_groups: bool,
    /// Whether to look for verdicts that depend on as few scalars as possible. This takes longer.
    pub few_constants: bool,
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
    /// Image.
    Image {
        /// Type in OpenCL C, such as `image2d_t`.
        type_name: &'static str,
        /// Sizes in pixels. Layers count as the last dimension.
        size: [usize; 3],
        /// Numbers that kernels write to the image.
        channel: Channel,
    },
    /// Sampler.
    Sampler(Sampler),
}

/// Numbers that kernels read from an image and write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Floating-point numbers.
    Float,
    /// Signed integers.
    Signed,
    /// Unsigned integers.
    Unsigned,
}
