//! Answers of a remote cache to the build graph.

use futures::channel::oneshot;

use crate::cache::store::Entry;

/// Pending answer. It always completes, whatever the service does. It is canceled if the lookup ends without an
/// answer.
pub(crate) type PendingResponse = oneshot::Receiver<Answer>;

/// Result of waiting for an answer for as long as that is worthwhile.
pub(crate) enum Response {
    Answer(Result<Answer, oneshot::Canceled>),
    /// No answer has come yet; the pending one is returned.
    Pending(PendingResponse),
}

/// Response of a remote cache about one program.
pub(crate) enum Answer {
    Found(Entry),
    Absent,
    /// An object is there but is not used. It is left in place if `is_newer`, and is to be replaced otherwise.
    Refused {
        reason: String,
        is_newer: bool,
    },
    /// The lookup failed, for this reason: whether the program is there is unknown.
    Failed(String),
}

impl Answer {
    /// Whether the service has an object that is not to be replaced.
    pub(crate) fn keeps_object(&self) -> bool {
        match self {
            Self::Found(_) => true,
            Self::Refused { is_newer, .. } => *is_newer,
            Self::Absent | Self::Failed(_) => false,
        }
    }
}
