//! The build graph: image to program to kernel.
//!
//! Every program is a node named by a [`BuildKey`](crate::BuildKey) and is built at most once, by the room's own
//! worker threads. Those who ask wait on a shared result; a build neither needs nor notices them.

mod flight;
mod graph;
mod key;
mod pool;
mod program;
mod recipe;
mod request;
#[cfg(test)]
mod tests;

pub use program::{Kernel, Origin, Program};
pub use recipe::SpecializationValue;
pub use request::{Build, BuildRequest};

pub(crate) use graph::BuildGraph;
pub(crate) use pool::Pool;
pub(crate) use program::ResolvedKernel;
