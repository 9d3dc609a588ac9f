//! What becomes of a fusion scope.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::channel::oneshot;

use crate::error::{Error, ErrorKind, Result};

/// How the launches of a [`FusionScope`](crate::FusionScope) are run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FusionOutcome {
    /// As one kernel. If a command before it then fails, or the driver refuses it, they still run one by
    /// one, and their events tell how each has ended.
    #[non_exhaustive]
    Fused {
        /// Its name.
        kernel: String,
        /// How many launches it does the work of.
        launches: usize,
        /// How many buffers it does without.
        internalized: usize,
    },
    /// One by one.
    #[non_exhaustive]
    Unfused {
        /// The reason.
        why: Unfused,
    },
}

/// Why launches are run one by one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Unfused {
    /// There were none.
    Empty,
    /// There was only one.
    Single,
    /// The scope was canceled, or completed before.
    Canceled,
    /// Something outside the scope needed one of its launches: what, and which.
    Aborted(String),
    /// They cannot run as one, or it is not proven that this would change nothing: the reason, which
    /// the [report](crate::FusionScope::report) gives in full.
    Refused(String),
    /// One by one is faster, by the time that the first runs took on the device.
    #[non_exhaustive]
    Slower {
        /// The fused kernel.
        fused: Duration,
        /// The launches, with what lies between them, as far as that is no waiting for other commands.
        unfused: Duration,
    },
    /// This run is timed, to find out what is faster.
    Timing,
    /// [`FusionMode::Never`](crate::FusionMode::Never).
    Disabled,
    /// The fused kernel could not be built for a failure of circumstance, or a launch's own program has
    /// not built.
    Failed(Error),
}

impl Unfused {
    /// A launch of the scope has failed, for this reason if it is known.
    pub(super) fn of_failed(cause: Option<&Error>) -> Self {
        let mut why = "a launch of the scope has failed before it could start".to_owned();
        if let Some(cause) = cause {
            why.push_str(": ");
            why.push_str(&cause.summary());
        }
        Self::Refused(why)
    }
}

impl fmt::Display for Unfused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the scope has no launches"),
            Self::Single => f.write_str("the scope has one launch only"),
            Self::Canceled => f.write_str("the scope was canceled or completed before"),
            Self::Aborted(why) => write!(f, "aborted: {why}"),
            Self::Refused(why) => f.write_str(why),
            Self::Slower { fused, unfused } => write!(
                f,
                "one by one is faster: {unfused:.1?}, where the fused kernel takes {fused:.1?}"
            ),
            Self::Timing => f.write_str("this run is timed, to find out whether fusing pays"),
            Self::Disabled => f.write_str("fusing is switched off"),
            Self::Failed(error) => write!(f, "no fused kernel could be made: {error}"),
        }
    }
}

impl FusionOutcome {
    /// Whether the launches run as one kernel.
    #[must_use]
    pub fn is_fused(&self) -> bool {
        matches!(self, Self::Fused { .. })
    }
}

impl fmt::Display for FusionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fused { kernel, launches, internalized } => {
                write!(f, "{launches} launches run as `{kernel}`")?;
                match internalized {
                    0 => Ok(()),
                    1 => f.write_str(", which does without 1 buffer"),
                    _ => write!(f, ", which does without {internalized} buffers"),
                }
            }
            Self::Unfused { why } => write!(f, "not fused: {why}"),
        }
    }
}

/// The future of a [`FusionOutcome`], from [`FusionScope::complete`](crate::FusionScope::complete).
///
/// # Cancel safety
///
/// Dropping it changes nothing: the launches run all the same. Polling again after completion gives
/// the same result again.
#[derive(Debug)]
#[must_use = "the launches run, but how, and why not as one, is lost"]
pub struct Fusing(State);

#[derive(Debug)]
enum State {
    Known(Result<FusionOutcome>),
    Awaited(oneshot::Receiver<Result<FusionOutcome>>),
}

impl Fusing {
    pub(super) fn known(outcome: Result<FusionOutcome>) -> Self {
        Self(State::Known(outcome))
    }

    pub(super) fn awaited(outcome: oneshot::Receiver<Result<FusionOutcome>>) -> Self {
        Self(State::Awaited(outcome))
    }
}

impl Future for Fusing {
    type Output = Result<FusionOutcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.0 {
            State::Known(outcome) => return Poll::Ready(outcome.clone()),
            State::Awaited(receiver) => ready!(Pin::new(receiver).poll(context)),
        };
        let outcome = outcome.unwrap_or_else(|oneshot::Canceled| {
            Err(Error::new(ErrorKind::Panicked, "fusing panicked; the launches run one by one"))
        });
        self.0 = State::Known(outcome.clone());
        Poll::Ready(outcome)
    }
}
