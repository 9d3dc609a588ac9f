//! Outcomes of builds, and answers to requests.

use std::sync::Arc;

use super::built::Built;
use super::shared_outcome::SharedOutcome;
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
