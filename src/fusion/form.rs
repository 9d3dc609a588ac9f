//! Integers as functions of the work-item: affine in its ids, up to a bounded rest.

use crate::nd_range::NdRange;

/// The work-items of a launch, in three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) global: [i128; 3],
    pub(super) offset: [i128; 3],
    /// `None` where the driver chooses.
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

    /// The work-groups, each as one work-item; `None` if the driver chooses them.
    pub(super) fn of_groups(&self) -> Option<Self> {
        let local = self.local?;
        let global = std::array::from_fn(|d| self.global[d] / local[d].max(1));
        Some(Self { global, offset: [0; 3], local: None, ..*self })
    }

    /// The ends, both included, of the values of an id.
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

/// The ids of a work-item, each of three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    Global,
    Local,
    Group,
}

impl Id {
    const ALL: [Self; 3] = [Self::Global, Self::Local, Self::Group];
}

/// `global . gid + local . lid + group . wid + rest`, where the rest is some integer from `low` to
/// `high`, not the same one in every work-item nor at every time.
///
/// Operations are exact on the integers, not modulo a power of two: `None` stands for a result that
/// is too large. A form that holds wherever an expression is evaluated may be weakened, by a wider
/// rest, and holds still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// By [`Id`] and dimension.
    ids: [[i128; 3]; 3],
    pub(super) low: i128,
    pub(super) high: i128,
}

/// No form has numbers as large, so that sums of a few of them do not overflow.
const LIMIT: i128 = 1 << 100;

impl Form {
    pub(super) const fn constant(value: i128) -> Self {
        Self::between(value, value)
    }

    pub(super) const fn between(low: i128, high: i128) -> Self {
        Self { ids: [[0; 3]; 3], low, high }
    }

    pub(super) fn id(id: Id, dimension: usize, space: &Space) -> Self {
        let mut form = Self::constant(0);
        form.ids[id as usize][dimension] = 1;
        form.folded(space)
    }

    /// The coefficients of the global id.
    pub(super) fn coefficients(&self) -> [i128; 3] {
        self.ids[Id::Global as usize]
    }

    /// Whether it depends on where in its work-group a work-item is.
    pub(super) fn is_global(&self) -> bool {
        self.ids[Id::Local as usize] == [0; 3] && self.ids[Id::Group as usize] == [0; 3]
    }

    /// The same everywhere but for the global id.
    pub(super) fn is_exact(&self) -> bool {
        self.low == self.high && self.is_global()
    }

    pub(super) fn value(&self) -> Option<i128> {
        (self.low == self.high && self.ids == [[0; 3]; 3]).then_some(self.low)
    }

    /// The ends, both included, of its values.
    pub(super) fn bounds(&self, space: &Space) -> (i128, i128) {
        let (mut low, mut high) = (self.low, self.high);
        for id in Id::ALL {
            for (d, &factor) in self.ids[id as usize].iter().enumerate() {
                if factor != 0 {
                    let (first, last) = space.bounds(id, d);
                    let (first, last) = (factor.saturating_mul(first), factor.saturating_mul(last));
                    low = low.saturating_add(first.min(last));
                    high = high.saturating_add(first.max(last));
                }
            }
        }
        (low, high)
    }

    /// With only its bounds known.
    pub(super) fn weakened(&self, space: &Space) -> Self {
        let (low, high) = self.bounds(space);
        Self::between(low, high)
    }

    /// With another constant in the place of its rest.
    pub(super) fn moved_to(&self, constant: i128) -> Self {
        Self { low: constant, high: constant, ..*self }
    }

    /// With its part of the local and the group id only bounded.
    pub(super) fn without_local(&self, space: &Space) -> Self {
        let mut own = *self;
        own.ids[Id::Global as usize] = [0; 3];
        let (low, high) = own.bounds(space);
        let mut form = Self::between(low, high);
        form.ids[Id::Global as usize] = self.coefficients();
        form
    }

    /// The same value by the work-group, as if its id were the global one, of [`Space::of_groups`].
    /// What depends on the work-item in it is only bounded. `None` where groups are not known.
    pub(super) fn by_group(&self, space: &Space) -> Option<Self> {
        let local = space.local?;
        let mut form = Self::between(self.low, self.high);
        let mut inside = Self::constant(0);
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

    pub(super) fn plus(&self, other: &Self, space: &Space) -> Option<Self> {
        let mut sum = *self;
        for (ids, others) in sum.ids.iter_mut().zip(&other.ids) {
            for (factor, other) in ids.iter_mut().zip(others) {
                *factor += other;
            }
        }
        sum.low += other.low;
        sum.high += other.high;
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
        let ends = (self.low.checked_mul(factor)?, self.high.checked_mul(factor)?);
        (product.low, product.high) = (ends.0.min(ends.1), ends.0.max(ends.1));
        product.checked()
    }

    /// Affine if one of the two is constant.
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

    /// Divided by a positive number, rounded down; exact where that divides all coefficients.
    pub(super) fn quotient(&self, divisor: i128, space: &Space) -> Self {
        let mut form = *self;
        if self.ids.iter().flatten().any(|factor| factor % divisor != 0) {
            form = self.weakened(space);
        }
        form.ids.iter_mut().flatten().for_each(|factor| *factor /= divisor);
        form.low = form.low.div_euclid(divisor);
        form.high = form.high.div_euclid(divisor);
        form
    }

    /// The rest of that division.
    pub(super) fn remainder(&self, divisor: i128, space: &Space) -> Self {
        let (low, high) = self.bounds(space);
        if 0 <= low && high < divisor {
            return *self;
        }
        let divides = self.ids.iter().flatten().all(|factor| factor % divisor == 0);
        if divides && self.low.div_euclid(divisor) == self.high.div_euclid(divisor) {
            return Self::between(self.low.rem_euclid(divisor), self.high.rem_euclid(divisor));
        }
        Self::between(0, divisor - 1)
    }

    /// A form that both hold for.
    pub(super) fn or(&self, other: &Self, space: &Space) -> Self {
        let (a, b) = if self.ids == other.ids {
            (*self, *other)
        } else {
            (self.weakened(space), other.weakened(space))
        };
        Self { low: a.low.min(b.low), high: a.high.max(b.high), ..a }
    }

    /// Whether it is a multiple of a number in every work-item.
    pub(super) fn is_multiple_of(&self, number: i128) -> bool {
        self.low == self.high
            && self.low % number == 0
            && self.ids.iter().flatten().all(|factor| factor % number == 0)
    }

    fn checked(self) -> Option<Self> {
        let numbers = self.ids.iter().flatten().chain([&self.low, &self.high]);
        numbers
            .into_iter()
            .all(|number| number.unsigned_abs() < LIMIT.unsigned_abs())
            .then_some(self)
    }

    /// In one way of the several to write it: an id with one value is a constant, and what is known of
    /// work-group and local id together is the global id.
    fn folded(mut self, space: &Space) -> Self {
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

    /// The least absolute value that `C . d` takes for the difference `d` of the global ids of two
    /// different work-items, or a lower bound of it, where C are the coefficients. 0 if there are
    /// work-items that it does not tell apart.
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
    use crate::nd_range::NdSize;

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
    fn work_items_are_told_apart_where_rows_do_not_reach_into_each_other() {
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
    fn work_groups_are_told_apart_by_what_their_items_reach() {
        let mut range = NdRange::from(NdSize::from(64));
        range.set_local(16.into()).unwrap();
        range.set_offset(5.into()).unwrap();
        let space = Space::new(&range);
        let groups = space.of_groups().unwrap();
        assert_eq!(groups.global, [4, 1, 1]);
        // The last element of the group, minus that of the work-item.
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
    fn large_numbers_are_no_forms() {
        let space = space(usize::MAX / 2, None);
        let id = Form::id(Id::Global, 0, &space);
        assert_eq!(id.times(LIMIT), None);
        assert_eq!(id.product(&id, &space), None);
    }

    proptest! {
        /// Every operation keeps what it stands for: the form's value in a work-item is the operation's
        /// result there, up to the rest.
        #[test]
        fn operations_hold_in_every_work_item(
            a in -9_i128..9, b in -9_i128..9, c in -9_i128..9, d in -9_i128..9,
            k in -50_i128..50, width in 0_i128..3, divisor in 1_i128..12,
        ) {
            let space = space([6, 5], None);
            let affine = |x: i128, y: i128, low: i128, high: i128| {
                let ids = [x, y].map(|n| n.max(-100));
                let x = Form::id(Id::Global, 0, &space).times(ids[0]).unwrap();
                let y = Form::id(Id::Global, 1, &space).times(ids[1]).unwrap();
                x.plus(&y, &space).unwrap().plus(&Form::between(low, high), &space).unwrap()
            };
            let first = affine(a, b, k, k + width);
            let second = affine(c, d, -k, -k);
            let holds = |form: Option<Form>, x: i128, y: i128, value: i128| {
                let Some(form) = form else { return true };
                let at = form.coefficients()[0] * x + form.coefficients()[1] * y;
                let (low, high) = form.bounds(&space);
                (at + form.low..=at + form.high).contains(&value) && (low..=high).contains(&value)
            };
            for (x, y) in (0..6).flat_map(|x| (0..5).map(move |y| (x, y))) {
                let q = c * x + d * y - k;
                for rest in 0..=width {
                    let p = a * x + b * y + k + rest;
                    prop_assert!(holds(first.plus(&second, &space), x, y, p + q));
                    prop_assert!(holds(first.minus(&second, &space), x, y, p - q));
                    prop_assert!(holds(first.product(&second, &space), x, y, p * q));
                    prop_assert!(holds(Some(first.or(&second, &space)), x, y, p));
                    prop_assert!(holds(Some(first.or(&second, &space)), x, y, q));
                    let quotient = Some(first.quotient(divisor, &space));
                    prop_assert!(holds(quotient, x, y, p.div_euclid(divisor)));
                    let remainder = Some(first.remainder(divisor, &space));
                    prop_assert!(holds(remainder, x, y, p.rem_euclid(divisor)));
                }
                for (other_x, other_y) in (0..6).flat_map(|x| (0..5).map(move |y| (x, y))) {
                    let distance = (a * (x - other_x) + b * (y - other_y)).abs();
                    let same = (x, y) == (other_x, other_y);
                    prop_assert!(same || distance >= first.least_distance(&space));
                }
            }
        }
    }
}
