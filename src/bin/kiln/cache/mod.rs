//! `kiln cache`: inspection and maintenance of a store.

mod bundle;
mod list;
#[cfg(feature = "remote")]
mod remote;
#[cfg(not(feature = "remote"))]
#[path = "without_remote.rs"]
mod remote;
mod show;
mod upkeep;
mod why;

use kiln::store::{Checked, Entry, EntryInfo, Manifest, Store};
use kiln::{BuildKey, CacheConfig};

use crate::args::{CacheCommand, KeyPrefix};
use crate::output::{Failure, Output, Result};

pub(crate) fn run(out: &mut Output, command: CacheCommand, config: &CacheConfig) -> Result {
    let store = config.open_store()?.ok_or_else(|| {
        Failure::usage("the cache on disk is disabled by KILN_CACHE; give --cache-dir DIR")
    })?;
    match command {
        CacheCommand::Ls { sort, device } => list::ls(out, &store, sort, device.as_deref()),
        CacheCommand::Show { key } => show::run(out, &store, &key),
        CacheCommand::Stats => list::stats(out, &store, remote::status(config)?),
        CacheCommand::Verify { fix } => upkeep::verify(out, &store, fix),
        CacheCommand::Gc { dry_run } => upkeep::gc(out, &store, dry_run),
        CacheCommand::Extract { key, output } => {
            bundle::extract(out, &store, &key, output.as_deref())
        }
        CacheCommand::Export { file, keys } => bundle::export(out, &store, &file, &keys),
        CacheCommand::Import { file } => bundle::import(out, &store, &file),
        #[cfg(feature = "remote")]
        CacheCommand::Push { keys } => remote::push(out, &store, config, &keys),
        #[cfg(feature = "remote")]
        CacheCommand::Pull { keys } => remote::pull(out, &store, config, &keys),
        CacheCommand::Clear { yes } => upkeep::clear(out, &store, yes),
        CacheCommand::Why { a, b, settings } => why::run(out, &store, config, (a, b), &settings),
    }
}

/// Returns the only entry whose key has this prefix.
fn find(store: &Store, prefix: &KeyPrefix) -> Result<EntryInfo> {
    let prefix = prefix.as_str();
    let begins = |entry: &EntryInfo| entry.key().to_string().starts_with(prefix);
    let mut found: Vec<_> = store.entries().filter(begins).collect();
    found.sort_by_key(EntryInfo::key);
    found.dedup_by_key(|entry| entry.key());
    match found.len() {
        0 => Err(Failure::failed(format_args!(
            "no key in {} begins with {prefix}",
            store.root().display()
        ))),
        1 => Ok(found.remove(0)),
        n => {
            let mut message = format!("{n} keys begin with {prefix}; give more digits:");
            for entry in &found {
                message.push_str(&format!("\n  {}", entry.key()));
            }
            Err(Failure::failed(message))
        }
    }
}

/// Returns the entry of exactly this key.
fn find_exactly(store: &Store, key: &BuildKey) -> Option<EntryInfo> {
    store.entries().find(|entry| entry.key() == *key)
}

/// Returns the entries with these keys. Without keys, returns all entries that are of use on other machines.
fn select(store: &Store, keys: &[KeyPrefix]) -> Result<Vec<EntryInfo>> {
    if keys.is_empty() {
        // Damaged entries are included here, and refused by name later.
        let is_selected =
            |info: &EntryInfo| store.manifest(info).as_ref().map_or(true, is_portable);
        return Ok(store.entries().filter(is_selected).collect());
    }
    keys.iter().map(|key| find(store, key)).collect()
}

/// Reads an entry, or returns the reason why it is not usable.
fn read_entry(store: &Store, info: &EntryInfo) -> std::result::Result<Entry, String> {
    match store.check(info) {
        Checked::Whole(entry) => Ok(entry),
        Checked::Unusable(unusable) => Err(unusable.to_string()),
        Checked::Unreadable(error) => Err(error.to_string()),
        _ => Err("it has an unknown state".to_owned()),
    }
}

/// Returns the name of the device that an entry is for.
fn device_of(manifest: &Manifest) -> &str {
    manifest.field("device").unwrap_or("?")
}

/// Returns the kind of an entry: a program with kernels, an object from which programs are linked, the SPIR-V
/// of an OpenCL C text, or times of launches.
fn kind_of(manifest: &Manifest) -> &str {
    manifest.field("kind").unwrap_or("?")
}

/// Returns whether an entry is of use on other machines.
fn is_portable(manifest: &Manifest) -> bool {
    kind_of(manifest) != TIMING
}

const PROGRAM: &str = "program";

const OBJECT: &str = "object";

/// Kind of an entry with the times of launches, fused and one by one, which are valid on one machine only.
const TIMING: &str = "timing";

/// Kind of an entry with the translation of an OpenCL C text.
const SPIRV: &str = "spirv";

fn kernels_of(manifest: &Manifest) -> Vec<String> {
    manifest.kernels.iter().map(|kernel| kernel.name.clone()).collect()
}
