//! The compiler: SPIR-V modules, translation to OpenCL C and fusion of kernels.
//!
//! It is pure: plain data in and plain data out. It knows no driver, no executor and no cache, and of a
//! device only what a [`Target`](fusion::Target) says.

pub(crate) mod fusion;
pub(crate) mod nd_range;
pub(crate) mod opencl_c;
pub(crate) mod options;
pub(crate) mod signature;
pub(crate) mod spirv;
