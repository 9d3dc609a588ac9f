//! End of an in-flight build for which two jobs may race: one that compiles, and one that loads the program
//! that the remote cache has sent meanwhile.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use futures::stream::AbortHandle;

use super::outcome::Outcome;
use super::shared_outcome::Promise;
use crate::cache::store::Pending;
use crate::sync::lock;

/// State shared by the jobs of an in-flight build.
pub(super) struct BuildCompletion {
    promise: Mutex<Option<Promise<Outcome>>>,
    start: Instant,
    /// Handle that ends the wait for the remote cache.
    waiting: Mutex<Option<AbortHandle>>,
    /// Whether the entry in the remote cache must not be replaced, because it is newer.
    has_newer: AtomicBool,
    /// Keeps `settled()` pending until the result is stored.
    _pending: Option<Pending>,
}

impl BuildCompletion {
    pub(super) fn new(promise: Promise<Outcome>, pending: Option<Pending>) -> Self {
        Self {
            promise: Mutex::new(Some(promise)),
            start: Instant::now(),
            waiting: Mutex::default(),
            has_newer: AtomicBool::new(false),
            _pending: pending,
        }
    }

    /// Returns the time since the build began.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the obligation to end the build, to the first caller only. Ends the wait for the remote cache.
    pub(super) fn claim(&self) -> Option<Promise<Outcome>> {
        let promise = lock(&self.promise).take();
        if let Some(waiting) = lock(&self.waiting).take() {
            waiting.abort();
        }
        promise
    }

    /// Whether a job has claimed the end of the build.
    pub(super) fn is_claimed(&self) -> bool {
        lock(&self.promise).is_none()
    }

    /// Sets a wait that is aborted when the end of the build is claimed.
    pub(super) fn abort_when_claimed(&self, waiting: AbortHandle) {
        *lock(&self.waiting) = Some(waiting);
    }

    pub(super) fn has_newer(&self) -> bool {
        self.has_newer.load(SeqCst)
    }

    pub(super) fn found_newer(&self) {
        self.has_newer.store(true, SeqCst);
    }
}
