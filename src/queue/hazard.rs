//! Hazard tracking: for each byte of each allocation, the command that wrote it last and the commands
//! that have read it since. The edges of the command DAG follow from it: read after write, write after
//! read, write after write.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::RandomState;
use kiln_spirv::Access;
use smallvec::SmallVec;

use super::node::{EdgeKind, NodeId};
use crate::args::region::Region;
use crate::error::Error;

/// Byte range of an allocation, and how a command accesses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// Number of the allocation, never reused.
    pub(crate) allocation: u64,
    /// Range of bytes, not empty.
    pub(crate) bytes: Range<usize>,
    pub(crate) access: Access,
}

/// Byte ranges that a command accesses.
pub(crate) type Uses = SmallVec<[Use; 4]>;

impl Use {
    /// Returns the access to a whole region.
    pub(crate) fn of(region: &Region, access: Access) -> Self {
        Self { allocation: region.allocation(), bytes: region.bytes().clone(), access }
    }

    /// Returns the access of a command that overwrites a region.
    pub(crate) fn overwriting(region: &Region) -> Self {
        Self::of(region, region.access_of_write())
    }

    /// Returns whether two commands with these uses must run one after the other.
    pub(crate) fn orders(&self, other: &Self) -> bool {
        self.touches(other) && (self.access != Access::Read || other.access != Access::Read)
    }

    /// Returns whether the two have bytes in common.
    pub(crate) fn touches(&self, other: &Self) -> bool {
        self.allocation == other.allocation
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }

    /// Returns whether this use overwrites all of these bytes.
    pub(crate) fn replaces(&self, allocation: u64, bytes: &Range<usize>) -> bool {
        self.allocation == allocation
            && self.access != Access::Read
            && self.bytes.start <= bytes.start
            && bytes.end <= self.bytes.end
    }
}

/// State of the last command that wrote a segment.
#[derive(Clone, Debug)]
enum Writer {
    /// No command wrote the segment, or none that still matters.
    None,
    Command(NodeId),
    /// The command failed: the contents of the segment must not be read.
    Failed(Error),
    /// A fused kernel does not write these bytes, as its scope allows.
    Lost(Lost),
}

/// Contents that a fused kernel leaves out. A command that only reads them fails; a command that may write them counts
/// as their next writer.
#[derive(Clone, Copy, Debug)]
struct Lost {
    /// Command that wrote the bytes before, if there is one.
    before: Option<NodeId>,
    /// Command that does without them. If it fails, they count as its own.
    by: NodeId,
    /// Error of a command that reads them.
    root: &'static Error,
}

impl Writer {
    /// Returns the error to drop outside the lock, if there is one.
    fn error(self) -> Option<Error> {
        match self {
            Self::None | Self::Command(_) | Self::Lost(_) => None,
            Self::Failed(root) => Some(root),
        }
    }
}

/// Bytes of an allocation that the same commands wrote and read.
#[derive(Clone, Debug)]
struct Segment {
    bytes: Range<usize>,
    writer: Writer,
    /// Commands that have read the segment since it was written.
    readers: SmallVec<[NodeId; 2]>,
    /// Number of readers at which those that have completed are next removed.
    prune_at: usize,
}

impl Segment {
    fn new(bytes: Range<usize>) -> Self {
        Self { bytes, writer: Writer::None, readers: SmallVec::new(), prune_at: FEW_READERS }
    }

    /// Returns whether an access to the segment would come after no command for which `blocks` holds, and
    /// would not fail.
    fn is_clear(&self, access: Access, blocks: impl Fn(NodeId) -> bool) -> bool {
        let is_writer_clear = match self.writer {
            Writer::None => true,
            Writer::Command(writer) => !blocks(writer),
            Writer::Failed(_) => access == Access::Write,
            Writer::Lost(Lost { before, by, .. }) => {
                access != Access::Read && !before.is_some_and(&blocks) && !blocks(by)
            }
        };
        let mut readers = self.readers.iter();
        is_writer_clear && (access == Access::Read || !readers.any(|reader| blocks(*reader)))
    }
}

/// Segments of one allocation: sorted, disjoint, none empty. Bytes outside all segments are not used by
/// any live command.
#[derive(Debug)]
struct History {
    segments: SmallVec<[Segment; 1]>,
    /// Number of segments at which unused ones are next removed.
    prune_at: usize,
}

impl Default for History {
    fn default() -> Self {
        Self { segments: SmallVec::new(), prune_at: FEW_SEGMENTS }
    }
}

/// Number of segments below which unused ones are not searched for.
const FEW_SEGMENTS: usize = 64;

/// Number of readers of a segment below which completed ones are not searched for.
const FEW_READERS: usize = 16;

/// Histories of all allocations of a device.
#[derive(Debug, Default)]
pub(crate) struct Hazards {
    histories: HashMap<u64, History, RandomState>,
    /// Errors that are no longer used here. An application's errors may run its code when they are
    /// dropped. That must not happen under the lock, so the caller drops them after unlocking.
    retired: Vec<Error>,
}

/// Callbacks for the conflicts that a new command's uses have with earlier commands.
pub(crate) trait ConflictVisitor {
    /// Returns whether the command has neither completed nor been forgotten.
    fn is_live(&self, id: NodeId) -> bool;
    /// Adds an edge from `on` to the new command. May be called several times with the same command.
    fn depend(&mut self, on: NodeId, kind: EdgeKind);
    /// Called if the new command reads bytes that a failed one should have written.
    fn fail(&mut self, root: &Error);
}

impl Hazards {
    /// Records that `id` makes this use, and reports its dependencies to `conflicts`.
    pub(crate) fn touch(&mut self, id: NodeId, used: &Use, conflicts: &mut impl ConflictVisitor) {
        let history = self.histories.entry(used.allocation).or_default();
        history.prune(conflicts);
        let covered = history.isolate(&used.bytes);
        let writer_edge = match used.access {
            Access::Read | Access::ReadWrite => EdgeKind::Data,
            Access::Write => EdgeKind::Order,
        };
        let segments = &mut history.segments[..];
        for segment in &mut segments[covered.clone()] {
            match &segment.writer {
                Writer::None => {}
                Writer::Command(writer) => conflicts.depend(*writer, writer_edge),
                Writer::Failed(root) if writer_edge == EdgeKind::Data => conflicts.fail(root),
                Writer::Failed(_) => {}
                Writer::Lost(Lost { before, by, root }) => {
                    if let Some(before) = before {
                        conflicts.depend(*before, EdgeKind::Order);
                    }
                    match used.access {
                        Access::Read => conflicts.fail(root),
                        Access::ReadWrite => conflicts.depend(*by, EdgeKind::Data),
                        Access::Write => {}
                    }
                }
            }
            if used.access == Access::Read {
                if segment.readers.len() >= segment.prune_at {
                    segment.readers.retain(|reader| conflicts.is_live(*reader));
                    segment.prune_at = (segment.readers.len() * 2).max(FEW_READERS);
                }
                segment.readers.push(id);
            } else {
                for &reader in &segment.readers {
                    conflicts.depend(reader, EdgeKind::Order);
                }
                segment.readers.clear();
                let before = std::mem::replace(&mut segment.writer, Writer::Command(id));
                self.retired.extend(before.error());
            }
        }
        if used.access != Access::Read {
            let written = &mut segments[covered.start];
            written.bytes.end = used.bytes.end;
            if written.readers.spilled() {
                written.readers.shrink_to_fit();
            }
            written.prune_at = FEW_READERS;
            if covered.len() > 1 {
                history.segments.drain(covered.start + 1..covered.end);
            }
        }
    }

    /// Returns whether a command with these uses would come after no command for which `blocks` holds, and
    /// would not fail. The uses within one list happen at once, and the lists one after another.
    pub(crate) fn are_clear(
        &self,
        uses: &[impl AsRef<[Use]>],
        blocks: impl Fn(NodeId) -> bool,
    ) -> bool {
        let is_clear = |at: usize, used: &Use| {
            let Some(history) = self.histories.get(&used.allocation) else { return true };
            let from = history.index_of(used.bytes.start);
            let segments = history.segments[from..].iter();
            let mut segments = segments.take_while(|segment| segment.bytes.start < used.bytes.end);
            segments.all(|segment| segment.is_clear(used.access, &blocks))
                || uses[..at]
                    .iter()
                    .flat_map(AsRef::as_ref)
                    .any(|earlier| earlier.replaces(used.allocation, &used.bytes))
        };
        (0..uses.len()).all(|at| uses[at].as_ref().iter().all(|used| is_clear(at, used)))
    }

    /// Records that `id`, which made this use or did without it, failed: what it was to write must not be read, wherever
    /// no other command has written since.
    pub(crate) fn writer_failed(&mut self, id: NodeId, used: &Use, root: &Error) {
        let Some(history) = self.histories.get_mut(&used.allocation) else { return };
        for segment in &mut history.segments {
            let is_own = match segment.writer {
                Writer::None | Writer::Failed(_) => false,
                Writer::Command(writer) => writer == id,
                Writer::Lost(Lost { before, by, .. }) => by == id || before == Some(id),
            };
            if is_own {
                segment.writer = Writer::Failed(root.clone());
            }
        }
    }

    /// Calls `visit` with the last writers of the bytes that a use reads.
    pub(crate) fn writers_of(&self, used: &Use, mut visit: impl FnMut(NodeId)) {
        let Some(history) = self.histories.get(&used.allocation) else { return };
        if used.access == Access::Write {
            return;
        }
        let from = history.index_of(used.bytes.start);
        let segments = history.segments[from..].iter();
        for segment in segments.take_while(|segment| segment.bytes.start < used.bytes.end) {
            if let Writer::Command(writer) = segment.writer {
                visit(writer);
            }
        }
    }

    /// Calls `visit` with the last writers of the bytes that commands with these uses, in order, would
    /// read.
    pub(crate) fn writers_before(&mut self, uses: &[Use], mut visit: impl FnMut(NodeId)) {
        for (at, used) in uses.iter().enumerate() {
            let Some(history) = self.histories.get_mut(&used.allocation) else { continue };
            let covered = history.isolate(&used.bytes);
            for segment in &history.segments[covered] {
                let Writer::Command(writer) = segment.writer else { continue };
                // Each segment lies either entirely within an earlier use or entirely outside it.
                let is_replaced = || {
                    uses[..at]
                        .iter()
                        .any(|earlier| earlier.replaces(used.allocation, &segment.bytes))
                };
                if used.access != Access::Write && !is_replaced() {
                    visit(writer);
                }
            }
        }
    }

    /// Marks bytes as lost that the command `by` does not write, although the commands that it replaces would
    /// have written them. Their earlier contents are lost, too. The next writer still comes after the
    /// commands that used them.
    pub(crate) fn invalidate(&mut self, by: NodeId, used: &Use, root: &'static Error) {
        let history = self.histories.entry(used.allocation).or_default();
        let covered = history.isolate(&used.bytes);
        for segment in &mut history.segments[covered] {
            let before = match segment.writer {
                Writer::None | Writer::Failed(_) => None,
                Writer::Command(writer) => Some(writer),
                Writer::Lost(Lost { before, .. }) => before,
            };
            let lost = Writer::Lost(Lost { before, by, root });
            let replaced = std::mem::replace(&mut segment.writer, lost);
            self.retired.extend(replaced.error());
        }
    }

    /// Marks what these commands wrote to the allocation as lost.
    pub(crate) fn invalidate_writes(
        &mut self,
        allocation: u64,
        writers: &[NodeId],
        root: &'static Error,
    ) {
        let Some(history) = self.histories.get_mut(&allocation) else { return };
        for segment in &mut history.segments {
            if let Writer::Command(writer) = segment.writer
                && writers.contains(&writer)
            {
                segment.writer = Writer::Lost(Lost { before: Some(writer), by: writer, root });
            }
        }
    }

    /// Takes back that what a command writes is lost, because it runs by itself. `used` is one of its uses.
    pub(crate) fn restore_writes(&mut self, writer: NodeId, used: &Use) {
        let Some(history) = self.histories.get_mut(&used.allocation) else { return };
        for segment in &mut history.segments {
            if matches!(segment.writer, Writer::Lost(Lost { by, .. }) if by == writer) {
                segment.writer = Writer::Command(writer);
            }
        }
    }

    /// Forgets an allocation that was freed; no command can use it any more.
    pub(crate) fn forget(&mut self, allocation: u64) {
        let history = self.histories.remove(&allocation);
        let segments = history.into_iter().flat_map(|history| history.segments);
        self.retired.extend(segments.filter_map(|segment| segment.writer.error()));
    }

    /// Queues an error to be dropped by the caller of [`take_retired`](Self::take_retired).
    pub(crate) fn retire(&mut self, error: Error) {
        self.retired.push(error);
    }

    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    pub(crate) fn take_retired(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.retired)
    }
}

impl History {
    /// Removes the segments that no live command wrote or read and whose contents are not missing.
    fn prune(&mut self, conflicts: &impl ConflictVisitor) {
        if self.segments.len() < self.prune_at {
            return;
        }
        self.segments.retain(|segment| {
            let written = match segment.writer {
                Writer::None => false,
                Writer::Command(writer) => conflicts.is_live(writer),
                Writer::Failed(_) | Writer::Lost(_) => true,
            };
            written || segment.readers.iter().any(|reader| conflicts.is_live(*reader))
        });
        self.prune_at = (self.segments.len() * 2).max(FEW_SEGMENTS);
    }

    /// Splits and adds segments so that they cover `bytes` exactly. Returns the indexes of the covering
    /// segments.
    #[inline]
    fn isolate(&mut self, bytes: &Range<usize>) -> Range<usize> {
        // The usual case: all commands use the same range.
        match &self.segments[..] {
            [segment] if segment.bytes == *bytes => 0..1,
            _ => self.isolate_among_others(bytes),
        }
    }

    fn isolate_among_others(&mut self, bytes: &Range<usize>) -> Range<usize> {
        let start = self.index_of(bytes.start);
        // An earlier command used the same range.
        if self.segments.get(start).is_some_and(|segment| segment.bytes == *bytes) {
            return start..start + 1;
        }
        self.split_at(bytes.start);
        self.split_at(bytes.end);
        let start = self.index_of(bytes.start);
        let mut index = start;
        let mut at = bytes.start;
        while at < bytes.end {
            let next = self
                .segments
                .get(index)
                .map_or(bytes.end, |segment| segment.bytes.start.min(bytes.end));
            if at < next {
                self.segments.insert(index, Segment::new(at..next));
            }
            at = self.segments[index].bytes.end;
            index += 1;
        }
        start..index
    }

    /// Returns the index of the first segment that ends after `at`.
    fn index_of(&self, at: usize) -> usize {
        self.segments.partition_point(|segment| segment.bytes.end <= at)
    }

    /// Splits the segment that contains the byte before `at` and the byte at `at`, if there is one.
    fn split_at(&mut self, at: usize) {
        let index = self.index_of(at);
        let Some(segment) = self.segments.get_mut(index) else { return };
        if segment.bytes.start < at {
            let mut tail = segment.clone();
            segment.bytes.end = at;
            tail.bytes.start = at;
            self.segments.insert(index + 1, tail);
        }
    }
}
