//! Preparation of recorded commands: finds the memory that each uses, and lays out the temporaries.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use kiln_spirv::Access;

use super::lists::CommandLists;
use super::plan::{Node, NodeArgument, PlaceholderPart, Plan};
use super::recorded::{Recorded, RecordedCommand};
use super::temporaries::{Layout, TemporarySets};
use super::uses::{PlannedUse, Source, combine};
use crate::args::region::{Freed, Region};
use crate::args::{ArgumentKind, ArgumentValue};
use crate::backend::DeviceSlot;
use crate::error::Result;
use crate::queue::check_counts::CheckCounts;
use crate::queue::handle::Queue;
use crate::queue::hazard::Use;
use crate::queue::launch_work::LaunchWork;

/// Prepares commands, which are those of a recording or run in place of them. Calls the driver, which may block.
/// `needs_apart` is whether launches can be fused, so that the memory that must be apart for that is needed.
///
/// # Errors
///
/// [`OutOfResources`](crate::ErrorKind::OutOfResources) if the device lacks the memory for the temporaries, and
/// the errors of the driver.
pub(super) fn prepare(
    queue: &Queue,
    recorded: &Recorded,
    commands: &[RecordedCommand],
    needs_apart: bool,
) -> Result<Plan> {
    let mut launches = commands.iter().filter_map(RecordedCommand::launch);
    let is_checked = launches.any(LaunchWork::is_checked);
    let mut sources = Sources::new(recorded);
    let mut nodes = Vec::with_capacity(commands.len());
    for (at, command) in commands.iter().enumerate() {
        for region in command.regions() {
            sources.add(at, region)?;
        }
        nodes.push(node(command, &sources)?);
    }
    // A fused kernel accesses memory as the launches that it replaces do, which may differ in that.
    let accesses = recorded.commands.iter().flat_map(RecordedCommand::uses);
    let uses = combine(accesses.filter_map(|used| sources.planned(used)));
    let (slot, freed) = (queue.scheduler.slot(), queue.scheduler.freed());
    let temporaries = sources.lay_out(slot, freed)?;
    let Sources { fixed, input_parts, .. } = sources;
    let copied = copied(&nodes);
    let apart = match is_checked || needs_apart {
        true => apart(&uses, &input_parts, fixed.len()),
        false => Vec::new(),
    };
    Ok(Plan {
        lists: CommandLists::default(),
        nodes: nodes.into(),
        input_parts: input_parts.into(),
        fixed: fixed.into(),
        temporaries,
        copied: copied.into(),
        apart: apart.into(),
        is_checked,
        checks: CheckCounts::of(recorded.commands.iter().filter_map(RecordedCommand::launch)),
        uses: uses.into(),
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

/// Returns a command in the form in which it is enqueued.
fn node(command: &RecordedCommand, sources: &Sources<'_>) -> Result<Node> {
    Ok(match command {
        RecordedCommand::Launch(launch) => launch_node(launch, sources)?,
        RecordedCommand::Fill { region, pattern } => {
            Node::Fill { to: sources.of(region), pattern: pattern.clone() }
        }
        RecordedCommand::Copy { from, to } => {
            Node::Copy { from: sources.of(from), to: sources.of(to) }
        }
    })
}

fn launch_node(launch: &LaunchWork, sources: &Sources<'_>) -> Result<Node> {
    let LaunchWork { kernel, range, arguments, .. } = launch;
    let native = &kernel.built()?.native;
    // Without an object of its own, the kernel's arguments are set again at each replay.
    let native = native.duplicate().unwrap_or_else(|| native.clone());
    let argument = |ArgumentValue { kind, open, .. }: &ArgumentValue| match (kind, open) {
        (ArgumentKind::Value(_), Some(id)) => {
            NodeArgument::Open(sources.recorded.open_values[id.index as usize].clone())
        }
        (ArgumentKind::Value(bytes), None) => NodeArgument::Value(bytes.clone()),
        (ArgumentKind::Memory(region, _), _) => NodeArgument::Memory(sources.of(region)),
        (ArgumentKind::Local(bytes), _) => NodeArgument::Local(*bytes),
        (ArgumentKind::Sampler(sampler), _) => NodeArgument::Sampler(*sampler),
    };
    let arguments = arguments.iter().map(argument).collect();
    Ok(Node::Launch { native, kernel: kernel.clone(), range: *range, arguments })
}

/// Sources of the memory of recorded commands.
struct Sources<'a> {
    recorded: &'a Recorded,
    fixed: Vec<Arc<Region>>,
    input_parts: Vec<PlaceholderPart>,
    temporary_parts: Vec<PlaceholderPart>,
    /// First and last command that uses each placeholder.
    lifetimes: Vec<Option<RangeInclusive<usize>>>,
}

impl<'a> Sources<'a> {
    fn new(recorded: &'a Recorded) -> Self {
        Self {
            recorded,
            fixed: Vec::new(),
            input_parts: Vec::new(),
            temporary_parts: Vec::new(),
            lifetimes: vec![None; recorded.placeholders.len()],
        }
    }

    /// Adds memory that the command number `command` uses.
    fn add(&mut self, command: usize, region: &Arc<Region>) -> Result<()> {
        let Some(of) = self.recorded.placeholder_of(region.allocation()) else {
            if !self.fixed.iter().any(|known| Arc::ptr_eq(known, region)) {
                // The driver's view is made now, so that no replay fails for want of it.
                region.view()?;
                self.fixed.push(region.clone());
            }
            return Ok(());
        };
        let first = self.lifetimes[of].as_ref().map_or(command, |lifetime| *lifetime.start());
        self.lifetimes[of] = Some(first..=command);
        let parts = match self.recorded.placeholders[of].is_temporary {
            true => &mut self.temporary_parts,
            false => &mut self.input_parts,
        };
        let bytes = region.bytes();
        if !parts.iter().any(|part| part.of == of && part.bytes == *bytes) {
            parts.push(PlaceholderPart { of, bytes: bytes.clone() });
        }
        Ok(())
    }

    /// Returns the source of memory that was [added](Self::add).
    fn of(&self, region: &Arc<Region>) -> Source {
        let Some(of) = self.recorded.placeholder_of(region.allocation()) else {
            let at = self.fixed.iter().position(|known| Arc::ptr_eq(known, region));
            return Source::Fixed(at.expect("the memory was added"));
        };
        self.part(of, region.bytes()).expect("the part was added")
    }

    fn part(&self, of: usize, bytes: &Range<usize>) -> Option<Source> {
        let find = |parts: &[PlaceholderPart]| {
            parts.iter().position(|part| part.of == of && part.bytes == *bytes)
        };
        match self.recorded.placeholders[of].is_temporary {
            true => find(&self.temporary_parts).map(Source::Temporary),
            false => find(&self.input_parts).map(Source::Input),
        }
    }

    /// Returns an access in terms of its source; `None` for one to a temporary, or to memory that was not
    /// [added](Self::add).
    fn planned(&self, used: Use) -> Option<PlannedUse> {
        let Use { allocation, bytes, access } = used;
        let source = match self.recorded.placeholder_of(allocation) {
            Some(of) => self.part(of, &bytes)?,
            None => {
                let same = |known: &Arc<Region>| {
                    known.allocation() == allocation && *known.bytes() == bytes
                };
                Source::Fixed(self.fixed.iter().position(same)?)
            }
        };
        let (is_temporary, start) = (matches!(source, Source::Temporary(_)), bytes.start);
        (!is_temporary).then_some(PlannedUse { source, allocation, bytes, start, access })
    }

    /// Creates the memory of the temporaries, if there are any.
    fn lay_out(&self, slot: &Arc<DeviceSlot>, freed: &Arc<Freed>) -> Result<Option<TemporarySets>> {
        if self.temporary_parts.is_empty() {
            return Ok(None);
        }
        let used: Vec<usize> = (0..self.recorded.placeholders.len())
            .filter(|&at| {
                self.recorded.placeholders[at].is_temporary && self.lifetimes[at].is_some()
            })
            .collect();
        let lifetimes: Vec<_> = used
            .iter()
            .filter_map(|&at| {
                let bytes = self.recorded.placeholders[at].region.bytes().len();
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
