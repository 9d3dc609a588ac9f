//! Lines: the part of a value that is the same in all evaluations in a work-item.

use super::steps::{Strided, gcd};
use super::{Id, Space};

/// Sum of multiples of a work-item's ids, and of the parts of a divided id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    /// Coefficients of the ids, by [`Id`] and dimension.
    pub(super) ids: [[i128; 3]; 5],
    pub(super) split: Option<Split>,
}

/// Sum `row * (n / width) + column * (n % width)`, where `n` is a global id plus `shift`, and not
/// negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Split {
    pub(super) dimension: usize,
    pub(super) shift: i128,
    pub(super) width: i128,
    pub(super) row: i128,
    pub(super) column: i128,
}

impl Split {
    /// Returns whether the quotients and remainders are those of the same division.
    fn is_same_division(&self, other: &Self) -> bool {
        let division = |split: &Self| (split.dimension, split.shift, split.width);
        division(self) == division(other)
    }

    /// Returns the least and the largest quotient, and the largest remainder.
    fn ends(&self, space: &Space) -> (i128, i128, i128) {
        let (first, last) = space.bounds(Id::Global, self.dimension);
        let (first, last) = (first.saturating_add(self.shift), last.saturating_add(self.shift));
        (first / self.width, last / self.width, last.min(self.width - 1).max(0))
    }
}

impl Line {
    pub(crate) const ZERO: Self = Self { ids: [[0; 3]; 5], split: None };

    pub(crate) const fn of_id(id: Id, dimension: usize) -> Self {
        let mut line = Self::ZERO;
        line.ids[id as usize][dimension] = 1;
        line
    }

    pub(super) const fn of_split(split: Split) -> Self {
        Self { split: Some(split), ..Self::ZERO }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.split.is_none() && self.ids == [[0; 3]; 5]
    }

    /// Returns the ids whose factors are not 0, with their dimensions and factors.
    pub(crate) fn factors(&self) -> impl Iterator<Item = (Id, usize, i128)> + '_ {
        let ids = Id::ALL.into_iter().flat_map(|id| (0..3).map(move |d| (id, d)));
        let factors = ids.map(|(id, d)| (id, d, self.ids[id as usize][d]));
        factors.filter(|&(_, _, factor)| factor != 0)
    }

    /// Returns all numbers of the line.
    pub(super) fn numbers(&self) -> impl Iterator<Item = i128> + '_ {
        let split = self.split.map_or([0; 3], |split| [split.row, split.column, split.shift]);
        self.ids.iter().flatten().copied().chain(split)
    }

    /// Returns the part of the line that depends on the work-group, as a line of the work-group's ids. The
    /// global id counts as the work-group's id times the size of work-groups, plus the local id and the
    /// offset. Returns `None` if the size of work-groups is not known, or a number is too large.
    pub(super) fn of_groups(&self, space: &Space) -> Option<Self> {
        let local = space.local?;
        let mut line = Self::ZERO;
        for d in 0..3 {
            let [global, _, group, ..] = self.ids.map(|factors| factors[d]);
            line.ids[Id::Group as usize][d] = global.checked_mul(local[d])?.checked_add(group)?;
        }
        Some(line)
    }

    /// Returns the bounds of the line in all work-items.
    pub(super) fn bounds(&self, space: &Space) -> (i128, i128) {
        let (low, high) = self.bounds_of_parts(space);
        match self.in_rows_and_columns() {
            Some((line, constant)) => {
                let (least, most) = line.bounds_of_parts(space);
                let moved = |end: i128| end.saturating_add(constant);
                (low.max(moved(least)), high.min(moved(most)))
            }
            None => (low, high),
        }
    }

    /// Returns a line of the same values, up to the returned constant, where the row and the column replace the
    /// id that they divide: with `n = 64 * row + column`, `4 * n - 3 * column` is `256 * row + column`. Returns
    /// `None` if the line does not have both.
    fn in_rows_and_columns(&self) -> Option<(Self, i128)> {
        let mut ids = self.ids;
        let split = self.split?;
        let factor = std::mem::take(&mut ids[Id::Global as usize][split.dimension]);
        let whole = factor.checked_mul(split.width).filter(|_| factor != 0)?;
        let (row, column) = (split.row.checked_add(whole)?, split.column.checked_add(factor)?);
        let line = Self { ids, split: Some(Split { row, column, ..split }) };
        Some((line, factor.checked_mul(split.shift)?.checked_neg()?))
    }

    /// Returns the sum of the bounds of the line's parts.
    fn bounds_of_parts(&self, space: &Space) -> (i128, i128) {
        let mut line = *self;
        let mut constant = 0_i128;
        for d in 0..3 {
            // The work-group's id and the local id, of which the global id consists, are independent.
            let size = space.local.map(|local| local[d]).filter(|size| *size > 0);
            if let Some(size) = size.filter(|size| space.global[d] % size == 0) {
                // global id = group id * size of work-groups + local id + offset
                let factor = std::mem::take(&mut line.ids[Id::Global as usize][d]);
                let local = &mut line.ids[Id::Local as usize][d];
                *local = local.saturating_add(factor);
                let group = &mut line.ids[Id::Group as usize][d];
                *group = group.saturating_add(factor.saturating_mul(size));
                constant = constant.saturating_add(factor.saturating_mul(space.offset[d]));
            }
        }
        let (low, high) = line.bounds_by(space, |id, d| space.bounds(id, d));
        (low.saturating_add(constant), high.saturating_add(constant))
    }

    /// Returns the bounds of the line, given the bounds of the ids.
    pub(crate) fn bounds_by(
        &self,
        space: &Space,
        ids: impl Fn(Id, usize) -> (i128, i128),
    ) -> (i128, i128) {
        let (mut low, mut high) = (0_i128, 0_i128);
        let mut add = |factor: i128, (first, last): (i128, i128)| {
            let (first, last) = (factor.saturating_mul(first), factor.saturating_mul(last));
            low = low.saturating_add(first.min(last));
            high = high.saturating_add(first.max(last));
        };
        if let Some(split) = &self.split {
            let (first, last, column) = split.ends(space);
            add(split.row, (first, last));
            add(split.column, (0, column));
        }
        for (id, d, factor) in self.factors() {
            add(factor, ids(id, d));
        }
        (low, high)
    }

    /// Returns, for each part of the line, the range of its values minus the least of them.
    pub(super) fn ranges(&self, space: &Space) -> impl Iterator<Item = Strided> {
        fn ranges(factor: i128, first: i128, last: i128) -> Strided {
            let factor = factor.saturating_abs();
            Strided::spanning(factor.saturating_mul(last - first), factor)
        }
        let split = self.split.map_or([Strided::default(); 2], |split| {
            let (first, last, column) = split.ends(space);
            [ranges(split.row, first, last), ranges(split.column, 0, column)]
        });
        let ids = self.factors().map(|(id, d, factor)| {
            let (first, last) = space.bounds(id, d);
            ranges(factor, first, last)
        });
        split.into_iter().chain(ids)
    }

    /// Adds two lines. Returns `None` if they have parts of different divisions.
    pub(super) fn plus(&self, other: &Self) -> Option<Self> {
        let mut sum = *self;
        sum.split = match (self.split, other.split) {
            (Some(a), Some(b)) if a.is_same_division(&b) => {
                Some(Split { row: a.row + b.row, column: a.column + b.column, ..a })
            }
            (Some(_), Some(_)) => return None,
            (one, None) | (None, one) => one,
        };
        for (own, other) in sum.ids.iter_mut().flatten().zip(other.ids.iter().flatten()) {
            *own += other;
        }
        Some(sum)
    }

    pub(super) fn times(&self, factor: i128) -> Option<Self> {
        let mut product = *self;
        for own in product.ids.iter_mut().flatten() {
            *own = own.checked_mul(factor)?;
        }
        if let Some(split) = &mut product.split {
            split.row = split.row.checked_mul(factor)?;
            split.column = split.column.checked_mul(factor)?;
        }
        Some(product)
    }

    /// Returns the line divided by a number that divides all of its factors.
    pub(super) fn divided_by(&self, divisor: i128) -> Self {
        let mut line = *self;
        line.ids.iter_mut().flatten().for_each(|factor| *factor /= divisor);
        if let Some(split) = &mut line.split {
            split.row /= divisor;
            split.column /= divisor;
        }
        line
    }

    /// Splits the line into two that add up to it. All factors of the first are multiples of a number.
    pub(super) fn multiples_of(&self, number: i128) -> (Self, Self) {
        let (mut whole, mut rest) = (*self, Self::ZERO);
        for (own, other) in whole.ids.iter_mut().flatten().zip(rest.ids.iter_mut().flatten()) {
            if *own % number != 0 {
                *other = std::mem::take(own);
            }
        }
        let is_multiple = |split: &Split| split.row % number == 0 && split.column % number == 0;
        if self.split.is_some_and(|split| !is_multiple(&split)) {
            rest.split = whole.split.take();
        }
        (whole, rest)
    }

    /// Returns the line of which this one is the largest multiple, and the factor. The first factor of that
    /// line is positive.
    pub(crate) fn primitive(&self) -> (Self, i128) {
        let split = self.split.map_or([0; 2], |split| [split.row, split.column]);
        let factors = || self.ids.iter().flatten().copied().chain(split);
        let common = factors().fold(0, gcd).max(1);
        let is_negative = factors().find(|&factor| factor != 0).is_some_and(|factor| factor < 0);
        let factor = if is_negative { -common } else { common };
        (self.divided_by(factor), factor)
    }

    /// Returns the quotient and the remainder of the division, if the line is one of the two.
    pub(crate) fn row_and_column(&self) -> Option<[Self; 2]> {
        let split =
            self.split.filter(|split| matches!((split.row, split.column), (1, 0) | (0, 1)))?;
        let is_alone = self.ids == [[0; 3]; 5];
        let part = |row, column| Self::of_split(Split { row, column, ..split });
        is_alone.then(|| [part(1, 0), part(0, 1)])
    }

    /// Returns the line of the global id that is divided in this line, and its bounds, given those of the
    /// quotient and the remainder. Without a division, the line is 0.
    pub(crate) fn divided_id(
        &self,
        rows: (i128, i128),
        columns: (i128, i128),
    ) -> (Self, i128, i128) {
        let Some(Split { dimension, shift, width, .. }) = self.split else {
            return (Self::ZERO, 0, 0);
        };
        let id = |row: i128, column: i128| {
            row.saturating_mul(width).saturating_add(column).saturating_sub(shift)
        };
        let line = Self::of_id(Id::Global, dimension);
        (line, id(rows.0, columns.0), id(rows.1, columns.1))
    }

    /// Returns a line of the same values, up to the returned constant, in the normal form of
    /// [`Form::folded`](super::Form).
    pub(super) fn folded(mut self, space: &Space) -> (Self, i128) {
        let mut constant = 0_i128;
        if let Some(split) = self.split {
            if split.row == 0 && split.column == 0 {
                self.split = None;
            } else if split.column.checked_mul(split.width) == Some(split.row) {
                // The row and the column add up to a multiple of the number that was split.
                self.split = None;
                self.ids[Id::Global as usize][split.dimension] += split.column;
                constant = constant.saturating_add(split.column.saturating_mul(split.shift));
            }
        }
        for d in 0..3 {
            if let Some(local) = space.local.map(|local| local[d].max(1)) {
                let group = self.ids[Id::Group as usize][d];
                if group % local == 0 {
                    // group id * local size = global id - offset - local id
                    let factor = group / local;
                    self.ids[Id::Group as usize][d] = 0;
                    self.ids[Id::Global as usize][d] += factor;
                    self.ids[Id::Local as usize][d] -= factor;
                    constant = constant.saturating_sub(factor.saturating_mul(space.offset[d]));
                }
            }
            for id in Id::ALL {
                let factor = &mut self.ids[id as usize][d];
                if *factor != 0 {
                    let (first, last) = space.bounds(id, d);
                    if first == last {
                        constant = constant.saturating_add(factor.saturating_mul(first));
                        *factor = 0;
                    }
                }
            }
        }
        (self, constant)
    }
}
