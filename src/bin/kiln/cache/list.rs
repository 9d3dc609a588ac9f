//! Contents of a store: `ls` and `stats`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::StreamExt;
use kiln::store::{EntryInfo, Store};
use serde::Serialize;

use super::remote::Status;
use super::{OBJECT, SPIRV, TIMING, all_entries, device_of, kernels_of, kind_of};
use crate::args::Sort;
use crate::output::{
    Listing, Outcome, Output, Result, Width, age, bytes, count, plain, seconds, time,
};

/// An entry as `ls` lists it.
#[derive(Serialize)]
struct Line {
    key: String,
    /// Kind of the entry: `program`, `object`, `spirv` or `timing`.
    kind: Option<String>,
    device: Option<String>,
    /// Directory of the device.
    folder: String,
    kernels: Vec<String>,
    bytes: u64,
    /// Time of the last use, in seconds since 1970, like `created`.
    used: u64,
    created: Option<u64>,
    /// Options; those of several modules are separated by commas.
    options: Option<String>,
    /// Options of the linker, if it was called separately.
    link_options: Option<String>,
    /// Reason why the entry cannot be read.
    unusable: Option<String>,
}

impl Line {
    async fn of(store: &Store, entry: &EntryInfo) -> Self {
        let mut line = Self {
            key: entry.key().to_string(),
            kind: None,
            device: None,
            folder: entry.device().to_owned(),
            kernels: Vec::new(),
            bytes: entry.bytes(),
            used: seconds(entry.used()),
            created: None,
            options: None,
            link_options: None,
            unusable: None,
        };
        match store.record(entry).await {
            Ok(record) => {
                line.kind = Some(kind_of(&record).to_owned());
                line.device = Some(device_of(&record).to_owned());
                line.kernels = kernels_of(&record);
                line.created = Some(record.created);
                let options = record.fields.iter().filter(|(name, _)| name == "options");
                let options: Vec<_> = options.map(|(_, value)| value.as_str()).collect();
                line.options = (!options.is_empty()).then(|| options.join(", "));
                line.link_options = record.field("link options").map(str::to_owned);
            }
            Err(error) => line.unusable = Some(error.to_string()),
        }
        line
    }

    /// Formats the kernels for people, or describes an entry without kernels.
    fn kernels(&self) -> String {
        match self.kind.as_deref() {
            Some(OBJECT) => "(object)".to_owned(),
            Some(TIMING) => "(fusion times)".to_owned(),
            Some(SPIRV) => format!("{} (SPIR-V)", self.kernels.join(", ")),
            _ => self.kernels.join(", "),
        }
    }

    /// Returns whether the entry is for a device with this text in its name, or in the folder of this name.
    fn fits(&self, device: &str) -> bool {
        let named = |name: &String| name.to_lowercase().contains(&device.to_lowercase());
        self.folder == device || self.device.as_ref().is_some_and(named)
    }
}

pub(super) async fn ls(
    out: &mut Output,
    store: &Store,
    sort: Sort,
    device: Option<&str>,
) -> Result {
    let lines = store.entries().then(async |entry| Line::of(store, &entry).await);
    let mut lines: Vec<_> = lines.collect().await;
    lines.retain(|line| device.is_none_or(|device| line.fits(device)));
    lines.sort_by(|a, b| a.key.cmp(&b.key));
    match sort {
        Sort::Used => lines.sort_by_key(|line| Reverse(line.used)),
        Sort::Created => lines.sort_by_key(|line| Reverse(line.created)),
        Sort::Bytes => lines.sort_by_key(|line| Reverse(line.bytes)),
        Sort::Device => lines.sort_by(|a, b| a.device.cmp(&b.device)),
    }
    if out.is_json() {
        out.value(&lines)?;
        return Ok(Outcome::Success);
    }
    if lines.is_empty() {
        out.line(format_args!("no entries in {}", store.root().display()))?;
        return Ok(Outcome::Success);
    }
    let mut listing = Listing::new(&[
        ("KEY", Width::Whole),
        ("USED", Width::Whole),
        ("BYTES", Width::Whole),
        ("DEVICE", Width::Flexible),
        ("KERNELS", Width::Flexible),
        ("OPTIONS", Width::Flexible),
    ]);
    for line in &lines {
        listing.row([
            &line.key[..12],
            &age(time(line.used)),
            &bytes(line.bytes),
            line.device.as_deref().unwrap_or("damaged"),
            &line.kernels(),
            line.options.as_deref().unwrap_or_default(),
        ]);
    }
    out.table(listing)?;
    Ok(Outcome::Success)
}

#[derive(Serialize)]
struct Stats {
    /// Numbers of programs that all processes have loaded and compiled.
    hits: u64,
    misses: u64,
    /// Time that the compiles of the loaded programs took when they were compiled, and that all compiles took.
    saved_microseconds: u64,
    spent_microseconds: u64,
    /// Time of the first hit or miss, in seconds since 1970.
    since: Option<u64>,
    directory: String,
    entries: u64,
    /// Number of objects among the entries, from which programs are linked.
    objects: u64,
    /// Number of entries with SPIR-V translated from OpenCL C.
    translations: u64,
    /// Number of entries with the times of the ways to run a part of a fusion scope.
    timings: u64,
    bytes: u64,
    /// Limit of the size in bytes; null if there is none.
    limit: Option<u64>,
    /// Time in seconds since 1970.
    least_recently_used: Option<u64>,
    most_recently_used: Option<u64>,
    devices: Vec<Share>,
    /// Status of the remote cache, if there is one.
    remote: Option<Status>,
}

/// Share of a device in the store.
#[derive(Serialize)]
struct Share {
    folder: String,
    name: Option<String>,
    entries: u64,
    bytes: u64,
}

pub(super) async fn stats(out: &mut Output, store: &Store, remote: Option<Status>) -> Result {
    let entries = all_entries(store).await;
    let mut devices = BTreeMap::new();
    let (mut objects, mut translations, mut timings) = (0, 0, 0);
    for entry in &entries {
        let share = devices.entry(entry.device()).or_insert_with(|| Share {
            folder: entry.device().to_owned(),
            name: None,
            entries: 0,
            bytes: 0,
        });
        share.entries += 1;
        share.bytes += entry.bytes();
        let Ok(record) = store.record(entry).await else { continue };
        objects += u64::from(kind_of(&record) == OBJECT);
        translations += u64::from(kind_of(&record) == SPIRV);
        timings += u64::from(kind_of(&record) == TIMING);
        // The name is in the first entry that can be read.
        share.name.get_or_insert_with(|| device_of(&record).to_owned());
    }
    let totals = store.totals().await?;
    let stats = Stats {
        hits: totals.hits,
        misses: totals.misses,
        saved_microseconds: micros(totals.saved),
        spent_microseconds: micros(totals.spent),
        since: (totals.since > 0).then_some(totals.since),
        directory: store.root().display().to_string(),
        entries: entries.len() as u64,
        objects,
        translations,
        timings,
        bytes: entries.iter().map(EntryInfo::bytes).sum(),
        limit: store.max_bytes(),
        least_recently_used: entries.iter().map(EntryInfo::used).min().map(seconds),
        most_recently_used: entries.iter().map(EntryInfo::used).max().map(seconds),
        devices: devices.into_values().collect(),
        remote,
    };
    if out.is_json() {
        out.value(&stats)?;
    } else {
        print(out, &stats)?;
    }
    Ok(Outcome::Success)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Prints the lines about all uses of the store.
fn print_totals(out: &mut Output, stats: &Stats) -> Result<()> {
    let Stats { hits, misses, saved_microseconds, spent_microseconds, .. } = *stats;
    let lookups = hits + misses;
    let share = match lookups {
        0 => String::new(),
        _ => format!(" ({:.1} %)", hits as f64 / lookups as f64 * 100.0),
    };
    let since = match stats.since {
        Some(since) => format!(", since {} ago", age(time(since))),
        None => String::new(),
    };
    let in_words = |microseconds| duration(Duration::from_micros(microseconds));
    out.line(format_args!("hits       {hits}{share}{since}"))?;
    out.line(format_args!("misses     {misses}"))?;
    out.line(format_args!(
        "time saved {}, by loading instead of compiling",
        in_words(saved_microseconds)
    ))?;
    out.line(format_args!("time spent {}, by compiling", in_words(spent_microseconds)))?;
    Ok(())
}

/// Formats a duration with the unit that suits it.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_secs() {
        0 => format!("{:.1} ms", seconds * 1e3),
        1..120 => format!("{seconds:.1} s"),
        120..7200 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

fn print(out: &mut Output, stats: &Stats) -> Result<()> {
    print_totals(out, stats)?;
    out.line(format_args!("directory  {}", stats.directory))?;
    let others = [
        (stats.objects, "is an object", "are objects"),
        (stats.translations, "is SPIR-V", "are SPIR-V"),
        (stats.timings, "has fusion times", "have fusion times"),
    ];
    let others = others.into_iter().filter(|(number, ..)| *number > 0);
    let others: Vec<_> = others.map(|(number, one, many)| count(number, one, many)).collect();
    let of_which = if others.is_empty() { "" } else { ", of which " };
    out.line(format_args!("entries    {}{of_which}{}", stats.entries, others.join(" and ")))?;
    let limit = match stats.limit {
        Some(limit) => {
            let share = stats.bytes as f64 / limit as f64 * 100.0;
            format!("{} of {} ({share:.1} %)", bytes(stats.bytes), bytes(limit))
        }
        None => format!("{}, without limit", bytes(stats.bytes)),
    };
    out.line(format_args!("size       {limit}"))?;
    if let (Some(least), Some(most)) = (stats.least_recently_used, stats.most_recently_used) {
        let (least, most) = (age(time(least)), age(time(most)));
        out.line(format_args!("last used  {most} to {least} ago"))?;
    }
    if let Some(remote) = &stats.remote {
        out.line(format_args!("remote     {}", plain(remote.in_words())))?;
    }
    if stats.devices.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let mut listing = Listing::new(&[
        ("DEVICE", Width::Flexible),
        ("FOLDER", Width::Whole),
        ("SIZE", Width::Whole),
        ("ENTRIES", Width::Whole),
    ]);
    for device in &stats.devices {
        listing.row([
            device.name.as_deref().unwrap_or("?"),
            &device.folder,
            &bytes(device.bytes),
            &device.entries.to_string(),
        ]);
    }
    out.table(listing)?;
    Ok(())
}
