//! Claims about the result of a directive. Unlike the expected results, they are never written anew.

use super::Outcome;

/// Claim about the result of the directive above it.
#[derive(Debug)]
pub(super) struct Claim {
    /// Number of the line, from 1.
    pub(super) line: usize,
    /// Text that is searched for.
    text: String,
    expected: Expected,
}

#[derive(Debug)]
enum Expected {
    Once,
    Never,
    /// Exactly this number of times.
    Times(usize),
}

impl Claim {
    /// Parses `contains TEXT`, `lacks TEXT` or `count NUMBER TEXT`.
    ///
    /// # Errors
    ///
    /// Returns what is missing.
    pub(super) fn parse(line: usize, word: &str, rest: &str) -> Result<Self, String> {
        let malformed = || format!("line {line}: write `{word} TEXT`, or `count NUMBER TEXT`");
        let (expected, text) = match word {
            "contains" => (Expected::Once, rest),
            "lacks" => (Expected::Never, rest),
            _ => {
                let (number, text) = rest.trim().split_once(' ').ok_or_else(malformed)?;
                (Expected::Times(number.parse().map_err(|_| malformed())?), text)
            }
        };
        // A backslash at the end keeps the spaces before it.
        let text = text.trim().trim_end_matches('\\').to_owned();
        if text.is_empty() {
            return Err(malformed());
        }
        Ok(Self { line, text, expected })
    }

    /// Returns why the claim does not hold, if it does not.
    pub(super) fn problem(&self, outcome: &Outcome) -> Option<String> {
        let Outcome { shown, code } = outcome;
        let found = shown.matches(&self.text).count() + code.matches(&self.text).count();
        let expected = match self.expected {
            Expected::Once if found > 0 => return None,
            Expected::Once => "at least once".to_owned(),
            Expected::Never if found == 0 => return None,
            Expected::Never => "never".to_owned(),
            Expected::Times(count) if found == count => return None,
            Expected::Times(count) => format!("{count} times"),
        };
        let Self { text, .. } = self;
        Some(format!("`{text}` is there {found} times, expected {expected}:\n{shown}\n{code}"))
    }
}
