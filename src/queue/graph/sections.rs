//! Sections of a recording: consecutive launches that are examined together, to run as few kernels.

use std::ops::Range;
use std::sync::Arc;

use futures::future::join_all;
use kiln_compiler::fusion::{Place, fused_name};

use super::recorded::{Recorded, RecordedCommand};
use crate::args::OpenId;
use crate::build_graph::{Awaited, Fusion};
use crate::error::Result;
use crate::queue::fusion::completion::FusionLookup;
use crate::queue::fusion::plan::LaunchSnapshot;
use crate::queue::fusion::{FusedPart, Unfused};
use crate::queue::handle::Queue;
use crate::queue::launch_work::LaunchWork;

/// Maximum number of launches that are examined together. The compiler's time grows faster than their number.
const MAX_LAUNCHES: usize = 16;

/// Consecutive launches some of which can run as one kernel.
pub(super) struct Section {
    /// Positions of the launches among the recorded commands.
    pub(super) commands: Range<usize>,
    pub(super) fusion: Arc<Fusion>,
}

/// Sections of a recording, and the launches that are in none.
pub(super) struct Sections {
    /// Sections in order.
    pub(super) all: Vec<Section>,
    /// Launches that run one by one in any case, with the reason.
    pub(super) alone: Vec<FusedPart>,
}

impl Sections {
    /// Divides the launches into sections, and fuses each. Launches that depend on a value that replays set are left
    /// out. Waits for each fused kernel no longer than the runtime's limit.
    pub(super) async fn of(queue: &Queue, recorded: &Recorded) -> Self {
        let mut sections = Self { all: Vec::new(), alone: Vec::new() };
        let mut pending = runs(&recorded.commands);
        while !pending.is_empty() {
            let (single, several): (Vec<_>, Vec<_>) =
                pending.into_iter().partition(|run| run.len() == 1);
            for run in single {
                sections.alone.push(FusedPart::alone(run.collect(), Unfused::Single));
            }
            let fused = several.into_iter().map(async |run: Range<usize>| {
                let fused = fused(queue, recorded, run.clone()).await;
                (run, fused)
            });
            pending = Vec::new();
            for (run, fused) in join_all(fused).await {
                match fused {
                    Ok(fusion) => pending.append(&mut sections.add(recorded, run, fusion)),
                    Err(why) => sections.alone.push(FusedPart::alone(run.collect(), why)),
                }
            }
        }
        sections.all.sort_by_key(|section| section.commands.start);
        sections
    }

    /// Adds launches that were examined together. Returns the runs of launches between those that depend on a value
    /// that replays set, if there are any of the latter.
    fn add(
        &mut self,
        recorded: &Recorded,
        run: Range<usize>,
        fusion: Arc<Fusion>,
    ) -> Vec<Range<usize>> {
        let launch = |slot: usize| recorded.commands[run.start + slot].launch();
        let open_value = |place: Place| -> Option<OpenId> {
            launch(place.slot)?.arguments.get(place.argument)?.open
        };
        let dependent = fusion.launches_depending_on(|place| open_value(place).is_some());
        if dependent.is_empty() {
            match fusion.groups.is_empty() {
                true => {
                    let why = Unfused::Refused(fusion.refusal().to_owned());
                    self.alone.push(FusedPart::alone(run.collect(), why));
                }
                false => self.all.push(Section { commands: run, fusion }),
            }
            return Vec::new();
        }
        let (mut between, mut start) = (Vec::new(), run.start);
        for at in dependent.into_iter().map(|slot| run.start + slot) {
            between.push(start..at);
            start = at + 1;
            let name = recorded.commands[at].launch().map_or("", |launch| launch.kernel.name());
            let why = Unfused::Refused(format!(
                "whether `{name}` can run with other launches depends on a value that replays set"
            ));
            self.alone.push(FusedPart::alone(vec![at], why));
        }
        between.push(start..run.end);
        between.retain(|run| !run.is_empty());
        between
    }
}

/// Returns the name of the first fused kernel that a recording may get.
pub(super) fn first_fused_name(recorded: &Recorded) -> String {
    let several = runs(&recorded.commands).into_iter().find(|run| run.len() > 1);
    let commands = several.map_or(&[][..], |run| &recorded.commands[run]);
    let launches = commands.iter().filter_map(RecordedCommand::launch);
    fused_name(launches.map(|launch| launch.kernel.name()))
}

/// Returns the runs of consecutive launches, each of at most [`MAX_LAUNCHES`].
fn runs(commands: &[RecordedCommand]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, command) in commands.iter().enumerate() {
        if command.launch().is_none() {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == at && run.len() < MAX_LAUNCHES => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// Fuses the launches at these positions.
async fn fused(
    queue: &Queue,
    recorded: &Recorded,
    run: Range<usize>,
) -> Result<Arc<Fusion>, Unfused> {
    let launches: Vec<&LaunchWork> =
        recorded.commands[run.clone()].iter().filter_map(RecordedCommand::launch).collect();
    let is_dead = |allocation| recorded.is_dead_after(run.end, allocation);
    let lookup = FusionLookup::of_recorded(&queue.scheduler, &launches, is_dead);
    let snapshot = LaunchSnapshot::of(&launches);
    let limit = queue.scheduler.shared().fusion_limit;
    match lookup.fusion_within(&snapshot, limit, false).await {
        Ok(Awaited::Known(fusion)) => Ok(fusion),
        Ok(Awaited::Overdue(overdue)) => Err(Unfused::Overdue { kernel: overdue.kernel, limit }),
        Err(error) => Err(Unfused::Failed(error)),
    }
}
