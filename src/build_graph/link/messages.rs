//! Messages about modules, their symbols, and the logs of compilers and linkers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::digest::Digest;
use crate::source::module::Module;

/// Minimum similarity of a name to be suggested in a message; equal names have a similarity of 1.
const MIN_SIMILARITY: f64 = 0.7;

/// Maximum number of names listed in a message.
pub(super) const MAX_NAMES: usize = 3;

/// Phrases in logs of compilers and linkers that precede the name of a missing function, in lower case.
const MISSING_FUNCTION_PHRASES: [&str; 9] = [
    "implicit declaration of function",
    "undefined reference to",
    "undefined symbol",
    "undefined external",
    "undefined function",
    "unresolved extern function",
    "unresolved external symbol",
    "cannot find symbol",
    "symbols not found",
];

/// Phrase in logs of compilers that precedes an undeclared name, which may be a function.
const UNDECLARED_NAME_PHRASE: &str = "use of undeclared identifier";

/// Whether a name in OpenCL C may contain this character.
pub(super) fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether a text calls a function of this name.
fn calls(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        !before.ends_with(is_name_char) && after.trim_start().starts_with('(')
    })
}

/// Returns the functions of these texts that a log reports as undefined.
pub(crate) fn undefined_functions<'log>(log: &'log str, texts: &[&str]) -> BTreeSet<&'log str> {
    let found = log.lines().filter_map(|line| {
        // `to_ascii_lowercase` keeps the length.
        let lower = line.to_ascii_lowercase();
        let end = |phrase: &&str| lower.find(phrase).map(|at| at + phrase.len());
        let missing = MISSING_FUNCTION_PHRASES.iter().filter_map(end).min();
        let rest = &line[missing.or_else(|| end(&UNDECLARED_NAME_PHRASE))?..];
        // `: name`, `'name'`, `` `name(float)'``, `"name"`
        let rest = rest.trim_start_matches(|c: char| !c.is_alphabetic() && c != '_');
        let name = &rest[..rest.find(|c| !is_name_char(c)).unwrap_or(rest.len())];
        let is_function = || missing.is_some() || texts.iter().any(|text| calls(text, name));
        (!name.is_empty() && is_function()).then_some(name)
    });
    found.collect()
}

/// Returns the known names that are similar to `name`, the most similar first.
pub(crate) fn similar_names<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut similar: Vec<_> = known
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .collect();
    similar.sort_by(|(a, first), (b, second)| b.total_cmp(a).then(first.cmp(second)));
    similar.into_iter().take(MAX_NAMES).map(|(_, known)| known).collect()
}

/// Describes a module for messages: by its label, and by its exports and kernels.
pub(crate) fn describe(module: &Module) -> String {
    let digest: Digest = module.digest();
    let label = module.label().map(|label| format!("`{label}` ")).unwrap_or_default();
    let mut text = format!("the {} module {label}{digest:.8}", module.format());
    let kernels = module.kernels().iter().map(String::as_str);
    let mut names: Vec<_> = module.exports().chain(kernels).take(MAX_NAMES + 1).collect();
    if names.len() > MAX_NAMES {
        names[MAX_NAMES] = "..";
    }
    if !names.is_empty() {
        let _ = write!(text, " ({})", names.join(", "));
    }
    text
}
