//! Cost of the DAG alone, on a simulated device that completes at once: `cargo bench --bench dag --features
//! simulated`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::num::NonZeroUsize;
use std::time::Instant;

use futures_lite::future::block_on;
use kiln::simulated::Simulator;
use kiln::{Buffer, Kernel, Module, Queue, Runtime};
use peak_alloc::PeakAlloc;
use support::{absolute, median};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const SOURCE: &str = "kernel void copy(global const uint *from, global uint *to) {}";

/// Number of buffers that commands use.
const BUFFERS: usize = 1024;

struct Bench {
    queue: Queue,
    kernel: Kernel,
    buffers: Vec<Buffer<u32>>,
}

/// Indices of the buffers that command `n` reads and writes.
type Shape = fn(usize) -> (usize, usize);

const SHAPES: [(&str, Shape); 3] = [
    ("wide: every command on buffers of its own", |n| ((2 * n) % BUFFERS, (2 * n + 1) % BUFFERS)),
    ("chained: every command needs the last", |n| (n % 2, (n + 1) % 2)),
    ("random: any two buffers", |n| {
        let random = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let from = random as usize % BUFFERS;
        (from, (from + 1 + (random >> 16) as usize % (BUFFERS - 1)) % BUFFERS)
    }),
];

fn main() -> kiln::Result<()> {
    let rt = block_on(Runtime::builder().simulator(&Simulator::immediate()).build())?;
    let bench = block_on(Bench::new(&rt))?;
    println!("\nsubmit to end, a command");
    for commands in [100_000, 1_000_000] {
        for (name, shape) in SHAPES {
            let rounds =
                (0..if commands > 100_000 { 3 } else { 11 }).map(|_| bench.run(commands, shape));
            let nanos = median(rounds.collect()).as_nanos() as f64 / commands as f64;
            absolute(&format!("{commands}, {name}"), nanos, 1000.0);
        }
    }

    // No command ends before the simulator allows it.
    let simulator = Simulator::new();
    let builder = Runtime::builder().simulator(&simulator);
    let rt = block_on(builder.max_in_flight(NonZeroUsize::MAX).build())?;
    let bench = block_on(Bench::new(&rt))?;
    println!("\nbytes in use, a command in flight (goal: 1024)");
    for (name, shape) in SHAPES {
        let paused = simulator.pause();
        let before = MEMORY.current_usage();
        (0..100_000).for_each(|n| bench.submit(shape(n)));
        println!("{name:60} {:>6}", (MEMORY.current_usage() - before) / 100_000);
        drop(paused);
        block_on(rt.drain());
    }
    Ok(())
}

impl Bench {
    async fn new(rt: &Runtime) -> kiln::Result<Self> {
        // SAFETY: the kernel does nothing.
        let kernel = unsafe { rt.build(&Module::opencl_c(SOURCE)).await?.kernel("copy")? };
        let buffers = (0..BUFFERS).map(|_| rt.buffer(16)).collect::<kiln::Result<_>>()?;
        Ok(Self { queue: rt.queue(), kernel, buffers })
    }

    fn submit(&self, (from, to): (usize, usize)) {
        let launch = self.kernel.launch(16).args((&self.buffers[from], &self.buffers[to]));
        drop(self.queue.submit(launch).expect("it is right"));
    }

    fn run(&self, commands: usize, shape: Shape) -> std::time::Duration {
        let start = Instant::now();
        (0..commands).for_each(|n| self.submit(shape(n)));
        block_on(self.queue.marker().expect("it is right")).expect("it ends");
        start.elapsed()
    }
}
