//! Worker of a compile process: the thread that starts it, gives it jobs from the queue, and ends it.

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::job_queue::{Job, JobQueue, Reply, encode_request};
use super::message::{self, Answer, FRAME_START_BYTES, Greeting, Task, frame_len, shortened};
use super::{ChildOutput, Target, child_command, read_failure, read_output};
use crate::error::{Error, ErrorKind, Result, catch_and_log};
use crate::process::{ConnectedProcess, ExchangeError, ProcessOutput, threads};
use crate::sync::ignore_poison;

/// Number of processes that try a job. A process may have failed because of an earlier job, or was killed.
const ATTEMPTS: usize = 2;

/// Time after which an idle process ends.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Interval at which an idle worker checks that its process runs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Resident memory, in bytes, above which a process ends after its job.
const MAX_RESIDENT_BYTES: u64 = 1 << 30;

/// Maximum size of an answer in bytes; more than any binary has.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// A worker and its process.
struct Worker {
    queue: Arc<JobQueue>,
    /// The request that makes a process ready for the device.
    preparation: Vec<u8>,
    /// Name of the backend, for the codes of its driver.
    backend: &'static str,
    process: Option<ConnectedProcess>,
    /// Whether the worker is counted as ready.
    is_ready: bool,
}

/// Starts a worker that is already counted.
pub(super) fn start(queue: &Arc<JobQueue>, number: usize, target: &Target<'_>) {
    let mut worker = Worker {
        queue: Arc::clone(queue),
        preparation: Vec::new(),
        backend: target.info.backend,
        process: None,
        is_ready: false,
    };
    match encode_request(target, Task::Prepare, &[]) {
        Ok(request) => worker.preparation = request,
        Err(error) => return queue.record_failure(&error),
    }
    let work = move || catch_and_log("a worker of compile processes", || worker.work());
    if let Err(error) = threads::start(format!("kiln-process-{number}"), work) {
        queue.record_failure(&threads::no_thread_error().with_source(error));
    }
}

impl Worker {
    fn work(&mut self) {
        loop {
            if self.process.is_none() {
                match self.start_process() {
                    Ok(process) => {
                        self.process = Some(process);
                        self.set_ready(true);
                    }
                    Err(_) if self.is_stopped() => return,
                    Err(error) => return self.queue.record_failure(&error),
                }
            }
            let Some(job) = self.next_job() else { return };
            let reply = self.compile(&job);
            // The build may be gone.
            let _ = job.reply.send(reply);
            if self.process.is_none() && !self.queue.is_needed() {
                return;
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.queue.lock().is_closed
    }

    /// Counts the worker as ready or not. Builds leave their compiles to workers that are ready.
    fn set_ready(&mut self, is_ready: bool) {
        match (std::mem::replace(&mut self.is_ready, is_ready), is_ready) {
            (false, true) => self.queue.record_ready(),
            (true, false) => self.queue.record_unready(),
            _ => {}
        }
    }

    /// Waits for a job. Returns `None` if the worker is to end.
    fn next_job(&mut self) -> Option<Job> {
        let since = Instant::now();
        let mut state = self.queue.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            let has_ended = self.process.as_mut().is_none_or(ConnectedProcess::has_ended);
            if has_ended || since.elapsed() >= IDLE_LIMIT {
                return None;
            }
            let waited = self.queue.changed.wait_timeout(state, CHECK_INTERVAL);
            state = ignore_poison(waited).0;
        }
    }

    /// Compiles a program in the process, or in another one if the first one fails.
    fn compile(&mut self, job: &Job) -> Reply {
        let mut failure: Option<Error> = None;
        for _ in 0..ATTEMPTS {
            // A process that has ended while it was idle has not tried the program.
            let running = take_running(&mut self.process);
            if running.is_none() {
                self.set_ready(false);
            }
            let mut process = match running.map_or_else(|| self.start_process(), Ok) {
                Ok(process) => process,
                Err(error) => return not_started(failure, error),
            };
            self.set_ready(true);
            let limit = self.queue.children.limit();
            match exchange(&mut process, &job.request, limit, || self.is_stopped()) {
                Ok((answer, binary)) => {
                    self.queue.counters.builds.process_compiles.add_one();
                    let resident = process.resident_bytes().unwrap_or(0);
                    self.process = (resident <= MAX_RESIDENT_BYTES).then_some(process);
                    return reply(answer, binary, self.backend);
                }
                Err(ExchangeError::Stopped) => break,
                Err(error) => failure = Some(self.end_process(process, error, &own_greeting())),
            }
        }
        Reply::Failed(failure.unwrap_or_else(stopped_error))
    }

    /// Starts a process, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) if there is no program for it, or one that is not a build
    /// child of this version; otherwise the errors of the system, and those of opening the device in the process.
    fn start_process(&self) -> Result<ConnectedProcess> {
        let command = child_command(&self.queue.children.program()?);
        let mut process = ConnectedProcess::start(command, self.queue.niceness)?;
        let mut received = Vec::new();
        match self.greet(&mut process, &mut received) {
            Ok(()) if received != own_greeting() => {
                Err(self.end_process(process, ExchangeError::Closed, &received))
            }
            Ok(()) => {
                let limit = self.queue.children.limit();
                let prepared =
                    exchange(&mut process, &self.preparation, limit, || self.is_stopped());
                match prepared {
                    Ok((Answer::Made { .. }, _)) => {
                        self.queue.record_start();
                        Ok(process)
                    }
                    Ok((Answer::Failed(failure) | Answer::Unreturned(failure), _)) => {
                        Err(read_failure(failure, self.backend))
                    }
                    Err(error) => Err(self.end_process(process, error, &received)),
                }
            }
            Err(error) => Err(self.end_process(process, error, &received)),
        }
    }

    /// Exchanges greetings with a process. `received` gets its greeting.
    fn greet(
        &self,
        process: &mut ConnectedProcess,
        received: &mut Vec<u8>,
    ) -> std::result::Result<(), ExchangeError> {
        let deadline = Instant::now() + self.queue.children.limit();
        let is_stopped = || self.is_stopped();
        process.receive(received, Greeting::FIXED_BYTES, deadline, is_stopped)?;
        let length = Greeting::FIXED_BYTES + Greeting::version_len(received);
        process.receive(received, length, deadline, is_stopped)?;
        process.send(&own_greeting(), deadline, is_stopped)
    }

    /// Ends a process after a failed exchange, and returns the error. `received` is what it sent first.
    fn end_process(
        &self,
        process: ConnectedProcess,
        error: ExchangeError,
        received: &[u8],
    ) -> Error {
        let program = process.program().to_owned();
        let place = || format!("the build child `{}`", program.display());
        match error {
            ExchangeError::Closed => match process.end() {
                (Some(status), log) => self.describe_end(&program, status, received, log),
                (None, log) => {
                    let message = "it closed its output but did not end, and was killed";
                    Error::new(ErrorKind::Driver, message).within(place()).with_log(log)
                }
            },
            ExchangeError::Exceeded(message) => {
                let log = process.kill();
                Error::new(ErrorKind::Driver, message).within(place()).with_log(log)
            }
            ExchangeError::Stopped => {
                process.kill();
                stopped_error()
            }
            ExchangeError::System(error) => {
                process.kill();
                Error::of_system(format!("{}: its socket failed", place()), error)
            }
        }
    }

    /// Returns the error for a process that ended by itself.
    fn describe_end(
        &self,
        program: &std::path::Path,
        status: ExitStatus,
        received: &[u8],
        log: String,
    ) -> Error {
        let ended = ProcessOutput { status, output: received.to_vec(), log };
        read_output(program, ended, self.backend).err().unwrap_or_else(|| {
            Error::new(ErrorKind::Driver, "the build child ended between two programs")
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process ends before the worker is no longer counted.
        self.process = None;
        self.queue.record_end(self.is_ready);
    }
}

/// Takes the process, unless it has ended.
fn take_running(process: &mut Option<ConnectedProcess>) -> Option<ConnectedProcess> {
    let mut process = process.take()?;
    (!process.has_ended()).then_some(process)
}

/// Returns the error of a build that nobody waits for, as the pool is closed.
fn stopped_error() -> Error {
    Error::new(ErrorKind::Canceled, "the compile processes have ended with their runtime")
}

fn own_greeting() -> Vec<u8> {
    Greeting::own().write()
}

/// Sends a request, and waits for the answer and the binary that belongs to it.
fn exchange(
    process: &mut ConnectedProcess,
    request: &[u8],
    limit: Duration,
    is_stopped: impl Fn() -> bool,
) -> std::result::Result<(Answer, Vec<u8>), ExchangeError> {
    let invalid =
        || ExchangeError::Exceeded("it sent an invalid answer, and was killed".to_owned());
    let deadline = Instant::now() + limit;
    process.clear_log().map_err(ExchangeError::System)?;
    process.send(request, deadline, &is_stopped)?;
    let mut frame = Vec::new();
    process.receive(&mut frame, FRAME_START_BYTES, deadline, &is_stopped)?;
    let length =
        frame.first_chunk().and_then(frame_len).filter(|length| *length <= MAX_ANSWER_BYTES);
    process.receive(&mut frame, length.ok_or_else(invalid)?, deadline, &is_stopped)?;
    let (answer, sections) = message::decode_frame(&frame, |_: &Answer| 1).ok_or_else(invalid)?;
    Ok((answer, sections.concat()))
}

/// Converts an answer. Errors that do not depend on the program leave it to a thread.
fn reply(answer: Answer, binary: Vec<u8>, backend: &str) -> Reply {
    match answer {
        Answer::Made { log, kernels } => {
            Reply::Made(ChildOutput { binary, log: shortened(log), kernels })
        }
        Answer::Unreturned(failure) => Reply::Unavailable(read_failure(failure, backend)),
        Answer::Failed(failure) => {
            use ErrorKind::{BuildFailed, InvalidModule, Unsupported};
            let error = read_failure(failure, backend);
            match error.kind() {
                BuildFailed | InvalidModule | Unsupported => Reply::Failed(error),
                _ => Reply::Unavailable(error),
            }
        }
    }
}

/// Returns the outcome of a job for which no process can be started. Another process has failed before with
/// `failure`, if there is one.
fn not_started(failure: Option<Error>, error: Error) -> Reply {
    match failure {
        // The program may crash this process or hang it as well.
        Some(failure) if failure.kind() != ErrorKind::OutOfResources => Reply::Failed(failure),
        _ => Reply::Unavailable(error),
    }
}
