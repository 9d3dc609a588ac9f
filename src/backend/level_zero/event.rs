//! Ends of commands: the driver's events, the commands in flight on each native queue, and the actions that are
//! due when an event is signalled.
//!
//! The driver keeps nothing alive. An event must outlive the command that signals it and the commands that wait
//! for it. So a waiting command keeps the events that it waits for, and the native queue keeps all commands in
//! flight.

use std::any::Any;
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use smallvec::SmallVec;

use super::bindings::*;
use super::codes::{Code, check};
use super::context::Context;
use super::event_pool::RawEvent;
use super::handle::OwnedList;
use super::memory::Staging;
use crate::backend::poller::{PollOutcome, PolledQueue};
use crate::backend::{CommandList, NativeEvent, Notify, Profile, Progress, run_notify, shutdown};
use crate::error::{Error, Result};
use crate::sync::lock;

/// A command that was enqueued.
pub(super) struct LzEvent {
    /// Event of the driver; taken on drop.
    event: Option<RawEvent>,
    /// Number of commands enqueued before this one on its native queue.
    position: u64,
    /// Time when the command was enqueued, with profiling.
    queued: Option<Instant>,
    /// Whether only the poller finishes the command.
    is_large_read: bool,
    /// Outcome of the command. Set last, so that it publishes all other effects.
    outcome: OnceLock<Result<()>>,
    end_actions: Mutex<EndActions>,
    native_queue: Arc<QueueState>,
}

/// Actions that are due when the command has ended, and resources that are kept until then.
#[derive(Default)]
pub(super) struct EndActions {
    pub(super) staging: Option<Staging>,
    /// Destination of the data that a read has brought to the staging memory.
    pub(super) read: Option<Destination>,
    pub(super) waits_for: SmallVec<[Arc<LzEvent>; 2]>,
    /// Closed command list that is in execution.
    pub(super) list: Option<Arc<dyn CommandList>>,
    notify: SmallVec<[Notify; 1]>,
}

/// Host memory that a read writes.
pub(super) struct Destination {
    pub(super) to: *mut u8,
    pub(super) bytes: usize,
}

// SAFETY: the caller that enqueued the read leaves the memory to the command until the command has ended.
unsafe impl Send for Destination {}

impl LzEvent {
    pub(super) fn new(
        native_queue: &Arc<QueueState>,
        event: RawEvent,
        position: u64,
        queued: Option<Instant>,
        is_large_read: bool,
        end_actions: EndActions,
    ) -> Self {
        Self {
            event: Some(event),
            position,
            queued,
            is_large_read,
            outcome: OnceLock::new(),
            end_actions: Mutex::new(end_actions),
            native_queue: Arc::clone(native_queue),
        }
    }

    /// Returns the event as this backend's type. Fails for an event of another backend.
    fn of(event: &Arc<dyn NativeEvent>) -> Result<Arc<Self>> {
        let event: Arc<dyn Any + Send + Sync> = event.clone();
        event
            .downcast()
            .map_err(|_| Error::invalid("the event belongs to a device of another backend"))
    }

    fn raw(&self) -> ze_event_handle_t {
        self.event.as_ref().map_or(ptr::null_mut(), RawEvent::raw)
    }

    fn is_pending(&self) -> bool {
        self.outcome.get().is_none()
    }

    fn is_complete(&self) -> bool {
        matches!(self.outcome.get(), Some(Ok(())))
    }

    /// Checks whether the command has ended, unless that is known already.
    fn check_end(&self) {
        if self.is_pending() {
            self.native_queue.check_end_of(self);
        }
    }

    /// Returns the outcome of the command, as far as it has been detected.
    fn outcome(&self) -> Progress {
        match self.outcome.get() {
            None => Progress::Pending,
            Some(Ok(())) => Progress::Complete,
            Some(Err(error)) => Progress::Failed(error.clone()),
        }
    }

    /// Queries the driver whether the command has ended.
    fn is_signalled(&self) -> Result<bool, Code> {
        let api = self.native_queue.context.api;
        // SAFETY: the event is alive.
        match unsafe { (api.zeEventQueryStatus)(self.raw()) } {
            ZE_RESULT_NOT_READY => Ok(false),
            answer => check(answer).map(|()| true),
        }
    }

    /// Performs the actions that are due now that the command has ended. Called once, by the thread that took
    /// the command from its native queue.
    fn finish(&self, outcome: Result<()>) {
        let (staging, read, waits_for, list) = {
            let mut actions = lock(&self.end_actions);
            let waits_for = std::mem::take(&mut actions.waits_for);
            (actions.staging.take(), actions.read.take(), waits_for, actions.list.take())
        };
        if outcome.is_ok() {
            if let (Some(staging), Some(Destination { to, bytes })) = (&staging, read) {
                // SAFETY: the staging memory has as many bytes, which the device has written, and the caller of
                // `enqueue` leaves the destination to the command.
                unsafe { ptr::copy_nonoverlapping(staging.start(), to, bytes) };
            }
            drop(staging);
        } else if let Some(staging) = staging {
            staging.leak();
        }
        drop((waits_for, list));
        self.outcome.get_or_init(|| outcome);
        // `notify` checks the outcome under this lock: it has either added its callback already, or sees the
        // outcome.
        let notify = std::mem::take(&mut lock(&self.end_actions).notify);
        notify.into_iter().for_each(run_notify);
    }
}

impl NativeEvent for LzEvent {
    fn progress(&self) -> Progress {
        self.check_end();
        self.outcome()
    }

    fn poll_ended(&self) -> Option<bool> {
        self.check_end();
        Some(!self.is_pending())
    }

    fn profile(&self) -> Option<Profile> {
        let queued = self.queued?;
        if !self.is_complete() {
            return None;
        }
        let _call = shutdown::enter().ok()?;
        let context = &self.native_queue.context;
        let mut times = ze_kernel_timestamp_result_t::default();
        // SAFETY: the event is alive and signalled, and of a pool with timestamps.
        let status =
            unsafe { (context.api.zeEventQueryKernelTimestamp)(self.raw(), &raw mut times) };
        check(status).ok()?;
        let ze_kernel_timestamp_data_t { kernelStart, kernelEnd } = times.global;
        Some(context.clock.profile(queued, kernelStart, kernelEnd))
    }

    fn notify(&self, notify: Notify) -> Result<()> {
        // A command that has ended needs no poller.
        self.check_end();
        {
            let mut actions = lock(&self.end_actions);
            if self.is_pending() {
                actions.notify.push(notify);
            } else {
                drop(actions);
                run_notify(notify);
                return Ok(());
            }
        }
        self.native_queue.watch(self.position);
        Ok(())
    }
}

impl Drop for LzEvent {
    fn drop(&mut self) {
        let Some(event) = self.event.take() else { return };
        let context = &self.native_queue.context;
        if self.is_complete() {
            context.events[usize::from(self.queued.is_some())].give(event);
        } else {
            // The device may still signal it.
            std::mem::forget(event);
        }
    }
}

/// Events in the form that the driver takes. They are kept until the command that waits for them has ended.
#[derive(Default)]
pub(super) struct WaitList {
    pub(super) events: SmallVec<[Arc<LzEvent>; 2]>,
    raw: SmallVec<[ze_event_handle_t; 2]>,
}

impl WaitList {
    /// Creates a list of the events that have not ended yet.
    pub(super) fn new(events: &[Arc<dyn NativeEvent>]) -> Result<Self> {
        let mut list = Self::default();
        for event in events {
            let event = LzEvent::of(event)?;
            if event.is_pending() {
                list.push(event);
            }
        }
        Ok(list)
    }

    pub(super) fn push(&mut self, event: Arc<LzEvent>) {
        self.raw.push(event.raw());
        self.events.push(event);
    }

    pub(super) fn len(&self) -> u32 {
        self.raw.len() as u32
    }

    /// Returns a pointer to the handles, or null if there are none. The driver does not write to it.
    pub(super) fn as_ptr(&self) -> *mut ze_event_handle_t {
        if self.raw.is_empty() { ptr::null_mut() } else { self.raw.as_ptr().cast_mut() }
    }
}

/// State that outlives the native queue, until its last command has ended.
pub(super) struct QueueState {
    pub(super) context: Arc<Context>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Commands in flight, oldest first.
    in_flight: VecDeque<Arc<LzEvent>>,
    /// Positions of the commands in flight that have waiters, oldest first.
    awaited: VecDeque<u64>,
    /// Number of commands in flight that are reads the poller has to finish.
    large_reads: usize,
    /// Whether this native queue is registered with the poller.
    has_poller: bool,
    /// Command list of a native queue that was dropped before its commands had ended.
    retired: Option<OwnedList>,
}

impl QueueState {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), queue: Mutex::default() }
    }

    /// Returns the latest command in flight.
    pub(super) fn latest(&self) -> Option<Arc<LzEvent>> {
        lock(&self.queue).in_flight.back().cloned()
    }

    /// Adds a command that was just appended.
    pub(super) fn push(&self, event: &Arc<LzEvent>) {
        let mut queue = lock(&self.queue);
        self.context.in_flight.fetch_add(1, SeqCst);
        queue.large_reads += usize::from(event.is_large_read);
        queue.in_flight.push_back(Arc::clone(event));
    }

    /// Keeps the list of a native queue that was dropped, until its commands have ended.
    pub(super) fn retire(self: &Arc<Self>, list: Option<OwnedList>) {
        let mut queue = lock(&self.queue);
        let Some(latest) = queue.in_flight.back().map(|event| event.position) else {
            drop(queue);
            drop(list);
            return;
        };
        queue.retired = list;
        drop(queue);
        self.watch(latest);
    }

    /// Makes the poller detect the end of the command at `position`. Without this, only threads that look at
    /// the command detect its end.
    pub(super) fn watch(self: &Arc<Self>, position: u64) {
        let mut queue = lock(&self.queue);
        if queue.in_flight.front().is_none_or(|oldest| oldest.position > position) {
            // Another thread has just detected the end, and performs the actions that are due.
            return;
        }
        let at = queue.awaited.partition_point(|awaited| *awaited < position);
        if queue.awaited.get(at) != Some(&position) {
            queue.awaited.insert(at, position);
        }
        let is_new = !std::mem::replace(&mut queue.has_poller, true);
        drop(queue);
        if is_new {
            self.context.poller.add(self.clone());
        } else {
            self.context.poller.nudge();
        }
    }

    /// Checks whether `event`, a command of this native queue, has ended. If so, performs the actions that are
    /// due.
    fn check_end_of(&self, event: &LzEvent) {
        if let Some(lost) = self.context.loss() {
            return self.fail_all(lost);
        }
        let _call = match shutdown::enter() {
            Ok(call) => call,
            Err(error) => return self.fail_all(&error),
        };
        match event.is_signalled() {
            Ok(false) => {}
            Ok(true) if lock(&self.queue).large_reads > 0 && self.context.poller.nudge() => {}
            Ok(true) => self.complete_through(event.position),
            Err(code) => self.fail_all(&self.lose_device(code)),
        }
    }

    /// Finishes the command at `position`, which has ended, and all commands before it, which have ended too
    /// because the list is in order.
    fn complete_through(&self, position: u64) {
        for event in self.take_through(position) {
            event.finish(Ok(()));
        }
    }

    /// Fails all commands in flight.
    fn fail_all(&self, error: &Error) {
        for event in self.take_through(u64::MAX) {
            event.finish(Err(error.clone()));
        }
    }

    /// Takes the commands up to the one at `position` out of the queue.
    fn take_through(&self, position: u64) -> SmallVec<[Arc<LzEvent>; 8]> {
        let mut queue = lock(&self.queue);
        let mut taken = SmallVec::<[Arc<LzEvent>; 8]>::new();
        while queue.in_flight.front().is_some_and(|event| event.position <= position)
            && let Some(event) = queue.in_flight.pop_front()
        {
            queue.large_reads -= usize::from(event.is_large_read);
            taken.push(event);
        }
        self.context.in_flight.fetch_sub(taken.len(), SeqCst);
        while queue.awaited.front().is_some_and(|awaited| *awaited <= position) {
            queue.awaited.pop_front();
        }
        let retired = if queue.in_flight.is_empty() { queue.retired.take() } else { None };
        drop(queue);
        if self.context.loss().is_some() {
            // Destroying the list would wait for commands that never end.
            std::mem::forget(retired);
        }
        taken
    }

    /// Marks the device as lost: a driver that cannot report the state of one event will not report any other.
    fn lose_device(&self, code: Code) -> Error {
        self.context.lose(code)
    }
}

impl PolledQueue for QueueState {
    fn poll_oldest(&self) -> PollOutcome {
        let oldest = {
            let mut queue = lock(&self.queue);
            let Some(&position) = queue.awaited.front() else {
                queue.has_poller = false;
                return PollOutcome::Idle;
            };
            let first = queue.in_flight.front().map_or(position, |event| event.position);
            queue.in_flight.get((position - first) as usize).cloned()
        };
        if let Some(lost) = self.context.loss() {
            self.fail_all(lost);
            return PollOutcome::Ended;
        }
        // An awaited command is in flight: both records are removed under the same lock.
        let Some(oldest) = oldest else { return PollOutcome::Ended };
        let _call = match shutdown::enter() {
            Ok(call) => call,
            Err(error) => {
                self.fail_all(&error);
                return PollOutcome::Ended;
            }
        };
        match oldest.is_signalled() {
            Ok(false) => return PollOutcome::Pending,
            Ok(true) => self.complete_through(oldest.position),
            Err(code) => self.fail_all(&self.lose_device(code)),
        }
        PollOutcome::Ended
    }

    fn check_device(&self) {
        self.context.check();
    }
}
