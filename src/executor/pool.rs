//! Bounded worker threads for calls that block.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use futures::channel::oneshot;

use crate::error::{Result, catch_and_log, catch_panic};
use crate::process;
use crate::process::threads::{self, no_thread_error};
use crate::sync::{ignore_poison, lock};

type Job = Box<dyn FnOnce(Running<'_>) + Send>;

/// Order in which waiting calls get a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// A call that takes milliseconds. Goes before all long ones that wait.
    Short,
    /// A call that may take seconds, such as one of a compiler.
    Long,
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
    long: VecDeque<Job>,
    threads: usize,
    /// Number of jobs queued or running. While it does not exceed the number of threads, each job has a thread.
    unfinished: usize,
    is_closed: bool,
}

/// A job that is running. Dropping this counts it as finished.
struct Running<'a>(&'a Workers);

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
        self.submit_as(Priority::Short, Box::new(|_running| job()));
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
        let job = move |running: Running<'_>| {
            if !sender.is_canceled() {
                let result = catch_panic(|| Ok(call()));
                // The thread counts as free before the result is sent: the receiver may submit the next call at once.
                drop(running);
                // The caller may be gone by the end of the call; the result is then dropped.
                let _ = sender.send(result);
            }
        };
        self.submit_as(priority, Box::new(job));
        async move { receiver.await.unwrap_or_else(|oneshot::Canceled| Err(no_thread_error())) }
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

impl Queue {
    fn waiting(&mut self, priority: Priority) -> &mut VecDeque<Job> {
        match priority {
            Priority::Short => &mut self.short,
            Priority::Long => &mut self.long,
        }
    }

    fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty()
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
                let dropped = [Priority::Short, Priority::Long]
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
            catch_and_log("a job of a worker thread", || job(Running(self)));
        }
    }

    /// Waits for a job. Returns `None` once the pool is closed and its queue is empty.
    fn next(&self) -> Option<Job> {
        let idle = |queue: &mut Queue| queue.is_empty() && !queue.is_closed;
        let queue = self.job_queued.wait_while(self.lock(), idle);
        let mut queue = ignore_poison(queue);
        queue.short.pop_front().or_else(|| queue.long.pop_front())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().unfinished -= 1;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use futures::executor::block_on;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn workers_are_bounded_and_survive_panics() {
        let pool = Pool::new("test", 2);
        let (running, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let runs: Vec<_> = (0..50)
            .map(|i| {
                let (running, peak) = (Arc::clone(&running), Arc::clone(&peak));
                drop(pool.run(Priority::Short, || panic!("in a job")));
                let priority = if i % 2 == 0 { Priority::Short } else { Priority::Long };
                pool.run(priority, move || {
                    peak.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                    thread::sleep(Duration::from_millis(1));
                    running.fetch_sub(1, SeqCst);
                    i
                })
            })
            .collect();
        for (i, run) in runs.into_iter().enumerate() {
            assert_eq!(block_on(run).expect("it ran"), i);
        }
        assert_eq!(peak.load(SeqCst), 2);
        let panicked = block_on(pool.run(Priority::Short, || -> u32 { panic!("in a call") }))
            .expect_err("it fails");
        assert_eq!(panicked.kind(), ErrorKind::Panicked);
    }

    #[test]
    fn queued_jobs_run_after_the_pool_is_dropped() {
        let pool = Pool::new("test", 1);
        let (gate, wait) = mpsc::channel::<()>();
        let first = pool.run(Priority::Long, move || wait.recv().is_ok());
        let last = pool.run(Priority::Long, || thread::current().name().map(str::to_owned));
        drop(pool);
        gate.send(()).expect("the first job waits");
        assert!(block_on(first).expect("it ran"));
        assert_eq!(block_on(last).expect("it ran").as_deref(), Some("test-0"));
    }

    #[test]
    fn short_calls_go_before_long_ones_that_wait() {
        let pool = Pool::new("test", 1);
        let (gate, wait) = mpsc::channel::<()>();
        let running = pool.run(Priority::Long, move || wait.recv().is_ok());
        let order = Arc::new(Mutex::new(Vec::new()));
        let calls: Vec<_> = [Priority::Long, Priority::Short, Priority::Long, Priority::Short]
            .into_iter()
            .enumerate()
            .map(|(number, priority)| {
                let order = Arc::clone(&order);
                pool.run(priority, move || order.lock().expect("nothing panics").push(number))
            })
            .collect();
        gate.send(()).expect("the first call waits");
        assert!(block_on(running).expect("it ran"));
        for call in calls {
            block_on(call).expect("it ran");
        }
        assert_eq!(*order.lock().expect("nothing panics"), [1, 3, 0, 2]);
    }

    #[test]
    fn calls_whose_futures_are_dropped_before_they_start_do_not_run() {
        let pool = Pool::new("test", 1);
        let (gate, wait) = mpsc::channel::<()>();
        let running = pool.run(Priority::Long, move || wait.recv().is_ok());
        drop(pool.run(Priority::Long, || panic!("nobody waits for it")));
        let (sender, received) = mpsc::channel();
        drop(pool.run(Priority::Long, move || sender.send(())));
        gate.send(()).expect("the first call waits");
        assert!(block_on(running).expect("it ran"));
        assert!(received.recv().is_err(), "the call was dropped");
    }

    #[test]
    fn calls_one_after_another_use_one_thread() {
        let pool = Pool::new("test", 8);
        for _ in 0..100 {
            let name = pool.run(Priority::Short, || thread::current().name().map(str::to_owned));
            assert_eq!(block_on(name).expect("it ran").as_deref(), Some("test-0"));
        }
    }
}
