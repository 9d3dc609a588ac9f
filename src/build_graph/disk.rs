//! The disk cache below the graph: it loads programs, and decides which process builds a missing one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::built::Built;
use super::entry_codec::Loaded;
use crate::cache::store::{Address, Entry, Lock, Lookup, Pending, Store, Try};
use crate::digest::BuildKey;
use crate::error::Result;
use crate::stats::Counters;

/// Shortest and longest pause, before jitter, between two lookups while another process builds a program.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(250)];

/// The next pause is the time waited so far, divided by this number. A program is then found soon after it is
/// stored, relative to the duration of its compile, and waiting for many programs leaves the processor to the
/// compilers.
const PAUSE_DIVISOR: u32 = 8;

/// The store of a graph.
pub(crate) struct Disk {
    store: Store,
    /// Maximum time to wait for another process's build.
    max_wait: Duration,
    counters: Arc<Counters>,
}

/// Reason why the disk has no program.
#[derive(Clone)]
pub(crate) enum Miss {
    Absent,
    /// The stored entry is not used, for this reason.
    Unusable(String),
}

/// Next action for a program that the disk does not have.
pub(crate) enum NextStep {
    /// Build the program, holding the lock if locks are in use.
    Build(Option<Lock>),
    /// Another process is building the program: look again after this pause.
    Wait(Duration),
}

/// State of a wait for another process's build lock.
#[derive(Default)]
pub(crate) struct LockWait {
    /// Start of the wait, once there is one.
    since: Option<Instant>,
}

impl Disk {
    pub(crate) fn new(store: Store, max_wait: Duration, counters: Arc<Counters>) -> Self {
        Self { store, max_wait, counters }
    }

    /// Returns a guard that [`Store::settled`] waits for.
    pub(crate) fn begin(&self) -> Pending {
        self.store.begin()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Loads a program. Errors are transient failures only: a damaged entry, or one that the driver rejects, is
    /// a miss. Such a miss is counted, unless `last_miss` has the same reason.
    pub(crate) fn load(
        &self,
        address: &Address,
        last_miss: Option<&Miss>,
        load: impl FnOnce(&Entry) -> Result<Loaded>,
    ) -> Result<Result<Arc<Built>, Miss>> {
        let is_new_reason =
            |reason: &str| !matches!(last_miss, Some(Miss::Unusable(known)) if *known == reason);
        let entry = match self.store.look_up(address) {
            Lookup::Hit(entry) => entry,
            Lookup::Absent => return Ok(Err(Miss::Absent)),
            Lookup::Unusable(unusable) => {
                let reason = unusable.to_string();
                if is_new_reason(&reason) {
                    self.counters.disk_damaged.add_one();
                    tracing::debug!(key = %address.key, %reason, "a stored entry is not used");
                }
                return Ok(Err(Miss::Unusable(reason)));
            }
            Lookup::Unreadable(error) => return Ok(Err(Miss::Unusable(error.to_string()))),
        };
        match load(&entry)? {
            Loaded::Built(built) => {
                self.counters.disk_bytes_read.add(entry.bytes().len() as u64);
                Ok(Ok(built))
            }
            Loaded::Refused(reason) => {
                if is_new_reason(&reason) {
                    self.counters.disk_refused.add_one();
                    tracing::debug!(
                        key = %address.key,
                        %reason,
                        "the driver rejected a stored program"
                    );
                }
                Ok(Err(Miss::Unusable(reason)))
            }
        }
    }

    /// Returns whether to build a program that the disk does not have, or to wait for another process that is
    /// building it.
    pub(crate) fn next_step(&self, key: &BuildKey, lock_wait: &mut LockWait) -> NextStep {
        match self.store.take_build_lock(key) {
            Try::Held(lock) => return NextStep::Build(Some(lock)),
            Try::Unopened(_) | Try::Impossible(_) => return NextStep::Build(None),
            Try::Busy => {}
        }
        let since = *lock_wait.since.get_or_insert_with(|| {
            self.counters.lock_waits.add_one();
            Instant::now()
        });
        if since.elapsed() >= self.max_wait {
            self.counters.lock_timeouts.add_one();
            tracing::debug!(%key, "another process has held the build lock for too long");
            return NextStep::Build(None);
        }
        let [shortest, longest] = PAUSES;
        let pause = (since.elapsed() / PAUSE_DIVISOR).clamp(shortest, longest);
        // The jitter keeps many processes from looking at the same time.
        NextStep::Wait(pause.mul_f64(0.5 + fastrand::f64()))
    }
}
