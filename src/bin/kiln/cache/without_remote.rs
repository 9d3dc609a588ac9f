//! Stand-ins for the remote cache in a tool that is built without it.

use kiln::CacheConfig;
use serde::Serialize;

use crate::output::Result;

/// Status of the remote cache.
#[derive(Serialize)]
pub(super) enum Status {}

impl Status {
    pub(super) fn in_words(&self) -> String {
        match *self {}
    }
}

pub(super) async fn status(_: &CacheConfig) -> Result<Option<Status>> {
    Ok(None)
}

/// State of an entry in the remote cache.
#[derive(Serialize)]
pub(super) enum RemoteEntry {}

impl RemoteEntry {
    pub(super) fn is_whole(&self) -> bool {
        match *self {}
    }

    pub(super) fn in_words(&self) -> String {
        match *self {}
    }
}

pub(super) async fn look_up(_: &CacheConfig, _: &str) -> Result<Option<RemoteEntry>> {
    Ok(None)
}
