//! The disk below the graph: programs found there, and the turn to build those that are not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry_codec::Loaded;
use super::program::Built;
use crate::cache::store::{Address, Entry, Lock, Lookup, Pending, Store, Try};
use crate::digest::BuildKey;
use crate::error::Result;
use crate::stats::Counters;

/// The shortest and the longest pause, before jitter, between two looks at another process's build.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(250)];

/// The next pause is this part of the wait so far. A program is then found soon after it is there,
/// measured by its compile, and waiting for many programs leaves the processor to the compilers.
const PAUSE_PART: u32 = 8;

/// A store, as the graph uses it.
pub(crate) struct Disk {
    store: Store,
    /// How long to wait for another process's build.
    wait: Duration,
    counters: Arc<Counters>,
}

/// Why the disk has no program.
#[derive(Clone)]
pub(crate) enum Miss {
    Absent,
    /// What it has is not used, for this reason.
    Unusable(String),
}

/// What to do about a program that the disk does not have.
pub(crate) enum Turn {
    /// Build it, holding the lock, if there are locks.
    Build(Option<Lock>),
    /// Another process builds it: look again after a pause.
    Wait(Duration),
}

/// A build's waiting for another process.
#[derive(Default)]
pub(crate) struct Waiting {
    since: Option<Instant>,
}

impl Disk {
    pub(crate) fn new(store: Store, wait: Duration, counters: Arc<Counters>) -> Self {
        Self { store, wait, counters }
    }

    /// Something that [`Store::settled`] waits for.
    pub(crate) fn begin(&self) -> Pending {
        self.store.begin()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Loads a program. An error is one of circumstance: whatever is wrong with what is on the disk,
    /// or with what the driver makes of it, is a miss, which counts unless it is the last one again.
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
                    tracing::debug!(key = %address.key, %reason, "an entry is not used");
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
                        "the driver does not take a stored program"
                    );
                }
                Ok(Err(Miss::Unusable(reason)))
            }
        }
    }

    /// Whether to build what the disk does not have, or to wait for another process that does.
    pub(crate) fn turn(&self, key: &BuildKey, waiting: &mut Waiting) -> Turn {
        match self.store.try_build_lock(key) {
            Try::Held(lock) => return Turn::Build(Some(lock)),
            Try::Unopened(_) | Try::Impossible(_) => return Turn::Build(None),
            Try::Busy => {}
        }
        let since = *waiting.since.get_or_insert_with(|| {
            self.counters.lock_waits.add_one();
            Instant::now()
        });
        if since.elapsed() >= self.wait {
            self.counters.lock_timeouts.add_one();
            tracing::debug!(%key, "another process holds the build lock for too long");
            return Turn::Build(None);
        }
        let [shortest, longest] = PAUSES;
        let pause = (since.elapsed() / PAUSE_PART).clamp(shortest, longest);
        // Apart from each other, for many processes.
        Turn::Wait(pause.mul_f64(0.5 + fastrand::f64()))
    }
}
