//! Wakers that panic affect only their own task, and many waiters take linear time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands need nobody who awaits them")]

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{Event, Module, Runtime};
use support::simulation::{KERNELS, eventually, kernel, runtime, with_kernels};

const LEN: usize = 64;

/// A function of a waker.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Clone,
    Wake,
    WakeByRef,
    Drop,
}

const FUNCTIONS: [Function; 4] =
    [Function::Clone, Function::Wake, Function::WakeByRef, Function::Drop];

/// State shared by wakers, one function of which panics while it is armed.
struct PanickingWaker {
    panics_in: Function,
    is_armed: AtomicBool,
}

impl PanickingWaker {
    fn new(panics_in: Function) -> Arc<Self> {
        Arc::new(Self { panics_in, is_armed: AtomicBool::new(true) })
    }

    fn called(&self, function: Function) {
        assert!(
            function != self.panics_in || !self.is_armed.load(SeqCst),
            "a waker panics in {function:?}"
        );
    }

    fn waker(self: &Arc<Self>) -> Waker {
        // SAFETY: the functions in the table treat the data as the `Arc` from which `raw` made it.
        unsafe { Waker::from_raw(raw(self.clone())) }
    }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(
    |data| {
        let bad = borrowed(data);
        bad.called(Function::Clone);
        raw(Arc::clone(&bad))
    },
    |data| owned(data).called(Function::Wake),
    |data| borrowed(data).called(Function::WakeByRef),
    |data| owned(data).called(Function::Drop),
);

fn raw(bad: Arc<PanickingWaker>) -> RawWaker {
    RawWaker::new(Arc::into_raw(bad).cast(), &TABLE)
}

fn owned(data: *const ()) -> Arc<PanickingWaker> {
    // SAFETY: `raw` made the data from such an `Arc`, which the waker owns.
    unsafe { Arc::from_raw(data.cast()) }
}

fn borrowed(data: *const ()) -> std::mem::ManuallyDrop<Arc<PanickingWaker>> {
    std::mem::ManuallyDrop::new(owned(data))
}

/// Waker that counts its wakes.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Polls futures with wakers that panic and with others, in several orders. Checks that the others are woken.
fn assert_others_are_woken_in_each_order<F: Future + Unpin>(
    future: &impl Fn() -> F,
    end: impl Fn() + Copy,
) {
    for function in FUNCTIONS {
        for bad_comes_first in [true, false] {
            assert_others_are_woken(function, bad_comes_first, future, end);
        }
    }
}

fn assert_others_are_woken<F: Future + Unpin>(
    function: Function,
    bad_comes_first: bool,
    future: impl Fn() -> F,
    end: impl Fn(),
) {
    let case = format!("{function:?}, first: {bad_comes_first}");
    let (bads, good) = (
        [(); 4].map(|()| PanickingWaker::new(function)),
        [(); 6].map(|()| Arc::<Count>::default()),
    );
    let bad_wakers = bads.each_ref().map(PanickingWaker::waker);
    let good_wakers = good.each_ref().map(|good| Waker::from(good.clone()));
    let mut goods = [(); 6].map(|()| future());
    let mut waits = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            assert!(poll(&mut goods[number], &good_wakers[number]).is_pending(), "{case}");
        }
    };
    if !bad_comes_first {
        waits(0..2);
    }
    let [mut left, mut polled_again, mut stays] = [(); 3].map(|()| future());
    // A poll may panic, which affects only its caller.
    let caught = |call: &mut dyn FnMut()| _ = catch_unwind(AssertUnwindSafe(call));
    caught(&mut || _ = poll(&mut left, &bad_wakers[0]));
    caught(&mut || _ = poll(&mut polled_again, &bad_wakers[1]));
    caught(&mut || _ = poll(&mut polled_again, &bad_wakers[2]));
    caught(&mut || _ = poll(&mut polled_again, &bad_wakers[1]));
    caught(&mut || _ = poll(&mut stays, &bad_wakers[3]));
    if bad_comes_first {
        waits(0..2);
    }
    waits(2..4);
    catch_unwind(AssertUnwindSafe(|| drop(left)))
        .expect("nothing panics where a future is dropped");
    waits(4..6);
    end();
    for (number, good) in good.iter().enumerate() {
        let is_woken = || good.0.load(SeqCst) > 0;
        eventually(&format!("waiter {number} is woken ({case})"), is_woken);
    }
    for (good, waker) in goods.iter_mut().zip(&good_wakers) {
        eventually(&format!("each is ready ({case})"), || poll(good, waker).is_ready());
    }
    for bad in &bads {
        bad.is_armed.store(false, SeqCst);
    }
    // Futures that were polled with panicking wakers work like all others.
    block_on(stays);
    block_on(polled_again);
}

#[test]
fn panicking_wakers_do_not_affect_other_waiters_of_an_event() {
    for simulator in [Simulator::new(), Simulator::immediate()] {
        let rt = block_on(runtime(&simulator));
        let queue = rt.queue();
        let buffer = rt.buffer::<u32>(LEN).unwrap();
        for function in FUNCTIONS {
            for bad_comes_first in [true, false] {
                let pause = simulator.pause();
                let event = queue.fill(&buffer, 1).unwrap();
                let pause = std::cell::Cell::new(Some(pause));
                assert_others_are_woken(
                    function,
                    bad_comes_first,
                    || event.clone(),
                    || drop(pause.take()),
                );
            }
        }
    }
}

#[test]
fn panicking_wakers_do_not_affect_other_waiters_of_a_host_task() {
    let simulator = Simulator::new();
    let rt = block_on(runtime(&simulator));
    for function in FUNCTIONS {
        for bad_comes_first in [true, false] {
            let (open, gate) = futures::channel::oneshot::channel::<()>();
            let event = rt.queue().host_task(gate).unwrap();
            let open = std::cell::Cell::new(Some(open));
            let end = || open.take().unwrap().send(()).unwrap();
            assert_others_are_woken(function, bad_comes_first, || event.clone(), end);
        }
    }
}

#[test]
fn panicking_wakers_do_not_affect_other_drains_markers_reads_or_uploads() {
    let simulator = Simulator::new();
    let rt = block_on(runtime(&simulator));
    let queue = rt.queue();
    let buffer = block_on(rt.buffer_from(vec![1u32; LEN])).unwrap();
    let pause = std::cell::RefCell::new(None);
    let hang = || {
        pause.borrow_mut().get_or_insert_with(|| simulator.pause());
    };
    let end = || drop(pause.take());
    assert_others_are_woken_in_each_order(
        &|| {
            hang();
            drop(queue.fill(&buffer, 1).unwrap());
            rt.drain()
        },
        end,
    );
    assert_others_are_woken_in_each_order(
        &|| {
            hang();
            drop(queue.fill(&buffer, 1).unwrap());
            queue.marker().unwrap()
        },
        end,
    );
    assert_others_are_woken_in_each_order(
        &|| {
            hang();
            queue.read(&buffer)
        },
        end,
    );
    assert_others_are_woken_in_each_order(
        &|| {
            hang();
            rt.buffer_from(vec![1u32; LEN])
        },
        end,
    );
}

#[test]
fn panicking_wakers_do_not_affect_other_waiters_of_a_build() {
    let simulator = with_kernels(Simulator::new());
    let rt = block_on(runtime(&simulator));
    let mut number = 0;
    for function in FUNCTIONS {
        for bad_comes_first in [true, false] {
            let pause = std::cell::Cell::new(Some(simulator.pause_builds()));
            number += 1;
            let module = Module::opencl_c(format!("{KERNELS}\n// {number}"));
            let build = rt.build(&module).start();
            assert_others_are_woken(
                function,
                bad_comes_first,
                || build.clone(),
                || drop(pause.take()),
            );
        }
    }
}

#[test]
fn panicking_wakers_do_not_end_the_thread_of_host_tasks() {
    let simulator = with_kernels(Simulator::new());
    let rt = block_on(runtime(&simulator));
    let scale = block_on(kernel(&rt, "scale"));
    let x = rt.buffer::<u32>(LEN).unwrap();
    for function in FUNCTIONS {
        let scope = rt.queue().start_fusion();
        let pause = simulator.pause_builds();
        let _ = scope.submit(scale.launch(LEN).args((2u32, &x))).unwrap();
        let _ = scope.submit(scale.launch(LEN).args((3u32, &x))).unwrap();
        let bad = PanickingWaker::new(function);
        let waker = bad.waker();
        let mut fusing = scope.complete();
        let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut fusing, &waker)));
        drop(pause);
        let task = rt.queue().host_task(async {}).unwrap();
        eventually("host tasks go on", || task.clone().now_or_never().is_some());
        bad.is_armed.store(false, SeqCst);
        block_on(fusing).unwrap();
    }
}

const MANY: usize = 100_000;
const FEW: usize = MANY / 10;

/// Asserts that `run` takes about ten times as long for `MANY` as for `FEW`, which is linear, and not a hundred
/// times, which is quadratic. The two runs follow each other, so that the load of the machine counts for both.
fn assert_linear(what: &str, run: impl Fn(usize)) {
    let time = |count| {
        let started = Instant::now();
        run(count);
        started.elapsed()
    };
    let measure = || {
        // A shorter time says little on a busy machine.
        let few = time(FEW).max(Duration::from_millis(50));
        (few, time(MANY))
    };
    // Other work may begin between the two runs.
    let (few, many) = measure();
    let is_linear =
        many < few * 40 || (0..2).any(|_| matches!(measure(), (few, many) if many < few * 40));
    assert!(is_linear, "{what}: {few:.1?} for {FEW}, but {many:.1?} for {MANY}");
}

/// Polls many clones of one future, polls them with another waker, drops half of them in an arbitrary order,
/// and calls `end`, which makes the future ready. Waits until all that are left are woken and ready.
fn many_waiters<F: Future + Unpin + Clone>(many: usize, future: &F, end: impl FnOnce()) {
    let count = Arc::<Count>::default();
    let mut waiters = vec![future.clone(); many];
    for waiter in &mut waiters {
        assert!(poll(waiter, &Waker::from(count.clone())).is_pending());
    }
    let other = Arc::<Count>::default();
    for waiter in waiters.iter_mut().rev() {
        assert!(poll(waiter, &Waker::from(other.clone())).is_pending());
    }
    // Every second one, from the middle outwards.
    let mut kept: Vec<_> = waiters.into_iter().map(Some).collect();
    for distance in (1..many / 2).step_by(2) {
        kept[many / 2 - distance] = None;
        kept[many / 2 + distance] = None;
    }
    end();
    let left = kept.iter().flatten().count();
    eventually("all are woken", || other.0.load(SeqCst) >= left);
    for mut waiter in kept.into_iter().flatten() {
        let waker = Waker::from(count.clone());
        eventually("each is ready", || poll(&mut waiter, &waker).is_ready());
    }
}

#[test]
fn many_waiters_of_one_event_cost_linear_time() {
    assert_linear("waiters of an event", |many| {
        let simulator = Simulator::new();
        let rt = block_on(runtime(&simulator));
        let pause = simulator.pause();
        let event = rt.queue().fill(&rt.buffer::<u32>(LEN).unwrap(), 1).unwrap();
        many_waiters(many, &event, || drop(pause));
    });
}

#[test]
fn many_waiters_of_one_build_cost_linear_time() {
    assert_linear("waiters of a build", |many| {
        let simulator = with_kernels(Simulator::new());
        let rt = block_on(runtime(&simulator));
        let pause = simulator.pause_builds();
        let build = rt.build(&Module::opencl_c(KERNELS)).start();
        many_waiters(many, &build, || drop(pause));
    });
}

/// Launches that each depend on one event, also while their program is still being built.
#[test]
fn many_launches_after_one_event_cost_linear_time() {
    let simulator = with_kernels(Simulator::immediate());
    let rt = block_on(runtime(&simulator));
    let scale = block_on(kernel(&rt, "scale"));
    let x = rt.buffer::<u32>(LEN).unwrap();
    let queue = rt.queue();
    for is_host in [true, false] {
        assert_linear("launches after an event", |many| {
            let pause = simulator.pause();
            let (open, gate) = futures::channel::oneshot::channel::<()>();
            let before = match is_host {
                true => queue.host_task(gate).unwrap(),
                false => queue.fill(&x, 1).unwrap(),
            };
            let y = rt.buffer::<u32>(LEN).unwrap();
            let launch = |_| scale.launch(1).args((2u32, y.read_only())).after(&before);
            let events: Vec<Event> = (0..many).map(|n| queue.submit(launch(n)).unwrap()).collect();
            let _ = open.send(());
            drop(pause);
            block_on(rt.drain());
            assert!(events.iter().all(|event| event.clone().now_or_never().is_some()));
        });
    }
}

#[test]
fn many_markers_and_drains_in_flight_cost_linear_time() {
    let simulator = Simulator::new();
    let rt: Runtime = block_on(runtime(&simulator));
    let queue = rt.queue();
    let buffers: Vec<_> = (0..8).map(|_| rt.buffer::<u32>(LEN).unwrap()).collect();
    assert_linear("markers and drains", |many| {
        let pause = simulator.pause();
        let count = Arc::<Count>::default();
        let waker = Waker::from(count);
        let (mut markers, mut drains) = (Vec::new(), Vec::new());
        for number in 0..many {
            match number % 4 {
                0 => drop(queue.fill(&buffers[number / 4 % 8], 1).unwrap()),
                1 => drains.push(rt.drain()),
                _ => markers.push(queue.marker().unwrap()),
            }
        }
        for marker in &mut markers {
            assert!(poll(marker, &waker).is_pending());
        }
        for drain in &mut drains {
            assert!(poll(drain, &waker).is_pending());
        }
        drop(pause);
        for marker in markers {
            block_on(marker).unwrap();
        }
        for drain in drains {
            block_on(drain);
        }
    });
}
