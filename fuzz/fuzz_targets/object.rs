//! Fuzz target for opening objects of a remote cache, which other parties may have written.
//!
//! No input may cause a panic. An object that opens must be complete and have the requested key. If a
//! secret is set, the object must be made with that secret.
//!
//! The digests reject random bytes before they reach any other check. Inputs are therefore also derived
//! from a valid object by edits, and may be sealed again, as an attacker without the secret, or with
//! another one, could do.

#![no_main]

use arbitrary::Arbitrary;
use kiln::remote::fuzzing::{open, seal};
use kiln::store::EntryRecord;
use kiln::store::fuzzing::encode;
use libfuzzer_sys::fuzz_target;

/// Sizes in bytes of a trailer and of its parts, as documented in `src/cache/remote/envelope.rs`.
const TRAILER: usize = 80;
const DIGEST: usize = 32;
const TAG: usize = 32;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Anything {
        key: [u8; 32],
        object: &'a [u8],
        secret: Option<&'a [u8]>,
    },
    Derived {
        key: [u8; 32],
        payload: &'a [u8],
        build_log: &'a str,
        secret: Option<&'a [u8]>,
        edits: Vec<Edit<'a>>,
        seal: Seal<'a>,
        /// Key that the reader requests; its secret is in `known`.
        asked: Option<[u8; 32]>,
        known: Option<&'a [u8]>,
    },
}

/// Edit at a position that is counted from the end.
#[derive(Arbitrary, Debug)]
enum Edit<'a> {
    Flip { back: u16, bits: u8 },
    Insert { back: u16, bytes: &'a [u8] },
    Remove { back: u16, length: u16 },
}

#[derive(Arbitrary, Debug)]
enum Seal<'a> {
    /// The edits apply to the object.
    Left,
    /// The edits apply to the file, which is sealed again.
    Anew(Option<&'a [u8]>),
    /// Like `Anew`, but with the tag of the original object.
    WithItsTag(Option<&'a [u8]>),
}

fuzz_target!(|input: Input<'_>| match input {
    Input::Anything { key, object, secret } => is_right(&key, object, secret),
    Input::Derived { key, payload, build_log, secret, edits, seal: how, asked, known } => {
        let mut record = EntryRecord::default();
        record.build_log = build_log.into();
        let file = [payload, &encode(&key, &record, payload)].concat();
        let right = seal(file.clone(), secret);
        let object = match how {
            Seal::Left => edited(right.clone(), &edits),
            Seal::Anew(with) => seal(edited(file.clone(), &edits), with),
            Seal::WithItsTag(with) => {
                let mut object = seal(edited(file.clone(), &edits), with);
                let [from, to] = [&right, &object].map(|of: &Vec<u8>| of.len() - TRAILER + DIGEST);
                object[to..to + TAG].copy_from_slice(&right[from..from + TAG]);
                object
            }
        };
        let asked = asked.unwrap_or(key);
        is_right(&asked, &object, known);
        if object == right {
            let may_open = asked == key && (known.is_none() || known == secret);
            assert_eq!(open(&asked, object, known).is_ok(), may_open);
        }
    }
});

/// Checks that an object that opens matches its digest, has this key, and was made with this secret.
fn is_right(key: &[u8; 32], object: &[u8], secret: Option<&[u8]>) {
    let Ok(entry) = open(key, object.to_vec(), secret) else { return };
    let sealed = seal(entry.bytes().to_vec(), secret);
    assert_eq!(object.len(), sealed.len());
    assert_eq!(entry.key().as_bytes(), key);
    match secret {
        Some(_) => assert_eq!(object, sealed),
        // Without a secret, the tag is not checked, nor is the field that states whether there is one.
        None => {
            let digest = object.len() - TRAILER + DIGEST;
            assert_eq!(object[..digest], sealed[..digest]);
        }
    }
}

fn edited(mut bytes: Vec<u8>, edits: &[Edit<'_>]) -> Vec<u8> {
    for edit in edits {
        let length = bytes.len();
        let at = |back: u16| length.saturating_sub(back.into());
        match *edit {
            Edit::Flip { back, bits } => {
                if let Some(byte) = bytes.get_mut(at(back)) {
                    *byte ^= bits;
                }
            }
            Edit::Insert { back, bytes: more } => {
                drop(bytes.splice(at(back)..at(back), more.iter().copied()))
            }
            Edit::Remove { back, length: most } => {
                let end = length.min(at(back) + usize::from(most));
                bytes.drain(at(back)..end);
            }
        }
    }
    bytes
}
