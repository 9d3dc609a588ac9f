//! Copies of rows of bytes.

use std::ptr;
use std::sync::Arc;

use super::host_memory::HostMemory;
use super::memory::Region;
use super::shared::Shared;
use crate::backend::{Memory, RowsOperation};
use crate::device::Rows;
use crate::error::Result;

/// Copy of rows that waits for its turn. Rows count from the start of their region.
pub(super) enum RowsAction {
    Write { to: Region, rows: Rows, from: HostMemory<*const u8> },
    Read { from: Region, rows: Rows, to: HostMemory<*mut u8> },
    Copy { from: Region, source: Rows, to: Region, target: Rows },
}

impl RowsAction {
    /// Checks the operation as a driver does, and captures it.
    pub(super) fn capture(shared: &Arc<Shared>, operation: &RowsOperation<'_>) -> Result<Self> {
        Ok(match *operation {
            RowsOperation::Write { to, rows, from } => {
                let (to, rows) = covering(to, rows, shared)?;
                Self::Write { to, rows, from: HostMemory(from) }
            }
            RowsOperation::Read { from, rows, to } => {
                let (from, rows) = covering(from, rows, shared)?;
                Self::Read { from, rows, to: HostMemory(to) }
            }
            RowsOperation::Copy { from, source, to, target } => {
                let (from, source) = covering(from, source, shared)?;
                let (to, target) = covering(to, target, shared)?;
                Self::Copy { from, source, to, target }
            }
        })
    }

    /// Returns the number of bytes that the action moves between the host's memory and the device's.
    pub(super) fn transferred(&self) -> usize {
        match self {
            Self::Write { rows, .. } | Self::Read { rows, .. } => rows.total(),
            Self::Copy { .. } => 0,
        }
    }

    pub(super) fn run(self) {
        match self {
            Self::Write { to, rows, from } => to.with_mut(|bytes| {
                for (row, host) in rows.iter().zip(rows.packed(0).iter()) {
                    let (row, from) = (&mut bytes[row], from.0.wrapping_add(host.start));
                    // SAFETY: the caller that enqueued the action vouches for as many bytes as the rows have.
                    // Host memory never overlaps device memory.
                    unsafe { ptr::copy_nonoverlapping(from, row.as_mut_ptr(), row.len()) }
                }
            }),
            Self::Read { from, rows, to } => from.with(|bytes| {
                for (row, host) in rows.iter().zip(rows.packed(0).iter()) {
                    let (row, to) = (&bytes[row], to.0.wrapping_add(host.start));
                    // SAFETY: as for writing, and no other code accesses the host memory.
                    unsafe { ptr::copy_nonoverlapping(row.as_ptr(), to, row.len()) }
                }
            }),
            // Copies by way of the host, because holding two locks at a time could deadlock with another native
            // queue.
            Self::Copy { from, source, to, target } => {
                let copied = from.with(|bytes| {
                    source.iter().flat_map(|row| bytes[row].to_vec()).collect::<Vec<_>>()
                });
                to.with_mut(|bytes| {
                    for (row, host) in target.iter().zip(target.packed(0).iter()) {
                        bytes[row].copy_from_slice(&copied[host]);
                    }
                });
            }
        }
    }
}

/// Returns the region that the rows cover, and the rows from its start on.
fn covering(memory: &dyn Memory, rows: Rows, shared: &Arc<Shared>) -> Result<(Region, Rows)> {
    let range = rows.range();
    let region = Region::of(memory, &shared.counters)?.part(range.start, range.len())?;
    Ok((region, Rows { offset: 0, ..rows }))
}
