//! The disk cache below the graph.

use std::sync::Arc;
use std::time::Duration;

use async_lock::{Semaphore, SemaphoreGuard};

use crate::cache::store::{Address, Entry, Pending, Store};
use crate::stats::Counters;

/// Number of entries whose bytes are in memory at the same time, while they are loaded, and while they are
/// written.
const ENTRIES_IN_MEMORY: usize = 32;

/// The store of a graph.
pub(crate) struct Disk {
    store: Store,
    /// Maximum time to wait for another process's build.
    pub(super) max_wait: Duration,
    pub(super) counters: Arc<Counters>,
    loads: Semaphore,
    saves: Semaphore,
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
        Self { store, max_wait, counters, loads, saves }
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

    /// Waits until one more entry may be in memory to be written.
    pub(super) async fn room_to_save(&self) -> SemaphoreGuard<'_> {
        self.saves.acquire().await
    }

    /// Writes an entry that came from elsewhere.
    pub(super) async fn copy(&self, address: &Address, entry: &Entry) {
        let _room = self.room_to_save().await;
        self.store.put(address, entry.payload().to_vec(), entry.rest().to_vec()).await;
    }
}
