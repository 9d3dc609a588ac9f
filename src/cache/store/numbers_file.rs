//! Small files of numbers beside the entries, which processes change under a lock.
//!
//! A file is written in place. Its last bytes are those of a digest, so that a file that was torn is detected as
//! damaged.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::files;
use super::layout::Layout;
use super::lock::{Try, try_lock};
use crate::executor::{on_files, pause};

/// Number of attempts to take the lock, and the pause between two of them.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Length of a number and of the digest, in bytes.
const WORD: usize = 8;

/// A file of `N` numbers in little-endian order. The value is a handle that is cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct NumbersFile<const N: usize>(Arc<Paths>);

#[derive(Debug)]
struct Paths {
    file: PathBuf,
    lock: PathBuf,
}

impl<const N: usize> NumbersFile<N> {
    /// Returns the file of this name, whose lock has the same name in the folder of locks.
    pub(super) fn new(layout: &Layout, name: &str) -> Self {
        let (file, lock) = (layout.version().join(name), layout.locks().join(name));
        Self(Arc::new(Paths { file, lock }))
    }

    /// Reads the numbers. Returns `None` if there is no file, or if it is damaged.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start a thread.
    pub(super) async fn read(&self) -> io::Result<Option<[u64; N]>> {
        let file = self.clone();
        on_files(move |_| async move { file.read_now().await }).await
    }

    async fn read_now(&self) -> Option<[u64; N]> {
        let (mut file, _) = files::open(&self.0.file, files::reading()).await.ok()?;
        let bytes = files::read(&mut file, Self::length() as u64).await.ok()?;
        if bytes.len() != Self::length() || bytes[N * WORD..] != digest(&bytes[..N * WORD]) {
            return None;
        }
        Some(std::array::from_fn(|number| {
            let mut word = [0; WORD];
            word.copy_from_slice(&bytes[number * WORD..(number + 1) * WORD]);
            u64::from_le_bytes(word)
        }))
    }

    /// Changes the numbers under the lock, which is only held for a few system calls at a time. `change` gets the
    /// numbers, or `None` if they are not known, and returns the new ones, or `None` to write nothing. Where there
    /// are no locks, changes may get lost.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if another process holds the lock for long, and the system's.
    pub(super) async fn change<F>(&self, change: F) -> io::Result<Option<[u64; N]>>
    where
        F: FnOnce(Option<[u64; N]>) -> Option<[u64; N]> + Clone + Send + 'static,
    {
        for _ in 0..LOCK_ATTEMPTS {
            let (file, change) = (self.clone(), change.clone());
            let attempt = on_files(move |permit| async move {
                let lock = match try_lock(&permit, &file.0.lock).await {
                    Try::Busy => return Ok(None),
                    Try::Unopened(error) => return Err(error),
                    lock @ (Try::Held(_) | Try::Impossible(_)) => lock,
                };
                let changed = file.change_now(change).await;
                let _ = permit.run(move || drop(lock)).await;
                changed.map(Some)
            });
            match attempt.await.flatten()? {
                Some(changed) => return Ok(changed),
                None => pause(LOCK_PAUSE).await.map_err(io::Error::other)?,
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Changes the numbers. The lock must be held.
    async fn change_now(
        &self,
        change: impl FnOnce(Option<[u64; N]>) -> Option<[u64; N]>,
    ) -> io::Result<Option<[u64; N]>> {
        let Some(numbers) = change(self.read_now().await) else { return Ok(None) };
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        bytes.extend(digest(&bytes));
        let mut file = files::open_own(&self.0.file, files::keeping).await?;
        files::write(&mut file, &[&bytes]).await?;
        file.set_len(Self::length() as u64).await?;
        Ok(Some(numbers))
    }

    const fn length() -> usize {
        (N + 1) * WORD
    }

    #[cfg(test)]
    pub(super) fn paths(&self) -> [&std::path::Path; 2] {
        [&self.0.file, &self.0.lock]
    }
}

fn digest(bytes: &[u8]) -> [u8; WORD] {
    let mut digest = [0; WORD];
    digest.copy_from_slice(&blake3::hash(bytes).as_bytes()[..WORD]);
    digest
}
