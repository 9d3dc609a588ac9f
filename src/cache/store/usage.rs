//! The size hint: the size of a store, as far as it is known without counting.
//!
//! Every put adds to the hint, and every collection counts anew. A hint that is wrong, after a crash or because
//! a user removed a file, is right again after the next collection. A hint that is missing, damaged or old
//! triggers a collection.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use super::layout::{Layout, open_own};
use super::lock::{Try, keeping, try_lock};
use crate::executor::{pause, unblock};
use crate::process::file::{self, Links};
use crate::sync::lock;

/// Length of the file in bytes: the size of the store, the time of the last count, and the first bytes of a
/// digest over both.
const FILE_BYTES: usize = 24;

/// Maximum age of a count before a new one is due.
const MAX_COUNT_AGE: Duration = Duration::from_secs(3600);

/// Number of attempts to take the lock, before a change is carried over to the next one.
const LOCK_ATTEMPTS: u32 = 20;

/// Pause between two attempts to take the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Contents of the hint's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Size of the store, in bytes.
    pub(crate) bytes: u64,
    /// Time of the last full count, in seconds since 1970.
    counted: u64,
}

impl Usage {
    /// Returns whether a new count is due. A count from the future is not trusted.
    pub(crate) fn is_old(&self) -> bool {
        let now = seconds(SystemTime::now());
        self.counted > now || now - self.counted > MAX_COUNT_AGE.as_secs()
    }
}

/// Returns the whole seconds from 1970 to `time`.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The file of a store's hint. The value is a handle that is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct UsageFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: PathBuf,
    lock: PathBuf,
    /// Change in bytes that is not in the file yet.
    carried: Mutex<i64>,
}

impl UsageFile {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self(Arc::new(Inner {
            state: layout.state(),
            lock: layout.locks().join("state"),
            carried: Mutex::default(),
        }))
    }

    /// Reads the hint. Returns `None` if there is no file or it is damaged. Blocks on the file.
    pub(crate) fn read(&self) -> Option<Usage> {
        let bytes = file::read(&self.0.state, Links::Refuse, FILE_BYTES as u64).ok()?;
        let bytes: [u8; FILE_BYTES] = bytes.try_into().ok()?;
        let number = |at| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        (bytes[16..] == checksum(&bytes)).then(|| Usage { bytes: number(0), counted: number(8) })
    }

    /// Adds a change in bytes to the hint. Returns the hint, or `None` if it is not known. If the future is
    /// dropped, the next change adds this one.
    pub(crate) async fn add(&self, difference: i64) -> Option<Usage> {
        self.carry(difference);
        let add = |usage: &Self| {
            let difference = std::mem::take(&mut *usage.carried());
            let added = usage.write(|usage| {
                let Usage { bytes, counted } = usage?;
                Some(Usage { bytes: bytes.saturating_add_signed(difference), counted })
            });
            if added.is_err() {
                usage.carry(difference);
            }
            added
        };
        match self.with_lock(add).await {
            Ok(usage) => usage,
            Err(_) => {
                let usage = self.clone();
                unblock(move || usage.read()).await.ok().flatten()
            }
        }
    }

    fn carry(&self, difference: i64) {
        let mut carried = self.carried();
        *carried = carried.saturating_add(difference);
    }

    fn carried(&self) -> MutexGuard<'_, i64> {
        lock(&self.0.carried)
    }

    /// Replaces the hint by a count of bytes. `before` is the hint from the time when the count began. Bytes
    /// that were added meanwhile may have been counted or not. They are added, so at worst the hint is too
    /// large until the next count.
    pub(crate) async fn set(&self, before: Option<Usage>, counted: u64) -> io::Result<()> {
        let set = move |usage: &Self| {
            usage.write(|now| {
                let [now, before] = [now, before].map(|usage| usage.map(|usage| usage.bytes));
                let meanwhile =
                    now.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
                let bytes = counted.saturating_add(meanwhile);
                Some(Usage { bytes, counted: seconds(SystemTime::now()) })
            })
        };
        self.with_lock(set).await.map(drop)
    }

    /// Replaces the contents of the file. Its lock must be held.
    fn write(
        &self,
        change: impl FnOnce(Option<Usage>) -> Option<Usage>,
    ) -> io::Result<Option<Usage>> {
        let Some(usage) = change(self.read()) else { return Ok(None) };
        let mut bytes = [0; FILE_BYTES];
        bytes[..8].copy_from_slice(&usage.bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&usage.counted.to_le_bytes());
        let checksum = checksum(&bytes);
        bytes[16..].copy_from_slice(&checksum);
        // Written in place and in one call. A file that was torn all the same is detected as damaged.
        let mut file = open_own(&self.0.state, keeping)?;
        file.write_all(&bytes)?;
        file.set_len(FILE_BYTES as u64)?;
        Ok(Some(usage))
    }

    /// Makes a change under the lock, which is only held for a few system calls at a time. Where there are no
    /// locks, changes may get lost; the next count corrects that.
    async fn with_lock(
        &self,
        change: impl Fn(&Self) -> io::Result<Option<Usage>> + Copy + Send + 'static,
    ) -> io::Result<Option<Usage>> {
        for _ in 0..LOCK_ATTEMPTS {
            let usage = self.clone();
            let attempt = unblock(move || match try_lock(&usage.0.lock) {
                Try::Busy => None,
                Try::Unopened(error) => Some(Err(error)),
                _held @ (Try::Held(_) | Try::Impossible(_)) => Some(change(&usage)),
            });
            match attempt.await? {
                Some(changed) => return changed,
                None => pause(LOCK_PAUSE).await.map_err(io::Error::other)?,
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

fn checksum(bytes: &[u8; FILE_BYTES]) -> [u8; 8] {
    let mut checksum = [0; 8];
    checksum.copy_from_slice(&blake3::hash(&bytes[..16]).as_bytes()[..8]);
    checksum
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::executor::block_on;

    use super::*;

    fn usage() -> (tempfile::TempDir, UsageFile) {
        let directory = tempfile::tempdir().expect("there is disk space");
        let layout = Layout::new(directory.path());
        layout.create().expect("it can be written");
        (directory, UsageFile::new(&layout))
    }

    const COUNTED: u64 = 1000;
    const ONE: i64 = 50;

    #[test]
    fn usage_is_unknown_before_the_first_count() {
        let (_directory, usage) = usage();
        assert_eq!(block_on(usage.add(ONE)), None);
        block_on(usage.set(None, COUNTED)).expect("it can be written");
        assert_eq!(block_on(usage.add(ONE)).map(|usage| usage.bytes), Some(1050));
        assert!(!usage.read().expect("it was written").is_old());
    }

    #[test]
    fn usage_is_unknown_after_damage_until_the_next_count() {
        let (_directory, usage) = usage();
        block_on(usage.set(None, COUNTED)).expect("it can be written");
        let whole = fs::read(&usage.0.state).expect("it exists");
        let (longer, other) = (
            [&whole[..], &[0]].concat(),
            [&whole[..FILE_BYTES - 1], &[!whole[FILE_BYTES - 1]]].concat(),
        );
        for bytes in [&whole[1..], &[], &[0; FILE_BYTES], &other, &longer] {
            fs::write(&usage.0.state, bytes).expect("it can be written");
            assert_eq!(usage.read(), None);
            block_on(usage.set(None, COUNTED)).expect("it can be written");
            assert_eq!(usage.read().map(|usage| usage.bytes), Some(COUNTED));
        }
    }

    #[test]
    fn entries_added_during_a_count_are_included() {
        let (_directory, usage) = usage();
        block_on(usage.set(None, COUNTED)).expect("it can be written");
        let before = usage.read();
        block_on(usage.add(ONE));
        block_on(usage.set(before, 500)).expect("it can be written");
        assert_eq!(usage.read().map(|usage| usage.bytes), Some(550));
    }

    #[test]
    fn changes_made_while_the_lock_is_held_are_added_later() {
        let (_directory, usage) = usage();
        block_on(usage.set(None, COUNTED)).expect("it can be written");
        let held = try_lock(&usage.0.lock);
        assert_eq!(block_on(usage.add(ONE)).map(|usage| usage.bytes), Some(COUNTED));
        drop(held);
        assert_eq!(block_on(usage.add(ONE)).map(|usage| usage.bytes), Some(1100));
    }

    #[test]
    fn counts_become_outdated() {
        let now = seconds(SystemTime::now());
        let counted = |counted| Usage { bytes: COUNTED, counted };
        assert!(!counted(now).is_old());
        assert!(counted(now - MAX_COUNT_AGE.as_secs() - 2).is_old());
        assert!(counted(now + 1000).is_old());
    }
}
