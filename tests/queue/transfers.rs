//! Large reads, writes and fills: submitting one does not block on the device, they transfer all their bytes,
//! and they keep their order relative to other commands.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands need nobody who awaits them")]

use std::fmt::Debug;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytemuck::Pod;
use fastrand::Rng;
use futures::executor::block_on;
use futures::future::join_all;
use kiln::commands::Status;
use kiln::simulated::{Fault, Simulator};
use kiln::{Buffer, ErrorKind, Event, Queue, Read, Runtime};
use support::simulation::{eventually, runtime, runtime_with};
use support::tier;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// Approximate size of the staging memory of NVIDIA's driver for waiting transfers.
const STAGING: usize = 48 * MIB;

/// Time limit: longer than any driver takes, and shorter than the limit of a test.
const FOR_EVER: Duration = Duration::from_secs(30);

/// Returns bytes that differ between parts. The parts are shorter than one transfer step, whose size is not a
/// multiple of theirs.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    const PART: usize = 60_000;
    let mut rng = Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    bytes.chunks_mut(PART).for_each(|part| part.fill(rng.u8(..)));
    bytes
}

/// Runs `test` with simulated devices of both kinds, and with every real device.
fn everywhere(test: impl AsyncFn(Runtime)) {
    block_on(async {
        for simulator in [Simulator::new(), Simulator::immediate()] {
            test(runtime(&simulator).await).await;
        }
        support::on_each_device(test).await;
    });
}

/// Submits commands on a thread to a device that hangs, whose driver blocks callers once its staging memory is
/// full. Fails if the thread does not return.
fn submits_at_once(submit: impl FnOnce(&Runtime, &Queue) + Send + 'static) {
    let simulator = Simulator::new();
    simulator.limit_staging(STAGING);
    let rt = block_on(runtime(&simulator));
    let hangs = simulator.pause();
    let (sender, done) = mpsc::channel();
    let submitter = rt.clone();
    let thread = thread::spawn(move || {
        submit(&submitter, &submitter.queue());
        sender.send(()).unwrap();
    });
    let came_back = done.recv_timeout(FOR_EVER);
    drop(hangs);
    thread.join().unwrap();
    came_back.expect("submission does not wait for the device");
    block_on(rt.drain());
}

#[test]
fn a_large_write_does_not_block_submission() {
    submits_at_once(|rt, queue| {
        let x = rt.buffer(2 * STAGING).unwrap();
        let _ = queue.write(&x, vec![1u8; 2 * STAGING]).unwrap();
        // The next command does not wait for the first.
        let _ = queue.fill(&x, 2).unwrap();
    });
}

#[test]
fn a_large_read_does_not_block_submission() {
    submits_at_once(|rt, queue| {
        let x = rt.buffer(2 * STAGING).unwrap();
        let _ = queue.fill(&x, 2u8).unwrap();
        drop(queue.read(&x));
    });
}

#[test]
fn many_small_transfers_do_not_block_submission() {
    submits_at_once(|rt, queue| {
        let parts: Vec<Buffer<u8>> = (0..96).map(|_| rt.buffer(MIB).unwrap()).collect();
        for part in &parts {
            let _ = queue.write(part, vec![1; MIB]).unwrap();
        }
        for part in &parts {
            drop(queue.read(part));
        }
    });
}

#[test]
fn large_transfers_are_complete() {
    everywhere(async |rt| {
        let queue = rt.queue();
        for len in [4 * MIB, 4 * MIB + 1, 8 * MIB, 16 * MIB, 16 * MIB + 4097, 40 * MIB + 3] {
            let (x, y) = (rt.buffer::<u8>(len).unwrap(), rt.buffer::<u8>(len).unwrap());
            let bytes = pattern(len, len as u64);
            let _ = queue.write(&x, bytes.clone()).unwrap();
            let _ = queue.copy(&x, &y).unwrap();
            let _ = queue.fill(&x.slice(..100).unwrap(), 7).unwrap();
            let (x, y) = (queue.read(&x), queue.read(&y));
            assert!(y.await.unwrap() == bytes, "{len} bytes");
            let x = x.await.unwrap();
            assert!(x[..100] == [7; 100] && x[100..] == bytes[100..], "{len} bytes");
        }
    });
}

#[test]
fn slices_are_transferred_to_their_offsets() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let x = rt.buffer::<u8>(24 * MIB).unwrap();
        let _ = queue.fill(&x, 0).unwrap();
        let part = x.slice(5 * MIB + 3..22 * MIB + 1).unwrap();
        let bytes = pattern(part.len(), 1);
        let _ = queue.write(&part, bytes.clone()).unwrap();
        let (all, read) = (queue.read(&x), queue.read(&part));
        assert!(read.await.unwrap() == bytes);
        let all = all.await.unwrap();
        assert!(all[5 * MIB + 3..22 * MIB + 1] == bytes);
        let around = [&all[..5 * MIB + 3], &all[22 * MIB + 1..]];
        assert!(around.iter().all(|bytes| **bytes == vec![0; bytes.len()]));
    });
}

#[test]
fn large_fills_reach_the_end() {
    everywhere(async |rt| {
        // NVIDIA's driver does not return from a fill of 7 GiB.
        let is_nvidia = rt.device().platform.contains("NVIDIA");
        let len = if is_nvidia { 7 * GIB + MIB } else { 600 * MIB } + 3;
        let (queue, x) = (rt.queue(), rt.buffer::<u8>(len).unwrap());
        let _ = queue.fill(&x.slice(len - 8..).unwrap(), 9).unwrap();
        let _ = queue.fill(&x.slice(..len - 2).unwrap(), 7).unwrap();
        for start in [0, 256 * MIB - 4, len / 2, len / 256 / MIB * 256 * MIB - 4, len - 11] {
            let part = x.slice(start..start + 9).unwrap();
            assert_eq!(queue.read(&part).await.unwrap(), [7; 9], "from {start}");
        }
        assert_eq!(queue.read(&x.slice(len - 4..).unwrap()).await.unwrap(), [7, 7, 9, 9]);
    });
}

#[test]
fn fills_at_large_offsets_write_the_right_elements() {
    async fn fill<T: Pod + Send + Sync + Debug + PartialEq>(
        rt: &Runtime,
        value: impl Fn(usize) -> T,
    ) {
        let most = rt.device().limits.max_allocation.min(9 * GIB as u64) as usize;
        let (queue, x) = (rt.queue(), rt.buffer::<T>(most / size_of::<T>()).unwrap());
        // Ends of the ranges of drivers' numbers with 31, 32 or 33 bits, in bytes and in elements.
        let ends = [GIB, 2 * GIB, 4 * GIB, 8 * GIB, most];
        let mut starts: Vec<_> = ends.into_iter().flat_map(|end| [end - 64, end]).collect();
        starts.retain(|start| start + 64 <= most);
        starts.dedup();
        let parts: Vec<_> = starts
            .into_iter()
            .map(|start| start / size_of::<T>())
            .map(|start| x.slice(start..start + 64 / size_of::<T>()).unwrap())
            .collect();
        for (index, part) in parts.iter().enumerate() {
            let _ = queue.fill(part, value(index)).unwrap();
        }
        for (index, part) in parts.iter().enumerate() {
            let found = queue.read(part).await.unwrap();
            assert!(
                found.iter().all(|element| *element == value(index)),
                "part {index}: {found:?}"
            );
        }
    }
    block_on(support::on_each_device(async |rt| {
        fill(&rt, |index| 1 + index as u32).await;
        // The memory takes long to be zeroed each time.
        if tier::is_full() {
            fill(&rt, |index| 1 + index as u8).await;
            fill(&rt, |index| [index as u64; 4]).await;
        }
    }));
}

/// Fills use different driver calls, depending on the pattern, its position and the number of repetitions.
#[test]
fn fills_write_exactly_their_range() {
    async fn fill<T: Pod + Send + Sync + Debug + PartialEq>(rt: &Runtime, [old, new]: [T; 2]) {
        let size = size_of::<T>();
        for bytes in [1, 130, 70_001, 300_003, 9 * MIB + 77] {
            let count = bytes.div_ceil(size);
            let (queue, x) = (rt.queue(), rt.buffer::<T>(count + 8).unwrap());
            for start in [0, 1, 4, 7] {
                let _ = queue.fill(&x, old).unwrap();
                let _ = queue.fill(&x.slice(start..start + count).unwrap(), new).unwrap();
                let found = queue.read(&x).await.unwrap();
                let expected = |at| if (start..start + count).contains(&at) { new } else { old };
                let wrong = (0..count + 8).find(|&at| found[at] != expected(at));
                assert_eq!(wrong, None, "{count} of {size} bytes from {start}, {new:?}");
            }
        }
    }
    everywhere(async |rt| {
        fill(&rt, [0u8, 0xa5]).await;
        fill(&rt, [1u16, 0]).await;
        fill(&rt, [0u16, 0x1234]).await;
        fill(&rt, [-1.5f32, 0.1]).await;
        fill(&rt, [0.1f64, 0.0]).await;
        fill(&rt, [[3u8; 128], std::array::from_fn(|at| at as u8)]).await;
    });
}

/// Submits commands on parts of three buffers, large and small, without waiting for any. Compares the results
/// of the reads with those of the same operations on the host.
async fn submit_at_random(rt: &Runtime, rng: &mut Rng, commands: usize) {
    const LEN: usize = 9 * MIB;
    let queues = [rt.queue(), rt.queue()];
    let buffers: Vec<Buffer<u8>> = (0..3).map(|_| rt.buffer(LEN).unwrap()).collect();
    let mut expected = vec![vec![0u8; LEN]; 3];
    let mut reads: Vec<(Read<u8>, Vec<u8>)> = Vec::new();
    for buffer in &buffers {
        let _ = queues[0].fill(buffer, 0).unwrap();
    }
    for command in 0..commands {
        let (at, queue) = (rng.usize(..3), &queues[rng.usize(..2)]);
        let start = rng.usize(..LEN - 1);
        let most = if rng.bool() { LEN - start } else { (LEN - start).min(100_000) };
        let range = start..start + rng.usize(1..=most);
        let part = buffers[at].slice(range.clone()).unwrap();
        match rng.usize(..4) {
            0 => {
                let bytes = pattern(range.len(), command as u64);
                expected[at][range].copy_from_slice(&bytes);
                let _ = queue.write(&part, bytes).unwrap();
            }
            1 => reads.push((queue.read(&part), expected[at][range].to_vec())),
            2 => {
                let value = rng.u8(..);
                expected[at][range].fill(value);
                let _ = queue.fill(&part, value).unwrap();
            }
            _ => {
                let to = (at + 1) % 3;
                let bytes = expected[at][range.clone()].to_vec();
                expected[to][range.clone()].copy_from_slice(&bytes);
                let _ = queue.copy(&part, &buffers[to].slice(range).unwrap()).unwrap();
            }
        }
    }
    for (buffer, bytes) in buffers.iter().zip(expected) {
        reads.push((queues[1].read(buffer), bytes));
    }
    for (number, (read, bytes)) in reads.into_iter().enumerate() {
        assert!(read.await.unwrap() == bytes, "read {number}");
    }
}

#[test]
fn random_transfers_move_the_right_bytes() {
    everywhere(async |rt| {
        for seed in 0..2 {
            submit_at_random(&rt, &mut Rng::with_seed(seed), 40).await;
        }
    });
}

#[test]
fn several_tasks_can_transfer_concurrently() {
    everywhere(async |rt| {
        let tasks = (0..4u64).map(|seed| {
            let rt = rt.clone();
            async move { submit_at_random(&rt, &mut Rng::with_seed(100 + seed), 8).await }
        });
        join_all(tasks).await;
    });
}

#[test]
fn completions_without_a_callback_are_detected() {
    let simulator = Simulator::new();
    block_on(async {
        let rt = runtime(&simulator).await;
        simulator.lose_notifications(usize::MAX / 2);
        submit_at_random(&rt, &mut Rng::with_seed(7), 20).await;
    });
}

#[test]
fn a_transfer_that_fails_half_way_fails_its_dependents() {
    type Submit = fn(&Queue, &Buffer<u8>, u8) -> Event;
    fn write(queue: &Queue, x: &Buffer<u8>, value: u8) -> Event {
        queue.write(x, vec![value; x.len()]).unwrap()
    }
    fn fill(queue: &Queue, x: &Buffer<u8>, value: u8) -> Event {
        queue.fill(x, value).unwrap()
    }
    let ways: [(usize, Submit); 2] = [(40 * MIB, write), (513 * MIB, fill)];
    for (len, submit) in ways {
        let simulator = Simulator::new();
        block_on(async {
            let rt = runtime(&simulator).await;
            let (queue, x) = (rt.queue(), rt.buffer::<u8>(len).unwrap());
            fill(&queue, &x, 1).await.unwrap();
            let before = simulator.counts().commands;
            let hangs = simulator.pause();
            let fails = submit(&queue, &x, 2);
            let read = queue.read(&x);
            eventually("the first pieces are on their way", || {
                simulator.counts().commands >= before + 2
            });
            simulator.fail_enqueues(1, Fault::OutOfResources);
            drop(hangs);
            assert_eq!(fails.await.unwrap_err().kind(), ErrorKind::OutOfResources);
            assert_eq!(read.await.unwrap_err().kind(), ErrorKind::OutOfResources);
            let _ = submit(&queue, &x, 3);
            assert!(queue.read(&x).await.unwrap() == vec![3; len], "the failure is overwritten");
        });
    }
}

#[test]
fn buffers_are_not_freed_before_their_transfers_end() {
    for simulator in [Simulator::new(), Simulator::immediate()] {
        let hangs = simulator.pause();
        block_on(async {
            let rt = runtime(&simulator).await;
            let (x, queue) = (rt.buffer::<u8>(20 * MIB).unwrap(), rt.queue());
            let _ = queue.write(&x, vec![2; x.len()]).unwrap();
            drop(queue.read(&x));
            let y = rt.buffer::<u8>(20 * MIB).unwrap();
            drop(queue.read(&y));
        });
        assert_eq!(
            simulator.counts().live_allocations,
            2,
            "the runtime and all handles are dropped"
        );
        drop(hangs);
        eventually("all is freed", || simulator.counts().live_allocations == 0);
    }
}

#[test]
fn events_report_the_progress_of_a_transfer() {
    let simulator = Simulator::new();
    block_on(async {
        let rt = runtime_with(&simulator, Runtime::builder().profiling(true)).await;
        let (x, queue) = (rt.buffer::<u8>(20 * MIB).unwrap(), rt.queue());
        let hangs = simulator.pause();
        let first = queue.write(&x, vec![2; x.len()]).unwrap();
        let second = queue.write(&x, vec![3; x.len()]).unwrap();
        assert!(matches!(first.status(), Status::Enqueued), "a thread transfers it");
        assert!(matches!(second.status(), Status::Waiting), "for the first to end");
        let picture = queue.dot();
        assert_eq!(picture.matches("label=\"write\", style=\"solid\"").count(), 1, "{picture}");
        assert_eq!(picture.matches("label=\"write\", style=\"dashed\"").count(), 1, "{picture}");
        drop(hangs);
        second.await.unwrap();
        assert!(matches!(first.status(), Status::Complete));
        let profile = first.profile().expect("profiling is enabled");
        let stations = [profile.queued, profile.submitted, profile.started, profile.ended];
        assert!(stations.is_sorted(), "{stations:?}");
    });
}
