//! The build graph: image to program to kernel.
//!
//! Every program is a node named by a [`BuildKey`](crate::BuildKey) and is built at most once, by
//! the room's own worker threads. Those who ask wait on a shared result; a build neither needs nor
//! notices them. Below memory lies the [store](crate::store), and below that, if there is one, the
//! remote cache.
//!
//! The SPIR-V of OpenCL C is a node as well: asked for by [`BuildGraph::spirv_of`], translated by
//! the [front-end](crate::frontend), kept and stored like a program.
//!
//! Where the compiler runs is no part of a key: what is not trusted is compiled by a [child]
//! process, and programs are shared with those who trust it. Flights and failures are not: a
//! trusted build may hang for ever or take the process along, and what goes wrong with children is
//! nothing to those who need none.

mod capabilities;
mod child;
mod disk;
mod flight;
mod fusion;
mod graph;
mod job;
mod key;
mod landing;
mod link;
mod pool;
mod program;
mod recipe;
mod record;
mod refusal;
mod request;
mod signatures;
mod spirv;
mod stored;
#[cfg(test)]
mod tests;
mod trace;
mod unit;

pub use child::build_child;
pub use link::DuplicateExports;
pub use program::{Kernel, Origin, Program};
pub use recipe::SpecializationValue;
pub use request::{Build, BuildRequest};

pub(crate) use child::{Children, LIMIT as CHILD_LIMIT};
pub(crate) use disk::Disk;
pub(crate) use fusion::{Choice, Fastest, FusedKernel, Fusion, FusionRequest, Query, Run};
pub(crate) use graph::{BuildGraph, Setting};
pub(crate) use pool::{Pool, catch_panic};
pub(crate) use program::{ResolvedKernel, WeakKernel};
pub(crate) use trace::LookupTrace;
#[cfg(feature = "internal")]
pub(crate) use unit::Unit;
