//! Completion of a fusion scope: decides how its launches run, and runs them.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, MutexGuard, OnceLock};

use futures::FutureExt;
use futures::channel::oneshot;
use smallvec::SmallVec;

use super::mode::FusionMode;
use super::outcome::{Fusing, FusionOutcome, Unfused};
use super::plan::{self, FusionOptions, LaunchSnapshot, MemoryUsage};
use super::recent::{Recent, Recents};
use crate::build_graph::{Choice, Fastest, FusedKernel, Fusion, FusionRequest, Query, Run};
use crate::compiler::fusion::{FusionReport, Trust};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::accesses::CombinedAccesses;
use crate::queue::command::GroupId;
use crate::queue::handle::Queue;
use crate::queue::launch_work::LaunchWork;
use crate::queue::scheduler::{FusedLaunch, Scheduler};
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

/// Facts about launches that the compiler's examination does not contain.
struct LaunchFacts<'a> {
    /// Allocations whose contents are lost if the launches run as one, and that can still be read
    /// through other handles.
    lost: &'a [u64],
    accesses: LaunchAccesses<'a>,
}

/// Combined accesses of the launches, if a recent scope had the same launches.
enum LaunchAccesses<'a> {
    /// Accesses of the same launches in a recent scope, where the fused launch was already checked.
    Known(&'a Arc<CombinedAccesses>),
    /// New launches: their accesses are still to be computed and added to the recent scopes.
    New(&'a FusionLookup),
}

/// Snapshot of a scope's launches, from which they are looked up or examined.
pub(super) struct FusionLookup {
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) usage: MemoryUsage,
    /// `None` if a program is not built yet.
    pub(super) query: Option<Query>,
    pub(super) options: FusionOptions,
    pub(super) trust: Trust,
}

impl FusionLookup {
    /// Returns the fusion of these launches if it is known already.
    pub(super) fn known(&self) -> Option<Arc<Fusion>> {
        self.scheduler.shared().graph.known_fusion(self.query.as_ref()?)
    }

    /// Builds the launches' programs if necessary, and fuses the launches.
    pub(super) async fn fusion(&self, snapshot: &LaunchSnapshot) -> Result<Arc<Fusion>> {
        for kernel in snapshot.kernels() {
            kernel.resolve().await;
        }
        let request = self.request(snapshot)?;
        self.scheduler.shared().graph.clone().fuse(request).await
    }

    fn request(&self, snapshot: &LaunchSnapshot) -> Result<FusionRequest> {
        let (launches, handle) = (snapshot.launches(), self.scheduler.slot().handle());
        let device = handle.index();
        let plan = self.usage.plan(&launches, handle)?;
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
        })
    }
}

/// Obligation to run the launches of a scope, fused or not. If it is dropped undecided, they run one by
/// one.
pub(super) struct Completion {
    pub(super) queue: Queue,
    pub(super) group: GroupId,
    pub(super) is_required: bool,
    pub(super) report: Arc<OnceLock<FusionReport>>,
    pub(super) is_decided: bool,
}

impl Completion {
    /// Decides at once if the fusion is known, and otherwise on Kiln's host thread.
    pub(super) fn decide(self, recent: RecentLookup, count: usize) -> Fusing {
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
            return Fusing::known(self.unfused(why));
        }
        let lookup = match recent {
            RecentLookup::Known(fusion, recent) => {
                let Recent { lost, accesses, .. } = &*recent;
                let facts = LaunchFacts { lost, accesses: LaunchAccesses::Known(accesses) };
                return Fusing::known(self.run(&fusion, facts));
            }
            RecentLookup::New(lookup) => lookup,
        };
        if let Some(fusion) = lookup.known() {
            return Fusing::known(self.run_new(&lookup, &fusion));
        }
        let snapshot = self.queue.scheduler.visit_group(self.group, LaunchSnapshot::of);
        let Some((_, snapshot)) = snapshot.filter(|(_, snapshot)| snapshot.len() == count) else {
            let cause = self.queue.scheduler.failure_in_group(self.group);
            return Fusing::known(self.unfused(Unfused::of_failed(cause.as_ref())));
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
            Ok(()) => Fusing::awaited(receiver),
            Err(error) => {
                Fusing::known(Err(error.within("fusion failed, and the launches run one by one")))
            }
        }
    }

    /// Fuses the launches, and runs them.
    async fn fuse(self, lookup: FusionLookup, snapshot: LaunchSnapshot) -> Result<FusionOutcome> {
        let fusion = lookup.fusion(&snapshot).await;
        // The launches may run from here on. The snapshot must not hold handles of their buffers then.
        drop(snapshot);
        match fusion {
            Ok(fusion) => self.run_new(&lookup, &fusion),
            Err(error) => self.unfused(Unfused::Failed(error)),
        }
    }

    /// Runs the launches of a scope that matches no recent one.
    fn run_new(self, lookup: &FusionLookup, fusion: &Arc<Fusion>) -> Result<FusionOutcome> {
        let internalized = fusion.fused.as_ref().map_or(&[][..], |fused| &fused.internalized);
        let lost: SmallVec<[u64; 8]> = lookup.usage.held(internalized).collect();
        self.run(fusion, LaunchFacts { lost: &lost, accesses: LaunchAccesses::New(lookup) })
    }

    /// Runs the launches as one if that is legal and either required or faster, and otherwise one by one.
    fn run(mut self, fusion: &Arc<Fusion>, facts: LaunchFacts<'_>) -> Result<FusionOutcome> {
        // The report of a scope is set only here, and only once.
        let _ = self.report.set(fusion.report.clone());
        let Some(fused) = &fusion.fused else {
            let why = fusion.report.refusal().unwrap_or("the reason is unknown");
            return self.unfused(Unfused::Refused(why.to_owned()));
        };
        let choice = match self.queue.scheduler.shared().fusion {
            FusionMode::Auto if !self.is_required => fusion.choose(),
            _ => Choice::Fused,
        };
        let launches = fusion.report.launches().len();
        let stopwatch = |commands, run| {
            let fusion = fusion.clone();
            let report = move |time| fusion.note(run, time);
            Some(Arc::new(Stopwatch::new(commands, Box::new(report))))
        };
        let timed = match choice {
            Choice::Unfused(Fastest { fused, unfused }) => {
                return self.unfused(Unfused::Slower { fused, unfused });
            }
            Choice::Time(Run::Unfused) => {
                self.is_decided = true;
                let stopwatch = stopwatch(launches, Run::Unfused);
                self.queue.scheduler.run_separately(self.group, stopwatch);
                return self.unfused(Unfused::Timing);
            }
            Choice::Time(Run::Fused) => stopwatch(1, Run::Fused),
            Choice::Fused => None,
        };
        self.is_decided = true;
        let lost = facts.lost;
        let fuse = |launches: &[&LaunchWork]| self.fused_launch(launches, fusion, fused, facts);
        match self.queue.scheduler.run_as_one(self.group, fuse, lost, timed) {
            Ok(()) => {
                self.queue.scheduler.shared().counters.fusions.add_one();
                tracing::debug!(kernel = fused.kernel.name(), "launches run as a fused kernel");
                Ok(FusionOutcome::Fused {
                    kernel: fused.kernel.name().to_owned(),
                    launches,
                    internalized: fused.internalized.len(),
                })
            }
            Err(blocker) => {
                if choice == Choice::Time(Run::Fused) {
                    fusion.give_back();
                }
                self.unfused(Unfused::Refused(blocker.to_string()))
            }
        }
    }

    /// Creates the launch of the fused kernel. If the launches match no recent scope, checks it and adds them
    /// to the recent scopes. Called under the scheduler's lock.
    fn fused_launch(
        &self,
        launches: &[&LaunchWork],
        fusion: &Arc<Fusion>,
        fused: &FusedKernel,
        LaunchFacts { lost, accesses }: LaunchFacts<'_>,
    ) -> Result<FusedLaunch> {
        let launch = Box::new(plan::fused(launches, fused));
        let accesses = match accesses {
            LaunchAccesses::Known(accesses) => Arc::clone(accesses),
            LaunchAccesses::New(FusionLookup { options, trust, .. }) => {
                launch.check(self.queue.device()).transpose()?;
                let accesses = Arc::new(CombinedAccesses::of(launches, &launch, lost));
                let mut recents = recents(&self.queue);
                recents.learn(launches, (options, *trust), fusion, (lost, &accesses));
                accesses
            }
        };
        Ok(FusedLaunch { launch, accesses })
    }

    /// Runs the launches one by one, unless they run already, and returns the reason.
    pub(super) fn unfused(mut self, why: Unfused) -> Result<FusionOutcome> {
        self.run_separately();
        let counters = &self.queue.scheduler.shared().counters;
        let counter = match &why {
            // Canceled scopes are already counted.
            Unfused::Empty | Unfused::Single | Unfused::Canceled => None,
            Unfused::Aborted(_) => Some(&counters.fusions_aborted),
            Unfused::Refused(_) | Unfused::Disabled => Some(&counters.fusions_refused),
            Unfused::Slower { .. } | Unfused::Timing => Some(&counters.fusions_slower),
            Unfused::Failed(_) => Some(&counters.fusions_failed),
        };
        if let Some(counter) = counter {
            counter.add_one();
        }
        tracing::debug!(%why, "launches are not fused");
        if self.is_required {
            let error = Error::new(
                ErrorKind::Unsupported,
                format!("fusion is required, but the launches are not fused: {why}"),
            );
            return Err(match why {
                Unfused::Failed(cause) => error.with_source(cause),
                _ => error,
            });
        }
        Ok(FusionOutcome::Unfused { why })
    }

    fn run_separately(&mut self) {
        if !std::mem::replace(&mut self.is_decided, true) {
            self.queue.scheduler.run_separately(self.group, None);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.run_separately();
    }
}
