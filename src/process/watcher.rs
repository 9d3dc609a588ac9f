//! Reports how a child ended if the application ignores SIGCHLD.
//!
//! In that case the system discards the exit status of this process's children, and the child could not wait
//! for its own children either. So the child forks once more. The new process becomes the program. Its parent
//! has the default disposition of SIGCHLD: it waits for the program, reports the status through a pipe, and
//! kills the processes that the program left running.

use std::ffi::c_int;
use std::io::{self, PipeReader, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// The reading end of the pipe through which a child's status is reported.
pub(super) struct Watcher(PipeReader);

impl Watcher {
    /// Prepares a command to report its child's status through a pipe, or returns `None` if the system reports
    /// it.
    pub(super) fn if_needed(command: &mut Command) -> io::Result<Option<Self>> {
        if !are_statuses_discarded() {
            return Ok(None);
        }
        let (reader, writer) = io::pipe()?;
        fcntl_setfl(&reader, fcntl_getfl(&reader)? | OFlags::NONBLOCK)?;
        let fork_program = move || fork_program(writer.as_raw_fd());
        // SAFETY: `fork_program` calls only functions that are safe between `fork` and `exec`.
        unsafe { command.pre_exec(fork_program) };
        Ok(Some(Self(reader)))
    }

    /// Returns how the child ended, if it did. Does not block.
    pub(super) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        let mut status = [0; size_of::<c_int>()];
        match self.0.read_exact(&mut status) {
            Ok(()) => Ok(Some(ExitStatus::from_raw(c_int::from_ne_bytes(status)))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The pipe was closed without a report: the watching process was killed, and the program with it.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Ok(Some(ExitStatus::from_raw(libc::SIGKILL)))
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns whether the system discards the exit status of this process's children.
fn are_statuses_discarded() -> bool {
    let mut current = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action, it only writes the current one, to memory that is valid for that.
    let failed = unsafe { libc::sigaction(libc::SIGCHLD, ptr::null(), current.as_mut_ptr()) } != 0;
    // SAFETY: zeros are a valid `sigaction`.
    let current = unsafe { current.assume_init() };
    let ignores = current.sa_sigaction == libc::SIG_IGN;
    !failed && (ignores || current.sa_flags & libc::SA_NOCLDWAIT != 0)
}

/// Forks a child that is about to become a program. Returns in the new process, which becomes that program; the
/// old process watches it and reports its status through `report_pipe`.
fn fork_program(report_pipe: RawFd) -> io::Result<()> {
    // SAFETY: the default disposition needs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    end_with_parent();
    // SAFETY: this process has one thread, and the new one is about to call `exec`.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            end_with_parent();
            Ok(())
        }
        program => watch(program, report_pipe),
    }
}

/// Requests SIGKILL for this process if its parent ends first.
fn end_with_parent() {
    #[cfg(target_os = "linux")]
    // SAFETY: the option takes a signal.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Waits for a program, reports its status, and kills the process group.
fn watch(program: libc::pid_t, report_pipe: RawFd) -> ! {
    close_all_but(report_pipe);
    let mut status: c_int = 0;
    // SAFETY: the status is valid for writes.
    while unsafe { libc::waitpid(program, &raw mut status, 0) } == -1 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            status = libc::SIGKILL;
            break;
        }
    }
    let status = status.to_ne_bytes();
    // SAFETY: the bytes are valid for reads. A pipe accepts this few bytes in one write.
    unsafe { libc::write(report_pipe, status.as_ptr().cast(), status.len()) };
    // SAFETY: neither call has an argument.
    let is_leader = unsafe { libc::getpgrp() } == std::process::id() as libc::pid_t;
    if is_leader {
        // SAFETY: zero denotes the group of this process, which this process leads.
        unsafe { libc::kill(0, libc::SIGKILL) };
    }
    // SAFETY: the call ends the process and runs no code of the application.
    unsafe { libc::_exit(0) }
}

/// Closes all files but `pipe`. This process shares them with its parent, which waits until one of them, a
/// pipe, is closed.
fn close_all_but(pipe: RawFd) {
    let close = |from: RawFd, to: RawFd| {
        if from > to {
            return;
        }
        #[cfg(target_os = "linux")]
        {
            // SAFETY: this process no longer uses any file but `pipe`.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
            if closed == 0 {
                return;
            }
        }
        // SAFETY: `_SC_OPEN_MAX` is a name that POSIX defines.
        let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
        let limit = RawFd::try_from(limit).unwrap_or(1024).saturating_sub(1);
        for file in from..=to.min(limit) {
            // SAFETY: as above.
            unsafe { libc::close(file) };
        }
    };
    close(0, pipe - 1);
    close(pipe.saturating_add(1), RawFd::MAX);
}
