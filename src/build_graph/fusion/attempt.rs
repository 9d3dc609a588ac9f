//! Attempts to fuse launches, and the ones that take longer than scopes wait for.
//!
//! A driver's compiler may never end for a fused kernel. A scope that may run its launches one by one therefore
//! waits for an attempt up to a limit. The attempt continues in the background. While it does, later scopes
//! with the same launches and no higher limit do not wait for it; they use its result once it has ended. Scopes with other
//! launches hardly wait either, because kernels in the background are built one at a time.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, select};
use kiln_compiler::fusion::fused_name;
use slab::Slab;

use super::known::Fusion;
use super::material::FusionRequest;
use super::query::{Key, Query};
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::kernel::Kernel;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::pause;
use crate::sync::lock;

/// Name of the fused kernel that an attempt is building, or is going to build.
pub(super) type KernelInBuild = Arc<Mutex<String>>;

/// Attempts that have not ended.
#[derive(Default)]
pub(in crate::build_graph) struct Attempts(Mutex<Slab<Attempt>>);

struct Attempt {
    /// The device's position in the graph.
    device: usize,
    /// Key of the launches.
    launches: Key,
    kernel: KernelInBuild,
    /// Longest time after which a scope has stopped waiting for it, if one has.
    overdue_after: Option<Duration>,
}

/// Attempt in progress, until it is dropped.
struct Ongoing {
    graph: Arc<BuildGraph>,
    index: usize,
    kernel: KernelInBuild,
}

/// Result of waiting for a fusion.
pub(crate) enum Awaited {
    Known(Arc<Fusion>),
    /// The limit has passed. The attempt continues.
    Overdue(Overdue),
}

/// Attempt that takes longer than scopes wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overdue {
    /// Name of the fused kernel that is being built.
    pub(crate) kernel: String,
    /// Time that the caller has waited at most.
    pub(crate) limit: Duration,
    /// Whether the caller has waited for it.
    pub(crate) has_waited: bool,
}

/// Maximum time to wait for a kernel in the background while another one of the device is overdue, which is built first.
const WAIT_BEHIND_OVERDUE: Duration = Duration::from_millis(50);

impl Attempts {
    fn begin(&self, device: usize, launches: Key, kernel: KernelInBuild) -> usize {
        lock(&self.0).insert(Attempt { device, launches, kernel, overdue_after: None })
    }

    /// Whether scopes have stopped waiting for an attempt on a device.
    fn has_overdue(&self, device: usize) -> bool {
        let attempts = lock(&self.0);
        let mut own = attempts.iter().filter(|(_, attempt)| attempt.device == device);
        own.any(|(_, attempt)| attempt.overdue_after.is_some())
    }

    fn end(&self, index: usize) {
        let attempt = lock(&self.0).try_remove(index);
        drop(attempt);
    }

    /// Records that a scope stops waiting for the attempt after `limit`. Returns `None` if the attempt has ended.
    fn set_overdue(&self, index: usize, limit: Duration) -> Option<Overdue> {
        let mut attempts = lock(&self.0);
        let attempt = attempts.get_mut(index)?;
        attempt.overdue_after = attempt.overdue_after.max(Some(limit));
        Some(attempt.overdue(limit, true))
    }

    /// Returns an attempt to fuse these launches for which a scope has stopped waiting after `limit` or longer.
    fn find_overdue(&self, launches: &Key, limit: Duration) -> Option<Overdue> {
        let attempts = lock(&self.0);
        let mut overdue = attempts
            .iter()
            .filter(|(_, attempt)| attempt.overdue_after.is_some_and(|waited| waited >= limit));
        let found = overdue.find(|(_, attempt)| attempt.launches == *launches);
        found.map(|(_, attempt)| attempt.overdue(limit, false))
    }
}

impl Attempt {
    fn overdue(&self, limit: Duration, has_waited: bool) -> Overdue {
        Overdue { kernel: lock(&self.kernel).clone(), limit, has_waited }
    }
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        self.graph.attempts().end(self.index);
    }
}

impl BuildGraph {
    /// Returns the attempt to fuse the launches for which scopes with this limit no longer wait, if there is one. Does
    /// not block.
    pub(crate) fn overdue_fusion(&self, query: &Query, limit: Duration) -> Option<Overdue> {
        self.attempts().find_overdue(&query.key, limit)
    }

    /// Like [`fuse`](Self::fuse), but waits no longer than `limit`. If the limit passes, the attempt continues
    /// in the background. If `hurries` is set, this hardly waits while another kernel of the device is overdue.
    ///
    /// # Errors
    ///
    /// As for [`fuse`](Self::fuse).
    pub(crate) async fn fuse_within(
        self: Arc<Self>,
        request: FusionRequest,
        limit: Duration,
        hurries: bool,
    ) -> Result<Awaited> {
        if let Some(known) = self.known_fusion(&request.query) {
            return Ok(Awaited::Known(known));
        }
        if let Some(overdue) = self.overdue_fusion(&request.query, limit) {
            return Ok(Awaited::Overdue(overdue));
        }
        let is_behind = !request.is_awaited && self.attempts().has_overdue(request.device);
        let wait = if hurries && is_behind { limit.min(WAIT_BEHIND_OVERDUE) } else { limit };
        let name = fused_name(request.kernels.iter().map(Kernel::name));
        let kernel = KernelInBuild::new(name.into());
        let index =
            self.attempts().begin(request.device, request.query.key.clone(), kernel.clone());
        let (sender, receiver) = oneshot::channel();
        let ongoing = Ongoing { graph: Arc::clone(&self), index, kernel };
        self.builds().spawn(async move {
            let attempt = ongoing.graph.new_fusion(&request, &ongoing.kernel);
            let attempted = AssertUnwindSafe(attempt).catch_unwind().await;
            // A scope that finds no attempt finds the result.
            drop(ongoing);
            // The receiver may be dropped already.
            let _ = sender.send(attempted);
        })?;
        match select(receiver, pause(wait)).await {
            Either::Left((attempted, _)) => outcome(attempted),
            Either::Right((Ok(()), receiver)) => match self.attempts().set_overdue(index, limit) {
                Some(overdue) => Ok(Awaited::Overdue(Overdue {
                    limit: wait,
                    has_waited: wait == limit,
                    ..overdue
                })),
                None => outcome(receiver.await),
            },
            Either::Right((Err(error), receiver)) => {
                tracing::warn!(%error, "the wait for a fused kernel has no limit");
                outcome(receiver.await)
            }
        }
    }
}

/// Result of an attempt, or the payload of its panic.
type Attempted = Result<Result<Arc<Fusion>>, Box<dyn std::any::Any + Send>>;

/// Returns the result of an attempt that has ended. Panics if the attempt has panicked.
fn outcome(attempted: Result<Attempted, oneshot::Canceled>) -> Result<Awaited> {
    match attempted {
        Ok(Ok(fusion)) => fusion.map(Awaited::Known),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(oneshot::Canceled) => {
            Err(Error::new(ErrorKind::Panicked, "the task that fuses launches panicked"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_compiler::fusion::Trust;

    fn launches(device: usize) -> Key {
        Query::new(device, Trust::ProofOnly, false, 0).key
    }

    /// Limits of scopes.
    const SHORT: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(120);

    #[test]
    fn only_attempts_that_a_scope_stopped_waiting_for_are_overdue() {
        let (attempts, kernel) = (Attempts::default(), KernelInBuild::default());
        let index = attempts.begin(0, launches(0), kernel.clone());
        assert_eq!(attempts.find_overdue(&launches(0), SHORT), None);
        "fused_scale_offset".clone_into(&mut lock(&kernel));
        let (kernel, limit) = ("fused_scale_offset".to_owned(), SHORT);
        let overdue = Overdue { kernel, limit, has_waited: true };
        assert!(!attempts.has_overdue(0));
        assert_eq!(attempts.set_overdue(index, SHORT), Some(overdue.clone()));
        assert_eq!([0, 1].map(|device| attempts.has_overdue(device)), [true, false]);
        let found = Overdue { has_waited: false, ..overdue };
        assert_eq!(attempts.find_overdue(&launches(0), SHORT), Some(found.clone()));
        assert_eq!(attempts.find_overdue(&launches(1), SHORT), None, "other launches");
        assert_eq!(attempts.find_overdue(&launches(0), LONG), None, "a scope that waits longer");
        assert!(attempts.set_overdue(index, LONG).is_some());
        assert_eq!(
            attempts.find_overdue(&launches(0), LONG),
            Some(Overdue { limit: LONG, ..found })
        );
    }

    #[test]
    fn an_attempt_that_has_ended_is_not_overdue() {
        let attempts = Attempts::default();
        let [first, second] =
            [(); 2].map(|()| attempts.begin(0, launches(0), KernelInBuild::default()));
        assert!(attempts.set_overdue(second, SHORT).is_some());
        attempts.end(second);
        assert_eq!(attempts.find_overdue(&launches(0), SHORT), None, "the other one is in time");
        assert_eq!(attempts.set_overdue(second, SHORT), None);
        attempts.end(first);
        assert_eq!(attempts.set_overdue(first, SHORT), None);
    }
}
