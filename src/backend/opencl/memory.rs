//! Buffers, and the views of them that are passed to kernels.

use std::any::Any;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use opencl3::memory::{
    CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, cl_mem, cl_mem_flags, create_buffer,
};

use super::adopt;
use super::codes::{allocation_kind, error_of};
use super::context::Context;
use super::handle::OwnedMemory;
use super::image::ClImage;
use super::spare_memory::Piece;
use crate::backend::{GivenMemory, Memory, check_view, shutdown};
use crate::device::ImageShape;
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
        (memory as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| Error::invalid("the buffer belongs to a device of another backend"))
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

/// Returns an id for a memory object. Ids are not reused.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}
