//! Dependences between launches: accesses to the same memory, and whether two of them may meet (touch the same
//! byte) in different work-items.
//!
//! Two accesses that begin at `c · x + r` and `d · y + s`, for work-items `x` and `y`, meet only where the
//! difference of the two is in the window that the widths span. The difference is a sum of the differences of
//! the ids and of the strided ranges of the remainders `r` and `s`. [`never_meet`] proves that no such sum is
//! in the window, but for `x = y`.

use super::examined::Examined;
use crate::ImageShape;
use crate::analysis::access::{Access, Bytes, Kind, UNKNOWN_COORDINATES, UNKNOWN_OFFSETS};
use crate::analysis::affine::{Space, Strided};
use crate::analysis::declaration::Parameter;
use crate::analysis::equation::{Equation, Term};
use crate::analysis::explain::{Cause, Origin};
use crate::plan::{Argument, Memory, Plan, Region};

/// Access to a memory, with its bytes counted in the memory instead of the buffer.
pub(super) struct Use<'a> {
    pub(super) slot: usize,
    pub(super) kernel: &'a str,
    pub(super) parameter: &'a Parameter,
    pub(super) access: &'a Access,
    /// Bytes that are touched, from the memory's first byte; `None` if they are not known.
    pub(super) bytes: Option<Bytes>,
    /// Region of the memory that the argument stands for.
    pub(super) region: Region,
    /// Shape of the memory, if the argument is an image.
    pub(super) image: Option<ImageShape>,
    origin: Option<&'a Origin>,
}

impl<'a> Use<'a> {
    pub(super) fn memory(&self) -> Memory {
        self.region.memory
    }

    /// Returns the accesses of all slots to a memory.
    pub(super) fn all(plan: &Plan, slots: &'a [Examined], memory: Memory) -> Vec<Self> {
        let mut uses = Vec::new();
        for (place, region) in plan.regions(memory) {
            let Examined { kernel, accesses, parameters, origins, .. } = &slots[place.slot];
            let image = match plan.slots[place.slot].arguments[place.argument] {
                Argument::Image(image) => Some(image.shape),
                _ => None,
            };
            let own = accesses.all.iter().filter(|access| access.parameter == place.argument);
            uses.extend(own.map(|access| {
                let mut bytes = access.bytes;
                if let Some(Bytes { start, group, .. }) = &mut bytes {
                    for form in [Some(start), group.as_mut()].into_iter().flatten() {
                        *form = form.moved_by(region.offset as i128);
                    }
                }
                let parameter = &parameters[place.argument];
                let origin = access.location.and_then(|location| origins.get(&location.offset));
                let slot = place.slot;
                Use { slot, kernel, parameter, access, bytes, region, image, origin }
            }));
        }
        uses
    }

    /// Returns a description of the access, such as "`blur` reads `src`", with its line if that is known.
    pub(super) fn describe(&self) -> String {
        let name = self.parameter.describe(self.access.parameter);
        let line = self.origin.and_then(|origin| origin.line.as_deref());
        let line = line.map_or_else(String::new, |line| format!(" ({line})"));
        let verb = match self.access.kind {
            Kind::Read => "reads",
            Kind::Write => "writes",
            Kind::Atomic => "modifies atomically",
            Kind::Escape => return format!("in `{}`, {name}{line}", self.kernel),
        };
        format!("`{}` {verb} {name}{line}", self.kernel)
    }

    /// Returns the reason why the accessed bytes are not known, in words that follow the description.
    pub(super) fn why_unknown(&self) -> String {
        let cause = self.origin.and_then(|origin| origin.cause.as_ref());
        match (self.access.note, cause) {
            (None | Some(UNKNOWN_OFFSETS | UNKNOWN_COORDINATES), Some(cause)) => cause.describe(),
            (note, _) => note.unwrap_or(UNKNOWN_OFFSETS).to_owned(),
        }
    }

    /// Returns the reason why the accessed bytes are not always the same, in words that follow the description.
    pub(super) fn why_changing(&self) -> String {
        let cause = self.origin.and_then(|origin| origin.cause.as_ref());
        match cause.and_then(Cause::counter) {
            Some(counter) => format!("in the loop over `{counter}`, each time at another offset"),
            None => "at offsets that change while it runs".to_owned(),
        }
    }

    /// Whether the offsets depend on the size of work-groups, or on ids within them.
    pub(super) fn is_by_group(&self) -> bool {
        self.origin.is_some_and(|origin| origin.is_by_group)
    }

    /// Returns the past participle of the access's verb: "read" or "written".
    pub(super) fn participle(&self) -> &'static str {
        if self.access.kind == Kind::Read { "read" } else { "written" }
    }
}

/// Returns whether two different work-items never touch the same byte, one with `a` and the other with `b`.
/// `own` holds the work-items that make each access, `space` all work-items.
pub(super) fn never_meet(a: &Bytes, b: &Bytes, own: (&Space, &Space), space: &Space) -> bool {
    let ends = |bytes: &Bytes, space: &Space| {
        let (low, high) = bytes.start.bounds(space);
        (low, high + bytes.width - 1)
    };
    let ((a_low, a_high), (b_low, b_high)) = (ends(a, own.0), ends(b, own.1));
    if a_high < b_low || b_high < a_low {
        return true;
    }
    if a.start.coefficients() == b.start.coefficients() {
        // The accesses meet where the coefficients times the difference of the ids are in this range.
        let low = b.start.low - a.start.high - a.width + 1;
        let high = b.start.high + b.width - 1 - a.start.low;
        let least = a.start.least_distance(space);
        if -least < low && high < least {
            return true;
        }
    }
    let distance = b.start.low - a.start.low;
    !difference(a, b, own).may_hold(distance - a.width + 1, distance + b.width - 1)
}

/// Returns the difference of the starts of two accesses, without their constants: the first minus the second.
fn difference(a: &Bytes, b: &Bytes, (first, second): (&Space, &Space)) -> Equation {
    let mut equation = Equation::default();
    let factors = a.start.coefficients().into_iter().zip(b.start.coefficients());
    for (d, (own, other)) in factors.enumerate() {
        let ends = |space: &Space| (space.offset[d], space.offset[d] + space.global[d] - 1);
        let ((a_first, a_last), (b_first, b_last)) = (ends(first), ends(second));
        // c * x - d * y = c * (x - y) + (c - d) * y
        let (low, high) = (a_first - b_last, a_last - b_first);
        equation.add(Term { factor: own, low, high, is_item: true });
        let (low, high) = (b_first, b_last);
        equation.add(Term { factor: own - other, low, high, is_item: false });
    }
    for Strided { step, count } in a.start.ranges() {
        equation.add(Term { factor: step, low: 0, high: count, is_item: false });
    }
    for Strided { step, count } in b.start.ranges() {
        equation.add(Term { factor: step, low: -count, high: 0, is_item: false });
    }
    equation
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::analysis::affine::{Form, Id};
    use crate::{NdRange, NdSize};

    const SIZES: [usize; 2] = [5, 4];

    fn space(sizes: impl Into<NdSize>) -> Space {
        Space::new(&NdRange::from(sizes.into()))
    }

    /// Returns bytes that start at the sum of ids with factors, of multiples of each step, and a constant.
    fn bytes(
        space: &Space,
        factors: [i128; 2],
        ranges: &[(i128, i128)],
        low: i128,
        width: i128,
    ) -> Bytes {
        let mut start = Form::constant(low);
        for (d, factor) in factors.into_iter().enumerate() {
            let id = Form::id(Id::Global, d, space).times(factor).unwrap();
            start = start.plus(&id, space).unwrap();
        }
        for &(step, count) in ranges {
            start = start.plus(&Form::steps(step * count, step), space).unwrap();
        }
        Bytes { start, width, group: None, inside: None }
    }

    #[track_caller]
    fn assert_apart(a: &Bytes, b: &Bytes, space: &Space, expected: bool) {
        assert_eq!(never_meet(a, b, (space, space), space), expected);
        assert_eq!(never_meet(b, a, (space, space), space), expected);
    }

    #[test]
    fn halves_of_rows_never_meet() {
        let rows = space(1000);
        let half = |first| bytes(&rows, [32, 0], &[(4, 3)], first, 4);
        assert_apart(&half(0), &half(16), &rows, true);
        assert_apart(&half(0), &half(0), &rows, true);
        // One element more reaches the next row.
        let longer = bytes(&rows, [32, 0], &[(4, 4)], 16, 4);
        assert_apart(&half(0), &longer, &rows, false);
    }

    #[test]
    fn rectangles_of_planes_never_meet() {
        // Each work-item has a tile of 4 x 2 elements, in rows of 400 elements.
        let tiles = space([100, 60]);
        let tile = |x: i128, y: i128, columns: i128| {
            bytes(&tiles, [16, 3200], &[(1600, y), (4, columns)], 4 * x, 4)
        };
        assert_apart(&tile(0, 1, 3), &tile(0, 1, 3), &tiles, true);
        assert_apart(&tile(0, 1, 1), &tile(2, 1, 1), &tiles, true);
        assert_apart(&tile(0, 1, 3), &tile(1, 1, 3), &tiles, false);
        assert_apart(&tile(0, 2, 3), &tile(0, 1, 3), &tiles, false);
    }

    #[test]
    fn strides_of_all_work_items_never_meet() {
        let items = space(64);
        let strided = |first, step| bytes(&items, [4, 0], &[(step, 1000)], first, 4);
        assert_apart(&strided(0, 256), &strided(0, 256), &items, true);
        assert_apart(&strided(0, 256), &strided(256, 256), &items, true);
        assert_apart(&strided(0, 256), &strided(4, 256), &items, false);
        assert_apart(&strided(0, 252), &strided(0, 252), &items, false);
    }

    proptest! {
        #[test]
        fn accesses_that_never_meet_share_no_byte(
            a_factors in [-20_i128..20, -20_i128..20], b_factors in [-20_i128..20, -20_i128..20],
            is_alike in any::<bool>(),
            a_ranges in prop::collection::vec((1_i128..40, 0_i128..3), 0..3),
            b_ranges in prop::collection::vec((1_i128..40, 0_i128..3), 0..3),
            distance in -60_i128..60, a_width in 1_i128..5, b_width in 1_i128..5,
        ) {
            let space = space(SIZES);
            let b_factors = if is_alike { a_factors } else { b_factors };
            let a = bytes(&space, a_factors, &a_ranges, 0, a_width);
            let b = bytes(&space, b_factors, &b_ranges, distance, b_width);
            let starts = |factors: [i128; 2], ranges: &[(i128, i128)], x: usize, y: usize| {
                let first = factors[0] * x as i128 + factors[1] * y as i128;
                ranges.iter().fold(vec![first], |sums, &(step, count)| {
                    let add = |n: i128| (0..=count).map(move |times| n + times * step);
                    sums.into_iter().flat_map(add).collect::<Vec<_>>()
                })
            };
            let items = || (0..SIZES[0]).flat_map(|x| (0..SIZES[1]).map(move |y| (x, y)));
            let meets = items().any(|(x, y)| {
                let own = starts(a_factors, &a_ranges, x, y);
                items().filter(|&other| other != (x, y)).any(|(x, y)| {
                    let others = starts(b_factors, &b_ranges, x, y);
                    own.iter().any(|n| {
                        let overlaps = |m: &i128| {
                            let m = m + distance;
                            *n < m + b_width && m < n + a_width
                        };
                        others.iter().any(overlaps)
                    })
                })
            });
            prop_assert!(!meets || !never_meet(&a, &b, (&space, &space), &space));
        }
    }
}
