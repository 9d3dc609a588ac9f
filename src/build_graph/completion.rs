//! Completion of an in-flight build. Two jobs may race for it: one compiles the program, and the other loads
//! the program that the remote cache sends meanwhile.

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
    remote_wait: Mutex<Option<AbortHandle>>,
    /// Whether the remote cache has an entry of a newer version, which must not be replaced.
    remote_has_newer: AtomicBool,
    /// Keeps `settled()` pending until the result is stored.
    _pending: Option<Pending>,
}

impl BuildCompletion {
    pub(super) fn new(promise: Promise<Outcome>, pending: Option<Pending>) -> Self {
        Self {
            promise: Mutex::new(Some(promise)),
            start: Instant::now(),
            remote_wait: Mutex::default(),
            remote_has_newer: AtomicBool::new(false),
            _pending: pending,
        }
    }

    /// Returns the time since the build began.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the promise to the first caller, which must complete it. Ends the wait for the remote cache.
    pub(super) fn claim(&self) -> Option<Promise<Outcome>> {
        let promise = lock(&self.promise).take();
        if let Some(wait) = lock(&self.remote_wait).take() {
            wait.abort();
        }
        promise
    }

    /// Whether a job has claimed the promise.
    pub(super) fn is_claimed(&self) -> bool {
        lock(&self.promise).is_none()
    }

    /// Sets a wait that is aborted when the promise is claimed.
    pub(super) fn abort_when_claimed(&self, wait: AbortHandle) {
        *lock(&self.remote_wait) = Some(wait);
    }

    pub(super) fn remote_has_newer(&self) -> bool {
        self.remote_has_newer.load(SeqCst)
    }

    pub(super) fn set_remote_has_newer(&self) {
        self.remote_has_newer.store(true, SeqCst);
    }
}
