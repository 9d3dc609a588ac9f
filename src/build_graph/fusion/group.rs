//! Groups of launches that run together: the ways to run each, their trials, and the ways that are built while
//! the application runs.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::known::{Fusion, Policy, SelectedWay};
use super::material::Material;
use super::timing::{Times, Timing};
use super::trial::{Choice, ONE_BY_ONE, Progress, Trials};
use super::values::Values;
use super::way::{Step, Way};
use crate::build_graph::graph::BuildGraph;
use crate::compiler::fusion::{FusionForm, Group, Launches, Part, PartReport, WayReport};
use crate::error::Result;
use crate::sync::lock;

/// Launches that run together.
pub(crate) struct LaunchGroup {
    /// Positions of the launches in the scope, in order.
    pub(crate) slots: Vec<usize>,
    pub(super) trials: Trials,
    /// Ways by the index that they have in the trials, as far as they are built.
    ways: Mutex<Vec<Option<Arc<Way>>>>,
    /// Location where times are stored; `None` if they are not stored.
    timing: Option<Arc<Timing>>,
    /// Input for building further ways, until the trials have ended.
    material: Mutex<Option<Arc<Material>>>,
    /// Kernels that are still to be compiled.
    further: Mutex<Vec<Further>>,
    graph: Weak<BuildGraph>,
}

/// Kernel that is still to be compiled, as a way of its own.
struct Further {
    /// Index of the way in the trials.
    way: usize,
    group: Group,
    form: FusionForm,
}

impl LaunchGroup {
    /// Creates a group whose launches run one by one.
    pub(super) fn new(graph: &Arc<BuildGraph>, slots: Vec<usize>) -> Self {
        let one_by_one = Arc::new(Way::one_by_one(&slots));
        Self {
            slots,
            trials: Trials::new(),
            ways: Mutex::new(vec![Some(one_by_one)]),
            timing: None,
            material: Mutex::default(),
            further: Mutex::default(),
            graph: Arc::downgrade(graph),
        }
    }

    /// Returns the way to run the group this time.
    pub(super) fn select(&self, policy: Policy) -> SelectedWay {
        let choice = match policy {
            Policy::Fastest => self.trials.choose(),
            Policy::Kernels => Self::untimed(self.trials.best_kernel(|_| true)),
            Policy::OneKernel => Self::untimed(self.best_single_kernel()),
        };
        if let Some(way) = self.way(choice.way) {
            return SelectedWay { choice, way };
        }
        let way = Arc::new(Way::one_by_one(&self.slots));
        SelectedWay { choice: Self::untimed(None), way }
    }

    fn untimed(way: Option<usize>) -> Choice {
        Choice { way: way.unwrap_or(ONE_BY_ONE), is_timed: false }
    }

    /// Whether a kernel is built that does all the work.
    pub(super) fn has_one_kernel(&self) -> bool {
        self.best_single_kernel().is_some()
    }

    /// Returns the index of the best kernel that does all the work.
    fn best_single_kernel(&self) -> Option<usize> {
        let ways = lock(&self.ways);
        let is_single =
            |way: usize| matches!(ways.get(way), Some(Some(way)) if way.is_one_kernel());
        self.trials.best_kernel(is_single)
    }

    fn way(&self, index: usize) -> Option<Arc<Way>> {
        lock(&self.ways).get(index)?.clone()
    }

    fn set_way(&self, index: usize, way: Way) {
        self.set_shared_way(index, Arc::new(way));
    }

    /// Sets the way with this index, which is built.
    fn set_shared_way(&self, index: usize, way: Arc<Way>) {
        let mut ways = lock(&self.ways);
        if ways.len() <= index {
            ways.resize(index + 1, None);
        }
        ways[index] = Some(way);
        drop(ways);
        self.trials.set_ready(index);
    }

    /// Adds the kernel that does all the work from another result for the same launches.
    pub(super) fn adopt(&self, other: &Self) {
        if let Some(way) = other.best_single_kernel().and_then(|way| other.way(way)) {
            let index = self.trials.add();
            self.set_shared_way(index, way);
        }
    }

    /// Returns the shortest times of the launches one by one and of the other ways.
    pub(crate) fn times(&self) -> (Option<Duration>, Option<Duration>) {
        let times = self.trials.times();
        let kernels = times.iter().skip(1).flatten().min().copied();
        (times.first().copied().flatten(), kernels)
    }

    /// Reports the ways and the times measured so far.
    pub(super) fn report(&self) -> PartReport {
        let (times, chosen) = (self.trials.times(), self.trials.fastest());
        let ways = lock(&self.ways);
        let ways = ways.iter().enumerate().filter_map(|(at, way)| {
            Some(WayReport {
                steps: way.as_ref()?.steps.iter().map(Step::report).collect(),
                time: times.get(at).copied().flatten(),
                is_chosen: chosen == Some(at),
            })
        });
        PartReport { launches: self.slots.clone(), ways: ways.collect() }
    }

    /// Records the duration of a timed run. If all kernels turn out to be slower than the launches one by
    /// one, tries two parts.
    pub(super) fn note(fusion: &Arc<Fusion>, group: usize, way: usize, took: Duration) {
        let own = &fusion.groups[group];
        match own.trials.note(way, took) {
            Progress::Undecided => {}
            Progress::Decided => own.finish(),
            Progress::Lost(split) => own.try_split(fusion, group, split),
        }
    }

    /// Records that a way cannot be built.
    fn drop_out(&self, way: usize) {
        if self.trials.drop_out(way) == Progress::Decided {
            self.finish();
        }
    }

    /// Stores the times, because the trials have ended.
    fn finish(&self) {
        *lock(&self.material) = None;
        let times = self.trials.times();
        let ways = lock(&self.ways);
        let described = ways
            .iter()
            .zip(times)
            .filter_map(|(way, time)| Some((way.as_ref()?.description(), time?)));
        let times: Vec<_> = described.collect();
        drop(ways);
        tracing::debug!(launches = ?self.slots, ?times, "the trials have ended");
        if let Some(timing) = self.timing.clone() {
            timing.save(times);
        }
    }

    /// Builds the best way to run the group in two parts, in the background, as the way with index `split`.
    fn try_split(&self, fusion: &Arc<Fusion>, group: usize, split: usize) {
        let material = lock(&self.material).clone();
        let (Some(graph), Some(material)) = (self.graph.upgrade(), material) else {
            return self.drop_out(split);
        };
        if self.slots.len() < FEWEST_TO_SPLIT {
            return self.drop_out(split);
        }
        let (executor, fusion) = (Arc::clone(graph.builds()), Arc::clone(fusion));
        let slots = self.slots.clone();
        let build = async move {
            let find = move |launches: &Launches<'_>| launches.split(&slots).map(Vec::from);
            let parts = material.find_parts(&graph, &fusion.values, find).await;
            fusion.groups[group].add(split, &graph, &material, parts).await;
        };
        if let Err(error) = executor.spawn(build) {
            tracing::debug!(%error, "a way to run launches is not tried");
            self.drop_out(split);
        }
    }

    /// Builds the kernels of the way with this index. Without parts, the way drops out.
    async fn add(
        &self,
        index: usize,
        graph: &Arc<BuildGraph>,
        material: &Material,
        parts: Option<Vec<Part>>,
    ) {
        let Some(parts) = parts else { return self.drop_out(index) };
        match graph.build_parts(material, parts).await {
            Ok(way) => self.set_way(index, way),
            Err(error) => {
                tracing::debug!(%error, "a way to run launches could not be built");
                self.drop_out(index);
            }
        }
    }
}

/// Smallest number of launches that can be split in two parts of which one is a kernel of several launches.
const FEWEST_TO_SPLIT: usize = 3;

impl BuildGraph {
    /// Creates the group of a part, with the kernel that is expected to be the best or, if the times of the
    /// ways are known, with the fastest way. The kernels in `further` are [tried](Self::try_further) later.
    pub(super) async fn launch_group(
        self: &Arc<Self>,
        material: &Arc<Material>,
        values: &Values,
        part: Part,
        further: Vec<(Group, FusionForm)>,
    ) -> Result<LaunchGroup> {
        let Part { slots, candidates } = part;
        let mut group = LaunchGroup::new(self, slots);
        let Some(first) = candidates.into_iter().next() else { return Ok(group) };
        if material.is_tried {
            let timing = Arc::new(material.timing(self, &group.slots, &first)?);
            group.timing = Some(Arc::clone(&timing));
            if let Some(times) = timing.load().await
                && self.restore(material, values, &group, times).await
            {
                return Ok(group);
            }
        }
        let way = group.trials.add();
        let kernel = self.build_candidate(material, first).await?;
        group.set_way(way, Way { steps: vec![Step::Kernel(Box::new(kernel))] });
        if material.is_tried {
            *lock(&group.material) = Some(Arc::clone(material));
            let further = further.into_iter().map(|(kernels, form)| Further {
                way: group.trials.add(),
                group: kernels,
                form,
            });
            let further = further.collect();
            *lock(&group.further) = further;
        }
        Ok(group)
    }

    /// Sets the stored times of ways, and builds the kernels of the fastest. Returns `false` if they cannot be
    /// built or used.
    async fn restore(
        self: &Arc<Self>,
        material: &Arc<Material>,
        values: &Values,
        group: &LaunchGroup,
        times: Times,
    ) -> bool {
        let one_by_one = Way::one_by_one(&group.slots).description();
        let Some((fastest, _)) = times.iter().min_by_key(|(_, time)| *time) else { return false };
        let mut built = None;
        if *fastest != one_by_one {
            let (slots, fastest) = (group.slots.clone(), fastest.clone());
            let find = move |launches: &Launches<'_>| Material::rebuild(launches, &slots, &fastest);
            let parts = material.find_parts(self, values, find).await;
            let Some(parts) = parts else { return false };
            let Ok(way) = self.build_parts(material, parts).await else { return false };
            built = Some(way);
        }
        let fastest = fastest.clone();
        let mut known = Vec::new();
        for (way, time) in times {
            let index = if way == one_by_one { ONE_BY_ONE } else { group.trials.add() };
            if way == fastest
                && let Some(built) = built.take()
            {
                group.set_way(index, built);
            }
            known.push((index, time));
        }
        group.trials.set_known(&known);
        true
    }

    /// Compiles and builds the further kernels of all groups, in the background.
    pub(super) fn try_further(self: &Arc<Self>, material: &Arc<Material>, fusion: &Arc<Fusion>) {
        for at in 0..fusion.groups.len() {
            for kernel in std::mem::take(&mut *lock(&fusion.groups[at].further)) {
                let Further { way, group, form } = kernel;
                let (graph, material) = (Arc::clone(self), Arc::clone(material));
                let background = Arc::clone(fusion);
                let build = async move {
                    let find = move |launches: &Launches<'_>| {
                        let candidate = launches.worthwhile(&group, form)?;
                        let slots = candidate.group.slots.clone();
                        Some(vec![Part { slots, candidates: vec![candidate] }])
                    };
                    let parts = material.find_parts(&graph, &background.values, find).await;
                    background.groups[at].add(way, &graph, &material, parts).await;
                };
                if let Err(error) = self.builds().spawn(build) {
                    tracing::debug!(%error, "a way to run launches is not tried");
                    fusion.groups[at].drop_out(way);
                }
            }
        }
    }
}
