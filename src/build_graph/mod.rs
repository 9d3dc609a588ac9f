//! The build graph: image to program to kernel.
//!
//! Every program is a node named by a [`BuildKey`](crate::BuildKey) and is built at most once, by
//! the room's own worker threads. Those who ask wait on a shared result; a build neither needs nor
//! notices them. Below memory lies the [store](crate::cache::store), and below that, if there is one, the
//! remote cache.
//!
//! The SPIR-V of OpenCL C is a node as well: asked for by [`BuildGraph::spirv_of`], translated by
//! the [front-end](crate::source::translate), kept and stored like a program.
//!
//! Where the compiler runs is no part of a key: what is not trusted is compiled by a [child]
//! process, and programs are shared with those who trust it. Flights and failures are not: a
//! trusted build may hang for ever or take the process along, and what goes wrong with children is
//! nothing to those who need none.

mod capabilities;
mod child;
mod completion;
mod disk;
mod entry_codec;
mod fusion;
mod graph;
mod input;
mod job;
mod kernel_record;
mod key;
mod link;
mod plan;
mod pool;
mod program;
mod refusal;
mod request;
mod shared_outcome;
mod signatures;
#[cfg(test)]
mod tests;
mod trace;
mod translated;

pub use child::build_child;
pub use link::DuplicateExports;
pub use plan::SpecializationValue;
pub use program::{Kernel, Origin, Program};
pub use request::{Build, BuildRequest};

pub(crate) use child::{Children, LIMIT as CHILD_LIMIT};
pub(crate) use disk::Disk;
pub(crate) use fusion::{Choice, Fastest, FusedKernel, Fusion, FusionRequest, Query, Run};
pub(crate) use graph::{BuildGraph, Setting};
#[cfg(feature = "internal")]
pub(crate) use input::Unit;
pub(crate) use pool::{Pool, catch_panic};
pub(crate) use program::{ResolvedKernel, WeakKernel};
pub(crate) use trace::LookupTrace;
