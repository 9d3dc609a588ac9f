//! Completion of a fusion scope: decides how its launches run, and runs them.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use kiln_compiler::fusion::Trust;
use smallvec::SmallVec;

use super::mode::FusionMode;
use super::outcome::{CompleteFusion, FusionOutcome, Unfused};
use super::parts::{self, Prepared};
use super::plan::{self, FusionOptions, LaunchSnapshot, MemoryUsage};
use super::recent::{Recent, Recents};
use crate::build_graph::{
    Awaited, FusedKernel, Fuser, Fusion, FusionRequest, ONE_BY_ONE, Overdue, Policy, Query,
    Selection, Step,
};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::accesses::{CombinedAccesses, Repeated};
use crate::queue::command::GroupId;
use crate::queue::handle::Queue;
use crate::queue::launch_work::LaunchWork;
use crate::queue::scheduler::{FusedLaunch, FusionBlocker, Part, Scheduler};
use crate::queue::stopwatch::Stopwatch;
use crate::sync::lock;

pub(super) fn recents(queue: &Queue) -> MutexGuard<'_, Recents> {
    lock(&queue.recents)
}

/// Result of looking a scope's launches up among the recent scopes.
pub(super) enum RecentLookup {
    /// Launches that match a recent scope.
    Known(Arc<Fusion>, Arc<Recent>),
    /// Launches that match no recent scope.
    New(Box<FusionLookup>),
}

/// Source of the facts about launches that the compiler's examination does not contain.
#[derive(Clone, Copy)]
enum LaunchFacts<'a> {
    /// Facts from a recent scope with the same launches.
    Known(&'a Recent),
    /// Snapshot of new launches, which are to be added to the recent scopes.
    New(&'a FusionLookup),
}

/// Snapshot of a scope's launches, from which they are looked up or examined.
pub(crate) struct FusionLookup {
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) usage: MemoryUsage,
    /// `None` if a program is not built yet.
    pub(super) query: Option<Query>,
    pub(super) options: FusionOptions,
    pub(super) trust: Trust,
}

impl FusionLookup {
    /// Creates the lookup of recorded launches. `is_dead` returns whether the contents of an allocation are not read
    /// after them.
    pub(crate) fn of_recorded(
        scheduler: &Arc<Scheduler>,
        launches: &[&LaunchWork],
        is_dead: impl Fn(u64) -> bool,
    ) -> Self {
        let usage = MemoryUsage::of_recorded(launches, is_dead);
        let trust = Trust::ProofOnly;
        let query = usage.query(launches, scheduler.slot().handle().index(), trust);
        Self {
            scheduler: scheduler.clone(),
            usage,
            query,
            options: FusionOptions::default(),
            trust,
        }
    }

    /// Returns the fusion of these launches if it is known already.
    pub(super) fn known(&self) -> Option<Arc<Fusion>> {
        self.scheduler.shared().fuser.known_fusion(self.query.as_ref()?)
    }

    /// Returns the attempt to fuse these launches that scopes no longer wait for, if there is one.
    fn overdue(&self) -> Option<Overdue> {
        let shared = self.scheduler.shared();
        let wait = shared.fusion_wait(self.options.is_required);
        shared.fuser.overdue_fusion(self.query.as_ref()?, wait)
    }

    /// Builds the launches' programs if necessary, and fuses the launches.
    pub(super) async fn fusion(&self, snapshot: &LaunchSnapshot) -> Result<Arc<Fusion>> {
        let request = self.built_request(snapshot).await?;
        let request = FusionRequest { is_awaited: true, ..request };
        self.scheduler.shared().fuser.clone().fuse(request).await
    }

    /// Like [`fusion`](Self::fusion), but waits for the fused kernel no longer than `limit`. If `hurries` is set, this
    /// hardly waits while another kernel is overdue.
    pub(crate) async fn fusion_within(
        &self,
        snapshot: &LaunchSnapshot,
        limit: Duration,
        hurries: bool,
    ) -> Result<Awaited> {
        let request = self.built_request(snapshot).await?;
        self.scheduler.shared().fuser.clone().fuse_within(request, limit, hurries).await
    }

    /// Builds the launches' programs if necessary. The launches need them in any case.
    async fn built_request(&self, snapshot: &LaunchSnapshot) -> Result<FusionRequest> {
        for kernel in snapshot.kernels() {
            kernel.resolve().await;
        }
        self.request(snapshot)
    }

    fn request(&self, snapshot: &LaunchSnapshot) -> Result<FusionRequest> {
        let (launches, handle) = (snapshot.launches(), self.scheduler.slot().handle());
        let shared = self.scheduler.shared();
        let device = handle.index();
        let plan = self.usage.plan(&launches, handle)?;
        let is_required = self.options.is_required;
        // The programs are all built: `plan` fails otherwise.
        let query = self.query.clone();
        let query = query.or_else(|| self.usage.query(&launches, device, self.trust));
        Ok(FusionRequest {
            query: query
                .ok_or_else(|| Error::invalid("the program of a launch is not built yet"))?,
            device,
            kernels: snapshot.kernels().cloned().collect(),
            plan,
            trust: self.trust,
            forced_form: shared.fusion_form,
            is_tried: shared.fusion.is_timed() && shared.fusion_form.is_none() && !is_required,
            needs_one_kernel: is_required,
            is_awaited: is_required || !shared.fusion.is_timed(),
            may_relax: shared.fusion == FusionMode::Relaxed,
        })
    }
}

/// Obligation to run the launches of a scope, fused or not. If it is dropped undecided, they run one by
/// one.
pub(super) struct Completion {
    pub(super) queue: Queue,
    pub(super) group: GroupId,
    pub(super) is_required: bool,
    /// Result for the launches, once it is known.
    pub(super) fusion: Arc<OnceLock<Arc<Fusion>>>,
    pub(super) is_decided: bool,
}

impl Completion {
    /// Decides at once if the fusion is known, and otherwise on Kiln's host thread.
    pub(super) fn decide(self, recent: RecentLookup, count: usize) -> CompleteFusion {
        let shared = self.queue.scheduler.shared();
        let why = match count {
            0 => Some(Unfused::Empty),
            1 => Some(Unfused::Single),
            _ => {
                let is_disabled = shared.fusion == FusionMode::Never && !self.is_required;
                is_disabled.then_some(Unfused::Disabled)
            }
        };
        if let Some(why) = why {
            return CompleteFusion::known(self.unfused(why));
        }
        let lookup = match recent {
            RecentLookup::Known(fusion, recent) => {
                return CompleteFusion::known(self.run(&fusion, LaunchFacts::Known(&recent)));
            }
            RecentLookup::New(lookup) => lookup,
        };
        if let Some(fusion) = lookup.known() {
            return CompleteFusion::known(self.run(&fusion, LaunchFacts::New(&lookup)));
        }
        if let Some(overdue) = lookup.overdue() {
            return CompleteFusion::known(self.unfused_because_overdue(overdue));
        }
        let snapshot = self.queue.scheduler.visit_group(self.group, LaunchSnapshot::of);
        let Some((_, snapshot)) = snapshot.filter(|(_, snapshot)| snapshot.len() == count) else {
            let root = self.queue.scheduler.failure_in_group(self.group);
            return CompleteFusion::known(self.failed(root));
        };
        let (sender, receiver) = oneshot::channel();
        let host = shared.host.clone();
        let spawned = host.spawn(async move {
            // If `fuse` panics, the completion is dropped, and the launches run.
            let fused = AssertUnwindSafe(self.fuse(*lookup, snapshot)).catch_unwind().await;
            if let Ok(outcome) = fused {
                // The receiver may be dropped already.
                let _ = sender.send(outcome);
            }
        });
        match spawned {
            Ok(()) => CompleteFusion::awaited(receiver),
            Err(error) => CompleteFusion::known(Err(
                error.within("fusion failed, and the launches run one by one")
            )),
        }
    }

    /// Fuses the launches, and runs them.
    async fn fuse(self, lookup: FusionLookup, snapshot: LaunchSnapshot) -> Result<FusionOutcome> {
        let wait = self.queue.scheduler.shared().fusion_wait(self.is_required);
        let fusion = lookup.fusion_within(&snapshot, wait, true).await;
        let failure = snapshot.failure().await;
        // The launches may run from here on. The snapshot must not hold handles of their buffers then.
        drop(snapshot);
        if let Some(root) = failure {
            return self.failed(Some(root));
        }
        match fusion {
            Ok(Awaited::Known(fusion)) => self.run(&fusion, LaunchFacts::New(&lookup)),
            Ok(Awaited::Overdue(overdue)) => self.unfused_because_overdue(overdue),
            Err(error) => self.unfused(Unfused::Failed(error)),
        }
    }

    /// Runs the launches: as one kernel if that is required, else in the way that is the fastest or is to be
    /// timed.
    fn run(mut self, fusion: &Arc<Fusion>, facts: LaunchFacts<'_>) -> Result<FusionOutcome> {
        // The result of a scope is set only here, and only once.
        let _ = self.fusion.set(Arc::clone(fusion));
        let policy = match self.queue.scheduler.shared().fusion {
            mode if mode.is_timed() && !self.is_required => Policy::Fastest,
            _ => Policy::Kernels,
        };
        let Some(selection) = fusion.select(policy) else {
            return self.unfused(Unfused::Refused(fusion.refusal().to_owned()));
        };
        if !selection.has_kernels() {
            return self.run_one_by_one(fusion, &selection);
        }
        self.is_decided = true;
        let prepare = |launches: &[&LaunchWork]| self.prepare(launches, fusion, &selection, facts);
        let ran = self.queue.scheduler.run_in_parts(self.group, prepare);
        let blocked = match ran {
            Ok(blocked) => blocked,
            Err(blocker) => {
                give_back(fusion, &selection, |_| true);
                return match blocker {
                    FusionBlocker::Failed(root) => self.failed(Some(root)),
                    blocker => self.unfused(Unfused::Refused(blocker.to_string())),
                };
            }
        };
        let failure = blocked.iter().find_map(|(_, blocker)| match blocker {
            FusionBlocker::Failed(root) => Some(root.clone()),
            _ => None,
        });
        if !blocked.is_empty() {
            let blocks = |step: usize, for_good: bool| {
                let is_unfit = |blocker: &_| matches!(blocker, FusionBlocker::Unfit(_));
                blocked.iter().any(|(at, blocker)| *at == step && is_unfit(blocker) == for_good)
            };
            give_back(fusion, &selection, |step| blocks(step, false));
            // Kernels that do not fit would not fit the next time, either.
            let fuser = &self.queue.scheduler.shared().fuser;
            for (group, way) in timed(&selection, |step| blocks(step, true)) {
                fuser.drop_way(fusion, group, way);
            }
        }
        if failure.is_some() {
            return self.failed(failure);
        }
        match FusionOutcome::of(parts::parts(fusion, &selection, blocked)) {
            Ok(outcome) => {
                self.queue.scheduler.shared().counters.fusion.fused.add_one();
                tracing::debug!(%outcome, "launches are fused");
                Ok(outcome)
            }
            Err(why) => self.unfused(why),
        }
    }

    /// Runs the launches one by one, with the groups timed that are selected to be.
    fn run_one_by_one(
        mut self,
        fusion: &Arc<Fusion>,
        selection: &Selection,
    ) -> Result<FusionOutcome> {
        if selection.times_launches() {
            self.is_decided = true;
            match &*selection.0 {
                [_] => {
                    let stopwatch = self.stopwatch(fusion, selection, 0);
                    self.queue.scheduler.run_separately(self.group, stopwatch);
                }
                _ => {
                    let prepare = |_: &[&LaunchWork]| {
                        let groups = 0..selection.0.len();
                        let parts = groups.flat_map(|group| {
                            let stopwatch = self.stopwatch(fusion, selection, group);
                            let slots = fusion.groups[group].slots.iter();
                            slots.map(move |&slot| Part::of_launch(slot, stopwatch.clone()))
                        });
                        parts.collect()
                    };
                    // Nothing prevents running one by one, unless a launch has failed.
                    let _ = self.queue.scheduler.run_in_parts(self.group, prepare);
                }
            }
        }
        self.unfused(parts::reason_for_launches(fusion, selection))
    }

    /// Prepares the steps of the selected ways. Called under the scheduler's lock. If the launches match no
    /// recent scope, adds them to the recent scopes.
    fn prepare(
        &self,
        launches: &[&LaunchWork],
        fusion: &Arc<Fusion>,
        selection: &Selection,
        facts: LaunchFacts<'_>,
    ) -> Vec<Part> {
        let (mut all, mut learned) = (Vec::new(), Vec::new());
        for (group, selected) in selection.0.iter().enumerate() {
            let stopwatch = self.stopwatch(fusion, selection, group);
            for (at, step) in selected.way.steps.iter().enumerate() {
                let kernel = match step {
                    Step::Launch(slot) => {
                        all.push(Part::of_launch(*slot, stopwatch.clone()));
                        continue;
                    }
                    Step::Kernel(kernel) => kernel,
                };
                let launch = Box::new(plan::fused(launches, kernel));
                let key = [group, selected.choice.way, at];
                let known = match facts {
                    LaunchFacts::Known(recent) => recent.prepared(key),
                    LaunchFacts::New(_) => None,
                };
                let prepared = match known {
                    // The values of scalars may differ, on which a proof may depend.
                    Some(known) => plan::prove(launches, &launch, kernel).map(|()| known),
                    None => self
                        .prepare_kernel(launches, &launch, key, kernel, facts)
                        .inspect(|prepared| learned.push(Prepared::clone(prepared))),
                };
                let fused = prepared.map(|Prepared { lost, accesses, .. }| FusedLaunch {
                    launch,
                    accesses,
                    lost,
                });
                let launches = SmallVec::from_slice(&kernel.slots);
                all.push(Part { launches, fused: Some(fused), stopwatch: stopwatch.clone() });
            }
        }
        match facts {
            LaunchFacts::Known(recent) => recent.add(learned),
            // Launches whose kernels do not fit are examined anew each time.
            LaunchFacts::New(_) if learned.is_empty() => {}
            LaunchFacts::New(FusionLookup { options, trust, usage, .. }) => {
                let mut recents = recents(&self.queue);
                recents.learn(launches, (options, *trust), fusion, (usage.allocations(), learned));
            }
        }
        all
    }

    /// Checks the launch of a fused kernel, and determines its effects on other commands.
    fn prepare_kernel(
        &self,
        launches: &[&LaunchWork],
        launch: &LaunchWork,
        key: [usize; 3],
        kernel: &FusedKernel,
        facts: LaunchFacts<'_>,
    ) -> Result<Prepared> {
        launch.check(self.queue.device()).transpose()?;
        plan::prove(launches, launch, kernel)?;
        let FusedKernel { slots, repeated, internalized, recomputed, .. } = kernel;
        let lost: SmallVec<[u64; 8]> = match facts {
            LaunchFacts::Known(recent) => recent.allocations(internalized).collect(),
            LaunchFacts::New(lookup) => lookup.usage.held(internalized).collect(),
        };
        let results: Vec<u64> = match facts {
            LaunchFacts::Known(recent) => recent.allocations(recomputed).collect(),
            LaunchFacts::New(lookup) => lookup.usage.all(recomputed).collect(),
        };
        let own: Vec<_> = slots.iter().map(|&slot| launches[slot]).collect();
        let repeated: Vec<_> = repeated.iter().map(|&slot| launches[slot]).collect();
        let repeated = Repeated { launches: &repeated, results: &results };
        let accesses = Arc::new(CombinedAccesses::of(&own, repeated, launch, &lost));
        Ok(Prepared { key, lost, accesses })
    }

    /// Runs the launches one by one, because their kernel was not built within the limit.
    fn unfused_because_overdue(self, overdue: Overdue) -> Result<FusionOutcome> {
        let Overdue { kernel, limit, has_waited } = overdue;
        let why = Unfused::Overdue { kernel, limit };
        if has_waited {
            tracing::warn!(%why, "launches are not fused");
        }
        self.unfused(why)
    }

    /// Runs the launches one by one, unless they run already, and returns the reason.
    pub(super) fn unfused(mut self, why: Unfused) -> Result<FusionOutcome> {
        self.run_separately();
        let counters = &self.queue.scheduler.shared().counters;
        let counter = match &why {
            // Canceled scopes are already counted.
            Unfused::Empty | Unfused::Single | Unfused::Canceled => None,
            Unfused::Aborted(_) => Some(&counters.fusion.aborted),
            Unfused::Refused(_) | Unfused::Disabled | Unfused::Overlapping => {
                Some(&counters.fusion.refused)
            }
            Unfused::Slower { .. } | Unfused::Timing => Some(&counters.fusion.slower),
            Unfused::Failed(_) => Some(&counters.fusion.failed),
            Unfused::Overdue { .. } => Some(&counters.fusion.overdue),
        };
        if let Some(counter) = counter {
            counter.add_one();
        }
        tracing::debug!(%why, "launches are not fused");
        if self.is_required {
            return Err(required_error(why));
        }
        Ok(FusionOutcome::Unfused { why })
    }

    /// Runs the launches one by one, unless they run already. Returns the error of a scope of which a launch has
    /// failed or is certain to fail.
    pub(super) fn failed(mut self, root: Option<Error>) -> Result<FusionOutcome> {
        self.run_separately();
        self.queue.scheduler.shared().counters.fusion.failed.add_one();
        let root = root.unwrap_or_else(|| Error::invalid("a launch of the scope has failed"));
        Err(root.spread_to("the fused kernel", "a launch of its scope failed before it started"))
    }

    /// Returns the stopwatch of a group that is selected to be timed.
    fn stopwatch(
        &self,
        fusion: &Arc<Fusion>,
        selection: &Selection,
        group: usize,
    ) -> Option<Arc<Stopwatch>> {
        stopwatch(&self.queue.scheduler.shared().fuser, fusion, selection, group)
    }

    fn run_separately(&mut self) {
        if !std::mem::replace(&mut self.is_decided, true) {
            self.queue.scheduler.run_separately(self.group, None);
        }
    }
}

/// Returns the stopwatch of a group of launches that is selected to be timed.
pub(crate) fn stopwatch(
    fuser: &Arc<Fuser>,
    fusion: &Arc<Fusion>,
    selection: &Selection,
    group: usize,
) -> Option<Arc<Stopwatch>> {
    let selected = &selection.0[group];
    let way = selected.choice.way;
    selected.choice.is_timed.then(|| {
        let (fuser, fusion) = (Arc::clone(fuser), Arc::clone(fusion));
        let report = move |time| fuser.note_run(&fusion, group, way, time);
        Arc::new(Stopwatch::new(selected.way.commands(), Box::new(report)))
    })
}

/// Returns the error of a scope that requires fusion and whose launches are not fused.
fn required_error(why: Unfused) -> Error {
    let message = format!("fusion is required, but the launches are not fused: {why}");
    let error = Error::new(ErrorKind::Unsupported, message);
    match why {
        Unfused::Failed(cause) => error.with_source(cause),
        Unfused::Overdue { .. } => error.of_kind(ErrorKind::TimedOut),
        _ => error,
    }
}

/// Cancels the timed runs of the groups of which `is_blocked` holds for a step, by its position among all
/// steps.
pub(crate) fn give_back(
    fusion: &Fusion,
    selection: &Selection,
    is_blocked: impl Fn(usize) -> bool,
) {
    for (group, way) in timed(selection, is_blocked) {
        fusion.give_back(group, way);
    }
}

/// Returns the groups whose kernels were selected for a timed run, with their ways, of which a condition holds for
/// a step, by its position among all steps.
fn timed(selection: &Selection, holds: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let (mut first, mut found) = (0, Vec::new());
    for (group, selected) in selection.0.iter().enumerate() {
        let next = first + selected.way.steps.len();
        let choice = selected.choice;
        if choice.is_timed && choice.way != ONE_BY_ONE && (first..next).any(&holds) {
            found.push((group, choice.way));
        }
        first = next;
    }
    found
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.run_separately();
    }
}
