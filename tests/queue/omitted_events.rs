//! Launches without an event of their own: their ends and failures are learnt from a later event of their native
//! queue, and are never lost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use futures::executor::block_on;
use kiln::commands::Status;
use kiln::simulated::{Fault, Simulator};
use kiln::{Buffer, ErrorKind, Event, Kernel, Queue, Runtime};
use support::simulation::{assert_at_rest, eventually, kernel, runtime, with_kernels};

const LEN: usize = 64;

/// Number of launches, more than one event reports.
const MANY: usize = 200;

/// A device that omits events, and the objects that most tests need.
struct Bench {
    simulator: Simulator,
    rt: Runtime,
    queue: Queue,
    scale: Kernel,
}

impl Bench {
    async fn new(simulator: Simulator) -> Self {
        let simulator = with_kernels(simulator.omitting_events());
        let rt = runtime(&simulator).await;
        Self { queue: rt.queue(), scale: kernel(&rt, "scale").await, simulator, rt }
    }

    fn scale(&self, x: &Buffer<u32>) -> Event {
        self.queue.submit(self.scale.launch(x.len()).args((3u32, x))).unwrap()
    }

    /// Submits many launches on the same buffer.
    fn scale_many(&self, x: &Buffer<u32>) -> Vec<Event> {
        (0..MANY).map(|_| self.scale(x)).collect()
    }
}

fn on_both(test: impl AsyncFn(Bench)) {
    for simulator in [Simulator::new(), Simulator::immediate()] {
        block_on(async { test(Bench::new(simulator).await).await });
    }
}

fn scaled(times: usize) -> u32 {
    3u32.wrapping_pow(times as u32)
}

#[test]
fn every_launch_can_be_awaited_in_any_order() {
    on_both(async |bench| {
        let x = bench.rt.buffer_from(vec![1u32; LEN]).await.unwrap();
        let events = bench.scale_many(&x);
        for at in [MANY - 1, 0, 70, 3, 64, 63, 65, 127, 128, MANY / 2] {
            events[at].clone().await.unwrap();
        }
        assert!(events.iter().all(|event| matches!(event.status(), Status::Complete)));
        assert_eq!(bench.queue.read(&x).await.unwrap(), [scaled(MANY); LEN]);
    });
}

#[test]
fn launches_that_nobody_awaits_end_within_a_bounded_time() {
    for launches in [1, 2, 63, 64, 65, MANY] {
        on_both(async |bench| {
            let x = bench.rt.buffer::<u32>(LEN).unwrap();
            for _ in 0..launches {
                let _ = bench.scale(&x);
            }
            drop(x);
            eventually("all launches end", || bench.rt.stats().commands.in_flight == 0);
            eventually("the buffer is freed", || bench.simulator.counts().live_allocations == 0);
            let simulator = bench.simulator.clone();
            drop(bench);
            assert_at_rest(&simulator);
        });
    }
}

#[test]
fn a_failure_between_others_fails_every_later_use_of_the_data() {
    for before in [0, 1, 30, 62, 63, 64, 150] {
        on_both(async |bench| {
            let x = bench.rt.buffer_from(vec![1u32; LEN]).await.unwrap();
            let y = bench.rt.buffer_from(vec![5u32; LEN]).await.unwrap();
            let add = kernel(&bench.rt, "add").await;
            bench.simulator.fail_launches("add", 1, Fault::OutOfResources);
            let mut events: Vec<_> = (0..before).map(|_| bench.scale(&x)).collect();
            events.push(bench.queue.submit(add.launch(LEN).args((&y, &y, &x))).unwrap());
            events.extend(bench.scale_many(&x));
            let error = bench.queue.read(&x).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfResources);
            for event in events.split_off(before) {
                assert!(event.await.unwrap_err().same(&error), "it needs what is missing");
            }
            assert_eq!(bench.queue.read(&y).await.unwrap(), [5; LEN], "it was only read");
            // New contents make the buffer usable again.
            let _ = bench.queue.fill(&x, 2).unwrap();
            bench.scale(&x).await.unwrap();
            assert_eq!(bench.queue.read(&x).await.unwrap(), [6; LEN]);
        });
    }
}

#[test]
fn the_error_of_launches_with_one_event_says_that_one_of_them_failed() {
    block_on(async {
        let bench = Bench::new(Simulator::new()).await;
        // The reactor may add an event behind the launch that fails, whose error then speaks of it alone.
        let is_shared = async || {
            let x = bench.rt.buffer::<u32>(LEN).unwrap();
            let pause = bench.simulator.pause();
            let _ = bench.scale_many(&x);
            bench.simulator.fail_launches("scale", 1, Fault::Refused);
            drop(pause);
            let error = bench.queue.read(&x).await.unwrap_err().to_string();
            assert!(error.contains("scale"), "{error}");
            error.contains("successive commands on the device")
        };
        let mut attempts = 0..10;
        while !is_shared().await {
            assert!(attempts.next().is_some(), "no error speaks of several commands");
        }
    });
}

#[test]
fn a_lost_device_fails_launches_whose_ends_it_will_not_report() {
    on_both(async |bench| {
        let x = bench.rt.buffer_from(vec![1u32; LEN]).await.unwrap();
        let pause = bench.simulator.pause();
        let events = bench.scale_many(&x);
        bench.simulator.fail_enqueues(usize::MAX, Fault::DeviceLost);
        drop(pause);
        eventually("all launches end", || bench.rt.stats().commands.in_flight == 0);
        for event in events {
            if let Err(error) = event.await {
                assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
            }
        }
    });
}

#[test]
fn commands_on_other_native_queues_come_after_launches_without_events() {
    on_both(async |bench| {
        let (a, b) = (bench.rt.buffer::<u32>(LEN).unwrap(), bench.rt.buffer::<u32>(LEN).unwrap());
        let sum = bench.rt.buffer::<u32>(LEN).unwrap();
        let add = kernel(&bench.rt, "add").await;
        for round in 1..100 {
            let pause = bench.simulator.pause();
            let _ = bench.queue.fill(&a, round).unwrap();
            let _ = bench.queue.fill(&b, 2).unwrap();
            for _ in 0..round % 7 {
                let _ = bench.scale(&a);
                let _ = bench.scale(&b);
            }
            let _ = bench.queue.submit(add.launch(LEN).args((&a, &b, &sum))).unwrap();
            drop(pause);
            let factor = scaled(round as usize % 7);
            let expected = (round + 2).wrapping_mul(factor);
            assert_eq!(bench.queue.read(&sum).await.unwrap(), [expected; LEN]);
        }
    });
}

#[test]
fn launches_without_events_on_real_devices_end_and_free_their_buffers() {
    const SOURCE: &str = "kernel void add(global uint *x, uint by) { x[get_global_id(0)] += by; }";
    block_on(support::on_each_device(async |rt| {
        let add = support::kernel(&rt, SOURCE, "add").await;
        let (queue, x) = (rt.queue(), rt.buffer::<u32>(LEN).unwrap());
        for _ in 0..MANY {
            let _ = queue.submit(add.launch(LEN).args((&x, 2u32))).unwrap();
        }
        assert_eq!(queue.read(&x).await.unwrap(), [2 * MANY as u32; LEN]);
        for _ in 0..MANY {
            let _ = queue.submit(add.launch(LEN).args((&x, 2u32))).unwrap();
        }
        eventually("all launches end", || rt.stats().commands.in_flight == 0);
    }));
}
