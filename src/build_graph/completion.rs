//! The end of a flight that two jobs may race for: one that compiles, and one that loads what the
//! remote cache sent meanwhile.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use futures::stream::AbortHandle;

use super::graph::Outcome;
use super::shared_outcome::Lander;
use crate::cache::store::Pending;
use crate::sync::lock;

/// What the jobs of a flight share.
pub(super) struct Landing {
    lander: Mutex<Option<Lander<Outcome>>>,
    start: Instant,
    /// Ends the waiting for the remote cache.
    waiting: Mutex<Option<AbortHandle>>,
    /// Whether what the remote cache has is not to be replaced.
    has_newer: AtomicBool,
    /// Keeps those waiting who want everything stored.
    _pending: Option<Pending>,
}

impl Landing {
    pub(super) fn new(lander: Lander<Outcome>, pending: Option<Pending>) -> Self {
        Self {
            lander: Mutex::new(Some(lander)),
            start: Instant::now(),
            waiting: Mutex::default(),
            has_newer: AtomicBool::new(false),
            _pending: pending,
        }
    }

    /// How long ago the flight began.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// For whoever has an outcome first: the duty to tell it. Nobody waits for another one then.
    pub(super) fn claim(&self) -> Option<Lander<Outcome>> {
        let lander = lock(&self.lander).take();
        if let Some(waiting) = lock(&self.waiting).take() {
            waiting.abort();
        }
        lander
    }

    /// Whether somebody had an outcome.
    pub(super) fn is_claimed(&self) -> bool {
        lock(&self.lander).is_none()
    }

    /// Has the one who claims it end some waiting, too.
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
