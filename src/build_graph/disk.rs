//! The disk cache below the graph: programs found there, and turns to build those that are not.

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

/// Divisor of the time waited so far that gives the next pause. A program is then found soon after it is
/// stored, relative to the duration of its compile, and waiting for many programs leaves the processor to the
/// compilers.
const PAUSE_PART: u32 = 8;

/// The store of a graph.
pub(crate) struct Disk {
    store: Store,
    /// Maximum time to wait for another process's build.
    wait: Duration,
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

/// State of waiting for another process's build.
#[derive(Default)]
pub(crate) struct Waiting {
    since: Option<Instant>,
}

impl Disk {
    pub(crate) fn new(store: Store, wait: Duration, counters: Arc<Counters>) -> Self {
        Self { store, wait, counters }
    }

    /// Returns a guard that [`Store::settled`] waits for.
    pub(crate) fn begin(&self) -> Pending {
        self.store.begin()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Loads a program. Errors are transient failures only: a damaged entry, or one that the driver does not
    /// take, is a miss. It is counted unless its reason is that of the last miss.
    pub(crate) fn load(
        &self,
        address: &Address,
        last: Option<&Miss>,
        load: impl FnOnce(&Entry) -> Result<Loaded>,
    ) -> Result<Result<Arc<Built>, Miss>> {
        let is_news =
            |reason: &str| !matches!(last, Some(Miss::Unusable(known)) if *known == reason);
        let entry = match self.store.get(address) {
            Lookup::Hit(entry) => entry,
            Lookup::Absent => return Ok(Err(Miss::Absent)),
            Lookup::Unusable(unusable) => {
                let reason = unusable.to_string();
                if is_news(&reason) {
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
                if is_news(&reason) {
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
    pub(crate) fn turn(&self, key: &BuildKey, waiting: &mut Waiting) -> NextStep {
        match self.store.try_build_lock(key) {
            Try::Held(lock) => return NextStep::Build(Some(lock)),
            Try::Unopened(_) | Try::Impossible(_) => return NextStep::Build(None),
            Try::Busy => {}
        }
        let since = *waiting.since.get_or_insert_with(|| {
            self.counters.lock_waits.add_one();
            Instant::now()
        });
        if since.elapsed() >= self.wait {
            self.counters.lock_timeouts.add_one();
            tracing::debug!(%key, "another process has held the build lock for too long");
            return NextStep::Build(None);
        }
        let [shortest, longest] = PAUSES;
        let pause = (since.elapsed() / PAUSE_PART).clamp(shortest, longest);
        // The jitter keeps many processes from looking at the same time.
        NextStep::Wait(pause.mul_f64(0.5 + fastrand::f64()))
    }
}
