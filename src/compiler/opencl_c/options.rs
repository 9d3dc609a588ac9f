//! Build options for emitted text.

use crate::compiler::options::words;

/// Those of a program's build options that a driver's compiler gets with emitted text.
///
/// What is said of the source - macros, directories to include from, the language's version, warnings
/// that are errors, the type of constants - has no meaning for a module of SPIR-V, which drivers take without regard to it.
/// Emitted text would be another by it: `-D` could rename what it declares. What is said of the
/// code, such as `-cl-mad-enable`, stays.
///
/// `options` are in the canonical form that keys cover.
pub(crate) fn options(options: &str) -> String {
    let mut kept = Vec::new();
    let mut words = words(options).into_iter();
    while let Some(word) = words.next() {
        match word {
            "-D" | "-U" | "-I" | "-include" | "-x" => {
                words.next();
            }
            _ if OF_SOURCE.iter().any(|prefix| word.starts_with(prefix)) => {}
            _ => kept.push(word),
        }
    }
    kept.join(" ")
}

/// What options of source text begin with.
const OF_SOURCE: [&str; 9] = [
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
