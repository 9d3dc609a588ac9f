//! The size hint: the size of a store, as far as it is known without counting.
//!
//! Every put adds to the hint, and every collection counts anew. A hint that is wrong, after a crash or because
//! a user removed a file, is right again after the next collection. A hint that is missing, damaged or old
//! triggers a collection.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, SystemTime};

use super::layout::{Layout, open_own};
use super::lock::{Try, keeping, try_lock};
use crate::process::file::{self, Links};
use crate::sync::lock;

/// Length of the file in bytes: the size of the store, the time of the last count, and the first bytes of a
/// digest over both.
const FILE_BYTES: usize = 24;

/// Maximum age of a count before a new one is due.
const MAX_COUNT_AGE: Duration = Duration::from_secs(3600);

/// Number of attempts to take the lock, a millisecond apart, before a change is carried over to the next one.
const LOCK_ATTEMPTS: u32 = 20;

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

/// The file of a store's hint.
#[derive(Debug)]
pub(crate) struct UsageFile {
    state: PathBuf,
    lock: PathBuf,
    /// Change in bytes that could not be written to the file yet.
    carried: Mutex<i64>,
}

impl UsageFile {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            state: layout.state(),
            lock: layout.locks().join("state"),
            carried: Mutex::default(),
        }
    }

    /// Reads the hint. Returns `None` if there is no file or it is damaged.
    pub(crate) fn read(&self) -> Option<Usage> {
        let bytes = file::read(&self.state, Links::Refuse, FILE_BYTES as u64).ok()?;
        let bytes: [u8; FILE_BYTES] = bytes.try_into().ok()?;
        let number = |at| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        (bytes[16..] == checksum(&bytes)).then(|| Usage { bytes: number(0), counted: number(8) })
    }

    /// Adds a change in bytes to the hint. Returns the hint, or `None` if it is not known.
    pub(crate) fn add(&self, difference: i64) -> Option<Usage> {
        let difference = std::mem::take(&mut *self.carried()).saturating_add(difference);
        let changed = self.change(|usage| {
            let Usage { bytes, counted } = usage?;
            Some(Usage { bytes: bytes.saturating_add_signed(difference), counted })
        });
        changed.unwrap_or_else(|_| {
            let mut carried = self.carried();
            *carried = carried.saturating_add(difference);
            drop(carried);
            self.read()
        })
    }

    fn carried(&self) -> MutexGuard<'_, i64> {
        lock(&self.carried)
    }

    /// Replaces the hint by a count of bytes. `before` is the hint from the time when the count began. Bytes
    /// that were added meanwhile may have been counted or not. They are added, so at worst the hint is too
    /// large until the next count.
    pub(crate) fn set(&self, before: Option<Usage>, counted: u64) -> io::Result<()> {
        let set = self.change(|now| {
            let [now, before] = [now, before].map(|usage| usage.map(|usage| usage.bytes));
            let meanwhile = now.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
            let bytes = counted.saturating_add(meanwhile);
            Some(Usage { bytes, counted: seconds(SystemTime::now()) })
        });
        set.map(drop)
    }

    /// Changes the file under its lock.
    fn change(
        &self,
        change: impl FnOnce(Option<Usage>) -> Option<Usage>,
    ) -> io::Result<Option<Usage>> {
        let _lock = self.lock()?;
        let Some(usage) = change(self.read()) else { return Ok(None) };
        let mut bytes = [0; FILE_BYTES];
        bytes[..8].copy_from_slice(&usage.bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&usage.counted.to_le_bytes());
        let checksum = checksum(&bytes);
        bytes[16..].copy_from_slice(&checksum);
        // Written in place and in one call. A file that was torn all the same is detected as damaged.
        let mut file = open_own(&self.state, keeping)?;
        file.write_all(&bytes)?;
        file.set_len(FILE_BYTES as u64)?;
        Ok(Some(usage))
    }

    /// Takes the lock, which is only held for a few system calls at a time. Where there are no locks, changes
    /// may get lost; the next count corrects that.
    fn lock(&self) -> io::Result<Try> {
        for _ in 0..LOCK_ATTEMPTS {
            match try_lock(&self.lock) {
                Try::Busy => thread::sleep(Duration::from_millis(1)),
                Try::Unopened(error) => return Err(error),
                held_or_without => return Ok(held_or_without),
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
        assert_eq!(usage.add(ONE), None);
        usage.set(None, COUNTED).expect("it can be written");
        assert_eq!(usage.add(ONE).map(|usage| usage.bytes), Some(1050));
        assert!(!usage.read().expect("it was written").is_old());
    }

    #[test]
    fn usage_is_unknown_after_damage_until_the_next_count() {
        let (_directory, usage) = usage();
        usage.set(None, COUNTED).expect("it can be written");
        let whole = fs::read(&usage.state).expect("it exists");
        let (longer, other) = (
            [&whole[..], &[0]].concat(),
            [&whole[..FILE_BYTES - 1], &[!whole[FILE_BYTES - 1]]].concat(),
        );
        for bytes in [&whole[1..], &[], &[0; FILE_BYTES], &other, &longer] {
            fs::write(&usage.state, bytes).expect("it can be written");
            assert_eq!(usage.read(), None);
            usage.set(None, COUNTED).expect("it can be written");
            assert_eq!(usage.read().map(|usage| usage.bytes), Some(COUNTED));
        }
    }

    #[test]
    fn entries_added_during_a_count_are_included() {
        let (_directory, usage) = usage();
        usage.set(None, COUNTED).expect("it can be written");
        let before = usage.read();
        usage.add(ONE);
        usage.set(before, 500).expect("it can be written");
        assert_eq!(usage.read().map(|usage| usage.bytes), Some(550));
    }

    #[test]
    fn changes_made_while_the_lock_is_held_are_added_later() {
        let (_directory, usage) = usage();
        usage.set(None, COUNTED).expect("it can be written");
        let held = try_lock(&usage.lock);
        assert_eq!(usage.add(ONE).map(|usage| usage.bytes), Some(COUNTED));
        drop(held);
        assert_eq!(usage.add(ONE).map(|usage| usage.bytes), Some(1100));
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
