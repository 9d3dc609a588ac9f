//! Calls on files, on the threads of the crate `blocking`, which run the functions of `async-fs`, too.
//!
//! That crate starts a thread whenever calls wait and none is idle, in a loop that ends only once the system provides
//! the thread (<https://github.com/smol-rs/blocking/issues/79>). Its threads never end. So Kiln limits the number of its
//! calls, and has the crate start as many threads as they need before the first one. A host that occupies these threads
//! with calls of its own, and also exhausts the system's threads, still makes a call wait until there is a thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;

use async_lock::{Mutex, Semaphore, SemaphoreGuardArc};
use futures::channel::oneshot;
use futures::future::{Either, select};

use super::{HostExecutor, pause};
use crate::error::{Result, catch_panic};
use crate::process::threads::{self, no_thread};

/// Maximum number of calls on files at a time. More do not make a local disk faster, but hide the latency of a network
/// file system.
const CALLS: usize = 8;

/// Number of threads. While a thread runs a call, another one may have ended the call before it, and not be idle yet.
const THREADS: usize = 2 * CALLS;

/// Variable with the maximum number of threads of the crate `blocking`.
const MAX_THREADS: &str = "BLOCKING_MAX_THREADS";

/// Time after which the crate is taken to have as many threads as it may have. A failure to start a thread lowers that
/// number for good.
const PATIENCE: Duration = Duration::from_secs(2);

static PERMITS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(CALLS)));

/// Runs calls whose callers are gone.
static BACKGROUND: LazyLock<Arc<HostExecutor>> = LazyLock::new(|| HostExecutor::new("kiln-file"));

/// Permission to make one call on a file at a time, with `async-fs` or on a thread.
///
/// A call whose future is dropped goes on. So this is held until the call has ended, not only until its future is
/// dropped: see [`Completed`](super::Completed).
#[derive(Debug)]
pub(crate) struct FilePermit(
    #[expect(dead_code, reason = "dropping it lets another call begin")] SemaphoreGuardArc,
);

impl FilePermit {
    /// Waits until another call on a file may begin, and for the threads to start.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start the threads.
    pub(crate) async fn acquire() -> io::Result<Self> {
        start_file_threads().await?;
        Ok(Self(PERMITS.acquire_arc().await))
    }

    /// Runs a call that blocks on files. If the future is dropped before the call has started, the call does not run.
    ///
    /// # Errors
    ///
    /// [`Panicked`](crate::ErrorKind::Panicked) if the call panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        blocking::unblock(|| catch_panic(|| Ok(call()))).await
    }
}

/// Makes the crate `blocking` start the threads that calls of Kiln need, unless they are there.
///
/// # Errors
///
/// The system's, if it cannot start them. The next call tries again.
async fn start_file_threads() -> io::Result<()> {
    static ARE_STARTED: AtomicBool = AtomicBool::new(false);
    static STARTING: Mutex<()> = Mutex::new(());
    if ARE_STARTED.load(SeqCst) {
        return Ok(());
    }
    let _starting = STARTING.lock().await;
    if ARE_STARTED.load(SeqCst) {
        return Ok(());
    }
    // Each call occupies a thread until all have one. The calls end when the senders are dropped.
    let mut gates = Vec::with_capacity(THREADS);
    while gates.len() < THREADS.min(max_threads()) {
        threads::start_small("kiln-probe", || ())?;
        let (gate, closed) = mpsc::channel::<()>();
        let (running, runs) = oneshot::channel();
        let call = blocking::unblock(move || {
            // Nothing is ever sent: `recv` fails when the sender is gone.
            let _ = (running.send(()), closed.recv());
        });
        call.detach();
        if let Either::Right((late, _)) = select(runs, pause(PATIENCE)).await {
            late.map_err(io::Error::other)?;
            break;
        }
        gates.push(gate);
    }
    ARE_STARTED.store(true, SeqCst);
    Ok(())
}

/// Returns the maximum number of threads that the environment sets for the crate `blocking`.
fn max_threads() -> usize {
    let number = std::env::var(MAX_THREADS).ok().and_then(|number| number.parse().ok());
    number.map_or(usize::MAX, |number: usize| number.max(1))
}

/// Runs a call that blocks on files on another thread. If the future is dropped before the call has started, the call
/// does not run.
///
/// # Errors
///
/// The errors of the call, [`Panicked`](crate::ErrorKind::Panicked) if it panics, and
/// [`OutOfResources`](crate::ErrorKind::OutOfResources) if there are no threads.
pub(crate) async fn run_blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let permit = FilePermit::acquire().await.map_err(|error| no_thread().with_source(error))?;
    let call = move || {
        let output = call();
        drop(permit);
        output
    };
    blocking::unblock(|| catch_panic(call)).await
}

/// Runs a call that blocks on files, and whose end nobody waits for, on another thread. Without a thread, the call does
/// not run, and what it owns is dropped.
pub(crate) fn run_blocking_detached(call: impl FnOnce() + Send + 'static) {
    run_in_background(async {
        let call = || {
            call();
            Ok(())
        };
        if let Err(error) = run_blocking(call).await {
            tracing::debug!(%error, "a call on a file was not made");
        }
    });
}

/// Runs a call that waits for no disk, such as one that frees a lock, on another thread, also while all calls that are
/// permitted wait for one. The threads have been started by then. The call runs to its end if the task is detached.
pub(crate) fn run_unlimited(call: impl FnOnce() + Send + 'static) -> blocking::Task<()> {
    blocking::unblock(call)
}

/// Runs a future that makes calls on files to its end. Without a thread, the future is dropped.
pub(crate) fn run_in_background(future: impl Future<Output = ()> + Send + 'static) {
    if let Err(error) = BACKGROUND.spawn(future) {
        tracing::debug!(%error, "calls on files were not made");
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use futures::executor::block_on;
    use futures::future::join_all;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn calls_run_on_other_threads() {
        let here = thread::current().id();
        let there =
            block_on(run_blocking(|| Ok(thread::current().id()))).expect("there is a thread");
        assert_ne!(here, there);
    }

    #[test]
    fn a_panic_is_an_error() {
        let panicked = block_on(run_blocking::<()>(|| panic!("in the call")));
        assert_eq!(panicked.expect_err("it panics").kind(), ErrorKind::Panicked);
        assert_eq!(block_on(run_blocking(|| Ok(1))).expect("there is a thread"), 1);
    }

    /// Returns the number of threads of the crate `blocking` in this process.
    #[cfg(target_os = "linux")]
    fn threads_of_the_crate() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").expect("it exists");
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("blocking-")).count()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn many_calls_start_no_further_thread() {
        block_on(start_file_threads()).expect("there are threads");
        let call = || {
            thread::yield_now();
            Ok(())
        };
        let calls = (0..1000).map(|_| run_blocking(call));
        for called in block_on(join_all(calls)) {
            called.expect("there is a thread");
        }
        assert_eq!(threads_of_the_crate(), THREADS);
    }
}
