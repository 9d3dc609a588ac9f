//! Time of launches through Kiln, relative to launches through the raw driver in the same run, on every OpenCL
//! device of the named platforms: `cargo bench --bench launch`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw.rs"]
mod raw;
mod support;

use std::time::Duration;

use futures::executor::block_on;
use kiln::{Buffer, CacheConfig, Event, Kernel, Module, Queue, Runtime};
use raw::{AXPY, Raw};
use support::{compare, heading, interleave, median, time, work_for};

/// Work-items of the small kernel.
const ITEMS: usize = 64;

/// Work-items of the large kernel.
const LARGE: usize = 16 << 20;

/// Launches of the throughput runs.
const LAUNCHES: u32 = 10_000;

fn main() -> kiln::Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        let [raw, large] = [ITEMS, LARGE].map(|items| Raw::new(platform, AXPY, "axpy", items));
        let (Some(raw), Some(large)) = (raw, large) else { continue };
        futures_lite::future::block_on(measure(platform, &raw, &large))?;
    }
    Ok(())
}

/// The kernel through Kiln.
struct Axpy {
    rt: Runtime,
    queue: Queue,
    kernel: Kernel,
}

impl Axpy {
    async fn new(platform: &str) -> kiln::Result<Self> {
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let rt = builder.build().await?;
        let program = rt.build(&Module::opencl_c(AXPY)).await?;
        // SAFETY: `axpy` stays below the global size, which is the buffers' length.
        let kernel = unsafe { program.kernel("axpy")? };
        Ok(Self { queue: rt.queue(), rt, kernel })
    }

    /// Creates a buffer of ones.
    async fn buffer(&self, items: usize) -> kiln::Result<Buffer<f32>> {
        self.rt.buffer_from(vec![1.0f32; items]).await
    }

    /// Submits a launch over two buffers of the same length.
    fn launch(&self, x: &Buffer<f32>, y: &Buffer<f32>) -> Event {
        let launch = self.kernel.launch(x.len()).args((1.0f32, x, y));
        self.queue.submit(launch).expect("it is right")
    }
}

async fn measure(platform: &str, raw: &Raw, large: &Raw) -> kiln::Result<()> {
    let axpy = Axpy::new(platform).await?;
    let [x, y, z] =
        [axpy.buffer(ITEMS).await?, axpy.buffer(ITEMS).await?, axpy.buffer(ITEMS).await?];
    heading(&axpy.rt.device().to_string());
    one_by_one(&axpy, raw, [&x, &y]);
    many(&axpy, raw, [&x, &y]);
    diamond(&axpy, raw, [&x, &y, &z]);
    let [x, y] = [axpy.buffer(LARGE).await?, axpy.buffer(LARGE).await?];
    one_large(&axpy, large, [&x, &y]);
    Ok(())
}

/// Measures small launches that are awaited one by one.
fn one_by_one(axpy: &Axpy, raw: &Raw, [x, y]: [&Buffer<f32>; 2]) {
    let [kiln, bare] = interleave(
        4000,
        [&mut || time(|| block_on(axpy.launch(x, y)).expect("it runs")), &mut || {
            time(|| raw.enqueue_and_await())
        }],
    );
    compare("submit and await one", kiln, bare, 1, 1.10);
}

/// Measures many small launches with one await, and the calls that submit them.
fn many(axpy: &Axpy, raw: &Raw, [x, y]: [&Buffer<f32>; 2]) {
    let launch = || axpy.launch(x, y);
    // Times of the calls alone on each side, without waiting for the launches to end.
    let mut calls: [Vec<Duration>; 4] = Default::default();
    let [submits, enqueues, with_events, with_host_work] = &mut calls;
    let [kiln, bare, ..] = interleave(
        15,
        [
            &mut || {
                time(|| {
                    let mut last = None;
                    submits.push(time(|| (0..LAUNCHES).for_each(|_| last = Some(launch()))));
                    block_on(last.expect("there is one")).expect("it runs");
                })
            },
            &mut || {
                time(|| {
                    enqueues.push(time(|| (0..LAUNCHES).for_each(|_| raw.enqueue(None))));
                    raw.finish();
                })
            },
            &mut || {
                time(|| {
                    let mut events = Vec::with_capacity(LAUNCHES as usize);
                    with_events.push(time(|| {
                        events.extend((0..LAUNCHES).map(|_| raw.enqueue_with_event()));
                    }));
                    raw.finish();
                })
            },
            &mut || {
                time(|| {
                    with_host_work.push(time(|| {
                        for _ in 0..LAUNCHES {
                            raw.enqueue(None);
                            work_for(Duration::from_micros(1));
                        }
                    }));
                    raw.finish();
                })
            },
        ],
    );
    compare("10,000 submitted, then one await", kiln, bare, LAUNCHES, 1.15);
    let [submits, enqueues, with_events, with_host_work] = calls.map(median);
    compare("the submit calls alone", submits, enqueues, LAUNCHES, 1.30);
    // Two costs that Kiln cannot avoid: an event that reports how a command ended, and the DAG, which is work
    // on the host beside the driver's own threads.
    compare("the same, over enqueues that keep an event", submits, with_events, LAUNCHES, 0.0);
    compare("raw with 1 us of host work each, over raw", with_host_work, enqueues, LAUNCHES, 0.0);
}

/// Measures a diamond of four launches: one source, two in the middle, and one that depends on both.
fn diamond(axpy: &Axpy, raw: &Raw, [x, y, z]: [&Buffer<f32>; 3]) {
    let [kiln, with_finish, with_callback] = interleave(
        4000,
        [
            &mut || {
                time(|| {
                    axpy.launch(z, x);
                    axpy.launch(x, y);
                    axpy.launch(x, z);
                    block_on(axpy.launch(y, z)).expect("it runs");
                })
            },
            &mut || {
                time(|| {
                    (0..4).for_each(|_| raw.enqueue(None));
                    raw.finish();
                })
            },
            &mut || {
                time(|| {
                    (0..3).for_each(|_| raw.enqueue(None));
                    raw.enqueue_and_await();
                })
            },
        ],
    );
    compare("a diamond, over four in order and a finish", kiln, with_finish, 1, 1.20);
    compare("the same, over four in order and a callback", kiln, with_callback, 1, 0.0);
}

/// Measures one launch of many work-items.
fn one_large(axpy: &Axpy, large: &Raw, [x, y]: [&Buffer<f32>; 2]) {
    let [kiln, with_finish] = interleave(
        60,
        [&mut || time(|| block_on(axpy.launch(x, y)).expect("it runs")), &mut || {
            time(|| {
                large.enqueue(None);
                large.finish();
            })
        }],
    );
    compare("one of 16 Mi work-items, over a finish", kiln, with_finish, 1, 1.10);
}
