//! Time limits of the waits for launches.
//!
//! A limit ends waits, not commands. Each handle that is polled has a timer of its own, which its task polls:
//! timers take no thread for each launch, and work under any executor.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::record::Record;
use super::scheduler::Scheduler;
use super::waits::in_words;
use crate::error::{Error, ErrorKind};
use crate::executor::{Pause, pause};
use crate::process;

/// Time limit of the waits for one launch.
pub(super) struct TimeLimit {
    kernel: Box<str>,
    limit: Duration,
    submitted: Instant,
}

/// Time limit of one handle of a launch.
pub(super) struct Timeout {
    limit: Arc<TimeLimit>,
    /// Timer that wakes the task, while the handle is polled.
    timer: Option<Box<Pause>>,
}

impl TimeLimit {
    /// Creates the limit of a launch that is submitted now.
    pub(super) fn starting_now(kernel: &str, limit: Duration) -> Arc<Self> {
        Arc::new(Self { kernel: kernel.into(), limit, submitted: Instant::now() })
    }

    fn error(&self, record: &Arc<Record>) -> Error {
        let pending = Scheduler::first_unfinished(record);
        let held_up = match pending.is_empty() {
            true => String::new(),
            false => format!("; still pending: {}", in_words(&pending)),
        };
        let message = format!(
            "`{}` has not ended within {:?} of its submission; it goes on, and keeps its buffers until it \
             ends{held_up}",
            self.kernel, self.limit
        );
        Error::new(ErrorKind::TimedOut, message)
    }
}

impl Timeout {
    pub(super) fn new(limit: Arc<TimeLimit>) -> Self {
        Self { limit, timer: None }
    }

    /// Completes with an error once the limit has passed.
    pub(super) fn poll(&mut self, record: &Arc<Record>, context: &mut Context<'_>) -> Poll<Error> {
        let left = self.limit.limit.saturating_sub(self.limit.submitted.elapsed());
        if !left.is_zero() {
            let timer = self.timer.get_or_insert_with(|| Box::new(pause(left)));
            let elapsed = ready!(Pin::new(timer).poll(context));
            self.timer = None;
            if let Err(error) = elapsed {
                return Poll::Ready(error);
            }
        }
        Poll::Ready(self.limit.error(record))
    }

    /// Stops the timer, because the command has ended.
    pub(super) fn stop(&mut self) {
        self.timer = None;
    }
}

/// Another handle's limit, whose timer does not run yet.
impl Clone for Timeout {
    fn clone(&self) -> Self {
        Self::new(self.limit.clone())
    }
}

impl Drop for Timeout {
    fn drop(&mut self) {
        // In a forked child, locks of the timers may be held by a thread that exists only in the parent.
        if process::is_forked() {
            mem::forget(self.timer.take());
        }
    }
}
