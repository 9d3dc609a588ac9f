//! Queues as applications use them.

use std::fmt;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use smallvec::SmallVec;

use super::command::GroupId;
use super::dot::dot;
use super::event::{Event, Read, ReadPieces};
use super::fusion::recent::Recents;
use super::host_memory::{OwnedElements, ReadDestination, ReadSlot, room_for};
use super::host_task::{IntoOutcome, Precondition, ToOutcome};
use super::launch::{Conditions, Launch};
use super::launch_work::check_same_device;
use super::scheduler::{DeviceCopyEnd, Scheduler};
use super::time_limit::TimeLimit;
use super::work::Work;
use crate::args::buffer::Buffer;
use crate::args::memory::{DeviceMemory, Place};
use crate::args::region::Region;
use crate::args::{ArgumentKind, Seal};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::process;

/// Queue to which commands are submitted: a handle, cheap to clone.
///
/// A queue does not impose an order. Commands run in the order that their data requires, also across
/// the queues of a device. A command that reads a buffer runs after the command that was submitted
/// earlier and writes the same bytes; a command that writes runs after the commands that read. All
/// other commands may run at the same time. [`Launch::after`] orders commands that share no data.
///
/// Submitting never blocks and never waits for a build; a producer that may be faster than the device
/// awaits [`ready`](Self::ready) first. A command that is not awaited may start up to 2 ms later than it
/// could: if a driver starts commands only on request, Kiln starts several at a time. With PoCL it does
/// the same if commands follow each other within 30 µs. Awaiting a command starts it and all commands
/// before it.
///
/// A command keeps everything it uses alive until the device is done with it; its [`Event`] may be
/// dropped at any time. Drivers block the thread that enqueues a large read or write. On a device that
/// is not a CPU, reads and writes of more than 4 MiB, or beyond 32 MiB in flight, are therefore moved
/// in pieces by two of Kiln's own threads, once their dependencies have completed.
///
/// # Failures
///
/// The memory that a command was to write is lost if the command does not run or does not end well, whatever the reason:
/// its program cannot be built, its kernel turns out to be unfit for checked launches, the driver rejects it,
/// the device fails, or it was [canceled](Event::cancel). The commands that need what is lost fail, too: reads,
/// maps, copies and launches, whether they were submitted before the failure or after it. They are not run, and
/// their errors say so and contain [the same](Error::same) failure. So nothing reads old contents for new ones,
/// also where events are dropped. Commands that need nothing of the failed one are not affected.
///
/// A launch writes the memory that its kernel's signature does not declare read-only. Before the signature is
/// known, because the program is still being built, each plain `&buffer` counts as written;
/// [`Buffer::read_only`] states that one is not. A launch that was ordered [after](Launch::after) a failed
/// command is not run either, and what it was to write is lost, too.
///
/// Memory is good again once it is completely overwritten: by a write, a fill, a copy, or a launch to which it
/// is passed as [`Buffer::write_only`]. An image that a kernel writes counts as written in part.
///
/// A launch that [`submit`](Self::submit) refuses with an error has not been submitted, and has changed nothing.
///
/// ```no_run
/// # async fn example(queue: kiln::Queue, step: kiln::Kernel, state: kiln::Buffer<f32>, saved: Vec<f32>)
/// #     -> kiln::Result<()> {
/// queue.submit(step.launch(state.len()).args((&state,)))?; // the event is dropped
/// let result = match queue.read(&state).await {
///     Ok(result) => result,
///     Err(error) => {
///         eprintln!("{error}"); // why `step` did not run
///         queue.write(&state, saved.clone())?.await?; // `state` can be used again
///         saved
///     }
/// };
/// # Ok(())
/// # }
/// ```
///
/// # Examples
///
/// ```no_run
/// use kiln::{Buffer, Kernel, Runtime};
///
/// # async fn example(rt: Runtime, blur: Kernel, edges: Kernel, merge: Kernel, photo: Buffer<f32>,
/// #     soft: Buffer<f32>, outline: Buffer<f32>, result: Buffer<f32>) -> kiln::Result<()> {
/// let (queue, n) = (rt.queue(), photo.len());
/// queue.submit(blur.launch(n).args((photo.read_only(), &soft)))?;
/// queue.submit(edges.launch(n).args((photo.read_only(), &outline)))?; // may run at the same time
/// queue.submit(merge.launch(n).args((&soft, &outline, &result)))?; // after both
/// let pixels: Vec<f32> = queue.read(&result).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Queue {
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) number: u64,
    /// Scopes that recently ran as one kernel.
    pub(super) recents: Arc<Mutex<Recents>>,
}

impl Queue {
    pub(crate) fn new(scheduler: Arc<Scheduler>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { scheduler, number: NEXT.fetch_add(1, Relaxed), recents: Arc::default() }
    }

    /// Returns the device that runs the queue's commands.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::devices::DeviceKind;
    ///
    /// # fn example(queue: &kiln::Queue) {
    /// let piece = if queue.device().kind == DeviceKind::Cpu { 1 << 14 } else { 1 << 20 };
    /// println!("{} gets {piece} elements at a time", queue.device());
    /// # }
    /// ```
    #[must_use]
    pub fn device(&self) -> &Device {
        self.scheduler.slot().handle()
    }

    /// Submits a launch.
    ///
    /// If its program is still building, the launch waits for the build. Mistakes that can only be
    /// found with the program are then returned by the event instead, and what the launch was to write is
    /// [lost](Queue#failures).
    ///
    /// A launch of a [checked](crate::CheckedProgram) kernel is analysed first, on this thread, unless an
    /// earlier launch was like it. If it is not proven to stay inside its buffers, it waits for the guarded
    /// variant of its kernel.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument), naming the kernel and the parameter, if the
    /// arguments' number, kinds, sizes or types do not fit the kernel's signature, if a buffer or the program
    /// belongs to another device or runtime, or if the range does not fit the device. The build's own error if
    /// the program could not be built. [`Unsupported`](crate::ErrorKind::Unsupported) for a checked launch that
    /// cannot be checked, or that [must be proven](crate::Launch::require_proof) and is not.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: &kiln::Queue, blur: &kiln::Kernel, sharpen: &kiln::Kernel,
    /// #     photo: &kiln::Buffer<f32>, soft: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// queue.submit(blur.launch(photo.len()).args((photo, soft)))?;
    /// let sharpened = queue.submit(sharpen.launch(photo.len()).args((soft, photo)))?; // after `blur`
    /// sharpened.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&self, launch: Launch) -> Result<Event> {
        self.submit_to(launch, None)
    }

    /// Submits a launch to the queue or, if `group` is set, to that fusion scope of the queue.
    pub(super) fn submit_to(&self, launch: Launch, group: Option<GroupId>) -> Result<Event> {
        process::check()?;
        let (mut work, conditions) = launch.into_parts();
        let Conditions { mistake, after, preconditions, timeout } = conditions;
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        for (index, argument) in work.arguments.iter().enumerate() {
            let place = || format!("kernel `{}`, argument {index}", work.kernel.name());
            if let ArgumentKind::Memory(region, _) = &argument.kind {
                self.check_memory(region, place)?;
            }
            if argument.open.is_some() {
                let message =
                    "a value that replays of a graph set; give it to `Recorder::submit` only";
                return Err(Error::invalid(message).within(place()));
            }
        }
        work.check_proof()?;
        let building = !work.resolve_variant(self.device())?;
        let limit = timeout.map(|limit| TimeLimit::starting_now(work.kernel.name(), limit));
        let mut command = self.scheduler.command(Work::Launch(work), self.number);
        (command.building, command.group) = (building, group);
        let event = self.scheduler.submit(command, after, preconditions);
        Ok(match limit {
            Some(limit) => event.with_limit(limit),
            None => event,
        })
    }

    /// Copies elements from the host to a whole buffer, a whole image or a [part](crate::Image::part) of an image,
    /// row by row. The event completes once they are copied.
    ///
    /// The elements may belong to a `Vec<T>`, an array, an `Arc<[T]>`, a `&'static [T]`, or any other owner that
    /// lends them as a slice. Kiln keeps the owner until they are copied, and makes no copy of its own. A panic
    /// when the owner is dropped is caught and logged.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the number of `elements` is not the
    /// length of the memory, or if the memory belongs to another device.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, layer: &kiln::Kernel, weights: &kiln::Buffer<f32>,
    /// #     x: &kiln::Buffer<f32>, trained: Vec<f32>) -> kiln::Result<()> {
    /// queue.write(weights, trained)?; // not awaited: the launch waits for it
    /// queue.submit(layer.launch(x.len()).args((weights, x)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write<M: DeviceMemory>(
        &self,
        to: &M,
        elements: impl AsRef<[M::Element]> + Send + 'static,
    ) -> Result<Event> {
        self.write_owned(to, OwnedElements::new(elements))
    }

    /// Like [`write`](Self::write), for elements whose owner has been asked for them.
    pub(crate) fn write_owned<M: DeviceMemory>(
        &self,
        to: &M,
        elements: OwnedElements<impl Send + 'static>,
    ) -> Result<Event> {
        let to = to.place(Seal);
        check_length::<M>("a write", elements.len(), to)?;
        self.check_device(to.region, || "a write".to_owned())?;
        Ok(self.run(Work::Write { to: to.region.clone(), from: Box::new(elements) }))
    }

    /// Copies the elements of a buffer, or the pixels of an image or of a [part](crate::Image::part) of one, to the
    /// host. If the future is dropped, the memory is read all the same and the elements are discarded.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the memory belongs to
    /// another device, [`OutOfResources`](crate::ErrorKind::OutOfResources) if the host has no memory
    /// for the elements, and the failure of the command that should have written them.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: &kiln::Queue, losses: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let all: Vec<f32> = queue.read(losses).await?;
    /// let latest = queue.read(&losses.slice(losses.len() - 1..)?).await?; // copies one element
    /// assert_eq!(all.last(), latest.first());
    /// # Ok(())
    /// # }
    /// ```
    pub fn read<M: DeviceMemory>(&self, from: &M) -> Read<M::Element> {
        self.read_into(from, Vec::new())
    }

    /// Copies elements or pixels to the host, like [`read`](Self::read), into a vector of the caller. Its
    /// former elements are dropped. If its capacity suffices, no memory is allocated for the new ones.
    ///
    /// # Errors
    ///
    /// From the future, as for [`read`](Self::read). The vector is dropped then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the vector and the elements. The memory is read all the same.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: &kiln::Queue, step: &kiln::Kernel, x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut values = Vec::new();
    /// for _ in 0..1_000 {
    ///     queue.submit(step.launch(x.len()).args((x,)))?;
    ///     values = queue.read_into(x, values).await?; // the same memory each time
    ///     println!("{}", values.iter().sum::<f32>());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_into<M: DeviceMemory>(
        &self,
        from: &M,
        vector: Vec<M::Element>,
    ) -> Read<M::Element> {
        let from = from.place(Seal);
        let checked = self.check_device(from.region, || "a read".to_owned());
        let slot = ReadSlot::default();
        let destination =
            checked.and_then(|()| ReadDestination::new(vector, from.len, slot.clone()));
        Read::new(destination.map(|to| {
            let event = self.run(Work::Read { from: from.region.clone(), to: Box::new(to) });
            (event, slot)
        }))
    }

    /// Copies the elements of a buffer to the host in pieces of `len` elements, so that the host can use the first
    /// ones while the device copies the others. The last piece may be shorter. All pieces are read as the buffer
    /// is now: commands that are submitted later wait for them.
    ///
    /// # Errors
    ///
    /// From the stream, as for [`read`](Self::read), and [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if
    /// `len` is 0. The stream ends after an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping a future of the next piece loses nothing. Dropping the stream discards the pieces that it has not
    /// returned; they are read all the same.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::TryStreamExt;
    ///
    /// # async fn example(queue: &kiln::Queue, frame: &kiln::Buffer<u8>, mut file: Vec<u8>) -> kiln::Result<()> {
    /// let mut pieces = queue.read_pieces(frame, 1 << 20);
    /// while let Some(piece) = pieces.try_next().await? {
    ///     file.extend(piece); // while the device copies the next pieces
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_pieces<T: Pod + Send>(&self, buffer: &Buffer<T>, len: usize) -> ReadPieces<T> {
        if len == 0 {
            let error = Error::invalid("a read in pieces of 0 elements; give at least 1");
            return ReadPieces::new([Read::new(Err(error))]);
        }
        let pieces = (0..buffer.len()).step_by(len).map(|start| {
            let end = start.saturating_add(len).min(buffer.len());
            match buffer.slice(start..end) {
                Ok(piece) => self.read(&piece),
                Err(error) => Read::new(Err(error)),
            }
        });
        ReadPieces::new(pieces)
    }

    /// Sets every element of a buffer or of a [part of a grid](crate::memory::Grid::part), or every pixel of an image
    /// or of a [part](crate::Image::part) of one, to `value`.
    ///
    /// The device fills a buffer if the size of an element is a power of two up to 128 bytes and the buffer
    /// starts at a multiple of that size in its memory. Otherwise, and for parts of grids, the elements are
    /// created in host memory and written.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the memory belongs to another device,
    /// and [`OutOfResources`](crate::ErrorKind::OutOfResources) if the host has no memory for elements
    /// that it has to write.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: &kiln::Queue, histogram: &kiln::Kernel, pixels: &kiln::Buffer<u8>,
    /// #     counts: &kiln::Buffer<u32>) -> kiln::Result<()> {
    /// queue.fill(counts, 0)?; // clears the counts of the previous frame
    /// queue.submit(histogram.launch(pixels.len()).args((pixels, counts)))?;
    /// let counts: Vec<u32> = queue.read(counts).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fill<M: DeviceMemory>(&self, memory: &M, value: M::Element) -> Result<Event> {
        let place = memory.place(Seal);
        self.check_device(place.region, || "a fill".to_owned())?;
        let Some(pattern) = fill_pattern(memory, &value) else {
            let mut elements = room_for(place.len, "a fill")?;
            elements.resize(place.len, value);
            return self.write(memory, elements);
        };
        Ok(self.run(Work::Fill { region: place.region.clone(), pattern }))
    }

    /// Copies the elements of one buffer to another of the same length, the pixels of an image or of a
    /// [part](crate::Image::part) of one to another with the same sizes, or as many elements between a buffer
    /// and an image or a [part of a grid](crate::memory::Grid::part), row by row. Two parts of grids have the same
    /// sizes and, within one buffer, grids of the same sizes. The elements of a buffer of pixels have the
    /// image's type of pixels: [`cast`](Buffer::cast) the buffer otherwise.
    ///
    /// Memory of another device, also of another runtime, is copied through the host's memory, 4 MiB at a
    /// time. The copy is a command of both devices: on each it comes after the commands that were submitted
    /// there earlier and use the same elements, and the event ends with both. One of the two devices is the
    /// queue's.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the lengths or sizes differ, if the two
    /// overlap, or if neither belongs to the queue's device.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, train: &kiln::Kernel, weights: &kiln::Buffer<f32>,
    /// #     backup: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// queue.copy(weights, backup)?; // the weights before this step
    /// queue.submit(train.launch(weights.len()).args((weights, 0.01f32)))?; // after the copy
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy<F, T>(&self, from: &F, to: &T) -> Result<Event>
    where
        F: DeviceMemory,
        T: DeviceMemory<Element = F::Element>,
    {
        let (from, to) = (from.place(Seal), to.place(Seal));
        check_length::<T>("a copy", from.len, to)?;
        let (from, to) = (from.region, to.region);
        let is_between_devices = !Arc::ptr_eq(from.slot(), to.slot());
        for region in [from, to] {
            // A copy between devices has a queue of either device.
            if !is_between_devices || region.is_placeholder() {
                self.check_device(region, || "a copy".to_owned())?;
            }
        }
        check_shapes(from, to)?;
        if is_between_devices {
            return self.copy_between_devices(from, to);
        }
        check_apart(from, to)?;
        Ok(self.run(Work::Copy { from: from.clone(), to: to.clone() }))
    }

    fn copy_between_devices(&self, from: &Arc<Region>, to: &Arc<Region>) -> Result<Event> {
        process::check()?;
        let [source, target] = [from, to].map(|region| {
            Scheduler::of(region).ok_or_else(|| {
                let device = region.slot().handle();
                let message = "a copy between devices with a buffer whose runtime was dropped, on";
                Error::invalid(format!("{message} {device}; keep the runtime or a queue of it"))
            })
        });
        let (source, target) = (source?, target?);
        let end = |scheduler, region| {
            let is_own = Arc::ptr_eq(scheduler, &self.scheduler);
            DeviceCopyEnd { scheduler, region, queue: if is_own { self.number } else { 0 } }
        };
        let is_source = Arc::ptr_eq(&source, &self.scheduler);
        if !is_source {
            self.check_device(to, || "a copy".to_owned())?;
        }
        let [read, written] = Scheduler::submit_device_copy(&end(&source, from), &end(&target, to));
        Ok(if is_source { read } else { written })
    }

    /// Runs a host future as a command of the DAG, on one of Kiln's own threads, even if its event is
    /// not awaited. If the future returns an error or panics, the command fails, and so do the launches
    /// that were ordered [after](Launch::after) it.
    ///
    /// Dropping the event does not cancel the future; [`Event::cancel`] does, if the future has not started.
    /// A future that never completes blocks [`Runtime::drain`](crate::Runtime::drain) forever. All host futures
    /// of a runtime share the thread. One that blocks therefore delays the others, except in [`Event::wait`]:
    /// the others run on another thread meanwhile.
    ///
    /// A task must not await a command that waits for the task itself, such as a marker that was
    /// submitted after it. That await returns an error of the kind
    /// [`Deadlock`](crate::ErrorKind::Deadlock). The last task of a circle of tasks that await nothing
    /// but each other gets the same error.
    ///
    /// The thread belongs to no executor. If a future needs one, such as for tokio's timers and
    /// sockets, spawn it there, and pass its handle to this function.
    ///
    /// # Errors
    ///
    /// [`Forked`](crate::ErrorKind::Forked) in a forked child.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn load() -> std::io::Result<()> { Ok(()) }
    /// # fn example(queue: kiln::Queue, blur: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let loaded = queue.host_task(async { load().await })?;
    /// queue.submit(blur.launch(x.len()).args((&x,)).after(&loaded))?; // fails if loading does
    /// # Ok(())
    /// # }
    /// ```
    pub fn host_task<F>(&self, future: F) -> Result<Event>
    where
        F: IntoFuture<IntoFuture: Send + 'static, Output: IntoOutcome>,
    {
        process::check()?;
        let future = future.into_future();
        let precondition: Precondition = Box::pin(async move { future.await.into_outcome() });
        let command = self.scheduler.command(Work::Host, self.number);
        Ok(self.scheduler.submit(command, SmallVec::new(), vec![precondition]))
    }

    /// Submits a command that completes when everything submitted to this queue so far has finished,
    /// successfully or not.
    ///
    /// # Errors
    ///
    /// [`Forked`](crate::ErrorKind::Forked) in a forked child.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: &kiln::Queue, blur: &kiln::Kernel,
    /// #     tiles: &[kiln::Buffer<f32>]) -> kiln::Result<()> {
    /// for tile in tiles {
    ///     queue.submit(blur.launch(tile.len()).args((tile,)))?;
    /// }
    /// queue.marker()?.await?; // every tile has finished, successfully or not
    /// # Ok(())
    /// # }
    /// ```
    pub fn marker(&self) -> Result<Event> {
        process::check()?;
        Ok(self.scheduler.marker(Some(self.number)))
    }

    /// Returns the DAG of the queue's device in Graphviz's language. It contains the commands that have not
    /// finished and, while a [`Trace`](crate::stats::Trace) records, also those that have. Commands that were not
    /// given to the device yet are dashed, finished ones are filled, and failed ones are red.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue) -> std::io::Result<()> {
    /// std::fs::write("commands.dot", queue.dot())?; // to draw it: `dot -Tsvg -O commands.dot`
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn dot(&self) -> String {
        if process::is_forked() { String::new() } else { dot(&self.scheduler) }
    }

    fn run(&self, work: Work) -> Event {
        let command = self.scheduler.command(work, self.number);
        self.scheduler.submit(command, SmallVec::new(), Vec::new())
    }

    pub(super) fn check_device(
        &self,
        region: &Region,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        process::check()?;
        self.check_memory(region, what)
    }

    /// Fails if a command of this queue cannot use the region.
    fn check_memory(&self, region: &Region, what: impl FnOnce() -> String) -> Result<()> {
        if region.is_placeholder() {
            let message =
                "an input or a temporary of a graph, which only commands of its recording can use";
            return Err(Error::invalid(message).within(what()));
        }
        check_same_device(
            format_args!("{} is in the memory of", region.in_words()),
            region.slot().handle(),
            self.device(),
        )
        .map_err(|error| error.within(what()))
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("device", self.device())
            .field("number", &self.number)
            .finish()
    }
}

/// Returns the pattern with which the device fills memory: an element, or the color of a pixel. `None` if the host
/// has to write the elements.
pub(super) fn fill_pattern<M: DeviceMemory>(memory: &M, value: &M::Element) -> Option<Box<[u8]>> {
    /// Maximum size of a pattern, in bytes, which must also be a power of two (OpenCL 3.0, 5.2.2,
    /// `clEnqueueFillBuffer`).
    const MAX_PATTERN: usize = 128;
    let Place { region, .. } = memory.place(Seal);
    let size = size_of::<M::Element>();
    let is_pattern =
        size.is_power_of_two() && size <= MAX_PATTERN && region.bytes().start.is_multiple_of(size);
    let is_filled_by_device = is_pattern && region.rows().is_none();
    if region.pixels().is_none() && !is_filled_by_device {
        return None;
    }
    // An image over a buffer is filled like the buffer.
    let color = M::color(value, Seal).filter(|_| region.pixels().is_some());
    let pattern = match &color {
        Some(color) => bytemuck::bytes_of(color),
        None => bytemuck::bytes_of(value),
    };
    Some(pattern.into())
}

/// Fails if a copy's memory has different numbers of pixels or rows in a dimension.
pub(super) fn check_shapes(from: &Region, to: &Region) -> Result<()> {
    if let (Some(source), Some(target)) = (from.pixels(), to.pixels())
        && source.size != target.size
    {
        return Err(Error::invalid(format!(
            "a copy of {:?} pixels to {:?} pixels; the sizes must be the same",
            source.size, target.size
        )));
    }
    check_rows(from, to)
}

/// Fails if a copy's memory overlaps.
pub(super) fn check_apart(from: &Region, to: &Region) -> Result<()> {
    if from.overlaps(to) {
        return Err(Error::invalid(format!(
            "a copy from bytes {:?} to bytes {:?} of the same memory; they must not overlap",
            from.bytes(),
            to.bytes()
        )));
    }
    Ok(())
}

/// Fails if a copy from or to a part of a grid is not one that devices can make.
fn check_rows(from: &Region, to: &Region) -> Result<()> {
    let (source, target) = (from.rows(), to.rows());
    let Some(rows) = source.or(target) else { return Ok(()) };
    if from.pixels().or(to.pixels()).is_some() {
        return Err(Error::invalid(
            "a copy between a part of a grid and an image; copy the part to a buffer first",
        ));
    }
    if let (Some(source), Some(target)) = (source, target)
        && source.size() != target.size()
    {
        return Err(Error::invalid(format!(
            "a copy of a part of a grid to one with other sizes: {:?} to {:?} bytes, rows and slices; the sizes \
             must be the same",
            source.size(),
            target.size()
        )));
    }
    let pitches = |region: &Region| {
        region.rows().map_or_else(|| rows.packed(0).pitches(), |rows| rows.pitches())
    };
    if from.allocation() == to.allocation() && pitches(from) != pitches(to) {
        return Err(Error::invalid(format!(
            "a copy within one buffer of rows at distances of {:?} bytes to rows at {:?}; the distances must be the \
             same, or copy through another buffer",
            pitches(from),
            pitches(to)
        )));
    }
    Ok(())
}

/// Fails if a copy or a write has more or fewer elements than its target.
pub(super) fn check_length<M: DeviceMemory>(what: &str, given: usize, to: Place<'_>) -> Result<()> {
    if given == to.len {
        return Ok(());
    }
    let element = std::any::type_name::<M::Element>();
    Err(Error::invalid(match to.region.image() {
        Some(image) => format!(
            "{what} of {given} pixels to {} pixels of an image of {}; give exactly as many pixels, or \
             a part of the image",
            to.len, image.shape
        ),
        None => format!(
            "{what} of {given} elements to a buffer of {} elements of `{element}`; give exactly as \
             many elements, or a slice of the buffer",
            to.len
        ),
    }))
}
