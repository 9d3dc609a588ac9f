//! Native queues of a device: a few in-order queues, and the commands in flight on each.
//!
//! A chain of commands stays on one native queue, where the driver keeps the order and no events are
//! needed. Only an edge between native queues waits for an event.
//!
//! An event costs time in the driver, so most commands of a long sequence have none. A command without an event
//! has ended once the next command with one has. That event *reports* the end of both, and both have failed if it
//! reports a failure. Commands that wait for events of other native queues have an event, and so has the command
//! before each of them: some drivers fail a command as soon as one that it waits for has failed, before its turn.

pub(crate) mod sequence;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::node::{EdgeKind, NodeId};
use crate::backend::{self, NativeEvent, Notify, Operation, Profile, Progress, is_consequence};
use crate::error::{Error, ErrorKind, Result};

/// Position of a command: index of the native queue, and number of commands enqueued there before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) native_queue: usize,
    pub(crate) position: u64,
}

/// Native event of a command.
pub(crate) struct CommandEvent {
    pub(crate) event: Arc<dyn NativeEvent>,
    /// Whether the driver was asked to call back.
    pub(crate) armed: bool,
}

/// Native event, with the position of the last command whose end it reports.
struct Report {
    position: u64,
    native: CommandEvent,
}

/// Event of commands whose ends the driver does not report.
struct NeverReported(Error);

impl NativeEvent for NeverReported {
    fn progress(&self) -> Progress {
        Progress::Unknown(self.0.clone())
    }

    fn profile(&self) -> Option<Profile> {
        None
    }

    fn notify(&self, notify: Notify) -> Result<()> {
        notify();
        Ok(())
    }
}

/// Command that has ended and left its native queue.
pub(crate) struct Departed {
    pub(crate) id: NodeId,
    /// Native event of the command, if it has one.
    pub(crate) native: Option<CommandEvent>,
    pub(crate) result: Result<()>,
    /// Whether the device may still use the memory of the command.
    pub(crate) may_run: bool,
}

/// In-order native queue and its commands in flight.
pub(crate) struct TrackedQueue {
    native: Box<dyn backend::NativeQueue>,
    /// Commands in flight, oldest first.
    commands: VecDeque<NodeId>,
    /// Events that report the ends of these commands, oldest first.
    reports: VecDeque<Report>,
    /// Result that the oldest of these events has reported, if it reports the ends of further commands in flight, and
    /// whether the device may still use their memory.
    reported: Option<(Result<()>, bool)>,
    /// Position of the oldest command.
    first: u64,
    unflushed: usize,
    /// Position after the last command for which the driver was asked to call back.
    watched: u64,
    /// Last failure, for commands that the driver fails because another one failed.
    last_failure: Option<Error>,
    /// Number of successive markers that the driver rejected.
    rejected_markers: u32,
}

/// Number of successive markers that the driver rejects before the commands behind which they should come count as
/// failed.
const MAX_REJECTED_MARKERS: u32 = 100;

/// Number of commands after which the queue is flushed even if nothing requests it.
const FLUSH_EVERY: usize = 64;

/// Maximum number of successive commands whose ends one event reports.
const REPORTED_AT_ONCE: u64 = 64;

impl TrackedQueue {
    pub(crate) fn new(native: Box<dyn backend::NativeQueue>) -> Self {
        Self {
            native,
            commands: VecDeque::new(),
            reports: VecDeque::new(),
            reported: None,
            first: 0,
            unflushed: 0,
            watched: 0,
            last_failure: None,
            rejected_markers: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Enqueues an operation that stands for `commands` commands. Returns its position. The operation gets an event
    /// if `needs_event` is set, if it waits for other events, or if enough commands have none.
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
        needs_event: bool,
    ) -> Result<u64> {
        if !wait.is_empty() {
            self.report_all()?;
        }
        // The first command of a queue that was idle is often the only one, and awaited.
        let needs_event = needs_event
            || !wait.is_empty()
            || self.commands.is_empty()
            || self.unreported() + 1 >= REPORTED_AT_ONCE;
        let event = if needs_event {
            // SAFETY: the caller upholds the contract of the callee.
            Some(unsafe { self.native.enqueue(operation, wait)? })
        } else {
            // SAFETY: the caller upholds the contract of the callee.
            unsafe { self.native.enqueue_without_event(operation)? }
        };
        self.push(id, event, commands);
        Ok(self.end() - 1)
    }

    /// Adds a command that was enqueued as `operations` operations, and has an event if any reports its own end.
    fn push(&mut self, id: NodeId, event: Option<Arc<dyn NativeEvent>>, operations: usize) {
        self.commands.push_back(id);
        if let Some(event) = event {
            self.add_report(event);
        }
        self.unflushed += operations;
        if self.unflushed >= FLUSH_EVERY {
            self.flush();
        }
    }

    /// Adds an event that reports the ends of all commands enqueued so far.
    fn add_report(&mut self, event: Arc<dyn NativeEvent>) {
        let native = CommandEvent { event, armed: false };
        self.reports.push_back(Report { position: self.end() - 1, native });
    }

    /// Returns the position after the latest command.
    fn end(&self) -> u64 {
        self.first + self.commands.len() as u64
    }

    /// Returns the number of commands whose ends no event reports.
    fn unreported(&self) -> u64 {
        let reported = self.reports.back().map_or(self.first, |report| report.position + 1);
        self.end() - reported
    }

    /// Ensures that an event reports the ends of all commands enqueued so far: enqueues a marker if the latest
    /// command has none. A driver that has lost the device, or rejects one marker after the other, will not report
    /// these ends: the commands then count as failed, and as ones that may still run.
    pub(crate) fn report_all(&mut self) -> Result<()> {
        if self.unreported() == 0 {
            return Ok(());
        }
        // SAFETY: a marker accesses no memory.
        match unsafe { self.native.enqueue(&Operation::Marker, &[]) } {
            Ok(event) => {
                self.unflushed += 1;
                self.rejected_markers = 0;
                self.add_report(event);
                Ok(())
            }
            Err(error) => {
                self.rejected_markers += 1;
                let is_hopeless = error.kind() == ErrorKind::DeviceLost
                    || self.rejected_markers >= MAX_REJECTED_MARKERS;
                if is_hopeless {
                    self.add_report(Arc::new(NeverReported(error.clone())));
                }
                Err(error)
            }
        }
    }

    /// Returns the position of the latest command, if any is in flight.
    pub(crate) fn latest(&self) -> Option<u64> {
        (!self.commands.is_empty()).then(|| self.end() - 1)
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

    /// Returns the index of the command at `position`, unless it has left.
    fn index(&self, position: u64) -> Option<usize> {
        let index = usize::try_from(position.checked_sub(self.first)?).ok()?;
        (index < self.commands.len()).then_some(index)
    }

    /// Returns the oldest command, if the one at `position` has not left.
    pub(crate) fn oldest_up_to(&self, position: u64) -> Option<NodeId> {
        self.commands.front().filter(|_| self.first <= position).copied()
    }

    /// Returns the command at `position`, unless it has left.
    fn command_at(&self, position: u64) -> Option<NodeId> {
        self.index(position).map(|index| self.commands[index])
    }

    /// Returns the event that reports the end of the command at `position`, if there is one.
    fn report_of(&mut self, position: u64) -> Option<&mut Report> {
        self.index(position)?;
        let index = self.reports.partition_point(|report| report.position < position);
        self.reports.get_mut(index)
    }

    /// Makes the driver call back at the end of the command at `position`: marks the event that reports its end,
    /// for which a marker is enqueued if there is none. Returns the command that has the event, and the event on
    /// which to request the callback, unless that is marked already. Returns `None` if the command has left, or if
    /// the driver rejected the marker.
    pub(crate) fn arm(&mut self, position: u64) -> Option<(NodeId, Option<Arc<dyn NativeEvent>>)> {
        self.index(position)?;
        if self.report_of(position).is_none()
            && let Err(error) = self.report_all()
        {
            tracing::warn!(
                %error,
                "the driver rejected a marker behind an awaited command; the reactor tries again"
            );
        }
        let report = self.report_of(position)?;
        let position = report.position;
        let is_new = !std::mem::replace(&mut report.native.armed, true);
        let event = is_new.then(|| report.native.event.clone());
        if is_new {
            self.watched = self.watched.max(position + 1);
            self.flush();
        }
        Some((self.command_at(position)?, event))
    }

    /// If commands are in flight and the driver will call back for none of them, marks the one in the middle
    /// like [`arm`](Self::arm). Returns the command that has the event, and the event on which to request the
    /// callback.
    pub(crate) fn watch_middle(&mut self) -> Option<(NodeId, Arc<dyn NativeEvent>)> {
        if !self.is_unwatched_for(self.commands.len()) {
            return None;
        }
        let (id, event) = self.arm(self.first + self.commands.len() as u64 / 2)?;
        Some((id, event?))
    }

    /// Returns the native event that reports the end of the command at `position`, unless the command has left or
    /// there is none.
    pub(crate) fn event_at(&mut self, position: u64) -> Option<Arc<dyn NativeEvent>> {
        self.report_of(position).map(|report| report.native.event.clone())
    }

    /// Removes the oldest command, if it has ended. If the driver has called back but the event does
    /// not report the end yet, the callback counts. The end of a later command with an event proves nothing: some
    /// drivers fail a command as soon as one that it waits for has failed, before its turn.
    pub(crate) fn pop_ended(
        &mut self,
        has_called_back: impl FnOnce(NodeId) -> bool,
    ) -> Option<Departed> {
        let (result, may_run) = self.outcome_of_oldest(has_called_back)?;
        let id = self.commands.pop_front()?;
        let is_last_of_report =
            self.reports.front().is_some_and(|report| report.position == self.first);
        let report = if is_last_of_report { self.reports.pop_front() } else { None };
        self.reported = (!is_last_of_report).then(|| (result.clone(), may_run));
        self.first += 1;
        Some(Departed { id, native: report.map(|report| report.native), result, may_run })
    }

    /// Returns the result of the oldest command, and whether the device may still use its memory, if it has ended.
    fn outcome_of_oldest(
        &mut self,
        has_called_back: impl FnOnce(NodeId) -> bool,
    ) -> Option<(Result<()>, bool)> {
        if let Some(reported) = self.reported.take() {
            return Some(reported);
        }
        let report = self.reports.front()?;
        let covered = self.count_up_to(report.position);
        // The callback is checked first: if it comes during the query, the command may have failed.
        let has_called_back =
            report.native.armed && self.command_at(report.position).is_some_and(has_called_back);
        let (result, may_run) = match report.native.event.progress() {
            Progress::Pending if !has_called_back => return None,
            Progress::Pending | Progress::Complete => (Ok(()), false),
            Progress::Failed(error) => (Err(self.root_of(error)), false),
            Progress::Unknown(error) => (Err(error), true),
        };
        let result = result.map_err(|error| match covered {
            0 | 1 => error,
            _ => error.within(format_args!("one of {covered} successive commands on the device")),
        });
        Some((result, may_run))
    }

    /// Replaces the error of a command that failed because of another one. Drivers fail the commands
    /// after a failed one with a code that says only that; the failure before it says more.
    fn root_of(&mut self, error: Error) -> Error {
        match &self.last_failure {
            Some(root) if is_consequence(&error) => root.clone(),
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
                if native_queue.event_at(position).is_none() {
                    native_queue.report_all()?;
                }
                let Some(event) = native_queue.event_at(position) else { continue };
                if let Some(NeverReported(error)) = (&*event as &dyn Any).downcast_ref() {
                    return Err(error.clone());
                }
                sequence::last_of(event)
            }
            EdgeKind::Order => {
                // The marker must not be the event that reports a failure of the commands before it.
                native_queue.report_all()?;
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
    use crate::args::region::NoMemory;
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

    /// Driver that makes events only where it has to, and counts its operations.
    #[derive(Default)]
    struct Sparing {
        /// Number of operations with an event, and without.
        operations: Arc<[AtomicUsize; 2]>,
        rejects_markers: Arc<AtomicBool>,
    }

    impl backend::NativeQueue for Sparing {
        unsafe fn enqueue(
            &mut self,
            operation: &Operation<'_>,
            _: &[Arc<dyn NativeEvent>],
        ) -> Result<Arc<dyn NativeEvent>> {
            if matches!(operation, Operation::Marker) && self.rejects_markers.load(SeqCst) {
                return Err(Error::new(ErrorKind::OutOfResources, "not now"));
            }
            self.operations[0].fetch_add(1, SeqCst);
            Ok(Arc::<Failing>::default())
        }

        unsafe fn enqueue_without_event(
            &mut self,
            _: &Operation<'_>,
        ) -> Result<Option<Arc<dyn NativeEvent>>> {
            self.operations[1].fetch_add(1, SeqCst);
            Ok(None)
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    /// Enqueues an operation that needs no event. `waits` says whether it waits for an event.
    fn enqueue(native_queue: &mut TrackedQueue, waits: bool) -> u64 {
        let mut dag = Dag::new(|(): &()| Uses::new());
        let id = dag.add((), &[] as &[Uses], [], 0, None, &mut NextList::new());
        let wait: &[Arc<dyn NativeEvent>] =
            if waits { &[Arc::new(Failing::default()) as _] } else { &[] };
        // SAFETY: a marker accesses no memory.
        unsafe { native_queue.enqueue(id, 1, &Operation::Marker, wait, false) }
            .expect("the operation is accepted")
    }

    fn loads(counts: &[AtomicUsize; 2]) -> [usize; 2] {
        counts.each_ref().map(|count| count.load(SeqCst))
    }

    #[test]
    fn one_event_reports_the_ends_of_many_commands() {
        let driver = Sparing::default();
        let operations = driver.operations.clone();
        let mut native_queue = TrackedQueue::new(Box::new(driver));
        for _ in 0..2 * REPORTED_AT_ONCE {
            enqueue(&mut native_queue, false);
        }
        // The first command, one of each 64 after it, and no marker.
        assert_eq!(loads(&operations), [2, 2 * REPORTED_AT_ONCE as usize - 2]);
        assert!(native_queue.event_at(REPORTED_AT_ONCE).is_some());
        assert!(native_queue.event_at(2 * REPORTED_AT_ONCE - 1).is_none());
        native_queue.report_all().expect("the marker is accepted");
        native_queue.report_all().expect("nothing is left to report");
        assert_eq!(loads(&operations)[0], 3);
        assert!(native_queue.event_at(2 * REPORTED_AT_ONCE - 1).is_some());
    }

    #[test]
    fn the_command_before_one_that_waits_for_an_event_has_an_event() {
        let driver = Sparing::default();
        let operations = driver.operations.clone();
        let mut native_queue = TrackedQueue::new(Box::new(driver));
        for _ in 0..3 {
            enqueue(&mut native_queue, false);
        }
        let waiting = enqueue(&mut native_queue, true);
        // The first, a marker behind the third, and the one that waits.
        assert_eq!(loads(&operations), [3, 2]);
        let [before, own] = [waiting - 1, waiting].map(|at| native_queue.event_at(at));
        let (before, own) = (before.expect("it has one"), own.expect("it has one"));
        assert!(!Arc::ptr_eq(&before, &own));
    }

    #[test]
    fn commands_end_if_the_driver_rejects_all_markers_behind_them() {
        let driver = Sparing::default();
        driver.rejects_markers.store(true, SeqCst);
        let mut native_queue = TrackedQueue::new(Box::new(driver));
        let mut dag = Dag::new(|(): &()| Uses::new());
        for needs_event in [true, false, false] {
            let id = dag.add((), &[] as &[Uses], [], 0, None, &mut NextList::new());
            let operation =
                Operation::Fill { memory: &NoMemory, offset: 0, bytes: 0, pattern: &[0] };
            // SAFETY: the operation accesses no memory.
            unsafe { native_queue.enqueue(id, 1, &operation, &[], needs_event) }
                .expect("the operation is accepted");
        }
        for _ in 0..MAX_REJECTED_MARKERS {
            native_queue.report_all().expect_err("the driver rejects the marker");
        }
        let first = native_queue.pop_ended(|_| true);
        assert!(first.is_none(), "the first command has an event, and still runs");
        assert!(native_queue.event_at(2).is_some(), "the others end without the driver");
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
        unsafe { native_queue.enqueue(id, 1, &Operation::Marker, &[], false) }
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
        unsafe { native_queue.enqueue(id, 1, &Operation::Marker, &[], false) }
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
        unsafe { native_queue.enqueue(id, 1, &Operation::Marker, &[], false) }
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
