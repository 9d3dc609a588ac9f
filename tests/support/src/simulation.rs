//! Shared code of the suites that use the simulated device.

use std::thread;
use std::time::{Duration, Instant};

use kiln::simulated::Simulator;
use kiln::{Kernel, Module, Runtime, RuntimeBuilder};

/// Source of the kernels that [`with_kernels`] defines.
pub const KERNELS: &str = "
    kernel void add(global const uint *a, global const uint *b, global uint *c) {
        size_t i = get_global_id(0);
        c[i] = a[i] + b[i];
    }
    kernel void scale(uint factor, global uint *x) {
        x[get_global_id(0)] *= factor;
    }
    kernel void blend(global const uint *a, global const uint *b, global const uint *c,
                    global const uint *d, global uint *e) {
        size_t i = get_global_id(0);
        e[i] = 3 * e[i] + a[i] + 5 * b[i] + 7 * c[i] + 11 * d[i];
    }
    kernel void duplicate(global const uint *from, global uint *to) {
        size_t i = get_global_id(0);
        to[i] = from[i];
    }";

/// Defines the kernels of [`KERNELS`] on a device.
pub fn with_kernels(simulator: Simulator) -> Simulator {
    simulator.kernel("add", |call| {
        let (a, b) = (call.read::<u32>(0), call.read::<u32>(1));
        let c: Vec<_> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
        call.write(2, &c[..call.global_size()[0]]);
    });
    simulator.kernel("scale", |call| {
        let factor = call.value::<u32>(0);
        let x: Vec<_> = call.read::<u32>(1).iter().map(|x| x.wrapping_mul(factor)).collect();
        call.write(1, &x[..call.global_size()[0]]);
    });
    simulator.kernel("blend", |call| {
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|index| call.read::<u32>(index));
        let mixed: Vec<_> =
            (0..call.global_size()[0]).map(|i| blend(a[i], b[i], c[i], d[i], e[i])).collect();
        call.write(4, &mixed);
    });
    simulator.kernel("duplicate", |call| {
        let from = call.read::<u32>(0);
        call.write(1, &from[..call.global_size()[0]]);
    });
    simulator
}

/// Returns the expected result of the kernel `blend` for an element.
pub fn blend(a: u32, b: u32, c: u32, d: u32, e: u32) -> u32 {
    [(5, b), (7, c), (11, d), (3, e)]
        .into_iter()
        .fold(a, |sum, (factor, x)| sum.wrapping_add(x.wrapping_mul(factor)))
}

/// Creates a runtime with one simulated device.
pub async fn runtime(simulator: &Simulator) -> Runtime {
    runtime_with(simulator, Runtime::builder()).await
}

pub async fn runtime_with(simulator: &Simulator, builder: RuntimeBuilder) -> Runtime {
    builder.simulator(simulator).build().await.expect("the simulator starts")
}

/// Builds a kernel of [`KERNELS`].
pub async fn kernel(rt: &Runtime, name: &str) -> Kernel {
    let program = rt.build(&Module::opencl_c(KERNELS)).await.expect("the source is valid");
    // SAFETY: the suites give the kernels buffers with as many elements as work-items.
    unsafe { program.kernel(name) }.expect("the kernel exists")
}

/// Waits until a condition on threads of Kiln or of the device holds. Panics after 60 s.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Waits until the device holds no objects.
#[track_caller]
pub fn assert_at_rest(simulator: &Simulator) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let counts = simulator.counts();
        if (counts.live_allocations, counts.live_events, counts.live_programs) == (0, 0, 0) {
            return;
        }
        assert!(Instant::now() < deadline, "never freed: {counts:?}");
        thread::sleep(Duration::from_micros(200));
    }
}
