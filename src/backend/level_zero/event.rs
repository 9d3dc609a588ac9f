//! Ends of commands: the driver's events, and the actions that are due when an event is signalled.
//!
//! The driver keeps nothing alive. An event must outlive the command that signals it and the commands that wait
//! for it. It must be reset before it is used again, unless it is counter-based. So a waiting command keeps the
//! events that it waits for, the native queue keeps all commands in flight, and an event returns to its pool
//! when it has no more users.

use std::any::Any;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use smallvec::SmallVec;

use super::bindings::*;
use super::codes::{Code, check};
use super::context::Context;
use super::handle::{OwnedEvent, OwnedPool};
use super::memory::Staging;
use super::native_queue::QueueState;
use crate::backend::{NativeEvent, Notify, Profile, Progress, shutdown, tell};
use crate::error::{Error, Result};
use crate::sync::lock;

/// Number of events in a pool of the driver.
const BATCH: u32 = 128;

/// Unused events of one kind.
pub(super) struct EventPool {
    kind: Kind,
    state: Mutex<PoolState>,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Memory that the device writes once the command has ended, and that the host resets.
    Plain,
    /// Value that the counter of the command's in-order list reaches once the command has ended. The list
    /// counts anyway, and nothing is reset.
    Counted,
    /// Like `Plain`, with the times of the command's begin and end.
    Stamped,
}

#[derive(Default)]
struct PoolState {
    /// Events that have been used and are free again.
    free: Vec<RawEvent>,
    /// Pool of the driver in which the next event is created, and the number of events created there so far.
    latest: Option<(Arc<OwnedPool>, u32)>,
}

/// An event of the driver.
pub(super) struct RawEvent {
    /// Declared before the pool, so that it is destroyed first.
    event: OwnedEvent,
    _pool: Arc<OwnedPool>,
}

impl RawEvent {
    pub(super) fn raw(&self) -> ze_event_handle_t {
        self.event.raw()
    }
}

impl EventPool {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, state: Mutex::default() }
    }

    /// Returns an event for the next command.
    pub(super) fn take(&self, context: &Context) -> Result<RawEvent> {
        let mut state = lock(&self.state);
        if let Some(event) = state.free.pop() {
            drop(state);
            if self.kind == Kind::Counted {
                return Ok(event);
            }
            // SAFETY: the event is alive, and no command uses it.
            let reset = unsafe { (context.api.zeEventHostReset)(event.raw()) };
            return match check(reset) {
                Ok(()) => Ok(event),
                Err(code) => Err(context.error(code, "the driver failed to reset an event")),
            };
        }
        let (pool, index) = match state.latest.take() {
            Some((pool, made)) if made < BATCH => (pool, made),
            _ => (Arc::new(self.create_pool(context)?), 0),
        };
        let created = create(context, &pool, index);
        state.latest = Some((Arc::clone(&pool), index + 1));
        Ok(RawEvent { event: created?, _pool: pool })
    }

    /// Takes back an event whose command has ended, or never began.
    pub(super) fn give(&self, event: RawEvent) {
        lock(&self.state).free.push(event);
    }

    fn create_pool(&self, context: &Context) -> Result<OwnedPool> {
        let counted = ze_event_pool_counter_based_exp_desc_t {
            stype: ZE_STRUCTURE_TYPE_COUNTER_BASED_EVENT_POOL_EXP_DESC,
            pNext: ptr::null(),
            flags: ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_IMMEDIATE,
        };
        let (extension, timestamps) = match self.kind {
            Kind::Plain => (ptr::null(), 0),
            Kind::Counted => ((&raw const counted).cast(), 0),
            Kind::Stamped => (ptr::null(), ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP),
        };
        let description = ze_event_pool_desc_t {
            stype: ZE_STRUCTURE_TYPE_EVENT_POOL_DESC,
            pNext: extension,
            flags: ZE_EVENT_POOL_FLAG_HOST_VISIBLE | timestamps,
            count: BATCH,
        };
        let mut device = context.device.0;
        let mut raw = ptr::null_mut();
        // SAFETY: context and device are alive and belong together, and the description is valid.
        let created = unsafe {
            (context.api.zeEventPoolCreate)(
                context.raw(),
                &raw const description,
                1,
                &raw mut device,
                &raw mut raw,
            )
        };
        check(created).map_err(|code| context.error(code, "no event pool can be created"))?;
        // SAFETY: just created, and owned only here.
        Ok(unsafe { OwnedPool::new(context.api, raw) })
    }
}

fn create(context: &Context, pool: &OwnedPool, index: u32) -> Result<OwnedEvent> {
    let description = ze_event_desc_t {
        stype: ZE_STRUCTURE_TYPE_EVENT_DESC,
        pNext: ptr::null(),
        index,
        // When the event is signalled, the command's writes are visible to the host.
        signal: ZE_EVENT_SCOPE_FLAG_HOST,
        wait: ZE_EVENT_SCOPE_FLAG_DEVICE,
    };
    let mut raw = ptr::null_mut();
    // SAFETY: the pool is alive and has room for the index, which no other event has.
    let created =
        unsafe { (context.api.zeEventCreate)(pool.raw(), &raw const description, &raw mut raw) };
    check(created).map_err(|code| context.error(code, "no event can be created"))?;
    // SAFETY: just created, and owned only here.
    Ok(unsafe { OwnedEvent::new(context.api, raw) })
}

/// A command that was enqueued.
pub(super) struct LzEvent {
    /// Event of the driver; taken on drop.
    event: Option<RawEvent>,
    /// Number of commands enqueued before this one on its native queue.
    pub(super) position: u64,
    /// Time when the command was enqueued, with profiling.
    queued: Option<Instant>,
    /// Whether only the watcher finishes the command.
    pub(super) is_large_read: bool,
    /// Outcome of the command. Set last, so that it publishes all other effects.
    outcome: OnceLock<Result<()>>,
    due: Mutex<Due>,
    pub(super) native_queue: Arc<QueueState>,
}

/// Actions that are due when the command has ended, and resources that are kept until then.
#[derive(Default)]
pub(super) struct Due {
    pub(super) staging: Option<Staging>,
    /// Destination of the data that a read has brought to the staging memory.
    pub(super) read: Option<Destination>,
    pub(super) waits_for: SmallVec<[Arc<LzEvent>; 2]>,
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
        due: Due,
    ) -> Self {
        Self {
            event: Some(event),
            position,
            queued,
            is_large_read,
            outcome: OnceLock::new(),
            due: Mutex::new(due),
            native_queue: Arc::clone(native_queue),
        }
    }

    /// Returns the event as this backend's type. Fails for an event of another backend.
    pub(super) fn of(event: &Arc<dyn NativeEvent>) -> Result<Arc<Self>> {
        let event: Arc<dyn Any + Send + Sync> = event.clone();
        event
            .downcast()
            .map_err(|_| Error::invalid("the event belongs to a device of another backend"))
    }

    pub(super) fn raw(&self) -> ze_event_handle_t {
        self.event.as_ref().map_or(ptr::null_mut(), RawEvent::raw)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.outcome.get().is_none()
    }

    fn is_complete(&self) -> bool {
        matches!(self.outcome.get(), Some(Ok(())))
    }

    /// Checks whether the command has ended, unless that is known already.
    fn look(&self) {
        if self.is_pending() {
            self.native_queue.look_at(self);
        }
    }

    /// Returns the outcome of the command, as far as it has been detected.
    pub(super) fn outcome(&self) -> Progress {
        match self.outcome.get() {
            None => Progress::Pending,
            Some(Ok(())) => Progress::Complete,
            Some(Err(error)) => Progress::Failed(error.clone()),
        }
    }

    /// Queries the driver whether the command has ended.
    pub(super) fn is_signalled(&self) -> Result<bool, Code> {
        let api = self.native_queue.context.api;
        // SAFETY: the event is alive.
        match unsafe { (api.zeEventQueryStatus)(self.raw()) } {
            ZE_RESULT_NOT_READY => Ok(false),
            answer => check(answer).map(|()| true),
        }
    }

    /// Performs the actions that are due now that the command has ended. Called once, by the thread that took
    /// the command from its native queue.
    pub(super) fn finish(&self, outcome: Result<()>) {
        let (staging, read, waits_for) = {
            let mut due = lock(&self.due);
            (due.staging.take(), due.read.take(), std::mem::take(&mut due.waits_for))
        };
        if outcome.is_ok() {
            if let (Some(staging), Some(Destination { to, bytes })) = (&staging, read) {
                // SAFETY: the staging memory has as many bytes, which the device has written, and
                // the caller of `enqueue` leaves the destination to the command.
                unsafe { ptr::copy_nonoverlapping(staging.start(), to, bytes) };
            }
            drop(staging);
        } else if let Some(staging) = staging {
            staging.leak();
        }
        drop(waits_for);
        self.outcome.get_or_init(|| outcome);
        // A thread that looked before the outcome was set has registered once this gets the lock. A thread that
        // comes later sees the outcome.
        let notify = std::mem::take(&mut lock(&self.due).notify);
        notify.into_iter().for_each(tell);
    }
}

impl NativeEvent for LzEvent {
    fn progress(&self) -> Progress {
        self.look();
        self.outcome()
    }

    fn is_seen_ended(&self) -> Option<bool> {
        self.look();
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
        let told = unsafe { (context.api.zeEventQueryKernelTimestamp)(self.raw(), &raw mut times) };
        check(told).ok()?;
        let ze_kernel_timestamp_data_t { kernelStart, kernelEnd } = times.global;
        Some(context.clock.profile(queued, kernelStart, kernelEnd))
    }

    fn notify(&self, notify: Notify) -> Result<()> {
        // A command that has ended needs no watcher.
        self.look();
        {
            let mut due = lock(&self.due);
            if self.is_pending() {
                due.notify.push(notify);
            } else {
                drop(due);
                tell(notify);
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
