//! Opens regular files, and nothing else. A named pipe would block the caller until its other end is opened,
//! and a device such as `/dev/zero` never ends.

use std::fmt;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// Open the link's target, for paths given by a user.
    Follow,
    /// Refuse the link, for paths whose files Kiln creates itself.
    Refuse,
}

/// Error for a path that leads to something other than a regular file.
#[derive(Debug)]
struct NotRegular {
    kind: &'static str,
    /// Whether the file blocks its readers or has no end.
    is_endless: bool,
}

impl fmt::Display for NotRegular {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is {}, not a regular file", self.kind)
    }
}

impl std::error::Error for NotRegular {}

/// Returns options to read a file.
pub(crate) fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    options
}

/// Opens a regular file without blocking.
///
/// # Errors
///
/// [Not regular](is_not_regular) for anything but a regular file, else the system's error.
pub(crate) fn open(
    path: &Path,
    options: OpenOptions,
    links: Links,
) -> io::Result<(File, Metadata)> {
    open_if(path, options, links, FileType::is_file)
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
    let (file, metadata) = open_if(path, options, Links::Follow, is_accepted)?;
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

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
///
/// [`FileTooLarge`](io::ErrorKind::FileTooLarge) for a larger file, else as [`open`].
pub(crate) fn read(path: &Path, links: Links, limit: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open(path, reading(), links)?;
    let too_large = |bytes: u64| {
        let message = format!("it has at least {bytes} bytes, and the limit is {limit} bytes");
        io::Error::new(io::ErrorKind::FileTooLarge, message)
    };
    if metadata.len() > limit {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(metadata.len() as usize + 1)?;
    // One byte more than `limit` reveals a file that has grown, or whose metadata does not state its length.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Returns whether an error of this module means that a path leads to something other than a regular file.
pub(crate) fn is_not_regular(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<NotRegular>())
}

/// Returns whether an error of this module means that a path leads to a named pipe or a device, which blocks
/// its readers or has no end.
pub(crate) fn is_endless(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<NotRegular>());
    error.is_some_and(|error| error.is_endless)
}

fn check_type(file_type: FileType, is_accepted: impl Fn(&FileType) -> bool) -> io::Result<()> {
    if is_accepted(&file_type) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, NotRegular::of(file_type)))
}

fn open_if(
    path: &Path,
    options: OpenOptions,
    links: Links,
    is_accepted: impl Fn(&FileType) -> bool,
) -> io::Result<(File, Metadata)> {
    let metadata = || match links {
        Links::Follow => fs::metadata(path),
        Links::Refuse => fs::symlink_metadata(path),
    };
    // Opening a device can have side effects, and a user's path may lead to any device.
    if links == Links::Follow
        && let Ok(metadata) = metadata()
    {
        check_type(metadata.file_type(), &is_accepted)?;
    }
    #[cfg(unix)]
    let options = without_waiting(options, links);
    let file = options.open(path).map_err(|error| {
        // Sockets, refused links and pipes without a reader cannot be opened at all.
        let refused =
            metadata().and_then(|metadata| check_type(metadata.file_type(), &is_accepted));
        refused.err().filter(is_not_regular).unwrap_or(error)
    })?;
    let metadata = file.metadata()?;
    check_type(metadata.file_type(), is_accepted)?;
    Ok((file, metadata))
}

/// Adds flags with which `open` returns at once, whatever the type of the file.
#[cfg(unix)]
fn without_waiting(mut options: OpenOptions, links: Links) -> OpenOptions {
    use rustix::fs::OFlags;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = if links == Links::Refuse { flags | OFlags::NOFOLLOW } else { flags };
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits() as i32);
    options
}

impl NotRegular {
    fn of(file_type: FileType) -> Self {
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileTypeExt;
            let special = [
                (file_type.is_fifo(), "a named pipe"),
                (file_type.is_char_device(), "a character device"),
                (file_type.is_block_device(), "a block device"),
            ];
            if let Some((_, kind)) = special.into_iter().find(|(is_kind, _)| *is_kind) {
                return Self { kind, is_endless: true };
            }
            if file_type.is_socket() {
                return Self { kind: "a socket", is_endless: false };
            }
        }
        let kind = if file_type.is_dir() {
            "a directory"
        } else if file_type.is_symlink() {
            "a symbolic link"
        } else {
            "a special file"
        };
        Self { kind, is_endless: false }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn refusal(error: io::Error) -> String {
        assert!(is_not_regular(&error), "{error}");
        error.to_string()
    }

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "text").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();

        assert_eq!(read(&at("file"), Links::Refuse, 4).unwrap(), b"text");
        assert_eq!(read(&at("link"), Links::Follow, 4).unwrap(), b"text");
        let too_large = read(&at("file"), Links::Follow, 3).unwrap_err();
        assert_eq!(too_large.kind(), io::ErrorKind::FileTooLarge);
        let missing = read(&at("none"), Links::Refuse, 4).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        for (name, links, kind) in [
            ("link", Links::Refuse, "a symbolic link"),
            ("zero", Links::Follow, "a character device"),
            ("zero", Links::Refuse, "a symbolic link"),
            ("pipe", Links::Follow, "a named pipe"),
            ("pipe", Links::Refuse, "a named pipe"),
            ("socket", Links::Refuse, "a socket"),
            (".", Links::Follow, "a directory"),
        ] {
            let expected = format!("it is {kind}, not a regular file");
            assert_eq!(
                refusal(read(&at(name), links, 4).unwrap_err()),
                expected,
                "{name} {links:?}"
            );
            let written = open(&at(name), replacing(), links).map(drop);
            assert_eq!(refusal(written.unwrap_err()), expected, "{name} {links:?}");
        }
    }

    #[test]
    fn files_of_unknown_length_are_read_up_to_the_limit() {
        let path = Path::new("/proc/self/status");
        assert!(!read(path, Links::Follow, 1 << 20).unwrap().is_empty());
        let error = read(path, Links::Follow, 10).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn output_goes_to_files_and_character_devices() {
        let directory = tempfile::tempdir().unwrap();
        let (file, pipe) = (directory.path().join("file"), directory.path().join("pipe"));
        write_output(&file, "long text").unwrap();
        write_output(&file, "text").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"text");
        write_output(Path::new("/dev/null"), "text").unwrap();
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refusal(write_output(&pipe, "text").unwrap_err());
    }
}
