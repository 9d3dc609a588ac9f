//! In-order immediate command lists. With drivers that are older than such lists, each command waits for the
//! one before it.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use super::bindings::*;
use super::codes::check;
use super::command_list::LzCommandList;
use super::context::Context;
use super::event::{EndActions, LzEvent, QueueState, WaitList};
use super::event_pool::RawEvent;
use super::handle::OwnedList;
use super::operation::append;
use crate::backend::handler_guard::{self, CallKind};
use crate::backend::{
    CommandList, NativeEvent, NativeQueue, Operation, OperationSource, no_command_lists_error,
    shutdown,
};
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

    /// Returns the command list, inside a call of the driver.
    fn raw(&self) -> ze_command_list_handle_t {
        self.list.as_ref().map_or(ptr::null_mut(), OwnedList::raw)
    }

    /// Calls `append` with an event to signal and the events to wait for, and returns the event.
    fn append_with_event(
        &mut self,
        wait: &[Arc<dyn NativeEvent>],
        append: impl FnOnce(
            ze_command_list_handle_t,
            ze_event_handle_t,
            &WaitList,
            &mut EndActions,
        ) -> Result<()>,
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
        if let Err(error) = append(self.raw(), signal.raw(), &wait, &mut end_actions) {
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
}

impl NativeQueue for LzNativeQueue {
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        let context = self.state.context.clone();
        self.append_with_event(wait, |list, signal, wait, end_actions| {
            // SAFETY: guaranteed by the caller. The event, and the events that are waited for, are kept.
            unsafe { append(&context, list, operation, signal, wait, end_actions) }
        })
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
            unsafe {
                append(context, self.raw(), operation, no_event, &no_wait, &mut end_actions)
            }?;
            self.ends_without_event = true;
            return Ok(None);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.enqueue(operation, &[]) }.map(Some)
    }

    fn has_command_lists(&self) -> bool {
        self.state.context.append_lists.is_some() && !self.profiling
    }

    unsafe fn record(&mut self, operations: OperationSource<'_>) -> Result<Arc<dyn CommandList>> {
        let context = &self.state.context;
        if let Some(lost) = context.loss() {
            return Err(lost.clone());
        }
        // SAFETY: guaranteed by the caller.
        Ok(Arc::new(unsafe { LzCommandList::record(context, operations) }?))
    }

    unsafe fn execute(
        &mut self,
        list: &Arc<dyn CommandList>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        let closed = LzCommandList::of(list)?;
        let context = self.state.context.clone();
        let append_lists = context.append_lists.ok_or_else(no_command_lists_error)?;
        self.append_with_event(wait, |list, signal, wait, end_actions| {
            let mut raw = closed.raw();
            // SAFETY: both lists are alive, and the closed one is kept until its commands have ended. The caller
            // guarantees that it is not in execution.
            let appended =
                unsafe { append_lists(list, 1, &raw mut raw, signal, wait.len(), wait.as_ptr()) };
            check(appended)
                .map_err(|code| context.error(code, "the driver refused a command list"))?;
            end_actions.list = Some(closed);
            Ok(())
        })
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
        run(self.raw().cast());
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
