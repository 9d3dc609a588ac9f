//! Failures, drops and limits of recorded graphs, on a simulated device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use futures::executor::block_on;
use futures::future::join_all;
use kiln::commands::Status;
use kiln::simulated::{Fault, Simulator};
use kiln::{Buffer, ErrorKind, Event, Graph, Queue, Runtime};
use support::simulation::{assert_at_rest, eventually, kernel, runtime, with_kernels};

const LEN: usize = 64;

/// Launches of a graph.
const LAUNCHES: usize = 5;

/// Events that are never dropped. The leak checker takes them for used.
static LEAKED: Mutex<Vec<Event>> = Mutex::new(Vec::new());

struct Bench {
    simulator: Simulator,
    rt: Runtime,
    queue: Queue,
    graph: Graph,
    x: Buffer<u32>,
}

impl Bench {
    /// Records a graph that copies its input to a temporary, doubles that three times, and copies it back.
    async fn new(simulator: Simulator) -> Self {
        let simulator = with_kernels(simulator);
        let rt = runtime(&simulator).await;
        let queue = rt.queue();
        let (scale, duplicate) = (kernel(&rt, "scale").await, kernel(&rt, "duplicate").await);
        let mut recorder = queue.record();
        let x = recorder.input::<u32>(LEN).unwrap();
        let work = recorder.temporary::<u32>(LEN).unwrap();
        recorder.submit(duplicate.launch(LEN).args((&x, &work))).unwrap();
        for _ in 2..LAUNCHES {
            recorder.submit(scale.launch(LEN).args((2u32, &work))).unwrap();
        }
        recorder.submit(duplicate.launch(LEN).args((&work, &x))).unwrap();
        let graph = recorder.finish().await.unwrap();
        Self { simulator, rt, queue, graph, x }
    }

    fn replay(&self, buffer: &Buffer<u32>) -> Event {
        self.graph.replay().bind(&self.x, buffer).submit().unwrap()
    }
}

/// Runs a test on devices with and without threads, with and without events for each launch.
fn on_each(test: impl AsyncFn(Bench)) {
    for simulator in [
        Simulator::new(),
        Simulator::immediate(),
        Simulator::new().omitting_events(),
        Simulator::immediate().omitting_events(),
    ] {
        block_on(async { test(Bench::new(simulator).await).await });
    }
}

#[test]
fn a_launch_that_fails_fails_its_replay_and_what_needs_its_results() {
    on_each(async |bench| {
        for kernel in ["scale", "duplicate"] {
            let y = bench.rt.buffer_from(vec![1u32; LEN]).await.unwrap();
            let z = bench.rt.buffer_from(vec![7u32; LEN]).await.unwrap();
            bench.simulator.fail_launches(kernel, 1, Fault::OutOfResources);
            let failed = bench.replay(&y);
            let again = bench.replay(&y);
            let error = failed.await.unwrap_err();
            // The first launch of the kernel takes the fault, so this replay begins only now.
            let other = bench.replay(&z);
            assert_eq!(error.kind(), ErrorKind::OutOfResources);
            let named = "a replay of 5 commands (of `duplicate`, `scale`): ";
            assert!(error.to_string().contains(named), "{error}");
            assert!(again.await.unwrap_err().same(&error));
            assert!(bench.queue.read(&y).await.unwrap_err().same(&error));
            other.await.unwrap();
            assert_eq!(bench.queue.read(&z).await.unwrap(), [7 * 8; LEN]);
            // New contents make the buffer usable again.
            let _ = bench.queue.fill(&y, 3).unwrap();
            let _ = bench.replay(&y);
            assert_eq!(bench.queue.read(&y).await.unwrap(), [24; LEN]);
        }
    });
}

#[test]
fn a_command_that_the_driver_rejects_fails_the_replay_wherever_it_is() {
    for rejected in 0..LAUNCHES {
        on_each(async |bench| {
            let y = bench.rt.buffer_from(vec![1u32; LEN]).await.unwrap();
            bench.rt.drain().await;
            let pause = bench.simulator.pause();
            // The markers behind a rejected command are accepted.
            bench.simulator.fail_enqueues_after(rejected, 1, Fault::Refused);
            let failed = bench.replay(&y);
            let read = bench.queue.read(&y);
            drop(pause);
            assert_eq!(failed.await.unwrap_err().kind(), ErrorKind::Driver);
            // The results are missing, whether or not a command ran before the rejected one.
            assert_eq!(read.await.unwrap_err().kind(), ErrorKind::Driver);
            let _ = bench.queue.fill(&y, 1).unwrap();
            let _ = bench.replay(&y);
            assert_eq!(bench.queue.read(&y).await.unwrap(), [8; LEN]);
        });
    }
}

#[test]
fn a_replay_fails_with_the_root_cause_of_what_it_needs() {
    on_each(async |bench| {
        let y = bench.rt.buffer::<u32>(LEN).unwrap();
        let task = bench.queue.host_task(async { Err::<(), _>("no data") }).unwrap();
        let after = bench.graph.replay().bind(&bench.x, &y).after(&task).submit().unwrap();
        let error = after.await.unwrap_err();
        assert!(error.to_string().contains("no data"), "{error}");
        assert!(error.to_string().contains("replay"), "{error}");
    });
}

#[test]
fn graphs_replays_and_events_can_be_dropped_at_any_time() {
    on_each(async |bench| {
        let y = bench.rt.buffer_from(vec![1u32; LEN]).await.unwrap();
        drop(bench.queue.record());
        drop(bench.graph.replay());
        drop(bench.graph.replay().bind(&bench.x, &y));
        let pause = bench.simulator.pause();
        drop(bench.replay(&y));
        let mut polled = pin!(bench.replay(&y));
        let _ = polled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        LEAKED.lock().unwrap().push(bench.replay(&y));
        let Bench { simulator, rt, queue, graph, x } = bench;
        drop((graph, x));
        let read = queue.read(&y);
        drop((y, pause));
        assert_eq!(read.await.unwrap(), [8 * 8 * 8; LEN]);
        let Poll::Ready(ended) = polled.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("the read came after it")
        };
        ended.unwrap();
        drop((queue, rt));
        eventually("the events are freed", || simulator.counts().live_events == 0);
    });
}

#[test]
fn everything_is_freed() {
    on_each(async |bench| {
        let y = bench.rt.buffer_from(vec![1u32; LEN]).await.unwrap();
        join_all((0..20).map(|_| bench.replay(&y))).await;
        let Bench { simulator, rt, queue, graph, x } = bench;
        drop((rt, queue, graph, x, y));
        assert_at_rest(&simulator);
    });
}

#[test]
fn temporaries_of_replays_in_flight_are_limited() {
    block_on(async {
        let bench = Bench::new(Simulator::new()).await;
        let buffers: Vec<_> = (0..50).map(|_| bench.rt.buffer::<u32>(LEN).unwrap()).collect();
        for buffer in &buffers {
            bench.queue.fill(buffer, 1).unwrap().await.unwrap();
        }
        let before = bench.simulator.counts().live_allocations;
        let pause = bench.simulator.pause();
        let replays: Vec<_> = buffers.iter().map(|buffer| bench.replay(buffer)).collect();
        let added = bench.simulator.counts().live_allocations - before;
        assert!((1..=3).contains(&added), "{added} more than the one that the recording allocated");
        drop(pause);
        for (replay, buffer) in replays.into_iter().zip(&buffers) {
            replay.await.unwrap();
            assert_eq!(bench.queue.read(buffer).await.unwrap(), [8; LEN]);
        }
    });
}

#[test]
fn a_replay_can_be_canceled_while_it_waits() {
    on_each(async |bench| {
        let y = bench.rt.buffer_from(vec![1u32; LEN]).await.unwrap();
        let (release, released) = futures::channel::oneshot::channel::<()>();
        let task = bench.queue.host_task(released).unwrap();
        let replay = bench.graph.replay().bind(&bench.x, &y).after(&task).submit().unwrap();
        assert!(matches!(replay.status(), Status::Waiting));
        assert!(replay.cancel());
        assert_eq!(replay.await.unwrap_err().kind(), ErrorKind::Canceled);
        release.send(()).unwrap();
        task.await.unwrap();
    });
}

#[test]
fn large_fills_are_recorded_in_pieces() {
    const LARGE: usize = (256 << 20) + 64;
    block_on(async {
        let rt = runtime(&Simulator::immediate()).await;
        let (queue, x) = (rt.queue(), rt.buffer::<u8>(LARGE).unwrap());
        let mut recorder = queue.record();
        recorder.fill(&x, 7).unwrap();
        let graph = recorder.finish().await.unwrap();
        assert_eq!(graph.commands(), 2);
        graph.replay().submit().unwrap().await.unwrap();
        let end = queue.read(&x.slice(LARGE - 128..).unwrap()).await.unwrap();
        assert_eq!(end, [7; 128]);
    });
}

#[test]
fn replays_that_overwrite_what_is_lost_part_by_part_recover() {
    for simulator in [Simulator::new(), Simulator::immediate()] {
        block_on(async {
            let simulator = with_kernels(simulator);
            let rt = runtime(&simulator).await;
            let (queue, duplicate) = (rt.queue(), kernel(&rt, "duplicate").await);
            let half = LEN / 2;
            let src = rt.buffer_from(vec![3u32; LEN]).await.unwrap();
            let [x, y] = [(); 2].map(|()| rt.buffer::<u32>(LEN).unwrap());
            let mut recorder = queue.record();
            for part in [0..half, half..LEN] {
                let from = src.slice(part.clone()).unwrap();
                let to = x.slice(part).unwrap();
                let launch = duplicate.launch(half).args((&from, to.write_only()));
                recorder.submit(launch).unwrap();
            }
            let whole = duplicate.launch(LEN).args((&x, y.write_only()));
            recorder.submit(whole).unwrap();
            let graph = recorder.finish().await.unwrap();
            graph.replay().submit().unwrap().await.unwrap();
            simulator.fail_launches("duplicate", 1, Fault::OutOfResources);
            graph.replay().submit().unwrap().await.unwrap_err();
            queue.read(&x).await.unwrap_err();
            graph.replay().submit().unwrap().await.unwrap();
            assert_eq!(queue.read(&y).await.unwrap(), [3; LEN]);

            // A part that is not overwritten is still needed.
            simulator.fail_launches("duplicate", 1, Fault::OutOfResources);
            let lost = duplicate.launch(LEN).args((&src, x.write_only()));
            let root = queue.submit(lost).unwrap().await.unwrap_err();
            let mut recorder = queue.record();
            let first = src.slice(..half).unwrap();
            let to = x.slice(..half).unwrap();
            recorder.submit(duplicate.launch(half).args((&first, to.write_only()))).unwrap();
            recorder.submit(duplicate.launch(LEN).args((&x, y.write_only()))).unwrap();
            let graph = recorder.finish().await.unwrap();
            let error = graph.replay().submit().unwrap().await.unwrap_err();
            assert!(error.same(&root), "{error}");
            let rest = x.slice(half..).unwrap();
            let _ = queue.fill(&rest, 3).unwrap();
            graph.replay().submit().unwrap().await.unwrap();
            assert_eq!(queue.read(&y).await.unwrap(), [3; LEN]);
        });
    }
}
