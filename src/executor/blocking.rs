//! Calls that block on files. They run on the threads of the crate `blocking`, which also serve `async-fs`.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::error::Result;
use crate::process::threads::{self, no_thread};

/// Runs a call that blocks on files on a thread of its own pool. If the future is dropped before the call has
/// started, the call does not run.
///
/// # Errors
///
/// The system's, if it cannot start the first thread of the pool.
///
/// # Panics
///
/// The future panics if the call panics.
pub(crate) async fn unblock<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    ensure_thread()?;
    Ok(blocking::unblock(call).await)
}

/// Like [`unblock`], for a call with errors of Kiln.
///
/// # Errors
///
/// The call's own, and [`OutOfResources`](crate::ErrorKind::OutOfResources) if there is no thread.
pub(crate) async fn run_blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    unblock(call).await.map_err(|error| no_thread().with_source(error))?
}

/// Like [`unblock`], for a call whose end nobody waits for. Without a thread, the call runs here.
pub(crate) fn unblock_detached(call: impl FnOnce() + Send + 'static) {
    if ensure_thread().is_ok() {
        blocking::unblock(call).detach();
    } else {
        call();
    }
}

/// Makes sure that the pool has a thread. To be called before functions of `async-fs`. Does not block.
///
/// A pool without a thread would try to start one in a loop that ends only once it succeeds. A pool with a
/// thread keeps it, and tries only once to start more.
///
/// # Errors
///
/// The system's, if it cannot start a thread. The next call tries again.
pub(crate) fn ensure_thread() -> io::Result<()> {
    static HAS_THREAD: AtomicBool = AtomicBool::new(false);
    if !HAS_THREAD.load(SeqCst) {
        // This thread ends at once, so that the pool can have its place.
        threads::start("kiln-probe", || ())?;
        blocking::unblock(|| ()).detach();
        HAS_THREAD.store(true, SeqCst);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use futures::executor::block_on;

    use super::*;

    #[test]
    fn calls_run_on_other_threads() {
        let here = thread::current().id();
        let there = block_on(unblock(|| thread::current().id())).expect("there is a thread");
        assert_ne!(here, there);
    }

    #[test]
    fn a_panic_continues_in_the_caller() {
        let panics = || block_on(unblock(|| panic!("in the call")));
        catch_unwind(AssertUnwindSafe(panics)).expect_err("it panics");
        assert_eq!(block_on(unblock(|| 1)).expect("there is a thread"), 1);
    }
}
