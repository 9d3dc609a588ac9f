//! The remote cache of a tool that was built without one.

use kiln::CacheConfig;
use serde::Serialize;

use crate::output::Result;

/// How a remote cache does.
#[derive(Serialize)]
pub(super) enum Status {}

impl Status {
    pub(super) fn in_words(&self) -> String {
        match *self {}
    }
}

pub(super) fn status(_: &CacheConfig) -> Result<Option<Status>> {
    Ok(None)
}

/// What a remote cache has of an entry.
#[derive(Serialize)]
pub(super) enum Has {}

impl Has {
    pub(super) fn is_whole(&self) -> bool {
        match *self {}
    }

    pub(super) fn in_words(&self) -> String {
        match *self {}
    }
}

pub(super) fn has(_: &CacheConfig, _: &str) -> Result<Option<Has>> {
    Ok(None)
}
