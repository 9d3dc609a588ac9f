//! Macros that expand to the time of a compile. Builds of a text with such a macro differ from each other,
//! although all inputs that a key covers are the same.

/// Macros that expand to the time when a text was compiled, or last changed.
const MACROS: [&str; 3] = ["__TIME__", "__DATE__", "__TIMESTAMP__"];

/// Length of the shortest part of a macro's name that counts if a text pastes tokens together.
const SHORTEST_PART: usize = 3;

/// Whether an OpenCL C text names one of the macros, outside of comments and literals. If a text pastes tokens
/// together, parts of their names count as well.
pub(crate) fn tells_time(text: &[u8]) -> bool {
    // Nearly all texts return here. A name may continue on another line.
    if !text.windows(3).any(|three| matches!(three, b"__T" | b"__D"))
        && !text.contains(&b'\\')
        && !has_word(text, b"??/")
        && !pastes(text)
    {
        return false;
    }
    let text = spliced(text);
    let pastes = pastes(&text);
    let mut tells = false;
    each_identifier(&text, |name| {
        let is_part = |whole: &str| {
            pastes
                && name.len() >= SHORTEST_PART
                && name.iter().any(u8::is_ascii_uppercase)
                && (whole.as_bytes().starts_with(name) || whole.as_bytes().ends_with(name))
        };
        tells |= MACROS.iter().any(|whole| whole.as_bytes() == name || is_part(whole));
    });
    tells
}

/// Whether build options name one of the macros, as in `-D BUILT=__TIME__`.
pub(crate) fn options_tell_time(options: &str) -> bool {
    MACROS.iter().any(|name| options.contains(name))
}

fn pastes(text: &[u8]) -> bool {
    [&b"##"[..], b"%:%:", b"??=??="].iter().any(|operator| has_word(text, operator))
}

fn has_word(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

/// Joins continued lines, even if blanks precede the end of the line.
fn spliced(text: &[u8]) -> Vec<u8> {
    let mut spliced = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, ..] = rest {
        let backslash = match rest {
            [b'\\', ..] => 1,
            [b'?', b'?', b'/', ..] => 3,
            _ => 0,
        };
        let behind = &rest[backslash..];
        let blanks =
            behind.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | 0x0b | 0x0c)).count();
        let end = match &behind[blanks..] {
            [b'\r', b'\n', ..] => 2,
            [b'\r' | b'\n', ..] => 1,
            _ => 0,
        };
        if backslash > 0 && end > 0 {
            rest = &behind[blanks + end..];
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
    while let [first, behind @ ..] = rest {
        rest = match rest {
            [b'/', b'/', ..] => from(rest, |part| matches!(part, [b'\n' | b'\r', ..])),
            [b'/', b'*', inside @ ..] => {
                from(inside, |part| part.starts_with(b"*/")).get(2..).unwrap_or_default()
            }
            [b'"' | b'\'', ..] => behind_literal(behind, *first),
            [byte, ..] if is_word(byte) => {
                let length = rest.iter().take_while(|byte| is_word(byte)).count();
                visit(&rest[..length]);
                &rest[length..]
            }
            _ => behind,
        };
    }
}

/// Returns the text from the first matching position on; empty if there is none.
fn from(text: &[u8], is_there: impl Fn(&[u8]) -> bool) -> &[u8] {
    let at = (0..text.len()).find(|&at| is_there(&text[at..])).unwrap_or(text.len());
    &text[at..]
}

/// Returns the text after a literal. The literal ends with its line at the latest: there may be an apostrophe
/// in a line that is not compiled.
fn behind_literal(mut text: &[u8], quote: u8) -> &[u8] {
    loop {
        text = match text {
            [b'\\', _, behind @ ..] => behind,
            [b'\n' | b'\r', ..] | [] => return text,
            [byte, behind @ ..] if *byte == quote => return behind,
            [_, behind @ ..] => behind,
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
            assert!(tells_time(text.as_bytes()), "{text:?}");
        }
        assert!(options_tell_time("-D BUILT=__TIME__"));
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
            assert!(!tells_time(text.as_bytes()), "{text:?}");
        }
        assert!(!options_tell_time("-D BUILT=1 -D TIME=2"));
    }
}
