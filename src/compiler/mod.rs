//! The compiler: SPIR-V modules, translation to OpenCL C and fusion of kernels.
//!
//! The compiler is pure: plain data in and plain data out. It does not use drivers, executors or caches. The
//! only description of a device that it takes is a [`Target`](fusion::Target).

pub(crate) mod bounds;
#[cfg(test)]
mod damage_tests;
pub(crate) mod fusion;
pub(crate) mod nd_range;
pub(crate) mod opencl_c;
pub(crate) mod options;
pub(crate) mod signature;
pub(crate) mod spirv;
pub(crate) mod work_group;
