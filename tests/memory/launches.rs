//! Allocations of a launch, on a device whose driver allocates one event for each.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{Module, Runtime};

use crate::{ALLOCATIONS, alone};

#[test]
fn a_launch_allocates_once_besides_the_driver() {
    let _alone = alone();
    const ROUNDS: usize = 20;
    const LAUNCHES: usize = 1000;
    block_on(async {
        let simulator = Simulator::immediate();
        let rt = Runtime::builder().simulator(&simulator).build().await.unwrap();
        let module = Module::opencl_c("kernel void copy(global const uint *x, global uint *y) {}");
        // SAFETY: the kernel does nothing.
        let kernel = unsafe { rt.build(&module).await.unwrap().kernel("copy").unwrap() };
        let (x, y) = (rt.buffer::<u32>(16).unwrap(), rt.buffer::<u32>(16).unwrap());
        let queue = rt.queue();
        let round = |_| {
            let before = ALLOCATIONS.get();
            for _ in 0..LAUNCHES {
                drop(queue.submit(kernel.launch(16).args((&x, &y))).unwrap());
            }
            ALLOCATIONS.get() - before
        };
        // In some rounds, other threads release launches, whose memory this thread cannot reuse.
        let fewest = (0..ROUNDS).map(round).min().unwrap();
        assert!(fewest <= LAUNCHES * 9 / 4, "{fewest} allocations for {LAUNCHES} launches");
    });
}
