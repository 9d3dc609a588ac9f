//! In-order queues of the driver.

use std::ptr;
use std::sync::{Arc, OnceLock, Weak};

use opencl3::command_queue::*;
use opencl3::error_codes::DLOPEN_FUNCTION_NOT_AVAILABLE;

use super::batch::Batch;
use super::codes::error;
use super::context::Context;
use super::handle::{OwnedEvent, OwnedQueue};
use crate::backend::shutdown;
use crate::device::DeviceKind;
use crate::error::Result;

/// In-order queue. Lives until the end of its last command is known.
pub(super) struct Queue {
    /// Commands that have not been started, for a driver that otherwise starts each command at once. Dropping
    /// this starts them. Declared first, so dropped before the queue.
    pub(super) batch: Option<Batch>,
    raw: Arc<OwnedQueue>,
    /// Marker behind all commands, enqueued once the process ends.
    last: OnceLock<Option<OwnedEvent>>,
    pub(super) context: Arc<Context>,
}

impl Queue {
    pub(super) fn create(context: &Arc<Context>, profiling: bool) -> Result<Arc<Self>> {
        let flags = if profiling { CL_QUEUE_PROFILING_ENABLE } else { 0 };
        let raw = create_queue(context, flags).map_err(|code| {
            error(code, format!("no queue can be created on `{}`", context.info.name))
        })?;
        // SAFETY: just created, and referenced here alone.
        let raw = Arc::new(unsafe { OwnedQueue::new(raw) });
        let batch = context.workarounds.enqueue_in_batches.then(Batch::default);
        let (last, context) = (OnceLock::new(), Arc::clone(context));
        let queue = Arc::new(Self { batch, raw, last, context });
        // The commands of a CPU device run on threads of this process, so its end must wait for them.
        if queue.context.info.kind == DeviceKind::Cpu {
            let commands: Weak<Self> = Arc::downgrade(&queue);
            shutdown::wait_at_end(commands);
        }
        Ok(queue)
    }

    pub(super) fn raw(&self) -> cl_command_queue {
        self.raw.raw()
    }

    /// Starts all commands that were enqueued.
    pub(super) fn flush(&self) -> Result<()> {
        if let Some(batch) = &self.batch {
            batch.start();
        }
        flush(self.raw()).map_err(|code| error(code, "the driver failed to start the commands"))
    }

    /// Returns the driver's queue.
    pub(super) fn handle(&self) -> &Arc<OwnedQueue> {
        &self.raw
    }

    /// Enqueues a marker and starts all commands enqueued so far. Returns the marker's event, which ends after
    /// them.
    pub(super) fn marker(&self) -> Result<OwnedEvent> {
        // SAFETY: the queue is alive, and no events are given.
        let marker = unsafe { enqueue_marker_with_wait_list(self.raw(), 0, ptr::null()) };
        let marker = marker.map_err(|code| error(code, "the driver refused a marker"))?;
        // SAFETY: the driver made the event for this call, with one reference.
        let marker = unsafe { OwnedEvent::new(marker) };
        self.flush()?;
        Ok(marker)
    }
}

/// Creates a queue. It is in order because no flag but profiling is set.
fn create_queue(
    context: &Context,
    flags: cl_command_queue_properties,
) -> Result<cl_command_queue, cl_int> {
    if context.version.at_least(2, 0) {
        let properties = [CL_QUEUE_PROPERTIES.into(), flags, 0];
        // SAFETY: context and device are alive and belong together; the list ends in 0.
        let created = unsafe {
            create_command_queue_with_properties(
                context.raw(),
                context.device(),
                properties.as_ptr(),
            )
        };
        // A loader older than the driver may lack the function.
        if created != Err(DLOPEN_FUNCTION_NOT_AVAILABLE) {
            return created;
        }
    }
    // SAFETY: context and device are alive and belong together.
    unsafe { create_command_queue(context.raw(), context.device(), flags) }
}

impl shutdown::Commands for Queue {
    fn are_in_flight(&self) -> bool {
        let Ok(_call) = shutdown::enter() else { return false };
        self.last.get_or_init(|| self.marker().ok()).as_ref().is_some_and(OwnedEvent::is_pending)
    }
}
