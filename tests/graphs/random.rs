//! Random graphs, replayed with changing buffers and values among other commands, leave the same bytes as the same
//! commands submitted one by one.
//!
//! `KILN_GRAPH_CASES` sets the number of graphs for each device, and `KILN_SEED` the first seed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::ops::Range;

use fastrand::Rng;
use futures::executor::block_on;
use kiln::graph::GraphScalar;
use kiln::simulated::Simulator;
use kiln::{Buffer, FusionMode, Graph, Kernel, Queue, Recorder, Runtime};
use support::simulation;

/// Elements of each buffer.
const LEN: usize = 4096;

/// Elements of a part. Slices begin at multiples of it, which every device takes as arguments.
const UNIT: usize = 1024;

const INPUTS: usize = 3;
const TEMPORARIES: usize = 3;
const FIXED: usize = 2;

/// Values that replays set.
const VALUES: usize = 2;

const SOURCE: &str = "
    kernel void blend(global const uint *from, global uint *to, uint by) {
        size_t i = get_global_id(0);
        to[i] = to[i] * 3 + from[i] * by + 1;
    }
    kernel void store(global const uint *from, global uint *to, uint by) {
        size_t i = get_global_id(0);
        to[i] = from[i] ^ by;
    }";

/// Memory of a command, and a range of its elements.
#[derive(Clone, Debug)]
struct Part {
    memory: Memory,
    elements: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Input(usize),
    Temporary(usize),
    Fixed(usize),
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Fixed(u32),
    Set(usize),
}

#[derive(Clone, Debug)]
enum Step {
    Mix(Part, Part, Value),
    /// Launch that overwrites its target.
    Store(Part, Part, Value),
    Copy(Part, Part),
    Fill(Part, u32),
}

fn part(rng: &mut Rng, units: usize) -> Part {
    let memory = match rng.usize(..INPUTS + TEMPORARIES + FIXED) {
        at @ ..INPUTS => Memory::Input(at),
        at if at < INPUTS + TEMPORARIES => Memory::Temporary(at - INPUTS),
        at => Memory::Fixed(at - INPUTS - TEMPORARIES),
    };
    let start = rng.usize(..=LEN / UNIT - units) * UNIT;
    Part { memory, elements: start..start + units * UNIT }
}

/// Returns two parts of the same size that do not overlap.
fn two_parts(rng: &mut Rng) -> [Part; 2] {
    let units = rng.usize(1..=LEN / UNIT);
    loop {
        let [from, to] = [(); 2].map(|()| part(rng, units));
        let is_apart =
            from.elements.end <= to.elements.start || to.elements.end <= from.elements.start;
        if from.memory != to.memory || is_apart {
            return [from, to];
        }
    }
}

fn steps(rng: &mut Rng) -> Vec<Step> {
    // Temporaries begin with unspecified contents.
    let filled = (0..TEMPORARIES)
        .map(|at| Step::Fill(Part { memory: Memory::Temporary(at), elements: 0..LEN }, at as u32));
    let mut steps: Vec<Step> = filled.collect();
    for _ in 0..rng.usize(1..16) {
        let value = match rng.bool() {
            true => Value::Set(rng.usize(..VALUES)),
            false => Value::Fixed(rng.u32(..100)),
        };
        let [from, to] = two_parts(rng);
        steps.push(match rng.u8(..10) {
            0..4 => Step::Mix(from, to, value),
            4..7 => Step::Store(from, to, value),
            7..9 => Step::Copy(from, to),
            _ => Step::Fill(to, rng.u32(..)),
        });
    }
    steps
}

/// The buffers that stand for the memory of steps.
struct Buffers {
    inputs: Vec<Buffer<u32>>,
    temporaries: Vec<Buffer<u32>>,
    fixed: Vec<Buffer<u32>>,
}

impl Buffers {
    fn slice(&self, part: &Part) -> Buffer<u32> {
        let buffer = match part.memory {
            Memory::Input(at) => &self.inputs[at],
            Memory::Temporary(at) => &self.temporaries[at],
            Memory::Fixed(at) => &self.fixed[at],
        };
        buffer.slice(part.elements.clone()).unwrap()
    }
}

struct Kernels {
    mix: Kernel,
    store: Kernel,
}

fn record(
    recorder: &mut Recorder,
    (kernels, buffers): (&Kernels, &Buffers),
    values: &[GraphScalar<u32>],
    step: &Step,
) {
    match step {
        Step::Mix(from, to, by) => {
            let (from, to) = (buffers.slice(from), buffers.slice(to));
            let launch = kernels.mix.launch(to.len());
            recorder.submit(match *by {
                Value::Fixed(by) => launch.args((&from, &to, by)),
                Value::Set(at) => launch.args((&from, &to, &values[at])),
            })
        }
        Step::Store(from, to, by) => {
            let (from, to) = (buffers.slice(from), buffers.slice(to));
            let launch = kernels.store.launch(to.len());
            recorder.submit(match *by {
                Value::Fixed(by) => launch.args((&from, to.write_only(), by)),
                Value::Set(at) => launch.args((&from, to.write_only(), &values[at])),
            })
        }
        Step::Copy(from, to) => recorder.copy(&buffers.slice(from), &buffers.slice(to)),
        Step::Fill(to, value) => recorder.fill(&buffers.slice(to), *value),
    }
    .unwrap();
}

/// Submits a step by itself.
fn submit(queue: &Queue, (kernels, buffers): (&Kernels, &Buffers), values: &[u32], step: &Step) {
    let value = |by: &Value| match *by {
        Value::Fixed(by) => by,
        Value::Set(at) => values[at],
    };
    let _ = match step {
        Step::Mix(from, to, by) => {
            let (from, to) = (buffers.slice(from), buffers.slice(to));
            queue.submit(kernels.mix.launch(to.len()).args((&from, &to, value(by))))
        }
        Step::Store(from, to, by) => {
            let (from, to) = (buffers.slice(from), buffers.slice(to));
            queue.submit(kernels.store.launch(to.len()).args((&from, to.write_only(), value(by))))
        }
        Step::Copy(from, to) => queue.copy(&buffers.slice(from), &buffers.slice(to)),
        Step::Fill(to, value) => queue.fill(&buffers.slice(to), *value),
    }
    .unwrap();
}

/// Buffers on a device, twice: for replays, and for the same commands one by one.
struct Case {
    queue: Queue,
    kernels: Kernels,
    /// Buffers that inputs are bound to.
    pools: [Vec<Buffer<u32>>; 2],
    fixed: [Vec<Buffer<u32>>; 2],
    temporaries: Vec<Buffer<u32>>,
    fuses: bool,
}

impl Case {
    async fn new(rt: &Runtime, fuses: bool) -> Self {
        let program = support::program(rt, SOURCE).await;
        // SAFETY: the kernels access elements below the global size, which is the length of their buffers.
        let [mix, store] = ["blend", "store"].map(|name| unsafe { program.kernel(name) }.unwrap());
        let buffers = |count| (0..count).map(|_| rt.buffer(LEN).unwrap()).collect::<Vec<_>>();
        Self {
            queue: rt.queue(),
            kernels: Kernels { mix, store },
            pools: [(); 2].map(|()| buffers(2 * INPUTS)),
            fixed: [(); 2].map(|()| buffers(FIXED)),
            temporaries: buffers(TEMPORARIES),
            fuses,
        }
    }

    async fn run(&self, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let steps = steps(&mut rng);
        let (graph, inputs, values) = self.record(&steps).await;
        for _ in 0..rng.usize(1..8) {
            let mut bound: Vec<usize> = (0..2 * INPUTS).collect();
            rng.shuffle(&mut bound);
            let given: [u32; VALUES] = [(); VALUES].map(|()| rng.u32(..));
            let [pool, plain] = &self.pools;
            let mut replay = graph.replay();
            for (input, &at) in inputs.iter().zip(&bound) {
                replay = replay.bind(input, &pool[at]);
            }
            for (value, given) in values.iter().zip(given) {
                replay = replay.set(value, given);
            }
            let _ = replay.submit().unwrap();
            let buffers = Buffers {
                inputs: bound.iter().take(INPUTS).map(|&at| plain[at].clone()).collect(),
                temporaries: self.temporaries.clone(),
                fixed: self.fixed[1].clone(),
            };
            for step in &steps {
                submit(&self.queue, (&self.kernels, &buffers), &given, step);
            }
            if rng.bool() {
                let (at, value) = (rng.usize(..2 * INPUTS), rng.u32(..));
                for pool in &self.pools {
                    let _ = self.queue.fill(&pool[at], value).unwrap();
                }
            }
        }
        drop(graph);
        let [pairs, fixed] =
            [&self.pools, &self.fixed].map(|[replayed, plain]| replayed.iter().zip(plain));
        for (replayed, plain) in pairs.chain(fixed) {
            let [replayed, plain] = [replayed, plain].map(|buffer| self.queue.read(buffer));
            let is_same = replayed.await.unwrap() == plain.await.unwrap();
            assert!(is_same, "seed {seed}: {steps:?}");
        }
    }

    async fn record(&self, steps: &[Step]) -> (Graph, Vec<Buffer<u32>>, Vec<GraphScalar<u32>>) {
        let mut recorder = self.queue.record();
        if self.fuses {
            recorder.fuse();
        }
        let buffers = Buffers {
            inputs: (0..INPUTS).map(|_| recorder.input(LEN).unwrap()).collect(),
            temporaries: (0..TEMPORARIES).map(|_| recorder.temporary(LEN).unwrap()).collect(),
            fixed: self.fixed[0].clone(),
        };
        let values: Vec<_> = (0..VALUES).map(|_| recorder.scalar::<u32>()).collect();
        for step in steps {
            record(&mut recorder, (&self.kernels, &buffers), &values, step);
        }
        // Only the graph holds the temporaries from here on.
        let Buffers { inputs, .. } = buffers;
        (recorder.finish().await.unwrap(), inputs, values)
    }
}

/// Returns the number given by an environment variable.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

async fn run_cases(rt: &Runtime, fuses: bool, count: u64) {
    let case = Case::new(rt, fuses).await;
    let first = variable("KILN_SEED").unwrap_or(0);
    for seed in first..first + variable("KILN_GRAPH_CASES").unwrap_or(count) {
        case.run(seed).await;
    }
}

#[test]
fn random_graphs_do_what_their_commands_do() {
    block_on(support::on_each_device(async |rt| run_cases(&rt, false, 40).await));
}

#[test]
fn random_graphs_with_fused_launches_do_what_their_commands_do() {
    block_on(support::on_each_device(async |rt| {
        let index = rt.device().index().to_string();
        for mode in [FusionMode::Always, FusionMode::Auto] {
            let builder = support::builder().fusion(mode).device(index.clone());
            run_cases(&builder.build().await.unwrap(), true, 8).await;
        }
    }));
}

#[test]
fn random_graphs_on_simulated_devices_do_what_their_commands_do() {
    for simulator in [Simulator::new(), Simulator::new().omitting_events(), Simulator::immediate()]
    {
        for (name, stores) in [("blend", false), ("store", true)] {
            simulator.kernel(name, move |call| {
                let (from, by) = (call.read::<u32>(0), call.value::<u32>(2));
                let to = call.read::<u32>(1);
                let mixed = |(to, from): (&u32, &u32)| match stores {
                    true => from ^ by,
                    false => to.wrapping_mul(3).wrapping_add(from.wrapping_mul(by)).wrapping_add(1),
                };
                let result: Vec<u32> = to.iter().zip(&from).map(mixed).collect();
                call.write(1, &result);
            });
        }
        block_on(async {
            let rt = simulation::runtime(&simulator).await;
            run_cases(&rt, false, 100).await;
        });
    }
}
