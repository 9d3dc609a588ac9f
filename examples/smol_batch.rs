//! Batch processing under smol: 200 noisy signals go through a low-pass filter, a few at a time. Every
//! result is checked on the host.
//!
//! ```sh
//! cargo run --release --example smol_batch
//! ```
//!
//! It shows a typed kernel that many tasks share, memory that is limited by the number of tasks that run at
//! the same time, and a buffer that all launches read. No launch writes that buffer, so the launches
//! stay independent. No code here is `unsafe`.

#![allow(clippy::print_stdout)]
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Instant;

use futures::stream::{self, StreamExt, TryStreamExt};
use kiln::{Buffer, Queue, Runtime};

kiln::kernels! {
    mod filter = opencl_c("
        // Weighs each sample and its neighbours.
        kernel void low_pass(global const float *taps, int half_width, global const float *in,
                             global float *out) {
            int i = get_global_id(0), last = get_global_size(0) - 1;
            float sum = 0.0f;
            for (int k = -half_width; k <= half_width; ++k)
                sum += taps[k + half_width] * in[clamp(i + k, 0, last)];
            out[i] = sum;
        }
    ");
}

const SIGNALS: usize = 200;
/// Number of signals that are on the device at the same time, with their results.
const IN_FLIGHT: usize = 8;
const HALF_WIDTH: usize = 15;
/// Work-items in a work-group. Otherwise the driver chooses by the length of each signal, and some
/// drivers compile a kernel again for every size they choose.
const GROUP_SIZE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    smol::block_on(async {
        let rt = Runtime::new().await?;
        println!("{}, {}", rt.device(), rt.device().platform);
        let kernels = filter::Kernels::build(&rt).await?;
        let taps = triangle();
        let filter =
            Filter { kernels, taps: rt.buffer_from(taps.clone()).await?, queue: rt.queue() };

        let start = Instant::now();
        let results: Vec<_> = stream::iter(0..SIGNALS)
            .map(async |seed| Ok::<_, kiln::Error>((seed, filter.run(&rt, signal(seed)).await?)))
            .buffer_unordered(IN_FLIGHT)
            .try_collect()
            .await?;
        let seconds = start.elapsed().as_secs_f64();

        for (seed, result) in &results {
            check(&taps, &signal(*seed), result).map_err(|why| format!("signal {seed}: {why}"))?;
        }
        let samples: usize = results.iter().map(|(_, result)| result.len()).sum();
        println!(
            "{} signals, {samples} samples, {IN_FLIGHT} at a time: {:.1} ms, all as expected",
            results.len(),
            1e3 * seconds
        );
        // Programs are stored in the background.
        rt.drain().await;
        Ok(())
    })
}

/// Filter on the device that any number of tasks can use at the same time.
struct Filter {
    kernels: filter::Kernels,
    taps: Buffer<f32>,
    queue: Queue,
}

impl Filter {
    async fn run(&self, rt: &Runtime, signal: Vec<f32>) -> kiln::Result<Vec<f32>> {
        let samples = signal.len();
        let output = rt.buffer::<f32>(samples)?;
        let input = rt.buffer_from(signal).await?;
        // The event is not needed: the read below comes after the launch, and fails if the launch
        // fails.
        let half_width = HALF_WIDTH as i32;
        let launch =
            self.kernels.low_pass(samples, &self.taps, half_width, &input, output.write_only());
        let _launched = self.queue.submit(launch.local(GROUP_SIZE))?;
        self.queue.read(&output).await
    }
}

/// Returns the taps of the filter: a triangle whose sum is one.
fn triangle() -> Vec<f32> {
    let height = HALF_WIDTH as i32 + 1;
    let tap = |k: i32| (height - k.abs()) as f32 / (height * height) as f32;
    (1 - height..height).map(tap).collect()
}

/// Returns a noisy sine. Its length depends on `seed` and is a multiple of the work-group size.
fn signal(seed: usize) -> Vec<f32> {
    let mut random = seed as u32 + 1;
    let mut noise = move || {
        // Xorshift; George Marsaglia, 2003.
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        random as f32 / u32::MAX as f32 - 0.5
    };
    let samples = GROUP_SIZE * (64 + seed);
    (0..samples).map(|i| (i as f32 / (50 + seed) as f32).sin() + noise()).collect()
}

/// Compares a result with the same filter in double precision.
fn check(taps: &[f32], signal: &[f32], result: &[f32]) -> Result<(), String> {
    if result.len() != signal.len() {
        return Err(format!("{} samples became {}", signal.len(), result.len()));
    }
    for (i, &sample) in result.iter().enumerate() {
        let sum = taps.iter().enumerate().map(|(k, &tap)| {
            let at = (i + k).saturating_sub(HALF_WIDTH).min(signal.len() - 1);
            f64::from(tap) * f64::from(signal[at])
        });
        let expected: f64 = sum.sum();
        let close = (f64::from(sample) - expected).abs() < 1e-5;
        if !close {
            return Err(format!("sample {i} is {sample}, expected {expected}"));
        }
    }
    Ok(())
}
