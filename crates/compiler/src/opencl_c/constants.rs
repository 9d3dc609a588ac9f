//! Constants, as literals and initializers.

use kiln_spirv::Result;
use kiln_spirv::edit::{Class, Instruction, Section, View};
use rspirv::spirv::Op;

use super::types::{Lanes, Scalar, Space, Type};
use super::{Emitter, damaged, malformed, unsupported};

/// The context in which a constant is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a statement, where a constant is written with its type.
    Expression,
    /// Inside braces, where only constant expressions are allowed.
    Initializer,
}

/// Maximum nesting depth of constants. Compilers do not produce deeper ones.
const MAX_DEPTH: u32 = 64;

/// Maximum number of parts of constants, counted at each use. A constant that contains another one twice
/// doubles that one's parts, so a small module can have more parts than fit in memory.
const MAX_PARTS: u32 = 1 << 20;

/// Maximum number of bytes of a constant expression. Some operations write their operands several times.
const MAX_TEXT_BYTES: usize = 1 << 16;

/// Returns the text of a constant expression. Fails if the text is too long for one that a compiler produces.
pub(super) fn bounded(text: String) -> Result<String> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(unsupported("a constant expression of more than 64 KiB"));
    }
    Ok(text)
}

impl Emitter<'_> {
    /// Returns the text of a constant, or `None` if the id is not a constant or if only a function can express
    /// it.
    pub(super) fn constant(&mut self, id: u32, place: Place) -> Result<Option<String>> {
        if !is_constant(&self.definition(id)?) {
            return Ok(None);
        }
        self.enter_constant()?;
        let text = self.constant_within(id, place);
        self.leave_constant();
        text
    }

    /// Enters a part of a constant. Fails beyond the maximum number of parts or the maximum depth.
    pub(super) fn enter_constant(&mut self) -> Result<()> {
        self.constant_parts += 1;
        if self.constant_parts > MAX_PARTS {
            return Err(unsupported("constants of more than a million parts, counting each use,"));
        }
        if self.nesting >= MAX_DEPTH {
            return Err(unsupported("constants nested deeper than 64 levels"));
        }
        self.nesting += 1;
        Ok(())
    }

    pub(super) fn leave_constant(&mut self) {
        self.nesting -= 1;
    }

    fn constant_within(&mut self, id: u32, place: Place) -> Result<Option<String>> {
        let constant = self.definition(id)?;
        let Some(ty) = constant.result_type() else { return Ok(None) };
        Ok(Some(match constant.op() {
            Some(Op::Constant | Op::SpecConstant) => {
                let lanes = self.lanes(ty)?;
                self.use_scalar(lanes.scalar);
                literal(lanes.scalar, self.bits(id, &constant, lanes)?, place)
            }
            Some(Op::ConstantNull | Op::Undef) => self.null(ty, place)?,
            Some(Op::ConstantComposite | Op::SpecConstantComposite) => {
                let parts: Vec<_> = constant.parts().collect();
                let is_bools = matches!(self.ty(ty)?, Type::Vector { .. })
                    && self.lanes(ty)?.scalar == Scalar::Bool;
                let inner = match self.ty(ty)? {
                    // A vector is written with its type in each context.
                    Type::Vector { .. } => place,
                    _ => Place::Initializer,
                };
                let mut texts = Vec::new();
                for part in parts {
                    let text = self
                        .constant(part, inner)?
                        .ok_or_else(|| unsupported(format!("the constituents of constant {id}")))?;
                    texts.push(if is_bools { lane_of_bool(&text) } else { text });
                }
                self.composite(ty, &texts, place)?
            }
            Some(
                Op::ConstantTrue
                | Op::ConstantFalse
                | Op::SpecConstantTrue
                | Op::SpecConstantFalse
                | Op::SpecConstantOp,
            ) => match self.evaluate(id)? {
                Some(bits) => literal(self.lanes(ty)?.scalar, bits, place),
                None => return Ok(None),
            },
            Some(Op::ConstantSampler) => self.constant_sampler(id)?,
            Some(op @ Op::ConstantPipeStorage) => return Err(unsupported(format!("Op{op:?}"))),
            _ => return Ok(None),
        }))
    }

    fn null(&mut self, ty: u32, place: Place) -> Result<String> {
        Ok(match self.ty(ty)? {
            Type::Scalar(Scalar::Bool) => "false".to_owned(),
            Type::Scalar(scalar) => {
                self.use_scalar(scalar);
                literal(scalar, 0, place)
            }
            Type::Vector { .. } => format!("({})(0)", self.type_name(ty)?),
            Type::Array { .. } | Type::Struct => match place {
                Place::Expression => format!("(({}){{0}})", self.type_name(ty)?),
                Place::Initializer => "{0}".to_owned(),
            },
            Type::Pointer { class, .. } if Space::of(class)?.is_none() => "0".to_owned(),
            // Compilers accept a number as an event only as an argument.
            Type::Event => "((event_t)0)".to_owned(),
            Type::Pointer { .. } if place == Place::Initializer => "0".to_owned(),
            Type::Pointer { .. } => format!("(({})0)", self.type_name(ty)?),
            Type::Void | Type::Opaque => return Err(malformed("a null constant")),
            Type::Image | Type::Sampler | Type::SampledImage => {
                return Err(unsupported("an image or sampler that is null"));
            }
        })
    }

    /// Returns the text of a composite value, built from its parts.
    pub(super) fn composite(&mut self, ty: u32, parts: &[String], place: Place) -> Result<String> {
        let list = parts.join(", ");
        Ok(match self.ty(ty)? {
            Type::Vector { .. } => format!("({})({list})", self.type_name(ty)?),
            Type::Struct => match place {
                Place::Expression => format!("(({}){{{list}}})", self.type_name(ty)?),
                Place::Initializer => format!("{{{list}}}"),
            },
            Type::Array { .. } => match place {
                Place::Expression => format!("(({}){{{{{list}}}}})", self.type_name(ty)?),
                Place::Initializer => format!("{{{{{list}}}}}"),
            },
            _ => return Err(malformed("a composite")),
        })
    }

    /// Returns a constant integer, such as the length of an array.
    pub(super) fn integer(&self, id: u32) -> Result<u64> {
        self.evaluate(id)?.ok_or_else(|| unsupported(format!("a size given by constant {id}")))
    }

    /// Returns the bits of a constant integer or Boolean, or `None` for another id.
    pub(super) fn evaluate(&self, id: u32) -> Result<Option<u64>> {
        self.definition(id)?;
        Ok(self.integers.get(&id).copied())
    }

    /// Evaluates the module's constant integers and Booleans. A module defines each constant after its
    /// operands.
    pub(super) fn evaluate_all(&mut self) {
        for constant in self.module.section(Section::Globals).iter() {
            if let Some(id) = constant.result()
                && let Ok(Some(bits)) = self.evaluate_one(id, &constant)
            {
                self.integers.insert(id, bits);
            }
        }
    }

    fn evaluate_one(&self, id: u32, constant: &Instruction<'_>) -> Result<Option<u64>> {
        let Some(ty) = constant.result_type() else { return Ok(None) };
        let width = match self.ty(ty) {
            Ok(Type::Scalar(Scalar::Int(width))) => width,
            Ok(Type::Scalar(Scalar::Bool)) => 1,
            _ => return Ok(None),
        };
        let value = match constant.op() {
            Some(Op::SpecConstantTrue | Op::SpecConstantFalse)
                if self.specialized.contains_key(&id) =>
            {
                (self.specialized.get(&id) != Some(&0)).into()
            }
            Some(Op::ConstantTrue | Op::SpecConstantTrue) => 1,
            Some(Op::ConstantFalse | Op::SpecConstantFalse | Op::ConstantNull) => 0,
            Some(Op::Constant | Op::SpecConstant) => self.bits(id, constant, self.lanes(ty)?)?,
            Some(Op::SpecConstantOp) => {
                let View::SpecConstantOp { operation, operands } = constant.view() else {
                    return Err(damaged(constant));
                };
                let Some(op) = Op::from_u32(operation) else { return Ok(None) };
                let values = operands.iter().map(|id| self.integers.get(&id).copied());
                let Some(values) = values.collect::<Option<Vec<_>>>() else { return Ok(None) };
                let first = operands.get(0).ok_or_else(|| damaged(constant))?;
                let operand_width = match self.lanes(self.type_of(first)?)?.scalar {
                    Scalar::Int(width) => width,
                    _ => 1,
                };
                match fold(op, operand_width, &values) {
                    Some(value) => value,
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(truncate(value, width)))
    }

    /// Returns the bits of an `OpConstant`, or of an `OpSpecConstant` as specialized.
    fn bits(&self, id: u32, constant: &Instruction<'_>, lanes: Lanes) -> Result<u64> {
        if let Some(&bits) = self.specialized.get(&id) {
            return Ok(truncate(bits, lanes.bits()));
        }
        let View::Constant { bits } = constant.view() else { return Err(damaged(constant)) };
        let is_complete = bits.len() > 1 || lanes.bits() <= 32;
        let bits = bits.number().filter(|_| is_complete).ok_or_else(|| damaged(constant))?;
        Ok(truncate(bits, lanes.bits()))
    }
}

fn is_constant(definition: &Instruction<'_>) -> bool {
    matches!(definition.class(), Some(Class::Constant | Class::Specialized))
}

fn truncate(value: u64, width: u32) -> u64 {
    if width >= 64 { value } else { value & ((1 << width) - 1) }
}

fn sign_extend(value: u64, width: u32) -> i64 {
    let shift = 64 - width.clamp(1, 64);
    (value << shift).cast_signed() >> shift
}

/// Evaluates an integer instruction on constants. The result is not yet truncated to the width of its type.
fn fold(op: Op, width: u32, values: &[u64]) -> Option<u64> {
    let signed = |value| sign_extend(value, width);
    if let [condition, yes, no] = *values {
        return (op == Op::Select).then_some(if condition == 1 { yes } else { no });
    }
    if let [value] = *values {
        return Some(match op {
            Op::UConvert | Op::Bitcast => value,
            Op::SConvert => signed(value).cast_unsigned(),
            Op::SNegate => value.wrapping_neg(),
            Op::Not | Op::LogicalNot => !value,
            _ => return None,
        });
    }
    let [a, b] = *values else { return None };
    Some(match op {
        Op::IAdd => a.wrapping_add(b),
        Op::ISub => a.wrapping_sub(b),
        Op::IMul => a.wrapping_mul(b),
        Op::UDiv => a.checked_div(b)?,
        Op::UMod => a.checked_rem(b)?,
        Op::SDiv => signed(a).checked_div(signed(b))?.cast_unsigned(),
        Op::SRem => signed(a).checked_rem(signed(b))?.cast_unsigned(),
        Op::BitwiseAnd | Op::LogicalAnd => a & b,
        Op::BitwiseOr | Op::LogicalOr => a | b,
        Op::BitwiseXor | Op::LogicalNotEqual => a ^ b,
        Op::ShiftLeftLogical => a.checked_shl(u32::try_from(b).ok()?)?,
        Op::ShiftRightLogical => a.checked_shr(u32::try_from(b).ok()?)?,
        Op::ShiftRightArithmetic => signed(a).checked_shr(u32::try_from(b).ok()?)?.cast_unsigned(),
        Op::IEqual | Op::LogicalEqual => (a == b).into(),
        Op::INotEqual => (a != b).into(),
        Op::UGreaterThan => (a > b).into(),
        Op::UGreaterThanEqual => (a >= b).into(),
        Op::ULessThan => (a < b).into(),
        Op::ULessThanEqual => (a <= b).into(),
        Op::SGreaterThan => (signed(a) > signed(b)).into(),
        Op::SGreaterThanEqual => (signed(a) >= signed(b)).into(),
        Op::SLessThan => (signed(a) < signed(b)).into(),
        Op::SLessThanEqual => (signed(a) <= signed(b)).into(),
        _ => return None,
    })
}

/// Returns the text of a Boolean as the component of a vector.
pub(super) fn lane_of_bool(text: &str) -> String {
    match text {
        "true" => "-1".to_owned(),
        "false" => "0".to_owned(),
        _ => format!("-{text}"),
    }
}

/// Returns a literal. It has no operator at its start or end that a neighboring operator could take precedence
/// over.
pub(super) fn literal(scalar: Scalar, bits: u64, place: Place) -> String {
    match scalar {
        Scalar::Bool => if bits == 0 { "false" } else { "true" }.to_owned(),
        Scalar::Int(..=8) => format!("(uchar){bits}"),
        Scalar::Int(..=16) => format!("(ushort){bits}"),
        Scalar::Int(..=32) => format!("{bits}u"),
        Scalar::Int(_) => format!("{bits}ul"),
        Scalar::Float(16) => float(half(bits as u16), bits, 16, place),
        Scalar::Float(32) => float(f32::from_bits(bits as u32).into(), bits, 32, place),
        Scalar::Float(_) => float(f64::from_bits(bits), bits, 64, place),
    }
}

/// Like [`literal`], for an integer that is taken as signed.
pub(super) fn signed_literal(width: u32, bits: u64) -> String {
    let value = sign_extend(bits, width);
    match width.next_power_of_two() {
        ..=8 => format!("(char)({value})"),
        16 => format!("(short)({value})"),
        32 if value == i64::from(i32::MIN) => "(-2147483647 - 1)".to_owned(),
        _ if value == i64::MIN => "(-9223372036854775807l - 1)".to_owned(),
        32 if value < 0 => format!("({value})"),
        32 => value.to_string(),
        _ if value < 0 => format!("({value}l)"),
        _ => format!("{value}l"),
    }
}

fn float(value: f64, bits: u64, width: u32, place: Place) -> String {
    let text = if value.is_finite() {
        match width {
            // `{:?}` writes the shortest text that gives the same bits.
            32 => format!("{:?}f", value as f32),
            16 => format!("(half){value:?}f"),
            _ => format!("{value:?}"),
        }
    } else if place == Place::Expression {
        return match width {
            16 => format!("as_half((ushort){bits:#x})"),
            32 => format!("as_float({bits:#x}u)"),
            _ => format!("as_double({bits:#x}ul)"),
        };
    } else {
        // In initializers, `as_half` and the like are not constant expressions.
        let suffix = match width {
            64 => "",
            _ => "f",
        };
        let sign = if value.is_sign_negative() { "-" } else { "" };
        let cast = if width == 16 { "(half)" } else { "" };
        return if value.is_infinite() {
            format!("{cast}({sign}__builtin_inf{suffix}())")
        } else {
            let fraction = match width {
                64 => 52,
                32 => 23,
                _ => 10,
            };
            // The highest bit of the fraction distinguishes quiet NaNs from signaling ones.
            let quiet = 1_u64 << (fraction - 1);
            let payload = bits & (quiet - 1);
            match width {
                // The `float` is converted to `half`. This keeps the upper bits and makes a signaling NaN
                // quiet.
                16 => format!("{cast}({sign}__builtin_nanf(\"{:#x}\"))", payload << 13),
                _ if bits & quiet == 0 => {
                    format!("({sign}__builtin_nans{suffix}(\"{payload:#x}\"))")
                }
                _ => format!("({sign}__builtin_nan{suffix}(\"{payload:#x}\"))"),
            }
        };
    };
    if value.is_sign_negative() { format!("({text})") } else { text }
}

/// Returns the value of a 16-bit floating-point number.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    }
}
