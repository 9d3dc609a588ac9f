//! `kiln build`: fills a cache ahead of time.

use std::path::{Path, PathBuf};
use std::time::Instant;

use futures::stream::{FuturesUnordered, StreamExt};
use kiln::libraries::LinkedSymbol;
use kiln::store::Storage;
use kiln::{CacheConfig, Module, Program, Runtime};
use serde::Serialize;

use crate::args::Build;
use crate::options::{SourcedOptions, sourced_options};
use crate::output::{Failure, Listing, Outcome, Output, Result, Width, bytes, note};
use crate::progress;
use crate::request::{Problem, Setup};

/// Result of building a file.
#[derive(Serialize)]
struct Line {
    file: String,
    device: String,
    key: Option<String>,
    origin: Option<String>,
    /// Options with which the program is built.
    options: Vec<SourcedOptions>,
    kernels: Vec<String>,
    /// Time from the start of all builds to the end of this one.
    milliseconds: f64,
    /// Size of the device's binary.
    bytes: Option<u64>,
    /// Symbols that modules of the program take from other modules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    linked: Vec<Linked>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Problem>,
    #[serde(skip)]
    program: Option<Program>,
}

/// Symbol of a linked program.
#[derive(Serialize)]
struct Linked {
    symbol: String,
    /// Module that uses the symbol.
    importer: String,
    /// Module that defines it.
    exporter: String,
    /// Origin of the exporter; `None` if it is the module of the file.
    source: Option<String>,
    /// Whether the importer's own definition is replaced.
    replaces: bool,
}

impl From<LinkedSymbol> for Linked {
    fn from(symbol: LinkedSymbol) -> Self {
        Self {
            importer: name(&symbol.importer),
            exporter: name(&symbol.exporter),
            source: symbol.source.map(|source| source.to_string()),
            symbol: symbol.name,
            replaces: symbol.replaces,
        }
    }
}

/// Returns the label of a module, or its digest.
fn name(module: &Module) -> String {
    module.label().map_or_else(|| module.digest().to_string(), str::to_owned)
}

pub(crate) async fn run(out: &mut Output, build: &Build, config: CacheConfig) -> Result {
    if config.open_store().await?.is_none() {
        note("note: the cache on disk is disabled, so programs are not stored; see KILN_CACHE");
    }
    let files: Vec<_> = build.files.iter().map(PathBuf::as_path).collect();
    let setup = Setup::new(&build.settings, config, &files).await?;
    let lines = build_all(out, &setup, &files).await?;
    setup.rt.drain().await;

    if !out.is_json() {
        out.table(listing(&lines))?;
        if lines.iter().any(|line| !line.linked.is_empty()) {
            out.line("")?;
            out.table(symbols(&lines))?;
        }
        for line in &lines {
            if let Some(Problem { message, log, .. }) = &line.error {
                note(format_args!("{}: {message}", line.file));
                log.iter().for_each(|log| note(log.trim_end()));
            }
        }
    }
    for line in &lines {
        match line.program.as_ref().map(Program::storage) {
            // The cache that is off was mentioned before.
            None | Some(Storage::Stored | Storage::Off) => {}
            Some(reason) => note(format_args!("note: {} is not stored: {reason}", line.file)),
        }
    }
    check_stored(&setup.rt)?;
    Ok(Outcome::success_if(lines.iter().all(|line| line.error.is_none())))
}

/// Fails if not all programs that a runtime built are in its cache on disk. The user is told if not all are in the
/// remote cache.
pub(crate) fn check_stored(rt: &Runtime) -> Result<()> {
    let stats = rt.stats();
    if stats.remote.write_failures + stats.remote.writes_dropped > 0 {
        note("note: not all programs could be written to the remote cache");
    }
    if stats.disk.failures > 0 {
        return Err(Failure::failed(
            "the cache on disk could not be used, so not all programs are in it",
        ));
    }
    if stats.disk.skips > 0 {
        return Err(Failure::failed(
            "not all programs are in the cache: some have no binary that can be stored, or a \
             newer version of Kiln stored its own entries in their place",
        ));
    }
    Ok(())
}

/// Starts all builds together. Prints JSON as results come, in the order of the files.
async fn build_all(out: &mut Output, setup: &Setup<'_>, files: &[&Path]) -> Result<Vec<Line>> {
    let bar = progress::bar("building", files.len());
    let start = Instant::now();
    let mut builds: FuturesUnordered<_> = files
        .iter()
        .enumerate()
        .map(async |(at, file)| (at, build_one(setup, file, start).await))
        .collect();
    let mut early: Vec<_> = files.iter().map(|_| None).collect();
    let mut lines = Vec::new();
    while let Some((at, line)) = builds.next().await {
        early[at] = Some(line);
        while let Some(line) = early.get_mut(lines.len()).and_then(Option::take) {
            if out.is_json() {
                bar.suspend(|| out.value(&line).and_then(|()| out.flush()))?;
            }
            lines.push(line);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(lines)
}

async fn build_one(setup: &Setup<'_>, file: &Path, start: Instant) -> Line {
    let mut line = Line {
        file: file.display().to_string(),
        device: setup.rt.device().name.clone(),
        key: None,
        origin: None,
        options: Vec::new(),
        kernels: Vec::new(),
        milliseconds: 0.0,
        bytes: None,
        linked: Vec::new(),
        error: None,
        program: None,
    };
    let request = match setup.request(file).await {
        Ok((_, request)) => request,
        Err(problem) => return Line { error: Some(problem), ..line },
    };
    let built = request.clone().await;
    line.milliseconds = start.elapsed().as_micros() as f64 / 1e3;
    line.options = request.key_fields().map(|fields| sourced_options(&fields)).unwrap_or_default();
    match built {
        Ok(program) => fill_line(&mut line, &program),
        Err(error) => {
            line.key = request.key().ok().map(|key| key.to_string());
            line.error = Some(error.into());
        }
    }
    line
}

/// Adds the facts of a built program to its line.
fn fill_line(line: &mut Line, program: &Program) {
    line.key = Some(program.key().to_string());
    line.origin = Some(program.origin().to_string());
    line.kernels = program.kernel_names().into_iter().map(str::to_owned).collect();
    line.linked = program.linked_symbols().into_iter().map(Linked::from).collect();
    match program.binary() {
        Ok(binary) => line.bytes = Some(binary.len() as u64),
        Err(error) => line.error = Some(error.into()),
    }
    line.program = Some(program.clone());
}

/// Lists the library that each symbol comes from.
fn symbols(lines: &[Line]) -> Listing {
    let columns = ["SYMBOL", "FROM", "SOURCE", "FOR"].map(|name| (name, Width::Flexible));
    let mut listing = Listing::new(&columns);
    for linked in lines.iter().flat_map(|line| &line.linked) {
        listing.row([
            linked.symbol.clone(),
            linked.exporter.clone(),
            linked.source.clone().unwrap_or_else(|| "requested".to_owned()),
            linked.importer.clone(),
        ]);
    }
    listing
}

fn listing(lines: &[Line]) -> Listing {
    let mut listing = Listing::new(&[
        ("FILE", Width::Flexible),
        ("ORIGIN", Width::Whole),
        ("KERNELS", Width::Flexible),
        ("MS", Width::Whole),
        ("BYTES", Width::Whole),
        ("KEY", Width::Whole),
    ]);
    for line in lines {
        let short = |key: &String| key.chars().take(12).collect();
        listing.row([
            line.file.clone(),
            match &line.error {
                Some(problem) => problem.kind.clone(),
                None => line.origin.clone().unwrap_or_default(),
            },
            line.kernels.join(", "),
            format!("{:.1}", line.milliseconds),
            line.bytes.map(bytes).unwrap_or_default(),
            line.key.as_ref().map(short).unwrap_or_default(),
        ]);
    }
    listing
}
