//! Removal of signal handlers that drivers register.
//!
//! PoCL (3.1) and Intel's runtime for CPUs (2026.22) contain LLVM, which registers handlers for 14 signals,
//! among them SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2. PoCL does so when platforms are first
//! listed, Intel's runtime with the first context, other versions with the first compile. LLVM's handlers
//! restore the previous handlers and raise the signal again. An application whose own handler calls the
//! previous one, as tokio's does, is then killed by a SIGTERM that it was meant to handle.
//!
//! A driver is called inside a [`Watch`] while it may register handlers. A handler that points into a library
//! loaded meanwhile belongs to the driver, and is replaced by the previous handler. A handler that points
//! elsewhere belongs to the application, and stays. A handler for a fault also stays if it remains registered
//! when it is called: PoCL needs such a handler for SIGFPE, because kernels may divide by zero. LLVM's handlers
//! for faults serve only once, for a report.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, sigaction};

use super::loaded::{count_loads, libraries};

/// Range of the signals that are not real-time signals.
const SIGNALS: Range<c_int> = 1..32;

/// Signals that a thread causes by its own actions.
const FAULTS: [c_int; 7] = [
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

static STATE: Mutex<State> =
    Mutex::new(State { watches: 0, expected: Vec::new(), application: Vec::new(), loads: 0 });

struct State {
    /// Number of watches that are alive.
    watches: usize,
    /// Handlers that are to stay registered, by signal. Maintained while there are watches.
    expected: Vec<(c_int, sigaction)>,
    /// Address ranges of the program and of the libraries that were loaded outside of watches.
    application: Vec<Range<usize>>,
    /// Number of loads and unloads of libraries at the end of the last watch.
    loads: u64,
}

/// Guard that keeps drivers from leaving signal handlers in the process.
pub(super) struct Watch(());

impl Watch {
    pub(super) fn begin() -> Self {
        let mut state = lock();
        if state.watches == 0 {
            state.note_libraries();
            state.expected =
                SIGNALS.filter_map(|number| Some((number, current(number)?))).collect();
        }
        state.watches += 1;
        Self(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = lock();
        state.restore();
        state.watches -= 1;
        if state.watches == 0 {
            state.loads = count_loads();
        }
    }
}

/// Removes the handlers that drivers have registered so far. Does nothing outside of a [`Watch`].
pub(super) fn restore() {
    let mut state = lock();
    if state.watches > 0 {
        state.restore();
    }
}

fn lock() -> MutexGuard<'static, State> {
    crate::sync::lock(&STATE)
}

impl State {
    /// Adds the libraries that were loaded since the last watch to the application's.
    fn note_libraries(&mut self) {
        if count_loads() != self.loads {
            let known = &self.application;
            let ranges = libraries().into_iter().flat_map(|library| library.ranges);
            let new: Vec<_> = ranges.filter(|range| !known.contains(range)).collect();
            self.application.extend(new);
        }
    }

    fn restore(&mut self) {
        for (number, expected) in &mut self.expected {
            let Some(found) = current(*number) else { continue };
            if is_same(&found, expected) {
                continue;
            }
            let is_application =
                self.application.iter().any(|range| range.contains(&found.sa_sigaction));
            if is_application || is_default(&found) || is_needed(*number, &found) {
                *expected = found;
                continue;
            }
            let replaced = exchange(*number, expected);
            // The application registered a handler meanwhile, which is put back.
            if let Some(other) = replaced.filter(|replaced| !is_same(replaced, &found)) {
                exchange(*number, &other);
                *expected = other;
            }
        }
    }
}

/// Returns whether the driver needs its handler: a handler for a fault that stays registered when it is called.
fn is_needed(number: c_int, found: &sigaction) -> bool {
    FAULTS.contains(&number) && found.sa_flags & libc::SA_RESETHAND == 0
}

fn is_default(found: &sigaction) -> bool {
    [libc::SIG_DFL, libc::SIG_IGN].contains(&found.sa_sigaction)
}

fn is_same(one: &sigaction, other: &sigaction) -> bool {
    (one.sa_sigaction, one.sa_flags) == (other.sa_sigaction, other.sa_flags)
}

/// Returns the handler of a signal. `None` for a signal that cannot be handled.
fn current(number: c_int) -> Option<sigaction> {
    let mut found = MaybeUninit::uninit();
    // SAFETY: there is room for the answer, and nothing is changed.
    let status = unsafe { sigaction(number, ptr::null(), found.as_mut_ptr()) };
    // SAFETY: the call succeeded, and so wrote the answer.
    (status == 0).then(|| unsafe { found.assume_init() })
}

/// Registers a handler that was registered before, and returns the handler that it replaces.
fn exchange(number: c_int, with: &sigaction) -> Option<sigaction> {
    let mut replaced = MaybeUninit::uninit();
    // SAFETY: the handler was registered before, and there is room for the answer.
    let status = unsafe { sigaction(number, with, replaced.as_mut_ptr()) };
    // SAFETY: the call succeeded, and so wrote the answer.
    (status == 0).then(|| unsafe { replaced.assume_init() })
}
