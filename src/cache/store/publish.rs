//! Writing an entry so that readers see all of it or nothing.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use super::entry::{self, FOOTER};
use super::layout::{Layout, is_missing, make_folder};
use crate::executor::{ensure_thread, unblock, unblock_detached};
use crate::process;
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
/// entry is whole or absent, and the temporary file is removed in the background.
pub(crate) async fn publish(
    layout: &Layout,
    path: &Path,
    parts: [Vec<u8>; 2],
    durability: Durability,
) -> io::Result<Published> {
    ensure_thread()?;
    remove_links(path).await;
    let replaced = match async_fs::symlink_metadata(path).await {
        Ok(metadata) if metadata.is_dir() => {
            set_aside(layout, path).await?;
            None
        }
        Ok(metadata) if metadata.is_file() && is_newer(path).await => {
            return Ok(Published::KeptNewer);
        }
        Ok(metadata) => Some(metadata.len()),
        Err(_) => None,
    };
    let parts = Arc::new(parts);
    match write(layout, path, &parts, durability).await {
        // The store does not exist yet, or was removed.
        Err(error) if is_missing(&error) => {
            let create = layout.clone();
            unblock(move || create.create()).await??;
            write(layout, path, &parts, durability).await?;
        }
        written => written?,
    }
    Ok(replaced.map_or(Published::New, Published::Replaced))
}

async fn write(
    layout: &Layout,
    path: &Path,
    parts: &Arc<[Vec<u8>; 2]>,
    durability: Durability,
) -> io::Result<()> {
    let (temporary, parts) = (unique(layout, "part"), parts.clone());
    // One call: a file of `async-fs` takes a write of no bytes for the end of the data, and loses the rest.
    let written = unblock(move || Temporary::write(temporary, &*parts, durability)).await??;
    written.rename_to(path).await?;
    if durability == Durability::Strict
        && let Some(parent) = path.parent()
    {
        sync_directory(parent).await?;
    }
    Ok(())
}

/// A complete file under a temporary name.
struct Temporary {
    /// Path of the file, until it is renamed or removed.
    path: Option<PathBuf>,
}

impl Temporary {
    /// Creates the file. Blocks on it.
    fn write(path: PathBuf, parts: &[Vec<u8>], durability: Durability) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create_new(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&path)?;
        // The lock shows the sweep that the writer is alive. Without locks, the sweep decides by age.
        let _ = file.try_lock();
        let mut fill = || {
            parts.iter().try_for_each(|part| file.write_all(part))?;
            if durability == Durability::None { Ok(()) } else { file.sync_data() }
        };
        let filled = fill();
        // Where locks are mandatory, the entry could not be read while this file is locked. Without the lock,
        // the sweep still spares the file, because it was written just now.
        let _ = file.unlock();
        drop(file);
        if filled.is_err() {
            remove(&path);
        }
        filled.map(|()| Self { path: Some(path) })
    }

    async fn rename_to(mut self, path: &Path) -> io::Result<()> {
        let Some(temporary) = self.path.as_deref() else { return Ok(()) };
        let renamed = match async_fs::rename(temporary, path).await {
            // Most often only the entry's shard is missing. The file need not be written again.
            Err(error) if is_missing(&error) => match make_folders_of(path).await {
                Ok(()) => async_fs::rename(temporary, path).await,
                Err(error) => Err(error),
            },
            renamed => renamed,
        };
        if let Some(temporary) = self.path.take()
            && renamed.is_err()
        {
            unblock(move || remove(&temporary)).await?;
        }
        renamed
    }
}

impl Drop for Temporary {
    /// Removes the file of a put whose future was dropped, without blocking. A forked child leaves it to its
    /// parent.
    fn drop(&mut self) {
        if let Some(path) = self.path.take()
            && !process::is_forked()
        {
            unblock_detached(move || remove(&path));
        }
    }
}

/// Removes a temporary file. If it cannot be removed now, the sweep removes it.
fn remove(temporary: &Path) {
    let _ = fs::remove_file(temporary);
}

/// Creates the folders of the shard and of the device of an entry.
async fn make_folders_of(path: &Path) -> io::Result<()> {
    let folders: Vec<_> = path.ancestors().skip(1).take(2).map(Path::to_owned).collect();
    unblock(move || folders.iter().rev().try_for_each(|folder| make_folder(folder))).await?
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
async fn set_aside(layout: &Layout, path: &Path) -> io::Result<()> {
    match async_fs::remove_dir(path).await {
        Ok(()) => Ok(()),
        Err(_) => async_fs::rename(path, unique(layout, "foreign")).await,
    }
}

/// Removes links in the place of an entry's folders, because entries behind links are not collected.
async fn remove_links(path: &Path) {
    for folder in path.ancestors().skip(1).take(2) {
        let metadata = async_fs::symlink_metadata(folder).await;
        if metadata.is_ok_and(|metadata| metadata.is_symlink()) {
            // A link that cannot be removed is followed.
            let _ = async_fs::remove_file(folder).await;
        }
    }
}

async fn is_newer(path: &Path) -> bool {
    let path = path.to_owned();
    let version = move || -> io::Result<Option<u32>> {
        let (mut file, _) = file::open(&path, file::reading(), Links::Refuse)?;
        file.seek(SeekFrom::End(-(FOOTER as i64)))?;
        let mut footer = [0; FOOTER];
        file.read_exact(&mut footer)?;
        Ok(entry::version_of(&footer))
    };
    let version = unblock(version).await.flatten();
    version.is_ok_and(|version| version.is_some_and(|version| version > entry::VERSION))
}

#[cfg(unix)]
async fn sync_directory(directory: &Path) -> io::Result<()> {
    let directory = directory.to_owned();
    unblock(move || fs::File::open(directory)?.sync_all()).await?
}

/// Does nothing: on other systems, directories cannot be opened like files.
#[cfg(not(unix))]
async fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
