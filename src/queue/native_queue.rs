//! The lanes of a device: its few in-order native queues, and what is in flight on each.
//!
//! A chain stays on one lane, where the order is the driver's and needs no events; only an edge
//! between lanes waits for one. Every command has a native event all the same: it is what tells how
//! the command went, and asking for one later would take a command of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::dag::{EdgeKind, NodeId};
use crate::backend::{self, NativeEvent, Operation, Progress};
use crate::error::{Error, Result};

/// Where a command was enqueued: the lane's index, and how many went before it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) lane: usize,
    pub(crate) position: u64,
}

/// A command in flight.
struct Entry {
    id: NodeId,
    native: Native,
}

/// A command's native event.
pub(crate) struct Native {
    pub(crate) event: Arc<dyn NativeEvent>,
    /// Whether the driver was asked to call back.
    pub(crate) armed: bool,
}

/// A command that has ended on its lane.
pub(crate) struct Left {
    pub(crate) id: NodeId,
    pub(crate) native: Native,
    pub(crate) result: Result<()>,
    /// Whether the device may still use what it was given.
    pub(crate) may_run: bool,
}

/// An in-order native queue and its commands in flight, oldest first.
pub(crate) struct Lane {
    native: Box<dyn backend::Lane>,
    entries: VecDeque<Entry>,
    /// The position of the oldest entry.
    first: u64,
    unflushed: usize,
    /// The position behind the last command that was armed.
    watched: u64,
    /// The last failure, for commands that a driver fails for the failure of another.
    last_failure: Option<Error>,
}

/// How many commands may be enqueued before they are flushed without anybody asking.
const FLUSH_EVERY: usize = 64;

impl Lane {
    pub(crate) fn new(native: Box<dyn backend::Lane>) -> Self {
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

    /// Enqueues a command, which stands for so many, and gives its position.
    ///
    /// # Safety
    ///
    /// As for [`backend::Lane::enqueue`].
    pub(crate) unsafe fn enqueue(
        &mut self,
        id: NodeId,
        commands: usize,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<u64> {
        // SAFETY: the caller promises what the callee asks for.
        let event = unsafe { self.native.enqueue(operation, wait)? };
        let native = Native { event, armed: false };
        self.entries.push_back(Entry { id, native });
        self.unflushed += commands;
        if self.unflushed >= FLUSH_EVERY {
            self.flush();
        }
        Ok(self.end() - 1)
    }

    /// The position behind the latest entry.
    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// The position of the latest command, if any is in flight.
    pub(crate) fn latest(&self) -> Option<u64> {
        (!self.entries.is_empty()).then(|| self.end() - 1)
    }

    /// Sees to it that everything enqueued starts.
    pub(crate) fn flush(&mut self) {
        if self.unflushed == 0 {
            return;
        }
        match self.native.flush() {
            Ok(()) => self.unflushed = 0,
            // The next call tries again.
            Err(error) => tracing::debug!(%error, "a lane could not be flushed"),
        }
    }

    /// How many commands leave when the one at `position` does.
    pub(crate) fn ahead(&self, position: u64) -> u64 {
        (position + 1).saturating_sub(self.first)
    }

    /// Whether `commands` or more are in flight behind the last armed one.
    pub(crate) fn is_unwatched_for(&self, commands: usize) -> bool {
        self.end() - self.watched.max(self.first) >= commands as u64
    }

    fn index(&self, position: u64) -> Option<usize> {
        let index = usize::try_from(position.checked_sub(self.first)?).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    /// The oldest command, if the one at `position` has not left.
    pub(crate) fn oldest_up_to(&self, position: u64) -> Option<NodeId> {
        self.entries.front().filter(|_| self.first <= position).map(|entry| entry.id)
    }

    /// The command at `position`, unless it has left.
    pub(crate) fn command_at(&self, position: u64) -> Option<NodeId> {
        self.index(position).map(|index| self.entries[index].id)
    }

    /// Marks the command at `position` as one that the driver will call back for, and gives the
    /// event to ask for that. `None` if that was done already or the command has left.
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

    /// The native event of the command at `position`, unless it has left.
    pub(crate) fn event_at(&self, position: u64) -> Option<Arc<dyn NativeEvent>> {
        self.index(position).map(|index| self.entries[index].native.event.clone())
    }

    /// Takes out the oldest command, if that has ended. Asks the driver; one that has called back
    /// before its event tells the end is believed. Though one behind it has ended, it may not: some
    /// drivers fail a command as soon as one that it waits for has failed, before its turn.
    pub(crate) fn leave(&mut self, has_called_back: impl FnOnce(NodeId) -> bool) -> Option<Left> {
        let oldest = self.entries.front()?;
        // Asked first: what called back while the driver was asked may have failed.
        let has_called_back = oldest.native.armed && has_called_back(oldest.id);
        let (result, may_run) = match oldest.native.event.progress() {
            Progress::Pending if !has_called_back => return None,
            Progress::Pending | Progress::Complete => (Ok(()), false),
            Progress::Failed(error) => (Err(self.root_of(error)), false),
            Progress::Unknown(error) => (Err(error), true),
        };
        let Entry { id, native } = self.entries.pop_front()?;
        self.first += 1;
        Some(Left { id, native, result, may_run })
    }

    /// Drivers fail what is behind a failed command with a code that says only that: the failure
    /// before it says more.
    fn root_of(&mut self, error: Error) -> Error {
        /// `CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST`.
        const OF_ANOTHER: i32 = -14;
        let of_another = error.driver_code().is_some_and(|driver| driver.code == OF_ANOTHER);
        match &self.last_failure {
            Some(root) if of_another => root.clone(),
            _ => {
                self.last_failure = Some(error.clone());
                error
            }
        }
    }
}

/// The events to wait for before a command runs on `lane`, behind the commands at `places`.
///
/// Drivers fail what waits for an event that fails. Where a lane's latest command must only come
/// first, a marker behind it is waited for instead, which ends well however that command does.
pub(crate) fn wait_list(
    lanes: &mut [Lane],
    lane: usize,
    places: impl Iterator<Item = (EdgeKind, Place)>,
) -> Result<SmallVec<[Arc<dyn NativeEvent>; 4]>> {
    let mut wait = SmallVec::new();
    let mut others = places.filter(|(_, place)| place.lane != lane).peekable();
    if others.peek().is_none() {
        return Ok(wait);
    }
    let mut latest: SmallVec<[Option<(u64, EdgeKind)>; 8]> = SmallVec::from_elem(None, lanes.len());
    for (kind, place) in others {
        latest[place.lane] = latest[place.lane].max(Some((place.position, kind)));
    }
    for (lane, latest) in lanes.iter_mut().zip(latest) {
        let Some((position, kind)) = latest else { continue };
        wait.push(match kind {
            EdgeKind::Data | EdgeKind::After => {
                let index = position.saturating_sub(lane.first) as usize;
                lane.entries[index].native.event.clone()
            }
            EdgeKind::Order => {
                lane.unflushed += 1;
                // SAFETY: a marker names no memory.
                unsafe { lane.native.enqueue(&Operation::Marker, &[])? }
            }
        });
        // A wait list does not start what it waits for.
        lane.flush();
    }
    Ok(wait)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::backend::{Notify, Profile};
    use crate::error::ErrorKind;
    use crate::queue::dag::{Dag, NextList, Uses};

    /// A command that fails when it is told to.
    #[derive(Default)]
    struct Failing(AtomicBool);

    impl NativeEvent for Failing {
        fn progress(&self) -> Progress {
            match self.0.load(SeqCst) {
                true => Progress::Failed(Error::new(ErrorKind::Driver, "it was told to")),
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

    /// A command that nothing is told of.
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

    impl backend::Lane for Driver {
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

    /// A driver that does not take every flush.
    struct Reluctant(Arc<AtomicUsize>);

    impl backend::Lane for Reluctant {
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
    fn a_flush_that_fails_is_repeated_until_it_does_not() {
        let flushes = Arc::<AtomicUsize>::default();
        let mut lane = Lane::new(Box::new(Reluctant(flushes.clone())));
        let mut dag = Dag::new(|(): &()| Uses::new());
        let id = dag.add((), &[] as &[Uses], [], 0, None, &mut NextList::new());
        // SAFETY: a marker touches no memory.
        unsafe { lane.enqueue(id, 1, &Operation::Marker, &[]) }.expect("it is taken");
        for _ in 0..4 {
            lane.flush();
        }
        assert_eq!(flushes.load(SeqCst), 2);
    }

    #[test]
    fn a_command_that_nothing_is_told_of_has_failed_and_may_run() {
        let mut lane = Lane::new(Box::new(Driver(Arc::new(Silent))));
        let mut dag = Dag::new(|(): &()| Uses::new());
        let id = dag.add((), &[] as &[Uses], [], 0, None, &mut NextList::new());
        // SAFETY: a marker touches no memory.
        unsafe { lane.enqueue(id, 1, &Operation::Marker, &[]) }.expect("it is taken");
        assert!(lane.arm(0).is_some(), "it calls back");
        let left = lane.leave(|_| true).expect("it counts as ended");
        assert!(left.may_run && left.result.is_err());
    }

    #[test]
    fn a_command_that_fails_while_it_is_asked_about_has_failed() {
        let command = Arc::new(Failing::default());
        let mut lane = Lane::new(Box::new(Driver(command.clone())));
        let mut dag = Dag::new(|(): &()| Uses::new());
        let id = dag.add((), &[] as &[Uses], [], 0, None, &mut NextList::new());
        // SAFETY: a marker touches no memory.
        unsafe { lane.enqueue(id, 1, &Operation::Marker, &[]) }.expect("it is taken");
        assert!(lane.arm(0).is_some(), "it calls back");
        assert!(lane.leave(|_| false).is_none(), "it still runs");
        let left = lane.leave(|_| {
            command.0.store(true, SeqCst);
            true
        });
        left.expect("it has ended").result.expect_err("and failed");
    }
}
