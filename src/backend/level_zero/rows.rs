//! Copies of rows of bytes: rectangles and boxes of buffers. Each row is a copy of its own.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::bindings::*;
use super::context::Context;
use super::event::{Destination, EndActions, WaitList};
use super::memory::{LzMemory, Staging};
use super::sequence;
use crate::backend::RowsOperation;
use crate::error::Result;

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
    let append_copy = context.api.zeCommandListAppendMemoryCopy;
    let copies = to_rows.iter().zip(from_rows.iter()).map(|(to_row, from_row)| {
        let to = to.wrapping_byte_add(to_row.start);
        let from = from.wrapping_byte_add(from_row.start);
        // SAFETY: the list is alive, the rows are inside their memory, and staging memory is kept.
        unsafe { append_copy(list, to, from, to_row.len(), ptr::null_mut(), 0, ptr::null_mut()) }
    });
    // SAFETY: the list is alive.
    unsafe { sequence::append(context, list, signal, wait, end_actions, "a copy of rows", copies) }
}
