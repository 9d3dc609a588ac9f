//! A child process in a group of its own, and what a child of any kind is given: files, and limits of its output.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use super::stopped::is_stopped;
use super::threads;
#[cfg(unix)]
use super::watcher::Watcher;

/// Maximum number of bytes that a child may write to its output or its log; more than any module has.
pub(super) const MAX_OUTPUT: u64 = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// Maximum number of bytes of a child's log that are kept.
pub(super) const MAX_LOG: u64 = 1 << 20;

/// The shortest and the longest pause between two polls of a child.
const PAUSES: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(20)];

/// Divisor of the time already waited that gives the next pause.
const PAUSE_DIVISOR: u32 = 16;

/// Message of the error if the system does not report a child's end. It reports that only once, to the first
/// waiter.
pub(super) const NO_STATUS: &str = "the system does not report its exit status; the application must not wait \
                      for children that it did not start, and must not start to ignore SIGCHLD \
                      while a child runs";

/// Maximum time to wait for a killed child: one that is stuck in a driver's call may never end.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// A child in a process group of its own. The whole group is killed with it.
pub(super) struct Group {
    /// The child, until it has been waited for.
    pub(super) child: Option<Child>,
    /// The watcher that reports how the child ended, if the system does not.
    #[cfg(unix)]
    watcher: Option<Watcher>,
}

impl Group {
    /// Starts a command in a process group of its own.
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
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
    pub(super) fn limit_resources(&self, limit: Duration) {
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

    /// Returns whether a signal has stopped the child.
    pub(super) fn is_stopped(&self) -> bool {
        self.child.as_ref().is_some_and(|child| is_stopped(child.id()))
    }

    /// Returns how the child ended, if it did, and then kills the processes that it left running. Does not
    /// block.
    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
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

/// Pauses between two polls of a child that was started, or killed, `elapsed` ago.
pub(super) fn pause(elapsed: Duration) {
    let [shortest, longest] = PAUSES;
    std::thread::sleep((elapsed / PAUSE_DIVISOR).clamp(shortest, longest));
}

/// Creates a file without a name. It is in memory where the system supports that, so that a child needs no
/// directory for temporary files.
pub(super) fn unnamed_file() -> io::Result<File> {
    #[cfg(target_os = "linux")]
    if let Ok(file) = rustix::fs::memfd_create("kiln", rustix::fs::MemfdFlags::CLOEXEC) {
        return Ok(file.into());
    }
    tempfile::tempfile()
}

/// Returns the reason why a program cannot be started, to which the system's error is added.
pub(super) fn not_started(program: &Path, error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::NotFound && program.exists() {
        return "it cannot be started: the dynamic linker or interpreter that it names is missing";
    }
    "it cannot be started"
}
