//! Device memory: allocations, and the parts of them that commands use.

use std::any::Any;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use concurrent_queue::ConcurrentQueue;
use kiln_spirv::Access;

use crate::backend::{Device, DeviceSlot, Memory};
use crate::device::{ImageBox, ImageKind, ImageShape, Rows};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// Part of an allocation: a range of bytes, rows of bytes or, in an image, a box of pixels.
pub(crate) struct Region {
    pub(super) allocation: Arc<Allocation>,
    /// Token that the allocation's regions share if users hold them, directly or through launches. The
    /// reference count is the number of these regions.
    pub(super) holders: Arc<()>,
    /// Range of bytes. For a box of an image, from its first pixel to its last one, as if rows had no padding.
    bytes: Range<usize>,
    /// Rows of bytes within the range, if there are other bytes between them.
    rows: Option<Rows>,
    /// Box of pixels, for an image.
    image: Option<ImageBox>,
    /// Range in the form of a kernel argument, created when a kernel first takes it.
    view: OnceLock<Arc<dyn Memory>>,
}

/// Single allocation of a device's memory.
pub(crate) struct Allocation {
    id: u64,
    pub(super) slot: Arc<DeviceSlot>,
    memory: Arc<dyn Memory>,
    pub(super) bytes: usize,
    pub(super) storage: Storage,
    freed: Arc<Freed>,
    /// Whether the memory must still be zeroed, because no command has used it yet. Changes only under the
    /// scheduler's lock, together with the DAG.
    is_fresh: AtomicBool,
    /// Whether other code knows the driver's object.
    pub(super) is_known: AtomicBool,
}

/// Driver's object of some device memory, for code that calls the driver itself: from
/// [`Buffer::driver_handle`](crate::Buffer::driver_handle), [`Image::driver_handle`](crate::Image::driver_handle) and
/// [`DriverQueue::memory`](crate::interop::DriverQueue::memory).
///
/// # Examples
///
/// ```no_run
/// # fn example(samples: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let second_half = samples.slice(samples.len() / 2..)?.driver_handle()?;
/// // The slice is the elements of `second_half.object`, a `cl_mem`, from this one on:
/// let first = second_half.offset / size_of::<f32>();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryHandle {
    /// `cl_mem` of the whole memory that a buffer is a slice of, or of the image. With Level Zero, the address of the
    /// memory, or the `ze_image_handle_t` of the image.
    pub object: *mut c_void,
    /// Number of bytes before the buffer's first element in this memory; 0 for an image.
    pub offset: usize,
}

/// Form of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Storage {
    /// Buffer in the device's memory.
    Device,
    /// Buffer in memory that host and device share.
    Host,
    Image(ImageShape),
    /// Buffer without memory, in whose place a replay of a graph uses another.
    Placeholder,
}

impl Storage {
    /// Returns the shape of an image.
    pub(super) fn image(self) -> Option<ImageShape> {
        match self {
            Self::Device | Self::Host | Self::Placeholder => None,
            Self::Image(shape) => Some(shape),
        }
    }
}

/// Memory of a placeholder. No command uses it.
pub(crate) struct NoMemory;

impl Memory for NoMemory {
    fn view(&self, _: usize, _: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(Self))
    }
}

/// Whether new memory is zeroed before its contents are visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    Zeros,
    Unspecified,
}

/// Memory of a device that is no longer used.
pub(crate) struct Freed {
    /// Ids of dropped allocations, which are still to be removed from the DAG.
    dropped: ConcurrentQueue<u64>,
    /// Memory whose last handle was held by a finished command. Freed later, where no lock is held.
    unused: ConcurrentQueue<Unused>,
    /// Whether a caller of `claim_unused` is going to free the unused memory.
    is_claimed: AtomicBool,
    /// Held while unused memory is freed.
    freeing: Mutex<()>,
    /// Owner of the list: the device's scheduler.
    owner: OnceLock<Weak<dyn Any + Send + Sync>>,
}

/// Remaining handles of a region, in the order in which they are freed.
struct Unused {
    _view: Option<Arc<dyn Memory>>,
    _allocation: Option<Allocation>,
}

impl Default for Freed {
    fn default() -> Self {
        Self {
            dropped: ConcurrentQueue::unbounded(),
            unused: ConcurrentQueue::unbounded(),
            is_claimed: AtomicBool::new(false),
            freeing: Mutex::new(()),
            owner: OnceLock::new(),
        }
    }
}

impl Freed {
    /// Sets the owner of the list. Only the first one counts.
    pub(crate) fn set_owner(&self, owner: Weak<dyn Any + Send + Sync>) {
        let _ = self.owner.set(owner);
    }

    /// Returns the owner of the list, unless it was dropped.
    pub(crate) fn owner(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.owner.get()?.upgrade()
    }

    /// Returns the id of a dropped allocation. Returns each id once.
    pub(crate) fn next_dropped(&self) -> Option<u64> {
        // Checking first avoids a fence if the queue is empty.
        if self.dropped.is_empty() { None } else { self.dropped.pop().ok() }
    }

    /// Returns whether there is unused memory that no earlier caller has claimed. If so, this caller must call
    /// [`free_unused`](Self::free_unused) or have another thread call it.
    pub(crate) fn claim_unused(&self) -> bool {
        !self.unused.is_empty() && !self.is_claimed.swap(true, SeqCst)
    }

    /// Frees the unused memory, and waits for other threads that are freeing it. Calls the driver.
    pub(crate) fn free_unused(&self) {
        let _freeing = lock(&self.freeing);
        self.is_claimed.store(false, SeqCst);
        while let Ok(unused) = self.unused.pop() {
            drop(unused);
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // Never fails: the queue is unbounded and never closed.
        let _ = self.freed.dropped.push(self.id);
        if !matches!(self.storage, Storage::Placeholder) {
            self.slot.subtract_allocated(self.bytes);
        }
    }
}

impl Region {
    /// Allocates memory of `bytes` bytes. `description` says for messages what the memory is for.
    ///
    /// # Errors
    ///
    /// The driver's error. If the device is out of memory, unused memory is freed first.
    pub(crate) fn allocate(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        (bytes, storage): (usize, Storage),
        contents: Contents,
        description: impl FnOnce() -> String,
    ) -> Result<Self> {
        // Not checked against the reported maximum size of an allocation, because drivers can exceed it.
        let open = slot.open()?;
        let allocate = |open: &Arc<dyn Device>| match &storage {
            Storage::Device => open.allocate(bytes),
            Storage::Host => open.allocate_on_host(bytes),
            Storage::Image(shape) => open.create_image(shape),
            Storage::Placeholder => Ok(Arc::new(NoMemory) as _),
        };
        let memory = allocate(open).or_else(|error| {
            if error.kind() != ErrorKind::OutOfResources {
                return Err(error);
            }
            // Commands that are known to have finished may have left memory that is not freed yet.
            freed.free_unused();
            allocate(open)
        });
        let memory = memory.map_err(|error| error.within(description()))?;
        Ok(Self::of(slot, freed, memory, (bytes, storage), contents))
    }

    /// Returns memory that exists as a whole allocation, of `bytes` bytes.
    pub(crate) fn of(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        memory: Arc<dyn Memory>,
        (bytes, storage): (usize, Storage),
        contents: Contents,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if !matches!(storage, Storage::Placeholder) {
            slot.add_allocated(bytes);
        }
        let allocation = Allocation {
            id: NEXT.fetch_add(1, Relaxed),
            slot: slot.clone(),
            memory,
            bytes,
            storage,
            freed: freed.clone(),
            is_fresh: AtomicBool::new(contents == Contents::Zeros),
            is_known: AtomicBool::new(false),
        };
        Self::whole(Arc::new(allocation))
    }

    /// Returns a placeholder of `bytes` bytes, in whose place a replay of a graph uses other memory.
    pub(crate) fn placeholder(slot: &Arc<DeviceSlot>, freed: &Arc<Freed>, bytes: usize) -> Self {
        let size = (bytes, Storage::Placeholder);
        Self::of(slot, freed, Arc::new(NoMemory), size, Contents::Unspecified)
    }

    /// Returns whether the region is of a placeholder.
    pub(crate) fn is_placeholder(&self) -> bool {
        matches!(self.allocation.storage, Storage::Placeholder)
    }

    fn whole(allocation: Arc<Allocation>) -> Self {
        Self::held(allocation, Arc::default())
    }

    /// Returns the whole of an allocation, which users hold with this token.
    pub(super) fn held(allocation: Arc<Allocation>, holders: Arc<()>) -> Self {
        let bytes = 0..allocation.bytes;
        let image = allocation.storage.image().map(ImageBox::whole);
        Self { allocation, holders, bytes, rows: None, image, view: OnceLock::new() }
    }

    /// Returns a range of bytes of the same allocation.
    pub(crate) fn slice(&self, bytes: Range<usize>) -> Self {
        let (allocation, holders) = (self.allocation.clone(), self.holders.clone());
        Self { allocation, holders, bytes, rows: None, image: None, view: OnceLock::new() }
    }

    /// Returns rows of bytes of the same allocation.
    pub(crate) fn rows_of(&self, rows: Rows) -> Self {
        Self { rows: Some(rows).filter(|rows| !rows.is_packed()), ..self.slice(rows.range()) }
    }

    /// Returns a box of pixels of the same allocation.
    pub(crate) fn part(&self, image: ImageBox) -> Self {
        Self { image: Some(image), ..self.slice(image.bytes()) }
    }

    /// Returns the same bytes of a buffer as an image of one dimension.
    pub(crate) fn as_image(&self, image: ImageBox) -> Self {
        Self { image: Some(image), ..self.slice(self.bytes.clone()) }
    }

    /// Returns the box of pixels of an image whose memory is not that of a buffer.
    pub(crate) fn pixels(&self) -> Option<&ImageBox> {
        self.image.as_ref().filter(|image| image.shape.kind != ImageKind::D1Buffer)
    }

    /// Returns the rows of bytes, if the region has other bytes between them.
    pub(crate) fn rows(&self) -> Option<&Rows> {
        self.rows.as_ref()
    }

    /// Returns the bytes of a buffer as rows. A range is a single row.
    fn as_rows(&self) -> Rows {
        let Range { start, end } = self.bytes;
        let bytes = end - start;
        let row =
            Rows { offset: start, bytes, rows: 1, slices: 1, row_pitch: bytes, slice_pitch: bytes };
        self.rows.unwrap_or(row)
    }

    /// Returns the number of bytes that transfers move.
    pub(crate) fn transfer_size(&self) -> usize {
        self.rows.map_or(self.bytes.len(), |rows| rows.total())
    }

    /// Returns the box of pixels of any image.
    pub(crate) fn image(&self) -> Option<&ImageBox> {
        self.image.as_ref()
    }

    /// Returns the access of a command that overwrites the region. Other bytes between rows, and other pixels
    /// of the rows of a box, which the region's bytes include, are left as they are.
    pub(crate) fn access_of_write(&self) -> Access {
        match self.pixels() {
            Some(image) if !image.is_contiguous() => Access::ReadWrite,
            None if self.rows.is_some() => Access::ReadWrite,
            _ => Access::Write,
        }
    }

    pub(crate) fn allocation(&self) -> u64 {
        self.allocation.id
    }

    /// Returns a reference to the allocation that does not keep it alive.
    pub(crate) fn downgrade(&self) -> Weak<Allocation> {
        Arc::downgrade(&self.allocation)
    }

    /// Returns whether host and device share the memory.
    pub(crate) fn is_on_host(&self) -> bool {
        matches!(self.allocation.storage, Storage::Host)
    }

    /// Returns what the region belongs to, for messages.
    pub(crate) fn in_words(&self) -> &'static str {
        if self.image.is_some() { "the image" } else { "the buffer" }
    }

    /// Returns whether two regions have bytes or pixels in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.allocation.id == other.allocation.id
            && match (self.pixels(), other.pixels()) {
                (Some(one), Some(two)) => one.overlaps(two),
                _ => self.as_rows().overlap(&other.as_rows()),
            }
    }

    /// Drops a handle of a finished command without calling the driver. If the handle is the last one, the
    /// memory and the view to be freed with it are left to [`Freed::free_unused`].
    pub(crate) fn release(self: Arc<Self>) {
        let Some(Self { allocation, view, .. }) = Arc::into_inner(self) else { return };
        let freed = allocation.freed.clone();
        let (view, allocation) = (view.into_inner(), Arc::into_inner(allocation));
        if view.is_some() || allocation.is_some() {
            // Never fails: the queue is unbounded and never closed.
            let _ = freed.unused.push(Unused { _view: view, _allocation: allocation });
        }
    }

    /// Returns the number of regions of the allocation that users hold, directly or through launches.
    pub(crate) fn regions_of_allocation(&self) -> usize {
        Arc::strong_count(&self.holders)
    }

    /// Returns whether the allocation must still be zeroed. Never changes from `false` to `true`.
    pub(crate) fn is_fresh(&self) -> bool {
        self.allocation.is_fresh.load(Relaxed)
    }

    /// Marks the allocation as zeroed or overwritten, and returns whether it was not marked before. Must be
    /// called under the scheduler's lock, for the command that zeroes or overwrites it: commands that find the
    /// mark afterwards are submitted behind that command.
    pub(crate) fn take_fresh(&self) -> bool {
        self.is_fresh() && self.allocation.is_fresh.swap(false, Relaxed)
    }

    /// Returns whether the region is the whole allocation.
    pub(crate) fn is_whole(&self) -> bool {
        self.rows.is_none() && self.bytes == (0..self.allocation.bytes)
    }

    /// Returns the whole allocation, for a command that Kiln adds itself. The result does not count as a
    /// region that users hold.
    pub(crate) fn whole_unheld(&self) -> Self {
        Self::whole(self.allocation.clone())
    }

    pub(crate) fn freed(&self) -> &Freed {
        &self.allocation.freed
    }

    pub(crate) fn slot(&self) -> &Arc<DeviceSlot> {
        &self.allocation.slot
    }

    /// Returns the memory of the whole allocation. Offsets of transfers count from its start.
    pub(crate) fn memory(&self) -> &dyn Memory {
        &*self.allocation.memory
    }

    /// Returns the driver's object of the whole allocation, and where the region begins in it.
    pub(crate) fn handle(&self) -> Result<MemoryHandle> {
        self.note_known()?;
        let offset = if self.pixels().is_some() { 0 } else { self.bytes.start };
        Ok(MemoryHandle { object: self.memory().handle()?, offset })
    }

    /// Returns the region's range of bytes within the allocation.
    pub(crate) fn bytes(&self) -> &Range<usize> {
        &self.bytes
    }

    /// Returns a power of two of which the address of the region's first byte is a multiple, by the guarantees
    /// of the device.
    pub(crate) fn alignment(&self) -> usize {
        let device = self.slot().handle().limits.slice_alignment;
        let both = device | self.bytes.start;
        1 << both.trailing_zeros()
    }

    /// Returns the number of bytes of the buffer that [`view`](Self::view) has before the region.
    pub(crate) fn lead(&self) -> usize {
        if self.image.is_some() { 0 } else { self.beyond_alignment() }
    }

    /// Returns the region as a kernel argument. A region of an image is all of it. If a buffer's region does not
    /// start where the device takes it as an argument, the view starts earlier, by [`lead`](Self::lead).
    ///
    /// Fails if a region that is given as an image does not start at a multiple of the device's `slice_alignment`,
    /// or if the driver cannot create the view.
    #[inline]
    pub(crate) fn view(&self) -> Result<&dyn Memory> {
        // Most arguments are whole buffers.
        if self.image.is_none() && self.is_whole() { Ok(self.memory()) } else { self.other_view() }
    }

    /// Returns the region as a kernel argument, if it may be other than a whole buffer.
    fn other_view(&self) -> Result<&dyn Memory> {
        let images = self.image.as_ref();
        let over_buffer = images.filter(|image| image.shape.kind == ImageKind::D1Buffer);
        if self.is_whole() && over_buffer.is_none() {
            return Ok(self.memory());
        }
        if let Some(view) = self.view.get() {
            return Ok(&**view);
        }
        // A failure is not kept: resources that the device lacks now may be available later. If threads race,
        // only the first view is kept.
        let memory = &self.allocation.memory;
        let view = match over_buffer {
            Some(_) if self.beyond_alignment() > 0 => return Err(self.unaligned_error()),
            Some(image) => memory.image(self.bytes.start, &image.shape)?,
            None => {
                let start = self.bytes.start - self.lead();
                memory.view(start, self.bytes.end - start)?
            }
        };
        Ok(&**self.view.get_or_init(|| view))
    }

    /// Returns the number of bytes from the last multiple of the device's `slice_alignment` to the region.
    fn beyond_alignment(&self) -> usize {
        match self.bytes.start {
            // Most buffers are not slices, and a division takes long.
            0 => 0,
            start => start % self.slot().handle().limits.slice_alignment,
        }
    }

    /// Returns the error for a region that does not start where the device takes it as an argument.
    pub(crate) fn unaligned_error(&self) -> Error {
        let device = self.slot().handle();
        Error::invalid(format!(
            "the slice starts at byte {} of its buffer; as a kernel's argument on {device} it must start at a \
             multiple of {} bytes",
            self.bytes.start, device.limits.slice_alignment
        ))
    }
}
