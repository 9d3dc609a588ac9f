//! Rounds of commands whose events are dropped, and of reads whose elements are compared with a model of the
//! buffers.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use futures::future::{BoxFuture, LocalBoxFuture};
use futures::{FutureExt, TryFutureExt, TryStreamExt};
use kiln::graph::GraphScalar;
use kiln::internal::translate::spirv_of;
use kiln::{
    Buffer, Error, ErrorKind, Event, Graph, Kernel, Launch, Module, Queue, Result, Runtime,
};

use super::model::{Constants, LEN, Step, UNIT, noise, part, two};
use super::{Finding, found};

kiln::kernels! {
    pub(super) mod steps = "../../data/steps.cl";
}

/// Source of the typed kernels, for programs with other constants.
const TEXT: &str = include_str!("../../data/steps.cl");

const NAMES: [&str; 4] = ["scale", "blend", "make", "shift"];

/// Buffers of a worker. The last one is in memory that the host shares.
const BUFFERS: usize = 5;
const HOST: usize = BUFFERS - 1;

/// Bytes of a buffer that is larger than the memory that is sometimes left.
const LARGE: usize = 24 << 20;

/// Programs that a burst builds besides its own. With as many, compile processes start.
const BURST: usize = 20;

/// Constants in the SPIR-V module from which the others are made.
const MARKS: Constants = Constants { a: 0x5a17_0003, b: 0x5a17_0005 };

/// Kind of round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Launches of checked kernels.
    Checked,
    /// Launches over more work-items than there are elements, which run guarded.
    Guarded,
    Unchecked,
    Typed,
    /// Kernels from SPIR-V.
    Spirv,
    /// Kernels that a child process compiles.
    Untrusted,
    /// Fusion scopes.
    Fused,
    /// Graphs, recorded and replayed.
    Graph,
    /// Copies, fills, writes and mappings.
    Transfers,
    /// Launches besides many builds that nobody awaits.
    Burst,
}

impl Kind {
    pub(super) const ALL: [Self; 10] = [
        Self::Checked,
        Self::Guarded,
        Self::Unchecked,
        Self::Typed,
        Self::Spirv,
        Self::Untrusted,
        Self::Fused,
        Self::Graph,
        Self::Transfers,
        Self::Burst,
    ];

    /// Returns a kind; bursts are rare.
    pub(super) fn random(rng: &mut Rng) -> Self {
        let kind = Self::ALL[rng.usize(..Self::ALL.len())];
        if kind == Self::Burst && rng.u8(..4) > 0 { Self::Transfers } else { kind }
    }
}

/// Objects that all workers use.
pub(super) struct Bench {
    pub(super) rt: Runtime,
    /// Module with [`MARKS`].
    spirv: Vec<u32>,
}

impl Bench {
    pub(super) async fn new(rt: Runtime) -> Self {
        let module = spirv_of(&rt, &text(MARKS), "").await.expect("nothing is broken yet");
        let words = module.code().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        let spirv: Vec<_> = words.collect();
        assert!(spirv.contains(&MARKS.a) && spirv.contains(&MARKS.b), "they are constants");
        Self { rt, spirv }
    }

    /// Returns a SPIR-V module without running a compiler.
    fn module_of_spirv(&self, Constants { a, b }: Constants) -> Module {
        let words = self.spirv.iter().map(|word| match *word {
            mark if mark == MARKS.a => a,
            mark if mark == MARKS.b => b,
            other => other,
        });
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        Module::spirv(bytes).expect("it is a module")
    }
}

fn text(Constants { a, b }: Constants) -> Module {
    Module::opencl_c(format!("#define A {a}u\n#define B {b}u\n{TEXT}"))
}

/// Build that is awaited at the end of a round.
type PendingBuild = BoxFuture<'static, Result<()>>;

/// Kernels of a program, and the numbers that they calculate with.
struct Program {
    constants: Constants,
    kernels: Kernels,
    /// The build, if it is not awaited before its kernels are launched.
    build: Option<PendingBuild>,
}

enum Kernels {
    Named([Kernel; NAMES.len()]),
    Typed(steps::Kernels),
}

impl Kernels {
    /// Returns a launch of a step over a number of work-items.
    fn launch(&self, step: Step, buffers: &[Buffer<u32>], items: usize) -> Launch {
        let [scale, blend, make, shift] = match self {
            Self::Named(kernels) => kernels,
            Self::Typed(kernels) => {
                return match step {
                    Step::Scale { x, by } => kernels.scale(items, &buffers[x], by),
                    Step::Blend { from, to, by } => {
                        kernels.blend(items, &buffers[from], &buffers[to], by)
                    }
                    Step::Make { to, by } => kernels.make(items, buffers[to].write_only(), by),
                    Step::Shift { from, to } => {
                        kernels.shift(items, &buffers[from], buffers[to].write_only())
                    }
                };
            }
        };
        match step {
            Step::Scale { x, by } => scale.launch(items).args((&buffers[x], by)),
            Step::Blend { from, to, by } => {
                blend.launch(items).args((buffers[from].read_only(), &buffers[to], by))
            }
            Step::Make { to, by } => make.launch(items).args((buffers[to].write_only(), by)),
            Step::Shift { from, to } => {
                shift.launch(items).args((&buffers[from], buffers[to].write_only()))
            }
        }
    }
}

/// A graph that is kept for later rounds.
struct Recorded {
    graph: Graph,
    inputs: [Buffer<u32>; 2],
    by: GraphScalar<u32>,
    constants: Constants,
    steps: Vec<Step>,
}

/// Log of what a worker did in a round, for messages.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    fn push(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lock().unwrap().iter().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

/// A task that runs rounds on buffers of its own, which keep their contents from round to round.
pub(super) struct Worker<'a> {
    bench: &'a Bench,
    rng: Rng,
    queue: Queue,
    buffers: Vec<Buffer<u32>>,
    /// Contents of the buffers if all commands run.
    contents: Vec<Vec<u32>>,
    recorded: Option<Recorded>,
    /// Name of the worker, and what it did in this round, for the message of a failure.
    name: String,
    log: Log,
    /// Errors of this round.
    errors: Vec<Error>,
}

impl<'a> Worker<'a> {
    /// Creates a worker while nothing is broken.
    pub(super) fn new(bench: &'a Bench, name: String, mut rng: Rng) -> Self {
        let queue = bench.rt.queue();
        let buffer = |at| match at {
            HOST => bench.rt.host_buffer::<u32>(LEN),
            _ => bench.rt.buffer::<u32>(LEN),
        };
        let buffers: Vec<_> = (0..BUFFERS).map(|at| buffer(at).expect("there is memory")).collect();
        let contents: Vec<_> = buffers.iter().map(|_| noise(&mut rng, LEN)).collect();
        for (buffer, contents) in buffers.iter().zip(&contents) {
            drop(queue.write(buffer, contents.clone()).expect("it fits"));
        }
        let (log, errors) = (Log::default(), Vec::new());
        Self { bench, rng, queue, buffers, contents, recorded: None, name, log, errors }
    }

    /// Runs a round. Returns the errors of what failed.
    pub(super) async fn round(&mut self, kind: Kind) -> Vec<Error> {
        self.log.clear();
        self.log.push(format!("{kind:?}"));
        self.renew();
        let build = match self.work(kind).await {
            Ok(build) => build,
            Err(error) => {
                self.log.push(format!("stopped: {}", error.summary()));
                self.errors.push(error);
                None
            }
        };
        if self.rng.u8(..4) == 0 {
            self.replay();
        }
        self.read(build).await;
        std::mem::take(&mut self.errors)
    }

    /// Overwrites most buffers. The others keep what is in them, or stay lost.
    fn renew(&mut self) {
        for at in 0..BUFFERS {
            match self.rng.u8(..8) {
                0..4 => self.write(at, &(0..LEN)),
                4..6 => self.fill(at, &(0..LEN)),
                6 => {
                    let [from, _] = two(&mut self.rng, BUFFERS);
                    if from != at {
                        self.copy(from, at, &(0..LEN));
                    }
                }
                _ => {}
            }
        }
    }

    /// Submits the commands of a round. Returns the build that they wait for, if there is one.
    async fn work(&mut self, kind: Kind) -> Result<Option<PendingBuild>> {
        match kind {
            Kind::Transfers => {
                self.transfer().await?;
                return Ok(None);
            }
            Kind::Graph => {
                let program = self.program(kind).await?;
                self.record(&program).await?;
                for _ in 0..self.rng.usize(1..4) {
                    self.replay();
                }
                return Ok(program.build);
            }
            Kind::Burst => self.start_builds(),
            _ => {}
        }
        let program = self.program(kind).await?;
        if kind == Kind::Fused {
            self.fuse(&program).await;
            return Ok(program.build);
        }
        let stretch = if kind == Kind::Guarded { 2 } else { 1 };
        for _ in 0..self.rng.usize(1..6) {
            self.launch(&program, stretch);
        }
        Ok(program.build)
    }

    /// Starts builds that nobody awaits.
    fn start_builds(&mut self) {
        for _ in 0..BURST {
            let module = text(Constants::random(&mut self.rng));
            drop(self.bench.rt.build(&module).start());
        }
    }

    // ---- Programs -------------------------------------------------------------------------------

    /// Requests a program that was never built before.
    async fn program(&mut self, kind: Kind) -> Result<Program> {
        let constants = Constants::random(&mut self.rng);
        let is_checked = match kind {
            Kind::Checked | Kind::Guarded | Kind::Typed => true,
            Kind::Unchecked | Kind::Untrusted => false,
            _ => self.rng.bool(),
        };
        let is_awaited = self.rng.bool();
        self.log.push(format!("{constants:?}, checked {is_checked}, awaited {is_awaited}"));
        let module = match kind {
            Kind::Spirv => self.bench.module_of_spirv(constants),
            Kind::Typed => steps::Kernels::module()?,
            Kind::Untrusted => text(constants).untrusted(),
            _ => text(constants),
        };
        let request = match kind {
            Kind::Typed => {
                let Constants { a, b } = constants;
                self.bench.rt.build(&module).options(&format!("-D A={a}u -D B={b}u"))
            }
            _ => self.bench.rt.build(&module),
        };
        if !is_checked {
            let build = request.start();
            // SAFETY: launches of unchecked kernels have as many work-items as their buffers have elements.
            let kernel = |name: &str| unsafe { build.kernel(name) };
            let kernels = Kernels::Named(NAMES.map(kernel));
            if is_awaited {
                build.clone().await?;
            }
            let build = (!is_awaited).then(|| build.map_ok(drop).boxed());
            return Ok(Program { constants, kernels, build });
        }
        let build = request.checked().start();
        if is_awaited {
            build.clone().await?;
        }
        let kernels = match kind {
            Kind::Typed => Kernels::Typed(steps::Kernels::from_build(&build)),
            _ => Kernels::Named(NAMES.map(|name| build.kernel(name))),
        };
        let build = (!is_awaited).then(|| build.map_ok(drop).boxed());
        Ok(Program { constants, kernels, build })
    }

    /// Submits a launch of a random kernel on a part of the buffers, and drops its event.
    fn launch(&mut self, program: &Program, stretch: usize) {
        let (step, part) = (Step::random(&mut self.rng, BUFFERS), part(&mut self.rng));
        self.log.push(format!("{step:?} {part:?}"));
        let slices = self.slices(&part);
        let launch = program.kernels.launch(step, &slices, part.len() * stretch);
        if self.accepts(self.queue.submit(launch)) {
            step.apply(program.constants, &mut self.contents, &part);
        }
    }

    /// Submits launches in a fusion scope.
    async fn fuse(&mut self, program: &Program) {
        let scope = self.queue.start_fusion();
        for _ in 0..self.rng.usize(2..5) {
            let step = Step::random(&mut self.rng, BUFFERS);
            self.log.push(format!("{step:?} in a scope"));
            let launch = program.kernels.launch(step, &self.buffers, LEN);
            if self.accepts(scope.submit(launch)) {
                step.apply(program.constants, &mut self.contents, &(0..LEN));
            }
        }
        match self.rng.u8(..3) {
            0 => drop(scope.complete()),
            1 => self.errors.extend(scope.complete().await.err()),
            _ => drop(scope),
        }
    }

    // ---- Graphs ---------------------------------------------------------------------------------

    /// Records a graph with two inputs and a temporary, in place of the earlier one.
    async fn record(&mut self, Program { constants, kernels, .. }: &Program) -> Result<()> {
        let Kernels::Named([scale, ..]) = kernels else { return Ok(()) };
        let mut recorder = self.queue.record();
        let inputs = [recorder.input::<u32>(LEN)?, recorder.input::<u32>(LEN)?];
        let [first, second] = inputs.clone();
        let memory = [first, second, recorder.temporary::<u32>(LEN)?];
        let by = recorder.scalar::<u32>();
        recorder.submit(kernels.launch(Step::Make { to: 2, by: 7 }, &memory, LEN))?;
        recorder.submit(scale.launch(LEN).args((&memory[0], &by)))?;
        let count = self.rng.usize(1..5);
        let steps: Vec<_> = (0..count).map(|_| Step::random(&mut self.rng, memory.len())).collect();
        for step in &steps {
            recorder.submit(kernels.launch(*step, &memory, LEN))?;
        }
        if self.rng.bool() {
            recorder.fuse();
        }
        self.log.push(format!("recorded {steps:?}"));
        let graph = recorder.finish().await?;
        self.recorded = Some(Recorded { graph, inputs, by, constants: *constants, steps });
        Ok(())
    }

    /// Replays the graph of this or an earlier round, if there is one, and drops the event.
    fn replay(&mut self) {
        let Some(recorded) = &self.recorded else { return };
        let bound = two(&mut self.rng, BUFFERS);
        let by = self.rng.u32(..);
        let mut replay = recorded.graph.replay().set(&recorded.by, by);
        for (input, at) in recorded.inputs.iter().zip(bound) {
            replay = replay.bind(input, &self.buffers[at]);
        }
        self.log.push(format!("replay on {bound:?} with {by} of {:?}", recorded.steps));
        match replay.submit() {
            Ok(event) => drop(event),
            Err(error) => return self.errors.push(error),
        }
        let mut memory = bound.map(|at| self.contents[at].clone()).to_vec();
        memory.push(vec![0; LEN]);
        let first = [Step::Make { to: 2, by: 7 }, Step::Scale { x: 0, by }];
        for step in first.iter().chain(&recorded.steps) {
            step.apply(recorded.constants, &mut memory, &(0..LEN));
        }
        for (at, contents) in bound.into_iter().zip(memory) {
            self.contents[at] = contents;
        }
    }

    // ---- Transfers ------------------------------------------------------------------------------

    async fn transfer(&mut self) -> Result<()> {
        for _ in 0..self.rng.usize(2..8) {
            let [from, to] = two(&mut self.rng, BUFFERS);
            let part = part(&mut self.rng);
            match self.rng.u8(..4) {
                0 => self.write(to, &part),
                1 => self.fill(to, &part),
                2 => self.copy(from, to, &part),
                _ => self.change_mapped(&part).await?,
            }
        }
        if self.rng.u8(..4) == 0 {
            self.use_large_buffer().await?;
        }
        Ok(())
    }

    fn write(&mut self, to: usize, part: &Range<usize>) {
        let elements = noise(&mut self.rng, part.len());
        self.log.push(format!("write {to} {part:?}"));
        if self.accepts(self.queue.write(&self.slice(to, part), elements.clone())) {
            self.contents[to][part.clone()].copy_from_slice(&elements);
        }
    }

    fn fill(&mut self, to: usize, part: &Range<usize>) {
        let value = self.rng.u32(..);
        self.log.push(format!("fill {to} {part:?} with {value}"));
        if self.accepts(self.queue.fill(&self.slice(to, part), value)) {
            self.contents[to][part.clone()].fill(value);
        }
    }

    fn copy(&mut self, from: usize, to: usize, part: &Range<usize>) {
        self.log.push(format!("copy {from} to {to} {part:?}"));
        if self.accepts(self.queue.copy(&self.slice(from, part), &self.slice(to, part))) {
            let elements = self.contents[from][part.clone()].to_vec();
            self.contents[to][part.clone()].copy_from_slice(&elements);
        }
    }

    /// Maps a part of the host's buffer, and changes some of its elements.
    async fn change_mapped(&mut self, part: &Range<usize>) -> Result<()> {
        self.log.push(format!("map {part:?} to change it"));
        let mut mapped = self.queue.map_mut(&self.slice(HOST, part)).await?;
        self.compare(HOST, part, &mapped);
        let value = self.rng.u32(..);
        mapped[..UNIT].fill(value);
        drop(mapped);
        self.contents[HOST][part.start..part.start + UNIT].fill(value);
        Ok(())
    }

    /// Fills a buffer that needs much memory, and reads it twice.
    async fn use_large_buffer(&mut self) -> Result<()> {
        let (value, other) = (self.rng.u32(..), self.rng.u32(..));
        self.log.push(format!("a large buffer with {value} and {other}"));
        let buffer = self.bench.rt.buffer::<u32>(LARGE / size_of::<u32>())?;
        drop(self.queue.fill(&buffer, value)?);
        let middle = buffer.len() / 2;
        drop(self.queue.fill(&buffer.slice(middle..)?, other)?);
        let mut pieces = self.queue.read_pieces(&buffer, buffer.len() / 8);
        let mut start = 0;
        while let Some(piece) = pieces.try_next().await? {
            let expected = if start < middle { value } else { other };
            self.expect_all(&piece, expected);
            start += piece.len();
        }
        let all = self.queue.read(&buffer).await?;
        self.expect_all(&all[..middle], value);
        self.expect_all(&all[middle..], other);
        Ok(())
    }

    // ---- Reads ----------------------------------------------------------------------------------

    /// Reads the buffers in several ways, and compares their elements with the model. `build` is the build that
    /// was not awaited.
    async fn read(&mut self, build: Option<PendingBuild>) {
        let mut reads = Vec::<(usize, Range<usize>, LocalBoxFuture<'static, _>)>::new();
        for at in 0..BUFFERS {
            let part = part(&mut self.rng);
            let buffer = self.slice(at, &part);
            let read = match self.rng.u8(..4) {
                0 => self.queue.read_pieces(&buffer, UNIT).try_concat().boxed_local(),
                _ => self.queue.read(&buffer).boxed_local(),
            };
            reads.push((at, part, read));
        }
        let mapped = self.queue.map(&self.buffers[HOST]);
        for (at, part, read) in reads {
            match read.await {
                Ok(elements) => self.compare(at, &part, &elements),
                Err(error) => self.errors.push(error),
            }
        }
        match mapped.await {
            Ok(elements) => self.compare(HOST, &(0..LEN), &elements),
            Err(error) => self.errors.push(error),
        }
        if let Some(build) = build {
            self.log.push("waits for the build".to_owned());
            self.errors.extend(build.await.err());
        }
    }

    /// Compares elements that were read without an error with those of the model.
    fn compare(&self, at: usize, part: &Range<usize>, elements: &[u32]) {
        let expected = &self.contents[at][part.clone()];
        if elements == expected {
            return;
        }
        let differ = |(found, expected): (&u32, &u32)| found != expected;
        let first = elements.iter().zip(expected).position(differ).unwrap_or_default();
        let count = elements.iter().zip(expected).filter(|(a, b)| a != b).count();
        self.fail(&format!(
            "buffer {at}, elements {part:?}: {count} differ, the first at {first}: {:?} in place of {:?}",
            elements.get(first),
            expected.get(first)
        ));
    }

    fn expect_all(&self, elements: &[u32], value: u32) {
        if let Some(other) = elements.iter().find(|element| **element != value) {
            self.fail(&format!("a large buffer has {other} in place of {value}"));
        }
    }

    fn fail(&self, what: &str) -> ! {
        let errors: Vec<_> = self.errors.iter().map(Error::summary).collect();
        found(Finding::Silent, &format!("{}: {what}\n{}{errors:#?}", self.name, self.log))
    }

    // ---- Helpers --------------------------------------------------------------------------------

    /// Returns what the worker does in the current round.
    pub(super) fn log(&self) -> Log {
        self.log.clone()
    }

    /// Returns a generator for what the worker is to do next.
    pub(super) fn fork_rng(&mut self) -> Rng {
        self.rng.fork()
    }

    /// Ends the process if nothing that is ever broken causes an error of this kind.
    pub(super) fn expect_plausible(&self, error: &Error) {
        let is_plausible = matches!(
            error.kind(),
            ErrorKind::OutOfResources
                | ErrorKind::Io
                | ErrorKind::Driver
                | ErrorKind::BuildFailed
                | ErrorKind::Unsupported
                | ErrorKind::InvalidModule
                | ErrorKind::Configuration
        );
        if !is_plausible {
            found(Finding::WrongError, &format!("{}: {error:?}\n{}", self.name, self.log));
        }
    }

    fn slice(&self, at: usize, part: &Range<usize>) -> Buffer<u32> {
        self.buffers[at].slice(part.clone()).expect("it fits")
    }

    fn slices(&self, part: &Range<usize>) -> Vec<Buffer<u32>> {
        (0..BUFFERS).map(|at| self.slice(at, part)).collect()
    }

    /// Drops the event of a command. Returns whether the command was submitted.
    fn accepts(&mut self, submitted: Result<Event>) -> bool {
        let error = submitted.map(drop).err();
        if let Some(error) = &error {
            self.log.push(format!("not submitted: {}", error.summary()));
        }
        let is_submitted = error.is_none();
        self.errors.extend(error);
        is_submitted
    }
}
