//! Checks that the system has the resources that drivers and their compilers need.
//!
//! Drivers do not report a lack of resources well: if files cannot be opened, Intel's compiler rejects the
//! program, and PoCL ends the process.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::error::{Error, Result};
use crate::process::threads;

/// Checks that file descriptors and address space are available for a compiler. Takes a few microseconds.
///
/// # Errors
///
/// [`OutOfResources`](crate::ErrorKind::OutOfResources), with the exhausted resource in its message.
pub(crate) fn check() -> Result<()> {
    #[cfg(unix)]
    {
        unix::check_files()?;
        unix::check_memory()?;
    }
    Ok(())
}

/// Whether an operation failed for a lack of file descriptors: its error says so, or the process has too few for a
/// compiler now. Drivers do not say what they lack.
pub(crate) fn is_lack_of_files(error: &Error) -> bool {
    #[cfg(unix)]
    {
        unix::names_files(error) || unix::check_files().is_err()
    }
    #[cfg(not(unix))]
    {
        let _ = error;
        false
    }
}

/// Also checks that a process or a thread can be started. Takes about 50 microseconds.
///
/// # Errors
///
/// As for [`check`].
pub(crate) fn check_for_process() -> Result<()> {
    check()?;
    threads::call("kiln-probe", || ())
}

/// Checks that the resources needed to load drivers are available.
///
/// Drivers for CPUs start a thread for each processor and keep it. Once that many threads could be started,
/// later calls are only a [`check`].
///
/// # Errors
///
/// As for [`check`].
pub(crate) fn check_for_driver() -> Result<()> {
    /// Whether that many threads could be started once.
    static HAS_THREADS: AtomicBool = AtomicBool::new(false);
    if HAS_THREADS.load(Relaxed) {
        return check();
    }
    check()?;
    check_for_threads(thread::available_parallelism().map_or(1, NonZero::get))?;
    HAS_THREADS.store(true, Relaxed);
    Ok(())
}

/// Checks that `count` threads can run at the same time.
fn check_for_threads(count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    // Each thread starts the next one and waits for it.
    threads::call("kiln-probe", || check_for_threads(count - 1))?
}

#[cfg(unix)]
mod unix {
    use std::error::Error as _;
    use std::fs::File;
    use std::io;
    use std::iter::successors;
    use std::os::fd::OwnedFd;
    use std::ptr;
    use std::sync::OnceLock;

    use rustix::io::{Errno, fcntl_dupfd_cloexec};
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use crate::error::{Error, ErrorKind, Result};

    /// Number of files that a compiler has open at a time, and a few more.
    const FILES: usize = 16;

    /// Number of bytes of address space that a compiler takes for a small program.
    const MEMORY: usize = 64 << 20;

    fn exhausted_error(what: &str, error: impl Into<io::Error>) -> Error {
        let message = format!("the process has {what}; try again when some are free");
        Error::new(ErrorKind::OutOfResources, message).with_source(error.into())
    }

    /// Whether one of the causes of an error is that a file could not be opened for a lack of descriptors.
    pub(super) fn names_files(error: &Error) -> bool {
        let causes = successors(error.source(), |cause| (*cause).source());
        let errors = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
        errors
            .filter_map(Errno::from_io_error)
            .any(|code| matches!(code, Errno::MFILE | Errno::NFILE))
    }

    pub(super) fn check_files() -> Result<()> {
        static SOME_FILE: OnceLock<File> = OnceLock::new();
        let failed =
            |error: io::Error| exhausted_error("no more file descriptors for a compiler", error);
        let file = match SOME_FILE.get() {
            Some(file) => file,
            None => {
                let opened = File::open("/dev/null").map_err(failed)?;
                SOME_FILE.get_or_init(|| opened)
            }
        };
        let mut copies: [Option<OwnedFd>; FILES] = [const { None }; FILES];
        for copy in &mut copies {
            *copy = Some(fcntl_dupfd_cloexec(file, 0).map_err(|error| failed(error.into()))?);
        }
        Ok(())
    }

    pub(super) fn check_memory() -> Result<()> {
        let failed = |error| exhausted_error("no more address space for a compiler", error);
        // SAFETY: the system chooses an unused address range.
        let reserved = unsafe {
            mmap_anonymous(ptr::null_mut(), MEMORY, ProtFlags::empty(), MapFlags::PRIVATE)
        };
        let reserved = reserved.map_err(failed)?;
        // SAFETY: the range was reserved above, and nothing else refers to it.
        unsafe { munmap(reserved, MEMORY) }.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_with_resources_passes() {
        check().expect("there are files and memory");
        check_for_process().expect("there is a thread");
        check_for_threads(8).expect("there are threads");
        check_for_driver().expect("there are threads");
        check_for_driver().expect("there are threads");
    }
}
