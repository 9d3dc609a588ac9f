//! Plans of graphs: the recorded commands in the form in which they are enqueued, with everything that does not
//! change between replays decided.

use std::ops::Range;
use std::sync::Arc;

use kiln_compiler::{NdRange, Sampler};
use smallvec::SmallVec;

use super::lists::CommandLists;
use super::temporaries::TemporarySets;
use super::uses::{PlannedUse, Source};
use crate::args::region::Region;
use crate::backend;
use crate::build_graph::Kernel;
use crate::queue::check_counts::CheckCounts;
use crate::queue::hazard::Uses;

/// Argument of a recorded launch.
pub(super) enum NodeArgument {
    Memory(Source),
    Value(SmallVec<[u8; 16]>),
    /// Value that every replay sets: a range of the bytes of all these values.
    Open(Range<usize>),
    Local(usize),
    Sampler(Sampler),
}

/// Recorded command.
pub(super) enum Node {
    Launch {
        /// Handle that keeps the program alive.
        kernel: Kernel,
        /// Kernel of the driver, with arguments of its own where the driver allows that.
        native: Arc<dyn backend::Kernel>,
        range: NdRange,
        arguments: Box<[NodeArgument]>,
    },
    Fill {
        to: Source,
        pattern: Box<[u8]>,
    },
    Copy {
        from: Source,
        to: Source,
    },
}

/// Part of a placeholder that commands use.
pub(super) struct PlaceholderPart {
    /// Index of the placeholder.
    pub(super) of: usize,
    pub(super) bytes: Range<usize>,
}

/// Plan of a graph.
pub(super) struct Plan {
    /// Command lists. Declared before the nodes, whose kernels they use.
    pub(super) lists: CommandLists,
    pub(super) nodes: Box<[Node]>,
    /// Parts of the inputs that commands use.
    pub(super) input_parts: Box<[PlaceholderPart]>,
    pub(super) fixed: Box<[Arc<Region>]>,
    pub(super) temporaries: Option<TemporarySets>,
    /// Memory of copies, which must not overlap.
    pub(super) copied: Box<[(Source, Source)]>,
    /// Parts of inputs, each with other memory that it must not overlap with if launches are checked or fused: their
    /// proofs hold only then.
    pub(super) apart: Box<[(usize, Source)]>,
    /// Whether one of the launches is checked.
    pub(super) is_checked: bool,
    /// Numbers of the recorded launches that are checked.
    pub(super) checks: CheckCounts,
    /// Accesses to memory that others can use.
    pub(super) uses: Box<[PlannedUse]>,
}

impl Plan {
    /// Returns the accesses of a replay with these parts of inputs, to memory that others can use.
    pub(super) fn uses_with(&self, inputs: &[Arc<Region>]) -> Uses {
        let uses = self.uses.iter().map(|used| match used.source {
            Source::Input(at) => used.of(&inputs[at]),
            Source::Fixed(at) | Source::Temporary(at) => used.of(&self.fixed[at]),
        });
        uses.collect()
    }

    /// Frees the temporaries that no unfinished replay uses, because further replays will use another plan.
    pub(super) fn release_idle_temporaries(&self) {
        if let Some(sets) = &self.temporaries {
            sets.release_idle();
        }
    }
}
