//! Lines of a build manifest: objects in JSON, one for each line, with a single field that names the kind of line.
//!
//! A file is only ever appended to, by any number of processes, so a line refers to others only by digests, keys
//! and the numbers of sessions, and lines may repeat. A line that was cut off by a crash is not JSON; the next one
//! is still readable.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::{BuildKey, Digest};

/// Version of the format. Files with another version are refused.
pub(crate) const VERSION: u32 = 1;

/// Start of each line with a module. Its digest follows, so that the rest of the line is parsed only if the module
/// is needed.
pub(super) const MODULE_START: &str = r#"{"module":{"digest":""#;

/// End of each whole line with a module. Inside a string, the quotes would follow backslashes.
pub(super) const MODULE_END: &str = r#","whole":true}}"#;

/// Line of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Session(SessionLine),
    Device(DeviceLine),
    Module(ModuleLine),
    Program(ProgramLine),
    Choice(ChoiceLine),
    Uses(UsesLine),
}

/// Recording by one runtime.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionLine {
    /// Version of the format.
    pub(crate) version: u32,
    pub(crate) id: SessionId,
    /// Start of the recording, in seconds since 1970.
    pub(crate) time: u64,
    /// Version of Kiln, for people.
    pub(crate) kiln: String,
}

/// Number of a session, chosen at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(pub(crate) u64);

/// Device that programs were built for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceLine {
    /// Name of the device's folder in stores.
    pub(crate) id: String,
    /// Fields that identify the device in keys.
    pub(crate) identity: Vec<(String, String)>,
    /// Variables of the environment that change the compiler, which are part of keys as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) environment: Vec<(String, String)>,
}

/// Device code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModuleLine {
    /// The first field, see [`MODULE_START`].
    #[serde(with = "text")]
    pub(crate) digest: Digest,
    pub(crate) code: Code,
    /// Names that the application stated. Empty for SPIR-V.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) exports: Vec<StatedExport>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) imports: Vec<String>,
    /// Device for which Kiln made the native object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) made_for: Option<Vec<(String, String)>>,
    /// Always true, and the last field, see [`MODULE_END`].
    pub(crate) whole: bool,
}

/// Exported symbol of a module that is not SPIR-V.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatedExport {
    pub(crate) name: String,
    /// Whether other modules of a program may define the symbol as well.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) mergeable: bool,
}

/// Code of a module, by its format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    OpenclC(String),
    Spirv(Hex),
    Native(Hex),
}

/// Bytes as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

/// Program that was built, or SPIR-V that was translated, with all inputs of its build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProgramLine {
    /// Key on the recording machine.
    #[serde(with = "text")]
    pub(crate) key: BuildKey,
    /// `id` of the device.
    pub(crate) device: String,
    pub(crate) strategy: StrategyName,
    /// Whether SPIR-V is passed to the driver as OpenCL C.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) emitted: bool,
    /// Whether the modules are translations of a text for checked launches.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) checked_text: bool,
    pub(crate) inputs: Vec<InputLine>,
    /// Options of the linker, if it is called separately.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) link_options: String,
    /// Settings of a translation to SPIR-V.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) translation: Option<TranslationLine>,
}

/// Strategy for building a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StrategyName {
    Build,
    Compile,
    Link,
    LinkByCalls,
    Merge,
    Translate,
    TranslateFirst,
}

/// Module of a program, with the other inputs of its compile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct InputLine {
    #[serde(with = "text")]
    pub(crate) module: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// Digest of the files that the text includes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) included: Option<String>,
    /// Values of specialization constants, with their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) constants: Vec<(u32, Hex)>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) options: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) link_options: String,
    /// Names of the definitions that are removed from the module.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) replaced: Vec<String>,
    /// Whether the module was requested, and not found as a library.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) requested: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) untrusted: bool,
}

/// Settings of a translation to SPIR-V.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TranslationLine {
    /// Kernels that are translated; all of the text's if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) kernels: Vec<String>,
    /// Whether the SPIR-V states the lines of the source.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) lines: bool,
}

/// Result of trials: the times of the ways to run some launches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChoiceLine {
    #[serde(with = "text")]
    pub(crate) key: BuildKey,
    /// `id` of the device.
    pub(crate) device: String,
    /// Digest of the first kernel of the launches.
    #[serde(with = "text")]
    pub(crate) module: Digest,
    /// Launches with their ranges and arguments.
    pub(crate) launches: String,
    /// Time of each way.
    pub(crate) times: String,
}

/// Uses of a program or of times in one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsesLine {
    #[serde(with = "text")]
    pub(crate) key: BuildKey,
    pub(crate) session: SessionId,
    /// Number of requests so far.
    pub(crate) count: u64,
    /// Time of the first use, in microseconds since the start of the session.
    pub(crate) first: u64,
}

impl SessionLine {
    /// Returns a new session, which starts now.
    pub(crate) fn start() -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { id: SessionId(fastrand::u64(1..)), time, ..Self::empty() }
    }

    /// Returns a session that uses nothing.
    pub(super) fn empty() -> Self {
        let kiln = env!("CARGO_PKG_VERSION").to_owned();
        Self { version: VERSION, id: SessionId(0), time: 0, kiln }
    }
}

impl Line {
    /// Returns the text of the line, with its end.
    pub(crate) fn to_text(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string(self)?;
        text.push('\n');
        Ok(text)
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for SessionId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |half: u8| char::from(DIGITS[usize::from(half & 0xf)]);
        let digits = self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]);
        f.write_str(&digits.collect::<String>())
    }
}

/// Error for a text that is not a whole number of bytes in hexadecimal digits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotHex;

impl fmt::Display for NotHex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a whole number of bytes in hexadecimal digits")
    }
}

impl FromStr for Hex {
    type Err = NotHex;

    fn from_str(text: &str) -> Result<Self, NotHex> {
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(NotHex);
        let byte = |pair: &[u8]| match *pair {
            [high, low] => Ok((digit(high)? << 4 | digit(low)?) as u8),
            _ => Err(NotHex),
        };
        text.as_bytes().chunks(2).map(byte).collect::<Result<_, _>>().map(Self)
    }
}

/// Implements serde's traits for types that are stored as the text that they are displayed as.
macro_rules! stored_as_text {
    ($($name:ident),*) => {
        $(
            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    text::serialize(self, serializer)
                }
            }

            impl<'a> Deserialize<'a> for $name {
                fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
                    text::deserialize(deserializer)
                }
            }
        )*
    };
}

stored_as_text!(Hex, SessionId);

/// Values as the text that they are displayed as, which is parsed without a copy.
mod text {
    use std::fmt::{self, Display};
    use std::marker::PhantomData;
    use std::str::FromStr;

    use serde::de::{self, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        value: &impl Display,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'a, D, T>(deserializer: D) -> Result<T, D::Error>
    where
        D: Deserializer<'a>,
        T: FromStr<Err: Display>,
    {
        deserializer.deserialize_str(Parsed(PhantomData))
    }

    struct Parsed<T>(PhantomData<T>);

    impl<T: FromStr<Err: Display>> Visitor<'_> for Parsed<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(de::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_modules_are_recognized_by_their_start_and_end() {
        let module = ModuleLine {
            digest: Digest([0xab; 32]),
            code: Code::Spirv(Hex(vec![0, 0x1f, 0xff])),
            exports: vec![StatedExport { name: "tone".to_owned(), mergeable: true }],
            imports: Vec::new(),
            made_for: None,
            whole: true,
        };
        let text = Line::Module(module.clone()).to_text().unwrap();
        assert!(text.starts_with(MODULE_START), "{text}");
        assert!(text.trim_end().ends_with(MODULE_END), "{text}");
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), Line::Module(module));
    }

    #[test]
    fn only_whole_bytes_are_hexadecimal() {
        let parse = |text: &str| text.parse::<Hex>();
        assert_eq!(parse("00fF"), Ok(Hex(vec![0, 0xff])));
        assert_eq!(Hex(vec![0, 0xff]).to_string(), "00ff");
        for text in ["0", "000", "0g", "é", "+1"] {
            assert_eq!(parse(text), Err(NotHex), "{text:?}");
        }
    }
}
