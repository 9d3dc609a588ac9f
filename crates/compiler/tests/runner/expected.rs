//! Expected results of a case: compared, or written anew.

use std::fs;
use std::path::Path;

use super::case::{Language, read_text};
use super::differences::differences;
use super::directives;

/// Files that a run writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Update {
    /// None: the run only compares.
    Nothing,
    /// Expected results.
    Results,
    /// Modules, which are made of their sources by the compilers of this system, and expected results.
    Modules,
}

impl Update {
    /// Returns what the environment variable `KILN_TEST_BLESS` asks for.
    pub(super) fn of_environment() -> Self {
        match std::env::var("KILN_TEST_BLESS").as_deref() {
            Ok("spirv") => Self::Modules,
            Ok(_) => Self::Results,
            Err(_) => Self::Nothing,
        }
    }
}

/// Returns a digest of the source of a module: of the lines without directives, and of the number of others. Lines
/// that results state are those of the source from which the module was made.
pub(super) fn digest(text: &str, language: Language) -> String {
    let is_directive = |line: &str| directives::in_line(line, language).is_some();
    let lines = text.lines().map(|line| if is_directive(line) { "" } else { line });
    let source: String = lines.flat_map(|line| [line, "\n"]).collect();
    blake3::hash(source.as_bytes()).to_hex()[..16].to_owned()
}

/// First word of a line of the expected results that states the digest of the source.
const SOURCE: &str = "source ";

/// Compares results with those that are expected, or writes the latter. `source` is the digest of the source of the
/// module, if it has one.
///
/// # Errors
///
/// Returns all differences.
pub(super) fn compare(
    path: &Path,
    source: Option<&str>,
    found: &str,
    update: Update,
) -> Result<(), String> {
    let known = read_text(path);
    let of_known = known.as_ref().ok().and_then(|text| text.lines().next()?.strip_prefix(SOURCE));
    let made_of = if update == Update::Modules { source } else { of_known };
    if source.is_some() && source != made_of {
        return Err(
            "the source has changed since the module was made of it, or lines moved: make the module anew with \
             KILN_TEST_BLESS=spirv"
                .to_owned(),
        );
    }
    let head = source.map(|source| format!("{SOURCE}{source}\n\n")).unwrap_or_default();
    let text = head + found.trim_end() + "\n";
    if update != Update::Nothing {
        return match known.is_ok_and(|known| known == text) {
            true => Ok(()),
            false => fs::write(path, text).map_err(|error| format!("{}: {error}", path.display())),
        };
    }
    let known = known.map_err(|why| {
        format!("{why}\nthere is no expected result; KILN_TEST_BLESS=1 writes this one:\n{text}")
    })?;
    match known == text {
        true => Ok(()),
        false => Err(format!(
            "the results differ from those expected (-); KILN_TEST_BLESS=1 writes those found (+)\n{}",
            differences(&known, &text)
        )),
    }
}
