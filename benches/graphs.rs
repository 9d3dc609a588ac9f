//! Time of replays of recorded graphs, relative to bare launches through the raw driver with arguments that are already
//! set, and of launches one by one, relative to graphs with fused kernels, in the same run: `cargo bench --bench graphs --features simulated`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw.rs"]
mod raw;
mod support;

use futures_lite::future::block_on;
use kiln::graph::GraphScalar;
use kiln::simulated::Simulator;
use kiln::{Buffer, CacheConfig, Event, FusionMode, Graph, Kernel, Launch, Module, Queue, Runtime};
use raw::{AXPY, Raw};
use support::{absolute, columns, compare, heading, interleave, median, time};

/// Work-items of the kernel.
const ITEMS: usize = 64;

/// Launches of a graph.
const LAUNCHES: u32 = 100;

/// Replays for each wait.
const REPLAYS: u32 = 100;

fn main() -> kiln::Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        let Some(raw) = Raw::new(platform, AXPY, "axpy", ITEMS) else { continue };
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let rt = block_on(builder.build())?;
        heading(&rt.device().to_string());
        block_on(over_bare_enqueues(&rt, &raw))?;
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let rt = block_on(builder.fusion(FusionMode::Always).build())?;
        block_on(chains(&rt))?;
    }
    let simulator = Simulator::immediate().omitting_events();
    let rt = block_on(Runtime::builder().simulator(&simulator).build())?;
    println!("\nKiln's cost alone, with a simulated device that completes commands at once");
    block_on(alone(&rt))
}

/// The kernel, a graph of its launches, and the same launches one by one.
struct Axpy {
    queue: Queue,
    kernel: Kernel,
    graph: Graph,
    input: Buffer<f32>,
    factor: GraphScalar<f32>,
    x: Buffer<f32>,
    y: Buffer<f32>,
}

impl Axpy {
    async fn new(rt: &Runtime, launches: u32) -> kiln::Result<Self> {
        let program = rt.build(&Module::opencl_c(AXPY)).await?;
        // SAFETY: `axpy` stays below the global size, which is the buffers' length.
        let kernel = unsafe { program.kernel("axpy")? };
        let [x, y] =
            [rt.buffer_from(vec![1.0; ITEMS]).await?, rt.buffer_from(vec![1.0; ITEMS]).await?];
        let queue = rt.queue();
        let mut recorder = queue.record();
        let (input, factor) = (recorder.input(ITEMS)?, recorder.scalar());
        for _ in 0..launches {
            recorder.submit(kernel.launch(ITEMS).args((&factor, &input, &y)))?;
        }
        let graph = recorder.finish().await?;
        Ok(Self { queue, kernel, graph, input, factor, x, y })
    }

    fn replay(&self) -> Event {
        let replay = self.graph.replay().bind(&self.input, &self.x).set(&self.factor, 1.0);
        replay.submit().expect("it is right")
    }

    fn launch(&self) -> Event {
        let launch = self.kernel.launch(ITEMS).args((1.0f32, &self.x, &self.y));
        self.queue.submit(launch).expect("it is right")
    }
}

/// Submits commands, and awaits the last one.
fn submit_and_await(count: u32, submit: impl Fn() -> Event) {
    (1..count).for_each(|_| drop(submit()));
    block_on(submit()).expect("it runs");
}

/// Measures replays and launches over bare enqueues and a finish.
async fn over_bare_enqueues(rt: &Runtime, raw: &Raw) -> kiln::Result<()> {
    let axpy = Axpy::new(rt, LAUNCHES).await?;
    raw.enqueue(None);
    let [replayed, launched, bare] = interleave(
        15,
        [
            &mut || time(|| submit_and_await(REPLAYS, || axpy.replay())),
            &mut || time(|| submit_and_await(REPLAYS * LAUNCHES, || axpy.launch())),
            &mut || {
                time(|| {
                    (0..REPLAYS * LAUNCHES).for_each(|_| raw.enqueue_prepared(None));
                    raw.finish();
                })
            },
        ],
    );
    compare("a command of 100 replays of 100 launches", replayed, bare, REPLAYS * LAUNCHES, 1.05);
    compare("the same launches one by one", launched, bare, REPLAYS * LAUNCHES, 0.0);
    Ok(())
}

const LIGHT: &str = "kernel void decay(global const float *from, global float *to, float by) {
    size_t i = get_global_id(0);
    to[i] = from[i] * by + 1;
}";

/// Launches of a chain.
const CHAIN: usize = 6;

/// Work-items of each.
const CHAIN_ITEMS: usize = 1024;

/// A chain of light launches: recorded, and one by one.
struct Chain {
    queue: Queue,
    kernel: Kernel,
    buffers: Vec<Buffer<f32>>,
}

impl Chain {
    async fn new(rt: &Runtime) -> kiln::Result<Self> {
        let program = rt.build(&Module::opencl_c(LIGHT)).await?;
        // SAFETY: `decay` stays below the global size, which is the buffers' length.
        let kernel = unsafe { program.kernel("decay")? };
        let buffers = (0..=CHAIN).map(|_| rt.buffer(CHAIN_ITEMS)).collect::<Result<_, _>>()?;
        Ok(Self { queue: rt.queue(), kernel, buffers })
    }

    fn launch(&self, from: &Buffer<f32>, to: &Buffer<f32>) -> Launch {
        self.kernel.launch(CHAIN_ITEMS).args((from, to.write_only(), 0.5f32))
    }

    /// Submits the launches, and returns the event of the last one.
    fn submit(&self) -> Event {
        let mut last = None;
        for pair in self.buffers.windows(2) {
            last = Some(self.queue.submit(self.launch(&pair[0], &pair[1])).expect("it is right"));
        }
        last.expect("there are launches")
    }

    async fn record(&self, fuses: bool) -> kiln::Result<Graph> {
        let mut recorder = self.queue.record();
        if fuses {
            recorder.fuse();
        }
        let mut memory = vec![self.buffers[0].clone()];
        for _ in 1..CHAIN {
            memory.push(recorder.temporary(CHAIN_ITEMS)?);
        }
        memory.push(self.buffers[CHAIN].clone());
        for pair in memory.windows(2) {
            recorder.submit(self.launch(&pair[0], &pair[1]))?;
        }
        recorder.finish().await
    }
}

/// Measures chains of light launches one by one, over recorded ones.
async fn chains(rt: &Runtime) -> kiln::Result<()> {
    let chain = Chain::new(rt).await?;
    let (plain, fused) = (chain.record(false).await?, chain.record(true).await?);
    let replay = |graph: &Graph| graph.replay().submit().expect("it is right");
    let [one_by_one, plain, fused_time] = interleave(
        31,
        [
            &mut || time(|| submit_and_await(REPLAYS, || chain.submit())),
            &mut || time(|| submit_and_await(REPLAYS, || replay(&plain))),
            &mut || time(|| submit_and_await(REPLAYS, || replay(&fused))),
        ],
    );
    columns("100 chains of 6 light launches for each wait", ["one by one", "graph"]);
    compare("a recorded chain", one_by_one, plain, REPLAYS, 0.0);
    compare("a recorded and fused chain", one_by_one, fused_time, REPLAYS, 5.0);
    println!("{}", fused.fusion());
    Ok(())
}

/// Measures what a replay costs, and a command of it, beyond the driver.
async fn alone(rt: &Runtime) -> kiln::Result<()> {
    const ROUNDS: u32 = 1000;
    let mut nanos = Vec::new();
    for launches in [1, LAUNCHES] {
        let axpy = Axpy::new(rt, launches).await?;
        let round = || {
            time(|| {
                (0..ROUNDS).for_each(|_| drop(axpy.replay()));
                block_on(rt.drain());
            })
        };
        let times = (0..31).map(|_| round()).collect();
        nanos.push(median(times).as_nanos() as f64 / f64::from(ROUNDS));
    }
    let each = (nanos[1] - nanos[0]) / f64::from(LAUNCHES - 1);
    absolute("a replay of one command", nanos[0], 1000.0);
    absolute("a further command of it, simulated", each, 50.0);
    Ok(())
}
