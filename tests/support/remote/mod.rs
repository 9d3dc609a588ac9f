//! What the suites of the remote cache share: services of their own, started here, and machines,
//! which are runtimes with disks of their own.

#![allow(dead_code, unreachable_pub, reason = "each suite uses a part of it")]
#![allow(clippy::print_stderr, reason = "a log tells what could not be tested here")]

pub mod flood;
pub mod proxy;
pub mod services;
#[path = "../told.rs"]
mod told;
#[path = "../tools.rs"]
pub mod tools;
pub mod warnings;

use std::time::{Duration, Instant};

use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, Image, Origin, Program, Runtime, Stats};
use tempfile::TempDir;

/// As long as no healthy answer ever takes here, whatever else the system does.
pub const PATIENT: Duration = Duration::from_secs(600);

/// Program `number`, with a kernel of its own name.
pub fn image(number: u32) -> Image {
    Image::opencl_c(format!(
        "kernel void write_{number}(global uint *x) {{ x[get_global_id(0)] = {number}; }}"
    ))
}

/// A program of at least so many bytes.
pub fn large_image(number: u32, bytes: usize) -> Image {
    Image::opencl_c(format!(
        "#pragma binary_size {bytes}\nkernel void write_{number}(global uint *x) {{}}"
    ))
}

/// A simulated device that knows what programs compute.
pub fn simulator() -> Simulator {
    let simulator = Simulator::immediate();
    for number in 0..100 {
        simulator.kernel(format!("write_{number}"), move |call| {
            let items = call.global_size()[0];
            call.write(0, &vec![number; items]);
        });
    }
    simulator
}

/// A machine of a fleet: a disk of its own, and a device that is alike on all of them.
pub struct Machine {
    pub disk: TempDir,
    pub simulator: Simulator,
}

impl Machine {
    pub fn new() -> Self {
        Self { disk: tempfile::tempdir().expect("there is room"), simulator: simulator() }
    }

    /// Its settings, with a remote cache that is waited for if it must be.
    pub fn cache(&self, url: &str) -> CacheConfig {
        CacheConfig::at(self.disk.path()).remote(url).remote_budget(PATIENT).remote_timeout(PATIENT)
    }

    pub async fn start(&self, cache: CacheConfig) -> Runtime {
        let builder = Runtime::builder().simulator(&self.simulator).cache(cache);
        builder.build().await.expect("it starts")
    }

    /// Starts as a process would, builds a program, sees that it is the right one, and has all that
    /// follows happen.
    pub fn build(&self, cache: CacheConfig, number: u32) -> (Origin, Stats) {
        block_on(async {
            let rt = self.start(cache).await;
            let program = rt.build(&image(number)).await.expect("it builds");
            assert_right(&rt, &program, number).await;
            rt.drain().await;
            (program.origin(), rt.stats())
        })
    }
}

/// That a program computes what program `number` does.
pub async fn assert_right(rt: &Runtime, program: &Program, number: u32) {
    let name = format!("write_{number}");
    assert_eq!(program.kernel_names(), [&*name]);
    // SAFETY: it writes one element a work-item.
    let write = unsafe { program.kernel(&name) }.expect("the kernel is there");
    let x = rt.buffer_from(vec![u32::MAX; 4]).await.expect("there is memory");
    rt.queue().submit(write.launch(4).args((&x,))).expect("it fits");
    assert_eq!(rt.queue().read(&x).await.expect("it runs"), [number; 4]);
}

/// Until something has happened that follows from what was done; panics when it does not.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so().await {
        assert!(Instant::now() < deadline, "never happened: {what}");
        smol::Timer::after(Duration::from_millis(20)).await;
    }
}
