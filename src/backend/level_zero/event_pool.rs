//! Pools of the driver's events.
//!
//! An event must be reset before it is used again, unless it is counter-based. It returns to its pool when it
//! has no more users.

use std::ptr;
use std::sync::{Arc, Mutex};

use super::bindings::*;
use super::codes::{Code, check};
use super::handle::{DeviceHandle, OwnedContext, OwnedEvent, OwnedPool};
use super::loader::Api;
use crate::sync::lock;

/// Number of events in a pool of the driver.
const POOL_SIZE: u32 = 128;

/// Unused events of one kind, of one context.
pub(super) struct EventPool {
    kind: Kind,
    /// Declared before the context, so that its events are destroyed first.
    state: Mutex<PoolState>,
    api: &'static Api,
    device: DeviceHandle,
    context: Arc<OwnedContext>,
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

/// A call that the driver refused: its code, and a message.
type Refusal = (Code, &'static str);

impl EventPool {
    /// Creates an empty pool. The device is the one of the context.
    pub(super) fn new(
        api: &'static Api,
        context: &Arc<OwnedContext>,
        device: DeviceHandle,
        kind: Kind,
    ) -> Self {
        Self { kind, state: Mutex::default(), api, device, context: Arc::clone(context) }
    }

    /// Returns an event for the next command.
    pub(super) fn take(&self) -> Result<RawEvent, Refusal> {
        let mut state = lock(&self.state);
        if let Some(event) = state.free.pop() {
            drop(state);
            if self.kind == Kind::Counted {
                return Ok(event);
            }
            // SAFETY: the event is alive, and no command uses it.
            let reset = unsafe { (self.api.zeEventHostReset)(event.raw()) };
            return match check(reset) {
                Ok(()) => Ok(event),
                Err(code) => Err((code, "the driver failed to reset an event")),
            };
        }
        let (pool, index) = match state.latest.take() {
            Some((pool, index)) if index < POOL_SIZE => (pool, index),
            _ => (Arc::new(self.create_pool()?), 0),
        };
        let created = self.create(&pool, index);
        state.latest = Some((Arc::clone(&pool), index + 1));
        Ok(RawEvent { event: created?, _pool: pool })
    }

    /// Takes back an event whose command has ended, or never began.
    pub(super) fn give(&self, event: RawEvent) {
        lock(&self.state).free.push(event);
    }

    fn create_pool(&self) -> Result<OwnedPool, Refusal> {
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
            count: POOL_SIZE,
        };
        let mut device = self.device.0;
        let mut raw = ptr::null_mut();
        // SAFETY: context and device are alive and belong together, and the description is valid.
        let created = unsafe {
            (self.api.zeEventPoolCreate)(
                self.context.raw(),
                &raw const description,
                1,
                &raw mut device,
                &raw mut raw,
            )
        };
        check(created).map_err(|code| (code, "no event pool can be created"))?;
        // SAFETY: just created, and owned only here.
        Ok(unsafe { OwnedPool::new(self.api, raw) })
    }

    fn create(&self, pool: &OwnedPool, index: u32) -> Result<OwnedEvent, Refusal> {
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
            unsafe { (self.api.zeEventCreate)(pool.raw(), &raw const description, &raw mut raw) };
        check(created).map_err(|code| (code, "no event can be created"))?;
        // SAFETY: just created, and owned only here.
        Ok(unsafe { OwnedEvent::new(self.api, raw) })
    }
}
