//! Path from a driver's callback to a waker: the signal that a command's waiters sleep on, and the
//! mailbox of the reactor thread.
//!
//! The callback side, [`Signal::fire`] and [`Mailbox::post`], waits for no lock, calls no driver and
//! runs no destructor of foreign code: drivers call back on any thread, even from within other calls.
//! Both types are modelled with loom (`make loom`).

#[cfg(not(kiln_loom))]
use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, Ordering::SeqCst},
    },
    thread::{self, Thread},
};

#[cfg(kiln_loom)]
use loom::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, Ordering::SeqCst},
    },
    thread::{self, Thread},
};

use std::hint;
use std::mem;
use std::sync::{OnceLock, PoisonError, TryLockError};
use std::task::Waker;
use std::time::{Duration, Instant};

use concurrent_queue::ConcurrentQueue;
use slab::Slab;
use smallvec::SmallVec;

/// Wakers to call once no lock is held.
pub(crate) type Wakers = SmallVec<[Waker; 2]>;

const PENDING: u8 = 0;
const FIRED: u8 = 1;
const SETTLED: u8 = 2;

/// Progress of a command's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The end of the command has not been reported.
    Pending,
    /// The driver has called back; the outcome is not known yet.
    Fired,
    /// The outcome is known.
    Settled,
}

impl Phase {
    fn of(phase: u8) -> Self {
        match phase {
            PENDING => Self::Pending,
            FIRED => Self::Fired,
            _ => Self::Settled,
        }
    }
}

/// Result of [`Signal::fire`].
#[derive(Debug)]
pub(crate) enum Fired {
    /// First waiter: the caller wakes it, and the woken task settles the signal.
    Waiter(Waker),
    /// No waiter that the callback may wake: the signal must be settled elsewhere.
    NoWaiter,
    /// Another thread is registering or removing a waiter. The signal must be settled elsewhere,
    /// whether or not it counts as awaited yet.
    Busy,
    /// The signal was settled before.
    Late,
}

/// Waiter slot of a future in a signal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum WaiterSlot {
    /// No slot: the future has not been polled.
    #[default]
    None,
    /// Slot of the first waiter, which the callback wakes directly.
    First,
    /// Slot of a later waiter, which is woken when the signal is settled.
    Later(u32),
}

/// Signal that a command's waiters sleep on.
///
/// Wakers are foreign code: each of their functions may panic, or use other handles of the same
/// command. They are cloned, woken and dropped only while the lock of the waiters is free.
#[derive(Debug)]
pub(crate) struct Signal {
    phase: AtomicU8,
    /// Whether a waiter ever registered. Most signals have no waiter and are settled without the lock.
    registered: AtomicBool,
    waiters: Mutex<Waiters>,
}

/// Wakers of a signal's waiters, by slot.
#[derive(Debug, Default)]
struct Waiters {
    is_first_taken: bool,
    /// Waker of the first waiter. The callback takes it; the slot still belongs to its future.
    first: Option<Waker>,
    /// Wakers of the later waiters; allocated for the second waiter.
    later: Option<Box<Slab<Waker>>>,
}

impl Waiters {
    fn add(&mut self, waker: Waker) -> WaiterSlot {
        if self.is_first_taken {
            let key = self.later.get_or_insert_default().insert(waker);
            return WaiterSlot::Later(
                u32::try_from(key).expect("there are fewer wakers than bytes of memory"),
            );
        }
        self.is_first_taken = true;
        self.first = Some(waker);
        WaiterSlot::First
    }

    fn get(&self, slot: &WaiterSlot) -> Option<&Waker> {
        match slot {
            WaiterSlot::None => None,
            WaiterSlot::First => self.first.as_ref(),
            WaiterSlot::Later(key) => self.later.as_ref()?.get(*key as usize),
        }
    }

    /// Replaces the waker in a slot and returns the previous one.
    fn replace(&mut self, slot: &WaiterSlot, waker: Waker) -> Option<Waker> {
        match slot {
            WaiterSlot::None => None,
            WaiterSlot::First => self.first.replace(waker),
            WaiterSlot::Later(key) => {
                let stored = self.later.as_mut()?.get_mut(*key as usize)?;
                Some(mem::replace(stored, waker))
            }
        }
    }

    fn remove(&mut self, slot: &WaiterSlot) -> Option<Waker> {
        match slot {
            WaiterSlot::None => None,
            WaiterSlot::First => {
                self.is_first_taken = false;
                self.first.take()
            }
            WaiterSlot::Later(key) => self.later.as_mut()?.try_remove(*key as usize),
        }
    }
}

impl Signal {
    pub(crate) fn new() -> Self {
        Self {
            phase: AtomicU8::new(PENDING),
            registered: AtomicBool::new(false),
            waiters: Mutex::new(Waiters::default()),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::of(self.phase.load(SeqCst))
    }

    /// Returns whether the end is not reported yet and the deadline has not passed.
    pub(crate) fn is_pending_until(&self, deadline: Option<Instant>) -> bool {
        self.phase() == Phase::Pending && deadline.is_some_and(|deadline| Instant::now() < deadline)
    }

    /// Spins until the phase is no longer [`Phase::Pending`] or the deadline has passed. Returns the
    /// phase.
    pub(crate) fn spin_until(&self, deadline: Option<Instant>) -> Phase {
        while self.is_pending_until(deadline) {
            hint::spin_loop();
        }
        self.phase()
    }

    /// Registers `waker` for the future with this slot, in place of its previous waker. Returns the phase
    /// after that. Once the signal is settled, nothing is registered.
    ///
    /// If a function of the waker panics, all other waiters stay as they were.
    pub(crate) fn register(&self, slot: &mut WaiterSlot, waker: &Waker) -> Phase {
        if self.phase() == Phase::Settled {
            return Phase::Settled;
        }
        if *slot == WaiterSlot::None {
            let fresh = waker.clone();
            // This flag is set before the phase is read, and `settle` sets the phase before it reads
            // this flag: one of the two sees the other.
            self.registered.store(true, SeqCst);
            let (phase, unused) = {
                let mut waiters = self.lock();
                match load_latest(&self.phase) {
                    SETTLED => (SETTLED, Some(fresh)),
                    phase => {
                        *slot = waiters.add(fresh);
                        (phase, None)
                    }
                }
            };
            drop(unused);
            return Phase::of(phase);
        }
        {
            let waiters = self.lock();
            let phase = load_latest(&self.phase);
            let is_known = || waiters.get(slot).is_some_and(|known| known.will_wake(waker));
            if phase == SETTLED || is_known() {
                return Phase::of(phase);
            }
        }
        let fresh = waker.clone();
        let (phase, replaced) = {
            let mut waiters = self.lock();
            match load_latest(&self.phase) {
                SETTLED => (SETTLED, Some(fresh)),
                phase => (phase, waiters.replace(slot, fresh)),
            }
        };
        // A waker may be the last owner of a task that holds other handles of the command. Dropping
        // these takes the lock.
        drop(replaced);
        Phase::of(phase)
    }

    /// Frees the slot of a future that is dropped. Returns its waker, for the caller to drop.
    #[must_use = "dropping a waker runs foreign code"]
    pub(crate) fn leave(&self, slot: &mut WaiterSlot) -> Option<Waker> {
        let slot = mem::take(slot);
        // `settle` takes all wakers.
        if slot == WaiterSlot::None || self.phase() == Phase::Settled {
            return None;
        }
        self.lock().remove(&slot)
    }

    /// Handles the driver's callback. Returns the first waiter for the caller to wake, if `may_wake` is
    /// set. Never waits for the lock.
    pub(crate) fn fire(&self, may_wake: bool) -> Fired {
        if self.phase.compare_exchange(PENDING, FIRED, SeqCst, SeqCst).is_err() {
            return Fired::Late;
        }
        if !may_wake || !load_latest_flag(&self.registered) {
            return Fired::NoWaiter;
        }
        let first = match self.waiters.try_lock() {
            Ok(mut waiters) => waiters.first.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().first.take(),
            Err(TryLockError::WouldBlock) => return Fired::Busy,
        };
        first.map_or(Fired::NoWaiter, Fired::Waiter)
    }

    /// Settles the signal, once the outcome is known and readable, and appends all waiters for the
    /// caller to wake. Returns whether the driver has called back; a callback that comes later is
    /// [late](Fired::Late).
    pub(crate) fn settle(&self, wakers: &mut Wakers) -> bool {
        let before = self.phase.swap(SETTLED, SeqCst);
        if load_latest_flag(&self.registered) {
            let (first, later) = {
                let mut waiters = self.lock();
                (waiters.first.take(), waiters.later.take())
            };
            wakers.extend(first);
            wakers.extend(
                later.into_iter().flat_map(|later| later.into_iter()).map(|(_, waker)| waker),
            );
        }
        before == FIRED
    }

    /// Locks the waiters. No foreign code runs under this lock: it is held for a few instructions, and
    /// a panic leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loads the latest value.
#[cfg(not(kiln_loom))]
fn load_latest(state: &AtomicU8) -> u8 {
    state.load(SeqCst)
}

/// Loads the latest value.
#[cfg(not(kiln_loom))]
fn load_latest_flag(flag: &AtomicBool) -> bool {
    flag.load(SeqCst)
}

/// Loads the latest value. With loom, a `SeqCst` load is like an `Acquire` load and may miss that value;
/// only a read-modify-write never does.
#[cfg(kiln_loom)]
fn load_latest(state: &AtomicU8) -> u8 {
    state.fetch_or(0, SeqCst)
}

/// Loads the latest value, as [`load_latest`] does.
#[cfg(kiln_loom)]
fn load_latest_flag(flag: &AtomicBool) -> bool {
    flag.fetch_or(false, SeqCst)
}

const AWAKE: u8 = 0;
const DOZING: u8 = 1;
const ASLEEP: u8 = 2;

/// Urgency with which the reactor must handle a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Immediately: a waiter depends on work that only the reactor does.
    Now,
    /// At the next tick of the reactor.
    NextTick,
}

/// Mailbox of the reactor thread, filled by callbacks and by threads that must not wait for a lock.
///
/// While there is work on a device, the reactor dozes: it sleeps with a time limit. Once there has been
/// no work for a while, it sleeps without limit.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    posts: ConcurrentQueue<T>,
    state: AtomicU8,
    /// Thread of the reactor; set before its first sleep.
    reactor: OnceLock<Thread>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Self {
        Self {
            posts: ConcurrentQueue::unbounded(),
            state: AtomicU8::new(AWAKE),
            reactor: OnceLock::new(),
        }
    }

    /// Posts `post` to the reactor.
    pub(crate) fn post(&self, post: T, urgency: Urgency) {
        // Pushing cannot fail: the queue is unbounded and never closed.
        let _ = self.posts.push(post);
        match urgency {
            Urgency::Now => self.wake_from(DOZING),
            Urgency::NextTick => self.wake_from(ASLEEP),
        }
    }

    /// Reports that there is work on a device: the reactor must not sleep without limit.
    pub(crate) fn wake(&self) {
        self.wake_from(ASLEEP);
    }

    fn wake_from(&self, depth: u8) {
        if load_latest(&self.state) >= depth
            && let Some(reactor) = self.reactor.get()
        {
            reactor.unpark();
        }
    }

    /// Takes the oldest post. Called by the reactor only.
    pub(crate) fn take(&self) -> Option<T> {
        self.posts.pop().ok()
    }

    /// Sleeps until an urgent post arrives, for at most `tick`. Called by the reactor only.
    pub(crate) fn doze(&self, tick: Duration) {
        self.sleep(DOZING, || false, || park_timeout(tick));
    }

    /// Sleeps until anything is posted or [`wake`](Self::wake) is called, unless `busy` returns `true`.
    /// Called by the reactor only.
    pub(crate) fn sleep_unless(&self, busy: impl FnOnce() -> bool) {
        self.sleep(ASLEEP, busy, thread::park);
    }

    /// Sleeps, unless there is a post or `busy` returns `true`. A thread that posts or starts work does so
    /// first and then reads the state; the reactor first sets the state and then looks for posts and work.
    /// One of the two sees the other.
    fn sleep(&self, depth: u8, busy: impl FnOnce() -> bool, park: impl FnOnce()) {
        self.reactor.get_or_init(thread::current);
        self.state.store(depth, SeqCst);
        if self.posts.is_empty() && !busy() {
            park();
        }
        self.state.store(AWAKE, SeqCst);
    }
}

#[cfg(not(kiln_loom))]
fn park_timeout(tick: Duration) {
    thread::park_timeout(tick);
}

/// loom does not model time. The tick only limits the damage of a lost wake-up, and the models must
/// work without it.
#[cfg(kiln_loom)]
fn park_timeout(_: Duration) {
    thread::park();
}
