//! Collection: keeping a store within its limits.
//!
//! The entry that was not used for longest goes first. Its last use is the file's modification time,
//! which hits set now and then; the time of the last access is not consulted, since many systems do
//! not keep it.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::hint::Size;
use super::layout::{Layout, key_of, subfolders};
use super::lock::{Try, try_lock_file};
use super::publish::unique;
use crate::digest::BuildKey;

/// An entry used so recently stays, whatever the limit: those who wait for its build come for it.
pub(crate) const YOUNG: Duration = Duration::from_secs(5);

/// A file that is being written is swept only after so long, and if its writer is dead.
const ABANDONED: Duration = Duration::from_secs(60);

/// The same, where there are no locks to tell whether its writer is dead.
const SURELY_ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// What a collection has done, or would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// Entries found.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Entries removed.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Files removed that a writer left behind when it died.
    pub swept: u64,
}

impl Collected {
    /// What is left.
    pub(crate) fn size(&self) -> Size {
        Size { bytes: self.bytes - self.removed_bytes, entries: self.entries - self.removed }
    }
}

/// How far to collect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// More bytes than these are too many.
    pub(crate) bytes: Option<u64>,
    /// Where there are too many, so many are left.
    pub(crate) aim: Option<u64>,
    /// Remove entries that were not used for so long.
    pub(crate) max_age: Option<Duration>,
    /// Remove nothing, only tell.
    pub(crate) dry_run: bool,
}

/// An entry's file, as a scan finds it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) key: BuildKey,
    /// The name of its device's folder.
    pub(crate) device: String,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) used: SystemTime,
    file: FileId,
}

/// Tells a file from one that replaced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

#[cfg(unix)]
fn file_id(metadata: &Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    FileId(metadata.dev(), metadata.ino())
}

/// Elsewhere length and time must do.
#[cfg(not(unix))]
fn file_id(_: &Metadata) -> FileId {
    FileId(0, 0)
}

/// Every entry of a store, whether or not it would verify. Files of other names are passed over.
pub(crate) fn scan(layout: &Layout) -> impl Iterator<Item = Found> {
    layout.devices().flat_map(|(device, folder)| {
        subfolders(&folder, 2).flat_map(move |(shard, folder)| {
            let device = device.clone();
            let files = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
            files.filter_map(move |file| {
                let key = key_of(&shard, file.file_name().to_str()?)?;
                // Of the file itself, not of what a link leads to.
                let metadata = file.metadata().ok()?;
                metadata.is_file().then(|| Found {
                    key,
                    device: device.clone(),
                    path: file.path(),
                    bytes: metadata.len(),
                    used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    file: file_id(&metadata),
                })
            })
        })
    })
}

/// Counts, sweeps, and removes entries until the goal is met.
pub(crate) fn collect(layout: &Layout, goal: Goal) -> Collected {
    let now = SystemTime::now();
    let mut collected =
        Collected { swept: sweep(layout, now, goal.dry_run), ..Collected::default() };
    let mut found: Vec<_> = scan(layout).collect();
    collected.entries = found.len() as u64;
    collected.bytes = found.iter().map(|found| found.bytes).sum();
    found.sort_unstable_by_key(|found| found.used);
    let too_many = goal.bytes.is_some_and(|most| collected.bytes > most);
    let aim = goal.aim.filter(|_| too_many);
    for entry in &found {
        // A time in the future is a clock's mistake, which must not keep an entry for ever.
        let unused = now.duration_since(entry.used).ok();
        let over = aim.is_some_and(|aim| collected.size().bytes > aim);
        let old = goal.max_age.is_some_and(|most| unused.is_some_and(|unused| unused > most));
        let young = unused.is_some_and(|unused| unused < YOUNG);
        if !over && !old {
            break;
        }
        if young {
            continue;
        }
        if goal.dry_run || remove(layout, entry) {
            collected.removed += 1;
            collected.removed_bytes += entry.bytes;
        }
    }
    collected
}

/// Removes an entry, unless it was replaced or used since it was found: it is taken out first,
/// looked at, and put back if it is another.
pub(crate) fn remove(layout: &Layout, found: &Found) -> bool {
    let taken = unique(layout, "out");
    if fs::rename(&found.path, &taken).is_err() {
        return false;
    }
    let same = fs::symlink_metadata(&taken).is_ok_and(|metadata| {
        file_id(&metadata) == found.file
            && metadata.len() == found.bytes
            && metadata.modified().is_ok_and(|used| used == found.used)
    });
    if !same {
        put_back(&taken, &found.path);
    }
    // What cannot be removed now, the sweep removes.
    let _ = fs::remove_file(&taken);
    same
}

/// Gives an entry that was taken out its name again, unless there is a still newer one.
fn put_back(taken: &Path, path: &Path) {
    if fs::hard_link(taken, path).is_err() && !path.exists() {
        // Not every file system has links.
        let _ = fs::rename(taken, path);
    }
}

/// Removes what dead writers left behind.
fn sweep(layout: &Layout, now: SystemTime, dry_run: bool) -> u64 {
    let files = fs::read_dir(layout.temporary()).into_iter().flatten().filter_map(Result::ok);
    let abandoned = files.filter(|file| {
        let Ok(metadata) = file.metadata() else { return false };
        let age = metadata.modified().ok().and_then(|used| now.duration_since(used).ok());
        metadata.is_file() && age.is_some_and(|age| is_abandoned(&file.path(), age))
    });
    abandoned.filter(|file| dry_run || fs::remove_file(file.path()).is_ok()).count() as u64
}

fn is_abandoned(path: &Path, age: Duration) -> bool {
    let dead = || -> io::Result<bool> {
        Ok(match try_lock_file(File::open(path)?) {
            Try::Held(_) => true,
            Try::Busy => false,
            Try::Unopened(_) | Try::Impossible(_) => age > SURELY_ABANDONED,
        })
    };
    age > ABANDONED && dead().unwrap_or(false)
}
