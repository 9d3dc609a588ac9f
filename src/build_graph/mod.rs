//! The build graph: module to program to kernel.
//!
//! Every program is a node named by a [`BuildKey`](crate::build::BuildKey). Each node is [built](build) at most
//! once, by an async function on an executor of this module. Requests for a program wait on a shared result;
//! the build does not depend on them. A program that is not in memory is looked up in the
//! [store](crate::cache::store), then in the remote cache if there is one.
//!
//! The SPIR-V of an OpenCL C module is a node as well: it is requested by [`BuildGraph::spirv_of`], translated
//! by the [front-end](crate::source::translate), and kept and stored like a program.
//!
//! The place where the compiler runs is not part of a key. Untrusted modules are compiled by a [child] process,
//! and the resulting programs are shared with requests that trust the module. In-flight builds and failures are
//! not shared between the two: a trusted build may hang forever or crash the process, and failures of child
//! processes must not affect requests that need no child.

mod artifact;
mod asking;
mod attached;
mod build;
mod built;
mod capabilities;
mod checked;
mod child;
mod compile;
mod compile_times;
mod constants;
mod disk;
mod entry_codec;
mod footprint;
mod formats;
mod fusion;
mod graph;
mod in_flight;
mod in_use;
mod input;
mod kernel;
mod kernel_record;
mod key;
mod line_writer;
mod link;
mod manifest;
mod memory;
mod node_request;
mod object;
mod option_report;
mod options;
mod outcome;
mod pending;
mod plan;
mod pool;
mod program;
mod progress;
mod refusal;
mod request;
mod requested;
mod shared_outcome;
mod signatures;
mod spec;
mod specialization;
mod strategy;
#[cfg(test)]
mod tests;
mod trace;
mod translated;
mod turn;

pub use attached::Attached;
pub use built::Origin;
pub use checked::{CheckMode, CheckedBuild, CheckedBuildRequest, CheckedProgram};
pub use child::{CompileProcesses, build_child};
pub use kernel::Kernel;
pub use link::{DuplicateExports, LinkedSymbol};
pub use manifest::WarmOutcome;
pub use object::{CompileObject, Object};
pub use pending::Build;
pub use program::Program;
pub use progress::BuildProgress;
pub use request::BuildRequest;
pub use specialization::SpecializationValue;

pub(crate) use built::{ResolvedKernel, WeakKernel};
pub(crate) use checked::{Decision, LaunchShape, Variant};
pub(crate) use child::{Children, LIMIT as CHILD_LIMIT, ProcessPool};
pub(crate) use disk::Disk;
pub(crate) use fusion::{
    Awaited, FusedKernel, Fuser, Fusion, FusionRequest, ONE_BY_ONE, Overdue, Policy, Query,
    SelectedWay, Selection, Step,
};
pub(crate) use graph::{BuildGraph, Setting};
#[cfg(feature = "internal")]
pub(crate) use input::BuildInput;
pub(crate) use manifest::{ManifestRecorder, WarmMode};
pub(crate) use options::EnvironmentOptions;
pub(crate) use pool::CompilePool;
pub(crate) use trace::LookupTrace;
