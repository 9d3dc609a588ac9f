//! Cost of requesting a program that is in memory: `cargo bench --bench build`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::time::Instant;

use futures_lite::future::block_on;
use kiln::{CacheConfig, Module, Runtime};
use support::{absolute, heading, median};

/// Requests in each round.
const REQUESTS: u32 = 10_000;

fn main() -> kiln::Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        let Ok(rt) =
            block_on(Runtime::builder().device(platform).cache(CacheConfig::memory_only()).build())
        else {
            continue;
        };
        block_on(measure(&rt))?;
    }
    Ok(())
}

async fn measure(rt: &Runtime) -> kiln::Result<()> {
    heading(&rt.device().to_string());
    let module = Module::opencl_c("kernel void set(global uint *x) { x[get_global_id(0)] = 1; }");
    // SAFETY: `set` stays below the global size, which is the buffer's length.
    let set = unsafe { rt.build(&module).await?.kernel("set")? };
    let mut rounds = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        for _ in 0..REQUESTS {
            drop(rt.build(&module).await?);
        }
        rounds.push(start.elapsed() / REQUESTS);
    }
    absolute(
        "a program in memory, `rt.build(&module).await`",
        median(rounds).as_nanos() as f64,
        1000.0,
    );

    let x = rt.buffer::<u32>(64)?;
    let before = rt.stats();
    for _ in 0..1000 {
        rt.queue().submit(set.launch(64).args((&x,)))?;
    }
    rt.drain().await;
    let after = rt.stats();
    let lookups = after.builds.requested - before.builds.requested;
    println!(
        "cache lookups of {} launches: {lookups}",
        after.launches.submitted - before.launches.submitted
    );
    Ok(())
}
