//! Futures are dropped, leaked, aborted and raced at every stage while the device works, and handles are
//! dropped in every order: there is no use after free, and no leak.
//!
//! `make sanitize` runs this under Address and Leak Sanitizer. Without them, the counts of the simulated device
//! detect leaks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands need nobody who awaits them")]

use std::any::Any;
use std::fs;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use super::abandoned::{CLEAN, CountingWaker, Fate, STAGES, Stage, abandon, poll_once, poll_to};
use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::{BoxFuture, Either, join_all, pending, select};
use futures::{FutureExt, StreamExt};
use kiln::commands::Status;
use kiln::images::{ImagePart, R};
use kiln::simulated::Simulator;
use kiln::{Buffer, Event, Kernel, Module, Queue, Runtime, RuntimeBuilder};
use support::simulation;
use support::simulation::{assert_at_rest, eventually, runtime, with_kernels};
use support::tools::has_clang;
use tempfile::TempDir;

/// Largest pattern of a fill, so that large buffers are filled quickly even without optimization.
type Element = [u32; 32];

const LARGE: usize = (256 << 10) / size_of::<Element>();

const DUPLICATE: &str = "kernel void duplicate(global const uint *from, global uint *to) {
    size_t i = get_global_id(0);
    to[i] = from[i];
}";

/// Maximum number of different programs.
const PROGRAMS: usize = 12;

/// State from which futures are created.
struct Bench {
    rt: Runtime,
    queue: Queue,
    large: Vec<Buffer<Element>>,
    duplicate: Kernel,
    /// Kernel like `duplicate`, for checked launches; `None` where launches cannot be checked.
    checked: Option<Kernel>,
    /// Runtime that takes copies, as if it were on another device.
    other: Runtime,
    /// Builder for further runtimes like this one.
    builder: RuntimeBuilder,
    directory: TempDir,
    fates: &'static [Fate],
    rounds: usize,
}

impl Bench {
    async fn new(builder: RuntimeBuilder, fates: &'static [Fate], rounds: usize) -> Self {
        let rt = builder.clone().build().await.unwrap();
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("module.cl"), DUPLICATE).unwrap();
        let is_checked = rt.device().backend == "opencl" && has_clang();
        let checked = match is_checked {
            true => {
                Some(support::checked_program(&rt, DUPLICATE).await.kernel("duplicate").unwrap())
            }
            false => None,
        };
        Self {
            queue: rt.queue(),
            large: (0..4).map(|_| rt.buffer(LARGE).unwrap()).collect(),
            duplicate: support::kernel(&rt, DUPLICATE, "duplicate").await,
            checked,
            other: builder.clone().build().await.unwrap(),
            rt,
            builder,
            directory,
            fates,
            rounds,
        }
    }

    /// Gives the device work with large buffers.
    fn work(&self, round: usize) {
        let [a, b, c, d] = &self.large[..] else { unreachable!() };
        let _ = self.queue.fill(a, [round as u32; 32]).unwrap();
        let _ = self.queue.copy(a, b).unwrap();
        let _ = self.queue.fill(c, [1; 32]).unwrap();
        let _ = self.queue.copy(c, d).unwrap();
    }

    /// Returns a buffer that only the commands submitted here use.
    fn written(&self) -> Buffer<Element> {
        let buffer = self.rt.buffer(LARGE).unwrap();
        let _ = self.queue.copy(&self.large[1], &buffer).unwrap();
        buffer
    }

    /// Returns a column of an image that only the commands submitted here use.
    fn column(&self) -> ImagePart<R<u32>> {
        let image = self.rt.image_2d(256, 256).unwrap();
        let _ = self.queue.fill(&image, R([7])).unwrap();
        image.part([100, 0], [1, 256]).unwrap()
    }

    /// Abandons futures from `make` at every stage, in every way.
    async fn abandon_all<F>(&self, make: impl FnMut(&Self, usize) -> F)
    where
        F: Future<Output: Send> + Unpin + Send + 'static,
    {
        self.abandon_within(Duration::from_secs(60), make).await;
    }

    /// Abandons futures from `make` at every stage, in every way. Their results are there after a time.
    async fn abandon_within<F>(&self, time: Duration, mut make: impl FnMut(&Self, usize) -> F)
    where
        F: Future<Output: Send> + Unpin + Send + 'static,
    {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        for round in 0..self.rounds {
            for stage in STAGES {
                for &fate in self.fates {
                    self.work(round);
                    let future = make(self, round);
                    // Most futures must not be polled again after they were ready.
                    let fate = match (stage, fate) {
                        (Stage::Ready, Fate::Forgotten) => Fate::Forgotten,
                        (Stage::Ready, _) => Fate::Dropped,
                        _ => fate,
                    };
                    if let Some(future) = poll_to(future, stage, &self.rt, time).await {
                        abandon(future, fate, tokio.handle()).await;
                    }
                }
            }
        }
        tokio.shutdown_background();
    }

    async fn abandon_everything(&self) {
        self.abandon_all(|bench, _| bench.queue.fill(&bench.written(), [7; 32]).unwrap()).await;
        self.abandon_all(|bench, _| {
            let (from, to) = (bench.written(), bench.written());
            let (from, to) = (from.cast::<u32>().unwrap(), to.cast::<u32>().unwrap());
            let launch = bench.duplicate.launch(from.len()).args((&from, &to));
            bench.queue.submit(launch.after_future(async {})).unwrap()
        })
        .await;
        // Waits with a timer of their own, and commands that were canceled.
        self.abandon_all(|bench, round| {
            let (from, to) = (bench.written(), bench.written());
            let (from, to) = (from.cast::<u32>().unwrap(), to.cast::<u32>().unwrap());
            let launch = bench.duplicate.launch(from.len()).args((&from, &to));
            let limit = Duration::from_secs(if round % 2 == 0 { 3600 } else { 0 });
            bench.queue.submit(launch.timeout(limit)).unwrap()
        })
        .await;
        self.abandon_all(|bench, _| {
            let (from, to) = (bench.written(), bench.written());
            let (from, to) = (from.cast::<u32>().unwrap(), to.cast::<u32>().unwrap());
            let launch = bench.duplicate.launch(from.len()).args((&from, &to));
            let event = bench.queue.submit(launch.after_future(pending::<()>())).unwrap();
            assert!(event.cancel());
            event
        })
        .await;
        self.abandon_all(|bench, _| bench.queue.read(&bench.written())).await;
        self.abandon_all(|bench, _| {
            bench.queue.read_into(&bench.written(), Vec::with_capacity(LARGE))
        })
        .await;
        self.abandon_all(|bench, _| {
            bench.queue.read_pieces(&bench.written(), LARGE / 3).into_future()
        })
        .await;
        let shared: Arc<[Element]> = Arc::from(vec![[7; 32]; LARGE]);
        self.abandon_all(|bench, round| match round % 2 {
            0 => bench.rt.buffer_from(vec![[round as u32; 32]; LARGE]),
            _ => bench.rt.buffer_from(shared.clone()),
        })
        .await;
        if self.rt.device().limits.images.d2 != [0, 0] {
            self.abandon_all(|bench, _| bench.queue.read(&bench.column())).await;
            self.abandon_all(|bench, round| {
                bench.queue.write(&bench.column(), vec![R([round as u32]); 256]).unwrap()
            })
            .await;
        }
        self.abandon_mappings().await;
        self.abandon_all(|bench, _| {
            let buffer = bench.other.buffer(LARGE).unwrap();
            bench.queue.copy(&bench.written(), &buffer).unwrap()
        })
        .await;
        if self.rt.device().backend == "opencl" {
            self.abandon_all(|bench, _| {
                // SAFETY: nothing is enqueued.
                let called = unsafe {
                    bench.queue.native("nothing", (&bench.written(),), |_| Ok::<_, String>(()))
                };
                called.unwrap()
            })
            .await;
        }
        if self.checked.is_some() {
            self.abandon_all(|bench, round| {
                let (from, to) = (bench.written(), bench.written());
                let (from, to) = (from.cast::<u32>().unwrap(), to.cast::<u32>().unwrap());
                // Each range is checked anew, and guarded where it exceeds the buffers.
                let launch = bench.checked.as_ref().unwrap().launch(from.len() + round - 1);
                launch.args((&from, &to)).verdict()
            })
            .await;
        }
        self.abandon_all(|bench, _| bench.queue.ready()).await;
        self.abandon_all(|bench, _| bench.rt.drain()).await;
        self.abandon_all(|bench, _| bench.rt.drain_timeout(Duration::from_millis(1))).await;
        let mut number = 0;
        self.abandon_all(|bench, _| {
            number += 1;
            bench
                .rt
                .build(&Module::opencl_c(format!("{DUPLICATE} // {}", number % PROGRAMS)))
                .start()
        })
        .await;
        self.abandon_all(|bench, _| bench.builder.clone().build()).await;
        self.abandon_all(|bench, _| bench.rt.on(bench.rt.device())).await;
        self.abandon_all(|bench, _| Module::open(bench.directory.path().join("module.cl"))).await;
        self.abandon_all(|bench, _| {
            let trace = bench.rt.trace_to(bench.directory.path().join("trace.json"));
            bench.work(0);
            trace.finish()
        })
        .await;
        self.rt.drain().await;
        self.other.drain().await;
    }

    /// Abandons futures of mappings. A mapping that is forgotten keeps back what waits for it, forever.
    async fn abandon_mappings(&self) {
        if self.fates.iter().any(|fate| matches!(fate, Fate::Forgotten)) {
            return;
        }
        let mapped = |bench: &Self| {
            let buffer = bench.rt.host_buffer(LARGE).unwrap();
            let _ = bench.queue.copy(&bench.large[1], &buffer).unwrap();
            buffer
        };
        let time = Duration::from_millis(5);
        self.abandon_within(time, |bench, _| bench.queue.map(&mapped(bench))).await;
        self.abandon_within(time, |bench, _| bench.queue.map_mut(&mapped(bench))).await;
    }
}

#[test]
fn futures_abandoned_at_any_stage_leave_nothing_on_the_device() {
    for simulator in [Simulator::new(), Simulator::immediate()] {
        block_on(async {
            let builder = Runtime::builder().simulator(&simulator);
            let bench = Bench::new(builder, CLEAN, 8).await;
            bench.abandon_everything().await;
        });
        assert_at_rest(&simulator);
    }
}

#[test]
fn forgotten_futures_keep_no_more_than_they_own() {
    const ROUNDS: usize = 4;
    for simulator in [Simulator::new(), Simulator::immediate()] {
        block_on(async {
            let builder = Runtime::builder().simulator(&simulator);
            let bench = Bench::new(builder, &[Fate::Forgotten], ROUNDS).await;
            bench.abandon_everything().await;
        });
        eventually("all commands are freed", || simulator.counts().live_events == 0);
        // Each leaked upload owns a buffer, and each leaked build a program.
        let owned = (ROUNDS * STAGES.len()) as u64;
        eventually("nothing else is alive", || {
            let counts = simulator.counts();
            counts.live_allocations <= owned && counts.live_programs <= owned
        });
    }
}

#[test]
fn futures_can_be_abandoned_on_real_devices() {
    block_on(support::on_each_device(async |rt| {
        let builder = support::builder().device(rt.device().index().to_string());
        for fates in [CLEAN, &[Fate::Forgotten]] {
            Bench::new(builder.clone(), fates, 1).await.abandon_everything().await;
        }
    }));
}

/// A deterministic pseudo-random sequence.
struct Shuffle(u64);

impl Shuffle {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// Returns one handle and future of each kind, all in use.
async fn handles(rt: Runtime, duplicate: Kernel) -> Vec<Box<dyn Any>> {
    let queue = rt.queue();
    let (x, y) = (rt.buffer::<u32>(1 << 14).unwrap(), rt.buffer::<u32>(1 << 14).unwrap());
    let slice = x.slice(1 << 13..).unwrap();
    let filled = queue.fill(&x, 3).unwrap();
    let (open, gate) = async_channel::bounded::<()>(1);
    let launch = duplicate.launch(1 << 14).args((&x, &y));
    let launch = launch.after(&filled).after_future(async move {
        let _ = gate.recv().await;
    });
    let launched = queue.submit(launch).unwrap();
    let mut read = queue.read(&y);
    let _ = poll_once(&mut read);
    let image = rt.image_2d::<R<u32>>(128, 64).unwrap();
    let part = image.part([0, 32], [128, 32]).unwrap();
    let copied = queue.copy(&y.cast().unwrap().slice(..128 * 32).unwrap(), &part).unwrap();
    let table = rt.image_buffer(&x.cast::<R<u32>>().unwrap()).unwrap();
    let pixels = queue.read(&image);
    let upload = rt.buffer_from(vec![1u64; 1 << 12]);
    let host = rt.host_buffer::<u32>(1 << 10).unwrap();
    let grid = host.grid([32, 32]).unwrap();
    let map = queue.map(&host.slice(..512).unwrap());
    let mut map_mut = queue.map_mut(&host.slice(512..).unwrap());
    let _ = poll_once(&mut map_mut);
    let mut marker = queue.marker().unwrap();
    let _ = poll_once(&mut marker);
    let drain = rt.drain();
    let task = queue.host_task(async {}).unwrap();
    let build = rt.build(&Module::opencl_c(DUPLICATE)).start();
    let program = build.clone().await.unwrap();
    let trace = rt.trace_to("never-written");
    vec![
        Box::new(rt),
        Box::new(queue),
        Box::new(x),
        Box::new(y),
        Box::new(slice),
        Box::new(image),
        Box::new(part),
        Box::new(copied),
        Box::new(table),
        Box::new(pixels),
        Box::new(filled),
        Box::new(open),
        Box::new(launched),
        Box::new(read),
        Box::new(upload),
        Box::new(host),
        Box::new(grid),
        Box::new(map),
        Box::new(map_mut),
        Box::new(marker),
        Box::new(drain),
        Box::new(task),
        Box::new(build),
        Box::new(program),
        Box::new(duplicate),
        Box::new(trace),
    ]
}

#[test]
fn handles_can_be_dropped_in_any_order() {
    let mut shuffle = Shuffle(1);
    for round in 0..300 {
        let simulator = if round % 4 == 0 { Simulator::immediate() } else { Simulator::new() };
        let simulator = with_kernels(simulator);
        block_on(async {
            let rt = runtime(&simulator).await;
            let duplicate = support::kernel(&rt, DUPLICATE, "duplicate").await;
            let mut pause = (round % 2 == 0).then(|| simulator.pause());
            let mut handles = handles(rt, duplicate).await;
            // The device may continue before, while, or after they are dropped.
            let resume_at = shuffle.below(handles.len() + 1);
            while !handles.is_empty() {
                if handles.len() == resume_at {
                    pause = None;
                }
                let next = match round {
                    // The runtime is dropped first, or last.
                    0..20 => 0,
                    20..40 => handles.len() - 1,
                    _ => shuffle.below(handles.len()),
                };
                drop(handles.remove(next));
            }
            drop(pause);
        });
        assert_at_rest(&simulator);
    }
}

#[test]
fn commands_in_flight_keep_memory_and_programs_until_they_end() {
    for simulator in [Simulator::new(), Simulator::immediate()] {
        let simulator = with_kernels(simulator);
        let pause = block_on(async {
            let rt = runtime(&simulator).await;
            let duplicate = simulation::kernel(&rt, "duplicate").await;
            let pause = simulator.pause();
            for _ in 0..100 {
                let x = rt.buffer::<u32>(1 << 14).unwrap();
                let y = rt.buffer::<u32>(1 << 14).unwrap();
                rt.queue().write(&x, vec![7; 1 << 14]).unwrap();
                let launch = duplicate.launch(1 << 14).args((&x, y.write_only()));
                rt.queue().submit(launch).unwrap();
                drop(rt.queue().read(&y));
            }
            pause
        });
        // Only the commands are left.
        let counts = simulator.counts();
        assert_eq!((counts.live_allocations, counts.live_programs), (200, 1), "{counts:?}");
        drop(pause);
        assert_at_rest(&simulator);
        // A hundred times: a write, the zeroing of `y`, a launch and a read.
        assert_eq!(simulator.counts().commands, 400);
    }
}

/// Polls with a waker of its own.
fn poll_counted(event: &mut Event) -> (Poll<kiln::Result<()>>, Arc<CountingWaker>) {
    let counter = Arc::new(CountingWaker::default());
    let poll = event.poll_unpin(&mut Context::from_waker(&Waker::from(counter.clone())));
    (poll, counter)
}

#[test]
fn only_the_last_waker_is_woken_at_the_end() {
    let simulator = with_kernels(Simulator::new());
    let rt = block_on(runtime(&simulator));
    let buffer = rt.buffer::<u32>(LARGE).unwrap();
    for _ in 0..200 {
        let pause = simulator.pause();
        let event = rt.queue().fill(&buffer, 1).unwrap();
        // The callback wakes the first clone, and the thread that completes the command wakes the others.
        let mut clones = [event.clone(), event.clone(), event];
        let mut last = Vec::new();
        for _ in 0..5 {
            let polled = clones.iter_mut().map(poll_counted);
            let (polls, wakers): (Vec<_>, Vec<_>) = polled.unzip();
            assert!(polls.iter().all(Poll::is_pending), "the device is paused");
            for replaced in std::mem::replace(&mut last, wakers) {
                assert_eq!(Arc::strong_count(&replaced), 1, "a replaced waker is kept");
                assert_eq!(replaced.count(), 0);
            }
        }
        assert!(last.iter().all(|waker| waker.count() == 0), "the device is paused");
        drop(pause);
        for (event, waker) in clones.iter_mut().zip(last) {
            let mut waker = waker;
            loop {
                eventually("the last waker is woken", || waker.count() > 0);
                // The callback has come, but another thread may still be processing it.
                match poll_counted(event) {
                    (Poll::Ready(outcome), _) => break outcome.unwrap(),
                    (Poll::Pending, next) => waker = next,
                }
            }
        }
    }
}

#[test]
fn commands_that_ended_before_the_first_poll_can_be_awaited() {
    let simulator = with_kernels(Simulator::immediate());
    block_on(async {
        let rt = runtime(&simulator).await;
        let buffer = rt.buffer::<u32>(16).unwrap();
        for round in 0..2000 {
            let event = rt.queue().fill(&buffer, round).unwrap();
            let clone = event.clone();
            event.await.unwrap();
            assert!(matches!(clone.status(), Status::Complete));
            clone.await.unwrap();
        }
    });
    assert_at_rest(&simulator);
}

#[test]
fn many_tasks_on_several_executors_await_clones_of_one_event() {
    const TASKS: usize = 24;
    let simulator = with_kernels(Simulator::new());
    let rt = block_on(runtime(&simulator));
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let buffer = rt.buffer::<Element>(LARGE).unwrap();
    for round in 0..40 {
        let pause = (round % 2 == 0).then(|| simulator.pause());
        let event = rt.queue().fill(&buffer, [round; 32]).unwrap();
        let mut shuffle = Shuffle(u64::from(round));
        let mut tasks: Vec<BoxFuture<'static, kiln::Result<()>>> = Vec::new();
        let start = Arc::new(Barrier::new(3));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (event, start) = (event.clone(), start.clone());
                thread::spawn(move || {
                    start.wait();
                    let dropped = event.clone();
                    let outcome = event.wait();
                    drop(dropped);
                    outcome
                })
            })
            .collect();
        start.wait();
        let mut dropped = Vec::new();
        for _ in 0..TASKS {
            let (mine, mut other) = (event.clone(), event.clone());
            let _ = poll_once(&mut other);
            dropped.push(other);
            if shuffle.below(2) == 0 {
                let _ = dropped.swap_remove(shuffle.below(dropped.len()));
            }
            tasks.push(match shuffle.below(3) {
                0 => tokio.spawn(mine).map(Result::unwrap).boxed(),
                1 => smol::spawn(mine).boxed(),
                _ => {
                    // A future that is polled, moved to another task, and polled there.
                    let mut moved = mine;
                    let _ = poll_once(&mut moved);
                    tokio.spawn(moved).map(Result::unwrap).boxed()
                }
            });
        }
        drop(event);
        drop(pause);
        for outcome in block_on(join_all(tasks)) {
            outcome.unwrap();
        }
        drop(dropped);
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    }
    drop((rt, buffer));
    assert_at_rest(&simulator);
}

/// A task of a minimal executor: only its wakers own it.
struct Task(Mutex<Option<BoxFuture<'static, ()>>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        // The future is dropped outside of the lock.
        let future = self.0.lock().unwrap().take();
        drop(future);
    }
}

#[test]
fn wakers_that_own_handles_of_their_event_can_be_replaced_or_dropped() {
    let simulator = with_kernels(Simulator::new());
    let rt = block_on(runtime(&simulator));
    let buffer = rt.buffer::<u32>(16).unwrap();
    for replaced in [true, false] {
        let pause = simulator.pause();
        let mut first = rt.queue().fill(&buffer, 1).unwrap();
        let _ = poll_once(&mut first);
        let mut event = first.clone();
        let mut owned = first.clone();
        let _ = poll_once(&mut owned);
        let task = Arc::new(Task(Mutex::new(Some(owned.map(drop).boxed()))));
        let _ = event.poll_unpin(&mut Context::from_waker(&Waker::from(task)));
        if replaced {
            let _ = poll_once(&mut event);
        }
        drop(event);
        drop(pause);
        block_on(first).unwrap();
    }
}

/// An error that uses the queue when it is dropped.
#[derive(Debug)]
struct Draws(Queue);

impl std::fmt::Display for Draws {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("to be drawn")
    }
}

impl std::error::Error for Draws {}

impl Drop for Draws {
    fn drop(&mut self) {
        drop(self.0.dot());
    }
}

#[test]
fn errors_of_a_trace_are_dropped_where_they_may_call_kiln() {
    let rt = block_on(runtime(&with_kernels(Simulator::new())));
    let trace = rt.trace_to("never-written");
    let error = Draws(rt.queue());
    let task = rt.queue().host_task(async { Err::<(), _>(error) }).unwrap();
    block_on(task).expect_err("it fails");
    block_on(rt.drain());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        drop(trace);
        sender.send(())
    });
    let dropped = receiver.recv_timeout(Duration::from_secs(20));
    dropped.expect("the holder of a lock does not wait for it");
}

#[test]
fn a_trace_has_only_ended_commands_and_does_not_wait_for_builds() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("trace.json");
    let simulator = with_kernels(Simulator::new());
    let rt = block_on(runtime(&simulator));
    let trace = rt.trace_to(&path);
    let (open, opened) = oneshot::channel::<()>();
    rt.queue().host_task(opened).unwrap();
    let pause = simulator.pause_builds();
    let builds: Vec<_> = (0..4)
        .map(|number| rt.build(&Module::opencl_c(format!("{DUPLICATE} // {number}"))).start())
        .collect();
    let writing = trace.finish();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(block_on(writing)));
    receiver.recv_timeout(Duration::from_secs(60)).expect("builds do not delay it").unwrap();
    drop(pause);
    open.send(()).unwrap();
    block_on(rt.drain());
    assert!(!fs::read_to_string(&path).unwrap().contains("host task"));
    let dot = rt.queue().dot();
    assert!(!dot.contains("host task"), "recording has ended: {dot}");
    block_on(join_all(builds)).into_iter().for_each(|built| drop(built.unwrap()));
}

#[test]
fn completions_without_a_callback_are_detected() {
    let simulator = with_kernels(Simulator::new());
    block_on(async {
        let rt = runtime(&simulator).await;
        let buffer = rt.buffer::<u32>(LARGE).unwrap();
        simulator.lose_notifications(2);
        for round in 1..=2 {
            let event = rt.queue().fill(&buffer, round).unwrap();
            match select(event, rt.drain()).await {
                Either::Left((outcome, drain)) => {
                    outcome.unwrap();
                    drain.await;
                }
                Either::Right((_, event)) => event.await.unwrap(),
            }
            assert_eq!(rt.queue().read(&buffer).await.unwrap(), vec![round; LARGE]);
        }
        assert!((1..=2).contains(&rt.stats().commands.late_callbacks), "{:?}", rt.stats());
    });
    // The device keeps a callback that it did not call, which keeps its event.
    eventually("all else is freed", || {
        let counts = simulator.counts();
        counts.live_allocations == 0 && counts.live_events <= 2
    });
}
