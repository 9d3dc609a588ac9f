//! The runtime: wires the rooms together and hands out devices, programs, buffers and queues.

use std::fmt;
use std::future::{Future, ready};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytemuck::Pod;

use crate::args::buffer::{Buffer, Contents};
use crate::backend::{self, Backend, DeviceSlot, Discovered, discover};
use crate::build_graph::{
    BuildGraph, BuildRequest, CHILD_LIMIT, Children, Disk, DuplicateExports, LookupTrace, Pool,
    Setting,
};
use crate::cache::config::CacheConfig;
use crate::device::{Device, DeviceKind, Selector};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::{HostExecutor, pause};
use crate::future::named_future;
use crate::process::resources;
use crate::process::{self, pin_library};
use crate::queue::{
    Event, FusionMode, Options, Queue, Reactor, Scheduler, Shared, Timeline, Trace, Upload, Waits,
    drain, drain_within,
};
use crate::source::image::{Image, OpenImage};
use crate::source::translate::FrontEnd;
use crate::stats::{Counters, Stats};

/// The environment variable that selects the device.
const DEVICE_VARIABLE: &str = "KILN_DEVICE";

/// Devices, the programs built for them, and the threads that look after both. A handle, cheap to
/// clone; make one at start and share it.
///
/// A runtime starts a thread that looks after commands, and when first needed up to
/// [`compile_workers`](RuntimeBuilder::compile_workers) threads for compilers, as many for those of
/// untrusted images, one that reads included files and loads what a remote cache sends while a compile
/// runs, and one for host futures, with another for each of these that blocks in
/// [`Event::wait`](crate::Event::wait). They end by themselves once the last handle, queue, program and
/// command are gone.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
    device: usize,
}

struct Inner {
    devices: Vec<Device>,
    unavailable: Vec<(&'static str, Error)>,
    slots: Arc<[Arc<DeviceSlot>]>,
    schedulers: Vec<OnceLock<Arc<Scheduler>>>,
    max_in_flight: Option<NonZeroUsize>,
    profiling: bool,
    spin: Duration,
    shared: Shared,
}

/// Settings of a [`Runtime`], from [`Runtime::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct RuntimeBuilder {
    selector: Option<String>,
    compile_workers: usize,
    memory_limit: u64,
    cache: Option<CacheConfig>,
    max_in_flight: Option<NonZeroUsize>,
    profiling: bool,
    spin: Duration,
    duplicate_exports: DuplicateExports,
    link_objects: bool,
    fusion: Option<FusionMode>,
    clang: Option<PathBuf>,
    llvm_spirv: Option<PathBuf>,
    build_child: Option<PathBuf>,
    build_child_limit: Duration,
    #[cfg(feature = "simulated")]
    simulators: Vec<crate::simulated::Simulator>,
}

named_future! {
    /// A runtime that is starting, or opening a device: from [`Runtime::new`],
    /// [`RuntimeBuilder::build`] and [`Runtime::on`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing but the runtime.
    Starting => Result<Runtime>
}

named_future! {
    /// The end of everything submitted and stored: from [`Runtime::drain`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    Drain => ()
}

named_future! {
    /// The end of everything submitted and stored, within a time limit: from
    /// [`Runtime::drain_timeout`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    DrainTimeout => Result<()>
}

impl Default for RuntimeBuilder {
    fn default() -> Self {
        Self {
            selector: None,
            compile_workers: 2,
            memory_limit: 256 << 20,
            cache: None,
            max_in_flight: None,
            profiling: false,
            spin: Duration::ZERO,
            duplicate_exports: DuplicateExports::default(),
            link_objects: false,
            fusion: None,
            clang: None,
            llvm_spirv: None,
            build_child: None,
            build_child_limit: CHILD_LIMIT,
            #[cfg(feature = "simulated")]
            simulators: Vec::new(),
        }
    }
}

impl RuntimeBuilder {
    /// Selects the default device by text: an API (`opencl`, `level-zero`), a kind (`gpu`, `cpu`,
    /// `accelerator`), a number of [`Runtime::devices`], the [common name](crate::DeviceInfo::common_name)
    /// of a driver (`pocl`, `nvidia`, `intel`), a part of the device's, its platform's or its vendor's
    /// name, or several of these joined by colons, all of which must fit, whatever their case. Of those
    /// that fit the best is taken: a GPU before any other accelerator before a CPU, then the one that takes
    /// more image formats. One or two digits are always the number of a device; more are a part of a name
    /// if there is no such number, as in `4090`.
    ///
    /// Without it the environment variable `KILN_DEVICE` selects, and without that the best device.
    pub fn device(mut self, selector: impl Into<String>) -> Self {
        self.selector = Some(selector.into());
        self
    }

    /// How many threads call compilers at the same time. Two, unless set: most drivers compile one
    /// program at a time, whoever asks.
    pub fn compile_workers(mut self, workers: NonZeroUsize) -> Self {
        self.compile_workers = workers.get();
        self
    }

    /// How many bytes of device binaries the programs kept in memory may stand for; 256 MiB unless
    /// set. The least recently used go first. With `0` none is kept, but whoever asks for a program
    /// while it builds still shares the build.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = bytes;
        self
    }

    /// How programs are cached, on disk above all; as the environment says unless set. With
    /// simulated devices nothing is kept on disk unless it is set.
    pub fn cache(mut self, cache: CacheConfig) -> Self {
        self.cache = Some(cache);
        self
    }

    /// How many commands a device is given at most before the first of them has ended. More can be
    /// submitted: they wait without blocking anybody.
    ///
    /// Unless set, 16,384 for a CPU, and 1024 for any other device, whose driver's own queue is
    /// finite: a driver blocks the thread that fills it.
    pub fn max_in_flight(mut self, commands: NonZeroUsize) -> Self {
        self.max_in_flight = Some(commands);
        self
    }

    /// Has the device measure every command, for [`Event::profile`](crate::Event::profile) and
    /// [`Runtime::trace_to`]. Costs a few per cent on small launches; off unless set.
    pub fn profiling(mut self, profiling: bool) -> Self {
        self.profiling = profiling;
        self
    }

    /// How long whoever first polls a command that has not ended keeps the thread, and waits for the
    /// end there, before it is left to the executor. None, unless set.
    ///
    /// For applications that wait for many short commands, one at a time, and have processors to spare:
    /// a thread that sleeps takes 5 to 50 µs to wake up. Nothing else of the executor's runs on that
    /// thread meanwhile, and a CPU that is the device has one processor less. What the device was not
    /// given yet is awaited as ever, and so is whatever a [host task](crate::Queue::host_task) awaits.
    pub fn spin(mut self, budget: Duration) -> Self {
        self.spin = budget;
        self
    }

    /// What to do where several libraries export a symbol that an image imports. Unless this is set,
    /// that is an error.
    pub fn duplicate_exports(mut self, duplicates: DuplicateExports) -> Self {
        self.duplicate_exports = duplicates;
        self
    }

    /// Whether the driver links SPIR-V also where Kiln would make one module of the images, which
    /// is on Level Zero; off unless set.
    ///
    /// Each image is then compiled once, to an object, and a further program of compiled images
    /// takes milliseconds: for development, or where many programs use all of a large library. The
    /// kernels are slower, since they call what one module has inlined.
    ///
    /// Images whose functions have more private variables than such calls have room for, or
    /// functions that every module may bring along (`LinkOnceODR`), are made one module all the
    /// same.
    pub fn link_objects(mut self, link: bool) -> Self {
        self.link_objects = link;
        self
    }

    /// Whether launches that can run as one kernel do. Without it the environment variable
    /// `KILN_FUSION` tells: `auto`, `always` or `never`; `auto` unless that is set.
    pub fn fusion(mut self, mode: FusionMode) -> Self {
        self.fusion = Some(mode);
        self
    }

    /// The compilers that translate OpenCL C to SPIR-V, for what needs SPIR-V of kernels that were
    /// given as text. They are programs, clang and llvm-spirv, of one major version.
    ///
    /// Unless set, the environment variables `KILN_CLANG` and `KILN_LLVM_SPIRV` say where they are,
    /// and unless these are, they are looked for in `PATH` when they are first needed, also by names
    /// with a version, such as `clang-15`. A clang of version 20 or later that `KILN_CLANG` names
    /// makes SPIR-V by itself where no llvm-spirv fits it. A path without a program is an error when
    /// the runtime is built, with who gave it.
    pub fn front_end(mut self, clang: impl Into<PathBuf>, llvm_spirv: impl Into<PathBuf>) -> Self {
        (self.clang, self.llvm_spirv) = (Some(clang.into()), Some(llvm_spirv.into()));
        self
    }

    /// The program that compiles [untrusted images](Image::untrusted), as a child process: one
    /// whose `main` calls [`build_child`](crate::build_child), or a script that starts one, such as
    /// in a sandbox. Such a script passes on standard input and output and the environment variable
    /// `KILN_IS_BUILD_CHILD`, by which the child knows what it is, and lets it reach the driver and the
    /// device.
    ///
    /// Unless set, the environment variable `KILN_BUILD_CHILD` names it; unless that does, it is
    /// this program itself, if it has called the function, and else the tool `kiln`, beside this
    /// program or in `PATH`. It has to be of the same version of Kiln, and gets the environment of
    /// this process. A path without a program is an error when the runtime is built, with who gave
    /// it.
    pub fn build_child(mut self, program: impl Into<PathBuf>) -> Self {
        self.build_child = Some(program.into());
        self
    }

    /// How long such a child may take; 60 seconds unless set. Then it is killed, with all that it
    /// has started, and the build fails with [`Driver`](ErrorKind::Driver).
    pub fn build_child_limit(mut self, limit: Duration) -> Self {
        self.build_child_limit = limit;
        self
    }

    /// Adds a simulated device, and leaves out the real ones.
    #[cfg(feature = "simulated")]
    pub fn simulator(mut self, simulator: &crate::simulated::Simulator) -> Self {
        self.simulators.push(simulator.clone());
        self
    }

    /// Loads the drivers, finds the devices and opens the one that is selected, without blocking.
    ///
    /// # Errors
    ///
    /// * [`NoDevice`](ErrorKind::NoDevice) if there is no driver, with what was tried and how to
    ///   install one, or no device that fits the selector, with those there are.
    /// * [`Configuration`](ErrorKind::Configuration) if a selector, a setting of the cache or the mode
    ///   of fusion cannot be understood, with the environment variable if it came from there, if a
    ///   compiler or a build child that was chosen is no program, if the cache directory that was
    ///   chosen cannot be trusted, or if the file of `KILN_CACHE_TRACE` cannot be written.
    /// * [`OutOfResources`](ErrorKind::OutOfResources) or [`Driver`](ErrorKind::Driver) if the
    ///   device cannot be opened, or if the system gives no thread.
    pub fn build(self) -> Starting {
        pin_library();
        if let Err(error) = process::start() {
            return Starting::new(ready(Err(error)));
        }
        backend::prepare_for_end();
        let pool = Pool::new("kiln-compile", self.compile_workers);
        Starting::new(async move {
            let start = pool.clone();
            pool.run(move || self.start(start)).await?
        })
    }

    fn start(self, pool: Pool) -> Result<Runtime> {
        let selector = self.selector()?;
        resources::check_for_driver()?;
        let Discovered { adapters, unavailable } = discover(&self.backends())?;
        let devices: Vec<_> = adapters
            .iter()
            .enumerate()
            .map(|(index, adapter)| Device::new(index, adapter.info().clone()))
            .collect();
        let selected = selector.select(&devices, &unavailable);
        let is_of_environment = self.selector.is_none() && !selector.is_any();
        let device = selected
            .map_err(|error| if is_of_environment { error.within(DEVICE_VARIABLE) } else { error })?
            .index();
        let slots: Arc<[_]> = devices
            .iter()
            .zip(adapters)
            .map(|(device, adapter)| Arc::new(DeviceSlot::new(device.clone(), adapter)))
            .collect();
        slots[device].open()?;
        let counters = Arc::new(Counters::default());
        let cache = self.cache_config();
        let caching = cache.resolve(&counters)?;
        let setting = Setting {
            devices: slots.clone(),
            pool,
            untrusted_pool: Pool::new("kiln-untrusted", self.compile_workers),
            children: Children::new(self.build_child, self.build_child_limit)?,
            host: HostExecutor::new(),
            memory_limit: if caching.memory { self.memory_limit } else { 0 },
            disk: caching.store.map(|store| Disk::new(store, cache.wait(), counters.clone())),
            remote: caching.remote,
            trace: caching.trace.as_ref().map(LookupTrace::open).transpose()?,
            identity: cache.identity().cloned(),
            front_end: FrontEnd::new(self.clang, self.llvm_spirv)?,
            duplicates: self.duplicate_exports,
            link_objects: self.link_objects,
            counters: counters.clone(),
        };
        let host = setting.host.clone();
        let graph = BuildGraph::new(setting);
        let waits = Arc::<Waits>::default();
        let shared = Shared {
            reactor: Reactor::start(waits.clone())?,
            waits,
            host,
            counters,
            timeline: Timeline::new(),
            graph,
            fusion: self.fusion.map_or_else(FusionMode::from_environment, Ok)?,
        };
        let inner = Inner {
            schedulers: slots.iter().map(|_| OnceLock::new()).collect(),
            devices,
            unavailable,
            slots,
            max_in_flight: self.max_in_flight,
            profiling: self.profiling,
            spin: self.spin,
            shared,
        };
        Ok(Runtime { inner: Arc::new(inner), device })
    }

    fn cache_config(&self) -> CacheConfig {
        if let Some(cache) = &self.cache {
            return cache.clone();
        }
        #[cfg(feature = "simulated")]
        if !self.simulators.is_empty() {
            return CacheConfig::memory_only();
        }
        CacheConfig::new()
    }

    fn selector(&self) -> Result<Selector> {
        if let Some(text) = &self.selector {
            return Selector::parse(text);
        }
        match std::env::var(DEVICE_VARIABLE) {
            Ok(text) if !text.is_empty() => {
                Selector::parse(&text).map_err(|error| error.within(DEVICE_VARIABLE))
            }
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok(Selector::default()),
            Err(std::env::VarError::NotUnicode(text)) => Err(Error::new(
                ErrorKind::Configuration,
                format!("{DEVICE_VARIABLE}: the device selector {text:?} is no Unicode text"),
            )),
        }
    }

    fn backends(&self) -> Vec<Arc<dyn Backend>> {
        #[cfg(feature = "simulated")]
        if !self.simulators.is_empty() {
            return self.simulators.iter().map(crate::simulated::Simulator::backend).collect();
        }
        backend::drivers()
    }
}

impl Runtime {
    /// The best device found, or the one that `KILN_DEVICE` selects, and everything else as the
    /// environment says, or at its default. Errors as for [`RuntimeBuilder::build`].
    #[expect(clippy::new_ret_no_self, reason = "a runtime starts without blocking")]
    pub fn new() -> Starting {
        Self::builder().build()
    }

    /// Settings for a runtime.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Its builds, and the position of its device among them.
    #[cfg(feature = "internal")]
    pub(crate) fn graph(&self) -> (&Arc<BuildGraph>, usize) {
        (&self.inner.shared.graph, self.device)
    }

    /// All devices, in the order of discovery.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.inner.devices
    }

    /// The APIs through which no device was found, such as `level-zero`, each with the reason.
    #[must_use]
    pub fn unavailable(&self) -> &[(&'static str, Error)] {
        &self.inner.unavailable
    }

    /// The device that this handle's programs, buffers and queues are for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.devices[self.device]
    }

    /// A handle of this runtime for another of its devices, which is opened if it was not. Programs
    /// in memory and limits are shared.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](ErrorKind::InvalidArgument) for a device of another
    /// runtime, else as the driver reports.
    pub fn on(&self, device: &Device) -> Starting {
        let inner = self.inner.clone();
        let position = inner.shared.graph.position(device);
        Starting::new(async move {
            let device = position?;
            let slot = inner.slots[device].clone();
            inner.shared.graph.pool().run(move || slot.open().map(drop)).await??;
            Ok(Self { inner, device })
        })
    }

    /// Asks for a program: await the request, or [`start`](BuildRequest::start) it.
    ///
    /// All who ask a runtime for the same program get the same one while it is in memory, with the same
    /// variables at program scope (`global int counter;`): what kernels of one asker write there, those of
    /// another read, and Kiln does not order launches by it. To have a program of one's own, put a macro
    /// that names the asker into the [options](BuildRequest::options), such as `-D ASKER=2`, or pass a
    /// buffer instead.
    ///
    /// A text that tells the time of its build is not kept: see [`BuildKey`](crate::BuildKey).
    pub fn build(&self, image: &Image) -> BuildRequest {
        BuildRequest::new(self.inner.shared.graph.clone(), self.device, image)
    }

    /// Registers a device library: what it exports resolves the imports of every program that is asked
    /// for from now on, on all devices. `false` if it was registered already.
    ///
    /// A library is compiled when a program needs it, once for each device, and linked into each such
    /// program. It may import from other libraries, and from the image that imports from it.
    ///
    /// # Types
    ///
    /// An import has to be declared as its export is defined. Not all drivers check: NVIDIA's links a call
    /// with too few arguments, PoCL ends the process at the first launch. So the types of imports and exports
    /// are compared before anything is linked, and [`BuildFailed`](ErrorKind::BuildFailed) names both types
    /// and both images where they differ: in the result, in the number of parameters, in the width of a
    /// number or a vector, in the address space of a pointer, in the members of a struct that is passed by
    /// value, or in that the one is a function and the other a variable.
    ///
    /// Not compared are:
    ///
    /// * signs of integers, which SPIR-V does not keep;
    /// * what pointers point to, which many compilers of SPIR-V only guess, but for structs of one name;
    /// * OpenCL C where it cannot be translated to SPIR-V: without `clang` and `llvm-spirv` (see
    ///   [`RuntimeBuilder::front_end`]), or if the text has something that they do not take. A wrong
    ///   declaration then has the driver's own consequences.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the image exports nothing.
    pub fn register(&self, library: &Image) -> Result<bool> {
        process::check()?;
        self.inner.shared.graph.register(library)
    }

    /// Takes a device library back: programs that are asked for from now on are resolved without it.
    /// `false` if it was not registered.
    ///
    /// Programs that were linked with it leave the memory, except those that are in use; builds that
    /// have begun end with it.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn unregister(&self, library: &Image) -> bool {
        !process::is_forked() && self.inner.shared.graph.unregister(library)
    }

    /// Opens an image and registers it as a device library.
    ///
    /// # Errors
    ///
    /// From the future, as for [`Image::open`] and [`register`](Self::register).
    pub fn open_library(&self, path: impl Into<PathBuf>) -> OpenImage {
        let (graph, path) = (self.inner.shared.graph.clone(), path.into());
        OpenImage::new(async move {
            let image = Image::open(&path).await?;
            graph.register(&image).map_err(|error| error.within(path.display()))?;
            Ok(image)
        })
    }

    /// A new queue. Queues cost nothing and impose no order; see [`Queue`].
    #[must_use]
    pub fn queue(&self) -> Queue {
        Queue::new(self.scheduler())
    }

    /// Memory for `len` elements, which are zero. Calls the driver, on this thread: where the
    /// device's memory is nearly full, NVIDIA's may wait until the device has nothing to do.
    ///
    /// The device fills the memory once, before the first command that uses it; nobody waits for that
    /// here. A [write](Queue::write) or a [fill](Queue::fill) of the whole buffer that comes first
    /// makes it needless.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for no bytes,
    /// [`OutOfResources`](ErrorKind::OutOfResources) for more than one allocation of the device can
    /// have, or than it has left.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.allocate(len, Contents::Zeros)
    }

    /// Like [`buffer`](Self::buffer), without the fill: for memory that the first commands write
    /// anyway.
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, blur: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// // SAFETY: `blur` writes every element before anything reads one.
    /// let blurred = unsafe { rt.buffer_uninit::<f32>(x.len())? };
    /// rt.queue().submit(blur.launch(x.len()).args((&x, &blurred)))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    ///
    /// Every byte is written before a command reads it. The memory may hold what another buffer,
    /// another process or another user of the device left there.
    ///
    /// # Errors
    ///
    /// As for [`buffer`](Self::buffer).
    pub unsafe fn buffer_uninit<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.allocate(len, Contents::Unspecified)
    }

    fn allocate<T: Pod>(&self, len: usize, contents: Contents) -> Result<Buffer<T>> {
        process::check()?;
        let scheduler = self.scheduler();
        Buffer::allocate(scheduler.slot(), scheduler.freed(), len, contents)
    }

    /// A buffer with the given elements, at least one, ready when they have arrived. Its memory is
    /// allocated in this call, as by [`buffer`](Self::buffer).
    ///
    /// # Errors
    ///
    /// From the future, as for [`buffer`](Self::buffer).
    pub fn buffer_from<T: Pod + Send>(&self, elements: Vec<T>) -> Upload<T> {
        let queue = self.queue();
        // The write below covers it, and nobody gets it without that.
        let buffer = self.allocate(elements.len(), Contents::Unspecified);
        Upload::new(buffer.and_then(|buffer| {
            let written = queue.write(&buffer, elements)?;
            Ok((buffer, written))
        }))
    }

    /// What this runtime has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.shared.counters.snapshot();
        if !process::is_forked() {
            self.inner.shared.graph.tell(&mut stats);
        }
        let schedulers = self.inner.schedulers.iter().filter_map(OnceLock::get);
        stats.commands_in_flight = schedulers.map(|scheduler| scheduler.live() as u64).sum();
        stats
    }

    /// Completes when everything submitted so far, on all devices and queues, has ended, well or
    /// not, and every program asked for so far is on disk and in the remote cache, as far as it will
    /// be. If the disk then holds more than its [limit](CacheConfig::max_bytes), that is seen to, too:
    /// programs are not removed before they are 5 s old, so that this can take 5 s, and up to 35 s
    /// where other processes write as well.
    ///
    /// Programs are written behind those who asked for them. A process that ends before they are
    /// has them built again next time: await this before.
    ///
    /// A command that never ends, such as a host task that waits for something that never happens, keeps
    /// this pending. After 5 s, a warning names what holds it up;
    /// [`drain_timeout`](Self::drain_timeout) has a limit. A [host task](Queue::host_task) that awaits
    /// this waits for itself: it fails with [`Deadlock`](ErrorKind::Deadlock), and this goes on.
    pub fn drain(&self) -> Drain {
        if process::is_forked() {
            return Drain::new(ready(()));
        }
        let stored = self.inner.shared.graph.settled();
        Drain::new(drain(self.markers(), stored, self.inner.shared.waits.clone()))
    }

    /// Like [`drain`](Self::drain), for no longer than `limit`.
    ///
    /// # Errors
    ///
    /// From the future: [`TimedOut`](ErrorKind::TimedOut) if something has not ended by then, with the
    /// names of the commands that hold the others up; [`Deadlock`](ErrorKind::Deadlock) in a
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
        let stored = self.inner.shared.graph.settled();
        DrainTimeout::new(drain_within(self.markers(), stored, pause(limit), limit))
    }

    /// Of each device, what ends after everything submitted so far.
    fn markers(&self) -> Vec<Event> {
        let schedulers = self.inner.schedulers.iter().filter_map(OnceLock::get);
        schedulers.map(|scheduler| scheduler.marker(None)).collect()
    }

    /// Records every command submitted from now on, on all devices, until the trace is
    /// [finished](Trace::finish), which writes it to `path` for Perfetto or Chrome; one that is
    /// dropped writes nothing. Of more than 1,048,576 commands the others are counted only, under
    /// `otherData`. Traces that are recorded at the same time share that room.
    pub fn trace_to(&self, path: impl Into<PathBuf>) -> Trace {
        Trace::start(&self.inner.shared.timeline, path.into())
    }

    fn scheduler(&self) -> Arc<Scheduler> {
        let make = || {
            let slot = self.inner.slots[self.device].clone();
            let unless_set = if slot.handle().kind == DeviceKind::Cpu { 16 << 10 } else { 1 << 10 };
            let options = Options {
                max_in_flight: self.inner.max_in_flight.map_or(unless_set, NonZeroUsize::get),
                profiling: self.inner.profiling,
                spin: self.inner.spin,
            };
            Scheduler::new(slot, options, self.inner.shared.clone())
        };
        let scheduler = &self.inner.schedulers[self.device];
        if process::is_forked() {
            // Another thread of the parent may have been making it.
            return scheduler.get().cloned().unwrap_or_else(make);
        }
        scheduler.get_or_init(make).clone()
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
