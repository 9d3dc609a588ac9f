//! Finds clang and llvm-spirv: at the paths that the application or the environment gives, or on `PATH`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::run::compiler;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, Chosen, SearchResult, found_in};

pub(super) const CLANG: &str = "KILN_CLANG";
pub(super) const LLVM_SPIRV: &str = "KILN_LLVM_SPIRV";

/// Major version that this crate is tested with. It is preferred.
const TESTED: u32 = 15;

/// Versions that are looked up by name, as in `clang-15`.
const VERSIONS: std::ops::RangeInclusive<u32> = 13..=40;

/// First version of clang that can write SPIR-V itself.
const DIRECT: u32 = 20;

/// Time limit for a tool to report its version.
const PROBE: Duration = Duration::from_secs(10);

/// Maximum number of programs whose faults an error lists.
const MOST_FAULTS: usize = 4;

/// Locations to search for the tools.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// Chosen path, with the name of the setting that chose it.
    pub(super) clang: Option<Chosen>,
    pub(super) llvm_spirv: Option<Chosen>,
    /// The value of `PATH`.
    pub(super) path: OsString,
}

/// A program and the version that it reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    pub(super) path: PathBuf,
    /// Version line, such as `Debian clang version 15.0.6`: the same wherever the tool is installed.
    pub(super) version: String,
    pub(super) major: u32,
}

/// Tools for the translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tools {
    pub(super) clang: Tool,
    /// The SPIR-V translator; `None` if clang writes SPIR-V itself.
    pub(super) llvm_spirv: Option<Tool>,
}

impl Tools {
    /// Returns the tools' part of keys: equal on every machine with the same versions.
    pub(crate) fn identity(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let llvm_spirv = self.llvm_spirv.iter().map(|tool| ("llvm-spirv", &*tool.version));
        std::iter::once(("clang", &*self.clang.version)).chain(llvm_spirv)
    }

    /// Searches for the tools and runs them to get their versions. Blocks.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) for a chosen path that is not the expected tool;
    /// [`Unsupported`](ErrorKind::Unsupported), with what to install, if there are no tools; and
    /// [`OutOfResources`](ErrorKind::OutOfResources) or [`Io`](ErrorKind::Io), with the reason, if the tools
    /// that exist cannot be run.
    pub(super) fn find(places: &Places) -> Result<Self> {
        let mut faults = Vec::new();
        let mut candidates = |chosen: &Option<Chosen>, name: &str, marker: &str| match chosen {
            Some(chosen) => match probe(&chosen.path, marker) {
                Ok(tool) => Ok(vec![tool]),
                Err(error) if error.kind() == ErrorKind::OutOfResources => {
                    Err(error.within(chosen.by))
                }
                Err(error) => Err(chosen.refused(in_words(&error))),
            },
            None => Ok(on_path(places, name, marker, &mut faults)),
        };
        let clangs = candidates(&places.clang, "clang", "clang version")?;
        let translators = candidates(&places.llvm_spirv, "llvm-spirv", "LLVM version")?;
        for clang in &clangs {
            if let Some(found) = translators.iter().find(|found| found.major == clang.major) {
                return Ok(Self { clang: clang.clone(), llvm_spirv: Some(found.clone()) });
            }
        }
        // clang writes SPIR-V only if its path was chosen: clang 22 writes invalid modules for some texts.
        if places.clang.is_some()
            && places.llvm_spirv.is_none()
            && let Some(clang) = clangs.iter().find(|clang| writes_spirv(clang))
        {
            return Ok(Self { clang: clang.clone(), llvm_spirv: None });
        }
        Err(missing(places, &clangs, &translators, &faults))
    }
}

/// A program that has the name of a tool but cannot be used.
struct Fault {
    path: PathBuf,
    error: Error,
}

fn missing(places: &Places, clangs: &[Tool], translators: &[Tool], faults: &[Fault]) -> Error {
    let found: Vec<_> = clangs
        .iter()
        .chain(translators)
        .map(|tool| format!("`{}` ({})", tool.path.display(), tool.version))
        .collect();
    let found = match (found.is_empty(), faults.is_empty()) {
        (true, true) => "neither was found".to_owned(),
        (true, false) => "none of the programs found can be used".to_owned(),
        (false, _) => format!("only {} was found", found.join(", ")),
    };
    // The other tool must match the chosen one.
    let chosen = match (&places.clang, &places.llvm_spirv) {
        (Some(_), None) => clangs.first(),
        (None, Some(_)) => translators.first(),
        (Some(clang), Some(llvm_spirv)) => {
            let message = format!(
                "{}, {}: clang and llvm-spirv must have the same major version; {found}",
                clang.by, llvm_spirv.by
            );
            return Error::new(ErrorKind::Configuration, message);
        }
        (None, None) => None,
    };
    let major = chosen.map_or(TESTED, |tool| tool.major);
    let remedy = if faults.is_empty() { "" } else { "fix that, or " };
    let message = format!(
        "translating OpenCL C to SPIR-V needs `clang` and `llvm-spirv` of the same major version, \
         but {found}{}; {remedy}install them, on Debian and Ubuntu with \
         `apt install clang-{major} llvm-spirv-{major}`, or set {CLANG} and {LLVM_SPIRV} to their \
         paths",
        listed(faults)
    );
    // A circumstance that prevents a program from running is more specific than a missing program, so its kind
    // is returned.
    let kinds = faults.iter().map(|fault| fault.error.kind());
    let kind = kinds.into_iter().find(|kind| *kind != ErrorKind::Unsupported);
    Error::new(kind.unwrap_or(ErrorKind::Unsupported), message)
}

/// Formats faults as a part of a sentence.
fn listed(faults: &[Fault]) -> String {
    let shown = faults.iter().take(MOST_FAULTS);
    let mut list: String = shown
        .map(|Fault { path, error }| format!("; `{}`: {}", path.display(), in_words(error)))
        .collect();
    if faults.len() > MOST_FAULTS {
        list.push_str(&format!("; and {} more", faults.len() - MOST_FAULTS));
    }
    list
}

/// Formats an error's message with its causes.
fn in_words(error: &Error) -> String {
    let mut words = error.message().to_owned();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        words.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    words
}

/// Returns the working programs of a name: first those without a version in their name, then by preference. For
/// each name, the first program in the order of `PATH` that works.
fn on_path(places: &Places, name: &str, marker: &str, faults: &mut Vec<Fault>) -> Vec<Tool> {
    let others = VERSIONS.rev().filter(|version| *version != TESTED);
    let names = std::iter::once(name.to_owned())
        .chain(std::iter::once(TESTED).chain(others).map(|version| format!("{name}-{version}")));
    let mut tools = Vec::<Tool>::new();
    for name in names {
        for folder in std::env::split_paths(&places.path) {
            let (path, probed) = match found_in(&folder, &name) {
                SearchResult::Nothing => continue,
                SearchResult::Other(path, why) => (path, Err(Error::new(ErrorKind::Io, why))),
                SearchResult::Program(path) => {
                    let probed = probe(&path, marker);
                    (path, probed)
                }
            };
            match probed {
                Ok(tool) => {
                    tools.push(tool);
                    break;
                }
                Err(error) => {
                    let why = in_words(&error);
                    tracing::debug!(path = %path.display(), %why, "a compiler cannot be used");
                    // A directory may be in `PATH` twice.
                    if faults.iter().all(|fault| fault.path != path) {
                        faults.push(Fault { path, error });
                    }
                }
            }
        }
    }
    tools
}

/// Runs a program to get its version, which it prints in a line with `marker`. The error has the kind
/// [`Unsupported`](ErrorKind::Unsupported) if it is another program.
fn probe(path: &Path, marker: &str) -> Result<Tool> {
    let output = ask(path, "--version")?;
    let line = output.lines().map(str::trim).find(|line| line.contains(marker));
    let line = line.ok_or_else(|| {
        Error::unsupported(format!(
            "its version text has no line with `{marker}`, so it is another program"
        ))
    })?;
    let (_, version) = line.split_once(marker).unwrap_or_default();
    let digits = version.trim_start().split(|c: char| !c.is_ascii_digit()).next();
    let major = digits.and_then(|digits| digits.parse().ok());
    let major = major
        .ok_or_else(|| Error::unsupported(format!("its version cannot be read from `{line}`")))?;
    Ok(Tool { path: path.to_owned(), version: line.to_owned(), major })
}

fn writes_spirv(clang: &Tool) -> bool {
    let targets = || ask(&clang.path, "--print-targets").unwrap_or_default();
    clang.major >= DIRECT && targets().lines().any(|line| line.trim().starts_with("spirv64 "))
}

fn ask(path: &Path, question: &str) -> Result<String> {
    let ended = process::run(compiler(path, [question]), b"", PROBE)?;
    if !ended.status.success() {
        let kind = match process::was_starved(&ended) {
            true => ErrorKind::OutOfResources,
            false => ErrorKind::Unsupported,
        };
        let (how, log) = (process::in_words(ended.status), ended.log.trim());
        return Err(Error::new(kind, format!("run with `{question}`, it {how}: {log}")));
    }
    Ok(String::from_utf8_lossy(&ended.output).into_owned())
}
