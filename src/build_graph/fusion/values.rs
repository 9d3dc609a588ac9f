//! Values of scalars on which the results of fusing launches depend.

use std::collections::{BTreeMap, BTreeSet};

use kiln_compiler::fusion::{Argument, Outcome, Place, Plan};

use super::query::Query;

/// Conditions on the values of the launches' scalars, without which a result does not hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    /// Scalars that must have these values.
    constants: BTreeMap<Place, Vec<u8>>,
    /// Sets of scalars that must have equal values.
    equal: BTreeSet<BTreeSet<Place>>,
    /// Pairs of scalars that must have different values.
    unequal: BTreeSet<[Place; 2]>,
}

impl Values {
    /// Returns the values of the scalars that a plan fixes.
    pub(super) fn fixed_by(plan: &Plan) -> Self {
        Self { constants: scalar_values(plan, plan.constants.iter().copied()), ..Self::default() }
    }

    /// Returns the values of the scalars at these places of a plan.
    pub(super) fn at(plan: &Plan, places: impl IntoIterator<Item = Place>) -> Self {
        Self { constants: scalar_values(plan, places.into_iter()), ..Self::default() }
    }

    /// Returns the conditions of the outcome for the launches `members` of a plan.
    pub(super) fn of(plan: &Plan, outcome: &Outcome, members: &[usize]) -> Self {
        let place = |place: &Place| {
            let slot = members.get(place.slot).copied().unwrap_or(place.slot);
            Place { slot, ..*place }
        };
        let equal = outcome.equal.iter().map(|equal| equal.iter().map(place).collect());
        let unequal = outcome.unequal.iter().map(|[one, other]| [place(one), place(other)]);
        Self {
            constants: scalar_values(plan, outcome.constants.iter().map(place)),
            equal: equal.collect(),
            unequal: unequal.collect(),
        }
    }

    /// Adds the conditions of another result for the same plan.
    pub(super) fn extend(&mut self, other: Self) {
        self.constants.extend(other.constants);
        self.equal.extend(other.equal);
        self.unequal.extend(other.unequal);
    }

    /// Whether a result with the conditions of `other` holds wherever these conditions hold.
    pub(super) fn imply(&self, other: &Self) -> bool {
        let is_fixed = |place: &Place| self.constants.contains_key(place);
        let is_equal = |equal: &BTreeSet<Place>| {
            equal.iter().all(is_fixed) || self.equal.iter().any(|known| known.is_superset(equal))
        };
        other.constants.keys().all(is_fixed) && other.equal.iter().all(is_equal)
    }

    /// Returns the positions of the launches with a scalar on whose value the result depends, among those of which
    /// `is_open` holds.
    pub(super) fn launches_with(&self, is_open: impl Fn(Place) -> bool) -> BTreeSet<usize> {
        let constants = self.constants.keys();
        let all = constants.chain(self.equal.iter().flatten()).chain(self.unequal.iter().flatten());
        all.filter(|&&place| is_open(place)).map(|place| place.slot).collect()
    }

    pub(super) fn are_none(&self) -> bool {
        self.constants.is_empty() && self.equal.is_empty() && self.unequal.is_empty()
    }

    /// Whether the conditions hold for the scalar values of a query.
    pub(super) fn hold_for(&self, query: &Query) -> bool {
        let is_equal = |equal: &BTreeSet<Place>| {
            let values = equal.iter().map(|&place| query.value(place));
            values.clone().zip(values.skip(1)).all(|(a, b)| a == b)
        };
        (self.constants.iter()).all(|(&place, known)| query.value(place) == Some(known))
            && self.equal.iter().all(is_equal)
            && self.unequal.iter().all(|&[one, other]| query.value(one) != query.value(other))
    }
}

/// Returns the values of the scalars at these places of a plan.
fn scalar_values(plan: &Plan, places: impl Iterator<Item = Place>) -> BTreeMap<Place, Vec<u8>> {
    places
        .filter_map(|place| match &plan.slots.get(place.slot)?.arguments.get(place.argument)? {
            Argument::Scalar(bytes) => Some((place, bytes.clone())),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(slot: usize) -> Place {
        Place { slot, argument: 0 }
    }

    fn values(constants: &[usize], equal: &[&[usize]]) -> Values {
        Values {
            constants: constants.iter().map(|&slot| (place(slot), vec![1])).collect(),
            equal: equal.iter().map(|set| set.iter().map(|&slot| place(slot)).collect()).collect(),
            unequal: BTreeSet::new(),
        }
    }

    #[test]
    fn launches_with_open_values_are_found_in_all_conditions() {
        let mut values = values(&[1, 2], &[&[3, 4]]);
        values.unequal.insert([place(5), place(6)]);
        let with = |open: &[usize]| {
            let launches = values.launches_with(|place| open.contains(&place.slot));
            launches.into_iter().collect::<Vec<_>>()
        };
        assert!(with(&[0, 7]).is_empty());
        assert_eq!(with(&[2, 3, 6]), [2, 3, 6]);
    }

    #[test]
    fn results_that_depend_on_fewer_values_are_implied() {
        let known = values(&[1, 2], &[&[3, 4, 5]]);
        for implied in [values(&[], &[]), values(&[1], &[]), values(&[2], &[&[3, 5], &[1, 2]])] {
            assert!(known.imply(&implied), "{implied:?}");
        }
        for other in [values(&[3], &[]), values(&[], &[&[1, 3]]), values(&[], &[&[5, 6]])] {
            assert!(!known.imply(&other), "{other:?}");
        }
    }
}
