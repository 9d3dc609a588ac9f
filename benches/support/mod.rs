//! What the benchmarks share: medians of interleaved runs, and tables of ratios.
//!
//! Machines drift by more than the differences that are measured here. So the two sides of a ratio
//! take turns, many times, within one run, and medians are compared.

#![allow(dead_code, unreachable_pub, reason = "each benchmark uses a part of it")]
#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

use std::time::{Duration, Instant};

/// The median time of each side, with the sides taking turns.
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

/// The middle one.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The time that `work` takes.
pub fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Occupies the thread.
pub fn work_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Prints a heading and what the columns of [`compare`] are.
pub fn heading(title: &str) {
    println!("\n{title}");
    println!("{:44} {:>11} {:>11} {:>7} {:>7}", "", "Kiln, us", "raw, us", "ratio", "goal");
}

/// Prints a ratio: Kiln's time over the raw driver's, a piece of work. Without a goal if that is zero.
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

/// Prints a time with the goal that it should stay below.
pub fn absolute(what: &str, nanos: f64, goal: f64) {
    println!("{what:44} {nanos:>8.0} ns {:>24} {goal:>5.0} ns", "");
}
