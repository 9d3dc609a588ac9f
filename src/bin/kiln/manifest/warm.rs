//! `kiln warm`: fills the caches with what a manifest recorded.

use std::collections::BTreeSet;

use futures::stream::StreamExt;
use kiln::manifest::{BuildManifest, ManifestEntry, WarmOutcome, WarmProgress};
use kiln::{CacheConfig, Device, DeviceInfo, Runtime};
use serde::Serialize;

use super::{Description, open};
use crate::args::Warm;
use crate::build::check_stored;
use crate::output::{
    Failure, Listing, Outcome, Output, Problem, Result, Width, count, in_full, note, short,
};
use crate::progress;

/// Entry that has ended.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    description: Description,
    outcome: &'static str,
    /// Cache that had the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<String>,
    /// Reason why the entry was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Problem>,
}

impl From<&WarmProgress> for Line {
    fn from(progress: &WarmProgress) -> Self {
        let WarmProgress { entry, outcome, .. } = progress;
        let (mut cache, mut reason, mut error) = (None, None, None);
        match outcome {
            WarmOutcome::Found(origin) => cache = Some(origin.to_string()),
            WarmOutcome::Skipped(why) => reason = Some(why.clone()),
            WarmOutcome::Failed(why) => error = Some(Problem::from(why)),
            _ => {}
        }
        Self { description: Description::from(entry), outcome: word(outcome), cache, reason, error }
    }
}

fn word(outcome: &WarmOutcome) -> &'static str {
    match outcome {
        WarmOutcome::Found(_) => "found",
        WarmOutcome::Made => "made",
        WarmOutcome::Missing => "missing",
        WarmOutcome::Skipped(_) => "skipped",
        WarmOutcome::Failed(_) => "failed",
        _ => "other",
    }
}

/// Numbers of entries by outcome.
#[derive(Default)]
struct Counts {
    found: u64,
    made: u64,
    missing: u64,
    skipped: u64,
    failed: u64,
}

impl Counts {
    fn add(&mut self, outcome: &WarmOutcome) {
        *match outcome {
            WarmOutcome::Found(_) => &mut self.found,
            WarmOutcome::Made => &mut self.made,
            WarmOutcome::Missing => &mut self.missing,
            WarmOutcome::Skipped(_) => &mut self.skipped,
            _ => &mut self.failed,
        } += 1;
    }
}

pub(crate) async fn run(out: &mut Output, arguments: &Warm, config: CacheConfig) -> Result {
    if config.open_store().await?.is_none() {
        note("note: the cache on disk is disabled, so programs are not stored; see KILN_CACHE");
    }
    let manifest = open(&arguments.file).await?;
    let mut devices = Vec::new();
    for selector in &arguments.device {
        let builder = Runtime::builder().cache(CacheConfig::disabled()).device(selector);
        devices.push(builder.build().await?.device().clone());
    }
    let config = match arguments.recorded_identity {
        true => with_identity(config, &manifest, &devices)?,
        false => config,
    };
    let rt = Runtime::builder().cache(config).build().await?;
    let mut warm = rt.warm(&manifest);
    for device in devices {
        warm = warm.on(&rt.devices()[device.index()])?;
    }
    let mut warm = if arguments.check { warm.check() } else { warm.into_caches() };

    let mut counts = Counts::default();
    let mut listing = Listing::new(&[
        ("KEY", Width::Whole),
        ("OUTCOME", Width::Whole),
        ("ENTRY", Width::Flexible),
        ("REASON", Width::Flexible),
    ]);
    let bar = progress::bar("warming", manifest.entries().len());
    while let Some(progress) = warm.next().await {
        let WarmProgress { total, entry, outcome, .. } = &progress;
        bar.set_length(*total as u64);
        counts.add(outcome);
        if out.is_json() {
            bar.suspend(|| out.value(&Line::from(&progress)).and_then(|()| out.flush()))?;
        }
        let reason = match outcome {
            WarmOutcome::Skipped(reason) => Some(reason.clone()),
            WarmOutcome::Failed(error) => Some(in_full(error)),
            WarmOutcome::Missing => Some(String::new()),
            _ => None,
        };
        if let Some(reason) = reason {
            listing.tall_row([&*short(&entry.key()), word(outcome), &entry.to_string(), &reason]);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    rt.drain().await;

    if !out.is_json() {
        if counts.missing + counts.skipped + counts.failed > 0 {
            out.table(listing)?;
            out.line("")?;
        }
        print(out, &counts)?;
    }
    if !arguments.check {
        check_stored(&rt)?;
    }
    Ok(Outcome::success_if(counts.missing + counts.failed == 0))
}

/// Returns a configuration in which the one device has the identity that the manifest states.
fn with_identity(
    config: CacheConfig,
    manifest: &BuildManifest,
    devices: &[Device],
) -> Result<CacheConfig> {
    let [selected] = devices else {
        return Err(Failure::usage(
            "with --recorded-identity, give one --device, which builds the programs",
        ));
    };
    let identities: BTreeSet<_> =
        manifest.entries().iter().map(ManifestEntry::device_identity).collect();
    let mut identities = identities.into_iter();
    let (Some(identity), None) = (identities.next(), identities.next()) else {
        return Err(Failure::usage(
            "with --recorded-identity, the entries of the manifest must be for one device; keep \
             those of one with `kiln manifest prune --device`",
        ));
    };
    let recorded = identity.to_vec();
    let selected = owned_identity(selected);
    Ok(config.device_identity(move |device| {
        let own = owned_identity(device);
        if own == selected { recorded.clone() } else { own }
    }))
}

fn owned_identity(device: &DeviceInfo) -> Vec<(String, String)> {
    let fields = device.identity().into_iter();
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn print(out: &mut Output, counts: &Counts) -> Result<()> {
    let Counts { found, made, missing, skipped, failed } = *counts;
    let numbers = [
        (made, "built"),
        (found, "in the caches already"),
        (missing, "missing"),
        (skipped, "skipped"),
        (failed, "failed"),
    ];
    let all = numbers.iter().map(|(number, _)| number).sum();
    let parts: Vec<_> = numbers
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{number} {what}"))
        .collect();
    let entries = count(all, "entry", "entries");
    let separator = if parts.is_empty() { "" } else { ": " };
    out.line(format_args!("{entries}{separator}{}", parts.join(", ")))?;
    Ok(())
}
