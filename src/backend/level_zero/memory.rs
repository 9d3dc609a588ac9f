//! Device memory, and the host memory through which it is read and written.
//!
//! Transfers do not use the caller's memory directly: the driver would have to import it for each transfer, and
//! crashes now and then when that happens while other threads compile. Instead, transfers go through host
//! memory that the driver allocates, which is kept for later transfers.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::bindings::*;
use super::codes::check;
use super::context::Context;
use super::handle::OwnedMemory;
use super::staging_pool::staging_size;
use crate::backend::{Memory, Place, check_view, own_object, shutdown};
use crate::error::{Error, ErrorKind, Result};

/// Alignment of allocations, in bytes. The device's compiler may assume that a buffer starts at a multiple of
/// it, and no page is smaller.
const ALIGNMENT: usize = 4096;

/// A whole buffer, or a view of one. Offsets in commands count from the start of the view.
pub(super) struct LzMemory {
    id: u64,
    /// Start of the view in the whole buffer, in bytes.
    start: usize,
    bytes: usize,
    whole: Arc<Whole>,
}

/// A whole allocation of device memory, or of host memory that the device accesses.
struct Whole {
    memory: Allocation,
    context: Arc<Context>,
}

/// Owner of an allocation.
enum Allocation {
    Own(ManuallyDrop<OwnedMemory>),
    /// Memory that other code allocated and frees.
    Given(NonNull<c_void>),
}

// SAFETY: memory is not bound to a thread.
unsafe impl Send for Allocation {}
// SAFETY: this value only holds the address of the memory.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn start(&self) -> *mut c_void {
        match self {
            Self::Own(memory) => memory.start(),
            Self::Given(start) => start.as_ptr(),
        }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // Freeing waits for the commands that count as running. On a lost device, those never end.
        if let Allocation::Own(memory) = &mut self.memory
            && self.context.loss().is_none()
        {
            // SAFETY: dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(memory) };
        }
    }
}

impl LzMemory {
    pub(super) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        if let Some(lost) = context.loss() {
            return Err(lost.clone());
        }
        let _call = shutdown::begin()?;
        let description = ze_device_mem_alloc_desc_t {
            stype: ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC,
            ..Default::default()
        };
        let mut start = ptr::null_mut();
        // SAFETY: context and device are alive and belong together, and the description is valid.
        let allocated = unsafe {
            (context.api.zeMemAllocDevice)(
                context.raw(),
                &raw const description,
                bytes,
                ALIGNMENT,
                context.device.0,
                &raw mut start,
            )
        };
        check(allocated).map_err(|code| {
            let name = &context.info.name;
            context.error(code, format!("{bytes} bytes cannot be allocated on `{name}`"))
        })?;
        // SAFETY: just allocated, and owned only here.
        let memory = unsafe { OwnedMemory::new(context.api, &context.context, start) };
        Ok(Self::whole(context, Allocation::Own(ManuallyDrop::new(memory)), bytes))
    }

    /// Allocates memory of the host that the device accesses, too. Its addresses are valid on both.
    pub(super) fn allocate_on_host(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        if let Some(lost) = context.loss() {
            return Err(lost.clone());
        }
        let _call = shutdown::begin()?;
        let memory = allocate_on_host(context, bytes, "a buffer")?;
        Ok(Self::whole(context, Allocation::Own(ManuallyDrop::new(memory)), bytes))
    }

    /// Takes memory that other code allocated, as memory of `bytes` bytes.
    ///
    /// # Safety
    ///
    /// The memory lives longer than the returned value and all its views, if its address is not null.
    pub(super) unsafe fn adopt(
        context: &Arc<Context>,
        start: *mut c_void,
        bytes: usize,
    ) -> Result<Self> {
        let start = NonNull::new(start).ok_or_else(|| {
            Error::invalid("the given address of memory is null; give one of the driver's")
        })?;
        let alignment = context.info.limits.slice_alignment;
        if !start.addr().get().is_multiple_of(alignment) {
            return Err(Error::invalid(format!(
                "the given memory starts at {start:p}; it must start at a multiple of {alignment} bytes"
            )));
        }
        Ok(Self::whole(context, Allocation::Given(start), bytes))
    }

    fn whole(context: &Arc<Context>, memory: Allocation, bytes: usize) -> Self {
        let whole = Arc::new(Whole { memory, context: Arc::clone(context) });
        Self { id: next_id(), start: 0, bytes, whole }
    }

    /// Returns the memory as this backend's type. Fails for memory of another backend.
    pub(super) fn of(memory: &dyn Memory) -> Result<&Self> {
        own_object(memory, "the buffer")
    }

    /// Returns an id that differs from the ids of all other memory objects and images, including released ones. Addresses,
    /// in contrast, are reused.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the device address of the byte at `offset`, which may not be valid on the host.
    pub(super) fn at(&self, offset: usize) -> *mut c_void {
        self.whole.memory.start().wrapping_byte_add(self.start + offset)
    }
}

impl Memory for LzMemory {
    fn handle(&self) -> Result<*mut c_void> {
        Ok(self.at(0))
    }

    fn place(&self, bytes: usize) -> Result<Place> {
        let start = self.at(0).addr();
        let end = start.checked_add(bytes).ok_or_else(|| {
            Error::invalid(format!("{bytes} bytes from {start:#x} on exceed the address space"))
        })?;
        Ok(Place { object: 0, bytes: start..end })
    }

    fn view(&self, offset: usize, bytes: usize) -> Result<Arc<dyn Memory>> {
        check_view(&self.whole.context.info, self.bytes, offset, bytes)?;
        let whole = Arc::clone(&self.whole);
        Ok(Arc::new(Self { id: next_id(), start: self.start + offset, bytes, whole }))
    }
}

/// Returns an id for a memory object or an image.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Allocates memory of the host that the device accesses, too. `purpose` says what the memory is for.
fn allocate_on_host(context: &Context, bytes: usize, purpose: &str) -> Result<OwnedMemory> {
    let description = ze_host_mem_alloc_desc_t {
        stype: ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC,
        ..Default::default()
    };
    let mut start = ptr::null_mut();
    // SAFETY: the context is alive, and the description is valid.
    let allocated = unsafe {
        (context.api.zeMemAllocHost)(
            context.raw(),
            &raw const description,
            bytes,
            ALIGNMENT,
            &raw mut start,
        )
    };
    check(allocated).map_err(|code| {
        let message = format!("{bytes} bytes of host memory for {purpose} cannot be allocated");
        context.error(code, message)
    })?;
    // SAFETY: just allocated, and owned only here.
    Ok(unsafe { OwnedMemory::new(context.api, &context.context, start) })
}

/// Host memory, allocated by the driver, that one transfer uses.
pub(super) struct Staging {
    /// Memory; taken on drop.
    memory: Option<OwnedMemory>,
    bytes: usize,
    context: Arc<Context>,
}

impl Staging {
    pub(super) fn take(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let bytes = staging_size(bytes).ok_or_else(|| {
            Error::new(ErrorKind::OutOfResources, "the size in bytes exceeds the address space")
        })?;
        let reused = context.staging.take(bytes);
        let memory = reused.map_or_else(|| allocate_on_host(context, bytes, "a transfer"), Ok)?;
        Ok(Self { memory: Some(memory), bytes, context: Arc::clone(context) })
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.memory.as_ref().map_or(ptr::null_mut(), |memory| memory.start().cast())
    }

    /// Leaks the memory, because the device may still use it.
    pub(super) fn leak(mut self) {
        std::mem::forget(self.memory.take());
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.context.staging.give(memory, self.bytes);
        }
    }
}
