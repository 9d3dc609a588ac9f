//! Translates OpenCL C to SPIR-V with the system's clang and llvm-spirv, which run as processes.
//!
//! Devices that take only SPIR-V, such as Level Zero's, get the translation of a text. So does the fusing
//! compiler, which cannot analyse the output of a device's own compiler. Kiln searches for clang and llvm-spirv
//! when they are first needed ([`find`]). They run as processes with limits ([`process`](crate::process)), so
//! that a compiler that crashes, hangs or writes invalid output only causes an error.
//!
//! # Equality with plain builds
//!
//! * Build options are those of the plain build ([`options`]). An option that is not known to have the same
//!   meaning for clang is refused. Options that allow less accurate results are applied only by the device's
//!   compiler; clang gets only their macros. If both applied them, results would be less accurate than those of
//!   the plain build.
//! * Macros that the device's compiler would predefine are predefined here ([`target`]): versions, extensions
//!   and features.
//! * **Contraction.** OpenCL C lets a compiler contract `a * b + c` to one operation within an expression,
//!   unless the text forbids it. clang marks these places. For a device that has `fma`, as nearly all have,
//!   they become `fma`, which is how the plain builds of PoCL and Intel's CPU runtime compile them. (llvm-spirv
//!   alone would write `mad`, which Intel's compiler compiles sometimes to one operation and sometimes to two.)
//!   For vectors, each component has its own `fma` ([`scalarize`]), which is faster. A driver contracts no
//!   other place of the module. On Intel's CPU runtime the results then have the same bytes as those of the
//!   plain build, with or without the options for mathematics. The exceptions are
//!   `-cl-unsafe-math-optimizations` and `-cl-fast-relaxed-math`, under which results depend on how a compiler
//!   arranges an expression, and no two compilers agree.
//! * Included files are read here, during the translation, just as drivers read them during a build. Keys are
//!   made from the text with everything included, so a translation is never stale.
//!
//! [`fixups`] corrects known errors of llvm-spirv, and [`dimensions`] adds bounds checks that its output lacks.
//!
//! # Lines
//!
//! A translation has no lines of the source, so that it only depends on the code. The lines that messages name are
//! those of a second translation ([`Translation::with_lines`]), whose code is the same: [`line_tables`] removes what
//! llvm-spirv would otherwise translate differently.
//!
//! # What llvm-spirv does not accept
//!
//! Optimisation creates code that llvm-spirv 15 refuses: `freeze`, integers of other widths than those of
//! OpenCL C, reductions of vectors. [`freeze`] removes the first where that is possible, [`reductions`]
//! replaces the last. The functions that still have such code are optimised less; all others of the file stay
//! optimised ([`pieces`]). If the translation fails nevertheless, other strategies are tried for the whole
//! file, the last one without optimisation.

mod assembly;
mod dimensions;
mod find;
mod fixups;
mod freeze;
mod functions;
mod line_tables;
mod options;
mod pieces;
mod reductions;
mod run;
mod scalarize;
mod target;
#[cfg(test)]
mod tests;
mod translation;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_lock::OnceCell;

use self::find::{CLANG, LLVM_SPIRV, Places};
use crate::error::{Error, Result};
use crate::executor::run_blocking;
use crate::process::ChosenProgram;

pub(crate) use self::assembly::Names;
pub(crate) use self::find::Tools;
pub(crate) use self::options::options_for_device;
pub(crate) use self::translation::Translation;

/// Time limit for one run of a compiler.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Front end of a runtime: clang and llvm-spirv, at chosen paths or as a search finds them.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    places: Arc<Places>,
    tools: OnceCell<Arc<Tools>>,
}

impl FrontEnd {
    /// Creates a front end with the paths that the application gives; the environment supplies missing ones.
    /// Runs nothing yet.
    ///
    /// # Errors
    ///
    /// [`Configuration`](crate::ErrorKind::Configuration), with the setting that gave it, for a path without a
    /// program.
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
            ChosenProgram::find(given, name, variable(name))
        };
        let places = Places {
            clang: choose(clang, CLANG)?,
            llvm_spirv: choose(llvm_spirv, LLVM_SPIRV)?,
            path: variable("PATH").unwrap_or_default(),
        };
        Ok(Self { places: Arc::new(places), tools: OnceCell::new() })
    }

    /// Returns the tools. Searches for them in the first call, on a thread that may block. A failed search is
    /// not cached, neither here nor by callers: the tools may be installed later.
    ///
    /// # Errors
    ///
    /// Same as [`Tools::find`], and [`OutOfResources`](crate::ErrorKind::OutOfResources) if there is no thread.
    pub(crate) async fn tools(&self) -> Result<&Arc<Tools>> {
        let search = || async {
            let places = Arc::clone(&self.places);
            let find = move || Tools::find(&places).map_err(Error::transient);
            let tools = run_blocking(find).await?;
            tracing::debug!(?tools, "found the compilers that translate OpenCL C to SPIR-V");
            Ok(Arc::new(tools))
        };
        self.tools.get_or_try_init(search).await
    }
}
