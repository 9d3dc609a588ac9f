//! Compile processes: build children that stay, and compile one program of trusted modules at a time.
//!
//! Most drivers serialize compilation inside one process. A build that is ready to compile is put into the queue
//! of the [pool](ProcessPool). A compile process that is free takes it from there. As long as no process is ready,
//! the build may withdraw it and compile on a thread. Once there are processes, threads leave all compiles to them:
//! loads of other programs would wait for a compile inside the driver. A [worker](super::process_worker) drives each
//! process: it is the thread that starts the process and takes builds from the queue for it.
//!
//! A process is started ahead once enough builds wait for their turn, so that a few builds do not pay for it. It
//! ends when it has been idle for a while, when it takes too much memory, and with the pool.

use std::env;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use super::job_queue::{JobQueue, Ticket, WaitingBuild, encode_request};
use super::message::Task;
use super::{Children, Target, header, process_worker};
use crate::backend::Source;
use crate::counters::Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::process;

/// Environment variable that sets the number of compile processes.
const VARIABLE: &str = "KILN_COMPILE_PROCESSES";

/// Number of [compile processes](crate::RuntimeBuilder::compile_processes) of a runtime.
///
/// # Examples
///
/// ```
/// use kiln::build::CompileProcesses;
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
pub(crate) struct ProcessPool(Arc<JobQueue>);

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
        (limit > 0).then(|| Self(Arc::new(JobQueue::new(limit, niceness, children, counters))))
    }

    /// Counts a build as waiting for its turn until the result is dropped. Starts a process for this target if
    /// enough builds wait.
    pub(in crate::build_graph) fn wait(&self, target: &Target<'_>) -> WaitingBuild {
        let waiting = self.0.wait();
        self.start_if_needed(target);
        waiting
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
        self.0.push(request)
    }

    /// Starts a process if the builds that wait justify one more.
    fn start_if_needed(&self, target: &Target<'_>) {
        if let Some(number) = self.0.add_worker() {
            process_worker::start(&self.0, number, target);
        }
    }
}

impl Drop for ProcessPool {
    fn drop(&mut self) {
        // A forked child process has none of the threads, and one of them may have held the lock.
        if !process::is_forked() {
            self.0.close();
        }
    }
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
