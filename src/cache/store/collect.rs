//! Collection: keeping a store within its limits.
//!
//! The least recently used entry goes first. Its last use is the file's modification time, which hits set now
//! and then. Access times are not read, since many systems do not keep them.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::future::ready;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures::stream::{self, Stream, StreamExt};

use super::files;
use super::layout::{Layout, key_of, subfolders};
use super::lock::{Try, try_lock_file};
use super::publish::{WRITTEN, unique};
use crate::digest::BuildKey;
use crate::executor::{FilePermit, on_files};

/// Maximum difference between the clocks of machines that share a directory.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(5);

/// Number of folders of entries that are read at a time. The other calls on files that may run at a time are left for
/// lookups.
const SHARDS_AT_A_TIME: usize = 4;

/// Minimum age of a temporary file that may be swept. Its writer must also be dead.
const STALE_TEMP_AGE: Duration = Duration::from_secs(60);

/// Minimum age of a temporary file that may be swept, where there are no locks to show whether its writer is
/// dead.
const STALE_AGE_WITHOUT_LOCKS: Duration = Duration::from_secs(24 * 3600);

/// Result of a collection, or of a dry run.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: kiln::store::Store) -> kiln::Result<()> {
/// let collected = store.collect(false).await?;
/// println!("removed {} of {} programs", collected.removed, collected.entries);
/// println!("{} bytes are left", collected.bytes - collected.removed_bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// Number of entries found.
    pub entries: u64,
    /// Size of the entries found, in bytes.
    pub bytes: u64,
    /// Number of entries removed.
    pub removed: u64,
    /// Size of the entries removed, in bytes.
    pub removed_bytes: u64,
    /// Number of files removed that writers left behind when they died.
    pub swept: u64,
    /// Size in bytes of the files that were being written.
    pub(crate) being_written: u64,
}

impl Collected {
    /// Returns the number of bytes that the store still holds, with those that are being written.
    pub(crate) fn bytes_left(&self) -> u64 {
        self.bytes - self.removed_bytes + self.being_written
    }
}

/// Limits that a collection enforces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// Maximum size of the store in bytes. A larger store is collected down to `target`.
    pub(crate) bytes: Option<u64>,
    /// Target size after collection, in bytes.
    pub(crate) target: Option<u64>,
    /// Maximum time since the last use. Entries that were not used for longer are removed.
    pub(crate) max_age: Option<Duration>,
    /// Whether to remove nothing, and only report.
    pub(crate) dry_run: bool,
}

/// File of an entry, as found by a scan.
#[derive(Clone, Debug)]
pub(crate) struct FoundEntry {
    pub(crate) key: BuildKey,
    /// Name of the folder of the entry's device.
    pub(crate) device: String,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) used: SystemTime,
    file: FileId,
}

/// Identity of a file, which distinguishes it from a file that replaced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

#[cfg(unix)]
fn file_id(metadata: &Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    FileId(metadata.dev(), metadata.ino())
}

/// Returns a constant: on other systems, the length and the time must distinguish files.
#[cfg(not(unix))]
fn file_id(_: &Metadata) -> FileId {
    FileId(0, 0)
}

/// Outcome of the removal of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Removed,
    /// The file no longer exists.
    Gone,
    /// The entry was replaced or used since it was found, and stays.
    Changed,
    /// The file cannot be moved.
    Failed,
}

/// Returns every entry of a store, whether or not it would verify. Files with other names are skipped. Without a
/// thread, it returns none.
pub(crate) fn scan(layout: &Layout) -> impl Stream<Item = FoundEntry> + Send + use<> {
    shards(layout).flat_map(|shard| stream::iter(shard.entries))
}

/// Folder of entries, as found by a scan.
struct Shard {
    path: PathBuf,
    entries: Vec<FoundEntry>,
}

/// Returns the folders of a store that hold entries, or can. Reads each when the stream is polled. Without a thread, it
/// returns none.
fn shards(layout: &Layout) -> impl Stream<Item = Shard> + Send + use<> {
    let devices = stream::once(folders_in(layout.version().to_owned(), 16)).flat_map(stream::iter);
    devices
        .flat_map(|(device, folder)| {
            let shards = stream::once(folders_in(folder, 2)).flat_map(stream::iter);
            let reads = shards.map(move |(shard, path)| {
                let device = device.clone();
                on_files(move |_| async move {
                    let entries = entries_in(&path, &shard, &device).await;
                    Shard { path, entries }
                })
            });
            reads.buffered(SHARDS_AT_A_TIME)
        })
        .filter_map(|read| ready(read.inspect_err(report_no_thread).ok()))
}

/// Returns the folders of a folder whose names are `digits` hexadecimal digits.
async fn folders_in(folder: PathBuf, digits: usize) -> Vec<(String, PathBuf)> {
    let read = on_files(move |_| async move { subfolders(&folder, digits).await }).await;
    read.inspect_err(report_no_thread).unwrap_or_default()
}

fn report_no_thread(error: &io::Error) {
    tracing::warn!(%error, "a folder of the store cannot be listed");
}

/// Returns the entries in the folder of a shard.
async fn entries_in(folder: &Path, shard: &str, device: &str) -> Vec<FoundEntry> {
    let Ok(mut files) = async_fs::read_dir(folder).await else { return Vec::new() };
    let mut entries = Vec::new();
    while let Some(file) = files.next().await {
        let Ok(file) = file else { continue };
        let Some(key) = file.file_name().to_str().and_then(|name| key_of(shard, name)) else {
            continue;
        };
        // This is the metadata of the file itself, not of the target of a link.
        let Ok(metadata) = file.metadata().await else { continue };
        if metadata.is_file() {
            entries.push(FoundEntry {
                key,
                device: device.to_owned(),
                path: file.path(),
                bytes: metadata.len(),
                used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                file: file_id(&metadata),
            });
        }
    }
    entries
}

/// Sweeps, counts, and removes entries until the goal is met, and folders without entries.
pub(crate) async fn collect(layout: &Layout, goal: Goal) -> Collected {
    let swept = sweep(layout, SystemTime::now(), goal.dry_run).await;
    // Counted before the entries: a file that is renamed meanwhile may be counted twice, but is not missed.
    let being_written = bytes_being_written(layout).await;
    let shards: Vec<_> = shards(layout).collect().await;
    let folders: Vec<_> = shards.iter().map(|shard| shard.path.clone()).collect();
    let found = shards.into_iter().flat_map(|shard| shard.entries).collect();
    let collected = reduce(layout, found, being_written, goal).await;
    if !goal.dry_run {
        remove_empty(folders).await;
    }
    Collected { swept, ..collected }
}

/// Returns the size of the files that are being written.
async fn bytes_being_written(layout: &Layout) -> u64 {
    let folder = layout.temporary();
    let count = on_files(move |_| async move {
        let Ok(mut files) = async_fs::read_dir(folder).await else { return 0 };
        let mut bytes = 0;
        while let Some(file) = files.next().await {
            let Ok(file) = file else { continue };
            if file.path().extension().is_none_or(|suffix| suffix != WRITTEN) {
                continue;
            }
            let metadata = file.metadata().await;
            bytes +=
                metadata.map_or(0, |metadata| if metadata.is_file() { metadata.len() } else { 0 });
        }
        bytes
    });
    count.await.unwrap_or_default()
}

/// Removes the folders of shards that are empty, and then those of devices. The system keeps the others.
async fn remove_empty(shards: Vec<PathBuf>) {
    let devices: BTreeSet<_> =
        shards.iter().filter_map(|shard| shard.parent()).map(Path::to_owned).collect();
    for folder in shards.into_iter().chain(devices) {
        let _ = on_files(move |_| async_fs::remove_dir(folder)).await;
    }
}

/// Removes entries that a scan found until they meet the goal together with the files that are being written.
async fn reduce(
    layout: &Layout,
    mut found: Vec<FoundEntry>,
    being_written: u64,
    goal: Goal,
) -> Collected {
    let mut collected = Collected {
        entries: found.len() as u64,
        bytes: found.iter().map(|found| found.bytes).sum(),
        being_written,
        ..Collected::default()
    };
    // Taken after the scan. Otherwise, entries that are put meanwhile would seem to be from the future.
    let now = SystemTime::now();
    // An entry that is larger than the whole limit goes first: removing the others would not make room for it.
    let is_too_large = |entry: &FoundEntry| goal.bytes.is_some_and(|most| entry.bytes > most);
    found.sort_unstable_by_key(|entry| {
        (!is_too_large(entry), !is_in_future(entry, now), entry.used)
    });
    let fitting = found.iter().filter(|entry| !is_too_large(entry)).map(|entry| entry.bytes);
    let mut fitting = being_written + fitting.sum::<u64>();
    let too_many = goal.bytes.is_some_and(|most| fitting > most);
    let target = goal.target.filter(|_| too_many);
    for entry in &found {
        let is_too_large = is_too_large(entry);
        let is_over = is_too_large || target.is_some_and(|target| fitting > target);
        let is_old = goal.max_age.is_some_and(|most| {
            is_in_future(entry, now) || now.duration_since(entry.used).is_ok_and(|age| age > most)
        });
        if !is_over && !is_old {
            break;
        }
        let removal =
            if goal.dry_run { Removal::Removed } else { remove(layout, entry.clone()).await };
        match removal {
            Removal::Removed => {
                collected.removed += 1;
                collected.removed_bytes += entry.bytes;
            }
            // A collector on another machine removed it first, where locks do not work between machines.
            Removal::Gone => {
                collected.entries -= 1;
                collected.bytes -= entry.bytes;
            }
            Removal::Changed | Removal::Failed => continue,
        }
        if !is_too_large {
            fitting -= entry.bytes;
        }
    }
    collected
}

/// Returns whether an entry is stamped in the future, by more than the clocks of machines that share a
/// directory differ. Its last use is unknown, so it counts as the oldest.
fn is_in_future(entry: &FoundEntry, now: SystemTime) -> bool {
    entry.used.duration_since(now).is_ok_and(|ahead| ahead >= MAX_CLOCK_DIFFERENCE)
}

/// Returns the time between two times, in either order.
fn distance(a: SystemTime, b: SystemTime) -> Duration {
    a.duration_since(b).unwrap_or_else(|error| error.duration())
}

/// Removes an entry, unless it was replaced or used since it was found. A removal that has begun is completed
/// even if the future is dropped.
pub(crate) async fn remove(layout: &Layout, found: FoundEntry) -> Removal {
    let layout = layout.clone();
    let removal = on_files(move |_| async move { take_out(&layout, &found).await });
    removal.await.unwrap_or(Removal::Failed)
}

/// Moves the file of an entry to a temporary name, checks it, and removes it. Puts it back if it is another
/// file.
async fn take_out(layout: &Layout, found: &FoundEntry) -> Removal {
    let taken = unique(layout, "out");
    let mut renamed = async_fs::rename(&found.path, &taken).await;
    // A copy of the store may lack the directory of temporary files.
    if renamed.is_err() && async_fs::create_dir(layout.temporary()).await.is_ok() {
        renamed = async_fs::rename(&found.path, &taken).await;
    }
    if renamed.is_err() {
        return match async_fs::symlink_metadata(&found.path).await {
            Ok(metadata) if is_found(&metadata, found) => Removal::Failed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Removal::Gone,
            _ => Removal::Changed,
        };
    }
    let metadata = async_fs::symlink_metadata(&taken).await;
    let is_same = metadata.is_ok_and(|metadata| is_found(&metadata, found));
    if !is_same {
        put_back(&taken, &found.path).await;
    }
    // If the file cannot be removed now, a later sweep removes it.
    let _ = async_fs::remove_file(&taken).await;
    if is_same { Removal::Removed } else { Removal::Changed }
}

/// Returns whether a file is the one that was found, unchanged and unused since.
fn is_found(metadata: &Metadata, found: &FoundEntry) -> bool {
    file_id(metadata) == found.file
        && metadata.len() == found.bytes
        && metadata.modified().is_ok_and(|used| used == found.used)
}

/// Restores the name of an entry that was taken out, unless a newer entry has the name.
async fn put_back(taken: &Path, path: &Path) {
    if async_fs::hard_link(taken, path).await.is_err()
        && async_fs::symlink_metadata(path).await.is_err()
    {
        // Some file systems have no hard links.
        let _ = async_fs::rename(taken, path).await;
    }
}

/// Removes files that dead writers left behind, and returns their number.
async fn sweep(layout: &Layout, now: SystemTime, dry_run: bool) -> u64 {
    let folder = layout.temporary();
    let sweep = on_files(move |permit| async move {
        let Ok(mut files) = async_fs::read_dir(folder).await else { return 0 };
        let mut swept = 0;
        while let Some(file) = files.next().await {
            let Ok(path) = file.map(|file| file.path()) else { continue };
            if is_abandoned(&permit, &path, now).await
                && (dry_run || async_fs::remove_file(&path).await.is_ok())
            {
                swept += 1;
            }
        }
        swept
    });
    sweep.await.unwrap_or_default()
}

/// Returns whether the writer of a temporary file is dead.
async fn is_abandoned(permit: &FilePermit, path: &Path, now: SystemTime) -> bool {
    let Ok(metadata) = async_fs::symlink_metadata(path).await else { return false };
    // A stamp in the future comes from a wrong clock. The further ahead it is, the less likely its writer is
    // alive.
    let Ok(age) = metadata.modified().map(|used| distance(used, now)) else { return false };
    if !metadata.is_file() || age <= STALE_TEMP_AGE {
        return false;
    }
    let Ok((file, _)) = files::open(path, files::reading()).await else { return false };
    let Ok(file) = files::to_std(&file) else { return false };
    match try_lock_file(permit, file).await {
        Try::Held(lock) => {
            let _ = permit.run(move || drop(lock)).await;
            true
        }
        Try::Busy => false,
        Try::Unopened(_) | Try::Impossible(_) => age > STALE_AGE_WITHOUT_LOCKS,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use futures::executor::block_on;

    use super::*;

    /// A store with one entry's file, whose contents do not matter here, as a scan found it.
    struct TestStore {
        _directory: tempfile::TempDir,
        layout: Layout,
        found: FoundEntry,
    }

    fn first_of(layout: &Layout) -> FoundEntry {
        let entries: Vec<_> = block_on(scan(layout).collect());
        entries.into_iter().next().expect("it exists")
    }

    impl TestStore {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("there is disk space");
            let layout = Layout::new(directory.path());
            block_on(layout.create()).expect("it can be written");
            let key = BuildKey([7; 32]);
            let path = layout.entry(&crate::cache::store::Address { device: [1; 8], key });
            fs::create_dir_all(path.parent().expect("it has one")).expect("it can be written");
            fs::write(path, "old").expect("it can be written");
            let found = first_of(&layout);
            Self { _directory: directory, layout, found }
        }

        fn remove(&self) -> Removal {
            block_on(remove(&self.layout, self.found.clone()))
        }

        /// Replaces the entry's file by another file, as a put does.
        fn replace(&self) {
            let other = unique(&self.layout, "part");
            fs::write(&other, "new").expect("it can be written");
            let stamped = File::options().write(true).open(&other);
            // Both files have the same time, so that the time does not distinguish them.
            stamped.and_then(|file| file.set_modified(self.found.used)).expect("it exists");
            fs::rename(other, &self.found.path).expect("it exists");
        }

        fn assert_is(&self, contents: &str) {
            assert_eq!(fs::read_to_string(&self.found.path).expect("it stays"), contents);
            self.assert_nothing_is_left_behind();
        }

        fn assert_nothing_is_left_behind(&self) {
            let mut left = fs::read_dir(self.layout.temporary()).expect("it exists");
            assert!(left.next().is_none());
        }
    }

    #[test]
    fn a_found_entry_is_removed_once() {
        let store = TestStore::new();
        assert_eq!(store.remove(), Removal::Removed);
        assert!(!store.found.path.exists());
        assert_eq!(store.remove(), Removal::Gone);
        store.assert_nothing_is_left_behind();
    }

    #[test]
    fn entries_removed_by_another_collector_are_not_counted() {
        let store = TestStore::new();
        let old = SystemTime::now() - Duration::from_secs(10);
        let entry = |number: u8| {
            let path = store.found.path.with_file_name(format!("{number}"));
            fs::write(&path, "old").expect("it can be written");
            let file = File::options().write(true).open(&path).expect("it exists");
            file.set_modified(old + Duration::from_millis(number.into()))
                .expect("it belongs to this test");
            let metadata = file.metadata().expect("it exists");
            let used = metadata.modified().expect("it has a time");
            FoundEntry { path, used, file: file_id(&metadata), ..store.found.clone() }
        };
        let found: Vec<_> = (0..10).map(entry).collect();
        for entry in &found[..4] {
            fs::remove_file(&entry.path).expect("it exists");
        }
        let goal = Goal { bytes: Some(20), target: Some(18), max_age: None, dry_run: false };
        let collected = block_on(reduce(&store.layout, found, 0, goal));
        assert_eq!((collected.removed, collected.bytes_left()), (0, 18));
    }

    #[cfg(unix)]
    #[test]
    fn an_entry_replaced_since_it_was_found_stays() {
        let store = TestStore::new();
        store.replace();
        assert_eq!(store.remove(), Removal::Changed);
        store.assert_is("new");
    }

    #[test]
    fn an_entry_used_since_it_was_found_stays() {
        let store = TestStore::new();
        let used = store.found.used + Duration::from_nanos(1000);
        let file = File::options().write(true).open(&store.found.path).expect("it exists");
        file.set_modified(used).expect("it belongs to this test");
        drop(file);
        assert_eq!(store.remove(), Removal::Changed);
        store.assert_is("old");
        assert_eq!(first_of(&store.layout).used, used);
    }

    /// Here the file that was taken out is the older one.
    #[test]
    fn an_entry_stored_while_an_older_one_is_checked_stays() {
        let store = TestStore::new();
        let taken = unique(&store.layout, "out");
        fs::rename(&store.found.path, &taken).expect("it exists");
        store.replace();
        block_on(put_back(&taken, &store.found.path));
        fs::remove_file(&taken).expect("it still exists");
        store.assert_is("new");
    }

    #[test]
    fn an_entry_taken_out_for_a_check_is_put_back() {
        let store = TestStore::new();
        let taken = unique(&store.layout, "out");
        fs::rename(&store.found.path, &taken).expect("it exists");
        block_on(put_back(&taken, &store.found.path));
        let _ = fs::remove_file(&taken);
        store.assert_is("old");
    }

    #[test]
    fn only_entries_slightly_in_the_future_are_kept() {
        let max_age = Some(Duration::from_secs(3600));
        let old = Goal { bytes: None, target: None, max_age, dry_run: false };
        for (ahead, removed) in [(MAX_CLOCK_DIFFERENCE / 2, 0), (MAX_CLOCK_DIFFERENCE * 100, 1)] {
            let store = TestStore::new();
            let file = File::options().write(true).open(&store.found.path).expect("it exists");
            file.set_modified(SystemTime::now() + ahead).expect("it belongs to this test");
            let collected = block_on(collect(&store.layout, old));
            assert_eq!(collected.removed, removed, "{ahead:?} ahead");
        }
    }

    #[test]
    fn only_old_temporary_files_of_dead_writers_are_removed() {
        let store = TestStore::new();
        let now = SystemTime::now();
        let part = |age: Duration| {
            let path = unique(&store.layout, "part");
            let file = File::create_new(&path).expect("it can be written");
            file.set_modified(now - age).expect("it belongs to this test");
            (path, file)
        };
        let (dead, _) = part(STALE_TEMP_AGE * 2);
        let (living, file) = part(STALE_TEMP_AGE * 2);
        file.try_lock().expect("the lock is free");
        let (fresh, _) = part(STALE_TEMP_AGE / 2);
        assert_eq!(block_on(sweep(&store.layout, now, true)), 1);
        assert!(dead.exists(), "a dry run removes nothing");
        assert_eq!(block_on(sweep(&store.layout, now, false)), 1);
        assert_eq!([dead, living, fresh].map(|path| path.exists()), [false, true, true]);
    }
}
