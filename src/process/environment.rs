//! The environment variables that Kiln reads, and a check for misspellings of their names.
//!
//! `docs/environment.md` is the documentation's table of variables. The check reads the names from it.

use std::ffi::OsString;

use crate::error::{Error, ErrorKind, Result};
use crate::process::{event_log, warning};

/// The documentation's table of the variables that users set.
const TABLE: &str = include_str!("../docs/environment.md");

/// Variables read by Kiln's own tests, benches and scripts, and those that its processes set for each other.
const INTERNAL: [&str; 20] = [
    "KILN_ACCESS_CASES",
    "KILN_BOUNDS_CASES",
    "KILN_CHAINS_ONLY",
    "KILN_CHECKED_CASES",
    "KILN_CHECKED_LAUNCHES",
    "KILN_CHURN_SECONDS",
    "KILN_COLD_RUNS",
    "KILN_FAULTS",
    "KILN_FUSION_BENCH",
    "KILN_FUSION_CASES",
    "KILN_FUSION_DUMP",
    "KILN_FUSION_ROUNDS",
    "KILN_FUSION_SEED",
    "KILN_GPU_RUNNER",
    "KILN_GRAPH_CASES",
    "KILN_IMAGE_CASES",
    "KILN_INSTRUCTION_CASES",
    "KILN_IS_BUILD_CHILD",
    "KILN_MALFORMED",
    "KILN_SEED",
];

/// Prefixes of further variables read by Kiln's tests and scripts.
const INTERNAL_PREFIXES: [&str; 4] =
    ["KILN_REQUIRE_", "KILN_SOAK_", "KILN_STAND_INS_", "KILN_TEST_"];

/// Prefix of the names of all variables that Kiln reads.
const PREFIX: &str = "KILN_";

/// Minimum Jaro-Winkler similarity (0 to 1) at which a name is taken for a misspelling of a known one.
const MIN_SIMILARITY: f64 = 0.8;

/// Warns of each variable of this process that has Kiln's prefix but is not a known name.
///
/// # Errors
///
/// [`Configuration`](ErrorKind::Configuration) if `KILN_WARNINGS` has another value than `on` or `off`, or
/// `KILN_LOG` one that is not a level.
pub(crate) fn check() -> Result<()> {
    if let Some(value) = std::env::var_os(warning::VARIABLE)
        && !["", "on", "off"].iter().any(|known| value == *known)
    {
        let message = format!("`{}` is neither `on` nor `off`", value.display());
        return Err(Error::new(ErrorKind::Configuration, message).within(warning::VARIABLE));
    }
    event_log::start()?;
    for (name, _) in std::env::vars_os() {
        if let Some(message) = misspelling(&name) {
            warning::warn(&message);
        }
    }
    Ok(())
}

/// Returns the warning for a variable that has Kiln's prefix but is not a known name.
fn misspelling(name: &OsString) -> Option<String> {
    let name = name.to_string_lossy();
    let rest = name.strip_prefix(PREFIX)?;
    let is_internal = INTERNAL.contains(&&*name)
        || INTERNAL_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if is_internal || known().any(|known| known == name) {
        return None;
    }
    let rest = rest.to_uppercase();
    let similarity = |known: &str| strsim::jaro_winkler(&rest, &known[PREFIX.len()..]);
    let nearest = known()
        .map(|known| (similarity(known), known))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    let hint = match nearest {
        Some((_, known)) => format!("did you mean `{known}`?"),
        None => "unset it, or see the list in the documentation of `kiln`".to_owned(),
    };
    Some(format!(
        "the environment variable `{name}` is set, but Kiln has no variable of that name; {hint}"
    ))
}

/// Returns the names in the table.
fn known() -> impl Iterator<Item = &'static str> {
    TABLE.split('`').filter(|word| word.starts_with(PREFIX))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn warning_for(name: &str) -> Option<String> {
        misspelling(&OsString::from(name))
    }

    #[test]
    fn known_names_are_accepted() {
        assert_eq!(known().count(), 29);
        for name in known().chain(INTERNAL).chain(["HOME", "KILNS", "KILN", "POCL_DEBUG"]) {
            assert_eq!(warning_for(name), None);
        }
    }

    #[test]
    fn misspellings_are_reported_with_the_nearest_name() {
        for (rest, nearest) in [
            ("CACHE_DRI", "KILN_CACHE_DIR"),
            ("CACHEDIR", "KILN_CACHE_DIR"),
            ("CACHE_DIRECTORY", "KILN_CACHE_DIR"),
            ("MAX_CACHE_SIZE", "KILN_CACHE_MAX_SIZE"),
            ("CACHE_MAXSIZE", "KILN_CACHE_MAX_SIZE"),
            ("DEVICES", "KILN_DEVICE"),
            ("device", "KILN_DEVICE"),
            ("FUSE", "KILN_FUSION"),
            ("CACHE_REMOTE_URL", "KILN_CACHE_REMOTE"),
        ] {
            let name = format!("{PREFIX}{rest}");
            let warning = warning_for(&name).unwrap_or_default();
            assert!(warning.contains(&format!("`{name}`")), "{warning}");
            assert!(warning.ends_with(&format!("did you mean `{nearest}`?")), "{warning}");
        }
        let warning = warning_for(&format!("{PREFIX}WIBBLE")).expect("it is not known");
        assert!(!warning.contains("did you mean"), "{warning}");
    }

    /// The names are collected from the library, its tests, benches and scripts.
    #[test]
    fn every_variable_that_is_read_is_known() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut names = BTreeSet::new();
        let places =
            ["src", "tests", "benches", "examples", "scripts", "fuzz/fuzz_targets", "Makefile"];
        let mut places: Vec<_> = places.iter().map(|place| root.join(place)).collect();
        while let Some(place) = places.pop() {
            if let Ok(folder) = fs::read_dir(&place) {
                places.extend(folder.map(|entry| entry.expect("it can be listed").path()));
                continue;
            }
            let Ok(text) = fs::read_to_string(&place) else { continue };
            for (at, _) in text.match_indices(PREFIX) {
                let is_inside =
                    text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
                let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
                let rest = &text[at..];
                let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                let is_beginning = end == PREFIX.len() || rest[..end].ends_with('_');
                if !is_inside && !is_beginning {
                    names.insert(rest[..end].to_owned());
                }
            }
        }
        let unknown: Vec<_> = names.iter().filter(|name| warning_for(name).is_some()).collect();
        assert!(names.len() > 20 && unknown.is_empty(), "{unknown:?}");
    }
}
