//! The disk cache below the graph.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_lock::{Semaphore, SemaphoreGuard};
use futures::future::{Either, select};

use crate::cache::store::{Address, Entry, Pending, Storage, Store};
use crate::counters::Counters;
use crate::executor;

/// Number of entries whose bytes are in memory at the same time, while they are loaded, and while they are
/// written.
const ENTRIES_IN_MEMORY: usize = 32;

/// Number of programs for which the remote cache is asked at the same time. Each holds its build lock, which is an open
/// file.
const QUESTIONS: usize = 32;

/// Time after which a program is not stored if the disk has not written the ones before it. Builds that want to store
/// theirs keep others from compiling meanwhile, so that entries do not fill the memory.
const SAVE_PATIENCE: Duration = Duration::from_secs(2);

/// The store of a graph.
pub(crate) struct Disk {
    store: Store,
    /// Maximum time to wait for another process's build.
    pub(super) max_wait: Duration,
    pub(super) counters: Arc<Counters>,
    loads: Semaphore,
    saves: Semaphore,
    questions: Arc<Semaphore>,
    /// Whether the disk has taken too long for the entries in memory. No further one waits until it has written one.
    is_slow: AtomicBool,
}

/// Reason why the disk has no program.
#[derive(Clone)]
pub(crate) enum Miss {
    Absent,
    /// The stored entry is not used, for this reason.
    Unusable(String),
}

impl Disk {
    pub(crate) fn new(store: Store, max_wait: Duration, counters: Arc<Counters>) -> Self {
        let [loads, saves] = [ENTRIES_IN_MEMORY; 2].map(Semaphore::new);
        let questions = Arc::new(Semaphore::new(QUESTIONS));
        Self { store, max_wait, counters, loads, saves, questions, is_slow: AtomicBool::new(false) }
    }

    /// Returns the permits to ask the remote cache.
    pub(super) fn questions(&self) -> &Arc<Semaphore> {
        &self.questions
    }

    /// Returns a guard that [`Store::settled`] waits for.
    pub(crate) fn begin(&self) -> Pending {
        self.store.begin()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Waits until one more entry may be in memory to be loaded.
    pub(super) async fn room_to_load(&self) -> SemaphoreGuard<'_> {
        self.loads.acquire().await
    }

    /// Waits until one more entry may be in memory to be written, but not for long. Returns `None`, and counts a
    /// program that is not stored, if the disk takes too long for the entries before it.
    pub(super) async fn room_to_save(&self) -> Option<SemaphoreGuard<'_>> {
        if let Some(room) = self.saves.try_acquire() {
            self.is_slow.store(false, Relaxed);
            return Some(room);
        }
        if !self.is_slow.load(Relaxed) {
            let (room, late) = (self.saves.acquire(), executor::pause(SAVE_PATIENCE));
            if let Either::Left((room, _)) = select(pin!(room), late).await {
                return Some(room);
            }
            self.is_slow.store(true, Relaxed);
        }
        self.store.skip_because_slow();
        None
    }

    /// Writes an entry that came from elsewhere.
    pub(super) async fn copy(&self, address: &Address, entry: &Entry) -> Storage {
        let Some(_room) = self.room_to_save().await else { return Storage::Slow };
        self.store.put(address, entry.payload().to_vec(), entry.rest().to_vec()).await
    }
}
