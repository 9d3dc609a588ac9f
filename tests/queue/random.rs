//! Random command DAGs give the same bytes as running the commands one after another in the order of
//! submission: on the simulated device, whose native queues run concurrently, and on every real device. Some of
//! the launches are in fusion scopes, which other commands sometimes abort.

#![allow(clippy::print_stderr, reason = "the log shows what was covered")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ops::Range;

use futures::executor::block_on;
use kiln::memory::GridPart;
use kiln::simulated::Simulator;
use kiln::{Buffer, Event, FusionMode, Kernel, Queue, Runtime};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestError, TestRunner};
use support::simulation::{KERNELS, blend, with_kernels};
use support::tier;

const BUFFERS: usize = 4;

/// Number of buffers that are in memory of host and device.
const HOST_BUFFERS: usize = 2;
const QUEUES: usize = 3;
const SCOPES: usize = 2;

/// Number of units in a buffer, and maximum length of a slice. Slices of kernels' arguments begin at multiples
/// of a unit.
const UNITS: usize = 8;

/// A part of a buffer, in units.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slice {
    buffer: usize,
    units: Range<usize>,
}

/// Rectangle of a buffer as a grid whose rows are units.
#[derive(Clone, Debug)]
struct Rectangle {
    buffer: usize,
    /// Columns, in eighths of a unit.
    columns: Range<usize>,
    rows: Range<usize>,
}

#[derive(Clone, Debug)]
enum Action {
    /// Transfers need no alignment: `cut` elements are left out at both ends.
    Write {
        to: Slice,
        cut: usize,
        seed: u32,
    },
    Fill {
        to: Slice,
        cut: usize,
        value: u32,
    },
    Read {
        from: Slice,
        cut: usize,
    },
    /// Copies a buffer, or a part of one, to as many elements of another.
    Copy {
        from: Slice,
        to: Slice,
    },
    WriteRectangle {
        to: Rectangle,
        seed: u32,
    },
    ReadRectangle {
        from: Rectangle,
    },
    /// Copies a rectangle to one of the same size.
    CopyRectangle {
        from: Rectangle,
        to: Rectangle,
    },
    /// Maps a part of a host buffer for a task, which reads it, and writes it for a seed.
    Map {
        of: Slice,
        cut: usize,
        seed: Option<u32>,
    },
    Add {
        a: Slice,
        b: Slice,
        c: Slice,
        write_only: bool,
    },
    Scale {
        factor: u32,
        x: Slice,
    },
    Blend {
        a: Slice,
        b: Slice,
        c: Slice,
        d: Slice,
        e: Slice,
    },
    Host {
        gated: bool,
    },
    Marker,
    /// Ends a fusion scope; the next launches belong to a new one.
    Scope {
        scope: usize,
        complete: bool,
    },
}

#[derive(Clone, Debug)]
struct Step {
    action: Action,
    queue: usize,
    /// For launches: number of steps back to a command to wait for, if that has an event.
    after: Option<usize>,
    /// For launches: whether it waits for a host future, which completes late.
    gated: bool,
    /// For launches: the fusion scope to which it is submitted.
    scope: Option<usize>,
}

#[derive(Clone, Debug)]
struct Plan {
    steps: Vec<Step>,
    /// Index of the runtime, each of which has a limit of its own on commands in flight.
    runtime: usize,
}

fn slices() -> impl Strategy<Value = Slice> {
    (0..BUFFERS, 0..UNITS, 1..=UNITS).prop_map(|(buffer, start, units)| Slice {
        buffer,
        units: start..(start + units).min(UNITS),
    })
}

fn rectangles() -> impl Strategy<Value = Rectangle> {
    let range = || (0..8usize, 1..=8usize).prop_map(|(at, len)| at..(at + len).min(8));
    (0..BUFFERS, range(), range()).prop_map(|(buffer, columns, rows)| Rectangle {
        buffer,
        columns,
        rows,
    })
}

/// Slices of `units` units, which are equal or do not overlap.
fn blocks(units: usize) -> impl Strategy<Value = Slice> {
    (0..BUFFERS, 0..UNITS / units).prop_map(move |(buffer, block)| Slice {
        buffer,
        units: block * units..(block + 1) * units,
    })
}

/// Launches with arguments from `slices`.
fn launches<S: Strategy<Value = Slice> + 'static>(
    slices: impl Fn() -> S,
) -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (slices(), slices(), slices(), any::<bool>())
            .prop_map(|(a, b, c, write_only)| Action::Add { a, b, c, write_only }),
        2 => (slices(), 2..9u32).prop_map(|(x, factor)| Action::Scale { factor, x }),
        2 => (slices(), slices(), slices(), slices(), slices())
            .prop_map(|(a, b, c, d, e)| Action::Blend { a, b, c, d, e }),
    ]
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (slices(), 0..3usize, any::<u32>())
            .prop_map(|(to, cut, seed)| Action::Write { to, cut, seed }),
        2 => (slices(), 0..3usize, any::<u32>())
            .prop_map(|(to, cut, value)| Action::Fill { to, cut, value }),
        3 => (slices(), 0..3usize).prop_map(|(from, cut)| Action::Read { from, cut }),
        3 => (slices(), slices()).prop_map(|(from, to)| Action::Copy { from, to }),
        2 => (slices(), 0..3usize, any::<Option<u32>>())
            .prop_map(|(of, cut, seed)| Action::Map { of, cut, seed }),
        1 => (rectangles(), any::<u32>())
            .prop_map(|(to, seed)| Action::WriteRectangle { to, seed }),
        1 => rectangles().prop_map(|from| Action::ReadRectangle { from }),
        2 => (rectangles(), rectangles())
            .prop_map(|(from, to)| Action::CopyRectangle { from, to }),
        7 => launches(slices),
        1 => any::<bool>().prop_map(|gated| Action::Host { gated }),
        1 => Just(Action::Marker),
        2 => (0..SCOPES, prop::bool::weighted(0.8))
            .prop_map(|(scope, complete)| Action::Scope { scope, complete }),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let after = prop::option::weighted(0.1, 1..8usize);
    let scope = prop::option::weighted(0.5, 0..SCOPES);
    let step = (actions(), 0..QUEUES, after, prop::bool::weighted(0.05), scope);
    step.prop_map(|(action, queue, after, gated, scope)| Step {
        action,
        queue,
        after,
        gated,
        scope,
    })
}

/// A fusion scope with launches of one size, most of which can become one kernel. Scopes of single steps rarely
/// can.
fn chains() -> impl Strategy<Value = Vec<Step>> {
    let launches = prop::sample::select(vec![1, 2, 4, UNITS])
        .prop_flat_map(|units| prop::collection::vec(launches(move || blocks(units)), 2..5));
    (launches, 0..SCOPES, 0..QUEUES).prop_map(|(launches, scope, queue)| {
        let ends = || Action::Scope { scope, complete: true };
        let actions = [ends()].into_iter().chain(launches).chain([ends()]);
        let step = |action| Step { action, queue, after: None, gated: false, scope: Some(scope) };
        actions.map(step).collect()
    })
}

fn plans(runtimes: usize) -> impl Strategy<Value = Plan> {
    let steps = prop_oneof![32 => steps().prop_map(|step| vec![step]), 1 => chains()];
    (prop::collection::vec(steps, 1..24), 0..runtimes)
        .prop_map(|(steps, runtime)| Plan { steps: steps.concat(), runtime })
}

/// Slices in elements, given the number of elements in a unit.
impl Slice {
    fn elements(&self, unit: usize) -> Range<usize> {
        self.units.start * unit..self.units.end * unit
    }

    fn cut(&self, unit: usize, cut: usize) -> Range<usize> {
        let Range { start, end } = self.elements(unit);
        start + cut..end - cut
    }

    /// Returns the first `len` units.
    fn first(&self, len: usize) -> Self {
        Self { buffer: self.buffer, units: self.units.start..self.units.start + len }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.buffer == other.buffer
            && self.units.start < other.units.end
            && other.units.start < self.units.end
    }
}

impl Rectangle {
    /// Returns the positions of the elements, row by row.
    fn positions(&self, unit: usize) -> impl Iterator<Item = usize> + use<> {
        let columns = self.columns.start * unit / 8..self.columns.end * unit / 8;
        self.rows
            .clone()
            .flat_map(move |row| columns.clone().map(move |column| row * unit + column))
    }

    /// Returns the first `columns` columns and `rows` rows.
    fn first(&self, columns: usize, rows: usize) -> Self {
        let Self { buffer, columns: Range { start: x, .. }, rows: Range { start: y, .. } } = *self;
        Self { buffer, columns: x..x + columns, rows: y..y + rows }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let meet =
            |one: &Range<usize>, two: &Range<usize>| one.start < two.end && two.start < one.end;
        self.buffer == other.buffer
            && meet(&self.columns, &other.columns)
            && meet(&self.rows, &other.rows)
    }
}

/// Cuts rectangles to the sizes that both have.
fn even_rectangles([one, two]: [&Rectangle; 2]) -> [Rectangle; 2] {
    let columns = one.columns.len().min(two.columns.len());
    let rows = one.rows.len().min(two.rows.len());
    [one, two].map(|rectangle| rectangle.first(columns, rows))
}

/// Cuts slices to the length of the shortest.
fn even<const N: usize>(slices: [&Slice; N]) -> [Slice; N] {
    let len = slices.iter().map(|slice| slice.units.len()).min().expect("there are some");
    slices.map(|slice| slice.first(len))
}

/// Returns the elements that are written for a seed.
fn noise(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed ^ i).wrapping_mul(0x9e37_79b9).rotate_left(i % 32)).collect()
}

/// Maps a buffer in a task, which writes elements if some are given. The task returns whether it found the
/// expected elements.
fn map(
    queue: &Queue,
    buffer: &Buffer<u32>,
    expected: Vec<u32>,
    written: Option<Vec<u32>>,
) -> smol::Task<kiln::Result<bool>> {
    let Some(written) = written else {
        let mapped = queue.map(buffer);
        return smol::spawn(async move { Ok(*mapped.await? == expected[..]) });
    };
    let mapped = queue.map_mut(buffer);
    smol::spawn(async move {
        let mut guard = mapped.await?;
        let is_equal = *guard == expected[..];
        smol::future::yield_now().await; // the guard exists while other tasks run
        guard.copy_from_slice(&written);
        Ok(is_equal)
    })
}

/// A device with the objects that all its cases use.
struct Bench {
    rt: Runtime,
    queues: Vec<Queue>,
    buffers: Vec<Buffer<u32>>,
    /// Number of elements in a unit.
    unit: usize,
    add: Kernel,
    scale: Kernel,
    blend: Kernel,
}

impl Bench {
    async fn new(rt: Runtime) -> Self {
        let unit = rt.device().limits.slice_alignment.max(32) / size_of::<u32>();
        let kernels = [("add", KERNELS), ("scale", KERNELS), ("blend", KERNELS)];
        let [add, scale, blend] = kernels.map(|(name, source)| support::kernel(&rt, source, name));
        Self {
            queues: (0..QUEUES).map(|_| rt.queue()).collect(),
            buffers: (0..BUFFERS)
                .map(|index| match index {
                    0..HOST_BUFFERS => rt.host_buffer(UNITS * unit),
                    _ => rt.buffer(UNITS * unit),
                })
                .map(|buffer| buffer.expect("memory"))
                .collect(),
            unit,
            add: add.await,
            scale: scale.await,
            blend: blend.await,
            rt,
        }
    }

    fn slice(&self, slice: &Slice) -> Buffer<u32> {
        self.part(slice.buffer, slice.elements(self.unit))
    }

    fn rectangle(&self, rectangle: &Rectangle) -> GridPart<u32> {
        let Rectangle { buffer, columns, rows } = rectangle;
        let grid = self.buffers[*buffer].grid([self.unit, UNITS]).expect("it fits");
        let [x, width] = [columns.start, columns.len()].map(|eighths| eighths * self.unit / 8);
        grid.part([x, rows.start], [width, rows.len()]).expect("it is inside")
    }

    fn part(&self, buffer: usize, elements: Range<usize>) -> Buffer<u32> {
        self.buffers[buffer].slice(elements).expect("it is inside")
    }

    /// Runs a plan and the model of it. Compares every read, and all buffers in the end.
    async fn check(&self, plan: &Plan) -> Result<(), TestCaseError> {
        let unit = self.unit;
        let mut model = vec![vec![0u32; UNITS * unit]; BUFFERS];
        for (index, buffer) in self.buffers.iter().enumerate() {
            let elements = noise(index as u32, UNITS * unit);
            model[index].clone_from(&elements);
            let _ = self.queues[0].write(buffer, elements).expect("it fits");
        }
        let (open, gate) = async_channel::bounded::<()>(1);
        let opens_late = || {
            let gate = gate.clone();
            // The channel is closed when the gate opens.
            async move {
                let _ = gate.recv().await;
            }
        };
        let mut events: Vec<Option<Event>> = Vec::new();
        let (mut reads, mut mappings) = (Vec::new(), Vec::new());
        let mut scopes = [(); SCOPES].map(|()| self.queues[0].start_fusion());
        for (number, step) in plan.steps.iter().enumerate() {
            let queue = &self.queues[step.queue];
            let launch = match &step.action {
                Action::Write { to, cut, seed } => {
                    let range = to.cut(unit, *cut);
                    let elements = noise(*seed, range.len());
                    model[to.buffer][range.clone()].copy_from_slice(&elements);
                    let to = self.part(to.buffer, range);
                    events.push(Some(queue.write(&to, elements).expect("it fits")));
                    continue;
                }
                Action::Fill { to, cut, value } => {
                    let range = to.cut(unit, *cut);
                    model[to.buffer][range.clone()].fill(*value);
                    let to = self.part(to.buffer, range);
                    events.push(Some(queue.fill(&to, *value).expect("it fits")));
                    continue;
                }
                Action::Read { from, cut } => {
                    let range = from.cut(unit, *cut);
                    let expected = model[from.buffer][range.clone()].to_vec();
                    reads.push((number, queue.read(&self.part(from.buffer, range)), expected));
                    events.push(None);
                    continue;
                }
                Action::Copy { from, to } => {
                    let [from, to] = even([from, to]);
                    if from.overlaps(&to) {
                        events.push(None);
                        continue;
                    }
                    let copied = model[from.buffer][from.elements(unit)].to_vec();
                    model[to.buffer][to.elements(unit)].copy_from_slice(&copied);
                    let copy = queue.copy(&self.slice(&from), &self.slice(&to));
                    events.push(Some(copy.expect("they fit")));
                    continue;
                }
                Action::WriteRectangle { to, seed } => {
                    let part = self.rectangle(to);
                    let elements = noise(*seed, part.len());
                    for (at, element) in to.positions(unit).zip(&elements) {
                        model[to.buffer][at] = *element;
                    }
                    events.push(Some(queue.write(&part, elements).expect("it fits")));
                    continue;
                }
                Action::ReadRectangle { from } => {
                    let expected = from.positions(unit).map(|at| model[from.buffer][at]).collect();
                    reads.push((number, queue.read(&self.rectangle(from)), expected));
                    events.push(None);
                    continue;
                }
                Action::CopyRectangle { from, to } => {
                    let [from, to] = even_rectangles([from, to]);
                    if from.overlaps(&to) {
                        events.push(None);
                        continue;
                    }
                    for (source, target) in from.positions(unit).zip(to.positions(unit)) {
                        model[to.buffer][target] = model[from.buffer][source];
                    }
                    let copy = queue.copy(&self.rectangle(&from), &self.rectangle(&to));
                    events.push(Some(copy.expect("they fit")));
                    continue;
                }
                Action::Map { of, cut, seed } => {
                    events.push(None);
                    if of.buffer >= HOST_BUFFERS {
                        continue;
                    }
                    let range = of.cut(unit, *cut);
                    let part = self.part(of.buffer, range.clone());
                    let elements = &mut model[of.buffer][range];
                    let written = seed.map(|seed| noise(seed, elements.len()));
                    mappings.push((number, map(queue, &part, elements.to_vec(), written.clone())));
                    if let Some(written) = written {
                        elements.copy_from_slice(&written);
                    }
                    continue;
                }
                Action::Host { gated } => {
                    let task = opens_late();
                    let gated = *gated;
                    let task = queue.host_task(async move {
                        if gated {
                            task.await;
                        }
                    });
                    events.push(Some(task.expect("it is taken")));
                    continue;
                }
                Action::Marker => {
                    events.push(Some(queue.marker().expect("it is taken")));
                    continue;
                }
                Action::Scope { scope, complete } => {
                    let begun = std::mem::replace(&mut scopes[*scope], queue.start_fusion());
                    if *complete {
                        drop(begun.complete());
                    }
                    events.push(None);
                    continue;
                }
                Action::Add { a, b, c, write_only } => {
                    let [a, b, c] = even([a, b, c]);
                    // OpenCL does not define what a kernel reads from memory that it writes through another
                    // argument.
                    if c.overlaps(&a) || c.overlaps(&b) {
                        events.push(None);
                        continue;
                    }
                    let sum: Vec<_> = model[a.buffer][a.elements(unit)]
                        .iter()
                        .zip(&model[b.buffer][b.elements(unit)])
                        .map(|(a, b)| a.wrapping_add(*b))
                        .collect();
                    model[c.buffer][c.elements(unit)].copy_from_slice(&sum);
                    let launch = self.add.launch(sum.len());
                    let (a, b, c) = (self.slice(&a), self.slice(&b), self.slice(&c));
                    if *write_only {
                        launch.args((&a, &b, c.write_only()))
                    } else {
                        launch.args((&a, &b, &c))
                    }
                }
                Action::Scale { factor, x } => {
                    let range = x.elements(unit);
                    for x in &mut model[x.buffer][range.clone()] {
                        *x = x.wrapping_mul(*factor);
                    }
                    self.scale.launch(range.len()).args((*factor, &self.slice(x)))
                }
                Action::Blend { a, b, c, d, e } => {
                    let slices = even([a, b, c, d, e]);
                    if slices[..4].iter().any(|slice| slice.overlaps(&slices[4])) {
                        events.push(None);
                        continue;
                    }
                    let old = slices.each_ref().map(|s| model[s.buffer][s.elements(unit)].to_vec());
                    let target = &mut model[slices[4].buffer][slices[4].elements(unit)];
                    for (i, x) in target.iter_mut().enumerate() {
                        *x = blend(old[0][i], old[1][i], old[2][i], old[3][i], old[4][i]);
                    }
                    let len = target.len();
                    let [a, b, c, d, e] = slices.each_ref().map(|slice| self.slice(slice));
                    self.blend.launch(len).args((&a, &b, &c, &d, &e))
                }
            };
            let launch = if step.gated { launch.after_future(opens_late()) } else { launch };
            let before =
                step.after.and_then(|back| events.get(number.checked_sub(back)?)?.as_ref());
            let launch = match before {
                Some(event) => launch.after(event),
                None => launch,
            };
            let event = match step.scope {
                Some(scope) => scopes[scope].submit(launch),
                None => queue.submit(launch),
            };
            events.push(Some(event.expect("the arguments fit")));
        }
        drop(scopes);
        open.close();
        for (number, read, expected) in reads {
            let read = read.await.map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert!(read == expected, "step {} read other elements", number);
        }
        for (number, mapping) in mappings {
            let is_equal = mapping.await.map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert!(is_equal, "step {} mapped other elements", number);
        }
        for event in events.into_iter().flatten() {
            event.await.map_err(|error| TestCaseError::fail(error.to_string()))?;
        }
        for (index, buffer) in self.buffers.iter().enumerate() {
            let read = self.queues[0].read(buffer).await;
            let read = read.map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert!(read == model[index], "buffer {} ends with other elements", index);
        }
        Ok(())
    }
}

/// Runs `cases` random plans, each on one of the runtimes. A failure is shrunk.
fn check_plans(benches: &[Bench], cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let run = Cell::new(0);
    let result = TestRunner::new(config).run(&plans(benches.len()), |plan| {
        run.set(run.get() + 1);
        // Runs inside another executor, where `futures` would refuse to block.
        smol::block_on(benches[plan.runtime].check(&plan))
    });
    match result {
        Ok(()) => assert!(run.get() >= cases),
        Err(TestError::Fail(reason, plan)) => panic!("{reason}\n{plan:#?}"),
        Err(error) => panic!("{error}"),
    }
    for bench in benches {
        let stats = bench.rt.stats();
        assert_eq!(stats.commands.failed, 0);
    }
}

/// Limits of commands in flight: one that has no effect, and the tightest ones.
const BOUNDS: [usize; 5] = [1024, 1, 2, 3, 8];

#[test]
fn random_plans_on_the_simulated_device_match_the_model() {
    let benches: Vec<_> = BOUNDS
        .into_iter()
        .map(|bound| {
            let builder = Runtime::builder()
                .max_in_flight(NonZeroUsize::new(bound).unwrap())
                .simulator(&with_kernels(Simulator::new()));
            block_on(async { Bench::new(builder.build().await.unwrap()).await })
        })
        .collect();
    check_plans(&benches, tier::cases("KILN_TEST_PLANS", 10_000, 3_000) as u32);
}

#[test]
fn random_plans_on_each_real_device_match_the_model() {
    support::on_all_devices_at_once(async |rt| {
        let device = rt.device().index().to_string();
        let mut benches = Vec::new();
        for bound in BOUNDS {
            let builder = support::builder().device(&device).fusion(FusionMode::Always);
            let builder = builder.max_in_flight(NonZeroUsize::new(bound).unwrap());
            benches.push(Bench::new(builder.build().await.unwrap()).await);
        }
        check_plans(&benches, 300);
        let stats: Vec<_> = benches.iter().map(|bench| bench.rt.stats()).collect();
        let fused: u64 = stats.iter().map(|stats| stats.fusion.fused).sum();
        let aborted: u64 = stats.iter().map(|stats| stats.fusion.aborted).sum();
        eprintln!("{fused} fusion scopes ran as one kernel, {aborted} were aborted");
        assert!(aborted > 0);
        // Nothing is fused without the tools that translate OpenCL C.
        assert!(fused > 0 || stats.iter().all(|stats| stats.builds.translations == 0));
    });
}
