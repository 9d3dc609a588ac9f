//! Plug-in: a library that an application loads, calls and unloads, and that computes on a device. It also
//! brings a device library for programs of the application.
//!
//! Kiln's threads, and those of drivers, outlive the call. Therefore Kiln keeps the library in memory once it
//! has created a runtime, even if the application unloads it.
//!
//! The plug-in runs on machines of others, which need not have the compilers that translate OpenCL C for the check
//! of a kernel. So it gets its kernel with `unsafe`, which no other example needs for a kernel. It promises what
//! Kiln would prove, next to the launch that the promise is about.

use futures::executor::block_on;
use kiln::{CacheConfig, Module, Result, Runtime};

const SOURCE: &str = "kernel void ones(global uint *x) { x[get_global_id(0)] = 1; }";

const LENGTH: usize = 4096;

kiln::device_library!(
    opencl_c: "float layered(float x) { return x + 5; }
               float plugged(float x) { return x * 5; }",
    exporting: ["layered", "plugged"],
);
kiln::export_device_libraries!();

/// Sets 4096 elements to one on the device with this number, and returns their sum; zero on failure.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_plug_in_sum(device: usize) -> u64 {
    block_on(sum(device)).unwrap_or_default()
}

async fn sum(device: usize) -> Result<u64> {
    let builder = Runtime::builder().cache(CacheConfig::memory_only());
    let rt = builder.device(device.to_string()).build().await?;
    let program = rt.build(&Module::opencl_c(SOURCE)).await?;
    // SAFETY: the kernel writes `x[i]` for `i` below the global size, which is the length of `x` in the only
    // launch below. It has no other effect.
    let ones = unsafe { program.kernel("ones")? };
    let x = rt.buffer::<u32>(LENGTH)?;
    let queue = rt.queue();
    let _launched = queue.submit(ones.launch(LENGTH).args((&x,)))?;
    Ok(queue.read(&x).await?.into_iter().map(u64::from).sum())
}
