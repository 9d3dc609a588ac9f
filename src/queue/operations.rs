//! Operations of the backends on regions of memory, whether these are of buffers or of images.

use crate::args::region::Region;
use crate::backend::{ImageOperation, Operation, RowsOperation};

/// Maximum number of bytes in one piece of a fill; a multiple of the sizes of all patterns. NVIDIA's
/// OpenCL driver (580.159.04) never returns from a fill of 2 GiB in single bytes. Intel's Level Zero
/// driver (1.3.39122) writes the last bytes of a fill of more than 4 GiB, those beyond a whole number of
/// its work-groups, 4 GiB too early.
pub(crate) const MAX_FILL_PIECE: usize = 256 << 20;

/// Returns the write of host memory to a region.
pub(crate) fn write(to: &Region, (from, bytes): (*const u8, usize)) -> Operation<'_> {
    let (memory, offset) = (to.memory(), to.bytes().start);
    match (to.pixels(), to.rows()) {
        (Some(pixels), _) => Operation::Image(ImageOperation::Write { to: memory, pixels, from }),
        (None, Some(rows)) => {
            Operation::Rows(RowsOperation::Write { to: memory, rows: *rows, from })
        }
        (None, None) => Operation::Write { to: memory, offset, from, bytes },
    }
}

/// Returns the read of a region to host memory.
pub(crate) fn read(from: &Region, to: *mut u8) -> Operation<'_> {
    let (memory, offset, bytes) = (from.memory(), from.bytes().start, from.bytes().len());
    match (from.pixels(), from.rows()) {
        (Some(pixels), _) => Operation::Image(ImageOperation::Read { from: memory, pixels, to }),
        (None, Some(rows)) => {
            Operation::Rows(RowsOperation::Read { from: memory, rows: *rows, to })
        }
        (None, None) => Operation::Read { from: memory, offset, to, bytes },
    }
}

/// Returns the fill of a region. For an image, the pattern is a color, and zeros are black.
pub(crate) fn fill<'a>(region: &'a Region, pattern: &'a [u8]) -> Operation<'a> {
    let (memory, bytes) = (region.memory(), region.bytes());
    match region.pixels() {
        Some(pixels) => {
            let mut color = [0; 4];
            for (channel, bytes) in color.iter_mut().zip(pattern.as_chunks().0) {
                *channel = u32::from_ne_bytes(*bytes);
            }
            Operation::Image(ImageOperation::Fill { image: memory, pixels, color })
        }
        None => Operation::Fill { memory, offset: bytes.start, bytes: bytes.len(), pattern },
    }
}

/// Returns the copy of one region to another one, of which each may be of a buffer or of an image.
pub(crate) fn copy<'a>(from: &'a Region, to: &'a Region) -> Operation<'a> {
    let (source, target) = (from.pixels(), to.pixels());
    let (from_offset, to_offset) = (from.bytes().start, to.bytes().start);
    let bytes = to.bytes().len();
    let rows = match (from.rows().copied(), to.rows().copied()) {
        (Some(source), target) => {
            Some((source, target.unwrap_or_else(|| source.packed(to_offset))))
        }
        (None, Some(target)) => Some((target.packed(from_offset), target)),
        (None, None) => None,
    };
    let (from, to) = (from.memory(), to.memory());
    if let Some((source, target)) = rows {
        return Operation::Rows(RowsOperation::Copy { from, source, to, target });
    }
    match (source, target) {
        (None, None) => Operation::Copy { from, from_offset, to, to_offset, bytes },
        (Some(source), Some(target)) => {
            Operation::Image(ImageOperation::Copy { from, source, to, target })
        }
        (None, Some(pixels)) => Operation::Image(ImageOperation::CopyFromBuffer {
            from,
            offset: from_offset,
            to,
            pixels,
        }),
        (Some(pixels), None) => {
            Operation::Image(ImageOperation::CopyToBuffer { from, pixels, to, offset: to_offset })
        }
    }
}

/// Returns the longest pattern of zeros, up to 16 bytes, whose length divides `bytes`. Some drivers fill
/// faster with long patterns.
pub(super) fn zeros(bytes: usize) -> &'static [u8] {
    const MAX_LENGTH: usize = 16;
    let length = 1 << bytes.trailing_zeros().min(MAX_LENGTH.trailing_zeros());
    &[0; MAX_LENGTH][..length]
}
