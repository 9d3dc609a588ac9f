//! Finds the directives in an OpenCL C text without a preprocessor.
//!
//! The scanner follows the phases of translation that precede directives: trigraphs, continued lines and
//! comments. If compilers differ, or a text is malformed, it follows each reading. It may find a directive that
//! no compiler sees, but it misses none.
//!
//! Time is linear in the size of the text. Memory is linear in the longest directive.

use std::borrow::Cow;
use std::mem;

/// Tokens that begin a directive.
const INTRODUCERS: [&[u8]; 3] = [b"#", b"%:", b"??="];

/// Length of the longest introducer.
const MAX_INTRODUCER_LENGTH: usize = 3;

/// Maximum length of a directive's name, with a margin.
const MAX_WORD_LENGTH: usize = 32;

/// Words before a file's name, in whose quotes and brackets there are no escapes or comments.
const BEFORE_NAMES: [&[u8]; 7] = [
    b"include",
    b"include_next",
    b"import",
    b"embed",
    b"__has_include(",
    b"__has_include_next(",
    b"__has_embed(",
];

/// Calls `visit` with each directive that a text may have, from its introducer on. Continued lines are joined,
/// and each comment becomes one blank. Some directives may be visited more than once.
pub(super) fn each_directive(text: &[u8], mut visit: impl FnMut(&[u8])) {
    for reading in readings(text) {
        let mut scanner = Scanner { is_code: true, comment: None, visit: &mut visit };
        for line in (Lines { rest: Some(without_mark(text)), reading }) {
            scanner.line(&line);
        }
        scanner.finish();
    }
}

/// Removes a byte order mark, which is not part of the text.
fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text)
}

/// A way in which a compiler may read the characters of a text.
#[derive(Clone, Copy)]
struct Reading {
    has_trigraphs: bool,
    /// Whether a line is also continued if blanks follow the backslash at its end.
    allows_trailing_blanks: bool,
}

/// Returns the readings that differ for a text.
fn readings(text: &[u8]) -> impl Iterator<Item = Reading> {
    let any_trigraph = text.windows(3).any(|three| trigraph(three).is_some());
    let all = [(true, true), (false, true), (true, false), (false, false)];
    let any_blanks = text.windows(2).enumerate().any(|(at, two)| {
        matches!(two, [b'\\' | b'/', b' ' | b'\t' | 0x0b | 0x0c]) && ends_in_blanks(&text[at + 1..])
    });
    let differs = move |&(has_trigraphs, allows_trailing_blanks): &(bool, bool)| {
        (has_trigraphs || any_trigraph) && (allows_trailing_blanks || any_blanks)
    };
    let reading =
        |(has_trigraphs, allows_trailing_blanks)| Reading { has_trigraphs, allows_trailing_blanks };
    all.into_iter().filter(differs).map(reading)
}

/// Whether only blanks precede the end of the line.
fn ends_in_blanks(text: &[u8]) -> bool {
    let next = text.iter().find(|byte| !is_blank(**byte));
    next.is_none_or(|byte| matches!(byte, b'\n' | b'\r'))
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | 0)
}

/// Returns the character that a trigraph stands for.
fn trigraph(text: &[u8]) -> Option<u8> {
    Some(match text {
        [b'?', b'?', b'=', ..] => b'#',
        [b'?', b'?', b'/', ..] => b'\\',
        [b'?', b'?', b'\'', ..] => b'^',
        _ => return None,
    })
}

/// Lines of a text under a reading, with continued lines joined.
struct Lines<'t> {
    rest: Option<&'t [u8]>,
    reading: Reading,
}

impl<'t> Lines<'t> {
    /// Returns the next line as it is in the text.
    fn physical(&mut self) -> Option<&'t [u8]> {
        let rest = self.rest?;
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let Some(end) = end else { return self.rest.take() };
        let is_pair = rest[end..].starts_with(b"\r\n");
        self.rest = Some(&rest[end + 1 + usize::from(is_pair)..]);
        Some(&rest[..end])
    }

    /// Replaces the trigraphs of a line, if the reading has them.
    fn with_trigraphs(&self, line: &'t [u8]) -> Cow<'t, [u8]> {
        if !self.reading.has_trigraphs || !line.windows(2).any(|two| two == b"??") {
            return line.into();
        }
        let (mut translated, mut at) = (Vec::with_capacity(line.len()), 0);
        while let Some(&byte) = line.get(at) {
            let stands_for = trigraph(&line[at..]);
            translated.push(stands_for.unwrap_or(byte));
            at += if stands_for.is_some() { 3 } else { 1 };
        }
        translated.into()
    }

    /// Returns the length of a line before the backslash that continues it, if it is continued.
    fn continued_length(&self, line: &[u8]) -> Option<usize> {
        let end = if self.reading.allows_trailing_blanks {
            line.iter().rposition(|byte| !is_blank(*byte))?
        } else {
            line.len().checked_sub(1)?
        };
        (line[end] == b'\\').then_some(end)
    }
}

impl<'t> Iterator for Lines<'t> {
    type Item = Cow<'t, [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut joined: Option<Vec<u8>> = None;
        loop {
            let Some(line) = self.physical() else { return joined.map(Cow::Owned) };
            let line = self.with_trigraphs(line);
            if let Some(length) = self.continued_length(&line) {
                joined.get_or_insert_default().extend_from_slice(&line[..length]);
                continue;
            }
            let Some(mut joined) = joined else { return Some(line) };
            joined.extend_from_slice(&line);
            return Some(joined.into());
        }
    }
}

/// A line without its comments, as far as it is relevant: all of a directive, and the beginning of any other
/// line.
#[derive(Default)]
struct Line {
    text: Vec<u8>,
}

impl Line {
    fn is_directive(&self) -> bool {
        INTRODUCERS.iter().any(|introducer| self.text.starts_with(introducer))
    }

    /// Appends bytes. Leading and repeated blanks are left out.
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if is_blank(byte) && self.text.last().is_none_or(|last| is_blank(*last)) {
                continue;
            }
            if self.text.len() >= 3 && !self.is_directive() {
                return;
            }
            self.text.push(byte);
        }
    }

    /// Whether the name of a file comes next.
    fn is_before_name(&self) -> bool {
        let text = self.text.trim_ascii_end();
        let is_last = |word: &&[u8]| text.ends_with(word);
        self.is_directive() && BEFORE_NAMES.iter().any(is_last)
    }

    /// Truncates the line to the introducer and the word that follows it.
    fn shorten(&mut self) {
        let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        let is_before = |byte: &&u8| b"#%:?=".contains(*byte) || is_blank(**byte);
        let before = self.text.iter().take_while(is_before).count().min(MAX_INTRODUCER_LENGTH + 1);
        let word = self.text[before..].iter().take_while(is_word).count().min(MAX_WORD_LENGTH);
        self.text.truncate(before + word);
    }
}

/// Scanner of the lines of a text.
struct Scanner<'v, V> {
    /// Whether the next line may begin outside of a comment.
    is_code: bool,
    /// Line that contains the comment, if the next line may begin inside of one.
    comment: Option<Line>,
    visit: &'v mut V,
}

impl<V: FnMut(&[u8])> Scanner<'_, V> {
    /// Scans a line.
    fn line(&mut self, line: &[u8]) {
        let (is_code, comment) = (mem::take(&mut self.is_code), self.comment.take());
        if is_code {
            self.scan(Line::default(), line);
        }
        if let Some(before) = comment {
            match comment_end(line) {
                Some(end) => self.scan(before, &line[end..]),
                None => self.open_comment(before),
            }
        }
    }

    /// Ends the text.
    fn finish(&mut self) {
        if let Some(line) = self.comment.take() {
            self.end(&line);
        }
    }

    /// Scans text outside of comments, which follows the text in `line`.
    fn scan(&mut self, mut line: Line, text: &[u8]) {
        // A raw string literal of C++ for OpenCL may contain anything and end on another line, so the next line
        // may also be code.
        self.is_code |= text.windows(2).any(|two| two == b"R\"");
        // Searched once, so that the time is linear in the size of the text.
        let last_position = |close: u8| text.iter().rposition(|byte| *byte == close);
        let (last_bracket, last_quote) = (last_position(b'>'), last_position(b'"'));
        let mut never_closed = Vec::new();
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let taken = match *rest {
                [b'/', b'/', ..] => break,
                [b'/', b'*', ..] => {
                    line.push(b" ");
                    match comment_end(&rest[2..]) {
                        Some(end) => at += 2 + end,
                        None => return self.open_comment(line),
                    }
                    continue;
                }
                [open @ (b'<' | b'"'), ..] if line.is_before_name() => {
                    let (close, last) = match open {
                        b'<' => (b'>', last_bracket),
                        _ => (open, last_quote),
                    };
                    let last = last.filter(|last| *last > at);
                    let end = last.and_then(|_| rest[1..].iter().position(|byte| *byte == close));
                    end.map_or(1, |end| end + 2)
                }
                [quote @ (b'"' | b'\''), ..] if !never_closed.contains(&quote) => {
                    let length = literal_length(rest);
                    if length.is_none() {
                        // Some compilers take the rest of the line as part of an unclosed literal.
                        never_closed.push(quote);
                        self.end_with(&mut line, rest);
                    }
                    length.unwrap_or(1)
                }
                _ => 1,
            };
            line.push(&rest[..taken]);
            at += taken;
        }
        self.end(&line);
    }

    /// Ends a line outside of comments, and visits it if it is a directive.
    fn end(&mut self, line: &Line) {
        self.is_code = true;
        if line.is_directive() {
            (self.visit)(&line.text);
        }
    }

    /// Ends a line under the reading in which `rest` belongs to it. Keeps in `line` the part that other
    /// readings need.
    fn end_with(&mut self, line: &mut Line, rest: &[u8]) {
        self.is_code = true;
        if line.is_directive() {
            let mut whole = mem::take(line);
            whole.push(rest);
            self.end(&whole);
            whole.shorten();
            *line = whole;
        }
    }

    /// Keeps a line that continues after a comment. If two lines are possible, directives take precedence.
    fn open_comment(&mut self, line: Line) {
        match &mut self.comment {
            None => self.comment = Some(line),
            Some(open) if open.is_directive() && line.is_directive() => {
                open.push(b" ");
                open.push(&line.text);
            }
            Some(open) if line.is_directive() || (line.text.is_empty() && !open.is_directive()) => {
                *open = line;
            }
            Some(_) => {}
        }
    }
}

/// Returns the length of the rest of a comment, including its end.
fn comment_end(text: &[u8]) -> Option<usize> {
    text.windows(2).position(|two| two == b"*/").map(|at| at + 2)
}

/// Returns the length of the literal at the beginning of a text.
fn literal_length(text: &[u8]) -> Option<usize> {
    let (&quote, rest) = text.split_first()?;
    let mut is_escaped = false;
    for (at, &byte) in rest.iter().enumerate() {
        match byte {
            _ if mem::take(&mut is_escaped) => {}
            b'\\' => is_escaped = true,
            _ if byte == quote => return Some(at + 2),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directives(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        each_directive(text.as_bytes(), |directive| {
            found.push(String::from_utf8_lossy(directive).into_owned());
        });
        found
    }

    #[test]
    fn directives_are_found_in_code_and_not_in_comments() {
        for (text, expected) in [
            ("#include \"x.h\"", &["#include \"x.h\""][..]),
            (" /* a\n*/ # /* b */  include  <x.h> // c", &["# include <x.h> "]),
            ("/* #include <x.h>\n#include <y.h>\n*/\n#if 1", &["#if 1"]),
            ("// #include <x.h> /*\n#if 1", &["#if 1"]),
            ("// #include \\\n<x.h> /*\n#if 1", &["#if 1"]),
            ("int a; #if 1\n\"\n#if 2", &["#if 2"]),
            ("s = \"/*\"; c = '\"'; t = \"\\\"/*\";\n#if 1", &["#if 1"]),
            (
                "#include <a//b.h>\n#include \"a\\\"\n#if 1",
                &["#include <a//b.h>", "#include \"a\\\"", "#if 1"],
            ),
            ("#if __has_include( <a/*b.h>)\n#if 1", &["#if __has_include( <a/*b.h>)", "#if 1"]),
            ("#def\\\nine A \\\r\n 1", &["#define A 1"]),
            ("\u{feff}#if 1", &["#if 1"]),
        ] {
            assert_eq!(directives(text), expected, "{text:?}");
        }
    }

    /// Some compilers treat the text as a comment, others do not.
    #[test]
    fn every_interpretation_of_malformed_text_is_followed() {
        for text in [
            "#error don't /*\n#include <x.h>",
            "#error don't \" /* '\n#include <x.h>",
            "s = R\"( \" /* )\";\n#include <x.h>",
            "// a \\ \n/*\n#include <x.h>",
            "// a ??/\n/* */\n#include <x.h>",
            "a = b??' /* ';\n*/\n#include <x.h>",
            "a = b??' /* ';\n#include <x.h>",
        ] {
            let found = directives(text);
            assert!(found.iter().any(|found| found == "#include <x.h>"), "{text:?}: {found:?}");
        }
    }

    /// The bytes that are visited bound the time and the memory of the caller.
    #[test]
    fn the_number_of_visited_bytes_is_linear_in_the_text() {
        const LENGTH: usize = 1 << 16;
        for part in [
            "#include /*\n*/ ' /*\n",
            "#include <",
            "#include \"",
            "#include /*\n",
            "#include /* */",
            "' /*\n*/",
            "'\\",
            "\"\\\"'",
            "#",
            "#\n",
            "??=??/\n",
            "?",
            "\\\n",
            "\\ \n",
            "#define A \\\n",
            "/* */",
            "*/ /*",
            "<",
            " ",
            "R\" /*\n",
            "__has_include(<",
        ] {
            for start in ["", "#", "#include /*", "#include '/*\n", "'/*\n"] {
                let text = format!("{start}{}", part.repeat(LENGTH / part.len()));
                let mut visited = 0;
                each_directive(text.as_bytes(), |directive| visited += directive.len());
                assert!(visited <= 8 * text.len(), "{start:?}, {part:?}: {visited} bytes");
            }
        }
    }
}
