//! Dispatch of commands to the device: the choice of the native queue, the events to wait for, and the
//! decision whether the driver is asked for a callback at their end.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::{CallbackRequest, Ending, Scheduler, State};
use crate::device::DeviceKind;
use crate::error::Result;
use crate::queue::command::Command;
use crate::queue::native_queue::{Place, TrackedQueue, wait_list};
use crate::queue::node::{NodeId, SkipReason};
use crate::queue::work::Work;

/// Number of commands after which the next callback is requested on a native queue, even if nothing waits.
const WATCH_EVERY: usize = 256;

impl Scheduler {
    /// Hands a command to the device.
    pub(super) fn dispatch(self: &Arc<Self>, state: &mut State, id: NodeId) {
        if !state.dag.can_dispatch(id) || state.awaits_its_group(id) {
            return;
        }
        if state.is_host(id) {
            return self.finish(state, id, Ok(()), Ending::default());
        }
        if state.is_device_copy(id) {
            return self.arrive(state, id);
        }
        let is_cpu = self.slot.handle().kind == DeviceKind::Cpu;
        if state.is_native(id) || (!is_cpu && state.is_for_worker(id)) {
            return self.offload(state, id);
        }
        let members = state.members(id);
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
                let work = state.dag.command(id).map(|command| &command.work);
                let reason = match work {
                    Some(Work::Launch(_) | Work::Replay(_)) => SkipReason::launch_failed(&error),
                    // The command defines the contents of the buffer from here on.
                    _ => SkipReason::Missing,
                };
                state.dag.poison(id, error, reason, &mut state.next);
            }
        }
    }

    /// Hands over a command, or several that run as one. The last one stands for all.
    fn enqueue(&self, state: &mut State, members: &[NodeId]) -> Result<()> {
        let Some(&id) = members.last() else { return Ok(()) };
        let native_queue = self.choose_queue(state, members)?;
        let before = members.iter().flat_map(|&id| state.dag.dependencies(id));
        let places = before.filter_map(|(_, kind, command)| Some((kind, command.record.place()?)));
        let wait = wait_list(&mut state.native_queues, native_queue, places)?;
        let count = state.count(members);
        let watch_every = WATCH_EVERY.min(self.options.max_in_flight.div_ceil(4));
        let needs_event = self.options.profiling
            || state.needs_event(members)
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
        let last = command.record.clone();
        let mut is_awaited = false;
        for &id in members {
            let Some(command) = dag.command_mut(id) else { continue };
            for record in command.records() {
                record.set_place(Place { native_queue, position });
                if record.awaited.load(SeqCst) {
                    is_awaited = true;
                    last.awaited_by_others.fetch_or(!Arc::ptr_eq(record, &last), SeqCst);
                }
            }
            if let Some(span) = &mut command.pending_span {
                span.set_enqueued();
            }
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
    fn choose_queue(&self, state: &mut State, members: &[NodeId]) -> Result<usize> {
        if !self.options.profiling
            && state.is_timed(members)
            && let Some(native_queue) = self.timing_queue(state)
        {
            return Ok(native_queue);
        }
        let latest = (members.iter().flat_map(|&id| state.dag.dependencies(id)))
            .filter_map(|(id, _, command)| {
                Some((id.serial(), command.record.place()?.native_queue))
            })
            .max();
        if let Some((_, native_queue)) = latest {
            return Ok(native_queue);
        }
        let max_queues = match self.slot.handle().kind {
            DeviceKind::Cpu => 2,
            _ => 4,
        };
        let ordinary = (0..state.native_queues.len())
            .filter(|&native_queue| state.timing_queue != Some(native_queue));
        let count = ordinary.clone().count();
        let idlest = ordinary.min_by_key(|&native_queue| state.native_queues[native_queue].len());
        match idlest {
            Some(native_queue)
                if state.native_queues[native_queue].len() == 0 || count >= max_queues =>
            {
                Ok(native_queue)
            }
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
    /// Whether the end of one of the commands has to be known when it comes: a task awaits it, a stopwatch times it,
    /// or a trace records it.
    fn needs_event(&self, members: &[NodeId]) -> bool {
        let commands = || members.iter().filter_map(|&id| self.dag.command(id));
        let is_awaited =
            commands().flat_map(Command::records).any(|record| record.awaited.load(SeqCst));
        is_awaited
            || self.is_timed(members)
            || commands().any(|command| command.pending_span.is_some())
    }

    /// Whether a stopwatch times one of the commands.
    pub(super) fn is_timed(&self, members: &[NodeId]) -> bool {
        members
            .iter()
            .any(|&id| self.dag.command(id).is_some_and(|command| command.stopwatch.is_some()))
    }
}
