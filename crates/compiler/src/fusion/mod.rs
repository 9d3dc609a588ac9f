//! Fusion of several launches into one kernel, where the results are proven to stay the same.
//!
//! This compiler is pure: a [`Plan`] and the modules of its kernels go in, SPIR-V comes out. It does not use
//! drivers or queues.
//!
//! 1. Each slot's kernel is [extracted](extract) into a module of its own. Its specialization constants are
//!    fixed at their values, and helpers that are passed shared buffers are [inlined](inlining). The
//!    launches' [nd-ranges](ranges) are joined into one.
//! 2. Each kernel is [analysed](access) for the bytes that its work-items touch, as [affine forms](affine) of
//!    their ids. These are converted to [common coordinates](coordinates).
//! 3. Each memory gets a [verdict](legality): whether the launches that share it may be fused.
//! 4. Contents that a work-item wrote or read before are [kept](private_legality) in a [variable](promote).
//!    Contents that a work-group wrote before may be [kept](local_legality) in [local memory](local_memory).
//!    Where that replaces a memory that is not read afterwards, the memory is [internalized](internalize):
//!    its buffer is no longer used.
//! 5. Kernels whose range differs from the common one get [other ids](remap). Fusion fails here if a driver
//!    might [contract](contraction) operations of different launches. A work-item may do the work of
//!    [several](coarsen).
//! 6. The modules are [merged](merge), and a new [entry point](entry) calls the kernels in order. Barriers
//!    separate launches where the work-items of a work-group pass values on. The result is lowered to the
//!    device's [version](lower_version) of SPIR-V.
//!
//! Launches that need what other work-items of earlier launches wrote are fused in other [forms](form): the
//! kernel [runs the earlier launches again](recompute). Equal launches that do not depend on each other may
//! be [batched]: each runs in work-groups of its own. Launches that cannot all be one kernel are
//! [divided](partition) into groups that can, by an estimate of their [cost].

pub(crate) mod access;
pub(crate) mod affine;
mod arrangement;
mod attempt;
mod batched;
mod budget;
mod built_ins;
mod coarsen;
mod contraction;
mod coordinates;
mod cost;
pub(crate) mod declaration;
mod dependence;
mod effects;
mod entry;
mod equation;
mod examination;
mod examined;
pub(crate) mod explain;
pub(crate) mod extract;
mod form;
mod fuse;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod image_legality;
mod inlining;
mod internalize;
mod judge;
mod launches;
mod legality;
mod local_legality;
mod local_memory;
mod lower_version;
pub(crate) mod merge;
pub(crate) mod modes;
mod outcome;
mod part_report;
mod partition;
mod pixel_access;
mod plan;
mod pointer_uses;
mod private_legality;
mod promote;
mod ranges;
mod recompute;
mod remainder;
mod remap;
mod repetition;
mod report;
pub(crate) mod specialize;
#[cfg(test)]
mod tests;
mod trim;
pub(crate) mod vector_access;
pub(crate) mod written;

pub use budget::Budget;
pub use coarsen::Width;
pub use entry::fused_name;
pub use examination::Examinations;
pub use examination::Programs;
pub use form::FusionForm;
pub use fuse::fuse;
pub use launches::{Candidate, Group, Launches, Part};
pub use legality::Verdict;
pub use outcome::{Fused, Outcome, Trust};
pub use part_report::short_name;
pub use part_report::{PartReport, StepReport, WayReport};
pub use plan::Internalization;
pub use plan::{Argument, Image, Memory, Place, Plan, Region, Slot, Target};
pub use report::{BufferReport, FusionReport, LaunchReport, PairReport};
