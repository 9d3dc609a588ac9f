//! Inputs of applications: modules of device code, the files that they include, and the translation of OpenCL C
//! to SPIR-V.

pub(crate) mod includes;
pub(crate) mod module;
pub(crate) mod translate;
