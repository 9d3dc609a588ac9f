//! Writing an entry so that readers see all of it or nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use super::entry::{self, FOOTER};
use super::layout::{Layout, is_missing, make_folder};
use crate::executor::unblock;
use crate::process::file::{self, Links};

/// Level of protection of a put against a crash of the whole machine. At every level, a crash leaves an entry
/// whole or absent: a torn entry does not verify.
///
/// # Examples
///
/// ```
/// use kiln::CacheConfig;
/// use kiln::store::Durability;
///
/// // Every program takes minutes to compile, and the machine may lose power.
/// let cache = CacheConfig::at("/var/cache/renderer").durability(Durability::Strict);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// The system decides when the entry is written to the disk. This is the fastest level, and enough where a
    /// rebuild is cheap.
    None,
    /// The entry's data is on the disk before its name is.
    #[default]
    Normal,
    /// In addition, the entry's name is on the disk before the put ends.
    Strict,
}

/// Effect of a put on the store's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    New,
    /// The entry replaced a file of this many bytes.
    Replaced(u64),
    /// The existing entry is of a newer version, and stays.
    KeptNewer,
}

impl Published {
    /// Returns the change of the store's size by a file of `bytes` bytes, or `None` if the file was not
    /// written.
    pub(crate) fn difference(self, bytes: u64) -> Option<i64> {
        match self {
            Self::New => Some(bytes as i64),
            Self::Replaced(replaced) => Some(bytes as i64 - replaced as i64),
            Self::KeptNewer => None,
        }
    }
}

/// Writes the parts of an entry to a temporary file, and renames it to `path`. If the future is dropped, the
/// entry is whole or absent.
///
/// All calls to the system are made on one thread, one after another. `async-fs` would switch threads twice for
/// each of them, and stops writing a file at a write that the system completes with zero bytes.
pub(crate) async fn publish(
    layout: &Layout,
    path: &Path,
    parts: [Vec<u8>; 2],
    durability: Durability,
) -> io::Result<Published> {
    let (layout, path) = (layout.clone(), path.to_owned());
    unblock(move || replace(&layout, &path, [&parts[0], &parts[1]], durability)).await.flatten()
}

/// Does the work of [`publish`]. Blocks on the files.
fn replace(
    layout: &Layout,
    path: &Path,
    parts: [&[u8]; 2],
    durability: Durability,
) -> io::Result<Published> {
    remove_links(path);
    let replaced = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            set_aside(layout, path)?;
            None
        }
        Ok(metadata) if metadata.is_file() && is_newer(path) => return Ok(Published::KeptNewer),
        Ok(metadata) => Some(metadata.len()),
        Err(_) => None,
    };
    match write(layout, path, parts, durability) {
        // The store does not exist yet, or was removed.
        Err(error) if is_missing(&error) => {
            layout.create()?;
            write(layout, path, parts, durability)?;
        }
        written => written?,
    }
    Ok(replaced.map_or(Published::New, Published::Replaced))
}

fn write(
    layout: &Layout,
    path: &Path,
    parts: [&[u8]; 2],
    durability: Durability,
) -> io::Result<()> {
    let temporary = Temporary::create(layout)?;
    let mut file = &temporary.file;
    for part in parts {
        file.write_all(part)?;
    }
    if durability != Durability::None {
        file.sync_data()?;
    }
    temporary.rename_to(path)?;
    if durability == Durability::Strict
        && let Some(parent) = path.parent()
    {
        sync_directory(parent)?;
    }
    Ok(())
}

/// A file under a temporary name. Removed on drop, unless it was renamed.
struct Temporary {
    path: PathBuf,
    /// Open file. It is locked, which shows the sweep that its writer is alive.
    file: File,
    is_renamed: bool,
}

impl Temporary {
    fn create(layout: &Layout) -> io::Result<Self> {
        let path = unique(layout, "part");
        let mut options = OpenOptions::new();
        options.create_new(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path)?;
        // Without locks, the sweep decides by age.
        let _ = file.try_lock();
        Ok(Self { path, file, is_renamed: false })
    }

    fn rename_to(mut self, path: &Path) -> io::Result<()> {
        // Where locks are mandatory, the entry could not be read while this file is open and locked. Without
        // the lock, the sweep still spares the file, because it was written just now.
        let _ = self.file.unlock();
        let renamed = fs::rename(&self.path, path).or_else(|error| match path.parent() {
            // Most often only the entry's shard is missing. The file need not be written again.
            Some(shard) if is_missing(&error) => {
                if let Some(device) = shard.parent() {
                    make_folder(device)?;
                }
                make_folder(shard)?;
                fs::rename(&self.path, path)
            }
            _ => Err(error),
        });
        renamed?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            // If the file cannot be removed now, the sweep removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns a path for a file that is being added or removed. No other process or thread uses the path.
pub(super) fn unique(layout: &Layout, suffix: &str) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    // Process ids repeat, above all between machines that share a directory.
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let name = format!("{}-{number}-{nanoseconds:x}.{suffix}", std::process::id());
    layout.temporary().join(name)
}

/// Removes a directory from an entry's place. If it is not empty, it is moved to `tmp`, since its contents may
/// belong to a user.
fn set_aside(layout: &Layout, path: &Path) -> io::Result<()> {
    fs::remove_dir(path).or_else(|_| fs::rename(path, unique(layout, "foreign")))
}

/// Removes links in the place of an entry's folders, because entries behind links are not collected.
fn remove_links(path: &Path) {
    for folder in path.ancestors().skip(1).take(2) {
        if fs::symlink_metadata(folder).is_ok_and(|metadata| metadata.is_symlink()) {
            // A link that cannot be removed is followed.
            let _ = fs::remove_file(folder);
        }
    }
}

fn is_newer(path: &Path) -> bool {
    let version = || -> io::Result<Option<u32>> {
        let (mut file, _) = file::open(path, file::reading(), Links::Refuse)?;
        file.seek(SeekFrom::End(-(FOOTER as i64)))?;
        let mut footer = [0; FOOTER];
        file.read_exact(&mut footer)?;
        Ok(entry::version_of(&footer))
    };
    version().is_ok_and(|version| version.is_some_and(|version| version > entry::VERSION))
}

#[cfg(unix)]
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Does nothing: on other systems, directories cannot be opened like files.
#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
