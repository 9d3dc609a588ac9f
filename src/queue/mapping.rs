//! Mappings of memory that host and device share: their guards, and the futures of these guards.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytemuck::Pod;
use kiln_spirv::Access;

use super::event::Event;
use super::handle::Queue;
use super::map_work::MappedAddress;
use super::record::Record;
use super::scheduler::Scheduler;
use crate::args::buffer::Buffer;
use crate::args::region::Region;
use crate::error::{Error, ErrorKind, Result};
use crate::process;

/// Keeps the device out of mapped memory. Dropping it lets the command run that unmaps the memory.
struct Hold {
    /// Record of the command that unmaps the memory.
    unmap: Arc<Record>,
}

/// Mapping that the device has not completed yet.
struct PendingMapping {
    /// Event of the command that maps the memory.
    mapped: Event,
    address: Arc<MappedAddress>,
    hold: Hold,
    /// Number of elements.
    len: usize,
}

/// Elements that the device does not write, or does not access, while this exists.
struct Elements<T> {
    start: NonNull<T>,
    len: usize,
    _hold: Hold,
}

/// State of a future of a guard.
type State = Result<Option<PendingMapping>, Option<Error>>;

/// Elements of a buffer that host and device share, for the host to read. It is a guard: commands that write
/// the elements wait until it is dropped. It dereferences to a slice.
///
/// [`Queue::map`](crate::Queue::map) returns it. A command that waits for the guard blocks no thread, but never
/// runs while the guard exists. A task that holds the guard must therefore not await such a command, nor a
/// marker or [`Runtime::drain`](crate::Runtime::drain). The memory outlives the guard, also if the buffer, its
/// queue and its runtime are dropped first. If a guard is leaked, the commands behind it never run.
///
/// # Examples
///
/// ```no_run
/// # async fn example(queue: kiln::Queue, samples: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let guard = queue.map(&samples).await?;
/// let peak = guard.iter().copied().fold(0.0, f32::max);
/// drop(guard); // the device may write the samples again
/// println!("{peak}");
/// # Ok(())
/// # }
/// ```
#[must_use = "the memory is unmapped when the guard is dropped"]
pub struct Mapped<T>(Elements<T>);

/// Elements of a buffer that host and device share, for the host to read and write. It is a guard: all other
/// commands that use the elements wait until it is dropped. It dereferences to a mutable slice.
///
/// [`Queue::map_mut`](crate::Queue::map_mut) returns it. The remarks on [`Mapped`] apply.
///
/// # Examples
///
/// ```no_run
/// # async fn example(queue: kiln::Queue, blur: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let mut guard = queue.map_mut(&x).await?;
/// guard.fill(0.5);
/// drop(guard);
/// queue.submit(blur.launch(x.len()).args((&x,)))?; // finds the elements that the host wrote
/// # Ok(())
/// # }
/// ```
#[must_use = "the memory is unmapped when the guard is dropped"]
pub struct MappedMut<T>(Elements<T>);

/// Future of a guard for reading, from [`Queue::map`](crate::Queue::map).
///
/// # Cancel safety
///
/// Dropping it unmaps the memory.
///
/// # Panics
///
/// If polled again after it was ready.
///
/// # Examples
///
/// ```no_run
/// use futures::future::try_join;
///
/// # async fn example(queue: kiln::Queue, x: kiln::Buffer<f32>, y: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let (x, y) = try_join(queue.map(&x), queue.map(&y)).await?;
/// let product: f32 = x.iter().zip(&*y).map(|(x, y)| x * y).sum();
/// # Ok(())
/// # }
/// ```
#[must_use = "the memory is unmapped when the future is dropped"]
pub struct Map<T> {
    state: State,
    element: PhantomData<fn() -> T>,
}

/// Future of a guard for reading and writing, from [`Queue::map_mut`](crate::Queue::map_mut).
///
/// # Cancel safety
///
/// Dropping it unmaps the memory.
///
/// # Panics
///
/// If polled again after it was ready.
///
/// # Examples
///
/// ```no_run
/// # async fn example(queue: kiln::Queue, frame: kiln::Buffer<u8>, camera: &[u8]) -> kiln::Result<()> {
/// let mapped = queue.map_mut(&frame); // after all commands that use the frame
/// mapped.await?.copy_from_slice(camera);
/// # Ok(())
/// # }
/// ```
#[must_use = "the memory is unmapped when the future is dropped"]
pub struct MapMut<T> {
    state: State,
    element: PhantomData<fn() -> T>,
}

impl Queue {
    /// Maps a [host buffer](crate::Runtime::host_buffer), or a slice of one, so that the host can read its
    /// elements where they are. The device maps it after the commands that were submitted earlier and write the
    /// elements. Commands that were submitted later and write them wait until the guard is dropped. Other
    /// commands go on.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the buffer is not a host
    /// buffer, belongs to another device, or starts at a byte of its memory that is not a multiple of the
    /// alignment of `T`, and the failure of the command that should have written the elements.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future unmaps the memory.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, queue: kiln::Queue, count: kiln::Kernel,
    /// #     pixels: kiln::Buffer<u8>) -> kiln::Result<()> {
    /// let counts = rt.host_buffer::<u32>(256)?;
    /// queue.submit(count.launch(pixels.len()).args((&pixels, &counts)))?;
    /// let most = queue.map(&counts).await?.iter().copied().max(); // after the launch; nothing is copied on a CPU
    /// # Ok(())
    /// # }
    /// ```
    pub fn map<T: Pod>(&self, buffer: &Buffer<T>) -> Map<T> {
        Map::new(self.map_for(buffer, Access::Read))
    }

    /// Maps a [host buffer](crate::Runtime::host_buffer), or a slice of one, so that the host can read and
    /// write its elements where they are. The device maps it after all commands that were submitted earlier and
    /// use the elements. Commands that were submitted later and use them wait until the guard is dropped. Other
    /// commands go on.
    ///
    /// # Errors
    ///
    /// From the future, as for [`map`](Self::map).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future unmaps the memory.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, queue: kiln::Queue, blur: kiln::Kernel,
    /// #     mut decode: impl FnMut(&mut [u8]), blurred: kiln::Buffer<u8>) -> kiln::Result<()> {
    /// let frame = rt.host_buffer::<u8>(1920 * 1080)?;
    /// decode(&mut queue.map_mut(&frame).await?); // the guard is dropped at the end of the statement
    /// queue.submit(blur.launch(frame.len()).args((&frame, &blurred)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn map_mut<T: Pod>(&self, buffer: &Buffer<T>) -> MapMut<T> {
        MapMut::new(self.map_for(buffer, Access::ReadWrite))
    }

    fn map_for<T: Pod>(&self, buffer: &Buffer<T>, access: Access) -> Result<PendingMapping> {
        let region = buffer.region();
        self.check_device(region, || "a mapping".to_owned())?;
        check_mappable::<T>(region)?;
        let address = MappedAddress::new();
        let (mapped, unmap) = self.scheduler.submit_mapping(region, access, &address, self.number);
        Ok(PendingMapping { mapped, address, hold: Hold::new(unmap), len: buffer.len() })
    }
}

/// Fails if the host cannot map the region as elements of `T`.
fn check_mappable<T>(region: &Region) -> Result<()> {
    if !region.is_on_host() {
        return Err(Error::invalid(
            "a mapping of a buffer that is in device memory; create the buffer with `Runtime::host_buffer`, or \
             use `Queue::read` and `Queue::write`",
        ));
    }
    let start = region.bytes().start;
    if !start.is_multiple_of(align_of::<T>()) {
        return Err(Error::invalid(format!(
            "a mapping of a slice that starts at byte {start} of its buffer; elements of `{}` must start at a \
             multiple of {} bytes",
            std::any::type_name::<T>(),
            align_of::<T>()
        )));
    }
    Ok(())
}

impl Hold {
    fn new(unmap: Arc<Record>) -> Self {
        Self { unmap }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // In a forked child, the lock may be held by a thread that exists only in the parent.
        if !process::is_forked()
            && let Some(scheduler) = Scheduler::of_command(&self.unmap)
        {
            scheduler.release_hold(&self.unmap);
        }
    }
}

impl<T: Pod> Elements<T> {
    fn new(PendingMapping { address, hold, len, .. }: PendingMapping) -> Result<Self> {
        let start = address.get().cast::<T>();
        match NonNull::new(start).filter(|start| start.is_aligned()) {
            Some(start) => Ok(Self { start, len, _hold: hold }),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the driver mapped a buffer at {start:?}, where elements of `{}` cannot be; map the buffer as \
                     one of bytes (`cast::<u8>()`)",
                    std::any::type_name::<T>()
                ),
            )),
        }
    }
}

impl<T> Deref for Elements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the device has mapped `len` elements at this aligned address, and does not unmap them while
        // the hold exists. They are plain data. Until then, no command writes them; the host writes them only
        // through `deref_mut` of a mutable guard, which excludes all other guards.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.len).as_ref() }
    }
}

impl<T> DerefMut for Elements<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`. Only `MappedMut` calls this, and no other guard and no command uses the
        // elements while it exists.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.len).as_mut() }
    }
}

// SAFETY: several guards may lead to the same elements, like shared references; the elements are plain data
// that no thread owns.
unsafe impl<T: Send + Sync> Send for Elements<T> {}

// SAFETY: a shared guard only gives shared references.
unsafe impl<T: Sync> Sync for Elements<T> {}

/// Polls for the elements of a mapping.
fn poll_elements<T: Pod>(
    state: &mut State,
    context: &mut Context<'_>,
) -> Poll<Result<Elements<T>>> {
    const READY: &str = "polled after it was ready";
    match state {
        Err(error) => Poll::Ready(Err(error.take().expect(READY))),
        Ok(pending) => {
            let mapped = &mut pending.as_mut().expect(READY).mapped;
            let outcome = ready!(Pin::new(mapped).poll(context));
            let pending = pending.take().expect(READY);
            Poll::Ready(outcome.and_then(|()| Elements::new(pending)))
        }
    }
}

macro_rules! guards {
    ($($future:ident => $guard:ident),*) => {$(
        impl<T> $future<T> {
            fn new(pending: Result<PendingMapping>) -> Self {
                Self {
                    state: pending.map(Some).map_err(Some),
                    element: PhantomData,
                }
            }
        }

        impl<T: Pod> Future for $future<T> {
            type Output = Result<$guard<T>>;

            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
                poll_elements(&mut self.state, context).map_ok($guard)
            }
        }

        impl<T> fmt::Debug for $future<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mapped = self.state.as_ref().map(|pending| {
                    pending.as_ref().map(|pending| &pending.mapped)
                });
                f.debug_tuple(stringify!($future)).field(&mapped).finish()
            }
        }

        impl<T> Deref for $guard<T> {
            type Target = [T];

            fn deref(&self) -> &[T] {
                &self.0
            }
        }

        impl<T: fmt::Debug> fmt::Debug for $guard<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($guard)).field(&&self[..]).finish()
            }
        }
    )*};
}

guards!(Map => Mapped, MapMut => MappedMut);

impl<T> DerefMut for MappedMut<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}
