//! Commands on the pixels of images.

use opencl3::command_queue::*;

use super::codes::{error, error_of};
use super::event::WaitList;
use super::memory::{ClImage, ClMemory};
use crate::backend::ImageOperation;
use crate::device::{ImageBox, ImageKind};
use crate::error::{Error, ErrorKind, Result};

/// Passes an operation to the driver, behind the events in `wait`.
///
/// # Safety
///
/// As for [`NativeQueue::enqueue`](crate::backend::NativeQueue::enqueue); the queue is alive.
pub(super) unsafe fn enqueue(
    queue: cl_command_queue,
    operation: &ImageOperation<'_>,
    wait: &WaitList,
) -> Result<cl_event> {
    match *operation {
        ImageOperation::Write { to, pixels, from } => {
            let image = ClImage::of(to)?.raw();
            // SAFETY: all objects are alive, the box lies inside the image, and the caller keeps the host memory,
            // which has as many pixels, until the command's end.
            let enqueued = unsafe {
                enqueue_write_image(
                    queue,
                    image,
                    CL_NON_BLOCKING,
                    pixels.origin.as_ptr(),
                    pixels.size.as_ptr(),
                    0,
                    0,
                    from.cast_mut().cast(),
                    wait.len(),
                    wait.as_ptr(),
                )
            };
            enqueued.map_err(|code| refused_error(code, "a write", pixels))
        }
        ImageOperation::Read { from, pixels, to } => {
            let image = ClImage::of(from)?.raw();
            // SAFETY: as for a write; no other code uses the host memory.
            let enqueued = unsafe {
                enqueue_read_image(
                    queue,
                    image,
                    CL_NON_BLOCKING,
                    pixels.origin.as_ptr(),
                    pixels.size.as_ptr(),
                    0,
                    0,
                    to.cast(),
                    wait.len(),
                    wait.as_ptr(),
                )
            };
            enqueued.map_err(|code| refused_error(code, "a read", pixels))
        }
        ImageOperation::Fill { image, pixels, color } => {
            let image = ClImage::of(image)?.raw();
            // SAFETY: all objects are alive, the box lies inside the image, and the driver copies the four numbers
            // of the color before it returns.
            let enqueued = unsafe {
                enqueue_fill_image(
                    queue,
                    image,
                    color.as_ptr().cast(),
                    pixels.origin.as_ptr(),
                    pixels.size.as_ptr(),
                    wait.len(),
                    wait.as_ptr(),
                )
            };
            enqueued.map_err(|code| refused_error(code, "a fill", pixels))
        }
        ImageOperation::Copy { from, source, to, target } => {
            let (from, to) = (ClImage::of(from)?.raw(), ClImage::of(to)?.raw());
            // SAFETY: all objects are alive, and both boxes lie inside their images.
            let enqueued = unsafe {
                enqueue_copy_image(
                    queue,
                    from,
                    to,
                    source.origin.as_ptr(),
                    target.origin.as_ptr(),
                    target.size.as_ptr(),
                    wait.len(),
                    wait.as_ptr(),
                )
            };
            enqueued.map_err(|code| refused_error(code, "a copy", target))
        }
        ImageOperation::CopyFromBuffer { from, offset, to, pixels } => {
            let (from, to) = (ClMemory::of(from)?.raw(), ClImage::of(to)?.raw());
            // SAFETY: all objects are alive, the box lies inside the image, and the buffer has as many pixels.
            let enqueued = unsafe {
                enqueue_copy_buffer_to_image(
                    queue,
                    from,
                    to,
                    offset,
                    pixels.origin.as_ptr(),
                    pixels.size.as_ptr(),
                    wait.len(),
                    wait.as_ptr(),
                )
            };
            enqueued.map_err(|code| buffer_copy_error(code, "a copy from a buffer", pixels))
        }
        ImageOperation::CopyToBuffer { from, pixels, to, offset } => {
            let (from, to) = (ClImage::of(from)?.raw(), ClMemory::of(to)?.raw());
            // SAFETY: as for a copy from a buffer.
            let enqueued = unsafe {
                enqueue_copy_image_to_buffer(
                    queue,
                    from,
                    to,
                    pixels.origin.as_ptr(),
                    pixels.size.as_ptr(),
                    offset,
                    wait.len(),
                    wait.as_ptr(),
                )
            };
            enqueued.map_err(|code| buffer_copy_error(code, "a copy to a buffer", pixels))
        }
    }
}

/// Returns the error for a refused copy between a buffer and an image. NVIDIA's driver (580.159) copies only the first
/// layer of arrays of one dimension.
fn buffer_copy_error(code: cl_int, what: &str, pixels: &ImageBox) -> Error {
    match (pixels.shape.kind, code) {
        (ImageKind::D1Array, CL_INVALID_VALUE) => error_of(
            ErrorKind::Unsupported,
            code,
            format!(
                "the driver makes no copies between buffers and an `image1d_array_t`, such as {what}; read \
                 and write the pixels, or use an image that `Runtime::image_2d` creates"
            ),
        ),
        _ => refused_error(code, what, pixels),
    }
}

fn refused_error(code: cl_int, what: &str, pixels: &ImageBox) -> Error {
    let ImageBox { shape, origin, size } = pixels;
    error(
        code,
        format!(
            "the driver refused {what} of {size:?} pixels at {origin:?} of an image of {shape}"
        ),
    )
}
