//! Plans of a graph: the recorded commands one by one, and with fused kernels in place of some. Which kernels are
//! the fastest is found out by timing the first replays, as for [fusion scopes](crate::FusionScope).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use smallvec::SmallVec;

use super::plan::Plan;
use super::prepare::prepare;
use super::recorded::{Recorded, RecordedCommand};
use super::sections::{Section, Sections};
use super::work::Timing;
use crate::build_graph::{FusedKernel, Policy, Selection, Step};
use crate::error::Result;
use crate::queue::fusion::completion::{give_back, stopwatch};
use crate::queue::fusion::{FusedPart, FusionOutcome, Unfused, parts, plan};
use crate::queue::handle::Queue;
use crate::queue::launch_work::LaunchWork;
use crate::queue::scheduler::FusionBlocker;
use crate::sync::lock;

/// Maximum number of plans that are kept while the ways to run the launches take turns.
const MAX_TRIED: usize = 3;

/// Plans of a graph.
pub(super) struct Plans {
    pub(super) recorded: Arc<Recorded>,
    /// For each value whether no launch uses it.
    pub(super) unused_values: SmallVec<[bool; 8]>,
    /// Plan of the recorded commands one by one.
    pub(super) plain: Arc<Plan>,
    /// Plans with fused kernels, once these are built.
    fused: OnceLock<FusedPlans>,
    /// Reason why the launches run one by one as long as there are no fused kernels.
    unfused: Unfused,
    /// Whether a replay ran the launches one by one because its buffers overlap.
    is_overlapping: AtomicBool,
}

/// Plans with fused kernels.
struct FusedPlans {
    sections: Sections,
    policy: Policy,
    /// Plan for all further replays, once the fastest way of each group of launches is known.
    decided: OnceLock<FusedPlan>,
    /// Plans of the last replays until then, the latest first.
    tried: Mutex<Vec<(Choices, FusedPlan)>>,
}

/// Index of the way in which each group of launches runs, and whether its run is timed.
type Choices = SmallVec<[(usize, bool); 8]>;

/// Plan with fused kernels, and how the launches run in it.
#[derive(Clone)]
struct FusedPlan {
    plan: Arc<Plan>,
    /// Positions of the commands in the plan that run groups of launches, each with its section and its group.
    grouped: Arc<[(usize, [usize; 2])]>,
    parts: Arc<[FusedPart]>,
}

/// Plan for one replay.
pub(super) struct Next {
    pub(super) plan: Arc<Plan>,
    pub(super) timing: Option<Box<Timing>>,
}

impl Plans {
    /// Prepares the commands of a recording to run one by one, for the reason `unfused`. Calls the driver, which may
    /// block.
    ///
    /// # Errors
    ///
    /// As for [`prepare`].
    pub(super) fn new(queue: &Queue, recorded: Arc<Recorded>, unfused: Unfused) -> Result<Self> {
        let can_fuse = !matches!(unfused, Unfused::Disabled);
        let plain = Arc::new(prepare(queue, &recorded, &recorded.commands, can_fuse)?);
        let unused_values = recorded.unused_values();
        let (fused, is_overlapping) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self { recorded, unused_values, plain, fused, unfused, is_overlapping })
    }

    /// Uses the fused kernels of the launches from now on. In modes without trials, this prepares a plan with them:
    /// it calls the driver, which may block.
    ///
    /// # Errors
    ///
    /// As for [`prepare`].
    pub(super) fn set_fused(&self, queue: &Queue, sections: Sections) -> Result<()> {
        let mode = queue.scheduler.shared().fusion;
        let fused = self.fused.get_or_init(|| FusedPlans {
            sections,
            policy: if mode.is_timed() { Policy::Fastest } else { Policy::Kernels },
            decided: OnceLock::new(),
            tried: Mutex::default(),
        });
        if fused.policy == Policy::Kernels && !fused.sections.all.is_empty() {
            self.decide(queue, fused)?;
        }
        Ok(())
    }

    /// Returns the plan for the next replay. While the ways to run the launches take turns, this may prepare a plan.
    pub(super) fn next(&self, queue: &Queue) -> Next {
        let plain = || Next { plan: self.plain.clone(), timing: None };
        let Some(fused) = self.fused.get().filter(|fused| !fused.sections.all.is_empty()) else {
            return plain();
        };
        if let Some(decided) = fused.decided.get() {
            return Next { plan: decided.plan.clone(), timing: None };
        }
        if fused.are_decided() {
            // Without memory for the plan's temporaries, the next replay tries again.
            return match self.decide(queue, fused) {
                Ok(plan) => Next { plan, timing: None },
                Err(_) => plain(),
            };
        }
        let selections = fused.selections();
        match self.tried(queue, fused, &selections) {
            Ok(tried) => fused.timed(queue, &selections, tried),
            Err(_) => {
                for (section, selection) in fused.sections.all.iter().zip(&selections) {
                    give_back(&section.fusion, selection, |_| true);
                }
                plain()
            }
        }
    }

    /// Returns the plan for the next replay if its buffers overlap: fused kernels need memory that is apart.
    pub(super) fn next_overlapping(&self) -> Next {
        self.is_overlapping.store(true, Ordering::Relaxed);
        Next { plan: self.plain.clone(), timing: None }
    }

    /// Returns how the launches run.
    pub(super) fn outcome(&self) -> FusionOutcome {
        let is_overlapping = self.is_overlapping.load(Ordering::Relaxed);
        let Some(fused) = self.fused.get() else {
            let can_fuse = !matches!(self.unfused, Unfused::Disabled);
            let why = match is_overlapping && can_fuse {
                true => Unfused::Overlapping,
                false => self.unfused.clone(),
            };
            return FusionOutcome::Unfused { why };
        };
        let latest = || lock(&fused.tried).first().map(|(_, plan)| plan.parts.to_vec());
        let decided = || fused.are_decided().then(|| fused.decided_parts());
        let prepared = fused.decided.get().map(|plan| plan.parts.to_vec());
        let parts = match prepared.or_else(decided).or_else(latest) {
            Some(parts) => parts,
            None => fused.parts_without_plan(is_overlapping),
        };
        FusionOutcome::of(parts).unwrap_or_else(|why| FusionOutcome::Unfused { why })
    }

    /// Returns the plan of most replays: the decided one if there is one.
    pub(super) fn usual(&self) -> &Plan {
        let decided = self.fused.get().and_then(|fused| fused.decided.get());
        decided.map_or(&self.plain, |decided| &decided.plan)
    }

    /// Prepares the plan with the way of each group that is to be used from now on.
    fn decide(&self, queue: &Queue, fused: &FusedPlans) -> Result<Arc<Plan>> {
        let selections = fused.selections();
        let decided = self.prepared(queue, fused, &selections)?;
        let decided = fused.decided.get_or_init(|| decided);
        lock(&fused.tried).clear();
        self.plain.release_idle_temporaries();
        let outcome = self.outcome();
        tracing::debug!(%outcome, "the launches of a graph are fused");
        Ok(decided.plan.clone())
    }

    /// Returns the plan for the selected ways, which is prepared if it is not among the latest ones.
    fn tried(
        &self,
        queue: &Queue,
        fused: &FusedPlans,
        selections: &[Selection],
    ) -> Result<FusedPlan> {
        let choices = selections.iter().flat_map(|selection| &selection.0).map(|way| way.choice);
        let choices: Choices = choices.map(|choice| (choice.way, choice.is_timed)).collect();
        let mut tried = lock(&fused.tried);
        let known = tried.iter().position(|(known, _)| *known == choices);
        let entry = match known {
            Some(at) => tried.remove(at),
            None => (choices, self.prepared(queue, fused, selections)?),
        };
        let plan = entry.1.clone();
        tried.insert(0, entry);
        tried.truncate(MAX_TRIED);
        Ok(plan)
    }

    /// Prepares the plan for the selected ways.
    fn prepared(
        &self,
        queue: &Queue,
        fused: &FusedPlans,
        selections: &[Selection],
    ) -> Result<FusedPlan> {
        let recorded = &self.recorded.commands;
        let (mut commands, mut grouped, mut all_parts) =
            (Vec::new(), Vec::new(), fused.sections.alone.clone());
        let mut done = 0;
        for (number, (section, selection)) in fused.sections.all.iter().zip(selections).enumerate()
        {
            let Section { commands: of, fusion } = section;
            commands.extend_from_slice(&recorded[done..of.start]);
            done = of.end;
            let Replaced { steps, blocked } =
                replaced(queue, &recorded[of.clone()], section, selection);
            for (group, command) in steps {
                grouped.push((commands.len(), [number, group]));
                commands.push(command);
            }
            let section_parts = parts::parts(fusion, selection, blocked);
            all_parts.extend(section_parts.into_iter().map(|part| part.behind(of.start)));
        }
        commands.extend_from_slice(&recorded[done..]);
        // Only replays whose memory is apart use the plan.
        let plan = Arc::new(prepare(queue, &self.recorded, &commands, false)?);
        all_parts.sort_by_key(|part| part.launches.first().copied());
        Ok(FusedPlan { plan, grouped: grouped.into(), parts: all_parts.into() })
    }
}

impl FusedPlans {
    /// Returns whether the fastest way of each group of launches is known.
    fn are_decided(&self) -> bool {
        !self.sections.all.is_empty()
            && self.sections.all.iter().all(|section| section.fusion.is_decided())
    }

    /// Returns the parts in which the launches run once the fastest ways are known.
    fn decided_parts(&self) -> Vec<FusedPart> {
        let selections = self.selections();
        let mut all_parts = self.sections.alone.clone();
        for (section, selection) in self.sections.all.iter().zip(&selections) {
            let own = parts::parts(&section.fusion, selection, Vec::new()).into_iter();
            all_parts.extend(own.map(|part| part.behind(section.commands.start)));
        }
        all_parts.sort_by_key(|part| part.launches.first().copied());
        all_parts
    }

    /// Decides how each section runs this time.
    fn selections(&self) -> Vec<Selection> {
        let sections = self.sections.all.iter();
        sections.filter_map(|section| section.fusion.select(self.policy)).collect()
    }

    /// Returns the next replay, with stopwatches for the groups that are to be timed.
    fn timed(&self, queue: &Queue, selections: &[Selection], tried: FusedPlan) -> Next {
        let fuser = &queue.scheduler.shared().fuser;
        let sections = self.sections.all.iter().zip(selections);
        let watches: Vec<Vec<_>> = sections
            .map(|(section, selection)| {
                let groups = 0..selection.0.len();
                groups.map(|group| stopwatch(fuser, &section.fusion, selection, group)).collect()
            })
            .collect();
        let timed = tried
            .grouped
            .iter()
            .filter_map(|&(at, [section, group])| Some((at, watches[section][group].clone()?)));
        Next { plan: tried.plan, timing: Timing::of(timed.collect()) }
    }

    /// Returns the parts in which the launches run before a replay has run fused kernels. `is_overlapping` states
    /// whether replays have run one by one because their buffers overlap.
    fn parts_without_plan(&self, is_overlapping: bool) -> Vec<FusedPart> {
        let sections = self.sections.all.iter();
        let own = sections.map(|section| {
            let why = if is_overlapping { Unfused::Overlapping } else { Unfused::Timing };
            FusedPart::alone(section.commands.clone().collect(), why)
        });
        own.chain(self.sections.alone.iter().cloned()).collect()
    }
}

/// Commands in place of a section's launches.
struct Replaced {
    /// Commands in the order in which they run, each with its group.
    steps: Vec<(usize, RecordedCommand)>,
    /// Steps whose kernels do not fit, so that their launches run one by one.
    blocked: Vec<(usize, FusionBlocker)>,
}

/// Returns the commands that run in place of a section's launches in the selected ways.
fn replaced(
    queue: &Queue,
    recorded: &[RecordedCommand],
    section: &Section,
    selection: &Selection,
) -> Replaced {
    let launches: Vec<&LaunchWork> = recorded.iter().filter_map(RecordedCommand::launch).collect();
    let mut replaced = Replaced { steps: Vec::new(), blocked: Vec::new() };
    let mut number = 0;
    for (group, selected) in selection.0.iter().enumerate() {
        for step in &selected.way.steps {
            match step {
                Step::Launch(slot) => replaced.steps.push((group, recorded[*slot].clone())),
                Step::Kernel(kernel) => match fused_launch(queue, &launches, kernel) {
                    Ok(launch) => {
                        replaced.steps.push((group, RecordedCommand::Launch(Box::new(launch))));
                    }
                    Err(error) => {
                        let own = kernel.slots.iter().map(|&slot| (group, recorded[slot].clone()));
                        replaced.steps.extend(own);
                        replaced.blocked.push((number, FusionBlocker::Unfit(error)));
                        // The kernel would not fit the next time, either.
                        let fuser = &queue.scheduler.shared().fuser;
                        fuser.drop_way(&section.fusion, group, selected.choice.way);
                    }
                },
            }
            number += 1;
        }
    }
    replaced
}

/// Returns the launch of a fused kernel, checked like the launches that it replaces.
fn fused_launch(
    queue: &Queue,
    launches: &[&LaunchWork],
    kernel: &FusedKernel,
) -> Result<LaunchWork> {
    let launch = plan::fused(launches, kernel);
    launch.check(queue.device()).transpose()?;
    plan::prove(launches, &launch, kernel)?;
    Ok(launch)
}
