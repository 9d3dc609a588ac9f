//! From the ends of native commands to those who wait for them.

use std::cell::Cell;
use std::hint;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use smallvec::SmallVec;

use super::transaction::{Transaction, this_thread_holds_one};
use super::{
    Armed, Effects, Ending, Garbage, SETTLE_AT_ONCE, SETTLE_EVERY, SETTLE_IN_POLL, Scheduler, State,
};
use crate::error::outlast;
use crate::queue::completion::{Fired, Phase, Urgency};
use crate::queue::event::Record;
use crate::queue::native_queue::{Left, Place};
use crate::queue::reactor::Post;

thread_local! {
    /// Room for what commands leave, which are many at once: the thread's next settling needs it, too.
    static ROOM: Cell<Vec<Garbage>> = const { Cell::new(Vec::new()) };
}

/// No thread keeps room for more.
const MOST_ROOM: usize = 64;

impl Scheduler {
    /// Settles the command at `place` and all before it, on its lane and on those that these waited
    /// for, as far as they have ended, but no more than `most`. Tells whether that was all that can
    /// be done now.
    fn settle(self: &Arc<Self>, state: &mut State, place: Place, most: u64) -> bool {
        let mut goals: SmallVec<[Place; 4]> = SmallVec::from_iter([place]);
        let mut settled = 0;
        while let Some(&goal) = goals.last() {
            let Some(oldest) = state.lanes[goal.lane].oldest_up_to(goal.position) else {
                goals.pop();
                continue;
            };
            let members = state.members(oldest);
            // What it waited for comes first: its failure must not come too late.
            let before = members.iter().flat_map(|&id| state.dag.dependencies(id));
            let others = before.filter(|(id, ..)| !members.contains(id));
            let place = others.filter_map(|(_, _, command)| command.record.place()).next();
            if let Some(before) = place {
                goals.push(before);
                continue;
            }
            if settled == most {
                break;
            }
            let State { dag, lanes, .. } = &mut *state;
            let has_called_back = |id| {
                dag.command(id)
                    .is_some_and(|command| command.record.signal.phase() != Phase::Pending)
            };
            let Some(left) = lanes[goal.lane].leave(has_called_back) else {
                // It still runs. The reactor's tick goes on from here.
                goals.clear();
                break;
            };
            let Left { id, native, result, may_run } = left;
            settled += 1;
            if state.effects.garbage.capacity() == 0 {
                // A thread that ends has none.
                state.effects.garbage = ROOM.try_with(Cell::take).unwrap_or_default();
            }
            state.in_flight -= state.count(&members);
            state.transferring -= state.dag.command(id).map_or(0, |it| it.work.transferred());
            if may_run {
                members.iter().for_each(|&id| state.abandon(id));
            }
            // A marker waits for the ends of commands, whatever they are.
            let result = if result.is_err() && state.is_marker(id) { Ok(()) } else { result };
            let is_timed = self.options.profiling || state.is_timed(&members);
            let profile = if is_timed { native.event.profile() } else { None };
            state.ended(id);
            // The last stands for all.
            for &earlier in &members[..members.len() - 1] {
                let ending = Ending { native: None, profile };
                self.finish(state, earlier, result.clone(), ending);
            }
            let ending = Ending { native: Some(native), profile };
            self.finish(state, id, result, ending);
        }
        self.pump(state);
        goals.is_empty()
    }

    /// Forgets what was freed, and settles some of the commands that have ended, now and then: whoever
    /// submits pays for what has ended, while the driver's memory of it is warm. Not every time, because
    /// asking a driver contends with its own threads.
    pub(super) fn settle_some(self: &Arc<Self>, state: &mut State) {
        while let Some(allocation) = self.freed.next_gone() {
            state.dag.forget(allocation);
        }
        if state.unsettled >= SETTLE_EVERY {
            state.unsettled = 0;
            for lane in 0..state.lanes.len() {
                self.settle_ended(state, lane, 2 * SETTLE_EVERY);
            }
        }
    }

    /// Settles commands of a lane that have ended, oldest first, but no more than `most`. Tells
    /// whether that was all that can be done now.
    fn settle_ended(self: &Arc<Self>, state: &mut State, lane: usize, most: u64) -> bool {
        let latest = state.lanes[lane].latest();
        latest.is_none_or(|position| self.settle(state, Place { lane, position }, most))
    }

    /// Does what must not be done under the lock.
    pub(super) fn apply(&self, effects: Effects) {
        if effects.are_none() {
            return;
        }
        for armed in effects.arm {
            self.arm(armed);
        }
        for record in effects.unwatched {
            self.leave_to_reactor(&record);
        }
        for transfer in effects.transfers {
            self.movers.start(transfer);
        }
        for (stopwatch, profile) in effects.timed {
            stopwatch.ended(profile);
        }
        if self.freed.has_new_unused() {
            self.shared.reactor.post(Post::Free(self.freed.clone()), Urgency::NextTick);
        }
        for waker in effects.wakers {
            // One that panics must not keep the others asleep, nor end the reactor.
            outlast("a waker", || waker.wake());
        }
        let (mut commands, mut works) = (Vec::new(), Vec::new());
        let mut garbage = effects.garbage;
        for Garbage { command, event } in garbage.drain(..) {
            drop(event);
            if !command.is_light() {
                commands.push(command);
            }
        }
        if (1..=MOST_ROOM).contains(&garbage.capacity()) {
            let _ = ROOM.try_with(|room| room.set(garbage));
        }
        for work in effects.unused.into_iter().flatten() {
            if !work.is_light() {
                works.push(work);
            }
        }
        if !commands.is_empty() || !works.is_empty() {
            self.shared.reactor.post(Post::Drop(commands, works), Urgency::NextTick);
        }
    }

    /// Asks the driver to call back at the end of a command.
    fn arm(&self, Armed { record, event }: Armed) {
        let mailbox = self.shared.reactor.mailbox().clone();
        let waiting = self.waiting.clone();
        let callback = Box::new(move || {
            let needs_reactor = match record.signal.fire(!this_thread_holds_one()) {
                Fired::Late => return mailbox.post(Post::Late(record), Urgency::NextTick),
                Fired::Waiter(waker) => {
                    // A panic must not get into the driver, nor keep the others asleep.
                    outlast("a waker", || waker.wake());
                    false
                }
                Fired::NobodyWaits => record.awaited.load(SeqCst),
                Fired::Busy => true,
            };
            // The reactor is woken for what nobody else does: to hand over commands that wait for
            // room, for the host or for another device, and to wake those that the callback cannot,
            // which are all but the first, and those that wait for another command fused into this
            // one. Else whoever was woken, the next to submit or the reactor's next tick settles it.
            if needs_reactor || record.awaited_by_others.load(SeqCst) || waiting.load(SeqCst) > 0 {
                mailbox.post(Post::Look(record), Urgency::Now);
            }
        });
        if let Err(error) = event.notify(callback) {
            tracing::warn!(%error, "the driver takes no callback; the reactor will find the end");
        }
    }

    /// Somebody is about to poll the command for the first time: settles it if it is seen to have ended,
    /// or to end before the deadline. Short commands end that soon, and looking costs less than a
    /// callback and a waker.
    pub(crate) fn settle_if_ended(
        self: &Arc<Self>,
        record: &Arc<Record>,
        deadline: Option<Instant>,
    ) {
        let (Some(place), Some(mut state)) = (record.place(), self.try_lock()) else { return };
        let lane = &mut state.lanes[place.lane];
        lane.flush();
        // Who may spin has time, in which others settle what is ahead.
        let may_look = deadline.is_some() || lane.ahead(place.position) <= SETTLE_IN_POLL;
        let Some(event) = lane.event_at(place.position).filter(|_| may_look) else { return };
        // Others submit meanwhile.
        drop(state);
        let has_ended = loop {
            match event.is_seen_ended() {
                Some(false) if record.signal.is_pending_until(deadline) => hint::spin_loop(),
                seen => break seen == Some(true),
            }
        };
        if has_ended && let Some(mut state) = self.try_lock() {
            self.settle(&mut state, place, SETTLE_IN_POLL);
            self.apply(state.unlock());
        }
    }

    /// Somebody polls the command for the first time.
    pub(crate) fn watch(self: &Arc<Self>, record: &Arc<Record>) {
        let Some(state) = self.try_lock() else { return self.leave_to_reactor(record) };
        self.watch_with(state, record);
    }

    fn watch_with(self: &Arc<Self>, mut state: Transaction<'_>, record: &Arc<Record>) {
        let Some(place) = record.place() else {
            let is_grouped = !state.groups.is_empty();
            drop(state);
            if is_grouped {
                self.release_group_of(record, "whoever awaits an event");
            }
            return;
        };
        let State { dag, lanes, .. } = &mut *state;
        let lane = &mut lanes[place.lane];
        let command = lane.command_at(place.position).and_then(|id| dag.command(id));
        let Some(last) = command.map(|command| command.record.clone()) else { return };
        let armed = lane.arm(place.position);
        drop(state);
        let is_other = !Arc::ptr_eq(&last, record);
        if is_other {
            last.awaited_by_others.store(true, SeqCst);
        }
        match armed {
            Some(event) => self.arm(Armed { record: last, event }),
            // The callback has perhaps not seen that it is awaited.
            None if is_other && last.signal.phase() == Phase::Fired => self.leave_to_reactor(&last),
            None => {}
        }
    }

    /// The command has called back and somebody polls it: settles it here if that is short, else on
    /// the reactor.
    pub(crate) fn settle_soon(self: &Arc<Self>, record: &Arc<Record>) {
        let Some(mut state) = self.try_lock() else { return self.leave_to_reactor(record) };
        let Some(place) = record.place() else { return };
        let done = state.lanes[place.lane].ahead(place.position) <= SETTLE_IN_POLL
            && self.settle(&mut state, place, SETTLE_IN_POLL);
        self.apply(state.unlock());
        if !done {
            self.leave_to_reactor(record);
        }
    }

    fn leave_to_reactor(&self, record: &Arc<Record>) {
        self.shared.reactor.post(Post::Look(record.clone()), Urgency::Now);
    }

    /// On the reactor: does for a command whatever is due.
    pub(crate) fn look(self: &Arc<Self>, record: &Arc<Record>) {
        match (record.signal.phase(), record.place()) {
            (Phase::Pending, _) => self.watch_with(self.lock(), record),
            (Phase::Fired, Some(place)) => self.settle_all(place),
            (Phase::Fired, None) | (Phase::Settled, _) => {}
        }
    }

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

    /// On the reactor, from time to time while commands are in flight: starts what was enqueued and
    /// not flushed, and settles what has ended, whether or not a callback was asked for or has come.
    pub(crate) fn tick(self: &Arc<Self>) {
        let lanes = self.lock().lanes.len();
        for lane in 0..lanes {
            let mut more = true;
            while more {
                let mut state = self.lock();
                state.lanes[lane].flush();
                more = !self.settle_ended(&mut state, lane, SETTLE_AT_ONCE);
                self.apply(state.unlock());
            }
        }
    }
}
