//! Build options as text: their canonical form and their words.

use std::borrow::Cow;

/// Returns build options in the one form that keys cover and drivers get: trimmed, and with each run of white
/// space replaced by one space. The order stays, since later options override earlier ones. Quoted text,
/// characters escaped by a backslash, and everything after a quote that is not closed stay unchanged.
#[must_use]
pub fn canonical_options(options: &str) -> Cow<'_, str> {
    if is_canonical(options) { Cow::Borrowed(options) } else { words(options).join(" ").into() }
}

/// Options by which a compiler may compute less accurate results than OpenCL requires.
pub const RELAXED: [&str; 3] =
    ["-cl-fast-relaxed-math", "-cl-finite-math-only", "-cl-unsafe-math-optimizations"];

/// Options by which results depend on how much of the code a compiler sees.
pub const INEXACT: [&str; 6] = [
    "-cl-denorms-are-zero",
    "-cl-fast-relaxed-math",
    "-cl-finite-math-only",
    "-cl-mad-enable",
    "-cl-no-signed-zeros",
    "-cl-unsafe-math-optimizations",
];

/// Returns options, in the canonical form, without those of [`RELAXED`].
#[must_use]
pub fn without_relaxed(options: &str) -> String {
    let mut kept = words(options);
    kept.retain(|word| !RELAXED.contains(word));
    kept.join(" ")
}

/// Returns whether options are in the canonical form. May return `false` for some that are, such as quoted text
/// with several spaces.
fn is_canonical(options: &str) -> bool {
    let bytes = options.as_bytes();
    let blank = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_whitespace);
    !blank(bytes.first())
        && !blank(bytes.last())
        && bytes.iter().all(|byte| *byte == b' ' || !byte.is_ascii_whitespace())
        && !bytes.windows(2).any(|pair| pair == b"  ")
}

/// Returns the words of options: the parts between white space, outside of quotes and not after a backslash.
/// Quotes and backslashes stay.
#[must_use]
pub fn words(text: &str) -> Vec<&str> {
    let (mut words, mut start) = (Vec::new(), 0);
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match (std::mem::take(&mut escaped), quote) {
            (true, _) => {}
            (false, _) if c == '\\' => escaped = true,
            (false, None) if matches!(c, '"' | '\'') => quote = Some(c),
            (false, None) if c.is_ascii_whitespace() => {
                words.push(&text[start..at]);
                start = at + 1;
            }
            (false, Some(open)) if c == open => quote = None,
            (false, _) => {}
        }
    }
    words.push(&text[start..]);
    words.retain(|word| !word.is_empty());
    words
}

/// Whether an option that is appended to these options, after a space, is a word of its own. It is not if
/// quoted text is not closed or the last character is a backslash.
#[must_use]
pub fn is_complete(options: &str) -> bool {
    const NEXT: &str = "-w";
    words(&format!("{options} {NEXT}")).last() == Some(&NEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_would_absorb_the_next_ones_are_incomplete() {
        for complete in ["", " ", "-w", r#"-D A="b c""#, r"-I a\ b", r"-D A=b\\", "-I 'a b'"] {
            assert!(is_complete(complete), "{complete}");
        }
        for incomplete in [r#"-D A="b c"#, "-I 'a", r"-I a\", r#"-D A=\"b "c"#] {
            assert!(!is_complete(incomplete), "{incomplete}");
        }
    }

    #[test]
    fn only_insignificant_white_space_is_removed() {
        for (given, canonical) in [
            ("", ""),
            (" \t\n", ""),
            ("-w -D A=1", "-w -D A=1"),
            ("  -w \t -D\nA=1 ", "-w -D A=1"),
            (r#"-I "a  b"  -w"#, r#"-I "a  b" -w"#),
            (r"-I 'a  b'  -w", r"-I 'a  b' -w"),
            (r#"-D A="x\"  y"  -w"#, r#"-D A="x\"  y" -w"#),
            (r"-I a\  b", r"-I a\  b"),
            (r"-I a\   b", r"-I a\  b"),
            (r#"-w  "open  end  "#, r#"-w "open  end  "#),
        ] {
            assert_eq!(canonical_options(given), canonical, "{given:?}");
            assert_eq!(canonical_options(canonical), canonical, "{given:?}");
        }
    }

    #[test]
    fn options_for_less_accurate_results_are_left_out() {
        let options = "-cl-fast-relaxed-math -DA=1 -cl-finite-math-only -cl-mad-enable -cl-unsafe-math-optimizations";
        assert_eq!(without_relaxed(options), "-DA=1 -cl-mad-enable");
        assert_eq!(without_relaxed(""), "");
    }
}
