//! Results of fusing scopes, and the cache of the known results.

use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, Weak};

use kiln_compiler::fusion::{FusionReport, Place};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use smallvec::SmallVec;

use super::group::{LaunchGroup, Policy, SelectedWay};
use super::query::{self, Query};
use super::trial::ONE_BY_ONE;
use super::values::Values;
use crate::sync::lock;

/// Result of fusing the launches of a scope.
pub(crate) struct Fusion {
    /// Conditions on the values of scalars, without which the result does not hold.
    pub(super) values: Values,
    /// Report without the ways to run the groups.
    pub(super) report: FusionReport,
    /// Groups of launches in the order in which they run. Empty if no launches can be fused; otherwise each
    /// launch is in one group.
    pub(crate) groups: Vec<LaunchGroup>,
}

/// Way in which the launches of a scope run this time.
pub(crate) struct Selection(pub(crate) SmallVec<[SelectedWay; 2]>);

/// Results for launches that differ only in the values of scalars.
type Variants = Arc<Mutex<Vec<Arc<Fusion>>>>;

/// Cache of the scopes whose result is known.
pub(super) struct Fusions {
    known: Cache<query::Key, Variants, foldhash::fast::RandomState>,
    /// Results that keep the input for trying their launches as two parts, the latest last.
    with_material: Mutex<VecDeque<Weak<Fusion>>>,
}

/// Maximum number of plans kept. The least recently used are evicted.
const MAX_PLANS: u64 = 1024;

/// Maximum number of results kept for each plan, for different values of its scalars. The oldest is dropped
/// first.
const MAX_VARIANTS: usize = 16;

/// Maximum number of results that keep the input for trying their launches as two parts: the modules of the launches.
/// The oldest lets go of it first; its launches are then not tried as two parts.
const MAX_MATERIALS: usize = 64;

impl Fusions {
    pub(super) fn new() -> Self {
        let known = Cache::builder()
            .eviction_policy(EvictionPolicy::lru())
            .max_capacity(MAX_PLANS)
            // moka frees a removed value only when no thread of the process can still read it.
            .eviction_listener(|_, removed: Variants, _| {
                let results = mem::take(&mut *lock(&removed));
                drop(results);
            })
            .build_with_hasher(foldhash::fast::RandomState::default());
        Self { known, with_material: Mutex::default() }
    }

    /// Drops all results, and with them their programs.
    pub(super) fn clear(&self) {
        for (key, _) in &self.known {
            self.known.invalidate(&*key);
        }
    }

    /// Returns the result, if it is known.
    pub(super) fn get(&self, query: &Query) -> Option<Arc<Fusion>> {
        let variants = self.known.get(&query.key)?;
        let variants = lock(&variants);
        variants.iter().find(|fusion| fusion.values.hold_for(query)).cloned()
    }

    /// Keeps a result and returns it. If another thread has kept one that holds for the query, returns that
    /// instead.
    pub(super) fn keep(&self, query: &Query, fusion: Fusion) -> Arc<Fusion> {
        let variants = self.known.get_with(query.key.clone(), Variants::default);
        let mut variants = lock(&variants);
        if let Some(known) = variants.iter().find(|fusion| fusion.values.hold_for(query)) {
            return Arc::clone(known);
        }
        if variants.len() == MAX_VARIANTS {
            variants.remove(0);
        }
        let fusion = Arc::new(fusion);
        variants.push(Arc::clone(&fusion));
        drop(variants);
        if fusion.groups.iter().any(LaunchGroup::has_material) {
            self.limit_materials(&fusion);
        }
        fusion
    }

    /// Records that a result keeps the input for trying its launches as two parts. If too many do, the oldest lets go
    /// of it.
    fn limit_materials(&self, fusion: &Arc<Fusion>) {
        let mut with_material = lock(&self.with_material);
        with_material.push_back(Arc::downgrade(fusion));
        let is_full = with_material.len() > MAX_MATERIALS;
        let oldest = if is_full { with_material.pop_front() } else { None };
        drop(with_material);
        for group in oldest.and_then(|oldest| oldest.upgrade()).iter().flat_map(|old| &old.groups) {
            group.release_material();
        }
    }
}

impl Fusion {
    /// Creates the result for launches none of which can be fused.
    pub(super) fn refused(values: Values, report: FusionReport) -> Self {
        Self { values, report, groups: Vec::new() }
    }

    /// Decides how to run the launches this time. Returns `None` if there is no kernel to run them.
    pub(crate) fn select(&self, policy: Policy) -> Option<Selection> {
        let groups = self.groups.iter().map(|group| group.select(policy));
        (!self.groups.is_empty()).then(|| Selection(groups.collect()))
    }

    /// Returns the reason why the launches cannot be one kernel.
    pub(crate) fn refusal(&self) -> &str {
        self.report.refusal().unwrap_or("the reason is unknown")
    }

    /// Returns the report with the groups, the ways to run each, and the times measured so far.
    pub(crate) fn report(&self) -> FusionReport {
        self.report.clone().with_parts(self.groups.iter().map(LaunchGroup::report).collect())
    }

    /// Cancels the timed run of a kernel that was selected but did not take place.
    pub(crate) fn give_back(&self, group: usize, way: usize) {
        self.groups[group].trials.give_back(way);
    }

    /// Returns the positions of the launches with a scalar on whose value the result depends, among the scalars of
    /// which `is_open` holds.
    pub(crate) fn launches_depending_on(&self, is_open: impl Fn(Place) -> bool) -> BTreeSet<usize> {
        self.values.launches_with(is_open)
    }

    /// Whether the fastest way to run each group is known.
    pub(crate) fn is_decided(&self) -> bool {
        self.groups.iter().all(|group| group.trials.fastest().is_some())
    }

    /// Whether the result may not hold for other values of the launches' scalars.
    pub(crate) fn depends_on_values(&self) -> bool {
        !self.values.are_none()
    }
}

impl Selection {
    /// Whether a kernel does the work of several launches.
    pub(crate) fn has_kernels(&self) -> bool {
        self.0.iter().any(|selected| selected.way.kernels().next().is_some())
    }

    /// Whether a run of the launches one by one is timed, to compare it with kernels.
    pub(crate) fn times_launches(&self) -> bool {
        let mut choices = self.0.iter().map(|selected| selected.choice);
        choices.any(|choice| choice.is_timed && choice.way == ONE_BY_ONE)
    }
}
