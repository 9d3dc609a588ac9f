//! Shared code of the benchmarks: medians of interleaved runs, and tables of ratios.
//!
//! Machines drift by more than the differences that are measured here. So the two sides of a ratio
//! take turns, many times, within one run, and medians are compared.

#![allow(dead_code, unreachable_pub, reason = "each benchmark uses a part of it")]
#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

use std::time::{Duration, Instant};

use futures::executor::block_on;
use kiln::{CacheConfig, Runtime};

/// Returns the median time of each side, with the sides taking turns.
pub fn interleave<const N: usize>(
    rounds: usize,
    mut sides: [&mut dyn FnMut() -> Duration; N],
) -> [Duration; N] {
    for side in &mut sides {
        for _ in 0..rounds.div_ceil(10) {
            side();
        }
    }
    let mut times: [Vec<Duration>; N] = std::array::from_fn(|_| Vec::with_capacity(rounds));
    for _ in 0..rounds {
        for (side, times) in sides.iter_mut().zip(&mut times) {
            times.push(side());
        }
    }
    times.map(median)
}

/// Returns the median.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Measures the time of `work`.
pub fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Busy-waits for the given time.
pub fn work_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Prints a heading with the columns of [`compare`].
pub fn heading(title: &str) {
    columns(title, ["Kiln, us", "raw, us"]);
}

/// Like [`heading`], with other names for the two times that are compared.
pub fn columns(title: &str, [left, right]: [&str; 2]) {
    println!("\n{title}");
    println!("{:44} {left:>11} {right:>11} {:>7} {:>7}", "", "ratio", "goal");
}

/// Prints the ratio of Kiln's time to the raw driver's, for one of `pieces`. A `goal` of zero means no goal.
pub fn compare(what: &str, kiln: Duration, raw: Duration, pieces: u32, goal: f64) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(pieces);
    println!(
        "{what:44} {:>11.3} {:>11.3} {:>7.2} {:>7}",
        micros(kiln),
        micros(raw),
        kiln.as_secs_f64() / raw.as_secs_f64(),
        if goal > 0.0 { format!("{goal:.2}") } else { "-".to_owned() }
    );
}

/// Prints a time and its upper goal.
pub fn absolute(what: &str, nanos: f64, goal: f64) {
    println!("{what:44} {nanos:>8.0} ns {:>24} {goal:>5.0} ns", "");
}

/// Measures on the OpenCL device of each platform that the tables name and this machine has.
pub fn on_each_device(measure: impl AsyncFn(&Runtime) -> kiln::Result<()>) -> kiln::Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let Ok(rt) = block_on(builder.build()) else { continue };
        futures_lite::future::block_on(measure(&rt))?;
    }
    Ok(())
}
