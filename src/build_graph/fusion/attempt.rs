//! Waits for attempts to fuse launches, which may take longer than scopes wait for.
//!
//! A driver's compiler may never end for a fused kernel. A scope that may run its launches one by one therefore
//! waits for an attempt up to a limit. The attempt continues in the background. While it does, later scopes
//! with the same launches and no higher limit do not wait for it; they use its result once it has ended. Scopes with other
//! launches hardly wait either, because kernels in the background are built one at a time.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::attempts::{KernelInBuild, Overdue};
use super::fuser::Fuser;
use super::known::Fusion;
use super::material::FusionRequest;
use super::query::Query;
use crate::build_graph::kernel::Kernel;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::pause;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, select};
use kiln_compiler::fusion::fused_name;

/// Attempt in progress, until it is dropped.
struct Ongoing {
    fuser: Arc<Fuser>,
    index: usize,
    kernel: KernelInBuild,
}

/// Result of waiting for a fusion.
pub(crate) enum Awaited {
    Known(Arc<Fusion>),
    /// The limit has passed. The attempt continues.
    Overdue(Overdue),
}

/// Maximum time to wait for a kernel in the background while another one of the device is overdue, which is built first.
const WAIT_BEHIND_OVERDUE: Duration = Duration::from_millis(50);

impl Drop for Ongoing {
    fn drop(&mut self) {
        self.fuser.attempts.end(self.index);
    }
}

impl Fuser {
    /// Returns the attempt to fuse the launches for which scopes with this limit no longer wait, if there is one. Does
    /// not block.
    pub(crate) fn overdue_fusion(&self, query: &Query, limit: Duration) -> Option<Overdue> {
        self.attempts.find_overdue(&query.key, limit)
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
        let is_behind = !request.is_awaited && self.attempts.has_overdue(request.device);
        let wait = if hurries && is_behind { limit.min(WAIT_BEHIND_OVERDUE) } else { limit };
        let name = fused_name(request.kernels.iter().map(Kernel::name));
        let kernel = KernelInBuild::new(name.into());
        let index = self.attempts.begin(request.device, request.query.key.clone(), kernel.clone());
        let (sender, receiver) = oneshot::channel();
        let ongoing = Ongoing { fuser: Arc::clone(&self), index, kernel };
        self.graph.builds().spawn(async move {
            let attempt = ongoing.fuser.new_fusion(&request, &ongoing.kernel);
            let attempted = AssertUnwindSafe(attempt).catch_unwind().await;
            // A scope that finds no attempt finds the result.
            drop(ongoing);
            // The receiver may be dropped already.
            let _ = sender.send(attempted);
        })?;
        match select(receiver, pause(wait)).await {
            Either::Left((attempted, _)) => outcome(attempted),
            Either::Right((Ok(()), receiver)) => match self.attempts.set_overdue(index, limit) {
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
