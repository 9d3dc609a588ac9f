//! Encoding of entry files, and verification of every file that is read as an entry.
//!
//! ```text
//! payload     the program in the device's native format, starting at the first byte
//! record      JSON: the inputs of the build, and the facts learnt from it
//! footer      80 bytes, little-endian:
//!               0  payload length     8 bytes
//!               8  record length      8
//!              16  key               32
//!              48  checksum          16  XXH3-128 of everything else in the file
//!              64  version            4
//!              68  zero               4
//!              72  magic              8
//! ```
//!
//! The checksum detects damage, at every read. A cryptographic digest would detect no more damage and cost
//! several times as much. It would not keep out a user who can write to the directory either.
//!
//! Version and magic are at the same distance from the end of the file in every version, past and future.

use std::fmt;
use std::io::{self, SeekFrom};
use std::marker::PhantomData;
use std::time::{SystemTime, UNIX_EPOCH};

use futures::io::{AsyncRead, AsyncReadExt, AsyncSeek, AsyncSeekExt};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3Default;

use crate::digest::BuildKey;

/// Version of the entry format.
pub(crate) const VERSION: u32 = 1;

/// Size of a footer, in bytes.
pub(crate) const FOOTER: usize = 80;

/// Magic number at the end of a footer, and thus of an entry's file. It contains bytes that text mode and
/// seven-bit transfers would change.
pub(crate) const MAGIC: [u8; 8] = *b"KILN\r\n\x1a\xfe";

/// Maximum number of kernels and parameters in a record, taken together. A record in memory may take 30 times
/// the space of its JSON. Without this limit, a record of a few megabytes could fill gigabytes.
const MAX_RECORDS: usize = 1 << 18;

/// Maximum number of parameters of a kernel. Devices accept at most 4 KiB of arguments.
const MAX_PARAMETERS: usize = 1 << 12;

// Offsets in the footer, in bytes.
const KEY: usize = 16;
const CHECKSUM: usize = 48;
const TAIL: usize = 64;

/// Metadata of an entry, apart from its key.
///
/// # Examples
///
/// ```no_run
/// use futures::StreamExt;
///
/// # async fn example(store: kiln::store::Store) -> kiln::Result<()> {
/// let mut entries = store.entries();
/// while let Some(entry) = entries.next().await {
///     let record = store.record(&entry).await?;
///     println!("{}: compiled in {} µs", entry.key(), record.build_microseconds);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EntryRecord {
    /// Fields that the key covers, as pairs of name and value. After the fields with options, `options from` and
    /// `link options from` state what the module, the environment or the call contributed; options without such
    /// a field come from the call. After `included files`, which is the digest of all, `included file` states
    /// the name and the digest of each.
    pub fields: Vec<(String, String)>,
    /// Kernels and their parameters. They are stored because few drivers report them for binaries.
    #[serde(deserialize_with = "kernels")]
    pub kernels: Vec<KernelRecord>,
    /// Messages of the compiler.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_log: String,
    /// Duration of the build, in microseconds.
    pub build_microseconds: u64,
    /// Time when the entry was created, in seconds since 1970.
    pub created: u64,
    /// Names and versions of the tools that created the entry.
    pub tools: Vec<(String, String)>,
    /// Modules that have labels: their digests, as among the fields, with the labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<(String, String)>,
    /// Device and symbols of an object; `None` for other entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Box<ObjectRecord>>,
}

impl EntryRecord {
    /// Returns the record of an entry that this version of Kiln creates now. `fields` are the fields of its
    /// key. The record holds no results of a build yet.
    pub(crate) fn new(fields: Vec<(String, String)>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let tools = vec![("kiln".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
        Self { fields, created: now.as_secs(), tools, ..Self::default() }
    }

    /// Returns the value of a key field, or the first value if the field repeats.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::store::EntryRecord;
    ///
    /// let mut record = EntryRecord::default();
    /// record.fields.push(("options".to_owned(), "-D RADIUS=4".to_owned()));
    /// assert_eq!(record.field("options"), Some("-D RADIUS=4"));
    /// assert_eq!(record.field("device"), None);
    /// ```
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Device and symbols of an object, as it is linked.
///
/// # Examples
///
/// ```no_run
/// # fn example(record: kiln::store::EntryRecord) {
/// if let Some(object) = &record.object {
///     println!("exports {}, imports {}", object.exports.join(", "), object.imports.join(", "));
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ObjectRecord {
    /// Fields that identify the device in keys, by name and value.
    pub device: Vec<(String, String)>,
    /// Symbols that other modules can import, without the mergeable ones.
    pub exports: Vec<String>,
    /// Symbols that other modules can import, and may define as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mergeable: Vec<String>,
    /// Symbols that other modules must define.
    pub imports: Vec<String>,
}

/// A kernel of a stored program.
///
/// # Examples
///
/// ```no_run
/// # fn example(record: kiln::store::EntryRecord) {
/// for kernel in &record.kernels {
///     println!("{} with {} parameters", kernel.name, kernel.parameters.len());
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KernelRecord {
    /// Name of the kernel.
    pub name: String,
    /// Parameters of the kernel, as far as they are known.
    #[serde(deserialize_with = "parameters")]
    pub parameters: Vec<ParameterRecord>,
}

/// A parameter of a stored kernel. Each field is as the driver or the module described it.
///
/// # Examples
///
/// ```no_run
/// use kiln::store::KernelRecord;
///
/// /// Returns the parameters of a stored kernel as they are written in OpenCL C.
/// fn signature(kernel: &KernelRecord) -> String {
///     let types = kernel.parameters.iter().map(|parameter| parameter.type_name.as_deref());
///     types.map(|name| name.unwrap_or("?")).collect::<Vec<_>>().join(", ")
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ParameterRecord {
    /// Name of the parameter in the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Type of the parameter, as written in OpenCL C.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub type_name: Option<String>,
    /// Address space: `global`, `constant`, `local` or `private`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_space: Option<String>,
    /// Access: `read`, `write` or `read-write`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
}

/// Deserializes kernel records. Fails if there are more than [`MAX_RECORDS`] kernels and parameters together.
pub(crate) fn kernels<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<KernelRecord>, D::Error> {
    let weight = |kernel: &KernelRecord| 1 + kernel.parameters.len();
    from.deserialize_seq(BoundedSequence { most: MAX_RECORDS, weight, what: PhantomData })
}

fn parameters<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ParameterRecord>, D::Error> {
    let weight = |_: &ParameterRecord| 1;
    from.deserialize_seq(BoundedSequence { most: MAX_PARAMETERS, weight, what: PhantomData })
}

/// Visitor that reads a sequence. Fails if the weights of the elements add up to more than `most`.
struct BoundedSequence<T, W> {
    most: usize,
    weight: W,
    what: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, W: Fn(&T) -> usize> Visitor<'de> for BoundedSequence<T, W> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a sequence of at most {} records", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
        let (mut elements, mut weight_left) = (Vec::new(), self.most);
        while let Some(element) = sequence.next_element()? {
            let rest = weight_left.checked_sub((self.weight)(&element));
            weight_left = rest.ok_or_else(|| A::Error::invalid_length(self.most + 1, &self))?;
            elements.push(element);
        }
        Ok(elements)
    }
}

/// A verified entry.
///
/// # Examples
///
/// ```no_run
/// use kiln::store::{Entry, EntryCheck, EntryInfo, Store};
///
/// /// Reads an entry, if it is intact.
/// async fn read(store: &Store, info: &EntryInfo) -> Option<Entry> {
///     match store.check(info).await {
///         EntryCheck::Whole(entry) => Some(entry),
///         _ => None,
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Entry {
    bytes: Vec<u8>,
    payload: usize,
    key: BuildKey,
    record: EntryRecord,
}

impl Entry {
    /// Returns the key of the entry.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(entry: kiln::store::Entry) {
    /// println!("{:.8} has {} bytes", entry.key(), entry.bytes().len());
    /// # }
    /// ```
    #[must_use]
    pub fn key(&self) -> BuildKey {
        self.key
    }

    /// Returns the program in the device's native format.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(entry: kiln::store::Entry) -> std::io::Result<()> {
    /// std::fs::write("blur.bin", entry.payload())?; // for the driver's own tools
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.bytes[..self.payload]
    }

    /// Returns the metadata of the entry.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(entry: kiln::store::Entry) {
    /// let names = entry.record().kernels.iter().map(|kernel| kernel.name.as_str());
    /// println!("{}", names.collect::<Vec<_>>().join(", "));
    /// # }
    /// ```
    #[must_use]
    pub fn record(&self) -> &EntryRecord {
        &self.record
    }

    /// Returns the file as it is stored, by value.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the part of the file that follows the payload: the record and the footer.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.payload..]
    }

    /// Returns the file as it is stored.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::io::Cursor;
    /// use kiln::store::{Entry, Store};
    ///
    /// # async fn example(entry: Entry, name: &str, store: Store) -> kiln::Result<()> {
    /// let file = Cursor::new(entry.bytes().to_vec());
    /// store.import(name, file).await?; // copies the entry to another store
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reason why a file is not a usable entry.
///
/// # Examples
///
/// ```
/// use kiln::store::Unusable;
///
/// let reason = Unusable::Checksum;
/// assert_eq!(reason.to_string(), "its contents do not match its checksum");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unusable {
    /// The file does not end with the footer of an entry: it is of another kind, was truncated, or has grown.
    Foreign,
    /// The entry has another version of the format.
    Version(u32),
    /// The lengths in the footer do not match the length of the file.
    Lengths,
    /// The contents do not match the checksum.
    Checksum,
    /// The entry is valid, but has another key.
    OtherKey(BuildKey),
    /// The record cannot be read.
    Record(String),
    /// The file has more bytes than any entry may have.
    TooLarge(u64),
    /// The file belongs to another user, or others can write to it.
    Distrusted(String),
}

impl Unusable {
    /// Returns whether the entry was written by a newer version of this crate. Such entries are left alone.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::store::Unusable;
    ///
    /// assert!(Unusable::Version(u32::MAX).is_newer());
    /// assert!(!Unusable::Checksum.is_newer());
    /// ```
    #[must_use]
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Version(version) if *version > VERSION)
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("it does not end with the footer of an entry"),
            Self::Version(version) => {
                write!(f, "it has format version {version}, but version {VERSION} is expected")
            }
            Self::Lengths => f.write_str("its length does not match its footer"),
            Self::Checksum => f.write_str("its contents do not match its checksum"),
            Self::OtherKey(key) => write!(f, "it is the entry of another key, {key}"),
            Self::Distrusted(reason) => f.write_str(reason),
            Self::Record(reason) => write!(f, "its record cannot be read: {reason}"),
            Self::TooLarge(bytes) => {
                write!(f, "it has {bytes} bytes, which is more than an entry may have")
            }
        }
    }
}

/// Encodes the part of an entry's file that follows the payload: the record and the footer.
pub(crate) fn encode(key: &BuildKey, record: &EntryRecord, payload: &[u8]) -> Vec<u8> {
    let mut rest = serde_json::to_vec(record).expect("text and numbers always have a JSON form");
    let record = rest.len();
    rest.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    rest.extend_from_slice(&(record as u64).to_le_bytes());
    rest.extend_from_slice(key.as_bytes());
    let mut tail = [0; FOOTER - TAIL];
    tail[..4].copy_from_slice(&VERSION.to_le_bytes());
    tail[8..].copy_from_slice(&MAGIC);
    let checksum = checksum(&[payload, &rest, &tail]);
    rest.extend_from_slice(&checksum);
    rest.extend_from_slice(&tail);
    rest
}

fn checksum(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = Xxh3Default::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.digest128().to_le_bytes()
}

/// Whether the bytes end like the file of an entry, of any version.
pub(crate) fn has_footer(bytes: &[u8]) -> bool {
    bytes.len() >= FOOTER && bytes.ends_with(&MAGIC)
}

/// Verifies the bytes of an entry's file, whatever its key.
pub(crate) fn decode(bytes: Vec<u8>) -> Result<Entry, Unusable> {
    let (body, footer) = bytes.split_last_chunk::<FOOTER>().ok_or(Unusable::Foreign)?;
    let payload = payload_length(footer, body.len() as u64)? as usize;
    let (head, tail) = (&footer[..CHECKSUM], &footer[TAIL..]);
    if checksum(&[body, head, tail]) != footer[CHECKSUM..TAIL] {
        return Err(Unusable::Checksum);
    }
    let key = BuildKey(array(footer, KEY));
    let record = parse(&body[payload..])?;
    Ok(Entry { bytes, payload, key, record })
}

/// Verifies the bytes of the file of `key`'s entry. Fails also if the entry has another key.
pub(crate) fn decode_for(key: &BuildKey, bytes: Vec<u8>) -> Result<Entry, Unusable> {
    let entry = decode(bytes)?;
    if entry.key != *key { Err(Unusable::OtherKey(entry.key)) } else { Ok(entry) }
}

/// Returns the length of the payload. `body` is the number of bytes before the footer. Fails if the entry is of
/// another version.
fn payload_length(footer: &[u8; FOOTER], body: u64) -> Result<u64, Unusable> {
    if footer[FOOTER - MAGIC.len()..] != MAGIC {
        return Err(Unusable::Foreign);
    }
    let version = u32::from_le_bytes(array(footer, TAIL));
    if version != VERSION {
        return Err(Unusable::Version(version));
    }
    let [payload, record] = [0, 8].map(|at| u64::from_le_bytes(array(footer, at)));
    if payload.checked_add(record) != Some(body) { Err(Unusable::Lengths) } else { Ok(payload) }
}

fn parse(record: &[u8]) -> Result<EntryRecord, Unusable> {
    serde_json::from_slice(record).map_err(|error| Unusable::Record(error.to_string()))
}

/// Reads the record of the entry of `key` from its file of `length` bytes. Fails if the record has more
/// than `most` bytes. The checksum is not verified. The outer error is an I/O error.
pub(crate) async fn read_record(
    key: &BuildKey,
    file: &mut (impl AsyncRead + AsyncSeek + Unpin),
    length: u64,
    most: u64,
) -> io::Result<Result<EntryRecord, Unusable>> {
    let Some(body) = length.checked_sub(FOOTER as u64) else { return Ok(Err(Unusable::Foreign)) };
    let mut footer = [0; FOOTER];
    file.seek(SeekFrom::Start(body)).await?;
    file.read_exact(&mut footer).await?;
    let payload = match payload_length(&footer, body) {
        Ok(payload) => payload,
        Err(unusable) => return Ok(Err(unusable)),
    };
    let found = BuildKey(array(&footer, KEY));
    if found != *key {
        return Ok(Err(Unusable::OtherKey(found)));
    }
    if body - payload > most {
        return Ok(Err(Unusable::TooLarge(length)));
    }
    let mut record = vec![0; (body - payload) as usize];
    file.seek(SeekFrom::Start(payload)).await?;
    file.read_exact(&mut record).await?;
    Ok(parse(&record))
}

/// Returns the version in the last bytes of a file, or `None` if the file is not an entry of any version.
pub(crate) fn version_of(footer: &[u8; FOOTER]) -> Option<u32> {
    (footer[FOOTER - MAGIC.len()..] == MAGIC).then(|| u32::from_le_bytes(array(footer, TAIL)))
}

/// Returns `N` bytes of a footer, starting at `at`. Both are constants of this module, so the range is in
/// bounds.
fn array<const N: usize>(footer: &[u8; FOOTER], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&footer[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> EntryRecord {
        EntryRecord {
            fields: vec![("schema".into(), "1".into()), ("options".into(), "-w".into())],
            kernels: vec![KernelRecord {
                name: "saxpy".into(),
                parameters: vec![ParameterRecord {
                    name: Some("a".into()),
                    ..ParameterRecord::default()
                }],
            }],
            build_log: "a warning".into(),
            build_microseconds: 1_500_000,
            created: 1_800_000_000,
            tools: vec![("kiln".into(), "0.1.0".into())],
            labels: vec![("4f".into(), "saxpy.cl".into())],
            object: Some(Box::new(ObjectRecord {
                device: vec![("device".into(), "a device".into())],
                exports: vec!["tone".into()],
                ..ObjectRecord::default()
            })),
        }
    }

    const KEY: BuildKey = BuildKey([7; 32]);

    fn file(payload: &[u8]) -> Vec<u8> {
        [payload, &encode(&KEY, &record(), payload)].concat()
    }

    #[test]
    fn manifests_with_too_many_records_are_refused() {
        let many = |count: usize, of: &str| vec![of; count].join(",");
        let kernel = |parameters: usize| {
            format!(r#"{{"name":"k","parameters":[{}]}}"#, many(parameters, "{}"))
        };
        let record = |kernels: &str| {
            let rest = r#""fields":[],"build_microseconds":0,"created":0,"tools":[]"#;
            parse(format!(r#"{{"kernels":[{kernels}],{rest}}}"#).as_bytes())
        };
        assert_eq!(record(&kernel(MAX_PARAMETERS)).map(|read| read.kernels.len()), Ok(1));
        let few = many(MAX_RECORDS / 4, &kernel(3));
        assert!(record(&few).is_ok());
        for kernels in [kernel(MAX_PARAMETERS + 1), format!("{few},{}", kernel(0))] {
            let error = record(&kernels).expect_err("they are too many").to_string();
            assert!(error.contains("at most"), "{error}");
        }
    }

    #[test]
    fn entries_round_trip() {
        for payload in [&b""[..], b"x", &[0xAB; 70_000]] {
            let bytes = file(payload);
            assert!(bytes.starts_with(payload), "device tools open an entry as it is");
            let entry = decode_for(&KEY, bytes.clone()).expect("it is complete");
            assert_eq!(entry.payload(), payload);
            assert_eq!(entry.record(), &record());
            assert_eq!(entry.key(), KEY);
            assert_eq!(entry.bytes(), bytes);
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let whole = file(b"payload");
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                assert!(decode_for(&KEY, bytes).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn every_other_length_is_refused() {
        let whole = file(b"payload");
        for length in 0..whole.len() {
            assert!(decode_for(&KEY, whole[..length].to_vec()).is_err(), "cut to {length}");
            assert!(decode_for(&KEY, whole[length..].to_vec()).is_err() || length == 0);
        }
        for more in [1, FOOTER, whole.len()] {
            assert!(decode_for(&KEY, [&whole[..], &vec![0; more]].concat()).is_err(), "{more}");
        }
        assert_eq!(
            decode_for(&KEY, [&whole[..], &whole].concat()).err(),
            Some(Unusable::Lengths),
            "two entries in one file"
        );
        assert_eq!(decode_for(&KEY, vec![0; whole.len()]).err(), Some(Unusable::Foreign));
    }

    #[test]
    fn entries_of_other_keys_are_reported() {
        let other = BuildKey([8; 32]);
        assert_eq!(decode_for(&other, file(b"x")).err(), Some(Unusable::OtherKey(KEY)));
    }

    #[test]
    fn other_versions_are_reported() {
        let version = |version: u32| {
            let mut bytes = file(b"x");
            let at = bytes.len() - FOOTER + TAIL;
            bytes[at..at + 4].copy_from_slice(&version.to_le_bytes());
            decode(bytes).expect_err("it is another version")
        };
        assert_eq!(version(0), Unusable::Version(0));
        assert!(!version(0).is_newer());
        assert!(version(VERSION + 1).is_newer());
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        for (payload, record) in [(u64::MAX, 1), (u64::MAX, u64::MAX), (1 << 63, 1 << 63)] {
            let mut bytes = file(b"x");
            let at = bytes.len() - FOOTER;
            bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(payload));
            bytes[at + 8..at + 16].copy_from_slice(&u64::to_le_bytes(record));
            assert_eq!(decode(bytes).err(), Some(Unusable::Lengths));
        }
    }
}
