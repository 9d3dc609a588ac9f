//! Finding clang and llvm-spirv: where the application or the environment says, else on `PATH`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::compiler;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, Chosen, program_in};

pub(super) const CLANG: &str = "KILN_CLANG";
pub(super) const LLVM_SPIRV: &str = "KILN_LLVM_SPIRV";

/// The version that this crate is tested with, taken before others.
const TESTED: u32 = 15;

/// The versions that are looked for by name, as in `clang-15`.
const VERSIONS: std::ops::RangeInclusive<u32> = 13..=40;

/// From this version on, clang can write SPIR-V itself.
const DIRECT: u32 = 20;

/// A tool that does not tell its version in so long hangs.
const PROBE: Duration = Duration::from_secs(10);

/// Where to find the tools.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// A path that was chosen, and by whom.
    pub(super) clang: Option<Chosen>,
    pub(super) llvm_spirv: Option<Chosen>,
    /// The value of `PATH`.
    pub(super) path: OsString,
}

/// A program and what it tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    pub(super) path: PathBuf,
    /// Such as `Debian clang version 15.0.6`: the same wherever it is installed.
    pub(super) version: String,
    pub(super) major: u32,
}

/// The tools that translate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tools {
    pub(super) clang: Tool,
    /// `None` if clang writes SPIR-V itself.
    pub(super) llvm_spirv: Option<Tool>,
}

impl Tools {
    /// What stands for them in keys: equal on every machine that has the same versions.
    pub(crate) fn identity(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let llvm_spirv = self.llvm_spirv.iter().map(|tool| ("llvm-spirv", &*tool.version));
        std::iter::once(("clang", &*self.clang.version)).chain(llvm_spirv)
    }

    /// Looks for the tools and asks them for their versions. Blocks.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) for a chosen path that is not what it should be;
    /// [`Unsupported`](ErrorKind::Unsupported), with what to install, if there are no tools.
    pub(super) fn find(places: &Places) -> Result<Self> {
        let candidates = |chosen: &Option<Chosen>, name: &str, marker: &str| match chosen {
            Some(chosen) => {
                Ok(vec![probe(&chosen.path, marker).map_err(|why| chosen.refused(why))?])
            }
            None => Ok(on_path(places, name, marker)),
        };
        let clangs = candidates(&places.clang, "clang", "clang version")?;
        let translators = candidates(&places.llvm_spirv, "llvm-spirv", "LLVM version")?;
        for clang in &clangs {
            if let Some(found) = translators.iter().find(|found| found.major == clang.major) {
                return Ok(Self { clang: clang.clone(), llvm_spirv: Some(found.clone()) });
            }
        }
        // Only one that was chosen: of some texts, clang 22 writes modules that are not valid.
        if places.clang.is_some()
            && places.llvm_spirv.is_none()
            && let Some(clang) = clangs.iter().find(|clang| writes_spirv(clang))
        {
            return Ok(Self { clang: clang.clone(), llvm_spirv: None });
        }
        Err(missing(places, &clangs, &translators))
    }
}

fn missing(places: &Places, clangs: &[Tool], translators: &[Tool]) -> Error {
    let found: Vec<_> = clangs
        .iter()
        .chain(translators)
        .map(|tool| format!("`{}` ({})", tool.path.display(), tool.version))
        .collect();
    let found = if found.is_empty() {
        "neither is there".to_owned()
    } else {
        format!("there is only {}", found.join(", "))
    };
    // The tool that was chosen has to be met by the other.
    let chosen = match (&places.clang, &places.llvm_spirv) {
        (Some(_), None) => clangs.first(),
        (None, Some(_)) => translators.first(),
        (Some(clang), Some(llvm_spirv)) => {
            let message = format!(
                "{}, {}: clang and llvm-spirv have to be of one major version; {found}",
                clang.by, llvm_spirv.by
            );
            return Error::new(ErrorKind::Configuration, message);
        }
        (None, None) => None,
    };
    let major = chosen.map_or(TESTED, |tool| tool.major);
    Error::unsupported(format!(
        "OpenCL C is translated to SPIR-V by `clang` and `llvm-spirv` of one version, and {found}; \
         install them, on Debian and Ubuntu by `apt install clang-{major} llvm-spirv-{major}`, or say \
         with {CLANG} and {LLVM_SPIRV} where they are"
    ))
}

/// The programs of this name that work, without a version in the name, then by preference.
fn on_path(places: &Places, name: &str, marker: &str) -> Vec<Tool> {
    let others = VERSIONS.rev().filter(|version| *version != TESTED);
    let names = std::iter::once(name.to_owned())
        .chain(std::iter::once(TESTED).chain(others).map(|version| format!("{name}-{version}")));
    let mut tools = Vec::<Tool>::new();
    for name in names {
        let mut folders = std::env::split_paths(&places.path);
        let Some(path) = folders.find_map(|folder| program_in(&folder, &name)) else { continue };
        match probe(&path, marker) {
            Ok(tool) => tools.push(tool),
            Err(why) => tracing::debug!(path = %path.display(), %why, "a compiler is not used"),
        }
    }
    tools
}

/// Asks a program for its version, which stands in a line with `marker`; or says why not.
fn probe(path: &Path, marker: &str) -> Result<Tool, String> {
    let output = ask(path, "--version")?;
    let line = output.lines().map(str::trim).find(|line| line.contains(marker));
    let line = line.ok_or_else(|| {
        format!("it does not tell its version by a line with `{marker}`, so it is another program")
    })?;
    let (_, version) = line.split_once(marker).unwrap_or_default();
    let digits = version.trim_start().split(|c: char| !c.is_ascii_digit()).next();
    let major = digits.and_then(|digits| digits.parse().ok());
    let major = major.ok_or_else(|| format!("its version cannot be read from `{line}`"))?;
    Ok(Tool { path: path.to_owned(), version: line.to_owned(), major })
}

fn writes_spirv(clang: &Tool) -> bool {
    let targets = || ask(&clang.path, "--print-targets").unwrap_or_default();
    clang.major >= DIRECT && targets().lines().any(|line| line.trim().starts_with("spirv64 "))
}

fn ask(path: &Path, question: &str) -> Result<String, String> {
    let ended =
        process::run(compiler(path, [question]), b"", PROBE).map_err(|error| error.to_string())?;
    if !ended.status.success() {
        let how = process::in_words(ended.status);
        return Err(format!("asked for `{question}`, it {how}: {}", ended.log.trim()));
    }
    Ok(String::from_utf8_lossy(&ended.output).into_owned())
}
