//! Dispatch of commands to the device: the choice of the native queue, the events to wait for, and the
//! decision whether the driver is asked for a callback at their end.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use smallvec::SmallVec;

use super::{CallbackRequest, Ending, Scheduler, State};
use crate::device::DeviceKind;
use crate::error::Result;
use crate::queue::native_queue::{Place, TrackedQueue, wait_list};
use crate::queue::node::{EdgeKind, NodeId, SkipReason};
use crate::queue::work::Work;

/// Number of commands after which the next callback is requested on a native queue, even if nothing waits.
const WATCH_EVERY: usize = 256;

/// Command in flight that another one comes after.
struct Predecessor {
    serial: u64,
    kind: EdgeKind,
    place: Place,
}

/// Requirements of commands that run as one, for the native queue.
struct Requirements {
    /// Number of submitted commands that they stand for.
    count: usize,
    /// Whether the end of one of the commands has to be known when it comes: a task awaits it, a stopwatch times
    /// it, or a trace records it.
    needs_event: bool,
    /// Whether a stopwatch times one of the commands.
    is_timed: bool,
    before: SmallVec<[Predecessor; 4]>,
}

impl Scheduler {
    /// Hands a command to the device.
    pub(super) fn dispatch(self: &Arc<Self>, state: &mut State, id: NodeId) {
        if !state.dag.can_dispatch(id) || state.awaits_its_group(id) {
            return;
        }
        match state.dag.command(id).map(|command| &command.work) {
            Some(Work::Launch(_)) => {}
            Some(Work::Host) => return self.finish(state, id, Ok(()), Ending::default()),
            Some(Work::DeviceCopy(_)) => return self.arrive(state, id),
            Some(Work::Native(_)) => return self.offload(state, id),
            _ => {
                let is_cpu = self.slot.handle().kind == DeviceKind::Cpu;
                if !is_cpu && state.is_for_worker(id) {
                    return self.offload(state, id);
                }
            }
        }
        let members = state.members(id);
        if !state.can_start_as_one(&members) {
            return;
        }
        match self.enqueue(state, &members) {
            Ok(()) => {
                let State { dag, next, .. } = &mut *state;
                members.iter().for_each(|&id| dag.set_dispatched(id, next));
                state.dispatched(id);
            }
            Err(error) if state.is_in_ready_group(id) || state.stands_for_several(id) => {
                tracing::warn!(
                    %error,
                    "a fused kernel could not be launched; its launches run one by one"
                );
                if state.stands_for_several(id) {
                    self.split(state, id);
                } else {
                    state.run_one_by_one(id);
                }
            }
            // The command ends once all before it have ended, so that nothing behind it starts too early.
            Err(error) => {
                let error = state.add_names(id, error);
                state.dag.poison(id, error, SkipReason::NotRun, &mut state.next);
            }
        }
    }

    /// Hands over a command, or several that run as one. The last one stands for all.
    fn enqueue(&self, state: &mut State, members: &[NodeId]) -> Result<()> {
        let Some(&id) = members.last() else { return Ok(()) };
        let Requirements { count, needs_event, is_timed, before } = state.requirements(members);
        let native_queue = self.choose_queue(state, is_timed, &before)?;
        let places = before.iter().map(|before| (before.kind, before.place));
        let wait = wait_list(&mut state.native_queues, native_queue, places)?;
        let watch_every = WATCH_EVERY.min(self.options.max_in_flight.div_ceil(4));
        let needs_event = self.options.profiling
            || needs_event
            || state.native_queues[native_queue].is_unwatched_for(watch_every - 1);
        let State { dag, native_queues, in_flight, transferring, actions, .. } = state;
        let command = dag.command_mut(id).expect("it can be dispatched");
        let tracked = &mut native_queues[native_queue];
        // The command owns everything that its operations name, and it stays in the DAG until their end is known.
        // Nothing else accesses the host memory of a read until then. The caller of `Program::kernel` promised that
        // the kernel stays inside its buffers. A fused kernel does what its member kernels do.
        let position = match &command.work {
            // SAFETY: as stated above.
            Work::Replay(replay) => unsafe { replay.enqueue(id, tracked, &wait) },
            _ => command.with_operation(|operation| {
                // SAFETY: as stated above.
                unsafe { tracked.enqueue(id, count, operation, &wait, needs_event) }
            }),
        }?;
        *in_flight += count;
        *transferring += command.work.transfer_size();
        let (mut is_awaited, mut is_awaited_by_others) = (false, false);
        for &member in members {
            let Some(command) = dag.command_mut(member) else { continue };
            let others = command.other_records().iter().map(|record| (record, true));
            for (record, is_other) in others.chain([(&command.record, member != id)]) {
                record.set_place(Place { native_queue, position });
                if record.awaited.load(SeqCst) {
                    is_awaited = true;
                    is_awaited_by_others |= is_other;
                }
            }
            if let Some(span) = command.pending_span_mut() {
                span.set_enqueued();
            }
        }
        if is_awaited_by_others && let Some(last) = dag.command(id) {
            last.record.awaited_by_others.store(true, SeqCst);
        }
        let native_queue = &mut native_queues[native_queue];
        if (is_awaited || native_queue.is_unwatched_for(watch_every))
            && let Some((id, event)) = native_queue.arm(position)
            && let (Some(event), Some(command)) = (event, dag.command(id))
        {
            let record = command.record.clone();
            actions.callback_requests.push(CallbackRequest { record, event });
        }
        Ok(())
    }

    /// Chooses the native queue of the latest dependency, where the order costs nothing. Without
    /// dependencies in flight, chooses the native queue with the least in flight. Creates a native queue
    /// if none is idle and there are fewer than 2 on a CPU, or fewer than 4 on other devices.
    fn choose_queue(
        &self,
        state: &mut State,
        is_timed: bool,
        before: &[Predecessor],
    ) -> Result<usize> {
        if !self.options.profiling
            && is_timed
            && let Some(native_queue) = self.timing_queue(state)
        {
            return Ok(native_queue);
        }
        if let Some(latest) = before.iter().max_by_key(|before| before.serial) {
            return Ok(latest.place.native_queue);
        }
        let max_queues = match self.slot.handle().kind {
            DeviceKind::Cpu => 2,
            _ => 4,
        };
        let (mut count, mut idlest, mut least) = (0, None, usize::MAX);
        for (native_queue, tracked) in state.native_queues.iter().enumerate() {
            if state.timing_queue == Some(native_queue) {
                continue;
            }
            count += 1;
            if tracked.len() < least {
                (idlest, least) = (Some(native_queue), tracked.len());
            }
        }
        match idlest {
            Some(native_queue) if least == 0 || count >= max_queues => Ok(native_queue),
            _ => {
                let native = self.slot.open()?.create_native_queue(self.options.profiling);
                match (native, idlest) {
                    (Ok(native), _) => state.native_queues.push(TrackedQueue::new(native)),
                    (Err(_), Some(native_queue)) => return Ok(native_queue),
                    (Err(error), None) => return Err(error),
                }
                Ok(state.native_queues.len() - 1)
            }
        }
    }

    /// Returns a native queue whose events report their times, and creates it at the first call.
    fn timing_queue(&self, state: &mut State) -> Option<usize> {
        if state.timing_queue.is_none() {
            // If it cannot be created, times are not reported.
            let native =
                self.slot.open().and_then(|device| device.create_native_queue(true)).ok()?;
            state.timing_queue = Some(state.native_queues.len());
            state.native_queues.push(TrackedQueue::new(native));
        }
        state.timing_queue
    }
}

impl State {
    /// Returns what these commands, which run as one, require of the native queue.
    fn requirements(&self, members: &[NodeId]) -> Requirements {
        let (mut count, mut needs_event, mut is_timed) = (0, false, false);
        let mut before = SmallVec::new();
        for &id in members {
            let Some(command) = self.dag.command(id) else { continue };
            count += command.count();
            is_timed |= command.is_timed();
            needs_event |= command.is_timed()
                || command.pending_span().is_some()
                || command.records().any(|record| record.awaited.load(SeqCst));
            for (before_id, kind, command) in self.dag.dependencies(id) {
                if let Some(place) = command.record.place() {
                    before.push(Predecessor { serial: before_id.serial(), kind, place });
                }
            }
        }
        Requirements { count, needs_event, is_timed, before }
    }
}
