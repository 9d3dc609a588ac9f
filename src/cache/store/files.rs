//! Files and folders of a store, opened, read and written with `async-fs`.
//!
//! The functions are called in [`on_files`](crate::executor::on_files).

use std::fs::{FileType, Metadata};
use std::io;
use std::path::Path;

use async_fs::{DirBuilder, File, OpenOptions};
use futures::io::{AsyncReadExt, AsyncWriteExt};

use crate::process::file::{self, is_not_regular};

/// Returns options to read a file.
pub(super) fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    options
}

/// Returns options to write a file without truncating it, and to create it if it does not exist.
pub(super) fn keeping() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(false);
    options
}

/// Opens a regular file, and returns it with its metadata. Files that are created are for this user only.
///
/// # Errors
///
/// [Not regular](is_not_regular) for anything but a regular file, also for a link, else the system's error.
pub(super) async fn open(
    path: &Path,
    #[allow(unused_mut, reason = "only Unix has modes")] mut options: OpenOptions,
) -> io::Result<(File, Metadata)> {
    #[cfg(unix)]
    {
        use async_fs::unix::OpenOptionsExt;
        use rustix::fs::OFlags;
        // Opening returns at once, whatever the type of the file.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        options.mode(0o600).custom_flags(flags.bits() as i32);
    }
    let file = match options.open(path).await {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Err(error),
        // Sockets, refused links and pipes without a reader cannot be opened at all.
        Err(error) => {
            let metadata = async_fs::symlink_metadata(path).await;
            let refused = metadata.and_then(|metadata| check(&metadata));
            return Err(refused.err().filter(is_not_regular).unwrap_or(error));
        }
    };
    let metadata = file.metadata().await?;
    check(&metadata)?;
    Ok((file, metadata))
}

fn check(metadata: &Metadata) -> io::Result<()> {
    file::check_type(metadata.file_type(), FileType::is_file)
}

/// Opens a file of the store that is not an entry. Anything else in its place is removed, except a directory that is
/// not empty.
///
/// # Errors
///
/// As for [`open`].
pub(super) async fn open_own(path: &Path, options: fn() -> OpenOptions) -> io::Result<File> {
    let opened = match open(path, options()).await {
        Err(error) if is_not_regular(&error) && make_room(path).await.is_ok() => {
            open(path, options()).await
        }
        opened => opened,
    };
    opened.map(|(file, _)| file)
}

/// Removes the object in the place of a file or folder of the store: a link, a special file, or an empty directory.
async fn make_room(path: &Path) -> io::Result<()> {
    match async_fs::remove_file(path).await {
        Err(_) => async_fs::remove_dir(path).await,
        removed => removed,
    }
}

/// Reads a file that has `length` bytes. The result is longer by one byte if the file has grown.
pub(super) async fn read(file: &mut File, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length as usize + 1)?;
    file.take(length + 1).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

/// Writes bytes to an open file.
pub(super) async fn write(file: &mut File, parts: &[&[u8]]) -> io::Result<()> {
    for part in parts {
        file.write_all(part).await?;
    }
    file.flush().await
}

/// Checks the length of a file that no other process writes: `async-fs` stops writing at a write that the system
/// completes with zero bytes.
///
/// # Errors
///
/// [`WriteZero`](io::ErrorKind::WriteZero) if the file has another length.
pub(super) async fn check_length(file: &File, length: u64) -> io::Result<()> {
    let found = file.metadata().await?.len();
    if found == length { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Returns an open file as one of the standard library, for calls that `async-fs` lacks. Locks hold for both.
#[cfg(unix)]
pub(super) fn to_std(file: &File) -> io::Result<std::fs::File> {
    use std::os::fd::AsFd;
    file.as_fd().try_clone_to_owned().map(Into::into)
}

/// Returns an open file as one of the standard library, for calls that `async-fs` lacks. Locks hold for both.
#[cfg(windows)]
pub(super) fn to_std(file: &File) -> io::Result<std::fs::File> {
    use std::os::windows::io::AsHandle;
    file.as_handle().try_clone_to_owned().map(Into::into)
}

/// Creates a folder of the store. A file or a broken link in its place is removed.
pub(super) async fn make_folder(folder: &Path) -> io::Result<()> {
    let Err(error) = create_private(folder).await else { return Ok(()) };
    let metadata = async_fs::symlink_metadata(folder).await;
    let is_in_the_way = metadata.is_ok_and(|metadata| !metadata.is_dir());
    if !is_in_the_way || async_fs::remove_file(folder).await.is_err() {
        return Err(error);
    }
    create_private(folder).await
}

/// Creates a directory and its parents, for this user only.
async fn create_private(directory: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    async_fs::unix::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory).await
}

/// Returns whether an error means that a path does not exist: a folder or the file is missing, or a part of the
/// path is not a folder.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use futures::executor::block_on;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "text").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("folder/file"), "text").unwrap();

        let (mut file, metadata) = block_on(open(&at("file"), reading())).unwrap();
        assert_eq!(metadata.len(), 4);
        assert_eq!(block_on(read(&mut file, 4)).unwrap(), b"text");
        for (name, kind) in [
            ("link", "a symbolic link"),
            ("zero", "a symbolic link"),
            ("pipe", "a named pipe"),
            ("socket", "a socket"),
            ("folder", "a directory"),
        ] {
            for options in [reading(), keeping()] {
                let error = block_on(open(&at(name), options)).unwrap_err();
                assert!(is_not_regular(&error), "{name}: {error}");
                assert_eq!(error.to_string(), format!("it is {kind}, not a regular file"));
            }
            let opened = block_on(open_own(&at(name), keeping));
            assert_eq!(opened.is_ok(), name != "folder", "{name}: {opened:?}");
        }
        assert_eq!(fs::read(at("file")).unwrap(), b"text", "only the link was removed");
        let missing = block_on(open(&at("none"), reading())).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn files_are_for_this_user_and_read_as_far_as_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut file = block_on(open_own(&path, keeping)).unwrap();
        block_on(write(&mut file, &[b"te", b"xt"])).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.len()), (0o600, 4));
        let (mut file, _) = block_on(open(&path, reading())).unwrap();
        assert_eq!(block_on(read(&mut file, 2)).unwrap(), b"tex", "it has grown");
    }
}
