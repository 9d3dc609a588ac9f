//! Reads into memory of the caller allocate none for the elements.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::sync::atomic::Ordering::SeqCst;

use futures::executor::block_on;
use kiln::Runtime;
use kiln::simulated::Simulator;
use support::simulation;

use crate::{LARGE, MIN_LARGE, alone};

/// Number of bytes of the elements, which are a large allocation.
const BYTES: usize = 2 * MIN_LARGE;

#[test]
fn a_thousand_reads_into_one_vector_allocate_no_memory_for_elements() {
    let _alone = alone();
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
