//! Artifacts of builds: a driver's program or object, or SPIR-V.

use std::sync::Arc;

use kiln_spirv::{Parameter, user_name};

use crate::backend::{self, Kernel};
use crate::error::{Error, Result};
use crate::source::module::Module;

/// Result of a build.
pub(super) enum Artifact {
    /// The driver's program, or an object to link.
    Native(Arc<dyn backend::Program>),
    /// SPIR-V, for further builds, with the messages of the compilers that translated it.
    SpirV { module: Module, log: String },
}

/// Kernel of an artifact, by reference.
pub(super) struct ArtifactKernel<'a> {
    /// Name that users know it by.
    pub(super) name: &'a str,
    /// Parameters; empty if the artifact does not describe them.
    pub(super) parameters: &'a [Parameter],
    /// The driver's kernel; `None` for a kernel of SPIR-V, which cannot be launched.
    pub(super) native: Option<&'a Arc<dyn Kernel>>,
}

impl Artifact {
    pub(super) fn kernels(&self) -> Vec<ArtifactKernel<'_>> {
        match self {
            Self::Native(program) => program
                .kernels()
                .iter()
                .map(|kernel| ArtifactKernel {
                    name: user_name(kernel.name()),
                    parameters: kernel.parameters(),
                    native: Some(kernel),
                })
                .collect(),
            Self::SpirV { module, .. } => module
                .kernels()
                .iter()
                .map(|name| ArtifactKernel {
                    name,
                    parameters: module.parameters(name).unwrap_or_default(),
                    native: None,
                })
                .collect(),
        }
    }

    pub(super) fn build_log(&self) -> &str {
        match self {
            Self::Native(program) => program.build_log(),
            Self::SpirV { log, .. } => log,
        }
    }

    /// Returns the size of [`binary`](Self::binary) in bytes; `None` if the driver does not report it.
    pub(super) fn binary_size(&self) -> Option<usize> {
        match self {
            Self::Native(program) => program.binary_size(),
            Self::SpirV { module, .. } => Some(module.code().len()),
        }
    }

    /// Returns the bytes from which the artifact can be loaded again.
    ///
    /// # Errors
    ///
    /// The driver's, if it does not return the binary.
    pub(super) fn binary(&self) -> Result<Vec<u8>> {
        match self {
            Self::Native(program) => program.binary(),
            Self::SpirV { module, .. } => Ok(module.code().to_vec()),
        }
    }

    /// Returns the driver's program or object.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for SPIR-V.
    pub(super) fn native(&self) -> Result<&dyn backend::Program> {
        match self {
            Self::Native(program) => Ok(&**program),
            Self::SpirV { .. } => Err(Error::invalid("SPIR-V was given, expected an object")),
        }
    }

    pub(super) fn spirv(&self) -> Option<&Module> {
        match self {
            Self::Native(_) => None,
            Self::SpirV { module, .. } => Some(module),
        }
    }
}

/// Source that takes precedence where the driver and the module describe a kernel's parameters differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureSource {
    /// The driver, which describes the program that it built. The module supplies what the driver omits.
    Driver,
    /// The module, or the record of its parameters in a stored entry: the driver was given a translation.
    Module,
}
