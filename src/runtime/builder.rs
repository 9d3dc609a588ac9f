//! Settings of runtimes, and their construction.

mod processes;

use std::fmt;
use std::future::ready;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Inner, Runtime, StartRuntime, manifest};
use crate::backend::discovery::{self, Discovered, discover};
use crate::backend::{self, Backend, DeviceSlot};
use crate::build_graph::{
    BuildGraph, CHILD_LIMIT, CheckMode, Children, CompilePool, CompileProcesses, Disk,
    DuplicateExports, EnvironmentOptions, Fuser, LookupTrace, ManifestRecorder, Setting,
};
use crate::cache::config::{CacheConfig, Caching};
use crate::counters::Counters;
use crate::device::{Device, Selector};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::{HostExecutor, Priority, run_blocking};
use crate::process::{self, event_log, pin_library, resources};
use crate::queue::{
    FUSION_LIMIT, FusionMode, Shared, Timeline, Waits, form_from_environment, start_reactor,
};
use crate::source::translate::FrontEnd;

/// Maximum number of bytes of the programs in memory, unless the application or the environment sets it.
const DEFAULT_MEMORY_LIMIT: u64 = 256 << 20;

/// Environment variable that selects the device.
const DEVICE_VARIABLE: &str = "KILN_DEVICE";

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
    memory_limit: Option<u64>,
    cache: Option<CacheConfig>,
    max_in_flight: Option<NonZeroUsize>,
    profiling: bool,
    spin: Duration,
    duplicate_exports: DuplicateExports,
    embedded_libraries: bool,
    link_objects: bool,
    checked: CheckMode,
    fusion: Option<FusionMode>,
    fusion_limit: Duration,
    clang: Option<PathBuf>,
    llvm_spirv: Option<PathBuf>,
    build_child: Option<PathBuf>,
    build_child_limit: Duration,
    compile_processes: Option<CompileProcesses>,
    compile_niceness: u8,
    given: Option<Given>,
    #[cfg(feature = "simulated")]
    simulators: Vec<crate::simulated::Simulator>,
}

impl Default for RuntimeBuilder {
    fn default() -> Self {
        Self {
            selector: None,
            compile_workers: 2,
            memory_limit: None,
            cache: None,
            max_in_flight: None,
            profiling: false,
            spin: Duration::ZERO,
            duplicate_exports: DuplicateExports::default(),
            embedded_libraries: true,
            link_objects: false,
            checked: CheckMode::default(),
            fusion: None,
            fusion_limit: FUSION_LIMIT,
            clang: None,
            llvm_spirv: None,
            build_child: None,
            build_child_limit: CHILD_LIMIT,
            compile_processes: None,
            compile_niceness: 0,
            given: None,
            #[cfg(feature = "simulated")]
            simulators: Vec::new(),
        }
    }
}

/// Context that other code created, as a backend.
#[derive(Clone)]
struct Given(Arc<dyn Backend>);

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a context of {}", self.0.name())
    }
}

/// Files of a runtime, and the counters of the store among them.
struct OpenedFiles {
    counters: Arc<Counters>,
    caching: Caching,
    trace: Option<LookupTrace>,
    recorder: Option<ManifestRecorder>,
}

/// Devices of the machine, of which the selected one is open.
struct FoundDevices {
    devices: Vec<Device>,
    slots: Arc<[Arc<DeviceSlot>]>,
    /// Errors of the APIs that have no devices.
    unavailable: Vec<(&'static str, Error)>,
    /// Index of the selected device.
    device: usize,
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

    /// Sets the maximum number of programs that are compiled at the same time. The default is 2: most drivers
    /// compile one program at a time, even for concurrent callers. With 1, a program that is on disk waits for
    /// at most one compile where the driver does not load a program while it compiles others.
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

    /// Sets the memory limit: the maximum number of bytes that the programs kept in memory take, as an estimate.
    /// Without this setting, the environment variable `KILN_MEMORY_LIMIT` sets it, in bytes or with a unit as in
    /// `64MiB`; the default is 256 MiB. The least recently used programs are evicted first. A program that is evicted while
    /// somebody holds it, or a kernel of it, is found again as long as that lasts. With `0` no program is kept, but requests
    /// for a program that is being built still share the build.
    ///
    /// A program counts as its binary and what its driver takes besides, which is far more for a small program. Kiln
    /// [measures](crate::guides::services#memory) that while it loads programs, and begins with 1.8 MiB for Intel's runtime for
    /// CPUs, 0.5 MiB for PoCL, and 0.25 MiB for other drivers. So the default has room for about 140 small programs of
    /// Intel's runtime. [`MemoryStats::bytes_estimated`](crate::stats::MemoryStats::bytes_estimated) is the sum.
    ///
    /// The limit cannot be kept if the programs that are held elsewhere exceed it, or if a single program does. Kiln
    /// warns of that once.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// let rt = Runtime::builder().memory_limit(64 << 20).build().await?; // 64 MiB
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
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
    /// commands can be submitted: they wait without blocking a thread. A producer that is to wait instead
    /// awaits [`Queue::ready`](crate::Queue::ready), which uses the same limit.
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
    /// # use kiln::Runtime;
    /// # use kiln::libraries::DuplicateExports;
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

    /// Sets whether programs are linked with the device libraries that crates of this program
    /// [embed](crate::device_library). On by default.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// // Links only what the application registers itself.
    /// let rt = Runtime::builder().embedded_libraries(false).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn embedded_libraries(mut self, use_them: bool) -> Self {
        self.embedded_libraries = use_them;
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

    /// Sets how [checked](crate::CheckedProgram) launches run that are not proven to stay inside their
    /// buffers. By default a guarded variant of the kernel runs.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # use kiln::launch::CheckMode;
    /// # async fn example() -> kiln::Result<()> {
    /// // A launch that would need a guard fails, so that a test finds it.
    /// let rt = Runtime::builder().checked(CheckMode::Proven).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn checked(mut self, checked: CheckMode) -> Self {
        self.checked = checked;
        self
    }

    /// Sets whether launches that can run as one kernel do so. Without this setting, the environment variable
    /// `KILN_FUSION` decides: `auto`, `relaxed`, `always` or `never`. The default is `auto`.
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

    /// Sets the maximum time for which the launches of a [scope](crate::FusionScope) wait for their fused
    /// kernel, from the time at which the programs of the launches are built. The default is 120 seconds:
    /// compilers take long for large kernels on slow machines, and some never end for certain kernels.
    ///
    /// More than one second only matters where launches do not run one by one instead: in scopes that
    /// [require](crate::FusionScope::require) fusion, and with [`FusionMode::Always`]. All others wait for at most one
    /// second.
    ///
    /// When the limit has passed, the launches run one by one, with the outcome
    /// [`Unfused::Overdue`](crate::fusion::Unfused::Overdue); a scope that [requires](crate::FusionScope::require)
    /// fusion fails with [`TimedOut`](crate::ErrorKind::TimedOut). The build continues in the background, where
    /// it occupies one of the [`compile_workers`](Self::compile_workers). Until it ends, scopes with the same
    /// launches do not wait; afterwards they use the kernel.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use kiln::Runtime;
    /// # async fn example() -> kiln::Result<()> {
    /// // Frames are late rather than missing: launches run one by one until their kernel is built.
    /// let rt = Runtime::builder().fusion_limit(Duration::ZERO).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fusion_limit(mut self, limit: Duration) -> Self {
        self.fusion_limit = limit;
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
    /// * [`NoDevice`](crate::ErrorKind::NoDevice) if there is no driver, listing what was tried and how to
    ///   install one, or if no device matches the selector, listing the devices found.
    /// * [`Configuration`](crate::ErrorKind::Configuration) in these cases: the device selector, a setting of
    ///   the cache or the fusion mode is not valid (the error names the environment variable if it came from
    ///   there); a compiler or build child that was set is not a program; the cache directory that was set
    ///   cannot be trusted; or the file of `KILN_CACHE_TRACE` cannot be written.
    /// * [`OutOfResources`](crate::ErrorKind::OutOfResources) or [`Driver`](crate::ErrorKind::Driver) if the
    ///   device cannot be opened, or if the system provides no thread.
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
    pub fn build(self) -> StartRuntime {
        pin_library();
        if let Err(error) = process::start().and_then(|()| event_log::start()) {
            return StartRuntime::new(ready(Err(error)));
        }
        backend::prepare_for_end();
        let processes = match self.process_number() {
            Ok(number) => number.limit(),
            Err(error) => return StartRuntime::new(ready(Err(error))),
        };
        let pool = CompilePool::new("kiln-compile", self.compile_workers, processes);
        StartRuntime::new(async move {
            let find = move || self.find_devices().map(|found| (self, found));
            let (builder, found) = pool.threads().run(Priority::Short, find).await??;
            let counters = Arc::new(Counters::default());
            let caching = builder.cache_config().resolve(&counters).await?;
            let trace = match caching.trace.clone() {
                Some(to) => Some(run_blocking(move || LookupTrace::open(&to)).await?),
                None => None,
            };
            let recorder = manifest::recorder_from_environment().await?;
            let opened = OpenedFiles { counters, caching, trace, recorder };
            let threads = pool.threads().clone();
            threads.run(Priority::Short, move || builder.start(pool, found, opened)).await?
        })
    }

    /// Makes the device of a context that other code created the only one.
    #[cfg(any(feature = "opencl", feature = "level-zero"))]
    pub(super) fn in_context(mut self, given: impl Backend + 'static) -> Self {
        self.given = Some(Given(Arc::new(given)));
        self
    }

    /// Loads the drivers, finds the devices, and opens the selected one.
    fn find_devices(&self) -> Result<FoundDevices> {
        let selector = self.selector()?;
        resources::check_for_driver()?;
        let Discovered { adapters, unavailable } = discover(&self.backends())?;
        let devices: Vec<_> = adapters
            .iter()
            .enumerate()
            .map(|(index, adapter)| Device::new(index, adapter.info().clone()))
            .collect();
        let is_from_environment = self.selector.is_none() && !selector.is_any();
        let device = match selector.select(&devices, &unavailable) {
            Err(error) if is_from_environment => return Err(error.within(DEVICE_VARIABLE)),
            selected => selected?.index(),
        };
        let slots: Arc<[_]> = devices
            .iter()
            .zip(adapters)
            .map(|(device, adapter)| Arc::new(DeviceSlot::new(device.clone(), adapter)))
            .collect();
        slots[device].open()?;
        Ok(FoundDevices { devices, slots, unavailable, device })
    }

    /// Starts the runtime with the devices that were found and the files that were opened. Called on a thread of the
    /// compile pool, because the compilers of OpenCL C are looked for.
    fn start(self, pool: CompilePool, found: FoundDevices, opened: OpenedFiles) -> Result<Runtime> {
        let FoundDevices { devices, slots, unavailable, device } = found;
        let OpenedFiles { counters, caching, trace, recorder } = opened;
        let cache = self.cache_config();
        let memory_limit =
            self.memory_limit.or(caching.memory_limit).unwrap_or(DEFAULT_MEMORY_LIMIT);
        let children = Children::new(self.build_child.clone(), self.build_child_limit)?;
        let children = Arc::new(children);
        let setting = Setting {
            devices: slots.clone(),
            pool,
            untrusted_pool: CompilePool::new("kiln-untrusted", self.compile_workers, 0),
            processes: self.process_pool(&children, &counters)?,
            children,
            memory_limit: if caching.memory { memory_limit } else { 0 },
            disk: caching.store.map(|store| Disk::new(store, caching.build_wait, counters.clone())),
            remote: caching.remote,
            trace,
            identity: cache.identity().cloned(),
            front_end: FrontEnd::new(self.clang, self.llvm_spirv)?,
            duplicates: self.duplicate_exports,
            options: EnvironmentOptions::read()?,
            embedded_libraries: self.embedded_libraries,
            link_objects: self.link_objects,
            checked: self.checked,
            counters: counters.clone(),
        };
        let host = HostExecutor::new("kiln-host");
        let graph = BuildGraph::new(setting);
        graph.keep_limits();
        if let Some(recorder) = recorder {
            graph.record(recorder);
        }
        let waits = Arc::<Waits>::default();
        let shared = Shared {
            reactor: start_reactor(waits.clone())?,
            waits,
            host,
            counters,
            timeline: Timeline::new(),
            fuser: Fuser::new(&graph),
            fusion: self.fusion.map_or_else(FusionMode::from_environment, Ok)?,
            fusion_form: form_from_environment()?,
            fusion_limit: self.fusion_limit,
        };
        let inner = Inner {
            schedulers: slots.iter().map(|_| OnceLock::new()).collect(),
            devices,
            unavailable,
            slots,
            max_in_flight: self.max_in_flight,
            profiling: self.profiling,
            spin: self.spin,
            graph,
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

    /// Returns the device selector from this builder or, if it has none, from the environment.
    fn selector(&self) -> Result<Selector> {
        if self.given.is_some() {
            return Ok(Selector::default());
        }
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
        if let Some(Given(backend)) = &self.given {
            return vec![backend.clone()];
        }
        #[cfg(feature = "simulated")]
        if !self.simulators.is_empty() {
            return self.simulators.iter().map(crate::simulated::Simulator::backend).collect();
        }
        discovery::drivers()
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
    pub fn new() -> StartRuntime {
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
}
