//! Images: commands and kernels that use them.

mod commands;
#[cfg(feature = "opencl")]
mod kernels;
#[cfg(feature = "opencl")]
mod objects;
mod random;
