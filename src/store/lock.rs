//! Locks between processes, on files. The system frees a lock with its holder, however that ends.
//!
//! They are only ever tried, never waited for: a thread that blocks on a lock cannot be called back.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use super::layout::open_own;

/// A lock that is held until this is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing the file frees the lock")] File);

/// How trying went.
#[derive(Debug)]
pub(crate) enum Try {
    Held(Lock),
    /// Somebody else holds it.
    Busy,
    /// Its file cannot be opened, or made.
    Unopened(io::Error),
    /// There are no locks here: the file system has none.
    Impossible(io::Error),
}

/// Tries to lock the file at `path`, which is made if it is not there.
pub(crate) fn try_lock(path: &Path) -> Try {
    match open_own(path, keeping) {
        Ok(file) => try_lock_file(file),
        Err(error) => Try::Unopened(error),
    }
}

/// Tries to lock an open file.
pub(crate) fn try_lock_file(file: File) -> Try {
    match file.try_lock() {
        Ok(()) => Try::Held(Lock(file)),
        Err(TryLockError::WouldBlock) => Try::Busy,
        Err(TryLockError::Error(error)) => Try::Impossible(error),
    }
}

/// Options to open a file as it is, which is made if it does not exist.
pub(super) fn keeping() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(false);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_it_until_it_is_dropped() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("lock");
        let Try::Held(held) = try_lock(&path) else { panic!("nobody else holds it") };
        assert!(matches!(try_lock(&path), Try::Busy), "also within one process");
        drop(held);
        assert!(matches!(try_lock(&path), Try::Held(_)));
    }

    #[test]
    fn a_file_that_cannot_be_made_is_not_taken_for_a_system_without_locks() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("missing").join("lock");
        assert!(matches!(try_lock(&path), Try::Unopened(_)));
    }
}
