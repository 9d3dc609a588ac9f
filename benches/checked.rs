//! Cost of repeated checked launches relative to unchecked launches of the same kernel, in the same run, on
//! every OpenCL device of the named platforms: `cargo bench --bench checked`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::time::Duration;

use futures::executor::block_on;
use kiln::internal::translate::spirv_of;
use kiln::{Buffer, Kernel, Launch, Module, Queue, Runtime};
use support::{absolute, columns, compare, interleave, on_each_device, time};

const SOURCE: &str = "
kernel void axpy(float a, global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] += a * x[i];
}
kernel void bounded(float a, global const float *x, global float *y, int n) {
    int i = get_global_id(0);
    if (i < n) y[i] += a * x[i];
}
kernel void apart(float a, global const float *restrict x, global float *restrict y) {
    size_t i = get_global_id(0);
    y[i] += a * x[i];
}";

/// Work-items of each launch.
const ITEMS: usize = 64;

/// Launches of each run.
const LAUNCHES: u32 = 2000;

/// Runs of each side.
const ROUNDS: usize = 101;

/// Maximum additional time of a checked launch, in nanoseconds.
const GOAL: f64 = 50.0;

fn main() -> kiln::Result<()> {
    on_each_device(async |rt| measure(rt).await)
}

async fn measure(rt: &Runtime) -> kiln::Result<()> {
    let module = spirv_of(rt, &Module::opencl_c(SOURCE), "").await?;
    let (program, checked) = (rt.build(&module).await?, rt.build(&module).checked().await?);
    columns(&rt.device().to_string(), ["checked, us", "unchecked"]);
    let x = rt.buffer_from(vec![1.0f32; ITEMS]).await?;
    let y = rt.buffer_from(vec![1.0f32; ITEMS]).await?;
    for name in ["axpy", "bounded", "apart"] {
        // SAFETY: the kernels stay below the global size or `n`, which are the buffers' length.
        let unchecked = unsafe { program.kernel(name)? };
        let sides = Sides { queue: rt.queue(), x: &x, y: &y, has_length: name == "bounded" };
        sides.compare(name, &checked.kernel(name)?, &unchecked);
    }
    Ok(())
}

/// Launches of a kernel, checked and unchecked.
struct Sides<'a> {
    queue: Queue,
    x: &'a Buffer<f32>,
    y: &'a Buffer<f32>,
    has_length: bool,
}

impl Sides<'_> {
    fn launch(&self, kernel: &Kernel) -> Launch {
        let launch = kernel.launch(ITEMS).args((1.0f32, self.x, self.y));
        if self.has_length { launch.arg(ITEMS as i32) } else { launch }
    }

    /// Returns the time of the calls that submit launches, without the time until they have ended.
    fn submit(&self, kernel: &Kernel) -> Duration {
        let mut last = None;
        let submit = || self.queue.submit(self.launch(kernel)).expect("it is right");
        let submits = time(|| (0..LAUNCHES).for_each(|_| last = Some(submit())));
        block_on(last.expect("there is one")).expect("it runs");
        submits
    }

    /// Returns the time of the calls that submit launches to a scope, which never run. No thread of the driver
    /// disturbs them.
    fn collect(&self, kernel: &Kernel) -> Duration {
        let scope = self.queue.start_fusion();
        let submit = || drop(scope.submit(self.launch(kernel)).expect("it is right"));
        let submits = time(|| (0..LAUNCHES).for_each(|_| submit()));
        scope.discard();
        submits
    }

    fn compare(&self, name: &str, checked: &Kernel, unchecked: &Kernel) {
        let submits =
            interleave(ROUNDS, [&mut || self.submit(checked), &mut || self.submit(unchecked)]);
        compare(&format!("submit `{name}`"), submits[0], submits[1], LAUNCHES, 0.0);
        // Differences of runs that follow each other drift least.
        let differences = (0..ROUNDS).map(|_| {
            let checked = self.collect(checked);
            checked.as_secs_f64() - self.collect(unchecked).as_secs_f64()
        });
        let mut differences: Vec<_> = differences.collect();
        // The launches that did not run count as failed, and so do their outputs.
        self.queue.fill(self.y, 1.0).expect("it fits");
        differences.sort_by(f64::total_cmp);
        let nanos = differences[ROUNDS / 2] * 1e9 / f64::from(LAUNCHES);
        absolute(&format!("check of `{name}`, as the median difference"), nanos, GOAL);
    }
}
