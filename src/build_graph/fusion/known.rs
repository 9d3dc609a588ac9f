//! Results of fusing plans, and the cache of the known results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use super::query::{self, Query};
use super::timing::Timing;
use super::trial::{Choice, Run, Trials};
use crate::build_graph::kernel::Kernel;
use crate::compiler::fusion::{FusionReport, Memory, Place};
use crate::compiler::nd_range::NdRange;
use crate::sync::lock;

/// Result of fusing a plan.
pub(crate) struct Fusion {
    /// Scalars that must have these values for the result to hold.
    pub(super) constants: BTreeMap<Place, Vec<u8>>,
    /// Groups of scalars that must have equal values.
    pub(super) equal: BTreeSet<BTreeSet<Place>>,
    /// Pairs of scalars that must have different values.
    pub(super) unequal: BTreeSet<[Place; 2]>,
    pub(crate) report: FusionReport,
    /// Fused kernel, if there is one; otherwise `report` states the reason.
    pub(crate) fused: Option<FusedKernel>,
    pub(super) trials: Trials,
    /// Location where timings are stored; `None` if there is no fused kernel.
    pub(super) timing: Option<Arc<Timing>>,
}

/// A kernel that does the work of several launches.
pub(crate) struct FusedKernel {
    pub(crate) kernel: Kernel,
    pub(crate) range: NdRange,
    /// Place of the plan's argument that is passed for each parameter.
    pub(crate) parameters: Vec<Place>,
    /// Memories that the launches access, but the fused kernel does not.
    pub(crate) internalized: Vec<Memory>,
}

/// Results for launches that differ only in the values of scalars.
type Variants = Arc<Mutex<Vec<Arc<Fusion>>>>;

/// Cache of the plans whose result is known.
pub(crate) struct Fusions(Cache<query::Key, Variants, foldhash::fast::RandomState>);

/// Maximum number of plans kept. The least recently used are evicted.
const MAX_PLANS: u64 = 1024;

/// Maximum number of results kept for each plan, for different values of its scalars. The oldest is dropped
/// first.
const MAX_VARIANTS: usize = 16;

impl Fusions {
    pub(crate) fn new() -> Self {
        Self(
            Cache::builder()
                .eviction_policy(EvictionPolicy::lru())
                .max_capacity(MAX_PLANS)
                .build_with_hasher(foldhash::fast::RandomState::default()),
        )
    }

    /// Drops all results, and with them their programs.
    pub(in crate::build_graph) fn clear(&self) {
        self.0.invalidate_all();
        self.0.run_pending_tasks();
    }

    /// Returns the result, if it is known.
    pub(super) fn get(&self, query: &Query) -> Option<Arc<Fusion>> {
        let variants = self.0.get(&query.key)?;
        let variants = lock(&variants);
        variants.iter().find(|fusion| fusion.holds_for(query)).cloned()
    }

    /// Keeps a result and returns it. If another thread has kept one that holds for the query, returns that
    /// instead.
    pub(super) fn keep(&self, query: &Query, fusion: Fusion) -> Arc<Fusion> {
        let variants = self.0.get_with(query.key.clone(), Variants::default);
        let mut variants = lock(&variants);
        if let Some(known) = variants.iter().find(|fusion| fusion.holds_for(query)) {
            return Arc::clone(known);
        }
        if variants.len() == MAX_VARIANTS {
            variants.remove(0);
        }
        let fusion = Arc::new(fusion);
        variants.push(Arc::clone(&fusion));
        fusion
    }
}

impl Fusion {
    /// Decides how to run the launches this time: in the faster way, or in a way whose time is still to be
    /// measured.
    pub(crate) fn choose(&self) -> Choice {
        self.trials.choose()
    }

    /// Records the duration of a run for which [`choose`](Self::choose) returned [`Choice::Time`].
    pub(crate) fn note(&self, run: Run, took: Duration) {
        if let Some(times) = self.trials.note(run, took) {
            tracing::debug!(kernel = self.report.kernel(), ?times, "timed");
            if let Some(timing) = self.timing.clone() {
                timing.save(times);
            }
        }
    }

    /// Cancels a trial of the fused kernel that was chosen but did not run.
    pub(crate) fn give_back(&self) {
        self.trials.give_back();
    }

    /// Whether the result may not hold for other values of the launches' scalars.
    pub(crate) fn depends_on_values(&self) -> bool {
        !(self.constants.is_empty() && self.equal.is_empty() && self.unequal.is_empty())
    }

    /// Whether the result holds for the scalar values of a query.
    fn holds_for(&self, query: &Query) -> bool {
        let is_equal = |equal: &BTreeSet<Place>| {
            let values = equal.iter().map(|&place| query.value(place));
            values.clone().zip(values.skip(1)).all(|(a, b)| a == b)
        };
        (self.constants.iter()).all(|(&place, known)| query.value(place) == Some(known))
            && self.equal.iter().all(is_equal)
            && self.unequal.iter().all(|&[one, other]| query.value(one) != query.value(other))
    }
}
