//! Programs that were evicted from memory while somebody held them. As long as somebody does, they are found again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::built::Built;
use crate::sync::lock;

/// Number of entries from which on those of freed programs are removed.
const FIRST_SWEEP: usize = 64;

/// Programs by their identity, which are held elsewhere.
pub(super) struct InUse<Id>(Mutex<Entries<Id>>);

struct Entries<Id> {
    programs: HashMap<Id, Weak<Built>>,
    /// Number of entries at which those of freed programs are removed.
    sweep_at: usize,
}

impl<Id: std::hash::Hash + Eq> InUse<Id> {
    pub(super) fn new() -> Self {
        let entries = Entries { programs: HashMap::new(), sweep_at: FIRST_SWEEP };
        Self(Mutex::new(entries))
    }

    /// Adds a program, in place of an earlier one.
    pub(super) fn add(&self, id: Id, built: &Arc<Built>) {
        let mut entries = lock(&self.0);
        entries.programs.insert(id, Arc::downgrade(built));
        if entries.programs.len() >= entries.sweep_at {
            entries.programs.retain(|_, program| program.strong_count() > 0);
            entries.sweep_at = FIRST_SWEEP.max(2 * entries.programs.len());
        }
    }

    /// Returns a program if somebody still holds it.
    pub(super) fn find(&self, id: &Id) -> Option<Arc<Built>> {
        lock(&self.0).programs.get(id)?.upgrade()
    }
}
