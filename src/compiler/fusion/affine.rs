//! Integers as functions of the work-item: affine in its ids, plus a bounded remainder.

use crate::compiler::nd_range::NdRange;

/// The work-items of a launch, in three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) global: [i128; 3],
    pub(super) offset: [i128; 3],
    /// Size of a work-group; `None` if the driver chooses it.
    pub(super) local: Option<[i128; 3]>,
    pub(super) dimensions: usize,
}

impl Space {
    pub(super) fn new(range: &NdRange) -> Self {
        let pad = |sizes: &[usize], rest: i128| {
            std::array::from_fn(|d| sizes.get(d).map_or(rest, |&size| size as i128))
        };
        Self {
            global: pad(range.global(), 1),
            offset: pad(range.offset(), 0),
            local: range.local().map(|local| pad(local, 1)),
            dimensions: range.dimensions(),
        }
    }

    /// Returns the space of the work-groups, each as one work-item; `None` if the driver chooses their
    /// size.
    pub(super) fn work_groups(&self) -> Option<Self> {
        let local = self.local?;
        let global = std::array::from_fn(|d| self.global[d] / local[d].max(1));
        Some(Self { global, offset: [0; 3], local: None, ..*self })
    }

    /// Returns the least and the largest value of an id in dimension `d`.
    fn bounds(&self, id: Id, d: usize) -> (i128, i128) {
        let local = self.local.map(|local| local[d].max(1));
        let count = match id {
            Id::Global => return (self.offset[d], self.offset[d] + self.global[d] - 1),
            Id::Local => local.unwrap_or(self.global[d]),
            Id::Group => self.global[d] / local.unwrap_or(1),
        };
        (0, (count - 1).max(0))
    }
}

/// Kind of id of a work-item. Each id has three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    Global,
    Local,
    Group,
}

impl Id {
    const ALL: [Self; 3] = [Self::Global, Self::Local, Self::Group];
}

/// Integer of the form `global . gid + local . lid + group . wid + split + remainder`.
///
/// The remainder is one of `low`, `low + step`, `low + 2 * step` and so on up to `high`. It may differ
/// between work-items, and between two evaluations in one work-item.
///
/// Operations are exact on the integers, not modulo a power of two. They return `None` if the result is
/// too large. A form that holds wherever an expression is evaluated still holds after its range of
/// remainders is widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Coefficients of the ids, by [`Id`] and dimension.
    ids: [[i128; 3]; 3],
    split: Option<Split>,
    pub(super) low: i128,
    pub(super) high: i128,
    /// Difference of successive remainders; 0 if `low` equals `high`.
    step: i128,
}

/// Sum `row * (n / width) + column * (n % width)`, where `n` is a global id plus `shift`, and not
/// negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Split {
    dimension: usize,
    shift: i128,
    width: i128,
    row: i128,
    column: i128,
}

impl Split {
    /// Returns whether the quotients and remainders are those of the same division.
    fn is_same_division(&self, other: &Self) -> bool {
        let division = |split: &Self| (split.dimension, split.shift, split.width);
        division(self) == division(other)
    }

    fn bounds(&self, space: &Space) -> (i128, i128) {
        let (first, last) = space.bounds(Id::Global, self.dimension);
        let (first, last) = (first.saturating_add(self.shift), last.saturating_add(self.shift));
        let rows = [first / self.width, last / self.width];
        let rows = rows.map(|row| self.row.saturating_mul(row));
        let column = self.column.saturating_mul(last.min(self.width - 1));
        let low = rows[0].min(rows[1]).saturating_add(column.min(0));
        (low, rows[0].max(rows[1]).saturating_add(column.max(0)))
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Exclusive bound of the numbers in a form, so that sums of a few of them do not overflow.
const LIMIT: i128 = 1 << 100;

impl Form {
    pub(super) const fn constant(value: i128) -> Self {
        Self::between(value, value)
    }

    pub(super) const fn between(low: i128, high: i128) -> Self {
        let step = if low == high { 0 } else { 1 };
        Self { ids: [[0; 3]; 3], split: None, low, high, step }
    }

    /// Returns the form of a multiple of `step` between 0 and `high`.
    pub(super) const fn steps(high: i128, step: i128) -> Self {
        Self { step: if high == 0 { 0 } else { step }, ..Self::between(0, high) }
    }

    pub(super) fn id(id: Id, dimension: usize, space: &Space) -> Self {
        let mut form = Self::constant(0);
        form.ids[id as usize][dimension] = 1;
        form.folded(space)
    }

    /// Returns the coefficients of the global id.
    pub(super) fn coefficients(&self) -> [i128; 3] {
        self.ids[Id::Global as usize]
    }

    /// Returns whether the coefficients of the local id and of the work-group's id are 0.
    pub(super) fn is_global(&self) -> bool {
        self.ids[Id::Local as usize] == [0; 3] && self.ids[Id::Group as usize] == [0; 3]
    }

    /// Returns whether the value is affine in the global id alone, without a range of remainders.
    pub(super) fn is_exact(&self) -> bool {
        self.low == self.high && self.split.is_none() && self.is_global()
    }

    pub(super) fn value(&self) -> Option<i128> {
        let is_constant = self.low == self.high && self.split.is_none();
        (is_constant && self.ids == [[0; 3]; 3]).then_some(self.low)
    }

    /// Returns the step of the remainder, which is congruent to `low` modulo the step.
    pub(super) fn step(&self) -> i128 {
        self.step
    }

    /// Returns the bounds of the values in all work-items, both included.
    pub(super) fn bounds(&self, space: &Space) -> (i128, i128) {
        let (mut low, mut high) = (self.low, self.high);
        if let Some(split) = self.split {
            let (first, last) = split.bounds(space);
            low = low.saturating_add(first);
            high = high.saturating_add(last);
        }
        for d in 0..3 {
            for (factor, (first, last)) in self.independent(space, d) {
                let (first, last) = (factor.saturating_mul(first), factor.saturating_mul(last));
                low = low.saturating_add(first.min(last));
                high = high.saturating_add(first.max(last));
            }
        }
        (low, high)
    }

    /// Returns the factors of numbers that do not depend on each other, each with the number's bounds. Their
    /// sum is the part of the value that the ids of a dimension make up.
    fn independent(&self, space: &Space, d: usize) -> [(i128, (i128, i128)); 3] {
        let [global, local, group] = self.ids.map(|factors| factors[d]);
        let size = space.local.map(|local| local[d]).filter(|size| *size > 0);
        match size.filter(|size| space.global[d] % size == 0) {
            // global id = group id * size of work-groups + local id + offset
            Some(size) => [
                (global, (space.offset[d], space.offset[d])),
                (global.saturating_add(local), space.bounds(Id::Local, d)),
                (global.saturating_mul(size).saturating_add(group), space.bounds(Id::Group, d)),
            ],
            None => [
                (global, space.bounds(Id::Global, d)),
                (local, space.bounds(Id::Local, d)),
                (group, space.bounds(Id::Group, d)),
            ],
        }
    }

    /// Returns a form that keeps only the bounds of this one.
    pub(super) fn weakened(&self, space: &Space) -> Self {
        let (low, high) = self.bounds(space);
        Self::between(low, high)
    }

    /// Returns the form with a constant in place of its remainder.
    pub(super) fn moved_to(&self, constant: i128) -> Self {
        Self { low: constant, high: constant, step: 0, ..*self }
    }

    /// Returns the form with its coefficients of the global id. The other parts are replaced by their
    /// bounds.
    pub(super) fn without_local(&self, space: &Space) -> Self {
        if self.is_global() && self.split.is_none() {
            return *self;
        }
        let mut own = *self;
        own.ids[Id::Global as usize] = [0; 3];
        let (low, high) = own.bounds(space);
        let mut form = Self::between(low, high);
        form.ids[Id::Global as usize] = self.coefficients();
        form
    }

    /// Returns the value as a form of the work-group's id, as if that were the global id in
    /// [`Space::work_groups`]. The part that depends on the work-item is replaced by its bounds. Returns
    /// `None` if the size of work-groups is not known, or a number is too large.
    pub(super) fn by_group(&self, space: &Space) -> Option<Self> {
        let local = space.local?;
        let mut form = Self::between(self.low, self.high);
        let mut inside = Self { split: self.split, ..Self::constant(0) };
        for d in 0..3 {
            // global id = group id * local size + local id + offset
            let [global, own, group] = self.ids.map(|factors| factors[d]);
            let whole = global.checked_mul(local[d])?.checked_add(group)?;
            form.ids[Id::Global as usize][d] = whole;
            inside.ids[Id::Local as usize][d] = global.checked_add(own)?;
            let constant = global.checked_mul(space.offset[d])?;
            form.low = form.low.checked_add(constant)?;
            form.high = form.high.checked_add(constant)?;
        }
        let (low, high) = inside.bounds(space);
        form.low = form.low.checked_add(low)?;
        form.high = form.high.checked_add(high)?;
        form.checked()
    }

    /// Returns the factors of the local id by which the value differs within a work-group; `None` if it
    /// differs in other ways, too.
    pub(super) fn inside(&self) -> Option<[i128; 3]> {
        let [global, local, _] = self.ids;
        let is_exact = self.low == self.high && self.split.is_none();
        is_exact.then(|| std::array::from_fn(|d| global[d] + local[d]))
    }

    pub(super) fn plus(&self, other: &Self, space: &Space) -> Option<Self> {
        let mut sum = *self;
        sum.split = match (self.split, other.split) {
            (Some(a), Some(b)) if a.is_same_division(&b) => {
                Some(Split { row: a.row + b.row, column: a.column + b.column, ..a })
            }
            (Some(_), Some(_)) => return self.plus(&other.weakened(space), space),
            (one, None) | (None, one) => one,
        };
        for (ids, others) in sum.ids.iter_mut().zip(&other.ids) {
            for (factor, other) in ids.iter_mut().zip(others) {
                *factor += other;
            }
        }
        sum.low += other.low;
        sum.high += other.high;
        sum.step = gcd(self.step, other.step);
        sum.folded(space).checked()
    }

    pub(super) fn minus(&self, other: &Self, space: &Space) -> Option<Self> {
        self.plus(&other.times(-1)?, space)
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
        product.step = self.step.checked_mul(factor.abs())?;
        if factor == 0 {
            product.split = None;
        }
        let ends = (self.low.checked_mul(factor)?, self.high.checked_mul(factor)?);
        (product.low, product.high) = (ends.0.min(ends.1), ends.0.max(ends.1));
        product.checked()
    }

    /// Multiplies two forms. The product is affine if one of the two is constant; otherwise only its
    /// bounds are kept.
    pub(super) fn product(&self, other: &Self, space: &Space) -> Option<Self> {
        match (self.value(), other.value()) {
            (_, Some(factor)) => self.times(factor),
            (Some(factor), _) => other.times(factor),
            _ => {
                let ((a, b), (c, d)) = (self.bounds(space), other.bounds(space));
                let mut ends = [0; 4];
                for (end, (x, y)) in ends.iter_mut().zip([(a, c), (a, d), (b, c), (b, d)]) {
                    *end = x.checked_mul(y)?;
                }
                let (low, high) = (ends.iter().min()?, ends.iter().max()?);
                Self::between(*low, *high).checked()
            }
        }
    }

    /// Returns the split by `width` of a form that is a global id plus a constant, and not negative. The
    /// factors `row` and `column` are 0.
    fn split_by(&self, width: i128, space: &Space) -> Option<Split> {
        let mut dimensions = (0..3).filter(|&d| self.coefficients()[d] != 0);
        let dimension = dimensions.next()?;
        let is_id = dimensions.next().is_none() && self.coefficients()[dimension] == 1;
        let shift = self.low;
        (is_id && self.is_exact() && self.bounds(space).0 >= 0).then_some(Split {
            dimension,
            shift,
            width,
            row: 0,
            column: 0,
        })
    }

    /// Divides by a positive number, rounded down. The result is exact if the divisor divides all
    /// coefficients, and for a global id plus a constant that is not negative.
    pub(super) fn quotient(&self, divisor: i128, space: &Space) -> Self {
        if let Some(split) = self.split_by(divisor, space).filter(|_| divisor > 1) {
            return Self { split: Some(Split { row: 1, ..split }), ..Self::constant(0) };
        }
        let mut form = *self;
        let divides = self.ids.iter().flatten().all(|factor| factor % divisor == 0);
        if !divides || self.split.is_some() {
            form = self.weakened(space);
        }
        form.step = match form.step {
            step if step % divisor == 0 => step / divisor,
            _ => 1,
        };
        form.ids.iter_mut().flatten().for_each(|factor| *factor /= divisor);
        form.low = form.low.div_euclid(divisor);
        form.high = form.high.div_euclid(divisor);
        if form.low == form.high {
            form.step = 0;
        }
        form
    }

    /// Returns the remainder of the division that [`quotient`](Self::quotient) does.
    pub(super) fn remainder(&self, divisor: i128, space: &Space) -> Self {
        let (low, high) = self.bounds(space);
        if 0 <= low && high < divisor {
            return *self;
        }
        if let Some(split) = self.split_by(divisor, space).filter(|_| divisor > 1) {
            return Self { split: Some(Split { column: 1, ..split }), ..Self::constant(0) };
        }
        let divides = self.ids.iter().flatten().all(|factor| factor % divisor == 0);
        let divides = divides && self.split.is_none();
        if divides && self.low.div_euclid(divisor) == self.high.div_euclid(divisor) {
            return Self::between(self.low.rem_euclid(divisor), self.high.rem_euclid(divisor));
        }
        Self::between(0, divisor - 1)
    }

    /// Returns a form that covers the values of both.
    pub(super) fn or(&self, other: &Self, space: &Space) -> Self {
        let (a, b) = if self.ids == other.ids && self.split == other.split {
            (*self, *other)
        } else {
            (self.weakened(space), other.weakened(space))
        };
        let step = gcd(gcd(a.step, b.step), a.low - b.low);
        Self { low: a.low.min(b.low), high: a.high.max(b.high), step, ..a }
    }

    /// Returns whether the value is known to be a multiple of a number in every work-item.
    pub(super) fn is_multiple_of(&self, number: i128) -> bool {
        self.low == self.high
            && self.split.is_none()
            && self.low % number == 0
            && self.ids.iter().flatten().all(|factor| factor % number == 0)
    }

    /// Returns the form if its numbers are below [`LIMIT`].
    fn checked(self) -> Option<Self> {
        let split = self.split.map_or([0; 3], |split| [split.row, split.column, split.shift]);
        let numbers = self.ids.iter().flatten().chain([&self.low, &self.high, &self.step]);
        numbers
            .chain(&split)
            .all(|number| number.unsigned_abs() < LIMIT.unsigned_abs())
            .then_some(self)
    }

    /// Normalizes the form, which can be written in several ways: an id with only one value becomes a
    /// constant, and the global id replaces the work-group's id and the local id that make it up.
    fn folded(mut self, space: &Space) -> Self {
        // The row and the column add up to a multiple of the number that was split.
        if let Some(split) = self.split
            && split.column.checked_mul(split.width) == Some(split.row)
        {
            self.split = None;
            self.ids[Id::Global as usize][split.dimension] += split.column;
            let constant = split.column.saturating_mul(split.shift);
            self.low = self.low.saturating_add(constant);
            self.high = self.high.saturating_add(constant);
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
                    let constant = factor.saturating_mul(space.offset[d]);
                    self.low = self.low.saturating_sub(constant);
                    self.high = self.high.saturating_sub(constant);
                }
            }
            for id in Id::ALL {
                let (first, last) = space.bounds(id, d);
                let factor = &mut self.ids[id as usize][d];
                if first == last && *factor != 0 {
                    let constant = factor.saturating_mul(first);
                    *factor = 0;
                    self.low = self.low.saturating_add(constant);
                    self.high = self.high.saturating_add(constant);
                }
            }
        }
        self
    }

    /// Returns a lower bound of the absolute value of `C . d`, where `C` are the coefficients and `d` is
    /// the difference of the global ids of two different work-items. Returns 0 if `C . gid` is the same
    /// in two different work-items.
    pub(super) fn least_distance(&self, space: &Space) -> i128 {
        let mut dimensions: Vec<_> = (0..3)
            .filter(|&d| space.global[d] > 1)
            .map(|d| (self.coefficients()[d].abs(), space.global[d] - 1))
            .collect();
        dimensions.sort_unstable();
        let (mut least, mut reach) = (i128::MAX, 0_i128);
        for (factor, most) in dimensions {
            least = least.min(factor - reach);
            reach = reach.saturating_add(factor.saturating_mul(most));
        }
        least.max(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compiler::nd_range::NdSize;

    fn space(global: impl Into<NdSize>, local: Option<usize>) -> Space {
        let mut range = NdRange::from(global.into());
        if let Some(local) = local {
            range.set_local(local.into()).unwrap();
        }
        Space::new(&range)
    }

    #[test]
    fn group_and_local_id_make_the_global_id() {
        let mut range = NdRange::from(NdSize::from(64));
        range.set_local(16.into()).unwrap();
        range.set_offset(5.into()).unwrap();
        let space = Space::new(&range);
        let group = Form::id(Id::Group, 0, &space).times(16).unwrap();
        let sum = group.plus(&Form::id(Id::Local, 0, &space), &space).unwrap();
        assert!(sum.is_exact());
        assert_eq!((sum.coefficients(), sum.low), ([1, 0, 0], -5));
        assert!(!Form::id(Id::Local, 0, &space).is_exact());
        assert_eq!(Form::id(Id::Global, 1, &space).value(), Some(0));
    }

    #[test]
    fn work_items_are_distinct_where_rows_do_not_overlap() {
        let space = space([10, 8], None);
        let form = |x, y| {
            let (x, y) = (
                Form::id(Id::Global, 0, &space).times(x),
                Form::id(Id::Global, 1, &space).times(y),
            );
            x.unwrap().plus(&y.unwrap(), &space).unwrap()
        };
        assert_eq!(form(4, 40).least_distance(&space), 4);
        assert_eq!(form(32, 4).least_distance(&space), 4);
        assert_eq!(form(4, 36).least_distance(&space), 0);
        assert_eq!(form(4, 0).least_distance(&space), 0);
        assert_eq!(form(-4, 44).least_distance(&space), 4);
    }

    #[test]
    fn work_groups_are_distinguished_by_the_range_of_their_items() {
        let mut range = NdRange::from(NdSize::from(64));
        range.set_local(16.into()).unwrap();
        range.set_offset(5.into()).unwrap();
        let space = Space::new(&range);
        let groups = space.work_groups().unwrap();
        assert_eq!(groups.global, [4, 1, 1]);
        // Index of the group's last element, minus the local id of the work-item.
        let last = Form::id(Id::Group, 0, &space).times(16).unwrap();
        let last = last.plus(&Form::constant(15), &space).unwrap();
        let form = last.minus(&Form::id(Id::Local, 0, &space), &space).unwrap();
        let by_group = form.by_group(&space).unwrap();
        assert_eq!((by_group.coefficients(), by_group.low, by_group.high), ([16, 0, 0], 0, 15));
        assert_eq!(by_group.least_distance(&groups), 16);
        let own = Form::id(Id::Global, 0, &space).by_group(&space).unwrap();
        assert_eq!((own.coefficients(), own.low, own.high), ([16, 0, 0], 5, 20));
    }

    #[test]
    fn rows_and_columns_combine_to_the_id_they_were_computed_from() {
        let mut range = NdRange::from(NdSize::from(100));
        range.set_offset(7.into()).unwrap();
        let space = Space::new(&range);
        let id = Form::id(Id::Global, 0, &space);
        let (row, column) = (id.quotient(16, &space), id.remainder(16, &space));
        assert!(!row.is_exact() && !column.is_exact());
        assert_eq!((row.bounds(&space), column.bounds(&space)), ((0, 6), (0, 15)));
        let again = row.times(64).unwrap().plus(&column.times(4).unwrap(), &space).unwrap();
        assert_eq!(again, id.times(4).unwrap());
        // Another width, or swapped factors, make another number.
        let other = row.times(60).unwrap().plus(&column.times(4).unwrap(), &space).unwrap();
        assert!(!other.is_exact());
        let turned = row.plus(&column.times(16).unwrap(), &space).unwrap();
        assert_eq!(turned.bounds(&space), (0, 246));
    }

    #[cfg(target_pointer_width = "64")]
    #[test]
    fn large_numbers_are_not_representable() {
        let space = space(usize::MAX / 2, None);
        let id = Form::id(Id::Global, 0, &space);
        assert_eq!(id.times(LIMIT), None);
        assert_eq!(id.product(&id, &space), None);
    }

    proptest! {
        /// Checks that the value of the resulting form in every work-item is the operation's result
        /// there, up to the remainder.
        #[test]
        fn operations_hold_in_every_work_item(
            a in -9_i128..9, b in -9_i128..9, c in -9_i128..9, d in -9_i128..9,
            k in -50_i128..50, width in 0_i128..3, step in 1_i128..5, divisor in 1_i128..12,
            factor in -9_i128..9,
        ) {
            let space = space([6, 5], None);
            let affine = |x: i128, y: i128, low: i128, high: i128| {
                let ids = [x, y].map(|n| n.max(-100));
                let x = Form::id(Id::Global, 0, &space).times(ids[0]).unwrap();
                let y = Form::id(Id::Global, 1, &space).times(ids[1]).unwrap();
                x.plus(&y, &space).unwrap().plus(&Form::between(low, high), &space).unwrap()
            };
            let plain = affine(a, b, k, k);
            let first = plain.plus(&Form::steps(width * step, step), &space).unwrap();
            let second = affine(c, d, -k, -k);
            let holds = |form: Option<Form>, x: i128, y: i128, value: i128| {
                let Some(form) = form else { return true };
                let split = form.split.map_or(0, |split| {
                    let n = [x, y][split.dimension] + split.shift;
                    split.row * (n / split.width) + split.column * (n % split.width)
                });
                let at = form.coefficients()[0] * x + form.coefficients()[1] * y + split;
                let (low, high) = form.bounds(&space);
                let rest = value - at - form.low;
                let is_step = if form.step == 0 { rest == 0 } else { rest % form.step == 0 };
                is_step && (0..=form.high - form.low).contains(&rest) && (low..=high).contains(&value)
            };
            for (x, y) in (0..6).flat_map(|x| (0..5).map(move |y| (x, y))) {
                let q = c * x + d * y - k;
                for rest in 0..=width {
                    let p = a * x + b * y + k + rest * step;
                    prop_assert!(holds(first.plus(&second, &space), x, y, p + q));
                    prop_assert!(holds(first.minus(&second, &space), x, y, p - q));
                    prop_assert!(holds(first.product(&second, &space), x, y, p * q));
                    prop_assert!(holds(Some(first.or(&second, &space)), x, y, p));
                    prop_assert!(holds(Some(first.or(&second, &space)), x, y, q));
                    let quotient = Some(first.quotient(divisor, &space));
                    prop_assert!(holds(quotient, x, y, p.div_euclid(divisor)));
                    let remainder = Some(first.remainder(divisor, &space));
                    prop_assert!(holds(remainder, x, y, p.rem_euclid(divisor)));
                    prop_assert!(holds(first.times(factor), x, y, p * factor));
                }
                // Rows and columns of an id, and sums and quotients of them.
                let id = Form::id(Id::Global, 0, &space).plus(&Form::constant(k.abs()), &space);
                let (id, n) = (id.unwrap(), x + k.abs());
                let row = id.quotient(divisor, &space).times(factor).unwrap();
                let column = id.remainder(divisor, &space).times(a).unwrap();
                let (at_row, at_column) = (n / divisor * factor, n % divisor * a);
                prop_assert!(holds(Some(row), x, y, at_row));
                prop_assert!(holds(Some(column), x, y, at_column));
                prop_assert!(holds(row.plus(&column, &space), x, y, at_row + at_column));
                prop_assert!(holds(row.minus(&first, &space), x, y, at_row - a * x - b * y - k));
                prop_assert!(holds(Some(row.or(&column, &space)), x, y, at_column));
                let sum = row.plus(&column, &space).unwrap();
                let again = Some(sum.quotient(7, &space));
                prop_assert!(holds(again, x, y, (at_row + at_column).div_euclid(7)));
                for (other_x, other_y) in (0..6).flat_map(|x| (0..5).map(move |y| (x, y))) {
                    let distance = (a * (x - other_x) + b * (y - other_y)).abs();
                    let same = (x, y) == (other_x, other_y);
                    prop_assert!(same || distance >= first.least_distance(&space));
                }
            }
        }
    }
}
