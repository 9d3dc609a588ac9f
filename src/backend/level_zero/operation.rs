//! Operations in the form in which they are appended to command lists.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::bindings::*;
use super::codes::{Code, check};
use super::context::Context;
use super::event::{Destination, EndActions, WaitList};
use super::kernel::LzKernel;
use super::memory::{LzMemory, Staging};
use super::{image, rows};
use crate::backend::Operation;
use crate::error::Result;

/// Appends an operation that signals `signal`.
///
/// # Safety
///
/// The list is alive. The rest is as for [`NativeQueue::enqueue`](crate::backend::NativeQueue::enqueue), until
/// `signal` is signalled.
pub(super) unsafe fn append(
    context: &Arc<Context>,
    list: ze_command_list_handle_t,
    operation: &Operation<'_>,
    signal: ze_event_handle_t,
    wait: &WaitList,
    end_actions: &mut EndActions,
) -> Result<()> {
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
        // SAFETY: the list is alive.
        | Operation::Marker => unsafe { append_barrier(context, list, signal, wait) },
        Operation::Map { memory, offset, start, .. } => {
            // Host and device use the same addresses.
            start.store(LzMemory::of(memory)?.at(offset).cast(), SeqCst);
            // SAFETY: the list is alive.
            unsafe { append_barrier(context, list, signal, wait) }
        }
        Operation::Write { to, offset, from, bytes } => {
            let staging = Staging::take(context, bytes)?;
            // SAFETY: the caller provides `bytes` bytes, and the staging memory has room for them.
            unsafe { ptr::copy_nonoverlapping(from, staging.start(), bytes) };
            let (to, from) = (LzMemory::of(to)?.at(offset), staging.start());
            end_actions.staging = Some(staging);
            // SAFETY: the range is inside the memory, and the staging memory is kept.
            unsafe { append_copy(context, list, to, from.cast(), bytes, signal, wait) }
                .map_err(|code| refused(code, "a write", bytes, offset))
        }
        Operation::Read { from, offset, to, bytes } => {
            let staging = Staging::take(context, bytes)?;
            let (from, through) = (LzMemory::of(from)?.at(offset), staging.start());
            end_actions.staging = Some(staging);
            end_actions.read = Some(Destination { to, bytes });
            // SAFETY: the range is inside the memory, and the staging memory is kept.
            unsafe { append_copy(context, list, through.cast(), from, bytes, signal, wait) }
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
            unsafe { append_copy(context, list, to, from, bytes, signal, wait) }
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

/// Appends a barrier behind all earlier commands of the list.
///
/// # Safety
///
/// The list is alive.
pub(super) unsafe fn append_barrier(
    context: &Context,
    list: ze_command_list_handle_t,
    signal: ze_event_handle_t,
    wait: &WaitList,
) -> Result<()> {
    // SAFETY: the list and the events are alive.
    let appended = unsafe {
        (context.api.zeCommandListAppendBarrier)(list, signal, wait.len(), wait.as_ptr())
    };
    check(appended).map_err(|code| context.error(code, "the driver refused a marker"))
}

/// # Safety
///
/// The list is alive. `to` and `from` are memory of the device or staging memory, and have `bytes` bytes until `signal` is
/// signalled.
unsafe fn append_copy(
    context: &Context,
    list: ze_command_list_handle_t,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    signal: ze_event_handle_t,
    wait: &WaitList,
) -> Result<(), Code> {
    // SAFETY: the list and the events are alive; the caller guarantees the memory.
    check(unsafe {
        (context.api.zeCommandListAppendMemoryCopy)(
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
