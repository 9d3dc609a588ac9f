//! Groups: the launches of fusion scopes, from their submission until they run, one by one or as one.
//!
//! A group's launches start outside the DAG ([`deferred`](super::deferred)). If they run as one before they
//! affect any other command, a single node stands for all of them. Otherwise they enter the DAG, all at once,
//! each with a node and edges of its own. The rest of this text describes that case.
//!
//! Until the decision, one additional precondition of each launch is not met. To run the launches as
//! one, the edges among them are detached. Once nothing else blocks any of the launches, one kernel is
//! enqueued for all, and the edges are restored, so that a failure spreads as it would without fusion. If
//! one of the launches fails before that, they run one by one after all.
//!
//! If the launches run in several [parts](Part), each part becomes a group of its own, in the order in which
//! the parts run. What prevents one part from running as one does not concern the others.

use std::mem;
use std::sync::{Arc, LazyLock, OnceLock};

use smallvec::SmallVec;

use super::needs::Needs;
use super::part::{FusedLaunch, FusionBlocker, Part};
use super::{Scheduler, State};
use crate::error::{Error, Result};
use crate::queue::command::{Command, Fused, GroupId};
use crate::queue::dag::DetachedEdge;
use crate::queue::launch_work::LaunchWork;
use crate::queue::node::{EdgeKind, NodeId, SkipReason};
use crate::queue::record::Record;
use crate::queue::stopwatch::Stopwatch;
use crate::queue::work::Work;

/// Set once to the reason why a scope's launches had to run before the scope was completed.
pub(crate) type AbortReason = Arc<OnceLock<String>>;

/// Launches that may run as one, in the order in which they were submitted.
pub(super) struct Group {
    pub(super) queue: u64,
    pub(super) launches: GroupLaunches,
    pub(super) stage: Stage,
    /// Failure of the first launch that has ended without running.
    pub(super) failure: Option<Error>,
}

/// Launches of a group: all of them outside the DAG, or all of them in it.
pub(super) enum GroupLaunches {
    /// No other command depends on the launches yet.
    Deferred(DeferredLaunches),
    /// Each launch has a node, in order, with an additional precondition.
    Nodes(Vec<NodeId>),
}

/// Deferred launches, in order, and their records.
#[derive(Default)]
pub(super) struct DeferredLaunches {
    pub(super) works: Vec<Work>,
    pub(super) records: Vec<Arc<Record>>,
}

/// Number of launches for which a group reserves memory at its start.
const FEW_LAUNCHES: usize = 8;

impl DeferredLaunches {
    pub(super) fn new() -> Self {
        Self { works: Vec::with_capacity(FEW_LAUNCHES), records: Vec::with_capacity(FEW_LAUNCHES) }
    }

    pub(super) fn len(&self) -> usize {
        self.works.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Work, &Arc<Record>)> {
        self.works.iter().zip(&self.records)
    }
}

impl Group {
    pub(super) fn nodes(&self) -> &[NodeId] {
        match &self.launches {
            GroupLaunches::Deferred(_) => &[],
            GroupLaunches::Nodes(nodes) => nodes,
        }
    }

    /// Returns the deferred launches, unless there are none.
    pub(super) fn deferred(&self) -> Option<&DeferredLaunches> {
        match &self.launches {
            GroupLaunches::Deferred(launches) if launches.len() > 0 => Some(launches),
            _ => None,
        }
    }

    /// Returns the number of launches, including failed ones.
    fn len(&self) -> usize {
        match &self.launches {
            GroupLaunches::Deferred(launches) => launches.len(),
            GroupLaunches::Nodes(nodes) => nodes.len(),
        }
    }
}

/// Progress of a group.
pub(super) enum Stage {
    /// Further launches may be added.
    Collecting(AbortReason),
    /// The decision whether the launches run as one is pending.
    Deciding,
    /// The launches run as one when nothing blocks any of them.
    Ready { detached: Vec<DetachedEdge> },
    /// The device has the command that the launches run as.
    Running,
    /// The launches do not run, including any that was being submitted at the same time.
    Discarded,
}

/// Error of commands that only read data which a fused launch no longer stores.
static LOST: LazyLock<Error> = LazyLock::new(|| {
    Error::invalid(
        "a fused kernel internalized the contents of the buffer, as its scope requested; write the \
         buffer before reading it",
    )
});

/// Error of the launches of a discarded group.
pub(super) static DISCARDED: LazyLock<Error> = LazyLock::new(|| {
    Error::invalid("the fusion scope of the launch was discarded, so the launch never runs")
});

/// Launches of a group that have not failed, in order.
pub(super) type Launches<'a> = SmallVec<[&'a LaunchWork; 16]>;

impl Scheduler {
    /// Begins a group.
    pub(crate) fn open_group(&self, group: GroupId, queue: u64, aborted: AbortReason) {
        let stage = Stage::Collecting(aborted);
        let launches = GroupLaunches::Deferred(DeferredLaunches::new());
        self.lock().groups.insert(group, Group { queue, launches, stage, failure: None });
    }

    /// Whether a group of the queue is collecting launches.
    pub(crate) fn is_fusing(&self, queue: u64) -> bool {
        let collects =
            |group: &Group| group.queue == queue && matches!(group.stage, Stage::Collecting(_));
        self.lock().groups.values().any(collects)
    }

    /// Stops collecting, and calls `visit` with the launches that have not failed. Returns the number of
    /// all launches and the result of `visit`, or `None` if the group no longer collects.
    pub(crate) fn close_group<R>(
        &self,
        group: GroupId,
        visit: impl FnOnce(&[&LaunchWork]) -> R,
    ) -> Option<(usize, R)> {
        let mut state = self.lock();
        let is_collecting = state.is_collecting(group);
        let visited = is_collecting.then(|| state.visit(group, visit)).flatten()?;
        if let Some(group) = state.groups.get_mut(&group) {
            group.stage = Stage::Deciding;
        }
        Some(visited)
    }

    /// Returns the error with which a launch of the group has failed, or is going to fail.
    pub(crate) fn failure_in_group(&self, group: GroupId) -> Option<Error> {
        self.lock().failure_in(group)
    }

    /// Calls `visit` with the launches of a group that have not failed. Returns the number of all launches
    /// and the result of `visit`, or `None` if it is already decided how they run.
    pub(crate) fn visit_group<R>(
        &self,
        group: GroupId,
        visit: impl FnOnce(&[&LaunchWork]) -> R,
    ) -> Option<(usize, R)> {
        self.lock().visit(group, visit)
    }

    /// Runs the launches one by one, timed as a whole if there is a stopwatch.
    pub(crate) fn run_separately(
        self: &Arc<Self>,
        group: GroupId,
        stopwatch: Option<Arc<Stopwatch>>,
    ) {
        self.change(|state| state.run_group_separately(group, stopwatch.as_ref()));
    }

    /// Discards the launches: they fail without running, as do launches that are added until the group is
    /// [forgotten](Self::forget_group). Returns `false` if the group no longer collects.
    pub(crate) fn discard_group(self: &Arc<Self>, group: GroupId) -> bool {
        self.change(|state| {
            if !state.is_collecting(group) {
                return false;
            }
            state.move_to_dag(group);
            let Some(discarded) = state.groups.get_mut(&group) else { return false };
            discarded.stage = Stage::Discarded;
            let none = GroupLaunches::Nodes(Vec::new());
            let GroupLaunches::Nodes(nodes) = mem::replace(&mut discarded.launches, none) else {
                return true;
            };
            for id in nodes {
                if let Some(command) = state.dag.command_mut(id) {
                    command.group = None;
                    state.dag.poison(id, DISCARDED.clone(), SkipReason::NotRun, &mut state.next);
                }
            }
            true
        })
    }

    /// Removes a discarded group, to which nothing is added any more.
    pub(crate) fn forget_group(&self, group: GroupId) {
        self.lock().groups.remove(&group);
    }

    /// Runs the launches in the parts that `prepare` makes of them, one after another. Returns the positions of
    /// the parts whose launches run one by one because their fused launch does not fit the device or something
    /// prevents it.
    ///
    /// # Errors
    ///
    /// Returns what prevents all parts: all launches run one by one.
    pub(crate) fn run_in_parts(
        self: &Arc<Self>,
        group: GroupId,
        prepare: impl FnOnce(&[&LaunchWork]) -> Vec<Part>,
    ) -> Result<Vec<(usize, FusionBlocker)>, FusionBlocker> {
        self.change(|state| {
            self.settle_some(state);
            let split = || {
                state.find_failed(group)?;
                let parts = prepare(&state.launches(group));
                let groups = state.split_group(group, &parts)?;
                Ok((parts, groups))
            };
            let (parts, groups) = match split() {
                Ok(split) => split,
                Err(blocker) => {
                    state.release(group);
                    return Err(blocker);
                }
            };
            let mut blocked = Vec::new();
            let last = parts.len().saturating_sub(1);
            for (at, (Part { launches, fused, stopwatch }, group)) in
                parts.into_iter().zip(groups).enumerate()
            {
                let ran = match fused {
                    None => {
                        state.run_group_separately(group, stopwatch.as_ref());
                        Ok(())
                    }
                    Some(Ok(fused)) => self.run_as_one(state, group, fused, stopwatch),
                    Some(Err(error)) => Err(FusionBlocker::Unfit(error)),
                };
                if let Err(blocker) = ran {
                    state.release(group);
                    blocked.push((at, blocker.in_scope(&launches)));
                }
                if at < last {
                    // The next part can start at once if this one has.
                    self.drive(state);
                }
            }
            Ok(blocked)
        })
    }

    /// Runs a group's launches as one. If something prevents that, the caller [releases](State::release) them.
    fn run_as_one(
        self: &Arc<Self>,
        state: &mut State,
        group: GroupId,
        FusedLaunch { launch, accesses, lost }: FusedLaunch,
        stopwatch: Option<Arc<Stopwatch>>,
    ) -> Result<(), FusionBlocker> {
        state.find_blocker(group, &lost)?;
        if state.can_start(group, &accesses, self.options) {
            if let Some(id) = state.add_as_one(group, &accesses, launch, stopwatch) {
                state.dag.replace(id, &accesses.lost);
            }
            return Ok(());
        }
        let is_among_others =
            state.groups.get(&group).is_some_and(|group| !group.nodes().is_empty());
        if is_among_others && !accesses.repeated.is_empty() {
            return Err(FusionBlocker::Repeats);
        }
        state.move_to_dag(group);
        state.find_blocker(group, &lost)?;
        let last = state.groups.get(&group).and_then(|group| group.nodes().last().copied());
        if let Some(last) = last {
            state.dag.add_uses(last, &accesses.repeated);
        }
        let members = state.prepare_fused(group, launch, stopwatch);
        for &allocation in &lost {
            state.dag.invalidate_writes(allocation, &members, &LOST);
        }
        Ok(())
    }

    /// Runs a scope's launches now, because something waits for the end of one of them while the scope
    /// still collects. `cause` names what waits, for messages.
    pub(crate) fn release_group_of(self: &Arc<Self>, record: &Arc<Record>, cause: &str) {
        self.change(|state| match record.node() {
            Some(id) => state.abort_group_of(id, cause),
            None => state.abort_deferred(record, cause),
        });
    }
}

impl State {
    pub(super) fn is_collecting(&self, group: GroupId) -> bool {
        let group = self.groups.get(&group);
        group.is_some_and(|group| matches!(group.stage, Stage::Collecting(_)))
    }

    pub(super) fn is_discarded(&self, group: GroupId) -> bool {
        let group = self.groups.get(&group);
        group.is_some_and(|group| matches!(group.stage, Stage::Discarded))
    }

    /// See [`Scheduler::visit_group`].
    fn visit<R>(
        &self,
        group: GroupId,
        visit: impl FnOnce(&[&LaunchWork]) -> R,
    ) -> Option<(usize, R)> {
        let known = self.groups.get(&group)?;
        let is_open = matches!(known.stage, Stage::Collecting(_) | Stage::Deciding);
        is_open.then(|| (known.len(), visit(&self.launches(group))))
    }

    /// Returns the launches of the group that have not failed, in order.
    pub(super) fn launches(&self, group: GroupId) -> Launches<'_> {
        let Some(group) = self.groups.get(&group) else { return Launches::new() };
        // A launch that will fail once everything before it has ended counts as failed.
        let nodes = group.nodes().iter().filter(|&&id| !self.dag.is_poisoned(id));
        let added = nodes.filter_map(|&id| self.dag.command(id)).map(|command| &command.work);
        let deferred = group.deferred().map_or(&[][..], |launches| &launches.works);
        let works = added.chain(deferred);
        works
            .filter_map(|work| match work {
                Work::Launch(launch) => Some(&**launch),
                _ => None,
            })
            .collect()
    }

    /// Adds to the group a launch that was just added to the DAG.
    pub(super) fn join_group(&mut self, group: Option<GroupId>, id: NodeId) {
        let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) else { return };
        match &mut group.launches {
            GroupLaunches::Nodes(nodes) => nodes.push(id),
            // Any deferred launches have entered the DAG before.
            launches @ GroupLaunches::Deferred(_) => *launches = GroupLaunches::Nodes(vec![id]),
        }
    }

    /// Runs the launches of other scopes that still collect, if the command just added comes after some
    /// of them.
    pub(super) fn abort_groups_before(&mut self, id: NodeId) {
        let Some(own) = self.dag.command(id) else { return };
        let foreign = |before: &NodeId| {
            let group = self.dag.command(*before).and_then(|command| command.group);
            group.is_some_and(|group| Some(group) != own.group && self.is_collecting(group))
        };
        let foreign: SmallVec<[NodeId; 8]> =
            self.dag.predecessors().iter().copied().filter(foreign).collect();
        if foreign.is_empty() {
            return;
        }
        let cause = own.work.in_words();
        for before in foreign {
            self.abort_group_of(before, &cause);
        }
    }

    /// Runs the launches of the command's scope now, if the scope still collects. `cause` names the command
    /// or wait that depends on the command.
    pub(super) fn abort_group_of(&mut self, id: NodeId, cause: &str) {
        let Some(command) = self.dag.command(id) else { return };
        let Some(group) = command.group else { return };
        let Some(Group { stage: Stage::Collecting(aborted), .. }) = self.groups.get(&group) else {
            return;
        };
        // Setting cannot fail: `release` removes the group, so there is only one reason.
        let _ = aborted.set(format!("{cause} depends on {} of the scope", command.work.in_words()));
        self.release(group);
    }

    /// Runs the group's launches one by one.
    fn run_group_separately(&mut self, group: GroupId, stopwatch: Option<&Arc<Stopwatch>>) {
        self.move_to_dag(group);
        self.set_stopwatch(group, stopwatch);
        self.release(group);
    }

    /// Returns the error with which a launch of the group has failed, or is going to fail.
    fn failure_in(&self, group: GroupId) -> Option<Error> {
        let group = self.groups.get(&group)?;
        let future_failure = || group.nodes().iter().find_map(|&id| self.dag.poison_of(id));
        group.failure.as_ref().or_else(future_failure).cloned()
    }

    /// Fails if a launch of the group has failed, or is going to fail.
    fn find_failed(&self, group: GroupId) -> Result<(), FusionBlocker> {
        self.failure_in(group).map_or(Ok(()), |root| Err(FusionBlocker::Failed(root)))
    }

    /// Makes a group of each part, and returns the groups. A single part stays in the group.
    fn split_group(
        &mut self,
        group: GroupId,
        parts: &[Part],
    ) -> Result<SmallVec<[GroupId; 4]>, FusionBlocker> {
        if parts.len() <= 1 {
            return Ok(SmallVec::from_iter([group]));
        }
        let nodes = self.groups.get(&group).map_or(&[][..], Group::nodes).to_vec();
        if nodes.is_empty() {
            return Ok(self.split_deferred(group, parts));
        }
        let part_of = |at: usize| parts.iter().position(|part| part.launches.contains(&at));
        for (at, &id) in nodes.iter().enumerate() {
            let before = self.dag.dependencies(id).filter_map(|(before, ..)| {
                nodes.binary_search_by_key(&before.serial(), |id| id.serial()).ok()
            });
            for before in before {
                if part_of(before) > part_of(at) {
                    return Err(FusionBlocker::Order(at, before));
                }
            }
        }
        let Some(Group { queue, .. }) = self.groups.remove(&group) else {
            return Ok(SmallVec::new());
        };
        let groups = parts.iter().map(|part| {
            let id = GroupId::next();
            let nodes: Vec<_> =
                part.launches.iter().filter_map(|&at| nodes.get(at)).copied().collect();
            for &node in &nodes {
                if let Some(command) = self.dag.command_mut(node) {
                    command.group = Some(id);
                }
            }
            let launches = GroupLaunches::Nodes(nodes);
            let stage = Stage::Deciding;
            self.groups.insert(id, Group { queue, launches, stage, failure: None });
            id
        });
        Ok(groups.collect())
    }

    /// Meets the precondition that the group's launches wait for, and removes the group.
    fn release(&mut self, group: GroupId) {
        self.move_to_dag(group);
        let Some(group) = self.groups.remove(&group) else { return };
        for &id in group.nodes() {
            if let Some(command) = self.dag.command_mut(id) {
                command.group = None;
                self.dag.meet_precondition(id, &mut self.next);
            }
        }
    }

    /// Fails if something prevents running the group's launches as one, which leaves no contents in the
    /// allocations in `lost`. Nothing prevents it while the launches are deferred.
    fn find_blocker(&mut self, group: GroupId, lost: &[u64]) -> Result<(), FusionBlocker> {
        self.find_failed(group)?;
        let Self { dag, groups, .. } = self;
        let nodes = groups.get(&group).map_or(&[][..], Group::nodes);
        if nodes.is_empty() {
            return Ok(());
        }
        if let Some(reader) = dag.reader_of(nodes, |allocation| lost.contains(&allocation)) {
            return Err(FusionBlocker::InternalizedRead(reader.work.in_words()));
        }
        // A future that waits for one of these launches would wait forever if another of them waited for
        // the future. There is no way to find out which future does.
        let waits_for_host = |_, command: &Command, preconditions: u32| {
            preconditions > u32::from(command.building) + u32::from(command.group.is_some())
        };
        let waits = |nodes: &[NodeId]| dag.find_preconditioned(nodes, waits_for_host).is_some();
        // Most often no launch waits for a host future.
        let waiting = waits(nodes).then(|| nodes.iter().position(|&node| waits(&[node])));
        let Some(at) = waiting.flatten() else { return Ok(()) };
        let launch = dag.command(nodes[at]).map(|command| command.work.label());
        Err(FusionBlocker::HostFuture(at, launch.unwrap_or_default()))
    }

    /// Prepares the group's launches to run as `launch`: detaches the edges among them, so that only commands
    /// outside the group block them, and meets the precondition of the decision. Returns the launches.
    fn prepare_fused(
        &mut self,
        group: GroupId,
        launch: Box<LaunchWork>,
        stopwatch: Option<Arc<Stopwatch>>,
    ) -> SmallVec<[NodeId; 8]> {
        let Self { dag, groups, next, .. } = self;
        let Some(group) = groups.get_mut(&group) else { return SmallVec::new() };
        let nodes = SmallVec::from_slice(group.nodes());
        // The last launch stands for all.
        if let Some(command) = nodes.last().and_then(|&last| dag.command_mut(last)) {
            command.extras_mut().fused = Some(Fused::LastNode(launch));
            command.set_stopwatch(stopwatch);
        }
        group.stage = Stage::Ready { detached: dag.detach_edges(&nodes) };
        nodes.iter().for_each(|&id| dag.meet_precondition(id, next));
        nodes
    }

    fn group_of(&self, id: NodeId) -> Option<&Group> {
        if self.groups.is_empty() {
            return None;
        }
        let group = self.dag.command(id)?.group?;
        self.groups.get(&group)
    }

    /// Whether the command belongs to a group that is to run as one and does not run yet.
    pub(super) fn is_in_ready_group(&self, id: NodeId) -> bool {
        self.group_of(id).is_some_and(|group| matches!(group.stage, Stage::Ready { .. }))
    }

    /// Whether the command, which nothing blocks, belongs to a group that is to run as one and of which
    /// another launch is blocked.
    pub(super) fn awaits_its_group(&self, id: NodeId) -> bool {
        self.group_of(id).is_some_and(|group| {
            matches!(group.stage, Stage::Ready { .. })
                && group.nodes().iter().any(|&node| !self.dag.can_dispatch(node))
        })
    }

    /// Returns whether launches that run as one, none of which is blocked, can be handed to the device. If they depend on
    /// different commands, these must have ended: the launches that need nothing of a command that fails still run.
    pub(super) fn can_start_as_one(&mut self, members: &[NodeId]) -> bool {
        if members.len() < 2 || self.depend_on_same_commands(members) {
            return true;
        }
        let running = members.iter().filter(|&&id| !self.have_dependencies_ended(id));
        running.count() == 0
    }

    /// Returns whether each of these launches depends on the same commands that have not ended, by itself or through
    /// launches before it.
    fn depend_on_same_commands(&self, members: &[NodeId]) -> bool {
        let stage = members.first().and_then(|&id| self.group_of(id)).map(|group| &group.stage);
        let detached = match stage {
            Some(Stage::Ready { detached }) => &detached[..],
            _ => &[],
        };
        let mut needs: Vec<Needs> = Vec::with_capacity(members.len());
        for &id in members {
            let mut own = Needs::default();
            let direct = self.dag.dependencies(id).filter(|(_, kind, _)| *kind != EdgeKind::Order);
            direct.for_each(|(before, ..)| own.add(before));
            let within = detached.iter().filter_map(|edge| edge.needed_by(id));
            let within = within.filter_map(|before| {
                members.binary_search_by_key(&before.serial(), |id| id.serial()).ok()
            });
            for before in within.filter_map(|at| needs.get(at)) {
                own.add_all(before);
            }
            needs.push(own);
        }
        needs.iter().all(|own| own.is_same(&needs[0]))
    }

    /// Returns the commands that run as one with this command, in order, or the command alone.
    pub(super) fn members(&self, id: NodeId) -> SmallVec<[NodeId; 8]> {
        match self.group_of(id) {
            Some(group) if matches!(group.stage, Stage::Ready { .. } | Stage::Running) => {
                SmallVec::from_slice(group.nodes())
            }
            _ => SmallVec::from_slice(&[id]),
        }
    }

    /// Updates the state once the device has the command. If the command stands for several launches,
    /// defers their drops and invalidates the lost data. If it runs for a group, restores the detached
    /// edges.
    pub(super) fn dispatched(&mut self, id: NodeId) {
        let Some(command) = self.dag.command_mut(id) else { return };
        let group = command.group;
        if let Some(Fused::OneNode(members)) =
            command.known_extras().and_then(|extras| extras.fused.as_mut())
        {
            self.actions.unused.push(members.take_works());
            let accesses = Arc::clone(&members.accesses);
            self.dag.invalidate(id, &accesses.lost, &LOST);
        }
        let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) else { return };
        if let Stage::Ready { detached } = mem::replace(&mut group.stage, Stage::Running) {
            self.dag.restore_edges(detached);
        }
    }

    /// Removes the command's group, because the command that the group runs as has ended.
    pub(super) fn remove_group_of(&mut self, id: NodeId) {
        if let Some(group) = self.dag.command(id).and_then(|command| command.group) {
            self.groups.remove(&group);
        }
    }

    /// Runs the launches of the command's group one by one after all, because one of them cannot run as
    /// planned.
    pub(super) fn run_one_by_one(&mut self, id: NodeId) {
        let Some(group) = self.dag.command(id).and_then(|command| command.group) else { return };
        let Some(Group { launches, stage, .. }) = self.groups.remove(&group) else { return };
        let (GroupLaunches::Nodes(nodes), Stage::Ready { detached }) = (launches, stage) else {
            return;
        };
        self.dag.restore_edges(detached);
        for id in nodes {
            self.dag.restore_writes(id);
            self.dag.wait_for_dispatches(id);
            if let Some(command) = self.dag.command_mut(id) {
                command.group = None;
                command.set_stopwatch(None);
                let fused = command.known_extras().and_then(|extras| extras.fused.take());
                if let Some(Fused::LastNode(mut launch)) = fused {
                    launch.release();
                    self.actions.unused.push(vec![Work::Launch(launch)]);
                }
                self.dag.push_next_step(id, &mut self.next);
            }
        }
    }

    /// Sets the stopwatch that times the group's launches.
    fn set_stopwatch(&mut self, group: GroupId, stopwatch: Option<&Arc<Stopwatch>>) {
        let nodes = self.groups.get(&group).map_or(&[][..], Group::nodes);
        for &id in nodes {
            if let Some(command) = self.dag.command_mut(id) {
                command.set_stopwatch(stopwatch.cloned());
            }
        }
    }
}
