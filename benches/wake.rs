//! Delay from the end of a command to the task that awaits it: `cargo bench --bench wake`.
//!
//! The reference busy-waits through the raw driver on a processor of its own. For comparison, the driver's own
//! callback wakes a sleeping thread. Kiln runs with its default settings, and with awaits that may busy-wait
//! for longer than the commands take.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw.rs"]
mod raw;
mod support;
#[path = "support/work.rs"]
mod work;

use std::time::Duration;

use futures::executor::block_on;
use raw::Raw;
use support::{interleave, time};
use work::Work;

/// Times that the commands take.
const LENGTHS: [Duration; 4] = [
    Duration::from_micros(20),
    Duration::from_micros(200),
    Duration::from_millis(2),
    Duration::from_millis(20),
];

fn main() -> kiln::Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        if let Some(mut raw) = work::raw(platform) {
            futures_lite::future::block_on(measure(platform, &mut raw))?;
        }
    }
    Ok(())
}

async fn measure(platform: &str, raw: &mut Raw) -> kiln::Result<()> {
    let work = Work::new(platform, Duration::ZERO).await?;
    let spinning = Work::new(platform, Duration::from_secs(1)).await?;
    println!("\n{}", work.rt.device());
    println!(
        "{:24} {:>12} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "", "spinning, us", "callback", "Kiln", "Kiln, spin", "late", "Kiln late", "with spin"
    );
    for length in LENGTHS {
        work::set_length(raw, length);
        let rounds = (400_000 / length.as_micros()).clamp(30, 2000) as usize;
        let await_one =
            |work: &Work, count| time(|| block_on(work.submit(count)).expect("it runs"));
        let [bare, kiln, spun] = interleave(
            rounds,
            [
                &mut || time(|| raw.enqueue_and_spin()),
                &mut || await_one(&work, raw.number),
                &mut || await_one(&spinning, raw.number),
            ],
        );
        // Measured separately: while a driver's callbacks are late, its other operations are slow too.
        let [callback] = interleave(rounds.min(200), [&mut || time(|| raw.enqueue_and_await())]);
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let late = |time: Duration| micros(time) - micros(bare);
        println!(
            "{:24} {:>12.1} {:>11.1} {:>11.1} {:>11.1} {:>11.1} {:>11.1} {:>11.1}",
            format!("a command of {} us", length.as_micros()),
            micros(bare),
            micros(callback),
            micros(kiln),
            micros(spun),
            late(callback),
            late(kiln),
            late(spun),
        );
    }
    Ok(())
}
