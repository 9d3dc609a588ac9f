//! Layout of a store's directory, and the checks that the directory can be trusted.
//!
//! ```text
//! <root>/v1/CACHEDIR.TAG                     excludes the folder from backups
//! <root>/v1/<device>/<2 hex>/<62 hex>.kiln   entries
//! <root>/v1/tmp/                             files that are being written, or were taken out
//! <root>/v1/lock/build-<000..3ff>            build locks, never removed
//! <root>/v1/lock/gc, state, totals           locks of the collector, of the size hint and of the totals
//! <root>/v1/state                            the size hint
//! <root>/v1/totals                           hits and misses of all processes
//! ```

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use async_fs::OpenOptions;
use futures::stream::StreamExt;

use super::files;
use crate::digest::BuildKey;
use crate::error::{Error, Result};
use crate::process::file::is_not_regular;

/// Suffix of an entry's file name.
pub(crate) const SUFFIX: &str = ".kiln";

/// Number of build locks. Unrelated builds seldom share a lock, and all locks together stay a small directory.
const BUILD_LOCKS: u16 = 1024;

/// Contents of `CACHEDIR.TAG`. The first line is required by <https://bford.info/cachedir/>.
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55
# Programs that Kiln has built. They are built again if they are deleted.
";

/// Address of an entry: the folder of its device, and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    /// First bytes of a digest over the device's part of the key.
    pub(crate) device: [u8; 8],
    pub(crate) key: BuildKey,
}

impl Address {
    /// Returns the name of the entry below the folder of the store's version. It is the same on every system.
    pub(crate) fn name(&self) -> String {
        entry_name(&format!("{:016x}", u64::from_be_bytes(self.device)), &self.key)
    }

    /// Returns the address of the entry with this name.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let address = || {
            let (device, rest) = name.split_once('/')?;
            let (shard, file) = rest.split_once('/')?;
            let number = u64::from_str_radix(device, 16).ok()?;
            let address = Self { device: number.to_be_bytes(), key: key_of(shard, file)? };
            // Rejects other spellings of the name: digits that are written or divided in another way.
            (address.name() == name).then_some(address)
        };
        address().ok_or_else(|| Error::invalid(format!("{name:?} is not the name of an entry")))
    }
}

/// Returns the name of the entry of `key` in the folder of `device`.
pub(crate) fn entry_name(device: &str, key: &BuildKey) -> String {
    let key = key.to_string();
    let (shard, name) = key.split_at(2);
    format!("{device}/{shard}/{name}{SUFFIX}")
}

/// Paths of a store.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    version: PathBuf,
}

impl Layout {
    /// Returns the layout below `root`, which need not exist.
    pub(crate) fn new(root: &Path) -> Self {
        Self { version: root.join("v1") }
    }

    /// Creates the directories that every store has.
    pub(crate) async fn create(&self) -> io::Result<()> {
        files::make_folder(&self.temporary()).await?;
        self.write_tag().await?;
        // Created last: if this folder is missing, everything is created again.
        files::make_folder(&self.locks()).await
    }

    /// Writes the tag for backups, unless it is there and complete.
    async fn write_tag(&self) -> io::Result<()> {
        let tag = self.version.join("CACHEDIR.TAG");
        let is_whole =
            |metadata: &Metadata| metadata.is_file() && metadata.len() == TAG.len() as u64;
        if async_fs::symlink_metadata(&tag).await.is_ok_and(|metadata| is_whole(&metadata)) {
            return Ok(());
        }
        match files::open_own(&tag, replacing).await {
            Ok(mut file) => files::write(&mut file, &[TAG.as_bytes()]).await,
            // A directory that is not empty is in the way. The store works without its tag.
            Err(error) if is_not_regular(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn version(&self) -> &Path {
        &self.version
    }

    pub(crate) fn entry(&self, address: &Address) -> PathBuf {
        let mut path = self.version.clone();
        path.extend(address.name().split('/'));
        path
    }

    pub(crate) fn temporary(&self) -> PathBuf {
        self.version.join("tmp")
    }

    pub(crate) fn locks(&self) -> PathBuf {
        self.version.join("lock")
    }

    pub(crate) fn build_lock(&self, key: &BuildKey) -> PathBuf {
        let [.., high, low] = *key.as_bytes();
        let stripe = u16::from_be_bytes([high, low]) % BUILD_LOCKS;
        self.locks().join(format!("build-{stripe:03x}"))
    }
}

/// Returns the folders of `parent` whose names are `digits` hexadecimal digits. Items that cannot be read are
/// skipped: they are not the store's.
pub(crate) async fn subfolders(parent: &Path, digits: usize) -> Vec<(String, PathBuf)> {
    let Ok(mut listed) = async_fs::read_dir(parent).await else { return Vec::new() };
    let mut folders = Vec::new();
    while let Some(entry) = listed.next().await {
        let Ok(entry) = entry else { continue };
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.len() != digits || !is_hexadecimal(&name) {
            continue;
        }
        // A link could lead to the same entries twice, or to those of another store.
        if entry.file_type().await.is_ok_and(|file_type| file_type.is_dir()) {
            folders.push((name, entry.path()));
        }
    }
    folders
}

/// Returns options to replace the contents of a file, which is created if it does not exist.
fn replacing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options
}

/// Returns the key of the entry in this shard and file, or `None` if the names are not those of an entry.
pub(crate) fn key_of(shard: &str, file: &str) -> Option<BuildKey> {
    let name = file.strip_suffix(SUFFIX)?;
    let digits = format!("{shard}{name}");
    (is_hexadecimal(&digits)).then(|| digits.parse().ok())?
}

/// Returns whether a text has only hexadecimal digits, in the lower case that this module writes.
fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
/// Returns the reason why a directory cannot be trusted with programs that will be run: others could put their
/// own programs there. The directory is the `root` of the store, or is inside it. Returns `None` for a
/// directory that can be trusted, or that does not exist yet.
#[cfg(unix)]
pub(crate) async fn distrust_reason(directory: &Path, root: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;

    const STICKY: u32 = 0o1000;
    let metadata = async_fs::metadata(directory).await.ok()?;
    if !metadata.is_dir() {
        return Some("it is not a directory".to_owned());
    }
    let reason = distrust_reason_of(&metadata)?;
    let user = rustix::process::geteuid().as_raw();
    // Other users need such a directory as it is: `/tmp` for example.
    let is_shared = metadata.uid() != user || metadata.mode() & STICKY != 0;
    Some(if is_shared {
        let own = root.join(format!("kiln-{user}"));
        format!("{reason}; give a directory of your own, such as `{}`", own.display())
    } else {
        format!("{reason}; run `chmod go-w` on it")
    })
}

/// Returns the reason why the file or directory with this metadata cannot be trusted.
#[cfg(unix)]
pub(crate) fn distrust_reason_of(metadata: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;

    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Some(format!(
            "it belongs to user {}, but this process runs as user {user}; Kiln does not run \
             programs that other users can replace",
            metadata.uid()
        ));
    }
    let mode = metadata.mode() & 0o7777;
    (mode & 0o022 != 0).then(|| {
        format!(
            "other users can write to it (mode {mode:04o}), and replace programs that will be run"
        )
    })
}

/// Only checks that the path is a directory. On other systems, the system's defaults decide who can write to
/// it.
#[cfg(not(unix))]
pub(crate) async fn distrust_reason(directory: &Path, _: &Path) -> Option<String> {
    let metadata = async_fs::metadata(directory).await.ok()?;
    (!metadata.is_dir()).then(|| "it is not a directory".to_owned())
}

#[cfg(not(unix))]
pub(crate) fn distrust_reason_of(_: &Metadata) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_their_own_names_only() {
        let key = BuildKey([0xAB; 32]);
        let path = Layout::new(Path::new("/root")).entry(&Address { device: [1; 8], key });
        let text = format!("/root/v1/0101010101010101/ab/{}.kiln", "ab".repeat(31));
        assert_eq!(path, Path::new(&text));
        let name = path.file_name().and_then(|name| name.to_str()).expect("it has a name");
        assert_eq!(key_of("ab", name), Some(key));
        for (shard, name) in [
            ("ab", "README"),
            ("ab", ".kiln"),
            ("a", name),
            ("AB", name),
            ("ab", &name.to_uppercase()),
            ("ab", &format!("{name}~")),
        ] {
            assert_eq!(key_of(shard, name), None, "{shard}/{name}");
        }
    }
}
