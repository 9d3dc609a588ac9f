//! Compilers that lose their memory: a build fails or the driver ends the process, but nothing waits for ever.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a log states how the processes end")]

use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use futures::executor::block_on;
use kiln::{CacheConfig, Module, Runtime};
use support::children::{Child, DEVICE, report, variable};
use support::limits::Lowered;
use support::{on_each_device, test_name, tier};

const SEED: &str = "KILN_SEED";

/// Time limit of a process in seconds. Without a fault, it takes less than three.
const TIME_LIMIT: u32 = 60;

/// Number of times that a process takes the memory.
const ROUNDS: usize = 20;

/// Maximum number of bytes that are left.
const MAX_LEFT: usize = 6 << 20;

/// Memory that was allocated so that nothing else gets it.
struct Taken {
    /// Blocks with their sizes in bytes, the largest first.
    blocks: Vec<(*mut c_void, usize)>,
    _lowered: Lowered,
}

impl Taken {
    /// Takes all memory that the process has, but for a number of bytes, and keeps it from getting more.
    fn all_but(bytes: usize) -> Self {
        let mut blocks = Vec::with_capacity(1 << 18);
        let _lowered = Lowered::memory(0);
        let mut size = 1 << 20;
        while size >= 64 && blocks.len() < blocks.capacity() {
            // SAFETY: the call has no precondition.
            let block = unsafe { libc::malloc(size) };
            match block.is_null() {
                true => size /= 2,
                false => blocks.push((block, size)),
            }
        }
        let mut taken = Self { blocks, _lowered };
        let mut left = 0;
        while left < bytes && !taken.blocks.is_empty() {
            left += taken.free(0);
        }
        taken
    }

    /// Frees a block, and returns its size.
    fn free(&mut self, at: usize) -> usize {
        let (block, size) = self.blocks.swap_remove(at);
        // SAFETY: the block was allocated above, and is not in the list any more.
        unsafe { libc::free(block) };
        size
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        while !self.blocks.is_empty() {
            self.free(self.blocks.len() - 1);
        }
    }
}

/// Builds programs, one after the other, until `is_over`. Returns how many were built.
fn build_all(rt: &Runtime, is_over: &AtomicBool) -> u32 {
    let mut built = 0;
    for number in 0.. {
        if is_over.load(Relaxed) {
            break;
        }
        let text = format!("kernel void k(global uint *x) {{ x[get_global_id(0)] = {number}u; }}");
        built += u32::from(block_on(rt.build(&Module::opencl_c(text)).into_future()).is_ok());
    }
    built
}

#[test]
#[ignore = "run by another test, in processes of its own"]
fn child_that_loses_memory() {
    // SAFETY: the system ends this process if it hangs.
    unsafe { libc::alarm(TIME_LIMIT) };
    let mut rng = Rng::with_seed(variable(SEED).parse().unwrap());
    let builder = Runtime::builder().device(variable(DEVICE)).cache(CacheConfig::memory_only());
    let rt = block_on(builder.build()).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let builds = scope.spawn(|| build_all(&rt, &is_over));
        for _ in 0..ROUNDS {
            thread::sleep(Duration::from_millis(rng.u64(1..80)));
            let taken = Taken::all_but(rng.usize(..MAX_LEFT));
            thread::sleep(Duration::from_millis(20));
            drop(taken);
        }
        is_over.store(true, Relaxed);
        report("built", builds.join().unwrap());
    });
}

#[test]
fn compilers_that_lose_their_memory_do_not_hang() {
    let count = tier::cases("KILN_TEST_CHILDREN", 60, 6) as u64;
    let first =
        std::env::var(SEED).map_or_else(|_| fastrand::u64(..1 << 32), |seed| seed.parse().unwrap());
    block_on(on_each_device(async |rt: Runtime| {
        for seed in first..first + count {
            // All threads allocate from the memory that is taken.
            let variables = [
                (DEVICE, rt.device().index().to_string()),
                (SEED, seed.to_string()),
                ("MALLOC_ARENA_MAX", "1".to_owned()),
            ];
            let child = Child::start(&test_name!("child_that_loses_memory"), variables);
            let (status, output) = child.status_and_output();
            eprintln!("{SEED}={seed}: {status}");
            assert_ne!(status.signal(), Some(libc::SIGALRM), "{SEED}={seed} hangs: {output}");
        }
    }));
}
