//! Build options for emitted text.

use crate::compiler::options::words;

/// Returns the build options of a program that apply to emitted text. `options` are in the canonical form
/// that keys cover.
///
/// Options about the source are dropped: macros, include directories, the language's version, warnings that are
/// errors, and the type of constants. They have no meaning for a SPIR-V module, and drivers take one without
/// regard to them. But they would change emitted text: `-D` could rename its declarations. Options about the
/// generated code, such as `-cl-mad-enable`, are kept.
pub(crate) fn options(options: &str) -> String {
    let mut kept = Vec::new();
    let mut words = words(options).into_iter();
    while let Some(word) = words.next() {
        match word {
            "-D" | "-U" | "-I" | "-include" | "-x" => {
                words.next();
            }
            _ if SOURCE_PREFIXES.iter().any(|prefix| word.starts_with(prefix)) => {}
            _ => kept.push(word),
        }
    }
    kept.join(" ")
}

/// Prefixes of options about source text.
const SOURCE_PREFIXES: [&str; 9] = [
    "-D",
    "-U",
    "-I",
    "-include",
    "-x",
    "-cl-std=",
    "-spir-std=",
    "-Werror",
    "-cl-single-precision-constant",
];

#[cfg(test)]
mod tests {
    use super::options;

    #[test]
    fn options_of_source_text_are_dropped_and_others_stay() {
        assert_eq!(options(""), "");
        assert_eq!(
            options(r#"-cl-mad-enable -D A=1 -DB -I "a b" -I/c -w -cl-std=CL3.0 -Werror -g"#),
            "-cl-mad-enable -w -g"
        );
        assert_eq!(options(r"-D 'A=x y' -I a\ b -cl-opt-disable -D"), "-cl-opt-disable");
        assert_eq!(options("-cl-single-precision-constant -cl-mad-enable"), "-cl-mad-enable");
    }
}
