//! Arrays that keep what earlier stages produce for a work-item or a work-group.

use std::collections::BTreeMap;

use rspirv::spirv::StorageClass;

use super::elements::Grid;
use super::redirect::{Axis, unit};
use crate::fusion::attempt::ONCE;
use crate::fusion::form::FusionForm;
use crate::plan::Memory;

/// Range of ids around a work-item's own: the least and the largest distance in each dimension.
pub(super) type Reach = [(i128, i128); 3];

/// Array for the elements that a stage writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Array {
    pub(super) grid: Grid,
    /// Stage that writes the elements.
    pub(super) producer: usize,
    /// Index of the parameter of the stage's function.
    pub(super) parameter: usize,
    /// Distances, from the elements of a block of work, of those that the array keeps.
    pub(super) reach: Reach,
}

/// Division of the work among work-items or work-groups, and what they keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Number of elements that a work-item, or in tiles a work-group, calculates in each dimension.
    pub(super) sizes: [i128; 3],
    pub(super) class: StorageClass,
    /// Whether only the rows are kept that the next row of the result needs.
    pub(super) is_window: bool,
}

impl Blocks {
    /// Returns the blocks of a form for results with the given number of elements in each dimension; `None` for
    /// a form without arrays.
    pub(super) fn of(form: FusionForm, counts: [i128; 3]) -> Option<Self> {
        let rows = |rows: u32, is_window| {
            let mut sizes = [1; 3];
            sizes[last_dimension(counts)] = i128::from(rows);
            Some(Self { sizes, class: StorageClass::Function, is_window })
        };
        match form {
            FusionForm::Direct | FusionForm::Inlined | FusionForm::Batched => None,
            FusionForm::Tiles { width, height } => {
                let height = if counts[1] > 1 { i128::from(height) } else { 1 };
                let sizes = [i128::from(width), height, 1];
                Some(Self { sizes, class: StorageClass::Workgroup, is_window: false })
            }
            FusionForm::Strips { rows: count } => rows(count, false),
            FusionForm::Windows { rows: count } => rows(count, true),
        }
    }

    /// Returns the number of elements of an array in each dimension.
    pub(super) fn extents(&self, array: &Array) -> [i128; 3] {
        let split = last_dimension(array.grid.counts);
        std::array::from_fn(|d| {
            let (low, high) = array.reach[d];
            if self.is_window && d == split {
                // A power of two, so that the position of a row follows from the lowest bits of its number.
                return (high - low + 1).max(1).cast_unsigned().next_power_of_two().cast_signed();
            }
            self.sizes[d] + high - low
        })
    }

    /// Returns the positions of elements in an array, in units.
    pub(super) fn axes(&self, array: &Array) -> [Axis; 3] {
        let extents = self.extents(array);
        let split = last_dimension(array.grid.counts);
        let mut pitch = array.grid.size / i128::from(unit(array.grid.size));
        std::array::from_fn(|d| {
            let axis = match extents[d] {
                1 => Axis::One,
                count if self.is_window && d == split => Axis::Ring { mask: count - 1, pitch },
                _ => Axis::Moved { pitch },
            };
            pitch *= extents[d];
            axis
        })
    }

    /// Returns the number of times that the producer of an array runs for 100 of its work-items.
    pub(super) fn runs(&self, array: &Array) -> u64 {
        let dimensions = self.sizes.iter().zip(array.reach);
        let runs = dimensions.fold(i128::from(ONCE), |runs, (size, (low, high))| {
            runs.saturating_mul(size + high - low) / size
        });
        u64::try_from(runs).unwrap_or(u64::MAX)
    }

    /// Returns the number of bytes of all arrays together.
    pub(super) fn bytes(&self, arrays: &BTreeMap<Memory, Array>) -> i128 {
        let bytes = arrays.values().map(|array| {
            let extents = self.extents(array).into_iter();
            extents.fold(array.grid.size, i128::saturating_mul)
        });
        bytes.fold(0, i128::saturating_add)
    }
}

/// Returns the last dimension with more than one element.
pub(super) fn last_dimension(counts: [i128; 3]) -> usize {
    counts.iter().rposition(|&count| count > 1).unwrap_or(0)
}
