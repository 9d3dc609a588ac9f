//! Reactor: the one thread of a runtime that manages its commands in flight. It settles commands that
//! ended, dispatches commands that waited, frees their leftovers, and detects callbacks that never
//! come.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::command::Command;
use super::completion::{Mailbox, Urgency};
use super::event::Record;
use super::scheduler::Scheduler;
use super::waits::{CHECK_EVERY, Waits};
use super::work::Work;
use crate::args::region::Freed;
use crate::error::{Error, ErrorKind, Result, catch_and_log};
use crate::process::threads;
use crate::sync::lock;

/// Request to the reactor.
pub(crate) enum Post {
    /// Check the command: its callback has come, or its handle is awaited.
    Check(Arc<Record>),
    /// Handle the callback of a command that was settled before it came.
    Late(Arc<Record>),
    /// Drop these, with the host memory and the programs that they kept alive.
    Drop(Vec<Command>, Vec<Work>),
    /// Offer free places to the producers that wait for one.
    Offer(Weak<Scheduler>),
    /// Free the device memory that only ended commands held.
    Free(Arc<Freed>),
    /// End the thread.
    Close,
}

/// Interval at which commands in flight are checked if nothing else happens. It also limits how long a
/// waiter sleeps if the driver loses its callback.
const TICK: Duration = Duration::from_millis(2);

/// Time for which the reactor keeps ticking while nothing is in flight, before it sleeps without limit.
/// Waking it from that sleep costs a submitting thread a system call.
const LINGER: Duration = Duration::from_millis(100);

/// Handle of the reactor thread, which ends when the handle is dropped. Every scheduler holds it, so
/// the thread outlives every command in flight.
pub(crate) struct Reactor {
    mailbox: Arc<Mailbox<Post>>,
    schedulers: Arc<Mutex<Vec<Weak<Scheduler>>>>,
}

impl Reactor {
    /// Starts the thread, which also logs long waits.
    pub(crate) fn start(waits: Arc<Waits>) -> Result<Arc<Self>> {
        let reactor = Self { mailbox: Arc::new(Mailbox::new()), schedulers: Arc::default() };
        let (mailbox, schedulers) = (reactor.mailbox.clone(), reactor.schedulers.clone());
        let run = move || run(&mailbox, &schedulers, &waits);
        threads::start("kiln-reactor", run).map_err(|error| {
            Error::new(ErrorKind::OutOfResources, "the reactor thread could not be started")
                .with_source(error)
        })?;
        Ok(Arc::new(reactor))
    }

    /// Adds a scheduler whose commands the reactor manages.
    pub(crate) fn add_scheduler(&self, scheduler: &Arc<Scheduler>) {
        let mut schedulers = lock(&self.schedulers);
        schedulers.retain(|known| known.strong_count() > 0);
        schedulers.push(Arc::downgrade(scheduler));
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox<Post>> {
        &self.mailbox
    }

    pub(crate) fn post(&self, post: Post, urgency: Urgency) {
        self.mailbox.post(post, urgency);
    }

    /// Reports that a command was submitted: the reactor must not sleep without limit.
    pub(crate) fn wake(&self) {
        self.mailbox.wake();
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.mailbox.post(Post::Close, Urgency::Now);
    }
}

fn handle_post(post: Post) {
    match post {
        Post::Late(record) => drop(record.take_armed_event()),
        Post::Check(record) => {
            if let Some(scheduler) = record.scheduler() {
                scheduler.check_command(&record);
            }
        }
        Post::Drop(commands, works) => drop((commands, works)),
        Post::Offer(scheduler) => {
            if let Some(scheduler) = scheduler.upgrade() {
                scheduler.serve_producers();
            }
        }
        Post::Free(freed) => freed.free_unused(),
        Post::Close => {}
    }
}

fn run(mailbox: &Mailbox<Post>, schedulers: &Mutex<Vec<Weak<Scheduler>>>, waits: &Waits) {
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
            let alive = schedulers.iter().filter_map(Weak::upgrade);
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
            catch_and_log("the check for long waits", || waits.log_long_waits(now));
        }
        if now - last_busy < LINGER {
            mailbox.doze(TICK);
        } else {
            mailbox.sleep_unless(|| !busy_schedulers().is_empty());
            last_busy = Instant::now();
        }
    }
}
