//! Messages between an application and a build child: greetings, requests, and an answer to each.
//!
//! Each side begins with its greeting, whose format never changes, so that different versions can detect each
//! other. A frame follows: its length and checksum, a header as JSON, and sections of bytes. The answer comes
//! from a process that untrusted code may have compromised: it must be validated before use.

use std::fmt;
use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cache::store::{self, KernelRecord};
use crate::device::ModuleFormat;
use crate::error::{DriverCode, Error, ErrorKind};

/// Bytes that every message begins with.
const MAGIC: &[u8; 16] = b"KILN BUILD CHILD";

/// Version of the protocol. The first change of the messages or of their meaning after a release must raise it.
const PROTOCOL: u32 = 1;

/// Size of a frame's checksum in bytes.
const CHECKSUM_BYTES: usize = blake3::OUT_LEN;

/// Identity of a sender: a protocol and a version of Kiln.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    protocol: u32,
    version: String,
}

impl Greeting {
    /// Returns the greeting of this crate.
    pub(super) fn own() -> Self {
        Self { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.protocol.to_le_bytes());
        bytes.push(self.version.len() as u8);
        bytes.extend_from_slice(self.version.as_bytes());
        bytes
    }

    /// Reads a greeting from a stream. Returns `None` if the stream begins with something else.
    pub(super) fn read_from(stream: &mut impl io::Read) -> io::Result<Option<Self>> {
        let mut bytes = vec![0; Self::FIXED_BYTES];
        stream.read_exact(&mut bytes)?;
        if !bytes.starts_with(MAGIC) {
            return Ok(None);
        }
        let mut version = vec![0; Self::version_len(&bytes)];
        stream.read_exact(&mut version)?;
        bytes.extend_from_slice(&version);
        Ok(Self::read(&bytes).map(|(greeting, _)| greeting))
    }

    /// Number of bytes of a greeting before the version: magic, protocol and the version's length.
    pub(super) const FIXED_BYTES: usize = MAGIC.len() + size_of::<u32>() + 1;

    /// Returns the length of the version, by the bytes of a greeting before it.
    pub(super) fn version_len(fixed: &[u8]) -> usize {
        fixed.last().copied().map_or(0, usize::from)
    }

    /// Splits `bytes` into the greeting at the beginning and the rest.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (protocol, rest) = rest.split_first_chunk()?;
        let (&length, rest) = rest.split_first()?;
        let (version, rest) = rest.split_at_checked(length.into())?;
        let version = String::from_utf8_lossy(version).into_owned();
        Some((Self { protocol: u32::from_le_bytes(*protocol), version }, rest))
    }
}

impl fmt::Display for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kiln {} (protocol {})", self.version, self.protocol)
    }
}

/// Task for a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Task {
    /// Build the one section.
    Build(ModuleHeader),
    /// Open the device and make its compiler ready, so that the next request finds it so.
    Prepare,
    /// Compile each section to an object, and link the objects with these options.
    Link { modules: Vec<ModuleHeader>, options: String },
}

/// Data of a module except its code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ModuleHeader {
    #[serde(with = "Format")]
    pub(super) format: ModuleFormat,
    pub(super) options: String,
    pub(super) constants: Vec<(u32, Vec<u8>)>,
}

/// The header of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    /// Identity of the device.
    pub(super) device: Vec<(String, String)>,
    /// Index among the devices with this identity.
    pub(super) position: usize,
    /// Current directory of the application, if the child may have been started in another one.
    pub(super) directory: Option<String>,
    pub(super) task: Task,
}

impl Request {
    /// Returns the number of sections behind the header: one for each module.
    pub(super) fn sections(&self) -> usize {
        match &self.task {
            Task::Prepare => 0,
            Task::Build(_) => 1,
            Task::Link { modules, .. } => modules.len(),
        }
    }
}

/// The header of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// A program. The only section is its binary; it is empty if the module was a binary itself.
    Made {
        log: String,
        #[serde(deserialize_with = "store::kernels")]
        kernels: Vec<KernelRecord>,
    },
    /// An error. The only section is empty.
    Failed(Failure),
    /// The error of a driver that does not return the binary of a program that it has built. The only section is
    /// empty.
    Unreturned(Failure),
}

impl Answer {
    /// Truncates the texts that the parent would truncate.
    pub(super) fn shortened(self) -> Self {
        match self {
            Self::Made { log, kernels } => Self::Made { log: shortened(log), kernels },
            Self::Failed(failure) => Self::Failed(failure.shortened()),
            Self::Unreturned(failure) => Self::Unreturned(failure.shortened()),
        }
    }
}

/// An error in text form.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    #[serde(with = "kind")]
    kind: ErrorKind,
    message: String,
    code: Option<i32>,
    log: Option<String>,
}

impl Failure {
    /// Converts an error. The messages of its sources become part of the message.
    pub(super) fn of(error: &Error) -> Self {
        let mut message = error.message().to_owned();
        let mut source = std::error::Error::source(error);
        while let Some(error) = source {
            message.push_str(&format!(": {error}"));
            source = error.source();
        }
        Self {
            kind: error.kind(),
            message,
            code: error.driver_code().map(|code| code.code),
            log: error.build_log().map(str::to_owned),
        }
    }

    fn shortened(self) -> Self {
        Self { message: shortened(self.message), log: self.log.map(shortened), ..self }
    }

    /// Converts back to an error. `name` returns the driver's code of this number with its name.
    pub(super) fn into_error(self, name: impl FnOnce(i32) -> Option<DriverCode>) -> Error {
        let mut error = Error::new(self.kind, shortened(self.message));
        if let Some(code) = self.code.and_then(name) {
            error = error.with_code(code);
        }
        match self.log {
            Some(log) => error.with_log(shortened(log)),
            None => error,
        }
    }
}

/// Maximum size of a text in bytes; longer texts are truncated. A compromised child may send any amount.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Maximum size of a header, in bytes. A header in memory takes a multiple of its size as JSON.
const MAX_HEADER_BYTES: usize = 32 << 20;

/// Truncates a text to `MAX_TEXT_BYTES`.
pub(super) fn shortened(mut text: String) -> String {
    if text.len() > MAX_TEXT_BYTES {
        let end = (0..=MAX_TEXT_BYTES).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.shrink_to_fit();
    }
    text
}

/// Encodes a header and sections as a frame.
pub(super) fn encode_frame(
    header: &impl Serialize,
    sections: &[&[u8]],
) -> serde_json::Result<Vec<u8>> {
    let header = serde_json::to_vec(header)?;
    let all = || std::iter::once(&*header).chain(sections.iter().copied());
    let body: usize = all().map(|section| size_of::<u64>() + section.len()).sum();
    let mut bytes = Vec::with_capacity(size_of::<u64>() + CHECKSUM_BYTES + body);
    bytes.extend_from_slice(&(body as u64).to_le_bytes());
    bytes.extend_from_slice(&[0; CHECKSUM_BYTES]);
    let start = bytes.len();
    for section in all() {
        bytes.extend_from_slice(&(section.len() as u64).to_le_bytes());
        bytes.extend_from_slice(section);
    }
    let checksum = blake3::hash(&bytes[start..]);
    bytes[start - CHECKSUM_BYTES..start].copy_from_slice(checksum.as_bytes());
    Ok(bytes)
}

/// Number of bytes of a frame before its body: the body's length and checksum.
pub(super) const FRAME_START_BYTES: usize = size_of::<u64>() + CHECKSUM_BYTES;

/// Returns the length of a whole frame that begins with these bytes, or `None` if it does not fit in memory.
pub(super) fn frame_len(start: &[u8; FRAME_START_BYTES]) -> Option<usize> {
    let (length, _) = start.split_first_chunk()?;
    usize::try_from(u64::from_le_bytes(*length)).ok()?.checked_add(FRAME_START_BYTES)
}

/// Decodes a frame into its header and sections. `count` returns the expected number of sections for the
/// header. Returns `None` if the bytes are not a complete frame, or if the number of sections differs.
pub(super) fn decode_frame<H: DeserializeOwned>(
    bytes: &[u8],
    count: impl FnOnce(&H) -> usize,
) -> Option<(H, Vec<&[u8]>)> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (checksum, body) = rest.split_first_chunk::<CHECKSUM_BYTES>()?;
    let body = body.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    if blake3::hash(body) != *checksum {
        return None;
    }
    let (header, mut body) = split_section(body)?;
    if header.len() > MAX_HEADER_BYTES {
        return None;
    }
    let header = serde_json::from_slice(header).ok()?;
    let mut sections = Vec::new();
    for _ in 0..count(&header) {
        let (section, rest) = split_section(body)?;
        sections.push(section);
        body = rest;
    }
    body.is_empty().then_some((header, sections))
}

/// Splits `bytes` into the section at the beginning and the rest.
fn split_section(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ModuleFormat")]
enum Format {
    OpenClC,
    SpirV,
    Native,
}

/// Kinds of errors as text: the names of their variants.
mod kind {
    use std::borrow::Cow;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::error::ErrorKind;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    pub(super) fn serialize<S: Serializer>(kind: &ErrorKind, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{kind:?}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ErrorKind, D::Error> {
        let name = Cow::<str>::deserialize(from)?;
        let named = |kind: &ErrorKind| format!("{kind:?}") == name;
        let unknown = || D::Error::custom(format!("there is no kind `{name}` of errors"));
        ErrorKind::ALL.into_iter().find(named).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        let header = ModuleHeader {
            format: ModuleFormat::SpirV,
            options: "-D \"A B\"".to_owned(),
            constants: vec![(7, vec![1, 2])],
        };
        let device = vec![("backend".to_owned(), "fake".to_owned())];
        Request { device, position: 1, directory: None, task: Task::Build(header) }
    }

    #[test]
    fn error_texts_of_a_child_are_truncated() {
        let failure = |message: String| Failure {
            kind: ErrorKind::BuildFailed,
            message: message.clone(),
            code: None,
            log: Some(message),
        };
        let error = failure("\u{1f525}".repeat(MAX_TEXT_BYTES)).into_error(|_| None);
        let kept = MAX_TEXT_BYTES / 4 * 4;
        assert_eq!((error.message().len(), error.build_log().map(str::len)), (kept, Some(kept)));
        assert_eq!(failure("short".to_owned()).into_error(|_| None).message(), "short");
    }

    #[test]
    fn frames_round_trip() {
        let request = request();
        let sections: [&[u8]; 3] = [b"", b"\0code", b"more"];
        let bytes = encode_frame(&request, &sections).expect("it is plain data");
        let (header, read) = decode_frame::<Request>(&bytes, |_| 3).expect("it is complete");
        assert_eq!((header, &*read), (request, &sections[..]));
        for count in [0, 1, 2, 4, usize::MAX] {
            assert!(decode_frame::<Request>(&bytes, |_| count).is_none(), "{count} sections");
        }
    }

    #[test]
    fn truncated_or_changed_frames_are_rejected() {
        let bytes = encode_frame(&request(), &[b"code"]).expect("it is plain data");
        for length in 0..bytes.len() {
            assert!(decode_frame(&bytes[..length], Request::sections).is_none(), "{length} bytes");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x11;
            assert!(decode_frame(&changed, Request::sections).is_none(), "byte {at}");
        }
        let other = encode_frame(&7, &[b""]).expect("it is plain data");
        assert!(decode_frame(&other, Request::sections).is_none());
    }

    #[test]
    fn sections_that_do_not_fit_their_frame_are_refused() {
        let mut body = u64::MAX.to_le_bytes().to_vec();
        body.extend_from_slice(b"{}");
        let mut bytes = (body.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(blake3::hash(&body).as_bytes());
        bytes.extend_from_slice(&body);
        assert!(decode_frame(&bytes, Request::sections).is_none());
    }

    #[test]
    fn a_header_that_is_too_large_is_refused_before_it_is_parsed() {
        for (length, is_whole) in [(1_000, true), (MAX_HEADER_BYTES, false)] {
            let bytes = encode_frame(&"x".repeat(length), &[]).expect("it is plain data");
            assert_eq!(decode_frame::<String>(&bytes, |_| 0).is_some(), is_whole, "{length} bytes");
        }
    }

    #[test]
    fn greetings_are_distinguished_from_other_output() {
        let own = Greeting::own();
        let mut bytes = own.write();
        bytes.extend_from_slice(b"rest");
        assert_eq!(Greeting::read(&bytes), Some((own.clone(), &b"rest"[..])));
        for length in 0..own.write().len() {
            assert_eq!(Greeting::read(&bytes[..length]), None, "{length} bytes");
        }
        assert_eq!(Greeting::read(b"usage: program FILE..\n\n\n\n\n\n\n\n\n"), None);
    }

    #[test]
    fn errors_keep_their_kind_code_source_and_log() {
        let code = DriverCode { code: -11, name: "CL_BUILD_PROGRAM_FAILURE" };
        let inner = io::Error::other("the reason");
        let error = Error::new(ErrorKind::BuildFailed, "refused").with_code(code).with_log("log");
        let failure = Failure::of(&error.with_source(inner));
        let text = serde_json::to_vec(&failure).expect("it is plain data");
        let failure: Failure = serde_json::from_slice(&text).expect("it was written so");
        let error = failure.into_error(|number| (number == code.code).then_some(code));
        assert_eq!(
            error.to_string(),
            "build failed: refused: the reason [CL_BUILD_PROGRAM_FAILURE (-11)]\nlog"
        );
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
    }
}
