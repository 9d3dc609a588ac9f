//! Memory objects: buffers, the views of them that are passed to kernels, and images.

use std::any::Any;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use opencl3::memory::*;

use super::adopt;
use super::codes::{allocation_kind, error, error_of};
use super::context::Context;
use super::handle::OwnedMemory;
use super::image_format::{format_of, known_format, type_of};
use super::spare_memory::Piece;
use crate::backend::{GivenMemory, Memory, check_view, image_part_error, own_object, shutdown};
use crate::device::{ImageKind, ImageShape};
use crate::error::{Error, ErrorKind, Result};

/// Whole buffer, or a view of one. Offsets of commands on a view count from its start.
pub(super) struct ClMemory {
    id: u64,
    /// View, unless this is the whole buffer. Declared before the whole, so released before it.
    view: Option<Arc<OwnedMemory>>,
    /// Offset of the view in the whole.
    start: usize,
    bytes: usize,
    whole: Arc<Whole>,
}

/// Memory that was allocated at once.
struct Whole {
    /// Moved out when the whole is dropped.
    piece: ManuallyDrop<Piece>,
    bytes: usize,
    /// Whether the memory may be kept for other buffers: Kiln allocated it, and for the device alone.
    is_reusable: bool,
    context: Arc<Context>,
}

impl Drop for Whole {
    fn drop(&mut self) {
        // Memory that can no longer be released is not kept for other buffers either.
        let Ok(_call) = shutdown::enter() else { return };
        // SAFETY: taken once, here, and not used again.
        let piece = unsafe { ManuallyDrop::take(&mut self.piece) };
        match &self.context.spare {
            Some(spare) if self.is_reusable => spare.give(piece, self.bytes),
            _ => drop(piece),
        }
    }
}

impl ClMemory {
    pub(super) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let _call = shutdown::begin()?;
        let info = &context.info;
        // NVIDIA's driver accepts any size and fails at the first use.
        let limit = info.limits.global_memory;
        if limit > 0 && u64::try_from(bytes).is_ok_and(|bytes| bytes > limit) {
            let message = format!(
                "{bytes} bytes are more than the global memory of `{}`, {limit} bytes",
                info.name
            );
            return Err(Error::new(ErrorKind::OutOfResources, message));
        }
        let reused = context.spare.as_ref().and_then(|spare| spare.take(bytes));
        let piece = reused.map_or_else(|| Self::create(context, bytes, CL_MEM_READ_WRITE), Ok);
        let piece = piece.inspect_err(|_| {
            if let Some(spare) = &context.spare {
                spare.cancel(bytes);
            }
        })?;
        Ok(Self::whole(context, piece, bytes, true))
    }

    /// Takes a buffer that the driver allocated for other code, of which `bytes` bytes are used.
    ///
    /// # Safety
    ///
    /// `raw` is a memory object that is alive, if it is not null.
    pub(super) unsafe fn adopt(
        context: &Arc<Context>,
        raw: cl_mem,
        bytes: usize,
    ) -> Result<GivenMemory> {
        let _call = shutdown::begin()?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { adopt::buffer(context, raw, bytes)? };
        let (piece, mut start) = (Piece::new(given.whole), 0);
        if let Some((part, at)) = given.part {
            piece.keep_first(&Arc::new(part), at, bytes);
            start = at;
        }
        let memory = Self::whole(context, piece, given.bytes, false);
        Ok(GivenMemory { memory: Arc::new(memory), bytes: given.bytes, start })
    }

    /// Allocates memory that host and device share.
    pub(super) fn allocate_on_host(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let _call = shutdown::begin()?;
        let piece = Self::create(context, bytes, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR)?;
        Ok(Self::whole(context, piece, bytes, false))
    }

    fn whole(context: &Arc<Context>, piece: Piece, bytes: usize, is_reusable: bool) -> Self {
        let (piece, context) = (ManuallyDrop::new(piece), Arc::clone(context));
        let whole = Arc::new(Whole { piece, bytes, is_reusable, context });
        Self { id: next_id(), view: None, start: 0, bytes, whole }
    }

    fn create(context: &Context, bytes: usize, flags: cl_mem_flags) -> Result<Piece> {
        // SAFETY: the context is alive, and the flags take no host memory of the caller.
        let created = unsafe { create_buffer(context.raw(), flags, bytes, ptr::null_mut()) };
        let raw = created.map_err(|code| {
            let kind = allocation_kind(code);
            let name = &context.info.name;
            error_of(kind, code, format!("{bytes} bytes cannot be allocated on `{name}`"))
        })?;
        // SAFETY: just created, and referenced here alone.
        Ok(Piece::new(unsafe { OwnedMemory::new(raw) }))
    }

    /// Returns this backend's memory behind the trait object. Fails if it belongs to another backend.
    pub(super) fn of(memory: &dyn Memory) -> Result<&Self> {
        own_object(memory, "the buffer")
    }

    /// Returns an id that no other memory object has, not even a released one. Pointers are reused.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the number of views of the whole that are kept.
    #[cfg(test)]
    pub(super) fn kept_views(&self) -> usize {
        self.whole.piece.kept_views()
    }

    pub(super) fn raw(&self) -> cl_mem {
        self.view.as_deref().unwrap_or(&self.whole.piece.memory).raw()
    }

    /// Returns the view that a fill has to use, and the fill's offset in that view, if the fill reaches too far
    /// into the memory for a driver that counts patterns in signed 32 bits. NVIDIA's driver (580.159.04) would
    /// fill other memory, or the host's. `None` if the fill can use the memory itself.
    pub(super) fn window(
        &self,
        offset: usize,
        bytes: usize,
        pattern: usize,
    ) -> Result<Option<(Self, usize)>> {
        /// Alignment of the start of a window. Large, so that there are few windows, because views may be kept.
        const STRIDE: usize = 256 << 20;
        if (offset + bytes) / pattern <= i32::MAX as usize {
            return Ok(None);
        }
        let start = offset / STRIDE * STRIDE;
        let end = (start + 2 * STRIDE).min(self.bytes).max(offset + bytes);
        Ok(Some((self.part(start, end - start)?, offset - start)))
    }

    /// Returns a view of `bytes` at `offset`, a multiple of the alignment that the device requires.
    fn part(&self, offset: usize, bytes: usize) -> Result<Self> {
        // OpenCL does not support views of views, so each is a view of the whole.
        let start = self.start + offset;
        let view = match &self.whole.context.spare {
            Some(spare) => self.whole.piece.kept_view(spare, start, bytes)?,
            None => self.whole.piece.create_view(start, bytes)?,
        };
        let whole = Arc::clone(&self.whole);
        Ok(Self { id: next_id(), view: Some(view), start, bytes, whole })
    }
}

impl Memory for ClMemory {
    fn handle(&self) -> Result<*mut c_void> {
        let _call = shutdown::enter()?;
        Ok(self.raw())
    }

    fn view(&self, offset: usize, bytes: usize) -> Result<Arc<dyn Memory>> {
        check_view(&self.whole.context.info, self.bytes, offset, bytes)?;
        let _call = shutdown::begin()?;
        Ok(Arc::new(self.part(offset, bytes)?))
    }

    fn image(&self, offset: usize, shape: &ImageShape) -> Result<Arc<dyn Memory>> {
        let bytes = shape.bytes().unwrap_or(usize::MAX);
        check_view(&self.whole.context.info, self.bytes, offset, bytes)?;
        let _call = shutdown::begin()?;
        let part = self.part(offset, bytes)?;
        Ok(Arc::new(ClImage::create_over(&self.whole.context, shape, Some(part))?))
    }
}

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
    pub(super) fn of(memory: &dyn Memory) -> Result<&Self> {
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
        Err(image_part_error())
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

/// Returns an id for a memory object. Ids are not reused.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}
