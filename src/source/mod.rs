//! Inputs of applications: modules of device code, device libraries that crates and plug-ins embed, the files
//! that modules include, and the translation of OpenCL C to SPIR-V.

mod content;
pub(crate) mod embed;
pub(crate) mod includes;
pub(crate) mod library;
mod made_for;
pub(crate) mod module;
pub(crate) mod native;
pub(crate) mod plugin;
pub(crate) mod translate;
