//! Time of guarded variants of kernels relative to the kernels themselves, in the same run, on every OpenCL device of
//! the named platforms: `cargo bench --bench guarded`. The buffers of the guarded launches are one element shorter than
//! what the kernels access, so that no access to them is proven. The goal is 1.25 on CPUs, and 1.1 on GPUs for kernels
//! that are bound by memory, which all but `product` are.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::time::Duration;

use futures::executor::block_on;
use kiln::devices::DeviceKind;
use kiln::{Buffer, Kernel, Launch, Module, Runtime};
use support::{columns, compare, interleave, on_each_device, time};

const SOURCE: &str = "
kernel void axpy(global const float *x, global float *y, uint n) {
    size_t i = get_global_id(0);
    y[i] += 1.5f * x[i];
}
kernel void smooth(global const float *x, global float *y, uint n) {
    int i = get_global_id(0), last = n - 1;
    y[i] = 0.25f * x[max(i - 1, 0)] + 0.5f * x[i] + 0.25f * x[min(i + 1, last)];
}
kernel void gather(global const float *x, global float *y, uint n) {
    uint i = get_global_id(0);
    y[i] = x[(i * 9973u) % n];
}
kernel void transpose(global const float *x, global float *y, uint n) {
    uint i = get_global_id(0), side = 2048;
    y[i % side * (n / side) + i / side] = x[i];
}
kernel void sums(global const float *x, global float *y, uint n) {
    uint i = get_global_id(0);
    float sum = 0.0f;
    for (uint k = 0; k < 16; k++) sum += x[(i & ~15u) + k];
    y[i] = sum;
}
kernel void product(global const float *x, global float *y, uint n) {
    uint i = get_global_id(0) & 65535u, row = i / 256, column = i % 256;
    float sum = 0.0f;
    for (uint k = 0; k < 256; k++) sum += x[row * 256 + k] * x[k * 256 + column];
    y[get_global_id(0)] = sum;
}";

/// Kernels, with the numbers of work-items of their launches.
const KERNELS: [(&str, usize); 6] = [
    ("axpy", ITEMS),
    ("smooth", ITEMS),
    ("gather", ITEMS),
    ("transpose", ITEMS),
    ("sums", ITEMS),
    ("product", 1 << 16),
];

/// Elements of each buffer.
const ITEMS: usize = 1 << 22;

const ROUNDS: usize = 21;

fn main() -> kiln::Result<()> {
    on_each_device(async |rt| measure(rt).await)
}

async fn measure(rt: &Runtime) -> kiln::Result<()> {
    let module = Module::opencl_c(SOURCE);
    let (program, checked) = (rt.build(&module).await?, rt.build(&module).checked().await?);
    columns(&rt.device().to_string(), ["guarded, us", "unguarded"]);
    let numbers = |n: usize| (n % 251) as f32;
    let x = rt.buffer_from((0..ITEMS).map(numbers).collect::<Vec<_>>()).await?;
    let whole = [x, rt.buffer::<f32>(ITEMS)?];
    for (name, items) in KERNELS {
        // SAFETY: the kernels access elements below the number of work-items, or of 65,536 products.
        let unguarded = unsafe { program.kernel(name)? };
        let guarded = checked.kernel(name)?;
        let [x, y] = &whole;
        let short = [x.slice(..items - 1)?, y.slice(..items - 1)?];
        let verdict = launch(&guarded, items, &short).verdict().await?;
        assert!(!verdict.is_proven(), "{verdict}");
        let run = |kernel: &Kernel, buffers: &[Buffer<f32>; 2]| -> Duration {
            let launch = launch(kernel, items, buffers);
            let queue = rt.queue();
            time(|| block_on(queue.submit(launch).expect("it is right")).expect("it runs"))
        };
        let times =
            interleave(ROUNDS, [&mut || run(&guarded, &short), &mut || run(&unguarded, &whole)]);
        let is_bound_by_memory = name != "product";
        let goal = match rt.device().kind {
            DeviceKind::Gpu if is_bound_by_memory => 1.1,
            DeviceKind::Gpu => 0.0,
            _ => 1.25,
        };
        compare(name, times[0], times[1], 1, goal);
    }
    Ok(())
}

fn launch(kernel: &Kernel, items: usize, [x, y]: &[Buffer<f32>; 2]) -> Launch {
    kernel.launch(items).args((x, y, items as u32))
}
