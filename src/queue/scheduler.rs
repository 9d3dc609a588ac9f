//! The scheduler of a device: from submitted commands to commands in flight on its lanes, and from
//! their ends back to those who wait.
//!
//! One lock guards the DAG and the lanes. It is held for the driver's enqueue calls, so that the
//! order on the lanes is the order of the DAG, and never while foreign code runs: wakers are
//! called, callbacks asked for and memory freed after it is released, from [`Effects`].

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use smallvec::SmallVec;

use super::command::{Command, Submission, Work};
use super::completion::{Fired, Phase, Urgency, Wakers};
use super::dag::{Dag, EdgeKind, Ended, Next, NextList, NodeId};
use super::event::{Event, Record, Status};
use super::hazard::Use;
use super::host::catch_panic;
use super::lane::{Lane, Left, Native, Place, wait_list};
use super::reactor::{Post, Reactor};
use super::timeline::Timeline;
use crate::backend::{DeviceSlot, NativeEvent};
use crate::buffer::Freed;
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::executor::HostExecutor;
use crate::stats::Counters;

/// How a device's commands are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How many commands the device is given at most; the others are parked.
    pub(crate) max_in_flight: usize,
    /// Whether native events tell their times.
    pub(crate) profiling: bool,
}

/// What a runtime's schedulers share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) reactor: Arc<Reactor>,
    pub(crate) host: Arc<HostExecutor>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) timeline: Arc<Timeline>,
}

/// The command DAG of one device, and its lanes.
pub(crate) struct Scheduler {
    slot: Arc<DeviceSlot>,
    options: Options,
    shared: Shared,
    freed: Arc<Freed>,
    /// Commands submitted and not ended, for those who look without the lock.
    live: AtomicUsize,
    /// Commands that the device was not given yet. Callbacks look at it, which must not own the
    /// scheduler: they would run its destructor.
    waiting: Arc<AtomicUsize>,
    state: Mutex<State>,
}

struct State {
    dag: Dag<Command>,
    lanes: Vec<Lane>,
    /// Commands ever submitted.
    submissions: u64,
    /// Commands submitted and not ended.
    live: usize,
    /// Commands in flight on all lanes.
    in_flight: usize,
    /// Keeps the scheduler alive while there are commands.
    keep_alive: Option<Arc<Scheduler>>,
    /// Commands that nothing but the bound on those in flight holds back, in order.
    parked: VecDeque<NodeId>,
}

/// What is left to do when the lock is released.
#[derive(Default)]
struct Effects {
    wakers: Wakers,
    arm: Vec<Armed>,
    garbage: Vec<Garbage>,
    /// That of a scheduler whose last command has ended.
    keep_alive: Option<Arc<Scheduler>>,
}

/// A command whose driver is to be asked to call back.
type Armed = (Arc<Record>, Arc<dyn NativeEvent>);

/// What is left of a command that has ended.
struct Garbage {
    command: Command,
    /// Unless the callback has yet to come.
    event: Option<Arc<dyn NativeEvent>>,
}

/// What a new command comes after, besides what its uses demand.
type Edges = SmallVec<[(NodeId, EdgeKind); 2]>;

/// What comes of events of the same device, and the failure if one has failed. Called under the
/// lock: an event that ended unseen in between would count for nothing.
fn before(events: &[Event]) -> (Edges, Option<Error>) {
    let failure = events.iter().find_map(|event| match event.status() {
        Status::Failed(error) => Some(error),
        _ => None,
    });
    let nodes = events.iter().filter_map(|event| event.record().node());
    (nodes.map(|id| (id, EdgeKind::Data)).collect(), failure)
}

/// So many commands a poll settles itself; more it leaves to the reactor, so that it stays short.
const SETTLE_IN_POLL: u64 = 32;

/// Every so many submissions settle what has ended, twice as many commands at most.
const SETTLE_EVERY: u64 = 8;

/// So many commands the reactor settles without letting go of the lock.
const SETTLE_AT_ONCE: u64 = 16;

/// At least so often, in commands, a lane asks the driver to call back though nobody waits.
const WATCH_EVERY: usize = 256;

impl Scheduler {
    pub(crate) fn new(slot: Arc<DeviceSlot>, options: Options, shared: Shared) -> Arc<Self> {
        let scheduler = Arc::new(Self {
            slot,
            options,
            shared,
            freed: Arc::new(Freed::unbounded()),
            live: AtomicUsize::new(0),
            waiting: Arc::default(),
            state: Mutex::new(State {
                dag: Dag::new(|command| command.work.uses()),
                lanes: Vec::new(),
                submissions: 0,
                live: 0,
                in_flight: 0,
                keep_alive: None,
                parked: VecDeque::new(),
            }),
        });
        scheduler.shared.reactor.look_after(&scheduler);
        scheduler
    }

    pub(crate) fn slot(&self) -> &Arc<DeviceSlot> {
        &self.slot
    }

    pub(crate) fn freed(&self) -> &Arc<Freed> {
        &self.freed
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(SeqCst)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// A panic while the lock was held leaves the state as it was between two steps.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Adds a command and hands everything that is ready to the device. Never waits.
    pub(crate) fn submit(self: &Arc<Self>, submission: Submission) -> Event {
        let Submission { work, queue, mut after, mut gates, building } = submission;
        // Devices do not wait for each other: the host does.
        after.retain(|event| {
            let ours = event.belongs_to(self);
            if !ours && !matches!(event.status(), Status::Complete) {
                gates.push(Box::pin(event.clone()));
            }
            ours
        });
        let building = match &work {
            Work::Launch(launch) => {
                self.shared.counters.launches.add_one();
                building.then(|| launch.kernel.clone())
            }
            _ => None,
        };
        let closed = gates.len() + usize::from(building.is_some());
        let uses = work.uses();
        let (event, id) = self.add(work, queue, &uses, closed, |_| before(&after));

        for gate in gates {
            let scheduler = self.clone();
            self.shared.host.spawn(async move {
                let outcome = catch_panic(gate).await;
                scheduler.gate_ended(id, outcome);
            });
        }
        if let Some(kernel) = building {
            let scheduler = self.clone();
            self.shared.host.spawn(async move {
                kernel.resolve().await;
                scheduler.built(id);
            });
        }
        event
    }

    /// A marker that ends when all commands of `queue`, or of the whole device, have ended, well or
    /// not.
    pub(crate) fn marker(self: &Arc<Self>, queue: Option<u64>) -> Event {
        let (event, _) = self.add(Work::Marker, queue.unwrap_or_default(), &[], 0, |state| {
            let before =
                state.dag.last_of(|command| queue.is_none_or(|queue| command.queue == queue));
            (before.into_iter().map(|id| (id, EdgeKind::Order)).collect(), None)
        });
        event
    }

    fn add(
        self: &Arc<Self>,
        work: Work,
        queue: u64,
        uses: &[Use],
        gates: usize,
        before: impl FnOnce(&State) -> (Edges, Option<Error>),
    ) -> (Event, NodeId) {
        let record = Record::new(Arc::downgrade(self));
        let event = Event::new(record.clone());
        let traced = self.shared.timeline.submitted();
        let command = Command { work, record, queue, traced };
        self.shared.counters.commands.add_one();
        let mut effects = Effects::default();
        let mut next = NextList::new();
        let mut state = self.lock();
        // Asking first spares a fence.
        while !self.freed.is_empty()
            && let Ok(allocation) = self.freed.pop()
        {
            state.dag.forget(allocation);
        }
        self.settle_some(&mut state, &mut effects);
        let was_idle = state.live == 0;
        state.live += 1;
        if was_idle {
            state.keep_alive = Some(self.clone());
        }
        let (edges, poison) = before(&state);
        let id = state.dag.add(command, uses, edges, gates as u32, poison, &mut next);
        event.record().set_node(id);
        state.trace_edges(id);
        self.pump(&mut state, &mut next, &mut effects);
        drop(state);
        if was_idle {
            self.shared.reactor.rouse();
        }
        self.apply(effects);
        (event, id)
    }

    /// A host future that `id` waited for has completed.
    fn gate_ended(self: &Arc<Self>, id: NodeId, outcome: Result<()>) {
        self.change(|scheduler, state, next, effects| {
            match outcome {
                Ok(()) => state.dag.open_gate(id, next),
                Err(error) => state.dag.poison(id, error, next),
            }
            scheduler.pump(state, next, effects);
        });
    }

    /// The program of a launch has been built, or has not.
    fn built(self: &Arc<Self>, id: NodeId) {
        self.change(|scheduler, state, next, effects| {
            let checked = match state.dag.command(id).map(|command| &command.work) {
                Some(Work::Launch(launch)) => launch.check(scheduler.slot.handle()),
                _ => None,
            };
            match checked {
                None | Some(Ok(())) => state.dag.open_gate(id, next),
                Some(Err(error)) => state.dag.poison(id, error, next),
            }
            scheduler.pump(state, next, effects);
        });
    }

    fn change(
        self: &Arc<Self>,
        change: impl FnOnce(&Arc<Self>, &mut State, &mut NextList, &mut Effects),
    ) {
        let mut effects = Effects::default();
        let mut state = self.lock();
        change(self, &mut state, &mut NextList::new(), &mut effects);
        drop(state);
        self.apply(effects);
    }

    /// Does all that can be done now: hands over what is ready, fails what cannot succeed, and so
    /// on with what follows from that.
    fn pump(self: &Arc<Self>, state: &mut State, next: &mut NextList, effects: &mut Effects) {
        let mut at = 0;
        loop {
            while let Some(&step) = next.get(at) {
                at += 1;
                match step {
                    Next::Fail(id) => self.finish(state, id, Ok(()), None, next, effects),
                    Next::Dispatch(id) if state.is_full(self.options) && !state.is_host(id) => {
                        self.shared.counters.parked_commands.add_one();
                        state.parked.push_back(id);
                    }
                    Next::Dispatch(id) => self.dispatch(state, id, next, effects),
                }
            }
            next.clear();
            at = 0;
            if state.in_flight >= self.options.max_in_flight {
                break;
            }
            let Some(id) = state.parked.pop_front() else { break };
            if state.dag.can_dispatch(id) {
                self.dispatch(state, id, next, effects);
            }
        }
        self.publish(state);
    }

    /// Tells the counts to those who look without the lock.
    fn publish(&self, state: &State) {
        // The reactor sleeps where it finds nothing alive: whoever ends that must be seen before it
        // looks whether the reactor sleeps. Other changes may be seen late.
        let was_idle = self.live.load(Relaxed) == 0;
        self.live.store(state.live, if was_idle { SeqCst } else { Relaxed });
        self.waiting.store(state.live - state.in_flight, Relaxed);
    }

    /// Hands a command to the device.
    fn dispatch(
        self: &Arc<Self>,
        state: &mut State,
        id: NodeId,
        next: &mut NextList,
        effects: &mut Effects,
    ) {
        if !state.dag.can_dispatch(id) {
            return;
        }
        if state.is_host(id) {
            return self.finish(state, id, Ok(()), None, next, effects);
        }
        match self.enqueue(state, id, effects) {
            Ok(()) => state.dag.dispatched(id, next),
            // It ends once all before it has, so that nobody behind it starts too early.
            Err(error) => state.dag.poison(id, error, next),
        }
    }

    fn enqueue(&self, state: &mut State, id: NodeId, effects: &mut Effects) -> Result<()> {
        let lane = self.choose_lane(state, id)?;
        let places = (state.dag.dependencies(id))
            .filter_map(|(_, kind, command)| Some((kind, command.record.place()?)));
        let wait = wait_list(&mut state.lanes, lane, places)?;
        let State { dag, lanes, in_flight, .. } = state;
        let Command { work, record, traced, .. } =
            dag.command_mut(id).expect("it can be dispatched");
        let position = work.with_operation(|operation| {
            // SAFETY: the command owns, through its work, all that the operation names, and it
            // stays in the DAG until the end of the returned event is known. The host memory of a
            // read is reached by nobody else until then. That the kernel stays inside its buffers
            // is what the caller of `Program::kernel` promised.
            unsafe { lanes[lane].enqueue(id, operation, &wait) }
        })?;
        record.set_place(Place { lane, position });
        *in_flight += 1;
        if let Some(traced) = traced {
            traced.enqueued();
        }
        let watch_every = WATCH_EVERY.min(self.options.max_in_flight.div_ceil(4));
        let lane = &mut lanes[lane];
        if record.awaited.load(SeqCst) || lane.is_unwatched_for(watch_every) {
            effects.arm.extend(lane.arm(position).map(|event| (record.clone(), event)));
        }
        Ok(())
    }

    /// Behind its latest dependency, where the order costs nothing; else where the least is in
    /// flight.
    fn choose_lane(&self, state: &mut State, id: NodeId) -> Result<usize> {
        let latest = (state.dag.dependencies(id))
            .filter_map(|(id, _, command)| Some((id.serial(), command.record.place()?.lane)))
            .max();
        if let Some((_, lane)) = latest {
            return Ok(lane);
        }
        let most = match self.slot.handle().kind {
            DeviceKind::Cpu => 2,
            _ => 4,
        };
        let idlest = (0..state.lanes.len()).min_by_key(|&lane| state.lanes[lane].len());
        match idlest {
            Some(lane) if state.lanes[lane].len() == 0 || state.lanes.len() >= most => Ok(lane),
            _ => {
                let native = self.slot.open()?.create_lane(self.options.profiling);
                match (native, idlest) {
                    (Ok(native), _) => state.lanes.push(Lane::new(native)),
                    (Err(_), Some(lane)) => return Ok(lane),
                    (Err(error), None) => return Err(error),
                }
                Ok(state.lanes.len() - 1)
            }
        }
    }

    /// A command's end is known: it leaves the DAG, and its outcome goes to those who wait.
    fn finish(
        &self,
        state: &mut State,
        id: NodeId,
        result: Result<()>,
        native: Option<Native>,
        next: &mut NextList,
        effects: &mut Effects,
    ) {
        let Ended { mut command, outcome } = state.dag.complete(id, result, next);
        let profiled = native.as_ref().filter(|_| self.options.profiling);
        let profile = profiled.and_then(|native| native.event.profile());
        if let Some(traced) = command.traced.take() {
            self.shared.timeline.ended(
                *traced,
                self.slot.handle(),
                &command,
                id,
                profile,
                &outcome,
            );
        }
        match &outcome {
            Ok(()) => {
                if let Work::Read { to, .. } = &mut command.work {
                    to.deliver();
                }
            }
            Err(_) => self.shared.counters.failed_commands.add_one(),
        }
        state.live -= 1;
        if state.live == 0 {
            effects.keep_alive = state.keep_alive.take();
        }
        // Who sees the end finds it counted.
        self.publish(state);
        let armed = native.as_ref().is_some_and(|native| native.armed);
        let event = command.record.settle(outcome, profile, native, &mut effects.wakers);
        if armed && event.is_none() {
            self.shared.counters.late_callbacks.add_one();
        }
        effects.garbage.push(Garbage { command, event });
    }

    /// Settles the command at `place` and all before it, on its lane and on those that these waited
    /// for, as far as they have ended, but no more than `most`. Tells whether that was all that can
    /// be done now.
    fn settle(
        self: &Arc<Self>,
        state: &mut State,
        place: Place,
        most: u64,
        effects: &mut Effects,
    ) -> bool {
        let mut next = NextList::new();
        let mut goals: SmallVec<[Place; 4]> = SmallVec::from_iter([place]);
        let mut settled = 0;
        while let Some(&goal) = goals.last() {
            let Some(oldest) = state.lanes[goal.lane].oldest_up_to(goal.position) else {
                goals.pop();
                continue;
            };
            // What it waited for comes first: its failure must not come too late.
            let before = state.dag.dependencies(oldest);
            if let Some(before) = before.filter_map(|(_, _, command)| command.record.place()).next()
            {
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
            let Some(Left { id, native, result }) = lanes[goal.lane].leave(has_called_back) else {
                // It still runs. The reactor's tick goes on from here.
                goals.clear();
                break;
            };
            settled += 1;
            state.in_flight -= 1;
            // A marker waits for the ends of commands, whatever they are.
            let result = if result.is_err() && state.is_marker(id) { Ok(()) } else { result };
            self.finish(state, id, result, Some(native), &mut next, effects);
        }
        self.pump(state, &mut next, effects);
        goals.is_empty()
    }

    /// Settles some of the commands that have ended, now and then: whoever submits pays for what has
    /// ended, while the driver's memory of it is warm. Not every time, because asking a driver
    /// contends with its own threads.
    fn settle_some(self: &Arc<Self>, state: &mut State, effects: &mut Effects) {
        state.submissions += 1;
        if state.submissions.is_multiple_of(SETTLE_EVERY) {
            for lane in 0..state.lanes.len() {
                self.settle_ended(state, lane, 2 * SETTLE_EVERY, effects);
            }
        }
    }

    /// Settles commands of a lane that have ended, oldest first, but no more than `most`. Tells
    /// whether that was all that can be done now.
    fn settle_ended(
        self: &Arc<Self>,
        state: &mut State,
        lane: usize,
        most: u64,
        effects: &mut Effects,
    ) -> bool {
        let latest = state.lanes[lane].latest();
        latest.is_none_or(|position| self.settle(state, Place { lane, position }, most, effects))
    }

    fn apply(&self, effects: Effects) {
        for (record, event) in effects.arm {
            self.arm(record, &*event);
        }
        for waker in effects.wakers {
            // One that panics must not keep the others asleep, nor end the reactor.
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!("a waker panicked");
            }
        }
        let mut heavy = Vec::new();
        for Garbage { command, event } in effects.garbage {
            drop(event);
            if !command.work.is_light() {
                heavy.push(command);
            }
        }
        if !heavy.is_empty() {
            self.shared.reactor.post(Post::Drop(heavy), Urgency::NextTick);
        }
    }

    /// Asks the driver to call back at the end of a command.
    fn arm(&self, record: Arc<Record>, event: &dyn NativeEvent) {
        let mailbox = self.shared.reactor.mailbox().clone();
        let waiting = self.waiting.clone();
        let callback = Box::new(move || {
            let fired = record.signal.fire();
            if fired == Fired::Late {
                return mailbox.post(Post::Late(record), Urgency::NextTick);
            }
            // Only the reactor hands over what waits for room, for the host or for another device,
            // and wakes those that came later than the first. Else the waiter, the next to submit,
            // or the reactor's next tick sees to the command.
            let awaited = fired == Fired::NobodyWaits && record.awaited.load(SeqCst);
            if awaited || waiting.load(SeqCst) > 0 {
                mailbox.post(Post::Look(record), Urgency::Now);
            }
        });
        if let Err(error) = event.notify(callback) {
            tracing::warn!(%error, "the driver takes no callback; the reactor will find the end");
        }
    }

    /// Somebody polls the command for the first time.
    pub(crate) fn watch(self: &Arc<Self>, record: &Arc<Record>) {
        let Some(mut state) = self.try_lock() else { return self.leave_to_reactor(record) };
        let event = record.place().and_then(|place| state.lanes[place.lane].arm(place.position));
        drop(state);
        if let Some(event) = event {
            self.arm(record.clone(), &*event);
        }
    }

    /// The command has called back and somebody polls it: settles it here if that is short, else on
    /// the reactor.
    pub(crate) fn settle_soon(self: &Arc<Self>, record: &Arc<Record>) {
        let Some(mut state) = self.try_lock() else { return self.leave_to_reactor(record) };
        let Some(place) = record.place() else { return };
        let mut effects = Effects::default();
        let done = state.lanes[place.lane].ahead(place.position) <= SETTLE_IN_POLL
            && self.settle(&mut state, place, SETTLE_IN_POLL, &mut effects);
        drop(state);
        self.apply(effects);
        if !done {
            self.leave_to_reactor(record);
        }
    }

    fn leave_to_reactor(&self, record: &Arc<Record>) {
        self.shared.reactor.post(Post::Look(record.clone()), Urgency::Now);
    }

    /// On the reactor: does for a command whatever is due.
    pub(crate) fn look(self: &Arc<Self>, record: &Arc<Record>) {
        let Some(place) = record.place() else { return };
        match record.signal.phase() {
            Phase::Pending => {
                let event = self.lock().lanes[place.lane].arm(place.position);
                if let Some(event) = event {
                    self.arm(record.clone(), &*event);
                }
            }
            Phase::Fired => self.settle_all(place),
            Phase::Settled => {}
        }
    }

    fn settle_all(self: &Arc<Self>, place: Place) {
        loop {
            let mut effects = Effects::default();
            let done = self.settle(&mut self.lock(), place, SETTLE_AT_ONCE, &mut effects);
            self.apply(effects);
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
                let mut effects = Effects::default();
                let mut state = self.lock();
                state.lanes[lane].flush();
                more = !self.settle_ended(&mut state, lane, SETTLE_AT_ONCE, &mut effects);
                drop(state);
                self.apply(effects);
            }
        }
    }

    /// Calls `see` with every command that has not ended and the serials of what it comes after.
    pub(crate) fn visit(&self, mut see: impl FnMut(NodeId, &Command, &[u64])) {
        let state = self.lock();
        for (id, command) in state.dag.commands() {
            let before: Vec<_> =
                state.dag.dependencies(id).map(|(before, ..)| before.serial()).collect();
            see(id, command, &before);
        }
    }
}

impl State {
    /// What came first is handed over first.
    fn is_full(&self, options: Options) -> bool {
        self.in_flight >= options.max_in_flight || !self.parked.is_empty()
    }

    fn is_marker(&self, id: NodeId) -> bool {
        self.dag.command(id).is_some_and(|command| matches!(command.work, Work::Marker))
    }

    /// Whether the command takes no room on the device.
    fn is_host(&self, id: NodeId) -> bool {
        self.dag.command(id).is_some_and(|command| matches!(command.work, Work::Host))
    }

    /// The edges are kept for pictures only while somebody draws.
    fn trace_edges(&mut self, id: NodeId) {
        if self.dag.command(id).is_some_and(|command| command.traced.is_some()) {
            let mut before: Vec<_> =
                self.dag.found().iter().map(|before| before.serial()).collect();
            before.sort_unstable();
            before.dedup();
            if let Some(traced) =
                self.dag.command_mut(id).and_then(|command| command.traced.as_mut())
            {
                traced.comes_after(before);
            }
        }
    }
}
