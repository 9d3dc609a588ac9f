//! A child process that stays, and exchanges messages with this process over a socket.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};

use super::exchange_error::ExchangeError;
use super::group::{GRACE, Group, MAX_LOG, MAX_OUTPUT, not_started, pause, unnamed_file};
use super::memory;
use super::stopped::StoppedWatch;
use crate::error::{Error, Result};

/// Maximum duration of one wait for the socket. Between two waits, the caller can stop the exchange.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Flags of each transmission. Without them, a child that has ended could end this process by SIGPIPE.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
const FLAGS: SendFlags = SendFlags::NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
const FLAGS: SendFlags = SendFlags::empty();

/// A child process in a process group of its own, whose standard input and output are one socket. Dropping it
/// kills the group and reaps the child.
pub(crate) struct ConnectedProcess {
    program: PathBuf,
    group: Group,
    socket: UnixStream,
    /// The child's standard error. The child's descriptor and this one share their position.
    log: File,
    stopped: StoppedWatch,
}

impl ConnectedProcess {
    /// Starts a command as a connected child. The niceness of this process plus `niceness` becomes the child's.
    ///
    /// # Errors
    ///
    /// The error of the system, with the name of the program, if it cannot be started.
    pub(crate) fn start(mut command: Command, niceness: u8) -> Result<Self> {
        let program = PathBuf::from(command.get_program());
        let failed = |what: &str, error: io::Error| {
            Error::of_system(format!("{}: {what}", program.display()), error)
        };
        let files = || -> io::Result<_> {
            let (own, other) = UnixStream::pair()?;
            Ok((own, other.try_clone()?, other, unnamed_file()?))
        };
        let (socket, stdin, stdout, log) = files()
            .map_err(|error| failed("cannot create a socket and a file for its log", error))?;
        let start = || -> io::Result<Group> {
            command.stdin(OwnedFd::from(stdin)).stdout(OwnedFd::from(stdout));
            command.stderr(log.try_clone()?);
            Group::start(&mut command)
        };
        let group = start().map_err(|error| failed(not_started(&program, &error), error))?;
        group.add_niceness(niceness);
        Ok(Self { program, group, socket, log, stopped: StoppedWatch::default() })
    }

    /// Returns the path of the child's program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns whether the child has ended. Does not block.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.group.child.is_none() || !matches!(self.group.try_wait(), Ok(None))
    }

    /// Returns the size of the child's resident memory in bytes, if the system reports it.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        memory::resident_bytes_of(self.group.child.as_ref()?.id())
    }

    /// Discards the log that was written so far.
    pub(crate) fn clear_log(&mut self) -> io::Result<()> {
        self.log.rewind()?;
        self.log.set_len(0)
    }

    /// Sends bytes. Blocks until they are sent, the deadline has passed, or `is_stopped` returns `true`.
    pub(crate) fn send(
        &mut self,
        mut bytes: &[u8],
        deadline: Instant,
        is_stopped: impl Fn() -> bool,
    ) -> std::result::Result<(), ExchangeError> {
        while !bytes.is_empty() {
            let wait = self.next_wait(deadline, &is_stopped)?;
            self.socket.set_write_timeout(Some(wait)).map_err(ExchangeError::System)?;
            match send(&self.socket, bytes, FLAGS).map_err(io::Error::from) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) => check_error(error)?,
            }
        }
        Ok(())
    }

    /// Receives until `buffer` has `length` bytes. Blocks like [`send`](Self::send).
    pub(crate) fn receive(
        &mut self,
        buffer: &mut Vec<u8>,
        length: usize,
        deadline: Instant,
        is_stopped: impl Fn() -> bool,
    ) -> std::result::Result<(), ExchangeError> {
        /// Size of the parts in which bytes are received: memory is taken only for bytes that were sent.
        const PART: usize = 64 << 10;
        while buffer.len() < length {
            let wait = self.next_wait(deadline, &is_stopped)?;
            self.socket.set_read_timeout(Some(wait)).map_err(ExchangeError::System)?;
            let start = buffer.len();
            buffer.resize(length.min(start + PART), 0);
            let received = self.socket.read(&mut buffer[start..]);
            buffer.truncate(start + *received.as_ref().unwrap_or(&0));
            match received {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(_) => {}
                Err(error) => check_error(error)?,
            }
        }
        Ok(())
    }

    /// Returns the duration of the next wait for the socket.
    fn next_wait(
        &mut self,
        deadline: Instant,
        is_stopped: &impl Fn() -> bool,
    ) -> std::result::Result<Duration, ExchangeError> {
        if is_stopped() {
            return Err(ExchangeError::Stopped);
        }
        if self.log.metadata().map_or(0, |metadata| metadata.len()) > MAX_OUTPUT {
            let message = format!("it wrote more than {} MiB, and was killed", MAX_OUTPUT >> 20);
            return Err(ExchangeError::Exceeded(message));
        }
        if self.stopped.look(self.group.is_stopped()) {
            let message = "it was stopped by a signal, and was killed";
            return Err(ExchangeError::Exceeded(message.to_owned()));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let message = "it did not answer within the time limit, and was killed";
            return Err(ExchangeError::Exceeded(message.to_owned()));
        }
        // A socket's time limit must not be zero, and the system rounds it to microseconds.
        Ok(left.clamp(Duration::from_millis(1), MAX_WAIT))
    }

    /// Ends the child. Waits a moment for a child that is ending, and kills it then. Returns how it ended by
    /// itself, if it did, and its log.
    pub(crate) fn end(mut self) -> (Option<ExitStatus>, String) {
        let since = Instant::now();
        let status = loop {
            match self.group.try_wait() {
                Ok(None) if since.elapsed() < GRACE => pause(since.elapsed()),
                Ok(status) => break status,
                Err(_) => break None,
            }
        };
        (status, self.kill())
    }

    /// Kills the child, and returns its log.
    pub(crate) fn kill(self) -> String {
        let Self { group, log, .. } = self;
        drop(group);
        let length = log.metadata().map_or(0, |metadata| metadata.len().min(MAX_LOG));
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        match log.read_exact_at(&mut bytes, 0) {
            Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => String::new(),
        }
    }
}

/// Returns an error of the socket, unless the transfer is to be tried again.
fn check_error(error: io::Error) -> std::result::Result<(), ExchangeError> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Err(ExchangeError::Closed),
        _ => Err(ExchangeError::System(error)),
    }
}

impl Group {
    /// Raises the niceness of the child, if the system allows it.
    fn add_niceness(&self, niceness: u8) {
        use rustix::process::{Pid, getpriority_process, setpriority_process};
        let Some(child) = &self.child else { return };
        if niceness > 0 {
            let own = getpriority_process(None).unwrap_or(0);
            let total = own.saturating_add(i32::from(niceness)).min(19);
            let _ = setpriority_process(Some(Pid::from_child(child)), total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use support::scripts;

    fn start(folder: &tempfile::TempDir, script: &str) -> ConnectedProcess {
        let path = folder.path().join("child");
        scripts::place(&path, script);
        ConnectedProcess::start(Command::new(path), 3).expect("it starts")
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn messages_are_exchanged_in_both_directions() {
        let folder = tempfile::tempdir().expect("there is room");
        let mut child = start(&folder, "echo started >&2; exec cat");
        let message = vec![7; 1 << 17];
        for _ in 0..2 {
            child.send(&message, soon(), || false).expect("it reads");
            let mut echo = Vec::new();
            child.receive(&mut echo, message.len(), soon(), || false).expect("it writes");
            assert_eq!(echo, message);
        }
        assert!(!child.has_ended());
        assert_eq!(child.kill(), "started\n");
    }

    #[test]
    fn a_child_that_ends_is_reported_with_its_status_and_log() {
        let folder = tempfile::tempdir().expect("there is room");
        let mut child = start(&folder, "echo reason >&2; exit 3");
        let received = child.receive(&mut Vec::new(), 1, soon(), || false);
        assert!(matches!(received, Err(ExchangeError::Closed)), "{received:?}");
        let (status, log) = child.end();
        assert_eq!((status.and_then(|status| status.code()), &*log), (Some(3), "reason\n"));
    }

    #[test]
    fn an_exchange_ends_at_its_deadline_and_when_it_is_stopped() {
        let folder = tempfile::tempdir().expect("there is room");
        let mut child = start(&folder, "exec sleep 1000");
        let deadline = Instant::now() + Duration::from_millis(10);
        let received = child.receive(&mut Vec::new(), 1, deadline, || false);
        assert!(matches!(received, Err(ExchangeError::Exceeded(_))), "{received:?}");
        let sent = child.send(&vec![0; 16 << 20], deadline, || false);
        assert!(matches!(sent, Err(ExchangeError::Exceeded(_))), "{sent:?}");
        let received = child.receive(&mut Vec::new(), 1, soon(), || true);
        assert!(matches!(received, Err(ExchangeError::Stopped)), "{received:?}");
    }
}
