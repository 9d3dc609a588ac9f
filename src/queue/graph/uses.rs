//! Memory accesses of a replay as a whole, to memory that others can use.

use std::ops::Range;

use kiln_spirv::Access;

use crate::args::region::Region;
use crate::queue::hazard::Use;

/// Memory that a recorded command uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Memory that is the same in all replays.
    Fixed(usize),
    /// Part of an input, as an index among these parts.
    Input(usize),
    /// Part of a temporary, as an index among these parts.
    Temporary(usize),
}

/// Access of a graph's commands to a range of bytes, or of one command among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedUse {
    pub(super) source: Source,
    /// Identity of the memory, or of the placeholder.
    pub(super) allocation: u64,
    /// Range of bytes within it.
    pub(super) bytes: Range<usize>,
    /// Start of the source within it.
    pub(super) start: usize,
    pub(super) access: Access,
}

impl PlannedUse {
    /// Returns the access of a replay whose source is this region.
    pub(super) fn of(&self, region: &Region) -> Use {
        let at = |byte: usize| region.bytes().start + (byte - self.start);
        let bytes = at(self.bytes.start)..at(self.bytes.end);
        Use { allocation: region.allocation(), bytes, access: self.access }
    }
}

/// Combines the accesses of commands that run one after another. Bytes that an earlier access overwrites need nothing of
/// what was there before; all others that are both read and written count as read and written.
pub(super) fn combine(accesses: impl IntoIterator<Item = PlannedUse>) -> Vec<PlannedUse> {
    let mut combined: Vec<PlannedUse> = Vec::new();
    for access in accesses {
        let mut needed = vec![access.bytes.clone()];
        let of_same = |known: &&PlannedUse| known.allocation == access.allocation;
        for known in combined.iter().filter(of_same).filter(|known| known.access == Access::Write) {
            needed = needed.into_iter().flat_map(|bytes| without(bytes, &known.bytes)).collect();
        }
        for bytes in needed {
            let is_same = |known: &&mut PlannedUse| {
                known.allocation == access.allocation && known.bytes == bytes
            };
            match combined.iter_mut().find(is_same) {
                Some(known) if access.access != Access::Read => known.access = Access::ReadWrite,
                Some(_) => {}
                None => combined.push(PlannedUse { bytes, ..access.clone() }),
            }
        }
    }
    combined
}

/// Returns the parts of a range before and after another one, if they are not empty.
fn without(
    bytes: Range<usize>,
    other: &Range<usize>,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let before = bytes.start..bytes.end.min(other.start);
    let after = bytes.start.max(other.end)..bytes.end;
    [before, after].into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(allocation: u64, bytes: Range<usize>, access: Access) -> PlannedUse {
        PlannedUse { source: Source::Fixed(0), allocation, bytes, start: 0, access }
    }

    #[test]
    fn the_first_access_decides_what_a_replay_needs() {
        use Access::{Read, ReadWrite, Write};
        let combined = |accesses: &[Access]| {
            let all = combine(accesses.iter().map(|&access| used(0, 0..64, access)));
            all.into_iter().map(|used| used.access).collect::<Vec<_>>()
        };
        assert_eq!(combined(&[Read, Read]), [Read]);
        assert_eq!(combined(&[Read, Write]), [ReadWrite]);
        assert_eq!(combined(&[ReadWrite, Read]), [ReadWrite]);
        assert_eq!(combined(&[Write, Read, ReadWrite]), [Write]);
    }

    #[test]
    fn parts_of_overwritten_bytes_need_nothing() {
        use Access::{Read, ReadWrite, Write};
        let all = [used(0, 0..64, Write), used(0, 16..32, Read), used(1, 16..32, Read)];
        assert_eq!(combine(all.clone()), [all[0].clone(), all[2].clone()]);
        let parts = [used(0, 16..32, Write), used(0, 0..16, ReadWrite), used(0, 32..64, ReadWrite)];
        assert_eq!(combine([parts[0].clone(), used(0, 0..64, ReadWrite)]), parts);
        let halves = [used(0, 0..32, Write), used(0, 32..64, Write)];
        let read = [used(0, 0..64, Read), used(0, 8..40, ReadWrite)];
        assert_eq!(combine(halves.iter().chain(&read).cloned()), halves);
    }
}
