//! Copies of rows of bytes: rectangles and boxes of buffers.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::bindings::*;
use super::codes::check;
use super::context::Context;
use super::event::{Destination, EndActions, WaitList};
use super::memory::{LzMemory, Staging};
use crate::backend::RowsOperation;
use crate::device::Rows;
use crate::error::{Error, Result};

/// Start of rows in memory, and their distances as the driver takes them.
struct Pitched {
    start: *mut c_void,
    region: ze_copy_region_t,
    row_pitch: u32,
    slice_pitch: u32,
}

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
    let (to, from) = match *operation {
        RowsOperation::Write { to, rows, from } => {
            let staging = Staging::take(context, rows.total())?;
            // SAFETY: the caller provides as many bytes, and the staging memory has room for them.
            unsafe { ptr::copy_nonoverlapping(from, staging.start(), rows.total()) };
            let staged = Pitched::new(staging.start().cast(), &rows.packed(0))?;
            end_actions.staging = Some(staging);
            (Pitched::of(LzMemory::of(to)?, &rows)?, staged)
        }
        RowsOperation::Read { from, rows, to } => {
            let staging = Staging::take(context, rows.total())?;
            let staged = Pitched::new(staging.start().cast(), &rows.packed(0))?;
            end_actions.staging = Some(staging);
            end_actions.read = Some(Destination { to, bytes: rows.total() });
            (staged, Pitched::of(LzMemory::of(from)?, &rows)?)
        }
        RowsOperation::Copy { from, source, to, target } => {
            let to = Pitched::of(LzMemory::of(to)?, &target)?;
            (to, Pitched::of(LzMemory::of(from)?, &source)?)
        }
    };
    // SAFETY: the list and the events are alive, the rows are inside their memory, and staging memory is kept.
    let appended = unsafe {
        (context.api.zeCommandListAppendMemoryCopyRegion)(
            list,
            to.start,
            &raw const to.region,
            to.row_pitch,
            to.slice_pitch,
            from.start,
            &raw const from.region,
            from.row_pitch,
            from.slice_pitch,
            signal,
            wait.len(),
            wait.as_ptr(),
        )
    };
    check(appended).map_err(|code| context.error(code, "the driver refused a copy of rows"))
}

impl Pitched {
    fn of(memory: &LzMemory, rows: &Rows) -> Result<Self> {
        Self::new(memory.at(rows.offset), rows)
    }

    fn new(start: *mut c_void, rows: &Rows) -> Result<Self> {
        let number = |value: usize| {
            u32::try_from(value).map_err(|_| {
                Error::unsupported(format!(
                    "{value} bytes or rows in a copy of rows; Level Zero copies fewer than 2^32"
                ))
            })
        };
        let region = ze_copy_region_t {
            width: number(rows.bytes)?,
            height: number(rows.rows)?,
            depth: number(rows.slices)?,
            ..Default::default()
        };
        // The distance of slices does not matter if there is one.
        let slice_pitch = if rows.slices == 1 { 0 } else { number(rows.slice_pitch)? };
        Ok(Self { start, region, row_pitch: number(rows.row_pitch)?, slice_pitch })
    }
}
