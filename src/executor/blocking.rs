//! Calls on files, on the threads of the crate `blocking`, which run the functions of `async-fs`, too.
//!
//! That crate starts a thread whenever calls wait and none is idle, in a loop that ends only once the system provides
//! the thread (<https://github.com/smol-rs/blocking/issues/79>). Its threads never end. So Kiln limits the number of its
//! calls, and has the crate start more threads than they need before the first one. If all of these are occupied, by
//! calls of the host or because the system has not let them go on, and the system's threads are exhausted, too, a call
//! still waits until there is a thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;

use async_lock::{Mutex, Semaphore, SemaphoreGuardArc};
use futures::channel::oneshot;
use futures::future::{Either, select};

use super::{HostExecutor, pause};
use crate::error::{Result, catch_panic};
use crate::process::threads::{self, no_thread_error};

/// Maximum number of calls on files at a time. More do not make a local disk faster, but hide the latency of a network
/// file system.
const CALLS: usize = 8;

/// Maximum number of calls at a time on files that are not the store's, such as those that programs include. They may lie
/// on other disks: one that hangs does not hold up calls on the others.
const OTHER_CALLS: usize = 3;

/// Maximum number of calls at a time that wait for no disk, such as those that free locks.
const QUICK_CALLS: usize = 2;

/// Number of threads beyond one for each call. While a thread runs a call, another one has often ended the call before it,
/// and is not idle yet.
const SPARE_THREADS: usize = 7;

/// Number of threads. Each takes up to 66 MiB of a process's addresses with the C library of Linux, which may be limited.
const THREADS: usize = CALLS + OTHER_CALLS + QUICK_CALLS + SPARE_THREADS;

/// Variable with the maximum number of threads of the crate `blocking`.
const MAX_THREADS: &str = "BLOCKING_MAX_THREADS";

/// Time after which the crate is taken to have as many threads as it may have. A failure to start a thread lowers that
/// number for good.
const PATIENCE: Duration = Duration::from_secs(2);

static PERMITS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(CALLS)));

static OTHER_PERMITS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(OTHER_CALLS)));

static QUICK_PERMITS: Semaphore = Semaphore::new(QUICK_CALLS);

/// Runs calls whose callers are gone.
static BACKGROUND: LazyLock<Arc<HostExecutor>> = LazyLock::new(|| HostExecutor::new("kiln-file"));

/// Permission to make one call on a file at a time, with `async-fs` or on a thread.
///
/// A call whose future is dropped goes on. So this is held until the call has ended, not only until its future is
/// dropped: see [`on_files`](super::on_files).
#[derive(Clone, Debug)]
pub(crate) struct FilePermit(
    #[expect(dead_code, reason = "dropping the last one lets another call begin")]
    Arc<SemaphoreGuardArc>,
);

impl FilePermit {
    /// Waits until another call on a file of the store may begin, and for the threads to start.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start the threads.
    pub(super) async fn acquire() -> io::Result<Self> {
        Self::of(&PERMITS).await
    }

    async fn of(permits: &Arc<Semaphore>) -> io::Result<Self> {
        start_file_threads().await?;
        Ok(Self(Arc::new(permits.acquire_arc().await)))
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

/// Runs a call that blocks on files that are not the store's, on another thread. If the future is dropped before the call has started, the call
/// does not run.
///
/// # Errors
///
/// The errors of the call, [`Panicked`](crate::ErrorKind::Panicked) if it panics, and
/// [`OutOfResources`](crate::ErrorKind::OutOfResources) if there are no threads.
pub(crate) async fn run_blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let begin = async {
        let permit = FilePermit::of(&OTHER_PERMITS).await?;
        let call = move || {
            let output = call();
            drop(permit);
            output
        };
        io::Result::Ok(blocking::unblock(|| catch_panic(call)))
    };
    let begun = run_apart(begin).await.flatten();
    begun.map_err(|error| no_thread_error().with_source(error))?.await
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
/// permitted wait for one. The threads have been started by then.
pub(crate) async fn run_quickly(call: impl FnOnce() + Send + 'static) {
    let _permit = QUICK_PERMITS.acquire().await;
    blocking::unblock(call).await;
}

/// Runs a future that makes calls on files on Kiln's own thread, from the first poll of the returned one on. It goes on
/// whether or not the returned one is polled again: while a future that was given a permit, or is next to be given one,
/// is not polled, other calls would wait for it.
///
/// # Errors
///
/// If there is no thread, or if the future panics.
pub(super) async fn run_apart<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> io::Result<T> {
    let (sender, output) = oneshot::channel();
    let run = async {
        // The receiver may be dropped already.
        let _ = sender.send(future.await);
    };
    BACKGROUND.spawn(run).map_err(io::Error::other)?;
    output.await.map_err(|_| io::Error::other("the calls on files panicked"))
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

    use futures::FutureExt;
    use futures::executor::block_on;

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
    fn calls_that_are_not_polled_delay_no_others() {
        let run = || {
            let (gate, closed) = mpsc::channel::<()>();
            (gate, run_blocking(move || Ok(closed.recv().is_err())))
        };
        // All permits are taken by calls that run until their gates are dropped, and more calls wait.
        let calls: Vec<_> = (0..OTHER_CALLS + 4).map(|_| run()).collect();
        let (gates, mut calls): (Vec<_>, Vec<_>) =
            calls.into_iter().map(|(gate, call)| (gate, Box::pin(call))).unzip();
        for call in &mut calls {
            assert!(call.as_mut().now_or_never().is_none());
        }
        let last = thread::spawn(|| block_on(run_blocking(|| Ok(7))));
        while OTHER_PERMITS.try_acquire_arc().is_some() {
            thread::yield_now();
        }
        drop(gates);
        // None of the calls before it is polled again.
        assert_eq!(last.join().expect("it does not panic").expect("there is a thread"), 7);
        drop(calls);
    }

    #[test]
    fn a_panic_is_an_error() {
        let panicked = block_on(run_blocking::<()>(|| panic!("in the call")));
        assert_eq!(panicked.expect_err("it panics").kind(), ErrorKind::Panicked);
        assert_eq!(block_on(run_blocking(|| Ok(1))).expect("there is a thread"), 1);
    }
}
