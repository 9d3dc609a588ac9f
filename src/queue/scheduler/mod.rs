//! Scheduler of a device. It hands submitted commands to the native queues and passes their completion on
//! to the waiters.
//!
//! One lock guards the DAG and the native queues. The driver's enqueue calls are made under the lock, so
//! that the order on the native queues is the order of the DAG. Foreign code never runs under the lock:
//! wakers are called, callbacks are requested and memory is freed after the lock is released, from
//! [`DeferredActions`]. A callback that runs inside a call made [under the lock](transaction) wakes no waiter.

mod backlog;
mod cancel;
mod deferred;
mod device_copy;
mod dispatch;
mod group;
mod hold;
mod needs;
mod part;
mod pieces;
#[cfg(all(test, feature = "simulated"))]
mod random_tests;
mod settle;
mod staging;
mod submit;
#[cfg(all(test, feature = "simulated"))]
mod tests;
mod transaction;
mod transfer;
mod waits;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::native_queue::{CommandEvent, TrackedQueue};
use crate::args::region::{Freed, Region};
use crate::backend::{DeviceSlot, NativeEvent, Profile};
use crate::build_graph::Fuser;
use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::executor::{HostExecutor, runs_tasks};
use crate::process;
use crate::queue::command::{Command, GroupId};
use crate::queue::completion::Wakers;
use crate::queue::dag::{CompletedCommand, Dag, Next, NextList};
use crate::queue::device_copy::{DeviceCopyFailure, DeviceCopyStart};
use crate::queue::fusion::mode::FusionMode;
use crate::queue::long_waits::Waits;
use crate::queue::node::{EdgeKind, NodeId, SkipReason};
use crate::queue::reactor::Reactor;
use crate::queue::record::{Owner, Record};
use crate::queue::stopwatch::Stopwatch;
use crate::queue::timeline::Timeline;
use crate::queue::work::Work;
use backlog::Backlog;
pub(crate) use backlog::Ticket;
pub(crate) use device_copy::DeviceCopyEnd;
pub(crate) use group::AbortReason;
use group::Group;
use kiln_compiler::fusion::FusionForm;
pub(crate) use part::{FusedLaunch, FusionBlocker, Part};
use transaction::{StateLock, Transaction};
use transfer::{Transfer, TransferWorkers};
pub(crate) use waits::CommandSummary;

/// Settings for running a device's commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Maximum number of commands handed to the device at a time; the others are parked.
    pub(crate) max_in_flight: usize,
    /// Whether native events report their times.
    pub(crate) profiling: bool,
    /// Maximum time for which a first poll busy-waits for the end of a command.
    pub(crate) spin: Duration,
}

/// State that the schedulers of a runtime share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) reactor: Arc<Reactor>,
    /// Executor of host futures.
    pub(crate) host: Arc<HostExecutor>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) waits: Arc<Waits>,
    pub(crate) fuser: Arc<Fuser>,
    pub(crate) fusion: FusionMode,
    /// Form that all fused kernels get; if `None`, all forms are tried.
    pub(crate) fusion_form: Option<FusionForm>,
    /// Maximum time for which the launches of a scope wait for their fused kernel.
    pub(crate) fusion_limit: Duration,
}

impl Shared {
    /// Returns how long a caller waits for a fused kernel. `is_required` states whether its launches must run as one
    /// kernel.
    pub(crate) fn fusion_wait(&self, is_required: bool) -> Duration {
        self.fusion.wait(self.fusion_limit, is_required)
    }
}

/// Command DAG of one device, and its native queues.
pub(crate) struct Scheduler {
    slot: Arc<DeviceSlot>,
    options: Options,
    shared: Shared,
    freed: Arc<Freed>,
    workers: TransferWorkers,
    /// Number of commands submitted and not ended, for readers without the lock.
    live: AtomicUsize,
    backlog: Arc<Backlog>,
    state: StateLock,
}

struct State {
    dag: Dag<Command>,
    native_queues: Vec<TrackedQueue>,
    /// Number of commands submitted since the last check for ended commands.
    unsettled: u64,
    /// Number of commands submitted and not ended.
    live: usize,
    /// Number of free places granted to producers that have not submitted a command since.
    granted: usize,
    /// Number of commands in flight on all native queues.
    in_flight: usize,
    /// Number of bytes of the transfers in flight on all native queues.
    transferring: usize,
    /// Number of unmaps whose guards exist.
    held: usize,
    /// Reference to the scheduler itself, which keeps it alive while it has commands.
    keep_alive: Option<Arc<Scheduler>>,
    /// Commands that only the limit on commands in flight holds back, in order.
    parked: VecDeque<NodeId>,
    /// Groups of launches, one per fusion scope, until the launches run one by one or have ended as one.
    groups: HashMap<GroupId, Group, RandomState>,
    /// Groups whose launches are not in the DAG.
    deferring: SmallVec<[GroupId; 4]>,
    /// Index of the native queue whose events report their times although those of the others do not.
    timing_queue: Option<usize>,
    /// Steps that became possible during the current change.
    next: NextList,
    /// Actions that are left to do when the lock is released.
    actions: DeferredActions,
}

/// Actions that are left to do when the lock is released.
#[derive(Default)]
struct DeferredActions {
    wakers: Wakers,
    callback_requests: Vec<CallbackRequest>,
    /// Commands whose end must be noticed although nothing awaits it.
    unwatched: SmallVec<[Arc<Record>; 1]>,
    /// Transfers that have to be started.
    transfers: SmallVec<[Transfer; 1]>,
    /// Copies between devices that have to be started.
    device_copies: SmallVec<[DeviceCopyStart; 1]>,
    /// Failures that other devices have to learn of.
    device_copy_failures: SmallVec<[DeviceCopyFailure; 1]>,
    drops: Vec<DeferredDrop>,
    /// Work that no longer runs, because a fused launch runs in its place or cannot run.
    unused: SmallVec<[Vec<Work>; 1]>,
    /// Timed commands that have ended, with their times if they succeeded.
    timed: Vec<(Arc<Stopwatch>, Option<Profile>)>,
    /// Reference of a scheduler to itself, once its last command has ended.
    keep_alive: Option<Arc<Scheduler>>,
}

impl DeferredActions {
    fn are_none(&self) -> bool {
        let Self {
            wakers,
            callback_requests,
            unwatched,
            transfers,
            device_copies,
            device_copy_failures,
            drops,
            unused,
            timed,
            keep_alive,
        } = self;
        wakers.is_empty()
            && callback_requests.is_empty()
            && unwatched.is_empty()
            && transfers.is_empty()
            && device_copies.is_empty()
            && device_copy_failures.is_empty()
            && drops.is_empty()
            && unused.is_empty()
            && timed.is_empty()
            && keep_alive.is_none()
    }
}

/// Request that the driver calls back at the end of a command.
struct CallbackRequest {
    record: Arc<Record>,
    event: Arc<dyn NativeEvent>,
}

/// Native event and times of a command that has ended, as far as the driver supplies them.
#[derive(Default)]
struct Ending {
    native: Option<CommandEvent>,
    profile: Option<Profile>,
}

/// Deferred drop: the remains of a command that has ended.
struct DeferredDrop {
    command: Command,
    /// Native event, unless its callback has yet to come.
    event: Option<Arc<dyn NativeEvent>>,
}

/// Commands that a new command comes after, besides those that its accesses require.
type Edges = SmallVec<[(NodeId, EdgeKind); 2]>;

/// Message for a command that reads data which a failed command should have written.
const DATA_FAILED: &str = "an earlier command on the same memory failed";

/// Message for a command that was submitted to come after a failed one.
const AFTER_FAILED: &str = "a command that it waits for failed";

/// Maximum number of commands that one poll settles. The reactor settles the rest, so that polls stay
/// short.
const SETTLE_IN_POLL: u64 = 32;

/// Number of submissions after which ended commands are settled: on each native queue, at most twice as
/// many commands.
const SETTLE_EVERY: u64 = 8;

/// Maximum number of commands that the reactor settles before it releases the lock.
const SETTLE_AT_ONCE: u64 = 16;

impl Scheduler {
    pub(crate) fn new(slot: Arc<DeviceSlot>, options: Options, shared: Shared) -> Arc<Self> {
        let scheduler = Arc::new(Self {
            slot,
            options,
            shared,
            freed: Arc::default(),
            workers: TransferWorkers::new(),
            live: AtomicUsize::new(0),
            backlog: Arc::default(),
            state: StateLock::new(State {
                dag: Dag::new(Command::uses),
                native_queues: Vec::new(),
                unsettled: 0,
                live: 0,
                granted: 0,
                in_flight: 0,
                transferring: 0,
                held: 0,
                keep_alive: None,
                parked: VecDeque::new(),
                groups: HashMap::default(),
                deferring: SmallVec::new(),
                timing_queue: None,
                next: NextList::new(),
                actions: DeferredActions::default(),
            }),
        });
        scheduler.freed.set_owner(scheduler.as_owner());
        if !process::is_forked() {
            scheduler.shared.reactor.add_scheduler(scheduler.as_owner());
        }
        scheduler
    }

    /// Returns the reference by which records, and the lists of freed memory, hold the scheduler.
    fn as_owner(self: &Arc<Self>) -> Owner {
        let owner: Weak<Self> = Arc::downgrade(self);
        owner
    }

    /// Returns the scheduler that the command was submitted to, unless its runtime was dropped.
    pub(crate) fn of_command(record: &Record) -> Option<Arc<Self>> {
        Self::of_owner(record.owner())
    }

    /// Returns the scheduler behind a reference, unless it was dropped.
    pub(crate) fn of_owner(owner: &Owner) -> Option<Arc<Self>> {
        owner.upgrade()?.downcast().ok()
    }

    /// Returns the scheduler of the device that has this memory, unless its runtime was dropped.
    pub(crate) fn of(region: &Region) -> Option<Arc<Self>> {
        region.freed().owner()?.downcast().ok()
    }

    pub(crate) fn slot(&self) -> &Arc<DeviceSlot> {
        &self.slot
    }

    pub(crate) fn freed(&self) -> &Arc<Freed> {
        &self.freed
    }

    /// Returns the time until which a first poll that begins now busy-waits for the end, or `None` if it
    /// does not busy-wait. A thread that polls host futures does not, because the command may wait for
    /// one of them.
    pub(crate) fn end_of_spin(&self) -> Option<Instant> {
        /// Practically unlimited, and short enough to be added to any `Instant`.
        const MAX_SPIN: Duration = Duration::from_secs(1 << 30);
        let spin = self.options.spin.min(MAX_SPIN);
        (!spin.is_zero() && !runs_tasks()).then(|| Instant::now() + spin)
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(SeqCst)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    fn lock(&self) -> Transaction<'_> {
        self.state.lock()
    }

    fn try_lock(&self) -> Option<Transaction<'_>> {
        self.state.try_lock()
    }

    /// Changes the state, then does everything that has become possible.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let mut transaction = self.lock();
        let changed = change(&mut transaction);
        self.drive(&mut transaction);
        self.apply(transaction.unlock());
        changed
    }

    /// Does everything that can be done now: hands over ready commands, fails those that cannot succeed,
    /// and continues with the steps that follow.
    fn drive(self: &Arc<Self>, state: &mut State) {
        let mut at = 0;
        loop {
            while let Some(&step) = state.next.get(at) {
                at += 1;
                match step {
                    // The edges have been restored since, or the command has failed already.
                    Next::Fail(id) if !state.dag.must_fail(id) => {}
                    Next::Fail(id) if state.is_in_ready_group(id) => {
                        state.run_one_by_one(id);
                    }
                    Next::Fail(id) => {
                        self.finish(state, id, Ok(()), Ending::default());
                    }
                    Next::Dispatch(id) if state.awaits_its_group(id) => {}
                    Next::Dispatch(id) if state.is_full(self.options) && !state.is_host(id) => {
                        self.shared.counters.commands.parked.add_one();
                        state.parked.push_back(id);
                    }
                    Next::Dispatch(id) => self.dispatch(state, id),
                }
            }
            state.next.clear();
            at = 0;
            if state.in_flight >= self.options.max_in_flight {
                break;
            }
            let Some(id) = state.parked.pop_front() else { break };
            if state.dag.can_dispatch(id) {
                self.dispatch(state, id);
            }
        }
        self.publish(state);
        if self.backlog.has_producers() {
            self.offer_capacity(state);
        }
    }

    /// Publishes the counts for readers without the lock.
    fn publish(&self, state: &State) {
        // The reactor sleeps if it finds no live command. A submission that ends this state must
        // therefore be visible before its thread checks whether the reactor sleeps. Other changes may
        // become visible late.
        let was_idle = self.live.load(Relaxed) == 0;
        self.live.store(state.live, if was_idle { SeqCst } else { Relaxed });
        self.backlog.undispatched.store(state.live - state.in_flight, Relaxed);
    }

    /// Handles a command's end: removes it from the DAG and passes the outcome to the waiters.
    fn finish(
        &self,
        state: &mut State,
        id: NodeId,
        result: Result<()>,
        Ending { native, profile }: Ending,
    ) {
        let result = result.map_err(|error| state.add_names(id, error));
        let completed = state.dag.complete(id, result, &mut state.next);
        let CompletedCommand { mut command, outcome, reason } = completed;
        let outcome = outcome.map_err(|root| match reason {
            Some(SkipReason::Data) => root.spread_to(&command.work.subject(), DATA_FAILED),
            Some(SkipReason::After) => root.spread_to(&command.work.subject(), AFTER_FAILED),
            Some(SkipReason::NotRun) | None => root,
        });
        let extras = command.known_extras();
        let stopwatch = extras.and_then(|extras| extras.stopwatch.take());
        if let Some(stopwatch) = stopwatch {
            state.actions.timed.push((stopwatch, profile.filter(|_| outcome.is_ok())));
        }
        if let Work::Replay(replay) = &mut command.work {
            let times = replay.take_times().into_iter();
            let times = times.map(|(watch, profile)| (watch, profile.filter(|_| outcome.is_ok())));
            state.actions.timed.extend(times);
        }
        let profile = profile.filter(|_| self.options.profiling);
        let pending = command.known_extras().and_then(|extras| extras.pending_span.take());
        if let Some(pending) = pending {
            let device = self.slot.handle().clone();
            let span = command.span(pending, device, id, profile, &outcome);
            self.shared.timeline.add(span);
        }
        match &outcome {
            Ok(()) => {
                if let Work::Read { to, .. } = &mut command.work {
                    // SAFETY: the read has ended successfully.
                    unsafe { to.deliver() };
                }
            }
            Err(error) => {
                state.note_failure_of_device_copy(&command.work, error);
                self.shared.counters.commands.failed.add(command.count() as u64);
                let group = command.group.and_then(|group| state.groups.get_mut(&group));
                if let Some(group) = group {
                    group.failure.get_or_insert_with(|| error.clone());
                }
            }
        }
        state.held -= usize::from(command.is_held);
        state.live -= command.count();
        if state.live == 0 {
            state.actions.keep_alive = state.keep_alive.take();
        }
        // When the end becomes visible, it is counted already, and the command holds no buffer.
        self.publish(state);
        command.release();
        let armed = native.as_ref().is_some_and(|native| native.armed);
        for record in command.other_records() {
            record.settle(outcome.clone(), profile, None, &mut state.actions.wakers);
        }
        let event = command.record.settle(outcome, profile, native, &mut state.actions.wakers);
        if armed && event.is_none() {
            self.shared.counters.commands.late_callbacks.add_one();
        }
        state.actions.drops.push(DeferredDrop { command, event });
    }

    /// Calls `visit` with every command that has not ended and the serial numbers of the commands it
    /// depends on.
    pub(crate) fn visit(self: &Arc<Self>, mut visit: impl FnMut(NodeId, &Command, &[u64])) {
        self.change(|state| {
            state.move_all_to_dag();
        });
        let state = self.lock();
        for (id, command) in state.dag.commands() {
            let before: Vec<_> =
                state.dag.dependencies(id).map(|(before, ..)| before.serial()).collect();
            visit(id, command, &before);
        }
    }
}

impl State {
    /// Adds the names of the command and of its module to the error of a command that the driver refused, or that failed
    /// on the device.
    fn add_names(&self, id: NodeId, error: Error) -> Error {
        let Some(Command { work, .. }) = self.dag.command(id) else { return error };
        // Both commands of a copy between devices have one error, which is named already.
        if matches!(work, Work::DeviceCopy(_)) {
            return error;
        }
        let is_named = error.message().contains(&work.label());
        let error = if is_named { error } else { error.within(work.subject()) };
        match work.module_label() {
            Some(module) if !error.message().contains(module) => {
                error.within(format_args!("`{module}`"))
            }
            _ => error,
        }
    }

    /// Leaks everything that the command uses, because the device may still use it.
    fn abandon(&mut self, id: NodeId) {
        if let Some(command) = self.dag.command_mut(id) {
            command.abandon();
        }
    }

    /// Whether a further command has to be parked. Commands parked earlier are handed over first.
    fn is_full(&self, options: Options) -> bool {
        self.in_flight >= options.max_in_flight || !self.parked.is_empty()
    }

    fn is_marker(&self, id: NodeId) -> bool {
        self.dag
            .command(id)
            .is_some_and(|command| matches!(command.work, Work::Marker | Work::Drain))
    }

    /// Whether the command is never handed to the device.
    fn is_host(&self, id: NodeId) -> bool {
        self.dag.command(id).is_some_and(|command| matches!(command.work, Work::Host))
    }
}
