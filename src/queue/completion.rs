//! From a driver's callback to a waker: the signal that a command's waiters sleep on, and the
//! mailbox of the reactor thread.
//!
//! The callback side, [`Signal::fire`] and [`Mailbox::post`], takes no lock, calls no driver and
//! runs nobody's destructor, because drivers call back on threads, and inside calls, of their own
//! choosing. Both types are modelled with loom (`make loom`).

#[cfg(not(kiln_loom))]
use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::SeqCst},
    },
    thread::{self, Thread},
};

#[cfg(kiln_loom)]
use loom::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::SeqCst},
    },
    thread::{self, Thread},
};

#[cfg(not(kiln_loom))]
use futures::task::AtomicWaker;
#[cfg(kiln_loom)]
use loom::future::AtomicWaker;

use std::hint;
use std::sync::{OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use concurrent_queue::ConcurrentQueue;
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

/// What a callback met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fired {
    /// The first waiter, which will settle the signal when it is polled.
    SomebodyWoke,
    /// Nobody that it may wake: somebody else must see to it that the signal is settled.
    NobodyWaits,
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
#[derive(Debug)]
pub(crate) struct Signal {
    phase: AtomicU8,
    first: AtomicWaker,
    first_taken: AtomicBool,
    /// How many seats behind the first were ever taken.
    later_taken: AtomicU32,
    /// Made for the first of them: most signals have none.
    later: OnceLock<Box<Mutex<Later>>>,
}

/// The waiters behind the first, by the numbers of their seats.
type Later = Vec<(u32, Waker)>;

impl Signal {
    pub(crate) fn new() -> Self {
        Self {
            phase: AtomicU8::new(PENDING),
            first: AtomicWaker::new(),
            first_taken: AtomicBool::new(false),
            later_taken: AtomicU32::new(0),
            later: OnceLock::new(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(SeqCst) {
            PENDING => Phase::Pending,
            FIRED => Phase::Fired,
            _ => Phase::Settled,
        }
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
    /// and tells the phase as it is after that. Nothing is registered once it is settled.
    ///
    /// A seat is taken before the phase is looked at, and [`settle`](Self::settle) sets the phase
    /// before it looks for taken seats: so one of the two sees the other.
    pub(crate) fn register(&self, seat: &mut Seat, waker: &Waker) -> Phase {
        if self.phase() == Phase::Settled {
            return Phase::Settled;
        }
        if *seat == Seat::None {
            *seat = if self.first_taken.swap(true, SeqCst) {
                Seat::Later(self.later_taken.fetch_add(1, SeqCst))
            } else {
                Seat::First
            };
        }
        match *seat {
            Seat::Later(number) => {
                let mut later = self.later();
                // Under the lock that `settle` takes to collect the wakers: none can be missed.
                if latest(&self.phase) == SETTLED {
                    return Phase::Settled;
                }
                let mut replaced = None;
                match later.iter_mut().find(|(there, _)| *there == number) {
                    Some((_, there)) if there.will_wake(waker) => {}
                    Some((_, there)) => replaced = Some(std::mem::replace(there, waker.clone())),
                    None => later.push((number, waker.clone())),
                }
                // A waker may be the last owner of a task that holds other handles of the command,
                // which take the lock when they are dropped.
                drop(later);
                drop(replaced);
            }
            Seat::First | Seat::None => register_first(&self.first, waker),
        }
        self.phase()
    }

    /// The future that sat there is gone.
    pub(crate) fn leave(&self, seat: &mut Seat) {
        match std::mem::take(seat) {
            Seat::None => {}
            Seat::First => {
                drop(self.first.take_waker());
                self.first_taken.store(false, SeqCst);
            }
            Seat::Later(number) => {
                let mut later = self.later();
                let at = later.iter().position(|(there, _)| *there == number);
                let waker = at.map(|at| later.swap_remove(at));
                // In this order, for the reason given above.
                drop(later);
                drop(waker);
            }
        }
    }

    /// The driver's callback: wakes the first waiter, if it may.
    pub(crate) fn fire(&self, may_wake: bool) -> Fired {
        if self.phase.compare_exchange(PENDING, FIRED, SeqCst, SeqCst).is_err() {
            return Fired::Late;
        }
        match may_wake.then(|| self.first.take_waker()).flatten() {
            Some(waker) => {
                waker.wake();
                Fired::SomebodyWoke
            }
            None => Fired::NobodyWaits,
        }
    }

    /// How the command ended is known and readable: all waiters are to be woken, by the caller.
    /// Tells whether the driver has called back; if it still will, that is [late](Fired::Late).
    pub(crate) fn settle(&self, wakers: &mut Wakers) -> bool {
        let before = self.phase.swap(SETTLED, SeqCst);
        if taken(&self.first_taken) {
            wakers.extend(self.first.take_waker());
        }
        if ever_taken(&self.later_taken) {
            wakers.extend(self.later().drain(..).map(|(_, waker)| waker));
        }
        before == FIRED
    }

    /// A waker that panics poisons nothing that matters.
    fn later(&self) -> MutexGuard<'_, Later> {
        let later = self.later.get_or_init(|| Box::new(Mutex::new(Later::new())));
        later.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(not(kiln_loom))]
fn latest(state: &AtomicU8) -> u8 {
    state.load(SeqCst)
}

#[cfg(not(kiln_loom))]
fn taken(seat: &AtomicBool) -> bool {
    seat.load(SeqCst)
}

#[cfg(not(kiln_loom))]
fn ever_taken(seats: &AtomicU32) -> bool {
    seats.load(SeqCst) > 0
}

/// loom takes a `SeqCst` load for an `Acquire` one, which may miss the latest value. Only
/// read-modify-writes never do.
#[cfg(kiln_loom)]
fn latest(state: &AtomicU8) -> u8 {
    state.fetch_or(0, SeqCst)
}

#[cfg(kiln_loom)]
fn taken(seat: &AtomicBool) -> bool {
    seat.fetch_or(false, SeqCst)
}

#[cfg(kiln_loom)]
fn ever_taken(seats: &AtomicU32) -> bool {
    seats.fetch_or(0, SeqCst) > 0
}

#[cfg(not(kiln_loom))]
fn register_first(first: &AtomicWaker, waker: &Waker) {
    first.register(waker);
}

#[cfg(kiln_loom)]
fn register_first(first: &AtomicWaker, waker: &Waker) {
    first.register_by_ref(waker);
}

/// The name that loom's `AtomicWaker` has for it.
#[cfg(not(kiln_loom))]
trait TakeWaker {
    fn take_waker(&self) -> Option<Waker>;
}

#[cfg(not(kiln_loom))]
impl TakeWaker for AtomicWaker {
    fn take_waker(&self) -> Option<Waker> {
        self.take()
    }
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
