//! The build graph: its in-flight builds, the outcomes that it keeps in memory, and the rules for both.
//!
//! A node is in one of two places. While it is built, it is an in-flight build in a map behind a mutex, so
//! nothing can evict it. When the build ends, its outcome moves to a cache, where a hit takes no lock of this
//! module. [Requests](super::node_request) look into both.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use super::checked::CheckMode;
use super::child::{Children, ProcessPool, Target};
use super::compile_times::CompileTimes;
use super::disk::Disk;
use super::footprint::DriverMemory;
use super::key::{DeviceKey, NodeKind};
use super::link::{DuplicateExports, Libraries, LinkTarget};
use super::manifest::ManifestRecorder;
use super::memory::{BuildId, Memory};
use super::options::EnvironmentOptions;
use super::outcome::{Outcome, Outcomes};
use super::plan::{BuildPlan, LinkedModule};
use super::pool::CompilePool;
use super::progress::ProgressCounter;
use super::spec::BuildSpec;
use super::strategy::BuildStrategy;
use super::trace::{Line, LookupTrace};
use crate::backend::{self, DeviceSlot};
use crate::cache::config::DeviceIdentity;
use crate::cache::remote::Remote;
use crate::cache::store::{Address, EntryRecord};
use crate::counters::{Counters, Stats};
use crate::device::{Device, ModuleFormat};
use crate::digest::{BuildKey, Digest};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::HostExecutor;
use crate::process::resources;
use crate::source::library::DeviceLibrary;
use crate::source::module::Module;
use crate::source::plugin::PluginLibraries;
use crate::source::translate::{FrontEnd, Translation};
use crate::sync::{ignore_poison, lock};

/// Settings and services of a graph.
pub(crate) struct Setting {
    pub(crate) devices: Arc<[Arc<DeviceSlot>]>,
    /// Threads for calls that block.
    pub(crate) pool: CompilePool,
    /// Threads for calls that block on untrusted modules: a compiler that hangs delays no trusted build.
    pub(crate) untrusted_pool: CompilePool,
    pub(crate) children: Arc<Children>,
    /// Processes that compile trusted modules, if there are any.
    pub(crate) processes: Option<ProcessPool>,
    /// Maximum weight of the programs kept in memory, in bytes. With a limit of zero no program is kept, but in-flight
    /// builds are still shared.
    pub(crate) memory_limit: u64,
    pub(crate) disk: Option<Disk>,
    pub(crate) remote: Option<Remote>,
    pub(crate) trace: Option<LookupTrace>,
    pub(crate) duplicates: DuplicateExports,
    /// Options that the environment sets.
    pub(crate) options: EnvironmentOptions,
    /// Whether programs are linked with the libraries that are embedded in the process.
    pub(crate) embedded_libraries: bool,
    /// Whether the driver links objects even where one merged module would give faster kernels.
    pub(crate) link_objects: bool,
    /// Treatment of checked launches that are not proven.
    pub(crate) checked: CheckMode,
    pub(crate) front_end: FrontEnd,
    /// Identity that replaces a device's own identity in keys, if set.
    pub(crate) identity: Option<DeviceIdentity>,
    pub(crate) counters: Arc<Counters>,
}

/// Device, key and trust of the plan that a checked program was requested by.
type CheckedId = (usize, BuildKey, bool);

/// All builds of a runtime.
pub(crate) struct BuildGraph {
    setting: Setting,
    /// Device part of keys, for each device in the order of `Setting::devices`.
    device_keys: Box<[DeviceKey]>,
    memory: Memory,
    /// Memory that the devices' drivers take for programs, for each device in the order of `Setting::devices`.
    drivers: Box<[Option<Arc<DriverMemory>>]>,
    in_flight: Mutex<HashMap<BuildId, Outcomes>>,
    libraries: RwLock<Libraries>,
    /// Called before idle programs are evicted, to drop what keeps programs in use without need.
    before_eviction: OnceLock<Box<dyn Fn() + Send + Sync>>,
    recorders: RwLock<Vec<Arc<ManifestRecorder>>>,
    /// Checked programs that are in use. Their type is not stated, because their kernels refer to the graph.
    checked: Mutex<HashMap<CheckedId, Weak<dyn Any + Send + Sync>>>,
    progress: ProgressCounter,
    compile_times: CompileTimes,
    /// Executor of the builds. It is not the one for the futures of applications, which may block.
    builds: Arc<HostExecutor>,
}

impl BuildGraph {
    /// Creates a graph. Reads the environment variables that affect compilers, once.
    pub(crate) fn new(setting: Setting) -> Arc<Self> {
        let device_key = |slot: &Arc<DeviceSlot>| {
            let device = slot.handle();
            let variables = std::env::vars_os();
            match &setting.identity {
                Some(identity) => {
                    let fields = identity(device);
                    let fields = fields.iter().map(|(name, value)| (&**name, &**value));
                    DeviceKey::new(fields, variables)
                }
                None => DeviceKey::new(device.identity(), variables),
            }
        };
        let device_keys = setting.devices.iter().map(device_key).collect();
        let drivers = setting.devices.iter().map(|slot| DriverMemory::of(slot.handle()));
        let drivers: Box<[_]> = drivers.collect();
        let memory = Memory::new(setting.memory_limit, Arc::clone(&setting.counters));
        let libraries = RwLock::new(Libraries::new(setting.duplicates, setting.embedded_libraries));
        let builds = HostExecutor::new("kiln-build");
        Arc::new(Self {
            setting,
            device_keys,
            memory,
            drivers,
            in_flight: Mutex::default(),
            libraries,
            before_eviction: OnceLock::new(),
            recorders: RwLock::default(),
            checked: Mutex::default(),
            progress: ProgressCounter::default(),
            compile_times: CompileTimes::default(),
            builds,
        })
    }

    pub(super) fn node(&self, plan: &BuildPlan, key: BuildKey) -> BuildId {
        BuildId { device: plan.device(), key, is_untrusted: plan.has_untrusted() }
    }

    /// Returns the outcomes that are kept in memory.
    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the memory that the driver of a device takes for programs; `None` for a simulated device.
    pub(super) fn driver_memory(&self, device: usize) -> Option<&Arc<DriverMemory>> {
        self.drivers[device].as_ref()
    }

    /// Returns a program in memory that was linked from the same modules and possibly more: its kernels are the
    /// same.
    pub(super) fn containing_program(&self, plan: &BuildPlan) -> Option<Outcome> {
        let parts = self.parts(plan);
        if parts.is_empty() {
            return None;
        }
        self.memory.find(|device, built| {
            // A program that Kiln merges has the definitions that Kiln chose, one that a driver links need not.
            // How texts that are translated first become a program is not known yet.
            let is_link = built.plan().is_some_and(|built| built.strategy().is_link());
            let strategy = plan.strategy();
            device == plan.device()
                && (strategy == BuildStrategy::TranslateFirst || strategy.is_link() == is_link)
                && parts.iter().all(|part| built.parts().contains(part))
        })
    }

    /// Returns the threads for calls that block, on untrusted or on trusted modules.
    pub(crate) fn pool_for(&self, is_untrusted: bool) -> &CompilePool {
        if is_untrusted { &self.setting.untrusted_pool } else { &self.setting.pool }
    }

    pub(super) fn children(&self) -> &Children {
        &self.setting.children
    }

    /// Returns the compile processes, if there are any and they can compile a plan.
    pub(super) fn processes_for(&self, plan: &BuildPlan) -> Option<&ProcessPool> {
        let can_compile = plan.kind() == NodeKind::Program
            && !plan.has_untrusted()
            && !plan.strategy().is_link()
            && plan.format() != ModuleFormat::Native
            // The compiler of a simulated device is part of Kiln.
            && self.device(plan.device()).runs_code;
        self.setting.processes.as_ref().filter(|_| can_compile)
    }

    /// Whether a child process compiles the program if it is not in memory or on disk.
    pub(super) fn has_child_compile(&self, plan: &BuildPlan) -> bool {
        // The compiler of a simulated device is part of Kiln, and a child process cannot reach the device.
        plan.is_untrusted() && self.device(plan.device()).runs_code
    }

    /// Returns the data with which a child process finds a plan's device.
    pub(super) fn target(&self, plan: &BuildPlan) -> Target<'_> {
        let info = self.device(plan.device()).info();
        let before = &self.setting.devices[..plan.device()];
        let is_equal = |slot: &&Arc<DeviceSlot>| slot.handle().identity() == info.identity();
        Target { info, position: before.iter().filter(is_equal).count() }
    }

    /// Returns the threads for calls that block on trusted modules.
    pub(crate) fn pool(&self) -> &CompilePool {
        &self.setting.pool
    }

    /// Returns the executor of the builds, which never blocks.
    pub(super) fn builds(&self) -> &Arc<HostExecutor> {
        &self.builds
    }

    pub(super) fn disk(&self) -> Option<&Disk> {
        self.setting.disk.as_ref()
    }

    pub(super) fn remote(&self) -> Option<&Remote> {
        self.setting.remote.as_ref()
    }

    pub(super) fn front_end(&self) -> &FrontEnd {
        &self.setting.front_end
    }

    /// Returns the checked program of a plan, if it is in use.
    pub(super) fn known_checked<P: Any + Send + Sync>(&self, id: &CheckedId) -> Option<Arc<P>> {
        lock(&self.checked).get(id)?.upgrade()?.downcast().ok()
    }

    /// Notes the checked program of a plan for later requests, as long as it is in use.
    pub(super) fn keep_checked<P: Any + Send + Sync>(&self, id: CheckedId, program: &Arc<P>) {
        let program: Weak<P> = Arc::downgrade(program);
        let mut known = lock(&self.checked);
        known.retain(|_, program| program.strong_count() > 0);
        known.insert(id, program);
    }

    /// Returns the treatment of checked launches that are not proven.
    pub(super) fn checked(&self) -> CheckMode {
        self.setting.checked
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.setting.counters
    }

    pub(super) fn slot(&self, plan: &BuildPlan) -> &Arc<DeviceSlot> {
        &self.setting.devices[plan.device()]
    }

    /// Returns the device whose compiler or loader is to be called, opening it if necessary.
    ///
    /// # Errors
    ///
    /// The errors of opening the device and of [`check_resources`](Self::check_resources).
    pub(super) fn compiler(&self, plan: &BuildPlan) -> Result<&Arc<dyn backend::Device>> {
        self.check_resources(plan)?;
        self.slot(plan).open()
    }

    /// Checks that the system has enough resources left for the driver's compiler, which loads programs, too:
    /// some end the process otherwise.
    ///
    /// # Errors
    ///
    /// [`OutOfResources`](ErrorKind::OutOfResources).
    pub(super) fn check_resources(&self, plan: &BuildPlan) -> Result<()> {
        // The compiler of a simulated device is part of Kiln.
        if self.device(plan.device()).runs_code { resources::check() } else { Ok(()) }
    }

    /// Keeps the limits of the store in the background, if there is one.
    pub(crate) fn keep_limits(&self) {
        if let Some(disk) = self.disk() {
            disk.store().keep_limits_in_background();
        }
    }

    /// Completes when every requested build has ended and is stored, all uses of stored programs are recorded, and the
    /// store is within its limits.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let disk = self.disk().map(|disk| (disk.store().clone(), disk.store().settled()));
        let remote = self.remote().map(Remote::settled);
        let trace = self.setting.trace.as_ref().map(LookupTrace::settled);
        let recorders: Vec<_> = self.recorders().iter().map(ManifestRecorder::settled).collect();
        async move {
            if let Some((store, stored)) = disk {
                stored.await;
                store.stamp_all().await;
                store.look_at_limits().await;
                store.write_totals().await;
            }
            if let Some(remote) = remote {
                remote.await;
            }
            if let Some(trace) = trace {
                trace.await;
            }
            for recorder in recorders {
                recorder.await;
            }
        }
    }

    /// Finds the modules that make up a program. Fails if the program cannot be built.
    pub(crate) fn resolve(&self, spec: BuildSpec) -> Result<BuildPlan> {
        let device = self.device(spec.device());
        let Setting { link_objects, options, .. } = &self.setting;
        let identity = self.device_keys[spec.device()].identity();
        let target = LinkTarget { device, identity };
        spec.resolve(device, &target, *link_objects, options, |module| {
            self.libraries().resolve(module, &target)
        })
    }

    /// Returns the options that the environment sets.
    pub(super) fn environment_options(&self) -> &EnvironmentOptions {
        &self.setting.options
    }

    /// Returns the plan that replaces the plan of `texts` once `modules`, their SPIR-V, exist.
    pub(super) fn translated(&self, texts: &BuildPlan, modules: Vec<Module>) -> Result<BuildPlan> {
        texts.translated(modules, self.device(texts.device()), self.setting.link_objects)
    }

    pub(crate) fn progress(&self) -> &ProgressCounter {
        &self.progress
    }

    pub(super) fn compile_times(&self) -> &CompileTimes {
        &self.compile_times
    }

    /// Records from now on what is built and used.
    pub(crate) fn record(&self, recorder: ManifestRecorder) {
        ignore_poison(self.recorders.write()).push(Arc::new(recorder));
    }

    pub(super) fn recorders(&self) -> RwLockReadGuard<'_, Vec<Arc<ManifestRecorder>>> {
        // The list is only ever extended.
        ignore_poison(self.recorders.read())
    }

    fn libraries(&self) -> RwLockReadGuard<'_, Libraries> {
        // Only this crate's code runs under the lock, and a panic leaves a consistent list.
        ignore_poison(self.libraries.read())
    }

    /// Adds likely causes to an error of the compiler.
    pub(super) fn explain(&self, plan: &BuildPlan, error: Error) -> Error {
        plan.explain(error, &self.libraries(), self.slot(plan).handle())
    }

    /// Adds a device library. Returns `false` if it was registered already.
    pub(crate) fn register(&self, module: &Module) -> Result<bool> {
        ignore_poison(self.libraries.write()).register(module)
    }

    /// Adds a module whose exports replace those of libraries. Returns `false` if it was preloaded already.
    pub(crate) fn preload(&self, module: &Module) -> Result<bool> {
        ignore_poison(self.libraries.write()).preload(module)
    }

    /// Removes a device library that was registered or preloaded, and evicts the programs linked with it that
    /// are not in use. Returns `false` if it was neither.
    pub(crate) fn unregister(&self, module: &Module) -> bool {
        let removed = ignore_poison(self.libraries.write()).unregister(module);
        if removed {
            self.drop_linked(&[module.digest()]);
        }
        removed
    }

    /// Adds the device libraries of a plug-in.
    pub(crate) fn attach(&self, plug_in: &PluginLibraries) {
        ignore_poison(self.libraries.write()).attach(plug_in);
    }

    /// Removes the device libraries of a plug-in, and evicts the programs linked with them that are not in use.
    pub(crate) fn detach(&self, plug_in: &PluginLibraries) {
        ignore_poison(self.libraries.write()).detach(plug_in);
        let modules = plug_in.libraries().iter().filter_map(|library| library.module().ok());
        self.drop_linked(&modules.map(Module::digest).collect::<Vec<_>>());
    }

    /// Returns all device libraries, in the order in which they are searched.
    pub(crate) fn device_libraries(&self) -> Vec<DeviceLibrary> {
        self.libraries().all().cloned().collect()
    }

    /// Evicts the programs that are linked with one of these libraries and not in use.
    fn drop_linked(&self, libraries: &[Digest]) {
        self.memory.drop_idle(|built| {
            let parts = built.parts();
            parts.len() > 1 && parts.iter().any(|part| libraries.contains(&part.module))
        });
    }

    pub(crate) fn key(&self, plan: &BuildPlan) -> BuildKey {
        plan.key(&self.device_keys[plan.device()])
    }

    pub(crate) fn key_fields(&self, plan: &BuildPlan) -> Vec<(String, String)> {
        plan.key_fields(&self.device_keys[plan.device()])
    }

    /// Returns the part of an entry's record that describes the inputs of its build.
    pub(super) fn entry_record(&self, plan: &BuildPlan) -> EntryRecord {
        let mut record = EntryRecord::new(self.key_fields(plan));
        let tools = plan.translation().into_iter().flat_map(Translation::tools);
        let owned = tools.map(|(name, version)| (name.to_owned(), version.to_owned()));
        record.tools.extend(owned);
        let object = plan.object_record(&self.device_keys[plan.device()]);
        EntryRecord { labels: plan.labels(), object: object.map(Box::new), ..record }
    }

    /// Returns the modules that a plan's program is linked from; empty if it is not linked.
    pub(super) fn parts(&self, plan: &BuildPlan) -> Box<[LinkedModule]> {
        plan.parts(&self.device_keys[plan.device()])
    }

    /// Like [`parts`](Self::parts), for the plan of `texts` whose SPIR-V is built by `strategy`.
    pub(super) fn parts_for(
        &self,
        strategy: BuildStrategy,
        texts: &BuildPlan,
    ) -> Box<[LinkedModule]> {
        texts.parts_for(strategy, &self.device_keys[texts.device()])
    }

    pub(super) fn device_key(&self, device: usize) -> &DeviceKey {
        &self.device_keys[device]
    }

    /// Returns the address of a plan's program in stores.
    pub(super) fn address(&self, plan: &BuildPlan, key: BuildKey) -> Address {
        Address { device: self.device_keys[plan.device()].folder(), key }
    }

    /// Writes a line of the trace, if there is one.
    pub(super) fn trace(
        &self,
        plan: &BuildPlan,
        key: BuildKey,
        outcome: &'static str,
        [miss, remote]: [Option<&str>; 2],
        took: Option<Duration>,
    ) {
        if let Some(trace) = &self.setting.trace {
            let microseconds = took.map(|took| took.as_micros() as u64);
            let (fields, linked) = (self.key_fields(plan), plan.linked_symbols());
            trace.write(&Line { outcome, key, miss, remote, microseconds, fields, linked });
        }
    }

    /// Counts a request that fails before a build starts, and returns its error.
    pub(crate) fn refuse(&self, error: Error) -> Error {
        self.counters().builds.requested.add_one();
        self.counters().builds.failed.add_one();
        error
    }

    /// Returns the device at a position that came from [`position`](Self::position) or the runtime.
    pub(crate) fn device(&self, position: usize) -> &Device {
        self.setting.devices[position].handle()
    }

    /// Returns the positions of all devices.
    pub(super) fn device_positions(&self) -> Range<usize> {
        0..self.setting.devices.len()
    }

    /// Returns the position of a device in the graph.
    pub(crate) fn position(&self, device: &Device) -> Result<usize> {
        let same = |slot: &Arc<DeviceSlot>| Arc::ptr_eq(slot.handle().info(), device.info());
        if self.setting.devices.get(device.index()).is_some_and(same) {
            return Ok(device.index());
        }
        Err(Error::invalid(format!(
            "{device} is a device of another runtime; use one of this runtime's `devices()`"
        )))
    }

    /// Sets the fields of `stats` that describe the current contents of memory.
    pub(crate) fn fill_stats(&self, stats: &mut Stats) {
        self.memory.fill_stats(stats);
    }

    pub(super) fn in_flight(&self) -> MutexGuard<'_, HashMap<BuildId, Outcomes>> {
        // Each holder of the lock changes the map in one call: a panic leaves no partial change.
        lock(&self.in_flight)
    }

    /// Sets the function that is called before idle programs are evicted. The first one stays.
    pub(super) fn before_eviction(&self, drop_kept: impl Fn() + Send + Sync + 'static) {
        let _ = self.before_eviction.set(Box::new(drop_kept));
    }

    /// Evicts the kept programs that are not in use, to return their memory to the device. Returns their
    /// number.
    pub(super) fn drop_idle_programs(&self) -> usize {
        if let Some(drop_kept) = self.before_eviction.get() {
            drop_kept();
        }
        self.memory.drop_idle(|_| true)
    }

    /// Makes an outcome visible: puts it into the cache, then removes the in-flight build. The caller wakes the
    /// waiters only afterwards. So a waiter that receives a transient failure and requests the program again
    /// starts a new build, and a waiter that receives a program finds it in the cache.
    pub(super) fn publish(&self, node: BuildId, plan: &BuildPlan, outcome: &Outcome) {
        let is_kept = outcome.as_ref().map_or_else(Error::is_deterministic, |_| true);
        if is_kept && !plan.is_time_dependent() {
            self.memory.keep(node, outcome.clone());
        }
        self.in_flight().remove(&node);
    }

    /// Counts the failure of a build.
    pub(super) fn count_failure(&self, outcome: &Outcome) {
        let Err(error) = outcome else { return };
        let counters = self.counters();
        match error.kind() {
            ErrorKind::Panicked => &counters.builds.panics,
            _ if error.is_deterministic() => &counters.builds.failed,
            _ => &counters.builds.abandoned,
        }
        .add_one();
    }
}
