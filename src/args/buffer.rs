//! Device memory: allocations, and typed views of them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, OnceLock};

use bytemuck::Pod;
use concurrent_queue::ConcurrentQueue;

use crate::backend::{DeviceSlot, Memory};
use crate::compiler::signature::Access;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// Elements of device memory: a handle, cheap to clone. The memory is freed when the last handle
/// is gone and the last command that uses it has ended. NVIDIA's driver frees none until the device
/// has nothing to do, and blocks until then; there, what is freed earlier is kept for the next
/// buffers of the same size, up to an eighth of the device's memory.
///
/// A new buffer holds zeros, unless it is of [`buffer_uninit`](crate::Runtime::buffer_uninit).
pub struct Buffer<T> {
    region: Arc<Region>,
    element: PhantomData<fn() -> T>,
}

/// A range of bytes of an allocation.
pub(crate) struct Region {
    allocation: Arc<Allocation>,
    /// Shared by the regions of the allocation that users hold, or launches for them.
    holders: Arc<()>,
    bytes: Range<usize>,
    /// The range in the form that a kernel takes, made when a kernel first does.
    view: OnceLock<Arc<dyn Memory>>,
}

/// One piece of a device's memory.
pub(crate) struct Allocation {
    id: u64,
    slot: Arc<DeviceSlot>,
    memory: Arc<dyn Memory>,
    bytes: usize,
    freed: Arc<Freed>,
    /// Whether it is still to be zeroed, because no command has used it yet. Changes under the
    /// scheduler's lock only, together with the DAG.
    is_fresh: AtomicBool,
}

/// Whether new memory is zeroed before anybody sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    Zeros,
    Unspecified,
}

/// The memory of a device that is no longer used.
pub(crate) struct Freed {
    /// The numbers of allocations that are gone, for the DAG to forget.
    gone: ConcurrentQueue<u64>,
    /// Memory of which an ended command had the last handle, to be freed where no lock is held.
    unused: ConcurrentQueue<Unused>,
    /// Whether somebody is about to free it.
    is_noticed: AtomicBool,
    /// Held while it is freed.
    freeing: Mutex<()>,
}

/// The handles that remain of a region, in the order in which they are freed.
struct Unused {
    _view: Option<Arc<dyn Memory>>,
    _allocation: Option<Allocation>,
}

impl Default for Freed {
    fn default() -> Self {
        Self {
            gone: ConcurrentQueue::unbounded(),
            unused: ConcurrentQueue::unbounded(),
            is_noticed: AtomicBool::new(false),
            freeing: Mutex::new(()),
        }
    }
}

impl Freed {
    /// The number of an allocation that is gone, once each.
    pub(crate) fn next_gone(&self) -> Option<u64> {
        // Asking first spares a fence.
        if self.gone.is_empty() { None } else { self.gone.pop().ok() }
    }

    /// Whether there is unused memory that nobody is about to free. The caller sees to it then.
    pub(crate) fn has_new_unused(&self) -> bool {
        !self.unused.is_empty() && !self.is_noticed.swap(true, SeqCst)
    }

    /// Frees the unused memory, and waits for others that do. Calls the driver.
    pub(crate) fn free_unused(&self) {
        let _freeing = lock(&self.freeing);
        self.is_noticed.store(false, SeqCst);
        while let Ok(unused) = self.unused.pop() {
            drop(unused);
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // Unbounded and never closed: it takes everything.
        let _ = self.freed.gone.push(self.id);
    }
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn allocate(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        len: usize,
        contents: Contents,
    ) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let device = slot.handle();
        if len == 0 || size_of::<T>() == 0 {
            return Err(Error::invalid(format!(
                "a buffer of {len} elements of `{}` holds nothing; it must have at least one byte",
                std::any::type_name::<T>()
            )));
        }
        let too_large =
            || format!("a buffer of {len} elements of {} bytes on {device}", size_of::<T>());
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| {
                Error::new(ErrorKind::OutOfResources, "more bytes than can be addressed")
                    .within(too_large())
            })?;
        // Drivers give more than the largest allocation that they promise: let them decide.
        let open = slot.open()?;
        let memory = open.allocate(bytes).or_else(|error| {
            if error.kind() != ErrorKind::OutOfResources {
                return Err(error);
            }
            // Commands whose ends are known may have left memory that is not freed yet.
            freed.free_unused();
            open.allocate(bytes)
        });
        let memory = memory.map_err(|error| error.within(too_large()))?;
        let allocation = Allocation {
            id: NEXT.fetch_add(1, Relaxed),
            slot: slot.clone(),
            memory,
            bytes,
            freed: freed.clone(),
            is_fresh: AtomicBool::new(contents == Contents::Zeros),
        };
        Ok(Self::of(Region {
            allocation: Arc::new(allocation),
            holders: Arc::default(),
            bytes: 0..bytes,
            view: OnceLock::new(),
        }))
    }

    fn of(region: Region) -> Self {
        Self { region: Arc::new(region), element: PhantomData }
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.bytes.len() / size_of::<T>()
    }

    /// Never: a buffer holds at least one element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements of `range` as a buffer that shares this one's memory. Commands on slices are
    /// ordered only where their bytes overlap.
    ///
    /// Any slice can be read, written, filled and copied; as a kernel's argument it must start at a
    /// multiple of the device's [`slice_alignment`](crate::Limits::slice_alignment).
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the range is empty or ends outside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        // No buffer has so many elements that the largest number would be in one.
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        if start >= end || end > self.len() {
            let what = if start >= end { "is empty" } else { "ends outside" };
            let elements = self.len();
            return Err(Error::invalid(format!(
                "the slice {start}..{end} {what}; the buffer has {elements} elements, and a slice at \
                 least one"
            )));
        }
        let base = self.region.bytes.start;
        Ok(Self::of(Region {
            allocation: self.region.allocation.clone(),
            holders: self.region.holders.clone(),
            bytes: base + start * size_of::<T>()..base + end * size_of::<T>(),
            view: OnceLock::new(),
        }))
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if they are not a whole number of elements.
    pub fn cast<U: Pod>(&self) -> Result<Buffer<U>> {
        let bytes = self.region.bytes.len();
        if size_of::<U>() == 0 || !bytes.is_multiple_of(size_of::<U>()) {
            return Err(Error::invalid(format!(
                "{bytes} bytes are no whole number of `{}`, which has {}",
                std::any::type_name::<U>(),
                size_of::<U>()
            )));
        }
        Ok(Buffer { region: self.region.clone(), element: PhantomData })
    }

    /// As an argument that the kernel only reads.
    ///
    /// This, [`write`](Self::write) and [`read_write`](Self::read_write) stand in place of what the
    /// kernel's signature says, and commands are ordered by them. If the kernel does something else,
    /// commands that use the buffer may overlap, and what they compute is unspecified.
    pub fn read(&self) -> BufferArgument<'_, T> {
        BufferArgument { buffer: self, access: Access::Read }
    }

    /// As an argument that the kernel only writes, and all of it: what it held before does not matter,
    /// and may be what a failed command left.
    pub fn write(&self) -> BufferArgument<'_, T> {
        BufferArgument { buffer: self, access: Access::Write }
    }

    /// As an argument that the kernel reads and writes, whatever its signature says: it may say `const`
    /// of a pointer that the kernel casts to one that it writes through.
    pub fn read_write(&self) -> BufferArgument<'_, T> {
        BufferArgument { buffer: self, access: Access::ReadWrite }
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl<T> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), element: PhantomData }
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("element", &std::any::type_name::<T>())
            .field("allocation", &self.region.allocation.id)
            .field("bytes", &self.region.bytes)
            .finish()
    }
}

/// A buffer as a kernel's argument, with what the kernel does with it stated by the caller.
#[derive(Debug)]
#[must_use]
pub struct BufferArgument<'a, T> {
    pub(crate) buffer: &'a Buffer<T>,
    pub(crate) access: Access,
}

impl Region {
    pub(crate) fn allocation(&self) -> u64 {
        self.allocation.id
    }

    /// Lets go of a handle that an ended command had. If it was the last, what has to be freed with
    /// it is left to [`Freed::free_unused`]: this calls no driver.
    pub(crate) fn release(self: Arc<Self>) {
        let Some(Self { allocation, view, .. }) = Arc::into_inner(self) else { return };
        let freed = allocation.freed.clone();
        let (view, allocation) = (view.into_inner(), Arc::into_inner(allocation));
        if view.is_some() || allocation.is_some() {
            // Unbounded and never closed.
            let _ = freed.unused.push(Unused { _view: view, _allocation: allocation });
        }
    }

    /// Number of regions of the allocation that users hold, or launches for them.
    pub(crate) fn regions_of_allocation(&self) -> usize {
        Arc::strong_count(&self.holders)
    }

    /// Whether the allocation is still to be zeroed. Once false it stays so.
    pub(crate) fn is_fresh(&self) -> bool {
        self.allocation.is_fresh.load(Relaxed)
    }

    /// Marks the allocation as zeroed or overwritten, and tells whether it was not yet. To be called
    /// under the scheduler's lock, by the command that does it: who finds the mark afterwards submits
    /// behind that command.
    pub(crate) fn take_fresh(&self) -> bool {
        self.is_fresh() && self.allocation.is_fresh.swap(false, Relaxed)
    }

    /// Whether it is the whole allocation.
    pub(crate) fn is_whole(&self) -> bool {
        self.bytes == (0..self.allocation.bytes)
    }

    /// The whole allocation for a command of Kiln's own, which does not count as a holder.
    pub(crate) fn whole_unheld(&self) -> Self {
        let allocation = self.allocation.clone();
        let bytes = 0..allocation.bytes;
        Self { allocation, holders: Arc::default(), bytes, view: OnceLock::new() }
    }

    pub(crate) fn slot(&self) -> &Arc<DeviceSlot> {
        &self.allocation.slot
    }

    /// The whole allocation's memory, which the offsets of transfers count from.
    pub(crate) fn memory(&self) -> &dyn Memory {
        &*self.allocation.memory
    }

    /// Where in the allocation it lies.
    pub(crate) fn bytes(&self) -> &Range<usize> {
        &self.bytes
    }

    /// The region as a kernel's argument.
    ///
    /// Fails if it does not start where the device lets kernels' arguments start.
    pub(crate) fn view(&self) -> Result<&dyn Memory> {
        if self.is_whole() {
            return Ok(self.memory());
        }
        if let Some(view) = self.view.get() {
            return Ok(&**view);
        }
        let alignment = self.slot().handle().limits.slice_alignment;
        if !self.bytes.start.is_multiple_of(alignment) {
            return Err(Error::invalid(format!(
                "the slice starts at byte {} of its buffer; as a kernel's argument on {} it must \
                 start at a multiple of {alignment}",
                self.bytes.start,
                self.slot().handle()
            )));
        }
        // What the device lacks now it may have later. Who is slower than another drops its own.
        let made = self.allocation.memory.view(self.bytes.start, self.bytes.len())?;
        Ok(&**self.view.get_or_init(|| made))
    }
}
