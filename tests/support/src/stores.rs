//! Stores that a test inspects between its steps, without async code.

use std::path::PathBuf;

use futures::StreamExt;
use kiln::CacheConfig;
use kiln::store::{EntryInfo, Store};
use smol::block_on;

/// Opens the store of a test's own directory.
pub fn open(root: impl Into<PathBuf>) -> Store {
    block_on(Store::open(root)).expect("it belongs to this test")
}

/// Opens the store of a configuration that uses the disk.
pub fn open_with(cache: &CacheConfig) -> Store {
    block_on(cache.open_store()).expect("it belongs to this test").expect("the disk is used")
}

pub fn entries(store: &Store) -> Vec<EntryInfo> {
    block_on(store.entries().collect())
}

/// Returns the entry of a store that has only one.
#[track_caller]
pub fn only_entry(store: &Store) -> EntryInfo {
    let [entry] = &*entries(store) else { panic!("the store has one entry") };
    entry.clone()
}
