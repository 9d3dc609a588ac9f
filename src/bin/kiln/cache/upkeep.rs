//! Maintenance of a store: `verify`, `gc` and `clear`.

use std::io::{self, IsTerminal, Write};

use futures::stream::StreamExt;
use kiln::store::{EntryCheck, Store, Unusable};
use serde::Serialize;

use crate::output::{Failure, Listing, Outcome, Output, Result, Width, bytes, count, note, short};
use crate::progress;

#[derive(Serialize)]
struct Verified {
    entries: u64,
    whole: u64,
    /// Number of entries in a newer version of the format, which this version leaves in place.
    newer: u64,
    damaged: Vec<Damaged>,
}

#[derive(Serialize)]
struct Damaged {
    key: String,
    file: String,
    /// Reason in one word.
    kind: &'static str,
    reason: String,
    removed: bool,
}

pub(super) async fn verify(out: &mut Output, store: &Store, fix: bool) -> Result {
    let mut verified = Verified { entries: 0, whole: 0, newer: 0, damaged: Vec::new() };
    let mut listing =
        Listing::new(&[("KEY", Width::Whole), ("KIND", Width::Whole), ("REASON", Width::Flexible)]);
    let bar = progress::bar("verifying", store.entries().count().await);
    let mut results = store.verify();
    while let Some((entry, checked)) = results.next().await {
        bar.inc(1);
        let (kind, reason) = match checked {
            EntryCheck::Whole(_) => {
                verified.entries += 1;
                verified.whole += 1;
                continue;
            }
            EntryCheck::Unusable(unusable) if unusable.is_newer() => {
                verified.entries += 1;
                verified.newer += 1;
                continue;
            }
            EntryCheck::Unusable(unusable) => (word(&unusable), unusable.to_string()),
            // Another process has evicted the entry meanwhile.
            EntryCheck::Unreadable(error) if error.kind() == io::ErrorKind::NotFound => continue,
            EntryCheck::Unreadable(error) => ("unreadable", error.to_string()),
            _ => ("other", "it has an unknown state".to_owned()),
        };
        verified.entries += 1;
        // An entry that cannot be read now may be intact.
        let removed = fix && kind != "unreadable" && store.remove(&entry).await;
        listing.tall_row([&*short(&entry.key()), kind, &reason]);
        let (key, file) = (entry.key().to_string(), entry.path().display().to_string());
        verified.damaged.push(Damaged { key, file, kind, reason, removed });
    }
    bar.finish_and_clear();
    let damaged_left = verified.damaged.iter().filter(|damaged| !damaged.removed).count();
    if out.is_json() {
        out.value(&verified)?;
        return Ok(Outcome::success_if(damaged_left == 0));
    }
    if !verified.damaged.is_empty() {
        out.table(listing)?;
        out.line("")?;
    }
    let Verified { entries, whole, newer, damaged } = verified;
    let entries = count(entries, "entry", "entries");
    out.line(format_args!("{entries}: {whole} intact, {} damaged", damaged.len()))?;
    if newer > 0 {
        let verb = if newer == 1 { "is" } else { "are" };
        out.line(format_args!("{newer} {verb} of a newer version of Kiln, and left in place"))?;
    }
    if fix && !damaged.is_empty() {
        out.line(format_args!("{} removed", damaged.len() - damaged_left))?;
    } else if damaged_left > 0 {
        out.line("use `kiln cache verify --fix` to remove damaged entries")?;
    }
    Ok(Outcome::success_if(damaged_left == 0))
}

fn word(unusable: &Unusable) -> &'static str {
    match unusable {
        Unusable::Foreign => "foreign",
        Unusable::Version(_) => "version",
        Unusable::Lengths => "lengths",
        Unusable::Checksum => "checksum",
        Unusable::OtherKey(_) => "other-key",
        Unusable::Record(_) => "record",
        Unusable::TooLarge(_) => "too-large",
        Unusable::Distrusted(_) => "distrusted",
        _ => "other",
    }
}

#[derive(Serialize)]
struct Collection {
    entries: u64,
    bytes: u64,
    removed: u64,
    removed_bytes: u64,
    /// Number of files that dead writers left behind.
    swept: u64,
    dry_run: bool,
}

pub(super) async fn gc(out: &mut Output, store: &Store, dry_run: bool) -> Result {
    let collected = store.collect(dry_run).await?;
    let gc = Collection {
        entries: collected.entries,
        bytes: collected.bytes,
        removed: collected.removed,
        removed_bytes: collected.removed_bytes,
        swept: collected.swept,
        dry_run,
    };
    if out.is_json() {
        out.value(&gc)?;
        return Ok(Outcome::Success);
    }
    let would = if dry_run { "would be removed" } else { "removed" };
    let found = count(gc.entries, "entry", "entries");
    out.line(format_args!("{found} of {} found", bytes(gc.bytes)))?;
    let removed = count(gc.removed, "entry", "entries");
    out.line(format_args!("{removed} of {} {would}", bytes(gc.removed_bytes)))?;
    if gc.swept > 0 {
        let swept = count(gc.swept, "file", "files");
        out.line(format_args!("{swept} left by dead processes {would}"))?;
    }
    Ok(Outcome::Success)
}

#[derive(Serialize)]
struct Cleared {
    removed: u64,
}

pub(super) async fn clear(out: &mut Output, store: &Store, yes: bool) -> Result {
    if !yes && !is_confirmed(store).await? {
        note("nothing is removed");
        return Ok(Outcome::ItemsFailed);
    }
    let removed = store.clear().await?;
    if out.is_json() {
        out.value(&Cleared { removed })?;
    } else {
        out.line(format_args!("{} removed", count(removed, "entry", "entries")))?;
    }
    Ok(Outcome::Success)
}

async fn is_confirmed(store: &Store) -> Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "standard input is not a terminal, so confirmation is not possible; to remove all \
             entries, give --yes",
        ));
    }
    let entries = count(store.entries().count().await as u64, "entry", "entries");
    let mut terminal = io::stderr();
    write!(terminal, "Remove {entries} from {}? [y/N] ", store.root().display())?;
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.map_err(|error| Failure::failed(format_args!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
