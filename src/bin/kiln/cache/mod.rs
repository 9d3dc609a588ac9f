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

use futures::stream::{self, StreamExt, TryStreamExt};
use kiln::CacheConfig;
use kiln::build::BuildKey;
use kiln::store::{Entry, EntryCheck, EntryInfo, EntryRecord, Store};

use crate::args::{CacheCommand, KeyPrefix};
use crate::output::{Failure, Output, Result};

pub(crate) async fn run(out: &mut Output, command: CacheCommand, config: &CacheConfig) -> Result {
    let store = config.open_store().await?.ok_or_else(|| {
        Failure::usage("the cache on disk is disabled by KILN_CACHE; give --cache-dir DIR")
    })?;
    match command {
        CacheCommand::Ls { sort, device } => list::ls(out, &store, sort, device.as_deref()).await,
        CacheCommand::Show { key } => show::run(out, &store, &key).await,
        CacheCommand::Stats => list::stats(out, &store, remote::status(config).await?).await,
        CacheCommand::Verify { fix } => upkeep::verify(out, &store, fix).await,
        CacheCommand::Gc { dry_run } => upkeep::gc(out, &store, dry_run).await,
        CacheCommand::Extract { key, raw, output } => {
            bundle::extract(out, &store, &key, raw, output.as_deref()).await
        }
        CacheCommand::Export { file, keys } => bundle::export(out, &store, &file, &keys).await,
        CacheCommand::Import { file } => bundle::import(out, &store, &file).await,
        #[cfg(feature = "remote")]
        CacheCommand::Push { keys } => remote::push(out, &store, config, &keys).await,
        #[cfg(feature = "remote")]
        CacheCommand::Pull { keys } => remote::pull(out, &store, config, &keys).await,
        CacheCommand::Clear { yes } => upkeep::clear(out, &store, yes).await,
        CacheCommand::Why { a, b, settings } => {
            why::run(out, &store, config, (a, b), &settings).await
        }
    }
}

/// Returns the only entry whose key has this prefix.
async fn find(store: &Store, prefix: &KeyPrefix) -> Result<EntryInfo> {
    let prefix = prefix.as_str();
    let mut found = all_entries(store).await;
    found.retain(|entry| entry.key().to_string().starts_with(prefix));
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
async fn find_exactly(store: &Store, key: &BuildKey) -> Option<EntryInfo> {
    all_entries(store).await.into_iter().find(|entry| entry.key() == *key)
}

async fn all_entries(store: &Store) -> Vec<EntryInfo> {
    store.entries().collect().await
}

/// Returns the entries with these keys. Without keys, returns all entries that are of use on other machines.
async fn select(store: &Store, keys: &[KeyPrefix]) -> Result<Vec<EntryInfo>> {
    if keys.is_empty() {
        let selected = store.entries().filter_map(async |info| {
            // Damaged entries are included here, and refused by name later.
            let is_selected = store.record(&info).await.as_ref().map_or(true, is_portable);
            is_selected.then_some(info)
        });
        return Ok(selected.collect().await);
    }
    stream::iter(keys).then(async |key| find(store, key).await).try_collect().await
}

/// Reads an entry, or returns the reason why it is not usable.
async fn read_entry(store: &Store, info: &EntryInfo) -> std::result::Result<Entry, String> {
    match store.check(info).await {
        EntryCheck::Whole(entry) => Ok(entry),
        EntryCheck::Unusable(unusable) => Err(unusable.to_string()),
        EntryCheck::Unreadable(error) => Err(error.to_string()),
        _ => Err("it has an unknown state".to_owned()),
    }
}

/// Returns the name of the device that an entry is for.
fn device_of(record: &EntryRecord) -> &str {
    record.field("device").unwrap_or("?")
}

/// Returns the version of the driver that an entry is for.
fn driver_of(record: &EntryRecord) -> &str {
    record.field("driver version").unwrap_or("?")
}

/// Returns the kind of an entry: a program with kernels, an object from which programs are linked, the SPIR-V
/// of an OpenCL C text, or times of launches.
fn kind_of(record: &EntryRecord) -> &str {
    record.field("kind").unwrap_or("?")
}

/// Returns whether an entry is of use on other machines.
fn is_portable(record: &EntryRecord) -> bool {
    kind_of(record) != TIMING
}

const PROGRAM: &str = "program";

const OBJECT: &str = "object";

/// Kind of an entry with the times of launches, fused and one by one, which are valid on one machine only.
const TIMING: &str = "timing";

/// Kind of an entry with the translation of an OpenCL C text.
const SPIRV: &str = "spirv";

fn kernels_of(record: &EntryRecord) -> Vec<String> {
    record.kernels.iter().map(|kernel| kernel.name.clone()).collect()
}
