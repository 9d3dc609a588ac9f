//! Fused kernels that are built while the application runs the launches one by one or in other ways, and the end of the
//! trials.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_lock::SemaphoreGuardArc;
use kiln_compiler::fusion::{Launches, Part};

use super::fuser::Fuser;
use super::group::{Further, LaunchGroup};
use super::known::Fusion;
use super::material::Material;
use super::trial::Progress;
use crate::executor::pause;
use crate::sync::lock;

/// Maximum time for which a build in the background lets other builds that wait go first, and the pauses between looks.
const MAX_DEFERENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

impl Fuser {
    /// Waits for the turn to build a fused kernel for which launches do not wait: one at a time on each device, and
    /// after the other builds that wait.
    pub(super) async fn background_turn(&self, device: usize) -> SemaphoreGuardArc {
        let turn = self.background_builds[device].acquire_arc().await;
        let start = Instant::now();
        while self.graph.progress().has_waiting() && start.elapsed() < MAX_DEFERENCE {
            if let Err(error) = pause(LOOK).await {
                tracing::debug!(%error, "a fused kernel is built before other programs");
                break;
            }
        }
        turn
    }

    /// Compiles and builds the further kernels of all groups, in the background.
    pub(super) fn try_further(self: &Arc<Self>, material: &Arc<Material>, fusion: &Arc<Fusion>) {
        for at in 0..fusion.groups.len() {
            for kernel in std::mem::take(&mut *lock(&fusion.groups[at].further)) {
                let Further { way, group, form } = kernel;
                let (fuser, material) = (Arc::clone(self), Arc::clone(material));
                let background = Arc::clone(fusion);
                let build = async move {
                    let find = move |launches: &Launches<'_>| {
                        let candidate = launches.worthwhile(&group, form)?;
                        let slots = candidate.group.slots.clone();
                        Some(vec![Part { slots, candidates: vec![candidate] }])
                    };
                    let parts = fuser.find_parts(&material, &background.values, find).await;
                    fuser.add_way(&background.groups[at], way, &material, parts).await;
                };
                if let Err(error) = self.graph.builds().spawn(build) {
                    tracing::debug!(%error, "a way to run launches is not tried");
                    self.drop_out(&fusion.groups[at], way);
                }
            }
        }
    }

    /// Records the duration of a timed run of a group. If no kernel turns out to be faster than the launches
    /// one by one, tries two parts.
    pub(crate) fn note_run(
        self: &Arc<Self>,
        fusion: &Arc<Fusion>,
        group: usize,
        way: usize,
        took: Option<Duration>,
    ) {
        tracing::debug!(group, way, ?took, "timed");
        match fusion.groups[group].trials.note(way, took) {
            Progress::Undecided => {}
            Progress::Decided => self.finish(&fusion.groups[group]),
            Progress::Lost(split) => self.try_split(fusion, group, split),
        }
    }

    /// Builds the best way to run a group in two parts, in the background, as the way with index `split`.
    fn try_split(self: &Arc<Self>, fusion: &Arc<Fusion>, group: usize, split: usize) {
        let own = &fusion.groups[group];
        let Some(material) = own.material() else { return self.drop_out(own, split) };
        let (fuser, background) = (Arc::clone(self), Arc::clone(fusion));
        let slots = own.slots.clone();
        let build = async move {
            let find = move |launches: &Launches<'_>| launches.split(&slots).map(Vec::from);
            let parts = fuser.find_parts(&material, &background.values, find).await;
            fuser.add_way(&background.groups[group], split, &material, parts).await;
        };
        if let Err(error) = self.graph.builds().spawn(build) {
            tracing::debug!(%error, "a way to run launches is not tried");
            self.drop_out(own, split);
        }
    }

    /// Builds the kernels of the way of a group with this index. Without parts, the way drops out.
    async fn add_way(
        self: &Arc<Self>,
        group: &LaunchGroup,
        index: usize,
        material: &Material,
        parts: Option<Vec<Part>>,
    ) {
        let Some(parts) = parts else { return self.drop_out(group, index) };
        match self.build_parts(material, parts).await {
            Ok(way) => group.set_way(index, way),
            Err(error) => {
                tracing::debug!(%error, "a way to run launches could not be built");
                self.drop_out(group, index);
            }
        }
    }

    /// Records that a way of a group cannot be used.
    pub(crate) fn drop_way(self: &Arc<Self>, fusion: &Fusion, group: usize, way: usize) {
        self.drop_out(&fusion.groups[group], way);
    }

    /// Records that a way of a group cannot be built, or cannot be used.
    fn drop_out(self: &Arc<Self>, group: &LaunchGroup, way: usize) {
        if group.trials.drop_out(way) == Progress::Decided {
            self.finish(group);
        }
    }

    /// Stores the times of a group in the background, because its trials have ended.
    fn finish(self: &Arc<Self>, group: &LaunchGroup) {
        let times = group.end_trials();
        tracing::debug!(launches = ?group.slots, ?times, "the trials have ended");
        let Some(timing) = group.timing.clone().filter(|_| !times.is_empty()) else { return };
        self.graph.record_choice(&timing, &times);
        let Some(pending) = self.graph.disk().map(|disk| disk.begin()) else { return };
        let graph = Arc::clone(&self.graph);
        let save = async move {
            let Some(disk) = graph.disk() else { return };
            timing.save(disk.store(), &times).await;
            disk.store().keep_limits().await;
            drop(pending);
        };
        if let Err(error) = self.graph.builds().spawn(save) {
            tracing::debug!(%error, "the times of fused kernels are not stored");
        }
    }
}
