//! Device libraries: code that is linked at run time.

#[cfg(feature = "opencl")]
mod cl_library;
mod device;
mod embedded;
mod linked_modules;
mod native;
mod signatures;
