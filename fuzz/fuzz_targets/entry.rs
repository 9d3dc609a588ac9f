//! Fuzz target for the decoder of the store's entries, which reads arbitrary files from a disk.
//!
//! No input may cause a panic. If a file is accepted as the entry of a key, it must have the payload
//! and record that were encoded under that key.
//!
//! A checksum rejects random bytes before they reach any other check. Inputs are therefore also derived
//! from a valid entry by edits, and may get a checksum that matches the result. Such a forgery may be
//! accepted, and must then have the contents that it states.

#![no_main]

use arbitrary::Arbitrary;
use kiln::store::EntryRecord;
use kiln::store::fuzzing::{decode, decode_for, encode};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_128;

// Offsets in the footer, as `src/cache/store/entry.rs` documents them.
const FOOTER: usize = 80;
const KEY: usize = 16;
const CHECKSUM: usize = 48;
const TAIL: usize = 64;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Anything(&'a [u8]),
    Derived {
        key: [u8; 32],
        payload: &'a [u8],
        record: Text<'a>,
        edits: Vec<Edit<'a>>,
        checksum: Checksum,
    },
}

#[derive(Arbitrary, Debug)]
struct Text<'a> {
    fields: Vec<(&'a str, &'a str)>,
    build_log: &'a str,
    created: u64,
}

/// Edit at a position that is counted from the end, where the footer is.
#[derive(Arbitrary, Debug)]
enum Edit<'a> {
    Flip { back: u16, bits: u8 },
    Overwrite { back: u16, with: &'a [u8] },
    Number { back: u8, value: u64 },
    Insert { back: u16, bytes: &'a [u8] },
    Remove { back: u16, length: u16 },
    KeepLast(u16),
    Append(&'a [u8]),
    Record(&'a [u8]),
}

#[derive(Arbitrary, Debug, PartialEq)]
enum Checksum {
    Left,
    /// The checksum matches the edited bytes.
    Forged,
}

fuzz_target!(|input: Input<'_>| match input {
    Input::Anything(bytes) => is_what_it_says(bytes),
    Input::Derived { key, payload, record, edits, checksum } => {
        let record = record.into_record();
        let whole = [payload, &encode(&key, &record, payload)].concat();
        let mut bytes = whole.clone();
        for edit in &edits {
            edit.apply(&mut bytes);
        }
        if checksum == Checksum::Forged {
            forge(&mut bytes);
            is_what_it_says(&bytes);
        } else {
            match decode_for(&key, bytes.clone()) {
                Ok(entry) => {
                    assert_eq!(entry.payload(), payload);
                    assert_eq!(entry.record(), &record);
                    assert_eq!(bytes, whole);
                }
                Err(_) => assert_ne!(bytes, whole),
            }
        }
    }
});

/// Checks that bytes that decode have the payload and the key that their footer states, and no other
/// key.
fn is_what_it_says(bytes: &[u8]) {
    let Ok(entry) = decode(bytes.to_vec()) else { return };
    let footer = &bytes[bytes.len() - FOOTER..];
    let number = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().unwrap()) as usize;
    assert_eq!(entry.payload(), &bytes[..number(0)]);
    assert_eq!(number(0) + number(8) + FOOTER, bytes.len());
    let key: [u8; 32] = footer[KEY..KEY + 32].try_into().unwrap();
    assert!(decode_for(&key, bytes.to_vec()).is_ok());
    let other = key.map(|byte| !byte);
    assert!(decode_for(&other, bytes.to_vec()).is_err());
}

/// Sets the checksum that matches the rest of the bytes.
fn forge(bytes: &mut [u8]) {
    let Some(footer) = bytes.len().checked_sub(FOOTER) else { return };
    let checksum = xxh3_128(&[&bytes[..footer + CHECKSUM], &bytes[footer + TAIL..]].concat());
    bytes[footer + CHECKSUM..footer + TAIL].copy_from_slice(&checksum.to_le_bytes());
}

impl Text<'_> {
    fn into_record(self) -> EntryRecord {
        let mut record = EntryRecord::default();
        let fields = self.fields.into_iter();
        record.fields = fields.map(|(name, value)| (name.into(), value.into())).collect();
        record.build_log = self.build_log.into();
        record.created = self.created;
        record
    }
}

impl Edit<'_> {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let length = bytes.len();
        let at = |back: usize| length.saturating_sub(back);
        match *self {
            Self::Flip { back, bits } => {
                let at = at(back.into());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= bits;
                }
            }
            Self::Overwrite { back, with } => overwrite(bytes, at(back.into()), with),
            Self::Number { back, value } => {
                overwrite(bytes, at(back.into()), &value.to_le_bytes());
            }
            Self::Insert { back, bytes: more } => {
                let at = at(back.into());
                bytes.splice(at..at, more.iter().copied());
            }
            Self::Remove { back, length } => {
                let at = at(back.into());
                let end = bytes.len().min(at + usize::from(length));
                bytes.drain(at..end);
            }
            Self::KeepLast(length) => drop(bytes.drain(..at(length.into()))),
            Self::Append(more) => bytes.extend_from_slice(more),
            Self::Record(with) => replace_record(bytes, with),
        }
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    let length = with.len().min(bytes.len() - at);
    bytes[at..at + length].copy_from_slice(&with[..length]);
}

/// Replaces the record by other text, and sets its length to match.
fn replace_record(bytes: &mut Vec<u8>, with: &[u8]) {
    let Some(footer) = bytes.len().checked_sub(FOOTER) else { return };
    let length = u64::from_le_bytes(bytes[footer + 8..footer + 16].try_into().unwrap());
    let Some(start) = usize::try_from(length).ok().and_then(|length| footer.checked_sub(length))
    else {
        return;
    };
    bytes[footer + 8..footer + 16].copy_from_slice(&(with.len() as u64).to_le_bytes());
    bytes.splice(start..footer, with.iter().copied());
}
