//! Calls in which a driver may register handlers, of signals and for the end of the process.
//!
//! Drivers do so when they are loaded, with their first contexts, with the first compiles and, where they
//! compile at a launch, with the first launches. Kiln takes handlers of signals [back](super::signals), and
//! has its own handler for the [end of the process](super::shutdown) run before those of a driver. Such calls
//! take up to a second. Until they return, a thread does both again and again, so that neither a
//! signal nor the end of the process meets more than what was registered in the last moment.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use super::shutdown;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use super::signals;
use crate::error::Result;

/// Number of calls of each kind in a process during which a thread looks.
const WATCHED_CALLS: usize = 8;

/// A later call that takes longer may have registered handlers for the end of the process.
const MAY_REGISTER: Duration = Duration::from_millis(2);

/// The first pause between two looks, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(10)];

/// The pause grows by this part of itself.
const GROWTH: u32 = 64;

/// Number of calls that are watched now.
static WATCHED: AtomicUsize = AtomicUsize::new(0);

/// Whether there is a thread that looks.
static IS_LOOKING: AtomicBool = AtomicBool::new(false);

/// A kind of call.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Discover,
    Open,
    Compile,
    /// Makes a program of a binary, in less time than a look would be worth for each.
    Load,
    /// Enqueues a launch, in as little time.
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

/// Lasts as long as a call.
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

/// Permission to call a driver's compiler, for as long as it is kept.
pub(super) struct Compiling {
    // Declared first: the handlers are seen to before the call counts as over.
    _arranging: Arranging,
    _call: shutdown::Call,
}

/// Enters a driver's compiler. Fails like [`exit::begin`].
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
        // A call that began in between has seen this thread.
        if WATCHED.load(SeqCst) == 0 || IS_LOOKING.swap(true, SeqCst) {
            return;
        }
    }
}
