//! Work-items that do nothing: those that a kernel excludes by comparing their ids with a size.
//!
//! Global sizes are often rounded up to whole work-groups, and kernels begin with `if (i >= n) return;`. With
//! the range trimmed to the size, launches have the same shape whatever they were rounded to.

use std::cell::RefCell;
use std::collections::BTreeSet;

use rspirv::spirv::{BuiltIn, Op};

use crate::analysis::access::{Accesses, Condition, Symbol};
use crate::plan::{Argument, Slot};
use crate::ranges::{Sizes, padded};

/// Sizes to which a launch's range can be trimmed.
pub(crate) struct Trimmed {
    pub(crate) sizes: Sizes,
    /// Indices of the scalars that the sizes follow from.
    pub(crate) scalars: BTreeSet<usize>,
}

/// Returns the sizes below which the ids of all work-items lie that access buffers; `None` if a work-item may
/// access buffers in ways that are not followed. The range must have no offset.
pub(crate) fn trimmed(slot: &Slot, accesses: &Accesses) -> Option<Trimmed> {
    let global = padded(slot.range.global(), 1);
    let limits = Limits { slot, global, scalars: RefCell::default() };
    let mut sizes = [1; 3];
    for access in &accesses.all {
        let mut own = global;
        for condition in accesses.flow.conditions(access.location?) {
            if let Some((d, size)) = limits.of(&condition) {
                own[d] = own[d].min(size);
            }
        }
        sizes = std::array::from_fn(|d| sizes[d].max(own[d]));
    }
    Some(Trimmed { sizes, scalars: &limits.scalars.into_inner() | &accesses.constants })
}

/// Multiple of a global id, plus a constant. The value is not negative, also if it is read as a signed integer.
struct Multiple {
    dimension: usize,
    factor: i128,
    constant: i128,
}

/// Limits of the ids of a launch.
struct Limits<'a> {
    slot: &'a Slot,
    global: Sizes,
    /// Scalars whose values were used.
    scalars: RefCell<BTreeSet<usize>>,
}

impl Limits<'_> {
    /// Returns a dimension and a size below which the id lies where a condition holds.
    fn of(&self, condition: &Condition) -> Option<(usize, usize)> {
        let Symbol::Operation { op, operands, .. } = condition.symbol.as_ref() else { return None };
        let [a, b] = operands.as_slice() else { return None };
        let (own, other, excess) = match (op, condition.holds) {
            // a < b
            (Op::ULessThan | Op::SLessThan, true) => (self.multiple(a), b, -1),
            // b <= a
            (Op::ULessThan | Op::SLessThan, false) => (self.multiple(b), a, 0),
            (Op::IEqual, true) => match self.multiple(a) {
                Some(own) => (Some(own), b, 0),
                None => (self.multiple(b), a, 0),
            },
            _ => return None,
        };
        let (own, (value, width)) = (own?, self.constant(other)?);
        let is_negative = value < 0;
        let most = match op {
            Op::ULessThan if is_negative => value + (1 << width),
            _ => value,
        };
        let size = (most + excess - own.constant).div_euclid(own.factor) + 1;
        Some((own.dimension, usize::try_from(size.max(0)).ok()?))
    }

    /// Returns the value of a symbol that does not depend on the work-item, as a signed integer, and its width
    /// in bits.
    fn constant(&self, symbol: &Symbol) -> Option<(i128, u32)> {
        match symbol {
            Symbol::Constant(words) => {
                let (&width, words) = words.split_first()?;
                let bits =
                    words.iter().take(2).rev().fold(0, |bits, &word| bits << 32 | u64::from(word));
                Some((signed(bits.into(), width)?, width))
            }
            &Symbol::Scalar(parameter) => {
                let Argument::Scalar(bytes) = self.slot.arguments.get(parameter)? else {
                    return None;
                };
                let mut all = [0; 16];
                all.get_mut(..bytes.len()).filter(|all| all.len() <= 8)?.copy_from_slice(bytes);
                let width = bytes.len() as u32 * 8;
                self.scalars.borrow_mut().insert(parameter);
                Some((signed(i128::from_le_bytes(all), width)?, width))
            }
            Symbol::BuiltIn(_) => None,
            Symbol::Operation { op, width, operands, .. } => {
                let (first, from) = self.constant(operands.first()?)?;
                let second = || Some(self.constant(operands.get(1)?)?.0);
                let value = match op {
                    Op::SConvert => first,
                    Op::UConvert => first & ((1 << from) - 1),
                    Op::SNegate => -first,
                    Op::IAdd => first + second()?,
                    Op::ISub => first - second()?,
                    Op::IMul => first.checked_mul(second()?)?,
                    Op::SDiv | Op::UDiv => {
                        let second = second().filter(|&second| first >= 0 && second > 0)?;
                        first / second
                    }
                    Op::ShiftRightArithmetic | Op::ShiftRightLogical => {
                        let bits = second().filter(|bits| first >= 0 && (0..64).contains(bits))?;
                        first >> bits
                    }
                    Op::ShiftLeftLogical => {
                        first << second().filter(|bits| (0..i128::from(*width)).contains(bits))?
                    }
                    _ => return None,
                };
                Some((signed(value, *width)?, *width))
            }
        }
    }

    /// Returns a symbol as a multiple of a global id plus a constant, if it has that value in all work-items.
    fn multiple(&self, symbol: &Symbol) -> Option<Multiple> {
        let Symbol::Operation { op, width, literals, operands, .. } = symbol else { return None };
        let first = operands.first()?;
        let constant = || {
            // The constant operand may come first.
            let found = self.constant(operands.get(1)?);
            match found {
                Some((value, _)) => Some((first, value)),
                None => Some((operands.get(1)?, self.constant(first)?.0)),
            }
        };
        let made = match op {
            Op::CompositeExtract => {
                let is_id = **first == Symbol::BuiltIn(BuiltIn::GlobalInvocationId as u32);
                let dimension =
                    literals.first().map(|&d| d as usize).filter(|&d| is_id && d < 3)?;
                Multiple { dimension, factor: 1, constant: 0 }
            }
            Op::UConvert | Op::SConvert => self.multiple(first)?,
            Op::IAdd => {
                let (own, value) = constant()?;
                let own = self.multiple(own)?;
                Multiple { constant: own.constant.checked_add(value)?, ..own }
            }
            Op::BitwiseOr => {
                let (own, value) = constant().filter(|&(_, value)| value >= 0)?;
                let own = self.multiple(own)?;
                let bits = i128::from((value as u64).checked_add(1)?.checked_next_power_of_two()?);
                let is_sum = own.factor % bits == 0 && own.constant % bits == 0;
                is_sum.then_some(Multiple { constant: own.constant.checked_add(value)?, ..own })?
            }
            Op::IMul | Op::ShiftLeftLogical => {
                let (own, value) = match op {
                    Op::IMul => constant().filter(|&(_, value)| value > 0)?,
                    _ => {
                        let bits = self.constant(operands.get(1)?)?.0;
                        (first, 1 << Some(bits).filter(|bits| (0..32).contains(bits))?)
                    }
                };
                let own = self.multiple(own)?;
                Multiple {
                    factor: own.factor.checked_mul(value)?,
                    constant: own.constant.checked_mul(value)?,
                    ..own
                }
            }
            _ => return None,
        };
        let last = self.global[made.dimension].saturating_sub(1) as i128;
        let most = made.factor.checked_mul(last)?.checked_add(made.constant)?;
        (made.constant >= 0 && (1..=64).contains(width) && most < 1 << (width - 1)).then_some(made)
    }
}

/// Returns the lower bits of a number as a signed integer of this width.
fn signed(value: i128, width: u32) -> Option<i128> {
    let unused = 128_u32.checked_sub(width).filter(|_| (1..=64).contains(&width))?;
    Some(value << unused >> unused)
}
