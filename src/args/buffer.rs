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

/// Handle to elements in device memory. Cheap to clone.
///
/// The memory is freed once the last handle is dropped and the last command that uses it has finished. NVIDIA's
/// driver frees no memory until the device is idle, and blocks until then. On that driver, memory that is
/// released earlier is kept for new buffers of the same size, up to an eighth of the device's memory.
///
/// A new buffer holds zeros, unless [`buffer_uninit`](crate::Runtime::buffer_uninit) creates it.
///
/// # Examples
///
/// ```no_run
/// # async fn example(rt: kiln::Runtime, square: kiln::Kernel) -> kiln::Result<()> {
/// let queue = rt.queue();
/// let samples = rt.buffer_from(vec![0.5f32; 4096]).await?;
/// let squares = rt.buffer::<f32>(samples.len())?; // zeros
/// queue.submit(square.launch(samples.len()).args((&samples, &squares)))?;
/// let squares: Vec<f32> = queue.read(&squares).await?;
/// # Ok(())
/// # }
/// ```
pub struct Buffer<T> {
    region: Arc<Region>,
    element: PhantomData<fn() -> T>,
}

/// Range of bytes of an allocation.
pub(crate) struct Region {
    allocation: Arc<Allocation>,
    /// Token that the allocation's regions share if users hold them, directly or through launches. The
    /// reference count is the number of these regions.
    holders: Arc<()>,
    bytes: Range<usize>,
    /// Range in the form of a kernel argument, created when a kernel first takes it.
    view: OnceLock<Arc<dyn Memory>>,
}

/// Single allocation of a device's memory.
pub(crate) struct Allocation {
    id: u64,
    slot: Arc<DeviceSlot>,
    memory: Arc<dyn Memory>,
    bytes: usize,
    freed: Arc<Freed>,
    /// Whether the memory must still be zeroed, because no command has used it yet. Changes only under the
    /// scheduler's lock, together with the DAG.
    is_fresh: AtomicBool,
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
        }
    }
}

impl Freed {
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
                "a buffer of {len} elements of `{}` is empty; it must have at least one byte",
                std::any::type_name::<T>()
            )));
        }
        let description =
            || format!("a buffer of {len} elements of {} bytes on {device}", size_of::<T>());
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| {
                Error::new(ErrorKind::OutOfResources, "the size in bytes exceeds the address space")
                    .within(description())
            })?;
        // Not checked against the reported maximum size of an allocation, because drivers can exceed it.
        let open = slot.open()?;
        let memory = open.allocate(bytes).or_else(|error| {
            if error.kind() != ErrorKind::OutOfResources {
                return Err(error);
            }
            // Commands that are known to have finished may have left memory that is not freed yet.
            freed.free_unused();
            open.allocate(bytes)
        });
        let memory = memory.map_err(|error| error.within(description()))?;
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

    /// Returns the number of elements.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: kiln::Queue, scale: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let count = x.len() as u32; // the kernel checks its indexes against this
    /// queue.submit(scale.launch(x.len()).args((&x, count, 0.5f32)))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.bytes.len() / size_of::<T>()
    }

    /// Returns `false`: a buffer holds at least one element.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(x: kiln::Buffer<f32>) {
    /// assert!(!x.is_empty());
    /// # }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements of `range` as a buffer that shares this buffer's memory. Commands on slices are
    /// ordered only if their bytes overlap.
    ///
    /// Any slice can be read, written, filled and copied. As a kernel argument, a slice must start at a
    /// multiple of the device's [`slice_alignment`](crate::Limits::slice_alignment), in bytes.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the range is empty or out of bounds.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, samples: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let half = samples.len() / 2;
    /// queue.fill(&samples.slice(..half)?, 0.0f32)?; // the other half keeps its elements
    /// let rest: Vec<f32> = queue.read(&samples.slice(half..)?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        // Sums may saturate, because `usize::MAX` is out of bounds for any buffer.
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
            let what = if start >= end { "is empty" } else { "is out of bounds" };
            let elements = self.len();
            return Err(Error::invalid(format!(
                "the slice {start}..{end} {what}; the buffer has {elements} elements, and a slice \
                 must have at least one"
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

    /// Returns the buffer's bytes as a buffer with elements of another type.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the number of bytes is not a multiple of the size of
    /// `U`, or if that size is zero.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: kiln::Queue, pixels: kiln::Buffer<[u8; 4]>) -> kiln::Result<()> {
    /// let packed = pixels.cast::<u32>()?; // the same memory
    /// queue.fill(&packed, 0xff00_0000)?; // opaque black
    /// # Ok(())
    /// # }
    /// ```
    pub fn cast<U: Pod>(&self) -> Result<Buffer<U>> {
        let bytes = self.region.bytes.len();
        if size_of::<U>() == 0 || !bytes.is_multiple_of(size_of::<U>()) {
            return Err(Error::invalid(format!(
                "{bytes} bytes are not a multiple of {1}, the size of `{0}`",
                std::any::type_name::<U>(),
                size_of::<U>()
            )));
        }
        Ok(Buffer { region: self.region.clone(), element: PhantomData })
    }

    /// Returns the buffer as an argument that the kernel only reads.
    ///
    /// This method, [`write_only`](Self::write_only) and [`read_write`](Self::read_write) override the access
    /// in the kernel's signature, and commands are ordered by the stated access. If the kernel accesses the
    /// buffer in another way, commands that use the buffer may overlap, and their results are unspecified.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     queue: kiln::Queue,
    /// #     blur: kiln::Kernel,
    /// #     src: kiln::Buffer<f32>,
    /// #     dst: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// // `blur` declares `src` without `const`, but does not write to it.
    /// queue.submit(blur.launch(src.len()).args((src.read_only(), &dst)))?;
    /// let src = queue.read(&src).await?; // not ordered after the launch
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_only(&self) -> BufferArgument<'_, T> {
        BufferArgument { buffer: self, access: Access::Read }
    }

    /// Returns the buffer as an argument that the kernel overwrites completely and does not read. The earlier
    /// contents do not matter, and may have been left by a failed command.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(
    /// #     queue: kiln::Queue,
    /// #     blur: kiln::Kernel,
    /// #     src: kiln::Buffer<f32>,
    /// #     dst: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// // `blur` writes every element of `dst`.
    /// queue.submit(blur.launch(src.len()).args((&src, dst.write_only())))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_only(&self) -> BufferArgument<'_, T> {
        BufferArgument { buffer: self, access: Access::Write }
    }

    /// Returns the buffer as an argument that the kernel reads and writes, regardless of the kernel's
    /// signature. A kernel may declare a pointer as `const`, cast it, and write through the result.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     queue: kiln::Queue,
    /// #     normalize: kiln::Kernel,
    /// #     x: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// // `normalize` declares `x` as `const`, but casts that away and writes to it.
    /// queue.submit(normalize.launch(x.len()).args((x.read_write(),)))?;
    /// let x = queue.read(&x).await?; // ordered after the launch
    /// # Ok(())
    /// # }
    /// ```
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

/// Buffer as a kernel argument, with the access that the caller states.
///
/// # Examples
///
/// ```no_run
/// # fn example(
/// #     queue: kiln::Queue,
/// #     blur: kiln::Kernel,
/// #     src: kiln::Buffer<f32>,
/// #     dst: kiln::Buffer<f32>,
/// # ) -> kiln::Result<()> {
/// let (input, output) = (src.read_only(), dst.write_only());
/// queue.submit(blur.launch(src.len()).args((input, output)))?;
/// # Ok(())
/// # }
/// ```
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
        self.bytes == (0..self.allocation.bytes)
    }

    /// Returns the whole allocation, for a command that Kiln adds itself. The result does not count as a
    /// region that users hold.
    pub(crate) fn whole_unheld(&self) -> Self {
        let allocation = self.allocation.clone();
        let bytes = 0..allocation.bytes;
        Self { allocation, holders: Arc::default(), bytes, view: OnceLock::new() }
    }

    pub(crate) fn slot(&self) -> &Arc<DeviceSlot> {
        &self.allocation.slot
    }

    /// Returns the memory of the whole allocation. Offsets of transfers count from its start.
    pub(crate) fn memory(&self) -> &dyn Memory {
        &*self.allocation.memory
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

    /// Returns the region as a kernel argument.
    ///
    /// Fails if the region does not start at a multiple of the device's `slice_alignment`, or if the driver
    /// cannot create the view.
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
                 start at a multiple of {alignment} bytes",
                self.bytes.start,
                self.slot().handle()
            )));
        }
        // A failure is not kept: resources that the device lacks now may be available later. If threads race,
        // only the first view is kept.
        let view = self.allocation.memory.view(self.bytes.start, self.bytes.len())?;
        Ok(&**self.view.get_or_init(|| view))
    }
}
