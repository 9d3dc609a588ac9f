//! From a driver's callback to a waker: the signal that a command's waiters sleep on, and the
//! mailbox of the reactor thread.
//!
//! The callback side, [`Signal::fire`] and [`Mailbox::post`], waits for no lock, calls no driver and
//! runs nobody's destructor, because drivers call back on threads, and inside calls, of their own
//! choosing. Both types are modelled with loom (`make loom`).

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

/// The wakers to call once no lock is held.
pub(crate) type Wakers = SmallVec<[Waker; 2]>;

const PENDING: u8 = 0;
const FIRED: u8 = 1;
const SETTLED: u8 = 2;

/// How far the end of a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody has told its end.
    Pending,
    /// The driver has called back; how it ended is not yet known.
    Fired,
    /// How it ended is known.
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

/// What a callback met.
#[derive(Debug)]
pub(crate) enum Fired {
    /// The first waiter, which the caller wakes and which then settles the signal.
    Waiter(Waker),
    /// Nobody that it may wake: somebody else must see to it that the signal is settled.
    NobodyWaits,
    /// A waiter is registering or leaving on another thread: somebody else must settle the signal,
    /// whether or not it counts as awaited yet.
    Busy,
    /// A signal that was settled before.
    Late,
}

/// Which of a signal's waiters a future is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Seat {
    /// It has not been polled.
    #[default]
    None,
    /// It was the first: the callback wakes it directly.
    First,
    /// It came later: whoever settles the signal wakes it.
    Later(u32),
}

/// What a command's waiters sleep on.
///
/// Wakers are foreign code: each of their functions may panic, or use other handles of the same
/// command. They are cloned, woken and dropped only while the lock of the waiters is free.
#[derive(Debug)]
pub(crate) struct Signal {
    phase: AtomicU8,
    /// Whether a waiter ever registered. Most signals have none and are settled without the lock.
    registered: AtomicBool,
    waiters: Mutex<Waiters>,
}

/// The wakers of a signal's waiters, by seat.
#[derive(Debug, Default)]
struct Waiters {
    is_first_taken: bool,
    /// Taken by the callback; the seat stays its future's.
    first: Option<Waker>,
    /// Allocated for the second waiter.
    later: Option<Box<Slab<Waker>>>,
}

impl Waiters {
    fn add(&mut self, waker: Waker) -> Seat {
        if self.is_first_taken {
            let key = self.later.get_or_insert_default().insert(waker);
            return Seat::Later(u32::try_from(key).expect("wakers are fewer than bytes of memory"));
        }
        self.is_first_taken = true;
        self.first = Some(waker);
        Seat::First
    }

    fn get(&self, seat: &Seat) -> Option<&Waker> {
        match seat {
            Seat::None => None,
            Seat::First => self.first.as_ref(),
            Seat::Later(key) => self.later.as_ref()?.get(*key as usize),
        }
    }

    /// Gives the waker that sat there.
    fn replace(&mut self, seat: &Seat, waker: Waker) -> Option<Waker> {
        match seat {
            Seat::None => None,
            Seat::First => self.first.replace(waker),
            Seat::Later(key) => {
                let there = self.later.as_mut()?.get_mut(*key as usize)?;
                Some(mem::replace(there, waker))
            }
        }
    }

    fn remove(&mut self, seat: &Seat) -> Option<Waker> {
        match seat {
            Seat::None => None,
            Seat::First => {
                self.is_first_taken = false;
                self.first.take()
            }
            Seat::Later(key) => self.later.as_mut()?.try_remove(*key as usize),
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

    /// Whether nobody has told the end, and the deadline has not passed.
    pub(crate) fn is_pending_until(&self, deadline: Option<Instant>) -> bool {
        self.phase() == Phase::Pending && deadline.is_some_and(|deadline| Instant::now() < deadline)
    }

    /// The phase, once it is no longer [`Phase::Pending`] or the deadline has passed.
    pub(crate) fn spin_until(&self, deadline: Option<Instant>) -> Phase {
        while self.is_pending_until(deadline) {
            hint::spin_loop();
        }
        self.phase()
    }

    /// Registers `waker` for the future that sits in `seat`, in place of the one it gave before,
    /// and returns the phase as it is after that. Nothing is registered once it is settled.
    ///
    /// A panic of the waker's leaves all other waiters as they were.
    pub(crate) fn register(&self, seat: &mut Seat, waker: &Waker) -> Phase {
        if self.phase() == Phase::Settled {
            return Phase::Settled;
        }
        if *seat == Seat::None {
            let fresh = waker.clone();
            // Set before the phase is looked at, while `settle` sets the phase before it looks at
            // this: one of the two sees the other.
            self.registered.store(true, SeqCst);
            let (phase, unused) = {
                let mut waiters = self.lock();
                match latest(&self.phase) {
                    SETTLED => (SETTLED, Some(fresh)),
                    phase => {
                        *seat = waiters.add(fresh);
                        (phase, None)
                    }
                }
            };
            drop(unused);
            return Phase::of(phase);
        }
        {
            let waiters = self.lock();
            let phase = latest(&self.phase);
            let is_known = || waiters.get(seat).is_some_and(|known| known.will_wake(waker));
            if phase == SETTLED || is_known() {
                return Phase::of(phase);
            }
        }
        let fresh = waker.clone();
        let (phase, replaced) = {
            let mut waiters = self.lock();
            match latest(&self.phase) {
                SETTLED => (SETTLED, Some(fresh)),
                phase => (phase, waiters.replace(seat, fresh)),
            }
        };
        // A waker may be the last owner of a task that holds other handles of the command, which
        // take the lock when they are dropped.
        drop(replaced);
        Phase::of(phase)
    }

    /// The future that sat there is gone. Returns its waker, for the caller to drop.
    #[must_use = "dropping a waker runs foreign code"]
    pub(crate) fn leave(&self, seat: &mut Seat) -> Option<Waker> {
        let seat = mem::take(seat);
        // Settling a signal takes all wakers.
        if seat == Seat::None || self.phase() == Phase::Settled {
            return None;
        }
        self.lock().remove(&seat)
    }

    /// The driver's callback: gives the first waiter, if it may be woken. Never waits for the lock.
    pub(crate) fn fire(&self, may_wake: bool) -> Fired {
        if self.phase.compare_exchange(PENDING, FIRED, SeqCst, SeqCst).is_err() {
            return Fired::Late;
        }
        if !may_wake || !ever(&self.registered) {
            return Fired::NobodyWaits;
        }
        let first = match self.waiters.try_lock() {
            Ok(mut waiters) => waiters.first.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().first.take(),
            Err(TryLockError::WouldBlock) => return Fired::Busy,
        };
        first.map_or(Fired::NobodyWaits, Fired::Waiter)
    }

    /// How the command ended is known and readable: all waiters are to be woken, by the caller.
    /// Tells whether the driver has called back; if it still will, that is [late](Fired::Late).
    pub(crate) fn settle(&self, wakers: &mut Wakers) -> bool {
        let before = self.phase.swap(SETTLED, SeqCst);
        if ever(&self.registered) {
            let (first, later) = {
                let mut waiters = self.lock();
                (waiters.first.take(), waiters.later.take())
            };
            wakers.extend(first);
            wakers.extend(later.into_iter().flat_map(|later| later.into_iter()).map(|(_, it)| it));
        }
        before == FIRED
    }

    /// No foreign code runs while this is held, so that it is held for a few instructions, and a
    /// panic leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(not(kiln_loom))]
fn latest(state: &AtomicU8) -> u8 {
    state.load(SeqCst)
}

#[cfg(not(kiln_loom))]
fn ever(flag: &AtomicBool) -> bool {
    flag.load(SeqCst)
}

/// loom takes a `SeqCst` load for an `Acquire` one, which may miss the latest value. Only
/// read-modify-writes never do.
#[cfg(kiln_loom)]
fn latest(state: &AtomicU8) -> u8 {
    state.fetch_or(0, SeqCst)
}

#[cfg(kiln_loom)]
fn ever(flag: &AtomicBool) -> bool {
    flag.fetch_or(false, SeqCst)
}

const AWAKE: u8 = 0;
const DOZING: u8 = 1;
const ASLEEP: u8 = 2;

/// How soon the reactor must look at what is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Now: somebody waits for what only the reactor does.
    Now,
    /// With its next tick.
    NextTick,
}

/// What callbacks, and those that must not wait for a lock, hand to the reactor thread.
///
/// The reactor dozes, which is sleep with a time limit, while there is work on some device, and
/// sleeps without limit when there has been none for a while.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    posts: ConcurrentQueue<T>,
    state: AtomicU8,
    /// Set by the reactor before its first sleep.
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

    /// Leaves `post` for the reactor.
    pub(crate) fn post(&self, post: T, urgency: Urgency) {
        // An unbounded queue that is never closed takes everything.
        let _ = self.posts.push(post);
        match urgency {
            Urgency::Now => self.wake_from(DOZING),
            Urgency::NextTick => self.wake_from(ASLEEP),
        }
    }

    /// There is work on a device: the reactor must not sleep without limit.
    pub(crate) fn rouse(&self) {
        self.wake_from(ASLEEP);
    }

    fn wake_from(&self, depth: u8) {
        if latest(&self.state) >= depth
            && let Some(reactor) = self.reactor.get()
        {
            reactor.unpark();
        }
    }

    /// The oldest post. For the reactor.
    pub(crate) fn take(&self) -> Option<T> {
        self.posts.pop().ok()
    }

    /// Sleeps until something urgent is posted, but no longer than `tick`. For the reactor.
    pub(crate) fn doze(&self, tick: Duration) {
        self.sleep(DOZING, || false, || park_timeout(tick));
    }

    /// Sleeps until anything is posted or the mailbox is [roused](Self::rouse), unless `busy` says
    /// that it must not. For the reactor.
    pub(crate) fn sleep_unless(&self, busy: impl FnOnce() -> bool) {
        self.sleep(ASLEEP, busy, thread::park);
    }

    /// Who posts or starts work first does so and then looks at the state; the reactor first sets
    /// the state and then looks for posts and work. So one of the two sees the other.
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

/// loom knows no time: the tick is a lost wake-up's rescue, and the models must do without it.
#[cfg(kiln_loom)]
fn park_timeout(_: Duration) {
    thread::park();
}
