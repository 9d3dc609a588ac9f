#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::NdSize;

fn space(global: impl Into<NdSize>, local: Option<usize>) -> Space {
    let mut range = NdRange::from(global.into());
    if let Some(local) = local {
        range.set_local(local.into()).unwrap();
    }
    Space::new(&range)
}

impl Form {
    /// Returns whether the value may be this number in the work-item with these global ids.
    pub(crate) fn allows(&self, ids: [i128; 2], value: i128, space: &Space) -> bool {
        let split = self.line.split.map_or(0, |split| {
            let n = ids[split.dimension] + split.shift;
            split.row * (n / split.width) + split.column * (n % split.width)
        });
        let [x, y, _] = self.coefficients();
        let (low, high) = self.bounds(space);
        let rest = value - (x * ids[0] + y * ids[1] + split) - self.low;
        let sums = self.ranges().fold(vec![0], |sums: Vec<i128>, range| {
            let reached = sums.into_iter().flat_map(|n| {
                // Only the part near the value matters in a long range.
                let nearest = (rest - n).div_euclid(range.step);
                let (first, last) = ((nearest - 200).max(0), (nearest + 200).min(range.count));
                (first..=last).map(move |times| n + times * range.step)
            });
            reached.collect()
        });
        sums.contains(&rest) && (low..=high).contains(&value)
    }
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
        let (x, y) =
            (Form::id(Id::Global, 0, &space).times(x), Form::id(Id::Global, 1, &space).times(y));
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
        factor in -9_i128..9, limits in [-90_i128..90, -90_i128..90],
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
            form.is_none_or(|form| form.allows([x, y], value, &space))
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
            // Limits that hold for the operands hold for the results.
            let limited = first.clipped(limits[0].min(limits[1]), limits[0].max(limits[1]), &space);
            let (low, high) = limited.bounds(&space);
            for rest in 0..=width {
                let p = a * x + b * y + k + rest * step;
                if !(low..=high).contains(&p) {
                    continue;
                }
                prop_assert!(holds(Some(limited), x, y, p));
                prop_assert!(holds(limited.plus(&second, &space), x, y, p + q));
                prop_assert!(holds(second.minus(&limited, &space), x, y, q - p));
                prop_assert!(holds(limited.product(&second, &space), x, y, p * q));
                prop_assert!(holds(limited.times(factor), x, y, p * factor));
                prop_assert!(holds(Some(limited.or(&first, &space)), x, y, p));
                prop_assert!(holds(Some(second.or(&limited, &space)), x, y, p));
                let quotient = Some(limited.quotient(divisor, &space));
                prop_assert!(holds(quotient, x, y, p.div_euclid(divisor)));
                let remainder = Some(limited.remainder(divisor, &space));
                prop_assert!(holds(remainder, x, y, p.rem_euclid(divisor)));
                for (d, id) in [x, y].into_iter().enumerate() {
                    let distance = limited.distance(d, &space);
                    prop_assert!(distance.is_none_or(|(low, high)| low <= p - id && p - id <= high));
                }
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

#[test]
fn values_of_two_forms_keep_their_common_divisor() {
    let space = space([64, 8], None);
    let row = Form::id(Id::Global, 0, &space).times(12).unwrap();
    let column = Form::id(Id::Global, 1, &space).times(8).unwrap();
    let both = row.or(&column.plus(&Form::constant(20), &space).unwrap(), &space);
    assert!(both.is_multiple_of(4) && !both.is_multiple_of(8), "{both:?}");
    assert_eq!(both.bounds(&space), (0, 12 * 63));
    let odd = row.or(&column.plus(&Form::constant(1), &space).unwrap(), &space);
    assert!(!odd.is_multiple_of(2), "{odd:?}");
}
