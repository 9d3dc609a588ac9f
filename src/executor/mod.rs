//! The library's own small executor. With it, the library's tasks make progress under any host executor, and
//! without one.

mod blocking;
mod completed;
mod pool;
mod timer;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use async_executor::Executor;
use futures::FutureExt;

use crate::error::{Result, catch_and_log};
use crate::process::threads::{self, no_thread_error};
use crate::sync::{ignore_poison, lock};

pub(crate) use blocking::{
    FilePermit, run_blocking, run_blocking_detached, run_in_background, run_quickly,
};
pub(crate) use completed::{Completed, on_files, on_files_in_task};
pub(crate) use pool::{Pool, Priority};
pub(crate) use timer::{Pause, pause, wait_up_to};

thread_local! {
    /// The executor whose tasks this thread runs.
    static RUNNING: RefCell<Option<Arc<Executor<'static>>>> = const { RefCell::new(None) };
}

/// Runs tasks on one thread.
///
/// The thread starts with the first task and ends when the last handle is dropped; tasks themselves hold
/// handles. While a task blocks in [`wait_for`], another thread runs the other tasks.
pub(crate) struct HostExecutor {
    executor: Arc<Executor<'static>>,
    /// Channel that closes when the last handle is dropped, which ends the thread.
    running: OnceLock<async_channel::Sender<()>>,
    /// Lock held while the thread is started.
    starting: Mutex<()>,
    /// Name of the threads that run the tasks.
    name: &'static str,
    start: Start,
}

/// Function that starts a thread, which runs the closure.
type Start = fn(&'static str, Box<dyn FnOnce() + Send>) -> io::Result<()>;

impl HostExecutor {
    /// Creates an executor whose threads have this name.
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Self::with_start(name, threads::start)
    }

    fn with_start(name: &'static str, start: Start) -> Arc<Self> {
        Arc::new(Self {
            executor: Arc::new(Executor::new()),
            running: OnceLock::new(),
            starting: Mutex::new(()),
            name,
            start,
        })
    }

    /// Runs a future to completion. A panic, such as one of a waker that the future wakes, ends that future
    /// only.
    ///
    /// # Errors
    ///
    /// [`OutOfResources`](ErrorKind::OutOfResources) if the system cannot provide a thread. The future has been
    /// dropped by then, which its owner may observe; the next call tries again.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let task = self.task(future)?;
        self.executor.spawn(task).detach();
        Ok(())
    }

    /// Like [`spawn`](Self::spawn). Polls the future a first time on this thread, so that what it waits for
    /// begins at once, without the way to the executor's thread.
    pub(crate) fn begin(
        self: &Arc<Self>,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let mut task = Box::pin(self.task(future)?);
        // The waker need not work: the executor polls the task again in any case.
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.executor.spawn(task).detach();
        }
        Ok(())
    }

    /// Returns the future with a handle of this executor, whose thread runs by then. The result never panics.
    fn task<F>(self: &Arc<Self>, future: F) -> Result<impl Future<Output = ()> + Send + use<F>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Err(error) = self.ensure_thread() {
            catch_and_log("a future that was dropped", || drop(future));
            return Err(error);
        }
        let handle = self.clone();
        // In a box, because each of the futures around it would otherwise hold it twice. The block drops the future
        // on completion, inside `catch_unwind`, as that drop may panic, too.
        let future = Box::pin(future);
        #[expect(clippy::redundant_async_block, reason = "see above")]
        let whole = async move { future.await };
        Ok(async move {
            if let Err(panic) = AssertUnwindSafe(whole).catch_unwind().await {
                catch_and_log("a task", || resume_unwind(panic));
            }
            drop(handle);
        })
    }

    /// Starts the thread unless it is already running.
    fn ensure_thread(&self) -> Result<()> {
        if self.running.get().is_some() {
            return Ok(());
        }
        let _starting = lock(&self.starting);
        if self.running.get().is_some() {
            return Ok(());
        }
        let (running, closed) = async_channel::bounded::<()>(1);
        let executor = self.executor.clone();
        let run = move || run_tasks(executor, closed.recv());
        (self.start)(self.name, Box::new(run))
            .map_err(|error| no_thread_error().with_source(error))?;
        self.running.get_or_init(|| running);
        Ok(())
    }
}

/// Returns whether this thread runs the tasks of an executor.
pub(crate) fn runs_tasks() -> bool {
    running().is_some()
}

fn running() -> Option<Arc<Executor<'static>>> {
    // A thread that is ending, with its thread-local values destroyed, runs no tasks.
    RUNNING.try_with(|running| running.borrow().clone()).unwrap_or_default()
}

/// Wakes a thread that blocks on a future.
#[derive(Default)]
struct Alarm {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *lock(&self.is_woken) = true;
        self.woken.notify_one();
    }
}

/// Blocks the thread until a future completes. Unlike functions of this name in other crates, it uses no
/// thread-local value, so it also works while a thread is ending.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let alarm = Arc::new(Alarm::default());
    let waker = Waker::from(alarm.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        let is_woken = lock(&alarm.is_woken);
        let is_asleep = |is_woken: &mut bool| !*is_woken;
        let woken = alarm.woken.wait_while(is_woken, is_asleep);
        *ignore_poison(woken) = false;
    }
}

/// Blocks the calling thread until a future completes. The thread may be any, including one that runs tasks.
///
/// # Errors
///
/// If the system cannot provide a thread for the tasks that the future may depend on.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let Some(executor) = running() else { return Ok(block_on(future)) };
    // This thread would run those tasks, so another thread runs them meanwhile. Nothing joins that thread: it
    // may be inside a task that waits for the task blocked here.
    let (_waiting, done) = async_channel::bounded::<()>(1);
    let run = move || {
        run_tasks(executor.clone(), done.recv());
        // A runner that ends may hold tasks that the other runners do not see. This empty task makes them look
        // again.
        executor.spawn(async {}).detach();
    };
    threads::start("kiln-host", run)?;
    Ok(block_on(future))
}

/// Runs the tasks of an executor on this thread until `done` completes, with any output.
fn run_tasks<T>(executor: Arc<Executor<'static>>, done: impl Future<Output = T>) {
    RUNNING.set(Some(executor.clone()));
    block_on(executor.run(done));
    RUNNING.take();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn waiting_on_the_thread_of_the_tasks_does_not_block_other_tasks() {
        let executor = HostExecutor::new("test");
        let (sender, received) = mpsc::channel();
        let inner = executor.clone();
        let first = executor.spawn(async move {
            let (answer, answered) = futures::channel::oneshot::channel();
            let task = async move { answer.send(7).expect("the other task waits") };
            inner.spawn(task).expect("there is a thread");
            let output = wait_for(answered).expect("there is a thread");
            sender.send(output).expect("the test waits");
        });
        first.expect("there is a thread");
        assert_eq!(received.recv_timeout(Duration::from_secs(60)), Ok(Ok(7)));
        assert_eq!(wait_for(std::future::ready(8)).expect("no thread is needed"), 8);
    }

    #[test]
    fn a_waiting_task_can_end_before_tasks_started_meanwhile() {
        let executor = HostExecutor::new("test");
        let (answer, answered) = futures::channel::oneshot::channel();
        let (ended, first_ended) = futures::channel::oneshot::channel();
        let first = async move {
            let output = wait_for(answered).expect("there is a thread");
            ended.send(output).expect("the other task waits");
        };
        let (sender, received) = mpsc::channel();
        let second = async move {
            answer.send(7).expect("the first task waits");
            let output = wait_for(first_ended).expect("there is a thread");
            sender.send(output).expect("the test waits");
        };
        executor.spawn(first).expect("there is a thread");
        executor.spawn(second).expect("there is a thread");
        assert_eq!(received.recv_timeout(Duration::from_secs(60)), Ok(Ok(Ok(7))));
    }

    #[test]
    fn starting_the_thread_is_retried_after_a_failure() {
        static REFUSED: AtomicBool = AtomicBool::new(false);
        let executor = HostExecutor::with_start("test", |_, run| {
            if !REFUSED.swap(true, SeqCst) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            thread::spawn(run);
            Ok(())
        });
        let (sender, ran) = mpsc::channel();
        let task = |number| {
            let sender = sender.clone();
            async move { sender.send(number).expect("the test waits") }
        };
        let error = executor.spawn(task(0)).expect_err("there is no thread");
        assert_eq!(error.kind(), ErrorKind::OutOfResources);
        executor.spawn(task(1)).expect("a thread can be started again");
        assert_eq!(ran.recv_timeout(Duration::from_secs(60)), Ok(1));
        assert!(ran.try_recv().is_err(), "the task without a thread was dropped");
    }

    #[test]
    fn a_panicking_task_does_not_affect_the_others() {
        let executor = HostExecutor::new("test");
        executor.spawn(async { panic!("on purpose") }).expect("there is a thread");
        let (sender, ran) = mpsc::channel();
        let task = async move { sender.send(1).expect("the test waits") };
        executor.spawn(task).expect("there is a thread");
        assert_eq!(ran.recv_timeout(Duration::from_secs(60)), Ok(1));
    }
}
