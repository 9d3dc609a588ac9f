//! State that the handles of a simulator, its device and its native queues share: counts, requested faults,
//! delays, gates and the kernels' behaviours.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::{Duration, Instant};
use std::{mem, thread};

use super::counters::Counters;
use super::fault::Fault;
use super::invocation::Invocation;
use crate::sync::{ignore_poison, lock};

/// Closure that implements a kernel.
pub(super) type Behaviour = Arc<dyn Fn(&mut Invocation<'_>) + Send + Sync>;

pub(super) struct Shared {
    /// Whether native queues have threads. Otherwise commands run where they are enqueued.
    pub(super) threads: bool,
    created: Instant,
    pub(super) counters: Arc<Counters>,
    pub(super) build_faults: Faults,
    pub(super) enqueue_faults: Faults,
    pub(super) build_delay: Delay,
    pub(super) compile_delay: Delay,
    pub(super) command_delay: Delay,
    pub(super) builds: Gate,
    pub(super) compiles: Gate,
    pub(super) commands: Gate,
    pub(super) backlog: Backlog,
    pub(super) staging: Staging,
    notifications_to_lose: AtomicUsize,
    slots: Mutex<HashMap<Box<str>, Arc<Slot>>>,
}

impl Shared {
    pub(super) fn new(threads: bool) -> Self {
        Self {
            threads,
            created: Instant::now(),
            counters: Arc::default(),
            build_faults: Faults::default(),
            enqueue_faults: Faults::default(),
            build_delay: Delay::default(),
            compile_delay: Delay::default(),
            command_delay: Delay::default(),
            builds: Gate::default(),
            compiles: Gate::default(),
            commands: Gate::default(),
            backlog: Backlog::default(),
            staging: Staging::default(),
            notifications_to_lose: AtomicUsize::new(0),
            slots: Mutex::default(),
        }
    }

    /// Returns the time of the device's clock in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the behaviour and the requested faults of kernels of that name.
    pub(super) fn slot(&self, kernel: &str) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(kernel) {
            return slot.clone();
        }
        let slot = Arc::new(Slot::default());
        slots.insert(kernel.into(), slot.clone());
        slot
    }

    /// Returns the names of the kernels that have a behaviour, sorted.
    pub(super) fn registered_kernels(&self) -> Vec<String> {
        let slots = lock(&self.slots);
        let mut names: Vec<_> = slots
            .iter()
            .filter(|(_, slot)| slot.behaviour().is_some())
            .map(|(name, _)| name.to_string())
            .collect();
        names.sort();
        names
    }

    pub(super) fn lose_notifications(&self, n: usize) {
        self.notifications_to_lose.fetch_add(n, Relaxed);
    }

    /// Returns whether the notification that was just requested is to be lost.
    pub(super) fn loses_notification(&self) -> bool {
        self.notifications_to_lose
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
            .is_ok()
    }
}

/// Behaviour, limit and requested faults of all kernels of a name, set before or after programs with such a kernel are
/// built.
#[derive(Default)]
pub(super) struct Slot {
    /// Whether there is a behaviour. Read without a lock, for the paths that must be fast.
    registered: AtomicBool,
    behaviour: RwLock<Option<Behaviour>>,
    /// Maximum number of work-items in a work-group; zero if only the device limits it.
    max_work_group_size: AtomicUsize,
    pub(super) faults: Faults,
}

impl Slot {
    pub(super) fn limit_work_groups(&self, work_items: usize) {
        self.max_work_group_size.store(work_items.max(1), SeqCst);
    }

    /// Returns the maximum number of work-items in a work-group, at most `of_device`.
    pub(super) fn max_work_group_size(&self, of_device: usize) -> usize {
        match self.max_work_group_size.load(SeqCst) {
            0 => of_device,
            own => own.min(of_device),
        }
    }

    pub(super) fn set_behaviour(&self, behaviour: Behaviour) {
        let mut slot = ignore_poison(self.behaviour.write());
        let replaced = slot.replace(behaviour);
        self.registered.store(true, SeqCst);
        // The old closure is dropped outside the lock, because the values that it owns may use the simulator.
        drop(slot);
        drop(replaced);
    }

    pub(super) fn behaviour(&self) -> Option<Behaviour> {
        if !self.registered.load(SeqCst) {
            return None;
        }
        ignore_poison(self.behaviour.read()).clone()
    }
}

/// Requested faults, first in, first out.
#[derive(Default)]
pub(super) struct Faults {
    /// Whether there are any faults. Read without a lock, for the paths that must be fast.
    armed: AtomicBool,
    /// Numbers of calls, and the fault of each of them; `None` for calls that succeed.
    requests: Mutex<VecDeque<(usize, Option<Fault>)>>,
}

impl Faults {
    pub(super) fn request(&self, n: usize, fault: Fault) {
        self.request_after(0, n, fault);
    }

    /// Requests faults of the `n` calls behind the next `after` calls.
    pub(super) fn request_after(&self, after: usize, n: usize, fault: Fault) {
        if n > 0 {
            let mut requests = lock(&self.requests);
            if after > 0 {
                requests.push_back((after, None));
            }
            requests.push_back((n, Some(fault)));
            self.armed.store(true, SeqCst);
        }
    }

    /// Takes the next requested fault, if there is one.
    pub(super) fn take(&self) -> Option<Fault> {
        if !self.armed.load(SeqCst) {
            return None;
        }
        let mut requests = lock(&self.requests);
        let (left, fault) = requests.front_mut()?;
        let fault = *fault;
        *left -= 1;
        if *left == 0 {
            requests.pop_front();
            self.armed.store(!requests.is_empty(), SeqCst);
        }
        fault
    }
}

/// Delay in nanoseconds, set on request.
#[derive(Default)]
pub(super) struct Delay(AtomicU64);

impl Delay {
    pub(super) fn set(&self, delay: Duration) {
        let nanoseconds = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanoseconds, Relaxed);
    }

    pub(super) fn spend(&self) {
        match self.0.load(Relaxed) {
            0 => {}
            nanoseconds => thread::sleep(Duration::from_nanos(nanoseconds)),
        }
    }
}

/// The driver's own memory, for the bytes of pending transfers.
pub(super) struct Staging {
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl Default for Staging {
    fn default() -> Self {
        Self { limit: AtomicUsize::new(usize::MAX), used: AtomicUsize::new(0) }
    }
}

impl Staging {
    pub(super) fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, SeqCst);
    }

    /// Takes `bytes`, and returns whether there was room for them. Takes them in both cases.
    pub(super) fn take(&self, bytes: usize) -> bool {
        self.used.fetch_add(bytes, SeqCst) + bytes <= self.limit.load(SeqCst)
    }

    pub(super) fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, SeqCst);
    }
}

/// Gate that no thread passes while there are closers.
#[derive(Default)]
pub(super) struct Gate {
    /// Whether `closers` is not zero. Read without a lock, for the paths that must be fast.
    closed: AtomicBool,
    closers: Mutex<usize>,
    opened: Condvar,
}

impl Gate {
    pub(super) fn close(&self) {
        let mut closers = lock(&self.closers);
        *closers += 1;
        self.closed.store(true, SeqCst);
    }

    pub(super) fn open(&self) {
        let mut closers = lock(&self.closers);
        *closers -= 1;
        if *closers == 0 {
            self.closed.store(false, SeqCst);
            self.opened.notify_all();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Blocks until the gate is open.
    pub(super) fn pass(&self) {
        if self.is_closed() {
            let closers = lock(&self.closers);
            let open = self.opened.wait_while(closers, |closers| *closers > 0);
            drop(ignore_poison(open));
        }
    }
}

/// Held-back commands of an immediate device, from all its native queues in the order in which they were
/// enqueued. A command therefore runs after those that it waits for.
#[derive(Default)]
pub(super) struct Backlog {
    /// Whether commands are held back or still run, so that later ones must queue behind them.
    busy: AtomicBool,
    queue: Mutex<Queue>,
}

/// Call that runs a held-back command.
type HeldBack = Box<dyn FnOnce(&Shared) + Send>;

#[derive(Default)]
struct Queue {
    /// Calls that run one command each.
    commands: VecDeque<HeldBack>,
    /// Whether a thread runs the commands.
    running: bool,
}

impl Backlog {
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(SeqCst)
    }

    pub(super) fn push(&self, command: HeldBack) {
        let mut queue = lock(&self.queue);
        self.busy.store(true, SeqCst);
        queue.commands.push_back(command);
    }

    /// Runs the held-back commands, unless the device is paused or another thread runs them.
    ///
    /// Called after a command is pushed, and after the device is resumed. The later of the two calls sees the
    /// effect of the other.
    pub(super) fn run(&self, shared: &Shared) {
        let mut queue = lock(&self.queue);
        if mem::replace(&mut queue.running, true) {
            return;
        }
        while !shared.commands.is_closed() {
            let Some(command) = queue.commands.pop_front() else {
                break;
            };
            drop(queue);
            command(shared);
            queue = lock(&self.queue);
        }
        queue.running = false;
        self.busy.store(!queue.commands.is_empty(), SeqCst);
    }
}
