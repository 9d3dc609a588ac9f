//! Writing an entry so that readers see all of it or nothing.

use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(unix)]
use async_fs::File;
use async_fs::OpenOptions;
use futures::io::{AsyncReadExt, AsyncSeekExt};

use super::entry::{self, FOOTER};
use super::files::{self, is_missing};
use super::layout::Layout;
use super::lock;
use crate::executor::{FilePermit, on_files};

/// Suffix of files that are being written.
pub(super) const WRITTEN: &str = "part";

/// Maximum number of times that the folders of an entry are created again, because a collection removes them while they
/// are empty.
const MAX_RENAMES: usize = 5;

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
pub(crate) async fn publish(
    layout: &Layout,
    path: &Path,
    parts: [Vec<u8>; 2],
    durability: Durability,
) -> io::Result<Published> {
    let (layout, path) = (layout.clone(), path.to_owned());
    let publication = on_files(move |permit| async move {
        replace(&permit, &layout, &path, [&parts[0], &parts[1]], durability).await
    });
    publication.await.flatten()
}

async fn replace(
    permit: &FilePermit,
    layout: &Layout,
    path: &Path,
    parts: [&[u8]; 2],
    durability: Durability,
) -> io::Result<Published> {
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
    match write(permit, layout, path, parts, durability).await {
        // The store does not exist yet, or was removed.
        Err(error) if is_missing(&error) => {
            layout.create().await?;
            write(permit, layout, path, parts, durability).await?;
        }
        written => written?,
    }
    Ok(replaced.map_or(Published::New, Published::Replaced))
}

/// Writes a temporary file, and renames it. The file is removed if that fails.
async fn write(
    permit: &FilePermit,
    layout: &Layout,
    path: &Path,
    parts: [&[u8]; 2],
    durability: Durability,
) -> io::Result<()> {
    let temporary = unique(layout, WRITTEN);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    let written = async {
        let (mut file, _) = files::open(&temporary, options).await?;
        // The lock shows the sweep that the writer is alive. Without locks, the sweep decides by age.
        let lock = lock::try_lock_file(permit, files::to_std(&file)?).await;
        files::write(&mut file, &parts).await?;
        let length = parts.iter().map(|part| part.len() as u64).sum();
        files::check_length(&file, length).await?;
        if durability != Durability::None {
            file.sync_data().await?;
        }
        // Where locks are mandatory, the entry could not be read while this file is open and locked. Without
        // the lock, the sweep still spares the file, because it was written just now.
        permit.run(move || drop(lock)).await.map_err(io::Error::other)?;
        drop(file);
        rename(&temporary, path).await
    };
    if let Err(error) = written.await {
        // If the file cannot be removed now, the sweep removes it.
        let _ = async_fs::remove_file(&temporary).await;
        return Err(error);
    }
    if durability == Durability::Strict
        && let Some(parent) = path.parent()
    {
        sync_directory(parent).await?;
    }
    Ok(())
}

/// Renames a file to the place of an entry, whose folders are created if they are missing.
async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let mut renamed = async_fs::rename(from, to).await;
    for _ in 0..MAX_RENAMES {
        match (&renamed, to.parent()) {
            // Most often only the entry's shard is missing. The file need not be written again.
            (Err(error), Some(shard)) if is_missing(error) => {
                if let Some(device) = shard.parent() {
                    files::make_folder(device).await?;
                }
                files::make_folder(shard).await?;
                renamed = async_fs::rename(from, to).await;
            }
            _ => break,
        }
    }
    renamed
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
        Err(_) => async_fs::rename(path, unique(layout, "foreign")).await,
        removed => removed,
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
    let version = async || -> io::Result<Option<u32>> {
        let (mut file, _) = files::open(path, files::reading()).await?;
        file.seek(SeekFrom::End(-(FOOTER as i64))).await?;
        let mut footer = [0; FOOTER];
        file.read_exact(&mut footer).await?;
        Ok(entry::version_of(&footer))
    };
    version().await.is_ok_and(|version| version.is_some_and(|version| version > entry::VERSION))
}

#[cfg(unix)]
async fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory).await?.sync_all().await
}

/// Does nothing: on other systems, directories cannot be opened like files.
#[cfg(not(unix))]
async fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
