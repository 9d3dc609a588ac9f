//! The graph's nodes: programs in flight and programs kept, and the rules for both.
//!
//! A node lives in one of two places. While it is built it is a flight, in a map behind a mutex, so
//! that nothing can evict it; its end moves it to a cache, from which a hit takes no lock of ours.
//! A request looks into the cache, then under the mutex among the flights, and then, still under
//! the mutex, into the cache again: a flight's outcome is in the cache before the flight leaves the
//! map, so no request slips between the two and builds a second time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use moka::notification::RemovalCause;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tracing::field::{Empty, display};

use crate::backend::DeviceSlot;
use crate::build::flight::{Flight, Lander, flight};
use crate::build::key::DeviceKey;
use crate::build::pool::{Pool, catch_panic, no_thread};
use crate::build::program::Built;
use crate::build::recipe::Recipe;
use crate::device::Device;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::stats::{Counters, Stats};

/// Names a node: the device's position, since devices that are alike, such as two cards of a kind,
/// share keys but not the programs in their memory; and the key.
type NodeId = (usize, BuildKey);

/// How a build ended.
pub(crate) type Outcome = Result<Arc<Built>>;

/// The pauses before a build that ran out of resources is tried again, after which it is given up.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(50)];

/// What a kept failure weighs beside its log.
const FAILURE_WEIGHT: usize = 256;

/// The answer to a request.
pub(crate) enum Answer {
    /// From memory.
    Kept(Outcome),
    /// It cannot be built, and no driver was asked.
    Refused(Error),
    /// Wait for it.
    Building(Flight),
}

/// All builds of a runtime.
pub(crate) struct BuildGraph {
    devices: Arc<[Arc<DeviceSlot>]>,
    /// One for each device.
    device_keys: Box<[DeviceKey]>,
    pool: Pool,
    kept: Cache<NodeId, Outcome, foldhash::fast::RandomState>,
    flights: Mutex<HashMap<NodeId, Flight>>,
    counters: Arc<Counters>,
}

impl BuildGraph {
    /// A graph that keeps programs in memory up to `memory_limit` bytes of device binaries; with a
    /// limit of zero none, though builds in flight are shared all the same. Reads the environment
    /// variables that change compilers, once.
    pub(crate) fn new(
        devices: Arc<[Arc<DeviceSlot>]>,
        pool: Pool,
        memory_limit: u64,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        let device_keys =
            devices.iter().map(|slot| DeviceKey::new(slot.handle(), std::env::vars_os())).collect();
        let evictions = Arc::clone(&counters);
        let kept = Cache::builder()
            // The default policy may turn a new entry away.
            .eviction_policy(EvictionPolicy::lru())
            .max_capacity(memory_limit)
            .weigher(|_, outcome| weight(outcome))
            .eviction_listener(move |_, outcome: Outcome, cause| {
                if outcome.is_ok() && cause != RemovalCause::Replaced {
                    evictions.evictions.add_one();
                }
            })
            .build_with_hasher(foldhash::fast::RandomState::default());
        Arc::new(Self { devices, device_keys, pool, kept, flights: Mutex::default(), counters })
    }

    /// The program for a recipe: kept, in flight, or from now on in flight. Never blocks on a
    /// driver.
    pub(crate) fn ask(self: &Arc<Self>, recipe: Recipe) -> Answer {
        if let Err(error) = recipe.check(self.device(recipe.device())) {
            return Answer::Refused(self.refuse(error));
        }
        self.counters.builds_requested.add_one();
        let key = recipe.key(&self.device_keys[recipe.device()]);
        let node = (recipe.device(), key);
        let (flight, lander) = loop {
            if let Some(outcome) = self.kept.get(&node) {
                self.counters.memory_hits.add_one();
                return Answer::Kept(outcome);
            }
            let mut flights = self.flights();
            if let Some(flight) = flights.get(&node) {
                self.counters.joined_builds.add_one();
                return Answer::Building(flight.clone());
            }
            // A flight may have ended since the first look. Taking its outcome is left to the next
            // round: a `get` may free programs, which is nothing to do under the mutex.
            if self.kept.contains_key(&node) {
                continue;
            }
            let (flight, lander) = flight();
            flights.insert(node, flight.clone());
            break (flight, lander);
        };

        let job = Job { graph: Arc::clone(self), node, lander: Some(lander) };
        let span = self.span(&recipe, key);
        self.pool.submit(move || span.in_scope(|| job.run(&recipe)));
        Answer::Building(flight)
    }

    /// The threads for calls that block.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Counts a request that cannot be right on any try.
    pub(crate) fn refuse(&self, error: Error) -> Error {
        self.counters.builds_requested.add_one();
        self.counters.failed_builds.add_one();
        error
    }

    /// The device at a position that came from [`position`](Self::position) or the runtime.
    pub(crate) fn device(&self, position: usize) -> &Device {
        self.devices[position].handle()
    }

    /// Where a device stands in the graph.
    pub(crate) fn position(&self, device: &Device) -> Result<usize> {
        let same = |slot: &Arc<DeviceSlot>| Arc::ptr_eq(slot.handle().info(), device.info());
        if self.devices.get(device.index()).is_some_and(same) {
            return Ok(device.index());
        }
        Err(Error::invalid(format!(
            "{device} is a device of another runtime; take one of this runtime's own `devices()`"
        )))
    }

    /// Fills in what tells the present.
    pub(crate) fn tell(&self, stats: &mut Stats) {
        let programs = self.kept.iter().filter_map(|(_, outcome)| outcome.ok());
        (stats.programs_in_memory, stats.bytes_in_memory) = programs
            .fold((0, 0), |(count, bytes), built| (count + 1, bytes + built.weight() as u64));
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<NodeId, Flight>> {
        // Each holder changes the map in one call: a panic leaves nothing half done.
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Made where the build is asked for, so that it stands below the caller's span.
    fn span(&self, recipe: &Recipe, key: BuildKey) -> tracing::Span {
        let image = recipe.image();
        let span = tracing::info_span!(
            "build",
            device = %self.device(recipe.device()).name,
            format = %image.format(),
            image = format_args!("{:.8}", image.digest().to_string()),
            key = format_args!("{key:.8}"),
            outcome = Empty,
            elapsed_ms = Empty,
        );
        span.in_scope(|| {
            tracing::trace!(fields = ?recipe.key_fields(&self.device_keys[recipe.device()]), "not in memory");
        });
        span
    }

    /// Builds, with further tries where the first ran out of resources.
    fn build(&self, recipe: &Recipe, key: BuildKey) -> Outcome {
        for pause in PAUSES {
            match self.try_build(recipe, key) {
                Err(error) if error.kind() == ErrorKind::OutOfResources => {
                    let dropped = self.drop_idle_programs();
                    tracing::debug!(%error, dropped, "out of resources, trying again");
                    self.counters.build_retries.add_one();
                    std::thread::sleep(pause);
                }
                outcome => return outcome,
            }
        }
        self.try_build(recipe, key)
    }

    fn try_build(&self, recipe: &Recipe, key: BuildKey) -> Outcome {
        let slot = &self.devices[recipe.device()];
        let device = slot.open()?;
        self.counters.compiles.add_one();
        let program = recipe.with_source(|source| device.build(source))?;
        Ok(Arc::new(Built::new(program, slot.handle().clone(), recipe.image(), key)))
    }

    /// Drops the kept programs that nobody else holds, to give their memory back to the device.
    fn drop_idle_programs(&self) -> usize {
        let mut dropped = 0;
        for (node, outcome) in &self.kept {
            // One holder is the cache, the other this loop.
            if outcome.is_ok_and(|built| Arc::strong_count(&built) == 2) {
                self.kept.invalidate(&*node);
                dropped += 1;
            }
        }
        self.settle();
        dropped
    }

    /// Makes an outcome known. The cache comes first, the flight goes second, and only then, with
    /// the caller, the waiters hear of it: whoever learns of a failure of circumstance and asks
    /// again gets a new build, and whoever learns of a program finds it.
    fn publish(&self, node: NodeId, outcome: &Outcome) {
        if outcome.as_ref().map_or_else(Error::is_deterministic, |_| true) {
            self.kept.insert(node, outcome.clone());
            self.settle();
        }
        self.flights().remove(&node);
    }

    /// Has the cache hold its limit now, rather than with some later access. The cache frees what
    /// it dropped when its garbage collector has seen a few epochs pass, hence more than one round.
    fn settle(&self) {
        for _ in 0..4 {
            self.kept.run_pending_tasks();
        }
    }

    fn count(&self, outcome: &Outcome) {
        let Err(error) = outcome else { return };
        match error.kind() {
            ErrorKind::Panicked => &self.counters.build_panics,
            _ if error.is_deterministic() => &self.counters.failed_builds,
            _ => &self.counters.abandoned_builds,
        }
        .add_one();
    }
}

/// Bytes, so that the limit is exact. moka's weights have 32 bits; a binary of more than 4 GiB,
/// which no device takes, would count as 4 GiB.
fn weight(outcome: &Outcome) -> u32 {
    let bytes = match outcome {
        Ok(built) => built.weight(),
        Err(error) => FAILURE_WEIGHT + error.build_log().map_or(0, str::len),
    };
    u32::try_from(bytes.max(1)).unwrap_or(u32::MAX)
}

/// The duty to end one flight. Ends it with an error if dropped before.
struct Job {
    graph: Arc<BuildGraph>,
    node: NodeId,
    lander: Option<Lander>,
}

impl Job {
    fn run(mut self, recipe: &Recipe) {
        let start = Instant::now();
        let outcome = catch_panic(|| self.graph.build(recipe, self.node.1));
        let span = tracing::Span::current();
        span.record("elapsed_ms", start.elapsed().as_secs_f64() * 1e3);
        match &outcome {
            Ok(_) => span.record("outcome", "compiled"),
            Err(error) => span.record("outcome", display(error.kind())),
        };
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(lander) = self.lander.take() {
            self.graph.count(&outcome);
            self.graph.publish(self.node, &outcome);
            lander.land(outcome);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end(Err(no_thread()));
    }
}
