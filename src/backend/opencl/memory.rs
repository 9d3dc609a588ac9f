//! Buffers and the parts of them that kernels get.

use std::any::Any;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opencl3::memory::{
    CL_BUFFER_CREATE_TYPE_REGION, CL_MEM_READ_WRITE, cl_buffer_region, cl_mem, create_buffer,
    create_sub_buffer,
};

use super::codes::{allocation_kind, error, error_of};
use super::device::Context;
use super::handle::OwnedMemory;
use crate::backend::Memory;
use crate::error::{Error, ErrorKind, Result};

/// A whole buffer, or a view of one. Commands on a view count from where it starts.
pub(super) struct ClMemory {
    id: u64,
    /// Declared before the whole, so released before it.
    view: Option<Arc<OwnedMemory>>,
    /// Where the view starts in the whole.
    start: usize,
    bytes: usize,
    whole: Arc<Whole>,
}

/// What was allocated at once.
struct Whole {
    /// See [`Whole::keeps_views`].
    kept: Mutex<Vec<KeptView>>,
    memory: OwnedMemory,
    context: Arc<Context>,
}

struct KeptView {
    start: usize,
    bytes: usize,
    view: Arc<OwnedMemory>,
}

impl Whole {
    /// Whether views are kept until the whole goes, and then released from the last to the first.
    ///
    /// NVIDIA's driver (580.159) crashes when of two views that overlap and that kernels were
    /// given the older one is released first.
    fn keeps_views(&self) -> bool {
        self.context.info.vendor.to_lowercase().contains("nvidia")
    }

    fn create_view(&self, start: usize, bytes: usize) -> Result<Arc<OwnedMemory>> {
        let region = cl_buffer_region { origin: start, size: bytes };
        // SAFETY: the buffer is alive and no view itself; the region is what its type says.
        let created = unsafe {
            create_sub_buffer(
                self.memory.raw(),
                CL_MEM_READ_WRITE,
                CL_BUFFER_CREATE_TYPE_REGION,
                (&raw const region).cast(),
            )
        };
        let raw = created.map_err(|code| {
            error(code, format!("a kernel cannot be given {bytes} bytes at {start} of a buffer"))
        })?;
        // SAFETY: just created, and referenced here alone.
        Ok(Arc::new(unsafe { OwnedMemory::new(raw) }))
    }

    fn kept(&self) -> MutexGuard<'_, Vec<KeptView>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let mut kept = self.kept();
        while let Some(view) = kept.pop() {
            drop(view);
        }
    }
}

impl ClMemory {
    pub(super) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let info = &context.info;
        // NVIDIA's driver takes any size and fails at the first use.
        if u64::try_from(bytes).is_ok_and(|bytes| bytes > info.limits.global_memory) {
            let message = format!(
                "{bytes} bytes are more than all the memory of `{}`, {} bytes",
                info.name, info.limits.global_memory
            );
            return Err(Error::new(ErrorKind::OutOfResources, message));
        }
        // SAFETY: the context is alive, and these flags take no host memory.
        let created =
            unsafe { create_buffer(context.raw(), CL_MEM_READ_WRITE, bytes, ptr::null_mut()) };
        let raw = created.map_err(|code| {
            let kind = allocation_kind(code);
            error_of(kind, code, format!("{bytes} bytes cannot be allocated on `{}`", info.name))
        })?;
        // SAFETY: just created, and referenced here alone.
        let memory = unsafe { OwnedMemory::new(raw) };
        let whole =
            Arc::new(Whole { kept: Mutex::default(), memory, context: Arc::clone(context) });
        Ok(Self { id: next_id(), view: None, start: 0, bytes, whole })
    }

    /// This backend's memory behind the trait.
    pub(super) fn of(memory: &dyn Memory) -> Result<&Self> {
        (memory as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| Error::invalid("the buffer belongs to a device of another backend"))
    }

    /// Differs from that of every other memory object, those released before included; pointers
    /// are reused.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn raw(&self) -> cl_mem {
        self.view.as_deref().unwrap_or(&self.whole.memory).raw()
    }
}

impl Memory for ClMemory {
    fn view(&self, offset: usize, bytes: usize) -> Result<Arc<dyn Memory>> {
        // Checked here because there are drivers that take any region.
        let align = self.whole.context.info.limits.slice_alignment;
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > self.bytes) || !offset.is_multiple_of(align) {
            return Err(Error::invalid(format!(
                "a kernel cannot be given {bytes} bytes at {offset} of a buffer of {} bytes: they must \
                 lie inside it and start at a multiple of {align}",
                self.bytes
            )));
        }
        // OpenCL makes no views of views, so each is one of the whole.
        let start = self.start + offset;
        let view = if self.whole.keeps_views() {
            let mut kept = self.whole.kept();
            let same = kept.iter().find(|view| (view.start, view.bytes) == (start, bytes));
            if let Some(same) = same {
                Arc::clone(&same.view)
            } else {
                let view = self.whole.create_view(start, bytes)?;
                kept.push(KeptView { start, bytes, view: Arc::clone(&view) });
                view
            }
        } else {
            self.whole.create_view(start, bytes)?
        };
        let whole = Arc::clone(&self.whole);
        Ok(Arc::new(Self { id: next_id(), view: Some(view), start, bytes, whole }))
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
