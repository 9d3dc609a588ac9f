//! Compilers as child processes with limits, so that the application survives whatever they do.
//!
//! Nothing is left behind on disk, even if this process is killed: a child's input and output are files without
//! a name, in memory where the system supports that. [`connected`] is a child that stays and exchanges messages.
//! [`program`] finds the programs. [`watcher`] reports how a child ended if the application ignores SIGCHLD.

#[cfg_attr(not(unix), path = "unconnected.rs")]
mod connected;
pub(crate) mod environment;
pub(crate) mod file;
mod identity;
mod library;
pub(crate) mod log;
mod program;
mod regular_file;
pub(crate) mod resources;
#[cfg(all(test, unix))]
#[path = "../../tests/support/scripts.rs"]
pub(crate) mod scripts;
#[cfg(all(test, unix))]
mod tests;
pub(crate) mod threads;
pub(crate) mod warning;
#[cfg(unix)]
mod watcher;

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use self::log::Cause;
use crate::error::{Error, ErrorKind, Result};

pub(crate) use self::connected::ConnectedProcess;
pub(crate) use self::identity::{ForkedOutput, check, id, is_forked, start};
pub(crate) use self::library::pin_library;
pub(crate) use self::program::{ChosenProgram, SearchResult, find_program, search_folder};
#[cfg(unix)]
use self::watcher::Watcher;

/// Maximum number of bytes that a child may write to its output or its log; more than any module has.
const MAX_OUTPUT: u64 = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// Maximum number of bytes of a child's log that are kept.
const MAX_LOG: u64 = 1 << 20;

/// The shortest and the longest pause between two polls of a child.
const PAUSES: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(20)];

/// Divisor of the time already waited that gives the next pause.
const PAUSE_DIVISOR: u32 = 16;

/// Message of the error if the system does not report a child's end. It reports that only once, to the first
/// waiter.
const NO_STATUS: &str = "the system does not report its exit status; the application must not wait \
                      for children that it did not start, and must not start to ignore SIGCHLD \
                      while a child runs";

/// The outcome of a child that has ended.
#[derive(Debug)]
pub(crate) struct ProcessOutput {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    /// The child's standard error.
    pub(crate) log: String,
}

/// Reason why an exchange of messages with a [connected](ConnectedProcess) child failed.
#[derive(Debug)]
#[cfg_attr(not(unix), expect(dead_code, reason = "there are no connected children"))]
pub(crate) enum ExchangeError {
    /// The child has closed its end of the socket, which it does when it ends.
    Closed,
    /// The time limit has passed, or the child has written too much to its log.
    Exceeded(String),
    /// The caller stopped the exchange.
    Stopped,
    /// The system reported an error.
    System(io::Error),
}

/// Maximum time to wait for a killed child: one that is stuck in a driver's call may never end.
const GRACE: Duration = Duration::from_secs(1);

/// A child in a process group of its own. The whole group is killed with it.
struct Group {
    /// The child, until it has been waited for.
    child: Option<Child>,
    /// The watcher that reports how the child ended, if the system does not.
    #[cfg(unix)]
    watcher: Option<Watcher>,
}

/// Runs a command with `input` as its standard input, and with files for its output. Blocks.
///
/// # Errors
///
/// Only failures that may not recur: the program cannot be started, does not end within `limit`, or writes too
/// much. If the program ends by itself, its status is not an error here, even if it is not zero.
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

    let since = Instant::now();
    let status = loop {
        if let Some(status) = group.try_wait().map_err(|error| failed(NO_STATUS, error))? {
            break status;
        }
        let elapsed = since.elapsed();
        let Some(reason) = reason_to_kill(elapsed, limit, [&stdout, &stderr]) else {
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
fn reason_to_kill(elapsed: Duration, limit: Duration, outputs: [&File; 2]) -> Option<String> {
    let written = outputs.map(|file| file.metadata().map_or(0, |metadata| metadata.len()));
    if elapsed >= limit {
        Some(format!("it did not end within {} s, and was killed", limit.as_secs_f64()))
    } else if written.iter().any(|bytes| *bytes > MAX_OUTPUT) {
        Some(format!("it wrote more than {} MiB, and was killed", MAX_OUTPUT >> 20))
    } else {
        None
    }
}

/// Pauses between two polls of a child that was started, or killed, `elapsed` ago.
fn pause(elapsed: Duration) {
    let [shortest, longest] = PAUSES;
    std::thread::sleep((elapsed / PAUSE_DIVISOR).clamp(shortest, longest));
}

/// Creates a file without a name. It is in memory where the system supports that, so that a child needs no
/// directory for temporary files.
fn unnamed_file() -> io::Result<File> {
    #[cfg(target_os = "linux")]
    if let Ok(file) = rustix::fs::memfd_create("kiln", rustix::fs::MemfdFlags::CLOEXEC) {
        return Ok(file.into());
    }
    tempfile::tempfile()
}

/// Returns the reason why a program cannot be started, to which the system's error is added.
fn not_started(program: &Path, error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::NotFound && program.exists() {
        return "it cannot be started: the dynamic linker or interpreter that it names is missing";
    }
    "it cannot be started"
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

impl Group {
    /// Starts a command in a process group of its own.
    fn start(command: &mut Command) -> io::Result<Self> {
        #[cfg(unix)]
        {
            std::os::unix::process::CommandExt::process_group(command, 0);
            let watcher = Watcher::if_needed(command)?;
            Ok(Self { child: Some(command.spawn()?), watcher })
        }
        #[cfg(not(unix))]
        Ok(Self { child: Some(command.spawn()?) })
    }

    /// Disables core files, and limits the child's CPU time to what it can use within `limit` on all
    /// processors, in case this process ends before it can kill the child.
    fn limit_resources(&self, limit: Duration) {
        #[cfg(target_os = "linux")]
        if let Some(child) = &self.child {
            use rustix::process::{Pid, Resource, Rlimit, prlimit};
            // A CPU quota may allow a fraction of a processor more, hence the one.
            let processors = std::thread::available_parallelism().map_or(1, usize::from) + 1;
            let seconds = limit.saturating_add(GRACE).as_secs().saturating_mul(processors as u64);
            for (resource, limit) in [(Resource::Core, 0), (Resource::Cpu, seconds)] {
                let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
                let _ = prlimit(Some(Pid::from_child(child)), resource, limit);
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = limit;
    }

    /// Returns how the child ended, if it did, and then kills the processes that it left running. Does not
    /// block.
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        #[cfg(unix)]
        if let Some(watcher) = &mut self.watcher {
            let status = watcher.status()?;
            if status.is_some() {
                // The watcher kills its group, itself included.
                let _ = child.wait();
                self.child = None;
            }
            return Ok(status);
        }
        #[cfg(unix)]
        {
            use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
            // Until the child is waited for, neither its process number nor its group's is reused.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if waitid(WaitId::Pid(Pid::from_child(child)), options)?.is_none() {
                return Ok(None);
            }
            kill_group(child);
        }
        let status = child.try_wait()?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }
}

#[cfg(unix)]
fn kill_group(leader: &Child) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let _ = kill_process_group(Pid::from_child(leader), Signal::KILL);
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        #[cfg(unix)]
        kill_group(&child);
        let _ = child.kill();
        let since = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if since.elapsed() >= GRACE {
                // A thread reaps the child, as nothing needs its outcome.
                let reap = move || drop(child.wait());
                drop(threads::start("kiln-reap", reap));
                return;
            }
            pause(since.elapsed());
        }
    }
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
