//! Totals of a store: hits and misses of all processes, and the time that they saved and spent.
//!
//! A process counts in memory, and adds its counts to the file in the background, at most every few seconds, and
//! when it drains. Counts of a process that ends otherwise are lost. A damaged file begins anew.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use super::layout::Layout;
use super::lock::{Try, try_lock};
use super::usage::seconds;
use super::{Operation, Store, files};
use crate::error::Result;
use crate::executor::{Completed, FilePermit, pause};
use crate::process::threads::no_thread;
use crate::sync::lock;

/// Length of the file in bytes: five numbers, and the first bytes of a digest over them.
const FILE_BYTES: usize = 48;

/// Minimum time between two writes of a process, apart from those when it drains.
const WRITE_EVERY: Duration = Duration::from_secs(3);

/// Number of attempts to take the lock before the counts wait for the next write, and the pause between them.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Use of a store by all processes, since its totals began.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: kiln::store::Store) -> kiln::Result<()> {
/// let totals = store.totals().await?;
/// println!("{} hits saved {:?}", totals.hits, totals.saved);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Number of programs and objects that were loaded instead of compiled, from the disk or a remote cache.
    pub hits: u64,
    /// Number of programs and objects that were compiled, because they were in neither.
    pub misses: u64,
    /// Time that the compiles of the loaded programs took, when they were compiled.
    pub saved: Duration,
    /// Time that compiles took.
    pub spent: Duration,
    /// Time of the first count, in seconds since 1970; 0 if nothing was counted yet.
    pub since: u64,
}

impl Totals {
    fn is_zero(&self) -> bool {
        self.hits == 0 && self.misses == 0
    }

    fn add(&mut self, other: &Self) {
        self.hits = self.hits.saturating_add(other.hits);
        self.misses = self.misses.saturating_add(other.misses);
        self.saved = self.saved.saturating_add(other.saved);
        self.spent = self.spent.saturating_add(other.spent);
    }

    fn encode(&self) -> [u8; FILE_BYTES] {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let numbers = [self.hits, self.misses, micros(self.saved), micros(self.spent), self.since];
        let mut bytes = [0; FILE_BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let checksum = checksum(&bytes);
        bytes[FILE_BYTES - 8..].copy_from_slice(&checksum);
        bytes
    }

    /// Returns the totals in a file, or `None` if it is damaged.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FILE_BYTES] = bytes.try_into().ok()?;
        if bytes[FILE_BYTES - 8..] != checksum(bytes) {
            return None;
        }
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_le_bytes(number)
        };
        Some(Self {
            hits: number(0),
            misses: number(1),
            saved: Duration::from_micros(number(2)),
            spent: Duration::from_micros(number(3)),
            since: number(4),
        })
    }
}

fn checksum(bytes: &[u8; FILE_BYTES]) -> [u8; 8] {
    let mut checksum = [0; 8];
    checksum.copy_from_slice(&blake3::hash(&bytes[..FILE_BYTES - 8]).as_bytes()[..8]);
    checksum
}

/// The file of a store's totals, and the counts of this process that are not in it yet. The value is a handle that
/// is cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct TotalsFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    lock: PathBuf,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    totals: Totals,
    /// Time of the last write.
    written: Option<Instant>,
}

impl TotalsFile {
    pub(super) fn new(layout: &Layout) -> Self {
        let (path, lock) = (layout.version().join("totals"), layout.locks().join("totals"));
        Self(Arc::new(Inner { path, lock, counted: Mutex::default() }))
    }

    fn count(&self, counts: &Totals) {
        lock(&self.0.counted).totals.add(counts);
    }

    /// Takes the counts that are to be written, if there are any. Unless all are wanted, there are none soon after
    /// the last write.
    fn take(&self, wants_all: bool) -> Option<Totals> {
        let mut counted = lock(&self.0.counted);
        let is_early = counted.written.is_some_and(|written| written.elapsed() < WRITE_EVERY);
        if counted.totals.is_zero() || (is_early && !wants_all) {
            return None;
        }
        counted.written = Some(Instant::now());
        Some(std::mem::take(&mut counted.totals))
    }

    /// Reads the totals.
    async fn read(&self) -> io::Result<Totals> {
        let totals = self.clone();
        let read = async move {
            let _permit = FilePermit::acquire().await?;
            Ok(totals.read_file().await)
        };
        Completed::new(read).await
    }

    async fn read_file(&self) -> Totals {
        let read = async || {
            let (mut file, _) = files::open(&self.0.path, files::reading()).await.ok()?;
            let bytes = files::read(&mut file, FILE_BYTES as u64).await.ok()?;
            Totals::decode(&bytes)
        };
        read().await.unwrap_or_default()
    }

    /// Adds counts to the file. Its lock must be held.
    async fn add(&self, counts: &Totals) -> io::Result<()> {
        let mut totals = self.read_file().await;
        if totals.since == 0 {
            totals.since = seconds(SystemTime::now());
        }
        totals.add(counts);
        // Written in place. A file that was torn is detected as damaged.
        let mut file = files::open_own(&self.0.path, files::keeping).await?;
        files::write(&mut file, &[&totals.encode()]).await?;
        file.set_len(FILE_BYTES as u64).await
    }

    /// Writes the counts of this process. Those that cannot be written now are kept for the next time.
    async fn write(&self, wants_all: bool) {
        let Some(counts) = self.take(wants_all) else { return };
        let counts = Unwritten { file: self, counts };
        for _ in 0..LOCK_ATTEMPTS {
            let (totals, added) = (self.clone(), counts.counts);
            let attempt = async move {
                let permit = FilePermit::acquire().await?;
                let lock = match try_lock(&permit, &totals.0.lock).await {
                    Try::Busy => return Ok(false),
                    Try::Unopened(error) => return Err(error),
                    lock @ (Try::Held(_) | Try::Impossible(_)) => lock,
                };
                let added = totals.add(&added).await;
                let _ = permit.run(move || drop(lock)).await;
                added.map(|()| true)
            };
            match Completed::new(attempt).await {
                Ok(false) if pause(LOCK_PAUSE).await.is_ok() => {}
                Ok(true) => return counts.are_written(),
                Ok(false) => return,
                Err(error) => {
                    return tracing::debug!(%error, "the totals of the cache cannot be written");
                }
            }
        }
    }
}

/// Counts on their way to the file. They are counted again if they do not arrive.
struct Unwritten<'a> {
    file: &'a TotalsFile,
    counts: Totals,
}

impl Unwritten<'_> {
    fn are_written(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        self.file.count(&self.counts);
    }
}

impl Store {
    /// Returns the use of the store by all processes: hits, misses, and the time that they saved and spent. A
    /// running process adds its counts every few seconds, and with [`Runtime::drain`](crate::Runtime::drain). A
    /// store whose totals cannot be read, or that was not used yet, has zeros.
    ///
    /// # Errors
    ///
    /// From the future: [`OutOfResources`](crate::ErrorKind::OutOfResources) if the system cannot start a thread.
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: kiln::store::Store) -> kiln::Result<()> {
    /// let totals = store.totals().await?;
    /// let lookups = totals.hits + totals.misses;
    /// if lookups > 0 {
    ///     println!("{} % of the programs were found", totals.hits * 100 / lookups);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn totals(&self) -> Operation<Result<Totals>> {
        let totals = self.0.totals.clone();
        Operation::new(async move {
            totals.read().await.map_err(|error| no_thread().with_source(error))
        })
    }

    /// Counts a program that was loaded. Its compile took `saved`.
    pub(crate) fn record_hit(&self, saved: Duration) {
        self.0.totals.count(&Totals { hits: 1, saved, ..Totals::default() });
    }

    /// Counts a program that was compiled, which took `spent`.
    pub(crate) fn record_miss(&self, spent: Duration) {
        self.0.totals.count(&Totals { misses: 1, spent, ..Totals::default() });
    }

    /// Writes the counts of this process, unless that was done a moment ago.
    pub(crate) async fn write_totals_if_due(&self) {
        self.0.totals.write(false).await;
    }

    /// Writes all counts of this process.
    pub(crate) async fn write_totals(&self) {
        self.0.totals.write(true).await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::executor::block_on;

    use super::*;

    fn totals() -> (tempfile::TempDir, TotalsFile) {
        let directory = tempfile::tempdir().expect("there is disk space");
        let layout = Layout::new(directory.path());
        block_on(layout.create()).expect("it can be written");
        (directory, TotalsFile::new(&layout))
    }

    fn hit() -> Totals {
        Totals { hits: 1, saved: Duration::from_micros(1_500), ..Totals::default() }
    }

    fn miss() -> Totals {
        Totals { misses: 1, spent: Duration::from_micros(2_500), ..Totals::default() }
    }

    #[test]
    fn counts_of_processes_add_up() {
        let (directory, one) = totals();
        let other = TotalsFile::new(&Layout::new(directory.path()));
        for file in [&one, &other, &one] {
            file.count(&hit());
            file.count(&miss());
            block_on(file.write(true));
        }
        let read = block_on(one.read()).expect("there is a thread");
        assert_eq!((read.hits, read.misses), (3, 3));
        assert_eq!((read.saved.as_micros(), read.spent.as_micros()), (4_500, 7_500));
        assert!(read.since > 0);
    }

    #[test]
    fn counts_soon_after_a_write_wait() {
        let (_directory, file) = totals();
        for (wants_all, expected) in [(false, 1), (false, 1), (true, 3), (true, 4)] {
            file.count(&hit());
            block_on(file.write(wants_all));
            assert_eq!(block_on(file.read()).expect("there is a thread").hits, expected);
        }
    }

    #[test]
    fn counts_that_cannot_be_written_are_kept() {
        let (directory, file) = totals();
        file.count(&hit());
        let held = block_on(async {
            let permit = FilePermit::acquire().await.expect("there are threads");
            try_lock(&permit, &file.0.lock).await
        });
        block_on(file.write(true));
        assert_eq!(block_on(file.read()).expect("there is a thread"), Totals::default());
        drop(held);
        block_on(file.write(true));
        assert_eq!(block_on(file.read()).expect("there is a thread").hits, 1);
        fs::remove_dir_all(directory.path()).expect("it is there");
        file.count(&hit());
        block_on(file.write(true));
        block_on(Layout::new(directory.path()).create()).expect("it can be written");
        block_on(file.write(true));
        assert_eq!(block_on(file.read()).expect("there is a thread").hits, 1, "the file is new");
    }

    #[test]
    fn a_damaged_file_begins_anew() {
        let (_directory, file) = totals();
        file.count(&hit());
        block_on(file.write(true));
        let whole = fs::read(&file.0.path).expect("it exists");
        let flipped = [&whole[..1], &[!whole[1]], &whole[2..]].concat();
        for bytes in [&whole[1..], &[], &flipped, &[&whole[..], &[0]].concat()] {
            fs::write(&file.0.path, bytes).expect("it can be written");
            assert_eq!(block_on(file.read()).expect("there is a thread"), Totals::default());
            file.count(&miss());
            block_on(file.write(true));
            let read = block_on(file.read()).expect("there is a thread");
            assert_eq!((read.hits, read.misses), (0, 1));
        }
    }
}
