//! Build options for emitted text.

use std::collections::BTreeSet;

use kiln_spirv::Demand;

use crate::options::words;

/// Returns the build options of a program that apply to emitted text. `options` are in the canonical form
/// that keys cover; `demands` are what the text requires. `is_version_3` is whether the device has OpenCL C
/// 3.0, which not every device has that has 2.0, nor the other way round.
///
/// A text that calls group functions, or reads and writes an image, gets a version of the language that allows
/// it.
///
/// Options about the source are dropped: macros, include directories, the language's version, warnings that are
/// errors, and the type of constants. They have no meaning for a SPIR-V module, and drivers take one without
/// regard to them. But they would change emitted text: `-D` could rename its declarations. Options about the
/// generated code, such as `-cl-mad-enable`, are kept.
#[must_use]
pub fn options(options: &str, demands: &BTreeSet<Demand>, is_version_3: bool) -> String {
    let mut kept = Vec::new();
    let later = [Demand::GroupFunctions, Demand::Subgroups, Demand::ReadWriteImages];
    if later.iter().any(|demand| demands.contains(demand)) {
        kept.push(if is_version_3 { "-cl-std=CL3.0" } else { "-cl-std=CL2.0" });
    }
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
    use super::*;

    fn options(text: &str) -> String {
        super::options(text, &BTreeSet::new(), true)
    }

    #[test]
    fn group_functions_need_a_later_version_of_the_language() {
        for demand in [Demand::Subgroups, Demand::GroupFunctions, Demand::ReadWriteImages] {
            let with = |is_version_3| {
                super::options("-w -cl-std=CL1.2", &BTreeSet::from([demand]), is_version_3)
            };
            assert_eq!([false, true].map(with), ["-cl-std=CL2.0 -w", "-cl-std=CL3.0 -w"]);
        }
    }

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
