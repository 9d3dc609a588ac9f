//! Counts of requests to a device, and of the objects that it holds.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers of requests to a simulated device, and of objects that it holds.
///
/// # Examples
///
/// ```
/// use kiln::simulated::{Counts, Simulator};
///
/// let counts = Simulator::new().counts();
/// assert_eq!(counts, Counts::default()); // nothing was requested, and nothing leaks
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Builds from OpenCL C or SPIR-V, failed ones included.
    pub builds: u64,
    /// Builds from native binaries, failed ones included.
    pub loads: u64,
    /// Programs linked from objects.
    pub links: u64,
    /// Commands queued.
    pub commands: u64,
    /// Kernel launches among these commands.
    pub launches: u64,
    /// Completion callbacks that were requested, lost ones included.
    pub notifications: u64,
    /// Requests to start queued commands.
    pub flushes: u64,
    /// Allocations that exist at present.
    pub live_allocations: u64,
    /// Size of these allocations in bytes.
    pub live_bytes: u64,
    /// Programs that exist at present. A program is kept by its kernels, and by launches that have not ended.
    pub live_programs: u64,
    /// Native events that exist at present. The device releases an event only just after it has reported its
    /// end.
    pub live_events: u64,
}

/// The counters behind [`Counts`].
#[derive(Default)]
pub(super) struct Counters {
    pub(super) builds: AtomicU64,
    pub(super) loads: AtomicU64,
    pub(super) links: AtomicU64,
    pub(super) launches: AtomicU64,
    pub(super) other_commands: AtomicU64,
    pub(super) notifications: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) live_allocations: AtomicU64,
    pub(super) live_bytes: AtomicU64,
    pub(super) live_programs: AtomicU64,
    pub(super) live_events: AtomicU64,
}

impl Counters {
    pub(super) fn snapshot(&self) -> Counts {
        let launches = self.launches.load(Relaxed);
        Counts {
            builds: self.builds.load(Relaxed),
            loads: self.loads.load(Relaxed),
            links: self.links.load(Relaxed),
            commands: launches + self.other_commands.load(Relaxed),
            launches,
            notifications: self.notifications.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            live_allocations: self.live_allocations.load(Relaxed),
            live_bytes: self.live_bytes.load(Relaxed),
            live_programs: self.live_programs.load(Relaxed),
            live_events: self.live_events.load(Relaxed),
        }
    }
}

/// Increments `counter`.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Decrements `counter`.
pub(super) fn uncount(counter: &AtomicU64) {
    counter.fetch_sub(1, Relaxed);
}
