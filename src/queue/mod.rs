//! From launches to completion: the queue, the command DAG, and the futures of its commands.

mod command;
mod completion;
mod dag;
mod drain;
mod event;
mod fusion;
mod hazard;
mod host_memory;
mod host_task;
mod native_queue;
mod reactor;
mod scheduler;
mod stopwatch;
#[cfg(test)]
mod tests;
mod timeline;
mod waits;

use std::fmt;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use smallvec::SmallVec;

pub use self::command::Launch;
use self::command::{Submission, Work, check_length, check_same_device};
pub(crate) use self::drain::{drain, drain_within};
pub use self::event::{Event, Read, Status, Upload};
use self::fusion::Recents;
pub use self::fusion::{
    Examining, Fusing, FusionMode, FusionOutcome, FusionScope, Internalization, Unfused,
};
use self::host_memory::Landing;
pub use self::host_task::IntoOutcome;
use self::host_task::ToOutcome;
pub(crate) use self::reactor::Reactor;
use self::scheduler::GroupId;
pub(crate) use self::scheduler::{Options, Scheduler, Shared};
pub(crate) use self::timeline::Timeline;
pub use self::timeline::{Trace, WriteTrace};
pub(crate) use self::waits::Waits;
use crate::args::buffer::{Buffer, Region};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::process;

/// Where commands are submitted: a handle, cheap to clone.
///
/// A queue imposes no order. Commands run in the order that their data demands, also across queues
/// of a device: a command that reads a buffer runs after the one that was submitted before it and
/// writes the same bytes, and a command that writes runs after those that read. Everything else may
/// run at the same time. [`Launch::after`] orders what data does not.
///
/// Submitting never blocks and never waits for a build. What nobody awaits may start up to 2 ms later
/// than it could: drivers are told to start several commands at a time, where they wait to be told, and
/// so is PoCL where commands follow each other within 30 µs. Whoever awaits a command has it started
/// with all before it.
///
/// A command keeps alive whatever it uses until
/// the device is done with it; its [`Event`] may be dropped at any time. Drivers keep whoever hands
/// them a large read or write waiting, so on a device that is no CPU, those of more than 4 MiB, or
/// beyond 32 MiB in flight, are moved by two threads of Kiln's own, in pieces, once what they depend
/// on has ended.
///
/// # Failures
///
/// A command that fails makes those fail that use its results: they are not run, and their errors say
/// so and give [the same](Error::same) failure. What it should have written stays failed until
/// something overwrites it whole: a write, a fill, a copy, or a launch that gets it as
/// [`Buffer::write`]. A launch that was told to come [after](Launch::after) a failed command is not
/// run either, and what it should have written is missing, too.
///
/// A launch that is refused before it runs changes nothing: its arguments do not fit, its program
/// cannot be built, or the driver does not take it. It fails its own event and what was told to come
/// after it. Commands that use its buffers find there what they held before. Where the device had no
/// resources for it, or was lost, what it should have written is missing.
#[derive(Clone)]
pub struct Queue {
    scheduler: Arc<Scheduler>,
    number: u64,
    /// The scopes that ran as one of late.
    recents: Arc<Mutex<Recents>>,
}

impl Queue {
    pub(crate) fn new(scheduler: Arc<Scheduler>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { scheduler, number: NEXT.fetch_add(1, Relaxed), recents: Arc::default() }
    }

    /// The device that runs its commands.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.scheduler.slot().handle()
    }

    /// Submits a launch.
    ///
    /// If its program is still building, it waits for that, and mistakes that only the program can
    /// tell come out of the event instead. Such a launch [changes nothing](Queue#failures).
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument), naming the kernel and the parameter,
    /// if the arguments' number, kinds, sizes or types do not fit the kernel's signature, if a
    /// buffer or the program is of another device or runtime, or if the range does not fit the
    /// device. The build's own error if the program could not be built.
    pub fn submit(&self, launch: Launch) -> Result<Event> {
        self.submit_to(launch, None)
    }

    fn submit_to(&self, launch: Launch, group: Option<GroupId>) -> Result<Event> {
        process::check()?;
        let Launch { work, mistake, after, gates } = launch;
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        for (index, argument) in work.arguments.iter().enumerate() {
            if let crate::args::ArgumentKind::Buffer(region, _) = &argument.kind {
                self.check_device(region, || {
                    format!("kernel `{}`, argument {index}", work.kernel.name())
                })?;
            }
        }
        let mut building = true;
        if let Some(checked) = work.check(self.device()) {
            checked?;
            building = false;
        }
        let work = Work::Launch(work);
        Ok(self.scheduler.submit(Submission {
            work,
            queue: self.number,
            after,
            gates,
            building,
            group,
        }))
    }

    /// Copies elements from the host into a buffer, whole. The event tells when that has happened.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if `elements` are not as many as the
    /// buffer has, or if the buffer is of another device.
    pub fn write<T: Pod + Send>(&self, buffer: &Buffer<T>, elements: Vec<T>) -> Result<Event> {
        check_length("a write", elements.len(), buffer)?;
        self.check_device(buffer.region(), || "a write".to_owned())?;
        Ok(self.run(Work::Write { to: buffer.region().clone(), from: Box::new(elements) }))
    }

    /// Copies the elements of a buffer to the host. Dropping the future changes nothing but that
    /// nobody gets them.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the buffer is of
    /// another device, [`OutOfResources`](crate::ErrorKind::OutOfResources) if the host has no memory
    /// for the elements, and the failure of the command that should have written them.
    pub fn read<T: Pod + Send>(&self, buffer: &Buffer<T>) -> Read<T> {
        let checked = self.check_device(buffer.region(), || "a read".to_owned());
        let slot = event::ReadSlot::default();
        let landing = checked.and_then(|()| Landing::new(buffer.len(), slot.clone()));
        Read::new(landing.map(|to| {
            let event = self.run(Work::Read { from: buffer.region().clone(), to: Box::new(to) });
            (event, slot)
        }))
    }

    /// Sets every element of a buffer to `value`.
    ///
    /// The device fills if the size of `T` is a power of two up to 128 bytes and the buffer begins at a
    /// multiple of that in its memory. Else the elements are made in host memory and written.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the buffer is of another device, and
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) if the host has no memory for elements
    /// that it has to write.
    pub fn fill<T: Pod + Send>(&self, buffer: &Buffer<T>, value: T) -> Result<Event> {
        /// OpenCL 3.0, 5.2.2, `clEnqueueFillBuffer`: a power of two, and no more than this.
        const LARGEST_PATTERN: usize = 128;
        self.check_device(buffer.region(), || "a fill".to_owned())?;
        let size = size_of::<T>();
        if !size.is_power_of_two()
            || size > LARGEST_PATTERN
            || !buffer.region().bytes().start.is_multiple_of(size)
        {
            let mut elements = host_memory::room_for(buffer.len(), "a fill")?;
            elements.resize(buffer.len(), value);
            return Ok(
                self.run(Work::Write { to: buffer.region().clone(), from: Box::new(elements) })
            );
        }
        let pattern = SmallVec::from_slice(bytemuck::bytes_of(&value));
        Ok(self.run(Work::Fill { region: buffer.region().clone(), pattern }))
    }

    /// Copies the elements of one buffer to another of the same length.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the lengths differ, if the two
    /// overlap, or if one is of another device.
    pub fn copy<T: Pod>(&self, from: &Buffer<T>, to: &Buffer<T>) -> Result<Event> {
        check_length("a copy", from.len(), to)?;
        for buffer in [from, to] {
            self.check_device(buffer.region(), || "a copy".to_owned())?;
        }
        let (source, target) = (from.region().bytes(), to.region().bytes());
        if from.region().allocation() == to.region().allocation()
            && source.start < target.end
            && target.start < source.end
        {
            return Err(Error::invalid(format!(
                "a copy from bytes {source:?} to bytes {target:?} of the same memory; they must not \
                 overlap"
            )));
        }
        Ok(self.run(Work::Copy { from: from.region().clone(), to: to.region().clone() }))
    }

    /// Runs a host future as a command of the DAG, on a thread of Kiln's own, also if nobody awaits
    /// the event. If it gives an error or panics, the command fails, and so does what was told to
    /// come [after](Launch::after) it.
    ///
    /// Dropping the event does not cancel it, and a future that never ends holds up
    /// [`Runtime::drain`](crate::Runtime::drain) for ever. All host futures of a runtime share the
    /// thread, so one that blocks holds up the others, unless it does so in [`Event::wait`]: the others
    /// run beside it then. A task that awaits what waits for the task itself, such as a marker that was
    /// submitted after it, gets an error of the kind [`Deadlock`](crate::ErrorKind::Deadlock) from that
    /// await; so does the last task of a circle of tasks that await nothing but each other.
    ///
    /// The thread belongs to no executor: a future that needs one, such as tokio's
    /// timers and sockets, is spawned there, and its handle is what is given here.
    ///
    /// ```no_run
    /// # async fn load() -> std::io::Result<()> { Ok(()) }
    /// # fn example(queue: kiln::Queue, blur: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let loaded = queue.host_task(async { load().await })?;
    /// queue.submit(blur.launch(x.len()).args((&x,)).after(&loaded))?; // fails if loading does
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn host_task<F>(&self, future: F) -> Result<Event>
    where
        F: IntoFuture<IntoFuture: Send + 'static, Output: IntoOutcome>,
    {
        process::check()?;
        let future = future.into_future();
        let gate: command::Gate = Box::pin(async move { future.await.into_outcome() });
        Ok(self.scheduler.submit(Submission {
            work: Work::Host,
            queue: self.number,
            after: SmallVec::new(),
            gates: vec![gate],
            building: false,
            group: None,
        }))
    }

    /// A command that ends when everything submitted to this queue so far has ended, well or not.
    ///
    /// # Errors
    ///
    /// [`Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn marker(&self) -> Result<Event> {
        process::check()?;
        Ok(self.scheduler.marker(Some(self.number)))
    }

    /// The DAG of the queue's device in Graphviz's language: the commands that have not ended, and
    /// while a [`Trace`] records also those that have. Dashed are those that the device was not
    /// given yet, filled those that have ended, red those that failed.
    #[must_use]
    pub fn dot(&self) -> String {
        if process::is_forked() { String::new() } else { timeline::dot(&self.scheduler) }
    }

    fn run(&self, work: Work) -> Event {
        let (after, gates) = (SmallVec::new(), Vec::new());
        self.scheduler.submit(Submission {
            work,
            queue: self.number,
            after,
            gates,
            building: false,
            group: None,
        })
    }

    fn check_device(&self, region: &Region, what: impl FnOnce() -> String) -> Result<()> {
        process::check()?;
        check_same_device("the buffer is in the memory of", region.slot().handle(), self.device())
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
