//! Driver calls that may register signal handlers or process-exit handlers.
//!
//! Drivers register handlers when they are loaded, with their first contexts, with their first compiles and,
//! where they compile at a launch, with their first launches. Kiln [restores](super::signals) the previous
//! signal handlers, and registers its own [exit handler](super::shutdown) again, so that it runs before a
//! driver's. Such driver calls take up to a second. Until they return, the handler thread repeats both steps,
//! so that a signal or the end of the process meets only handlers that were registered a moment before.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use super::shutdown;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use super::signals;
use crate::error::Result;

/// Number of calls of each kind, per process, during which the handler thread runs.
const WATCHED_CALLS: usize = 8;

/// Duration above which a later call is assumed to have registered exit handlers.
const LONG_CALL: Duration = Duration::from_millis(2);

/// First and longest pause between two passes of the handler thread.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(10)];

/// Divisor of the pause's growth: each pause is 1/64 longer than the one before.
const GROWTH: u32 = 64;

/// Number of watched calls in progress.
static IN_PROGRESS: AtomicUsize = AtomicUsize::new(0);

/// Whether the handler thread runs.
static IS_RUNNING: AtomicBool = AtomicBool::new(false);

/// Kind of a driver call.
#[derive(Clone, Copy)]
pub(super) enum CallKind {
    /// Loads the driver and lists its devices.
    Discover,
    /// Creates a context.
    Open,
    /// Compiles or links, or fetches a binary.
    Compile,
    /// Creates a program from a binary. Such calls are too short for a signal watch around every one.
    Load,
    /// Enqueues a launch. As short as [`Load`](Self::Load).
    #[cfg(feature = "opencl")]
    Launch,
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
impl CallKind {
    fn is_short(self) -> bool {
        match self {
            Self::Load => true,
            #[cfg(feature = "opencl")]
            Self::Launch => true,
            Self::Discover | Self::Open | Self::Compile => false,
        }
    }
}

/// Guard that is held during a driver call that may register handlers.
pub(super) struct HandlerGuard {
    /// Whether the handler thread runs during this call.
    is_watched: bool,
    since: Instant,
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    signals: Option<signals::Watch>,
}

impl HandlerGuard {
    /// Begins a call, and starts the handler thread for the first calls of each kind.
    pub(super) fn of(kind: CallKind) -> Self {
        static CALLS: [AtomicUsize; 5] = [const { AtomicUsize::new(0) }; 5];
        let calls = &CALLS[kind as usize];
        let is_watched = calls.load(SeqCst) < WATCHED_CALLS;
        if is_watched {
            calls.fetch_add(1, SeqCst);
            IN_PROGRESS.fetch_add(1, SeqCst);
        }
        let guard = Self {
            is_watched,
            since: Instant::now(),
            #[cfg(all(target_os = "linux", target_env = "gnu"))]
            signals: (is_watched || !kind.is_short()).then(signals::Watch::begin),
        };
        if is_watched && !IS_RUNNING.swap(true, SeqCst) {
            let spawned = thread::Builder::new()
                .name("kiln-handlers".to_owned())
                .spawn(restore_until_calls_end);
            if let Err(error) = spawned {
                IS_RUNNING.store(false, SeqCst);
                tracing::debug!(%error, "handlers of drivers are seen only when their calls return");
            }
        }
        guard
    }
}

impl Drop for HandlerGuard {
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        drop(self.signals.take());
        if self.is_watched || self.since.elapsed() > LONG_CALL {
            shutdown::prepare();
        }
        if self.is_watched {
            IN_PROGRESS.fetch_sub(1, SeqCst);
        }
    }
}

/// Guard that permits driver calls while it is held, during which the driver may register handlers.
pub(super) struct RegisteringCall {
    // Declared first, so dropped first: handlers are restored before the call counts as finished.
    _handler_guard: HandlerGuard,
    _call: shutdown::Call,
}

/// Enters a driver call of any kind but a launch. Fails like [`shutdown::begin`].
pub(super) fn begin(kind: CallKind) -> Result<RegisteringCall> {
    let call = shutdown::begin_registering()?;
    Ok(RegisteringCall { _handler_guard: HandlerGuard::of(kind), _call: call })
}

/// Runs the handler thread: repeats both steps until no watched call is in progress.
fn restore_until_calls_end() {
    let mut pause = PAUSES[0];
    loop {
        while IN_PROGRESS.load(SeqCst) > 0 {
            restore();
            thread::sleep(pause);
            pause = (pause + pause / GROWTH).min(PAUSES[1]);
        }
        IS_RUNNING.store(false, SeqCst);
        // A call that began before `IS_RUNNING` was cleared started no thread, because it saw this one.
        if IN_PROGRESS.load(SeqCst) == 0 || IS_RUNNING.swap(true, SeqCst) {
            return;
        }
    }
}

/// Restores the previous signal handlers, and registers Kiln's exit handler again. Called between two driver calls
/// of one [`RegisteringCall`], it saves waiting for the handler thread.
pub(super) fn restore() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    signals::restore();
    shutdown::prepare();
}
