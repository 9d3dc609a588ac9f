//! Inputs of applications: modules of device code, the files that they include, and the translation of OpenCL C
//! to SPIR-V.

pub(crate) mod image;
pub(crate) mod includes;
pub(crate) mod translate;
