//! Linear equations of bounded integers: whether two accesses can touch the same byte.

/// Product of a number and an unknown integer between two bounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Term {
    pub(crate) factor: i128,
    pub(crate) low: i128,
    pub(crate) high: i128,
    /// Whether the integer is a difference of two work-items' ids.
    pub(crate) is_item: bool,
}

/// Maximum number of terms.
const MAX_TERMS: usize = 12;
/// Exclusive bound of the values of terms, so that sums of them do not overflow.
const MAX_NUMBER: u128 = 1 << 100;
/// Maximum number of sums that are tried before a solution is assumed to exist.
const MAX_TRIES: usize = 256;

/// Sum of terms that is to be between two numbers.
#[derive(Debug, Default)]
pub(crate) struct Equation {
    terms: [Term; MAX_TERMS],
    count: usize,
    /// Bounds and greatest common divisor of the sums of all terms from each term on.
    rests: [(i128, i128, i128); MAX_TERMS + 1],
    /// Number of terms up to the last one that is a difference of ids.
    items_end: usize,
    /// Whether the two work-items may differ in an id that is not part of the sum.
    differs: bool,
    /// Whether there are more or larger terms than can be solved for.
    is_too_long: bool,
    tries: usize,
}

impl Equation {
    pub(crate) fn add(&mut self, term: Term) {
        let is_fixed = term.low == 0 && term.high == 0;
        if term.factor == 0 || is_fixed {
            self.differs |= term.is_item && !is_fixed;
            return;
        }
        let ends = [term.low, term.high].map(|end| term.factor.checked_mul(end));
        let is_small = |end: Option<i128>| end.is_some_and(|end| end.unsigned_abs() < MAX_NUMBER);
        if !ends.into_iter().all(is_small) {
            self.is_too_long = true;
            return;
        }
        // Terms of the same factor are one term.
        let mut known = self.terms[..self.count].iter_mut();
        let alike = known.find(|known| known.factor == term.factor && !known.is_item);
        match alike.filter(|_| !term.is_item) {
            Some(known) => {
                known.low = known.low.saturating_add(term.low);
                known.high = known.high.saturating_add(term.high);
            }
            None if self.count == MAX_TERMS => self.is_too_long = true,
            None => {
                self.terms[self.count] = term;
                self.count += 1;
            }
        }
    }

    /// Returns whether the sum may be between `low` and `high` for two different work-items. Returns true if
    /// that cannot be decided: within [`MAX_TRIES`] tries, or because of too many or too large terms.
    pub(crate) fn may_hold(mut self, low: i128, high: i128) -> bool {
        if self.is_too_long {
            return true;
        }
        self.terms[..self.count].sort_unstable_by_key(|term| -term.factor.abs());
        for at in (0..self.count).rev() {
            let Term { factor, low, high, is_item } = self.terms[at];
            let (a, b) = (factor.saturating_mul(low), factor.saturating_mul(high));
            let (least, most, common) = self.rests[at + 1];
            self.rests[at] = (
                least.saturating_add(a.min(b)),
                most.saturating_add(a.max(b)),
                super::affine::gcd(common, factor),
            );
            if is_item && self.items_end == 0 {
                self.items_end = at + 1;
            }
        }
        let differs = self.differs;
        self.search(0, low, high, differs)
    }

    /// Returns whether the terms from `at` on may add up to a number between `low` and `high`. `differs` states
    /// whether the terms before `at` already make the two work-items different.
    fn search(&mut self, at: usize, low: i128, high: i128, differs: bool) -> bool {
        self.tries += 1;
        if self.tries > MAX_TRIES {
            return true;
        }
        let (least, most, common) = self.rests[at];
        let (from, to) = (low.max(least), high.min(most));
        // Sums differ from the least one by multiples of the common divisor.
        let has_multiple = match common {
            0 => from <= to,
            _ => from <= to && (to - least).div_euclid(common) * common >= from - least,
        };
        if !has_multiple || (!differs && at >= self.items_end) {
            return false;
        }
        if at == self.count {
            return true;
        }
        let Term { factor, low: first, high: last, is_item } = self.terms[at];
        let (least, most, _) = self.rests[at + 1];
        let (from, to) = (low.saturating_sub(most), high.saturating_sub(least));
        // Bounds of the integer for which the other terms can still make up the sum.
        let (from, to) = match factor > 0 {
            true => (-(-from).div_euclid(factor), to.div_euclid(factor)),
            false => (-to.div_euclid(-factor), (-from).div_euclid(-factor)),
        };
        let (from, to) = (from.max(first), to.min(last));
        if to.saturating_sub(from) > MAX_TRIES as i128 {
            return true;
        }
        (from..=to).any(|number| {
            let by = factor * number;
            self.search(at + 1, low - by, high - by, differs || (is_item && number != 0))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn equation(terms: &[Term]) -> Equation {
        let mut equation = Equation::default();
        terms.iter().for_each(|&term| equation.add(term));
        equation
    }

    fn term(factor: i128, low: i128, high: i128, is_item: bool) -> Term {
        Term { factor, low, high, is_item }
    }

    #[test]
    fn long_rows_are_decided_without_trying_all() {
        let rows = [term(32, -9999, 9999, true), term(4, -3, 3, false)];
        assert!(!equation(&rows).may_hold(16 - 3, 16 + 3));
        assert!(!equation(&rows).may_hold(-3, 3));
        assert!(equation(&rows).may_hold(20 - 3, 20 + 3));
    }

    #[test]
    fn an_id_outside_of_the_sum_lets_work_items_differ() {
        assert!(!equation(&[term(4, -9, 9, true)]).may_hold(-3, 3));
        assert!(equation(&[term(4, -9, 9, true), term(0, -1, 1, true)]).may_hold(-3, 3));
        assert!(!equation(&[term(4, -9, 9, true), term(0, 0, 0, true)]).may_hold(-3, 3));
    }

    proptest! {
        #[test]
        fn solutions_are_never_missed(
            terms in prop::collection::vec((-30_i128..30, -3_i128..2, 0_i128..4, any::<bool>()), 1..4),
            low in -60_i128..60, width in 0_i128..4,
        ) {
            let terms: Vec<_> = terms
                .into_iter()
                .map(|(factor, low, count, is_item)| term(factor, low, low + count, is_item))
                .collect();
            // Sums, each with whether an id differs.
            let sums = terms.iter().fold(vec![(0, false)], |sums, term| {
                let add = |(sum, differs): (i128, bool)| {
                    (term.low..=term.high)
                        .map(move |n| (sum + n * term.factor, differs || (term.is_item && n != 0)))
                };
                sums.into_iter().flat_map(add).collect()
            });
            let holds = sums.iter().any(|&(n, differs)| differs && (low..=low + width).contains(&n));
            let found = equation(&terms).may_hold(low, low + width);
            prop_assert!(found || !holds);
            // With so few numbers, the search is complete for single sums.
            prop_assert!(holds == found);
        }
    }
}
