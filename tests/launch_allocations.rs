//! Allocations of a launch, on a device whose driver allocates one event for each.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{Module, Runtime};

/// Allocator that counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is exiting counts nothing.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_launch_allocates_once_besides_the_driver() {
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
