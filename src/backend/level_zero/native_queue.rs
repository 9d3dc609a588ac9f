//! In-order immediate command lists. With drivers that are older than such lists, each command waits for the
//! one before it.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use super::bindings::*;
use super::codes::{Code, check};
use super::context::Context;
use super::event::{Destination, EndActions, LzEvent, QueueState, WaitList};
use super::event_pool::RawEvent;
use super::handle::OwnedList;
use super::kernel::LzKernel;
use super::memory::{LzMemory, Staging};
use super::{image, rows};
use crate::backend::handler_guard::{self, CallKind};
use crate::backend::{NativeEvent, NativeQueue, Operation, shutdown};
use crate::error::Result;

/// Size in bytes above which a read is large. Any thread that detects the end of a smaller read copies its data
/// to the destination. Only the poller copies a large read, so that no other thread waits for the copy.
const LARGE_READ: usize = 64 << 10;

pub(super) struct LzNativeQueue {
    /// Command list; taken on drop.
    list: Option<OwnedList>,
    state: Arc<QueueState>,
    /// Number of commands enqueued so far.
    enqueued: u64,
    /// Whether the last command has no event.
    ends_without_event: bool,
    profiling: bool,
}

impl LzNativeQueue {
    pub(super) fn create(context: &Arc<Context>, profiling: bool) -> Result<Self> {
        if let Some(lost) = context.loss() {
            return Err(lost.clone());
        }
        let _call = shutdown::begin()?;
        let description = ze_command_queue_desc_t {
            stype: ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
            pNext: ptr::null(),
            ordinal: context.ordinal,
            index: 0,
            flags: ZE_COMMAND_QUEUE_FLAG_IN_ORDER,
            mode: ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS,
            priority: ZE_COMMAND_QUEUE_PRIORITY_NORMAL,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: context and device are alive and belong together, and the description is valid.
        let created = unsafe {
            (context.api.zeCommandListCreateImmediate)(
                context.raw(),
                context.device.0,
                &raw const description,
                &raw mut raw,
            )
        };
        check(created).map_err(|code| {
            context.error(code, format!("no queue can be created on `{}`", context.info.name))
        })?;
        // SAFETY: just created, and owned only here.
        let list = unsafe { OwnedList::new(context.api, raw) };
        let state = Arc::new(QueueState::new(context));
        Ok(Self { list: Some(list), state, enqueued: 0, ends_without_event: false, profiling })
    }

    /// Appends an operation that signals `signal`.
    ///
    /// # Safety
    ///
    /// As for [`NativeQueue::enqueue`], until `signal` is signalled.
    unsafe fn append(
        &self,
        operation: &Operation<'_>,
        signal: ze_event_handle_t,
        wait: &WaitList,
        end_actions: &mut EndActions,
    ) -> Result<()> {
        let context = &self.state.context;
        let list = self.list.as_ref().map_or(ptr::null_mut(), OwnedList::raw);
        let refused = |code: Code, what: &str, bytes: usize, offset: usize| {
            context.error(code, format!("the driver refused {what} of {bytes} bytes at {offset}"))
        };
        match *operation {
            Operation::Launch { kernel, arguments, range } => {
                let kernel = LzKernel::of(kernel)?;
                // SAFETY: the list is alive; the caller guarantees the rest.
                unsafe { kernel.append(list, arguments, range, signal, wait) }
            }
            Operation::Write { bytes: 0, .. }
            | Operation::Read { bytes: 0, .. }
            | Operation::Fill { bytes: 0, .. }
            | Operation::Copy { bytes: 0, .. }
            | Operation::Unmap { .. }
            | Operation::Marker => self.append_barrier(list, signal, wait),
            Operation::Map { memory, offset, start, .. } => {
                // Host and device use the same addresses.
                start.store(LzMemory::of(memory)?.at(offset).cast(), SeqCst);
                self.append_barrier(list, signal, wait)
            }
            Operation::Write { to, offset, from, bytes } => {
                let staging = Staging::take(context, bytes)?;
                // SAFETY: the caller provides `bytes` bytes, and the staging memory has room for them.
                unsafe { ptr::copy_nonoverlapping(from, staging.start(), bytes) };
                let (to, from) = (LzMemory::of(to)?.at(offset), staging.start());
                end_actions.staging = Some(staging);
                // SAFETY: the range is inside the memory, and the staging memory is kept.
                unsafe { self.append_copy(list, to, from.cast(), bytes, signal, wait) }
                    .map_err(|code| refused(code, "a write", bytes, offset))
            }
            Operation::Read { from, offset, to, bytes } => {
                let staging = Staging::take(context, bytes)?;
                let (from, through) = (LzMemory::of(from)?.at(offset), staging.start());
                end_actions.staging = Some(staging);
                end_actions.read = Some(Destination { to, bytes });
                // SAFETY: the range is inside the memory, and the staging memory is kept.
                unsafe { self.append_copy(list, through.cast(), from, bytes, signal, wait) }
                    .map_err(|code| refused(code, "a read", bytes, offset))
            }
            Operation::Fill { memory, offset, bytes, pattern } => {
                let memory = LzMemory::of(memory)?.at(offset);
                // SAFETY: the list and the events are alive, the range is inside the memory, and the driver
                // copies the pattern before it returns.
                let appended = unsafe {
                    (context.api.zeCommandListAppendMemoryFill)(
                        list,
                        memory,
                        pattern.as_ptr().cast(),
                        pattern.len(),
                        bytes,
                        signal,
                        wait.len(),
                        wait.as_ptr(),
                    )
                };
                check(appended).map_err(|code| refused(code, "a fill", bytes, offset))
            }
            Operation::Copy { from, from_offset, to, to_offset, bytes } => {
                let from = LzMemory::of(from)?.at(from_offset);
                let to = LzMemory::of(to)?.at(to_offset);
                // SAFETY: both ranges are inside their memory.
                unsafe { self.append_copy(list, to, from, bytes, signal, wait) }
                    .map_err(|code| refused(code, "a copy", bytes, to_offset))
            }
            // SAFETY: the list is alive; the caller guarantees the rest.
            Operation::Image(operation) => unsafe {
                image::append(context, list, &operation, signal, wait, end_actions)
            },
            // SAFETY: the list is alive; the caller guarantees the rest.
            Operation::Rows(operation) => unsafe {
                rows::append(context, list, &operation, signal, wait, end_actions)
            },
        }
    }

    fn append_barrier(
        &self,
        list: ze_command_list_handle_t,
        signal: ze_event_handle_t,
        wait: &WaitList,
    ) -> Result<()> {
        let context = &self.state.context;
        // SAFETY: the list and the events are alive.
        let appended = unsafe {
            (context.api.zeCommandListAppendBarrier)(list, signal, wait.len(), wait.as_ptr())
        };
        check(appended).map_err(|code| context.error(code, "the driver refused a marker"))
    }

    /// # Safety
    ///
    /// `to` and `from` are memory of the device or staging memory, and have `bytes` bytes until `signal` is
    /// signalled.
    unsafe fn append_copy(
        &self,
        list: ze_command_list_handle_t,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        signal: ze_event_handle_t,
        wait: &WaitList,
    ) -> Result<(), Code> {
        let api = self.state.context.api;
        // SAFETY: the list and the events are alive; the caller guarantees the memory.
        check(unsafe {
            (api.zeCommandListAppendMemoryCopy)(
                list,
                to,
                from,
                bytes,
                signal,
                wait.len(),
                wait.as_ptr(),
            )
        })
    }
}

impl NativeQueue for LzNativeQueue {
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        let context = &self.state.context;
        if let Some(lost) = context.loss() {
            return Err(lost.clone());
        }
        let _call = shutdown::begin()?;
        let mut wait = WaitList::new(wait)?;
        if !context.has_ordered_lists {
            // A command that is no longer in flight has ended.
            if let Some(latest) = self.state.latest() {
                wait.push(latest);
            }
        }
        let pool = &context.events[usize::from(self.profiling)];
        let signal = pool.take().map_err(|(code, message)| context.error(code, message))?;
        let queued = self.profiling.then(Instant::now);
        let mut end_actions = EndActions::default();
        // SAFETY: guaranteed by the caller. The event, and the events that are waited for, are kept.
        let appended = unsafe { self.append(operation, signal.raw(), &wait, &mut end_actions) };
        if let Err(error) = appended {
            give_back(context, signal, self.profiling);
            return Err(error);
        }
        end_actions.waits_for = wait.events;
        let is_large_read = end_actions.read.as_ref().is_some_and(|read| read.bytes > LARGE_READ);
        let position = self.enqueued;
        self.enqueued += 1;
        let event = LzEvent::new(&self.state, signal, position, queued, is_large_read, end_actions);
        let event = Arc::new(event);
        self.state.push(&event);
        self.ends_without_event = false;
        if is_large_read {
            self.state.watch(position);
        }
        Ok(event)
    }

    unsafe fn enqueue_without_event(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Option<Arc<dyn NativeEvent>>> {
        let context = &self.state.context;
        // On a list without an order, the next command waits for the event of this one. Other operations than launches
        // move data when their event has ended.
        if let Operation::Launch { .. } = operation
            && context.has_ordered_lists
            && !self.profiling
        {
            if let Some(lost) = context.loss() {
                return Err(lost.clone());
            }
            let _call = shutdown::begin()?;
            let (no_event, no_wait) = (ptr::null_mut(), WaitList::default());
            let mut end_actions = EndActions::default();
            // SAFETY: guaranteed by the caller.
            unsafe { self.append(operation, no_event, &no_wait, &mut end_actions) }?;
            self.ends_without_event = true;
            return Ok(None);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.enqueue(operation, &[]) }.map(Some)
    }

    fn flush(&mut self) -> Result<()> {
        // An immediate list submits each command as it is appended.
        Ok(())
    }

    fn call(&mut self, run: &mut dyn FnMut(*mut c_void)) -> Result<()> {
        if let Some(lost) = self.state.context.loss() {
            return Err(lost.clone());
        }
        // The callee may compile.
        let _call = handler_guard::begin(CallKind::Compile)?;
        run(self.list.as_ref().map_or(ptr::null_mut(), OwnedList::raw).cast());
        Ok(())
    }
}

/// Returns an event to its pool after a failed enqueue: no command signals it. If the device was lost
/// meanwhile, the event is leaked, because the device may still signal it.
fn give_back(context: &Context, event: RawEvent, profiling: bool) {
    if context.loss().is_some() {
        std::mem::forget(event);
    } else {
        context.events[usize::from(profiling)].give(event);
    }
}

impl Drop for LzNativeQueue {
    fn drop(&mut self) {
        // SAFETY: a marker accesses no memory.
        if self.ends_without_event && unsafe { self.enqueue(&Operation::Marker, &[]) }.is_err() {
            // Nothing reports when the list can be destroyed.
            std::mem::forget(self.list.take());
        }
        self.state.retire(self.list.take());
    }
}
