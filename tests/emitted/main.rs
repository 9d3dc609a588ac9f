//! SPIR-V modules that are translated to OpenCL C.

mod arithmetic;
mod booleans;
mod modules;
