//! The build of one node. The program is loaded from the disk or the remote cache if they have it. Otherwise
//! the driver's compiler or linker builds it, in one process at a time. The inputs of a link are nodes of their
//! own. Waiting for them, or for the remote cache, occupies no thread.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::{abortable, try_join_all};
use tracing::field::display;

use super::artifact::Artifact;
use super::built::{BuildMetadata, Built, Origin};
use super::capabilities;
use super::child::Order;
use super::completion::BuildCompletion;
use super::disk::{Disk, LockWait, Miss, NextStep};
use super::entry_codec::{self, Loaded, Packed};
use super::graph::{BuildGraph, BuildId};
use super::kernel_record::{has_kernels, parameters};
use super::key::NodeKind;
use super::outcome::Outcome;
use super::plan::{BuildPlan, BuildStrategy, LinkedModule};
use super::pool::{catch_panic, let_others_run};
use super::refusal::classify;
use super::signatures::Signatures;
use crate::backend::Source;
use crate::cache::remote::{Answer, PendingResponse, RemoteLookup, Response};
use crate::cache::store::{Entry, Lock};
use crate::compiler::signature::Parameter;
use crate::device::ModuleFormat;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::executor;
use crate::process::threads::no_thread;

/// Pauses before the retries of a build that ran out of resources. After the last retry the build fails.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(50)];

/// Obligation to end one in-flight build. Dropping a job that has not ended its build ends it with an error.
pub(super) struct Job {
    graph: Arc<BuildGraph>,
    node: BuildId,
    /// Build plan of the program. If texts have to be translated first, this is the plan of their SPIR-V from
    /// then on.
    plan: BuildPlan,
    /// Linked modules under the keys of the original texts. Set once the plan has been replaced by the plan of
    /// their SPIR-V.
    text_parts: Option<Box<[LinkedModule]>>,
    /// Key of `plan`.
    key: BuildKey,
    span: tracing::Span,
    completion: Arc<BuildCompletion>,
    /// Whether this job only loads the program that the remote cache sends, while another job compiles. Such a
    /// job ends the in-flight build only on success.
    is_loader: bool,
    lock_wait: LockWait,
    /// Set once it is this process's turn to build; contains the lock if locks are in use.
    build_turn: Option<Option<Lock>>,
    /// Objects to be linked, once they are built.
    objects: Option<Vec<Arc<Built>>>,
    /// Signatures of the symbols that the linked modules share, once they are known.
    signatures: Option<Signatures>,
    /// Reason why the disk had no usable program. Set by the first lookup.
    miss: Option<Miss>,
    remote: RemoteState,
}

/// State of the lookup in the remote cache.
enum RemoteState {
    NotQueried,
    Answered(Answer),
    /// The remote cache gave no program, for this reason.
    NoProgram(String),
}

/// Result of one step of a job.
enum Step {
    Done(Arc<Built>),
    /// The remote cache sent the program; it is to be written to disk.
    Received(Arc<Built>, Entry),
    /// The program was compiled, in this time; it is to be stored.
    Compiled(Arc<Built>, Duration),
    /// This job has nothing left to do: another job ends, or has ended, the build.
    Superseded,
    /// Another process is building the program: look again after this pause.
    Wait(Duration),
    /// The remote cache may have the program: query it.
    QueryRemote(RemoteLookup),
    /// The objects, and the signatures of the symbols that they share, are needed first.
    GatherObjects,
    /// The modules have to be translated to SPIR-V first.
    Translate,
}

impl Job {
    pub(super) fn new(
        graph: Arc<BuildGraph>,
        node: BuildId,
        plan: BuildPlan,
        completion: BuildCompletion,
    ) -> Self {
        Self {
            graph,
            node,
            plan,
            text_parts: None,
            key: node.key,
            span: tracing::Span::none(),
            completion: Arc::new(completion),
            is_loader: false,
            lock_wait: LockWait::default(),
            build_turn: None,
            objects: None,
            signatures: None,
            miss: None,
            remote: RemoteState::NotQueried,
        }
    }

    /// Sets the span in which the job reports.
    pub(super) fn with_span(mut self, span: tracing::Span) -> Self {
        self.span = span;
        self
    }

    pub(super) fn plan(&self) -> &BuildPlan {
        &self.plan
    }

    /// Submits the job to a worker thread.
    pub(super) fn submit(self) {
        let pool = match self.is_loader {
            true => self.graph.loaders(),
            false => self.graph.pool_for(self.plan.has_untrusted()),
        };
        let pool = pool.clone();
        pool.submit(move || {
            let span = self.span.clone();
            span.in_scope(|| self.run());
        });
    }

    /// Runs one step, and acts on its result.
    fn run(mut self) {
        match catch_panic(|| self.step()) {
            Ok(Step::Done(built)) => _ = self.end(Ok(built)),
            Ok(Step::Received(built, entry)) => {
                self.end(Ok(built));
                let_others_run();
                self.fill_disk(&entry);
            }
            Ok(Step::Compiled(built, took)) => {
                if self.end(Ok(built.clone())) {
                    let_others_run();
                    self.save(self.node, &self.plan, &built, took);
                }
                // Processes that wait for this lock now find the stored program.
                drop(self.build_turn.take());
            }
            Ok(Step::Superseded) => {}
            Ok(Step::Wait(pause)) => self.submit_after(pause),
            Ok(Step::QueryRemote(lookup)) => self.submit_with_remote_answer(lookup),
            Ok(Step::GatherObjects) => self.submit_with_objects(),
            Ok(Step::Translate) => self.submit_translated(),
            Err(error) => _ = self.end(Err(error)),
        }
    }

    /// Continues after a pause.
    fn submit_after(mut self, pause: Duration) {
        let graph = self.graph.clone();
        graph.spawn_task(async move {
            match executor::pause(pause).await {
                Ok(()) => self.submit(),
                Err(error) => _ = self.end(Err(error)),
            }
        });
    }

    /// Continues with the answer of the remote cache. If the answer takes too long, the job compiles meanwhile,
    /// and the first to finish completes the build.
    fn submit_with_remote_answer(mut self, lookup: RemoteLookup) {
        if lookup.patience().is_zero() {
            return self.race(lookup.start());
        }
        lookup.start_then(move |response| match response {
            Response::Answer(answer) => {
                self.remote = RemoteState::answered(answer);
                self.submit();
            }
            Response::Pending(answer) => {
                if let Some(remote) = self.graph.remote() {
                    remote.record_late();
                }
                self.race(answer);
            }
        });
    }

    /// Compiles, while a second job waits for the remote cache's answer.
    fn race(mut self, answer: PendingResponse) {
        self.graph.counters().remote_races.add_one();
        let mut loader = self.loader();
        let (answer, wait) = abortable(answer);
        self.completion.abort_when_claimed(wait);
        self.remote =
            RemoteState::NoProgram("it had not arrived when the compile began".to_owned());
        let graph = self.graph.clone();
        self.submit();
        graph.spawn_task(async move {
            if let Ok(answer) = answer.await {
                loader.remote = RemoteState::answered(answer);
                loader.submit();
            }
        });
    }

    /// Creates another job for the same in-flight build. It only loads the program from the remote cache.
    fn loader(&self) -> Self {
        Self {
            graph: self.graph.clone(),
            node: self.node,
            plan: self.plan.clone(),
            text_parts: self.text_parts.clone(),
            key: self.key,
            span: self.span.clone(),
            completion: self.completion.clone(),
            is_loader: true,
            lock_wait: LockWait::default(),
            build_turn: None,
            objects: None,
            signatures: None,
            miss: self.miss.clone(),
            remote: RemoteState::NotQueried,
        }
    }

    /// Builds the objects and collects their signatures, and continues once all are available. No lock is held
    /// meanwhile: objects have locks of their own, and two processes could otherwise deadlock.
    fn submit_with_objects(mut self) {
        let request = |object: BuildPlan| {
            let name = object.describe_module();
            let answer = self.graph.request_uncounted(object);
            async { answer.completed().await.map_err(|error| error.within(name)) }
        };
        let links_here = !self.graph.has_child_compile(&self.plan);
        let objects: Vec<_> = self.plan.objects().filter(|_| links_here).map(request).collect();
        let signatures = self.graph.signatures(&self.plan);
        let graph = self.graph.clone();
        graph.spawn_task(async move {
            match try_join_all(objects).await {
                Ok(objects) => {
                    self.objects = links_here.then_some(objects);
                    self.signatures = Some(signatures.await);
                    self.submit();
                }
                Err(error) => _ = self.end(Err(error)),
            }
        });
    }

    /// Translates the modules to SPIR-V, and continues with the resulting plan.
    fn submit_translated(mut self) {
        let translating = self.graph.plan_in_spirv(&self.plan);
        let graph = self.graph.clone();
        graph.spawn_task(async move {
            match translating.await {
                Ok(plan) => {
                    self.text_parts = Some(self.graph.parts_for(plan.strategy(), &self.plan));
                    self.key = self.graph.key(&plan);
                    self.plan = plan;
                    self.submit();
                }
                Err(error) => _ = self.end(Err(error)),
            }
        });
    }

    /// Does the next part of the work, on a worker thread, and returns how the job continues.
    fn step(&mut self) -> Result<Step> {
        if self.completion.is_claimed() {
            return Ok(Step::Superseded);
        }
        if self.plan.strategy() == BuildStrategy::TranslateFirst {
            return Ok(Step::Translate);
        }
        let needs_objects = self.plan.strategy().is_link() && self.signatures.is_none();
        let graph = self.graph.clone();
        let has_stores = graph.disk().is_some() || graph.remote().is_some();
        if !self.plan.is_stored() || !has_stores {
            // The program is not stored, so the job needs no reference to it after the build has ended.
            return if needs_objects {
                Ok(Step::GatherObjects)
            } else {
                self.compile().map(Step::Done)
            };
        }
        if let Some((built, entry)) = self.receive()? {
            return Ok(Step::Received(built, entry));
        }
        if self.is_loader {
            return Ok(Step::Superseded);
        }
        let remote = graph.remote().filter(|_| matches!(self.remote, RemoteState::NotQueried));
        if self.build_turn.is_none() {
            if let Some(disk) = graph.disk()
                && let Some(built) = self.load(disk)?
            {
                return Ok(Step::Done(built));
            }
            if needs_objects && remote.is_none() {
                return Ok(Step::GatherObjects);
            }
            if let Some(step) = self.take_turn()? {
                return Ok(step);
            }
        }
        if let Some(remote) = remote {
            self.remote = RemoteState::NoProgram("it was not queried".to_owned());
            if let Some(lookup) = remote.lookup(&graph.address(&self.plan, self.key)) {
                return Ok(Step::QueryRemote(lookup));
            }
        }
        if needs_objects {
            self.build_turn = None;
            return Ok(Step::GatherObjects);
        }
        let start = Instant::now();
        let built = self.compile()?;
        Ok(Step::Compiled(built, start.elapsed()))
    }

    /// Waits for this process's turn to build. Returns the next step if the turn has not come yet, or if
    /// another process has built the program meanwhile.
    fn take_turn(&mut self) -> Result<Option<Step>> {
        let graph = self.graph.clone();
        let Some(disk) = graph.disk() else {
            self.build_turn = Some(None);
            return Ok(None);
        };
        match disk.next_step(&self.key, &mut self.lock_wait) {
            NextStep::Wait(pause) => return Ok(Some(Step::Wait(pause))),
            NextStep::Build(lock) => self.build_turn = Some(lock),
        }
        // Another process may have built the program between the lookup and the lock. An entry that this driver
        // has just refused is not tried again, as it would be refused again.
        if matches!(self.miss, Some(Miss::Absent)) {
            return Ok(self.load(disk)?.map(Step::Done));
        }
        Ok(None)
    }

    /// Loads the program from the disk, if the disk has it.
    fn load(&mut self, disk: &Disk) -> Result<Option<Arc<Built>>> {
        let address = self.graph.address(&self.plan, self.key);
        let counters = self.graph.counters();
        let load = |entry: &Entry| self.load_entry(entry, Origin::Disk);
        match self.with_retries(|| disk.load(&address, self.miss.as_ref(), load))? {
            Ok(built) => {
                counters.disk_hits.add_one();
                Ok(Some(built))
            }
            Err(miss) => {
                if self.miss.is_none() {
                    counters.disk_misses.add_one();
                }
                self.miss = Some(miss);
                Ok(None)
            }
        }
    }

    /// Loads the program that the remote cache sent, if it sent one.
    fn receive(&mut self) -> Result<Option<(Arc<Built>, Entry)>> {
        let unused = RemoteState::NoProgram(String::new());
        let answer = match std::mem::replace(&mut self.remote, unused) {
            RemoteState::Answered(answer) => answer,
            other => {
                self.remote = other;
                return Ok(None);
            }
        };
        let reason = match answer {
            Answer::Found(entry) => {
                match self.with_retries(|| self.load_entry(&entry, Origin::Remote))? {
                    Loaded::Built(built) => {
                        self.graph.counters().remote_hits.add_one();
                        return Ok(Some((built, entry)));
                    }
                    Loaded::Refused(reason) => {
                        if let Some(remote) = self.graph.remote() {
                            let address = self.graph.address(&self.plan, self.key);
                            remote.refused(&address, &reason);
                        }
                        reason
                    }
                }
            }
            Answer::Absent => "absent".to_owned(),
            Answer::Refused { reason, is_newer } => {
                if is_newer {
                    self.completion.set_remote_has_newer();
                }
                reason
            }
            Answer::Failed(reason) => reason,
        };
        self.remote = RemoteState::NoProgram(reason);
        Ok(None)
    }

    fn load_entry(&self, entry: &Entry, origin: Origin) -> Result<Loaded> {
        let slot = self.graph.slot(&self.plan);
        entry_codec::load(entry, origin, slot, self.plan.kind(), || self.parts(&self.plan))
    }

    /// Compiles or links the program, with retries, and adds likely causes to an error.
    fn compile(&self) -> Outcome {
        let uses_child = self.graph.has_child_compile(&self.plan)
            || self.plan.strategy() == BuildStrategy::Translate;
        let device = self.graph.device(self.plan.device());
        let attempt = || self.try_compile().map_err(|error| classify(error, device));
        // A child that ran out of memory would do so again, and could bring this process down as well.
        let outcome = if uses_child { attempt() } else { self.with_retries(attempt) };
        outcome.map_err(|error| self.graph.explain(&self.plan, error))
    }

    /// Compiles or links the program once.
    fn try_compile(&self) -> Outcome {
        self.signatures.iter().try_for_each(Signatures::check)?;
        match &self.objects {
            Some(objects) => self.link(objects),
            None if self.plan.strategy().is_link() => {
                self.with_unchanged_files(&self.plan, || self.link_in_child())
            }
            None => self.compile_modules(&self.plan, self.key),
        }
    }

    /// Compiles a plan that needs no driver linker. Fails if the included files have changed meanwhile.
    fn compile_modules(&self, plan: &BuildPlan, key: BuildKey) -> Outcome {
        self.with_unchanged_files(plan, || self.run_compiler(plan, key))
    }

    /// Returns the outcome of `compile`, or an error if the included files are no longer those that the key
    /// covers.
    fn with_unchanged_files(&self, plan: &BuildPlan, compile: impl FnOnce() -> Outcome) -> Outcome {
        let outcome = compile();
        plan.check_files(self.graph.children().limit())?;
        outcome
    }

    /// Compiles a plan that needs no driver linker, without checking the included files.
    fn run_compiler(&self, plan: &BuildPlan, key: BuildKey) -> Outcome {
        if let Some(translation) = plan.translation() {
            self.graph.counters().translations.add_one();
            let translated = translation.run(plan.module().code())?;
            let artifact = Artifact::SpirV { module: translated.module, log: translated.log };
            return Ok(self.built(plan, key, artifact));
        }
        plan.with_source(self.graph.slot(plan).handle(), |source| {
            self.check_capabilities(source)?;
            let compiles = &self.graph.counters().compiles;
            if self.graph.has_child_compile(plan) {
                compiles.add_one();
                return self.in_child(Order::Build(source));
            }
            let device = self.graph.compiler(plan)?;
            compiles.add_one();
            let native = match plan.kind() {
                NodeKind::Object => device.compile(source),
                NodeKind::Program | NodeKind::SpirV => device.build(source),
            };
            Ok(self.built(plan, key, Artifact::Native(native?)))
        })
    }

    /// Fails if SPIR-V uses a feature that the device lacks.
    fn check_capabilities(&self, source: &Source<'_>) -> Result<()> {
        if source.format == ModuleFormat::SpirV {
            let device = self.graph.slot(&self.plan).handle();
            capabilities::check(source.code, &self.plan.describe(), device)?;
        }
        Ok(())
    }

    /// Links the objects. If that fails, stored objects are compiled again, and linking is retried.
    fn link(&self, objects: &[Arc<Built>]) -> Outcome {
        let device = self.graph.compiler(&self.plan)?;
        let counters = self.graph.counters();
        let link = |objects: &[Arc<Built>]| {
            counters.links.add_one();
            let objects: Vec<_> =
                objects.iter().map(|object| object.native()).collect::<Result<_>>()?;
            device.link(&objects)
        };
        let is_stored =
            |object: &Arc<Built>| matches!(object.origin(), Origin::Disk | Origin::Remote);
        let native = match link(objects) {
            // A stored object may be damaged: drivers hardly verify objects.
            Err(error)
                if error.kind() == ErrorKind::BuildFailed && objects.iter().any(is_stored) =>
            {
                let recompile = |(plan, object): (BuildPlan, &Arc<Built>)| {
                    if is_stored(object) { self.recompile(&plan) } else { Ok(Arc::clone(object)) }
                };
                let objects: Vec<_> =
                    self.plan.objects().zip(objects).map(recompile).collect::<Result<_>>()?;
                let native = link(&objects)?;
                tracing::debug!(%error, "a stored object could not be used");
                counters.disk_refused.add_one();
                native
            }
            linked => linked?,
        };
        Ok(self.built(&self.plan, self.key, Artifact::Native(native)))
    }

    /// Compiles the modules and links the objects in a child process.
    fn link_in_child(&self) -> Outcome {
        let counters = self.graph.counters();
        self.plan.with_sources(|sources| {
            sources.iter().try_for_each(|source| self.check_capabilities(source))?;
            counters.compiles.add(sources.len() as u64);
            counters.links.add_one();
            self.in_child(Order::Link(sources))
        })
    }

    /// Builds the program in a child process, and loads the resulting binary as if it came from the disk.
    fn in_child(&self, order: Order<'_>) -> Outcome {
        self.graph.counters().build_children.add_one();
        let output = self.graph.children().run(&self.graph.target(&self.plan), order)?;
        let device = self.graph.slot(&self.plan).open()?;
        let code = match order {
            // The child has verified that the module's own binary loads.
            Order::Build(source) if source.format == ModuleFormat::Native => source.code,
            _ => &output.binary,
        };
        let source = Source { format: ModuleFormat::Native, code, options: "", constants: &[] };
        let program = self
            .with_retries(|| device.build(&source))
            .map_err(|error| error.within("the program compiled by a build child"))?;
        let artifact = Artifact::Native(program);
        if !has_kernels(&artifact, &output.kernels) {
            let message = "the driver finds kernels in the program that differ from those that the \
                           build child reported";
            return Err(Error::new(ErrorKind::BuildFailed, message).with_log(output.log));
        }
        let child_parameters = parameters(&output.kernels);
        Ok(self.built_with(&self.plan, self.key, artifact, &output.log, child_parameters))
    }

    /// Compiles an object again, and replaces the earlier one in memory and in the stores.
    fn recompile(&self, plan: &BuildPlan) -> Outcome {
        let start = Instant::now();
        let key = self.graph.key(plan);
        let built = self.compile_modules(plan, key)?;
        let node = self.graph.node(plan, key);
        self.graph.keep(node, Ok(Arc::clone(&built)));
        self.save(node, plan, &built, start.elapsed());
        Ok(built)
    }

    /// Creates the node's program from an artifact.
    fn built(&self, plan: &BuildPlan, key: BuildKey, artifact: Artifact) -> Arc<Built> {
        let build_log = artifact.build_log().to_owned();
        self.built_with(plan, key, artifact, &build_log, |_| None)
    }

    /// Like [`built`](Self::built), with a build log. `reported_parameters` returns the parameters of a kernel
    /// that the compiler reported; they are used if the plan does not state them.
    fn built_with(
        &self,
        plan: &BuildPlan,
        key: BuildKey,
        artifact: Artifact,
        build_log: &str,
        reported_parameters: impl Fn(&str) -> Option<Vec<Parameter>>,
    ) -> Arc<Built> {
        // If the driver does not report the size of its binary, the program still must not have weight zero.
        let size = artifact.binary_size().unwrap_or_else(|| plan.code_len());
        let parts = self.parts(plan);
        let signature_source = plan.signature_source();
        let metadata =
            BuildMetadata { origin: Origin::Compiled, build_log, size, parts, signature_source };
        let parameters = |kernel: &str| {
            plan.parameters(kernel).map(<[_]>::to_vec).or_else(|| reported_parameters(kernel))
        };
        let device = self.graph.slot(plan).handle().clone();
        Arc::new(Built::new(artifact, device, key, metadata, parameters))
    }

    /// Returns the linked modules of a plan's program, under the keys of the original modules.
    fn parts(&self, plan: &BuildPlan) -> Box<[LinkedModule]> {
        match &self.text_parts {
            Some(parts) if plan.kind() == NodeKind::Program => parts.clone(),
            _ => self.graph.parts(plan),
        }
    }

    /// Calls `attempt`, and retries it if it runs out of resources.
    fn with_retries<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        for pause in PAUSES {
            match attempt() {
                Err(error) if error.kind() == ErrorKind::OutOfResources => {
                    let dropped = self.graph.drop_idle_programs();
                    tracing::debug!(%error, dropped, "out of resources, trying again");
                    self.graph.counters().build_retries.add_one();
                    thread::sleep(pause);
                }
                outcome => return outcome,
            }
        }
        attempt()
    }

    /// Stores a compiled program. `took` is the duration of the compile.
    fn save(&self, node: BuildId, plan: &BuildPlan, built: &Arc<Built>, took: Duration) {
        let saved = catch_panic(|| {
            let (disk, remote) = (self.graph.disk(), self.graph.remote());
            if disk.is_none() && remote.is_none() {
                return Ok(());
            }
            let fields = self.graph.key_fields(plan);
            let tools: Vec<_> = plan
                .translation()
                .into_iter()
                .flat_map(|translation| translation.tools())
                .collect();
            let packed = match entry_codec::pack(&built.key(), built, fields, &tools, took) {
                Ok(packed) => packed,
                Err(error) => {
                    self.graph.counters().disk_skips.add_one();
                    tracing::debug!(%error, "a program without a binary is not stored");
                    return Ok(());
                }
            };
            let Packed { mut payload, rest } = packed;
            let address = self.graph.address(plan, built.key());
            if let Some(disk) = disk {
                disk.store().write(&address, &payload, &rest);
            }
            self.graph.reweigh(node, built, payload.len());
            if let Some(remote) = remote {
                remote.compiled(took);
                if !self.completion.remote_has_newer() {
                    payload.extend_from_slice(&rest);
                    remote.put(&address, payload);
                }
            }
            Ok(())
        });
        if let Err(error) = saved {
            tracing::error!(%error, "a program could not be stored");
        }
    }

    /// Writes the program that the remote cache sent to the disk.
    fn fill_disk(&self, entry: &Entry) {
        if let Some(disk) = self.graph.disk() {
            let address = self.graph.address(&self.plan, self.key);
            disk.store().write(&address, entry.payload(), entry.rest());
        }
    }

    /// Ends the in-flight build. Returns `false` if another job has ended it, or if this job only loads and has
    /// failed.
    fn end(&mut self, outcome: Outcome) -> bool {
        if self.is_loader && outcome.is_err() {
            return false;
        }
        let Some(promise) = self.completion.claim() else { return false };
        let took = self.completion.elapsed();
        // An object's failure is counted with each program that needs the object.
        if self.plan.kind() == NodeKind::Program {
            self.graph.count_failure(&outcome);
        }
        if let Ok(built) = &outcome {
            built.set_plan(&self.plan);
            if self.plan.is_untrusted() {
                built.distrust();
            }
        }
        self.graph.publish(self.node, &self.plan, &outcome);
        let result = match outcome.as_ref().map(|built| built.origin()) {
            Ok(Origin::Disk) => "disk",
            Ok(Origin::Remote) => "remote",
            Ok(_) => "compiled",
            Err(_) => "failed",
        };
        let failure = outcome.as_ref().err().map(Error::kind);
        // The waiters are completed first: a subscriber of spans may panic.
        promise.complete(outcome);
        self.span.record("elapsed_ms", took.as_secs_f64() * 1e3);
        match failure {
            None => self.span.record("outcome", result),
            Some(kind) => self.span.record("outcome", display(kind)),
        };
        let miss = self.miss.as_ref().map(|miss| match miss {
            Miss::Absent => "absent",
            Miss::Unusable(reason) => reason,
        });
        let remote = match &self.remote {
            RemoteState::NoProgram(reason) if result != "remote" => Some(reason.as_str()),
            _ => None,
        };
        self.graph.trace(&self.plan, self.key, result, [miss, remote], Some(took));
        true
    }
}

impl RemoteState {
    fn answered(answer: std::result::Result<Answer, oneshot::Canceled>) -> Self {
        match answer {
            Ok(answer) => Self::Answered(answer),
            Err(oneshot::Canceled) => Self::NoProgram("it could not be queried".to_owned()),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end(Err(no_thread()));
    }
}
