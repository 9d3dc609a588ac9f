//! Pieces in which the bytes of a region move between its device and the host.

use crate::args::region::Region;
use crate::device::{ImageBox, Rows};

/// Piece of a region. In host memory, its rows follow each other without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First byte in its row, the row, and the slice, within the region.
    start: [usize; 3],
    /// Number of bytes in a row, of rows in a slice, and of slices.
    size: [usize; 3],
    /// Number of bytes of the region before this piece, without padding.
    before: usize,
}

impl Piece {
    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.size.iter().product()
    }

    /// Returns the piece as a region of its own. `region` may also be one range of as many bytes as the region
    /// that the piece was made for.
    pub(super) fn of(&self, region: &Region) -> Region {
        let ([x, y, z], [bytes, rows, slices]) = (self.start, self.size);
        if let Some(pixels) = region.pixels() {
            let pixel = pixels.shape.format.pixel_size();
            let [left, top, front] = pixels.origin;
            let origin = [left + x / pixel, top + y, front + z];
            region.part(ImageBox { origin, size: [bytes / pixel, rows, slices], ..*pixels })
        } else if let Some(whole) = region.rows() {
            let offset = whole.offset + z * whole.slice_pitch + y * whole.row_pitch + x;
            region.rows_of(Rows { offset, bytes, rows, slices, ..*whole })
        } else {
            let start = region.bytes().start + self.before;
            region.slice(start..start + self.bytes())
        }
    }
}

/// Returns the pieces of a copy between two regions with equally many bytes, of which at least one is a single
/// range or both have the same sizes. A piece has at most `max` bytes, a multiple of the size of all pixels.
pub(super) fn pieces_of(regions: [&Region; 2], max: usize) -> impl Iterator<Item = Piece> + use<> {
    let [one, other] = regions.map(size_of_region);
    pieces(if one[1..] == [1, 1] { other } else { one }, max)
}

/// Returns the number of bytes in a row of the region, of rows in a slice, and of slices.
fn size_of_region(region: &Region) -> [usize; 3] {
    match (region.pixels(), region.rows()) {
        (Some(pixels), _) => {
            let [width, height, depth] = pixels.size;
            [width * pixels.shape.format.pixel_size(), height, depth]
        }
        (None, Some(rows)) => rows.size(),
        (None, None) => [region.bytes().len(), 1, 1],
    }
}

/// Returns the pieces of slices of rows: groups of whole slices if these are small enough, else groups of whole
/// rows, else parts of rows.
fn pieces(size: [usize; 3], max: usize) -> impl Iterator<Item = Piece> {
    let [bytes, rows, _] = size;
    let step = if bytes * rows <= max {
        [bytes, rows, max / (bytes * rows)]
    } else if bytes <= max {
        [bytes, max / bytes, 1]
    } else {
        [max, 1, 1]
    };
    let starts = [0, 1, 2].map(|i| (0..size[i]).step_by(step[i]));
    let [columns, rows_of_slice, slices] = starts;
    let in_slice = move |z| {
        let columns = columns.clone();
        rows_of_slice.clone().flat_map(move |y| columns.clone().map(move |x| [x, y, z]))
    };
    slices.flat_map(in_slice).map(move |start| {
        let [x, y, z] = start;
        let size = std::array::from_fn(|i| step[i].min(size[i] - start[i]));
        Piece { start, size, before: (z * rows + y) * bytes + x }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_are_all_bytes_in_order(
            size in [1usize..40, 1usize..9, 1usize..9],
            max in 1usize..100,
        ) {
            let mut end = 0;
            for piece in pieces(size, max) {
                prop_assert!(piece.bytes() <= max, "{piece:?}");
                prop_assert_eq!(piece.before, end);
                let [x, y, z] = piece.start;
                prop_assert_eq!(piece.before, (z * size[1] + y) * size[0] + x);
                // Without padding, the piece is one range.
                let is_part_of_row = piece.size[1..] == [1, 1];
                let is_part_of_slice = piece.size[0] == size[0] && piece.size[2] == 1;
                prop_assert!(is_part_of_row || is_part_of_slice || piece.size[..2] == size[..2]);
                end += piece.bytes();
            }
            prop_assert_eq!(end, size.iter().product::<usize>());
        }
    }
}
