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

/// Runs a compiler. What it made is no answer about the text if the system kept it from its work.
///
/// # Errors
///
/// * [`OutOfResources`](ErrorKind::OutOfResources) if it ran out of memory, files or space, or could not read or
///   write a file.
/// * [`Io`](ErrorKind::Io) if it was stopped, wrote nothing, or failed without a message.
/// * Those of [`process::run`].
pub(super) fn run(
    program: &Path,
    arguments: impl IntoIterator<Item = String>,
    input: &[u8],
    limit: Duration,
) -> Result<ProcessOutput> {
    let ended = process::run(compiler(program, arguments), input, limit)?;
    if !ended.status.success() && process::ran_out_of_resources(&ended) {
        let message = format!(
            "{}: it ran out of {}: it {}",
            program.display(),
            process::exhausted_resource(&ended),
            process::describe_exit(ended.status)
        );
        return Err(Error::new(ErrorKind::OutOfResources, message).with_log(ended.log));
    }
    let is_silent = ended.status.success() && ended.output.is_empty();
    if is_silent || process::was_stopped(ended.status) {
        let what = if is_silent { "it wrote nothing" } else { "it was stopped" };
        let (path, exit) = (program.display(), process::describe_exit(ended.status));
        let message = format!("{path}: {what}: it {exit}; try again");
        return Err(Error::new(ErrorKind::Io, message).with_log(ended.log));
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
