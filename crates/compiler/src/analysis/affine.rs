//! Integers as functions of the work-item: affine in its ids, plus a bounded remainder.

mod line;
mod steps;
#[cfg(test)]
mod tests;

pub(crate) use line::Line;
use line::Split;
use steps::Steps;
pub(crate) use steps::Strided;
pub(crate) use steps::gcd;

use crate::NdRange;

/// The work-items of a launch, in three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) global: [i128; 3],
    pub(crate) offset: [i128; 3],
    /// Size of a work-group; `None` if the driver chooses it.
    pub(crate) local: Option<[i128; 3]>,
    pub(crate) dimensions: usize,
    /// Whether all work-groups are known to have the same size.
    pub(crate) is_uniform: bool,
}

impl Space {
    pub(crate) fn new(range: &NdRange) -> Self {
        let pad = |sizes: &[usize], rest: i128| {
            std::array::from_fn(|d| sizes.get(d).map_or(rest, |&size| size as i128))
        };
        Self {
            global: pad(range.global(), 1),
            offset: pad(range.offset(), 0),
            local: range.local().map(|local| pad(local, 1)),
            dimensions: range.dimensions(),
            is_uniform: true,
        }
    }

    /// Returns the space of the same work-items, in work-groups some of which may be smaller than others.
    pub(crate) fn with_smaller_groups(self) -> Self {
        Self { is_uniform: false, ..self }
    }

    /// Returns the space of the work-groups, each as one work-item; `None` if the driver chooses their
    /// size.
    pub(crate) fn work_groups(&self) -> Option<Self> {
        let local = self.local?;
        let global = std::array::from_fn(|d| self.global[d] / local[d].max(1));
        Some(Self { global, offset: [0; 3], local: None, ..*self })
    }

    /// Returns the least and the largest value of an id in dimension `d`.
    pub(crate) fn bounds(&self, id: Id, d: usize) -> (i128, i128) {
        let local = self.local.map(|local| local[d].max(1));
        let count = match id {
            Id::Global => return (self.offset[d], self.offset[d] + self.global[d] - 1),
            Id::Size => return local.map_or((1, self.global[d].max(1)), |local| (local, local)),
            Id::Count => {
                let all = self.global[d].max(1);
                let count = |local| (all + local - 1) / local;
                return local.map_or((1, all), |local| (count(local), count(local)));
            }
            Id::Local => local.unwrap_or(self.global[d]),
            Id::Group => {
                let local = local.unwrap_or(1);
                (self.global[d] + local - 1) / local
            }
        };
        (0, (count - 1).max(0))
    }
}

/// Kind of id of a work-item. Each id has three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    Global,
    Local,
    Group,
    /// Size of all work-groups, which the driver chooses. It is the same in all work-items of a launch.
    Size,
    /// Number of work-groups, which follows from their size.
    Count,
}

impl Id {
    const ALL: [Self; 5] = [Self::Global, Self::Local, Self::Group, Self::Size, Self::Count];
}

/// Integer that is a sum of multiples of ids, of the parts of a divided id, and of a remainder.
///
/// The remainder is `low` plus one number of each strided range in `steps`; `high` is its largest value. It
/// may differ between work-items, and between two evaluations in one work-item. `within` limits the whole
/// value.
///
/// Operations are exact on the integers, not modulo a power of two. They return `None` if the result is
/// too large. A form that holds wherever an expression is evaluated still holds after its remainder or its
/// limits are widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    line: Line,
    pub(crate) low: i128,
    /// Always `low` plus the span of `steps`.
    pub(crate) high: i128,
    steps: Steps,
    /// Bounds of the value, if these are narrower than the bounds of its parts together.
    within: Option<(i128, i128)>,
    /// Likewise for the value without its [part by work-group](Line::of_groups).
    within_group: Option<(i128, i128)>,
}

/// Exclusive bound of the numbers in a form, so that sums of a few of them do not overflow.
const LIMIT: i128 = 1 << 100;

/// Returns the number, or the nearest one that can be added to a few others. Forms with such numbers are
/// above [`LIMIT`], so that nothing is calculated from them.
const fn limited(number: i128) -> i128 {
    match number {
        ..=MIN_NUMBER => MIN_NUMBER,
        MAX_NUMBER.. => MAX_NUMBER,
        _ => number,
    }
}

const MIN_NUMBER: i128 = -2 * LIMIT;
const MAX_NUMBER: i128 = 2 * LIMIT;

/// Maximum difference of the quotients of a form whose remainder is related to the form.
const MAX_QUOTIENTS: i128 = 2;

impl Form {
    pub(crate) const fn constant(value: i128) -> Self {
        Self::between(value, value)
    }

    pub(crate) const fn between(low: i128, high: i128) -> Self {
        let (low, high) = (limited(low), limited(high));
        let steps = Steps::one(Strided::spanning(high - low, 1));
        Self { line: Line::ZERO, low, high, steps, within: None, within_group: None }
    }

    /// Returns the form of a multiple of `step` between 0 and `high`, which is one, too.
    pub(crate) const fn steps(high: i128, step: i128) -> Self {
        let steps = Steps::one(Strided::spanning(high, step));
        Self { line: Line::ZERO, low: 0, high, steps, within: None, within_group: None }
    }

    pub(crate) fn id(id: Id, dimension: usize, space: &Space) -> Self {
        let line = Line::of_id(id, dimension);
        Self { line, ..Self::constant(0) }.folded(space)
    }

    /// Returns the form of a line plus a number between two bounds.
    pub(crate) fn along(line: Line, low: i128, high: i128) -> Self {
        Self { line, ..Self::between(low, high) }
    }

    /// Returns the part that is the same in all evaluations in a work-item, up to a constant.
    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    /// Returns the coefficients of the global id.
    pub(crate) fn coefficients(&self) -> [i128; 3] {
        self.line.ids[Id::Global as usize]
    }

    /// Returns whether all coefficients but those of the global id are 0.
    pub(crate) fn is_global(&self) -> bool {
        self.line.ids[1..].iter().all(|factors| *factors == [0; 3])
    }

    /// Returns whether the value is affine in the global id alone, without a range of remainders.
    pub(crate) fn is_exact(&self) -> bool {
        self.low == self.high && self.line.split.is_none() && self.is_global()
    }

    pub(crate) fn value(&self) -> Option<i128> {
        match self.within {
            Some((low, high)) => (low == high).then_some(low),
            None => (self.low == self.high && self.line.is_zero()).then_some(self.low),
        }
    }

    /// Returns the strided ranges of the remainder, by descending step.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Strided> + '_ {
        self.steps.ranges()
    }

    /// Returns the bounds of the values in all work-items, both included.
    pub(crate) fn bounds(&self, space: &Space) -> (i128, i128) {
        let (low, high) = self.line.bounds(space);
        let (low, high) = (low.saturating_add(self.low), high.saturating_add(self.high));
        match self.within {
            Some((least, most)) if low.max(least) <= high.min(most) => {
                (low.max(least), high.min(most))
            }
            _ => (low, high),
        }
    }

    /// Returns a form of the same value, which is also known to be between two bounds. Bounds that
    /// contradict the form are ignored: the code that they are known for never runs.
    pub(crate) fn clipped(&self, low: i128, high: i128, space: &Space) -> Self {
        let (least, most) = self.bounds(space);
        let (low, high) = (low.max(least), high.min(most));
        if low > high || (low, high) == (least, most) {
            return *self;
        }
        let mut ranges = self.steps.ranges();
        let (range, others) = (ranges.next().unwrap_or_default(), ranges.next());
        if !self.line.is_zero() || others.is_some() || range.count == 0 {
            let is_in_group = self.line.of_groups(space).is_some_and(|line| line.is_zero());
            let within_group = is_in_group.then_some((low, high)).or(self.within_group);
            return Self { within: Some((low, high)), within_group, ..*self };
        }
        let step = range.step;
        let first = self.low + (low - self.low + step - 1).div_euclid(step) * step;
        let last = self.low + (high - self.low).div_euclid(step) * step;
        if first > last {
            return *self;
        }
        let steps = Steps::one(Strided::spanning(last - first, step));
        Self { low: first, high: last, steps, within: None, within_group: None, ..*self }
    }

    /// Returns the form where the value is at most `other - by`. Its remainder becomes narrower if both values
    /// have the same line.
    pub(crate) fn below(&self, other: &Self, by: i128) -> Self {
        let high = other.high.saturating_sub(by);
        match self.step_beside(other) {
            Some(step) if self.low <= high && high < self.high => {
                let steps = Steps::one(Strided::spanning(high - self.low, step));
                Self { high: self.low + steps.span(), steps, ..*self }
            }
            _ => *self,
        }
    }

    /// Returns the form where the value is at least `other + by`, like [`below`](Self::below).
    pub(crate) fn above(&self, other: &Self, by: i128) -> Self {
        let low = other.low.saturating_add(by);
        match self.step_beside(other) {
            Some(step) if self.low < low && low <= self.high => {
                let steps = Steps::one(Strided::spanning(self.high - low, step));
                Self { low: self.high - steps.span(), steps, ..*self }
            }
            _ => *self,
        }
    }

    /// Returns the step of a remainder that is one range, if both values have the same line, which is not zero.
    fn step_beside(&self, other: &Self) -> Option<i128> {
        let mut ranges = self.steps.ranges();
        let (range, others) = (ranges.next()?, ranges.next());
        let is_beside = !self.line.is_zero() && self.line == other.line && others.is_none();
        is_beside.then_some(range.step)
    }

    /// Returns the bounds of the value without its part by work-group; `None` if the size of work-groups is
    /// not known.
    fn bounds_in_group(&self, space: &Space) -> Option<(i128, i128)> {
        let group = self.line.of_groups(space)?;
        let (low, high) = self.line.plus(&group.times(-1)?)?.bounds(space);
        let (low, high) = (low.saturating_add(self.low), high.saturating_add(self.high));
        let (least, most) = self.within_group.unwrap_or((low, high));
        Some((low.max(least), high.min(most)))
    }

    /// Returns the form with the limits inside of the work-group as limits of the value, if the value has no
    /// part by work-group.
    fn clipped_in_group(self, space: &Space) -> Self {
        match (self.within_group, self.line.of_groups(space)) {
            (Some((low, high)), Some(line)) if line.is_zero() => self.clipped(low, high, space),
            _ => self,
        }
    }

    /// Returns the form without its [limits](Self::clipped).
    pub(crate) fn unclipped(&self) -> Self {
        Self { within: None, within_group: None, ..*self }
    }

    /// Returns the least and the largest distance of the value from the global id in dimension `d`; `None` if
    /// the value does not depend on that id alone.
    pub(crate) fn distance(&self, d: usize, space: &Space) -> Option<(i128, i128)> {
        let own = self.minus(&Self::id(Id::Global, d, space), space)?;
        if own.is_global() && own.coefficients() == [0; 3] {
            return Some(own.bounds(space));
        }
        let factor = self.coefficients()[d];
        if factor == 0 || *self.line() != Line::of_id(Id::Global, d).times(factor)? {
            return None;
        }
        // The limits of the value limit the id.
        let (low, high) = self.bounds(space);
        let ends = (low.saturating_sub(self.high), high.saturating_sub(self.low));
        let (first, last) =
            if factor > 0 { ends } else { (ends.1.saturating_neg(), ends.0.saturating_neg()) };
        let factor = factor.abs();
        let (least, most) = space.bounds(Id::Global, d);
        let first = (-first.saturating_neg().div_euclid(factor)).max(least);
        let last = last.div_euclid(factor).min(most);
        Some((low.saturating_sub(last), high.saturating_sub(first)))
    }

    /// Returns a form that keeps only the bounds of this one.
    pub(crate) fn weakened(&self, space: &Space) -> Self {
        let (low, high) = self.bounds(space);
        Self::between(low, high)
    }

    /// Returns the form with a constant in place of its remainder.
    pub(crate) fn moved_to(&self, constant: i128) -> Self {
        Self { line: self.line, ..Self::constant(constant) }
    }

    /// Returns the form of the value plus a constant. The numbers of both must be small enough to add them.
    pub(crate) fn moved_by(&self, constant: i128) -> Self {
        let moved = |(low, high): (i128, i128)| {
            (low.saturating_add(constant), high.saturating_add(constant))
        };
        let (within, within_group) = (self.within.map(moved), self.within_group.map(moved));
        let (low, high) = (self.low + constant, self.high + constant);
        Self { low, high, within, within_group, ..*self }
    }

    /// Returns the form `ids` plus a constant and the remainder of this form, if that is the same value.
    pub(crate) fn along_ids(&self, ids: &Self, constant: i128, space: &Space) -> Option<Self> {
        let remainder = Self { line: Line::ZERO, within: None, within_group: None, ..*self };
        let sum = ids.plus(&remainder, space)?.plus(&Self::constant(constant), space)?;
        Some(self.within.map_or(sum, |(low, high)| sum.clipped(low, high, space)))
    }

    /// Returns the form with its coefficients of the global id. The other parts are replaced by their
    /// ranges.
    pub(crate) fn without_local(&self, space: &Space) -> Self {
        if self.is_global() && self.line.split.is_none() {
            return *self;
        }
        let mut other = self.line;
        other.ids[Id::Global as usize] = [0; 3];
        let mut form = self.with_ranges_of(&other, space);
        form.line = Line::ZERO;
        form.line.ids[Id::Global as usize] = self.coefficients();
        form.within_group = None;
        form
    }

    /// Returns the form with the ranges of a line's values added to its remainder.
    fn with_ranges_of(&self, line: &Line, space: &Space) -> Self {
        // The ranges begin at the least values of the parts, whatever the least value of all together is.
        let (low, _) = line.bounds_by(space, |id, d| space.bounds(id, d));
        let low = self.low.saturating_add(low);
        let steps = Steps::of(self.steps.ranges().chain(line.ranges(space)));
        Self { low, high: low.saturating_add(steps.span()), steps, ..*self }
    }

    /// Returns the value as a form of the work-group's id, as if that were the global id in
    /// [`Space::work_groups`]. The part that depends on the work-item is replaced by its ranges. Returns
    /// `None` if the size of work-groups is not known, or a number is too large.
    pub(crate) fn by_group(&self, space: &Space) -> Option<Self> {
        let local = space.local?;
        let mut group = Line::ZERO;
        let mut inside = Line { split: self.line.split, ..Line::ZERO };
        let mut constant = 0_i128;
        for d in 0..3 {
            // global id = group id * local size + local id + offset
            let [global, own, by_group, ..] = self.line.ids.map(|factors| factors[d]);
            let whole = global.checked_mul(local[d])?.checked_add(by_group)?;
            group.ids[Id::Global as usize][d] = whole;
            inside.ids[Id::Local as usize][d] = global.checked_add(own)?;
            constant = constant.checked_add(global.checked_mul(space.offset[d])?)?;
        }
        let mut form = self.with_ranges_of(&inside, space);
        form.low = form.low.checked_add(constant)?;
        form.high = form.high.checked_add(constant)?;
        if let Some((low, high)) = self.bounds_in_group(space)
            && (form.low..=high).contains(&low)
            && high <= form.high
        {
            form = Self { within: self.within, ..Self::between(low, high) };
        }
        Self { line: group, within_group: None, ..form }.checked()
    }

    /// Returns the factors of the local id by which the value differs within a work-group; `None` if it
    /// differs in other ways, too.
    pub(crate) fn inside(&self) -> Option<[i128; 3]> {
        let [global, local, ..] = self.line.ids;
        let is_exact = self.low == self.high && self.line.split.is_none();
        is_exact.then(|| std::array::from_fn(|d| global[d] + local[d]))
    }

    pub(crate) fn plus(&self, other: &Self, space: &Space) -> Option<Self> {
        let Some(line) = self.line.plus(&other.line) else {
            return self.plus(&other.weakened(space), space);
        };
        let sum = Self {
            line,
            low: self.low + other.low,
            high: self.high + other.high,
            steps: self.steps.plus(&other.steps),
            within: None,
            within_group: None,
        };
        let mut sum = sum.folded(space).checked()?;
        if self.within_group.is_some() || other.within_group.is_some() {
            let ends = self.bounds_in_group(space).zip(other.bounds_in_group(space));
            sum.within_group =
                ends.map(|((a, b), (c, d))| (a.saturating_add(c), b.saturating_add(d)));
            sum = sum.clipped_in_group(space);
        }
        if self.within.is_none() && other.within.is_none() {
            return Some(sum);
        }
        let ((a, b), (c, d)) = (self.bounds(space), other.bounds(space));
        Some(sum.clipped(a.saturating_add(c), b.saturating_add(d), space))
    }

    pub(crate) fn minus(&self, other: &Self, space: &Space) -> Option<Self> {
        self.plus(&other.times(-1)?, space)
    }

    pub(crate) fn times(&self, factor: i128) -> Option<Self> {
        if factor == 0 {
            return Some(Self::constant(0));
        }
        let ends = |(low, high): (i128, i128)| {
            let (low, high) = (low.checked_mul(factor)?, high.checked_mul(factor)?);
            Some((low.min(high), low.max(high)))
        };
        let (low, high) = ends((self.low, self.high))?;
        let limits = |limits: Option<_>| limits.map_or(Some(None), |limits| ends(limits).map(Some));
        let (within, within_group) = (limits(self.within)?, limits(self.within_group)?);
        let (line, steps) = (self.line.times(factor)?, self.steps.times(factor.checked_abs()?)?);
        Self { line, low, high, steps, within, within_group }.checked()
    }

    /// Multiplies two forms. The product is affine if one of the two is constant, or if they are the id and
    /// the size of work-groups; otherwise only its bounds are kept.
    pub(crate) fn product(&self, other: &Self, space: &Space) -> Option<Self> {
        match (self.value(), other.value()) {
            (_, Some(factor)) => self.times(factor),
            (Some(factor), _) => other.times(factor),
            _ => {
                let sized = self.by_size(other, space);
                if let Some(sized) = sized.or_else(|| other.by_size(self, space)) {
                    return Some(sized);
                }
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

    /// Multiplies a multiple of the work-group's id, or of the number of work-groups, by a multiple of the
    /// size of work-groups in the same dimension. The first product is the global id without the local id
    /// and the offset, the second one the global size.
    fn by_size(&self, size: &Self, space: &Space) -> Option<Self> {
        let (id, d, factor) = self.single_id()?;
        let (other, dimension, by) = size.single_id()?;
        if other != Id::Size || d != dimension {
            return None;
        }
        if id == Id::Count {
            return Self::constant(space.global[d]).times(factor.checked_mul(by)?);
        }
        if id != Id::Group {
            return None;
        }
        let local = Self::id(Id::Local, d, space);
        let start = Self::id(Id::Global, d, space).minus(&local, space)?;
        let start = start.plus(&Self::constant(-space.offset[d]), space)?;
        start.clipped(0, space.global[d] - 1, space).times(factor.checked_mul(by)?)
    }

    /// Returns the only id in the form, its dimension and its factor; `None` if there is anything else.
    fn single_id(&self) -> Option<(Id, usize, i128)> {
        let is_plain = self.low == 0 && self.high == 0 && self.line.split.is_none();
        let mut found = self.line.factors();
        let single = found.next().filter(|_| is_plain)?;
        found.next().is_none().then_some(single)
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

    /// Splits the form into two that add up to it. The values of the first are multiples of a number.
    fn multiples_of(&self, number: i128) -> (Self, Self) {
        let (line, rest) = self.line.multiples_of(number);
        let is_multiple = |range: &Strided| range.step % number == 0;
        let steps = Steps::of(self.steps.ranges().filter(is_multiple));
        let others = Steps::of(self.steps.ranges().filter(|range| !is_multiple(range)));
        let whole =
            Self { line, low: 0, high: steps.span(), steps, within: None, within_group: None };
        let within = self.within.filter(|_| line.is_zero() && steps.is_empty());
        let high = self.low.saturating_add(others.span());
        (whole, Self { line: rest, low: self.low, high, steps: others, within, within_group: None })
    }

    /// Divides by a positive number, rounded down. Parts of the form that the number divides stay exact, and
    /// so does a global id plus a constant that is not negative.
    pub(crate) fn quotient(&self, divisor: i128, space: &Space) -> Self {
        if divisor == 1 {
            return *self;
        }
        if let Some(split) = self.split_by(divisor, space) {
            return Self { line: Line::of_split(Split { row: 1, ..split }), ..Self::constant(0) };
        }
        let (whole, rest) = self.multiples_of(divisor);
        let (low, high) = rest.bounds(space);
        let (low, high) = (limited(low).div_euclid(divisor), limited(high).div_euclid(divisor));
        let rest = Strided::spanning(high - low, 1);
        let steps =
            whole.steps.ranges().map(|range| Strided { step: range.step / divisor, ..range });
        let steps = Steps::of(steps.chain([rest]));
        let line = whole.line.divided_by(divisor);
        let form =
            Self { line, low, high: low + steps.span(), steps, within: None, within_group: None };
        let (least, most) = self.bounds(space);
        form.clipped(least.div_euclid(divisor), most.div_euclid(divisor), space)
    }

    /// Returns the remainder of the division that [`quotient`](Self::quotient) does. It keeps its relation to
    /// the form where the quotient has few values.
    pub(crate) fn remainder(&self, divisor: i128, space: &Space) -> Self {
        let (low, high) = self.bounds(space);
        if 0 <= low && high < divisor {
            return *self;
        }
        if let Some(split) = self.split_by(divisor, space).filter(|_| divisor > 1) {
            return Self {
                line: Line::of_split(Split { column: 1, ..split }),
                ..Self::constant(0)
            };
        }
        let (_, rest) = self.multiples_of(divisor);
        let (low, high) = rest.bounds(space);
        let (first, last) = (limited(low).div_euclid(divisor), limited(high).div_euclid(divisor));
        if first == last {
            return rest.moved_by(-first * divisor);
        }
        if last - first > MAX_QUOTIENTS {
            return Self::between(0, divisor - 1);
        }
        let quotient = Self::between(-last, -first).times(divisor);
        let remainder = quotient.and_then(|multiple| rest.plus(&multiple, space));
        let whole = Self::between(0, divisor - 1);
        remainder.map_or(whole, |remainder| remainder.clipped(0, divisor - 1, space))
    }

    /// Returns a form that covers the values of both.
    pub(crate) fn or(&self, other: &Self, space: &Space) -> Self {
        let ((a, b), (c, d)) = (self.bounds(space), other.bounds(space));
        let (least, most) = (a.min(c), b.max(d));
        if self.line != other.line {
            return self.congruent(other, (least, most));
        }
        let (first, steps) = self.steps.or(&other.steps, other.low - self.low);
        let low = self.low + first;
        let high = low + steps.span();
        let form = Self { low, high, steps, within: None, within_group: None, ..*self };
        form.clipped(least, most, space)
    }

    /// Returns a form of the numbers between two limits that have the remainder of all values of two forms, when
    /// divided by the greatest divisor for which these values have the same remainder.
    fn congruent(&self, other: &Self, (least, most): (i128, i128)) -> Self {
        let of_line = |line: &Line| if line.is_zero() { 0 } else { line.primitive().1 };
        let common = [self, other]
            .into_iter()
            .fold(0, |common, form| gcd(gcd(common, form.steps.gcd()), of_line(&form.line)));
        let step = gcd(common, self.low - other.low);
        if step <= 1 {
            return Self::between(least, most);
        }
        let (least, most) = (limited(least), limited(most));
        let low = least + (self.low - least).rem_euclid(step);
        let steps = Steps::one(Strided::spanning(most - low, step));
        Self {
            line: Line::ZERO,
            low,
            high: low + steps.span(),
            steps,
            within: None,
            within_group: None,
        }
    }

    /// Returns whether the value is known to be a multiple of a number in every work-item.
    pub(crate) fn is_multiple_of(&self, number: i128) -> bool {
        self.low % number == 0
            && self.steps.gcd() % number == 0
            && self.line.multiples_of(number).1.is_zero()
    }

    /// Returns the form if its numbers are below [`LIMIT`].
    fn checked(self) -> Option<Self> {
        let is_small = |number: i128| number.unsigned_abs() < LIMIT.unsigned_abs();
        (is_small(self.low) && is_small(self.high) && self.line.numbers().all(is_small))
            .then_some(self)
    }

    /// Normalizes the form, which can be written in several ways: an id with only one value becomes a
    /// constant, and the global id replaces the work-group's id and the local id that make it up.
    fn folded(self, space: &Space) -> Self {
        let (line, constant) = self.line.folded(space);
        let (low, high) = (self.low.saturating_add(constant), self.high.saturating_add(constant));
        Self { line, low, high, ..self }
    }

    /// Returns a lower bound of the absolute value of `C . d`, where `C` are the coefficients and `d` is
    /// the difference of the global ids of two different work-items. Returns 0 if `C . gid` is the same
    /// in two different work-items.
    pub(crate) fn least_distance(&self, space: &Space) -> i128 {
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
