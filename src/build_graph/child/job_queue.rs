//! The queue of programs that compile processes are to compile.

use std::collections::VecDeque;
use std::env;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures::channel::oneshot;

use super::message::{self, Task};
use super::{ChildOutput, Children, Target};
use crate::counters::Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::process::warning;
use crate::sync::lock;

/// Number of builds that have to wait for each process that is started. A process takes about as long to start
/// as to compile a few programs.
const WAITING_PER_PROCESS: usize = 16;

/// Shortest and longest time after a process could not be started in which no other one is started.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The queue of jobs, which the workers take them from.
pub(super) struct JobQueue {
    pub(super) children: Arc<Children>,
    pub(super) niceness: u8,
    pub(super) counters: Arc<Counters>,
    /// Maximum number of processes.
    limit: usize,
    state: Mutex<State>,
    /// Wakes workers that are idle.
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) queue: VecDeque<Job>,
    /// Number of the next job.
    next_job: u64,
    /// Number of builds that wait for their turn.
    waiting: usize,
    /// Number of workers. Each has at most one process.
    workers: usize,
    /// Number of workers with a process that was ready when it was last used.
    ready: usize,
    /// Number of successive failures to start a process.
    failures: u32,
    /// Time before which no process is started, after a failure.
    not_before: Option<Instant>,
    /// Whether processes cannot work, so that none is started.
    is_disabled: bool,
    pub(super) is_closed: bool,
}

/// A program that a process is to compile.
pub(super) struct Job {
    number: u64,
    /// The request, as a frame.
    pub(super) request: Vec<u8>,
    pub(super) reply: oneshot::Sender<Reply>,
}

/// Outcome of a job.
pub(in crate::build_graph) enum Reply {
    Made(ChildOutput),
    /// The error of the compiler, or of the processes that failed to compile the program.
    Failed(Error),
    /// A process could not take the job, for this reason, which does not depend on the program. A thread can
    /// compile it.
    Unavailable(Error),
}

impl JobQueue {
    /// Creates an empty queue without workers. `limit` is the maximum number of processes.
    pub(super) fn new(
        limit: usize,
        niceness: u8,
        children: Arc<Children>,
        counters: Arc<Counters>,
    ) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { children, niceness, counters, limit, state, changed }
    }

    /// Counts a build as waiting for its turn until the result is dropped.
    pub(super) fn wait(self: &Arc<Self>) -> WaitingBuild {
        self.lock().waiting += 1;
        WaitingBuild(Arc::clone(self))
    }

    /// Puts an encoded request into the queue.
    pub(super) fn push(self: &Arc<Self>, request: Vec<u8>) -> Ticket {
        let (sender, reply) = oneshot::channel();
        let mut state = self.lock();
        let number = state.next_job;
        state.next_job += 1;
        let is_left_to_processes = state.ready > 0;
        state.queue.push_back(Job { number, request, reply: sender });
        drop(state);
        self.changed.notify_one();
        Ticket { queue: Arc::clone(self), number, reply, is_left_to_processes }
    }

    /// Counts one more worker if the builds that wait justify one, and returns its number.
    pub(super) fn add_worker(&self) -> Option<usize> {
        let mut state = self.lock();
        let is_needed = state.workers < self.limit
            && state.waiting >= WAITING_PER_PROCESS * (state.workers + 1);
        let may_start = !state.is_disabled
            && state.not_before.is_none_or(|not_before| Instant::now() >= not_before);
        if !is_needed || !may_start {
            return None;
        }
        let number = state.workers;
        state.workers += 1;
        Some(number)
    }

    /// Ends the workers.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Locks the state. Nothing panics while it is held.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether builds wait that another process could compile.
    pub(super) fn is_needed(&self) -> bool {
        let state = self.lock();
        state.waiting > 0 || !state.queue.is_empty()
    }

    /// Records that a process was started.
    pub(super) fn record_start(&self) {
        self.counters.builds.compile_processes.add_one();
        let mut state = self.lock();
        (state.failures, state.not_before) = (0, None);
    }

    /// Records that a process could not be started. Threads compile until the next attempt, or for good if it
    /// would fail as well.
    pub(super) fn record_failure(&self, error: &Error) {
        use ErrorKind::{Configuration, NoDevice, Unsupported};
        let is_final = matches!(error.kind(), Configuration | NoDevice | Unsupported);
        let [shortest, longest] = PAUSES;
        let mut state = self.lock();
        let pause = shortest.saturating_mul(1 << state.failures.min(16)).min(longest);
        state.failures += 1;
        state.not_before = Some(Instant::now() + pause);
        state.is_disabled |= is_final;
        drop(state);
        if is_final {
            warning::warn(&format!(
                "programs are compiled by threads, because compile processes cannot be used: {error}"
            ));
        } else {
            tracing::warn!(%error, "a compile process could not be started");
        }
    }

    /// Records that a worker has a process that is ready.
    pub(super) fn record_ready(&self) {
        self.lock().ready += 1;
    }

    /// Records that a worker's process has failed. Without other ones, the jobs in the queue are left to threads.
    pub(super) fn record_unready(&self) {
        let mut state = self.lock();
        state.ready -= 1;
        let left = state.take_abandoned();
        drop(state);
        drop(left);
    }

    /// Records that a worker has ended. Without processes, the jobs in the queue are left to threads.
    pub(super) fn record_end(&self, was_ready: bool) {
        let mut state = self.lock();
        state.workers -= 1;
        state.ready -= usize::from(was_ready);
        let left = state.take_abandoned();
        drop(state);
        drop(left);
    }
}

impl State {
    /// Takes all jobs out of the queue if no process is ready. Dropping them tells their builds.
    fn take_abandoned(&mut self) -> VecDeque<Job> {
        if self.ready == 0 { std::mem::take(&mut self.queue) } else { VecDeque::new() }
    }
}

/// A build that waits for its turn. Dropping it ends the wait.
pub(in crate::build_graph) struct WaitingBuild(Arc<JobQueue>);

impl Drop for WaitingBuild {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

/// The place of a job in the queue. Dropping it withdraws the job.
pub(in crate::build_graph) struct Ticket {
    queue: Arc<JobQueue>,
    number: u64,
    reply: oneshot::Receiver<Reply>,
    is_left_to_processes: bool,
}

impl Ticket {
    /// Whether a process was ready when the job was submitted. If none remains, the reply says so.
    pub(in crate::build_graph) fn is_left_to_processes(&self) -> bool {
        self.is_left_to_processes
    }

    /// Takes the job out of the queue. Returns `false` if a process has it.
    pub(in crate::build_graph) fn withdraw(&self) -> bool {
        let mut state = self.queue.lock();
        let position = state.queue.iter().position(|job| job.number == self.number);
        let job = position.and_then(|position| state.queue.remove(position));
        drop(state);
        job.is_some()
    }

    /// Waits for the outcome. May be called again if the future was dropped before it completed.
    pub(in crate::build_graph) async fn reply(&mut self) -> Reply {
        let reply = (&mut self.reply).await;
        reply.unwrap_or_else(|oneshot::Canceled| {
            let message = "no compile process is left; try again";
            Reply::Unavailable(Error::new(ErrorKind::OutOfResources, message))
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Encodes a request, with the current directory of this process.
pub(super) fn encode_request(
    target: &Target<'_>,
    task: Task,
    sections: &[&[u8]],
) -> Result<Vec<u8>> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::new(ErrorKind::Io, "the request to a compile process cannot be encoded")
            .with_source(error)
    };
    let directory = env::current_dir().map_err(|error| failed(error.into()))?;
    let directory = directory.into_os_string().into_string().map_err(|directory| {
        failed(format!("the current directory {directory:?} is not valid Unicode").into())
    })?;
    let request = target.request(Some(directory), task);
    message::encode_frame(&request, sections).map_err(|error| failed(error.into()))
}
