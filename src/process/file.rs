//! Opens and reads regular files that a user named.

use std::fs::FileType;
use std::io::{self, Read};
use std::path::Path;

use super::regular_file::NotRegular;
pub(crate) use super::regular_file::{
    check_type, is_not_regular, open, open_output, reading, write_output,
};

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
///
/// [`FileTooLarge`](io::ErrorKind::FileTooLarge) for a larger file, else as [`open`].
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open(path, reading())?;
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

/// Returns whether an error of this module means that a path leads to a named pipe or a device, which blocks
/// its readers or has no end.
pub(crate) fn is_endless(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<NotRegular>());
    error.is_some_and(|error| has_no_end(error.file_type))
}

#[cfg(unix)]
fn has_no_end(file_type: FileType) -> bool {
    use std::os::unix::fs::FileTypeExt;
    file_type.is_fifo() || file_type.is_char_device() || file_type.is_block_device()
}

#[cfg(not(unix))]
fn has_no_end(_: FileType) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::process::regular_file::replacing;

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

        assert_eq!(read(&at("file"), 4).unwrap(), b"text");
        assert_eq!(read(&at("link"), 4).unwrap(), b"text");
        let too_large = read(&at("file"), 3).unwrap_err();
        assert_eq!(too_large.kind(), io::ErrorKind::FileTooLarge);
        let missing = read(&at("none"), 4).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        for (name, kind) in [
            ("zero", "a character device"),
            ("pipe", "a named pipe"),
            ("socket", "a socket"),
            (".", "a directory"),
        ] {
            let expected = format!("it is {kind}, not a regular file");
            assert_eq!(refusal(read(&at(name), 4).unwrap_err()), expected, "{name}");
            let written = open(&at(name), replacing()).map(drop);
            assert_eq!(refusal(written.unwrap_err()), expected, "{name}");
        }
    }

    #[test]
    fn files_of_unknown_length_are_read_up_to_the_limit() {
        let path = Path::new("/proc/self/status");
        assert!(!read(path, 1 << 20).unwrap().is_empty());
        let error = read(path, 10).unwrap_err();
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
