//! Whether a text reads files.

/// The directives that read files, and the operators that look for some.
const WORDS: [&str; 3] = ["include", "import", "embed"];

/// What begins a directive, or ends a comment that may stand within one.
const BEFORE: [&str; 4] = ["#", "%:", "??=", "*/"];

/// Whether a text may include files. Never says no to one that does.
pub(crate) fn includes_files(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    splice(&text).lines().any(|line| {
        // The last place of a word leaves the most before it.
        let last = WORDS.iter().filter_map(|word| line.rfind(word)).max();
        last.is_some_and(|last| BEFORE.iter().any(|before| line[..last].contains(before)))
    })
}

/// The text with continued lines joined, as the preprocessor joins them: also where blanks stand
/// between the backslash and the end of the line.
fn splice(text: &str) -> String {
    let text = text.replace("??/", "\\").replace("\r\n", "\n").replace('\r', "\n");
    let mut spliced = String::with_capacity(text.len());
    for line in text.split('\n') {
        let end = line.trim_end_matches([' ', '\t', '\x0b', '\x0c']);
        match end.strip_suffix('\\') {
            Some(continued) => spliced.push_str(continued),
            None => {
                spliced.push_str(line);
                spliced.push('\n');
            }
        }
    }
    spliced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_include_is_seen() {
        for text in [
            "#include \"x.h\"",
            "  #  include <x.h>\nkernel void k() {}",
            "/* a */ # /* b */ include NAME",
            "/* a\n*/ #include_next <x.h>",
            "# /* a\n b */ include <x.h>",
            "#inc\\\nlude \"x.h\"",
            "#inc\\ \nlude \"x.h\"",
            "#inc??/\r\nlude \"x.h\"",
            "%:include \"x.h\"",
            "??=include \"x.h\"",
            "#import \"x.h\"",
            "#embed \"x.h\"",
            "#if __has_include(\"x.h\")\n#endif",
            "kernel void k() {}\r\n#include \"x.h\"\r\n",
            "// include what \\\n#include \"x.h\"",
        ] {
            assert!(includes_files(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn the_word_alone_includes_nothing() {
        for text in [
            "kernel void k(global float *included) { included[0] = 1; }",
            "// This is important: nothing is included.\nkernel void k() {}",
            "#define A 1 \\\n + 2\nkernel void k() {}",
        ] {
            assert!(!includes_files(text.as_bytes()), "{text:?}");
        }
    }
}
