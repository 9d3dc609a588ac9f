//! The building of one node: from the disk if it has the program, else by the driver's compiler or
//! linker, of which one process at a time runs. What is linked are nodes of their own, and waiting
//! for them takes no thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use tracing::field::display;

use crate::backend::{Parameter, Program, Source};
use crate::build::capabilities;
use crate::build::child::Order;
use crate::build::disk::{Disk, Miss, Turn, Waiting};
use crate::build::flight::Lander;
use crate::build::graph::{BuildGraph, NodeId, Outcome};
use crate::build::key::NodeKind;
use crate::build::link::describe;
use crate::build::pool::{catch_panic, no_thread};
use crate::build::program::{Built, Origin, Told};
use crate::build::recipe::{Part, Recipe, Way};
use crate::build::record::{has_kernels, parameters};
use crate::build::spirv::SpirV;
use crate::device::ImageFormat;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::image::Image;
use crate::store::{Lock, Pending};

/// The pauses before a build that ran out of resources is tried again, after which it is given up.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(50)];

/// The duty to end one flight. Ends it with an error if dropped before.
pub(super) struct Job {
    graph: Arc<BuildGraph>,
    node: NodeId,
    /// Of texts that are built as SPIR-V, from their translation on that of the SPIR-V.
    recipe: Recipe,
    /// Then, what the texts are parts of.
    texts: Option<Box<[Part]>>,
    /// Of this recipe: the key of what is built.
    key: BuildKey,
    span: tracing::Span,
    lander: Option<Lander>,
    start: Instant,
    waiting: Waiting,
    /// What is to be linked, once it is there.
    objects: Option<Vec<Arc<Built>>>,
    /// Why the disk had no program, once it was asked.
    miss: Option<Miss>,
    /// Keeps those waiting who want everything on disk.
    _pending: Option<Pending>,
}

/// How far a job came.
enum Step {
    Done(Arc<Built>),
    /// Done, and to be written to disk.
    Compiled(Arc<Built>, Duration, Option<Lock>),
    /// Another process builds it: look again after a pause.
    Wait(Duration),
    /// Its objects have to be there first.
    Gather,
    /// Its images have to be SPIR-V first.
    Translate,
}

impl Job {
    pub(super) fn new(
        graph: Arc<BuildGraph>,
        node: NodeId,
        recipe: Recipe,
        span: tracing::Span,
        lander: Lander,
    ) -> Self {
        let disk = graph.disk().filter(|_| recipe.is_stored());
        Self {
            _pending: disk.map(Disk::begin),
            graph,
            node,
            recipe,
            texts: None,
            key: node.key,
            span,
            lander: Some(lander),
            start: Instant::now(),
            waiting: Waiting::default(),
            objects: None,
            miss: None,
        }
    }

    /// Has a worker see to it.
    pub(super) fn submit(self) {
        let pool = self.graph.pool_of(self.node).clone();
        pool.submit(move || {
            let span = self.span.clone();
            span.in_scope(|| self.run());
        });
    }

    fn run(mut self) {
        match catch_panic(|| self.step()) {
            Ok(Step::Done(built)) => self.end(Ok(built)),
            Ok(Step::Compiled(built, took, lock)) => {
                self.end(Ok(built.clone()));
                self.save(self.node, &self.recipe, &built, took);
                // Now those who wait for it find the program.
                drop(lock);
            }
            Ok(Step::Wait(pause)) => self.submit_after(pause),
            Ok(Step::Gather) => self.submit_with_objects(),
            Ok(Step::Translate) => self.submit_translated(),
            Err(error) => self.end(Err(error)),
        }
    }

    fn submit_after(self, pause: Duration) {
        let host = self.graph.host().clone();
        host.spawn(async move {
            async_io::Timer::after(pause).await;
            self.submit();
        });
    }

    /// Has the objects built, all at once, and goes on when they are there. No lock is held
    /// meanwhile: they have locks of their own, and two processes could wait for each other.
    fn submit_with_objects(mut self) {
        let ask = |object: Recipe| {
            let name = object.image_in_words();
            let answer = self.graph.ask_for_object(object);
            async { answer.landed().await.map_err(|error| error.within(name)) }
        };
        let objects: Vec<_> = self.recipe.objects().map(ask).collect();
        let host = self.graph.host().clone();
        host.spawn(async move {
            match try_join_all(objects).await {
                Ok(objects) => {
                    self.objects = Some(objects);
                    self.submit();
                }
                Err(error) => self.end(Err(error)),
            }
        });
    }

    /// Has the images translated, all at once, and goes on with what they become.
    fn submit_translated(mut self) {
        let device = self.recipe.device();
        let is_only = self.recipe.images().count() == 1;
        let ask = |(image, options): (&Image, &str)| {
            let name = (!is_only).then(|| describe(image));
            let translated = self.graph.spirv_of(image, options, device);
            async {
                translated.await.map_err(|error| match name {
                    Some(name) => error.within(name),
                    None => error,
                })
            }
        };
        let images: Vec<_> = self.recipe.images().map(ask).collect();
        let host = self.graph.host().clone();
        host.spawn(async move {
            let images = try_join_all(images).await;
            match images.and_then(|images| self.graph.translated(&self.recipe, images)) {
                Ok(recipe) => {
                    self.texts = Some(self.graph.parts(&self.recipe));
                    self.key = self.graph.key(&recipe);
                    self.recipe = recipe;
                    self.submit();
                }
                Err(error) => {
                    let name = &self.graph.device(device).name;
                    let why =
                        format!("`{name}` takes no OpenCL C, and a translation to SPIR-V fails");
                    self.end(Err(error.within(why)));
                }
            }
        });
    }

    fn step(&mut self) -> Result<Step> {
        if self.recipe.way() == Way::Front {
            return Ok(Step::Translate);
        }
        let graph = self.graph.clone();
        let disk = graph.disk().filter(|_| self.recipe.is_stored());
        if let Some(disk) = disk
            && let Some(built) = self.load(disk)?
        {
            return Ok(Step::Done(built));
        }
        let links_here = self.recipe.way().is_link() && !graph.has_child_compile(&self.recipe);
        if links_here && self.objects.is_none() {
            return Ok(Step::Gather);
        }
        let Some(disk) = disk else { return self.compile().map(Step::Done) };
        let lock = match disk.turn(&self.key, &mut self.waiting) {
            Turn::Wait(pause) => return Ok(Step::Wait(pause)),
            Turn::Build(lock) => lock,
        };
        // Another process may have built it between the look and the lock. What this driver has
        // refused just now, it would refuse again.
        if matches!(self.miss, Some(Miss::Absent))
            && let Some(built) = self.load(disk)?
        {
            return Ok(Step::Done(built));
        }
        let start = Instant::now();
        let built = self.compile()?;
        Ok(Step::Compiled(built, start.elapsed(), lock))
    }

    fn load(&mut self, disk: &Disk) -> Result<Option<Arc<Built>>> {
        let address = self.graph.address(&self.recipe, self.key);
        let slot = self.graph.slot(&self.recipe);
        let counters = self.graph.counters();
        let kind = self.recipe.kind();
        let parts = || self.parts(&self.recipe);
        match self.with_retries(|| disk.load(&address, slot, kind, parts))? {
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

    fn compile(&self) -> Outcome {
        let outcome = if self.graph.has_child_compile(&self.recipe) {
            // A child that ran out of memory would again, and this process might go with it.
            self.try_compile()
        } else {
            self.with_retries(|| self.try_compile())
        };
        outcome.map_err(|error| self.recipe.explain(error))
    }

    fn try_compile(&self) -> Outcome {
        match &self.objects {
            Some(objects) => self.link(objects),
            None if self.recipe.way().is_link() => self.link_in_child(),
            None => self.compile_images(&self.recipe, self.key),
        }
    }

    /// Has the driver compile what needs no linker of its own.
    fn compile_images(&self, recipe: &Recipe, key: BuildKey) -> Outcome {
        if let Some(translation) = recipe.translation() {
            self.graph.counters().translations.add_one();
            let translated = translation.run(recipe.image().code())?;
            return Ok(self.built(recipe, key, SpirV::program(translated.image, translated.log)));
        }
        recipe.with_source(|source| {
            self.check(source)?;
            let compiles = &self.graph.counters().compiles;
            if self.graph.has_child_compile(recipe) {
                compiles.add_one();
                return self.in_child(Order::Build(source));
            }
            let device = self.graph.slot(recipe).open()?;
            compiles.add_one();
            let native = match recipe.kind() {
                NodeKind::Object => device.compile(source),
                NodeKind::Program | NodeKind::SpirV => device.build(source),
            };
            Ok(self.built(recipe, key, native?))
        })
    }

    /// What the device cannot run, its compiler need not see.
    fn check(&self, source: &Source<'_>) -> Result<()> {
        if source.format == ImageFormat::SpirV {
            capabilities::check(source.code, self.graph.slot(&self.recipe).handle())?;
        }
        Ok(())
    }

    fn link(&self, objects: &[Arc<Built>]) -> Outcome {
        let device = self.graph.slot(&self.recipe).open()?;
        let counters = self.graph.counters();
        let link = |objects: &[Arc<Built>]| {
            counters.links.add_one();
            let objects: Vec<_> = objects.iter().map(|object| object.native()).collect();
            device.link(&objects)
        };
        let is_stored = |object: &Arc<Built>| object.origin() == Origin::Disk;
        let native = match link(objects) {
            // An object of the disk may not be what it was stored as: drivers hardly look.
            Err(error)
                if error.kind() == ErrorKind::BuildFailed && objects.iter().any(is_stored) =>
            {
                let renew = |(recipe, object): (Recipe, &Arc<Built>)| {
                    if is_stored(object) { self.renew(&recipe) } else { Ok(Arc::clone(object)) }
                };
                let objects: Vec<_> =
                    self.recipe.objects().zip(objects).map(renew).collect::<Result<_>>()?;
                let native = link(&objects)?;
                tracing::debug!(%error, "a stored object did not serve");
                counters.disk_refused.add_one();
                native
            }
            linked => linked?,
        };
        Ok(self.built(&self.recipe, self.key, native))
    }

    fn link_in_child(&self) -> Outcome {
        let counters = self.graph.counters();
        self.recipe.with_sources(|sources| {
            sources.iter().try_for_each(|source| self.check(source))?;
            counters.compiles.add(sources.len() as u64);
            counters.links.add_one();
            self.in_child(Order::Link(sources))
        })
    }

    /// Has a child process make the program, and loads what it made as if from the disk.
    fn in_child(&self, order: Order<'_>) -> Outcome {
        self.graph.counters().build_children.add_one();
        let made = self.graph.children().run(&self.graph.target(&self.recipe), order)?;
        let device = self.graph.slot(&self.recipe).open()?;
        let code = match order {
            // The child has tried it.
            Order::Build(source) if source.format == ImageFormat::Native => source.code,
            _ => &made.binary,
        };
        let source = Source { format: ImageFormat::Native, code, options: "", constants: &[] };
        let native = self
            .with_retries(|| device.build(&source))
            .map_err(|error| error.within("the program that a build child made"))?;
        if !has_kernels(&*native, &made.kernels) {
            let message = "the driver finds other kernels in the program than the build child told";
            return Err(Error::new(ErrorKind::BuildFailed, message).with_log(made.log));
        }
        let by_child = |kernel: &str| parameters(&made.kernels, kernel);
        Ok(self.built_with(&self.recipe, self.key, native, &made.log, by_child))
    }

    /// Compiles an object again, and puts it in the place of the one there was, in memory and on disk.
    fn renew(&self, recipe: &Recipe) -> Outcome {
        let start = Instant::now();
        let key = self.graph.key(recipe);
        let built = self.compile_images(recipe, key)?;
        let node = self.graph.node(recipe, key);
        self.graph.keep(node, Ok(Arc::clone(&built)));
        self.save(node, recipe, &built, start.elapsed());
        Ok(built)
    }

    fn built(&self, recipe: &Recipe, key: BuildKey, native: Arc<dyn Program>) -> Arc<Built> {
        let build_log = native.build_log().to_owned();
        self.built_with(recipe, key, native, &build_log, |_| None)
    }

    /// With what the compiler told that made it, if that is not known of the program itself.
    fn built_with(
        &self,
        recipe: &Recipe,
        key: BuildKey,
        native: Arc<dyn Program>,
        build_log: &str,
        compiled: impl Fn(&str) -> Option<Vec<Parameter>>,
    ) -> Arc<Built> {
        // A driver that does not tell the size of its binary must not make the program weightless.
        let size = native.binary_size().unwrap_or_else(|| recipe.code_len());
        let parts = self.parts(recipe);
        let teller = recipe.teller();
        let told = Told { origin: Origin::Compiled, build_log, size, parts, teller };
        let parameters = |kernel: &str| {
            recipe.parameters(kernel).map(<[_]>::to_vec).or_else(|| compiled(kernel))
        };
        let device = self.graph.slot(recipe).handle().clone();
        Arc::new(Built::new(native, device, key, told, parameters))
    }

    /// What is linked to the program of a recipe, as whoever asked knows it.
    fn parts(&self, recipe: &Recipe) -> Box<[Part]> {
        self.texts.clone().unwrap_or_else(|| self.graph.parts(recipe))
    }

    /// Calls `attempt`, with further tries where the first ran out of resources.
    fn with_retries<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        for pause in PAUSES {
            match attempt() {
                Err(error) if error.kind() == ErrorKind::OutOfResources => {
                    let dropped = self.graph.drop_idle_programs();
                    tracing::debug!(%error, dropped, "out of resources, trying again");
                    self.graph.counters().build_retries.add_one();
                    std::thread::sleep(pause);
                }
                outcome => return outcome,
            }
        }
        attempt()
    }

    fn save(&self, node: NodeId, recipe: &Recipe, built: &Arc<Built>, took: Duration) {
        let saved = catch_panic(|| {
            let Some(disk) = self.graph.disk() else { return Ok(()) };
            let address = self.graph.address(recipe, built.key());
            let fields = self.graph.key_fields(recipe);
            let tools: Vec<_> = recipe.translation().into_iter().flat_map(|t| t.tools()).collect();
            if let Some(bytes) = disk.save(&address, built, fields, &tools, took) {
                self.graph.reweigh(node, built, bytes);
            }
            Ok(())
        });
        if let Err(error) = saved {
            tracing::error!(%error, "a program could not be stored");
        }
    }

    fn end(&mut self, outcome: Outcome) {
        let Some(lander) = self.lander.take() else { return };
        let took = self.start.elapsed();
        // An object's failure is that of every program that needs it.
        if self.recipe.kind() == NodeKind::Program {
            self.graph.count(&outcome);
        }
        if let Ok(built) = &outcome {
            built.set_recipe(&self.recipe);
            if self.recipe.is_untrusted() {
                built.distrust();
            }
        }
        self.graph.publish(self.node, &outcome);
        let told = match &outcome {
            Ok(built) if built.origin() == Origin::Disk => "disk",
            Ok(_) => "compiled",
            Err(_) => "failed",
        };
        self.span.record("elapsed_ms", took.as_secs_f64() * 1e3);
        match &outcome {
            Ok(_) => self.span.record("outcome", told),
            Err(error) => self.span.record("outcome", display(error.kind())),
        };
        lander.land(outcome);
        let miss = self.miss.as_ref().map(|miss| match miss {
            Miss::Absent => "absent",
            Miss::Unusable(reason) => reason,
        });
        self.graph.trace(&self.recipe, self.key, told, miss, Some(took));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end(Err(no_thread()));
    }
}
