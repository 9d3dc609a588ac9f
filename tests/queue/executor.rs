//! An executor's thread is never blocked: while fifty builds and a thousand launches are awaited on it, or two
//! hundred programs from the disk, other tasks can run on it.
//!
//! Gaps between the ticks of a timer do not show whether a poll blocks: drivers for CPUs use every processor,
//! and a thread that waits for a processor has gaps too. The operating system distinguishes the two cases. It
//! counts a *voluntary* context switch when a thread yields its processor to wait for a lock, a condition, a
//! child or a file, and counts preemption separately. So a poll that blocks, however briefly, increases this
//! count even on a busy machine, and a poll that only takes long does not.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a log states the measurements")]

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{Either, join_all, select};
use kiln::build::Origin;
use kiln::{CacheConfig, Module, Runtime};
use tokio::time::{MissedTickBehavior, interval};

const PROGRAMS: usize = 50;
/// Number of launches of each program.
const LAUNCHES: usize = 20;
/// Number of times that each stored program is loaded.
const LOADS: usize = 4;

/// Returns how often the calling thread has yielded its processor to wait.
fn voluntary_switches() -> i64 {
    // SAFETY: the structure holds only integers, for which zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live value of the type that the call fills in.
    let status = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    assert_eq!(status, 0, "the call has no way to fail");
    usage.ru_nvcsw
}

/// A future whose polls count how often they made the thread wait.
struct Metered<F> {
    future: Pin<Box<F>>,
    waits: Rc<Cell<i64>>,
}

impl<F> Metered<F> {
    fn new(future: F, waits: &Rc<Cell<i64>>) -> Self {
        Self { future: Box::pin(future), waits: waits.clone() }
    }
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let before = voluntary_switches();
        let result = self.future.as_mut().poll(context);
        self.waits.set(self.waits.get() + voluntary_switches() - before);
        result
    }
}

/// Number of times the thread had to wait, by awaited operation.
#[derive(Clone, Debug, Default)]
struct Waits {
    builds: Rc<Cell<i64>>,
    loads: Rc<Cell<i64>>,
    launches: Rc<Cell<i64>>,
}

impl Waits {
    fn counts(&self) -> Counts {
        let Self { builds, loads, launches } = self;
        Counts { builds: builds.get(), loads: loads.get(), launches: launches.get() }
    }
}

/// Numbers of waits, or their limits.
#[derive(Clone, Copy, Debug)]
struct Counts {
    builds: i64,
    loads: i64,
    launches: i64,
}

impl Counts {
    fn are_within(self, most: Self) -> bool {
        self.builds <= most.builds && self.loads <= most.loads && self.launches <= most.launches
    }
}

/// Maximum numbers of waits that do not come from blocking operations: one in five. A blocking operation blocks every
/// time. But a thread also waits if another holds a lock for a few instructions or, during a submit, while it passes
/// commands to the driver: in one launch and up to three loads out of twenty, on two processors.
const MAX_WAITS: Counts = Counts {
    builds: (PROGRAMS / 5) as i64,
    loads: (PROGRAMS * LOADS / 5) as i64,
    launches: (PROGRAMS * LAUNCHES / 5) as i64,
};

/// Work of a test: awaited on one thread, in rounds that share no programs.
type Work<F> = fn(Runtime, usize, Waits) -> F;

/// Returns the source of a program that only this round builds, and the number that its kernel adds.
fn source(round: usize, program: usize) -> (String, u32) {
    let number = (round * PROGRAMS + program + 1) as u32;
    let text = format!("kernel void add(global uint *x) {{ x[get_global_id(0)] += {number}; }}\n");
    (text, number)
}

/// Builds a program that no other call builds, launches it repeatedly, and awaits each launch.
async fn build_and_launch(rt: Runtime, round: usize, program: usize, waits: Waits) {
    let (text, number) = source(round, program);
    let add = Metered::new(support::kernel(&rt, &text, "add"), &waits.builds).await;
    let launches = async {
        let x = rt.buffer_from(vec![0u32; 64]).await.unwrap();
        for _ in 0..LAUNCHES {
            rt.queue().submit(add.launch(64).args((&x,))).unwrap().await.unwrap();
            // A command may have completed before it is awaited. The task then has to yield to others on its
            // thread itself.
            tokio::task::yield_now().await;
        }
        assert_eq!(rt.queue().read(&x).await.unwrap(), [LAUNCHES as u32 * number; 64]);
    };
    Metered::new(launches, &waits.launches).await;
}

/// Builds and launches all programs.
async fn build_and_launch_all(rt: Runtime, round: usize, waits: Waits) {
    for_each_program(|program| build_and_launch(rt.clone(), round, program, waits.clone())).await;
}

/// Builds all programs, and then loads them from the disk.
async fn build_and_load_all(rt: Runtime, round: usize, waits: Waits) {
    let build = |program, origin, waits: &Rc<Cell<i64>>| {
        let (rt, waits) = (rt.clone(), waits.clone());
        async move {
            let module = Module::opencl_c(source(round, program).0);
            let built = Metered::new(async { rt.build(&module).await }, &waits).await;
            assert_eq!(built.unwrap().origin(), origin);
        }
    };
    for_each_program(|program| build(program, Origin::Compiled, &waits.builds)).await;
    rt.drain().await;
    for _ in 0..LOADS {
        for_each_program(|program| build(program, Origin::Disk, &waits.loads)).await;
    }
}

/// Runs a task for each program, all concurrently on this thread.
async fn for_each_program<F: Future<Output = ()> + 'static>(task: impl Fn(usize) -> F) {
    let spawn = |program| tokio::task::spawn_local(task(program));
    let tasks: Vec<_> = (0..PROGRAMS).map(spawn).collect();
    join_all(tasks).await.into_iter().for_each(Result::unwrap);
}

/// Runs a future on a tokio runtime that uses only the current thread.
fn on_this_thread<T>(future: impl Future<Output = T>) -> T {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio::task::LocalSet::new().block_on(&tokio, future)
}

/// Ticks every millisecond on the same thread until `work` has ended, and skips late ticks. Returns the share
/// of the ticks that occurred.
async fn share_of_ticks(work: impl Future<Output = ()>) -> f64 {
    let period = Duration::from_millis(1);
    let mut ticker = interval(period);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let start = Instant::now();
    let mut ticks = 0;
    let mut work = Box::pin(work);
    loop {
        let tick = Box::pin(ticker.tick());
        match select(tick, work).await {
            Either::Left((_, rest)) => {
                ticks += 1;
                work = rest;
            }
            Either::Right(_) => {
                return f64::from(ticks) * period.as_secs_f64() / start.elapsed().as_secs_f64();
            }
        }
    }
}

/// Runs the work beside a ticker on one thread. Returns the share of ticks, and how often the thread waited.
fn beside_a_ticker<F: Future<Output = ()>>(
    rt: Runtime,
    round: usize,
    work: Work<F>,
) -> (f64, Counts) {
    let waits = Waits::default();
    let share = on_this_thread(share_of_ticks(work(rt, round, waits.clone())));
    (share, waits.counts())
}

/// Runs the same load with the work on another thread. Returns the share of ticks.
fn ticker_alone<F: Future<Output = ()> + 'static>(rt: Runtime, round: usize, work: Work<F>) -> f64 {
    let (ended, end) = futures::channel::oneshot::channel();
    let other = std::thread::spawn(move || {
        on_this_thread(work(rt, round, Waits::default()));
        ended.send(()).expect("the ticker waits for it");
    });
    let share = on_this_thread(share_of_ticks(async { end.await.expect("the work succeeds") }));
    other.join().expect("the work succeeds");
    share
}

/// Panics if the work blocks the thread that awaits it, or occupies it more than half of the time that it is
/// free while the work runs on another thread. The runtimes are for these two threads.
fn assert_never_blocks<F: Future<Output = ()> + 'static>([rt, other]: [Runtime; 2], work: Work<F>) {
    /// Random effects do not occur in every round.
    const ROUNDS: usize = 4;

    let mut rounds = Vec::new();
    let passed = (1..=ROUNDS).any(|round| {
        // Each runs on a thread of its own: `block_on` must not be nested.
        let (rt, other) = (rt.clone(), other.clone());
        let alone = std::thread::spawn(move || ticker_alone(other, round, work)).join().unwrap();
        let (share, waits) =
            std::thread::spawn(move || beside_a_ticker(rt, round, work)).join().unwrap();
        rounds.push((alone, share, waits));
        // A thread that computes does not wait, but may starve other tasks.
        share >= alone / 2.0 && waits.are_within(MAX_WAITS)
    });
    let summary = format!("ticks alone, ticks beside the work, waits: {rounds:.3?}");
    eprintln!("{summary}");
    assert!(passed, "{summary}");
}

#[test]
fn builds_and_launches_never_block_the_thread_that_awaits_them() {
    block_on(support::on_each_device(async |rt| {
        let selector = rt.device().index().to_string();
        let other = support::builder().device(selector).build().await.unwrap();
        assert_never_blocks([rt, other], build_and_launch_all);
    }));
}

#[test]
fn cold_builds_and_loads_from_disk_never_block_the_thread_that_awaits_them() {
    block_on(support::on_each_device(async |rt| {
        let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
        // Nothing is kept in memory, so that each program is loaded each time.
        let start = |directory: &tempfile::TempDir| {
            let builder = Runtime::builder().device(rt.device().index().to_string());
            builder.cache(CacheConfig::at(directory.path())).memory_limit(0).build()
        };
        let [here, other] = &directories;
        let runtimes = [start(here).await.unwrap(), start(other).await.unwrap()];
        assert_never_blocks(runtimes, build_and_load_all);
    }));
}

#[test]
fn a_poll_that_blocks_is_detected() {
    block_on(support::on_each_device(async |rt| {
        let waits = std::thread::spawn(move || {
            let waits = Rc::default();
            let blocking = async {
                for _ in 0..10 {
                    let (open, gate) = async_channel::bounded::<()>(1);
                    let event = rt.queue().host_task(async move { gate.recv().await }).unwrap();
                    // The gate opens while this thread waits for the command, or shortly before.
                    let opener = std::thread::spawn(move || open.send_blocking(()).unwrap());
                    event.wait().unwrap();
                    opener.join().unwrap();
                }
            };
            on_this_thread(Metered::new(blocking, &waits));
            waits.get()
        });
        let waits = waits.join().unwrap();
        assert!(waits >= 5, "{waits} waits");
    }));
}
