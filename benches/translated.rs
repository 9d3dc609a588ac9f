//! Time of checked launches of kernels in OpenCL C relative to unchecked ones, in the same run, on every OpenCL device
//! of the named platforms: `cargo bench --bench translated`. The checked kernels are compiled from a translation of the
//! text, the unchecked ones from the text itself.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::time::Duration;

use futures::executor::block_on;
use kiln::{Kernel, Launch, Module, Runtime};
use support::{columns, compare, on_each_device, time};

/// Width and height of the picture.
const RANGE: [usize; 2] = [2048, 2048];

/// Launches of each run.
const LAUNCHES: u32 = 20;

/// Runs of each side, of which the fastest counts.
const ROUNDS: usize = 5;

/// Maximum ratio of the times.
const GOAL: f64 = 1.05;

fn main() -> kiln::Result<()> {
    on_each_device(async |rt| measure(rt).await)
}

async fn measure(rt: &Runtime) -> kiln::Result<()> {
    columns(&rt.device().to_string(), ["checked, us", "unchecked"]);
    let numbers = |n: usize| [(n % 251) as f32 / 251.0, (n % 13) as f32 / 13.0, 0.5, 1.0];
    let input = rt.buffer_from((0..RANGE[0] * RANGE[1]).map(numbers).collect::<Vec<_>>()).await?;
    let edges = rt.buffer::<f32>(RANGE[0] * RANGE[1])?;
    let blurred = rt.buffer::<[f32; 4]>(RANGE[0] * RANGE[1])?;

    let sobel = Module::opencl_c(include_str!("../examples/pipeline/edges.cl"));
    let launch = |kernel: &Kernel| kernel.launch(RANGE).args((&input, 0.5f32, 2.0f32, &edges));
    contest(rt, &sobel, "sobel", launch).await?;
    let sharpen = Module::opencl_c(include_str!("../examples/pipeline/sharpen.cl"));
    for name in ["blur_rows", "blur_columns"] {
        contest(rt, &sharpen, name, |kernel| kernel.launch(RANGE).args((&input, &blurred))).await?;
    }
    Ok(())
}

/// Compares the launches of a kernel.
async fn contest(
    rt: &Runtime,
    module: &Module,
    name: &str,
    launch: impl Fn(&Kernel) -> Launch,
) -> kiln::Result<()> {
    let program = rt.build(module).await?;
    // SAFETY: the kernels stay inside the picture, and its pixels are the buffers' elements.
    let unchecked = unsafe { program.kernel(name)? };
    let checked = rt.build(module).checked().await?.kernel(name)?;
    let verdict = launch(&checked).verdict().await?;
    assert!(verdict.is_proven(), "{verdict}");
    let queue = rt.queue();
    let run = |kernel: &Kernel, launches: u32| -> Duration {
        time(|| {
            let mut last = None;
            (0..launches)
                .for_each(|_| last = Some(queue.submit(launch(kernel)).expect("it is right")));
            block_on(last.expect("there is one")).expect("it runs");
        })
    };
    for kernel in [&checked, &unchecked] {
        run(kernel, LAUNCHES.div_ceil(10));
    }
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (best, kernel) in best.iter_mut().zip([&checked, &unchecked]) {
            *best = run(kernel, LAUNCHES).min(*best);
        }
    }
    compare(name, best[0], best[1], LAUNCHES, GOAL);
    Ok(())
}
