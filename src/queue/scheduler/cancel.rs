//! Cancellation of commands that the device was not given.
//!
//! A canceled command fails like any other that cannot run: its node stays in the DAG until everything before
//! it has ended, so that nothing behind it starts too early. Its own waiters get the error at once, because
//! what it waits for may never end.

use std::sync::Arc;

use super::{Scheduler, State};
use crate::error::{Error, ErrorKind};
use crate::queue::command::Command;
use crate::queue::host_future::HostFuture;
use crate::queue::node::{NodeId, SkipReason};
use crate::queue::record::Record;
use crate::queue::work::Work;

impl Scheduler {
    /// Cancels the command unless the device was given it, it is a host task that has started, or it has failed
    /// or is certain to fail. Returns whether this call canceled it.
    pub(crate) fn cancel(self: &Arc<Self>, record: &Arc<Record>) -> bool {
        if record.is_dispatched() {
            return false;
        }
        let canceled = self.change(|state| {
            let id = self.separate(state, record)?;
            let futures = state.poison_canceled(id)?;
            self.shared.counters.commands.canceled.add_one();
            let error = state.dag.poison_of(id).cloned();
            // If nothing is left to wait for, the command ends here.
            self.drive(state);
            if state.dag.command(id).is_some()
                && let Some(error) = error
            {
                record.settle(Err(error), None, None, &mut state.actions.wakers);
            }
            Some(futures)
        });
        let is_canceled = canceled.is_some();
        for future in canceled.into_iter().flatten() {
            future.cancel();
        }
        is_canceled
    }

    /// Returns the node of a command that the device was not given, after making one for it if it has none of
    /// its own. Returns `None` if the device has the command, or if it has ended.
    fn separate(&self, state: &mut State, record: &Arc<Record>) -> Option<NodeId> {
        if let Some((group, _)) = state.find_deferred(record) {
            state.move_to_dag(group);
        }
        let id = record.node()?;
        let is_waiting = state.dag.command(id).is_some() && !record.is_dispatched();
        if is_waiting && state.stands_for_several(id) {
            self.split(state, id);
            return record.node();
        }
        is_waiting.then_some(id)
    }
}

impl State {
    /// Makes the command fail, unless it is certain to fail already or is a host task that has started. Returns
    /// the host futures that it waited for, which are to be dropped.
    fn poison_canceled(&mut self, id: NodeId) -> Option<Vec<Arc<HostFuture>>> {
        let command = self.dag.command(id).filter(|_| !self.dag.is_poisoned(id))?;
        let futures = || command.host_futures().iter();
        let error = canceled_error(command);
        match &command.work {
            Work::Host if !futures().all(|future| future.cancel_unstarted()) => return None,
            // A copy that has started, or is about to start, cannot be canceled.
            Work::DeviceCopy(work) => {
                self.actions.device_copy_failures.push(work.fail(&error)?);
            }
            _ => {}
        }
        let futures = futures().cloned().collect();
        self.dag.poison(id, error, SkipReason::NotRun, &mut self.next);
        Some(futures)
    }
}

/// Returns the error of a canceled command.
fn canceled_error(command: &Command) -> Error {
    let subject = command.work.subject();
    let message = match command.work {
        Work::Host => format!("{subject} was canceled before it started"),
        _ => format!("{subject} was canceled before the device was given it"),
    };
    Error::new(ErrorKind::Canceled, message)
}
