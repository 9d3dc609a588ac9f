//! Submission: adding commands to the DAG, after the events, host futures and builds that they wait for.

use std::sync::Arc;

use smallvec::SmallVec;

use super::deferred::PendingCommand;
use super::group::DISCARDED;
use super::{AFTER_FAILED, Edges, Scheduler, State};
use crate::args::region::Region;
use crate::build_graph::Variant;
use crate::error::{Error, Result, catch_panics};
use crate::queue::check_counts::CheckCounts;
use crate::queue::checked::PendingLaunch;
use crate::queue::command::Command;
use crate::queue::event::{Event, Status};
use crate::queue::host_future::{HostFuture, Tracked};
use crate::queue::host_task::{Precondition, catch_panic};
use crate::queue::node::{EdgeKind, NodeId, Poison, SkipReason};
use crate::queue::record::Record;
use crate::queue::work::Work;

/// Returns the edges from the commands of these events, all of the same device, and the failure if one has
/// failed. Called under the lock, so that none of the commands ends before the edges are added.
fn edges_from(events: &[Event]) -> (Edges, Option<Poison>) {
    if events.is_empty() {
        return (Edges::new(), None);
    }
    let failure = events.iter().find_map(|event| match event.status() {
        Status::Failed(root) => Some(Poison { root, reason: SkipReason::After }),
        _ => None,
    });
    let nodes = events.iter().filter_map(|event| event.record().node());
    (nodes.map(|id| (id, EdgeKind::After)).collect(), failure)
}

impl Scheduler {
    /// Adds a command that comes after events and preconditions, besides its data dependencies, and hands
    /// everything that is ready to the device. Never waits.
    pub(crate) fn submit(
        self: &Arc<Self>,
        mut command: Command,
        mut after: SmallVec<[Event; 1]>,
        mut preconditions: Vec<Precondition>,
    ) -> Event {
        let work = &command.work;
        work.for_each_fresh(|region| self.zero(region));
        if !after.is_empty() {
            self.wait_on_host_for_others(work, &mut after, &mut preconditions);
        }
        if !command.building {
            self.count_checks(work);
        }
        let pending = match work {
            Work::Launch(launch) => {
                self.shared.counters.launches.submitted.add_one();
                command.building.then(|| launch.pending())
            }
            Work::Replay(replay) => {
                self.shared.counters.launches.submitted.add(replay.launches());
                None
            }
            _ => None,
        };
        // Most commands wait for no host future.
        if !preconditions.is_empty() {
            command.extras_mut().host_futures =
                preconditions.iter().map(|_| Arc::default()).collect();
        }
        let host_futures = command.host_futures().to_vec();
        let (event, id) = self.add(command, &after, |_| edges_from(&after));
        let Some(id) = id else { return event };
        if !preconditions.is_empty() {
            for (precondition, host_future) in preconditions.into_iter().zip(host_futures) {
                host_future.set_record(event.record());
                self.await_precondition(id, precondition, host_future);
            }
        }
        if let Some(pending) = pending {
            self.await_build(id, pending);
        }
        event
    }

    /// Replaces the events of other devices in `after` by preconditions: a device does not wait for another device,
    /// but the host waits for the event.
    fn wait_on_host_for_others(
        self: &Arc<Self>,
        work: &Work,
        after: &mut SmallVec<[Event; 1]>,
        preconditions: &mut Vec<Precondition>,
    ) {
        after.retain(|event| {
            let is_own = event.belongs_to(self);
            if !is_own && !matches!(event.status(), Status::Complete) {
                event.release_group(&work.in_words());
                let (event, work) = (event.unlimited(), work.subject());
                preconditions.push(Box::pin(async move {
                    event.await.map_err(|error| error.spread_to(&work, AFTER_FAILED))
                }));
            }
            is_own
        });
    }

    /// Polls a host future that the command `id` waits for, on the host executor.
    fn await_precondition(
        self: &Arc<Self>,
        id: NodeId,
        precondition: Precondition,
        host_future: Arc<HostFuture>,
    ) {
        let scheduler = self.clone();
        let spawned = self.shared.host.spawn(async move {
            let outcome = catch_panic(Tracked::new(precondition, host_future)).await;
            scheduler.precondition_ended(id, outcome);
        });
        if let Err(error) = spawned {
            self.precondition_ended(id, Err(error));
        }
    }

    /// Waits on the host executor for the build of the program that the launch `id` needs, and for the check of
    /// a launch that is checked.
    fn await_build(self: &Arc<Self>, id: NodeId, pending: PendingLaunch) {
        let scheduler = self.clone();
        let spawned = self.shared.host.spawn(async move {
            let ready = catch_panics(pending.ready()).await;
            scheduler.build_ended(id, &pending, ready);
        });
        if let Err(error) = spawned {
            self.precondition_ended(id, Err(error));
        }
    }

    /// Counts the checked launches among the work, of which it is decided how they run.
    fn count_checks(&self, work: &Work) {
        let counts = match work {
            Work::Launch(launch) => CheckCounts::of([&**launch]),
            Work::Replay(replay) => replay.checks(),
            _ => return,
        };
        counts.add_to(&self.shared.counters);
    }

    /// Adds a command that zeroes new memory, unless another command has zeroed or overwritten it first.
    pub(super) fn zero(self: &Arc<Self>, region: &Region) {
        let work = Work::Zero { region: Arc::new(region.whole_unheld()) };
        self.add(self.command(work, 0), &[], |_| (Edges::new(), None));
    }

    /// Creates a command without dependencies or preconditions, for the queue with this number.
    pub(crate) fn command(self: &Arc<Self>, work: Work, queue: u64) -> Command {
        let record = Record::new(self.as_owner());
        Command::new(work, record, queue, self.shared.timeline.start_span())
    }

    /// Adds a marker that ends when all commands of `queue`, or of the whole device, have ended,
    /// successfully or not.
    pub(crate) fn marker(self: &Arc<Self>, queue: Option<u64>) -> Event {
        let work = if queue.is_some() { Work::Marker } else { Work::Drain };
        let command = self.command(work, queue.unwrap_or_default());
        let (event, _) = self.add(command, &[], |state| {
            let belongs = |command: &Command| queue.is_none_or(|queue| command.queue == queue);
            let covers = |command: &Command| match command.work {
                Work::Marker => queue == Some(command.queue),
                Work::Drain => queue.is_none(),
                _ => false,
            };
            let before = state.dag.last_of(belongs, covers);
            (before.into_iter().map(|id| (id, EdgeKind::Order)).collect(), None)
        });
        event
    }

    /// Adds a command. Returns no node for a launch that is [deferred](super::deferred), nor for a zeroing that
    /// is no longer necessary.
    fn add(
        self: &Arc<Self>,
        mut command: Command,
        after: &[Event],
        find_edges: impl FnOnce(&State) -> (Edges, Option<Poison>),
    ) -> (Event, Option<NodeId>) {
        let event = Event::new(command.record.clone());
        let needs_node = !command.host_futures().is_empty()
            || command.building
            || command.pending_span().is_some()
            || !after.is_empty();
        let mut transaction = self.lock();
        let state = &mut *transaction;
        if !command.work.claim() {
            return (event, None);
        }
        self.shared.counters.commands.submitted.add_one();
        let was_idle = state.count_submission(self);
        // The scope may have ended since it was chosen.
        let requested_group = command.group;
        command.group = requested_group.filter(|&group| state.is_collecting(group));
        let group = command.group;
        if let Some(group) = group
            && !needs_node
            && state.can_defer()
            && state.defers_only(Some(group))
        {
            // The launch affects no other command yet, and no other command affects it.
            state.defer(group, command);
            self.publish(state);
            drop(transaction);
            if was_idle {
                self.shared.reactor.wake();
            }
            return (event, None);
        }
        self.settle_some(state);
        state.move_predecessors_to_dag(&PendingCommand { command: &command, after });
        let id = match group.filter(|_| !needs_node && state.can_defer()) {
            Some(group) => {
                state.defer(group, command);
                None
            }
            None => {
                if let Some(group) = group {
                    state.move_to_dag(group);
                }
                let (edges, mut poison) = find_edges(state);
                if requested_group.is_some_and(|group| state.is_discarded(group)) {
                    poison = Some(Poison { root: DISCARDED.clone(), reason: SkipReason::NotRun });
                }
                Some(state.add_node(command, edges, poison, event.record()))
            }
        };
        self.drive(state);
        let actions = transaction.unlock();
        if was_idle {
            self.shared.reactor.wake();
        }
        self.apply(actions);
        (event, id)
    }

    /// Handles the completion of a host future that `id` waited for.
    fn precondition_ended(self: &Arc<Self>, id: NodeId, outcome: Result<()>) {
        self.change(|state| match outcome {
            Ok(()) => state.dag.meet_precondition(id, &mut state.next),
            Err(error) => {
                let error = state.name_waiting_command(id, error);
                state.dag.poison(id, error, SkipReason::NotRun, &mut state.next);
            }
        });
    }

    /// Handles the end of a program's build, successful or not, for the launch `id`. `ready` has the variant that
    /// must run in place of the kernel, if there is one.
    fn build_ended(
        self: &Arc<Self>,
        id: NodeId,
        pending: &PendingLaunch,
        ready: Result<Option<Arc<Variant>>>,
    ) {
        self.change(|state| {
            let command = state.dag.command_mut(id);
            let settled = command.map_or(Ok(()), |command| {
                if let Work::Launch(launch) = &mut command.work {
                    launch.settle(pending, &ready, self.slot.handle())?;
                }
                command.building = false;
                self.count_checks(&command.work);
                Ok(())
            });
            match settled {
                Ok(()) => state.dag.meet_precondition(id, &mut state.next),
                Err(error) => state.dag.poison(id, error, SkipReason::NotRun, &mut state.next),
            }
        });
    }
}

impl State {
    /// Counts a submitted command. Returns whether it is the only live one.
    pub(super) fn count_submission(&mut self, scheduler: &Arc<Scheduler>) -> bool {
        let was_idle = self.live == 0;
        self.live += 1;
        self.granted = self.granted.saturating_sub(1);
        self.unsettled += 1;
        if was_idle {
            self.keep_alive = Some(scheduler.clone());
        }
        was_idle
    }

    /// Adds the name of a command to the error of a host future that it waits for. A host task is that future.
    fn name_waiting_command(&self, id: NodeId, error: Error) -> Error {
        let work = self.dag.command(id).map(|command| &command.work);
        match work.filter(|work| !matches!(work, Work::Host)).map(Work::subject) {
            // The future of an event of another device names it.
            Some(subject) if !error.message().contains(&subject) => error.explained(subject),
            _ => error,
        }
    }

    /// Adds a command to the DAG and to its group, and aborts other groups whose launches it comes after.
    pub(super) fn add_node(
        &mut self,
        command: Command,
        edges: Edges,
        poison: Option<Poison>,
        record: &Record,
    ) -> NodeId {
        let group = command.group;
        let (uses, preconditions) = (command.work.uses(), command.preconditions());
        let id = self.dag.add(command, &[&uses], edges, preconditions, poison, &mut self.next);
        record.set_node(id);
        self.trace_edges(id);
        if !self.groups.is_empty() {
            self.join_group(group, id);
            self.abort_groups_before(id);
        }
        id
    }

    /// Stores the command's edges for its span and for drawings, if a trace records it.
    fn trace_edges(&mut self, id: NodeId) {
        if self.dag.command(id).is_some_and(|command| command.pending_span().is_some()) {
            let mut before: Vec<_> =
                self.dag.predecessors().iter().map(|before| before.serial()).collect();
            before.sort_unstable();
            before.dedup();
            if let Some(span) = self.dag.command_mut(id).and_then(Command::pending_span_mut) {
                span.set_dependencies(before);
            }
        }
    }
}
