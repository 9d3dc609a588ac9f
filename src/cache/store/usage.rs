//! The size hint: the size of a store, as far as it is known without counting.
//!
//! Every put adds to the hint, and every collection counts anew. A hint that is wrong, after a crash or because
//! a user removed a file, is right again after the next collection. A hint that is missing, damaged or old
//! triggers a collection.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use super::layout::Layout;
use super::numbers_file::NumbersFile;
use crate::sync::lock;

/// Maximum age of a count before a new one is due.
const MAX_COUNT_AGE: Duration = Duration::from_secs(3600);

/// Contents of the hint's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Size of the store, in bytes.
    pub(crate) bytes: u64,
    /// Time of the last full count, in seconds since 1970.
    counted: u64,
}

impl Usage {
    /// Returns whether a new count is due, which also removes entries that were not used for `max_age`. A count from the
    /// future is not trusted.
    pub(crate) fn is_old(&self, max_age: Option<Duration>) -> bool {
        let now = seconds(SystemTime::now());
        let most = max_age.map_or(MAX_COUNT_AGE, |age| age.min(MAX_COUNT_AGE));
        self.counted > now || now - self.counted > most.as_secs()
    }

    /// Returns whether this hint comes from a later count than an earlier hint.
    pub(crate) fn is_counted_after(&self, earlier: Self) -> bool {
        self.counted != earlier.counted
    }

    fn of([bytes, counted]: [u64; 2]) -> Self {
        Self { bytes, counted }
    }
}

/// Returns the whole seconds from 1970 to `time`.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The file of a store's hint. The value is a handle that is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct UsageFile {
    /// Size of the store in bytes, and the time of the last count.
    file: NumbersFile<2>,
    /// Change in bytes that is not in the file yet.
    carried: Arc<Mutex<i64>>,
}

impl UsageFile {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self { file: NumbersFile::new(layout, "state"), carried: Arc::default() }
    }

    /// Reads the hint. Returns `None` if there is no file or it is damaged.
    pub(crate) async fn read(&self) -> Option<Usage> {
        self.file.read().await.ok().flatten().map(Usage::of)
    }

    /// Reads the hint, after the changes that are not in the file yet have been added.
    pub(crate) async fn complete(&self) -> Option<Usage> {
        if *self.carried() == 0 { self.read().await } else { self.add(0).await }
    }

    /// Adds a change in bytes to the hint. Returns the hint, or `None` if it is not known. If the hint cannot be
    /// written, the next change adds this one; the returned hint has it already.
    pub(crate) async fn add(&self, difference: i64) -> Option<Usage> {
        self.carry(difference);
        let (usage, taken) = (self.clone(), Arc::new(AtomicI64::new(0)));
        let is_taken = taken.clone();
        let added = self.file.change(move |known| {
            let difference = std::mem::take(&mut *usage.carried());
            is_taken.store(difference, SeqCst);
            known.map(|[bytes, counted]| [bytes.saturating_add_signed(difference), counted])
        });
        match added.await {
            Ok(known) => known.map(Usage::of),
            Err(_) => {
                self.carry(taken.load(SeqCst));
                let known = self.read().await?;
                let bytes = known.bytes.saturating_add_signed(*self.carried());
                Some(Usage { bytes, ..known })
            }
        }
    }

    fn carry(&self, difference: i64) {
        let mut carried = self.carried();
        *carried = carried.saturating_add(difference);
    }

    fn carried(&self) -> MutexGuard<'_, i64> {
        lock(&self.carried)
    }

    /// Replaces the hint by a count of bytes. `before` is the hint from the time when the count began. Bytes
    /// that were added meanwhile may have been counted or not. They are added, so at worst the hint is too
    /// large until the next count.
    pub(crate) async fn set(&self, before: Option<Usage>, counted: u64) -> io::Result<()> {
        let set = move |known: Option<[u64; 2]>| {
            let [now, before] =
                [known.map(Usage::of), before].map(|usage| usage.map(|usage| usage.bytes));
            let meanwhile = now.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
            Some([counted.saturating_add(meanwhile), seconds(SystemTime::now())])
        };
        self.file.change(set).await.map(drop)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use futures::executor::block_on;

    use super::super::lock::tests::hold;
    use super::*;

    fn usage() -> (tempfile::TempDir, UsageFile) {
        let directory = tempfile::tempdir().expect("there is disk space");
        let layout = Layout::new(directory.path());
        block_on(layout.create()).expect("it can be written");
        (directory, UsageFile::new(&layout))
    }

    /// Returns the hint as if the store had been counted a second earlier.
    pub(in super::super) fn counted_before(usage: Usage) -> Usage {
        Usage { counted: usage.counted - 1, ..usage }
    }

    const COUNTED: u64 = 1000;
    const ONE: i64 = 50;

    #[test]
    fn usage_is_unknown_before_the_first_count() {
        let (_directory, usage) = usage();
        assert_eq!(block_on(usage.add(ONE)), None);
        block_on(usage.set(None, COUNTED)).expect("it can be written");
        assert_eq!(block_on(usage.add(ONE)).map(|usage| usage.bytes), Some(1050));
        assert!(!block_on(usage.read()).expect("it was written").is_old(None));
    }

    #[test]
    fn usage_is_unknown_after_damage_until_the_next_count() {
        let (_directory, usage) = usage();
        block_on(usage.set(None, COUNTED)).expect("it can be written");
        let [path, _] = usage.file.paths();
        let whole = fs::read(path).expect("it exists");
        let [rest @ .., last] = &*whole else { panic!("it is not empty") };
        let (longer, other) = ([&whole[..], &[0]].concat(), [rest, &[!last]].concat());
        for bytes in [&whole[1..], &[], &[0; 24], &other, &longer] {
            fs::write(path, bytes).expect("it can be written");
            assert_eq!(block_on(usage.read()), None);
            block_on(usage.set(None, COUNTED)).expect("it can be written");
            assert_eq!(block_on(usage.read()).map(|usage| usage.bytes), Some(COUNTED));
        }
    }

    #[test]
    fn entries_added_during_a_count_are_included() {
        let (_directory, usage) = usage();
        block_on(usage.set(None, COUNTED)).expect("it can be written");
        let before = block_on(usage.read());
        block_on(usage.add(ONE));
        block_on(usage.set(before, 500)).expect("it can be written");
        assert_eq!(block_on(usage.read()).map(|usage| usage.bytes), Some(550));
    }

    #[test]
    fn changes_made_while_the_lock_is_held_are_added_later() {
        let (_directory, usage) = usage();
        block_on(usage.set(None, COUNTED)).expect("it can be written");
        let [_, lock] = usage.file.paths();
        let held = hold(lock);
        assert_eq!(block_on(usage.add(ONE)).map(|usage| usage.bytes), Some(1050));
        assert_eq!(block_on(usage.read()).map(|usage| usage.bytes), Some(COUNTED));
        drop(held);
        assert_eq!(block_on(usage.add(ONE)).map(|usage| usage.bytes), Some(1100));
    }

    #[test]
    fn changes_made_while_the_lock_is_held_are_added_without_another_change() {
        let (_directory, usage) = usage();
        block_on(usage.set(None, COUNTED)).expect("it can be written");
        let [_, lock] = usage.file.paths();
        let held = hold(lock);
        block_on(usage.add(ONE));
        drop(held);
        assert_eq!(block_on(usage.complete()).map(|usage| usage.bytes), Some(1050));
        assert_eq!(block_on(usage.read()).map(|usage| usage.bytes), Some(1050));
    }

    #[test]
    fn counts_become_outdated() {
        let now = seconds(SystemTime::now());
        let counted = |counted| Usage { bytes: COUNTED, counted };
        assert!(!counted(now).is_old(None));
        assert!(counted(now - MAX_COUNT_AGE.as_secs() - 2).is_old(None));
        assert!(counted(now + 1000).is_old(None));
        assert!(counted(now - 12).is_old(Some(Duration::from_secs(10))));
        assert!(!counted(now - 12).is_old(Some(Duration::from_secs(7200))));
    }
}
