//! Compilers as child processes with limits, so that the application survives whatever they do.
//!
//! Nothing is left behind on disk, even if this process is killed: a child's input and output are files without
//! a name, in memory where the system supports that. A child has a [group] of processes of its own. [`connected`] is
//! a child that stays and exchanges messages. [`program`] finds the programs. [`watcher`] reports how a child ended if the application ignores SIGCHLD.

#[cfg_attr(not(unix), path = "unconnected.rs")]
mod connected;
pub(crate) mod environment;
pub(crate) mod event_log;
mod exchange_error;
pub(crate) mod file;
mod group;
mod identity;
mod library;
pub(crate) mod log;
pub(crate) mod memory;
mod program;
mod regular_file;
pub(crate) mod resources;
pub(crate) mod stopped;
#[cfg(all(test, unix))]
mod tests;
pub(crate) mod threads;
pub(crate) mod warning;
#[cfg(unix)]
mod watcher;

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use self::group::{Group, MAX_LOG, MAX_OUTPUT, NO_STATUS, not_started, pause, unnamed_file};
use self::log::Cause;
use self::stopped::StoppedWatch;
use crate::error::{Error, ErrorKind, Result};

pub(crate) use self::connected::ConnectedProcess;
pub(crate) use self::exchange_error::ExchangeError;
pub(crate) use self::identity::{ForkedOutput, check, id, is_forked, start};
pub(crate) use self::library::pin_library;
pub(crate) use self::program::{ChosenProgram, SearchResult, find_program, search_folder};

/// The outcome of a child that has ended.
#[derive(Debug)]
pub(crate) struct ProcessOutput {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    /// The child's standard error.
    pub(crate) log: String,
}

/// Runs a command with `input` as its standard input, and with files for its output. Blocks.
///
/// # Errors
///
/// Only failures that may not recur: the program cannot be started, does not end within `limit`, is stopped by a
/// signal, or writes too much. If the program ends by itself, its status is not an error here, even if it is not zero.
pub(crate) fn run(mut command: Command, input: &[u8], limit: Duration) -> Result<ProcessOutput> {
    let program = PathBuf::from(command.get_program());
    let name = program.display();
    let failed = |what: &str, error: io::Error| Error::of_system(format!("{name}: {what}"), error);
    let files = || -> io::Result<_> {
        let mut stdin = unnamed_file()?;
        stdin.write_all(input)?;
        stdin.rewind()?;
        Ok([stdin, unnamed_file()?, unnamed_file()?])
    };
    let [stdin, mut stdout, mut stderr] = files()
        .map_err(|error| failed("cannot create temporary files for its input and output", error))?;
    let start = || -> io::Result<Group> {
        command.stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        Group::start(&mut command)
    };
    let mut group = start().map_err(|error| failed(not_started(&program, &error), error))?;
    group.limit_resources(limit);
    // Closes the handles that the command keeps.
    drop(command);

    let (since, mut stopped) = (Instant::now(), StoppedWatch::default());
    let status = loop {
        if let Some(status) = group.try_wait().map_err(|error| failed(NO_STATUS, error))? {
            break status;
        }
        let elapsed = since.elapsed();
        let is_stopped = stopped.look(group.is_stopped());
        let Some(reason) = reason_to_kill(elapsed, limit, is_stopped, [&stdout, &stderr]) else {
            pause(elapsed);
            continue;
        };
        drop(group);
        let log = read_from_start(&mut stderr, MAX_LOG).unwrap_or_default();
        let error = Error::new(ErrorKind::Driver, format!("{name}: {reason}"));
        return Err(error.with_log(String::from_utf8_lossy(&log)));
    };
    let output = read_from_start(&mut stdout, MAX_OUTPUT);
    let log = read_from_start(&mut stderr, MAX_LOG);
    let (output, log) = output
        .and_then(|output| Ok((output, log?)))
        .map_err(|error| failed("its output cannot be read", error))?;
    Ok(ProcessOutput { status, output, log: String::from_utf8_lossy(&log).into_owned() })
}

/// Returns the reason why a child must be killed, if there is one, after it has run for `elapsed`.
fn reason_to_kill(
    elapsed: Duration,
    limit: Duration,
    is_stopped: bool,
    outputs: [&File; 2],
) -> Option<String> {
    let written = outputs.map(|file| file.metadata().map_or(0, |metadata| metadata.len()));
    if elapsed >= limit {
        Some(format!("it did not end within {} s, and was killed", limit.as_secs_f64()))
    } else if is_stopped {
        Some("it was stopped by a signal, and was killed".to_owned())
    } else if written.iter().any(|bytes| *bytes > MAX_OUTPUT) {
        Some(format!("it wrote more than {} MiB, and was killed", MAX_OUTPUT >> 20))
    } else {
        None
    }
}

/// Reads a file from its start, up to `limit` bytes.
fn read_from_start(file: &mut File, limit: u64) -> io::Result<Vec<u8>> {
    file.rewind()?;
    // One allocation: a vector that grows takes up to three times as much.
    let length = file.metadata().map_or(0, |metadata| metadata.len()).min(limit);
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Describes in words how a program ended.
pub(crate) fn describe_exit(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("was killed by signal {signal}");
    }
    match status.code() {
        Some(code) => format!("exited with status {code}"),
        None => "exited without a status".to_owned(),
    }
}

/// Returns whether a program was ended by a signal that other programs or limits send, and not by an error of its own.
#[cfg(unix)]
pub(crate) fn was_stopped(status: ExitStatus) -> bool {
    /// Signals for errors of the program itself, by their numbers on Linux and macOS: an illegal instruction, a trap, an
    /// abort, access errors and arithmetic.
    const OWN: [i32; 7] = [4, 5, 6, 7, 8, 10, 11];
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    signal.is_some_and(|signal| !OWN.contains(&signal))
}

/// Returns whether a program was ended by a signal: there are none here.
#[cfg(not(unix))]
pub(crate) fn was_stopped(_: ExitStatus) -> bool {
    false
}

/// Returns whether the program failed because a system resource was exhausted, as far as its status and log
/// show.
pub(crate) fn ran_out_of_resources(ended: &ProcessOutput) -> bool {
    #[cfg(unix)]
    {
        const KILL: i32 = 9;
        if std::os::unix::process::ExitStatusExt::signal(&ended.status) == Some(KILL) {
            return true;
        }
    }
    log::cause(&ended.log) == Cause::Exhaustion
}

/// Returns the resource that a program [ran out of](ran_out_of_resources), in words. A system without memory may
/// kill a program, which then has no log.
pub(crate) fn exhausted_resource(ended: &ProcessOutput) -> &'static str {
    log::resource(&ended.log).unwrap_or("memory or another resource")
}
