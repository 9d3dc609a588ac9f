//! Directives of an input: what to do with its module, line by line.

use super::case::Language;
use super::claims::Claim;

/// List of the directives, for messages.
pub(super) const KNOWN: &str =
    "the directives are accesses, check, clang, emit, fuse, guard, limits, module and partition";

/// Line of an input that says what to do, with the lines that belong to it.
#[derive(Debug)]
pub(super) struct Directive {
    /// Number of the line, from 1.
    pub(super) line: usize,
    /// First word.
    pub(super) word: String,
    /// Text behind the first word.
    pub(super) rest: String,
    /// Lines below it that are indented.
    pub(super) body: Vec<String>,
    pub(super) claims: Vec<Claim>,
}

impl Directive {
    /// Returns what is wrong if lines belong to the directive that it has no use for.
    fn misplaced(&self) -> Option<String> {
        let Self { line, word, .. } = self;
        let (has_launches, has_result) = match word.as_str() {
            "fuse" | "partition" => (true, true),
            "clang" | "module" => (false, false),
            _ => (false, true),
        };
        if !has_launches && !self.body.is_empty() {
            return Some(format!("line {line}: no indented lines belong to `{word}`"));
        }
        let is_claimed = !has_result && !self.claims.is_empty();
        is_claimed.then(|| format!("line {line}: `{word}` has no result that a claim is about"))
    }

    /// Returns the directive as it was given, for the results.
    pub(super) fn echo(&self) -> String {
        let first = format!("> {} {}", self.word, self.rest);
        let mut echo = format!("{}\n", first.trim_end());
        for line in &self.body {
            echo += &format!(">   {line}\n");
        }
        echo
    }
}

/// Returns the text of a directive in a line, if the line has one.
pub(super) fn in_line(line: &str, language: Language) -> Option<&str> {
    let rest = match language {
        Language::OpenClC => line.strip_prefix("//@")?,
        Language::Assembly => line.strip_prefix(";@")?,
        Language::Directives if line.trim().is_empty() || line.starts_with('#') => return None,
        Language::Directives => return Some(line),
    };
    Some(rest.strip_prefix(' ').unwrap_or(rest))
}

/// Returns the directives of an input.
///
/// # Errors
///
/// Returns what is wrong with a line.
pub(super) fn parse(text: &str, language: Language) -> Result<Vec<Directive>, String> {
    let mut directives: Vec<Directive> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some(content) = in_line(line, language) else { continue };
        let line = at + 1;
        let (word, rest) = content.trim().split_once(' ').unwrap_or((content.trim(), ""));
        let above = directives.last_mut().filter(|_| content.starts_with(' ') || is_claim(word));
        match above {
            Some(above) if is_claim(word) => above.claims.push(Claim::parse(line, word, rest)?),
            Some(above) => above.body.push(content.trim().to_owned()),
            None if content.starts_with(' ') || is_claim(word) => {
                return Err(format!("line {line}: no directive is above `{}`", content.trim()));
            }
            None => directives.push(Directive {
                line,
                word: word.to_owned(),
                rest: rest.trim().to_owned(),
                body: Vec::new(),
                claims: Vec::new(),
            }),
        }
    }
    if directives.is_empty() {
        return Err("there is no directive".to_owned());
    }
    match directives.iter().find_map(Directive::misplaced) {
        Some(why) => Err(why),
        None => Ok(directives),
    }
}

fn is_claim(word: &str) -> bool {
    matches!(word, "contains" | "count" | "lacks")
}
