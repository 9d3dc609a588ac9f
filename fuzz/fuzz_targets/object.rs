//! The opener of objects of a remote cache, which meets whatever others wrote there.
//!
//! Whatever the bytes, it must not panic. What it opens is whole and of the key that was asked for,
//! and where a secret is set, somebody who had it made all of it.
//!
//! Digests keep random bytes from all that stands behind them. Inputs are therefore also derived
//! from an object that is right, by edits, and can be sealed again as anybody could who has no
//! secret, or another one.

#![no_main]

use arbitrary::Arbitrary;
use kiln::remote::fuzzing::{open, seal};
use kiln::store::Manifest;
use kiln::store::fuzzing::encode;
use libfuzzer_sys::fuzz_target;

/// The bytes of a trailer, and of the parts of it, as `src/cache/remote/envelope.rs` documents them.
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
        /// What the reader asks for, and by what secret.
        asked: Option<[u8; 32]>,
        known: Option<&'a [u8]>,
    },
}

/// A position counts from the end.
#[derive(Arbitrary, Debug)]
enum Edit<'a> {
    Flip { back: u16, bits: u8 },
    Insert { back: u16, bytes: &'a [u8] },
    Remove { back: u16, length: u16 },
}

#[derive(Arbitrary, Debug)]
enum Seal<'a> {
    /// The edits are those of the object.
    Left,
    /// They are those of the file, which is sealed anew.
    Anew(Option<&'a [u8]>),
    /// The same, with the tag that the object had.
    WithItsTag(Option<&'a [u8]>),
}

fuzz_target!(|input: Input<'_>| match input {
    Input::Anything { key, object, secret } => is_right(&key, object, secret),
    Input::Derived { key, payload, build_log, secret, edits, seal: how, asked, known } => {
        let mut manifest = Manifest::default();
        manifest.build_log = build_log.into();
        let file = [payload, &encode(&key, &manifest, payload)].concat();
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

/// What opens is what its digest says, of this key, and made with this secret.
fn is_right(key: &[u8; 32], object: &[u8], secret: Option<&[u8]>) {
    let Ok(entry) = open(key, object.to_vec(), secret) else { return };
    let sealed = seal(entry.bytes().to_vec(), secret);
    assert_eq!(object.len(), sealed.len());
    assert_eq!(entry.key().as_bytes(), key);
    match secret {
        Some(_) => assert_eq!(object, sealed),
        // Then nobody looks at the tag, or at what tells of it.
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
