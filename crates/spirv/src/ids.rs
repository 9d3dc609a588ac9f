//! Maps and sets of ids.

use std::collections::{BTreeMap, BTreeSet};

use super::module::Module;
use super::words::Header;

/// Map from ids to values. Small ids are array indexes; a module that is not malicious has only small ids.
/// All other ids are kept in a tree, so that memory is bounded by the module's size and the entries.
#[derive(Clone, Debug)]
pub(crate) struct IdMap<T> {
    dense: Vec<Option<T>>,
    /// Exclusive upper bound of the ids in `dense`, each of which may take memory, used or not.
    limit: usize,
    sparse: BTreeMap<u32, T>,
}

/// Number of ids that may each take memory in any module, however small.
const SMALL: usize = 1 << 10;

/// Returns the exclusive upper bound of the ids that take memory in a module of `words` words, used or not.
/// Instructions that define an id have about four words. A pruned module is small, but its ids are not.
fn dense_limit(words: usize, header: Header) -> usize {
    (words / 3).max(SMALL).min(header.bound as usize)
}

impl<T: Copy> IdMap<T> {
    pub(crate) fn of(module: &Module) -> Self {
        let limit = dense_limit(module.word_count(), module.header);
        Self { dense: Vec::new(), limit, sparse: BTreeMap::new() }
    }

    pub(crate) fn get(&self, id: u32) -> Option<T> {
        match self.dense.get(id as usize) {
            Some(value) => *value,
            None => self.sparse.get(&id).copied(),
        }
    }

    pub(crate) fn insert(&mut self, id: u32, value: T) {
        let index = id as usize;
        if index >= self.limit {
            self.sparse.insert(id, value);
            return;
        }
        if index >= self.dense.len() {
            let len = (index + 1).next_power_of_two().min(self.limit);
            self.dense.resize(len, None);
        }
        self.dense[index] = Some(value);
    }
}

/// A set of ids. Small ids are bits of an array, and all others are kept in a tree, as in [`IdMap`].
#[derive(Clone, Debug)]
pub(crate) struct IdSet {
    dense: Box<[u64]>,
    sparse: BTreeSet<u32>,
}

impl IdSet {
    pub(crate) fn of(module: &Module) -> Self {
        Self::of_words(module.word_count(), module.header)
    }

    /// Creates a set for a module of `words` words.
    pub(crate) fn of_words(words: usize, header: Header) -> Self {
        let count = dense_limit(words, header).div_ceil(u64::BITS as usize);
        Self { dense: vec![0; count].into(), sparse: BTreeSet::new() }
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        match self.dense.get((id / u64::BITS) as usize) {
            Some(bits) => bits & bit(id) != 0,
            None => self.sparse.contains(&id),
        }
    }

    /// Adds an id. Returns whether it is new.
    pub(crate) fn insert(&mut self, id: u32) -> bool {
        let Some(bits) = self.dense.get_mut((id / u64::BITS) as usize) else {
            return self.sparse.insert(id);
        };
        let is_new = *bits & bit(id) == 0;
        *bits |= bit(id);
        is_new
    }
}

/// Returns the bit of an id in its element of [`IdSet::dense`].
fn bit(id: u32) -> u64 {
    1 << (id % u64::BITS)
}
