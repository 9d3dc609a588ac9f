//! Plans of graphs: the recorded commands in the form in which they are enqueued, with everything that does not
//! change between replays decided.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::lists::CommandLists;
use super::temporaries::TemporarySets;
use super::uses::{PlannedUse, Source};
use crate::args::region::Region;
use crate::backend;
use crate::build_graph::Kernel;
use crate::compiler::nd_range::NdRange;
use crate::device::Sampler;
use crate::queue::hazard::{Use, Uses};

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
        _kernel: Kernel,
        /// Kernel of the driver, with arguments of its own where the driver allows that.
        native: Arc<dyn backend::Kernel>,
        range: NdRange,
        arguments: Box<[NodeArgument]>,
    },
    Fill {
        to: Source,
        pattern: SmallVec<[u8; 16]>,
    },
    Copy {
        from: Source,
        to: Source,
    },
}

/// Placeholder for memory, in the order in which placeholders were recorded.
pub(super) struct Placeholder {
    pub(super) region: Arc<Region>,
    pub(super) is_temporary: bool,
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
    pub(super) number: NonZeroU32,
    pub(super) nodes: Box<[Node]>,
    pub(super) placeholders: Box<[Placeholder]>,
    /// Parts of the inputs that commands use.
    pub(super) input_parts: Box<[PlaceholderPart]>,
    pub(super) fixed: Box<[Arc<Region>]>,
    pub(super) open_values: Box<[Range<usize>]>,
    pub(super) temporaries: Option<TemporarySets>,
    /// Memory of copies, which must not overlap.
    pub(super) copied: Box<[(Source, Source)]>,
    /// Parts of inputs, each with other memory that it must not overlap with, in a graph with checked launches: their
    /// verdicts hold only then.
    pub(super) apart: Box<[(usize, Source)]>,
    /// Accesses to memory that others can use.
    pub(super) uses: Box<[PlannedUse]>,
}

impl Plan {
    /// Returns the accesses of a replay with these parts of inputs, to memory that others can use.
    pub(super) fn uses_with(&self, inputs: &[Arc<Region>]) -> Uses {
        let uses = self.uses.iter().map(|used| match used.source {
            Source::Input(at) => Use::of(&inputs[at], used.access),
            Source::Fixed(at) | Source::Temporary(at) => Use::of(&self.fixed[at], used.access),
        });
        uses.collect()
    }
}
