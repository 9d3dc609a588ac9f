//! Separation of launches from the fetching of binaries, for a driver in which the two interfere.
//!
//! PoCL 3.1 keeps loaded kernels in one list for the whole process. The end of a launch releases the first
//! entry that has its program's hash and its work-group size. Fetching a binary loads a variant of each kernel
//! that requires a work-group size, or moves that variant to the front of the list. If a launch of the kernel
//! runs meanwhile, its end releases the wrong variant, and PoCL aborts the process (`found->ref_count > 0`).
//! Equal programs have equal hashes, even in different contexts.
//!
//! Therefore a fetch waits until the launches of such kernels have ended. Launches that are enqueued during the
//! fetch wait for an event that is set after it: enqueuing never blocks.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use opencl3::event::{CL_COMPLETE, create_user_event, set_user_event_status, wait_for_events};

use super::codes::{driver_code, error};
use super::context::Context;
use super::handle::OwnedEvent;
use super::queue::Queue;
use crate::backend::Kernel;
use crate::error::Result;
use crate::sync::lock;

static GATE: Mutex<Gate> =
    Mutex::new(Gate { queues: Vec::new(), is_closed: false, start_events: Vec::new() });

struct Gate {
    /// Queues on which such kernels have been launched.
    queues: Vec<Weak<Queue>>,
    /// Whether a binary is being fetched.
    is_closed: bool,
    /// Event that launches wait for during a fetch, for each context that has any.
    start_events: Vec<(Arc<Context>, OwnedEvent)>,
}

/// Locks the gate. Every holder leaves it consistent, even if the driver rejects a call.
fn gate() -> MutexGuard<'static, Gate> {
    lock(&GATE)
}

/// Returns whether the end of a launch of this kernel interferes with the fetching of a binary.
pub(super) fn interferes(context: &Context, kernel: &dyn Kernel) -> bool {
    context.workarounds.separate_binary_fetches && kernel.required_work_group().is_some()
}

/// Guard of a launch that is being enqueued. No fetch begins before it is dropped.
pub(super) struct LaunchGuard {
    _gate: MutexGuard<'static, Gate>,
    start_event: Option<OwnedEvent>,
}

impl LaunchGuard {
    /// Begins the enqueuing of a launch on `queue`.
    pub(super) fn on(queue: &Arc<Queue>) -> Result<Self> {
        let mut gate = gate();
        let is_queue = |known: &Weak<Queue>| known.as_ptr() == Arc::as_ptr(queue);
        if !gate.queues.iter().any(is_queue) {
            gate.queues.retain(|known| known.strong_count() > 0);
            gate.queues.push(Arc::downgrade(queue));
        }
        let start_event =
            if gate.is_closed { Some(gate.start_event(&queue.context)?) } else { None };
        Ok(Self { _gate: gate, start_event })
    }

    /// Returns the event that the launch has to wait for while a binary is being fetched.
    pub(super) fn start_event(&self) -> Option<&OwnedEvent> {
        self.start_event.as_ref()
    }
}

impl Gate {
    /// Returns a reference to the event that launches in a context wait for during a fetch. Creates the event
    /// if there is none.
    fn start_event(&mut self, context: &Arc<Context>) -> Result<OwnedEvent> {
        let failed =
            |code| error(code, "the driver failed to create a user event for a launch to wait for");
        if let Some((_, event)) =
            self.start_events.iter().find(|(known, _)| Arc::ptr_eq(known, context))
        {
            return event.retain().map_err(failed);
        }
        let raw = create_user_event(context.raw()).map_err(failed)?;
        // SAFETY: just created, and referenced here alone.
        let event = unsafe { OwnedEvent::new(raw) };
        let start_event = event.retain().map_err(failed)?;
        self.start_events.push((Arc::clone(context), event));
        Ok(start_event)
    }

    /// Returns events that end after all launches enqueued so far.
    fn end_markers(&self) -> Result<Vec<OwnedEvent>> {
        self.queues.iter().filter_map(Weak::upgrade).map(|queue| queue.marker()).collect()
    }
}

/// Waits until the launches that were enqueued so far have ended. Does not hold back later ones.
pub(super) fn wait_for_launches() -> Result<()> {
    let ends = gate().end_markers()?;
    wait_for(&ends);
    Ok(())
}

/// Waits for each event with a call of its own, because one call takes the events of one context only.
fn wait_for(ends: &[OwnedEvent]) {
    for end in ends {
        if let Err(code) = wait_for_events(&[end.raw()]) {
            // A failed launch has ended, too.
            let code = driver_code(code);
            tracing::debug!(%code, "one of the awaited launches failed");
        }
    }
}

/// Guard that holds back launches while a binary is fetched. There is one at a time: see `program::Compiling`.
pub(super) struct FetchGuard(());

impl FetchGuard {
    /// Holds back further launches, and waits until the earlier ones have ended.
    pub(super) fn new() -> Result<Self> {
        let mut gate = gate();
        // The markers are enqueued and the gate is closed under one lock, because a marker behind a launch that
        // is held back would never end.
        let ends = gate.end_markers()?;
        gate.is_closed = true;
        drop(gate);
        let closed = Self(());
        wait_for(&ends);
        Ok(closed)
    }
}

impl Drop for FetchGuard {
    fn drop(&mut self) {
        let mut gate = gate();
        gate.is_closed = false;
        let start_events = mem::take(&mut gate.start_events);
        drop(gate);
        for (_, event) in start_events {
            if let Err(code) = set_user_event_status(event.raw(), CL_COMPLETE) {
                let code = driver_code(code);
                tracing::warn!(
                    %code,
                    "the driver failed to start a launch that waits for a user event"
                );
            }
        }
    }
}
