//! Recorded commands, with the placeholders and the values that replays replace.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use kiln_spirv::Access;
use smallvec::SmallVec;

use crate::args::region::Region;
use crate::queue::hazard::{Use, Uses};
use crate::queue::launch_work::LaunchWork;

/// Everything that was recorded.
pub(super) struct Recorded {
    /// Number of the recording.
    pub(super) number: NonZeroU32,
    pub(super) commands: Vec<RecordedCommand>,
    pub(super) placeholders: Vec<Placeholder>,
    /// Ranges of the values that replays set, among the bytes of all of them.
    pub(super) open_values: Vec<Range<usize>>,
    /// Whether launches may run as one kernel.
    pub(super) may_fuse: bool,
}

/// Recorded command.
#[derive(Clone)]
pub(super) enum RecordedCommand {
    Launch(Box<LaunchWork>),
    Fill { region: Arc<Region>, pattern: Box<[u8]> },
    Copy { from: Arc<Region>, to: Arc<Region> },
}

/// Placeholder for memory, in the order in which placeholders were recorded.
pub(super) struct Placeholder {
    pub(super) region: Arc<Region>,
    pub(super) is_temporary: bool,
}

impl Recorded {
    /// Returns for each value whether no launch uses it, so that a replay need not set it.
    pub(super) fn unused_values(&self) -> SmallVec<[bool; 8]> {
        let mut unused = SmallVec::from_elem(true, self.open_values.len());
        let launches = self.commands.iter().filter_map(RecordedCommand::launch);
        for value in launches.flat_map(|launch| &launch.arguments).filter_map(|given| given.open) {
            unused[value.index as usize] = false;
        }
        unused
    }
}

impl RecordedCommand {
    /// Returns the launch, if the command is one.
    pub(super) fn launch(&self) -> Option<&LaunchWork> {
        match self {
            Self::Launch(launch) => Some(launch),
            Self::Fill { .. } | Self::Copy { .. } => None,
        }
    }

    /// Returns the memory that the command uses.
    pub(super) fn regions(&self) -> SmallVec<[&Arc<Region>; 4]> {
        match self {
            Self::Launch(launch) => launch.regions().collect(),
            Self::Fill { region, .. } => SmallVec::from_iter([region]),
            Self::Copy { from, to } => SmallVec::from_iter([from, to]),
        }
    }

    /// Returns the memory accesses of the command.
    pub(super) fn uses(&self) -> Uses {
        match self {
            Self::Launch(launch) => launch.uses(),
            Self::Fill { region, .. } => SmallVec::from_iter([Use::overwriting(region)]),
            Self::Copy { from, to } => {
                SmallVec::from_iter([Use::of(from, Access::Read), Use::overwriting(to)])
            }
        }
    }
}

impl Recorded {
    /// Returns the position of the placeholder with an allocation.
    pub(super) fn placeholder_of(&self, allocation: u64) -> Option<usize> {
        self.placeholders.iter().position(|known| known.region.allocation() == allocation)
    }

    /// Returns whether an allocation is a temporary that no command from the position `end` on uses.
    pub(super) fn is_dead_after(&self, end: usize, allocation: u64) -> bool {
        let is_temporary =
            self.placeholder_of(allocation).is_some_and(|at| self.placeholders[at].is_temporary);
        let is_used = |command: &RecordedCommand| {
            command.regions().iter().any(|region| region.allocation() == allocation)
        };
        is_temporary && !self.commands[end..].iter().any(is_used)
    }
}
