//! Entry points to the envelope of objects for the fuzzer in `fuzz/`, which is built with `--cfg fuzzing`.
#![allow(missing_docs, clippy::missing_errors_doc, reason = "it is not part of the interface")]

use super::envelope::{self, Refused, Secret};
use crate::cache::store::Entry;
use crate::digest::BuildKey;

pub fn seal(file: Vec<u8>, secret: Option<&[u8]>) -> Vec<u8> {
    envelope::seal(file, secret.map(Secret::new).as_ref())
}

pub fn open(key: &[u8; 32], object: Vec<u8>, secret: Option<&[u8]>) -> Result<Entry, Refused> {
    envelope::open(&BuildKey(*key), object, secret.map(Secret::new).as_ref())
}
