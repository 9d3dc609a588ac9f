//! Fusion of launches: which are fused, and that the results stay the same.

mod aborts;
mod again;
mod batched;
#[cfg(feature = "cli")]
mod batches;
#[cfg(feature = "cli")]
mod cases;
mod chains;
#[cfg(feature = "cli")]
mod differential;
mod failures;
mod files;
mod helpers;
mod images;
mod images_random;
mod kernels;
mod launches;
mod limit;
mod local;
mod options;
mod parts;
#[cfg(feature = "cli")]
mod random;
#[cfg(feature = "cli")]
mod random_chains;
#[cfg(feature = "cli")]
mod random_kernels;
