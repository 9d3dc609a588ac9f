//! Time of launches through Kiln, relative to launches through the raw driver in the same run, on every OpenCL
//! device of the named platforms: `cargo bench --bench launch`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw.rs"]
mod raw;
mod support;

use std::time::Duration;

use futures::executor::block_on;
use kiln::{CacheConfig, Module, Runtime};
use raw::Raw;
use support::{compare, heading, interleave, median, time, work_for};

const SOURCE: &str = "kernel void axpy(float a, global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] += a * x[i];
}";

/// Work-items of the small kernel.
const ITEMS: usize = 64;

/// Work-items of the large kernel.
const LARGE: usize = 16 << 20;

/// Launches of the throughput runs.
const MANY: u32 = 10_000;

fn main() -> kiln::Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        let [raw, large] = [ITEMS, LARGE].map(|items| Raw::new(platform, SOURCE, "axpy", items));
        let (Some(raw), Some(large)) = (raw, large) else { continue };
        futures_lite::future::block_on(measure(platform, &raw, &large))?;
    }
    Ok(())
}

async fn measure(platform: &str, raw: &Raw, large: &Raw) -> kiln::Result<()> {
    let rt = Runtime::builder().device(platform).cache(CacheConfig::memory_only()).build().await?;
    let program = rt.build(&Module::opencl_c(SOURCE)).await?;
    // SAFETY: `axpy` stays below the global size, which is the buffers' length.
    let axpy = unsafe { program.kernel("axpy")? };
    let x = rt.buffer_from(vec![1.0f32; ITEMS]).await?;
    let y = rt.buffer_from(vec![1.0f32; ITEMS]).await?;
    let z = rt.buffer_from(vec![1.0f32; ITEMS]).await?;
    let queue = rt.queue();
    let launch = || queue.submit(axpy.launch(ITEMS).args((1.0f32, &x, &y))).expect("it is right");
    heading(&rt.device().to_string());

    let [kiln, bare] = interleave(
        4000,
        [&mut || time(|| block_on(launch()).expect("it runs")), &mut || {
            time(|| raw.enqueue_and_await())
        }],
    );
    compare("submit and await one", kiln, bare, 1, 1.10);

    // Times of the calls alone on each side, without waiting for the launches to end.
    let mut calls: [Vec<Duration>; 4] = Default::default();
    let [submits, enqueues, keeping, working] = &mut calls;
    let [kiln, bare, ..] = interleave(
        15,
        [
            &mut || {
                time(|| {
                    let mut last = None;
                    submits.push(time(|| (0..MANY).for_each(|_| last = Some(launch()))));
                    block_on(last.expect("there is one")).expect("it runs");
                })
            },
            &mut || {
                time(|| {
                    enqueues.push(time(|| (0..MANY).for_each(|_| raw.enqueue(None))));
                    raw.finish();
                })
            },
            &mut || {
                time(|| {
                    let mut events = Vec::with_capacity(MANY as usize);
                    keeping.push(time(|| {
                        events.extend((0..MANY).map(|_| raw.enqueue_with_event()));
                    }));
                    raw.finish();
                })
            },
            &mut || {
                time(|| {
                    working.push(time(|| {
                        for _ in 0..MANY {
                            raw.enqueue(None);
                            work_for(Duration::from_micros(1));
                        }
                    }));
                    raw.finish();
                })
            },
        ],
    );
    compare("10,000 submitted, then one await", kiln, bare, MANY, 1.15);
    let [submits, enqueues, keeping, working] = calls.map(median);
    compare("the submit calls alone", submits, enqueues, MANY, 1.30);
    // Two costs that Kiln cannot avoid: an event that reports how a command ended, and the DAG, which is work
    // on the host beside the driver's own threads.
    compare("the same, over enqueues that keep an event", submits, keeping, MANY, 0.0);
    compare("raw with 1 us of host work each, over raw", working, enqueues, MANY, 0.0);

    let [kiln, finished, woken] = interleave(
        4000,
        [
            &mut || {
                time(|| {
                    // One source, two in the middle, and one that depends on both.
                    let submit = |from, to| {
                        queue
                            .submit(axpy.launch(ITEMS).args((1.0f32, from, to)))
                            .expect("it is right")
                    };
                    submit(&z, &x);
                    submit(&x, &y);
                    submit(&x, &z);
                    block_on(submit(&y, &z)).expect("it runs");
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
    compare("a diamond, over four in order and a finish", kiln, finished, 1, 1.20);
    compare("the same, over four in order and a callback", kiln, woken, 1, 0.0);

    let x = rt.buffer_from(vec![1.0f32; LARGE]).await?;
    let y = rt.buffer_from(vec![1.0f32; LARGE]).await?;
    let launch = || queue.submit(axpy.launch(LARGE).args((1.0f32, &x, &y))).expect("it is right");
    let [kiln, finished] = interleave(
        60,
        [&mut || time(|| block_on(launch()).expect("it runs")), &mut || {
            time(|| {
                large.enqueue(None);
                large.finish();
            })
        }],
    );
    compare("one of 16 Mi work-items, over a finish", kiln, finished, 1, 1.10);
    Ok(())
}
