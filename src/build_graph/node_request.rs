//! Requests for nodes of the graph: from memory, by joining a build in flight, or by starting one.
//!
//! A request looks into the cache, then under the mutex among the in-flight builds, and then, still under the
//! mutex, into the cache again. An outcome is put into the cache before the in-flight build leaves the map, so
//! no request can miss both and start a second build.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;
use tracing::field::Empty;

use super::build::build;
use super::compile::Subject;
use super::disk::Disk;
use super::graph::BuildGraph;
use super::in_flight::InFlight;
use super::outcome::{Answer, Outcome, Outcomes, outcomes};
use super::plan::BuildPlan;
use super::shared_outcome::{Promise, SharedOutcome, shared_outcome};
use super::spec::BuildSpec;
use crate::cache::remote::Remote;
use crate::cache::store::Pending;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result, catch_panics};
use crate::executor::{Priority, pause, run_blocking};

/// Place where a request found an existing node.
enum Found {
    Kept,
    InFlight,
}

/// State of a node when it is requested.
enum NodeState {
    Kept(Outcome),
    Joined(Outcomes),
    /// The request has begun to build it.
    Begun(SharedOutcome<Outcome>),
}

/// Pause before the requests that joined a build that failed build again.
const PAUSE: Duration = Duration::from_millis(100);

/// Obligation to complete an outcome, which is an error if this is dropped.
struct Obligation {
    promise: Option<Promise<Outcome>>,
    error: Error,
}

impl Obligation {
    fn complete(&mut self, outcome: Outcome) {
        if let Some(promise) = self.promise.take() {
            promise.complete(outcome);
        }
    }
}

impl Drop for Obligation {
    fn drop(&mut self) {
        self.complete(Err(self.error.clone()));
    }
}

impl BuildGraph {
    /// Requests a program. Returns it if it is kept, joins its build if that is in flight, and starts a build
    /// otherwise. Never blocks on a driver.
    pub(crate) fn request(self: &Arc<Self>, spec: BuildSpec) -> Answer {
        match self.resolve(spec) {
            Ok(plan) => self.request_plan(plan),
            Err(error) => Answer::Refused(self.refuse(error)),
        }
    }

    /// Like [`request`](Self::request), for a request whose imports are resolved.
    pub(super) fn request_plan(self: &Arc<Self>, plan: BuildPlan) -> Answer {
        self.counters().builds.requested.add_one();
        if plan.includes_files() {
            self.request_with_files(plan)
        } else {
            self.request_program(plan, |plan| self.pending_guard(plan))
        }
    }

    /// Reads the files that the key covers, then requests the program.
    fn request_with_files(self: &Arc<Self>, mut plan: BuildPlan) -> Answer {
        let (shared, promise) = shared_outcome();
        let graph = Arc::clone(self);
        let pending = self.pending_guard(&plan);
        let limit = self.children().limit();
        let request = async move {
            let is_untrusted = plan.has_untrusted();
            let read = move || plan.read_files(limit).map(|()| plan);
            let plan = graph.read_files(is_untrusted, read).await?;
            Ok(graph.request_program(plan, |_| pending))
        };
        let completed = self.builds().spawn(async move {
            promise.complete(catch_panics(request).await.unwrap_or_else(Answer::Refused));
        });
        completed.map_or_else(Answer::Refused, |()| Answer::Reading(shared))
    }

    /// Makes a call that reads included files, on a thread that may block.
    pub(super) async fn read_files<T: Send + 'static>(
        &self,
        is_untrusted: bool,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if is_untrusted {
            // The directives in the text determine how long reading takes, so untrusted text uses its own
            // threads.
            return self.pool_for(true).threads().run(Priority::Short, call).await?;
        }
        run_blocking(call).await
    }

    /// Requests the program of a plan, and counts where it was found.
    pub(super) fn request_program(
        self: &Arc<Self>,
        plan: BuildPlan,
        guard: impl FnOnce(&BuildPlan) -> Option<Pending>,
    ) -> Answer {
        let counters = self.counters();
        self.recorded(plan, |plan| {
            self.request_node(plan, guard, |found| match found {
                Found::Kept => counters.memory.hits.add_one(),
                Found::InFlight => counters.builds.joined.add_one(),
            })
        })
    }

    /// Makes a request, and records the use of the program if manifests are recorded.
    pub(super) fn recorded(
        self: &Arc<Self>,
        plan: BuildPlan,
        request: impl FnOnce(BuildPlan) -> Answer,
    ) -> Answer {
        if self.recorders().is_empty() {
            return request(plan);
        }
        let recorded = plan.clone();
        let answer = request(plan);
        self.record_use(recorded, &answer);
        answer
    }

    /// Requests a dependency of a program, an object or SPIR-V, without counting the request.
    pub(super) fn request_uncounted(self: &Arc<Self>, plan: BuildPlan) -> Answer {
        self.request_node(plan, |plan| self.pending_guard(plan), |_| ())
    }

    /// Returns a guard that [`settled`](Self::settled) waits for, if the program of a plan is stored.
    pub(super) fn pending_guard(&self, plan: &BuildPlan) -> Option<Pending> {
        let guard = || self.disk().map(Disk::begin).or_else(|| self.remote().map(Remote::begin));
        plan.is_stored().then(guard).flatten()
    }

    /// Requests the node of a plan. If it has to be built, `guard` returns the guard that stays pending until
    /// the program is stored.
    fn request_node(
        self: &Arc<Self>,
        plan: BuildPlan,
        guard: impl FnOnce(&BuildPlan) -> Option<Pending>,
        count: impl FnOnce(Found),
    ) -> Answer {
        match self.find_or_build(plan, guard, count) {
            NodeState::Kept(outcome) => Answer::Kept(outcome),
            NodeState::Joined(outcomes) => Answer::Building(outcomes.joined),
            NodeState::Begun(outcome) => Answer::Building(outcome),
        }
    }

    /// Builds the node of a plan once more, after a pause, and completes `promise` with the outcome. Completes it with
    /// `error`, the one of the build that failed, if there is no thread for that.
    pub(super) fn build_again(
        self: &Arc<Self>,
        plan: BuildPlan,
        pending: Option<Pending>,
        error: Error,
        promise: Promise<Outcome>,
    ) {
        let graph = Arc::clone(self);
        // If the future is dropped, the promise is completed all the same.
        let mut promise = Obligation { promise: Some(promise), error };
        let again = async move {
            pause(PAUSE).await?;
            graph.counters().builds.retries.add_one();
            match graph.find_or_build(plan, |_| pending, |_| ()) {
                NodeState::Kept(outcome) => outcome,
                // The outcome of that build itself: its failure does not lead to a third one.
                NodeState::Joined(outcomes) => outcomes.first.await,
                NodeState::Begun(outcome) => outcome.await,
            }
        };
        let spawned = self.builds().spawn(async move {
            let outcome = catch_panics(again).await;
            promise.complete(outcome);
        });
        if let Err(error) = spawned {
            tracing::debug!(%error, "a build is not tried again");
        }
    }

    /// Finds the node of a plan among the outcomes in memory and the builds in flight, or begins to build it.
    fn find_or_build(
        self: &Arc<Self>,
        plan: BuildPlan,
        guard: impl FnOnce(&BuildPlan) -> Option<Pending>,
        count: impl FnOnce(Found),
    ) -> NodeState {
        let key = self.key(&plan);
        let node = self.node(&plan, key);
        let (first, promises) = loop {
            if let Some(outcome) =
                self.memory().get(node).or_else(|| self.containing_program(&plan))
            {
                count(Found::Kept);
                if let (Ok(built), true) = (&outcome, node.is_untrusted) {
                    built.distrust();
                }
                self.trace(&plan, key, "memory", [None; 2], None);
                return NodeState::Kept(outcome);
            }
            let mut in_flight = self.in_flight();
            if let Some(outcomes) = in_flight.get(&node).cloned() {
                drop(in_flight);
                count(Found::InFlight);
                self.trace(&plan, key, "joined", [None; 2], None);
                return NodeState::Joined(outcomes);
            }
            // The build may have ended since the first lookup. The next iteration takes its outcome, because
            // `get` may free programs, which must not happen under the mutex.
            if self.memory().contains(node) {
                continue;
            }
            let (outcomes, promises) = outcomes();
            let first = outcomes.first.clone();
            in_flight.insert(node, outcomes);
            break (first, promises);
        };

        let pending = guard(&plan);
        let subject = Arc::new(Subject::new(Arc::clone(self), plan, key));
        // From here on the build always ends: dropping it ends it with an error.
        let in_flight = InFlight::new(node, subject, promises, pending);
        let span = self.span(in_flight.subject().plan(), key);
        let in_flight = in_flight.with_span(span.clone());
        if let Err(error) = self.builds().begin(build(in_flight).instrument(span)) {
            tracing::debug!(%error, "a build cannot start");
        }
        NodeState::Begun(first)
    }

    /// Creates the span of a build. Called on the requesting thread, so that the caller's span is its parent.
    fn span(&self, plan: &BuildPlan, key: BuildKey) -> tracing::Span {
        let span = tracing::info_span!(
            "build",
            device = %self.device(plan.device()).name,
            format = %plan.format(),
            modules = plan.module_summary(),
            key = format_args!("{key:.8}"),
            outcome = Empty,
            elapsed_ms = Empty,
        );
        span.in_scope(|| {
            tracing::trace!(fields = ?self.key_fields(plan), "not in memory");
        });
        span
    }

    /// Builds a module that Kiln made of OpenCL C as OpenCL C, if OpenCL C can express it. A driver may
    /// optimize one language better than another: from text, Intel's CPU runtime makes kernels with unrolled
    /// loops and vectorized accesses to neighbouring elements, which run up to four times as fast as those made
    /// from the same code in SPIR-V.
    pub(super) async fn build_as_text(self: &Arc<Self>, spec: BuildSpec) -> Outcome {
        let mut text = spec.clone();
        text.prefer_text();
        match self.request(text).completed().await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::debug!(%error, "a fused kernel is built as SPIR-V, not as OpenCL C");
                self.request(spec).completed().await
            }
            built => built,
        }
    }
}
