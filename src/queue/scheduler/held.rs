//! Launches of a fusion scope that are not in the DAG yet. Most often they run as one before they
//! concern anybody else, and then one node does for all of them.
//!
//! They enter the DAG, each with its edges, as soon as that makes a difference: before a command that
//! uses the same memory, comes after one of them, or is a marker; with the first launch of their scope
//! that waits for more than its data; and if they run one by one, or cannot be handed to the device at
//! once. Whatever was added since and has nothing to do with them could as well have come later.

use std::mem;
use std::sync::Arc;

use super::group::Stage;
use super::{Edges, Ending, GroupId, Options, Scheduler, State};
use crate::compiler::signature::Access;
use crate::queue::command::{Command, LaunchWork, Several, Work};
use crate::queue::dag::{EdgeKind, NodeId, Uses};
use crate::queue::event::{Event, Record};
use crate::queue::hazard::Use;
use crate::queue::stopwatch::Stopwatch;

/// Launches that are held, in order, and their records.
#[derive(Default)]
pub(super) struct Held {
    pub(super) works: Vec<Work>,
    records: Vec<Arc<Record>>,
}

/// For so many launches a group has room from the start.
const FEW_LAUNCHES: usize = 8;

impl Held {
    pub(super) fn new() -> Self {
        Self { works: Vec::with_capacity(FEW_LAUNCHES), records: Vec::with_capacity(FEW_LAUNCHES) }
    }

    fn iter(&self) -> impl Iterator<Item = (&Work, &Arc<Record>)> {
        self.works.iter().zip(&self.records)
    }
}

/// A command before it is added.
pub(super) struct Newcomer<'a> {
    pub(super) command: &'a Command,
    /// The events that it comes after besides.
    pub(super) after: &'a [Event],
}

impl Newcomer<'_> {
    /// Whether it comes after a launch of `queue` that is held, by what it `uses` or is told.
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

/// What launches use that run as one, in lists that follow each other, most often a single one.
pub(crate) struct Together {
    /// All of it.
    uses: Vec<Vec<Use>>,
    /// What is left of that when they run as one: there is memory that they then do without.
    pub(crate) touched: Vec<Vec<Use>>,
    /// That of memory which they then do without, and of what is left without its contents.
    pub(super) lost: Vec<Use>,
}

impl Together {
    /// Of launches that run as this one, which leaves nothing in the allocations that are lost.
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

/// Of several uses of the same bytes the first, for the later ones find what an earlier one left there,
/// and, if that reads, the first that writes, too. Where only parts are the same, the launches' uses stay
/// as they are, in order.
fn uses_together(launches: &[&LaunchWork]) -> Vec<Vec<Use>> {
    let mut all = Vec::<Use>::new();
    for launch in launches {
        let uses = launch.uses();
        // In a launch, whoever reads comes first.
        for access in [Access::Read, Access::ReadWrite, Access::Write] {
            for used in uses.iter().filter(|used| used.access == access) {
                // Most often it was used a moment ago.
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
    /// Whether a launch of a group that collects may stay outside the DAG, if data is all that it waits
    /// for: no group that collects has launches in the DAG. If one had, and this launch came after
    /// them, that group would have to be aborted.
    pub(super) fn can_hold(&self) -> bool {
        let waits = |stage: &Stage| matches!(stage, Stage::Collecting(_));
        (self.groups.values()).all(|group| group.slots.is_empty() || !waits(&group.stage))
    }

    /// Whether no other group has launches that are held.
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

    /// Forgets that the group's launches are held, and gives them.
    fn take_held(&mut self, group: GroupId) -> Held {
        let held = self.groups.get_mut(&group).map(|group| mem::take(&mut group.held));
        self.holding.retain(|holding| *holding != group);
        held.unwrap_or_default()
    }

    /// Puts the launches of the group that are held into the DAG, each behind a gate.
    pub(super) fn enter(&mut self, group: GroupId) {
        let Held { works, records } = self.take_held(group);
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

    /// Puts all that is held into the DAG.
    pub(super) fn enter_all(&mut self) {
        for group in self.holding.clone() {
            self.enter(group);
        }
    }

    /// Puts what the newcomer comes after into the DAG. If its scope still collects, it runs now.
    pub(super) fn enter_those_before(&mut self, newcomer: &Newcomer<'_>) {
        let Newcomer { command, .. } = newcomer;
        if self.holds_none_but(command.group) {
            return;
        }
        let uses = command.work.uses();
        for group in self.holding.clone() {
            let Some(known) = self.groups.get(&group) else { continue };
            let comes_after = |held| newcomer.comes_after(held, known.queue, &uses);
            let before = known.held.iter().position(comes_after);
            if let Some(before) = before.filter(|_| Some(group) != command.group) {
                self.abort(group, before, &command.work.in_words());
            }
        }
    }

    /// If the record is that of a launch that is held, its scope's launches run now.
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

    /// Whether the group's launches, which use this, are held and could be handed to the device at once,
    /// as one.
    pub(super) fn can_start(&self, group: GroupId, together: &Together, options: Options) -> bool {
        let are_held = self.groups.get(&group).is_some_and(|group| !group.held.works.is_empty());
        are_held && !self.is_full(options) && self.dag.is_clear(&together.uses)
    }

    /// Adds the group's launches, which are held and use this, as one command.
    pub(super) fn add_as_one(
        &mut self,
        group: GroupId,
        together: &Arc<Together>,
        launch: Box<LaunchWork>,
        stopwatch: Option<Arc<Stopwatch>>,
    ) -> Option<NodeId> {
        let Held { works, mut records } = self.take_held(group);
        let queue = self.groups.remove(&group)?.queue;
        let last = records.pop()?;
        let mut command = Command::new(Work::Launch(launch), last, queue, None);
        let several = Several { works, records, together: Arc::clone(together) };
        command.several = Some(Box::new(several));
        command.timed = stopwatch;
        let id = self.dag.add(command, &together.touched, [], 0, None, &mut self.next);
        self.dag.command(id)?.records().for_each(|record| record.set_node(id));
        Some(id)
    }

    /// Whether the command is several launches that are not in the DAG.
    pub(super) fn is_several(&self, id: NodeId) -> bool {
        self.dag.command(id).is_some_and(|command| command.several.is_some())
    }
}

impl Scheduler {
    /// A command that is several launches could not be handed over: each gets its own, behind this one,
    /// which ends without having done anything.
    pub(super) fn split(&self, state: &mut State, id: NodeId) {
        let Some(command) = state.dag.command_mut(id) else { return };
        let Some(several) = command.several.take() else { return };
        let Several { works, mut records, .. } = *several;
        let queue = command.queue;
        let record = Record::new(command.record.weak_scheduler());
        records.push(mem::replace(&mut command.record, record));
        let mut unused = mem::replace(&mut command.work, Work::Host);
        unused.release();
        state.effects.unused.push(vec![unused]);
        command.timed = None;
        // What it waits for may not have ended, while this one does.
        let before = state.dag.dependencies(id);
        let before: Vec<_> = before.map(|(id, kind, command)| (id, kind, command.uses())).collect();
        let all: Uses = works.iter().flat_map(Work::uses).collect();
        for (work, record) in works.into_iter().zip(records) {
            let uses = work.uses();
            // Whoever reads nothing of what a command writes does not fail with it, unless it is told to
            // come after that.
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
        // That of the command itself.
        state.live += 1;
        self.finish(state, id, Ok(()), Ending::default());
    }
}

/// Whether of two commands' uses the first read what the others write.
fn reads(own: &[Use], theirs: &[Use]) -> bool {
    let reads = |own: &Use, their: &Use| {
        own.access != Access::Write && their.access != Access::Read && own.orders(their)
    };
    own.iter().any(|own| theirs.iter().any(|their| reads(own, their)))
}
