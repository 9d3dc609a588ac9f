//! The runtime: connects the other modules and provides devices, programs, buffers and queues.

pub(crate) mod builder;
mod images;
mod interop;
mod libraries;
pub(crate) mod manifest;
pub(crate) mod progress;

use std::fmt;
use std::future::{Future, ready};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytemuck::Pod;

use crate::args::buffer::Buffer;
use crate::args::region::{Contents, Storage};
use crate::backend::DeviceSlot;
use crate::build_graph::{BuildGraph, BuildRequest};
use crate::counters::{DeviceStats, Stats};
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::executor::{Priority, pause};
use crate::future::named_future;
use crate::process;
use crate::queue::{
    Event, Options, OwnedElements, Queue, Scheduler, Shared, Trace, Upload, dot_of_all, drain,
    drain_within,
};
use crate::source::module::Module;

/// Devices, the programs built for them, and the threads that serve both. A `Runtime` is a handle that is cheap
/// to clone: create one at start and share it.
///
/// A runtime starts one thread that tracks commands. It starts the following threads when they are first
/// needed:
///
/// * up to [`compile_workers`](crate::RuntimeBuilder::compile_workers) threads for compilers, and as many for
///   compilers of untrusted modules;
/// * one thread that reads included files, and that loads what a remote cache sends while a compile runs;
/// * one thread for host futures, and another for each host future that blocks in
///   [`Event::wait`](crate::Event::wait).
///
/// All threads end once the last handle, queue, program and command are gone.
///
/// # Examples
///
/// ```no_run
/// # use kiln::{Module, Runtime};
/// # const SOURCE: &str = "";
/// # async fn example() -> kiln::Result<()> {
/// let rt = Runtime::new().await?; // once, at start
/// let program = rt.build(&Module::opencl_c(SOURCE)).await?;
/// let samples = rt.buffer_from(vec![0.5f32; 1 << 16]).await?;
/// // SAFETY: `normalize` accesses one element for each work-item.
/// let normalize = unsafe { program.kernel("normalize")? };
/// rt.queue().submit(normalize.launch(samples.len()).args((&samples,)))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
    device: usize,
}

/// State that all handles of a runtime share.
struct Inner {
    devices: Vec<Device>,
    unavailable: Vec<(&'static str, Error)>,
    slots: Arc<[Arc<DeviceSlot>]>,
    schedulers: Vec<OnceLock<Arc<Scheduler>>>,
    max_in_flight: Option<NonZeroUsize>,
    profiling: bool,
    spin: Duration,
    graph: Arc<BuildGraph>,
    shared: Shared,
}

named_future! {
    /// A runtime that is starting, or that is opening a device: from [`Runtime::new`],
    /// [`RuntimeBuilder::build`](crate::RuntimeBuilder::build) and [`Runtime::on`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses only the runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn read_scene() {}
    /// # async fn example() -> kiln::Result<()> {
    /// // The drivers are loaded while the scene is read.
    /// let (rt, scene) = futures::future::join(Runtime::new(), read_scene()).await;
    /// let rt = rt?;
    /// # Ok(())
    /// # }
    /// ```
    StartRuntime => Result<Runtime>
}

named_future! {
    /// Completion of all submitted commands and all stores: from [`Runtime::drain`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(renderer: kiln::Runtime, encoder: kiln::Runtime) {
    /// // Both runtimes finish their work at the same time.
    /// futures::future::join(renderer.drain(), encoder.drain()).await;
    /// # }
    /// ```
    Drain => ()
}

named_future! {
    /// Completion of all submitted commands and all stores, within a time limit: from
    /// [`Runtime::drain_timeout`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use kiln::ErrorKind;
    /// # async fn example(rt: kiln::Runtime) {
    /// let drained = rt.drain_timeout(Duration::from_secs(30)).await;
    /// if drained.is_err_and(|error| error.kind() == ErrorKind::TimedOut) {
    ///     eprintln!("some commands have not finished; their results are lost");
    /// }
    /// # }
    /// ```
    DrainTimeout => Result<()>
}

impl Runtime {
    /// Returns the build graph and the position of this handle's device in it.
    #[cfg(feature = "internal")]
    pub(crate) fn graph(&self) -> (&Arc<BuildGraph>, usize) {
        (&self.inner.graph, self.device)
    }

    /// Returns all devices, in the order of discovery.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// for device in rt.devices() {
    ///     println!("{}: {device}, {} compute units", device.index(), device.limits.compute_units);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.inner.devices
    }

    /// Returns the APIs through which no device was found, such as `level-zero`, each with the reason.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// for (api, reason) in rt.unavailable() {
    ///     println!("no device through {api}: {reason}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn unavailable(&self) -> &[(&'static str, Error)] {
        &self.inner.unavailable
    }

    /// Returns the device that this handle's programs, buffers and queues are for.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let device = rt.device();
    /// println!("running on {device} with driver {}", device.driver_version);
    /// # }
    /// ```
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.devices[self.device]
    }

    /// Returns a handle of this runtime for another of its devices, opening the device if necessary. Programs
    /// in memory and limits are shared.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a device of another runtime;
    /// otherwise the error that the driver reports.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// // One queue for each device, to divide the work.
    /// let mut queues = Vec::new();
    /// for device in rt.devices() {
    ///     queues.push(rt.on(device).await?.queue());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn on(&self, device: &Device) -> StartRuntime {
        let inner = self.inner.clone();
        let position = inner.graph.position(device);
        StartRuntime::new(async move {
            let device = position?;
            let slot = inner.slots[device].clone();
            let open = move || slot.open().map(drop);
            inner.graph.pool().threads().run(Priority::Short, open).await??;
            Ok(Self { inner, device })
        })
    }

    /// Creates a request for a program: await the request, or [`start`](BuildRequest::start) it.
    ///
    /// All requests of a runtime for the same program get the same one while it is in memory, with the same
    /// variables at program scope (`global int counter;`). Values that one caller's kernels write there are
    /// read by another's, and Kiln does not order launches by them. To get a separate program, put a macro that
    /// names the caller into the [options](BuildRequest::options), such as `-D CALLER=2`, or pass a buffer
    /// instead.
    ///
    /// A program whose text uses the time of its build is not kept: see [`BuildKey`](crate::build::BuildKey).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, blur: kiln::Module) -> kiln::Result<()> {
    /// let program = rt.build(&blur).options("-D RADIUS=3").await?;
    /// println!("the program comes from: {}", program.origin()); // such as `disk`
    /// # Ok(())
    /// # }
    /// ```
    pub fn build(&self, module: &Module) -> BuildRequest {
        BuildRequest::new(self.inner.graph.clone(), self.device, module)
    }

    /// Creates a queue. Queues cost nothing and impose no order; see [`Queue`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, blur: kiln::Kernel,
    /// #     picture: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let queue = rt.queue();
    /// queue.submit(blur.launch(picture.len()).args((&picture,)))?;
    /// let blurred = queue.read(&picture).await?; // runs after the launch, which writes the picture
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn queue(&self) -> Queue {
        Queue::new(self.scheduler())
    }

    /// Allocates a buffer of `len` elements, all zero. Calls the driver on this thread: if the device's memory
    /// is nearly full, NVIDIA's driver may wait until the device is idle.
    ///
    /// The device zeroes the memory once, before the first command that uses it; this call does not wait for
    /// that. The fill is omitted if a [write](Queue::write) or a [fill](Queue::fill) of the whole buffer comes
    /// first.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a size of zero bytes,
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) for a size above the maximum of one allocation of
    /// the device, or above the memory that it has left.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, count: kiln::Kernel, pixels: kiln::Buffer<u8>) -> kiln::Result<()> {
    /// let histogram = rt.buffer::<u32>(256)?; // all zero
    /// rt.queue().submit(count.launch(pixels.len()).args((&pixels, &histogram)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.allocate(len, Storage::Device, Contents::Zeros)
    }

    /// Allocates a buffer of `len` elements, all zero, in memory that host and device share. It is a [`Buffer`]
    /// like any other: an argument of launches, and memory for the commands of queues. In addition,
    /// [`Queue::map`] and [`Queue::map_mut`] give the host access to its elements where they are. As the host
    /// has access only through guards, no other type is necessary: a slice of the buffer is mapped as well.
    ///
    /// The device of a CPU uses such memory like any other, and nothing is copied. A GPU reaches it through its
    /// connection to the host: use it for data that is transferred once, such as frames of a camera, and
    /// [`buffer`](Self::buffer) for data that kernels use often.
    ///
    /// # Errors
    ///
    /// As for [`buffer`](Self::buffer).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, scale: kiln::Kernel) -> kiln::Result<()> {
    /// let (queue, x) = (rt.queue(), rt.host_buffer::<f32>(4096)?);
    /// queue.map_mut(&x).await?.fill(0.5);
    /// queue.submit(scale.launch(x.len()).args((&x, 3.0f32)))?;
    /// assert_eq!(queue.map(&x).await?[0], 1.5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn host_buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.allocate(len, Storage::Host, Contents::Zeros)
    }

    /// Like [`buffer`](Self::buffer), without the fill: for memory that the first commands write anyway.
    ///
    /// # Safety
    ///
    /// Every byte must be written before a command reads it. The memory may hold data of another buffer,
    /// another process or another user of the device.
    ///
    /// # Errors
    ///
    /// As for [`buffer`](Self::buffer).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, blur: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// // SAFETY: `blur` writes every element before anything reads one.
    /// let blurred = unsafe { rt.buffer_uninit::<f32>(x.len())? };
    /// rt.queue().submit(blur.launch(x.len()).args((&x, &blurred)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn buffer_uninit<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.allocate(len, Storage::Device, Contents::Unspecified)
    }

    fn allocate<T: Pod>(
        &self,
        len: usize,
        storage: Storage,
        contents: Contents,
    ) -> Result<Buffer<T>> {
        process::check()?;
        let scheduler = self.scheduler();
        Buffer::allocate(scheduler.slot(), scheduler.freed(), len, storage, contents)
    }

    /// Allocates a buffer and writes the given elements to it, at least one. The future completes when they
    /// have arrived. The memory is allocated in this call, as by [`buffer`](Self::buffer). The elements may have
    /// any owner, as for [`Queue::write`].
    ///
    /// # Errors
    ///
    /// From the future, as for [`buffer`](Self::buffer).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let weights = rt.buffer_from(vec![0.25f32, 0.5, 0.25]).await?;
    /// assert_eq!(weights.len(), 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn buffer_from<T: Pod + Send>(
        &self,
        elements: impl AsRef<[T]> + Send + 'static,
    ) -> Upload<T> {
        let (queue, elements) = (self.queue(), OwnedElements::new(elements));
        // The write below covers the whole buffer, and the buffer is returned only after that write.
        let buffer = self.allocate(elements.len(), Storage::Device, Contents::Unspecified);
        Upload::new(buffer.and_then(|buffer| {
            let written = queue.write_owned(&buffer, elements)?;
            Ok((buffer, written))
        }))
    }

    /// Returns statistics of this runtime: counters since its start, and the current numbers of commands and
    /// programs.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let stats = rt.stats();
    /// println!("{} requests, {} compiles", stats.builds.requested, stats.builds.compiles);
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.shared.counters.snapshot();
        if !process::is_forked() {
            self.inner.graph.fill_stats(&mut stats);
        }
        let schedulers = self.inner.schedulers.iter().filter_map(OnceLock::get);
        stats.commands.in_flight = schedulers.map(|scheduler| scheduler.live() as u64).sum();
        stats
    }

    /// Returns the state of all open devices, in the order of [`devices`](Self::devices): the default device of
    /// the runtime, and those that [`on`](Self::on) opened. Does not call a driver.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let devices = rt.device_stats();
    /// let full = devices.iter().filter(|device| device.memory_used > device.memory_total / 10 * 9);
    /// println!("{} of {} devices are nearly full", full.count(), devices.len());
    /// # }
    /// ```
    #[must_use]
    pub fn device_stats(&self) -> Vec<DeviceStats> {
        let Inner { slots, schedulers, .. } = &*self.inner;
        let open = slots.iter().zip(schedulers).filter(|(slot, _)| slot.is_open());
        let stats = open.map(|(slot, scheduler)| {
            let device = slot.handle();
            DeviceStats {
                index: device.index(),
                name: device.name.clone(),
                backend: device.backend,
                memory_used: slot.allocated(),
                memory_total: device.limits.global_memory,
                commands_in_flight: scheduler.get().map_or(0, |scheduler| scheduler.live() as u64),
            }
        });
        stats.collect()
    }

    /// Completes when all commands submitted so far, on all devices and queues, have ended, successfully or
    /// not, and every program requested so far is on disk and in the remote cache, as far as it is stored
    /// there at all. If the disk then holds more than its [limit](crate::CacheConfig::max_bytes), it is also
    /// trimmed to the limit.
    ///
    /// Programs are written in the background. If a process ends before they are written, they are built again
    /// next time: await this before the process ends.
    ///
    /// A command that never ends, such as a host task that waits for something that never happens, keeps this
    /// future pending. After 5 s, a warning names the commands that it waits for.
    /// [`drain_timeout`](Self::drain_timeout) has a time limit. A [host task](Queue::host_task) that awaits
    /// this would wait for itself: the task fails with [`Deadlock`](crate::ErrorKind::Deadlock), and this
    /// future continues.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn stop_accepting_requests() {}
    /// # async fn example(rt: kiln::Runtime) {
    /// stop_accepting_requests().await;
    /// rt.drain().await; // the results are there, and the programs are on disk
    /// # }
    /// ```
    pub fn drain(&self) -> Drain {
        if process::is_forked() {
            return Drain::new(ready(()));
        }
        let stored = self.inner.graph.settled();
        Drain::new(drain(self.markers(), stored, self.inner.shared.waits.clone()))
    }

    /// Like [`drain`](Self::drain), with a time limit.
    ///
    /// # Errors
    ///
    /// From the future: [`TimedOut`](crate::ErrorKind::TimedOut) if something has not ended within `limit`,
    /// with the names of the commands that hold up the others; [`Deadlock`](crate::ErrorKind::Deadlock) in a
    /// [host task](Queue::host_task), which would wait for itself.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime) {
    /// let limit = std::time::Duration::from_secs(30);
    /// if let Err(error) = rt.drain_timeout(limit).await {
    ///     eprintln!("ending all the same: {error}");
    /// }
    /// # }
    /// ```
    pub fn drain_timeout(&self, limit: Duration) -> DrainTimeout {
        if let Err(error) = process::check() {
            return DrainTimeout::new(ready(Err(error)));
        }
        let stored = self.inner.graph.settled();
        DrainTimeout::new(drain_within(self.markers(), stored, pause(limit), limit))
    }

    /// Returns an event for each device that completes once everything submitted so far has ended.
    fn markers(&self) -> Vec<Event> {
        let schedulers = self.inner.schedulers.iter().filter_map(OnceLock::get);
        schedulers.map(|scheduler| scheduler.marker(None)).collect()
    }

    /// Records every command submitted from now on, on all devices, until the trace is
    /// [finished](Trace::finish). `finish` writes the trace to `path`, for Perfetto or Chrome; a trace that is
    /// dropped writes nothing. At most 1,048,576 commands are recorded; further commands are only counted,
    /// under `otherData`. Traces recorded at the same time share this capacity.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn render_frame(_: &kiln::Runtime) -> kiln::Result<()> { Ok(()) }
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let trace = rt.trace_to("frame.json");
    /// render_frame(&rt).await?;
    /// rt.drain().await; // only finished commands appear in the trace
    /// trace.finish().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn trace_to(&self, path: impl Into<PathBuf>) -> Trace {
        Trace::start(&self.inner.shared.timeline, path.into())
    }

    /// Returns one drawing of the DAGs of all devices that this runtime has opened, in Graphviz's language: a frame
    /// for each device, which contains what [`Queue::dot`] draws, and a dashed line between the two commands of a
    /// copy between devices.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: &kiln::Runtime) -> std::io::Result<()> {
    /// std::fs::write("commands.dot", rt.dot())?; // to draw it: `dot -Tsvg -O commands.dot`
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn dot(&self) -> String {
        if process::is_forked() {
            return String::new();
        }
        dot_of_all(self.inner.schedulers.iter().filter_map(OnceLock::get))
    }

    /// Returns the scheduler of the handle's device, and creates it at the first call.
    fn scheduler(&self) -> Arc<Scheduler> {
        let create = || {
            let slot = self.inner.slots[self.device].clone();
            let default = if slot.handle().kind == DeviceKind::Cpu { 16 << 10 } else { 1 << 10 };
            let options = Options {
                max_in_flight: self.inner.max_in_flight.map_or(default, NonZeroUsize::get),
                profiling: self.inner.profiling,
                spin: self.inner.spin,
            };
            Scheduler::new(slot, options, self.inner.shared.clone())
        };
        let scheduler = &self.inner.schedulers[self.device];
        if process::is_forked() {
            // Another thread of the parent process may have been initializing the scheduler at the fork.
            return scheduler.get().cloned().unwrap_or_else(create);
        }
        scheduler.get_or_init(create).clone()
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("device", self.device())
            .field("devices", &self.inner.devices)
            .finish_non_exhaustive()
    }
}
