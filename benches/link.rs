//! Cost of device libraries: `cargo bench --bench link`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw.rs"]
mod raw;
mod support;

use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use kiln::{CacheConfig, Module, Result, Runtime};
use raw::Raw;
use support::{absolute, compare, heading, median};

/// Number of programs that are linked.
const ROUNDS: u32 = 24;

const APPLICATION: &str = "float scale(float x);
kernel void apply(global float *x) { x[get_global_id(0)] = scale(x[get_global_id(0)]); }";

/// Returns a library that no other program is linked with.
fn library(number: u32) -> String {
    format!(
        "float scale(float x) {{ return x * {number}.5f; }}
         kernel void own(global float *x) {{ x[get_global_id(0)] += {number}; }}"
    )
}

fn main() -> Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        let Some(raw) = Raw::new(platform, "kernel void none() {}", "none", 1) else { continue };
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let rt = block_on(builder.build())?;
        heading(&rt.device().to_string());
        links(&rt, &raw)?;
        resolution(&rt)?;
    }
    Ok(())
}

/// Measures linking alone: on both sides, all objects are compiled before.
fn links(rt: &Runtime, raw: &Raw) -> Result<()> {
    let application = Module::opencl_c(APPLICATION).importing(["scale"]);
    let raw_application = raw.compile(APPLICATION);
    let (mut kiln, mut bare) = (Vec::new(), Vec::new());
    // The additional round compiles the application's object.
    for number in 0..=ROUNDS {
        let text = library(number);
        let object = raw.compile(&text);
        let module = Module::opencl_c(text).exporting(["scale"]);
        block_on(rt.build(&module).into_future())?;

        let start = Instant::now();
        let linked = raw.link([&raw_application, &object]);
        bare.push(start.elapsed());
        drop(linked);

        rt.register(&module)?;
        let before = rt.stats();
        let start = Instant::now();
        let program = block_on(rt.build(&application).into_future())?;
        kiln.push(start.elapsed());
        let after = rt.stats();
        assert_eq!(after.builds.links, before.builds.links + 1);
        assert_eq!(after.builds.compiles, before.builds.compiles + u64::from(number == 0));
        drop(program);
        rt.unregister(&module);
    }
    let [kiln, bare] = [kiln, bare].map(|times| median(times[1..].to_vec()));
    compare("linking two objects, over link and kernels", kiln, bare, 1, 1.05);
    Ok(())
}

/// Measures the time from the request to the key, which covers all libraries that were found.
fn resolution(rt: &Runtime) -> Result<()> {
    const LIBRARIES: usize = 100;
    const SYMBOLS: usize = 100;
    let names: Vec<_> = (0..LIBRARIES * SYMBOLS).map(|n| format!("function_{n}")).collect();
    for names in names.chunks(SYMBOLS) {
        rt.register(&Module::opencl_c(format!("int x = {};", names.len())).exporting(names))?;
    }
    let application = Module::opencl_c("kernel void f() {}").importing(&names);
    let times: Vec<Duration> = (0..50)
        .map(|_| {
            let start = Instant::now();
            let key = rt.build(&application).key();
            let took = start.elapsed();
            key.map(|_| took)
        })
        .collect::<Result<_>>()?;
    absolute("10,000 symbols of 100 libraries resolved", median(times).as_nanos() as f64, 1e7);
    Ok(())
}
