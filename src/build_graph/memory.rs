//! Outcomes that a graph keeps in memory, within a limit.
//!
//! A program's weight is the size of its binary and what its driver takes [besides](super::footprint). The least
//! recently used programs are evicted first. Those that somebody holds are [found again](super::in_use), but their memory
//! is beyond the limit; if they alone exceed it, this is reported once.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use moka::notification::RemovalCause;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use super::built::Built;
use super::in_use::InUse;
use super::outcome::Outcome;
use crate::counters::{Counters, Stats};
use crate::digest::BuildKey;
use crate::process::warning;
use crate::sync::lock;

/// Identity of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BuildId {
    /// The device's position in the graph. Devices that are alike, such as two cards of one model, share keys
    /// but not the programs in their memory.
    pub(super) device: usize,
    pub(super) key: BuildKey,
    /// Whether the program is built on the threads for untrusted modules and, if a driver compiles it, in a
    /// child process.
    pub(super) is_untrusted: bool,
}

/// Identity of a kept outcome: the device's position, the key and the kind. All requests share one program;
/// failures are separate for trusted and untrusted builds.
type KeptId = (usize, BuildKey, KeptKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum KeptKind {
    Program,
    Failure,
    /// Failure of a compiler in a child process.
    ChildFailure,
}

impl BuildId {
    fn program(self) -> KeptId {
        (self.device, self.key, KeptKind::Program)
    }

    fn failure(self) -> KeptId {
        let kind = if self.is_untrusted { KeptKind::ChildFailure } else { KeptKind::Failure };
        (self.device, self.key, kind)
    }
}

/// Weight of a kept failure in bytes, not counting its log.
const FAILURE_WEIGHT: usize = 256;

/// A kept outcome until it is removed from memory.
///
/// moka frees a removed value only when no thread of the process can still read it, which other uses of moka may delay
/// at will. The outcome is therefore taken out of the value: it is freed at once, and it does not seem to be in use.
struct Kept {
    outcome: Mutex<Option<Outcome>>,
    weight: u32,
}

impl Kept {
    fn new(outcome: Outcome) -> Arc<Self> {
        let weight = weight(&outcome);
        Arc::new(Self { outcome: Mutex::new(Some(outcome)), weight })
    }

    /// Returns the outcome, or `None` if it has just been removed.
    fn get(&self) -> Option<Outcome> {
        lock(&self.outcome).clone()
    }

    /// Returns the program, or `None` if the build failed or the program has just been removed.
    fn program(&self) -> Option<Arc<Built>> {
        self.get()?.ok()
    }

    fn take(&self) -> Option<Outcome> {
        lock(&self.outcome).take()
    }
}

/// Outcomes of builds in memory.
pub(super) struct Memory {
    /// Maximum weight of the kept outcomes, in bytes. With a limit of zero nothing is kept.
    limit: u64,
    kept: Cache<KeptId, Arc<Kept>, foldhash::fast::RandomState>,
    /// Programs that were evicted although they are in use.
    in_use: Arc<InUse<KeptId>>,
    counters: Arc<Counters>,
    /// Whether it was reported that the limit cannot be kept.
    is_reported: AtomicBool,
}

impl Memory {
    pub(super) fn new(limit: u64, counters: Arc<Counters>) -> Self {
        let in_use = Arc::new(InUse::new());
        let (evicted, evictions) = (Arc::clone(&in_use), Arc::clone(&counters));
        let kept = Cache::builder()
            // The default policy may reject a new entry.
            .eviction_policy(EvictionPolicy::lru())
            .max_capacity(limit)
            .weigher(|_, kept: &Arc<Kept>| kept.weight)
            .eviction_listener(move |id, removed: Arc<Kept>, cause| {
                let Some(Ok(built)) = removed.take() else { return };
                if cause != RemovalCause::Replaced {
                    evictions.memory.evictions.add_one();
                }
                if cause == RemovalCause::Size {
                    evicted.add(*id, &built);
                }
            })
            .build_with_hasher(foldhash::fast::RandomState::default());
        Self { limit, kept, in_use, counters, is_reported: AtomicBool::new(false) }
    }

    /// Returns the outcome of a node that is kept, or that was evicted but is in use.
    pub(super) fn get(&self, node: BuildId) -> Option<Outcome> {
        let kept = self.look_up(&node.program()).or_else(|| self.look_up(&node.failure()));
        kept.or_else(|| {
            let outcome = Ok(self.in_use.find(&node.program())?);
            if self.has_room(&outcome) {
                self.keep(node, outcome.clone());
            }
            Some(outcome)
        })
    }

    /// Returns a kept outcome, which counts as a use.
    fn look_up(&self, id: &KeptId) -> Option<Outcome> {
        loop {
            // An outcome is taken only after its value was replaced or removed: then the next value is looked at.
            if let Some(outcome) = self.kept.get(id)?.get() {
                return Some(outcome);
            }
        }
    }

    pub(super) fn contains(&self, node: BuildId) -> bool {
        self.kept.contains_key(&node.program()) || self.kept.contains_key(&node.failure())
    }

    /// Returns a kept program of which a condition holds. `holds` is given the position of its device, too.
    pub(super) fn find(&self, holds: impl Fn(usize, &Built) -> bool) -> Option<Outcome> {
        let (id, _) = self
            .kept
            .iter()
            .find(|(id, kept)| kept.program().is_some_and(|built| holds(id.0, &built)))?;
        // Looked up with `get` instead of taken from the iterator, so that it counts as a use.
        self.look_up(&id)
    }

    /// Sets the fields of `stats` that describe the current contents of memory.
    pub(super) fn fill_stats(&self, stats: &mut Stats) {
        for built in self.kept.iter().filter_map(|(_, kept)| kept.program()) {
            stats.memory.programs += u64::from(built.spirv().is_none());
            stats.memory.bytes += built.binary_bytes() as u64;
            stats.memory.bytes_estimated += built.weight();
        }
    }

    /// Evicts the kept programs of which a condition holds and that are not in use. Returns their number.
    pub(super) fn drop_idle(&self, is_selected: impl Fn(&Built) -> bool) -> usize {
        let mut dropped = 0;
        for (id, kept) in &self.kept {
            if kept.program().is_some_and(|built| !is_in_use(&built) && is_selected(&built)) {
                self.kept.invalidate(&*id);
                dropped += 1;
            }
        }
        dropped
    }

    /// Keeps an outcome, replacing an earlier one.
    pub(super) fn keep(&self, node: BuildId, outcome: Outcome) {
        // The cache would free a rejected entry only later. With a limit of zero, that is too late.
        if self.limit == 0 {
            return;
        }
        let id = if outcome.is_ok() { node.program() } else { node.failure() };
        if self.has_room(&outcome) {
            self.kept.insert(id, Kept::new(outcome));
        } else {
            self.reject_too_large(id, &outcome);
        }
        // Enforces the limit now instead of at some later access.
        self.kept.run_pending_tasks();
        self.check_programs_in_use();
    }

    /// Returns whether an outcome is not larger than the limit.
    fn has_room(&self, outcome: &Outcome) -> bool {
        u64::from(weight(outcome)) <= self.limit
    }

    /// Keeps an outcome that is larger than the limit out of memory. If it were inserted in place of an earlier
    /// entry, moka would evict all other entries to make room.
    fn reject_too_large(&self, id: KeptId, outcome: &Outcome) {
        let (key, bytes, limit) = (id.1, weight(outcome), self.limit);
        tracing::debug!(%key, bytes, limit, "a program is larger than the memory limit");
        if let Ok(built) = outcome {
            self.in_use.add(id, built);
            self.report_limit_below_any_program(built);
        }
        if self.kept.contains_key(&id) {
            // The cache's eviction listener counts this eviction.
            self.kept.invalidate(&id);
        } else if outcome.is_ok() {
            self.counters.memory.evictions.add_one();
        }
    }

    /// Updates the weight of a program whose size was not known when it was kept.
    pub(super) fn reweigh(&self, node: BuildId, built: &Arc<Built>, bytes: usize) {
        if built.binary_bytes() == bytes {
            return;
        }
        built.set_binary_bytes(bytes);
        // A program that is evicted between this check and the insertion is kept again, as if it had just been
        // used.
        if self.kept.contains_key(&node.program()) {
            self.keep(node, Ok(Arc::clone(built)));
        }
    }

    /// Reports, once, that the programs in use exceed the limit.
    fn check_programs_in_use(&self) {
        if self.is_reported.load(Relaxed) {
            return;
        }
        let evicted = self.in_use.weight(|id| !self.kept.contains_key(id));
        if evicted == 0 {
            return;
        }
        let kept = self.kept.iter().filter_map(|(_, kept)| kept.program());
        let kept: u64 = kept.filter(is_in_use).map(|built| built.weight()).sum();
        let bytes = evicted + kept;
        if bytes > self.limit {
            self.report(&format!(
                "the programs in use take about {}, more than the memory limit of {}; drop programs and kernels that \
                 are not needed, or raise the limit with RuntimeBuilder::memory_limit",
                mebibytes(bytes),
                mebibytes(self.limit)
            ));
        }
    }

    /// Reports, once, that no program of a driver is kept, because the limit is lower than what the driver takes for
    /// each.
    fn report_limit_below_any_program(&self, built: &Built) {
        let least = built.weight() - built.binary_bytes() as u64;
        if least > self.limit {
            self.report(&format!(
                "no program of {} is kept in memory: its driver takes about {} for each, more than the memory limit \
                 of {}; raise the limit with RuntimeBuilder::memory_limit, or set it to 0 to keep none",
                built.device(),
                mebibytes(least),
                mebibytes(self.limit)
            ));
        }
    }

    fn report(&self, message: &str) {
        if !self.is_reported.swap(true, Relaxed) {
            warning::warn(message);
        }
    }
}

/// Returns whether a program that the cache has just returned is held by others than the cache and the caller.
fn is_in_use(built: &Arc<Built>) -> bool {
    Arc::strong_count(built) > 2
}

/// Returns a number of bytes for a message.
fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Returns the weight of an outcome in bytes, so that the limit is exact. moka's weights have 32 bits: a program larger
/// than 4 GiB, which no device accepts, would count as 4 GiB.
fn weight(outcome: &Outcome) -> u32 {
    let bytes = match outcome {
        Ok(built) => built.weight(),
        Err(error) => (FAILURE_WEIGHT + error.build_log().map_or(0, str::len)) as u64,
    };
    u32::try_from(bytes.max(1)).unwrap_or(u32::MAX)
}
