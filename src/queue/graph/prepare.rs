//! Preparation of recorded commands: finds the memory that each uses, and lays out the temporaries.

use std::num::NonZeroU32;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use smallvec::SmallVec;

use super::lists::CommandLists;
use super::plan::{Node, NodeArgument, Placeholder, PlaceholderPart, Plan};
use super::temporaries::{Layout, TemporarySets};
use super::uses::{PlannedUse, Source, combine};
use crate::args::region::{Freed, Region};
use crate::args::{ArgumentKind, ArgumentValue};
use crate::backend::DeviceSlot;
use crate::compiler::signature::Access;
use crate::error::{Error, Result};
use crate::queue::hazard::Use;
use crate::queue::launch_work::LaunchWork;
use crate::queue::work::Work;

/// Everything that was recorded.
pub(super) struct Recorded {
    /// Number of the recording.
    pub(super) number: NonZeroU32,
    pub(super) works: Vec<Work>,
    pub(super) placeholders: Vec<Placeholder>,
    /// Ranges of the values that replays set, among the bytes of all of them.
    pub(super) open_values: Vec<Range<usize>>,
}

/// Prepares the commands. Calls the driver, which may block.
///
/// # Errors
///
/// [`OutOfResources`](crate::ErrorKind::OutOfResources) if the device lacks the memory for the temporaries, and
/// the errors of the driver.
pub(super) fn prepare(
    slot: &Arc<DeviceSlot>,
    freed: &Arc<Freed>,
    recorded: Recorded,
) -> Result<Plan> {
    let Recorded { number, works, placeholders, open_values } = recorded;
    let has_checked =
        works.iter().any(|work| matches!(work, Work::Launch(launch) if launch.is_checked()));
    let mut sources = Sources::new(&placeholders);
    let mut accesses = Vec::new();
    let mut nodes = Vec::with_capacity(works.len());
    for (at, work) in works.into_iter().enumerate() {
        for region in regions_of(&work) {
            sources.add(at, region)?;
        }
        accesses.extend(work.uses());
        nodes.push(node(work, &sources, &open_values)?);
    }
    let uses = accesses.into_iter().filter_map(|used| sources.planned(used));
    let uses = combine(uses);
    let temporaries = sources.lay_out(slot, freed)?;
    let Sources { fixed, input_parts, .. } = sources;
    let copied = copied(&nodes);
    let apart = if has_checked { apart(&uses, &input_parts, fixed.len()) } else { Vec::new() };
    let (input_parts, fixed, uses) = (input_parts.into(), fixed.into(), uses.into());
    Ok(Plan {
        lists: CommandLists::default(),
        number,
        nodes: nodes.into(),
        placeholders: placeholders.into(),
        input_parts,
        fixed,
        open_values: open_values.into(),
        temporaries,
        copied: copied.into(),
        apart: apart.into(),
        uses,
    })
}

/// Returns the memory of the copies from or to inputs, but for temporaries.
fn copied(nodes: &[Node]) -> Vec<(Source, Source)> {
    let copies = nodes.iter().filter_map(|node| match *node {
        Node::Copy { from, to } => Some((from, to)),
        _ => None,
    });
    let is_input = |source: Source| matches!(source, Source::Input(_));
    let is_temporary = |source: Source| matches!(source, Source::Temporary(_));
    copies
        .filter(|&(from, to)| is_input(from) || is_input(to))
        .filter(|&(from, to)| !is_temporary(from) && !is_temporary(to))
        .collect()
}

/// Returns the parts of inputs, each with other memory, of which the graph writes one. Parts of one input are left out:
/// whether they overlap was known when the launches were checked.
fn apart(
    uses: &[PlannedUse],
    input_parts: &[PlaceholderPart],
    fixed: usize,
) -> Vec<(usize, Source)> {
    let writes = |source: Source| {
        uses.iter().any(|used| used.source == source && used.access != Access::Read)
    };
    let mut pairs = Vec::new();
    for (at, part) in input_parts.iter().enumerate() {
        let earlier = (0..at).filter(|&other| input_parts[other].of != part.of).map(Source::Input);
        let others = earlier.chain((0..fixed).map(Source::Fixed));
        let is_written = writes(Source::Input(at));
        pairs.extend(others.filter(|&other| is_written || writes(other)).map(|other| (at, other)));
    }
    pairs
}

/// Returns the memory that a command uses.
fn regions_of(work: &Work) -> SmallVec<[&Arc<Region>; 4]> {
    match work {
        Work::Launch(launch) => launch.regions().collect(),
        Work::Fill { region, .. } => SmallVec::from_iter([region]),
        Work::Copy { from, to } => SmallVec::from_iter([from, to]),
        _ => SmallVec::new(),
    }
}

/// Returns a command in the form in which it is enqueued.
fn node(work: Work, sources: &Sources<'_>, open_values: &[Range<usize>]) -> Result<Node> {
    Ok(match work {
        Work::Launch(launch) => launch_node(*launch, sources, open_values)?,
        Work::Fill { region, pattern } => Node::Fill { to: sources.of(&region), pattern },
        Work::Copy { from, to } => Node::Copy { from: sources.of(&from), to: sources.of(&to) },
        other => {
            let what = other.in_words();
            return Err(Error::invalid(format!("{what} cannot be recorded")));
        }
    })
}

fn launch_node(
    launch: LaunchWork,
    sources: &Sources<'_>,
    open_values: &[Range<usize>],
) -> Result<Node> {
    let LaunchWork { kernel, range, arguments, .. } = launch;
    let native = &kernel.built()?.native;
    // Without an object of its own, the kernel's arguments are set again at each replay.
    let native = native.duplicate().unwrap_or_else(|| native.clone());
    let argument = |ArgumentValue { kind, open, .. }: ArgumentValue| match (kind, open) {
        (ArgumentKind::Value(_), Some(id)) => {
            NodeArgument::Open(open_values[id.index as usize].clone())
        }
        (ArgumentKind::Value(bytes), None) => NodeArgument::Value(bytes),
        (ArgumentKind::Memory(region, _), _) => NodeArgument::Memory(sources.of(&region)),
        (ArgumentKind::Local(bytes), _) => NodeArgument::Local(bytes),
        (ArgumentKind::Sampler(sampler), _) => NodeArgument::Sampler(sampler),
    };
    let arguments = arguments.into_iter().map(argument).collect();
    Ok(Node::Launch { native, _kernel: kernel, range, arguments })
}

/// Sources of the memory of recorded commands.
struct Sources<'a> {
    placeholders: &'a [Placeholder],
    fixed: Vec<Arc<Region>>,
    input_parts: Vec<PlaceholderPart>,
    temporary_parts: Vec<PlaceholderPart>,
    /// First and last command that uses each placeholder.
    lifetimes: Vec<Option<RangeInclusive<usize>>>,
}

impl<'a> Sources<'a> {
    fn new(placeholders: &'a [Placeholder]) -> Self {
        Self {
            placeholders,
            fixed: Vec::new(),
            input_parts: Vec::new(),
            temporary_parts: Vec::new(),
            lifetimes: vec![None; placeholders.len()],
        }
    }

    /// Adds memory that the command number `command` uses.
    fn add(&mut self, command: usize, region: &Arc<Region>) -> Result<()> {
        let Some(of) = self.placeholder_of(region.allocation()) else {
            if !self.fixed.iter().any(|known| Arc::ptr_eq(known, region)) {
                // The driver's view is made now, so that no replay fails for want of it.
                region.view()?;
                self.fixed.push(region.clone());
            }
            return Ok(());
        };
        let first = self.lifetimes[of].as_ref().map_or(command, |lifetime| *lifetime.start());
        self.lifetimes[of] = Some(first..=command);
        let parts = match self.placeholders[of].is_temporary {
            true => &mut self.temporary_parts,
            false => &mut self.input_parts,
        };
        let bytes = region.bytes();
        if !parts.iter().any(|part| part.of == of && part.bytes == *bytes) {
            parts.push(PlaceholderPart { of, bytes: bytes.clone() });
        }
        Ok(())
    }

    fn placeholder_of(&self, allocation: u64) -> Option<usize> {
        self.placeholders.iter().position(|known| known.region.allocation() == allocation)
    }

    /// Returns the source of memory that was [added](Self::add).
    fn of(&self, region: &Arc<Region>) -> Source {
        let Some(of) = self.placeholder_of(region.allocation()) else {
            let at = self.fixed.iter().position(|known| Arc::ptr_eq(known, region));
            return Source::Fixed(at.expect("the memory was added"));
        };
        self.part(of, region.bytes()).expect("the part was added")
    }

    fn part(&self, of: usize, bytes: &Range<usize>) -> Option<Source> {
        let find = |parts: &[PlaceholderPart]| {
            parts.iter().position(|part| part.of == of && part.bytes == *bytes)
        };
        match self.placeholders[of].is_temporary {
            true => find(&self.temporary_parts).map(Source::Temporary),
            false => find(&self.input_parts).map(Source::Input),
        }
    }

    /// Returns an access in terms of its source; `None` for one to a temporary.
    fn planned(&self, used: Use) -> Option<PlannedUse> {
        let Use { allocation, bytes, access } = used;
        let source = match self.placeholder_of(allocation) {
            Some(of) => self.part(of, &bytes)?,
            None => {
                let same = |known: &Arc<Region>| {
                    known.allocation() == allocation && *known.bytes() == bytes
                };
                Source::Fixed(self.fixed.iter().position(same)?)
            }
        };
        let is_temporary = matches!(source, Source::Temporary(_));
        (!is_temporary).then_some(PlannedUse { source, allocation, bytes, access })
    }

    /// Creates the memory of the temporaries, if there are any.
    fn lay_out(&self, slot: &Arc<DeviceSlot>, freed: &Arc<Freed>) -> Result<Option<TemporarySets>> {
        if self.temporary_parts.is_empty() {
            return Ok(None);
        }
        let used: Vec<usize> = (0..self.placeholders.len())
            .filter(|&at| self.placeholders[at].is_temporary && self.lifetimes[at].is_some())
            .collect();
        let lifetimes: Vec<_> = used
            .iter()
            .filter_map(|&at| {
                let bytes = self.placeholders[at].region.bytes().len();
                Some((bytes, self.lifetimes[at].clone()?))
            })
            .collect();
        let layout = Layout::of(&lifetimes, slot.handle().limits.slice_alignment);
        let parts = self.temporary_parts.iter().filter_map(|part| {
            let at = used.iter().position(|&of| of == part.of)?;
            let start = layout.offsets[at] + part.bytes.start;
            Some(start..start + part.bytes.len())
        });
        let parts = parts.collect();
        TemporarySets::new(slot, freed, layout.bytes, parts).map(Some)
    }
}
