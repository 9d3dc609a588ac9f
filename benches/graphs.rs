//! Time of replays of recorded graphs, relative to bare launches through the raw driver with arguments that are already
//! set, in the same run: `cargo bench --bench graphs --features simulated`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw.rs"]
mod raw;
mod support;

use futures_lite::future::block_on;
use kiln::simulated::Simulator;
use kiln::{Buffer, CacheConfig, Event, Graph, GraphScalar, Kernel, Module, Queue, Runtime};
use raw::{AXPY, Raw};
use support::{absolute, compare, heading, interleave, median, time};

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
