//! Calls of compilers, linkers and loaders for a build. They run on the threads of the graph's pools, with
//! retries.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_lock::futures::AcquireArc;
use async_lock::{Semaphore, SemaphoreGuardArc};
use futures::FutureExt;
use futures::future::{Either, select, try_join, try_join_all};
use kiln_spirv::Parameter;

use super::artifact::Artifact;
use super::built::{BuildMetadata, Built, Origin, Recipe};
use super::capabilities;
use super::child::{ChildOutput, Order, ProcessPool, Reply, WaitingBuild};
use super::entry_codec::{self, Loaded, Packed};
use super::footprint::{DriverMemory, measured};
use super::graph::BuildGraph;
use super::input::BuildInput;
use super::kernel_record::{has_kernels, parameters};
use super::key::NodeKind;
use super::memory::BuildId;
use super::outcome::Outcome;
use super::plan::{BuildPlan, LinkedModule};
use super::pool::CompilePool;
use super::refusal::classify;
use super::signatures::Signatures;
use crate::backend::Source;
use crate::cache::remote::PendingResponse;
use crate::cache::store::{Address, Entry, Storage};
use crate::device::{ModuleFormat, Workarounds};
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::{self, Pool, Priority};
use crate::process::resources;
use crate::process::warning::RepeatedWarning;

/// Pauses before the retries of a call that ran out of resources. After the last retry it fails.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(50)];

/// Warnings of compiles that take longer than they would, because they are tried again or elsewhere.
static OUT_OF_RESOURCES: RepeatedWarning = RepeatedWarning::new();
static UNAVAILABLE: RepeatedWarning = RepeatedWarning::new();

/// Reports that a compile process did not compile a program, which a thread compiles instead.
fn report_unavailable(error: &Error) {
    match UNAVAILABLE.due() {
        Some(count) => tracing::warn!(
            %error, count,
            "compile processes could not compile programs, which threads compile in their place"
        ),
        None => tracing::debug!(%error, "a thread compiles in place of a compile process"),
    }
}

/// Subject of a build: the program of a plan.
pub(super) struct Subject {
    graph: Arc<BuildGraph>,
    plan: BuildPlan,
    /// Key of `plan`.
    key: BuildKey,
    /// Text that the only module of `plan` was translated from, if it was translated for this build.
    text: Option<BuildInput>,
    /// Linked modules under the keys of the original texts, if `plan` is the plan of their SPIR-V.
    text_parts: Option<Box<[LinkedModule]>>,
}

/// Whether a compiled program is written to the remote cache.
pub(super) enum Publish {
    Always,
    /// Unless this lookup, which is still pending, finds it there.
    Unless(PendingResponse),
    Never,
}

/// Inputs of a linked program, besides its plan.
pub(super) struct Linkage {
    /// Objects to be linked; `None` if a child process compiles and links.
    objects: Option<Vec<Arc<Built>>>,
    signatures: Signatures,
}

impl Subject {
    pub(super) fn new(graph: Arc<BuildGraph>, plan: BuildPlan, key: BuildKey) -> Self {
        Self { graph, plan, key, text: None, text_parts: None }
    }

    pub(super) fn graph(&self) -> &Arc<BuildGraph> {
        &self.graph
    }

    pub(super) fn plan(&self) -> &BuildPlan {
        &self.plan
    }

    pub(super) fn key(&self) -> &BuildKey {
        &self.key
    }

    /// Returns the address of the program in stores.
    pub(super) fn address(&self) -> Address {
        self.graph.address(&self.plan, self.key)
    }

    pub(super) fn is_link(&self) -> bool {
        self.plan.strategy().is_link()
    }

    /// Whether the program is looked up in the disk or the remote cache, and stored there.
    pub(super) fn is_stored(&self) -> bool {
        self.plan.is_stored() && (self.graph.disk().is_some() || self.graph.remote().is_some())
    }

    /// Returns the time that compiling the program is expected to take, if similar compiles are known.
    pub(super) fn expected_compile(&self) -> Option<Duration> {
        self.graph.compile_times().expected(self.plan.code_len())
    }

    /// Records how long compiling the program takes, here or elsewhere.
    pub(super) fn record_compile(&self, took: Duration) {
        self.graph.compile_times().record(self.plan.code_len(), took);
    }

    /// Returns the reason why the program is not in the store on disk, if that does not depend on the program's
    /// size or on the disk.
    pub(super) fn reason_not_to_store(&self) -> Option<Storage> {
        let is_off = self.graph.disk().is_none();
        self.plan.reason_not_to_store().or_else(|| is_off.then_some(Storage::Off))
    }

    /// Returns the permits to begin compiles, or to begin links if the program is linked.
    pub(super) fn slots(&self) -> &Arc<Semaphore> {
        if self.is_link() {
            self.pool().links()
        } else if self.processes().is_some() {
            self.pool().shared_compiles()
        } else {
            self.thread_slots()
        }
    }

    /// Returns the permits to begin compiles by threads, or in child processes for untrusted modules.
    fn thread_slots(&self) -> &Arc<Semaphore> {
        if self.workarounds().serialize_builds && !self.graph.has_child_compile(&self.plan) {
            self.pool().single_compile()
        } else {
            self.pool().compiles()
        }
    }

    /// Waits for one of the [`slots`](Self::slots).
    pub(super) async fn acquire_slot(&self) -> SemaphoreGuardArc {
        let _waiting: Option<WaitingBuild> =
            self.processes().map(|processes| processes.wait(&self.graph.target(&self.plan)));
        self.slots().acquire_arc().await
    }

    /// Returns the compile processes, if there are any and they can compile the program.
    fn processes(&self) -> Option<&ProcessPool> {
        self.graph.processes_for(&self.plan)
    }

    fn workarounds(&self) -> Workarounds {
        Workarounds::of(self.graph.device(self.plan.device()))
    }

    fn pool(&self) -> &CompilePool {
        self.graph.pool_for(self.plan.has_untrusted())
    }

    /// Translates the texts to SPIR-V, and returns what is built from it.
    pub(super) async fn translated(&self) -> Result<Self> {
        let graph = Arc::clone(&self.graph);
        let plan = graph.plan_in_spirv(&self.plan).await?;
        let text_parts = Some(graph.parts_for(plan.strategy(), &self.plan));
        let key = graph.key(&plan);
        let text = match self.plan.inputs() {
            [text] => Some(text.clone()),
            _ => None,
        };
        Ok(Self { graph, plan, key, text, text_parts })
    }

    /// Builds the objects of a linked program, and collects the signatures of the symbols that they share.
    pub(super) async fn linkage(&self) -> Result<Option<Linkage>> {
        if !self.is_link() {
            return Ok(None);
        }
        let request = |object: BuildPlan| {
            let name = object.describe_module();
            let answer = self.graph.request_uncounted(object);
            async { answer.completed().await.map_err(|error| error.within(name)) }
        };
        let links_here = !self.graph.has_child_compile(&self.plan);
        let objects: Vec<_> = self.plan.objects().filter(|_| links_here).map(request).collect();
        let signatures = self.graph.signatures(&self.plan).map(Ok);
        let (objects, signatures) = try_join(try_join_all(objects), signatures).await?;
        Ok(Some(Linkage { objects: links_here.then_some(objects), signatures }))
    }

    /// Loads the program from an entry, and returns the entry, too.
    pub(super) async fn load(
        self: &Arc<Self>,
        entry: Entry,
        origin: Origin,
    ) -> Result<(Loaded, Arc<Entry>)> {
        let entry = Arc::new(entry);
        let loading = Arc::clone(&entry);
        let load = move |subject: &Self| {
            let slot = subject.graph.slot(&subject.plan);
            subject.graph.check_resources(&subject.plan)?;
            let (recipe, driver) = (subject.recipe(), subject.driver_memory());
            let load =
                || entry_codec::load(&loading, origin, slot, recipe, driver, || subject.parts());
            measured(driver, load, Loaded::binary_bytes)
        };
        Ok((self.with_retries(Priority::Short, load).await?, entry))
    }

    /// Compiles or links the program, and adds likely causes to an error.
    pub(super) async fn compile(self: &Arc<Self>, linkage: Option<Linkage>) -> Outcome {
        let _compiling = self.graph.progress().begin_compile();
        self.on_pool(Priority::Short, |subject| subject.plan.check_calls()).await?;
        let outcome = match linkage {
            None => self.compile_modules().await,
            Some(Linkage { objects, signatures }) => self.link(objects, signatures).await,
        };
        outcome.map_err(|error| self.graph.explain(&self.plan, error))
    }

    /// Compiles a plan that needs no driver linker. Fails if the included files have changed meanwhile.
    async fn compile_modules(self: &Arc<Self>) -> Outcome {
        let outcome = if self.plan.translation().is_some() {
            self.on_pool(Priority::Long, Self::translate).await
        } else if self.graph.has_child_compile(&self.plan) {
            self.compile_in_child().await
        } else {
            match self.processes() {
                Some(processes) => self.compile_in_process_or_here(processes).await,
                None => self.with_retries(Priority::Long, Self::compile_here).await,
            }
        };
        self.check_files().await?;
        outcome
    }

    /// Compiles the module in a compile process. While no process is ready, a thread compiles it if it is free first.
    async fn compile_in_process_or_here(self: &Arc<Self>, processes: &ProcessPool) -> Outcome {
        let encode = |subject: &Self| {
            subject.plan.with_source(subject.graph.slot(&subject.plan).handle(), |source| {
                subject.check_capabilities(source)?;
                ProcessPool::encode(&subject.graph.target(&subject.plan), source)
            })
        };
        let request = match self.on_pool(Priority::Short, encode).await {
            Ok(request) => request,
            // A process cannot be asked, for example because this one's directory is gone. A thread finds the errors
            // of the program itself.
            Err(error) => {
                report_unavailable(&error);
                let _permit = self.thread_permit().await;
                return self.with_retries(Priority::Long, Self::compile_here).await;
            }
        };
        let mut ticket = processes.submit(&self.graph.target(&self.plan), request);
        if !ticket.is_left_to_processes() {
            // Both futures are dropped here. If one waited for a permit without being polled, the notification
            // of the next free permit would stay with it: no other build would wake, nor this one if it needs a
            // permit to go on.
            let first = match select(pin!(ticket.reply()), pin!(self.thread_permit())).await {
                Either::Left((reply, _)) => Either::Left(reply),
                Either::Right((permit, _)) => Either::Right(permit),
            };
            let permit = match first {
                Either::Left(reply) => return self.receive_reply(reply).await,
                Either::Right(permit) => permit,
            };
            if ticket.withdraw() {
                let outcome = self.with_retries(Priority::Long, Self::compile_here).await;
                drop(permit);
                return outcome;
            }
        }
        let reply = ticket.reply().await;
        self.receive_reply(reply).await
    }

    /// Waits for a permit to compile on a thread.
    fn thread_permit(&self) -> AcquireArc {
        self.thread_slots().acquire_arc()
    }

    /// Returns the outcome of a compile process.
    async fn receive_reply(self: &Arc<Self>, reply: Reply) -> Outcome {
        match reply {
            Reply::Made(output) => {
                self.graph.counters().builds.compiles.add_one();
                self.load_output(output).await
            }
            Reply::Failed(error) => {
                self.graph.counters().builds.compiles.add_one();
                Err(self.classify(error))
            }
            Reply::Unavailable(error) => {
                report_unavailable(&error);
                let _permit = self.thread_permit().await;
                self.with_retries(Priority::Long, Self::compile_here).await
            }
        }
    }

    /// Links the objects of a program, or has a child process compile and link its modules.
    async fn link(
        self: &Arc<Self>,
        objects: Option<Vec<Arc<Built>>>,
        signatures: Signatures,
    ) -> Outcome {
        self.on_pool(Priority::Short, move |_| signatures.check()).await?;
        match objects {
            Some(objects) => self.link_objects(objects).await,
            None => {
                let outcome = self.link_in_child().await;
                self.check_files().await?;
                outcome
            }
        }
    }

    /// Links the objects. If that fails, stored objects are compiled again, and linking is retried.
    async fn link_objects(self: &Arc<Self>, objects: Vec<Arc<Built>>) -> Outcome {
        let is_stored =
            |object: &Arc<Built>| matches!(object.origin(), Origin::Disk | Origin::Remote);
        let objects: Arc<[_]> = objects.into();
        let linked = self.link_once(&objects).await;
        let error = match linked {
            // A stored object may be damaged: drivers hardly verify objects.
            Err(error)
                if error.kind() == ErrorKind::BuildFailed && objects.iter().any(is_stored) =>
            {
                error
            }
            linked => return linked,
        };
        let mut recompiled = Vec::with_capacity(objects.len());
        for (plan, object) in self.plan.objects().zip(&*objects) {
            recompiled.push(match is_stored(object) {
                true => Self::recompile(Arc::clone(&self.graph), plan).await?,
                false => Arc::clone(object),
            });
        }
        let linked = self.link_once(&recompiled.into()).await?;
        match self.graph.disk() {
            Some(disk) => disk.store().report_refused(&self.key, &error.summary()),
            None => self.graph.counters().disk.refused.add_one(),
        }
        Ok(linked)
    }

    async fn link_once(self: &Arc<Self>, objects: &Arc<[Arc<Built>]>) -> Outcome {
        let objects = Arc::clone(objects);
        let link = move |subject: &Self| {
            let device = subject.graph.compiler(&subject.plan)?;
            subject.graph.counters().builds.links.add_one();
            let objects: Vec<_> =
                objects.iter().map(|object| object.native()).collect::<Result<_>>()?;
            let options = subject.plan.link_options().text();
            subject.measured_build(|| {
                let linked = device.link(&objects, options);
                let native = linked.map_err(|error| subject.classify(error))?;
                Ok(subject.built(Artifact::Native(native)))
            })
        };
        self.with_retries(Priority::Short, link).await
    }

    /// Compiles an object again, and replaces the earlier one in memory and in the stores.
    async fn recompile(graph: Arc<BuildGraph>, plan: BuildPlan) -> Outcome {
        let start = Instant::now();
        let key = graph.key(&plan);
        let object = Arc::new(Self::new(graph, plan, key));
        let built = object.compile_modules().await?;
        let node = object.graph.node(&object.plan, key);
        object.graph.memory().keep(node, Ok(Arc::clone(&built)));
        if let Some(_room) = object.room_to_save().await {
            object.save((node, &built), start.elapsed(), Publish::Always, false).await;
        }
        Ok(built)
    }

    /// Compiles the module in a child process.
    async fn compile_in_child(self: &Arc<Self>) -> Outcome {
        let compile = |subject: &Self| {
            subject.plan.with_source(subject.graph.slot(&subject.plan).handle(), |source| {
                subject.check_capabilities(source)?;
                subject.graph.counters().builds.compiles.add_one();
                let mut output = subject.run_child(Order::Build(source))?;
                if source.format == ModuleFormat::Native {
                    // The child has verified that the module's own binary loads.
                    output.binary = source.code.to_vec();
                }
                Ok(output)
            })
        };
        // A child that ran out of memory would do so again, and could bring this process down as well.
        let output = self.on_pool(Priority::Long, compile).await?;
        self.load_output(output).await
    }

    /// Compiles the modules and links the objects in a child process.
    async fn link_in_child(self: &Arc<Self>) -> Outcome {
        let link = |subject: &Self| {
            let counters = subject.graph.counters();
            let device = subject.graph.slot(&subject.plan).handle();
            subject.plan.with_sources(device, |sources| {
                sources.iter().try_for_each(|source| subject.check_capabilities(source))?;
                counters.builds.compiles.add(sources.len() as u64);
                counters.builds.links.add_one();
                let options = subject.plan.link_options().text();
                subject.run_child(Order::Link { sources, options })
            })
        };
        let output = self.on_pool(Priority::Long, link).await?;
        self.load_output(output).await
    }

    /// Loads the binary that a child process has made.
    async fn load_output(self: &Arc<Self>, output: ChildOutput) -> Outcome {
        let load = move |subject: &Self| {
            let code = &output.binary;
            let source = Source { format: ModuleFormat::Native, code, options: "", constants: &[] };
            let device = subject.graph.compiler(&subject.plan)?;
            subject.measured_build(|| {
                let program = device
                    .build(&source)
                    .map_err(|error| error.within("the program compiled by a build child"))?;
                let artifact = Artifact::Native(program);
                if !has_kernels(&artifact, &output.kernels) {
                    let message = "the driver finds kernels in the program that differ from those that \
                                   the build child reported";
                    return Err(Error::new(ErrorKind::BuildFailed, message).with_log(&*output.log));
                }
                Ok(subject.built_with(artifact, &output.log, parameters(&output.kernels)))
            })
        };
        self.with_retries(Priority::Short, load).await
    }

    /// Stores the compiled program of a node: in the remote cache as `publish` says, and on disk unless the disk is too
    /// slow. `took` is the duration of the compile.
    pub(super) async fn save(
        self: &Arc<Self>,
        (node, built): (BuildId, &Arc<Built>),
        took: Duration,
        publish: Publish,
        is_slow: bool,
    ) {
        self.record_compile(took);
        let remote = self.graph.remote().filter(|_| !matches!(publish, Publish::Never));
        let disk = self.graph.disk().filter(|_| !is_slow);
        if is_slow {
            built.set_storage(Storage::Slow);
        }
        if disk.is_none() && remote.is_none() {
            return;
        }
        let program = Arc::clone(built);
        let pack = move |subject: &Self| subject.pack(&program, took);
        // Where fetching the binary compiles, the loads of other programs go first.
        let compiles = self.workarounds().expect_late_compiles;
        let priority = if compiles { Priority::Long } else { Priority::Short };
        let Packed { payload, rest } = match self.on_driver(priority, pack).await {
            Ok(packed) => packed,
            Err(error) => {
                self.graph.counters().disk.skips.add_one();
                tracing::debug!(%error, "a program without a binary is not stored");
                return built.set_storage(Storage::NoBinary(error.summary()));
            }
        };
        let bytes = payload.len();
        if let Some(remote) = remote {
            let lookup = match publish {
                Publish::Unless(lookup) => Some(lookup),
                Publish::Always | Publish::Never => None,
            };
            // First, because the disk may take long.
            remote.put(&self.address(), [&payload[..], &rest[..]].concat(), lookup);
        }
        if let Some(disk) = disk {
            built.set_storage(disk.store().put(&self.address(), payload, rest).await);
        }
        self.graph.memory().reweigh(node, built, bytes);
    }

    /// Fails if the included files are no longer those that the key covers.
    async fn check_files(&self) -> Result<()> {
        if !self.plan.includes_files() {
            return Ok(());
        }
        let (plan, limit) = (self.plan.clone(), self.graph.children().limit());
        let is_untrusted = plan.has_untrusted();
        self.graph.read_files(is_untrusted, move || plan.check_files(limit)).await
    }

    /// Makes a call that blocks, on a thread of the pool.
    async fn on_pool<T: Send + 'static>(
        self: &Arc<Self>,
        priority: Priority,
        call: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.on(self.pool().threads(), priority, call).await
    }

    /// Makes a call that blocks on the device's driver.
    async fn on_driver<T: Send + 'static>(
        self: &Arc<Self>,
        priority: Priority,
        call: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let threads = match self.workarounds().serialize_builds {
            true => self.pool().serial_thread(),
            false => self.pool().threads(),
        };
        self.on(threads, priority, call).await
    }

    /// Makes a call that blocks, on one of these threads and in the current span.
    async fn on<T: Send + 'static>(
        self: &Arc<Self>,
        threads: &Pool,
        priority: Priority,
        call: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (subject, span) = (Arc::clone(self), tracing::Span::current());
        threads.run(priority, move || span.in_scope(|| call(&subject))).await?
    }

    /// Like [`on_driver`](Self::on_driver). Calls again if the call runs out of resources.
    async fn with_retries<T: Send + 'static>(
        self: &Arc<Self>,
        priority: Priority,
        call: impl Fn(&Self) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let call = Arc::new(call);
        let attempt = || {
            let call = Arc::clone(&call);
            self.on_driver(priority, move |subject| call(subject))
        };
        for pause in PAUSES {
            match attempt().await {
                Err(error) if error.kind() == ErrorKind::OutOfResources => {
                    // Programs in memory take no file descriptors.
                    let dropped = match resources::is_lack_of_files(&error) {
                        true => 0,
                        false => self.graph.drop_idle_programs(),
                    };
                    match OUT_OF_RESOURCES.due() {
                        Some(count) => tracing::warn!(
                            %error, dropped, count,
                            "compilers ran out of resources; their programs are tried again"
                        ),
                        None => tracing::debug!(%error, dropped, "out of resources, trying again"),
                    }
                    self.graph.counters().builds.retries.add_one();
                    executor::pause(pause).await?;
                }
                outcome => return outcome,
            }
        }
        attempt().await
    }
}

/// Calls that block.
impl Subject {
    /// Translates the text to SPIR-V.
    fn translate(&self) -> Outcome {
        let Some(translation) = self.plan.translation() else {
            return Err(Error::invalid("a plan that is no translation was given to translate"));
        };
        self.graph.counters().builds.translations.add_one();
        let translated = translation.run(self.plan.module().code())?;
        Ok(self.built(Artifact::SpirV { module: translated.module, log: translated.log }))
    }

    /// Compiles the plan's module in this process.
    fn compile_here(&self) -> Outcome {
        self.plan.with_source(self.graph.slot(&self.plan).handle(), |source| {
            self.check_capabilities(source)?;
            let device = self.graph.compiler(&self.plan)?;
            self.graph.counters().builds.compiles.add_one();
            self.measured_build(|| {
                let native = match self.plan.kind() {
                    NodeKind::Object => device.compile(source),
                    NodeKind::Program | NodeKind::SpirV => device.build(source),
                };
                Ok(self.built(Artifact::Native(native.map_err(|error| self.classify(error))?)))
            })
        })
    }

    /// Makes a call that builds a program, and measures the memory that the driver takes for it.
    fn measured_build(&self, build: impl FnOnce() -> Outcome) -> Outcome {
        measured(self.driver_memory(), build, |built| Some(built.binary_bytes()))
    }

    /// Returns the memory that the device's driver takes for programs; `None` for a simulated device, and for SPIR-V.
    fn driver_memory(&self) -> Option<&Arc<DriverMemory>> {
        let has_driver = self.plan.kind() != NodeKind::SpirV;
        self.graph.driver_memory(self.plan.device()).filter(|_| has_driver)
    }

    /// Runs a child process, and returns what it has built.
    fn run_child(&self, order: Order<'_>) -> Result<ChildOutput> {
        self.graph.counters().builds.child_processes.add_one();
        let output = self.graph.children().run(&self.graph.target(&self.plan), order);
        output.map_err(|error| self.classify(error))
    }

    fn classify(&self, error: Error) -> Error {
        classify(error, self.graph.device(self.plan.device()))
    }

    /// Fails if SPIR-V uses a feature that the device lacks.
    fn check_capabilities(&self, source: &Source<'_>) -> Result<()> {
        if source.format == ModuleFormat::SpirV {
            let device = self.graph.slot(&self.plan).handle();
            capabilities::check(source.code, &self.plan.describe(), device)?;
        }
        Ok(())
    }

    /// Creates the entry of a compiled program. Some drivers generate the binary only now.
    fn pack(&self, built: &Built, took: Duration) -> Result<Packed> {
        let mut record = self.graph.entry_record(&self.plan);
        record.build_microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let pack = || entry_codec::pack(&self.key, built, record);
        // Some drivers compile the program only now.
        measured(self.driver_memory(), pack, |_| None)
    }

    /// Creates the program from an artifact.
    fn built(&self, artifact: Artifact) -> Arc<Built> {
        let build_log = artifact.build_log().to_owned();
        self.built_with(artifact, &build_log, |_| None)
    }

    /// Like [`built`](Self::built), with a build log. `reported_parameters` returns the parameters of a kernel
    /// that the compiler reported; they are used if the plan does not state them.
    fn built_with(
        &self,
        artifact: Artifact,
        build_log: &str,
        reported_parameters: impl Fn(&str) -> Option<Vec<Parameter>>,
    ) -> Arc<Built> {
        let plan = &self.plan;
        // If the driver does not report the size of its binary, the program still must not have weight zero.
        let size = artifact.binary_size().unwrap_or_else(|| plan.code_len());
        let (parts, signature_source) = (self.parts(), plan.signature_source());
        let footprint = self.driver_memory().map(DriverMemory::begin_program);
        let metadata = BuildMetadata {
            origin: Origin::Compiled,
            build_log,
            size,
            footprint,
            parts,
            recipe: Some(self.recipe()),
            signature_source,
        };
        let parameters = |kernel: &str| {
            plan.parameters(kernel).map(<[_]>::to_vec).or_else(|| reported_parameters(kernel))
        };
        let device = self.graph.slot(plan).handle().clone();
        Arc::new(Built::new(artifact, device, self.key, metadata, parameters))
    }

    fn recipe(&self) -> Recipe {
        Recipe { plan: self.plan.clone(), text: self.text.clone() }
    }

    /// Returns the modules that the program is linked from, under the keys of the original modules.
    fn parts(&self) -> Box<[LinkedModule]> {
        match &self.text_parts {
            Some(parts) if self.plan.kind() == NodeKind::Program => parts.clone(),
            _ => self.graph.parts(&self.plan),
        }
    }
}
