//! OpenCL C to SPIR-V: clang and llvm-spirv of the system, as processes.
//!
//! Devices that take SPIR-V only, as those of Level Zero, get the translation of a text. So does the
//! fusing compiler: what a device's own compiler makes cannot be looked into. The compilers are found
//! when they are first needed ([`find`]). They run as processes with limits
//! ([`process`](crate::process)), so that one that crashes, hangs or writes nonsense is an error and
//! nothing else.
//!
//! # The same results as a plain build
//!
//! * Build options are those of the plain build ([`options`]); one that is not known to mean the same
//!   to clang is refused. Options that allow less accurate results are applied by the device's compiler
//!   alone, and only their macros are defined here: applied twice, they would cost accuracy that the plain
//!   build does not lose.
//! * What the device's compiler would predefine is predefined here ([`target`]): versions, extensions
//!   and features.
//! * **Contraction.** OpenCL C lets a compiler make `a * b + c` one operation, within an expression
//!   and unless the text forbids it. clang marks those places, and for a device that has
//!   `fma`, as nearly all have, they become that: it is what the plain builds of PoCL and Intel's CPU
//!   runtime make of them. (llvm-spirv alone would write `mad`, of which Intel's compiler makes now one
//!   operation, now two.) For vectors, each component has its own ([`by_component`]): that is faster.
//!   The module has no other place that a driver contracts. On Intel's CPU runtime the results then
//!   have the same bytes, with or without the options for mathematics; except
//!   `-cl-unsafe-math-optimizations` and `-cl-fast-relaxed-math`, under which results depend on how a
//!   compiler arranges an expression, and no two compilers agree.
//! * Files that the text includes are read here, when it is translated, as drivers read them when they
//!   build. The text with everything included is what keys are made of: a translation is never stale.
//!
//! [`repair`] puts right what llvm-spirv is known to write wrongly, and [`dimensions`] what it loses;
//! where it fails, another way to translate is tried, and at last without optimisation.

mod dimensions;
mod find;
mod fixups;
mod options;
mod scalarize;
mod target;
#[cfg(test)]
mod tests;
mod translation;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use self::find::{CLANG, LLVM_SPIRV, Places};
use crate::error::{Error, Result};
use crate::process::Chosen;
use crate::sync::lock;

pub(crate) use self::find::Tools;
pub(crate) use self::options::options_for_device;
pub(crate) use self::translation::Translation;

/// How long a compiler may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The variables that compilers get; others, such as `CPATH`, would change what they make of the
/// same input. The last two are what programs need to start: libraries in places of their own, and
/// the system's folder on Windows.
const ENVIRONMENT: [&str; 4] = ["PATH", "TMPDIR", "LD_LIBRARY_PATH", "SystemRoot"];

/// A compiler to be run, with little of the environment.
fn compiler<S: AsRef<OsStr>>(program: &Path, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("LC_ALL", "C");
    for variable in ENVIRONMENT {
        if let Some(value) = std::env::var_os(variable) {
            command.env(variable, value);
        }
    }
    command
}

/// The compilers of a runtime: those that were chosen, or those that will be found.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    places: Places,
    tools: OnceLock<Arc<Tools>>,
    searching: Mutex<()>,
}

impl FrontEnd {
    /// With the paths that an application gives; what it does not give, the environment may. Runs
    /// nothing yet.
    ///
    /// # Errors
    ///
    /// [`Configuration`](crate::ErrorKind::Configuration) for a path where no program is, with who
    /// gave it.
    pub(crate) fn new(clang: Option<PathBuf>, llvm_spirv: Option<PathBuf>) -> Result<Self> {
        Self::new_in(clang, llvm_spirv, |name| std::env::var_os(name))
    }

    fn new_in(
        clang: Option<PathBuf>,
        llvm_spirv: Option<PathBuf>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self> {
        let choose = |given: Option<PathBuf>, name: &'static str| {
            let given = given.map(|path| (path, "RuntimeBuilder::front_end"));
            Chosen::find(given, name, variable(name))
        };
        let places = Places {
            clang: choose(clang, CLANG)?,
            llvm_spirv: choose(llvm_spirv, LLVM_SPIRV)?,
            path: variable("PATH").unwrap_or_default(),
        };
        let (tools, searching) = (OnceLock::new(), Mutex::new(()));
        Ok(Self { places, tools, searching })
    }

    /// The tools, if they were found already. Does not block.
    pub(crate) fn known_tools(&self) -> Option<&Arc<Tools>> {
        self.tools.get()
    }

    /// The tools, looked for once. That there are none is not kept, here or by whoever is told: they
    /// may be installed meanwhile. Blocks.
    ///
    /// # Errors
    ///
    /// As [`Tools::find`].
    pub(crate) fn tools(&self) -> Result<&Arc<Tools>> {
        let _one_at_a_time = lock(&self.searching);
        if let Some(tools) = self.tools.get() {
            return Ok(tools);
        }
        let tools = Tools::find(&self.places).map_err(Error::passing)?;
        tracing::debug!(?tools, "found the compilers that translate OpenCL C to SPIR-V");
        Ok(self.tools.get_or_init(|| Arc::new(tools)))
    }
}
