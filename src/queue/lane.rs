//! The lanes of a device: its few in-order native queues, and what is in flight on each.
//!
//! A chain stays on one lane, where the order is the driver's and needs no events; only an edge
//! between lanes waits for one. Every command is given a native event when it is enqueued, because
//! asking for it later would take a command of its own; the event of a command whose handles are
//! all gone is let go as soon as the next one is enqueued behind it.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::completion::Phase;
use super::dag::NodeId;
use super::event::Record;
use crate::backend::{self, NativeEvent, Operation, Progress};
use crate::error::{Error, Result};

/// Where a command was enqueued: the lane's index, and how many went before it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) lane: usize,
    pub(crate) position: u64,
}

/// A command in flight.
pub(crate) struct Entry {
    pub(crate) id: NodeId,
    pub(crate) record: Arc<Record>,
    /// Always there for the last command of a lane.
    event: Option<Arc<dyn NativeEvent>>,
    /// Whether the driver was asked to call back.
    armed: bool,
}

/// The event of a command that has ended, and whether the driver was asked to call back.
pub(crate) struct Ended {
    pub(crate) event: Arc<dyn NativeEvent>,
    pub(crate) armed: bool,
}

/// A command that has ended on its lane.
pub(crate) struct Left {
    pub(crate) id: NodeId,
    pub(crate) ended: Option<Ended>,
    pub(crate) result: Result<()>,
}

/// An in-order native queue and its commands in flight, oldest first.
pub(crate) struct Lane {
    native: Box<dyn backend::Lane>,
    entries: VecDeque<Entry>,
    /// The position of the oldest entry.
    first: u64,
    unflushed: usize,
    /// The positions of the armed commands, oldest first.
    armed: VecDeque<u64>,
    /// How the commands up to a position went, where one event told it for several.
    known: Option<(u64, Result<()>)>,
    /// The oldest armed command, if the watchdog has found it ended without a callback.
    suspect: Option<u64>,
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
            armed: VecDeque::new(),
            known: None,
            suspect: None,
            last_failure: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Enqueues a command and gives its position.
    ///
    /// # Safety
    ///
    /// As for [`backend::Lane::enqueue`].
    pub(crate) unsafe fn enqueue(
        &mut self,
        id: NodeId,
        record: &Arc<Record>,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
        keep_events: bool,
    ) -> Result<u64> {
        // SAFETY: the caller promises what the callee asks for.
        let event = unsafe { self.native.enqueue(operation, wait)? };
        if let Some(last) = self.entries.back_mut()
            && !last.armed
            && !keep_events
            && !last.record.has_handles()
        {
            last.event = None;
        }
        self.entries.push_back(Entry {
            id,
            record: record.clone(),
            event: Some(event),
            armed: false,
        });
        self.unflushed += 1;
        if self.unflushed >= FLUSH_EVERY {
            self.flush();
        }
        Ok(self.first + self.entries.len() as u64 - 1)
    }

    /// An event that ends when the command at `position` has ended, or later; none if it has left.
    pub(crate) fn event_behind(&self, position: u64) -> Option<&Arc<dyn NativeEvent>> {
        let index = self.index(position)?;
        self.entries.range(index..).find_map(|entry| entry.event.as_ref())
    }

    /// Sees to it that everything enqueued starts.
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed) > 0
            && let Err(error) = self.native.flush()
        {
            // The commands' own events tell what became of them.
            tracing::debug!(%error, "a lane could not be flushed");
        }
    }

    /// How many commands leave when the one at `position` does.
    pub(crate) fn ahead(&self, position: u64) -> u64 {
        (position + 1).saturating_sub(self.first)
    }

    /// Whether `commands` or more are in flight behind the last armed one.
    pub(crate) fn is_unwatched_for(&self, commands: usize) -> bool {
        let watched = self.armed.back().map_or(0, |last| self.ahead(*last));
        (self.entries.len() as u64).saturating_sub(watched) >= commands as u64
    }

    /// The oldest armed command, if its callback has come.
    pub(crate) fn fired(&self) -> Option<u64> {
        let position = *self.armed.front()?;
        let entry = &self.entries[self.index(position)?];
        (entry.record.signal.phase() == Phase::Fired).then_some(position)
    }

    fn index(&self, position: u64) -> Option<usize> {
        let index = usize::try_from(position.checked_sub(self.first)?).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    /// The oldest command, if the one at `position` has not left.
    pub(crate) fn oldest_up_to(&self, position: u64) -> Option<NodeId> {
        self.entries.front().filter(|_| self.first <= position).map(|entry| entry.id)
    }

    /// Marks the command at `position` as one that the driver will call back for, and gives what to
    /// ask for that. `None` if that was done already or the command has left.
    pub(crate) fn arm(&mut self, position: u64) -> Option<(Arc<Record>, Arc<dyn NativeEvent>)> {
        let index = self.index(position)?;
        let entry = &mut self.entries[index];
        if entry.armed {
            return None;
        }
        let armed = (entry.record.clone(), entry.event.clone()?);
        entry.armed = true;
        let at = self.armed.partition_point(|before| *before < position);
        self.armed.insert(at, position);
        self.flush();
        Some(armed)
    }

    /// The position of the last command.
    pub(crate) fn last(&self) -> Option<u64> {
        (self.first + self.entries.len() as u64).checked_sub(1).filter(|_| !self.entries.is_empty())
    }

    /// Takes out the oldest command, which is known to have ended.
    pub(crate) fn leave(&mut self) -> Option<Left> {
        let result = self.oldest_result();
        let entry = self.entries.pop_front()?;
        if entry.armed {
            self.armed.pop_front();
        }
        self.first += 1;
        let armed = entry.armed;
        Some(Left { id: entry.id, ended: entry.event.map(|event| Ended { event, armed }), result })
    }

    /// How the oldest command went. Where its event is gone, the next one that is there on this
    /// in-order lane tells.
    fn oldest_result(&mut self) -> Result<()> {
        if let Some((position, result)) = &self.known
            && self.first <= *position
        {
            return result.clone();
        }
        let telling = self.entries.iter().position(|entry| entry.event.is_some());
        let event = telling.and_then(|index| self.entries[index].event.as_ref());
        let result = match event.map(|event| event.progress()) {
            None | Some(Progress::Pending | Progress::Complete) => Ok(()),
            Some(Progress::Failed(error)) => Err(self.root_of(error)),
        };
        self.known = telling.map(|index| (self.first + index as u64, result.clone()));
        result
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

    /// The oldest armed command, if in two calls in a row it had ended and its callback had not
    /// come.
    pub(crate) fn overdue(&mut self) -> Option<u64> {
        let position = *self.armed.front()?;
        let entry = &self.entries[self.index(position)?];
        let ended = entry.record.signal.phase() == Phase::Pending
            && !matches!(entry.event.as_ref()?.progress(), Progress::Pending);
        let before = std::mem::replace(&mut self.suspect, ended.then_some(position));
        (ended && before == Some(position)).then_some(position)
    }
}

/// The events to wait for before a command runs on `lane`, behind the commands at `places`.
pub(crate) fn wait_list(
    lanes: &mut [Lane],
    lane: usize,
    places: impl Iterator<Item = Place>,
) -> SmallVec<[Arc<dyn NativeEvent>; 4]> {
    let mut latest: SmallVec<[Option<u64>; 8]> = SmallVec::from_elem(None, lanes.len());
    for place in places.filter(|place| place.lane != lane) {
        latest[place.lane] = latest[place.lane].max(Some(place.position));
    }
    latest
        .iter()
        .zip(lanes)
        .filter_map(|(position, lane)| {
            let event = lane.event_behind((*position)?)?.clone();
            // A wait list does not start what it waits for.
            lane.flush();
            Some(event)
        })
        .collect()
}
