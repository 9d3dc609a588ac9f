//! Builds in flight, as the obligation to end them.
//!
//! A build has two outcomes: one for the request that began it, and one for the requests that joined it. They differ
//! only after a failure that may not recur, such as a panic of the compiler: the requests that joined the build then
//! build once more, together, so that one bad build does not fail them all.

use std::sync::Arc;
use std::time::Instant;

use tracing::field::display;

use super::built::Origin;
use super::compile::Subject;
use super::disk::Miss;
use super::key::NodeKind;
use super::memory::BuildId;
use super::outcome::{Outcome, Promises};
use super::plan::BuildPlan;
use super::progress::Building;
use super::trace::Trail;
use crate::cache::store::Pending;
use crate::error::{Error, ErrorKind, catch_and_log};
use crate::process::threads::no_thread_error;

/// A build in flight. Dropping it before it has [ended](Self::end) ends it with an error.
pub(super) struct InFlight {
    node: BuildId,
    /// Program that is built. If texts have to be translated first, it is the one of their SPIR-V from then on.
    subject: Arc<Subject>,
    /// Plan of the build when it began.
    plan: BuildPlan,
    /// Obligations to complete the waiters, until the build has ended.
    promises: Option<Promises>,
    /// Counts the build, until it has ended.
    building: Option<Building>,
    span: tracing::Span,
    start: Instant,
    /// Keeps `settled()` pending until the program is stored.
    pending: Option<Pending>,
}

impl InFlight {
    pub(super) fn new(
        node: BuildId,
        subject: Arc<Subject>,
        promises: Promises,
        pending: Option<Pending>,
    ) -> Self {
        let (plan, promises, start) = (subject.plan().clone(), Some(promises), Instant::now());
        let building = Some(subject.graph().progress().begin());
        let span = tracing::Span::none();
        Self { node, subject, plan, promises, building, span, start, pending }
    }

    /// Sets the span in which the build reports.
    pub(super) fn with_span(mut self, span: tracing::Span) -> Self {
        self.span = span;
        self
    }

    pub(super) fn node(&self) -> BuildId {
        self.node
    }

    pub(super) fn subject(&self) -> &Arc<Subject> {
        &self.subject
    }

    /// Builds this subject, the SPIR-V of the texts, under the same node.
    pub(super) fn replace_subject(&mut self, subject: Subject) {
        self.subject = Arc::new(subject);
    }

    /// Ends the build: makes its outcome visible, completes the waiters, and reports it.
    pub(super) fn end(&mut self, outcome: Outcome, trail: &Trail) {
        let Some(promises) = self.promises.take() else { return };
        let took = self.start.elapsed();
        let (plan, graph) = (self.subject.plan(), self.subject.graph());
        // An object's failure is counted with each program that needs the object.
        if plan.kind() == NodeKind::Program {
            graph.count_failure(&outcome);
        }
        graph.publish(self.node, plan, &outcome);
        let result = match outcome.as_ref().map(|built| built.origin()) {
            Ok(Origin::Disk) => "disk",
            Ok(Origin::Remote) => "remote",
            Ok(_) => "compiled",
            Err(_) => "failed",
        };
        let failure = outcome.as_ref().err().map(Error::kind);
        let miss = trail.miss.as_ref().map(|miss| match miss {
            Miss::Absent => "absent",
            Miss::Unusable(reason) => reason,
        });
        let remote = trail.remote.findings().reason;
        let remote = remote.as_deref().filter(|_| result != "remote");
        let key = *self.subject.key();
        // A waiter that drains the runtime waits for this line.
        catch_and_log("the trace of lookups", || {
            graph.trace(plan, key, result, [miss, remote], Some(took));
        });
        self.building = None;
        // The waiters are completed before the span: a subscriber of spans may panic.
        self.complete(promises, outcome);
        self.span.record("elapsed_ms", took.as_secs_f64() * 1e3);
        match failure {
            None => self.span.record("outcome", result),
            Some(kind) => self.span.record("outcome", display(kind)),
        };
    }
}

impl InFlight {
    /// Completes the waiters. If the build failed in a way that may not recur, has those that joined it wait for another
    /// build.
    fn complete(&mut self, promises: Promises, outcome: Outcome) {
        let Promises { first, joined } = promises;
        match outcome {
            Err(error) if may_not_recur(&error, &self.plan) && joined.has_handles() => {
                first.complete(Err(error.clone()));
                tracing::debug!(%error, "the requests that joined a build try again");
                let (graph, plan) = (Arc::clone(self.subject.graph()), self.plan.clone());
                graph.build_again(plan, self.pending.take(), error, joined);
            }
            outcome => {
                joined.complete(outcome.clone());
                // Moved, so that nothing here holds the program once the waiter has it.
                first.complete(outcome);
            }
        }
    }
}

/// Whether another attempt may succeed soon after a failure.
fn may_not_recur(error: &Error, plan: &BuildPlan) -> bool {
    match error.kind() {
        ErrorKind::Panicked | ErrorKind::OutOfResources => true,
        // If included files have changed, the key of the build covers files that no longer exist.
        ErrorKind::Io => !plan.includes_files(),
        _ => false,
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.end(Err(no_thread_error()), &Trail::default());
    }
}
