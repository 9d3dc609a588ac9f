//! Cases: an input, the modules that it is about, and the results that are expected.

use std::fs;
use std::path::{Path, PathBuf};

use super::claims::Claim;
use super::directives::{self, Directive};
use super::expected::{self, Update};
use super::program::Program;
use super::{Outcome, accesses, check, emit, fuse, partition, translate};

/// Kind of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    /// Kernels in OpenCL C, with the SPIR-V that was made of them in the file beside it.
    OpenClC,
    /// SPIR-V as text, with the module that was assembled from it in the file beside it.
    Assembly,
    /// Directives alone, about modules in `tests/data` of the repository.
    Directives,
}

impl Language {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "cl" => Some(Self::OpenClC),
            "spvasm" => Some(Self::Assembly),
            "case" => Some(Self::Directives),
            _ => None,
        }
    }
}

/// Input with the results that are expected.
#[derive(Debug)]
pub(super) struct Case {
    /// Path of the input below the folder of all cases, with `::` between its parts.
    pub(super) name: String,
    input: PathBuf,
    language: Language,
}

impl Case {
    /// Returns the cases in a folder and below it, by their names.
    pub(super) fn all(folder: &Path) -> Result<Vec<Self>, String> {
        let files = files_below(folder)?;
        let case = |input: PathBuf| {
            let language = Language::of(&input)?;
            let path = input.strip_prefix(folder).ok()?.with_extension("");
            let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
            Some(Self { name: parts.join("::"), input, language })
        };
        let mut cases: Vec<_> = files.into_iter().filter_map(case).collect();
        cases.sort_by(|one, other| one.name.cmp(&other.name));
        match cases.windows(2).find(|pair| pair[0].name == pair[1].name) {
            Some(pair) => Err(format!("there are two inputs of the case {}", pair[0].name)),
            None => Ok(cases),
        }
    }

    /// Returns the files that belong to the case.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![self.input.clone(), self.expected()];
        if self.language != Language::Directives {
            files.push(self.module());
        }
        files
    }

    fn expected(&self) -> PathBuf {
        self.input.with_extension("expected")
    }

    /// Returns the path of the module that was made of the input.
    fn module(&self) -> PathBuf {
        self.input.with_extension("spv")
    }

    /// Runs all directives of the case, and compares their results with those that are expected. Writes the latter if
    /// `update` says so.
    ///
    /// # Errors
    ///
    /// Returns what is wrong: with the input, with a claim, or all differences between the results.
    pub(super) fn run(&self, update: Update) -> Result<(), String> {
        self.results(update).map_err(|why| format!("{}: {why}", self.input.display()))
    }

    fn results(&self, update: Update) -> Result<(), String> {
        let text = read_text(&self.input)?;
        let directives = directives::parse(&text, self.language)?;
        let source = match self.language {
            Language::Directives => None,
            _ => Some(expected::digest(&text, self.language)),
        };
        if update == Update::Modules && self.language != Language::Directives {
            let own = directives.iter().find(|known| known.word == "clang");
            translate::write(&self.input, &self.module(), own.map(|known| known.rest.as_str()))?;
        }
        let mut found = String::new();
        let mut problems = Vec::new();
        let mut programs = match self.language {
            Language::Directives => Vec::new(),
            _ => vec![Program::read(&self.module())?],
        };
        for directive in &directives {
            match directive.word.as_str() {
                // It says how the module is made.
                "clang" => {}
                "module" => programs = shared(directive)?,
                _ => {
                    found += &result(directive, &programs, &mut problems)
                        .map_err(|why| format!("line {}: {why}", directive.line))?;
                }
            }
        }
        if let Err(why) = expected::compare(&self.expected(), source.as_deref(), &found, update) {
            problems.push(why);
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
    }
}

/// Returns the modules in `tests/data` of the repository that a directive names.
fn shared(directive: &Directive) -> Result<Vec<Program>, String> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    directive.rest.split_whitespace().map(|name| Program::read(&data.join(name))).collect()
}

/// Returns the directive with its results for all modules. Adds claims that do not hold to `problems`.
fn result(
    directive: &Directive,
    programs: &[Program],
    problems: &mut Vec<String>,
) -> Result<String, String> {
    let run = match directive.word.as_str() {
        "accesses" => accesses::accesses,
        "limits" => accesses::limits,
        "check" => check::check,
        "emit" => emit::emit,
        "fuse" => fuse::fuse,
        "guard" => check::guard,
        "partition" => partition::partition,
        other => return Err(format!("`{other}` is not a directive; {}", directives::KNOWN)),
    };
    if programs.is_empty() {
        return Err("no module is given: write `module NAME.spv` above".to_owned());
    }
    let outcomes = programs.iter().map(|program| run(program, directive));
    let outcomes = outcomes.collect::<Result<Vec<_>, _>>()?;
    for (program, outcome) in programs.iter().zip(&outcomes) {
        let problem = |claim: &Claim| {
            let why = claim.problem(outcome)?;
            Some(format!("line {}: in {}: {why}", claim.line, program.name))
        };
        problems.extend(directive.claims.iter().filter_map(problem));
    }
    Ok(directive.echo() + &together(programs, &outcomes) + "\n")
}

/// Returns the results for several modules, once if they are equal.
fn together(programs: &[Program], outcomes: &[Outcome]) -> String {
    let lines = |outcome: &Outcome| format!("{}\n", outcome.shown.trim_end());
    let is_same = |outcome: &Outcome| outcome.shown == outcomes[0].shown;
    if outcomes.iter().all(is_same) {
        return lines(&outcomes[0]);
    }
    let named = programs.iter().zip(outcomes);
    named.map(|(program, outcome)| format!("in {}:\n{}", program.name, lines(outcome))).collect()
}

pub(super) fn read_text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns all files in a folder and below it, in order.
pub(super) fn files_below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let problem = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        match path.is_dir() {
            true => files.extend(files_below(&path)?),
            false => files.push(path),
        }
    }
    files.sort();
    Ok(files)
}
