//! Code that the tests of all crates share: tiers, programs of the system, and damaged modules.

#![allow(missing_docs, reason = "names say it where a comment would repeat them")]
#![allow(missing_debug_implementations, clippy::must_use_candidate, reason = "only tests use it")]
#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a log tells what a test ran on")]

pub mod damage;
pub mod programs;
pub mod tier;

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Calls `work` for each item, with as many items at a time as there are processors.
pub fn at_once<T: Sync>(all: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Relaxed)) {
                    work(one);
                }
            });
        }
    });
}
