//! The size hint: how much a store holds, as far as that is known without counting.
//!
//! Every put adds to it and every collection counts anew, so whatever it says wrongly, for a crash
//! or a file that somebody removed, is right again after the next collection; and a hint that is
//! missing, damaged or old calls for one.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use super::layout::Layout;
use super::lock::{Try, try_lock};

/// The bytes of the file: bytes, entries and time, and the beginning of a digest over them.
const SIZE: usize = 32;

/// How long a count is trusted.
const TRUSTED: Duration = Duration::from_secs(3600);

/// How often, a millisecond apart, the lock is tried before a change is carried to the next one.
const TRIES: u32 = 20;

/// What a store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// The hint as its file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(crate) size: Size,
    /// When everything was last counted, in seconds since 1970.
    counted: u64,
}

impl Hint {
    /// Whether it is time to count again. A count from the future says nothing.
    pub(crate) fn is_old(&self) -> bool {
        let now = seconds(SystemTime::now());
        self.counted > now || now - self.counted > TRUSTED.as_secs()
    }
}

/// Whole seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A difference to what the hint says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    pub(crate) bytes: i64,
    pub(crate) entries: i64,
}

impl Change {
    fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            entries: self.entries.saturating_add(other.entries),
        }
    }
}

/// The file of a store's hint.
#[derive(Debug)]
pub(crate) struct HintFile {
    state: PathBuf,
    lock: PathBuf,
    /// What the file could not be told yet.
    carried: Mutex<Change>,
}

impl HintFile {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            state: layout.state(),
            lock: layout.locks().join("state"),
            carried: Mutex::default(),
        }
    }

    /// What the file says; `None` if there is none or it is damaged.
    pub(crate) fn read(&self) -> Option<Hint> {
        let bytes: [u8; SIZE] = fs::read(&self.state).ok()?.try_into().ok()?;
        let number = |at| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        (bytes[24..] == check(&bytes)).then(|| Hint {
            size: Size { bytes: number(0), entries: number(8) },
            counted: number(16),
        })
    }

    /// Adds to the hint, and gives it; `None` if it is not known.
    pub(crate) fn add(&self, change: Change) -> Option<Hint> {
        let change = {
            let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *carried).and(change)
        };
        let changed = self.change(|hint| {
            let Hint { size, counted } = hint?;
            let bytes = size.bytes.saturating_add_signed(change.bytes);
            let entries = size.entries.saturating_add_signed(change.entries);
            Some(Hint { size: Size { bytes, entries }, counted })
        });
        changed.unwrap_or_else(|_| {
            let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
            *carried = carried.and(change);
            self.read()
        })
    }

    /// Replaces the hint by a count that began when it was `before`. What was added meanwhile may
    /// have been counted or not; it is added, which at worst is too much until the next count.
    pub(crate) fn set(&self, before: Option<Hint>, counted: Size) -> io::Result<()> {
        let set = self.change(|now| {
            let meanwhile = |get: fn(Size) -> u64| {
                let (now, before) = (now?.size, before?.size);
                Some(get(now).saturating_sub(get(before)))
            };
            Some(Hint {
                size: Size {
                    bytes: counted.bytes.saturating_add(meanwhile(|size| size.bytes).unwrap_or(0)),
                    entries: counted
                        .entries
                        .saturating_add(meanwhile(|size| size.entries).unwrap_or(0)),
                },
                counted: seconds(SystemTime::now()),
            })
        });
        set.map(drop)
    }

    /// Changes the file under its lock.
    fn change(
        &self,
        change: impl FnOnce(Option<Hint>) -> Option<Hint>,
    ) -> io::Result<Option<Hint>> {
        let _lock = self.lock()?;
        let Some(hint) = change(self.read()) else { return Ok(None) };
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&hint.size.bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&hint.size.entries.to_le_bytes());
        bytes[16..24].copy_from_slice(&hint.counted.to_le_bytes());
        let check = check(&bytes);
        bytes[24..].copy_from_slice(&check);
        // In place and in one call: a file that was torn all the same is damaged, which is told.
        let mut file =
            OpenOptions::new().create(true).write(true).truncate(false).open(&self.state)?;
        file.write_all(&bytes)?;
        file.set_len(SIZE as u64)?;
        Ok(Some(hint))
    }

    /// Whoever holds the lock does so for a few system calls. Where there are no locks, changes may
    /// get lost, which the next count makes up for.
    fn lock(&self) -> io::Result<Try> {
        for _ in 0..TRIES {
            match try_lock(&self.lock) {
                Try::Busy => thread::sleep(Duration::from_millis(1)),
                Try::Unopened(error) => return Err(error),
                held_or_without => return Ok(held_or_without),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

fn check(bytes: &[u8; SIZE]) -> [u8; 8] {
    let mut check = [0; 8];
    check.copy_from_slice(&blake3::hash(&bytes[..24]).as_bytes()[..8]);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint() -> (tempfile::TempDir, HintFile) {
        let directory = tempfile::tempdir().expect("there is room");
        let layout = Layout::new(directory.path());
        layout.create().expect("it can be written");
        (directory, HintFile::new(&layout))
    }

    const COUNTED: Size = Size { bytes: 1000, entries: 10 };
    const ONE: Change = Change { bytes: 50, entries: 1 };

    #[test]
    fn nothing_is_known_before_the_first_count() {
        let (_directory, hint) = hint();
        assert_eq!(hint.add(ONE), None);
        hint.set(None, COUNTED).expect("it can be written");
        assert_eq!(hint.add(ONE).map(|hint| hint.size), Some(Size { bytes: 1050, entries: 11 }));
        assert!(!hint.read().expect("it was written").is_old());
    }

    #[test]
    fn a_damaged_file_says_nothing_until_the_next_count() {
        let (_directory, hint) = hint();
        hint.set(None, COUNTED).expect("it can be written");
        let whole = fs::read(&hint.state).expect("it is there");
        let (longer, other) = ([&whole[..], &[0]].concat(), [&whole[..31], &[!whole[31]]].concat());
        for bytes in [&whole[1..], &[], &[0; SIZE], &other, &longer] {
            fs::write(&hint.state, bytes).expect("it can be written");
            assert_eq!(hint.read(), None);
            hint.set(None, COUNTED).expect("it can be written");
            assert_eq!(hint.read().map(|hint| hint.size), Some(COUNTED));
        }
    }

    #[test]
    fn what_is_put_during_a_count_is_not_forgotten() {
        let (_directory, hint) = hint();
        hint.set(None, COUNTED).expect("it can be written");
        let before = hint.read();
        hint.add(ONE);
        hint.set(before, Size { bytes: 500, entries: 5 }).expect("it can be written");
        assert_eq!(hint.read().map(|hint| hint.size), Some(Size { bytes: 550, entries: 6 }));
    }

    #[test]
    fn a_change_is_carried_while_the_lock_is_held_by_others() {
        let (_directory, hint) = hint();
        hint.set(None, COUNTED).expect("it can be written");
        let held = try_lock(&hint.lock);
        assert_eq!(hint.add(ONE).map(|hint| hint.size), Some(COUNTED));
        drop(held);
        assert_eq!(hint.add(ONE).map(|hint| hint.size), Some(Size { bytes: 1100, entries: 12 }));
    }

    #[test]
    fn counts_age() {
        let now = seconds(SystemTime::now());
        let counted = |counted| Hint { size: COUNTED, counted };
        assert!(!counted(now).is_old());
        assert!(counted(now - TRUSTED.as_secs() - 2).is_old());
        assert!(counted(now + 1000).is_old());
    }
}
