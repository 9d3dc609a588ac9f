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
const MAY_REGISTER: Duration = Duration::from_millis(2);

/// First and longest pause between two passes of the handler thread.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(10)];

/// Divisor of the pause's growth: each pause is 1/64 longer than the one before.
const GROWTH: u32 = 64;

/// Number of watched calls in progress.
static WATCHED: AtomicUsize = AtomicUsize::new(0);

/// Whether the handler thread runs.
static IS_LOOKING: AtomicBool = AtomicBool::new(false);

/// Kind of a driver call.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Discover,
    Open,
    Compile,
    /// Creates a program from a binary. Such calls are too short for a signal watch around every one.
    Load,
    /// Enqueues a launch. As short as [`Load`](Self::Load).
    #[cfg(feature = "opencl")]
    Launch,
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
impl Kind {
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
pub(super) struct Arranging {
    is_watched: bool,
    since: Instant,
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    signals: Option<signals::Watch>,
}

impl Arranging {
    pub(super) fn of(kind: Kind) -> Self {
        static CALLS: [AtomicUsize; 5] = [const { AtomicUsize::new(0) }; 5];
        let calls = &CALLS[kind as usize];
        let is_watched = calls.load(SeqCst) < WATCHED_CALLS;
        if is_watched {
            calls.fetch_add(1, SeqCst);
            WATCHED.fetch_add(1, SeqCst);
        }
        let arranging = Self {
            is_watched,
            since: Instant::now(),
            #[cfg(all(target_os = "linux", target_env = "gnu"))]
            signals: (is_watched || !kind.is_short()).then(signals::Watch::begin),
        };
        if is_watched && !IS_LOOKING.swap(true, SeqCst) {
            let looking = thread::Builder::new().name("kiln-handlers".to_owned()).spawn(look);
            if let Err(error) = looking {
                IS_LOOKING.store(false, SeqCst);
                tracing::debug!(%error, "handlers of drivers are seen only when their calls return");
            }
        }
        arranging
    }
}

impl Drop for Arranging {
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        drop(self.signals.take());
        if self.is_watched {
            WATCHED.fetch_sub(1, SeqCst);
        }
        if self.is_watched || self.since.elapsed() > MAY_REGISTER {
            shutdown::prepare();
        }
    }
}

/// Guard that permits calls of a driver's compiler while it is held.
pub(super) struct Compiling {
    // Declared first, so dropped first: handlers are restored before the call counts as finished.
    _arranging: Arranging,
    _call: shutdown::Call,
}

/// Enters a driver's compiler. Fails like [`shutdown::begin`].
pub(super) fn compile(kind: Kind) -> Result<Compiling> {
    let call = shutdown::compile()?;
    Ok(Compiling { _arranging: Arranging::of(kind), _call: call })
}

fn look() {
    let mut pause = PAUSES[0];
    loop {
        while WATCHED.load(SeqCst) > 0 {
            #[cfg(all(target_os = "linux", target_env = "gnu"))]
            signals::restore();
            shutdown::prepare();
            thread::sleep(pause);
            pause = (pause + pause / GROWTH).min(PAUSES[1]);
        }
        IS_LOOKING.store(false, SeqCst);
        // A call that began before `IS_LOOKING` was cleared started no thread, because it saw this one.
        if WATCHED.load(SeqCst) == 0 || IS_LOOKING.swap(true, SeqCst) {
            return;
        }
    }
}
