//! Bounded worker threads for driver calls that block: builds above all, and large transfers.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use futures::channel::oneshot;

use crate::error::{Error, ErrorKind, Result, outlast, panic_message};
use crate::process;
use crate::process::threads::{self, no_thread};
use crate::sync::{ignore_poison, lock};

type Job = Box<dyn FnOnce() + Send>;

/// A handle of the workers. Threads are started as jobs need them, up to a limit, and end when the
/// last handle is gone and every queued job has run.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Handle>);

/// What handles share. Its end closes the queue.
struct Handle(Arc<Workers>);

/// What the threads share.
struct Workers {
    name: &'static str,
    limit: usize,
    queue: Mutex<Queue>,
    /// For threads without a job. Rung only once the lock is released: a thread that wakes up to
    /// find it taken sleeps again, and a job waits for that.
    bell: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Jobs queued or running. While there are no more of them than threads, each has a thread.
    unfinished: usize,
    is_closed: bool,
}

impl Pool {
    /// A pool of at most `limit` threads, and at least one, called `name` and their number. Starts none
    /// yet.
    pub(crate) fn new(name: &'static str, limit: usize) -> Self {
        let limit = limit.max(1);
        let workers = Workers { name, limit, queue: Mutex::default(), bell: Condvar::new() };
        Self(Arc::new(Handle(Arc::new(workers))))
    }

    /// Queues a job and returns at once. The job runs whatever becomes of the caller; it is dropped
    /// without having run only if the system gives not even one thread.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let Handle(workers) = &*self.0;
        let mut queue = workers.lock();
        queue.jobs.push_back(Box::new(job));
        queue.unfinished += 1;
        let number = queue.threads;
        let has_few = number < queue.unfinished.min(workers.limit);
        queue.threads += usize::from(has_few);
        drop(queue);
        if has_few {
            Workers::start(workers, number);
        } else {
            workers.bell.notify_one();
        }
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
    /// Jobs do not run under the lock: nothing panics there.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Starts a thread, which is counted already. A failure to is harmless while there are others;
    /// without any, the queued jobs are dropped, which their owners notice.
    fn start(workers: &Arc<Self>, number: usize) {
        if let Err(error) = Self::spawn(workers, number) {
            tracing::warn!(%error, name = workers.name, "cannot start a worker");
            let mut queue = workers.lock();
            queue.threads -= 1;
            if queue.threads == 0 {
                queue.unfinished = 0;
                let dropped = std::mem::take(&mut queue.jobs);
                drop(queue);
                drop(dropped);
            }
        }
    }

    fn spawn(workers: &Arc<Self>, number: usize) -> io::Result<()> {
        let workers = Arc::clone(workers);
        threads::start(format!("{}-{number}", workers.name), move || workers.work())
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            // Jobs catch their own panics, to tell them to whoever waits; what gets here comes from
            // a waiter's waker or a destructor, and must not cost the pool a thread.
            outlast("what a worker was told to do", job);
            self.lock().unfinished -= 1;
        }
    }

    /// Waits for a job; `None` once there will be none.
    fn next(&self) -> Option<Job> {
        let idle = |queue: &mut Queue| queue.jobs.is_empty() && !queue.is_closed;
        let queue = self.bell.wait_while(self.lock(), idle);
        ignore_poison(queue).jobs.pop_front()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child has none of the threads, and one of them may have held the lock.
        if process::is_forked() {
            return;
        }
        self.0.lock().is_closed = true;
        self.0.bell.notify_all();
    }
}

/// Turns a panic into an error.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic leaves behind half done is dropped with the call: nothing is used afterwards.
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|payload| Err(Error::new(ErrorKind::Panicked, panic_message(payload))))
}

/// Before work that nobody waits for: whoever was woken may have to run on this very processor.
pub(super) fn let_others_run() {
    std::thread::yield_now();
}
