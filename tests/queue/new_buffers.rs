//! New buffers hold zeros for every kind of first access, and nothing is filled that a command overwrites
//! anyway.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::sync::Barrier;
use std::thread;

use futures::executor::block_on;
use kiln::simulated::{Fault, Simulator};
use kiln::{ErrorKind, Kernel, Runtime};
use support::simulation::{runtime, with_kernels};
use support::{kernel, on_each_device};

/// Kernels that add one to each element, and that copy the elements.
const SOURCE: &str = "kernel void increment(global uint *x) { x[get_global_id(0)] += 1; }
    kernel void duplicate(global const uint *from, global uint *to) {
        to[get_global_id(0)] = from[get_global_id(0)];
    }";

/// Value of bytes that are written before memory is freed, which the next buffer of that size may contain.
const STALE: u8 = 0xa7;

/// Runs `test` with simulated devices of both kinds, and with every real device.
fn everywhere(test: impl AsyncFn(Runtime)) {
    block_on(async {
        for simulator in [Simulator::new(), Simulator::immediate()] {
            let simulator = with_kernels(simulator);
            simulator.kernel("increment", |call| {
                let x: Vec<_> = call.read::<u32>(0).iter().map(|x| x + 1).collect();
                call.write(0, &x);
            });
            test(runtime(&simulator).await).await;
        }
        on_each_device(test).await;
    });
}

/// Uses memory of these sizes, and frees it.
async fn fill_and_free(rt: &Runtime, sizes: &[usize]) {
    let queue = rt.queue();
    let buffers: Vec<_> = sizes
        .iter()
        .flat_map(|&bytes| [bytes; 4])
        .map(|bytes| {
            let buffer = rt.buffer::<u8>(bytes).unwrap();
            let _ = queue.fill(&buffer, STALE).unwrap();
            buffer
        })
        .collect();
    queue.marker().unwrap().await.unwrap();
    drop(buffers);
    rt.drain().await;
}

async fn named(rt: &Runtime, name: &str) -> Kernel {
    kernel(rt, SOURCE, name).await
}

#[test]
fn new_buffers_of_any_size_contain_zeros() {
    const SIZES: [usize; 9] = [1, 3, 20, 64, 4096, 100_001, 300_000, (1 << 20) + 24, 9 << 20];
    everywhere(async |rt| {
        fill_and_free(&rt, &SIZES).await;
        for bytes in SIZES {
            let buffers = [(); 4].map(|()| rt.buffer::<u8>(bytes).unwrap());
            for buffer in &buffers {
                let found = rt.queue().read(buffer).await.unwrap();
                assert!(found.iter().all(|byte| *byte == 0), "{bytes} bytes on {}", rt.device());
            }
        }
    });
}

#[test]
fn new_buffers_are_zeroed_before_launches_copies_and_partial_writes() {
    const LEN: usize = 4096;
    everywhere(async |rt| {
        fill_and_free(&rt, &[4 * LEN]).await;
        let (increment, duplicate) = (named(&rt, "increment").await, named(&rt, "duplicate").await);
        let queue = rt.queue();
        let new = || rt.buffer::<u32>(LEN).unwrap();

        // Read and written.
        let x = new();
        queue.submit(increment.launch(LEN).args((&x,))).unwrap();
        assert_eq!(queue.read(&x).await.unwrap(), [1; LEN]);
        // Read only; and declared as written, although only a part is written.
        let (from, to) = (new(), new());
        queue.submit(duplicate.launch(16).args((&from, to.write_only()))).unwrap();
        assert_eq!(queue.read(&to).await.unwrap(), [0; LEN]);
        // Copied from and to.
        let (from, to) = (new(), new());
        let _ = queue.copy(&from, &to).unwrap();
        assert_eq!(queue.read(&to).await.unwrap(), [0; LEN]);

        // Parts and casts, written before any other access.
        let part = 1024..2048;
        let expected = |value: u32| {
            let mut all = vec![0; LEN];
            all[part.clone()].fill(value);
            all
        };
        let x = new();
        let _ = queue.fill(&x.slice(part.clone()).unwrap(), 7).unwrap();
        assert_eq!(queue.read(&x).await.unwrap(), expected(7));
        let x = new();
        let _ = queue.write(&x.slice(part.clone()).unwrap(), vec![8; part.len()]).unwrap();
        assert_eq!(queue.read(&x).await.unwrap(), expected(8));
        let x = new();
        let slice = x.slice(part.clone()).unwrap();
        drop(x);
        queue.submit(increment.launch(part.len()).args((&slice,))).unwrap();
        assert_eq!(queue.read(&slice).await.unwrap(), [1; 1024]);
        let x = new();
        let bytes = x.cast::<u8>().unwrap();
        let _ = queue.fill(&bytes.slice(4096..8192).unwrap(), 1).unwrap();
        assert_eq!(queue.read(&x).await.unwrap(), expected(0x0101_0101));

        // Completely written, so it is not zeroed afterwards.
        let x = new();
        let _ = queue.write(&x, vec![9; LEN]).unwrap();
        queue.submit(increment.launch(LEN).args((&x,))).unwrap();
        assert_eq!(queue.read(&x).await.unwrap(), [10; LEN]);
    });
}

#[test]
fn concurrent_first_launches_do_not_lose_writes_to_zeroing() {
    const THREADS: usize = 4;
    const LEN: usize = 1024;
    everywhere(async |rt| {
        let increment = named(&rt, "increment").await;
        for _ in 0..50 {
            let x = rt.buffer::<u32>(LEN).unwrap();
            let barrier = Barrier::new(THREADS);
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        barrier.wait();
                        rt.queue().submit(increment.launch(LEN).args((&x,))).unwrap();
                    });
                }
            });
            assert_eq!(rt.queue().read(&x).await.unwrap(), [THREADS as u32; LEN]);
        }
    });
}

#[test]
fn buffers_are_not_zeroed_if_overwritten_or_declared_uninitialized() {
    block_on(async {
        let simulator = with_kernels(Simulator::new());
        let rt = runtime(&simulator).await;
        let queue = rt.queue();
        let commands = || rt.stats().commands.submitted;

        let before = commands();
        let x = rt.buffer::<u32>(64).unwrap();
        assert_eq!(commands(), before, "an allocation is not a command");
        queue.write(&x, vec![1; 64]).unwrap().await.unwrap();
        let y = rt.buffer::<u32>(64).unwrap();
        queue.fill(&y, 2).unwrap().await.unwrap();
        assert_eq!(queue.read(&x).await.unwrap(), [1; 64]);
        let _ = rt.buffer_from(vec![3; 64]).await.unwrap();
        assert_eq!(commands() - before, 4, "two writes, a fill and a read");

        // SAFETY: the contents are checked below, on a device whose memory belongs to the test.
        let z = unsafe { rt.buffer_uninit::<u8>(64).unwrap() };
        let before = commands();
        assert_eq!(queue.read(&z).await.unwrap(), [0xa5; 64], "as the simulated device left it");
        assert_eq!(commands() - before, 1);

        // The buffer is zeroed only once.
        let z = rt.buffer::<u8>(64).unwrap();
        let before = commands();
        for _ in 0..3 {
            assert_eq!(queue.read(&z).await.unwrap(), [0; 64]);
        }
        assert_eq!(commands() - before, 4, "three reads and a fill");
    });
}

#[test]
fn a_buffer_whose_zeroing_failed_is_unreadable_until_overwritten() {
    block_on(async {
        let simulator = with_kernels(Simulator::new());
        let rt = runtime(&simulator).await;
        let queue = rt.queue();
        let x = rt.buffer::<u32>(64).unwrap();
        simulator.fail_enqueues(1, Fault::Refused);
        let error = queue.read(&x).await.expect_err("zeroing it failed");
        assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
        queue.read(&x).await.expect_err("it is still not zeroed");
        let _ = queue.fill(&x, 5).unwrap();
        assert_eq!(queue.read(&x).await.unwrap(), [5; 64]);
    });
}
