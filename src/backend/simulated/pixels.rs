//! Operations on boxes of pixels of images.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use super::codes::foreign_error;
use super::host_memory::HostMemory;
use super::memory::Region;
use super::shared::Shared;
use crate::backend::{ImageOperation, Memory};
use crate::device::{ImageBox, pixel_of};
use crate::error::Result;

/// Operation on pixels that waits for its turn. Rows are ranges of bytes.
pub(super) enum PixelAction {
    Write { to: Rows, from: HostMemory<*const u8> },
    Read { from: Rows, to: HostMemory<*mut u8> },
    Fill { to: Rows, pixel: Vec<u8> },
    Copy { from: Rows, to: Rows },
}

/// Rows of pixels of a memory.
pub(super) struct Rows {
    region: Region,
    rows: Vec<Range<usize>>,
}

impl Rows {
    fn of(image: &dyn Memory, pixels: &ImageBox, shared: &Arc<Shared>) -> Result<Self> {
        let region = Region::of(image, &shared.counters)?.clone();
        if !image.is_image() {
            return Err(foreign_error("memory"));
        }
        Ok(Self { region, rows: pixels.rows().collect() })
    }

    /// Returns the bytes of a buffer that hold as many pixels as the box, as one row.
    fn of_buffer(
        buffer: &dyn Memory,
        offset: usize,
        pixels: &ImageBox,
        shared: &Arc<Shared>,
    ) -> Result<Self> {
        let bytes = pixels.pixels() * pixels.shape.format.pixel_size();
        let region = Region::of(buffer, &shared.counters)?.part(offset, bytes)?;
        Ok(Self { region, rows: std::iter::once(0..bytes).collect() })
    }

    fn len(&self) -> usize {
        self.rows.iter().map(Range::len).sum()
    }

    fn to_vec(&self) -> Vec<u8> {
        self.region
            .with(|all| self.rows.iter().flat_map(|row| &all[row.clone()]).copied().collect())
    }

    /// Overwrites the rows with `bytes`, which are as many.
    fn set(&self, mut bytes: &[u8]) {
        self.region.with_mut(|all| {
            for row in &self.rows {
                let (own, rest) = bytes.split_at(row.len());
                all[row.clone()].copy_from_slice(own);
                bytes = rest;
            }
        });
    }
}

impl PixelAction {
    /// Captures an operation.
    pub(super) fn capture(shared: &Arc<Shared>, operation: &ImageOperation<'_>) -> Result<Self> {
        Ok(match *operation {
            ImageOperation::Write { to, pixels, from } => {
                Self::Write { to: Rows::of(to, pixels, shared)?, from: HostMemory(from) }
            }
            ImageOperation::Read { from, pixels, to } => {
                Self::Read { from: Rows::of(from, pixels, shared)?, to: HostMemory(to) }
            }
            ImageOperation::Fill { image, pixels, color } => Self::Fill {
                to: Rows::of(image, pixels, shared)?,
                pixel: pixel_of(color, pixels.shape.format),
            },
            ImageOperation::Copy { from, source, to, target } => Self::Copy {
                from: Rows::of(from, source, shared)?,
                to: Rows::of(to, target, shared)?,
            },
            ImageOperation::CopyFromBuffer { from, offset, to, pixels } => Self::Copy {
                from: Rows::of_buffer(from, offset, pixels, shared)?,
                to: Rows::of(to, pixels, shared)?,
            },
            ImageOperation::CopyToBuffer { from, pixels, to, offset } => Self::Copy {
                from: Rows::of(from, pixels, shared)?,
                to: Rows::of_buffer(to, offset, pixels, shared)?,
            },
        })
    }

    /// Returns the number of bytes that the action moves between the host's memory and the device's.
    pub(super) fn transferred(&self) -> usize {
        match self {
            Self::Write { to: rows, .. } | Self::Read { from: rows, .. } => rows.len(),
            Self::Fill { .. } | Self::Copy { .. } => 0,
        }
    }

    pub(super) fn run(self) {
        match self {
            Self::Write { to, from } => {
                let mut bytes = vec![0; to.len()];
                // SAFETY: the caller that enqueued the action vouches for as many bytes at `from`.
                unsafe { ptr::copy_nonoverlapping(from.0, bytes.as_mut_ptr(), bytes.len()) };
                to.set(&bytes);
            }
            Self::Read { from, to } => {
                let bytes = from.to_vec();
                // SAFETY: as for writing, and no other code accesses the bytes at `to`.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.0, bytes.len()) };
            }
            Self::Fill { to, pixel } => to.set(&pixel.repeat(to.len() / pixel.len())),
            // By way of the host, because holding two locks at a time could deadlock with another native queue.
            Self::Copy { from, to } => to.set(&from.to_vec()),
        }
    }
}
