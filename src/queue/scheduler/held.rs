//! Launches of a fusion scope that are not in the DAG yet. Most often they run as one before they affect
//! any other command; then one node stands for all of them.
//!
//! The launches enter the DAG, each with its edges, as soon as that makes a difference:
//! * before a command that uses the same memory, comes after one of them, or is a marker;
//! * with the first launch of their scope that waits for more than its data;
//! * if they run one by one, or cannot be handed to the device at once.
//!
//! Unrelated commands that were added in the meantime could as well have come later.

use std::mem;
use std::sync::Arc;

use super::group::Stage;
use super::{Edges, Ending, GroupId, Options, Scheduler, State};
use crate::compiler::signature::Access;
use crate::queue::command::{Command, FusedMembers, LaunchWork, Work};
use crate::queue::dag::{EdgeKind, NodeId, Uses};
use crate::queue::event::{Event, Record};
use crate::queue::hazard::Use;
use crate::queue::stopwatch::Stopwatch;

/// Launches that are held, in order, and their records.
#[derive(Default)]
pub(super) struct DeferredLaunches {
    pub(super) works: Vec<Work>,
    records: Vec<Arc<Record>>,
}

/// Number of launches that a group has room for from the start.
const FEW_LAUNCHES: usize = 8;

impl DeferredLaunches {
    pub(super) fn new() -> Self {
        Self { works: Vec::with_capacity(FEW_LAUNCHES), records: Vec::with_capacity(FEW_LAUNCHES) }
    }

    fn iter(&self) -> impl Iterator<Item = (&Work, &Arc<Record>)> {
        self.works.iter().zip(&self.records)
    }
}

/// Command that is about to be added.
pub(super) struct PendingCommand<'a> {
    pub(super) command: &'a Command,
    /// Events that the command comes after, besides its data dependencies.
    pub(super) after: &'a [Event],
}

impl PendingCommand<'_> {
    /// Whether the command comes after a held launch of `queue`, because of what it `uses` or of its
    /// events.
    fn comes_after(&self, (work, record): (&Work, &Arc<Record>), queue: u64, uses: &Uses) -> bool {
        match self.command.work {
            Work::Marker => queue == self.command.queue,
            Work::Drain => true,
            _ => {
                let told = |event: &Event| Arc::ptr_eq(event.record(), record);
                let is_before = |used: &Use| uses.iter().any(|own| used.orders(own));
                self.after.iter().any(told) || work.uses().iter().any(is_before)
            }
        }
    }
}

/// Combined accesses of launches that run as one, as lists that follow each other; most often a single
/// list.
pub(crate) struct CombinedAccesses {
    /// Accesses of all launches.
    uses: Vec<Vec<Use>>,
    /// Accesses that remain when the launches run as one, which may make some memory unnecessary.
    pub(crate) touched: Vec<Vec<Use>>,
    /// Accesses to memory that the single launch does not use, and to memory that it leaves without
    /// contents.
    pub(super) lost: Vec<Use>,
}

impl CombinedAccesses {
    /// Combines the accesses of launches that run as `one`, which leaves no contents in the allocations
    /// in `lost`.
    pub(crate) fn of(launches: &[&LaunchWork], one: &LaunchWork, lost: &[u64]) -> Self {
        let uses = uses_together(launches);
        let own = one.uses();
        let is_touched = |used: &&Use| own.iter().any(|own| own.allocation == used.allocation);
        let touched = uses.iter().map(|uses| uses.iter().filter(is_touched).cloned().collect());
        let touched = touched.collect();
        let is_lost = |used: &&Use| lost.contains(&used.allocation) || !is_touched(used);
        let lost = uses.iter().flatten().filter(is_lost).cloned().collect();
        Self { uses, touched, lost }
    }
}

/// Combines the accesses of launches into one list, and keeps the first of several accesses to the same
/// bytes, because later ones find what an earlier one left there. If the first only reads, the first that
/// writes is kept, too. If accesses overlap only in part, the launches' accesses stay as they are, in
/// order.
fn uses_together(launches: &[&LaunchWork]) -> Vec<Vec<Use>> {
    let mut all = Vec::<Use>::new();
    for launch in launches {
        let uses = launch.uses();
        // Within a launch, reads come first.
        for access in [Access::Read, Access::ReadWrite, Access::Write] {
            for used in uses.iter().filter(|used| used.access == access) {
                // Most often the match is among the latest entries.
                match all.iter().rfind(|known| known.touches(used)) {
                    None => all.push(used.clone()),
                    Some(known) if known.bytes == used.bytes => {
                        if known.access == Access::Read && access != Access::Read {
                            all.push(Use { access: Access::ReadWrite, ..used.clone() });
                        }
                    }
                    Some(_) => {
                        let uses = |launch: &&LaunchWork| launch.uses().into_vec();
                        return launches.iter().map(uses).collect();
                    }
                }
            }
        }
    }
    vec![all]
}

impl State {
    /// Whether a launch of a group that collects may stay outside the DAG, if it waits only for data.
    /// That requires that no collecting group has launches in the DAG: if one had, and this launch came
    /// after them, that group would have to be aborted.
    pub(super) fn can_hold(&self) -> bool {
        let waits = |stage: &Stage| matches!(stage, Stage::Collecting(_));
        (self.groups.values()).all(|group| group.slots.is_empty() || !waits(&group.stage))
    }

    /// Whether no group but `group` has held launches.
    pub(super) fn holds_none_but(&self, group: Option<GroupId>) -> bool {
        self.holding.iter().all(|holding| Some(*holding) == group)
    }

    pub(super) fn hold(&mut self, group: GroupId, command: Command) {
        let Some(known) = self.groups.get_mut(&group) else { return };
        if known.held.works.is_empty() {
            self.holding.push(group);
        }
        known.held.works.push(command.work);
        known.held.records.push(command.record);
    }

    /// Takes the group's held launches out of the group.
    fn take_held(&mut self, group: GroupId) -> DeferredLaunches {
        let held = self.groups.get_mut(&group).map(|group| mem::take(&mut group.held));
        self.holding.retain(|holding| *holding != group);
        held.unwrap_or_default()
    }

    /// Moves the group's held launches into the DAG, each behind a precondition.
    pub(super) fn enter(&mut self, group: GroupId) {
        let DeferredLaunches { works, records } = self.take_held(group);
        for (work, record) in works.into_iter().zip(records) {
            let Some(known) = self.groups.get_mut(&group) else { return };
            let uses = work.uses();
            let mut command = Command::new(work, record.clone(), known.queue, None);
            command.group = Some(group);
            let id = self.dag.add(command, &[&uses], [], 1, None, &mut self.next);
            record.set_node(id);
            known.slots.push(id);
        }
    }

    /// Moves all held launches into the DAG.
    pub(super) fn enter_all(&mut self) {
        for group in self.holding.clone() {
            self.enter(group);
        }
    }

    /// Moves the held launches that the newcomer comes after into the DAG. If their scope still collects,
    /// its launches run now.
    pub(super) fn enter_those_before(&mut self, pending: &PendingCommand<'_>) {
        let PendingCommand { command, .. } = pending;
        if self.holds_none_but(command.group) {
            return;
        }
        let uses = command.work.uses();
        for group in self.holding.clone() {
            let Some(known) = self.groups.get(&group) else { continue };
            let comes_after = |held| pending.comes_after(held, known.queue, &uses);
            let before = known.held.iter().position(comes_after);
            if let Some(before) = before.filter(|_| Some(group) != command.group) {
                self.abort(group, before, &command.work.in_words());
            }
        }
    }

    /// Runs a scope's launches now, if `record` belongs to one that is held.
    pub(super) fn abort_held(&mut self, record: &Arc<Record>, who: &str) {
        let is_meant = |(_, held): (&Work, &Arc<Record>)| Arc::ptr_eq(held, record);
        let found = self.holding.iter().find_map(|group| {
            let at = self.groups.get(group)?.held.iter().position(is_meant)?;
            Some((*group, at))
        });
        if let Some((group, at)) = found {
            self.abort(group, at, who);
        }
    }

    fn abort(&mut self, group: GroupId, at: usize, who: &str) {
        self.enter(group);
        let id = self.groups.get(&group).map(|group| group.slots[at]);
        if let Some(id) = id {
            self.abort_group_of(id, who);
        }
    }

    /// Whether the group's launches, whose accesses these are, are held and could be handed to the device
    /// at once, as one.
    pub(super) fn can_start(
        &self,
        group: GroupId,
        together: &CombinedAccesses,
        options: Options,
    ) -> bool {
        let are_held = self.groups.get(&group).is_some_and(|group| !group.held.works.is_empty());
        are_held && !self.is_full(options) && self.dag.is_clear(&together.uses)
    }

    /// Adds the group's held launches, whose accesses these are, as one command.
    pub(super) fn add_as_one(
        &mut self,
        group: GroupId,
        together: &Arc<CombinedAccesses>,
        launch: Box<LaunchWork>,
        stopwatch: Option<Arc<Stopwatch>>,
    ) -> Option<NodeId> {
        let DeferredLaunches { works, mut records } = self.take_held(group);
        let queue = self.groups.remove(&group)?.queue;
        let last = records.pop()?;
        let mut command = Command::new(Work::Launch(launch), last, queue, None);
        let several = FusedMembers { works, records, together: Arc::clone(together) };
        command.several = Some(Box::new(several));
        command.timed = stopwatch;
        let id = self.dag.add(command, &together.touched, [], 0, None, &mut self.next);
        self.dag.command(id)?.records().for_each(|record| record.set_node(id));
        Some(id)
    }

    /// Whether the command stands for several launches that are not in the DAG.
    pub(super) fn is_several(&self, id: NodeId) -> bool {
        self.dag.command(id).is_some_and(|command| command.several.is_some())
    }
}

impl Scheduler {
    /// Splits a command that stands for several launches and could not be handed over. Each launch gets a
    /// command of its own behind this one, which ends without having done anything.
    pub(super) fn split(&self, state: &mut State, id: NodeId) {
        let Some(command) = state.dag.command_mut(id) else { return };
        let Some(several) = command.several.take() else { return };
        let FusedMembers { works, mut records, .. } = *several;
        let queue = command.queue;
        let record = Record::new(command.record.weak_scheduler());
        records.push(mem::replace(&mut command.record, record));
        let mut unused = mem::replace(&mut command.work, Work::Host);
        unused.release();
        state.actions.unused.push(vec![unused]);
        command.timed = None;
        // This command ends now, but its dependencies may not have ended: the launches inherit them.
        let before = state.dag.dependencies(id);
        let before: Vec<_> = before.map(|(id, kind, command)| (id, kind, command.uses())).collect();
        let all: Uses = works.iter().flat_map(Work::uses).collect();
        for (work, record) in works.into_iter().zip(records) {
            let uses = work.uses();
            // A launch that reads nothing of what a command writes does not fail with that command,
            // unless it was submitted to come after it.
            let edges: Edges = (before.iter())
                .map(|(before, kind, theirs)| match kind {
                    EdgeKind::Data if reads(&all, theirs) && !reads(&uses, theirs) => {
                        (*before, EdgeKind::Order)
                    }
                    kind => (*before, *kind),
                })
                .collect();
            let command = Command::new(work, record.clone(), queue, None);
            let added = state.dag.add(command, &[&uses], edges, 0, None, &mut state.next);
            record.set_node(added);
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
