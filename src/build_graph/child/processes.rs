//! Compile processes: build children that stay, and compile one program of trusted modules at a time.
//!
//! Most drivers serialize compilation inside one process. A build that is ready to compile is put into the queue
//! of the [pool](ProcessPool). A compile process that is free takes it from there. As long as no process is ready,
//! the build may withdraw it and compile on a thread. Once there are processes, threads leave all compiles to them:
//! loads of other programs would wait for a compile inside the driver. A [worker](super::process_worker) drives each process: it is the thread
//! that starts the process and takes builds from the queue for it.
//!
//! A process is started ahead once enough builds wait for their turn, so that a few builds do not pay for it. It
//! ends when it has been idle for a while, when it takes too much memory, and with the pool.

use std::collections::VecDeque;
use std::env;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use futures::channel::oneshot;

use super::message::{self, Task};
use super::{ChildOutput, Children, Target, header};
use crate::backend::Source;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, warning};
use crate::stats::Counters;
use crate::sync::lock;

/// Environment variable that sets the number of compile processes.
const VARIABLE: &str = "KILN_COMPILE_PROCESSES";

/// Number of builds that have to wait for each process that is started. A process takes about as long to start
/// as to compile a few programs.
const WAITING_PER_PROCESS: usize = 16;

/// Shortest and longest time after a process could not be started in which no other one is started.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Number of [compile processes](crate::RuntimeBuilder::compile_processes) of a runtime.
///
/// # Examples
///
/// ```
/// use kiln::CompileProcesses;
///
/// # fn main() -> kiln::Result<()> {
/// assert_eq!(CompileProcesses::from(0), CompileProcesses::Off);
/// assert_eq!("cores".parse::<CompileProcesses>()?, CompileProcesses::Cores);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompileProcesses {
    /// Threads of the application's process compile.
    #[default]
    Off,
    /// At most this number of processes.
    Number(NonZeroUsize),
    /// At most as many processes as the application can use processors.
    Cores,
}

impl CompileProcesses {
    /// Reads the number from the environment; the default is [`Off`](Self::Off).
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) for any other value.
    pub(crate) fn from_environment() -> Result<Self> {
        match env::var_os(VARIABLE).filter(|text| !text.is_empty()) {
            None => Ok(Self::Off),
            Some(text) => {
                text.to_string_lossy().parse().map_err(|error: Error| error.within(VARIABLE))
            }
        }
    }

    /// Returns the maximum number of processes.
    pub(crate) fn limit(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Number(number) => number.get(),
            Self::Cores => thread::available_parallelism().map_or(1, NonZeroUsize::get),
        }
    }
}

impl From<usize> for CompileProcesses {
    /// Converts a number of processes; 0 is [`Off`](Self::Off).
    fn from(number: usize) -> Self {
        NonZeroUsize::new(number).map_or(Self::Off, Self::Number)
    }
}

impl std::str::FromStr for CompileProcesses {
    type Err = Error;

    /// Parses `off`, `cores` or a number.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) for any other text.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(Self::Off),
            "cores" => Ok(Self::Cores),
            _ => text.parse().map(usize::into).map_err(|_| {
                let message = format!(
                    "`{text}` is not a number of compile processes; give `off`, `cores` or a number"
                );
                Error::new(ErrorKind::Configuration, message)
            }),
        }
    }
}

/// The compile processes of a runtime. Dropping it ends them.
pub(crate) struct ProcessPool(Arc<Shared>);

/// State shared with the workers.
pub(super) struct Shared {
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

impl ProcessPool {
    /// Creates a pool without processes yet. Returns `None` if the number of processes is zero. Only on Unix can
    /// a process be connected by a socket; elsewhere there are none.
    pub(crate) fn new(
        number: CompileProcesses,
        niceness: u8,
        children: Arc<Children>,
        counters: Arc<Counters>,
    ) -> Option<Self> {
        let limit = if cfg!(unix) { number.limit() } else { 0 };
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Shared { children, niceness, counters, limit, state, changed };
        (limit > 0).then(|| Self(Arc::new(shared)))
    }

    /// Counts a build as waiting for its turn until the result is dropped. Starts a process for this target if
    /// enough builds wait.
    pub(in crate::build_graph) fn wait(&self, target: &Target<'_>) -> WaitingBuild {
        self.0.lock().waiting += 1;
        self.start_if_needed(target);
        WaitingBuild(Arc::clone(&self.0))
    }

    /// Encodes the request to build a source on a device, for [`submit`](Self::submit).
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) if the current directory cannot be part of a request.
    pub(in crate::build_graph) fn encode(
        target: &Target<'_>,
        source: &Source<'_>,
    ) -> Result<Vec<u8>> {
        encode_request(target, Task::Build(header(source)), &[source.code])
    }

    /// Puts an encoded request into the queue.
    pub(in crate::build_graph) fn submit(&self, target: &Target<'_>, request: Vec<u8>) -> Ticket {
        self.start_if_needed(target);
        let (sender, reply) = oneshot::channel();
        let mut state = self.0.lock();
        let number = state.next_job;
        state.next_job += 1;
        let is_left_to_processes = state.ready > 0;
        state.queue.push_back(Job { number, request, reply: sender });
        drop(state);
        self.0.changed.notify_one();
        Ticket { shared: Arc::clone(&self.0), number, reply, is_left_to_processes }
    }

    /// Starts a process if the builds that wait justify one more.
    fn start_if_needed(&self, target: &Target<'_>) {
        let mut state = self.0.lock();
        let is_needed = state.workers < self.0.limit
            && state.waiting >= WAITING_PER_PROCESS * (state.workers + 1);
        let may_start = !state.is_disabled
            && state.not_before.is_none_or(|not_before| Instant::now() >= not_before);
        if !is_needed || !may_start {
            return;
        }
        let number = state.workers;
        state.workers += 1;
        drop(state);
        super::process_worker::start(&self.0, number, target);
    }
}

impl Drop for ProcessPool {
    fn drop(&mut self) {
        // A forked child process has none of the threads, and one of them may have held the lock.
        if process::is_forked() {
            return;
        }
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
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
        self.counters.compile_processes.add_one();
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
pub(in crate::build_graph) struct WaitingBuild(Arc<Shared>);

impl Drop for WaitingBuild {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

/// The place of a job in the queue. Dropping it withdraws the job.
pub(in crate::build_graph) struct Ticket {
    shared: Arc<Shared>,
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
        let mut state = self.shared.lock();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_processes_are_parsed() {
        let number = |number| CompileProcesses::from(number);
        for (text, expected) in [
            ("off", CompileProcesses::Off),
            ("0", CompileProcesses::Off),
            ("cores", CompileProcesses::Cores),
            ("3", number(3)),
        ] {
            assert_eq!(text.parse::<CompileProcesses>().ok(), Some(expected), "{text}");
        }
        for text in ["", "on", "-1", "1.5", "99999999999999999999999"] {
            let error = text.parse::<CompileProcesses>().expect_err("it is not valid");
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.to_string().contains("`cores`"), "{error}");
        }
        assert!(CompileProcesses::Cores.limit() >= 1);
    }
}
