//! Transformations of kernels: each takes a module and gives one that does the same, or the same for fixed arguments.

pub(crate) mod built_ins;
pub(crate) mod coarsen;
pub(crate) mod extract;
pub(crate) mod inlining;
pub(crate) mod lower_version;
pub(crate) mod merge;
pub(crate) mod modes;
pub(crate) mod new_kernel;
pub(crate) mod remainder;
pub(crate) mod remap;
pub(crate) mod repetition;
pub(crate) mod specialize;
pub(crate) mod trim;
pub(crate) mod written;
