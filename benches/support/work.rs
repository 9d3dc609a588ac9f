//! A command that takes a chosen time, through the raw driver and through Kiln.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

use std::time::Duration;

use kiln::{Buffer, CacheConfig, Event, Kernel, Module, Queue, Runtime};

use crate::raw::Raw;
use crate::support::{median, time};

/// Source of the command, which runs as one work-item.
const SOURCE: &str = "kernel void work(float count, global const float *x, global float *y) {
    uint value = as_uint(x[0]);
    for (uint rest = (uint)count; rest > 0; --rest)
        value ^= value * 1664525u + rest;
    y[0] = as_float(value);
}";

/// Creates the command for the raw driver, if the platform is there.
pub(crate) fn raw(platform: &str) -> Option<Raw> {
    raw_on(platform, 0)
}

/// Creates the command for a device, given by its number, of the platform, if the device is there.
pub(crate) fn raw_on(platform: &str, number: usize) -> Option<Raw> {
    Raw::on((platform, number), SOURCE, "work", 1)
}

/// Sets how long the raw driver's command takes. The same number then works for [`Work::submit`].
pub(crate) fn set_length(raw: &mut Raw, length: Duration) {
    let mut took = |count: f32| {
        raw.number = count;
        median((0..9).map(|_| time(|| raw.enqueue_and_spin())).collect()).as_secs_f64()
    };
    const COUNTS: [f32; 2] = [100_000.0, 1_100_000.0];
    let [few, many] = COUNTS.map(&mut took);
    let each = (many - few) / f64::from(COUNTS[1] - COUNTS[0]);
    raw.number = (length.as_secs_f64() / each) as f32;
}

/// The command for Kiln.
pub(crate) struct Work {
    pub(crate) rt: Runtime,
    pub(crate) queue: Queue,
    kernel: Kernel,
    buffers: [Buffer<f32>; 2],
}

impl Work {
    /// Creates a runtime whose awaits busy-wait for up to `spin`.
    pub(crate) async fn new(platform: &str, spin: Duration) -> kiln::Result<Self> {
        Self::on(platform, 0, spin).await
    }

    /// Creates a runtime for a device, given by its number, of the platform.
    pub(crate) async fn on(platform: &str, number: usize, spin: Duration) -> kiln::Result<Self> {
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let rt = builder.spin(spin).build().await?;
        let platform = &rt.device().platform;
        let of_platform = rt.devices().iter().filter(|device| device.platform == *platform);
        let devices: Vec<_> = of_platform.cloned().collect();
        let rt = rt.on(&devices[number]).await?;
        let program = rt.build(&Module::opencl_c(SOURCE)).await?;
        // SAFETY: `work` touches the first elements only.
        let kernel = unsafe { program.kernel("work")? };
        let x = rt.buffer_from(vec![1.0f32]).await?;
        let y = rt.buffer_from(vec![1.0f32]).await?;
        Ok(Self { queue: rt.queue(), rt, kernel, buffers: [x, y] })
    }

    pub(crate) fn submit(&self, count: f32) -> Event {
        let [x, y] = &self.buffers;
        let launch = self.kernel.launch(1).args((count, x, y));
        self.queue.submit(launch).expect("it is right")
    }
}
