//! Totals of a store: hits and misses of all processes, and the time that they saved and spent.
//!
//! A process counts in memory, and adds its counts to the file in the background, at most every few seconds, and
//! when it drains. Counts of a process that ends otherwise are lost. A damaged file begins anew.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use async_lock::Mutex as AsyncMutex;

use super::layout::Layout;
use super::numbers_file::NumbersFile;
use super::usage::seconds;
use crate::sync::lock;

/// Minimum time between two writes of a process, apart from those when it drains.
const WRITE_EVERY: Duration = Duration::from_secs(3);

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

    fn numbers(&self) -> [u64; 5] {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        [self.hits, self.misses, micros(self.saved), micros(self.spent), self.since]
    }

    fn of([hits, misses, saved, spent, since]: [u64; 5]) -> Self {
        let [saved, spent] = [saved, spent].map(Duration::from_micros);
        Self { hits, misses, saved, spent, since }
    }
}

/// The file of a store's totals, and the counts of this process that are not in it yet. The value is a handle that
/// is cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct TotalsFile {
    file: NumbersFile<5>,
    counted: Arc<Mutex<Counted>>,
    /// Locked while this process writes, so that a disk that hangs holds up one call on files.
    writing: Arc<AsyncMutex<()>>,
}

#[derive(Debug, Default)]
struct Counted {
    totals: Totals,
    /// Time of the last write.
    written: Option<Instant>,
}

impl TotalsFile {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            file: NumbersFile::new(layout, "totals"),
            counted: Arc::default(),
            writing: Arc::default(),
        }
    }

    pub(super) fn count(&self, counts: &Totals) {
        lock(&self.counted).totals.add(counts);
    }

    /// Takes the counts that are to be written, if there are any. Unless all are wanted, there are none soon after
    /// the last write.
    fn take(&self, wants_all: bool) -> Option<Totals> {
        let mut counted = lock(&self.counted);
        let is_early = counted.written.is_some_and(|written| written.elapsed() < WRITE_EVERY);
        if counted.totals.is_zero() || (is_early && !wants_all) {
            return None;
        }
        counted.written = Some(Instant::now());
        Some(std::mem::take(&mut counted.totals))
    }

    /// Reads the totals.
    pub(super) async fn read(&self) -> io::Result<Totals> {
        Ok(self.file.read().await?.map_or_else(Totals::default, Totals::of))
    }

    /// Writes the counts of this process, and waits for a write that has begun if all are wanted. Counts that cannot be
    /// written now are kept for the next time.
    pub(super) async fn write(&self, wants_all: bool) {
        let writing = match wants_all {
            true => Some(self.writing.lock().await),
            false => self.writing.try_lock(),
        };
        let Some(_writing) = writing else { return };
        let Some(counts) = self.take(wants_all) else { return };
        let unwritten = Unwritten { file: self, counts };
        let add = move |known: Option<[u64; 5]>| {
            let mut totals = known.map_or_else(Totals::default, Totals::of);
            if totals.since == 0 {
                totals.since = seconds(SystemTime::now());
            }
            totals.add(&counts);
            Some(totals.numbers())
        };
        match self.file.change(add).await {
            Ok(_) => unwritten.are_written(),
            Err(error) => tracing::debug!(%error, "the totals of the cache cannot be written"),
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

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::executor::block_on;

    use super::super::lock::tests::hold;
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
        let [_, lock] = file.file.paths();
        let held = hold(lock);
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
        let [path, _] = file.file.paths();
        let whole = fs::read(path).expect("it exists");
        let flipped = [&whole[..1], &[!whole[1]], &whole[2..]].concat();
        for bytes in [&whole[1..], &[], &flipped, &[&whole[..], &[0]].concat()] {
            fs::write(path, bytes).expect("it can be written");
            assert_eq!(block_on(file.read()).expect("there is a thread"), Totals::default());
            file.count(&miss());
            block_on(file.write(true));
            let read = block_on(file.read()).expect("there is a thread");
            assert_eq!((read.hits, read.misses), (0, 1));
        }
    }
}
