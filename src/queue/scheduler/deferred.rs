//! Launches of a fusion scope that are not in the DAG yet. Most often they run as one before they affect
//! any other command; then one node stands for all of them.
//!
//! The launches enter the DAG, each with its edges, as soon as that makes a difference:
//! * before a command that uses the same memory, comes after one of them, or is a marker;
//! * with the first launch of their scope that waits for more than its data;
//! * if they run one by one, or cannot be handed to the device at once.
//!
//! Unrelated commands that were added in the meantime could as well have come later.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use foldhash::fast::RandomState;
use kiln_spirv::Access;
use smallvec::SmallVec;

use super::group::{DeferredLaunches, Group, GroupLaunches, Stage};
use super::needs::Needs;
use super::part::Part;
use super::{Edges, Ending, Options, Scheduler, State};
use crate::queue::accesses::CombinedAccesses;
use crate::queue::command::{Command, Fused, FusedMembers, GroupId};
use crate::queue::event::Event;
use crate::queue::hazard::{Use, Uses};
use crate::queue::launch_work::LaunchWork;
use crate::queue::node::{EdgeKind, NodeId};
use crate::queue::record::Record;
use crate::queue::stopwatch::Stopwatch;
use crate::queue::work::Work;

/// Command that is about to be added.
pub(super) struct PendingCommand<'a> {
    pub(super) command: &'a Command,
    /// Events that the command comes after, besides its data dependencies.
    pub(super) after: &'a [Event],
}

impl PendingCommand<'_> {
    /// Whether the command comes after a deferred launch of `queue`, because of the command's `uses` or of
    /// its events.
    fn comes_after(&self, (work, record): (&Work, &Arc<Record>), queue: u64, uses: &Uses) -> bool {
        match self.command.work {
            Work::Marker => queue == self.command.queue,
            Work::Drain => true,
            _ => {
                let is_stated = |event: &Event| Arc::ptr_eq(event.record(), record);
                let is_before = |used: &Use| uses.iter().any(|own| used.orders(own));
                self.after.iter().any(is_stated) || work.uses().iter().any(is_before)
            }
        }
    }
}

impl State {
    /// Whether a launch of a group that collects may stay outside the DAG, if it waits only for data.
    /// That requires that no collecting group has launches in the DAG: if one had, and this launch came
    /// after them, that group would have to be aborted.
    pub(super) fn can_defer(&self) -> bool {
        let collects = |group: &Group| matches!(group.stage, Stage::Collecting(_));
        self.groups.values().all(|group| group.nodes().is_empty() || !collects(group))
    }

    /// Whether no group but `group` has deferred launches.
    pub(super) fn defers_only(&self, group: Option<GroupId>) -> bool {
        self.deferring.iter().all(|deferring| Some(*deferring) == group)
    }

    /// Adds a launch to the group's deferred launches.
    pub(super) fn defer(&mut self, group: GroupId, command: Command) {
        let Some(known) = self.groups.get_mut(&group) else { return };
        let GroupLaunches::Deferred(launches) = &mut known.launches else { return };
        if launches.len() == 0 {
            self.deferring.push(group);
        }
        launches.works.push(command.work);
        launches.records.push(command.record);
    }

    /// Takes the group's deferred launches out of the group.
    fn take_deferred(&mut self, group: GroupId) -> DeferredLaunches {
        self.deferring.retain(|deferring| *deferring != group);
        match self.groups.get_mut(&group).map(|group| &mut group.launches) {
            Some(GroupLaunches::Deferred(launches)) => mem::take(launches),
            _ => DeferredLaunches::default(),
        }
    }

    /// Distributes the group's deferred launches over groups of their own, one for each list of positions. Each
    /// position is in one list.
    pub(super) fn split_deferred(
        &mut self,
        group: GroupId,
        parts: &[Part],
    ) -> SmallVec<[GroupId; 4]> {
        let DeferredLaunches { works, records } = self.take_deferred(group);
        let Some(Group { queue, .. }) = self.groups.remove(&group) else {
            return SmallVec::new();
        };
        let launches = works.into_iter().zip(records);
        let mut launches: Vec<_> = launches.map(Some).collect();
        let mut split = |part: &Part| {
            let own = part.launches.iter().filter_map(|&at| launches.get_mut(at)?.take());
            let (works, records) = own.unzip();
            let launches = GroupLaunches::Deferred(DeferredLaunches { works, records });
            let id = GroupId::next();
            let part = Group { queue, launches, stage: Stage::Deciding, failure: None };
            self.groups.insert(id, part);
            self.deferring.push(id);
            id
        };
        parts.iter().map(&mut split).collect()
    }

    /// Moves the group's deferred launches into the DAG, each behind a precondition.
    pub(super) fn move_to_dag(&mut self, group: GroupId) {
        let DeferredLaunches { works, records } = self.take_deferred(group);
        for (work, record) in works.into_iter().zip(records) {
            let Some(known) = self.groups.get_mut(&group) else { return };
            let uses = work.uses();
            let mut command = Command::new(work, record.clone(), known.queue, None);
            command.group = Some(group);
            let id = self.dag.add(command, &[&uses], [], 1, None, &mut self.next);
            record.set_node(id);
            self.join_group(Some(group), id);
        }
    }

    /// Moves all deferred launches into the DAG.
    pub(super) fn move_all_to_dag(&mut self) {
        for group in self.deferring.clone() {
            self.move_to_dag(group);
        }
    }

    /// Moves the deferred launches that the pending command comes after into the DAG. If their scope still
    /// collects, its launches run now.
    pub(super) fn move_predecessors_to_dag(&mut self, pending: &PendingCommand<'_>) {
        let PendingCommand { command, .. } = pending;
        if self.defers_only(command.group) {
            return;
        }
        let uses = command.work.uses();
        let mut others = self.deferring.clone();
        others.retain(|group| Some(*group) != command.group);
        for group in others {
            let Some(known) = self.groups.get(&group) else { continue };
            let Some(launches) = known.deferred() else { continue };
            let comes_after = |launch| pending.comes_after(launch, known.queue, &uses);
            let before = launches.iter().position(comes_after);
            if let Some(before) = before {
                self.abort(group, before, &command.work.in_words());
            }
        }
    }

    /// Runs a scope's launches now, if the deferred launch with this record is one of them.
    pub(super) fn abort_deferred(&mut self, record: &Arc<Record>, cause: &str) {
        if let Some((group, at)) = self.find_deferred(record) {
            self.abort(group, at, cause);
        }
    }

    /// Returns the group of the deferred launch with this record, and the position of the launch in it.
    pub(super) fn find_deferred(&self, record: &Arc<Record>) -> Option<(GroupId, usize)> {
        let is_same = |(_, deferred): (&Work, &Arc<Record>)| Arc::ptr_eq(deferred, record);
        self.deferring.iter().find_map(|group| {
            let at = self.groups.get(group)?.deferred()?.iter().position(is_same)?;
            Some((*group, at))
        })
    }

    /// Runs a scope's launches now, because `cause` depends on the deferred launch at index `at`.
    fn abort(&mut self, group: GroupId, at: usize, cause: &str) {
        self.move_to_dag(group);
        if let Some(&id) = self.groups.get(&group).and_then(|group| group.nodes().get(at)) {
            self.abort_group_of(id, cause);
        }
    }

    /// Whether the group's launches, whose accesses these are, are deferred, could be handed to the device at once, as
    /// one, and [depend on the same data](Self::depend_on_same_data).
    pub(super) fn can_start(
        &self,
        group: GroupId,
        accesses: &CombinedAccesses,
        options: Options,
    ) -> bool {
        let deferred = self.groups.get(&group).and_then(Group::deferred);
        deferred.is_some_and(|launches| {
            !self.is_full(options)
                && self.dag.is_clear(&accesses.uses)
                && self.depend_on_same_data(&launches.works, accesses)
        })
    }

    /// Whether each of these launches, whose accesses these are, depends on the same commands that have not completed,
    /// by itself or through launches before it. Otherwise a launch could fail with a command that others do not need,
    /// so that each launch must have a node of its own.
    fn depend_on_same_data(&self, launches: &[Work], accesses: &CombinedAccesses) -> bool {
        let mut all = Needs::default();
        // A launch that is repeated reads what it read where its result comes from, which the others depend on.
        let repeated = usize::from(!accesses.repeated.is_empty());
        for used in accesses.uses.iter().skip(repeated).flatten() {
            self.dag.live_writers(used, |writer| all.add(writer));
        }
        if all.is_empty() {
            return true;
        }
        let mut needs: Vec<Needs> = Vec::with_capacity(launches.len());
        // Writes of the launches so far, by their allocation, with the positions of the launches.
        let mut writes: HashMap<u64, Vec<(usize, Use)>, RandomState> = HashMap::default();
        for (at, launch) in launches.iter().enumerate() {
            let uses = launch.uses();
            let mut own = Needs::default();
            for used in uses.iter().filter(|used| used.access != Access::Write) {
                let earlier = writes.get(&used.allocation).map_or(&[][..], Vec::as_slice);
                for (before, _) in earlier.iter().filter(|(_, write)| write.touches(used)) {
                    own.add_all(&needs[*before]);
                }
                let replaces = |write: &Use| write.replaces(used.allocation, &used.bytes);
                if !earlier.iter().any(|(_, write)| replaces(write)) {
                    self.dag.live_writers(used, |writer| own.add(writer));
                }
            }
            if !own.is_same(&all) {
                return false;
            }
            needs.push(own);
            for used in uses.into_iter().filter(|used| used.access != Access::Read) {
                writes.entry(used.allocation).or_default().push((at, used));
            }
        }
        true
    }

    /// Adds the group's deferred launches, whose accesses these are, as one command.
    pub(super) fn add_as_one(
        &mut self,
        group: GroupId,
        accesses: &Arc<CombinedAccesses>,
        launch: Box<LaunchWork>,
        stopwatch: Option<Arc<Stopwatch>>,
    ) -> Option<NodeId> {
        let DeferredLaunches { works, mut records } = self.take_deferred(group);
        let queue = self.groups.remove(&group)?.queue;
        let last = records.pop()?;
        let mut command = Command::new(Work::Launch(launch), last, queue, None);
        let members = FusedMembers { works, records, accesses: Arc::clone(accesses) };
        command.extras_mut().fused = Some(Fused::OneNode(Box::new(members)));
        command.set_stopwatch(stopwatch);
        let id = self.dag.add(command, &accesses.remaining, [], 0, None, &mut self.next);
        self.dag.command(id)?.records().for_each(|record| record.set_node(id));
        Some(id)
    }

    /// Whether the command stands for several launches that are not in the DAG.
    pub(super) fn stands_for_several(&self, id: NodeId) -> bool {
        let command = self.dag.command(id);
        command.is_some_and(|command| matches!(command.fused(), Some(Fused::OneNode(_))))
    }
}

impl Scheduler {
    /// Splits a command that stands for several launches and could not be handed over. Each launch gets a
    /// command of its own behind this one, which ends without having done anything.
    pub(super) fn split(&self, state: &mut State, id: NodeId) {
        let Some(command) = state.dag.command_mut(id) else { return };
        let fused = command.known_extras().and_then(|extras| extras.fused.take());
        let Some(Fused::OneNode(members)) = fused else { return };
        let FusedMembers { works, mut records, .. } = *members;
        let queue = command.queue;
        let record = Record::new(command.record.owner().clone());
        records.push(mem::replace(&mut command.record, record));
        let mut unused = mem::replace(&mut command.work, Work::Host);
        unused.release();
        state.actions.unused.push(vec![unused]);
        command.set_stopwatch(None);
        // This command ends now, but its dependencies may not have ended: the launches inherit them.
        let before = state.dag.dependencies(id);
        let before: Vec<_> = before.map(|(id, kind, command)| (id, kind, command.uses())).collect();
        let all_uses: Uses = works.iter().flat_map(Work::uses).collect();
        for (work, record) in works.into_iter().zip(records) {
            let uses = work.uses();
            // A launch that reads nothing that a command writes does not fail with that command, unless
            // it was submitted to come after it.
            let edges: Edges = (before.iter())
                .map(|(before, kind, theirs)| match kind {
                    EdgeKind::Data if reads(&all_uses, theirs) && !reads(&uses, theirs) => {
                        (*before, EdgeKind::Order)
                    }
                    kind => (*before, *kind),
                })
                .collect();
            let command = Command::new(work, record.clone(), queue, None);
            let id = state.dag.add(command, &[&uses], edges, 0, None, &mut state.next);
            record.set_node(id);
        }
        // Counts the command itself, which `finish` subtracts.
        state.live += 1;
        self.finish(state, id, Ok(()), Ending::default());
    }
}

/// Whether the accesses `own` read what the accesses `theirs` write.
fn reads(own: &[Use], theirs: &[Use]) -> bool {
    let reads = |own: &Use, their: &Use| {
        own.access != Access::Write && their.access != Access::Read && own.orders(their)
    };
    own.iter().any(|own| theirs.iter().any(|their| reads(own, their)))
}
