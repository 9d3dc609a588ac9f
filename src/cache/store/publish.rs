//! Writing an entry so that readers see all of it or nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use super::entry::{self, FOOTER};
use super::layout::{Layout, is_missing, make_folder};
use crate::process::file::{self, Links};

/// How sure it is that a put survives a crash of the whole machine. Whatever it is, a crash leaves
/// an entry whole or absent: one that was torn does not verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// The system writes it when it likes: the fastest, and enough where a rebuild is cheap.
    None,
    /// The entry's data is on the disk before its name is.
    #[default]
    Normal,
    /// And its name is on the disk before the put has ended.
    Strict,
}

/// What a put did to the store's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    New,
    /// In place of a file of so many bytes.
    Replaced(u64),
    /// A newer version's entry is there, and stays.
    Left,
}

impl Published {
    /// By how much a file of so many bytes changes what the store holds; nothing, if it was not
    /// written.
    pub(crate) fn difference(self, bytes: u64) -> Option<i64> {
        match self {
            Self::New => Some(bytes as i64),
            Self::Replaced(replaced) => Some(bytes as i64 - replaced as i64),
            Self::Left => None,
        }
    }
}

/// Writes the parts of an entry, and gives it its name.
pub(crate) fn publish(
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
        Ok(metadata) if metadata.is_file() && is_newer(path) => return Ok(Published::Left),
        Ok(metadata) => Some(metadata.len()),
        Err(_) => None,
    };
    match write(layout, path, parts, durability) {
        // The store is not there yet, or not any more.
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

/// A file that nobody knows yet. Removed if it gets no other name.
struct Temporary {
    path: PathBuf,
    /// Locked, which tells the sweep that its writer lives.
    file: File,
    renamed: bool,
}

impl Temporary {
    fn create(layout: &Layout) -> io::Result<Self> {
        let path = unique(layout, "part");
        let mut options = OpenOptions::new();
        options.create_new(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path)?;
        // Without locks, the sweep goes by age.
        let _ = file.try_lock();
        Ok(Self { path, file, renamed: false })
    }

    fn rename_to(mut self, path: &Path) -> io::Result<()> {
        // Where locks are not advisory, nobody could read the entry while this is open. The sweep
        // spares it all the same: it was written just now.
        let _ = self.file.unlock();
        let named = fs::rename(&self.path, path).or_else(|error| match path.parent() {
            // Most often only the entry's shard is missing: that takes no second file.
            Some(shard) if is_missing(&error) => {
                if let Some(device) = shard.parent() {
                    make_folder(device)?;
                }
                make_folder(shard)?;
                fs::rename(&self.path, path)
            }
            _ => Err(error),
        });
        named?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // What cannot be removed now, the sweep removes.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A path for a file that is on its way in or out, which no other process or thread uses.
pub(super) fn unique(layout: &Layout, suffix: &str) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    // Process numbers repeat, between machines that share a directory above all.
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let name = format!("{}-{number}-{nanoseconds:x}.{suffix}", std::process::id());
    layout.temporary().join(name)
}

/// A directory where an entry belongs is nobody's entry, but it may be somebody's directory.
fn set_aside(layout: &Layout, path: &Path) -> io::Result<()> {
    fs::remove_dir(path).or_else(|_| fs::rename(path, unique(layout, "foreign")))
}

/// Removes the links in the place of an entry's folders: entries behind them are not collected.
fn remove_links(path: &Path) {
    for folder in path.ancestors().skip(1).take(2) {
        if fs::symlink_metadata(folder).is_ok_and(|there| there.is_symlink()) {
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

/// Elsewhere directories cannot be opened like files.
#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
