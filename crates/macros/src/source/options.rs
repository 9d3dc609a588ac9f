//! Build options that matter when kernels are read.

/// Options of a build, divided by who needs them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Macros to define, such as `N=4`, or to remove, in order.
    pub(crate) definitions: Vec<(String, bool)>,
    /// Folders of included files. They are not needed at run time.
    pub(crate) folders: Vec<String>,
    standard: Option<String>,
    /// Options for the device's compiler, as they are written.
    pub(crate) for_device: String,
}

/// Version of OpenCL C without an option: that of drivers.
const DEFAULT_STANDARD: &str = "CL1.2";

impl Options {
    /// Parses options.
    ///
    /// # Errors
    ///
    /// With the option, if its value is missing or a quotation is not closed.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = words(text)?.into_iter();
        let mut kept = Vec::new();
        while let Some((word, raw)) = words.next() {
            let mut raw = raw.to_owned();
            let flag = word.get(..2).unwrap_or_default();
            if !matches!(flag, "-D" | "-U" | "-I") {
                if let Some(standard) = word.strip_prefix("-cl-std=") {
                    options.standard = Some(standard.to_owned());
                }
                kept.push(raw);
                continue;
            }
            let mut value = word[2..].to_owned();
            if value.is_empty() {
                let missing = || format!("the option `{flag}` has no value; write `{flag} VALUE`");
                let (next, next_raw) = words.next().ok_or_else(missing)?;
                value = next;
                raw = format!("{raw} {next_raw}");
            }
            match flag {
                "-I" => options.folders.push(value),
                _ => {
                    options.definitions.push((value, flag == "-D"));
                    kept.push(raw);
                }
            }
        }
        options.for_device = kept.join(" ");
        Ok(options)
    }

    pub(crate) fn standard(&self) -> &str {
        self.standard.as_deref().unwrap_or(DEFAULT_STANDARD)
    }

    /// Returns the version of OpenCL C as its macro states it, such as 120; `None` for another language.
    pub(crate) fn version(&self) -> Option<u32> {
        let (major, minor) = self.standard().strip_prefix("CL")?.split_once('.')?;
        Some(major.parse::<u32>().ok()? * 100 + minor.parse::<u32>().ok()? * 10)
    }

    /// Returns the definitions as arguments of clang.
    pub(crate) fn for_clang(&self) -> Vec<String> {
        let definitions = self.definitions.iter();
        definitions
            .map(|(it, defines)| format!("{}{it}", if *defines { "-D" } else { "-U" }))
            .collect()
    }
}

/// Splits options as drivers do: blanks between double quotes do not separate words, and a backslash escapes
/// the next character. Returns each word without and with its quotes.
fn words(text: &str) -> Result<Vec<(String, &str)>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (mut word, mut is_quoted) = (String::new(), false);
        let mut characters = rest.char_indices();
        let mut end = rest.len();
        while let Some((at, c)) = characters.next() {
            match c {
                '"' => is_quoted = !is_quoted,
                '\\' => word.extend(characters.next().map(|(_, c)| c)),
                c if c.is_whitespace() && !is_quoted => {
                    end = at;
                    break;
                }
                c => word.push(c),
            }
        }
        if is_quoted {
            return Err(format!("a quotation in the options `{text}` is not closed"));
        }
        words.push((word, &rest[..end]));
        rest = rest[end..].trim_start();
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_divided_by_who_needs_them() {
        let text =
            r#"-DA=1 -D B -D "C=1 2" -I here -Ithere -U A -cl-std=CL2.0 -cl-mad-enable -DS=\"x\""#;
        let options = Options::parse(text).expect("they are valid");
        let names: Vec<_> = options.definitions.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["A=1", "B", "C=1 2", "A", "S=\"x\""]);
        assert_eq!(options.folders, ["here", "there"]);
        assert_eq!(options.standard(), "CL2.0");
        assert_eq!(options.version(), Some(200));
        assert_eq!(Options::parse("-cl-std=CLC++").expect("it is valid").version(), None);
        assert_eq!(
            options.for_device,
            r#"-DA=1 -D B -D "C=1 2" -U A -cl-std=CL2.0 -cl-mad-enable -DS=\"x\""#
        );
        assert_eq!(options.for_clang(), ["-DA=1", "-DB", "-DC=1 2", "-UA", "-DS=\"x\""]);
        assert_eq!(Options::parse("  ").expect("they are valid"), Options::default());
    }

    #[test]
    fn options_that_are_not_whole_are_refused() {
        for text in ["-D", "-I ", "-DA=\"1"] {
            Options::parse(text).expect_err(text);
        }
    }
}
