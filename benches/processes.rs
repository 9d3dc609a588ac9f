//! Time of many cold builds with compile processes, relative to threads: `cargo bench --bench processes`, or with
//! other numbers of programs `cargo bench --bench processes -- 50 100`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_lite::future::block_on;
use kiln::build::CompileProcesses;
use kiln::{CacheConfig, Module, Runtime};
use support::{heading, median};

/// Numbers of programs that are requested at once, unless the arguments name others.
const PROGRAMS: [u32; 2] = [12, 200];

/// Rounds of each measurement.
const ROUNDS: usize = 3;

fn main() -> kiln::Result<()> {
    kiln::build::build_child();
    let given: Vec<u32> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let numbers = if given.is_empty() { PROGRAMS.to_vec() } else { given };
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        if let Ok(rt) =
            block_on(Runtime::builder().device(platform).cache(CacheConfig::memory_only()).build())
        {
            heading(&rt.device().to_string());
            for &programs in &numbers {
                block_on(compare(platform, programs))?;
            }
        }
    }
    Ok(())
}

/// Times of builds: until all programs can be used, and until all are stored.
#[derive(Clone, Copy)]
struct Times {
    built: Duration,
    stored: Duration,
}

async fn compare(platform: &str, programs: u32) -> kiln::Result<()> {
    let (mut threads, mut processes) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        threads.push(build_all(platform, programs, CompileProcesses::Off).await?);
        processes.push(build_all(platform, programs, CompileProcesses::Cores).await?);
    }
    for (what, time) in [
        ("built", (|times: &Times| times.built) as fn(&Times) -> Duration),
        ("stored", |times| times.stored),
    ] {
        let of = |times: &[Times]| median(times.iter().map(time).collect()).as_secs_f64();
        let ratio = of(&threads) / of(&processes);
        println!(
            "{programs} programs {what}: threads {:.2} s, processes {:.2} s, ratio {ratio:.2}",
            of(&threads),
            of(&processes),
        );
    }
    Ok(())
}

/// Builds programs that no cache has.
async fn build_all(
    platform: &str,
    programs: u32,
    processes: CompileProcesses,
) -> kiln::Result<Times> {
    let folder = tempfile::tempdir().expect("there is room for a cache");
    let builder = Runtime::builder().device(platform).cache(CacheConfig::at(folder.path()));
    let rt = builder.compile_processes(processes).build().await?;
    let cpu = cpu_seconds();
    let nonce = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let start = Instant::now();
    let builds: Vec<_> =
        (0..programs).map(|number| rt.build(&module(nonce, number)).start()).collect();
    for build in builds {
        build.await?;
    }
    let built = start.elapsed();
    rt.drain().await;
    let times = Times { built, stored: start.elapsed() };
    let stats = rt.stats();
    assert_eq!(stats.builds.compiles, u64::from(programs), "every program is compiled once");
    drop(rt);
    // The processors' time of a process counts once it has ended.
    std::thread::sleep(Duration::from_millis(500));
    println!(
        "  {processes:?}: built after {:.2} s, stored after {:.2} s, {:.2} s of processors, \
         {} processes compiled {} of {programs}",
        times.built.as_secs_f64(),
        times.stored.as_secs_f64(),
        cpu_seconds() - cpu,
        stats.builds.compile_processes,
        stats.builds.process_compiles,
    );
    Ok(times)
}

/// Returns the processors' time that this process and its children that have ended have used, on Linux.
fn cpu_seconds() -> f64 {
    /// Clock ticks in a second, as `/proc` counts them.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks: f64 = fields.skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS
}

/// Returns a program of medium size that differs from all others.
fn module(nonce: u128, number: u32) -> Module {
    Module::opencl_c(format!(
        "constant ulong nonce = {}ul;
        kernel void work(global const float *x, global float *y, uint n) {{
            size_t i = get_global_id(0);
            float sum = {number}.0f + (float)(nonce & 7);
            for (uint k = 0; k < n; k++) {{
                float value = x[(i + k) % n];
                sum = k % 3 == 0 ? sum * value + {number}.5f : sum - native_sin(value) * cos(sum);
                if (sum > 1000.0f) sum = sqrt(sum) + exp(value);
            }}
            y[i] = sum;
        }}",
        nonce as u64
    ))
}
