//! Opens regular files, and nothing else. A named pipe would block the caller until its other end is opened,
//! and a device such as `/dev/zero` never ends.
//!
//! The command-line tool compiles this file, too: the functions are not part of Kiln's interface.

use std::fmt;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// Error for a path that leads to something other than a regular file.
#[derive(Debug)]
pub(crate) struct NotRegular {
    pub(crate) file_type: FileType,
}

impl fmt::Display for NotRegular {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is {}, not a regular file", kind(self.file_type))
    }
}

impl std::error::Error for NotRegular {}

/// Returns options to read a file.
pub(crate) fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    options
}

/// Opens a regular file without blocking. Follows symbolic links, as for a path given by a user.
///
/// # Errors
///
/// [Not regular](is_not_regular) for anything but a regular file, else the system's error.
pub(crate) fn open(path: &Path, options: OpenOptions) -> io::Result<(File, Metadata)> {
    open_if(path, options, FileType::is_file)
}

/// Opens an output file that a user named: a regular file, or a character device such as `/dev/null`.
///
/// # Errors
///
/// [Not regular](is_not_regular) for anything else, such as a named pipe, else the system's error.
pub(crate) fn open_output(path: &Path, options: OpenOptions) -> io::Result<File> {
    let is_accepted = |file_type: &FileType| {
        #[cfg(unix)]
        if std::os::unix::fs::FileTypeExt::is_char_device(file_type) {
            return true;
        }
        file_type.is_file()
    };
    let (file, metadata) = open_if(path, options, is_accepted)?;
    #[cfg(unix)]
    if !metadata.is_file() {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    }
    #[cfg(not(unix))]
    let _ = metadata;
    Ok(file)
}

/// Replaces the contents of a file that a user named; see [`open_output`].
pub(crate) fn write_output(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    io::Write::write_all(&mut open_output(path, replacing())?, contents.as_ref())
}

/// Returns options to replace the contents of a file, which is created if it does not exist.
pub(crate) fn replacing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options
}

/// Returns whether an error of this module means that a path leads to something other than a regular file.
pub(crate) fn is_not_regular(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<NotRegular>())
}

/// Opens a file of a type that is accepted. Follows symbolic links.
fn open_if(
    path: &Path,
    options: OpenOptions,
    is_accepted: impl Fn(&FileType) -> bool,
) -> io::Result<(File, Metadata)> {
    // Opening a device can have side effects, and a user's path may lead to any device.
    if let Ok(metadata) = fs::metadata(path) {
        check_type(metadata.file_type(), &is_accepted)?;
    }
    #[cfg(unix)]
    let options = without_waiting(options);
    let file = options.open(path).map_err(|error| {
        // Sockets and pipes without a reader cannot be opened at all.
        let refused =
            fs::metadata(path).and_then(|metadata| check_type(metadata.file_type(), &is_accepted));
        refused.err().filter(is_not_regular).unwrap_or(error)
    })?;
    let metadata = file.metadata()?;
    check_type(metadata.file_type(), is_accepted)?;
    Ok((file, metadata))
}

/// Adds flags with which `open` returns at once, whatever the type of the file.
#[cfg(unix)]
fn without_waiting(mut options: OpenOptions) -> OpenOptions {
    use rustix::fs::OFlags;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits() as i32);
    options
}

/// Checks that files of a type may be opened.
///
/// # Errors
///
/// [Not regular](is_not_regular) if they may not.
pub(crate) fn check_type(
    file_type: FileType,
    is_accepted: impl Fn(&FileType) -> bool,
) -> io::Result<()> {
    if is_accepted(&file_type) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, NotRegular { file_type }))
}

/// Returns the name of a type of files that are not regular.
fn kind(file_type: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let special = [
            (file_type.is_fifo(), "a named pipe"),
            (file_type.is_char_device(), "a character device"),
            (file_type.is_block_device(), "a block device"),
            (file_type.is_socket(), "a socket"),
        ];
        if let Some((_, kind)) = special.into_iter().find(|(is_kind, _)| *is_kind) {
            return kind;
        }
    }
    if file_type.is_dir() {
        "a directory"
    } else if file_type.is_symlink() {
        "a symbolic link"
    } else {
        "a special file"
    }
}
