//! `kiln manifest`: inspection and editing of manifests.

pub(crate) mod warm;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kiln::manifest::{BuildManifest, ManifestEntry};
use serde::Serialize;

use crate::args::{Keep, ManifestCommand};
use crate::output::{Listing, Outcome, Output, Result, Width, age, count, note, seconds, short};

/// Fields of an entry that tell what it is.
#[derive(Serialize)]
struct Description {
    entry: String,
    kind: String,
    key: String,
    device: String,
}

impl From<&ManifestEntry> for Description {
    fn from(entry: &ManifestEntry) -> Self {
        Self {
            entry: entry.to_string(),
            kind: entry.kind().to_string(),
            key: entry.key().to_string(),
            device: entry.device().to_owned(),
        }
    }
}

/// Entry of a manifest.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    description: Description,
    runs: usize,
    uses: u64,
    /// Start of the last run that used it, in seconds since 1970.
    last_used: u64,
}

impl From<&ManifestEntry> for Line {
    fn from(entry: &ManifestEntry) -> Self {
        Self {
            description: Description::from(entry),
            runs: entry.runs(),
            uses: entry.uses(),
            last_used: seconds(entry.last_used()),
        }
    }
}

/// Result of writing a manifest.
#[derive(Serialize)]
struct Written {
    file: String,
    entries: usize,
    /// Number of entries that the manifests had and the file has not.
    removed: usize,
}

pub(crate) async fn run(out: &mut Output, command: ManifestCommand) -> Result {
    match command {
        ManifestCommand::Show { file } => show(out, &open(&file).await?),
        ManifestCommand::Merge { files, output } => merge(out, &files, &output).await,
        ManifestCommand::Prune { file, output, keep } => {
            prune(out, open(&file).await?, &keep, output.as_ref().unwrap_or(&file)).await
        }
    }
}

/// Opens a manifest. Damaged lines are reported.
async fn open(path: &Path) -> Result<BuildManifest> {
    let manifest = BuildManifest::open(path).await?;
    if manifest.damaged_lines() > 0 {
        let lines = count(manifest.damaged_lines() as u64, "damaged line is", "damaged lines are");
        note(format_args!("note: {lines} skipped in {}", path.display()));
    }
    Ok(manifest)
}

fn show(out: &mut Output, manifest: &BuildManifest) -> Result {
    if out.is_json() {
        out.value(&manifest.entries().iter().map(Line::from).collect::<Vec<_>>())?;
        return Ok(Outcome::Success);
    }
    let mut listing = Listing::new(&[
        ("KEY", Width::Whole),
        ("KIND", Width::Whole),
        ("RUNS", Width::Whole),
        ("USES", Width::Whole),
        ("USED", Width::Whole),
        ("DEVICE", Width::Flexible),
        ("ENTRY", Width::Flexible),
    ]);
    for entry in manifest.entries() {
        listing.row([
            short(&entry.key()),
            entry.kind().to_string(),
            entry.runs().to_string(),
            entry.uses().to_string(),
            age(entry.last_used()),
            entry.device().to_owned(),
            entry.to_string(),
        ]);
    }
    match manifest.entries() {
        [] => out.line("no entries")?,
        _ => out.table(listing)?,
    }
    Ok(Outcome::Success)
}

async fn merge(out: &mut Output, files: &[PathBuf], output: &Path) -> Result {
    let mut merged = BuildManifest::default();
    for file in files {
        merged.merge(open(file).await?);
    }
    let before = merged.entries().len();
    write(out, &merged, before, output).await
}

async fn prune(
    out: &mut Output,
    mut manifest: BuildManifest,
    keep: &Keep,
    output: &Path,
) -> Result {
    let before = manifest.entries().len();
    let device = keep.device.as_ref().map(|device| device.to_lowercase());
    let oldest = keep.max_age.map(|days| {
        let age = Duration::from_secs(days.saturating_mul(86_400));
        SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH)
    });
    manifest.retain(|entry| {
        keep.min_runs.is_none_or(|runs| entry.runs() >= runs)
            && keep.min_uses.is_none_or(|uses| entry.uses() >= uses)
            && oldest.is_none_or(|oldest| entry.last_used() >= oldest)
            && device.as_ref().is_none_or(|text| entry.device().to_lowercase().contains(text))
    });
    write(out, &manifest, before, output).await
}

/// Writes a manifest. `before` is the number of entries that there were.
async fn write(out: &mut Output, manifest: &BuildManifest, before: usize, path: &Path) -> Result {
    manifest.save(path).await?;
    let entries = manifest.entries().len();
    let removed = before - entries;
    if out.is_json() {
        out.value(&Written { file: path.display().to_string(), entries, removed })?;
    } else {
        let written = count(entries as u64, "entry", "entries");
        out.line(format_args!("{written} written to {}, {removed} removed", path.display()))?;
    }
    Ok(Outcome::Success)
}
