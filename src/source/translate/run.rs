//! Runs clang and llvm-spirv as processes.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, ProcessOutput};

/// Exit status of clang for an invalid text. A crash has another status.
pub(super) const REFUSED: i32 = 1;

/// Environment variables that are passed to compilers. Others, such as `CPATH`, would change the output for the
/// same input. The last two are needed to start programs: the directories of libraries, and the system's
/// directory on Windows.
const ENVIRONMENT: [&str; 4] = ["PATH", "TMPDIR", "LD_LIBRARY_PATH", "SystemRoot"];

/// Returns the command of a compiler, with a minimal environment.
pub(super) fn compiler<S: AsRef<OsStr>>(
    program: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("LC_ALL", "C");
    for variable in ENVIRONMENT {
        if let Some(value) = std::env::var_os(variable) {
            command.env(variable, value);
        }
    }
    command
}

/// Runs a compiler. Fails if it ran out of memory, or of space for its output.
pub(super) fn run(
    program: &Path,
    arguments: impl IntoIterator<Item = String>,
    input: &[u8],
    limit: Duration,
) -> Result<ProcessOutput> {
    let ended = process::run(compiler(program, arguments), input, limit)?;
    if !ended.status.success() && process::ran_out_of_resources(&ended) {
        let message = format!("{}: it ran out of memory", program.display());
        return Err(Error::new(ErrorKind::OutOfResources, message).with_log(ended.log));
    }
    // Messages and output are written to files, which may have failed. On most systems the files are in memory.
    if ended.status.code() == Some(REFUSED) && ended.log.is_empty() {
        let (path, directory) = (program.display(), std::env::temp_dir());
        let message = format!(
            "{path}: it failed without a message, which happens if there is no space for files; \
             free memory, and space in {}",
            directory.display()
        );
        return Err(Error::new(ErrorKind::Io, message));
    }
    Ok(ended)
}
