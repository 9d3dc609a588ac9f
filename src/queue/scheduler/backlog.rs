//! Back-pressure: producers wait in [`Ready`](crate::queue::Ready) until the device has fewer unfinished
//! commands than its limit.
//!
//! A command occupies a place from its submission until its end. A free place lets one producer through, the
//! one that has waited longest. The place counts as granted until a command is submitted, most often by that
//! producer, so that a single place does not let all of them through. As a producer may also submit nothing,
//! grants expire at the reactor's next tick.
//!
//! Submissions and ends of commands look at the producers only if there are any, which costs them one relaxed
//! load.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use super::group::Stage;
use super::{CallbackRequest, SETTLE_AT_ONCE, SETTLE_IN_POLL, Scheduler, State};
use crate::error::catch_and_log;
use crate::queue::completion::{Urgency, Wakers};
use crate::queue::reactor::Post;
use crate::sync::lock;

/// Commands and producers that wait for the device. Shared with callbacks, which read it and must not own the
/// scheduler: they would run its destructor.
#[derive(Default)]
pub(crate) struct Backlog {
    /// Number of commands not yet handed to the device.
    pub(super) undispatched: AtomicUsize,
    /// Number of waiting producers, for readers without the lock.
    waiting: AtomicUsize,
    producers: Mutex<Producers>,
}

/// Producers that wait for a place.
///
/// Wakers are foreign code. They are cloned, woken and dropped only while the lock is free.
#[derive(Default)]
struct Producers {
    wakers: BTreeMap<Ticket, Waker>,
    next: Ticket,
}

/// Position of a producer among all that ever waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

impl Backlog {
    pub(super) fn has_producers(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Whether the end of a command may let another command or a producer proceed.
    pub(super) fn is_pending(&self) -> bool {
        self.undispatched.load(SeqCst) > 0 || self.waiting.load(SeqCst) > 0
    }

    /// Changes the producers, and publishes their number.
    fn change<T>(&self, change: impl FnOnce(&mut Producers) -> T) -> T {
        let mut producers = lock(&self.producers);
        let changed = change(&mut producers);
        self.waiting.store(producers.wakers.len(), SeqCst);
        changed
    }

    /// Adds a producer behind all others. Returns whether it is the only one.
    fn join(&self, waker: Waker) -> (Ticket, bool) {
        self.change(|Producers { wakers, next }| {
            let ticket = *next;
            *next = Ticket(ticket.0 + 1);
            wakers.insert(ticket, waker);
            (ticket, wakers.len() == 1)
        })
    }

    /// Replaces the waker of a producer. Returns whether the producer still waits.
    pub(crate) fn renew(&self, ticket: Ticket, waker: &Waker) -> bool {
        match lock(&self.producers).wakers.get(&ticket) {
            None => return false,
            Some(known) if known.will_wake(waker) => return true,
            Some(_) => {}
        }
        let fresh = waker.clone();
        let (is_waiting, unused) = match lock(&self.producers).wakers.get_mut(&ticket) {
            Some(known) => (true, mem::replace(known, fresh)),
            None => (false, fresh),
        };
        drop(unused);
        is_waiting
    }

    /// Removes a producer that no longer waits. If it has been granted a place, the place passes to the
    /// next producer.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let (own, next) = self.change(|Producers { wakers, .. }| match wakers.remove(&ticket) {
            Some(own) => (Some(own), None),
            None => (None, wakers.pop_first()),
        });
        // A panic here while another unwinds would abort the process.
        catch_and_log("a waker that was dropped", || drop(own));
        if let Some((_, waker)) = next {
            catch_and_log("a waker", || waker.wake());
        }
    }

    /// Moves the wakers of the producers that have waited longest to `released`, one for each place. Returns
    /// their number.
    fn release(&self, places: usize, released: &mut Wakers) -> usize {
        let before = released.len();
        if places > 0 {
            self.change(|Producers { wakers, .. }| {
                let oldest = std::iter::from_fn(|| wakers.pop_first());
                released.extend(oldest.take(places).map(|(_, waker)| waker));
            });
        }
        released.len() - before
    }
}

impl Scheduler {
    pub(crate) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Whether the reactor has to call [`tick`](Self::tick) from time to time.
    pub(crate) fn needs_ticks(&self) -> bool {
        self.live() > 0 || self.backlog.is_pending()
    }

    /// Whether a place is free for which no producer waits.
    pub(crate) fn has_capacity(&self) -> bool {
        self.live.load(Relaxed) < self.options.max_in_flight && !self.backlog.has_producers()
    }

    /// Settles commands that have ended. If there is no free place even then, or if other producers wait for
    /// one, makes the producer with this waker wait behind them. Never blocks.
    pub(crate) fn wait_for_capacity(self: &Arc<Self>, waker: Waker) -> Option<Ticket> {
        let Some(mut state) = self.try_lock() else {
            let (ticket, is_only) = self.backlog.join(waker);
            // The thread that holds the lock may have looked for producers before this one joined.
            if is_only {
                let post = Post::Offer(self.as_owner());
                self.shared.reactor.post(post, Urgency::Now);
            }
            return Some(ticket);
        };
        self.settle_each_queue(&mut state, SETTLE_IN_POLL);
        let is_first = !self.backlog.has_producers();
        if is_first {
            // Grants matter only to producers that wait.
            state.granted = 0;
        }
        let ticket = if is_first && self.free_capacity(&state) > 0 {
            None
        } else {
            let (ticket, _) = self.backlog.join(waker);
            state.watch_each_queue();
            Some(ticket)
        };
        self.apply(state.unlock());
        ticket
    }

    /// Settles commands that have ended, and offers their places to the producers. Runs on the reactor.
    pub(crate) fn serve_producers(self: &Arc<Self>) {
        self.change(|state| self.settle_each_queue(state, SETTLE_AT_ONCE));
    }

    /// Offers all free places, including those that were granted and not used, to the producers. Called at
    /// each tick of the reactor.
    pub(super) fn renew_offer(&self, state: &mut State) {
        if self.backlog.has_producers() {
            state.granted = 0;
            self.offer_capacity(state);
        }
    }

    /// Grants the free places to the producers.
    pub(super) fn offer_capacity(&self, state: &mut State) {
        let free = self.free_capacity(state);
        let released = self.backlog.release(free, &mut state.actions.wakers);
        state.granted += released;
        if self.backlog.has_producers() {
            state.watch_each_queue();
        }
    }

    /// Returns the number of places that are neither occupied nor granted. If none of the unfinished commands
    /// can end before another call of the application, there is one place more.
    fn free_capacity(&self, state: &State) -> usize {
        let taken = state.live + state.granted;
        match self.options.max_in_flight.saturating_sub(taken) {
            0 => usize::from(state.granted == 0 && state.only_collects()),
            free => free,
        }
    }
}

impl State {
    /// Whether all unfinished commands are launches of fusion scopes that still collect, or unmaps whose guards
    /// exist.
    fn only_collects(&self) -> bool {
        let collecting =
            self.groups.values().filter(|group| matches!(group.stage, Stage::Collecting(_)));
        let unfinished = collecting.map(|group| match group.deferred() {
            Some(launches) => launches.len(),
            None => group.nodes().iter().filter(|&&id| self.dag.command(id).is_some()).count(),
        });
        self.in_flight == 0 && unfinished.sum::<usize>() + self.held == self.live
    }

    /// Requests a callback from each native queue that has commands in flight but would call back for none of
    /// them, so that a free place is noticed before the next tick.
    fn watch_each_queue(&mut self) {
        let Self { dag, native_queues, actions, .. } = self;
        for native_queue in native_queues {
            let Some((id, event)) = native_queue.watch_middle() else { continue };
            let Some(command) = dag.command(id) else { continue };
            let record = command.record.clone();
            actions.callback_requests.push(CallbackRequest { record, event });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    /// Waker that counts its wakes.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    /// Adds producers to the backlog. Returns their tickets and wakers.
    fn join<const N: usize>(backlog: &Backlog) -> [(Ticket, Arc<Count>); N] {
        std::array::from_fn(|_| {
            let count = Arc::<Count>::default();
            (backlog.join(count.clone().into()).0, count)
        })
    }

    fn release(backlog: &Backlog, places: usize) -> usize {
        let mut released = Wakers::new();
        let count = backlog.release(places, &mut released);
        released.into_iter().for_each(Waker::wake);
        count
    }

    fn wakes<const N: usize>(producers: &[(Ticket, Arc<Count>); N]) -> [usize; N] {
        producers.each_ref().map(|(_, count)| count.0.load(SeqCst))
    }

    #[test]
    fn a_place_releases_the_oldest_producer_only() {
        let backlog = Backlog::default();
        let producers = join::<3>(&backlog);
        assert_eq!(release(&backlog, 1), 1);
        assert_eq!(wakes(&producers), [1, 0, 0]);
        assert_eq!(release(&backlog, 5), 2);
        assert_eq!(wakes(&producers), [1, 1, 1]);
        assert!(!backlog.has_producers());
    }

    #[test]
    fn the_place_of_a_released_producer_that_leaves_passes_to_the_next() {
        let backlog = Backlog::default();
        let producers = join::<3>(&backlog);
        release(&backlog, 1);
        backlog.leave(producers[0].0);
        assert_eq!(wakes(&producers), [1, 1, 0]);
    }

    #[test]
    fn a_waiting_producer_that_leaves_releases_no_other() {
        let backlog = Backlog::default();
        let producers = join::<3>(&backlog);
        backlog.leave(producers[0].0);
        assert_eq!(wakes(&producers), [0, 0, 0]);
        release(&backlog, 1);
        assert_eq!(wakes(&producers), [0, 1, 0]);
    }

    #[test]
    fn a_released_producer_keeps_no_waker() {
        let backlog = Backlog::default();
        let [(ticket, count)] = join::<1>(&backlog);
        let other = Arc::<Count>::default();
        assert!(backlog.renew(ticket, &other.clone().into()), "it waits");
        assert_eq!(Arc::strong_count(&count), 1);
        release(&backlog, 1);
        assert!(!backlog.renew(ticket, &count.clone().into()), "it was released");
        assert_eq!((count.0.load(SeqCst), other.0.load(SeqCst)), (0, 1));
        assert_eq!((Arc::strong_count(&count), Arc::strong_count(&other)), (1, 1));
    }
}
