//! Parts of a group of launches that run one after another, and the reasons why the launches of a part run one
//! by one.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::queue::accesses::CombinedAccesses;
use crate::queue::launch_work::LaunchWork;
use crate::queue::stopwatch::Stopwatch;

/// Reason why launches that were to run as one run one by one.
#[derive(Debug)]
pub(crate) enum FusionBlocker {
    /// The launch with this position and kernel name waits for a host future, which may wait for another
    /// launch of the group.
    HostFuture(usize, String),
    /// A launch has failed, or is certain to fail, for this reason.
    Failed(Error),
    /// The fused kernel cannot be launched with these arguments.
    Unfit(Error),
    /// The command described here reads data that would be missing.
    InternalizedRead(String),
    /// The launch at the first position comes after the launch at the second one, which would run later.
    Order(usize, usize),
    /// The launches are among other commands already, so that the fused kernel cannot repeat earlier launches.
    Repeats,
}

impl fmt::Display for FusionBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostFuture(at, kernel) => write!(
                f,
                "launch {at}, of `{kernel}`, waits for a host future, which may wait for another \
                 launch of the scope"
            ),
            Self::Failed(root) => write!(f, "a launch failed before it started: {root}"),
            Self::Unfit(error) => write!(f, "the fused kernel does not fit the launches: {error}"),
            Self::InternalizedRead(reader) => write!(
                f,
                "{reader} reads a buffer that was to be internalized, and was submitted before the \
                 fusion was decided"
            ),
            Self::Order(at, before) => write!(
                f,
                "launch {at} was submitted to come after launch {before}, which would run later"
            ),
            Self::Repeats => f.write_str(
                "the fused kernel repeats launches of the scope, and other commands may have \
                 changed what they read",
            ),
        }
    }
}

impl FusionBlocker {
    /// Returns the blocker of a part with the positions that its launches have in the scope.
    pub(super) fn in_scope(self, launches: &[usize]) -> Self {
        let position = |at: usize| launches.get(at).copied().unwrap_or(at);
        match self {
            Self::HostFuture(at, kernel) => Self::HostFuture(position(at), kernel),
            other => other,
        }
    }
}

/// Launches of a group that run after those of the parts before it.
pub(crate) struct Part {
    /// Positions of the launches in the group, in order.
    pub(crate) launches: SmallVec<[usize; 8]>,
    /// Launch that runs in their place, or the reason why it does not fit; `None` if they run one by one.
    pub(crate) fused: Option<Result<FusedLaunch>>,
    /// Stopwatch that times the part, perhaps together with others.
    pub(crate) stopwatch: Option<Arc<Stopwatch>>,
}

impl Part {
    /// Returns the part of a launch that runs by itself.
    pub(crate) fn of_launch(position: usize, stopwatch: Option<Arc<Stopwatch>>) -> Self {
        Self { launches: SmallVec::from_slice(&[position]), fused: None, stopwatch }
    }
}

/// Fused launch, which runs in place of the launches of a part.
pub(crate) struct FusedLaunch {
    pub(crate) launch: Box<LaunchWork>,
    pub(crate) accesses: Arc<CombinedAccesses>,
    /// Allocations in which the launch leaves no contents, although the launches would.
    pub(crate) lost: SmallVec<[u64; 8]>,
}
