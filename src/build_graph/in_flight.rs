//! Builds in flight, as the obligation to end them.

use std::sync::Arc;
use std::time::Instant;

use tracing::field::display;

use super::built::Origin;
use super::compile::Subject;
use super::disk::Miss;
use super::input::BuildInput;
use super::key::NodeKind;
use super::memory::BuildId;
use super::outcome::Outcome;
use super::progress::Building;
use super::shared_outcome::Promise;
use super::trace::Trail;
use crate::cache::store::Pending;
use crate::error::{Error, catch_and_log};
use crate::process::threads::no_thread;

/// A build in flight. Dropping it before it has [ended](Self::end) ends it with an error.
pub(super) struct InFlight {
    node: BuildId,
    /// Program that is built. If texts have to be translated first, it is the one of their SPIR-V from then on.
    subject: Arc<Subject>,
    /// Text that is translated first, if there is one.
    text: Option<BuildInput>,
    /// Obligation to complete the waiters, until the build has ended.
    promise: Option<Promise<Outcome>>,
    /// Counts the build, until it has ended.
    building: Option<Building>,
    span: tracing::Span,
    start: Instant,
    /// Keeps `settled()` pending until the program is stored.
    _pending: Option<Pending>,
}

impl InFlight {
    pub(super) fn new(
        node: BuildId,
        subject: Arc<Subject>,
        promise: Promise<Outcome>,
        pending: Option<Pending>,
    ) -> Self {
        let (promise, start) = (Some(promise), Instant::now());
        let building = Some(subject.graph().progress().begin());
        let span = tracing::Span::none();
        Self { node, subject, text: None, promise, building, span, start, _pending: pending }
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
        if let [text] = self.subject.plan().inputs() {
            self.text = Some(text.clone());
        }
        self.subject = Arc::new(subject);
    }

    /// Ends the build: makes its outcome visible, completes the waiters, and reports it.
    pub(super) fn end(&mut self, outcome: Outcome, trail: &Trail) {
        let Some(promise) = self.promise.take() else { return };
        let took = self.start.elapsed();
        let (plan, graph) = (self.subject.plan(), self.subject.graph());
        // An object's failure is counted with each program that needs the object.
        if plan.kind() == NodeKind::Program {
            graph.count_failure(&outcome);
        }
        if let Ok(built) = &outcome {
            built.set_plan(plan);
            if let Some(text) = &self.text {
                built.set_text(text);
            }
            if plan.is_untrusted() {
                built.distrust();
            }
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
        let remote = trail.remote.reason.as_deref().filter(|_| result != "remote");
        let key = *self.subject.key();
        // A waiter that drains the runtime waits for this line.
        catch_and_log("the trace of lookups", || {
            graph.trace(plan, key, result, [miss, remote], Some(took));
        });
        self.building = None;
        // The waiters are completed before the span: a subscriber of spans may panic.
        promise.complete(outcome);
        self.span.record("elapsed_ms", took.as_secs_f64() * 1e3);
        match failure {
            None => self.span.record("outcome", result),
            Some(kind) => self.span.record("outcome", display(kind)),
        };
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.end(Err(no_thread()), &Trail::default());
    }
}
