//! Native queues of a device: a few in-order queues, and the commands in flight on each.
//!
//! A chain of commands stays on one native queue, where the driver keeps the order and no events are
//! needed. Only an edge between native queues waits for an event. Every command has a native event all
//! the same, because it reports how the command ended; requesting one later would take a command of its
//! own.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::node::{EdgeKind, NodeId};
use crate::backend::{self, NativeEvent, Operation, Progress};
use crate::error::{Error, Result};

/// Position of a command: index of the native queue, and number of commands enqueued there before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) native_queue: usize,
    pub(crate) position: u64,
}

/// Command in flight.
struct Entry {
    id: NodeId,
    native: CommandEvent,
}

/// Native event of a command.
pub(crate) struct CommandEvent {
    pub(crate) event: Arc<dyn NativeEvent>,
    /// Whether the driver was asked to call back.
    pub(crate) armed: bool,
}

/// Command that has ended and left its native queue.
pub(crate) struct Departed {
    pub(crate) id: NodeId,
    pub(crate) native: CommandEvent,
    pub(crate) result: Result<()>,
    /// Whether the device may still use the memory of the command.
    pub(crate) may_run: bool,
}

/// In-order native queue and its commands in flight, oldest first.
pub(crate) struct TrackedQueue {
    native: Box<dyn backend::NativeQueue>,
    entries: VecDeque<Entry>,
    /// Position of the oldest entry.
    first: u64,
    unflushed: usize,
    /// Position after the last command for which the driver was asked to call back.
    watched: u64,
    /// Last failure, for commands that the driver fails because another one failed.
    last_failure: Option<Error>,
}

/// Number of commands after which the queue is flushed even if nothing requests it.
const FLUSH_EVERY: usize = 64;

impl TrackedQueue {
    pub(crate) fn new(native: Box<dyn backend::NativeQueue>) -> Self {
        Self {
            native,
            entries: VecDeque::new(),
            first: 0,
            unflushed: 0,
            watched: 0,
            last_failure: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Enqueues an operation that stands for `commands` commands. Returns its position.
    ///
    /// # Safety
    ///
    /// As for [`backend::NativeQueue::enqueue`].
    pub(crate) unsafe fn enqueue(
        &mut self,
        id: NodeId,
        commands: usize,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<u64> {
        // SAFETY: the caller upholds the contract of the callee.
        let event = unsafe { self.native.enqueue(operation, wait)? };
        let native = CommandEvent { event, armed: false };
        self.entries.push_back(Entry { id, native });
        self.unflushed += commands;
        if self.unflushed >= FLUSH_EVERY {
            self.flush();
        }
        Ok(self.end() - 1)
    }

    /// Returns the position after the latest entry.
    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Returns the position of the latest command, if any is in flight.
    pub(crate) fn latest(&self) -> Option<u64> {
        (!self.entries.is_empty()).then(|| self.end() - 1)
    }

    /// Flushes, so that everything enqueued starts. After an error, the next call tries again.
    pub(crate) fn flush(&mut self) {
        if self.unflushed == 0 {
            return;
        }
        match self.native.flush() {
            Ok(()) => self.unflushed = 0,
            // `unflushed` stays set, so the next call tries again.
            Err(error) => tracing::debug!(%error, "a native queue could not be flushed"),
        }
    }

    /// Returns the number of commands in flight up to the one at `position`, which is included.
    pub(crate) fn count_up_to(&self, position: u64) -> u64 {
        (position + 1).saturating_sub(self.first)
    }

    /// Returns whether `commands` or more are in flight after the last one that the driver will call
    /// back for.
    pub(crate) fn is_unwatched_for(&self, commands: usize) -> bool {
        self.end() - self.watched.max(self.first) >= commands as u64
    }

    /// Returns the index of the entry at `position`, unless the command has left.
    fn index(&self, position: u64) -> Option<usize> {
        let index = usize::try_from(position.checked_sub(self.first)?).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    /// Returns the oldest command, if the one at `position` has not left.
    pub(crate) fn oldest_up_to(&self, position: u64) -> Option<NodeId> {
        self.entries.front().filter(|_| self.first <= position).map(|entry| entry.id)
    }

    /// Returns the command at `position`, unless it has left.
    pub(crate) fn command_at(&self, position: u64) -> Option<NodeId> {
        self.index(position).map(|index| self.entries[index].id)
    }

    /// Marks the command at `position` as one that the driver will call back for. Returns the event on
    /// which to request the callback; `None` if it is marked already or the command has left.
    pub(crate) fn arm(&mut self, position: u64) -> Option<Arc<dyn NativeEvent>> {
        let index = self.index(position)?;
        let entry = &mut self.entries[index];
        if std::mem::replace(&mut entry.native.armed, true) {
            return None;
        }
        let event = entry.native.event.clone();
        self.watched = self.watched.max(position + 1);
        self.flush();
        Some(event)
    }

    /// If commands are in flight and the driver will call back for none of them, marks the one in the middle
    /// like [`arm`](Self::arm). Returns the command and the event on which to request the callback.
    pub(crate) fn watch_middle(&mut self) -> Option<(NodeId, Arc<dyn NativeEvent>)> {
        if !self.is_unwatched_for(self.entries.len()) {
            return None;
        }
        let position = self.first + self.entries.len() as u64 / 2;
        let id = self.command_at(position)?;
        Some((id, self.arm(position)?))
    }

    /// Returns the native event of the command at `position`, unless it has left.
    pub(crate) fn event_at(&self, position: u64) -> Option<Arc<dyn NativeEvent>> {
        self.index(position).map(|index| self.entries[index].native.event.clone())
    }

    /// Removes the oldest command, if it has ended. If the driver has called back but the event does
    /// not report the end yet, the callback counts. The end of a later command proves nothing: some
    /// drivers fail a command as soon as one that it waits for has failed, before its turn.
    pub(crate) fn pop_ended(
        &mut self,
        has_called_back: impl FnOnce(NodeId) -> bool,
    ) -> Option<Departed> {
        let oldest = self.entries.front()?;
        // The callback is checked first: if it comes during the query, the command may have failed.
        let has_called_back = oldest.native.armed && has_called_back(oldest.id);
        let (result, may_run) = match oldest.native.event.progress() {
            Progress::Pending if !has_called_back => return None,
            Progress::Pending | Progress::Complete => (Ok(()), false),
            Progress::Failed(error) => (Err(self.root_of(error)), false),
            Progress::Unknown(error) => (Err(error), true),
        };
        let Entry { id, native } = self.entries.pop_front()?;
        self.first += 1;
        Some(Departed { id, native, result, may_run })
    }

    /// Replaces the error of a command that failed because of another one. Drivers fail the commands
    /// after a failed one with a code that says only that; the failure before it says more.
    fn root_of(&mut self, error: Error) -> Error {
        /// `CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST`.
        const FAILED_DEPENDENCY: i32 = -14;
        let is_consequence =
            error.driver_code().is_some_and(|driver| driver.code == FAILED_DEPENDENCY);
        match &self.last_failure {
            Some(root) if is_consequence => root.clone(),
            _ => {
                self.last_failure = Some(error.clone());
                error
            }
        }
    }
}

/// Returns the events that a command on `native_queue` must wait for, if it runs after the commands at
/// `places`.
///
/// Drivers fail a command if an event in its wait list fails. If only the order after the latest
/// command of a native queue matters, the list therefore contains a marker behind it, which succeeds even if
/// that command fails.
pub(crate) fn wait_list(
    native_queues: &mut [TrackedQueue],
    native_queue: usize,
    places: impl Iterator<Item = (EdgeKind, Place)>,
) -> Result<SmallVec<[Arc<dyn NativeEvent>; 4]>> {
    let mut wait = SmallVec::new();
    let mut others = places.filter(|(_, place)| place.native_queue != native_queue).peekable();
    if others.peek().is_none() {
        return Ok(wait);
    }
    let mut latest: SmallVec<[Option<(u64, EdgeKind)>; 8]> =
        SmallVec::from_elem(None, native_queues.len());
    for (kind, place) in others {
        latest[place.native_queue] = latest[place.native_queue].max(Some((place.position, kind)));
    }
    for (native_queue, latest) in native_queues.iter_mut().zip(latest) {
        let Some((position, kind)) = latest else { continue };
        wait.push(match kind {
            EdgeKind::Data | EdgeKind::After => {
                let index = position.saturating_sub(native_queue.first) as usize;
                native_queue.entries[index].native.event.clone()
            }
            EdgeKind::Order => {
                native_queue.unflushed += 1;
                // SAFETY: a marker accesses no memory.
                unsafe { native_queue.native.enqueue(&Operation::Marker, &[])? }
            }
        });
        // Waiting for a command does not start it.
        native_queue.flush();
    }
    Ok(wait)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::backend::{Notify, Profile};
    use crate::error::ErrorKind;
    use crate::queue::dag::{Dag, NextList};
    use crate::queue::hazard::Uses;

    /// Command that fails on request.
    #[derive(Default)]
    struct Failing(AtomicBool);

    impl NativeEvent for Failing {
        fn progress(&self) -> Progress {
            match self.0.load(SeqCst) {
                true => Progress::Failed(Error::new(ErrorKind::Driver, "it was set to fail")),
                false => Progress::Pending,
            }
        }

        fn profile(&self) -> Option<Profile> {
            None
        }

        fn notify(&self, _: Notify) -> Result<()> {
            Ok(())
        }
    }

    /// Command about which the driver reports nothing.
    struct Silent;

    impl NativeEvent for Silent {
        fn progress(&self) -> Progress {
            Progress::Unknown(Error::new(ErrorKind::OutOfResources, "not now"))
        }

        fn profile(&self) -> Option<Profile> {
            None
        }

        fn notify(&self, notify: Notify) -> Result<()> {
            notify();
            Ok(())
        }
    }

    struct Driver(Arc<dyn NativeEvent>);

    impl backend::NativeQueue for Driver {
        unsafe fn enqueue(
            &mut self,
            _: &Operation<'_>,
            _: &[Arc<dyn NativeEvent>],
        ) -> Result<Arc<dyn NativeEvent>> {
            Ok(self.0.clone())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    /// Driver that rejects the first flush.
    struct Reluctant(Arc<AtomicUsize>);

    impl backend::NativeQueue for Reluctant {
        unsafe fn enqueue(
            &mut self,
            _: &Operation<'_>,
            _: &[Arc<dyn NativeEvent>],
        ) -> Result<Arc<dyn NativeEvent>> {
            Ok(Arc::<Failing>::default())
        }

        fn flush(&mut self) -> Result<()> {
            match self.0.fetch_add(1, SeqCst) {
                0 => Err(Error::new(ErrorKind::OutOfResources, "not now")),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn failed_flushes_are_repeated_until_they_succeed() {
        let flushes = Arc::<AtomicUsize>::default();
        let mut native_queue = TrackedQueue::new(Box::new(Reluctant(flushes.clone())));
        let mut dag = Dag::new(|(): &()| Uses::new());
        let id = dag.add((), &[] as &[Uses], [], 0, None, &mut NextList::new());
        // SAFETY: a marker accesses no memory.
        unsafe { native_queue.enqueue(id, 1, &Operation::Marker, &[]) }
            .expect("the operation is accepted");
        for _ in 0..4 {
            native_queue.flush();
        }
        assert_eq!(flushes.load(SeqCst), 2);
    }

    #[test]
    fn commands_of_unknown_state_have_failed_and_may_still_run() {
        let mut native_queue = TrackedQueue::new(Box::new(Driver(Arc::new(Silent))));
        let mut dag = Dag::new(|(): &()| Uses::new());
        let id = dag.add((), &[] as &[Uses], [], 0, None, &mut NextList::new());
        // SAFETY: a marker accesses no memory.
        unsafe { native_queue.enqueue(id, 1, &Operation::Marker, &[]) }
            .expect("the operation is accepted");
        assert!(native_queue.arm(0).is_some(), "the driver calls back");
        let departed = native_queue.pop_ended(|_| true).expect("it counts as finished");
        assert!(departed.may_run && departed.result.is_err());
    }

    #[test]
    fn commands_that_fail_during_a_check_have_failed() {
        let command = Arc::new(Failing::default());
        let mut native_queue = TrackedQueue::new(Box::new(Driver(command.clone())));
        let mut dag = Dag::new(|(): &()| Uses::new());
        let id = dag.add((), &[] as &[Uses], [], 0, None, &mut NextList::new());
        // SAFETY: a marker accesses no memory.
        unsafe { native_queue.enqueue(id, 1, &Operation::Marker, &[]) }
            .expect("the operation is accepted");
        assert!(native_queue.arm(0).is_some(), "the driver calls back");
        assert!(native_queue.pop_ended(|_| false).is_none(), "it still runs");
        let departed = native_queue.pop_ended(|_| {
            command.0.store(true, SeqCst);
            true
        });
        departed.expect("it has finished").result.expect_err("and failed");
    }
}
