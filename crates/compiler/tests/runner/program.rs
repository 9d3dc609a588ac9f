//! Modules that cases are about.

use std::fs;
use std::path::Path;

use kiln_spirv::{Module, Parameter, Reflection};

/// Module with its interface.
#[derive(Debug)]
pub(super) struct Program {
    /// Name of the file.
    pub(super) name: String,
    pub(super) module: Module,
    interface: Reflection,
}

impl Program {
    /// Reads a module.
    ///
    /// # Errors
    ///
    /// Returns why the file is not a module.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let problem = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let bytes = fs::read(path).map_err(|error| problem(&error))?;
        let module = Module::parse(&*bytes).map_err(|error| problem(&error))?;
        let (_, interface) = kiln_spirv::read(bytes).map_err(|error| problem(&error))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self { name: name.unwrap_or_default(), module, interface })
    }

    /// Returns the parameters of a kernel; none if the module has no such kernel.
    pub(super) fn parameters(&self, kernel: &str) -> &[Parameter] {
        self.interface.parameters(kernel).unwrap_or_default()
    }
}

/// Returns an error as a result.
pub(super) fn failure(error: &kiln_spirv::Error) -> String {
    format!("{:?}: {error}", error.kind())
}
