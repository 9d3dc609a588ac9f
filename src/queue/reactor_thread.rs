//! Reactor: the one thread of a runtime that manages its commands in flight. It settles commands that
//! ended, dispatches commands that waited, frees their leftovers, and detects callbacks that never
//! come.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::completion::Mailbox;
use super::long_waits::Waits;
use super::reactor::{Post, Reactor};
use super::record::Owner;
use super::scheduler::Scheduler;
use super::waits::log_long_waits;
use crate::error::{Error, ErrorKind, Result, catch_and_log};
use crate::process::threads;
use crate::sync::lock;

/// Interval at which commands in flight are checked if nothing else happens. It also limits how long a
/// waiter sleeps if the driver loses its callback.
const TICK: Duration = Duration::from_millis(2);

/// Time for which the reactor keeps ticking while nothing is in flight, before it sleeps without limit.
/// Waking it from that sleep costs a submitting thread a system call.
const LINGER: Duration = Duration::from_millis(100);

/// Interval at which waits are checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Starts the thread, which also logs long waits.
pub(crate) fn start_reactor(waits: Arc<Waits>) -> Result<Arc<Reactor>> {
    let reactor = Reactor::new();
    let (mailbox, schedulers) = (reactor.mailbox().clone(), reactor.schedulers().clone());
    let run = move || run(&mailbox, &schedulers, &waits);
    threads::start("kiln-reactor", run).map_err(|error| {
        Error::new(ErrorKind::OutOfResources, "the reactor thread could not be started")
            .with_source(error)
    })?;
    Ok(Arc::new(reactor))
}

fn handle_post(post: Post) {
    match post {
        Post::Late(record) => drop(record.take_armed_event()),
        Post::Check(record) => {
            if let Some(scheduler) = Scheduler::of_command(&record) {
                scheduler.check_command(&record);
            }
        }
        Post::Drop(commands, works) => drop((commands, works)),
        Post::Offer(scheduler) => {
            if let Some(scheduler) = Scheduler::of_owner(&scheduler) {
                scheduler.serve_producers();
            }
        }
        Post::Free(freed) => freed.free_unused(),
        Post::Close => {}
    }
}

fn run(mailbox: &Mailbox<Post>, schedulers: &Mutex<Vec<Owner>>, waits: &Waits) {
    let mut last_tick = Instant::now();
    let mut last_wait_check = last_tick;
    let mut last_busy = last_tick;
    loop {
        while let Some(post) = mailbox.take() {
            if matches!(post, Post::Close) {
                return;
            }
            catch_and_log("the processing of a completed command", || handle_post(post));
        }
        let busy_schedulers = || {
            let schedulers = lock(schedulers);
            let alive = schedulers.iter().filter_map(Scheduler::of_owner);
            alive.filter(|scheduler| scheduler.needs_ticks()).collect::<Vec<_>>()
        };
        let now = Instant::now();
        let in_flight = busy_schedulers();
        if !in_flight.is_empty() {
            last_busy = now;
        }
        if now - last_tick >= TICK {
            last_tick = now;
            for scheduler in &in_flight {
                catch_and_log("the processing of a completed command", || scheduler.tick());
            }
        }
        drop(in_flight);
        if now - last_wait_check >= CHECK_EVERY {
            last_wait_check = now;
            catch_and_log("the check for long waits", || log_long_waits(waits, now));
        }
        if now - last_busy < LINGER {
            mailbox.doze(TICK);
        } else {
            mailbox.sleep_unless(|| !busy_schedulers().is_empty());
            last_busy = Instant::now();
        }
    }
}
