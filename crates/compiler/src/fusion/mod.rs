//! Fusion of several launches into one kernel, where the results are proven to stay the same.
//!
//! This compiler is pure: a [`Plan`] and the modules of its kernels go in, SPIR-V comes out. It does not use
//! drivers or queues.
//!
//! 1. Each slot's kernel is [extracted](crate::transform::extract) into a module of its own. Its specialization constants are
//!    fixed at their values, and helpers that are passed shared buffers are [inlined](crate::transform::inlining). The
//!    launches' [nd-ranges](crate::ranges) are joined into one.
//! 2. Each kernel is [analysed](crate::analysis::access) for the bytes that its work-items touch, as [affine forms](crate::analysis::affine) of
//!    their ids. These are converted to [common coordinates](coordinates).
//! 3. Each memory gets a [verdict](legality): whether the launches that share it may be fused.
//! 4. Contents that a work-item wrote or read before are [kept](private_legality) in a [variable](promote).
//!    Contents that a work-group wrote before may be [kept](local_legality) in [local memory](local_memory).
//!    Where that replaces a memory that is not read afterwards, the memory is [internalized](internalize):
//!    its buffer is no longer used.
//! 5. Kernels whose range differs from the common one get [other ids](crate::transform::remap). Fusion fails here if a driver
//!    might [contract](contraction) operations of different launches. A work-item may do the work of
//!    [several](crate::transform::coarsen).
//! 6. The modules are [merged](crate::transform::merge), and a new [entry point](entry) calls the kernels in order. Barriers
//!    separate launches where the work-items of a work-group pass values on. The result is lowered to the
//!    device's [version](crate::transform::lower_version) of SPIR-V.
//!
//! Launches that need what other work-items of earlier launches wrote are fused in other [forms](form): the
//! kernel [runs the earlier launches again](recompute). Equal launches that do not depend on each other may
//! be [batched]: each runs in work-groups of its own. Launches that cannot all be one kernel are
//! [divided](partition) into groups that can, by an estimate of their [cost].

mod access_list;
mod arrangement;
mod attempt;
mod batched;
mod budget;
mod contraction;
mod coordinates;
mod cost;
mod dependence;
mod effects;
mod entry;
mod examination;
mod examined;
mod form;
mod fuse;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod image_legality;
mod internalize;
mod judge;
mod launches;
mod legality;
mod local_legality;
mod local_memory;
mod outcome;
mod part_report;
mod partition;
mod private_legality;
mod promote;
mod recompute;
mod report;
#[cfg(test)]
mod tests;

pub use crate::plan::{
    Argument, Image, Internalization, Memory, Place, Plan, Region, Slot, Target,
};
pub use crate::transform::coarsen::Width;
pub use access_list::{AccessDetail, AccessList, list_accesses};
pub use budget::Budget;
pub use entry::fused_name;
pub use examination::Examinations;
pub use examination::Programs;
pub use form::FusionForm;
pub use fuse::fuse;
pub use launches::{Candidate, Group, Launches, Part};
pub use legality::FusionVerdict;
pub use outcome::{Fused, Outcome, Trust};
pub use part_report::short_name;
pub use part_report::{PartReport, StepReport, WayReport};
pub use report::{BufferReport, FusionLaunchReport, FusionReport, PairReport};
