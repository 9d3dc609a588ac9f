//! Rows of bytes at regular distances: a rectangle or a box of a buffer.

use std::ops::Range;

/// Rows of bytes in memory, of equal lengths and at regular distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// First byte.
    pub(crate) offset: usize,
    /// Number of bytes in a row.
    pub(crate) bytes: usize,
    /// Number of rows in a slice.
    pub(crate) rows: usize,
    /// Number of slices.
    pub(crate) slices: usize,
    /// Distance from one row to the next in bytes, at least `bytes`.
    pub(crate) row_pitch: usize,
    /// Distance from one slice to the next in bytes, at least `rows * row_pitch`.
    pub(crate) slice_pitch: usize,
}

impl Rows {
    /// Returns as many rows from `offset` on that follow each other without padding.
    pub(crate) fn packed(self, offset: usize) -> Self {
        let slice_pitch = self.bytes * self.rows;
        Self { offset, row_pitch: self.bytes, slice_pitch, ..self }
    }

    /// Returns whether the rows follow each other without padding.
    pub(crate) fn is_packed(&self) -> bool {
        let are_rows_packed = self.row_pitch == self.bytes || self.rows == 1;
        are_rows_packed && (self.slices == 1 || self.slice_pitch == self.bytes * self.rows)
    }

    /// Returns the number of bytes in all rows.
    pub(crate) fn total(&self) -> usize {
        self.bytes * self.rows * self.slices
    }

    /// Returns the range from the first byte of the first row to the last byte of the last row.
    pub(crate) fn range(&self) -> Range<usize> {
        let last = (self.slices - 1) * self.slice_pitch + (self.rows - 1) * self.row_pitch;
        self.offset..self.offset + last + self.bytes
    }

    /// Returns the number of bytes, rows and slices.
    pub(crate) fn size(&self) -> [usize; 3] {
        [self.bytes, self.rows, self.slices]
    }

    /// Returns the distances from row to row and from slice to slice.
    pub(crate) fn pitches(&self) -> [usize; 2] {
        [self.row_pitch, self.slice_pitch]
    }

    /// Returns the range of each row, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Self { offset, bytes, rows, slices, row_pitch, slice_pitch } = *self;
        (0..slices).flat_map(move |slice| {
            (0..rows).map(move |row| {
                let start = offset + slice * slice_pitch + row * row_pitch;
                start..start + bytes
            })
        })
    }

    /// Returns whether two sets of rows of the same memory have bytes in common.
    pub(crate) fn overlap(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.iter().peekable(), other.iter().peekable());
        while let (Some(our), Some(their)) = (ours.peek(), theirs.peek()) {
            if our.start < their.end && their.start < our.end {
                return true;
            }
            // The one that ends first overlaps none of the later rows.
            if our.end <= their.start {
                ours.next()
            } else {
                theirs.next()
            };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(offset: usize, [bytes, rows, slices]: [usize; 3]) -> Rows {
        Rows { offset, bytes, rows, slices, row_pitch: 10, slice_pitch: 60 }
    }

    #[test]
    fn rows_overlap_only_if_they_have_bytes_in_common() {
        let left = rows(0, [5, 6, 2]);
        assert!(!left.overlap(&rows(5, [5, 6, 2])), "the other half of each row");
        assert!(left.overlap(&rows(4, [1, 6, 2])), "the last byte of each row");
        assert!(left.overlap(&rows(114, [1, 1, 1])), "the last byte of the last row");
        assert!(!left.overlap(&rows(115, [1, 1, 1])), "the byte after it");
        assert!(!left.overlap(&rows(120, [5, 1, 1])), "the slice after it");
        assert!(left.overlap(&left.packed(0)) && left.overlap(&left.packed(50)));
    }

    #[test]
    fn only_rows_without_padding_are_packed() {
        assert!(rows(3, [10, 6, 2]).is_packed() && rows(3, [4, 1, 1]).is_packed());
        assert!(rows(0, [10, 3, 1]).is_packed() && rows(7, [2, 3, 4]).packed(1).is_packed());
        assert!(!rows(0, [9, 2, 1]).is_packed() && !rows(0, [10, 5, 2]).is_packed());
        assert!(!rows(0, [10, 1, 2]).is_packed());
    }

    #[test]
    fn the_range_covers_all_rows() {
        assert_eq!(rows(3, [4, 2, 2]).range(), 3..3 + 60 + 10 + 4);
        let all: Vec<_> = rows(3, [4, 2, 2]).iter().collect();
        assert_eq!(all, [3..7, 13..17, 63..67, 73..77]);
        assert_eq!(rows(3, [4, 2, 2]).total(), 16);
    }
}
