//! Buffers: typed views of device memory.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytemuck::Pod;
use kiln_spirv::Access;

use super::region::{Contents, Freed, MemoryHandle, Region, Storage};
use crate::backend::DeviceSlot;
use crate::error::{Error, ErrorKind, Result};

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

impl<T: Pod> Buffer<T> {
    pub(crate) fn allocate(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        len: usize,
        storage: Storage,
        contents: Contents,
    ) -> Result<Self> {
        let device = slot.handle();
        let description =
            || format!("a buffer of {len} elements of {} bytes on {device}", size_of::<T>());
        let bytes = size_in_bytes::<T>(len)?;
        Ok(Self::of(Region::allocate(slot, freed, (bytes, storage), contents, description)?))
    }

    /// Returns a placeholder, in whose place a replay of a graph uses another buffer.
    pub(crate) fn placeholder(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        len: usize,
    ) -> Result<Self> {
        Ok(Self::of(Region::placeholder(slot, freed, size_in_bytes::<T>(len)?)))
    }

    /// Returns memory that other code allocated as `len` elements.
    ///
    /// # Safety
    ///
    /// As for [`Device::adopt_buffer`](crate::backend::Device::adopt_buffer).
    pub(crate) unsafe fn adopt(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        object: *mut c_void,
        len: usize,
    ) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| {
            let element = std::any::type_name::<T>();
            Error::invalid(format!("{len} elements of `{element}` are no size of a buffer"))
        })?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { slot.open()?.adopt_buffer(object, bytes)? };
        let start = given.start;
        let whole = Region::given(slot, freed, given, Storage::Device)?;
        let start = whole.bytes().start + start;
        Ok(Self::of(whole.slice(start..start + bytes)))
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
        self.region.bytes().len() / size_of::<T>()
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
    /// Any slice can be read, written, filled and copied. A slice that starts at a multiple of the device's
    /// [`slice_alignment`](crate::devices::Limits::slice_alignment), in bytes, can be an argument of any kernel. For
    /// another slice, Kiln builds a variant of the kernel that adds the slice's offset itself: see
    /// [`guides::memory`](crate::guides::memory).
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
        let base = self.region.bytes().start;
        let bytes = base + start * size_of::<T>()..base + end * size_of::<T>();
        Ok(Self::of(self.region.slice(bytes)))
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
        let bytes = self.region.bytes().len();
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

    /// Returns the driver's object of the buffer's memory, for code that calls the driver itself. It is alive as long
    /// as the buffer, or a command that uses the buffer.
    ///
    /// The driver runs what such code enqueues without regard to Kiln's commands. [`Queue::native`] runs it as a
    /// command of the DAG. Memory that no command has used yet is not zeroed before the first one.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for a simulated device.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(samples: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let handle = samples.driver_handle()?; // `handle.object` is a `cl_mem`
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Queue::native`]: crate::Queue::native
    pub fn driver_handle(&self) -> Result<MemoryHandle> {
        self.region.handle()
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

/// Returns the size of `len` elements.
fn size_in_bytes<T>(len: usize) -> Result<usize> {
    if len == 0 || size_of::<T>() == 0 {
        return Err(Error::invalid(format!(
            "a buffer of {len} elements of `{}` is empty; it must have at least one byte",
            std::any::type_name::<T>()
        )));
    }
    let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
    bytes.ok_or_else(|| {
        let size = size_of::<T>();
        let message = format!(
            "a buffer of {len} elements of {size} bytes: the size in bytes exceeds the address space"
        );
        Error::new(ErrorKind::OutOfResources, message)
    })
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
            .field("allocation", &self.region.allocation())
            .field("bytes", self.region.bytes())
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
