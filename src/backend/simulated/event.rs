//! Events of commands, and their callbacks.

use std::any::Any;
use std::mem;
use std::sync::atomic::{
    AtomicU8, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use super::codes::foreign_error;
use super::counters::{count, uncount};
use super::shared::Shared;
use crate::backend::{NativeEvent, Notify, Profile, Progress, run_notify};
use crate::error::{Error, Result};
use crate::sync::{ignore_poison, lock};

const PENDING: u8 = 0;
const COMPLETE: u8 = 1;
const FAILED: u8 = 2;

/// Event of a command. One allocation, because a command of an immediate device is little else.
pub(super) struct Event {
    shared: Arc<Shared>,
    /// [`PENDING`], [`COMPLETE`] or [`FAILED`]. Set last, so that it publishes the other fields. Cheaper than a
    /// lock that holds an outcome.
    state: AtomicU8,
    failure: OnceLock<Error>,
    callbacks: Mutex<Vec<Notify>>,
    ended: Condvar,
    /// Boxed: most events have none.
    timestamps: Option<Box<Timestamps>>,
}

/// Callbacks that were lost on request. They are kept, because dropping them could notify their owner after
/// all. They are kept outside of their events, because they may own these.
static LOST: Mutex<Vec<Notify>> = Mutex::new(Vec::new());

/// Timestamps of a [`Profile`] that is being recorded.
struct Timestamps {
    queued: u64,
    submitted: AtomicU64,
    started: AtomicU64,
    ended: AtomicU64,
}

impl Event {
    pub(super) fn new(shared: &Arc<Shared>, profiling: bool) -> Arc<Self> {
        count(&shared.counters.live_events);
        Arc::new(Self {
            shared: shared.clone(),
            state: AtomicU8::new(PENDING),
            failure: OnceLock::new(),
            callbacks: Mutex::default(),
            ended: Condvar::new(),
            timestamps: profiling.then(|| {
                Box::new(Timestamps {
                    queued: shared.now(),
                    submitted: AtomicU64::new(0),
                    started: AtomicU64::new(0),
                    ended: AtomicU64::new(0),
                })
            }),
        })
    }

    /// Returns the event behind `event`. Fails if it belongs to another device.
    pub(super) fn of<'a>(
        event: &'a Arc<dyn NativeEvent>,
        shared: &Arc<Shared>,
    ) -> Result<&'a Self> {
        (event.as_ref() as &dyn Any)
            .downcast_ref::<Self>()
            .filter(|event| Arc::ptr_eq(&event.shared, shared))
            .ok_or_else(|| foreign_error("event"))
    }

    /// Like [`of`](Self::of), but returns a shared reference that the caller can keep.
    pub(super) fn shared_of(
        event: &Arc<dyn NativeEvent>,
        shared: &Arc<Shared>,
    ) -> Result<Arc<Self>> {
        Self::of(event, shared)?;
        let event: Arc<dyn Any + Send + Sync> = event.clone();
        event.downcast().map_err(|_| foreign_error("event"))
    }

    pub(super) fn submitted(&self) {
        self.stamp(|timestamps| &timestamps.submitted);
    }

    pub(super) fn started(&self) {
        self.stamp(|timestamps| &timestamps.started);
    }

    fn stamp(&self, timestamp: impl FnOnce(&Timestamps) -> &AtomicU64) {
        if let Some(timestamps) = &self.timestamps {
            timestamp(timestamps).store(self.shared.now(), Relaxed);
        }
    }

    fn is_pending(&self) -> bool {
        self.state.load(Acquire) == PENDING
    }

    /// Returns whether the operation has ended with a failure.
    pub(super) fn failed(&self) -> bool {
        self.state.load(Acquire) == FAILED
    }

    /// Sets the outcome, without notifying waiters. Sufficient for an event that no other thread has seen yet.
    pub(super) fn set_outcome(&self, outcome: Result<()>) {
        self.stamp(|timestamps| &timestamps.ended);
        let state = match outcome {
            Ok(()) => COMPLETE,
            Err(error) => {
                self.failure.get_or_init(|| error);
                FAILED
            }
        };
        self.state.store(state, Release);
    }

    /// Ends the operation and notifies all waiters.
    pub(super) fn end(&self, outcome: Result<()>) {
        self.set_outcome(outcome);
        // `notify` and `wait` check the state under this lock: they have either registered already, or see the
        // new state.
        let callbacks = mem::take(&mut *lock(&self.callbacks));
        self.ended.notify_all();
        callbacks.into_iter().for_each(run_notify);
    }

    /// Blocks until the operation has ended.
    pub(super) fn wait(&self) {
        if self.is_pending() {
            let callbacks = lock(&self.callbacks);
            let ended = self.ended.wait_while(callbacks, |_| self.is_pending());
            drop(ignore_poison(ended));
        }
    }
}

impl NativeEvent for Event {
    fn progress(&self) -> Progress {
        if self.is_pending() {
            return Progress::Pending;
        }
        match self.failure.get() {
            None => Progress::Complete,
            Some(error) => Progress::Failed(error.clone()),
        }
    }

    fn profile(&self) -> Option<Profile> {
        let timestamps = self.timestamps.as_ref().filter(|_| !self.is_pending())?;
        Some(Profile {
            queued: timestamps.queued,
            submitted: timestamps.submitted.load(Relaxed),
            started: timestamps.started.load(Relaxed),
            ended: timestamps.ended.load(Relaxed),
        })
    }

    fn notify(&self, notify: Notify) -> Result<()> {
        count(&self.shared.counters.notifications);
        let mut callbacks = lock(&self.callbacks);
        if self.shared.loses_notification() {
            lock(&LOST).push(notify);
        } else if self.is_pending() {
            callbacks.push(notify);
        } else {
            drop(callbacks);
            run_notify(notify);
        }
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        uncount(&self.shared.counters.live_events);
    }
}
