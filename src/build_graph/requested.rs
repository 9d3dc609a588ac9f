//! Programs that were requested, as the handles of builds and the kernels of unfinished builds await them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use super::built::{Built, Origin};
use super::graph::BuildGraph;
use super::link::Resolution;
use super::option_report::OptionReport;
use super::outcome::{Answer, Outcome};
use super::plan::BuildPlan;
use super::shared_outcome::SharedOutcome;
use crate::error::{Error, Result};
use crate::process;

/// Requested program: a future of it.
#[derive(Clone)]
pub(super) struct RequestedProgram {
    state: State,
    request: RequestDetails,
}

/// Program that was built or found for a request.
#[derive(Clone)]
pub(super) struct DeliveredProgram {
    pub(super) built: Arc<Built>,
    /// Origin of the program for this request.
    pub(super) origin: Origin,
    /// Modules and symbols of the program for this request.
    pub(super) resolution: Option<Arc<Resolution>>,
    pub(super) graph: Weak<BuildGraph>,
}

/// Details of one request for a program, which other requests for the same program may not share.
#[derive(Clone, Default)]
pub(super) struct RequestDetails {
    /// Explains errors that the options of the request caused.
    options: Option<Arc<OptionReport>>,
    /// Modules and symbols of the requested program.
    resolution: Option<Arc<Resolution>>,
    /// Graph of the program. Kernels, which the graph may keep, must not keep the graph.
    graph: Weak<BuildGraph>,
}

#[derive(Clone)]
enum State {
    Ready(Result<DeliveredProgram>),
    Building(SharedOutcome<Outcome>),
    Reading(SharedOutcome<Answer>),
}

impl RequestDetails {
    pub(super) fn of(plan: &BuildPlan, graph: &Arc<BuildGraph>) -> Self {
        Self {
            options: OptionReport::of(plan),
            resolution: plan.resolution().cloned(),
            graph: Arc::downgrade(graph),
        }
    }

    /// Returns the result of the request from the outcome of the build.
    fn result(
        &self,
        outcome: Outcome,
        origin: impl FnOnce(&Built) -> Origin,
    ) -> Result<DeliveredProgram> {
        match outcome {
            Ok(built) => {
                let origin = origin(&built);
                let (resolution, graph) = (self.resolution.clone(), self.graph.clone());
                Ok(DeliveredProgram { built, origin, resolution, graph })
            }
            Err(error) => Err(match &self.options {
                Some(options) => options.explain(error),
                None => error,
            }),
        }
    }
}

impl RequestedProgram {
    pub(super) fn new(answer: Answer, request: RequestDetails) -> Self {
        let state = match answer {
            Answer::Kept(outcome) => State::Ready(request.result(outcome, |_| Origin::Memory)),
            Answer::Refused(error) => State::Ready(Err(error)),
            Answer::Building(shared) => State::Building(shared),
            Answer::Reading(shared) => State::Reading(shared),
        };
        Self { state, request }
    }

    /// Creates the request for a program that is being built.
    pub(super) fn building(outcome: SharedOutcome<Outcome>) -> Self {
        Self { state: State::Building(outcome), request: RequestDetails::default() }
    }

    pub(super) fn failed(error: Error) -> Self {
        Self { state: State::Ready(Err(error)), request: RequestDetails::default() }
    }

    /// Returns the graph of the program.
    pub(super) fn graph(&self) -> &Weak<BuildGraph> {
        &self.request.graph
    }

    /// Returns the result of an awaited build.
    fn completed(&self, outcome: Outcome) -> Result<DeliveredProgram> {
        self.request.result(outcome, Built::origin)
    }

    /// Returns the result, if the build has ended. Does not block.
    pub(super) fn peek(&self) -> Option<Result<DeliveredProgram>> {
        match &self.state {
            State::Ready(result) => Some(result.clone()),
            State::Building(shared) => shared.peek().map(|outcome| self.completed(outcome)),
            State::Reading(shared) => Self::new(shared.peek()?, self.request.clone()).peek(),
        }
    }
}

impl Future for RequestedProgram {
    type Output = Result<DeliveredProgram>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = process::check() {
            return Poll::Ready(Err(error));
        }
        loop {
            // Replacing the state drops the shared outcome as soon as it is not needed any more.
            self.state = match &mut self.state {
                State::Ready(result) => return Poll::Ready(result.clone()),
                State::Building(shared) => {
                    let outcome = ready!(Pin::new(shared).poll(context));
                    State::Ready(self.completed(outcome))
                }
                State::Reading(shared) => {
                    let answer = ready!(Pin::new(shared).poll(context));
                    Self::new(answer, self.request.clone()).state
                }
            };
        }
    }
}
