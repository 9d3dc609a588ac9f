//! Embedded device libraries. A process of its own, since each runtime of a process has its embedded libraries.

#[cfg(feature = "opencl")]
mod cl_library;
mod libraries;
#[cfg(feature = "opencl")]
mod native;
