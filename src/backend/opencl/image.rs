//! Images: their creation, and the commands on their pixels.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use opencl3::command_queue::*;
use opencl3::memory::*;

use super::adopt;
use super::codes::{allocation_kind, error, error_of};
use super::context::Context;
use super::event::WaitList;
use super::handle::OwnedMemory;
use super::image_format::{format_of, known_format, type_of};
use super::memory::{ClMemory, next_id};
use crate::backend::{ImageOperation, Memory, no_part_of_image, shutdown};
use crate::device::{ImageBox, ImageKind, ImageShape};
use crate::error::{Error, ErrorKind, Result};

/// Image of any kind.
pub(super) struct ClImage {
    id: u64,
    /// Declared before the buffer, so released before it.
    memory: OwnedMemory,
    /// View of the buffer whose elements are the image's pixels, for an image over a buffer.
    _buffer: Option<ClMemory>,
    _context: Arc<Context>,
}

impl ClImage {
    pub(super) fn create(context: &Arc<Context>, shape: &ImageShape) -> Result<Self> {
        let _call = shutdown::begin()?;
        Self::create_over(context, shape, None)
    }

    /// Creates an image over a buffer, or with memory of its own.
    pub(super) fn create_over(
        context: &Arc<Context>,
        shape: &ImageShape,
        buffer: Option<ClMemory>,
    ) -> Result<Self> {
        check_format(context, shape)?;
        let format = format_of(shape.format);
        let [width, height, depth] = shape.size;
        let layers = match shape.kind {
            ImageKind::D1Array => height,
            ImageKind::D2Array => depth,
            _ => 0,
        };
        let description = cl_image_desc {
            image_type: type_of(shape.kind),
            image_width: width,
            image_height: height,
            image_depth: depth,
            image_array_size: layers,
            image_row_pitch: 0,
            image_slice_pitch: 0,
            num_mip_levels: 0,
            num_samples: 0,
            buffer: buffer.as_ref().map_or(ptr::null_mut(), ClMemory::raw),
        };
        // SAFETY: the context and the buffer, if there is one, are alive, the format and the description are
        // complete, and these flags take no host memory.
        let created = unsafe {
            create_image(
                context.raw(),
                CL_MEM_READ_WRITE,
                &raw const format,
                &raw const description,
                ptr::null_mut(),
            )
        };
        let raw = created.map_err(|code| {
            let name = &context.info.name;
            match allocation_kind(code) {
                // PoCL lists formats of such images, and refuses each.
                kind if buffer.is_some() && kind != ErrorKind::OutOfResources => {
                    let problem = format!("`{name}` refused an image over a buffer");
                    error_of(ErrorKind::Unsupported, code, problem)
                }
                kind => error_of(kind, code, format!("`{name}` refused the image")),
            }
        })?;
        // SAFETY: just created, and referenced here alone.
        let memory = unsafe { OwnedMemory::new(raw) };
        Ok(Self { id: next_id(), memory, _buffer: buffer, _context: Arc::clone(context) })
    }

    /// Takes an image that the driver allocated for other code. Returns it with its shape.
    ///
    /// # Safety
    ///
    /// `raw` is a memory object that is alive, if it is not null.
    pub(super) unsafe fn adopt(context: &Arc<Context>, raw: cl_mem) -> Result<(Self, ImageShape)> {
        let _call = shutdown::begin()?;
        // SAFETY: guaranteed by the caller.
        let (memory, shape) = unsafe { adopt::image(context, raw)? };
        let _context = Arc::clone(context);
        Ok((Self { id: next_id(), memory, _buffer: None, _context }, shape))
    }

    /// Returns this backend's image behind the trait object. Fails if it is a buffer or belongs to another backend.
    fn of(memory: &dyn Memory) -> Result<&Self> {
        Self::try_of(memory)
            .ok_or_else(|| Error::invalid("the memory is not an image of a device of this backend"))
    }

    /// Returns this backend's image behind the trait object, if it is one.
    pub(super) fn try_of(memory: &dyn Memory) -> Option<&Self> {
        (memory as &dyn Any).downcast_ref()
    }

    /// Returns an id that no other memory object has, not even a released one. Pointers are reused.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn raw(&self) -> cl_mem {
        self.memory.raw()
    }
}

impl Memory for ClImage {
    fn view(&self, _offset: usize, _bytes: usize) -> Result<Arc<dyn Memory>> {
        Err(no_part_of_image())
    }

    fn is_image(&self) -> bool {
        true
    }

    fn handle(&self) -> Result<*mut c_void> {
        let _call = shutdown::enter()?;
        Ok(self.raw())
    }
}

/// Fails if the device has no images of this kind and format.
fn check_format(context: &Context, shape: &ImageShape) -> Result<()> {
    let listed = get_supported_image_formats(context.raw(), CL_MEM_READ_WRITE, type_of(shape.kind));
    let listed = listed.map_err(|code| {
        error(code, format!("`{}` does not list its image formats", context.info.name))
    })?;
    let known: Vec<_> = listed.into_iter().filter_map(known_format).collect();
    if known.contains(&shape.format) {
        return Ok(());
    }
    let mut names: Vec<_> = known.iter().map(|format| format!("`{format}`")).collect();
    names.sort();
    Err(Error::unsupported(format!(
        "`{}` has no `{}` of the format `{}`; it has {}",
        context.info.name,
        shape.kind.type_name(),
        shape.format,
        if names.is_empty() { "no formats of that kind".to_owned() } else { names.join(", ") }
    )))
}

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
            enqueued.map_err(|code| refused(code, "a write", pixels))
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
            enqueued.map_err(|code| refused(code, "a read", pixels))
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
            enqueued.map_err(|code| refused(code, "a fill", pixels))
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
            enqueued.map_err(|code| refused(code, "a copy", target))
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
            enqueued.map_err(|code| refused_beside_buffer(code, "a copy from a buffer", pixels))
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
            enqueued.map_err(|code| refused_beside_buffer(code, "a copy to a buffer", pixels))
        }
    }
}

/// Returns the error for a refused copy between a buffer and an image. NVIDIA's driver (580.159) copies only the first
/// layer of arrays of one dimension.
fn refused_beside_buffer(code: cl_int, what: &str, pixels: &ImageBox) -> Error {
    match (pixels.shape.kind, code) {
        (ImageKind::D1Array, CL_INVALID_VALUE) => error_of(
            ErrorKind::Unsupported,
            code,
            format!(
                "the driver makes no copies between buffers and an `image1d_array_t`, such as {what}; read \
                 and write the pixels, or use an image that `Runtime::image_2d` creates"
            ),
        ),
        _ => refused(code, what, pixels),
    }
}

fn refused(code: cl_int, what: &str, pixels: &ImageBox) -> Error {
    let ImageBox { shape, origin, size } = pixels;
    error(
        code,
        format!(
            "the driver refused {what} of {size:?} pixels at {origin:?} of an image of {shape}"
        ),
    )
}
