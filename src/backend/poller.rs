//! Poller thread: the one thread of an opened device that finds the ends of awaited commands, for drivers that
//! report no ends or report them late.
//!
//! A driver's own blocking waits keep one processor busy for each waiter. The poller thread polls the oldest
//! awaited command of each native queue instead: without a pause at first, since most commands are short, then
//! with pauses that are a fixed part of the time already waited. It sleeps while nothing is awaited.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::process;
use crate::process::threads;
use crate::sync::{ignore_poison, lock};

/// Time during which the thread polls without a pause. After the last end it goes on for as long without any
/// awaited command, because waking it for the next one takes longer than most commands.
const SPIN: Duration = Duration::from_micros(50);

/// Divisor of the time already waited that gives the next pause. An end is found late by this part of the wait.
const PAUSE_DIVISOR: u32 = 256;

/// Shortest pause. Shorter ones would find nothing sooner, because waking up takes a few microseconds.
const MIN_PAUSE: Duration = Duration::from_micros(20);
const MAX_PAUSE: Duration = Duration::from_millis(2);

/// Time without an end after which the thread checks, at every pause, whether the device still works.
const CHECK_AFTER: Duration = Duration::from_millis(20);

/// Native queue whose commands are polled.
pub(super) trait PolledQueue: Send + Sync {
    /// Polls the oldest awaited command, and handles its end if it has ended.
    fn poll_oldest(&self) -> PollOutcome;

    /// Checks whether the device still works, if that can be queried. Called when nothing has ended for a
    /// while.
    fn check_device(&self) {}
}

/// Result of polling a native queue.
pub(super) enum PollOutcome {
    /// Nothing is awaited there any more. The native queue is no longer polled.
    Idle,
    /// The oldest awaited command still runs.
    Pending,
    /// Some commands have ended.
    Ended,
}

/// Handle of the poller thread, which is started when there is something to poll. The thread ends once the
/// handle is dropped and nothing is awaited.
pub(super) struct Poller {
    shared: Arc<Shared>,
    spawn: Spawn,
}

/// Function that starts the thread.
type Spawn = fn(Arc<Shared>) -> io::Result<()>;

struct Shared {
    state: Mutex<State>,
    /// Whether the thread runs or has run.
    started: AtomicBool,
    /// Whether there is a new native queue or a new awaited command.
    nudged: AtomicBool,
    sleeping: AtomicBool,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Native queues that the thread has not taken over yet.
    new: Vec<Arc<dyn PolledQueue>>,
    closed: bool,
}

impl Poller {
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

    /// Adds a native queue, which is polled until [`Idle`](PollOutcome::Idle) is found there. Returns the
    /// result of [`nudge`](Self::nudge).
    pub(super) fn add(&self, native_queue: Arc<dyn PolledQueue>) -> bool {
        self.shared.lock().new.push(native_queue);
        self.nudge()
    }

    /// Wakes the thread for a new awaited command. Returns whether there is a thread to poll for it. If the
    /// system could not start one, each call tries again.
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
            tracing::debug!(%error, "the thread that polls for completion could not be started");
        }
        self.shared.started.store(spawned.is_ok(), SeqCst);
        spawned.is_ok()
    }
}

impl Drop for Poller {
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
    /// Locks the state. No code here leaves it half-changed when it panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn nudge(&self) {
        // The thread sets `sleeping` before it reads `nudged`, so at least one of the two threads sees the
        // other's store.
        self.nudged.store(true, SeqCst);
        if self.sleeping.load(SeqCst) {
            let _state = self.lock();
            self.wake.notify_one();
        }
    }

    fn run(&self) {
        reduce_timer_slack();
        let mut native_queues: Vec<Arc<dyn PolledQueue>> = Vec::new();
        let mut since = Instant::now();
        loop {
            let nudged = self.nudged.swap(false, SeqCst);
            if nudged {
                since = Instant::now();
                native_queues.append(&mut self.lock().new);
            }
            let mut ended = false;
            native_queues.retain(|native_queue| match native_queue.poll_oldest() {
                PollOutcome::Idle => false,
                PollOutcome::Pending => true,
                PollOutcome::Ended => {
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
            let Some(first) = native_queues.first() else {
                if !nudged && self.lock().closed {
                    return;
                }
                self.sleep(None);
                continue;
            };
            if waited > CHECK_AFTER {
                first.check_device();
            }
            self.sleep(Some((waited / PAUSE_DIVISOR).clamp(MIN_PAUSE, MAX_PAUSE)));
        }
    }

    /// Sleeps until nudged, but no longer than `limit`.
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

/// Reduces the timer slack of this thread. Otherwise the system may lengthen its pauses by more than their own
/// length.
fn reduce_timer_slack() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
        tracing::debug!(
            %error,
            "completion is detected with a short delay: the timer slack cannot be set"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    /// Native queue that reports each `poll_oldest`, and returns the results that a test sends.
    struct FakeQueue {
        polls: Sender<()>,
        answers: Mutex<Receiver<PollOutcome>>,
    }

    impl PolledQueue for FakeQueue {
        fn poll_oldest(&self) -> PollOutcome {
            // The receiver is gone once a test is over.
            let _ = self.polls.send(());
            let answers = lock(&self.answers);
            answers.recv().unwrap_or(PollOutcome::Idle)
        }
    }

    fn native_queue() -> (Arc<FakeQueue>, Sender<PollOutcome>, Receiver<()>) {
        let (polls, polled) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        (Arc::new(FakeQueue { polls, answers: Mutex::new(answers) }), answer, polled)
    }

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_queue_is_polled_until_no_command_is_awaited() {
        let poller = Poller::new();
        let (native_queue, answer, polled) = native_queue();
        assert!(poller.add(native_queue));
        for found in
            [PollOutcome::Pending, PollOutcome::Ended, PollOutcome::Pending, PollOutcome::Idle]
        {
            polled.recv_timeout(SOON).expect("the queue is polled");
            answer.send(found).expect("the native queue is alive");
        }
        // The native queue is dropped, and with it the sender.
        assert_eq!(polled.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_dropped_poller_polls_until_no_command_is_awaited() {
        let poller = Poller::new();
        let shared = Arc::downgrade(&poller.shared);
        let (native_queue, answer, polled) = native_queue();
        assert!(poller.add(native_queue));
        polled.recv_timeout(SOON).expect("the queue is polled");
        drop(poller);
        for found in [PollOutcome::Pending, PollOutcome::Ended, PollOutcome::Idle] {
            answer.send(found).expect("the native queue is alive");
        }
        let deadline = Instant::now() + SOON;
        while shared.strong_count() > 0 && Instant::now() < deadline {
            thread::yield_now();
        }
        assert_eq!(shared.strong_count(), 0, "its thread has ended");
    }

    #[test]
    fn a_sleeping_poller_is_woken_for_a_new_queue() {
        let poller = Poller::new();
        for _ in 0..100 {
            let (native_queue, answer, polled) = native_queue();
            assert!(poller.add(native_queue));
            polled.recv_timeout(SOON).expect("the queue is polled");
            answer.send(PollOutcome::Idle).expect("the native queue is alive");
            let _ = polled.recv_timeout(SOON);
        }
    }

    #[test]
    fn starting_the_thread_is_retried_after_a_failure() {
        static REFUSALS: AtomicUsize = AtomicUsize::new(2);
        let poller = Poller::with_spawn(|shared| {
            let is_left = |left: usize| left.checked_sub(1);
            if REFUSALS.fetch_update(SeqCst, SeqCst, is_left).is_ok() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            thread::spawn(move || shared.run());
            Ok(())
        });
        let (native_queue, answer, polled) = native_queue();
        assert!(!poller.add(native_queue) && !poller.nudge());
        assert!(polled.try_recv().is_err());
        assert!(poller.nudge());
        polled.recv_timeout(SOON).expect("the queue is polled");
        answer.send(PollOutcome::Idle).expect("the native queue is alive");
    }
}
