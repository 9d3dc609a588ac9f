//! Programs that were evicted from memory while somebody held them. As long as somebody does, they are found again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::built::Built;
use crate::sync::lock;

/// Number of entries from which on those of freed programs are removed.
const FIRST_SWEEP: usize = 64;

/// Number of latest evictions that [`InUse::weight`] leaves out. The builds of these programs may hold
/// them for a moment longer.
const LATEST: u64 = 4;

/// Programs by their identity, which are held elsewhere.
pub(super) struct InUse<Id>(Mutex<Entries<Id>>);

struct Entries<Id> {
    programs: HashMap<Id, Evicted>,
    /// Number of entries at which those of freed programs are removed.
    sweep_at: usize,
    /// Number of evictions so far.
    evictions: u64,
}

struct Evicted {
    program: Weak<Built>,
    /// Number of evictions up to the one of this program.
    at: u64,
}

impl<Id: std::hash::Hash + Eq + Copy> InUse<Id> {
    pub(super) fn new() -> Self {
        let programs = HashMap::new();
        Self(Mutex::new(Entries { programs, sweep_at: FIRST_SWEEP, evictions: 0 }))
    }

    /// Adds a program, in place of an earlier one.
    pub(super) fn add(&self, id: Id, built: &Arc<Built>) {
        let mut entries = lock(&self.0);
        entries.evictions += 1;
        let evicted = Evicted { program: Arc::downgrade(built), at: entries.evictions };
        entries.programs.insert(id, evicted);
        if entries.programs.len() >= entries.sweep_at {
            entries.programs.retain(|_, evicted| evicted.program.strong_count() > 0);
            entries.sweep_at = FIRST_SWEEP.max(2 * entries.programs.len());
        }
    }

    /// Returns a program if somebody still holds it.
    pub(super) fn find(&self, id: &Id) -> Option<Arc<Built>> {
        lock(&self.0).programs.get(id)?.program.upgrade()
    }

    /// Returns the weight of the programs that are still held, in bytes, without the latest few and those for which
    /// `is_counted` returns `false`.
    pub(super) fn weight(&self, is_counted: impl Fn(&Id) -> bool) -> u64 {
        let entries = lock(&self.0);
        let is_old = |evicted: &Evicted| evicted.at + LATEST <= entries.evictions;
        let old = entries.programs.iter().filter(|(_, evicted)| is_old(evicted));
        let held = old.filter_map(|(id, evicted)| Some((*id, evicted.program.upgrade()?)));
        let held: Vec<_> = held.collect();
        drop(entries);
        // A program may be freed here, which must not happen under the lock.
        held.iter().filter(|(id, _)| is_counted(id)).map(|(_, built)| built.weight()).sum()
    }
}
