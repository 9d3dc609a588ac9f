//! Puts, which keep the store within its limit, and collections in the background.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::collect::{Collected, Goal, collect};
use super::files::is_missing;
use super::handle::{Inner, Settings, Store};
use super::health::Access;
use super::layout::Address;
use super::lock::{self, BackgroundLock, Try};
use super::publish::publish;
use super::storage::Storage;
use super::usage::Usage;
use crate::error::Result;
use crate::executor::{on_files, pause, run_in_background};
use crate::process::threads::no_thread_error;

/// Pause between two attempts to collect while another process does.
const PAUSE: Duration = Duration::from_millis(20);

/// Number of attempts to collect, after which a program is not stored.
const ATTEMPTS: u32 = 100;

/// Number of attempts to collect while another process has been collecting for all attempts of an earlier put.
const ATTEMPTS_WHILE_STUCK: u32 = 1;

/// Bytes that the size hint includes for a file that is written next.
#[derive(Clone, Copy, Debug)]
struct Reservation {
    bytes: u64,
    /// Hint that includes the bytes.
    known: Option<Usage>,
}

impl Store {
    /// Stores a payload and the [rest](super::encode) of its file, replacing any file in its place. The caller calls
    /// [`keep_limits`](Self::keep_limits) afterwards.
    pub(crate) async fn put(&self, address: &Address, payload: Vec<u8>, rest: Vec<u8>) -> Storage {
        let Inner { settings, counters, puts, .. } = &*self.0;
        if !settings.entry_bytes.contains(&(payload.len() as u64)) {
            counters.disk.skips.add_one();
            let (bytes, sizes) = (payload.len() as u64, settings.entry_bytes.clone());
            return Storage::Size { bytes, sizes };
        }
        let bytes = (payload.len() + rest.len()) as u64;
        if let Some(limit) = settings.max_bytes.filter(|limit| bytes > *limit) {
            self.skip_too_large(address, bytes);
            return Storage::Limit { bytes, limit };
        }
        let _permit = puts.acquire().await;
        let Some(reservation) = self.reserve(bytes).await else {
            counters.disk.skips.add_one();
            return Storage::Full;
        };
        self.publish_reserved(address, [payload, rest], reservation).await
    }

    /// Writes a file for which bytes are reserved.
    async fn publish_reserved(
        &self,
        address: &Address,
        parts: [Vec<u8>; 2],
        reservation: Reservation,
    ) -> Storage {
        let Inner { layout, settings, counters, usage, .. } = &*self.0;
        let Reservation { bytes, known } = reservation;
        let path = layout.entry(address);
        let (difference, storage) = match publish(layout, &path, parts, settings.durability).await {
            Ok(published) => match published.difference(bytes) {
                Some(difference) => {
                    self.0.health.succeeded(Access::Write, &self.0.root);
                    counters.disk.writes.add_one();
                    counters.disk.bytes_written.add(bytes);
                    (difference, Storage::Stored)
                }
                None => {
                    counters.disk.skips.add_one();
                    (0, Storage::Newer)
                }
            },
            Err(error) => {
                self.report_failure(Access::Write, &error);
                (0, Storage::Failed(error.to_string()))
            }
        };
        let mut change = difference - bytes as i64;
        // A count since the reservation may have missed the file. If it found the file, the hint is too large until the next
        // count.
        let is_counted_again = settings.max_bytes.is_some()
            && known.zip(usage.read().await).is_some_and(|(then, now)| now.is_counted_after(then));
        if is_counted_again {
            change += difference;
        }
        if change != 0 {
            usage.add(change).await;
        }
        storage
    }

    /// Adds bytes to the size hint, for a file that is written next, and makes room for them. Returns `None` if there is
    /// no room.
    async fn reserve(&self, bytes: u64) -> Option<Reservation> {
        let Inner { settings, usage, collecting, is_collection_due, is_collector_stuck, .. } =
            &*self.0;
        let mut known = usage.add(bytes as i64).await;
        if known.is_none() {
            self.create().await;
            known = usage.add(bytes as i64).await;
        }
        let is_old = known.is_none_or(|usage| usage.is_old(settings.max_age));
        if settings.max_bytes.is_none()
            || known.is_some_and(|known| !self.exceeds_limit(known.bytes))
        {
            if is_old {
                is_collection_due.store(true, SeqCst);
            }
            return Some(Reservation { bytes, known });
        }
        let _collecting = collecting.lock().await;
        // Another put may have collected meanwhile. Its count does not include these bytes.
        let is_stuck = is_collector_stuck.load(SeqCst);
        let attempts = if is_stuck { ATTEMPTS_WHILE_STUCK } else { ATTEMPTS };
        let mut busy = 0;
        for _ in 0..attempts {
            match self.collect_now(self.goal_with_room(bytes)).await {
                Ok(Some(collected)) => {
                    is_collector_stuck.store(false, SeqCst);
                    if self.exceeds_limit(collected.bytes_left() + bytes) {
                        return None;
                    }
                    return Some(Reservation { bytes, known: usage.add(bytes as i64).await });
                }
                Ok(None) if pause(PAUSE).await.is_ok() => busy += 1,
                Ok(None) | Err(_) => break,
            }
        }
        if busy == ATTEMPTS && !is_collector_stuck.swap(true, SeqCst) {
            tracing::warn!(
                root = %self.0.root.display(),
                "another process has been collecting the cache directory for 2 s; programs that need room are not stored until it \
                 ends"
            );
        }
        usage.add(-(bytes as i64)).await;
        None
    }

    /// Returns the goal of collections.
    pub(super) fn goal(&self) -> Goal {
        self.goal_with_room(0)
    }

    /// Returns the goal of a collection that makes room for bytes that are written next. The target is nine tenths of the
    /// limit, so that collections are rare.
    fn goal_with_room(&self, bytes: u64) -> Goal {
        let Settings { max_bytes, max_age, .. } = self.0.settings;
        Goal {
            bytes: max_bytes.map(|most| most.saturating_sub(bytes)),
            target: max_bytes.map(|most| (most / 10 * 9).saturating_sub(bytes)),
            max_age,
            dry_run: false,
        }
    }

    /// Collects if the store is larger than its limit, or was not counted for long, unless this process is already
    /// collecting. This can take long, so it comes last: no build lock is held meanwhile.
    pub(crate) async fn keep_limits(&self) {
        if !self.0.is_collection_due.swap(false, SeqCst) {
            return;
        }
        let Some(_collecting) = self.0.collecting.try_lock() else { return };
        if let Err(error) = self.collect_now(self.goal()).await {
            tracing::debug!(%error, "the cache directory was not counted");
        }
    }

    /// Does the work of [`look_at_limits`](Self::look_at_limits) in the background. [`settled`](Self::settled) waits for
    /// it.
    pub(crate) fn keep_limits_in_background(&self) {
        let (store, pending) = (self.clone(), self.begin());
        run_in_background(async move {
            store.look_at_limits().await;
            drop(pending);
        });
    }

    /// Finds out whether the store is larger than its limit, or was not counted for long, and then collects.
    pub(crate) async fn look_at_limits(&self) {
        let max_age = self.0.settings.max_age;
        let known = self.0.usage.complete().await;
        let is_due = match known {
            Some(known) => known.is_old(max_age) || self.exceeds_limit(known.bytes),
            None => self.exists().await,
        };
        if is_due {
            self.0.is_collection_due.store(true, SeqCst);
        }
        self.keep_limits().await;
    }

    /// Returns whether the store has been written to.
    async fn exists(&self) -> bool {
        let folder = self.0.layout.version().to_owned();
        on_files(move |_| async_fs::metadata(folder)).await.flatten().is_ok()
    }

    /// Creates the folders of the store, unless they are there. If that fails, so does the put that follows.
    async fn create(&self) {
        let layout = self.0.layout.clone();
        let create = on_files(move |_| async move {
            match async_fs::metadata(layout.locks()).await {
                Err(error) if is_missing(&error) => layout.create().await,
                _ => Ok(()),
            }
        });
        let _ = create.await;
    }

    /// Collects and counts, unless another process is collecting; then returns `None`. If the store is within
    /// its limits, this only counts and sweeps.
    ///
    /// # Errors
    ///
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) if the system cannot start a thread.
    pub(super) async fn collect_now(&self, goal: Goal) -> Result<Option<Collected>> {
        let Inner { layout, usage, counters, .. } = &*self.0;
        if !goal.dry_run {
            self.stamp_all().await;
        }
        let path = layout.locks().join("gc");
        let attempt = on_files(move |permit| async move { lock::try_lock(&permit, &path).await });
        let lock = match attempt.await.map_err(|error| no_thread_error().with_source(error))? {
            Try::Busy => return Ok(None),
            Try::Held(lock) => BackgroundLock::new(Some(lock)),
            Try::Unopened(_) | Try::Impossible(_) => BackgroundLock::new(None),
        };
        let before = usage.read().await;
        let collected = collect(layout, goal).await;
        if !goal.dry_run {
            counters.disk.evictions.add(collected.removed);
            if let Err(error) = usage.set(before, collected.bytes_left()).await {
                tracing::debug!(%error, "the size hint cannot be written; the next put counts again");
            }
        }
        lock.release().await;
        Ok(Some(collected))
    }

    /// Counts an entry that is larger than the limit of the whole store, and warns about the first. A
    /// collection would have to remove all other entries to make room for it.
    fn skip_too_large(&self, address: &Address, bytes: u64) {
        self.0.counters.disk.skips.add_one();
        let (root, limit) = (self.0.root.display(), self.max_bytes());
        if self.0.warned.size.swap(true, SeqCst) {
            tracing::debug!(key = %address.key, bytes, limit, %root, "a program is too large to store");
        } else {
            tracing::warn!(
                key = %address.key,
                bytes,
                limit,
                %root,
                "a program is larger than the limit of the cache directory, and is not stored; raise \
                 KILN_CACHE_MAX_SIZE or `CacheConfig::max_bytes`"
            );
        }
    }

    /// Counts a program that is not stored, because the disk takes too long for those before it.
    pub(crate) fn skip_because_slow(&self) {
        self.0.counters.disk.skips.add_one();
        if !self.0.warned.speed.swap(true, SeqCst) {
            let root = self.0.root.display();
            tracing::warn!(%root, "the cache directory's disk is slow; some programs are not stored");
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::super::usage::tests::counted_before;
    use super::*;
    use crate::digest::BuildKey;

    #[test]
    fn a_file_that_a_count_missed_is_in_the_size_hint() {
        let directory = tempfile::tempdir().expect("there is disk space");
        let store = block_on(Store::open(directory.path())).expect("it can be used");
        let address = |number| Address { device: [1; 8], key: BuildKey([number; 32]) };
        let put = |number| block_on(store.put(&address(number), vec![7; 1000], vec![7; 100]));
        assert!(matches!(put(1), Storage::Stored));
        block_on(store.collect_now(store.goal())).expect("there are threads");
        let reservation = block_on(store.reserve(1100)).expect("there is room");
        // As if another process had counted since then.
        let known = reservation.known.map(counted_before);
        block_on(store.collect_now(store.goal())).expect("there are threads");
        let parts = [vec![7; 1000], vec![7; 100]];
        let reservation = Reservation { known, ..reservation };
        block_on(store.publish_reserved(&address(2), parts, reservation));
        let known = block_on(store.0.usage.read()).expect("it was counted");
        assert_eq!(known.bytes, 2200);
    }
}
