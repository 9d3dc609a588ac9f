//! Build manifests of a graph: recording what it builds, and building ahead what was recorded.
//!
//! An entry is a node of the graph with all its inputs, so that programs, linked programs, fused kernels and
//! translations are recorded and built ahead in the same way. The choices between fused kernels are entries of
//! their own.

mod describe;
mod record;
mod recorder;
mod restore;
mod warm;

pub(crate) use recorder::ManifestRecorder;
pub(crate) use warm::WarmMode;
pub use warm::WarmOutcome;
