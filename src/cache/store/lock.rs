//! Locks between processes, on files. The system frees a lock when its holder ends, however that happens.
//!
//! Locks are only ever tried, never waited for: a thread that blocks on a lock cannot be cancelled.
//!
//! A lock belongs to the open file, which a forked child shares. So a lock is freed by a call, not by closing
//! the file, and only in the process that took it. A forked child drops its share at once, so that the lock
//! does not outlive a parent that crashes.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::holder::Holder;
use super::{asked, files};
use crate::digest::BuildKey;
use crate::executor::{Completed, FilePermit, on_files, run_in_background, run_quickly};
use crate::process;

/// A lock that is held until this value is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    /// Process that took the lock.
    holder: u32,
    #[cfg(target_os = "linux")]
    _unshared: unshared::Unshared,
}

impl Lock {
    fn new(file: File) -> Self {
        Self {
            #[cfg(target_os = "linux")]
            _unshared: unshared::Unshared::new(&file),
            holder: process::id(),
            file,
        }
    }

    /// Writes into the locked file which process holds it.
    pub(super) async fn write_holder(&self) {
        match self.file.try_clone() {
            Ok(file) => Holder::write(&mut file.into()).await,
            Err(error) => tracing::debug!(%error, "a lock does not say which process holds it"),
        }
    }

    /// Marks in the locked file, at `path`, that the remote cache was asked for a program.
    async fn mark_asked(&self, path: &Path, key: &BuildKey) {
        match self.file.try_clone() {
            Ok(file) => asked::mark(&mut file.into(), path, key).await,
            Err(error) => {
                tracing::debug!(%error, "a lock does not say that the remote cache was asked");
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.holder == process::id()
            && let Err(error) = self.file.unlock()
        {
            tracing::debug!(%error, "a lock is freed only with its file");
        }
    }
}

/// A lock, or none where locks are not in use, that is freed without blocking the thread that drops it.
#[derive(Debug)]
pub(crate) struct BackgroundLock(Option<Lock>);

impl BackgroundLock {
    pub(crate) fn new(lock: Option<Lock>) -> Self {
        Self(lock)
    }

    /// Frees the lock. Others find it free when this has completed.
    pub(crate) async fn release(mut self) {
        if let Some(lock) = self.0.take() {
            Completed::new(run_quickly(move || drop(lock))).await;
        }
    }

    /// Like [`release`](Self::release), and first marks in the file of the lock, at `path`, that the remote cache was
    /// asked for a program.
    pub(super) async fn release_asked(mut self, path: PathBuf, key: BuildKey) {
        let Some(lock) = self.0.take() else { return };
        let release = on_files(move |permit| async move {
            lock.mark_asked(&path, &key).await;
            permit.run(move || drop(lock)).await.map_err(io::Error::other)
        });
        if let Err(error) = release.await.flatten() {
            tracing::debug!(%error, "a lock is freed only with its file");
        }
    }
}

impl Drop for BackgroundLock {
    fn drop(&mut self) {
        // In a forked child there is no thread, and freeing the lock makes no system call.
        match self.0.take() {
            Some(lock) if !process::is_forked() => {
                run_in_background(run_quickly(move || drop(lock)));
            }
            lock => drop(lock),
        }
    }
}

/// Result of trying to take a lock.
#[derive(Debug)]
pub(crate) enum Try {
    Held(Lock),
    /// The lock is held elsewhere.
    Busy,
    /// The file cannot be opened or created.
    Unopened(io::Error),
    /// The file system has no locks.
    Impossible(io::Error),
}

/// Tries to lock the file at `path`, which is created if it does not exist.
pub(crate) async fn try_lock(permit: &FilePermit, path: &Path) -> Try {
    match files::open_own(path, files::keeping).await.and_then(|file| files::to_std(&file)) {
        Ok(file) => try_lock_file(permit, file).await,
        Err(error) => Try::Unopened(error),
    }
}

/// Tries to lock an open file. `async-fs` has no locks, so this is a call of the standard library, on a thread.
pub(super) async fn try_lock_file(permit: &FilePermit, file: File) -> Try {
    let attempt = move || match file.try_lock() {
        Ok(()) => Try::Held(Lock::new(file)),
        Err(TryLockError::WouldBlock) => Try::Busy,
        Err(TryLockError::Error(error)) => Try::Impossible(error),
    };
    let attempt = permit.run(attempt).await;
    attempt.unwrap_or_else(|error| Try::Unopened(io::Error::other(error)))
}

/// Locked files that forked children do not share.
#[cfg(target_os = "linux")]
mod unshared {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::Once;
    use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

    /// Descriptors of locked files; free slots hold [`NONE`]. Locks beyond this number are shared with
    /// children.
    static LOCKED: [AtomicI32; 64] = [const { AtomicI32::new(NONE) }; 64];

    const NONE: i32 = -1;

    #[derive(Debug)]
    pub(super) struct Unshared(Option<&'static AtomicI32>);

    impl Unshared {
        pub(super) fn new(file: &File) -> Self {
            static REGISTERED: Once = Once::new();
            REGISTERED.call_once(|| {
                // SAFETY: the handler only calls functions that a forked child may call.
                let refused = unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
                if refused != 0 {
                    tracing::debug!("cannot register a fork handler; forked children share locks");
                }
            });
            let descriptor = file.as_raw_fd();
            let take =
                |slot: &&AtomicI32| slot.compare_exchange(NONE, descriptor, SeqCst, SeqCst).is_ok();
            Self(LOCKED.iter().find(take))
        }
    }

    impl Drop for Unshared {
        fn drop(&mut self) {
            if let Some(slot) = self.0 {
                slot.store(NONE, SeqCst);
            }
        }
    }

    /// Runs in a forked child: makes each descriptor refer to `/dev/null` instead. The owner of a descriptor,
    /// which may be a thread that the child does not have, still closes it.
    unsafe extern "C" fn close_in_child() {
        // SAFETY: the name ends in NUL.
        let other = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        for slot in &LOCKED {
            let descriptor = slot.swap(NONE, SeqCst);
            if descriptor != NONE && other >= 0 {
                // SAFETY: both are descriptors of this process.
                unsafe { libc::dup3(other, descriptor, libc::O_CLOEXEC) };
            }
        }
        // SAFETY: the descriptor is used nowhere else. If it could not be opened, `close` fails without effect.
        unsafe { libc::close(other) };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use futures::executor::block_on;

    use super::*;

    /// Tries to lock a file.
    pub(in crate::cache::store) fn hold(path: &Path) -> Try {
        let path = path.to_owned();
        let attempt = on_files(move |permit| async move { try_lock(&permit, &path).await });
        block_on(attempt).expect("there are threads")
    }

    /// A forked child that only sleeps, and is killed when this value is dropped.
    #[cfg(target_os = "linux")]
    struct Sleeper(libc::pid_t);

    #[cfg(target_os = "linux")]
    impl Sleeper {
        fn fork() -> Self {
            // SAFETY: the child only makes system calls.
            match unsafe { libc::fork() } {
                0 => loop {
                    // SAFETY: the function only takes a number.
                    unsafe { libc::sleep(60) };
                },
                child => {
                    assert!(child > 0, "a process can be started");
                    Self(child)
                }
            }
        }
    }

    #[cfg(target_os = "linux")]
    impl Drop for Sleeper {
        fn drop(&mut self) {
            // SAFETY: the child has not been waited for.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
            // SAFETY: as above; the status is not needed.
            unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_running_forked_child_does_not_prolong_a_lock() {
        let directory = tempfile::tempdir().expect("there is disk space");
        let path = directory.path().join("lock");
        let Try::Held(held) = hold(&path) else { panic!("the lock is free") };
        let _sleeper = Sleeper::fork();
        assert!(matches!(hold(&path), Try::Busy), "the child does not release the lock");
        drop(held);
        assert!(matches!(hold(&path), Try::Held(_)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_forked_child_closes_the_lock_file() {
        let directory = tempfile::tempdir().expect("there is disk space");
        let path = directory.path().join("lock");
        let Try::Held(held) = hold(&path) else { panic!("the lock is free") };
        let child = Sleeper::fork();
        let eventually = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let shares = || {
            let files = std::fs::read_dir(format!("/proc/{}/fd", child.0)).expect("it lives");
            let files = files.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
            files.into_iter().any(|file| file == path)
        };
        // The child drops its share when it first runs.
        while shares() {
            assert!(std::time::Instant::now() < eventually, "the child still has the file");
            std::thread::yield_now();
        }
        drop(held);
    }

    #[test]
    fn a_lock_is_exclusive_until_it_is_dropped() {
        let directory = tempfile::tempdir().expect("there is disk space");
        let path = directory.path().join("lock");
        let Try::Held(held) = hold(&path) else { panic!("the lock is free") };
        assert!(matches!(hold(&path), Try::Busy), "a lock excludes other threads, too");
        drop(held);
        assert!(matches!(hold(&path), Try::Held(_)));
    }

    #[test]
    fn failing_to_create_the_file_does_not_count_as_missing_lock_support() {
        let directory = tempfile::tempdir().expect("there is disk space");
        let path = directory.path().join("missing").join("lock");
        assert!(matches!(hold(&path), Try::Unopened(_)));
    }
}
