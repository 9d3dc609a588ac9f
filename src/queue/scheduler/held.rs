//! Launches of a fusion scope that are not in the DAG yet. Most often they run as one before they
//! concern anybody else, and then one node does for all of them.
//!
//! They enter the DAG, each with its edges, as soon as that makes a difference: before a command that
//! uses the same memory, comes after one of them, or is a marker; with the first launch of their scope
//! that waits for more than its data; and if they run one by one, or cannot be handed to the device at
//! once. Whatever was added since and has nothing to do with them could as well have come later.

use std::sync::Arc;

use smallvec::SmallVec;

use super::group::Stage;
use super::{Edges, Effects, Ending, GroupId, Options, Scheduler, State};
use crate::backend::Access;
use crate::queue::command::{Command, Held, LaunchWork, Work};
use crate::queue::dag::{EdgeKind, NextList, NodeId, Uses};
use crate::queue::event::{Event, Record};
use crate::queue::hazard::Use;
use crate::queue::stopwatch::Stopwatch;

/// A command before it is added.
pub(super) struct Newcomer<'a> {
    pub(super) work: &'a Work,
    pub(super) queue: u64,
    pub(super) group: Option<GroupId>,
    /// What it comes after besides.
    pub(super) after: &'a [Event],
}

impl Newcomer<'_> {
    /// Whether it comes after a launch of `queue` that is held, by what it `uses` or is told.
    fn comes_after(&self, held: &Held, queue: u64, uses: &Uses) -> bool {
        match self.work {
            Work::Marker => queue == self.queue,
            Work::Drain => true,
            _ => {
                let told = |event: &Event| Arc::ptr_eq(event.record(), &held.record);
                let is_before = |used: &Use| uses.iter().any(|own| used.orders(own));
                self.after.iter().any(told) || held.work.uses().iter().any(is_before)
            }
        }
    }
}

/// What launches use that run as one: lists that follow each other, most often a single one.
pub(crate) type AsOne = SmallVec<[SmallVec<[Use; 16]>; 1]>;

/// Of several uses of the same bytes the first, for the later ones find what an earlier one left there,
/// and, if that reads, the first that writes, too. Where only parts are the same, the launches' uses stay
/// as they are, in order.
pub(super) fn as_one(launches: &[&LaunchWork]) -> AsOne {
    let mut all = SmallVec::<[Use; 16]>::new();
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
                        let uses = |launch: &&LaunchWork| launch.uses().into_iter().collect();
                        return launches.iter().map(uses).collect();
                    }
                }
            }
        }
    }
    SmallVec::from_buf([all])
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

    pub(super) fn hold(&mut self, group: GroupId, launch: Held) {
        let Some(known) = self.groups.get_mut(&group) else { return };
        if known.held.is_empty() {
            self.holding.push(group);
        }
        known.held.push(launch);
    }

    /// Forgets that the group's launches are held, and gives them.
    fn take_held(&mut self, group: GroupId) -> Vec<Held> {
        let held = self.groups.get_mut(&group).map(|group| std::mem::take(&mut group.held));
        self.holding.retain(|holding| *holding != group);
        held.unwrap_or_default()
    }

    /// Puts the launches of the group that are held into the DAG, each behind a gate.
    pub(super) fn enter(&mut self, group: GroupId, next: &mut NextList) {
        for Held { work, record } in self.take_held(group) {
            let Some(known) = self.groups.get_mut(&group) else { return };
            let uses = work.uses();
            let mut command = Command::new(work, record.clone(), known.queue, false, None);
            command.group = Some(group);
            let id = self.dag.add(command, &[&uses], [], 1, None, next);
            record.set_node(id);
            known.slots.push(id);
        }
    }

    /// Puts all that is held into the DAG.
    pub(super) fn enter_all(&mut self, next: &mut NextList) {
        for group in self.holding.clone() {
            self.enter(group, next);
        }
    }

    /// Puts what the newcomer comes after into the DAG. If its scope still collects, it runs now.
    pub(super) fn enter_those_before(&mut self, newcomer: &Newcomer<'_>, next: &mut NextList) {
        if self.holds_none_but(newcomer.group) {
            return;
        }
        let uses = newcomer.work.uses();
        for group in self.holding.clone() {
            let Some(known) = self.groups.get(&group) else { continue };
            let comes_after = |held: &Held| newcomer.comes_after(held, known.queue, &uses);
            let before = known.held.iter().position(comes_after);
            if let Some(before) = before.filter(|_| Some(group) != newcomer.group) {
                self.abort(group, before, &newcomer.work.in_words(), next);
            }
        }
    }

    /// If the record is that of a launch that is held, its scope's launches run now.
    pub(super) fn abort_held(&mut self, record: &Arc<Record>, who: &str, next: &mut NextList) {
        let is_meant = |held: &Held| Arc::ptr_eq(&held.record, record);
        let found = self.holding.iter().find_map(|group| {
            let at = self.groups.get(group)?.held.iter().position(is_meant)?;
            Some((*group, at))
        });
        if let Some((group, at)) = found {
            self.abort(group, at, who, next);
        }
    }

    fn abort(&mut self, group: GroupId, at: usize, who: &str, next: &mut NextList) {
        self.enter(group, next);
        let id = self.groups.get(&group).map(|group| group.slots[at]);
        if let Some(id) = id {
            self.abort_group_of(id, who, next);
        }
    }

    /// Whether the group's launches, which use this, are held and could be handed to the device at once,
    /// as one.
    pub(super) fn can_start(&self, group: GroupId, uses: &AsOne, options: Options) -> bool {
        let are_held = self.groups.get(&group).is_some_and(|group| !group.held.is_empty());
        are_held && !self.is_full(options) && self.dag.is_clear(uses)
    }

    /// Adds the group's launches, which are held and have these `uses`, as one command.
    pub(super) fn add_as_one(
        &mut self,
        group: GroupId,
        uses: &AsOne,
        launch: Box<LaunchWork>,
        stopwatch: Option<Arc<Stopwatch>>,
        next: &mut NextList,
    ) -> Option<NodeId> {
        let mut others = self.take_held(group);
        let queue = self.groups.remove(&group)?.queue;
        let last = others.pop()?;
        let mut command = Command::new(last.work, last.record, queue, false, None);
        command.others = others;
        command.fused = Some(launch);
        command.timed = stopwatch;
        let id = self.dag.add(command, uses, [], 0, None, next);
        self.dag.command(id)?.records().for_each(|record| record.set_node(id));
        Some(id)
    }

    /// Whether the command does the work of others that are not in the DAG.
    pub(super) fn stands_for_others(&self, id: NodeId) -> bool {
        self.dag.command(id).is_some_and(|command| !command.others.is_empty())
    }
}

impl Scheduler {
    /// A command that does the work of others could not be handed over: each gets its own, behind
    /// this one, which ends without having done anything.
    pub(super) fn split(
        &self,
        state: &mut State,
        id: NodeId,
        next: &mut NextList,
        effects: &mut Effects,
    ) {
        let Some(command) = state.dag.command_mut(id) else { return };
        let queue = command.queue;
        let record = Record::new(command.record.weak_scheduler());
        let record = std::mem::replace(&mut command.record, record);
        let work = std::mem::replace(&mut command.work, Work::Host);
        let others = std::mem::take(&mut command.others);
        effects.unused.extend(command.fused.take());
        command.timed = None;
        // What it waits for may not have ended, while this one does.
        let before = state.dag.dependencies(id);
        let before: Vec<_> =
            before.map(|(id, kind, command)| (id, kind, command.work.uses())).collect();
        let launches = others.into_iter().map(|held| (held.work, held.record));
        let launches: Vec<_> = launches.chain([(work, record)]).collect();
        let all: Uses = launches.iter().flat_map(|(work, _)| work.uses()).collect();
        for (work, record) in launches {
            let uses = work.uses();
            // Whoever reads nothing of what a command writes does not fail with it, unless it is told to
            // come after that.
            let edges: Edges = (before.iter())
                .map(|(before, kind, theirs)| match reads(&all, theirs) && !reads(&uses, theirs) {
                    true => (*before, EdgeKind::Order),
                    false => (*before, *kind),
                })
                .collect();
            let command = Command::new(work, record.clone(), queue, false, None);
            let added = state.dag.add(command, &[&uses], edges, 0, None, next);
            record.set_node(added);
        }
        // That of the command itself.
        state.live += 1;
        self.finish(state, id, Ok(()), Ending::default(), next, effects);
    }
}

/// Whether of two commands' uses the first read what the others write.
fn reads(own: &[Use], theirs: &[Use]) -> bool {
    let reads = |own: &Use, their: &Use| {
        own.access != Access::Write && their.access != Access::Read && own.orders(their)
    };
    own.iter().any(|own| theirs.iter().any(|their| reads(own, their)))
}
