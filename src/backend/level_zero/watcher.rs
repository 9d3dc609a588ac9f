//! The one thread of an opened device that finds out when commands end, for those who wait for them.
//!
//! Drivers have no callbacks, and their own waits keep a processor busy. The watcher asks about the
//! oldest command of each lane that somebody waits for: again and again at first, since most commands
//! are short, then at pauses that are a fixed part of the time already waited. It sleeps while nobody
//! waits for anything.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::lane::{LaneState, Watched};
use super::lock;
use crate::error::{Error, ErrorKind, Result};

/// How long it asks without a pause.
const SPIN: Duration = Duration::from_micros(50);

/// A pause is this part of the time that has been waited, so that an end is found that much late.
const PART: u32 = 64;

const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// After so long without an end it asks whether the device still works, at every pause.
const SUSPICIOUS: Duration = Duration::from_millis(20);

pub(super) struct Watcher {
    state: Mutex<State>,
    /// Something is new.
    nudged: AtomicBool,
    sleeping: AtomicBool,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Lanes that it does not know yet.
    new: Vec<Arc<LaneState>>,
    started: bool,
    closed: bool,
}

impl Watcher {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            nudged: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            wake: Condvar::new(),
        }
    }

    /// From now on looks after a lane, until nobody waits for anything there. Starts the thread.
    pub(super) fn add(self: &Arc<Self>, lane: &Arc<LaneState>) -> Result<()> {
        let mut state = lock(&self.state);
        state.new.push(Arc::clone(lane));
        if !state.started {
            let watcher = Arc::clone(self);
            let thread = thread::Builder::new().name("kiln-watcher".to_owned());
            thread.spawn(move || watcher.run()).map_err(|error| {
                Error::new(
                    ErrorKind::OutOfResources,
                    "the thread that finds the ends of commands could not be started",
                )
                .with_source(error)
            })?;
            state.started = true;
        }
        drop(state);
        self.nudge();
        Ok(())
    }

    /// Somebody waits for a command that is new.
    pub(super) fn nudge(&self) {
        // It looks for a nudge after it has said that it sleeps, so one of the two sees the other.
        self.nudged.store(true, SeqCst);
        if self.sleeping.load(SeqCst) {
            let _state = lock(&self.state);
            self.wake.notify_one();
        }
    }

    /// There will be no more lanes. The thread ends when those that it knows are done.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.nudge();
    }

    fn run(&self) {
        be_punctual();
        let mut lanes: Vec<Arc<LaneState>> = Vec::new();
        let mut since = Instant::now();
        loop {
            let nudged = self.nudged.swap(false, SeqCst);
            if nudged {
                since = Instant::now();
                lanes.append(&mut lock(&self.state).new);
            }
            let mut ended = false;
            lanes.retain(|lane| match lane.look() {
                Watched::Nothing => false,
                Watched::Pending => true,
                Watched::Ended => {
                    ended = true;
                    true
                }
            });
            if ended {
                since = Instant::now();
                continue;
            }
            if lanes.is_empty() {
                if !nudged && lock(&self.state).closed {
                    return;
                }
                self.sleep(None);
                continue;
            }
            let waited = since.elapsed();
            if waited < SPIN {
                thread::yield_now();
                continue;
            }
            if waited > SUSPICIOUS
                && let Some(lane) = lanes.first()
            {
                lane.context.check();
            }
            self.sleep(Some((waited / PART).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)));
        }
    }

    /// Until it is nudged, but no longer than `limit`.
    fn sleep(&self, limit: Option<Duration>) {
        let state = lock(&self.state);
        self.sleeping.store(true, SeqCst);
        let may_sleep = !self.nudged.load(SeqCst) && (limit.is_some() || !state.closed);
        match limit {
            _ if !may_sleep => {}
            Some(limit) => {
                drop(self.wake.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner));
            }
            None => drop(self.wake.wait(state).unwrap_or_else(PoisonError::into_inner)),
        }
        self.sleeping.store(false, SeqCst);
    }
}

/// Has the system keep to this thread's pauses, which it would lengthen by more than they are.
fn be_punctual() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
        tracing::debug!(%error, "the ends of commands are found a little later");
    }
}
