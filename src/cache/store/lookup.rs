//! Lookups of entries, and build locks. Each has a time limit: a disk that does not answer costs a recompile.

use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::Ordering::SeqCst;

use async_lock::SemaphoreGuardArc;

use super::entry::{Entry, Unusable, decode_for};
use super::handle::{Inner, MAX_METADATA_BYTES, MAX_PAYLOAD_BYTES, Store};
use super::health::Access;
use super::holder::Holder;
use super::late_calls::did_not_answer;
use super::layout::{self, Address};
use super::lock::{self, BackgroundLock, Try};
use super::{asked, files};
use crate::digest::BuildKey;
use crate::executor::{FilePermit, on_files_in_task, run_in_background, wait_up_to};
use crate::process::file::is_not_regular;

/// Size in bytes of an entry that is verified without a thread of its own.
const QUICKLY_VERIFIED: usize = 64 << 10;

/// Result of a lookup.
#[derive(Debug)]
pub(crate) enum Lookup {
    Hit(Entry),
    Absent,
    /// A file exists, but is not a usable entry of this key.
    Unusable(Unusable),
    Unreadable(io::Error),
}

impl Store {
    /// Looks up an entry and verifies it. Takes no lock.
    pub(crate) async fn find(&self, address: &Address) -> Lookup {
        let (store, address) = (self.clone(), *address);
        let look_up = move |permit| async move { store.look_up(&permit, &address).await };
        let found = self.in_time(look_up).await.unwrap_or_else(|error| self.unreadable(error));
        self.note_use(&address, &found);
        found
    }

    /// Looks up an entry. If it is absent, tries to take its build lock, and then looks again: another process
    /// may have stored it before this one took the lock. If the entry is not usable, also tries to take the
    /// lock. Returns the result of trying unless there is a hit.
    pub(crate) async fn get_or_lock(&self, address: &Address) -> (Lookup, Option<Try>) {
        let (store, at) = (self.clone(), *address);
        let look_up = move |permit| async move { store.look_up_or_lock(&permit, &at).await };
        let found = match self.in_time(look_up).await {
            Ok(found) => found,
            // The lock is not tried: the disk would not answer either.
            Err(error) => {
                let unopened = io::Error::from(error.kind());
                (self.unreadable(error), Some(Try::Unopened(unopened)))
            }
        };
        self.note_use(address, &found.0);
        found
    }

    /// Tries to become the one process that builds `key`, by taking its build lock.
    pub(crate) async fn try_build_lock(&self, key: &BuildKey) -> Try {
        let (store, key) = (self.clone(), *key);
        let attempt = move |permit| async move { store.take_build_lock(&permit, &key).await };
        self.in_time(attempt).await.unwrap_or_else(Try::Unopened)
    }

    /// Returns the process that holds the build lock of `key`, if its file says so, and whether it has been stopped.
    pub(crate) async fn build_lock_holder(&self, key: &BuildKey) -> Option<(Holder, bool)> {
        let path = self.0.layout.build_lock(key);
        let read = move |permit: FilePermit| async move {
            let holder = Holder::read(&path).await?;
            let is_stopped = permit.run(move || holder.is_stopped()).await.unwrap_or_default();
            Some((holder, is_stopped))
        };
        self.in_time(read).await.ok().flatten()
    }

    /// Returns whether a process of this machine has asked the remote cache for a program lately and not found it.
    /// `false` if the file of its build lock does not say so.
    pub(crate) async fn was_asked(&self, key: &BuildKey) -> bool {
        let (path, key) = (self.0.layout.build_lock(key), *key);
        let read = move |_| async move { asked::is_marked(&path, &key).await };
        self.in_time(read).await.unwrap_or(false)
    }

    /// Frees the build lock of a program, and leaves word that the remote cache was asked for the program.
    pub(crate) async fn release_asked(&self, lock: BackgroundLock, key: &BuildKey) {
        lock.release_asked(self.0.layout.build_lock(key), *key).await;
    }

    /// Makes calls on the disk with a permit. They go on in the background if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut) if the calls take too long, and the system's if there are no threads.
    async fn in_time<T, F>(
        &self,
        calls: impl FnOnce(FilePermit) -> F + Send + 'static,
    ) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        let room = self.room_to_look_up().await?;
        let work = on_files_in_task(move |permit| async move {
            let _room = room;
            calls(permit).await
        });
        let late = &self.0.late;
        let patience = late.patience();
        match wait_up_to(patience, work).await {
            Ok(output) => output,
            Err(work) => {
                let late = late.begin();
                run_in_background(async move {
                    // The result, such as a lock, is dropped.
                    drop(work.await);
                    drop(late);
                });
                Err(did_not_answer(patience))
            }
        }
    }

    /// Waits until another lookup may begin: as long as those before it take, if the disk answers them in time.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut) if the disk does not.
    async fn room_to_look_up(&self) -> io::Result<SemaphoreGuardArc> {
        let late = &self.0.late;
        if let Some(room) = self.0.lookups.try_acquire_arc() {
            return Ok(room);
        }
        let mut room = pin!(self.0.lookups.acquire_arc());
        loop {
            let patience = late.patience();
            match wait_up_to(patience, room.as_mut()).await {
                Ok(room) => return Ok(room),
                Err(_) if late.any() => return Err(did_not_answer(patience)),
                Err(_) => {}
            }
        }
    }

    /// Does the work of [`get_or_lock`](Self::get_or_lock).
    async fn look_up_or_lock(
        &self,
        permit: &FilePermit,
        address: &Address,
    ) -> (Lookup, Option<Try>) {
        match self.look_up(permit, address).await {
            Lookup::Hit(entry) => (Lookup::Hit(entry), None),
            Lookup::Absent => match self.take_build_lock(permit, &address.key).await {
                Try::Held(lock) => match self.look_up(permit, address).await {
                    Lookup::Hit(entry) => (Lookup::Hit(entry), None),
                    missed => (missed, Some(Try::Held(lock))),
                },
                attempt => (Lookup::Absent, Some(attempt)),
            },
            missed => (missed, Some(self.take_build_lock(permit, &address.key).await)),
        }
    }

    /// Reads and verifies an entry.
    async fn look_up(&self, permit: &FilePermit, address: &Address) -> Lookup {
        match self.read_entry(permit, &self.0.layout.entry(address), address.key).await {
            Ok(Ok(entry)) => {
                self.0.health.succeeded(Access::Read, &self.0.root);
                Lookup::Hit(entry)
            }
            Ok(Err(unusable)) => Lookup::Unusable(unusable),
            Err(error) if files::is_missing(&error) => Lookup::Absent,
            Err(error) => self.unreadable(error),
        }
    }

    fn unreadable(&self, error: io::Error) -> Lookup {
        self.report_failure(Access::Read, &error);
        Lookup::Unreadable(error)
    }

    /// Reads and verifies the file of an entry. The outer error is an I/O error.
    pub(super) async fn read_entry(
        &self,
        permit: &FilePermit,
        path: &Path,
        key: BuildKey,
    ) -> io::Result<Result<Entry, Unusable>> {
        let (mut file, metadata) = match files::open(path, files::reading()).await {
            Err(error) if is_not_regular(&error) => return Ok(Err(Unusable::Foreign)),
            opened => opened?,
        };
        // Any user may have created the root after the store was opened.
        if let Some(reason) = layout::distrust_reason_of(&metadata) {
            return Ok(Err(Unusable::Distrusted(reason)));
        }
        // Another application, with other limits, may have written the file.
        if metadata.len() > self.max_entry_bytes().max(MAX_PAYLOAD_BYTES + MAX_METADATA_BYTES) {
            return Ok(Err(Unusable::TooLarge(metadata.len())));
        }
        // A file that grew meanwhile does not verify.
        let bytes = files::read(&mut file, metadata.len()).await?;
        if bytes.len() <= QUICKLY_VERIFIED {
            return Ok(decode_for(&key, bytes));
        }
        permit.run(move || decode_for(&key, bytes)).await.map_err(io::Error::other)
    }

    /// Tries to take a build lock.
    async fn take_build_lock(&self, permit: &FilePermit, key: &BuildKey) -> Try {
        let Inner { layout, warned, .. } = &*self.0;
        let path = layout.build_lock(key);
        let attempt = match lock::try_lock(permit, &path).await {
            Try::Unopened(error) if files::is_missing(&error) => match layout.create().await {
                Ok(()) => lock::try_lock(permit, &path).await,
                Err(error) => Try::Unopened(error),
            },
            attempt => attempt,
        };
        match &attempt {
            Try::Held(lock) => lock.write_holder().await,
            Try::Unopened(error) => self.report_failure(Access::Write, error),
            Try::Impossible(error) if !warned.locks.swap(true, SeqCst) => tracing::warn!(
                %error,
                root = %self.0.root.display(),
                "files in the cache directory cannot be locked; processes that start together may \
                 each build the same program"
            ),
            _ => {}
        }
        attempt
    }
}
