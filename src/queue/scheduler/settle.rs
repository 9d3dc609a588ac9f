//! Settling: passes the ends of native commands on to their waiters.

use std::cell::Cell;
use std::hint;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use smallvec::SmallVec;

use super::transaction::{Transaction, this_thread_holds_a_lock};
use super::{
    CallbackRequest, DeferredActions, DeferredDrop, Ending, SETTLE_AT_ONCE, SETTLE_EVERY,
    SETTLE_IN_POLL, Scheduler, State,
};
use crate::error::catch_and_log;
use crate::queue::completion::{Fired, Phase, Urgency};
use crate::queue::native_queue::{Departed, Place};
use crate::queue::node::NodeId;
use crate::queue::reactor::Post;
use crate::queue::record::Record;

thread_local! {
    /// Buffer for deferred drops, which the thread reuses when it settles again.
    static DROPS_BUFFER: Cell<Vec<DeferredDrop>> = const { Cell::new(Vec::new()) };
}

/// Maximum capacity of a buffer that a thread keeps.
const MAX_BUFFERED_DROPS: usize = 64;

impl Scheduler {
    /// Settles the command at `place` and all before it that have ended, on its native queue and on those
    /// that these waited for, but no more than `limit`. Returns whether that was everything that can be
    /// done now.
    fn settle(self: &Arc<Self>, state: &mut State, place: Place, limit: u64) -> bool {
        let mut goals: SmallVec<[Place; 4]> = SmallVec::from_iter([place]);
        let mut settled = 0;
        while let Some(&goal) = goals.last() {
            let Some(oldest) = state.native_queues[goal.native_queue].oldest_up_to(goal.position)
            else {
                goals.pop();
                continue;
            };
            let members = state.members(oldest);
            // The commands that it waited for come first, so that their failure does not come too late.
            if let Some(place) = state.place_before(&members) {
                goals.push(place);
                continue;
            }
            if settled == limit {
                break;
            }
            let State { dag, native_queues, .. } = &mut *state;
            let has_called_back = |id| {
                dag.command(id)
                    .is_some_and(|command| command.record.signal.phase() != Phase::Pending)
            };
            let Some(departed) = native_queues[goal.native_queue].pop_ended(has_called_back) else {
                // The command still runs. The reactor's tick goes on from here.
                goals.clear();
                break;
            };
            settled += 1;
            self.finish_departed(state, departed, &members);
        }
        self.drive(state);
        goals.is_empty()
    }

    /// Finishes a command that has left its native queue, and the others among `members`, which ran as one
    /// with it.
    fn finish_departed(&self, state: &mut State, departed: Departed, members: &[NodeId]) {
        let Departed { id, native, result, may_run } = departed;
        if state.actions.drops.capacity() == 0 {
            // A thread that is exiting has no buffer.
            state.actions.drops = DROPS_BUFFER.try_with(Cell::take).unwrap_or_default();
        }
        let mut is_timed = self.options.profiling;
        for &id in members {
            let Some(command) = state.dag.command(id) else { continue };
            is_timed |= command.is_timed();
            state.in_flight -= command.count();
            state.transferring -= command.work.transfer_size();
        }
        if may_run {
            members.iter().for_each(|&id| state.abandon(id));
        }
        // A marker waits for commands to end, successfully or not.
        let result = if result.is_err() && state.is_marker(id) { Ok(()) } else { result };
        let event = native.as_ref().filter(|_| is_timed).map(|native| &native.event);
        let profile = event.and_then(|event| event.profile());
        state.remove_group_of(id);
        // The last command stands for all.
        for &earlier in &members[..members.len() - 1] {
            let ending = Ending { native: None, profile };
            self.finish(state, earlier, result.clone(), ending);
        }
        self.finish(state, id, result, Ending { native, profile });
    }

    /// Forgets allocations that were freed and, every `SETTLE_EVERY` submissions, settles some of the
    /// commands that have ended. The submitting thread does this while the driver's memory for them is
    /// warm in the cache. It does not do so every time, because querying a driver contends with the
    /// driver's own threads.
    pub(super) fn settle_some(self: &Arc<Self>, state: &mut State) {
        while let Some(allocation) = self.freed.next_dropped() {
            state.dag.forget(allocation);
        }
        if state.unsettled >= SETTLE_EVERY {
            state.unsettled = 0;
            self.settle_each_queue(state, 2 * SETTLE_EVERY);
        }
    }

    /// Settles commands of each native queue that have ended, oldest first, but no more than `limit` of each.
    pub(super) fn settle_each_queue(self: &Arc<Self>, state: &mut State, limit: u64) {
        for native_queue in 0..state.native_queues.len() {
            self.settle_ended(state, native_queue, limit);
        }
    }

    /// Settles commands of a native queue that have ended, oldest first, but no more than `limit`. Returns
    /// whether that was everything that can be done now.
    fn settle_ended(self: &Arc<Self>, state: &mut State, native_queue: usize, limit: u64) -> bool {
        let latest = state.native_queues[native_queue].latest();
        latest.is_none_or(|position| self.settle(state, Place { native_queue, position }, limit))
    }

    /// Carries out the actions that must not run under the lock.
    #[inline]
    pub(super) fn apply(&self, actions: Option<DeferredActions>) {
        if let Some(actions) = actions {
            self.carry_out(actions);
        }
    }

    fn carry_out(&self, actions: DeferredActions) {
        for request in actions.callback_requests {
            self.request_callback(request);
        }
        for record in actions.unwatched {
            self.leave_to_reactor(&record);
        }
        for transfer in actions.transfers {
            self.workers.start(transfer);
        }
        for copy in actions.device_copies {
            copy.start();
        }
        for failure in actions.device_copy_failures {
            failure.pass_on();
        }
        for (stopwatch, profile) in actions.timed {
            stopwatch.ended(profile);
        }
        if self.freed.claim_unused() {
            self.shared.reactor.post(Post::Free(self.freed.clone()), Urgency::NextTick);
        }
        for waker in actions.wakers {
            // A waker that panics must neither keep the others asleep nor end the reactor.
            catch_and_log("a waker", || waker.wake());
        }
        let (mut commands, mut works) = (Vec::new(), Vec::new());
        let mut drops = actions.drops;
        for DeferredDrop { command, event } in drops.drain(..) {
            drop(event);
            if command.is_light() {
                command.recycle();
            } else {
                commands.push(command);
            }
        }
        if (1..=MAX_BUFFERED_DROPS).contains(&drops.capacity()) {
            let _ = DROPS_BUFFER.try_with(|buffer| buffer.set(drops));
        }
        for work in actions.unused.into_iter().flatten() {
            if !work.is_light() {
                works.push(work);
            }
        }
        if !commands.is_empty() || !works.is_empty() {
            self.shared.reactor.post(Post::Drop(commands, works), Urgency::NextTick);
        }
    }

    /// Requests a callback from the driver at the end of a command.
    fn request_callback(&self, CallbackRequest { record, event }: CallbackRequest) {
        let mailbox = self.shared.reactor.mailbox().clone();
        let backlog = self.backlog.clone();
        let callback = Box::new(move || {
            let needs_reactor = match record.signal.fire(!this_thread_holds_a_lock()) {
                Fired::Late => return mailbox.post(Post::Late(record), Urgency::NextTick),
                Fired::Waiter(waker) => {
                    // A panic must neither reach the driver nor keep the others asleep.
                    catch_and_log("a waker", || waker.wake());
                    false
                }
                Fired::NoWaiter => record.awaited.load(SeqCst),
                Fired::Busy => true,
            };
            // The reactor is woken only where no other thread acts. It hands over commands that wait for
            // room, for the host or for another device, and lets waiting producers through. It also wakes
            // the waiters that the callback cannot wake: all but the first, and those that wait for another
            // command fused into this one. In all other cases the woken thread, the next submission or the
            // reactor's next tick settles the command.
            if needs_reactor || record.awaited_by_others.load(SeqCst) || backlog.is_pending() {
                mailbox.post(Post::Check(record), Urgency::Now);
            }
        });
        if let Err(error) = event.notify(callback) {
            tracing::warn!(
                %error,
                "the driver rejected a completion callback; the reactor polls the command instead"
            );
        }
    }

    /// Settles the command before its first poll, if it is seen to have ended, or to end before the
    /// deadline. Short commands end that soon, and a query of the event costs less than a callback and a
    /// waker.
    pub(crate) fn settle_if_ended(
        self: &Arc<Self>,
        record: &Arc<Record>,
        deadline: Option<Instant>,
    ) {
        let (Some(place), Some(mut state)) = (record.place(), self.try_lock()) else { return };
        let native_queue = &mut state.native_queues[place.native_queue];
        native_queue.flush();
        // A caller that may busy-wait has time, in which other threads settle the commands ahead.
        let may_query =
            deadline.is_some() || native_queue.count_up_to(place.position) <= SETTLE_IN_POLL;
        let Some(event) = native_queue.event_at(place.position).filter(|_| may_query) else {
            return;
        };
        // Other threads can submit during the busy-wait.
        drop(state);
        let has_ended = loop {
            match event.poll_ended() {
                Some(false) if record.signal.is_pending_until(deadline) => hint::spin_loop(),
                seen => break seen == Some(true),
            }
        };
        if has_ended && let Some(mut state) = self.try_lock() {
            self.settle(&mut state, place, SETTLE_IN_POLL);
            self.apply(state.unlock());
        }
    }

    /// Requests a callback for the end of a command, when it is polled for the first time.
    pub(crate) fn watch(self: &Arc<Self>, record: &Arc<Record>) {
        let Some(state) = self.try_lock() else { return self.leave_to_reactor(record) };
        self.watch_with(state, record);
    }

    fn watch_with(self: &Arc<Self>, mut state: Transaction<'_>, record: &Arc<Record>) {
        let Some(place) = record.place() else {
            let is_grouped = !state.groups.is_empty();
            drop(state);
            if is_grouped {
                self.release_group_of(record, "a task that awaits an event");
            }
            return;
        };
        let State { dag, native_queues, .. } = &mut *state;
        let Some((id, unarmed)) = native_queues[place.native_queue].arm(place.position) else {
            return;
        };
        let Some(reporting) = dag.command(id).map(|command| command.record.clone()) else { return };
        drop(state);
        let is_other = !Arc::ptr_eq(&reporting, record);
        if is_other {
            reporting.awaited_by_others.store(true, SeqCst);
        }
        match unarmed {
            Some(event) => self.request_callback(CallbackRequest { record: reporting, event }),
            // The callback may not have seen that the command is awaited.
            None if is_other && reporting.signal.phase() == Phase::Fired => {
                self.leave_to_reactor(&reporting);
            }
            None => {}
        }
    }

    /// Settles a command that has called back and is being polled: here if few commands are ahead of it,
    /// otherwise on the reactor.
    pub(crate) fn settle_soon(self: &Arc<Self>, record: &Arc<Record>) {
        let Some(mut state) = self.try_lock() else { return self.leave_to_reactor(record) };
        let Some(place) = record.place() else { return };
        let done = state.native_queues[place.native_queue].count_up_to(place.position)
            <= SETTLE_IN_POLL
            && self.settle(&mut state, place, SETTLE_IN_POLL);
        self.apply(state.unlock());
        if !done {
            self.leave_to_reactor(record);
        }
    }

    fn leave_to_reactor(&self, record: &Arc<Record>) {
        self.shared.reactor.post(Post::Check(record.clone()), Urgency::Now);
    }

    /// Requests the callback of a command that has not called back, or settles one that has. Runs on the
    /// reactor.
    pub(crate) fn check_command(self: &Arc<Self>, record: &Arc<Record>) {
        match (record.signal.phase(), record.place()) {
            (Phase::Pending, _) => self.watch_with(self.lock(), record),
            (Phase::Fired, Some(place)) => self.settle_all(place),
            (Phase::Fired, None) | (Phase::Settled, _) => {}
        }
    }

    /// Settles the command at `place` and all before it that have ended, in several steps.
    fn settle_all(self: &Arc<Self>, place: Place) {
        loop {
            let mut state = self.lock();
            let done = self.settle(&mut state, place, SETTLE_AT_ONCE);
            self.apply(state.unlock());
            if done {
                return;
            }
        }
    }

    /// Starts commands that were enqueued and not flushed, ensures that an event reports their ends, and settles
    /// those that have ended, whether or not a callback was requested or has come. Runs on the reactor, from time to time while commands
    /// are in flight.
    pub(crate) fn tick(self: &Arc<Self>) {
        let mut state = self.lock();
        let native_queues = state.native_queues.len();
        self.renew_offer(&mut state);
        self.apply(state.unlock());
        for native_queue in 0..native_queues {
            let mut more = true;
            while more {
                let mut state = self.lock();
                if let Err(error) = state.native_queues[native_queue].report_all() {
                    tracing::debug!(%error, "the driver rejected a marker; the next tick tries again");
                }
                state.native_queues[native_queue].flush();
                more = !self.settle_ended(&mut state, native_queue, SETTLE_AT_ONCE);
                self.apply(state.unlock());
            }
        }
    }
}

impl State {
    /// Returns the place of a command that has not ended, is not one of `members`, and comes before one of them.
    fn place_before(&self, members: &[NodeId]) -> Option<Place> {
        for &id in members {
            for (before, _, command) in self.dag.dependencies(id) {
                if members.contains(&before) {
                    continue;
                }
                if let Some(place) = command.record.place() {
                    return Some(place);
                }
            }
        }
        None
    }
}
