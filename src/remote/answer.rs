//! What the build graph hears from a remote cache.

use std::time::Duration;

use futures::channel::oneshot;

use crate::store::Entry;

/// A question under way.
pub(crate) struct Asked {
    /// Comes in the end, whatever becomes of the service; fails if there is nothing to be had.
    pub(crate) answer: oneshot::Receiver<Answer>,
    /// How long it is worth waiting for before the compile starts.
    pub(crate) patience: Duration,
}

/// What a remote cache says of a program.
pub(crate) enum Answer {
    Found(Entry),
    Absent,
    /// It has something that is not used, and that is to be replaced or not.
    Refused {
        reason: String,
        is_newer: bool,
    },
    /// Nothing is known.
    Failed(String),
}
