//! The one thread of an opened device that finds out when commands end, for those who wait for them,
//! where the driver tells nobody, or tells late.
//!
//! A driver's own waits keep a processor busy, one for each who waits. The watcher asks about the
//! oldest command of each lane that somebody waits for: again and again at first, since most commands
//! are short, then at pauses that are a fixed part of the time already waited. It sleeps while nobody
//! waits for anything.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::process;
use crate::process::threads;
use crate::sync::{ignore_poison, lock};

/// How long it asks without a pause, and after the last end goes on looking for somebody who waits for
/// the next: waking it would take longer than most commands.
const SPIN: Duration = Duration::from_micros(50);

/// A pause is this part of the time that has been waited: an end is found that much late.
const PART: u32 = 256;

/// Shorter ones would find nothing sooner: waking up takes a few microseconds.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// After so long without an end it asks whether the device still works, at every pause.
const SUSPICIOUS: Duration = Duration::from_millis(20);

/// A lane whose commands are watched.
pub(super) trait Watched: Send + Sync {
    /// Asks about the oldest command that somebody waits for, and sees to it if it has ended.
    fn look(&self) -> Found;

    /// Nothing has ended for a while: asks whether the device still works, if that can be asked.
    fn suspect(&self) {}
}

/// What the watcher found on a lane.
pub(super) enum Found {
    /// Nobody waits for anything there any more. The lane is no longer watched.
    Nothing,
    /// The oldest that somebody waits for still runs.
    Pending,
    /// Some commands have ended.
    Ended,
}

/// The handle of the thread, which is started when there is something to watch. It ends once this is
/// dropped and nobody waits for anything.
pub(super) struct Watcher {
    shared: Arc<Shared>,
    spawn: Spawn,
}

/// Starts the thread.
type Spawn = fn(Arc<Shared>) -> io::Result<()>;

struct Shared {
    state: Mutex<State>,
    /// Whether the thread runs, or ran.
    started: AtomicBool,
    /// Something is new.
    nudged: AtomicBool,
    sleeping: AtomicBool,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Lanes that it does not know yet.
    new: Vec<Arc<dyn Watched>>,
    closed: bool,
}

impl Watcher {
    pub(super) fn new() -> Self {
        Self::with_spawn(|shared| threads::start("kiln-watcher", move || shared.run()))
    }

    fn with_spawn(spawn: Spawn) -> Self {
        Self {
            spawn,
            shared: Arc::new(Shared {
                state: Mutex::default(),
                started: AtomicBool::new(false),
                nudged: AtomicBool::new(false),
                sleeping: AtomicBool::new(false),
                wake: Condvar::new(),
            }),
        }
    }

    /// From now on looks after a lane, until it finds [`Nothing`](Found::Nothing) there. Tells what
    /// [`nudge`](Self::nudge) does.
    pub(super) fn add(&self, lane: Arc<dyn Watched>) -> bool {
        self.shared.lock().new.push(lane);
        self.nudge()
    }

    /// Somebody waits for a command that is new. Tells whether there is a thread that will look. Where
    /// the system gave none, it is asked again with each call.
    pub(super) fn nudge(&self) -> bool {
        self.shared.nudge();
        self.shared.started.load(SeqCst) || self.start()
    }

    fn start(&self) -> bool {
        let state = self.shared.lock();
        if self.shared.started.load(SeqCst) || state.new.is_empty() {
            return self.shared.started.load(SeqCst);
        }
        let spawned = (self.spawn)(Arc::clone(&self.shared));
        if let Err(error) = &spawned {
            tracing::debug!(%error, "no thread that finds the ends of commands");
        }
        self.shared.started.store(spawned.is_ok(), SeqCst);
        spawned.is_ok()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A forked child does not have the thread, which may have held the lock.
        if process::is_forked() {
            return;
        }
        self.shared.lock().closed = true;
        self.nudge();
    }
}

impl Shared {
    /// Nothing here leaves the state half-changed when it panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn nudge(&self) {
        // It looks for a nudge after it has said that it sleeps, so one of the two sees the other.
        self.nudged.store(true, SeqCst);
        if self.sleeping.load(SeqCst) {
            let _state = self.lock();
            self.wake.notify_one();
        }
    }

    fn run(&self) {
        be_punctual();
        let mut lanes: Vec<Arc<dyn Watched>> = Vec::new();
        let mut since = Instant::now();
        loop {
            let nudged = self.nudged.swap(false, SeqCst);
            if nudged {
                since = Instant::now();
                lanes.append(&mut self.lock().new);
            }
            let mut ended = false;
            lanes.retain(|lane| match lane.look() {
                Found::Nothing => false,
                Found::Pending => true,
                Found::Ended => {
                    ended = true;
                    true
                }
            });
            if ended {
                since = Instant::now();
                continue;
            }
            let waited = since.elapsed();
            if waited < SPIN {
                thread::yield_now();
                continue;
            }
            let Some(first) = lanes.first() else {
                if !nudged && self.lock().closed {
                    return;
                }
                self.sleep(None);
                continue;
            };
            if waited > SUSPICIOUS {
                first.suspect();
            }
            self.sleep(Some((waited / PART).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)));
        }
    }

    /// Until it is nudged, but no longer than `limit`.
    fn sleep(&self, limit: Option<Duration>) {
        let state = self.lock();
        self.sleeping.store(true, SeqCst);
        let may_sleep = !self.nudged.load(SeqCst) && (limit.is_some() || !state.closed);
        match limit {
            _ if !may_sleep => {}
            Some(limit) => {
                drop(ignore_poison(self.wake.wait_timeout(state, limit)));
            }
            None => drop(ignore_poison(self.wake.wait(state))),
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    /// A lane that reports each look at it, and then finds what it is told to.
    struct Told {
        looks: Sender<()>,
        answers: Mutex<Receiver<Found>>,
    }

    impl Watched for Told {
        fn look(&self) -> Found {
            // Nobody listens once a test is over.
            let _ = self.looks.send(());
            let answers = lock(&self.answers);
            answers.recv().unwrap_or(Found::Nothing)
        }
    }

    fn lane() -> (Arc<Told>, Sender<Found>, Receiver<()>) {
        let (looks, looked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        (Arc::new(Told { looks, answers: Mutex::new(answers) }), answer, looked)
    }

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_lane_is_looked_at_until_nobody_waits_there() {
        let watcher = Watcher::new();
        let (lane, answer, looked) = lane();
        assert!(watcher.add(lane));
        for found in [Found::Pending, Found::Ended, Found::Pending, Found::Nothing] {
            looked.recv_timeout(SOON).expect("it is looked at");
            answer.send(found).expect("the lane is there");
        }
        // The lane is dropped, and with it the sender.
        assert_eq!(looked.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_watcher_that_is_dropped_watches_to_the_end() {
        let watcher = Watcher::new();
        let shared = Arc::downgrade(&watcher.shared);
        let (lane, answer, looked) = lane();
        assert!(watcher.add(lane));
        looked.recv_timeout(SOON).expect("it is looked at");
        drop(watcher);
        for found in [Found::Pending, Found::Ended, Found::Nothing] {
            answer.send(found).expect("the lane is there");
        }
        let deadline = Instant::now() + SOON;
        while shared.strong_count() > 0 && Instant::now() < deadline {
            thread::yield_now();
        }
        assert_eq!(shared.strong_count(), 0, "its thread has ended");
    }

    #[test]
    fn a_sleeping_watcher_is_woken_for_a_new_lane() {
        let watcher = Watcher::new();
        for _ in 0..100 {
            let (lane, answer, looked) = lane();
            assert!(watcher.add(lane));
            looked.recv_timeout(SOON).expect("it is looked at");
            answer.send(Found::Nothing).expect("the lane is there");
            let _ = looked.recv_timeout(SOON);
        }
    }

    #[test]
    fn a_thread_that_cannot_be_had_is_asked_for_again() {
        static REFUSALS: AtomicUsize = AtomicUsize::new(2);
        let watcher = Watcher::with_spawn(|shared| {
            let is_left = |left: usize| left.checked_sub(1);
            if REFUSALS.fetch_update(SeqCst, SeqCst, is_left).is_ok() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            thread::spawn(move || shared.run());
            Ok(())
        });
        let (lane, answer, looked) = lane();
        assert!(!watcher.add(lane) && !watcher.nudge());
        assert!(looked.try_recv().is_err());
        assert!(watcher.nudge());
        looked.recv_timeout(SOON).expect("it is looked at");
        answer.send(Found::Nothing).expect("the lane is there");
    }
}
