//! Search for the commands that a command waits for, through the DAG and the host futures of commands.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::{Scheduler, State};
use crate::error::Error;
use crate::queue::command::Command;
use crate::queue::node::{NodeId, SkipReason};
use crate::queue::record::Record;
use crate::queue::work::Work;

/// Description of a command that has not ended, for messages.
pub(crate) struct CommandSummary {
    /// Noun phrase with its article, such as "a fill".
    pub(crate) description: String,
    pub(crate) queue: u64,
    /// Relative clause about the progress, such as "whose program is being built".
    pub(crate) state: &'static str,
}

/// Nodes of a device that a search has visited.
type Seen = HashSet<NodeId, RandomState>;

impl Scheduler {
    /// Returns a description of the command if the command, or one that it waits for, waits for `other`.
    pub(crate) fn waits_for(record: &Arc<Record>, other: &Arc<Record>) -> Option<String> {
        let (other_scheduler, goal) = (Self::of_command(other)?, other.node()?);
        // That command fails in any case, and then everything that waits for it continues.
        if other_scheduler.lock().dag.is_poisoned(goal) {
            return None;
        }
        let description = Self::of_command(record)?.describe(record)?;
        let mut seen: Vec<(Arc<Self>, Seen)> = Vec::new();
        let mut records = vec![record.clone()];
        while let Some(record) = records.pop() {
            let (Some(scheduler), Some(id)) = (Self::of_command(&record), record.node()) else {
                continue;
            };
            let known = seen.iter().position(|(known, _)| Arc::ptr_eq(known, &scheduler));
            let index = known.unwrap_or_else(|| {
                seen.push((scheduler.clone(), Seen::default()));
                seen.len() - 1
            });
            let goal = Arc::ptr_eq(&scheduler, &other_scheduler).then_some(goal);
            let state = scheduler.lock();
            if state.find_before(id, goal, &mut seen[index].1, &mut records) {
                return Some(description);
            }
        }
        None
    }

    fn describe(&self, record: &Record) -> Option<String> {
        let id = record.node()?;
        self.lock().dag.command(id).map(|command| command.work.in_words())
    }

    /// Returns the unfinished commands that wait for no other command, among this command and those
    /// before it, oldest first. Leaves markers out.
    pub(crate) fn first_unfinished(record: &Arc<Record>) -> Vec<CommandSummary> {
        let (Some(scheduler), Some(id)) = (Self::of_command(record), record.node()) else {
            return Vec::new();
        };
        let state = scheduler.lock();
        let (mut seen, mut stack, mut first) = (Seen::default(), vec![id], Vec::new());
        while let Some(id) = stack.pop() {
            let Some(command) = state.dag.command(id).filter(|_| seen.insert(id)) else { continue };
            let count = stack.len();
            stack.extend(state.dag.dependencies(id).map(|(before, ..)| before));
            if stack.len() == count && !matches!(command.work, Work::Marker | Work::Drain) {
                first.push((id.serial(), state.summarize(command)));
            }
        }
        first.sort_by_key(|(serial, _)| *serial);
        first.into_iter().map(|(_, summary)| summary).collect()
    }

    /// Fails the command, because one of its host futures was found to wait for the command itself.
    pub(crate) fn fail_host(self: &Arc<Self>, record: &Record, error: &Error) {
        if let Some(id) = record.node() {
            self.change(|state| {
                state.dag.poison(id, error.clone(), SkipReason::NotRun, &mut state.next);
            });
        }
    }
}

impl State {
    /// Searches for `goal` among the command and those that it waits for on this device. Adds the
    /// commands that host futures wait for to `records`.
    fn find_before(
        &self,
        id: NodeId,
        goal: Option<NodeId>,
        seen: &mut Seen,
        records: &mut Vec<Arc<Record>>,
    ) -> bool {
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            let Some(command) = self.dag.command(id) else { continue };
            if Some(id) == goal {
                return true;
            }
            // The closure of a native command waits while it runs.
            let closure = command.extras().and_then(|extras| extras.closure.as_ref());
            records.extend(closure.and_then(|closure| closure.certain_wait()));
            // A dispatched command waits for no host future.
            if command.record.is_dispatched() || !seen.insert(id) {
                continue;
            }
            if let Work::DeviceCopy(work) = &command.work {
                records.extend(work.other_record());
            }
            stack.extend(self.dag.dependencies(id).map(|(before, ..)| before));
            records.extend(command.host_futures().iter().filter_map(|host| host.certain_wait()));
        }
        false
    }

    fn summarize(&self, command: &Command) -> CommandSummary {
        let state = match &command.work {
            Work::Host => "which has not completed",
            Work::DeviceCopy(_) => "which waits for both devices or is running",
            _ if command.record.is_dispatched() => "which the device has not finished",
            _ if command.is_held => "which waits until the guard of the mapping is dropped",
            _ if command.building => "whose program is being built",
            _ if command.group.is_some() => "whose fusion scope is not completed",
            _ if !command.host_futures().is_empty() => "whose host future has not completed",
            _ => "which was not submitted to the device",
        };
        CommandSummary { description: command.work.in_words(), queue: command.queue, state }
    }
}
