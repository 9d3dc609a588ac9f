//! Copies of rows of bytes: rectangles and boxes of buffers.

use opencl3::command_queue::*;
use opencl3::types::{cl_command_queue, cl_event};

use super::codes::refused_error;
use super::event::WaitList;
use super::memory::ClMemory;
use crate::backend::RowsOperation;
use crate::device::Rows;
use crate::error::Result;

/// Origin of rows that follow each other without padding in host memory.
const HOST_ORIGIN: [usize; 3] = [0; 3];

/// Enqueues a copy of rows.
///
/// # Safety
///
/// The queue is alive. The rest is as for [`NativeQueue::enqueue`](crate::backend::NativeQueue::enqueue).
pub(super) unsafe fn enqueue(
    queue: cl_command_queue,
    operation: &RowsOperation<'_>,
    wait: &WaitList,
) -> Result<cl_event> {
    let (what, rows, enqueued) = match *operation {
        RowsOperation::Write { to, rows, from } => {
            let to = ClMemory::of(to)?.raw();
            let (origin, host) = (origin_of(&rows), rows.packed(0));
            // SAFETY: the queue, the memory and the events are alive, the rows are inside the memory, and the
            // caller keeps the host memory until the command's end.
            let enqueued = unsafe {
                enqueue_write_buffer_rect(
                    queue,
                    to,
                    CL_NON_BLOCKING,
                    origin.as_ptr(),
                    HOST_ORIGIN.as_ptr(),
                    rows.size().as_ptr(),
                    rows.row_pitch,
                    rows.slice_pitch,
                    host.row_pitch,
                    host.slice_pitch,
                    from.cast(),
                    wait.len(),
                    wait.as_ptr(),
                )
            };
            ("a write of rows", rows, enqueued)
        }
        RowsOperation::Read { from, rows, to } => {
            let from = ClMemory::of(from)?.raw();
            let (origin, host) = (origin_of(&rows), rows.packed(0));
            // SAFETY: the queue, the memory and the events are alive, the rows are inside the memory, and the
            // caller keeps the host memory, untouched, until the command's end.
            let enqueued = unsafe {
                enqueue_read_buffer_rect(
                    queue,
                    from,
                    CL_NON_BLOCKING,
                    origin.as_ptr(),
                    HOST_ORIGIN.as_ptr(),
                    rows.size().as_ptr(),
                    rows.row_pitch,
                    rows.slice_pitch,
                    host.row_pitch,
                    host.slice_pitch,
                    to.cast(),
                    wait.len(),
                    wait.as_ptr(),
                )
            };
            ("a read of rows", rows, enqueued)
        }
        RowsOperation::Copy { from, source, to, target } => {
            let (from, to) = (ClMemory::of(from)?.raw(), ClMemory::of(to)?.raw());
            let (from_origin, to_origin) = (origin_of(&source), origin_of(&target));
            // SAFETY: the queue, both memories and the events are alive, and the rows are inside the memories.
            let enqueued = unsafe {
                enqueue_copy_buffer_rect(
                    queue,
                    from,
                    to,
                    from_origin.as_ptr(),
                    to_origin.as_ptr(),
                    source.size().as_ptr(),
                    source.row_pitch,
                    source.slice_pitch,
                    target.row_pitch,
                    target.slice_pitch,
                    wait.len(),
                    wait.as_ptr(),
                )
            };
            ("a copy of rows", target, enqueued)
        }
    };
    enqueued.map_err(|code| refused_error(code, what, rows.total(), rows.offset))
}

/// Returns the position of the first byte, in bytes, rows and slices from the start of the memory.
fn origin_of(rows: &Rows) -> [usize; 3] {
    let in_slice = rows.offset % rows.slice_pitch;
    [in_slice % rows.row_pitch, in_slice / rows.row_pitch, rows.offset / rows.slice_pitch]
}
