//! Boxes of strided ranges: the part of a value that differs between evaluations in a work-item.

/// Multiples of `step` from 0 to `count * step`. Both numbers are positive, or both are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Strided {
    pub(crate) step: i128,
    pub(crate) count: i128,
}

impl Strided {
    /// Returns the range of the multiples of `step` from 0 to `span`.
    pub(super) const fn spanning(span: i128, step: i128) -> Self {
        if step <= 0 || span < step {
            return Self { step: 0, count: 0 };
        }
        Self { step, count: span / step }
    }

    fn span(self) -> i128 {
        self.step.saturating_mul(self.count)
    }
}

/// Maximum number of ranges in a box.
const RANGES: usize = 3;
/// Maximum number of ranges while boxes are combined.
const ROOM: usize = 16;

/// Sums of one number of each range. The ranges are sorted by descending step; the last ones may be empty.
/// Ranges that together form one range are joined, so that equal sets of numbers are usually equal boxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Steps([Strided; RANGES]);

impl Steps {
    pub(super) const NONE: Self = Self([Strided { step: 0, count: 0 }; RANGES]);

    /// Returns the box of a single range.
    pub(super) const fn one(range: Strided) -> Self {
        let mut steps = Self::NONE;
        steps.0[0] = range;
        steps
    }

    /// Returns a box that contains all sums of one number of each range. Where there are more ranges than a
    /// box has, the ones with the smallest steps become one range of a coarser step.
    pub(super) fn of(ranges: impl IntoIterator<Item = Strided>) -> Self {
        let mut found = [Strided::default(); ROOM];
        let mut count = 0;
        for range in ranges.into_iter().filter(|range| range.count > 0) {
            found[count] = range;
            count += 1;
            if count == ROOM {
                found.sort_unstable_by_key(|range| -range.step);
                count = combine(&mut found, count);
            }
        }
        found[..count].sort_unstable_by_key(|range| -range.step);
        count = combine(&mut found, count);
        let mut steps = Self::NONE;
        steps.0[..count].copy_from_slice(&found[..count]);
        steps
    }

    /// Returns the ranges that are not empty, by descending step.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Strided> + '_ {
        self.0.iter().copied().filter(|range| range.count > 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0[0].count == 0
    }

    /// Returns the largest number in the box.
    pub(super) fn span(&self) -> i128 {
        self.0.iter().fold(0_i128, |sum, range| sum.saturating_add(range.span()))
    }

    /// Returns the greatest common divisor of the numbers in the box.
    pub(crate) fn gcd(&self) -> i128 {
        self.0.iter().fold(0, |common, range| gcd(common, range.step))
    }

    /// Returns the number of sums of which the box consists. Equal sums count several times.
    fn size(&self) -> i128 {
        let counts = self.0.iter().map(|range| range.count.saturating_add(1));
        counts.fold(1, i128::saturating_mul)
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        match (self.is_empty(), other.is_empty()) {
            (_, true) => *self,
            (true, _) => *other,
            _ => Self::of(self.ranges().chain(other.ranges())),
        }
    }

    /// Returns the box of the multiples by a positive factor; `None` if a number is too large.
    pub(super) fn times(&self, factor: i128) -> Option<Self> {
        let mut product = *self;
        for range in &mut product.0 {
            range.step = range.step.checked_mul(factor)?;
            range.step.checked_mul(range.count)?;
        }
        Some(product)
    }

    /// Returns a box that contains the numbers of `self` and, `distance` further, those of `other`, with the
    /// number at which it begins.
    pub(super) fn or(&self, other: &Self, distance: i128) -> (i128, Self) {
        let first = distance.min(0);
        let span = self.span().max(distance.saturating_add(other.span())) - first;
        let step = gcd(gcd(self.gcd(), other.gcd()), distance);
        let coarse = Self::one(Strided::spanning(span, step));
        if self.0[1].count == 0 && other.0[1].count == 0 && self.0[0].step == other.0[0].step {
            return (first, coarse);
        }
        match self.dimensions_or(other, distance) {
            Some((first, fine)) if fine.size() < coarse.size() => (first, fine),
            _ => (first, coarse),
        }
    }

    /// Joins two boxes range by range, with the ranges of equal step as one dimension.
    fn dimensions_or(&self, other: &Self, mut distance: i128) -> Option<(i128, Self)> {
        let count = |steps: &Self, step: i128| {
            let range = steps.0.iter().find(|range| range.count > 0 && range.step == step);
            range.map_or(0, |range| range.count)
        };
        let mut steps = [0; 2 * RANGES];
        let all = self.ranges().chain(other.ranges()).map(|range| range.step);
        for (own, step) in steps.iter_mut().zip(all) {
            *own = step;
        }
        steps.sort_unstable_by_key(|step| -step);
        let (mut first, mut found) = (0, [Strided::default(); 2 * RANGES + 1]);
        let mut last = 0;
        for (range, step) in found.iter_mut().zip(steps).filter(|(_, step)| *step > 0) {
            if step == last {
                continue;
            }
            last = step;
            // Distance of the second box in steps, rounded to the nearest.
            let by = (distance + step / 2).div_euclid(step);
            distance -= by * step;
            let most = count(self, step).max(by.checked_add(count(other, step))?);
            first += by.min(0) * step;
            *range = Strided { step, count: most - by.min(0) };
        }
        let rest = Strided::spanning(distance.abs(), distance.abs());
        found[2 * RANGES] = rest;
        Some((first + distance.min(0), Self::of(found)))
    }
}

/// Joins ranges, sorted by descending step, until no two of them form one range and there are at most
/// [`RANGES`]. Returns their number.
fn combine(ranges: &mut [Strided; ROOM], mut count: usize) -> usize {
    let replace = |ranges: &mut [Strided; ROOM], at: usize, range: Strided, count: usize| {
        ranges[at] = range;
        ranges.copy_within(at + 2..count, at + 1);
    };
    loop {
        // Multiples of the smaller step that reach the next multiple of the larger step have no gaps.
        let joined = (1..count).rev().find_map(|at| {
            let (large, small) = (ranges[at - 1], ranges[at]);
            let is_whole = large.step % small.step == 0;
            let ratio = large.step / small.step;
            let count = large.count.checked_mul(ratio)?.checked_add(small.count)?;
            (is_whole && small.count >= ratio - 1).then_some((at - 1, Strided { count, ..small }))
        });
        if let Some((at, range)) = joined {
            replace(ranges, at, range, count);
        } else if count > RANGES {
            let (a, b) = (ranges[count - 2], ranges[count - 1]);
            let step = gcd(a.step, b.step);
            let range = Strided::spanning(a.span().saturating_add(b.span()), step);
            replace(ranges, count - 2, range, count);
        } else {
            return count;
        }
        count -= 1;
    }
}

pub(crate) fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn range(step: i128, count: i128) -> Strided {
        if count == 0 { Strided::default() } else { Strided { step, count } }
    }

    /// Returns all numbers of a box.
    fn numbers(steps: &Steps) -> BTreeSet<i128> {
        steps.ranges().fold(BTreeSet::from([0]), |all, range| {
            let add = |n: i128| (0..=range.count).map(move |times| n + times * range.step);
            all.into_iter().flat_map(add).collect()
        })
    }

    #[test]
    fn ranges_without_gaps_are_one_range() {
        let joined = Steps::of([range(8, 3), range(2, 3)]);
        assert_eq!(joined, Steps::one(range(2, 15)));
        assert_eq!(Steps::of([range(8, 3), range(2, 2)]).ranges().count(), 2);
        assert_eq!(Steps::of([range(4, 2), range(4, 5)]), Steps::one(range(4, 7)));
    }

    #[test]
    fn boxes_that_differ_in_one_dimension_join_in_it() {
        let plane = Steps::of([range(1000, 2), range(4, 2)]);
        assert_eq!(plane.or(&plane, 8), (0, Steps::of([range(1000, 2), range(4, 4)])));
        assert_eq!(plane.or(&plane, -1000), (-1000, Steps::of([range(1000, 3), range(4, 2)])));
        let row = Steps::one(range(4, 2));
        assert_eq!(row.or(&plane, -1000), (-1000, plane));
    }

    proptest! {
        #[test]
        fn boxes_contain_all_sums(
            own in prop::collection::vec((1_i128..60, 0_i128..4), 0..6),
            others in prop::collection::vec((1_i128..60, 0_i128..4), 0..4),
            distance in -80_i128..80,
        ) {
            let ranges = |all: &[(i128, i128)]| {
                all.iter().map(|&(step, count)| range(step, count)).collect::<Vec<_>>()
            };
            let (own, others) = (ranges(&own), ranges(&others));
            let sums = own.iter().fold(BTreeSet::from([0]), |all, range| {
                let add = |n: i128| (0..=range.count).map(move |times| n + times * range.step);
                all.into_iter().flat_map(add).collect()
            });
            let (a, b) = (Steps::of(own.clone()), Steps::of(others));
            let (found, other) = (numbers(&a), numbers(&b));
            prop_assert!(found.is_superset(&sums));
            prop_assert_eq!(found.last().copied(), Some(a.span()));
            prop_assert_eq!(a.span(), *sums.last().unwrap_or(&0));
            let (first, either) = a.or(&b, distance);
            let either: BTreeSet<_> = numbers(&either).iter().map(|n| n + first).collect();
            prop_assert!(either.is_superset(&found));
            prop_assert!(other.iter().all(|n| either.contains(&(n + distance))));
        }
    }
}
