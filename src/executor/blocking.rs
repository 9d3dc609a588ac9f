//! Calls that block on files, on threads of their own.

use std::io;
use std::sync::LazyLock;

use super::pool::{Pool, Priority};
use crate::error::Result;
use crate::process::threads;

/// Maximum number of threads for calls that block on files. More do not make a local disk faster, but hide the
/// latency of a network file system.
const FILE_THREADS: usize = 16;

/// Threads for calls that block on files, of the whole process.
static FILE_POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new("kiln-file", FILE_THREADS));

/// Runs a call that blocks on files on a thread of the pool for files. If the future is dropped before the call
/// has started, the call does not run.
///
/// # Errors
///
/// An error with an [`Error`](crate::Error) of Kiln as its source, if the call panics, or if there is no thread.
pub(crate) async fn unblock<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    FILE_POOL.run(Priority::Short, call).await.map_err(io::Error::other)
}

/// Like [`unblock`], for a call with errors of Kiln.
///
/// # Errors
///
/// The errors of the call, [`Panicked`](crate::ErrorKind::Panicked) if it panics, and
/// [`OutOfResources`](crate::ErrorKind::OutOfResources) if there is no thread.
pub(crate) async fn run_blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    FILE_POOL.run(Priority::Short, call).await.flatten()
}

/// Like [`unblock`], for a call whose end nobody waits for. Without a thread, the call does not run, and what it
/// owns is dropped.
pub(crate) fn unblock_detached(call: impl FnOnce() + Send + 'static) {
    FILE_POOL.submit(call);
}

/// Checks that the system can start a thread. To be called before functions of `async-fs`.
///
/// The crate `blocking`, on whose threads those functions run, tries to start a thread in a loop that ends only
/// once it succeeds.
///
/// # Errors
///
/// The system's, if it cannot start a thread.
pub(crate) fn check_threads() -> io::Result<()> {
    threads::start("kiln-probe", || ())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use futures::executor::block_on;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn calls_run_on_other_threads() {
        let here = thread::current().id();
        let there = block_on(unblock(|| thread::current().id())).expect("there is a thread");
        assert_ne!(here, there);
    }

    #[test]
    fn a_panic_is_an_error() {
        let panicked = block_on(run_blocking::<()>(|| panic!("in the call")));
        assert_eq!(panicked.expect_err("it panics").kind(), ErrorKind::Panicked);
        assert_eq!(block_on(unblock(|| 1)).expect("there is a thread"), 1);
    }
}
