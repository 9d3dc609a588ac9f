//! Outcomes of builds, and answers to requests.

use std::sync::Arc;

use super::built::Built;
use super::shared_outcome::{Promise, SharedOutcome, shared_outcome};
use crate::error::{Error, Result};

/// Result of a build.
pub(crate) type Outcome = Result<Arc<Built>>;

/// The answer to a request.
#[derive(Clone)]
pub(crate) enum Answer {
    /// The outcome was in memory.
    Kept(Outcome),
    /// The program cannot be built; no driver was called.
    Refused(Error),
    /// The program is being built: wait for the outcome.
    Building(SharedOutcome<Outcome>),
    /// Files are being read to compute the key: wait for the answer.
    Reading(SharedOutcome<Answer>),
}

impl Answer {
    /// Waits for the outcome.
    pub(super) async fn completed(mut self) -> Outcome {
        loop {
            self = match self {
                Self::Kept(outcome) => return outcome,
                Self::Refused(error) => return Err(error),
                Self::Building(shared) => return shared.await,
                Self::Reading(shared) => shared.await,
            }
        }
    }
}

/// Obligations to complete the outcomes of a build.
pub(super) struct Promises {
    pub(super) first: Promise<Outcome>,
    pub(super) joined: Promise<Outcome>,
}

/// Outcomes of a build in flight.
#[derive(Clone)]
pub(super) struct Outcomes {
    /// Outcome for the request that began the build.
    pub(super) first: SharedOutcome<Outcome>,
    /// Outcome for the requests that joined the build. If the build fails in a way that may not recur, it is the outcome
    /// of another build.
    pub(super) joined: SharedOutcome<Outcome>,
}

/// Creates the outcomes of a build, and the obligations to complete them.
pub(super) fn outcomes() -> (Outcomes, Promises) {
    let (first, promise) = shared_outcome();
    let (joined, promise_to_joined) = shared_outcome();
    (Outcomes { first, joined }, Promises { first: promise, joined: promise_to_joined })
}
