//! Macros that expand to the time of a compile. Builds of a text with such a macro differ from each other,
//! although all inputs that a key covers are the same.

/// Macros that expand to the time when a text was compiled, or last changed.
const MACROS: [&str; 3] = ["__TIME__", "__DATE__", "__TIMESTAMP__"];

/// Minimum length of a part of a macro's name that is recognized if a text pastes tokens together.
const MIN_PART: usize = 3;

/// Whether an OpenCL C text names one of the macros, outside of comments and literals. If a text pastes tokens
/// together, parts of the macros' names are recognized as well.
pub(crate) fn uses_time(text: &[u8]) -> bool {
    // Nearly all texts return here. A backslash or `??/` may continue a name on another line.
    if !text.windows(3).any(|three| matches!(three, b"__T" | b"__D"))
        && !text.contains(&b'\\')
        && !has_word(text, b"??/")
        && !pastes_tokens(text)
    {
        return false;
    }
    let text = spliced(text);
    let is_pasting = pastes_tokens(&text);
    let mut is_named = false;
    each_identifier(&text, |name| {
        let is_part = |whole: &str| {
            is_pasting
                && name.len() >= MIN_PART
                && name.iter().any(u8::is_ascii_uppercase)
                && (whole.as_bytes().starts_with(name) || whole.as_bytes().ends_with(name))
        };
        is_named |= MACROS.iter().any(|whole| whole.as_bytes() == name || is_part(whole));
    });
    is_named
}

/// Whether build options name one of the macros, as in `-D BUILT=__TIME__`.
pub(crate) fn options_use_time(options: &str) -> bool {
    MACROS.iter().any(|name| options.contains(name))
}

/// Whether a text contains the operator that pastes tokens together.
fn pastes_tokens(text: &[u8]) -> bool {
    [&b"##"[..], b"%:%:", b"??=??="].iter().any(|operator| has_word(text, operator))
}

fn has_word(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

/// Joins continued lines, even if blanks follow the backslash.
fn spliced(text: &[u8]) -> Vec<u8> {
    let mut spliced = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, ..] = rest {
        let backslash = match rest {
            [b'\\', ..] => 1,
            [b'?', b'?', b'/', ..] => 3,
            _ => 0,
        };
        let after = &rest[backslash..];
        let blanks =
            after.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | 0x0b | 0x0c)).count();
        let end = match &after[blanks..] {
            [b'\r', b'\n', ..] => 2,
            [b'\r' | b'\n', ..] => 1,
            _ => 0,
        };
        if backslash > 0 && end > 0 {
            rest = &after[blanks + end..];
        } else {
            spliced.push(*first);
            rest = &rest[1..];
        }
    }
    spliced
}

/// Calls `visit` with each identifier outside comments and literals.
fn each_identifier(text: &[u8], mut visit: impl FnMut(&[u8])) {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = match rest {
            [b'/', b'/', ..] => from_first_match(rest, |part| matches!(part, [b'\n' | b'\r', ..])),
            [b'/', b'*', inside @ ..] => from_first_match(inside, |part| part.starts_with(b"*/"))
                .get(2..)
                .unwrap_or_default(),
            [b'"' | b'\'', ..] => after_literal(after, *first),
            [byte, ..] if is_word(byte) => {
                let length = rest.iter().take_while(|byte| is_word(byte)).count();
                visit(&rest[..length]);
                &rest[length..]
            }
            _ => after,
        };
    }
}

/// Returns the text from the first matching position on; empty if there is none.
fn from_first_match(text: &[u8], is_match: impl Fn(&[u8]) -> bool) -> &[u8] {
    let at = (0..text.len()).find(|&at| is_match(&text[at..])).unwrap_or(text.len());
    &text[at..]
}

/// Returns the text after a literal. The literal ends with its line at the latest: there may be an apostrophe
/// in a line that is not compiled.
fn after_literal(mut text: &[u8], quote: u8) -> &[u8] {
    loop {
        text = match text {
            [b'\\', _, after @ ..] => after,
            [b'\n' | b'\r', ..] | [] => return text,
            [byte, after @ ..] if *byte == quote => return after,
            [_, after @ ..] => after,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_time_macro_is_recognized() {
        for text in [
            "constant char built[] = __TIME__;",
            "constant char built[] = __DATE__ \" \" __TIME__;",
            "#define BUILT __TIMESTAMP__\n",
            "#if defined(__DATE__)\n#endif",
            "__TI\\\nME__",
            "__TI\\ \r\nME__",
            "__TI??/\nME__",
            "/* a comment */__TIME__",
            "// a comment\n__TIME__",
            "\"a \\\" text\"__TIME__",
            "\"/*\" __TIME__ \"*/\"",
            "#error don't\n__TIME__",
            "#define J(a, b) a##b\nJ(__TI, ME__)",
            "#define J(a, b) a##b\nJ(_, _DATE__)",
            "#define J(a, b) a %:%: b\nJ(__TIMESTAMP, __)",
        ] {
            assert!(uses_time(text.as_bytes()), "{text:?}");
        }
        assert!(options_use_time("-D BUILT=__TIME__"));
    }

    #[test]
    fn text_that_only_resembles_a_time_macro_is_ignored() {
        for text in [
            "",
            "kernel void k() {}",
            "// __TIME__",
            "// continued \\\n__TIME__",
            "/* __DATE__\n__TIME__ */",
            "/*/ __TIME__ */",
            "printf(\"__TIME__\");",
            "printf(\"\\\"__TIME__\");",
            "int c = '\"'; // __TIME__ \"",
            "int MY__TIME__ = 0, __TIME__S = 1;",
            "#define J(a, b) a##b\nint J(x, y), DATE, TIME, __tmp;",
            "__FILE__ __LINE__ __COUNTER__ __DEVICE__",
        ] {
            assert!(!uses_time(text.as_bytes()), "{text:?}");
        }
        assert!(!options_use_time("-D BUILT=1 -D TIME=2"));
    }
}
