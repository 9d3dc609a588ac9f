//! Converts the options of a plain OpenCL build for clang.

use kiln_compiler::options::RELAXED;
use kiln_spirv::FOR_DEVICE;

use crate::error::{Error, Result};

/// Parsed build options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BuildOptions {
    /// Definitions and flags in the form that clang takes, in their order.
    pub(super) arguments: Vec<String>,
    /// Directories to search for included files.
    pub(super) directories: Vec<String>,
    /// Version of OpenCL C, as in `CL1.2`.
    pub(super) standard: Option<String>,
}

/// Flags that have the same meaning for clang and for drivers.
const FLAGS: &[&str] = &[
    "-cl-denorms-are-zero",
    "-cl-fp32-correctly-rounded-divide-sqrt",
    "-cl-mad-enable",
    "-cl-no-signed-zeros",
    "-cl-single-precision-constant",
    "-cl-uniform-work-group-size",
    "-w",
];

/// Returns the macros that clang and drivers define for an option that allows less accurate results. The option
/// itself is not passed to clang: only the device's compiler applies it, to the SPIR-V. A fused kernel is built
/// without it.
fn macros_of(option: &str) -> &'static [&'static str] {
    const FINITE: &[&str] = &[
        "-Wno-builtin-macro-redefined",
        "-U__FINITE_MATH_ONLY__",
        "-D__FINITE_MATH_ONLY__=1",
        "-D__FAST_MATH__=1",
        "-D__FAST_RELAXED_MATH__=1",
    ];
    match option {
        "-cl-fast-relaxed-math" => FINITE,
        "-cl-finite-math-only" => &FINITE[..3],
        _ => &[],
    }
}

/// Flags that do not affect results. `-Werror` is among them because the device's compiler has already built
/// the program: warnings of clang differ from its warnings, and are not errors here.
const IGNORED: &[&str] =
    &["-Werror", "-cl-kernel-arg-info", "-cl-opt-disable", "-cl-strict-aliasing", "-g"];

/// Versions of OpenCL C that clang supports. C++ for OpenCL is excluded: the rest of the crate does not support
/// the modules that result.
const STANDARDS: &[&str] = &["CL1.0", "CL1.1", "CL1.2", "CL2.0", "CL3.0"];

impl BuildOptions {
    /// Parses build options.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported), with the name of the option, if clang and drivers are
    /// not known to interpret it in the same way.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut options = Self::default();
        let mut words = split(text)?.into_iter();
        while let Some(word) = words.next() {
            // The value of an option whose name has two characters.
            let mut value = || match &word[2..] {
                "" => words.next().ok_or_else(|| option_error(&word, "its value is missing")),
                value => Ok(value.to_owned()),
            };
            if word.starts_with("-D") || word.starts_with("-U") {
                let (flag, definition) = (&word[..2], value()?);
                if !is_macro(&definition) {
                    return Err(option_error(
                        &format!("{flag} {definition}"),
                        "it does not name a macro",
                    ));
                }
                options.arguments.push(format!("{flag}{definition}"));
            } else if word.starts_with("-I") {
                options.directories.push(value()?);
            } else if let Some(standard) = word.strip_prefix("-cl-std=") {
                if !STANDARDS.contains(&standard) {
                    let why = format!("the supported versions are {}", STANDARDS.join(", "));
                    return Err(option_error(&word, &why));
                }
                options.standard = Some(standard.to_owned());
            } else if RELAXED.contains(&&*word) {
                let macros = macros_of(&word).iter();
                options.arguments.extend(macros.map(|argument| (*argument).to_owned()));
            } else if FLAGS.contains(&&*word) {
                options.arguments.push(word);
            } else if !IGNORED.contains(&&*word) {
                return Err(option_error(
                    &word,
                    "clang is not known to interpret it in the same way",
                ));
            }
        }
        Ok(options)
    }
}

/// Returns the options of an OpenCL C build that the device's compiler needs for the SPIR-V.
pub(crate) fn options_for_device(text: &str) -> Result<String> {
    let words = split(text)?;
    let kept: Vec<_> =
        words.iter().map(|word| &**word).filter(|w| FOR_DEVICE.contains(w)).collect();
    Ok(kept.join(" "))
}

/// Whether a text begins like the definition of a macro, with or without parameters.
fn is_macro(definition: &str) -> bool {
    let mut characters = definition.chars();
    characters.next().is_some_and(|c| c.is_alphabetic() || c == '_')
}

/// Splits options into words as drivers do: blanks between double quotes do not separate words, and a backslash
/// escapes the next character. A single quote has no special meaning.
fn split(text: &str) -> Result<Vec<String>> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut quoted = false;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' => match characters.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err(option_error("\\", "no character follows it")),
            },
            '\'' if !quoted => return Err(option_error("'", "drivers interpret it differently")),
            c if c.is_ascii_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    if quoted {
        return Err(option_error("\"", "the quotation is not closed"));
    }
    words.extend(word);
    Ok(words)
}

/// Creates the error for an unsupported option.
fn option_error(option: &str, why: &str) -> Error {
    Error::unsupported(format!(
        "OpenCL C with the build option `{option}` cannot be translated to SPIR-V: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn options_keep_their_order_and_meaning() {
        let text = r#"-DA=1 -D B -D "C=1 2" -DS=\"x\" -U A -I here -Ithere -cl-std=CL2.0 -w"#;
        let options = BuildOptions::parse(text).expect("they are understood");
        assert_eq!(options.arguments, ["-DA=1", "-DB", "-DC=1 2", "-DS=\"x\"", "-UA", "-w"]);
        assert_eq!(options.directories, ["here", "there"]);
        assert_eq!(options.standard.as_deref(), Some("CL2.0"));
    }

    #[test]
    fn the_last_standard_is_used() {
        let options = BuildOptions::parse("-cl-std=CL2.0 -cl-std=CL1.1").expect("understood");
        assert_eq!(options.standard.as_deref(), Some("CL1.1"));
    }

    #[test]
    fn options_that_only_concern_the_build_are_ignored() {
        let options = BuildOptions::parse("-g -Werror -cl-kernel-arg-info -cl-opt-disable");
        assert_eq!(options.expect("understood"), BuildOptions::default());
    }

    #[test]
    fn other_options_are_refused_by_name() {
        for (text, named) in [
            ("-O3", "-O3"),
            ("-include x.h", "-include"),
            ("-cl-std=CLC++", "-cl-std=CLC++"),
            ("-cl-std=CL3.1", "-cl-std=CL3.1"),
            ("-Xclang -load", "-Xclang"),
            ("-o /etc/passwd", "-o"),
            ("-cl-nv-maxrregcount=32", "-cl-nv-maxrregcount"),
            ("-D", "-D"),
            ("-D 1", "-D 1"),
            ("-D -load", "-D -load"),
            ("a.cl", "a.cl"),
            ("-DA='1 2'", "'"),
            ("-DA=\"1", "\""),
            ("-DA=\\", "\\"),
        ] {
            let error = BuildOptions::parse(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{text}");
            assert!(error.to_string().contains(&format!("`{named}")), "{text}: {error}");
        }
    }

    #[test]
    fn options_that_the_module_does_not_carry_reach_the_device() {
        let options = options_for_device("-DA=1 -cl-denorms-are-zero -w -cl-opt-disable -I x");
        assert_eq!(options.expect("they are understood"), "-cl-denorms-are-zero -cl-opt-disable");
    }

    #[test]
    fn only_the_macros_of_options_for_less_accurate_results_reach_clang() {
        let parsed = |text| BuildOptions::parse(text).expect("they are understood").arguments;
        assert_eq!(parsed("-cl-unsafe-math-optimizations -cl-mad-enable"), ["-cl-mad-enable"]);
        let finite = parsed("-cl-finite-math-only");
        assert!(finite.contains(&"-D__FINITE_MATH_ONLY__=1".to_owned()), "{finite:?}");
        let fast = parsed("-cl-fast-relaxed-math");
        assert!(fast.starts_with(&finite), "{fast:?}");
        assert!(fast.contains(&"-D__FAST_RELAXED_MATH__=1".to_owned()), "{fast:?}");
    }
}
