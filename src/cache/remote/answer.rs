//! What the build graph hears from a remote cache.

use futures::channel::oneshot;

use crate::cache::store::Entry;

/// An answer to come. It comes in the end, whatever becomes of the service; fails if there is
/// nothing to be had.
pub(crate) type Coming = oneshot::Receiver<Answer>;

/// What was heard while the answer was worth waiting for.
pub(crate) enum Heard {
    Answer(Result<Answer, oneshot::Canceled>),
    /// Nothing yet.
    Nothing(Coming),
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
