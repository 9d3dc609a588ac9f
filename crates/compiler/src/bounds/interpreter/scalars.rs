//! Operations of the interpreter on scalars.

use rspirv::spirv::{Op, OpenclStd100Op as Extended};

use super::Event;

/// Returns the bits of an integer of this width.
pub(super) fn mask(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Returns the bits of an integer of this width as a signed number.
pub(super) fn signed(bits: u64, width: u32) -> i64 {
    let unused = 64 - width.clamp(1, 64);
    ((bits << unused) as i64) >> unused
}

/// Returns the result of an operation on operands of `width` bits. `note` is called for events.
pub(super) fn scalar_operation(
    op: Op,
    (a, b): (u64, u64),
    width: u32,
    result_width: u32,
    note: &dyn Fn(Event),
) -> u64 {
    let (x, y) = (signed(a, width), signed(b, width));
    let float = |bits: u64| match width {
        64 => f64::from_bits(bits),
        _ => f64::from(f32::from_bits(bits as u32)),
    };
    let bits = |value: f64| match result_width {
        64 => value.to_bits(),
        _ => u64::from((value as f32).to_bits()),
    };
    let (f, g) = (float(a), float(b));
    let divide = |value: Option<u64>| {
        value.unwrap_or_else(|| {
            note(Event::Division);
            0
        })
    };
    let amount = || {
        if b >= u64::from(width) {
            note(Event::Shift);
        }
        (b % u64::from(width)) as u32
    };
    let least = -1_i64 << (width.clamp(1, 64) - 1);
    let overflows = y == 0 || (x == least && y == -1);
    match op {
        Op::IAdd => a.wrapping_add(b),
        Op::ISub => a.wrapping_sub(b),
        Op::IMul => a.wrapping_mul(b),
        Op::SNegate => a.wrapping_neg(),
        Op::Not => !a,
        Op::BitwiseAnd | Op::LogicalAnd => a & b,
        Op::BitwiseOr | Op::LogicalOr => a | b,
        Op::BitwiseXor | Op::LogicalNotEqual => a ^ b,
        Op::LogicalNot => a ^ 1,
        Op::UDiv => divide(a.checked_div(b)),
        Op::UMod => divide(a.checked_rem(b)),
        Op::SDiv => divide((!overflows).then(|| (x / y) as u64)),
        Op::SRem => divide((!overflows).then(|| (x % y) as u64)),
        Op::SMod => divide((!overflows).then(|| {
            let rest = x % y;
            (if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }) as u64
        })),
        Op::ShiftLeftLogical => a << amount(),
        Op::ShiftRightLogical => a >> amount(),
        Op::ShiftRightArithmetic => (x >> amount()) as u64,
        Op::IEqual | Op::PtrEqual | Op::LogicalEqual => u64::from(a == b),
        Op::INotEqual | Op::PtrNotEqual => u64::from(a != b),
        Op::ULessThan => u64::from(a < b),
        Op::ULessThanEqual => u64::from(a <= b),
        Op::UGreaterThan => u64::from(a > b),
        Op::UGreaterThanEqual => u64::from(a >= b),
        Op::SLessThan => u64::from(x < y),
        Op::SLessThanEqual => u64::from(x <= y),
        Op::SGreaterThan => u64::from(x > y),
        Op::SGreaterThanEqual => u64::from(x >= y),
        Op::FOrdLessThan | Op::FUnordLessThan => u64::from(f < g),
        Op::FOrdGreaterThan | Op::FUnordGreaterThan => u64::from(f > g),
        Op::FOrdLessThanEqual | Op::FUnordLessThanEqual => u64::from(f <= g),
        Op::FOrdGreaterThanEqual | Op::FUnordGreaterThanEqual => u64::from(f >= g),
        Op::FAdd => bits(f + g),
        Op::FSub => bits(f - g),
        Op::FMul | Op::VectorTimesScalar => bits(f * g),
        Op::FDiv => bits(f / g),
        Op::FNegate => bits(-f),
        Op::FConvert => bits(f),
        Op::SConvert => x as u64,
        Op::ConvertSToF => bits(x as f64),
        Op::ConvertUToF => bits(a as f64),
        Op::ConvertFToS => (f as i64) as u64,
        Op::ConvertFToU => f as u64,
        _ => a,
    }
}

/// Returns the result of a function of OpenCL on integers.
pub(super) fn called(function: Extended, operands: &[u64], width: u32) -> u64 {
    let [a, b, c] = [0, 1, 2].map(|at| operands.get(at).copied().unwrap_or(0));
    let [x, y, z] = [a, b, c].map(|bits| signed(bits, width));
    match function {
        Extended::s_min => x.min(y) as u64,
        Extended::s_max => x.max(y) as u64,
        Extended::u_min => a.min(b),
        Extended::u_max => a.max(b),
        Extended::s_clamp => x.max(y).min(z) as u64,
        Extended::u_clamp => a.max(b).min(c),
        Extended::s_abs => x.wrapping_abs() as u64,
        Extended::s_abs_diff => x.abs_diff(y),
        Extended::u_abs_diff => a.abs_diff(b),
        Extended::u_sub_sat => a.saturating_sub(b),
        Extended::s_mul24 | Extended::u_mul24 => a.wrapping_mul(b),
        Extended::s_mad24 | Extended::u_mad24 => a.wrapping_mul(b).wrapping_add(c),
        _ => a,
    }
}
