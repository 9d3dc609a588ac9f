//! Arithmetic on integers, as far as they are known.
//!
//! SPIR-V's integers have no sign. The form of an integer stands for its bits: a value modulo two to the
//! power of the integer's width. The bounds of the form lie between the least signed and the largest
//! unsigned number of that width.

use kiln_spirv::edit::{Class, Row};
use rspirv::spirv::{Op, OpenclStd100Op as Extended};

use super::facts::{Facts, join};
use crate::analysis::affine::{Form, Space};

/// Arithmetic on integers of `width` bits.
pub(super) struct Arithmetic<'a> {
    pub(super) space: &'a Space,
    pub(super) width: u32,
}

impl Arithmetic<'_> {
    /// Returns two to the power of the width.
    fn modulus(&self) -> i128 {
        1 << self.width
    }

    /// Returns the form of an integer of which only the width is known.
    pub(super) fn unknown(&self) -> Form {
        Form::between(0, self.modulus() - 1)
    }

    /// Returns the form if its values fit into the width's bits, signed or unsigned; otherwise `None`.
    fn fit(&self, form: Option<Form>) -> Option<Form> {
        let form = form?;
        let (low, high) = form.bounds(self.space);
        (-self.modulus() / 2 <= low && high < self.modulus()).then_some(form)
    }

    /// Returns the form of the same bits, read as an unsigned integer.
    pub(super) fn unsigned(&self, form: &Form) -> Form {
        self.interpreted(form, 0, self.modulus() - 1)
    }

    /// Returns the form of the same bits, read as a signed integer.
    pub(super) fn signed(&self, form: &Form) -> Form {
        self.interpreted(form, -self.modulus() / 2, self.modulus() / 2 - 1)
    }

    /// Returns the form of the same bits, read as a number between `least` and `most`.
    fn interpreted(&self, form: &Form, least: i128, most: i128) -> Form {
        let (low, high) = form.bounds(self.space);
        for shift in [0, self.modulus(), -self.modulus()] {
            if least <= low + shift && high + shift <= most {
                let moved = form.plus(&Form::constant(shift), self.space);
                return moved.unwrap_or(Form::between(least, most));
            }
        }
        Form::between(least, most)
    }

    /// Returns the result of an operation on two operands of this width. The result has this width, too.
    pub(super) fn binary(&self, op: Op, a: &Form, b: &Form) -> Option<Form> {
        let space = self.space;
        let form = match op {
            Op::IAdd => a.plus(b, space),
            Op::ISub => a.minus(b, space),
            Op::IMul => a.product(b, space),
            Op::ShiftLeftLogical => a.times(1 << self.shift(b)?),
            Op::ShiftRightLogical => Some(self.unsigned(a).quotient(1 << self.shift(b)?, space)),
            Op::ShiftRightArithmetic => Some(self.signed(a).quotient(1 << self.shift(b)?, space)),
            Op::UDiv | Op::UMod => {
                let divisor = self.unsigned(b).value().filter(|&divisor| divisor > 0)?;
                let a = self.unsigned(a);
                Some(if op == Op::UDiv {
                    a.quotient(divisor, space)
                } else {
                    a.remainder(divisor, space)
                })
            }
            Op::SDiv | Op::SRem | Op::SMod => {
                let divisor = self.signed(b).value().filter(|&divisor| divisor > 0)?;
                let a = self.signed(a);
                // Quotients of negative numbers are rounded towards zero, but `Form::quotient` rounds
                // down.
                if a.bounds(space).0 < 0 {
                    return None;
                }
                Some(if op == Op::SDiv {
                    a.quotient(divisor, space)
                } else {
                    a.remainder(divisor, space)
                })
            }
            Op::BitwiseAnd => self.and(a, b).or_else(|| self.and(b, a)),
            Op::BitwiseOr => self.or(a, b),
            Op::BitwiseXor if self.signed(b).value() == Some(-1) => return self.unary(Op::Not, a),
            Op::BitwiseXor if self.unsigned(b).value() == Some(0) => Some(*a),
            Op::BitwiseXor if self.unsigned(a).value() == Some(0) => Some(*b),
            Op::BitwiseXor => {
                let bits = self.bits(&[a, b]);
                Some(Form::between(0, bits))
            }
            _ => None,
        };
        self.fit(form)
    }

    /// Returns a known number of bits to shift by, if it is below the width.
    fn shift(&self, amount: &Form) -> Option<u32> {
        let amount = u32::try_from(amount.value()?).ok()?;
        (amount < self.width).then_some(amount)
    }

    fn and(&self, a: &Form, mask: &Form) -> Option<Form> {
        let mask = mask.value()?;
        let power = |number: i128| number > 0 && number & (number - 1) == 0;
        if power(mask + 1) {
            return Some(self.unsigned(a).remainder(mask + 1, self.space));
        }
        let cleared = self.modulus() - self.unsigned(&Form::constant(mask)).value()?;
        if power(cleared) {
            return self.unsigned(a).quotient(cleared, self.space).times(cleared);
        }
        Some(Form::between(0, self.unsigned(&Form::constant(mask)).value()?))
    }

    fn or(&self, a: &Form, b: &Form) -> Option<Form> {
        let (a, b) = (self.unsigned(a), self.unsigned(b));
        for (upper, lower) in [(&a, &b), (&b, &a)] {
            let bits = self.bits(&[lower]);
            if upper.is_multiple_of(bits + 1) {
                return upper.plus(lower, self.space);
            }
        }
        Some(Form::between(0, self.bits(&[&a, &b])))
    }

    /// Returns the largest number with as many bits as the largest value of any of the forms.
    fn bits(&self, forms: &[&Form]) -> i128 {
        let bounds = forms.iter().map(|form| self.unsigned(form).bounds(self.space).1);
        let most = bounds.max().unwrap_or(0);
        u128::try_from(most + 1).map_or(0, |count| count.next_power_of_two() as i128 - 1)
    }

    pub(super) fn unary(&self, op: Op, a: &Form) -> Option<Form> {
        let negated = a.times(-1);
        self.fit(match op {
            Op::SNegate => negated,
            Op::Not => negated.and_then(|form| form.plus(&Form::constant(-1), self.space)),
            _ => None,
        })
    }

    /// Converts an integer of another width to this width.
    pub(super) fn convert(&self, op: Op, a: &Form, width: u32) -> Option<Form> {
        let from = Arithmetic { width, ..*self };
        let form = match op {
            Op::UConvert => from.unsigned(a),
            Op::SConvert => from.signed(a),
            _ => return None,
        };
        if self.width >= width { Some(form) } else { self.fit(Some(*a)) }
    }

    /// Returns whether a comparison holds in every work-item, or in none; `None` if this is not known.
    pub(super) fn compare(&self, op: Op, a: &Form, b: &Form) -> Option<bool> {
        let (a, b, is_negated) = match op {
            Op::ULessThan | Op::SLessThan => (a, b, false),
            Op::UGreaterThan | Op::SGreaterThan => (b, a, false),
            Op::UGreaterThanEqual | Op::SGreaterThanEqual => (a, b, true),
            Op::ULessThanEqual | Op::SLessThanEqual => (b, a, true),
            Op::IEqual | Op::INotEqual => {
                let difference = self.unsigned(a).minus(&self.unsigned(b), self.space)?;
                let (low, high) = difference.bounds(self.space);
                let equal = match (low, high) {
                    (0, 0) => true,
                    _ if low > 0 || high < 0 => false,
                    _ => return None,
                };
                return Some(equal == (op == Op::IEqual));
            }
            _ => return None,
        };
        let is_signed = reads_sign(op);
        let interpret = |form| if is_signed { self.signed(form) } else { self.unsigned(form) };
        let (low, high) = interpret(a).minus(&interpret(b), self.space)?.bounds(self.space);
        match (high < 0, low >= 0) {
            (true, _) => Some(!is_negated),
            (_, true) => Some(is_negated),
            _ => None,
        }
    }

    /// Returns the bounds of two integers, read as the comparison reads them, where the comparison holds.
    pub(super) fn limits(&self, op: Op, a: &Form, b: &Form) -> Option<[(i128, i128); 2]> {
        let (op, is_swapped) = match op {
            Op::UGreaterThan | Op::SGreaterThan | Op::UGreaterThanEqual | Op::SGreaterThanEqual => {
                (mirrored(op)?, true)
            }
            op => (op, false),
        };
        let (a, b) = if is_swapped { (b, a) } else { (a, b) };
        let is_signed = reads_sign(op);
        let ends = |form| {
            let form = if is_signed { self.signed(form) } else { self.unsigned(form) };
            form.bounds(self.space)
        };
        let ((a_low, a_high), (b_low, b_high)) = (ends(a), ends(b));
        let (own, other) = match op {
            Op::ULessThan | Op::SLessThan => ((a_low, b_high - 1), (a_low + 1, b_high)),
            Op::ULessThanEqual | Op::SLessThanEqual => ((a_low, b_high), (a_low, b_high)),
            Op::IEqual => {
                let both = (a_low.max(b_low), a_high.min(b_high));
                (both, both)
            }
            Op::INotEqual => {
                let trim = |(low, high): (i128, i128), other: (i128, i128)| {
                    let is = |end: i128| i128::from(other == (end, end));
                    (low + is(low), high - is(high))
                };
                (trim((a_low, a_high), (b_low, b_high)), trim((b_low, b_high), (a_low, a_high)))
            }
            _ => return None,
        };
        Some(if is_swapped { [other, own] } else { [own, other] })
    }

    /// Returns bounds of a form whose bits, read as a signed or unsigned integer, are between two numbers;
    /// `None` if there are no bounds narrower than its own.
    pub(super) fn bits_between(&self, form: &Form, between: (i128, i128)) -> Option<(i128, i128)> {
        let (low, high) = form.bounds(self.space);
        let places = (-2..=2).map(|times| {
            let by = times * self.modulus();
            (between.0 + by, between.1 + by)
        });
        let mut places = places.filter(|&(first, last)| first <= high && low <= last);
        let place = places.next()?;
        places.next().is_none().then_some(place)
    }

    /// Adds to `facts` that a comparison of two integers holds. Returns the forms of both where it does.
    pub(super) fn assume(&self, facts: &mut Facts, op: Op, a: &Form, b: &Form) -> (Form, Form) {
        let Some([own, other]) = self.limits(op, a, b) else { return (*a, *b) };
        let mut limit = |form: &Form, limits| {
            let Some((low, high)) = self.bits_between(form, limits) else { return *form };
            facts.bound_line(form, low, high, self.space);
            facts.refine(&form.clipped(low, high, self.space), self.space)
        };
        self.apart(op, &limit(a, own), &limit(b, other))
    }

    /// Returns two integers where a comparison of them holds, by their distance from each other.
    fn apart(&self, op: Op, a: &Form, b: &Form) -> (Form, Form) {
        let (by, is_swapped) = match op {
            Op::ULessThan | Op::SLessThan => (1, false),
            Op::ULessThanEqual | Op::SLessThanEqual => (0, false),
            Op::UGreaterThan | Op::SGreaterThan => (1, true),
            Op::UGreaterThanEqual | Op::SGreaterThanEqual => (0, true),
            _ => return (*a, *b),
        };
        let is_signed = reads_sign(op);
        let is_read_as_is =
            |form: &Form| *form == if is_signed { self.signed(form) } else { self.unsigned(form) };
        if !is_read_as_is(a) || !is_read_as_is(b) {
            return (*a, *b);
        }
        match is_swapped {
            false => (a.below(b, by), b.above(a, by)),
            true => (a.above(b, by), b.below(a, by)),
        }
    }

    /// Joins what two forms of the same bits say about them.
    pub(super) fn narrower(&self, a: &Form, b: &Form) -> Form {
        let (form, other) = if b.high - b.low < a.high - a.low { (b, a) } else { (a, b) };
        match self.bits_between(form, other.bounds(self.space)) {
            Some((low, high)) => form.clipped(low, high, self.space),
            None => *form,
        }
    }

    /// Returns the lesser of two integers if `op` is a comparison with `less than`, the larger if it is one
    /// with `greater than`.
    fn chosen(&self, op: Op, a: &Form, b: &Form, facts: &Facts) -> Option<Form> {
        match self.compare(op, a, b) {
            Some(true) => return Some(*a),
            Some(false) => return Some(*b),
            None => {}
        }
        let (mut yes, mut no) = (facts.only_lines(), facts.only_lines());
        let (first, _) = self.assume(&mut yes, op, a, b);
        let (_, second) = self.assume(&mut no, negated(op)?, a, b);
        let joined = join(&[(first, &yes), (second, &no)], self.space)?;
        let ((a, b), (c, d)) = (a.bounds(self.space), b.bounds(self.space));
        let is_less = matches!(op, Op::SLessThan | Op::ULessThan);
        let (low, high) = if is_less { (a.min(c), b.min(d)) } else { (a.max(c), b.max(d)) };
        Some(joined.clipped(low, high, self.space))
    }

    /// Returns the absolute value of an exact number.
    fn absolute(&self, number: &Form, facts: &Facts) -> Option<Form> {
        let zero = Form::constant(0);
        let (low, high) = number.bounds(self.space);
        if low >= 0 {
            return Some(*number);
        }
        if high <= 0 {
            return number.times(-1);
        }
        let (mut negative, mut positive) = (facts.only_lines(), facts.only_lines());
        let (below, _) = self.assume(&mut negative, Op::SLessThan, number, &zero);
        let below = below.times(-1)?;
        let (above, _) = self.assume(&mut positive, Op::SGreaterThanEqual, number, &zero);
        let joined = join(&[(below, &negative), (above, &positive)], self.space)?;
        Some(joined.clipped(0, high.max(-low), self.space))
    }

    /// Evaluates the integer functions of OpenCL C that index arithmetic uses, where `facts` hold.
    pub(super) fn extended(
        &self,
        function: Extended,
        operands: &[Form],
        facts: &Facts,
    ) -> Option<Form> {
        let space = self.space;
        let read = |form: &Form, is_signed| {
            if is_signed { self.signed(form) } else { self.unsigned(form) }
        };
        let least = |a: &Form, b: &Form, is_signed| {
            let op = if is_signed { Op::SLessThan } else { Op::ULessThan };
            self.chosen(op, &read(a, is_signed), &read(b, is_signed), facts)
        };
        let most = |a: &Form, b: &Form, is_signed| {
            let op = if is_signed { Op::SGreaterThan } else { Op::UGreaterThan };
            self.chosen(op, &read(a, is_signed), &read(b, is_signed), facts)
        };
        let small = |form: &Form, is_signed| {
            let form = read(form, is_signed);
            let (low, high) = form.bounds(space);
            let bits = if is_signed { -(1 << 23)..1 << 23 } else { 0..1 << 24 };
            (bits.contains(&low) && bits.contains(&high)).then_some(form)
        };
        let form = match (function, operands) {
            (Extended::s_min, [a, b]) => least(a, b, true),
            (Extended::u_min, [a, b]) => least(a, b, false),
            (Extended::s_max, [a, b]) => most(a, b, true),
            (Extended::u_max, [a, b]) => most(a, b, false),
            (Extended::s_clamp, [a, low, high]) => least(&most(a, low, true)?, high, true),
            (Extended::u_clamp, [a, low, high]) => least(&most(a, low, false)?, high, false),
            (Extended::s_abs, [a]) => self.absolute(&self.signed(a), facts),
            (Extended::s_abs_diff | Extended::u_abs_diff, [a, b]) => {
                let is_signed = function == Extended::s_abs_diff;
                let difference = read(a, is_signed).minus(&read(b, is_signed), space)?;
                // One more bit holds the sign of the difference.
                let wide = Arithmetic { width: self.width + 1, ..*self };
                wide.absolute(&difference, facts)
            }
            (Extended::u_sub_sat, [a, b]) => {
                let difference = self.unsigned(a).minus(&self.unsigned(b), space)?;
                let wide = Arithmetic { width: self.width + 1, ..*self };
                wide.chosen(Op::SGreaterThan, &difference, &Form::constant(0), facts)
            }
            (Extended::s_mul24 | Extended::u_mul24, [a, b]) => {
                let is_signed = function == Extended::s_mul24;
                small(a, is_signed)?.product(&small(b, is_signed)?, space)
            }
            (Extended::s_mad24 | Extended::u_mad24, [a, b, c]) => {
                let is_signed = function == Extended::s_mad24;
                let product = small(a, is_signed)?.product(&small(b, is_signed)?, space)?;
                product.plus(c, space)
            }
            _ => None,
        };
        self.fit(form)
    }
}

/// Returns the equivalent comparison for operands in the other order.
pub(super) fn mirrored(op: Op) -> Option<Op> {
    Some(match op {
        Op::IEqual | Op::INotEqual => op,
        Op::ULessThan => Op::UGreaterThan,
        Op::UGreaterThan => Op::ULessThan,
        Op::ULessThanEqual => Op::UGreaterThanEqual,
        Op::UGreaterThanEqual => Op::ULessThanEqual,
        Op::SLessThan => Op::SGreaterThan,
        Op::SGreaterThan => Op::SLessThan,
        Op::SLessThanEqual => Op::SGreaterThanEqual,
        Op::SGreaterThanEqual => Op::SLessThanEqual,
        _ => return None,
    })
}

/// Returns whether a comparison reads integers as signed numbers.
fn reads_sign(op: Op) -> bool {
    Row::of(op).is_some_and(|row| row.class == Class::Signed)
}

/// Returns the comparison that holds where `op` does not.
pub(super) fn negated(op: Op) -> Option<Op> {
    Some(match op {
        Op::IEqual => Op::INotEqual,
        Op::INotEqual => Op::IEqual,
        Op::ULessThan => Op::UGreaterThanEqual,
        Op::UGreaterThanEqual => Op::ULessThan,
        Op::UGreaterThan => Op::ULessThanEqual,
        Op::ULessThanEqual => Op::UGreaterThan,
        Op::SLessThan => Op::SGreaterThanEqual,
        Op::SGreaterThanEqual => Op::SLessThan,
        Op::SGreaterThan => Op::SLessThanEqual,
        Op::SLessThanEqual => Op::SGreaterThan,
        _ => return None,
    })
}
