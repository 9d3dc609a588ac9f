//! Reads into memory of the caller allocate none for the elements.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures::executor::block_on;
use kiln::Runtime;
use kiln::simulated::Simulator;
use support::simulation;

/// Number of bytes of the elements.
const BYTES: usize = 256 << 10;

/// Allocator that counts allocations of at least half the size of the elements.
struct Counting;

static LARGE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGE.fetch_add(usize::from(layout.size() >= BYTES / 2), SeqCst);
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
fn a_thousand_reads_into_one_vector_allocate_no_memory_for_elements() {
    let reads = async |rt: Runtime| {
        let buffer = rt.buffer_from(vec![7u8; BYTES]).await.unwrap();
        let queue = rt.queue();
        let mut elements = queue.read(&buffer).await.unwrap();
        let before = LARGE.load(SeqCst);
        for _ in 0..1000 {
            elements = queue.read_into(&buffer, elements).await.unwrap();
        }
        assert_eq!(LARGE.load(SeqCst), before);
        drop(queue.read(&buffer).await.unwrap());
        assert_eq!(LARGE.load(SeqCst), before + 1, "a read without memory of the caller");
        assert_eq!(elements, [7; BYTES]);
    };
    block_on(async {
        reads(simulation::runtime(&Simulator::new()).await).await;
        support::on_each_device(reads).await;
    });
}
