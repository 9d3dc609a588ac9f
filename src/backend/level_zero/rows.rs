//! Copies of rows of bytes: rectangles and boxes of buffers. Each row is a copy of its own.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::bindings::*;
use super::codes::{Code, check};
use super::context::Context;
use super::event::{Destination, EndActions, WaitList};
use super::memory::{LzMemory, Staging};
use crate::backend::RowsOperation;
use crate::error::{Error, Result};

/// Appends a copy of rows that signals `signal`.
///
/// # Safety
///
/// The list is alive. The rest is as for [`NativeQueue::enqueue`](crate::backend::NativeQueue::enqueue), until
/// `signal` is signalled.
pub(super) unsafe fn append(
    context: &Arc<Context>,
    list: ze_command_list_handle_t,
    operation: &RowsOperation<'_>,
    signal: ze_event_handle_t,
    wait: &WaitList,
    end_actions: &mut EndActions,
) -> Result<()> {
    let ((to, to_rows), (from, from_rows)) = match *operation {
        RowsOperation::Write { to, rows, from } => {
            let staging = Staging::take(context, rows.total())?;
            // SAFETY: the caller provides as many bytes, and the staging memory has room for them.
            unsafe { ptr::copy_nonoverlapping(from, staging.start(), rows.total()) };
            let staged = (staging.start().cast::<c_void>(), rows.packed(0));
            end_actions.staging = Some(staging);
            ((LzMemory::of(to)?.at(0), rows), staged)
        }
        RowsOperation::Read { from, rows, to } => {
            let staging = Staging::take(context, rows.total())?;
            let staged = (staging.start().cast::<c_void>(), rows.packed(0));
            end_actions.staging = Some(staging);
            end_actions.read = Some(Destination { to, bytes: rows.total() });
            (staged, (LzMemory::of(from)?.at(0), rows))
        }
        RowsOperation::Copy { from, source, to, target } => {
            ((LzMemory::of(to)?.at(0), target), (LzMemory::of(from)?.at(0), source))
        }
    };
    let refused = |code: Code| context.error(code, "the driver refused a copy of rows");
    let (append_barrier, append_copy) =
        (context.api.zeCommandListAppendBarrier, context.api.zeCommandListAppendMemoryCopy);
    // SAFETY: the list and the events are alive.
    let began = unsafe { append_barrier(list, ptr::null_mut(), wait.len(), wait.as_ptr()) };
    check(began).map_err(refused)?;
    for (to_row, from_row) in to_rows.iter().zip(from_rows.iter()) {
        let to = to.wrapping_byte_add(to_row.start);
        let from = from.wrapping_byte_add(from_row.start);
        // SAFETY: the list is alive, the rows are inside their memory, and staging memory is kept.
        let appended = unsafe {
            append_copy(list, to, from, to_row.len(), ptr::null_mut(), 0, ptr::null_mut())
        };
        check(appended).map_err(|code| abandon(context, code, end_actions))?;
    }
    // A barrier ends after all commands before it, also on lists that do not keep their order.
    // SAFETY: the list and the event are alive.
    let ended = unsafe { append_barrier(list, signal, 0, ptr::null_mut()) };
    check(ended).map_err(|code| abandon(context, code, end_actions))
}

/// Handles an error after some rows were appended, whose end will not be known. The device counts as lost, so that
/// it keeps its memory.
fn abandon(context: &Context, code: Code, end_actions: &mut EndActions) -> Error {
    if let Some(staging) = end_actions.staging.take() {
        staging.leak();
    }
    context.lose(code)
}
