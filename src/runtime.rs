//! The runtime: connects the other modules and provides devices, programs, buffers and queues.

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
use crate::source::module::{Module, OpenModule};
use crate::source::translate::FrontEnd;
use crate::stats::{Counters, Stats};

/// The environment variable that selects the device.
const DEVICE_VARIABLE: &str = "KILN_DEVICE";

/// Devices, the programs built for them, and the threads that serve both. A `Runtime` is a handle that is cheap
/// to clone: create one at start and share it.
///
/// A runtime starts one thread that tracks commands. It starts the following threads when they are first
/// needed:
///
/// * up to [`compile_workers`](RuntimeBuilder::compile_workers) threads for compilers, and as many for
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
///
/// # Examples
///
/// ```no_run
/// # use kiln::{CacheConfig, Runtime};
/// # async fn example() -> kiln::Result<()> {
/// let rt = Runtime::builder()
///     .device("gpu")
///     .cache(CacheConfig::at("/var/cache/renderer"))
///     .memory_limit(64 << 20)
///     .build()
///     .await?;
/// # Ok(())
/// # }
/// ```
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
    /// A runtime that is starting, or that is opening a device: from [`Runtime::new`],
    /// [`RuntimeBuilder::build`] and [`Runtime::on`].
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
    Starting => Result<Runtime>
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
    /// Selects the default device by text. The text is one of the following, or several of them joined by
    /// colons, all of which must match:
    ///
    /// * an API (`opencl`, `level-zero`),
    /// * a kind (`gpu`, `cpu`, `accelerator`),
    /// * an index into [`Runtime::devices`],
    /// * the [common name](crate::DeviceInfo::common_name) of a driver (`pocl`, `nvidia`, `intel`),
    /// * a part of the name of the device, its platform or its vendor.
    ///
    /// Upper and lower case are not distinguished. Of the devices that match, the best is selected: a GPU
    /// before any other accelerator before a CPU, then the device that takes more module formats. A number of
    /// one or two digits is always an index; a longer number is a part of a name if there is no such index, as
    /// in `4090`.
    ///
    /// Without a selector, the environment variable `KILN_DEVICE` selects the device; if that is not set
    /// either, the best device is selected.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// let gpu = Runtime::builder().device("gpu").build().await?;
    /// let pocl = Runtime::builder().device("opencl:pocl").build().await?; // both parts match
    /// # Ok(())
    /// # }
    /// ```
    pub fn device(mut self, selector: impl Into<String>) -> Self {
        self.selector = Some(selector.into());
        self
    }

    /// Sets the maximum number of threads that call compilers at the same time. The default is 2: most drivers
    /// compile one program at a time, even for concurrent callers.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::num::NonZeroUsize;
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// // The other processors stay free for requests while programs are compiled.
    /// let rt = Runtime::builder().compile_workers(NonZeroUsize::MIN).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn compile_workers(mut self, workers: NonZeroUsize) -> Self {
        self.compile_workers = workers.get();
        self
    }

    /// Sets the memory limit: the maximum number of bytes of device binaries of the programs kept in memory.
    /// The default is 256 MiB. The least recently used programs are evicted first. With `0` no program is kept,
    /// but requests for a program that is being built still share the build.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// let rt = Runtime::builder().memory_limit(64 << 20).build().await?; // 64 MiB of binaries
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = bytes;
        self
    }

    /// Sets how programs are cached, on disk above all. By default the environment variables decide. With
    /// simulated devices nothing is kept on disk unless a configuration is set here.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::{CacheConfig, Runtime};
    /// # async fn example() -> kiln::Result<()> {
    /// let cache = CacheConfig::at("/var/cache/renderer").max_bytes(4 << 30);
    /// let rt = Runtime::builder().cache(cache).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cache(mut self, cache: CacheConfig) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Sets the maximum number of commands that a device is given before the first of them has ended. More
    /// commands can be submitted: they wait without blocking a thread.
    ///
    /// The default is 16,384 for a CPU and 1024 for any other device, as the queue of its driver is finite: a
    /// driver blocks the thread that fills the queue.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::num::NonZeroUsize;
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// let limit = NonZeroUsize::new(64).expect("64 is not zero");
    /// let rt = Runtime::builder().max_in_flight(limit).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_in_flight(mut self, commands: NonZeroUsize) -> Self {
        self.max_in_flight = Some(commands);
        self
    }

    /// Makes the device measure every command, for [`Event::profile`](crate::Event::profile) and
    /// [`Runtime::trace_to`]. Off by default: it costs a few per cent on small launches.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// let rt = Runtime::builder().profiling(true).build().await?;
    /// let trace = rt.trace_to("frame.json"); // shows the times that the device measured
    /// # Ok(())
    /// # }
    /// ```
    pub fn profiling(mut self, profiling: bool) -> Self {
        self.profiling = profiling;
        self
    }

    /// Sets how long the first poll of a command that has not ended busy-waits on its thread for the end,
    /// before the command is left to the executor. The default is zero.
    ///
    /// Use this in applications that wait for many short commands, one at a time, and have processors to spare:
    /// a sleeping thread takes 5 to 50 µs to wake up. While the thread busy-waits, the executor runs nothing
    /// else on it, and a device that is a CPU has one processor less. Commands that the device has not been
    /// given yet are awaited without busy-waiting, and so is everything that a
    /// [host task](crate::Queue::host_task) awaits.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// // A control loop awaits a launch of some 10 µs in each of its steps.
    /// let rt = Runtime::builder().spin(Duration::from_micros(20)).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn spin(mut self, budget: Duration) -> Self {
        self.spin = budget;
        self
    }

    /// Sets how an import is resolved that several libraries export. By default this is an error.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::{DuplicateExports, Runtime};
    /// # async fn example(tuned: kiln::Module, portable: kiln::Module) -> kiln::Result<()> {
    /// let first = DuplicateExports::FirstRegistered;
    /// let rt = Runtime::builder().duplicate_exports(first).build().await?;
    /// rt.register(&tuned)?; // supplies the functions that both libraries export
    /// rt.register(&portable)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn duplicate_exports(mut self, duplicates: DuplicateExports) -> Self {
        self.duplicate_exports = duplicates;
        self
    }

    /// Sets whether the driver links SPIR-V even where Kiln would merge the modules into one module, which is
    /// the case on Level Zero. Off by default.
    ///
    /// Each module is then compiled once, to an object, and another program made of compiled modules takes
    /// milliseconds. This suits development, or many programs that use all of a large library. The kernels are
    /// slower, since they call functions that would be inlined in a merged module.
    ///
    /// Some modules are merged into one module all the same: those whose functions have more private variables
    /// than such calls have room for, and those with functions that every module may define (`LinkOnceODR`).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// // While kernels are edited, a quick link matters more than inlined calls.
    /// let rt = Runtime::builder().link_objects(cfg!(debug_assertions)).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn link_objects(mut self, link: bool) -> Self {
        self.link_objects = link;
        self
    }

    /// Sets whether launches that can run as one kernel do so. Without this setting, the environment variable
    /// `KILN_FUSION` decides: `auto`, `always` or `never`. The default is `auto`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::{FusionMode, Runtime};
    /// # async fn example() -> kiln::Result<()> {
    /// // Every launch runs by itself, as when the time of each kernel is measured.
    /// let rt = Runtime::builder().fusion(FusionMode::Never).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fusion(mut self, mode: FusionMode) -> Self {
        self.fusion = Some(mode);
        self
    }

    /// Sets the compilers that translate OpenCL C to SPIR-V, for uses that need the SPIR-V of kernels given as
    /// text. They are the programs clang and llvm-spirv, of the same major version.
    ///
    /// Without this setting, the environment variables `KILN_CLANG` and `KILN_LLVM_SPIRV` name them. If these
    /// are not set, the programs are looked up in `PATH` when they are first needed, also by names with a
    /// version, such as `clang-15`. A clang of version 20 or later that `KILN_CLANG` names produces SPIR-V by
    /// itself if no llvm-spirv matches it. A path without a program is an error when the runtime is built; the
    /// error names the setting that gave the path.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// let (clang, llvm_spirv) = ("/opt/llvm-18/bin/clang", "/opt/llvm-18/bin/llvm-spirv");
    /// let rt = Runtime::builder().front_end(clang, llvm_spirv).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn front_end(mut self, clang: impl Into<PathBuf>, llvm_spirv: impl Into<PathBuf>) -> Self {
        (self.clang, self.llvm_spirv) = (Some(clang.into()), Some(llvm_spirv.into()));
        self
    }

    /// Sets the program that compiles [untrusted modules](Module::untrusted) as a child process. Its `main`
    /// calls [`build_child`](crate::build_child). It can also be a script that starts such a program, for
    /// example in a sandbox. The script must pass on standard input and output and the environment variable
    /// `KILN_IS_BUILD_CHILD`, by which the program detects that it is a child, and must give it access to the
    /// driver and the device.
    ///
    /// Without this setting, the environment variable `KILN_BUILD_CHILD` names the program. If that is not set,
    /// it is the current program if it has called the function, and otherwise the tool `kiln` beside the
    /// current program or in `PATH`. The program has to be of the same version of Kiln, and gets the
    /// environment of this process. A path without a program is an error when the runtime is built; the error
    /// names the setting that gave the path.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example(uploaded: kiln::Module) -> kiln::Result<()> {
    /// let child = "/usr/libexec/renderer-compiler"; // its `main` calls `kiln::build_child`
    /// let rt = Runtime::builder().build_child(child).build().await?;
    /// let program = rt.build(&uploaded.untrusted()).await?; // compiled by the child
    /// # Ok(())
    /// # }
    /// ```
    pub fn build_child(mut self, program: impl Into<PathBuf>) -> Self {
        self.build_child = Some(program.into());
        self
    }

    /// Sets the maximum duration of one child process. The default is 60 seconds. After that the child is
    /// killed, together with all processes that it has started, and the build fails with
    /// [`Driver`](ErrorKind::Driver).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use kiln::Runtime;
    /// # async fn example(uploaded: kiln::Module) -> kiln::Result<()> {
    /// let limit = Duration::from_secs(10);
    /// let rt = Runtime::builder().build_child_limit(limit).build().await?;
    /// let program = rt.build(&uploaded.untrusted()).await?; // fails if it takes longer
    /// # Ok(())
    /// # }
    /// ```
    pub fn build_child_limit(mut self, limit: Duration) -> Self {
        self.build_child_limit = limit;
        self
    }

    /// Adds a simulated device. Real devices are then left out.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # use kiln::simulated::{Fault, Simulator};
    /// # async fn example() -> kiln::Result<()> {
    /// let simulator = Simulator::immediate();
    /// simulator.fail_builds(1, Fault::OutOfResources); // to test how the application reacts
    /// let rt = Runtime::builder().simulator(&simulator).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "simulated")]
    pub fn simulator(mut self, simulator: &crate::simulated::Simulator) -> Self {
        self.simulators.push(simulator.clone());
        self
    }

    /// Loads the drivers, finds the devices and opens the selected one, without blocking.
    ///
    /// # Errors
    ///
    /// * [`NoDevice`](ErrorKind::NoDevice) if there is no driver, listing what was tried and how to install
    ///   one, or if no device matches the selector, listing the devices found.
    /// * [`Configuration`](ErrorKind::Configuration) in these cases: a selector, a setting of the cache or the
    ///   mode of fusion is not valid (the error names the environment variable if it came from there); a
    ///   compiler or build child that was set is not a program; the cache directory that was set cannot be
    ///   trusted; or the file of `KILN_CACHE_TRACE` cannot be written.
    /// * [`OutOfResources`](ErrorKind::OutOfResources) or [`Driver`](ErrorKind::Driver) if the device cannot be
    ///   opened, or if the system provides no thread.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::{ErrorKind, Runtime};
    /// # async fn example() -> kiln::Result<()> {
    /// let rt = match Runtime::builder().device("gpu").build().await {
    ///     Err(error) if error.kind() == ErrorKind::NoDevice => {
    ///         eprintln!("running on the processor: {error}");
    ///         Runtime::builder().device("cpu").build().await?
    ///     }
    ///     other => other?,
    /// };
    /// # Ok(())
    /// # }
    /// ```
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
                format!("{DEVICE_VARIABLE}: the device selector {text:?} is not valid Unicode"),
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
    /// Starts a runtime on the best device found, or on the one that `KILN_DEVICE` selects. All other settings
    /// come from the environment or have their defaults. Fails like [`RuntimeBuilder::build`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// let rt = Runtime::new().await?;
    /// println!("running on {}", rt.device());
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::new_ret_no_self, reason = "a runtime starts without blocking")]
    pub fn new() -> Starting {
        Self::builder().build()
    }

    /// Returns the settings of a new runtime, at their defaults.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// let rt = Runtime::builder().device("gpu").profiling(true).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Returns the build graph and the position of this handle's device in it.
    #[cfg(feature = "internal")]
    pub(crate) fn graph(&self) -> (&Arc<BuildGraph>, usize) {
        (&self.inner.shared.graph, self.device)
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
    /// From the future: [`InvalidArgument`](ErrorKind::InvalidArgument) for a device of another runtime;
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

    /// Creates a request for a program: await the request, or [`start`](BuildRequest::start) it.
    ///
    /// All requests of a runtime for the same program get the same one while it is in memory, with the same
    /// variables at program scope (`global int counter;`). Values that one caller's kernels write there are
    /// read by another's, and Kiln does not order launches by them. To get a separate program, put a macro that
    /// names the caller into the [options](BuildRequest::options), such as `-D CALLER=2`, or pass a buffer
    /// instead.
    ///
    /// A program whose text uses the time of its build is not kept: see [`BuildKey`](crate::BuildKey).
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
        BuildRequest::new(self.inner.shared.graph.clone(), self.device, module)
    }

    /// Registers a device library: its exports resolve the imports of every program requested from now on, on
    /// all devices. Returns `false` if it was registered already.
    ///
    /// A library is compiled when a program needs it, once for each device, and linked into each such program.
    /// It may import from other libraries, and from the module that imports from it.
    ///
    /// # Types
    ///
    /// An import has to be declared as its export is defined. Not all drivers check this: NVIDIA's driver links
    /// a call with too few arguments, and PoCL ends the process at the first launch. The types of imports and
    /// exports are therefore compared before anything is linked. [`BuildFailed`](ErrorKind::BuildFailed) names
    /// both types and both modules where they differ: in the result, in the number of parameters, in the width
    /// of a number or a vector, in the address space of a pointer, in the members of a struct passed by value,
    /// or in that one is a function and the other a variable.
    ///
    /// The comparison does not cover:
    ///
    /// * signs of integers, which SPIR-V does not keep;
    /// * the types that pointers point to, which many compilers of SPIR-V only guess, except for structs of the
    ///   same name;
    /// * OpenCL C that cannot be translated to SPIR-V: without `clang` and `llvm-spirv` (see
    ///   [`RuntimeBuilder::front_end`]), or if the text has something that they do not accept. A wrong
    ///   declaration is then handled by the driver.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the module exports nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Module;
    /// # async fn example(rt: kiln::Runtime, clouds: kiln::Module) -> kiln::Result<()> {
    /// let noise = Module::opencl_c("float noise(float x) { return sin(x * 91.7f); }");
    /// rt.register(&noise.exporting(["noise"]))?;
    /// let program = rt.build(&clouds.importing(["noise"])).await?; // linked with the library
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(&self, library: &Module) -> Result<bool> {
        process::check()?;
        self.inner.shared.graph.register(library)
    }

    /// Unregisters a device library: programs requested from now on are resolved without it. Returns `false` if
    /// it was not registered.
    ///
    /// Programs that were linked with the library are evicted from memory, except those that are in use. Builds
    /// that have begun still use it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, old_noise: kiln::Module,
    /// #     new_noise: kiln::Module) -> kiln::Result<()> {
    /// rt.unregister(&old_noise);
    /// rt.register(&new_noise)?; // programs requested from now on are linked with this one
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::must_use_candidate, reason = "callers may ignore whether it was registered")]
    pub fn unregister(&self, library: &Module) -> bool {
        !process::is_forked() && self.inner.shared.graph.unregister(library)
    }

    /// Opens a module and registers it as a device library.
    ///
    /// # Errors
    ///
    /// From the future, as for [`Module::open`] and [`register`](Self::register).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let noise = rt.open_library("shaders/noise.spv").await?;
    /// println!("{} exports {:?}", noise.digest(), noise.exports().collect::<Vec<_>>());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_library(&self, path: impl Into<PathBuf>) -> OpenModule {
        let (graph, path) = (self.inner.shared.graph.clone(), path.into());
        OpenModule::new(async move {
            let module = Module::open(&path).await?;
            graph.register(&module).map_err(|error| error.within(path.display()))?;
            Ok(module)
        })
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
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a size of zero bytes,
    /// [`OutOfResources`](ErrorKind::OutOfResources) for a size above the maximum of one allocation of the
    /// device, or above the memory that it has left.
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
        self.allocate(len, Contents::Zeros)
    }

    /// Like [`buffer`](Self::buffer), without the fill: for memory that the first commands write
    /// anyway.
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
        self.allocate(len, Contents::Unspecified)
    }

    fn allocate<T: Pod>(&self, len: usize, contents: Contents) -> Result<Buffer<T>> {
        process::check()?;
        let scheduler = self.scheduler();
        Buffer::allocate(scheduler.slot(), scheduler.freed(), len, contents)
    }

    /// Allocates a buffer and writes the given elements to it, at least one. The future completes when they
    /// have arrived. The memory is allocated in this call, as by [`buffer`](Self::buffer).
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
    pub fn buffer_from<T: Pod + Send>(&self, elements: Vec<T>) -> Upload<T> {
        let queue = self.queue();
        // The write below covers the whole buffer, and the buffer is returned only after that write.
        let buffer = self.allocate(elements.len(), Contents::Unspecified);
        Upload::new(buffer.and_then(|buffer| {
            let written = queue.write(&buffer, elements)?;
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
    /// println!("{} requests, {} compiles", stats.builds_requested, stats.compiles);
    /// # }
    /// ```
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

    /// Completes when all commands submitted so far, on all devices and queues, have ended, successfully or
    /// not, and every program requested so far is on disk and in the remote cache, as far as it is stored there
    /// at all. If the disk then holds more than its [limit](CacheConfig::max_bytes), it is also trimmed to the
    /// limit. Programs are not removed before they are 5 s old, so this can take 5 s, and up to 35 s if other
    /// processes write as well.
    ///
    /// Programs are written in the background. If a process ends before they are written, they are built again
    /// next time: await this before the process ends.
    ///
    /// A command that never ends, such as a host task that waits for something that never happens, keeps this
    /// future pending. After 5 s, a warning names the commands that it waits for.
    /// [`drain_timeout`](Self::drain_timeout) has a time limit. A [host task](Queue::host_task) that awaits
    /// this would wait for itself: the task fails with [`Deadlock`](ErrorKind::Deadlock), and this future
    /// continues.
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
        let stored = self.inner.shared.graph.settled();
        Drain::new(drain(self.markers(), stored, self.inner.shared.waits.clone()))
    }

    /// Like [`drain`](Self::drain), with a time limit.
    ///
    /// # Errors
    ///
    /// From the future: [`TimedOut`](ErrorKind::TimedOut) if something has not ended within `limit`, with the
    /// names of the commands that hold up the others; [`Deadlock`](ErrorKind::Deadlock) in a
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

    /// Returns for each device an event that ends after everything submitted so far.
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
            // Another thread of the parent process may have been initializing the scheduler at the fork.
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
