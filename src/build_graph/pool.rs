//! Bounded worker threads for calls that block: mainly those of drivers, for builds and for large transfers.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use async_lock::Semaphore;
use futures::channel::oneshot;

use crate::error::{Result, catch_and_log, catch_panic};
use crate::process;
use crate::process::threads::{self, no_thread};
use crate::sync::{ignore_poison, lock};

type Job = Box<dyn FnOnce() + Send>;

/// Order in which waiting calls get a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// A call that takes milliseconds: a load, a link, opening a device. Goes before all compiles that wait.
    Short,
    /// A call of a compiler, which may take seconds.
    Compile,
}

/// Threads for the driver calls of builds.
#[derive(Clone)]
pub(crate) struct CompilePool {
    threads: Pool,
    compiles: Arc<Semaphore>,
    serial_compiles: Arc<Semaphore>,
    links: Arc<Semaphore>,
}

/// A handle of a thread pool. Threads are started as jobs need them, up to a limit. They end when the last
/// handle is gone and every queued job has run.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Handle>);

/// State shared by the handles. Dropping it closes the queue.
struct Handle(Arc<Workers>);

/// State shared by the threads.
struct Workers {
    name: &'static str,
    limit: usize,
    queue: Mutex<Queue>,
    /// Wakes threads that have no job. It is notified only after the lock is released: a thread that wakes
    /// while the lock is held sleeps again, which delays its job.
    job_queued: Condvar,
}

#[derive(Default)]
struct Queue {
    short: VecDeque<Job>,
    compiles: VecDeque<Job>,
    threads: usize,
    /// Number of jobs queued or running. While it does not exceed the number of threads, each job has a thread.
    unfinished: usize,
    is_closed: bool,
}

impl Pool {
    /// Creates a pool of at most `limit` threads, and at least one, named `name` followed by their number.
    /// Starts no thread yet.
    pub(crate) fn new(name: &'static str, limit: usize) -> Self {
        let limit = limit.max(1);
        let workers = Workers { name, limit, queue: Mutex::default(), job_queued: Condvar::new() };
        Self(Arc::new(Handle(Arc::new(workers))))
    }

    /// Queues a job and returns at once. The job runs even if the caller is gone. It is dropped without having
    /// run only if the system does not provide a single thread.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        self.submit_as(Priority::Short, Box::new(job));
    }

    fn submit_as(&self, priority: Priority, job: Job) {
        let Handle(workers) = &*self.0;
        let mut queue = workers.lock();
        queue.waiting(priority).push_back(job);
        queue.unfinished += 1;
        let number = queue.threads;
        let needs_thread = number < queue.unfinished.min(workers.limit);
        queue.threads += usize::from(needs_thread);
        drop(queue);
        if needs_thread {
            Workers::start(workers, number);
        } else {
            workers.job_queued.notify_one();
        }
    }
}

impl CompilePool {
    /// Creates a pool of at most `limit` threads, and at least one, named `name` followed by their number.
    pub(crate) fn new(name: &'static str, limit: usize) -> Self {
        let permits = |number| Arc::new(Semaphore::new(number));
        let (compiles, links) = (permits(limit.max(1)), permits(limit.max(1)));
        Self { threads: Pool::new(name, limit), compiles, serial_compiles: permits(1), links }
    }

    /// Returns the permits to begin compiles, one for each thread. Whoever has one may take a build lock, and
    /// hold the inputs of a compile in memory.
    pub(super) fn compiles(&self) -> &Arc<Semaphore> {
        &self.compiles
    }

    /// Returns the permit to begin compiles by drivers that build one program at a time. A second compile would
    /// keep a thread from short calls while it waits for the first.
    pub(super) fn serial_compiles(&self) -> &Arc<Semaphore> {
        &self.serial_compiles
    }

    /// Returns the permits to begin links, one for each thread. Links do not wait for compiles.
    pub(super) fn links(&self) -> &Arc<Semaphore> {
        &self.links
    }

    /// Runs a call that blocks on a thread of the pool. The call starts even if the future is not polled. If the
    /// future is dropped before the call has started, the call does not run.
    ///
    /// # Errors
    ///
    /// [`Panicked`](crate::ErrorKind::Panicked) if the call panics, and
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) if there is no thread to run it.
    pub(crate) fn run<T, F>(
        &self,
        priority: Priority,
        call: F,
    ) -> impl Future<Output = Result<T>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        self.threads.submit_as(
            priority,
            Box::new(move || {
                if !sender.is_canceled() {
                    // The caller may be gone by the end of the call; the result is then dropped.
                    let _ = sender.send(catch_panic(|| Ok(call())));
                }
            }),
        );
        async move { receiver.await.unwrap_or_else(|oneshot::Canceled| Err(no_thread())) }
    }
}

impl Queue {
    fn waiting(&mut self, priority: Priority) -> &mut VecDeque<Job> {
        match priority {
            Priority::Short => &mut self.short,
            Priority::Compile => &mut self.compiles,
        }
    }

    fn is_empty(&self) -> bool {
        self.short.is_empty() && self.compiles.is_empty()
    }
}

impl Workers {
    /// Locks the queue. Jobs do not run under the lock, so nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Starts a thread that is already counted. A failure is harmless while there are other threads. If there
    /// are none, the queued jobs are dropped, which their owners detect.
    fn start(workers: &Arc<Self>, number: usize) {
        if let Err(error) = Self::spawn(workers, number) {
            tracing::warn!(%error, name = workers.name, "cannot start a worker thread");
            let mut queue = workers.lock();
            queue.threads -= 1;
            if queue.threads == 0 {
                queue.unfinished = 0;
                let dropped = [Priority::Short, Priority::Compile]
                    .map(|priority| std::mem::take(queue.waiting(priority)));
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
            // Jobs catch their own panics, to report them to their waiters. A panic that gets here comes from a
            // waiter's waker or a destructor, and must not end a thread of the pool.
            catch_and_log("a job of a worker thread", job);
            self.lock().unfinished -= 1;
        }
    }

    /// Waits for a job. Returns `None` once the pool is closed and its queue is empty.
    fn next(&self) -> Option<Job> {
        let idle = |queue: &mut Queue| queue.is_empty() && !queue.is_closed;
        let queue = self.job_queued.wait_while(self.lock(), idle);
        let mut queue = ignore_poison(queue);
        queue.short.pop_front().or_else(|| queue.compiles.pop_front())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child process has none of the threads, and one of them may have held the lock.
        if process::is_forked() {
            return;
        }
        self.0.lock().is_closed = true;
        self.0.job_queued.notify_all();
    }
}
