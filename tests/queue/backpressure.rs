//! Back-pressure with `Queue::ready`: producers wait while the device has as many unfinished commands as its
//! limit, and proceed whatever becomes of these commands.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use futures::future::{join_all, try_join_all};
use kiln::commands::Ready;
use kiln::simulated::{Fault, Simulator};
use kiln::{Buffer, Error, ErrorKind, Event, Kernel, Module, Runtime};
use support::simulation::{eventually, runtime_with};

const PRODUCERS: usize = 8;

const SOURCE: &str = "kernel void increase(global uint *x) { x[get_global_id(0)] += 1; }";

/// Simulated device with a limit of unfinished commands, and a kernel that adds 1.
struct Bench {
    simulator: Simulator,
    rt: Runtime,
    increase: Kernel,
    x: Buffer<u32>,
}

impl Bench {
    fn new(limit: usize) -> Self {
        Self::of(Simulator::new(), limit)
    }

    fn of(simulator: Simulator, limit: usize) -> Self {
        simulator.kernel("increase", |call| {
            let x: Vec<_> = call.read::<u32>(0).into_iter().map(|x| x + 1).collect();
            call.write(0, &x);
        });
        block_on(async {
            let builder = Runtime::builder().max_in_flight(NonZeroUsize::new(limit).unwrap());
            let rt = runtime_with(&simulator, builder).await;
            let program = rt.build(&Module::opencl_c(SOURCE)).await.unwrap();
            // SAFETY: the closure stays inside its argument.
            let increase = unsafe { program.kernel("increase") }.unwrap();
            let x = rt.buffer_from(vec![0u32]).await.unwrap();
            Self { simulator, rt, increase, x }
        })
    }

    fn submit(&self) -> Event {
        self.rt.queue().submit(self.increase.launch(1).args((&self.x,))).unwrap()
    }

    fn unfinished(&self) -> usize {
        self.rt.stats().commands.in_flight as usize
    }
}

/// Waker that appends its number to a list.
struct Numbered {
    number: usize,
    woken: Arc<Mutex<Vec<usize>>>,
}

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push(self.number);
    }
}

/// Waker that panics.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics");
    }
}

fn poll(ready: &mut Ready, waker: &Waker) -> Poll<()> {
    Pin::new(ready).poll(&mut Context::from_waker(waker))
}

/// Polls futures of the runtime once each, all of which have to wait. Returns them, and the list to which the
/// waker of each appends the future's number.
fn waiting(rt: &Runtime, count: usize) -> (Vec<Ready>, Arc<Mutex<Vec<usize>>>) {
    let woken = Arc::<Mutex<Vec<usize>>>::default();
    let polled = (0..count).map(|number| {
        let mut ready = rt.queue().ready();
        let waker = Arc::new(Numbered { number, woken: woken.clone() }).into();
        assert!(poll(&mut ready, &waker).is_pending());
        ready
    });
    (polled.collect(), woken)
}

/// Awaits a future, for at most 60 s.
#[track_caller]
fn within_limit<T>(future: impl Future<Output = T>) -> T {
    let limit = async {
        smol::Timer::after(Duration::from_secs(60)).await;
        None
    };
    let output = block_on(smol::future::or(async { Some(future.await) }, limit));
    output.expect("the future completes in time")
}

/// Runs the producers at the same time: as tasks of tokio, as tasks of smol, and each on a thread of its own.
fn under_executors<F: Future<Output = ()> + Send + 'static>(producers: impl Fn() -> Vec<F>) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let tasks: Vec<_> = producers().into_iter().map(|producer| tokio.spawn(producer)).collect();
    tasks.into_iter().for_each(|task| tokio.block_on(task).unwrap());
    let tasks: Vec<_> = producers().into_iter().map(smol::spawn).collect();
    tasks.into_iter().for_each(smol::block_on);
    let run = |producer| thread::spawn(move || block_on(producer));
    let threads: Vec<_> = producers().into_iter().map(run).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Awaits room before each of many launches. Fails if more commands are unfinished than `limit` and one for
/// each producer.
async fn produce(rt: Runtime, increase: Kernel, x: Buffer<u32>, launches: usize, limit: usize) {
    let queue = rt.queue();
    for number in 0..launches {
        queue.ready().await;
        queue.submit(increase.launch(x.len()).args((&x,))).unwrap();
        // `stats` counts the programs in memory, too, which takes longer than a launch.
        if number % 50 == 0 {
            let unfinished = rt.stats().commands.in_flight as usize;
            assert!(unfinished <= limit + PRODUCERS, "{unfinished} commands are unfinished");
        }
    }
}

/// Lets producers submit launches to a simulated device under each executor.
fn assert_limit_is_kept(limit: usize, launches: usize) {
    let bench = Arc::new(Bench::new(limit));
    let buffer = |_| block_on(bench.rt.buffer_from(vec![0u32])).unwrap();
    let buffers: Vec<_> = (0..PRODUCERS).map(buffer).collect();
    under_executors(|| {
        let (resuming, pause) = (bench.clone(), bench.simulator.pause());
        thread::spawn(move || {
            eventually("the limit is reached", || resuming.unfinished() >= limit);
            drop(pause);
        });
        let producer = |x: &Buffer<u32>| {
            let (rt, increase, x) = (bench.rt.clone(), bench.increase.clone(), x.clone());
            produce(rt, increase, x, launches / PRODUCERS, limit)
        };
        buffers.iter().map(producer).collect()
    });
    for x in &buffers {
        let sum = block_on(bench.rt.queue().read(x)).unwrap();
        assert_eq!(sum, [(3 * launches / PRODUCERS) as u32]);
    }
}

#[test]
fn unfinished_commands_exceed_the_limit_by_at_most_one_for_each_producer() {
    assert_limit_is_kept(64, 100_000);
}

#[test]
fn a_limit_of_one_is_kept() {
    assert_limit_is_kept(1, 8000);
}

#[test]
fn drivers_are_given_no_more_than_the_limit() {
    const LAUNCHES: usize = 2000;
    const LIMIT: usize = 32;
    let limited = || support::builder().max_in_flight(NonZeroUsize::new(LIMIT).unwrap());
    let submit = async |rt: Runtime| {
        let increase = support::kernel(&rt, SOURCE, "increase").await;
        let buffers = (0..PRODUCERS).map(|_| rt.buffer_from(vec![0u32; 64]).into_future());
        let buffers = try_join_all(buffers).await.unwrap();
        let producer =
            |x: &Buffer<u32>| produce(rt.clone(), increase.clone(), x.clone(), LAUNCHES, LIMIT);
        join_all(buffers.iter().map(producer)).await;
        for x in &buffers {
            assert_eq!(rt.queue().read(x).await.unwrap(), [LAUNCHES as u32; 64]);
        }
    };
    support::under_executors(move || support::on_each_device_with(limited, submit));
}

#[test]
fn an_idle_device_is_ready_at_the_first_poll() {
    let bench = Bench::new(1);
    assert!(bench.rt.queue().ready().now_or_never().is_some());
    block_on(bench.submit()).unwrap();
    assert!(bench.rt.queue().ready().now_or_never().is_some());
}

#[test]
fn commands_that_have_ended_unnoticed_free_their_places() {
    const COMMANDS: usize = 1000;
    let bench = Bench::of(Simulator::immediate(), 1);
    let is_ready = |_: &usize| {
        bench.submit();
        let mut ready = bench.rt.queue().ready();
        let at_once = (&mut ready).now_or_never().is_some();
        if !at_once {
            within_limit(ready);
        }
        at_once
    };
    let ready = (0..COMMANDS).filter(is_ready).count();
    // A poll does not look for ended commands while the reactor does.
    assert!(ready > 0, "none of {COMMANDS} is ready at the first poll");
}

#[test]
fn producers_proceed_in_the_order_in_which_they_began_to_wait_even_if_they_submit_nothing() {
    let bench = Bench::new(1);
    let pause = bench.simulator.pause();
    bench.submit();
    let (waiting, woken) = waiting(&bench.rt, PRODUCERS);
    drop(pause);
    eventually("all are woken", || woken.lock().unwrap().len() == PRODUCERS);
    assert!(woken.lock().unwrap().iter().copied().eq(0..PRODUCERS));
    waiting.into_iter().for_each(within_limit);
}

#[test]
fn producers_that_give_up_do_not_hold_up_the_others() {
    let bench = Bench::new(1);
    for gives_up in 0..PRODUCERS {
        for is_woken_first in [false, true] {
            let pause = bench.simulator.pause();
            bench.submit();
            let (mut waiting, woken) = waiting(&bench.rt, PRODUCERS);
            if !is_woken_first {
                drop(waiting.remove(gives_up));
            }
            drop(pause);
            if is_woken_first {
                eventually("it is woken", || woken.lock().unwrap().contains(&gives_up));
                drop(waiting.remove(gives_up));
            }
            for ready in waiting {
                within_limit(ready);
                bench.submit();
            }
            within_limit(bench.rt.drain());
        }
    }
}

#[test]
fn producers_that_race_against_timers_lose_no_place() {
    let bench = Arc::new(Bench::new(2));
    under_executors(|| {
        let producer = |number| {
            let bench = bench.clone();
            async move {
                let mut random = fastrand::Rng::with_seed(number);
                for _ in 0..500 {
                    let timer = smol::Timer::after(Duration::from_micros(random.u64(..200)));
                    let patience = async {
                        timer.await;
                        false
                    };
                    let ready = bench.rt.queue().ready().map(|()| true);
                    if smol::future::or(ready, patience).await {
                        bench.submit();
                    }
                }
                bench.rt.queue().ready().await;
            }
        };
        (0..PRODUCERS as u64).map(producer).collect()
    });
}

#[test]
fn a_waker_that_panics_does_not_hold_up_the_others() {
    let bench = Bench::new(1);
    let pause = bench.simulator.pause();
    bench.submit();
    let mut panics = bench.rt.queue().ready();
    assert!(poll(&mut panics, &Arc::new(Panicking).into()).is_pending());
    let (waiting, _) = waiting(&bench.rt, PRODUCERS);
    drop(pause);
    waiting.into_iter().for_each(within_limit);
    within_limit(panics);
}

#[test]
fn a_producer_that_moves_to_another_task_is_woken_there() {
    let bench = Bench::new(1);
    let pause = bench.simulator.pause();
    bench.submit();
    let (mut waiting, woken) = waiting(&bench.rt, 1);
    let (again, woken_again) = self::waiting(&bench.rt, 1);
    let waker = Arc::new(Numbered { number: 7, woken: woken_again.clone() }).into();
    assert!(poll(&mut waiting[0], &waker).is_pending());
    drop((again, pause));
    eventually("it is woken", || woken_again.lock().unwrap().as_slice() == [7]);
    assert!(woken.lock().unwrap().is_empty());
    assert!(poll(&mut waiting[0], &waker).is_ready());
}

#[test]
fn failed_commands_free_their_places() {
    let bench = Bench::new(1);
    for fault in [Fault::OutOfResources, Fault::DeviceLost, Fault::Refused] {
        let pause = bench.simulator.pause();
        bench.simulator.fail_launches("increase", 1, fault);
        let failing = bench.submit();
        let (waiting, _) = waiting(&bench.rt, PRODUCERS);
        drop(pause);
        waiting.into_iter().for_each(within_limit);
        block_on(failing).expect_err("the command was set to fail");
        block_on(bench.rt.queue().fill(&bench.x, 0).unwrap()).unwrap();
        bench.simulator.fail_enqueues(1, fault);
        let refused = bench.submit();
        within_limit(bench.rt.queue().ready());
        block_on(refused).expect_err("the command was set to be refused");
        block_on(bench.rt.queue().fill(&bench.x, 0).unwrap()).unwrap();
    }
}

#[test]
fn places_are_freed_although_the_driver_loses_its_callbacks() {
    let bench = Bench::new(4);
    bench.simulator.lose_notifications(usize::MAX);
    for _ in 0..100 {
        within_limit(bench.rt.queue().ready());
        bench.submit();
    }
    within_limit(bench.rt.drain());
}

#[test]
fn launches_whose_program_is_being_built_occupy_places() {
    let bench = Bench::new(2);
    let pause = bench.simulator.pause_builds();
    let source = format!("{SOURCE} // another program");
    let program = bench.rt.build(&Module::opencl_c(&*source)).start();
    // SAFETY: the closure stays inside its argument.
    let increase = unsafe { program.kernel("increase") };
    for _ in 0..2 {
        bench.rt.queue().submit(increase.launch(1).args((&bench.x,))).unwrap();
    }
    let (waiting, _) = waiting(&bench.rt, 2);
    drop(pause);
    waiting.into_iter().for_each(within_limit);
}

#[test]
fn a_scope_of_more_launches_than_the_limit_is_collected() {
    const LAUNCHES: u32 = 20;
    for limit in [1, 4] {
        let bench = Bench::new(limit);
        let queue = bench.rt.queue();
        let scope = queue.start_fusion();
        within_limit(async {
            for _ in 0..LAUNCHES {
                queue.ready().await;
                scope.submit(bench.increase.launch(1).args((&bench.x,))).unwrap();
            }
        });
        assert!(scope.is_fusing(), "no wait has aborted the scope");
        within_limit(scope.complete()).unwrap();
        within_limit(queue.ready());
        assert_eq!(within_limit(queue.read(&bench.x)).unwrap(), [LAUNCHES]);
    }
}

#[test]
fn producers_proceed_beside_scopes_that_fill_the_limit() {
    const LIMIT: usize = 4;
    let bench = Arc::new(Bench::new(LIMIT));
    let others: Vec<_> =
        (0..PRODUCERS).map(|_| block_on(bench.rt.buffer_from(vec![0u32])).unwrap()).collect();
    let scopes: Vec<_> = (0..2).map(|_| bench.rt.queue().start_fusion()).collect();
    for scope in &scopes {
        for _ in 0..LIMIT / 2 {
            scope.submit(bench.increase.launch(1).args((bench.x.read_only(),))).unwrap();
        }
    }
    under_executors(|| {
        let producer = |x: &Buffer<u32>| {
            produce(bench.rt.clone(), bench.increase.clone(), x.clone(), 100, LIMIT)
        };
        others.iter().map(producer).collect()
    });
    assert!(scopes.iter().all(|scope| scope.is_fusing()), "no wait has aborted a scope");
    within_limit(bench.rt.drain());
}

#[test]
fn host_tasks_are_not_held_up_by_their_own_commands() {
    let bench = Arc::new(Bench::new(1));
    let queue = bench.rt.queue();
    let submitting = bench.clone();
    let task = queue.host_task(async move {
        for _ in 0..10 {
            submitting.rt.queue().ready().await;
            submitting.submit();
        }
        Ok::<(), Error>(())
    });
    let after =
        queue.submit(bench.increase.launch(1).args((&bench.x,)).after(&task.unwrap())).unwrap();
    within_limit(after).unwrap();
    within_limit(queue.ready());
}

#[test]
fn producers_and_drain_do_not_hold_up_each_other() {
    let bench = Arc::new(Bench::new(2));
    under_executors(|| {
        let producer = |number| {
            let bench = bench.clone();
            async move {
                for round in 0..200 {
                    bench.rt.queue().ready().await;
                    bench.submit();
                    if round % 20 == number {
                        bench.rt.drain().await;
                    }
                }
            }
        };
        (0..PRODUCERS).map(producer).collect()
    });
}

#[test]
fn a_lost_device_is_reported_by_the_submission() {
    let bench = Bench::new(1);
    let pause = bench.simulator.pause();
    bench.simulator.fail_launches("increase", 2, Fault::DeviceLost);
    let first = bench.submit();
    let (waiting, _) = waiting(&bench.rt, 1);
    drop(pause);
    waiting.into_iter().for_each(within_limit);
    assert_eq!(block_on(first).unwrap_err().kind(), ErrorKind::DeviceLost);
    assert_eq!(block_on(bench.submit()).unwrap_err().kind(), ErrorKind::DeviceLost);
}
