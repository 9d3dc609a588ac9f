//! Programs that outlive the process: on the disk, and in services that machines share.

pub(crate) mod config;
mod duration;
pub(crate) mod manifest;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(not(feature = "remote"))]
#[path = "remote/absent.rs"]
pub(crate) mod remote;
pub mod store;
