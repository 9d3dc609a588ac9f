//! The size hint: the size of a store, as far as it is known without counting.
//!
//! Every put adds to the hint, and every collection counts anew. A hint that is wrong, after a crash or because
//! a user removed a file, is right again after the next collection. A hint that is missing, damaged or old
//! triggers a collection.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use super::files;
use super::layout::Layout;
use super::lock::{Try, try_lock};
use crate::executor::{Completed, FilePermit, pause};
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
    /// Returns whether a new count is due, which also removes entries that were not used for `max_age`. A count from the
    /// future is not trusted.
    pub(crate) fn is_old(&self, max_age: Option<Duration>) -> bool {
        let now = seconds(SystemTime::now());
        let most = max_age.map_or(MAX_COUNT_AGE, |age| age.min(MAX_COUNT_AGE));
        self.counted > now || now - self.counted > most.as_secs()
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

    /// Reads the hint. Returns `None` if there is no file or it is damaged.
    pub(crate) async fn read(&self) -> Option<Usage> {
        let usage = self.clone();
        let read = async move {
            let _permit = FilePermit::acquire().await.ok()?;
            usage.read_file().await
        };
        Completed::new(read).await
    }

    async fn read_file(&self) -> Option<Usage> {
        let (mut file, _) = files::open(&self.0.state, files::reading()).await.ok()?;
        let bytes = files::read(&mut file, FILE_BYTES as u64).await.ok()?;
        let bytes: [u8; FILE_BYTES] = bytes.try_into().ok()?;
        let number = |at| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        (bytes[16..] == checksum(&bytes)).then(|| Usage { bytes: number(0), counted: number(8) })
    }

    /// Adds a change in bytes to the hint. Returns the hint, or `None` if it is not known. If the hint cannot be
    /// written, the next change adds this one.
    pub(crate) async fn add(&self, difference: i64) -> Option<Usage> {
        self.carry(difference);
        match self.change(Change::Add).await {
            Ok(usage) => usage,
            Err(_) => self.read().await,
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
        self.change(Change::Set { before, counted }).await.map(drop)
    }

    /// Makes a change under the lock, which is only held for a few system calls at a time. Where there are no
    /// locks, changes may get lost; the next count corrects that.
    async fn change(&self, change: Change) -> io::Result<Option<Usage>> {
        for _ in 0..LOCK_ATTEMPTS {
            let usage = self.clone();
            let attempt = async move {
                let permit = FilePermit::acquire().await?;
                let lock = match try_lock(&permit, &usage.0.lock).await {
                    Try::Busy => return Ok(None),
                    Try::Unopened(error) => return Err(error),
                    lock @ (Try::Held(_) | Try::Impossible(_)) => lock,
                };
                let changed = usage.apply(change).await;
                let _ = permit.run(move || drop(lock)).await;
                changed.map(Some)
            };
            match Completed::new(attempt).await? {
                Some(changed) => return Ok(changed),
                None => pause(LOCK_PAUSE).await.map_err(io::Error::other)?,
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Makes a change. The lock must be held.
    async fn apply(&self, change: Change) -> io::Result<Option<Usage>> {
        let known = self.read_file().await;
        match change {
            Change::Add => {
                let difference = std::mem::take(&mut *self.carried());
                let Some(Usage { bytes, counted }) = known else { return Ok(None) };
                let usage = Usage { bytes: bytes.saturating_add_signed(difference), counted };
                if let Err(error) = self.write_file(usage).await {
                    self.carry(difference);
                    return Err(error);
                }
                Ok(Some(usage))
            }
            Change::Set { before, counted } => {
                let [now, before] = [known, before].map(|usage| usage.map(|usage| usage.bytes));
                let meanwhile =
                    now.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
                let bytes = counted.saturating_add(meanwhile);
                let usage = Usage { bytes, counted: seconds(SystemTime::now()) };
                self.write_file(usage).await?;
                Ok(Some(usage))
            }
        }
    }

    /// Replaces the contents of the file. The lock must be held.
    async fn write_file(&self, usage: Usage) -> io::Result<()> {
        let mut bytes = [0; FILE_BYTES];
        bytes[..8].copy_from_slice(&usage.bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&usage.counted.to_le_bytes());
        let checksum = checksum(&bytes);
        bytes[16..].copy_from_slice(&checksum);
        // Written in place. A file that was torn is detected as damaged.
        let mut file = files::open_own(&self.0.state, files::keeping).await?;
        files::write(&mut file, &[&bytes]).await?;
        file.set_len(FILE_BYTES as u64).await
    }
}

/// Change of the hint.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Adds the bytes that are carried.
    Add,
    /// Sets the number of bytes that were counted.
    Set { before: Option<Usage>, counted: u64 },
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
        block_on(layout.create()).expect("it can be written");
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
        assert!(!block_on(usage.read()).expect("it was written").is_old(None));
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
        let held = block_on(async {
            let permit = FilePermit::acquire().await.expect("there are threads");
            try_lock(&permit, &usage.0.lock).await
        });
        assert_eq!(block_on(usage.add(ONE)).map(|usage| usage.bytes), Some(COUNTED));
        drop(held);
        assert_eq!(block_on(usage.add(ONE)).map(|usage| usage.bytes), Some(1100));
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
