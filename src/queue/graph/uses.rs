//! Memory accesses of a replay as a whole, to memory that others can use.

use std::ops::Range;

use kiln_spirv::Access;

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
    pub(super) access: Access,
}

impl PlannedUse {
    fn covers(&self, other: &Self) -> bool {
        self.allocation == other.allocation
            && self.bytes.start <= other.bytes.start
            && other.bytes.end <= self.bytes.end
    }
}

/// Combines the accesses of commands that run one after another. Bytes that the first access overwrites are not
/// read before; all others that are both read and written count as read and written.
pub(super) fn combine(accesses: impl IntoIterator<Item = PlannedUse>) -> Vec<PlannedUse> {
    let mut combined: Vec<PlannedUse> = Vec::new();
    for access in accesses {
        let is_overwritten =
            |known: &PlannedUse| known.access == Access::Write && known.covers(&access);
        if combined.iter().any(is_overwritten) {
            continue;
        }
        let same = |known: &&mut PlannedUse| {
            known.allocation == access.allocation && known.bytes == access.bytes
        };
        match combined.iter_mut().find(same) {
            Some(known) if access.access != Access::Read => known.access = Access::ReadWrite,
            Some(_) => {}
            None => combined.push(access),
        }
    }
    combined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(allocation: u64, bytes: Range<usize>, access: Access) -> PlannedUse {
        PlannedUse { source: Source::Fixed(0), allocation, bytes, access }
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
        let all = [used(0, 16..32, Write), used(0, 0..64, ReadWrite)];
        assert_eq!(combine(all.clone()), all);
    }
}
