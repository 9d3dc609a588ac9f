//! Format of the objects in a remote cache, and verification of the data that is read under their names.
//!
//! ```text
//! file        an entry's file, as it is on disk
//! trailer     80 bytes, little-endian:
//!               0  digest     32 bytes  BLAKE3 of the file
//!              32  tag        32        keyed BLAKE3 of the digest and of the last 16 bytes
//!              64  version     4
//!              68  flags       4        bit 0: the object has a tag; otherwise the tag is zero
//!              72  magic       8
//! ```
//!
//! The tag covers the key of the program, because the file states the key and the digest covers the file: an
//! object with a valid tag that is stored under another object's name is refused. No part of an object is
//! parsed before its digest and, if a secret is set, its tag are verified.
//!
//! The version and the magic number have the same distance from the end in every version, past and future.

use std::fmt;

use crate::cache::store::{Entry, Unusable, decode_for};
use crate::digest::BuildKey;

/// Version of the format.
const VERSION: u32 = 1;

/// Size of a trailer, in bytes.
pub(crate) const TRAILER: usize = 80;

/// Magic number at the end of an object. It differs from the magic number of an entry, with which an object
/// ends once its trailer is removed.
const MAGIC: [u8; 8] = *b"KILNOBJ\xfe";

/// Flag of an object that has a tag.
const TAGGED: u32 = 1;

// Offsets in the trailer, in bytes.
const TAG: usize = 32;
const TAIL: usize = 64;

/// Context of the key derivation. It separates this key from keys that are derived from the same secret for
/// other purposes.
const CONTEXT: &str = "kiln 2026-11-21 remote entry authentication";

/// Key derived from the secret that all writers of a remote cache share. Objects are tagged with it.
#[derive(Clone)]
#[cfg_attr(test, derive(PartialEq, Eq))]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    pub(crate) fn new(text: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, text))
    }

    fn tag(&self, digest: &[u8], tail: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.0).update(digest).update(tail).finalize()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Reason why an object is not used.
///
/// # Examples
///
/// ```
/// use kiln::remote::Refused;
///
/// let reason = Refused::TooLarge { max_bytes: 1024 };
/// assert_eq!(reason.to_string(), "it has more than 1024 bytes");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The object does not end with a trailer: it is something else, or was truncated or extended.
    Foreign,
    /// The object has another version of the format.
    Version(u32),
    /// The contents do not match the digest.
    Damaged,
    /// The object has no tag, and a secret is set.
    Untagged,
    /// The tag was made with another secret, or for other contents.
    Tag,
    /// The object is intact, but does not hold an entry of the requested key.
    Entry(Unusable),
    /// The object is larger than the limit.
    TooLarge {
        /// Limit in bytes.
        max_bytes: u64,
    },
}

impl Refused {
    /// Returns whether the object was written by a newer version of this crate. Such objects are left in place.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::remote::Refused;
    ///
    /// assert!(Refused::Version(u32::MAX).is_newer());
    /// assert!(!Refused::Damaged.is_newer());
    /// ```
    #[must_use]
    pub fn is_newer(&self) -> bool {
        match self {
            Self::Version(version) => *version > VERSION,
            Self::Entry(unusable) => unusable.is_newer(),
            _ => false,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("it does not end with the trailer of an object"),
            Self::Version(version) => {
                write!(f, "it has format version {version}, but version {VERSION} is expected")
            }
            Self::Damaged => f.write_str("its contents do not match its digest"),
            Self::Untagged => f.write_str(
                "it is not authenticated, but a secret is set: its writer had no secret",
            ),
            Self::Tag => f.write_str("its authentication does not match the secret that is set"),
            Self::Entry(unusable) => write!(f, "{unusable}"),
            Self::TooLarge { max_bytes } => write!(f, "it has more than {max_bytes} bytes"),
        }
    }
}

/// Appends a trailer to an entry's file, which makes it an object.
pub(crate) fn seal(mut file: Vec<u8>, secret: Option<&Secret>) -> Vec<u8> {
    let digest = blake3::hash(&file);
    let mut tail = [0; TRAILER - TAIL];
    tail[..4].copy_from_slice(&VERSION.to_le_bytes());
    tail[4..8].copy_from_slice(&u32::from(secret.is_some()).to_le_bytes());
    tail[8..].copy_from_slice(&MAGIC);
    let tag = secret.map_or([0; 32], |secret| *secret.tag(digest.as_bytes(), &tail).as_bytes());
    file.extend_from_slice(digest.as_bytes());
    file.extend_from_slice(&tag);
    file.extend_from_slice(&tail);
    file
}

/// Verifies an object that was read for `key`, and returns its entry.
pub(crate) fn open(
    key: &BuildKey,
    mut object: Vec<u8>,
    secret: Option<&Secret>,
) -> Result<Entry, Refused> {
    let (file, trailer) = object.split_last_chunk::<TRAILER>().ok_or(Refused::Foreign)?;
    let tail = &trailer[TAIL..];
    let [version, flags] = [0, 4].map(|at| {
        let mut number = [0; 4];
        number.copy_from_slice(&tail[at..at + 4]);
        u32::from_le_bytes(number)
    });
    if tail[8..] != MAGIC {
        return Err(Refused::Foreign);
    }
    if version != VERSION {
        return Err(Refused::Version(version));
    }
    if blake3::hash(file) != trailer[..TAG] {
        return Err(Refused::Damaged);
    }
    if let Some(secret) = secret {
        if flags & TAGGED == 0 {
            return Err(Refused::Untagged);
        }
        // Comparison with a `Hash` is constant-time: it does not depend on where the two differ.
        if secret.tag(&trailer[..TAG], tail) != trailer[TAG..TAIL] {
            return Err(Refused::Tag);
        }
    }
    let length = file.len();
    object.truncate(length);
    decode_for(key, object).map_err(Refused::Entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::store::{EntryRecord, encode};

    const KEY: BuildKey = BuildKey([7; 32]);

    fn file() -> Vec<u8> {
        let record = EntryRecord { build_log: "a log".to_owned(), ..EntryRecord::default() };
        [&b"payload"[..], &encode(&KEY, &record, b"payload")].concat()
    }

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes())
    }

    fn refused(object: Vec<u8>, secret: Option<&Secret>) -> Refused {
        open(&KEY, object, secret).expect_err("it is invalid")
    }

    #[test]
    fn sealed_objects_open_to_the_original_file() {
        let mine = secret("mine");
        for (sealed, opened) in [(None, None), (Some(&mine), Some(&mine)), (Some(&mine), None)] {
            let object = seal(file(), sealed);
            assert_eq!(object.len(), file().len() + TRAILER);
            let entry = open(&KEY, object, opened).expect("it is valid");
            assert_eq!(entry.bytes(), file());
            assert_eq!(entry.payload(), b"payload");
        }
    }

    #[test]
    fn with_a_secret_only_objects_sealed_with_it_are_opened() {
        let (mine, yours) = (secret("mine"), secret("yours"));
        assert_eq!(refused(seal(file(), None), Some(&mine)), Refused::Untagged);
        assert_eq!(refused(seal(file(), Some(&yours)), Some(&mine)), Refused::Tag);
        // A set flag alone is not enough: the tag itself must match.
        let mut object = seal(file(), None);
        let flags = object.len() - TRAILER + 68;
        object[flags] = 1;
        assert_eq!(refused(object, Some(&mine)), Refused::Tag);
    }

    #[test]
    fn a_tag_is_not_valid_for_another_file() {
        let mine = secret("mine");
        let other = [&b"malice!"[..], &encode(&KEY, &EntryRecord::default(), b"malice!")].concat();
        let mut forged = seal(other, None);
        let right = seal(file(), Some(&mine));
        let at = forged.len() - TRAILER;
        forged[at + TAG..].copy_from_slice(&right[right.len() - TRAILER + TAG..]);
        assert_eq!(refused(forged, Some(&mine)), Refused::Tag);
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let mine = secret("mine");
        let whole = seal(file(), Some(&mine));
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut object = whole.clone();
                object[at] ^= 1 << bit;
                assert!(open(&KEY, object, Some(&mine)).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn every_other_length_is_refused() {
        let whole = seal(file(), None);
        for length in 0..whole.len() {
            assert!(open(&KEY, whole[..length].to_vec(), None).is_err(), "cut to {length}");
        }
        assert!(open(&KEY, [&whole[..], &[0]].concat(), None).is_err());
        assert_eq!(refused(file(), None), Refused::Foreign, "an entry without a trailer");
        assert_eq!(refused(seal(whole, None), None), Refused::Entry(Unusable::Foreign));
    }

    #[test]
    fn objects_of_other_keys_or_newer_versions_are_refused_as_such() {
        let other = BuildKey([8; 32]);
        let object = seal(file(), None);
        assert_eq!(
            open(&other, object.clone(), None).expect_err("it is of another key"),
            Refused::Entry(Unusable::OtherKey(KEY))
        );
        let mut newer = object;
        let version = newer.len() - TRAILER + TAIL;
        newer[version] += 1;
        let refused = refused(newer, None);
        assert_eq!(refused, Refused::Version(VERSION + 1));
        assert!(refused.is_newer());
    }

    #[test]
    fn debug_output_hides_the_secret() {
        assert_eq!(format!("{:?}", secret("mine")), "Secret(..)");
    }
}
