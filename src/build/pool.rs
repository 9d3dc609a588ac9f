//! Bounded worker threads for driver calls that block: builds above all.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use async_channel::{Receiver, Sender};
use futures::channel::oneshot;

use crate::error::{Error, ErrorKind, Result, panic_message};

type Job = Box<dyn FnOnce() + Send>;

/// A handle of the workers. Threads are started as jobs need them, up to a limit, and end when the
/// last handle is gone and every queued job has run.
#[derive(Clone)]
pub(crate) struct Pool {
    jobs: Sender<Job>,
    workers: Arc<Workers>,
}

/// What the threads share. Holds no sender: the queue closes with the last [`Pool`].
struct Workers {
    queue: Receiver<Job>,
    limit: usize,
    started: AtomicUsize,
    /// Jobs queued or running. While there are no more of them than threads, each has a thread.
    unfinished: AtomicUsize,
}

impl Pool {
    /// A pool of at most `limit` threads, and at least one. Starts none yet.
    pub(crate) fn new(limit: usize) -> Self {
        let (jobs, queue) = async_channel::unbounded();
        let workers = Workers {
            queue,
            limit: limit.max(1),
            started: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
        };
        Self { jobs, workers: Arc::new(workers) }
    }

    /// Queues a job and returns at once. The job runs whatever becomes of the caller; it is dropped
    /// without having run only if the system gives not even one thread.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        self.workers.unfinished.fetch_add(1, SeqCst);
        if self.jobs.try_send(Box::new(job)).is_err() {
            // Cannot be: the queue is unbounded, and open for as long as this handle lives.
            self.workers.unfinished.fetch_sub(1, SeqCst);
        }
        Workers::grow(&self.workers);
    }

    /// Runs a blocking call on a worker. The call starts without the future being polled, and ends
    /// even if the future is dropped.
    ///
    /// Fails with [`Panicked`](ErrorKind::Panicked) if the call panics, and with
    /// [`OutOfResources`](ErrorKind::OutOfResources) if there is no thread to run it.
    pub(crate) fn run<T, F>(&self, call: F) -> impl Future<Output = Result<T>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        self.submit(move || {
            let result = catch_panic(|| Ok(call()));
            // The caller may have gone; then nobody wants the result.
            let _ = sender.send(result);
        });
        async move { receiver.await.unwrap_or_else(|oneshot::Canceled| Err(no_thread())) }
    }
}

impl Workers {
    /// Starts a thread if there are more jobs than threads. A failure to start one is harmless
    /// while there are others; without any, the queued jobs are dropped, which their owners notice.
    fn grow(workers: &Arc<Self>) {
        let wanted = workers.unfinished.load(SeqCst).min(workers.limit);
        let room = |started| (started < wanted).then_some(started + 1);
        let Ok(number) = workers.started.fetch_update(SeqCst, SeqCst, room) else {
            return;
        };
        if let Err(error) = Self::spawn(workers, number) {
            tracing::warn!(%error, "cannot start a compile worker");
            if workers.started.fetch_sub(1, SeqCst) == 1 {
                while let Ok(job) = workers.queue.try_recv() {
                    drop(job);
                    workers.unfinished.fetch_sub(1, SeqCst);
                }
            }
        }
    }

    fn spawn(workers: &Arc<Self>, number: usize) -> io::Result<()> {
        let workers = Arc::clone(workers);
        std::thread::Builder::new()
            .name(format!("kiln-compile-{number}"))
            .spawn(move || workers.work())
            .map(drop)
    }

    fn work(&self) {
        while let Ok(job) = self.queue.recv_blocking() {
            // Jobs catch their own panics, to tell them to whoever waits; what gets here comes from
            // a waiter's waker or a destructor, and must not cost the pool a thread.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(job)) {
                tracing::error!(
                    message = panic_message(&*payload),
                    "a compile worker caught a panic"
                );
            }
            self.unfinished.fetch_sub(1, SeqCst);
        }
    }
}

/// Turns a panic into an error.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic leaves behind half done is dropped with the call: nothing is used afterwards.
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|payload| Err(Error::new(ErrorKind::Panicked, panic_message(&*payload))))
}

/// For a job that was dropped before it ran.
pub(crate) fn no_thread() -> Error {
    Error::new(
        ErrorKind::OutOfResources,
        "the system gave no thread for driver calls; ask again later",
    )
}
