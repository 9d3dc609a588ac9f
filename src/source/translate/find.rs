//! Finds clang and llvm-spirv at the paths that the application or the environment gives, or on `PATH`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::run::compiler;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, ChosenProgram, SearchResult, search_folder};

pub(super) const CLANG: &str = "KILN_CLANG";
pub(super) const LLVM_SPIRV: &str = "KILN_LLVM_SPIRV";

/// Major version that this crate is tested with, and that the search prefers.
const TESTED_VERSION: u32 = 15;

/// Versions that are looked up by name, as in `clang-15`.
const VERSIONS: std::ops::RangeInclusive<u32> = 13..=40;

/// First version of clang that can write SPIR-V itself.
const FIRST_SPIRV_VERSION: u32 = 20;

/// Time limit for a tool to report its version.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// Maximum number of unusable programs that an error lists.
const MAX_FAULTS: usize = 4;

/// Locations to search for the tools.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// Chosen path, with the name of the setting that chose it.
    pub(super) clang: Option<ChosenProgram>,
    pub(super) llvm_spirv: Option<ChosenProgram>,
    /// Value of `PATH`.
    pub(super) path: OsString,
}

/// A program and the version that it reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    pub(super) path: PathBuf,
    /// Version line, such as `Debian clang version 15.0.6`. It does not depend on where the tool is installed.
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
        let mut candidates = |chosen: &Option<ChosenProgram>, name: &str, marker: &str| match chosen
        {
            Some(chosen) => match probe(&chosen.path, marker) {
                Ok(tool) => Ok(vec![tool]),
                Err(error) if error.kind() == ErrorKind::OutOfResources => {
                    Err(error.within(chosen.setting))
                }
                Err(error) => Err(chosen.refused(message_with_causes(&error))),
            },
            None => Ok(on_path(places, name, marker, &mut faults)),
        };
        let clangs = candidates(&places.clang, "clang", "clang version")?;
        let translators = candidates(&places.llvm_spirv, "llvm-spirv", "LLVM version")?;
        for clang in &clangs {
            if let Some(tool) = translators.iter().find(|tool| tool.major == clang.major) {
                return Ok(Self { clang: clang.clone(), llvm_spirv: Some(tool.clone()) });
            }
        }
        // clang writes SPIR-V only if its path was chosen: clang 22 writes invalid modules for some texts.
        if places.clang.is_some()
            && places.llvm_spirv.is_none()
            && let Some(clang) = clangs.iter().find(|clang| writes_spirv(clang))
        {
            return Ok(Self { clang: clang.clone(), llvm_spirv: None });
        }
        Err(missing_tools_error(places, &clangs, &translators, &faults))
    }
}

/// A program that has the name of a tool but cannot be used.
struct Fault {
    path: PathBuf,
    error: Error,
}

/// Creates the error for tools that were not found, or do not fit together.
fn missing_tools_error(
    places: &Places,
    clangs: &[Tool],
    translators: &[Tool],
    faults: &[Fault],
) -> Error {
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
                clang.setting, llvm_spirv.setting
            );
            return Error::new(ErrorKind::Configuration, message);
        }
        (None, None) => None,
    };
    let major = chosen.map_or(TESTED_VERSION, |tool| tool.major);
    let remedy = if faults.is_empty() { "" } else { "fix that, or " };
    let message = format!(
        "translating OpenCL C to SPIR-V needs `clang` and `llvm-spirv` of the same major version, \
         but {found}{}; {remedy}install them, on Debian and Ubuntu with \
         `apt install clang-{major} llvm-spirv-{major}`, or set {CLANG} and {LLVM_SPIRV} to their \
         paths",
        listed(faults)
    );
    // A reason why a program cannot be run is more specific than a missing program, so its kind is used.
    let kinds = faults.iter().map(|fault| fault.error.kind());
    let kind = kinds.into_iter().find(|kind| *kind != ErrorKind::Unsupported);
    Error::new(kind.unwrap_or(ErrorKind::Unsupported), message)
}

/// Formats faults as a part of a sentence.
fn listed(faults: &[Fault]) -> String {
    let shown = faults.iter().take(MAX_FAULTS);
    let mut list: String = shown
        .map(|Fault { path, error }| {
            format!("; `{}`: {}", path.display(), message_with_causes(error))
        })
        .collect();
    if faults.len() > MAX_FAULTS {
        list.push_str(&format!("; and {} more", faults.len() - MAX_FAULTS));
    }
    list
}

/// Formats an error's message with its causes.
fn message_with_causes(error: &Error) -> String {
    let mut words = error.message().to_owned();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        words.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    words
}

/// Returns the programs on `PATH` that work: the program without a version in its name, then those with one, by
/// preference. For each name, this is the first program in the order of `PATH` that works.
fn on_path(places: &Places, name: &str, marker: &str, faults: &mut Vec<Fault>) -> Vec<Tool> {
    let others = VERSIONS.rev().filter(|version| *version != TESTED_VERSION);
    let names = std::iter::once(name.to_owned()).chain(
        std::iter::once(TESTED_VERSION).chain(others).map(|version| format!("{name}-{version}")),
    );
    let mut tools = Vec::<Tool>::new();
    for name in names {
        for folder in std::env::split_paths(&places.path) {
            let (path, probed) = match search_folder(&folder, &name) {
                SearchResult::Nothing => continue,
                SearchResult::NotExecutable(path, why) => {
                    (path, Err(Error::new(ErrorKind::Io, why)))
                }
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
                    let why = message_with_causes(&error);
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
    let output = run_for_output(path, "--version")?;
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

/// Whether clang can write SPIR-V itself.
fn writes_spirv(clang: &Tool) -> bool {
    let targets = || run_for_output(&clang.path, "--print-targets").unwrap_or_default();
    clang.major >= FIRST_SPIRV_VERSION
        && targets().lines().any(|line| line.trim().starts_with("spirv64 "))
}

/// Runs a program with one argument, and returns its output.
fn run_for_output(path: &Path, argument: &str) -> Result<String> {
    let ended = process::run(compiler(path, [argument]), b"", PROBE_LIMIT)?;
    if !ended.status.success() {
        let kind = match process::ran_out_of_resources(&ended) {
            true => ErrorKind::OutOfResources,
            false => ErrorKind::Unsupported,
        };
        let (exit, log) = (process::describe_exit(ended.status), ended.log.trim());
        return Err(Error::new(kind, format!("run with `{argument}`, it {exit}: {log}")));
    }
    Ok(String::from_utf8_lossy(&ended.output).into_owned())
}
