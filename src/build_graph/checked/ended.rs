//! Kernels whose runtime has ended, which can no longer be checked.

use std::sync::{Arc, Weak};

use crate::build_graph::graph::BuildGraph;
use crate::error::{Error, Result};

/// Returns the graph of a program's runtime.
///
/// # Errors
///
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the runtime has ended.
pub(in crate::build_graph) fn graph_of(
    graph: &Weak<BuildGraph>,
    kernel: &str,
) -> Result<Arc<BuildGraph>> {
    graph.upgrade().ok_or_else(|| runtime_ended_error(kernel))
}

/// Returns the error for a kernel whose runtime has ended.
pub(super) fn runtime_ended_error(kernel: &str) -> Error {
    Error::invalid(format!("`{kernel}` cannot be checked: the runtime of its program has ended"))
}
