//! Entry format, for the fuzzer in `fuzz/`, which is built with `--cfg fuzzing`.
#![allow(missing_docs, clippy::missing_errors_doc, reason = "it is not part of the interface")]

use super::entry::{self, Entry, EntryRecord, Unusable};
use crate::digest::BuildKey;

pub fn encode(key: &[u8; 32], record: &EntryRecord, payload: &[u8]) -> Vec<u8> {
    entry::encode(&BuildKey(*key), record, payload)
}

pub fn decode(bytes: Vec<u8>) -> Result<Entry, Unusable> {
    entry::decode(bytes)
}

pub fn decode_for(key: &[u8; 32], bytes: Vec<u8>) -> Result<Entry, Unusable> {
    entry::decode_for(&BuildKey(*key), bytes)
}
