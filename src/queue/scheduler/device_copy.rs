//! Copies between devices, staged through memory of the host.
//!
//! A thread reads the source piece by piece, and writes each piece to the target while it reads the next one.
//! [Memory](super::staging) for a few pieces suffices for that, whatever the size of the copy.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use super::deferred::PendingCommand;
use super::pieces::{Piece, pieces_of};
use super::staging::{PIECE, PIECES, Participant, Staging};
use super::transaction::Transaction;
use super::transfer::{flush, total_profile, wait};
use super::{Ending, Scheduler, State};
use crate::args::region::Region;
use crate::backend::{NativeEvent, NativeQueue, Profile};
use crate::error::{Error, Result, catch_panic};
use crate::process::threads::no_thread_error;
use crate::queue::device_copy::{
    DeviceCopy, DeviceCopyFailure, DeviceCopyStart, DeviceCopyWork, Side,
};
use crate::queue::event::Event;
use crate::queue::node::{NodeId, SkipReason};
use crate::queue::operations::{read, write};
use crate::queue::work::Work;

/// Name of both commands of a copy in messages.
const SUBJECT: &str = "a copy between devices";

/// Message for a command whose counterpart on the other device failed.
const OTHER_SIDE_FAILED: &str = "the copy failed on the other device";

/// Times of both commands of a copy: source, target.
type Profiles = [Option<Profile>; 2];

/// Memory of a copy between devices, and the queue whose command stands for it on each device.
pub(crate) struct DeviceCopyEnd<'a> {
    pub(crate) scheduler: &'a Arc<Scheduler>,
    pub(crate) region: &'a Arc<Region>,
    /// Number of the queue; zero for the device that the copy was not submitted to.
    pub(crate) queue: u64,
}

/// Copy that is ready to run. Both commands end when this is dropped.
pub(super) struct DeviceCopyTransfer {
    sides: [(Arc<Scheduler>, NodeId); 2],
    /// Regions of the source and of the target, unless they are leaked because a device may still use them.
    regions: Option<[Arc<Region>; 2]>,
    outcome: Result<Profiles>,
}

impl Scheduler {
    /// Adds the commands of a copy between two devices. Returns the events of both: source, target.
    pub(crate) fn submit_device_copy(
        source: &DeviceCopyEnd<'_>,
        target: &DeviceCopyEnd<'_>,
    ) -> [Event; 2] {
        let mut commands = [source, target].map(|end| end.scheduler.command(Work::Host, end.queue));
        let copy = DeviceCopy::new(&commands[0].record, &commands[1].record);
        let works = [(Side::Source, source, target), (Side::Target, target, source)]
            .map(|(side, own, other)| DeviceCopyWork::new(side, own.region, other.region, &copy));
        for (command, work) in commands.iter_mut().zip(works) {
            command.work = Work::DeviceCopy(Box::new(work));
        }
        let events = commands.each_ref().map(|command| Event::new(command.record.clone()));
        for (end, command) in [source, target].into_iter().zip(&commands) {
            command.work.for_each_fresh(|region| end.scheduler.zero(region));
        }
        let [read, write] = commands;
        let [mut locked_source, mut locked_target] = lock_both(source.scheduler, target.scheduler);
        let ends = [
            (source.scheduler, &mut locked_source, read, &events[0]),
            (target.scheduler, &mut locked_target, write, &events[1]),
        ];
        // Both are added while both DAGs are locked, so that all commands see the copies between devices in one
        // order. Otherwise, copies in opposite directions could wait for each other.
        let were_idle = ends.map(|(scheduler, state, command, event)| {
            let was_idle = state.count_submission(scheduler);
            scheduler.shared.counters.commands.submitted.add_one();
            scheduler.settle_some(state);
            let pending = PendingCommand { command: &command, after: &[] };
            state.move_predecessors_to_dag(&pending);
            state.add_node(command, super::Edges::new(), None, event.record());
            scheduler.drive(state);
            was_idle
        });
        let actions = [locked_source.unlock(), locked_target.unlock()];
        let schedulers = [source.scheduler, target.scheduler];
        for ((scheduler, was_idle), actions) in schedulers.into_iter().zip(were_idle).zip(actions) {
            if was_idle {
                scheduler.shared.reactor.wake();
            }
            scheduler.apply(actions);
        }
        events
    }

    /// Notes that a command of a copy between devices can run, if its dependencies have ended. Otherwise, this
    /// function has to be called again when they have ended.
    pub(super) fn arrive(&self, state: &mut State, id: NodeId) {
        if !state.have_dependencies_ended(id) {
            return;
        }
        let Some(command) = state.dag.command_mut(id) else { return };
        if let Some(span) = command.pending_span_mut() {
            span.set_enqueued();
        }
        if let Work::DeviceCopy(work) = &command.work
            && let Some(regions) = work.arrive()
        {
            let copy = work.copy().clone();
            state.actions.device_copies.push(DeviceCopyStart { copy, regions });
        }
    }

    /// Handles the end of a copy for the command on this device.
    fn device_copy_ended(self: &Arc<Self>, id: NodeId, outcome: Result<Option<Profile>>) {
        self.change(|state| {
            let profile = outcome.as_ref().ok().copied().flatten();
            self.finish(state, id, outcome.map(drop), Ending { native: None, profile });
        });
    }
}

impl State {
    /// Notes that a command failed, if it is one of a copy between devices whose other command does not know.
    pub(super) fn note_failure_of_device_copy(&mut self, work: &Work, error: &Error) {
        if let Work::DeviceCopy(work) = work
            && let Some(failure) = work.fail(error)
        {
            self.actions.device_copy_failures.push(failure);
        }
    }
}

impl DeviceCopyStart {
    /// Starts the copy on a thread of the source's device.
    pub(super) fn start(self) {
        let Self { copy, regions } = self;
        let side = |side| {
            let record = copy.record(side)?;
            record.set_on_no_queue();
            Some((Scheduler::of_command(&record)?, record.node()?))
        };
        // Neither command ends before the copy does.
        let (Some(source), Some(target)) = (side(Side::Source), side(Side::Target)) else { return };
        let scheduler = source.0.clone();
        let sides = [source, target];
        let transfer =
            DeviceCopyTransfer { sides, regions: Some(regions), outcome: Err(no_thread_error()) };
        scheduler.workers.run(move || transfer.run());
    }
}

impl DeviceCopyFailure {
    /// Makes the other command fail, too.
    pub(super) fn pass_on(self) {
        let Self { copy, side, error } = self;
        let Some(record) = copy.record(side) else { return };
        let (Some(scheduler), Some(id)) = (Scheduler::of_command(&record), record.node()) else {
            return;
        };
        let root = error.spread_to(SUBJECT, OTHER_SIDE_FAILED);
        scheduler.change(|state| {
            state.dag.poison(id, root, SkipReason::NotRun, &mut state.next);
        });
    }
}

impl DeviceCopyTransfer {
    fn run(mut self) {
        let outcome = catch_panic(|| {
            let Some(regions) = self.regions.take() else { return Ok([None; 2]) };
            // Leaked if the code below panics, or if a device may still use it.
            let regions = ManuallyDrop::new(regions);
            let mut may_run = false;
            let outcome = self.copy(&regions, &mut may_run);
            if !may_run {
                self.regions = Some(ManuallyDrop::into_inner(regions));
            }
            outcome
        });
        self.outcome = outcome.map_err(|error| error.within(SUBJECT));
    }

    fn copy(&self, regions: &[Arc<Region>; 2], may_run: &mut bool) -> Result<Profiles> {
        let [source, target] =
            self.sides.each_ref().map(|(scheduler, _)| Participant::new(scheduler));
        let mut participants = [source?, target?];
        let regions = regions.each_ref().map(|region| &**region);
        let bytes = regions[0].transfer_size();
        let staging = Staging::new(bytes, &mut participants, SUBJECT)?;
        let (start, queues) = (staging.start(), participants.each_mut().map(Participant::queue));
        let mut pipeline = Pipeline { regions, queues, start, may_run, profiles: [None; 2] };
        let outcome = pipeline.run();
        if !*may_run {
            staging.end(&mut participants);
        }
        if outcome.is_ok() {
            participants.into_iter().for_each(Participant::end);
        }
        outcome
    }
}

impl Drop for DeviceCopyTransfer {
    fn drop(&mut self) {
        for region in self.regions.take().into_iter().flatten() {
            region.release();
        }
        let outcome = std::mem::replace(&mut self.outcome, Ok([None; 2]));
        for (side, (scheduler, id)) in self.sides.iter().enumerate() {
            let outcome = outcome.clone().map(|profiles| profiles[side]);
            scheduler.device_copy_ended(*id, outcome);
        }
    }
}

/// Copy that runs: reads of pieces, and writes of those that were read.
struct Pipeline<'a> {
    regions: [&'a Region; 2],
    queues: [&'a mut dyn NativeQueue; 2],
    /// Start of the memory for [`PIECES`] pieces, which they use in turn.
    start: *mut u8,
    /// Whether a device may still use the regions and the memory.
    may_run: &'a mut bool,
    profiles: Profiles,
}

impl Pipeline<'_> {
    /// Blocks until all pieces are copied, or one has failed and none is used any more.
    fn run(&mut self) -> Result<Profiles> {
        let mut pieces = pieces_of(self.regions, PIECE).enumerate();
        let (mut reading, mut writing) = (VecDeque::new(), VecDeque::new());
        let mut outcome = Ok(());
        loop {
            let has_room = reading.len() + writing.len() < PIECES && outcome.is_ok();
            // The next write is enqueued before the one before it has ended, so that the device always has one.
            let is_read_next = reading.len() >= writing.len();
            if let Some(piece) = has_room.then(|| pieces.next()).flatten() {
                let read = self.enqueue(Side::Source, &piece);
                outcome = read.map(|event| reading.push_back((piece, event)));
            } else if let Some((piece, event)) = is_read_next.then(|| reading.pop_front()).flatten()
            {
                outcome = outcome.and(self.wait(Side::Source, &*event));
                let written = outcome.and_then(|()| self.enqueue(Side::Target, &piece));
                outcome = written.map(|event| writing.push_back(event));
            } else if let Some(event) = writing.pop_front() {
                outcome = outcome.and(self.wait(Side::Target, &*event));
            } else {
                return outcome.map(|()| self.profiles);
            }
        }
    }

    /// Enqueues the read or the write of a piece with its number.
    fn enqueue(
        &mut self,
        side: Side,
        (number, piece): &(usize, Piece),
    ) -> Result<Arc<dyn NativeEvent>> {
        let region = piece.of(self.regions[side as usize]);
        let host = self.start.wrapping_add(number % PIECES * PIECE);
        let operation = match side {
            Side::Source => read(&region, host),
            Side::Target => write(&region, (host, piece.bytes())),
        };
        let queue = &mut *self.queues[side as usize];
        // SAFETY: the piece lies inside the region, and fewer pieces are in flight than have memory, which they use
        // in turn: a piece is read after the write of the one that had its memory has ended, and written after
        // its own read has. The regions and the memory are kept until all ends are known.
        let event = unsafe { queue.enqueue(&operation, &[]) }?;
        flush(queue);
        Ok(event)
    }

    /// Blocks until an operation has ended.
    fn wait(&mut self, side: Side, event: &dyn NativeEvent) -> Result<()> {
        wait(&mut *self.queues[side as usize], event, self.may_run)?;
        let profile = &mut self.profiles[side as usize];
        *profile = total_profile(*profile, event.profile());
        Ok(())
    }
}

/// Locks two schedulers, in the order of their addresses.
fn lock_both<'s>(one: &'s Scheduler, two: &'s Scheduler) -> [Transaction<'s>; 2] {
    if ptr::from_ref(one) < ptr::from_ref(two) {
        let one = one.lock();
        [one, two.lock()]
    } else {
        let two = two.lock();
        [one.lock(), two]
    }
}
