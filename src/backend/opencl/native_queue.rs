//! Native queues, and the commands that they submit to the driver.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

use opencl3::command_queue::*;
use opencl3::memory::{CL_MAP_READ, CL_MAP_WRITE, CL_MAP_WRITE_INVALIDATE_REGION};

use super::codes::{error, refused_error};
use super::context::Context;
use super::event::{ClEvent, SubmittedEvents, WaitList};
use super::gate::{self, LaunchGuard};
use super::handle::OwnedEvent;
use super::kernel::ClKernel;
use super::memory::ClMemory;
use super::queue::Queue;
use super::watch::QueueWatch;
use super::{pixels, rows};
use crate::backend::handler_guard::{self, CallKind, HandlerGuard};
use crate::backend::{HostAccess, NativeEvent, NativeQueue, Operation, shutdown};
use crate::device::FillStrategy;
use crate::error::{ErrorKind, Result};

pub(super) struct ClNativeQueue {
    queue: Arc<Queue>,
    fills: FillStrategy,
    profiling: bool,
    /// Number of commands enqueued so far.
    enqueued: u64,
    /// Number of launches enqueued since the last command that has an event.
    without_event: usize,
    /// Watch that polls for the ends of commands, if the driver reports them too late.
    watch: Option<Arc<QueueWatch>>,
}

impl ClNativeQueue {
    pub(super) fn create(context: &Arc<Context>, profiling: bool) -> Result<Self> {
        let _call = shutdown::begin()?;
        let queue = Queue::create(context, profiling)?;
        let watch = context.poller.as_ref().map(QueueWatch::new);
        let fills = context.workarounds.fills;
        Ok(Self { queue, fills, profiling, enqueued: 0, without_event: 0, watch })
    }

    /// Passes an operation to the driver, behind the events in `wait`.
    ///
    /// # Safety
    ///
    /// As for [`NativeQueue::enqueue`].
    unsafe fn submit(&self, operation: &Operation<'_>, wait: &WaitList) -> Result<SubmittedEvents> {
        let queue = self.queue.raw();
        let raw = match *operation {
            Operation::Launch { kernel, arguments, range } => {
                let kernel = ClKernel::of(kernel)?;
                // SAFETY: the queue is alive; the caller guarantees the rest.
                let event = unsafe { kernel.enqueue(queue, arguments, range, wait, true) }?;
                return Ok(SubmittedEvents::one(event.expect("an event was requested")));
            }
            // Drivers of OpenCL 1.2 reject empty transfers.
            Operation::Write { bytes: 0, .. }
            | Operation::Read { bytes: 0, .. }
            | Operation::Fill { bytes: 0, .. }
            | Operation::Copy { bytes: 0, .. }
            | Operation::Marker => {
                // SAFETY: the queue and the events are alive.
                let enqueued =
                    unsafe { enqueue_marker_with_wait_list(queue, wait.len(), wait.as_ptr()) };
                enqueued.map_err(|code| error(code, "the driver refused a marker"))
            }
            Operation::Write { to, offset, from, bytes } => {
                let to = ClMemory::of(to)?.raw();
                // SAFETY: the queue, the memory and the events are alive, the range is inside the memory, and
                // the caller keeps the host memory until the command's end.
                let enqueued = unsafe {
                    enqueue_write_buffer(
                        queue,
                        to,
                        CL_NON_BLOCKING,
                        offset,
                        bytes,
                        from.cast(),
                        wait.len(),
                        wait.as_ptr(),
                    )
                };
                enqueued.map_err(|code| refused_error(code, "a write", bytes, offset))
            }
            Operation::Read { from, offset, to, bytes } => {
                let from = ClMemory::of(from)?.raw();
                // SAFETY: the queue, the memory and the events are alive, the range is inside the memory, and
                // the caller keeps the host memory, untouched, until the command's end.
                let enqueued = unsafe {
                    enqueue_read_buffer(
                        queue,
                        from,
                        CL_NON_BLOCKING,
                        offset,
                        bytes,
                        to.cast(),
                        wait.len(),
                        wait.as_ptr(),
                    )
                };
                enqueued.map_err(|code| refused_error(code, "a read", bytes, offset))
            }
            Operation::Fill { memory, offset, bytes, pattern } => {
                let memory = ClMemory::of(memory)?;
                // SAFETY: guaranteed by the caller.
                return unsafe {
                    self.fills.enqueue(&self.queue, memory, (offset, bytes), pattern, wait)
                };
            }
            Operation::Copy { from, from_offset, to, to_offset, bytes } => {
                let from = ClMemory::of(from)?.raw();
                let to = ClMemory::of(to)?.raw();
                // SAFETY: the queue, both memories and the events are alive, and both ranges are inside theirs.
                let enqueued = unsafe {
                    enqueue_copy_buffer(
                        queue,
                        from,
                        to,
                        from_offset,
                        to_offset,
                        bytes,
                        wait.len(),
                        wait.as_ptr(),
                    )
                };
                enqueued.map_err(|code| refused_error(code, "a copy", bytes, to_offset))
            }
            Operation::Map { memory, offset, bytes, access, start } => {
                let memory = ClMemory::of(memory)?.raw();
                let flags = match access {
                    HostAccess::Read => CL_MAP_READ,
                    HostAccess::ReadWrite => CL_MAP_READ | CL_MAP_WRITE,
                    HostAccess::Overwrite => CL_MAP_WRITE_INVALIDATE_REGION,
                };
                let mut address = ptr::null_mut();
                // SAFETY: the queue, the memory and the events are alive, and the range is inside the memory.
                let enqueued = unsafe {
                    enqueue_map_buffer(
                        queue,
                        memory,
                        CL_NON_BLOCKING,
                        flags,
                        offset,
                        bytes,
                        &mut address,
                        wait.len(),
                        wait.as_ptr(),
                    )
                };
                start.store(address.cast(), SeqCst);
                enqueued.map_err(|code| refused_error(code, "a map", bytes, offset))
            }
            Operation::Unmap { memory, start, .. } => {
                let memory = ClMemory::of(memory)?.raw();
                // SAFETY: the queue, the memory and the events are alive, and the memory is mapped at this address.
                let enqueued = unsafe {
                    enqueue_unmap_mem_object(queue, memory, start.cast(), wait.len(), wait.as_ptr())
                };
                enqueued.map_err(|code| error(code, "the driver refused to unmap a buffer"))
            }
            // SAFETY: the queue is alive; the caller guarantees the rest.
            Operation::Rows(operation) => unsafe { rows::enqueue(queue, &operation, wait) },
            // SAFETY: the queue is alive; the caller guarantees the rest.
            Operation::Image(operation) => unsafe { pixels::enqueue(queue, &operation, wait) },
        };
        // SAFETY: the driver made the event for this call, with one reference.
        Ok(SubmittedEvents::one(unsafe { OwnedEvent::new(raw?) }))
    }

    /// Returns a guard for the first launch, if the driver compiles at it and may register handlers.
    fn handler_guard(&self, operation: &Operation<'_>) -> Option<HandlerGuard> {
        let has_launched = &self.queue.context.has_launched;
        let is_first = matches!(operation, Operation::Launch { .. })
            && !has_launched.load(Relaxed)
            && !has_launched.swap(true, Relaxed);
        is_first.then(|| HandlerGuard::of(CallKind::Launch))
    }
}

impl Drop for ClNativeQueue {
    fn drop(&mut self) {
        if let Some(spare) = &self.queue.context.spare {
            spare.end_commands(self.without_event);
        }
    }
}

impl NativeQueue for ClNativeQueue {
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        let _call = shutdown::begin()?;
        let mut wait = WaitList::new(wait)?;
        let batch = self.queue.batch.as_ref().filter(|_| wait.len() == 0);
        let start = batch.and_then(|batch| batch.add(&self.queue.context, Instant::now()));
        wait.add(start.as_ref());
        let launch_guard = match operation {
            Operation::Launch { kernel, .. } if gate::interferes(&self.queue.context, *kernel) => {
                Some(LaunchGuard::on(&self.queue)?)
            }
            _ => None,
        };
        wait.add(launch_guard.as_ref().and_then(LaunchGuard::start_event));
        // SAFETY: guaranteed by the caller.
        let mut enqueued = unsafe { self.submit(operation, &wait) };
        // Drivers often allocate memory only when a command first uses it.
        if let (Err(error), Some(spare)) = (&enqueued, &self.queue.context.spare)
            && error.kind() == ErrorKind::OutOfResources
            && spare.release()
        {
            // SAFETY: as above; the first attempt left nothing behind.
            enqueued = unsafe { self.submit(operation, &wait) };
        }
        drop(launch_guard);
        if let Some(batch) = batch {
            batch.start_if_full();
        }
        let submitted = enqueued?;
        let handler_guard = self.handler_guard(operation);
        let position = self.enqueued;
        self.enqueued += 1;
        let watch = self.watch.clone().map(|watch| (watch, position));
        let commands = 1 + std::mem::take(&mut self.without_event);
        let event =
            ClEvent::new(submitted, commands, self.profiling, watch, handler_guard, &self.queue);
        Ok(Arc::new(event))
    }

    unsafe fn enqueue_without_event(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Option<Arc<dyn NativeEvent>>> {
        let Context { workarounds, spare, .. } = &*self.queue.context;
        if let Operation::Launch { kernel, arguments, range } = operation
            && workarounds.omit_events
            && !self.profiling
        {
            let _call = shutdown::begin()?;
            let (kernel, wait) = (ClKernel::of(*kernel)?, WaitList::default());
            // SAFETY: the queue is alive; the caller guarantees the rest.
            let enqueued =
                unsafe { kernel.enqueue(self.queue.raw(), arguments, range, &wait, false) };
            if enqueued.is_ok() {
                self.enqueued += 1;
                self.without_event += 1;
                if let Some(spare) = spare {
                    spare.begin_command();
                }
                return Ok(None);
            }
        }
        // SAFETY: guaranteed by the caller; a failed attempt has left nothing behind.
        unsafe { self.enqueue(operation, &[]) }.map(Some)
    }

    fn flush(&mut self) -> Result<()> {
        let _call = shutdown::enter()?;
        self.queue.flush()
    }

    fn call(&mut self, run: &mut dyn FnMut(*mut c_void)) -> Result<()> {
        // The callee may compile.
        let _call = handler_guard::begin(CallKind::Compile)?;
        run(self.queue.raw());
        Ok(())
    }
}
