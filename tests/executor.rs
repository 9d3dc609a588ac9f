//! An executor's thread is never blocked: fifty builds and a thousand launches, awaited on it, leave
//! it free for everything else.
//!
//! What blocks a thread cannot be told from gaps between its timer's ticks: drivers for CPUs take
//! every processor for themselves, and a thread that waits for one has gaps, too. The kernel knows
//! the difference. It counts as a *voluntary* context switch when a thread gives its processor up
//! to wait for something: a lock, a condition, a child, a file. Being preempted is another count.
//! So a poll that blocks, however shortly, shows in that count, on the busiest machine, and one
//! that only takes its time does not.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "what was measured is of interest")]

mod support;

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{Either, join_all, select};
use kiln::Runtime;
use tokio::time::{MissedTickBehavior, interval};

const PROGRAMS: usize = 50;
const LAUNCHES: usize = 20;

/// How often the thread that calls it has given its processor up to wait.
fn voluntary_switches() -> i64 {
    // SAFETY: it holds integers only, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live value of the type that the call fills in.
    let status = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    assert_eq!(status, 0, "the call has no way to fail");
    usage.ru_nvcsw
}

/// A future, and where its polls count how often they made the thread wait.
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

/// How often the thread had to wait, by what it awaited.
#[derive(Clone, Debug, Default)]
struct Waits {
    builds: Rc<Cell<i64>>,
    launches: Rc<Cell<i64>>,
}

/// Builds a program that no other call builds, launches it again and again, and awaits each launch.
async fn work(rt: Runtime, round: usize, program: usize, waits: Waits) {
    let number = round * PROGRAMS + program + 1;
    let source =
        format!("kernel void add(global uint *x) {{ x[get_global_id(0)] += {number}; }}\n");
    let add = Metered::new(support::kernel(&rt, &source, "add"), &waits.builds).await;
    let launches = async {
        let x = rt.buffer_from(vec![0u32; 64]).await.unwrap();
        for _ in 0..LAUNCHES {
            rt.queue().submit(add.launch(64).args((&x,))).unwrap().await.unwrap();
            // A command may have ended by the time it is awaited. That there are others on its
            // thread is then for the task to think of.
            tokio::task::yield_now().await;
        }
        assert_eq!(rt.queue().read(&x).await.unwrap(), [(LAUNCHES * number) as u32; 64]);
    };
    Metered::new(launches, &waits.launches).await;
}

/// All of it at once, on this thread.
async fn all_work(rt: Runtime, round: usize, waits: Waits) {
    let work = |program| work(rt.clone(), round, program, waits.clone());
    let tasks: Vec<_> =
        (0..PROGRAMS).map(|program| tokio::task::spawn_local(work(program))).collect();
    join_all(tasks).await.into_iter().for_each(Result::unwrap);
}

/// A runtime of tokio's that has no thread but the one it is used on.
fn on_this_thread<T>(future: impl Future<Output = T>) -> T {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio::task::LocalSet::new().block_on(&tokio, future)
}

/// Until `work` has ended, ticks every millisecond on the same thread; ticks that come too late
/// are left out. Gives the share of the ticks that came.
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

/// The work beside a ticker, on one thread: the share of ticks, and how often builds and launches
/// made the thread wait.
fn beside_a_ticker(rt: Runtime, round: usize) -> (f64, i64, i64) {
    let waits = Waits::default();
    let share = on_this_thread(share_of_ticks(all_work(rt, round, waits.clone())));
    (share, waits.builds.get(), waits.launches.get())
}

/// The same load without Kiln on the ticker's thread: the work is another thread's.
fn ticker_alone(rt: Runtime, round: usize) -> f64 {
    let (ended, end) = futures::channel::oneshot::channel();
    let other = std::thread::spawn(move || {
        on_this_thread(all_work(rt, round, Waits::default()));
        ended.send(()).expect("the ticker waits for it");
    });
    let share = on_this_thread(share_of_ticks(async { end.await.expect("the work ends well") }));
    other.join().expect("the work ends well");
    share
}

#[test]
fn builds_and_launches_never_block_the_thread_that_awaits_them() {
    /// What blocks does so every time: 50 times for the builds, 1,000 times for the launches. But a
    /// thread also waits where it meets a lock that another holds for a few instructions or, on a
    /// submit, while it hands commands to the driver: one launch in twenty, on two processors.
    const MOST_WAITS_FOR_BUILDS: i64 = 2;
    const MOST_WAITS_FOR_LAUNCHES: i64 = (PROGRAMS * LAUNCHES / 5) as i64;
    /// What is chance does not come in every round.
    const ROUNDS: usize = 4;

    block_on(support::on_each_device(async |rt| {
        let selector = rt.device().index().to_string();
        let other = support::builder().device(selector).build().await.unwrap();
        let mut rounds = Vec::new();
        let fine = (1..=ROUNDS).any(|round| {
            // Each on a thread of its own: `block_on` is not to be entered twice.
            let other = other.clone();
            let alone = std::thread::spawn(move || ticker_alone(other, round)).join().unwrap();
            let rt = rt.clone();
            let (share, builds, launches) =
                std::thread::spawn(move || beside_a_ticker(rt, round)).join().unwrap();
            rounds.push((alone, share, builds, launches));
            // A thread that computes does not wait, but may leave nobody else a turn.
            share >= alone / 2.0
                && builds <= MOST_WAITS_FOR_BUILDS
                && launches <= MOST_WAITS_FOR_LAUNCHES
        });
        let told = format!("ticks alone and not, waits of builds, launches: {rounds:.3?}");
        eprintln!("{told}");
        assert!(fine, "{told}");
    }));
}

#[test]
fn a_poll_that_blocks_is_seen() {
    block_on(support::on_each_device(async |rt| {
        let waits = std::thread::spawn(move || {
            let waits = Rc::default();
            let blocking = async {
                for _ in 0..10 {
                    let (open, gate) = async_channel::bounded::<()>(1);
                    let event = rt.queue().host_task(async move { gate.recv().await }).unwrap();
                    // By when this thread waits for the command, or a little before.
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
