//! Launches of a scope as one command, on a simulated device, where fused kernels are closures, too.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use smallvec::SmallVec;

use super::{AbortReason, FusedLaunch, FusionBlocker, Part};
use crate::args::buffer::Buffer;
use crate::backend::simulated::{Fault, Simulator};
use crate::build_graph::{Kernel, Program};
use crate::error::{Error, Result};
use crate::queue::accesses::{CombinedAccesses, Repeated};
use crate::queue::command::GroupId;
use crate::queue::launch_work::LaunchWork;
use crate::queue::{Event, Queue};
use crate::runtime::Runtime;
use crate::source::module::Module;

const SOURCE: &str = "
    kernel void one(global uint *x) {}
    kernel void double(global uint *x) {}
    kernel void slow(global uint *x) {}
    kernel void both(global uint *x) {}
    kernel void add(global const uint *from, global uint *to) {}
    kernel void add_twice(global const uint *from, global uint *to) {}";

const GROUP: GroupId = GroupId(NonZeroU64::MAX);

struct Bench {
    simulator: Simulator,
    rt: Runtime,
    queue: Queue,
    program: Program,
    x: Buffer<u32>,
}

impl Bench {
    fn new() -> Self {
        Self::of(Simulator::immediate())
    }

    fn of(simulator: Simulator) -> Self {
        Self::with_limit(simulator, None)
    }

    fn with_limit(simulator: Simulator, max_in_flight: Option<usize>) -> Self {
        let define = |name, change: fn(u32) -> u32| {
            simulator.kernel(name, move |call| {
                let x: Vec<_> = call.read::<u32>(0).into_iter().map(change).collect();
                call.write(0, &x);
            });
        };
        define("one", |x| x + 1);
        define("double", |x| x * 2);
        define("both", |x| x + 100);
        for (name, term) in [("add", 1), ("add_twice", 2)] {
            simulator.kernel(name, move |call| {
                let sums: Vec<_> = call.read::<u32>(0).into_iter().map(|x| x + term).collect();
                call.write(1, &sums);
            });
        }
        block_on(async {
            let builder = Runtime::builder().simulator(&simulator);
            let builder = match max_in_flight.and_then(NonZeroUsize::new) {
                Some(max) => builder.max_in_flight(max),
                None => builder,
            };
            let rt = builder.build().await.unwrap();
            let program = rt.build(&Module::opencl_c(SOURCE)).await.unwrap();
            let x = rt.buffer_from(vec![5u32; 8]).await.unwrap();
            Self { simulator, queue: rt.queue(), program, x, rt }
        })
    }

    fn kernel(&self, name: &str) -> Kernel {
        // SAFETY: closures stay inside their arguments.
        unsafe { self.program.kernel(name) }.unwrap()
    }

    fn submit(&self, name: &str, after: Option<&Event>) -> Event {
        self.submit_on(&self.x, name, after)
    }

    fn submit_on(&self, x: &Buffer<u32>, name: &str, after: Option<&Event>) -> Event {
        let launch = self.kernel(name).launch(x.len()).args((x,));
        let launch = after.into_iter().fold(launch, |launch, event| launch.after(event));
        self.queue.submit_to(launch, Some(GROUP)).unwrap()
    }

    /// Submits a group of two launches, which are in the DAG from the start if the first comes after an
    /// event.
    fn collect(&self, after: Option<&Event>) -> [Event; 2] {
        self.open_group();
        let events = [self.submit("one", after), self.submit("double", None)];
        self.close_group();
        events
    }

    fn open_group(&self) {
        self.queue.scheduler.open_group(GROUP, self.queue.number, AbortReason::default());
    }

    fn close_group(&self) {
        self.close_group_of(2);
    }

    fn close_group_of(&self, launches: usize) {
        let closed = self.queue.scheduler.close_group(GROUP, |launches| launches.len());
        assert_eq!(closed, Some((launches, launches)));
    }

    /// Runs the launches in parts: by themselves where a part has one, else as a launch of `both`.
    fn run_in_parts(
        &self,
        parts: &[&[usize]],
    ) -> Result<Vec<(usize, FusionBlocker)>, FusionBlocker> {
        self.queue.scheduler.run_in_parts(GROUP, |launches| {
            let part = |part: &&[usize]| {
                let own: Vec<_> = part.iter().map(|&at| launches[at]).collect();
                let fused = (own.len() > 1).then(|| Ok(self.fused("both", own[0], &own, None)));
                Part { launches: SmallVec::from_slice(part), fused, stopwatch: None }
            };
            parts.iter().map(part).collect()
        })
    }

    /// Returns a launch of a kernel, over the range of `like` and with its arguments, in place of launches. It
    /// may repeat a launch that writes the last of its arguments.
    fn fused(
        &self,
        kernel: &str,
        like: &LaunchWork,
        launches: &[&LaunchWork],
        repeated: Option<&LaunchWork>,
    ) -> FusedLaunch {
        let launch = LaunchWork { kernel: self.kernel(kernel), ..like.clone() };
        let results = repeated.and_then(|repeated| repeated.uses().last().map(|u| u.allocation));
        let results: Vec<_> = results.into_iter().collect();
        let repeated: Vec<_> = repeated.into_iter().collect();
        let repeated = Repeated { launches: &repeated, results: &results };
        let accesses = Arc::new(CombinedAccesses::of(launches, repeated, &launch, &[]));
        FusedLaunch { launch: Box::new(launch), accesses, lost: SmallVec::new() }
    }

    /// Runs the launches as a launch of `both`, which adds 100.
    fn run_as_one(&self) -> Result<(), FusionBlocker> {
        self.run_as_one_without(None)
    }

    /// Like [`run_as_one`](Self::run_as_one), but leaves no contents in the buffer `lost`, if there is
    /// one.
    fn run_as_one_without(&self, lost: Option<&Buffer<u32>>) -> Result<(), FusionBlocker> {
        let lost: Vec<_> = lost.into_iter().map(|buffer| buffer.region().allocation()).collect();
        let fuse = |launches: &[&LaunchWork]| {
            let arguments = launches[0].arguments.clone();
            let range = launches[0].range;
            let launch = Box::new(LaunchWork::new(self.kernel("both"), range, arguments));
            let none = Repeated { launches: &[], results: &[] };
            let accesses = Arc::new(CombinedAccesses::of(launches, none, &launch, &lost));
            let fused = FusedLaunch { launch, accesses, lost: SmallVec::from_slice(&lost) };
            let launches = (0..launches.len()).collect();
            vec![Part { launches, fused: Some(Ok(fused)), stopwatch: None }]
        };
        let blocked = self.queue.scheduler.run_in_parts(GROUP, fuse)?;
        blocked.into_iter().next().map_or(Ok(()), |(_, blocker)| Err(blocker))
    }

    fn contents(&self) -> Result<Vec<u32>> {
        block_on(async { self.queue.read(&self.x).await })
    }

    /// Returns the events to collect launches after: `None` to defer the launches, an event to have them
    /// in the DAG from the start.
    fn predecessors(&self) -> [Option<Event>; 2] {
        [None, Some(self.queue.marker().unwrap())]
    }
}

#[test]
fn launches_of_a_group_run_as_their_fused_launch() {
    let bench = Bench::new();
    for (after, expected) in bench.predecessors().into_iter().zip([105, 205]) {
        let [first, last] = bench.collect(after.as_ref());
        bench.run_as_one().unwrap();
        assert_eq!(bench.contents().unwrap(), [expected; 8]);
        block_on(async { futures::try_join!(last, first) }).unwrap();
    }
    block_on(bench.rt.drain());
    assert_eq!(bench.rt.stats().commands.in_flight, 0);
}

#[test]
fn launches_run_separately_if_the_driver_refuses_the_fused_one() {
    let bench = Bench::new();
    for (after, expected) in bench.predecessors().into_iter().zip([12, 26]) {
        let [first, last] = bench.collect(after.as_ref());
        bench.simulator.fail_enqueues(1, Fault::OutOfResources);
        bench.run_as_one().unwrap();
        assert_eq!(bench.contents().unwrap(), [expected; 8]);
        block_on(async { futures::try_join!(first, last) }).unwrap();
    }
    block_on(bench.rt.drain());
    assert_eq!(bench.rt.stats().commands.in_flight, 0);
}

#[test]
fn separated_launches_run_after_commands_in_flight() {
    let bench = Bench::of(Simulator::new());
    bench.simulator.kernel("slow", |call| {
        std::thread::sleep(Duration::from_millis(100));
        let x: Vec<_> = call.read::<u32>(0).into_iter().map(|x| x + 1000).collect();
        call.write(0, &x);
    });
    let slow = bench.submit("slow", None);
    bench.collect(None);
    bench.simulator.fail_enqueues(1, Fault::OutOfResources);
    bench.run_as_one().unwrap();
    assert_eq!(bench.contents().unwrap(), [(5 + 1000 + 1) * 2; 8]);
    block_on(slow).unwrap();
}

#[test]
fn separated_launches_fail_only_with_their_inputs() {
    let bench = Bench::of(Simulator::new());
    let other = block_on(async { bench.rt.buffer_from(vec![5u32; 8]).await }).unwrap();
    let pause = bench.simulator.pause();
    bench.simulator.fail_launches("one", 1, Fault::OutOfResources);
    let failing = bench.submit("one", None);
    bench.open_group();
    let reading = bench.submit("double", None);
    let apart = bench.submit_on(&other, "double", None);
    bench.close_group();
    // Only one of the launches needs the command in flight, so they wait for its end, and run one by one.
    bench.run_as_one().unwrap();
    drop(pause);
    block_on(failing).expect_err("the command was set to fail");
    block_on(reading).expect_err("its input is missing");
    block_on(apart).unwrap();
    assert_eq!(block_on(bench.queue.read(&other)).unwrap(), [10; 8]);
}

#[test]
fn all_launches_fail_if_the_fused_one_fails() {
    let bench = Bench::new();
    for after in bench.predecessors() {
        let events = bench.collect(after.as_ref());
        bench.simulator.fail_launches("both", 1, Fault::OutOfResources);
        bench.run_as_one().unwrap();
        bench.contents().expect_err("it was not written");
        for event in events {
            block_on(event).expect_err("its fused launch failed");
        }
        block_on(bench.queue.fill(&bench.x, 5).unwrap()).unwrap();
    }
    assert_eq!(bench.rt.stats().commands.failed, 2 * 2 + 2, "with the two reads");
}

#[test]
fn launches_after_a_failure_are_not_fused() {
    let bench = Bench::new();
    bench.simulator.fail_launches("double", 1, Fault::OutOfResources);
    let doubled = bench.kernel("double").launch(8).args((&bench.x,));
    let doubled = bench.queue.submit(doubled).unwrap();
    block_on(doubled).expect_err("the command was set to fail");
    let events = bench.collect(None);
    let blocker = bench.run_as_one().expect_err("its input is missing");
    assert!(blocker.to_string().contains("a launch failed before it started"), "{blocker}");
    for event in events {
        block_on(event).expect_err("its input is missing");
    }
}

/// The failure is found before the device is given any command of the group.
#[test]
fn a_failure_before_launches_without_edges_reaches_each_of_them_once() {
    let bench = Bench::new();
    let x = bench.rt.buffer::<u32>(64).unwrap();
    let pause = bench.simulator.pause_builds();
    bench.simulator.fail_builds(1, Fault::Refused);
    let bad = bench.rt.build(&Module::opencl_c("kernel void bad(global uint *x) {}")).start();
    // SAFETY: it never runs.
    let bad = unsafe { bad.kernel("bad") };
    let bad = bench.queue.submit(bad.launch(8).args((&bench.x,))).unwrap();
    let first = bench.kernel("one").launch(64).args((&x,)).after(&bad);
    let first = bench.queue.submit(first).unwrap();
    bench.open_group();
    let [left, right] = [0..32, 32..64].map(|half| x.slice(half).unwrap());
    let launches = [bench.submit_on(&left, "one", None), bench.submit_on(&right, "double", None)];
    bench.close_group();
    bench.run_as_one().unwrap();
    let ends = launches.map(|launch| std::thread::spawn(move || block_on(launch)));
    drop(pause);
    block_on(first).expect_err("it comes after a launch that has no program");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !ends.iter().all(|end| end.is_finished()) {
        assert!(Instant::now() < deadline, "waiters are woken");
        std::thread::sleep(Duration::from_millis(1));
    }
    for end in ends {
        end.join().unwrap().expect_err("its input is missing");
    }
    block_on(bench.rt.drain());
    assert_eq!(bench.rt.stats().commands.in_flight, 0);
}

#[test]
fn launches_can_be_ordered_after_others_of_their_scope() {
    let bench = Bench::new();
    let other = block_on(async { bench.rt.buffer_from(vec![5u32; 8]).await }).unwrap();
    bench.simulator.fail_launches("one", 1, Fault::OutOfResources);
    bench.open_group();
    let first = bench.submit("one", None);
    let second = bench.submit_on(&other, "double", Some(&first));
    bench.close_group();
    bench.queue.scheduler.run_separately(GROUP, None);
    block_on(first).expect_err("the command was set to fail");
    block_on(second).expect_err("it comes after what failed");
}

#[test]
fn launches_submitted_after_their_scope_closed_run_after_it() {
    let bench = Bench::new();
    bench.open_group();
    bench.submit("one", None);
    let closed = bench.queue.scheduler.close_group(GROUP, |launches| launches.len());
    assert_eq!(closed, Some((1, 1)));
    bench.submit("double", None);
    bench.queue.scheduler.run_separately(GROUP, None);
    assert_eq!(bench.contents().unwrap(), [12; 8]);
}

#[test]
fn reads_before_the_decision_make_launches_run_separately() {
    let bench = Bench::new();
    bench.collect(None);
    let read = bench.queue.read(&bench.x);
    let filled = bench.queue.fill(&bench.x, 7).unwrap();
    let blocker =
        bench.run_as_one_without(Some(&bench.x)).expect_err("another command reads the buffer");
    assert!(blocker.to_string().contains("internalized"), "{blocker}");
    assert_eq!(block_on(read).unwrap(), [12; 8]);
    block_on(filled).unwrap();
    assert_eq!(bench.contents().unwrap(), [7; 8]);
}

#[test]
fn updates_before_the_decision_make_launches_run_separately() {
    let bench = Bench::new();
    bench.collect(None);
    let changes = bench.kernel("one").launch(8).args((&bench.x,));
    let changed = bench.queue.submit(changes).unwrap();
    let blocker =
        bench.run_as_one_without(Some(&bench.x)).expect_err("another command reads the buffer");
    assert!(matches!(blocker, FusionBlocker::InternalizedRead(_)), "{blocker}");
    block_on(changed).unwrap();
    assert_eq!(bench.contents().unwrap(), [13; 8]);
}

#[test]
fn writes_before_the_decision_are_not_lost() {
    let bench = Bench::new();
    for after in bench.predecessors() {
        bench.collect(after.as_ref());
        let filled = bench.queue.fill(&bench.x, 7).unwrap();
        bench.run_as_one_without(Some(&bench.x)).unwrap();
        block_on(filled).unwrap();
        assert_eq!(bench.contents().unwrap(), [7; 8]);
    }
}

#[test]
fn writes_beside_internalized_contents_are_not_lost() {
    let bench = Bench::new();
    let x = block_on(async { bench.rt.buffer_from(vec![5u32; 64]).await }).unwrap();
    let [left, right] = [0..32, 32..64].map(|half| x.slice(half).unwrap());
    bench.open_group();
    bench.submit_on(&left, "one", None);
    bench.submit_on(&left, "double", None);
    bench.close_group();
    block_on(bench.queue.fill(&right, 7).unwrap()).unwrap();
    bench.run_as_one_without(Some(&x)).unwrap();
    assert_eq!(block_on(bench.queue.read(&right)).unwrap(), [7; 32]);
    block_on(bench.queue.read(&left)).expect_err("the contents are missing");
}

#[test]
fn reading_internalized_contents_fails() {
    let bench = Bench::new();
    bench.collect(None);
    bench.run_as_one_without(Some(&bench.x)).unwrap();
    bench.open_group();
    let reads = bench.kernel("one").launch(8).args((bench.x.read_only(),));
    let reader = bench.queue.submit_to(reads, Some(GROUP)).unwrap();
    bench.submit("double", None);
    bench.close_group();
    let blocker = bench.run_as_one().expect_err("the contents are missing");
    assert!(matches!(blocker, FusionBlocker::Failed(_)), "{blocker}");
    let error = block_on(reader).unwrap_err();
    assert!(error.to_string().contains("internalized"), "{error}");
}

#[test]
fn contents_are_not_lost_if_the_driver_refuses_the_fused_launch() {
    let bench = Bench::new();
    bench.simulator.kernel("slow", |_| ());
    let y = block_on(async { bench.rt.buffer_from(vec![5u32; 8]).await }).unwrap();
    bench.open_group();
    let looks = bench.kernel("slow").launch(8).args((y.read_only(),));
    let reader = bench.queue.submit_to(looks, Some(GROUP)).unwrap();
    bench.submit_on(&y, "double", None);
    bench.close_group();
    bench.simulator.fail_enqueues(1, Fault::OutOfResources);
    bench.run_as_one_without(Some(&y)).unwrap();
    block_on(reader).unwrap();
    assert_eq!(block_on(bench.queue.read(&y)).unwrap(), [10; 8]);
}

#[test]
fn internalized_buffers_are_released_and_add_no_edges() {
    let bench = Bench::of(Simulator::new());
    // SAFETY: it is written before it is read.
    let without = unsafe { bench.rt.buffer_uninit::<u32>(8) }.unwrap();
    let paused = bench.simulator.pause();
    bench.open_group();
    bench.submit("one", None);
    bench.submit_on(&without, "double", None);
    bench.close_group();
    bench.run_as_one_without(Some(&without)).unwrap();
    // The last handle of a kernel is dropped on a separate thread.
    let deadline = Instant::now() + Duration::from_secs(10);
    while Arc::strong_count(without.region()) > 1 {
        assert!(Instant::now() < deadline, "the device was not given it");
        std::thread::yield_now();
    }
    let lost = bench.queue.read(&without);
    let filled = bench.queue.fill(&without, 7).unwrap();
    let kept = bench.queue.read(&without);
    assert!(!bench.queue.dot().contains("c2 -> "), "{}", bench.queue.dot());
    let own = bench.queue.read(&bench.x);
    assert!(bench.queue.dot().contains("c2 -> "), "{}", bench.queue.dot());
    drop(paused);
    let error = block_on(lost).expect_err("the contents were internalized");
    assert!(error.to_string().contains("internalized"), "{error}");
    block_on(filled).unwrap();
    assert_eq!(block_on(kept).unwrap(), [7; 8]);
    assert_eq!(block_on(own).unwrap(), [105; 8]);
}

#[test]
fn parts_run_one_after_another_and_past_launches_that_do_not_matter() {
    for order in [&[&[0, 1][..], &[2, 3], &[4]], &[&[2, 3][..], &[0, 1], &[4]]] {
        let bench = Bench::of(Simulator::new());
        let y = block_on(async { bench.rt.buffer_from(vec![5u32; 8]).await }).unwrap();
        for after in bench.predecessors() {
            block_on(bench.queue.fill(&bench.x, 5).unwrap()).unwrap();
            block_on(bench.queue.fill(&y, 5).unwrap()).unwrap();
            bench.open_group();
            let mut events =
                vec![bench.submit("one", after.as_ref()), bench.submit("double", None)];
            events.extend(["one", "double"].map(|name| bench.submit_on(&y, name, None)));
            events.push(bench.submit("double", None));
            bench.close_group_of(5);
            assert!(bench.run_in_parts(order).unwrap().is_empty());
            for event in events.into_iter().rev() {
                block_on(event).unwrap();
            }
            assert_eq!(bench.contents().unwrap(), [(5 + 100) * 2; 8]);
            assert_eq!(block_on(bench.queue.read(&y)).unwrap(), [5 + 100; 8]);
        }
        block_on(bench.rt.drain());
        assert_eq!(bench.rt.stats().commands.in_flight, 0);
    }
}

#[test]
fn a_failed_part_fails_only_the_parts_that_depend_on_it() {
    let bench = Bench::new();
    let y = block_on(async { bench.rt.buffer_from(vec![5u32; 8]).await }).unwrap();
    for after in bench.predecessors() {
        block_on(bench.queue.fill(&y, 5).unwrap()).unwrap();
        bench.open_group();
        let failing = [bench.submit("one", after.as_ref()), bench.submit("double", None)];
        let apart = ["one", "double"].map(|name| bench.submit_on(&y, name, None));
        let dependent = bench.submit("double", None);
        bench.close_group_of(5);
        bench.simulator.fail_launches("both", 1, Fault::OutOfResources);
        assert!(bench.run_in_parts(&[&[0, 1], &[2, 3], &[4]]).unwrap().is_empty());
        for event in failing.into_iter().chain([dependent]) {
            block_on(event).expect_err("the first part was set to fail");
        }
        for event in apart {
            block_on(event).unwrap();
        }
        assert_eq!(block_on(bench.queue.read(&y)).unwrap(), [5 + 100; 8]);
        block_on(bench.queue.fill(&bench.x, 5).unwrap()).unwrap();
    }
}

#[test]
fn only_the_part_that_the_driver_refuses_runs_one_by_one() {
    let bench = Bench::new();
    let y = block_on(async { bench.rt.buffer_from(vec![5u32; 8]).await }).unwrap();
    for (after, expected) in bench.predecessors().into_iter().zip([12, 26]) {
        block_on(bench.queue.fill(&y, 5).unwrap()).unwrap();
        bench.open_group();
        bench.submit("one", after.as_ref());
        bench.submit("double", None);
        for name in ["one", "double"] {
            bench.submit_on(&y, name, None);
        }
        bench.close_group_of(4);
        bench.simulator.fail_enqueues(1, Fault::OutOfResources);
        assert!(bench.run_in_parts(&[&[0, 1], &[2, 3]]).unwrap().is_empty());
        assert_eq!(bench.contents().unwrap(), [expected; 8]);
        assert_eq!(block_on(bench.queue.read(&y)).unwrap(), [5 + 100; 8]);
    }
}

#[test]
fn only_the_part_whose_kernel_does_not_fit_runs_one_by_one() {
    let bench = Bench::new();
    bench.open_group();
    for name in ["one", "double", "one", "double"] {
        bench.submit(name, None);
    }
    bench.close_group_of(4);
    let ran = bench.queue.scheduler.run_in_parts(GROUP, |launches| {
        let unfit = Part {
            launches: SmallVec::from_slice(&[0, 1]),
            fused: Some(Err(Error::invalid("on purpose"))),
            stopwatch: None,
        };
        let own = &launches[2..];
        let fused = Some(Ok(bench.fused("both", own[0], own, None)));
        vec![unfit, Part { launches: SmallVec::from_slice(&[2, 3]), fused, stopwatch: None }]
    });
    let [(0, blocker)] = &ran.unwrap()[..] else { panic!("the first part is blocked") };
    assert!(blocker.to_string().contains("on purpose"), "{blocker}");
    assert_eq!(bench.contents().unwrap(), [(5 + 1) * 2 + 100; 8]);
}

#[test]
fn launches_that_come_after_an_event_of_a_later_part_run_one_by_one() {
    let bench = Bench::new();
    let y = block_on(async { bench.rt.buffer_from(vec![5u32; 8]).await }).unwrap();
    bench.open_group();
    bench.submit("one", None);
    let other = bench.submit_on(&y, "one", None);
    bench.submit("double", Some(&other));
    bench.close_group_of(3);
    let blocker = bench.run_in_parts(&[&[0, 2], &[1]]).unwrap_err();
    assert!(matches!(blocker, FusionBlocker::Order(2, 1)), "{blocker}");
    assert_eq!(bench.contents().unwrap(), [12; 8]);
    assert_eq!(block_on(bench.queue.read(&y)).unwrap(), [6; 8]);
}

/// The fused launch of the second part reads what a launch of the first part reads. Commands that follow must
/// not overwrite that too early, whether the parts start at once or are parked.
#[test]
fn the_input_of_a_repeated_launch_is_kept_until_the_fused_launch_has_read_it() {
    for max_in_flight in [None, Some(1)] {
        let bench = Bench::with_limit(Simulator::new(), max_in_flight);
        bench.simulator.kernel("slow", |_| {});
        let buffer = || block_on(async { bench.rt.buffer_from(vec![5u32; 8]).await }).unwrap();
        let [source, middle, result] = [buffer(), buffer(), buffer()];
        let submit = |from: &Buffer<u32>, to: &Buffer<u32>, after: Option<&Event>| {
            let launch = bench.kernel("add").launch(8).args((from, to));
            let launch = after.into_iter().fold(launch, |launch, event| launch.after(event));
            bench.queue.submit_to(launch, Some(GROUP)).unwrap()
        };
        for is_among_others in [false, true] {
            block_on(bench.queue.fill(&source, 5).unwrap()).unwrap();
            let pause = bench.simulator.pause();
            let first = bench.kernel("slow").launch(8).args((&result,));
            let first = bench.queue.submit(first).unwrap();
            bench.open_group();
            submit(&source, &middle, is_among_others.then_some(&first));
            submit(&middle, &result, None);
            bench.close_group_of(2);
            let ran = bench.queue.scheduler.run_in_parts(GROUP, |launches| {
                let [repeated, own] = launches[..] else { panic!("there are two launches") };
                let mut like = own.clone();
                like.arguments[0] = repeated.arguments[0].clone();
                let fused = bench.fused("add_twice", &like, &[own], Some(repeated));
                let launches = SmallVec::from_slice(&[1]);
                let fused = Part { launches, fused: Some(Ok(fused)), stopwatch: None };
                vec![Part::of_launch(0, None), fused]
            });
            let blocked = ran.unwrap();
            bench.queue.fill(&source, 1000).unwrap();
            drop(pause);
            assert_eq!(block_on(bench.queue.read(&result)).unwrap(), [7; 8]);
            assert_eq!(block_on(bench.queue.read(&middle)).unwrap(), [6; 8]);
            let is_blocked = matches!(&blocked[..], [(1, FusionBlocker::Repeats)]);
            assert_eq!(is_blocked, is_among_others, "{blocked:?}");
        }
        block_on(bench.rt.drain());
    }
}
