//! Instructions that compute a value from other values.

use kiln_spirv::Result;
use kiln_spirv::edit::Context as _;
use kiln_spirv::edit::{Class, ExtendedSet, Instruction, Row, View};
use rspirv::spirv::{Decoration, FPRoundingMode, Op, StorageClass};

use super::constants::{Place, lane_of_bool, signed_literal};
use super::function::{Body, initializer};
use super::types::{Lanes, Scalar, Space, Type};
use super::{damaged, malformed, typed, unsupported};

/// Returns whether an instruction has no text.
fn is_silent(instruction: &Instruction<'_>) -> bool {
    instruction.class().is_some_and(Class::is_note) || instruction.op() == Some(Op::AssumeTrueKHR)
}

impl<'m> Body<'_, 'm> {
    /// Translates an instruction that neither begins nor ends a block.
    pub(super) fn instruction(&mut self, instruction: &Instruction<'m>) -> Result<()> {
        let Some(op) = instruction.op() else { return Err(unsupported(instruction.name())) };
        if instruction.row().is_some() && matches!(instruction.view(), View::Unknown) {
            return Err(damaged(instruction));
        }
        match op {
            // These instructions inform optimizers and debuggers only. Variables are already declared.
            _ if is_silent(instruction) => Ok(()),
            Op::Variable | Op::UntypedVariableKHR => match initializer(instruction) {
                Some(initializer) => {
                    let (_, id) = typed(instruction)?;
                    let (name, value) = (self.name(id), self.value(initializer)?);
                    self.line(&format!("{name} = {value};"));
                    Ok(())
                }
                None => Ok(()),
            },
            Op::FunctionCall => self.call(instruction),
            Op::ExtInst => {
                let (import, _) = instruction.extended().ok_or_else(|| damaged(instruction))?;
                match self.emitter.definitions.extended_set(import) {
                    ExtendedSet::OpenClStd => self.extended(instruction),
                    ExtendedSet::DebugInfo
                    | ExtendedSet::OpenClDebugInfo100
                    | ExtendedSet::NonSemantic => Ok(()),
                    _ => Err(unsupported("an extended instruction that is not from OpenCL.std")),
                }
            }
            _ if self.image(op, instruction)? => Ok(()),
            _ if self.memory(instruction)? || self.synchronization(op, instruction)? => Ok(()),
            _ if self.asynchronous(op, instruction)? => Ok(()),
            _ if self.collective(op, instruction)? => Ok(()),
            _ => {
                let (Some(ty), Some(id)) = (instruction.result_type(), instruction.result()) else {
                    return Err(unsupported(instruction.name()));
                };
                if self.composite(op, instruction)? {
                    return Ok(());
                }
                let operands: Vec<_> = instruction.words_from(2).collect();
                match self.expression(op, ty, id, &operands)? {
                    Some(text) => self.assign(id, ty, &text),
                    None => Err(unsupported(instruction.name())),
                }
            }
        }
    }

    /// Translates an instruction that takes several statements, or writes parts of its result. Returns whether
    /// the instruction is one.
    fn composite(&mut self, op: Op, instruction: &Instruction<'_>) -> Result<bool> {
        let (ty, id) = typed(instruction)?;
        let name = self.name(id);
        match instruction.view() {
            View::Insert { part, whole, path } => {
                let (object, composite) = (self.value(part)?, self.value(whole)?);
                self.assign(id, ty, &composite)?;
                let path: Vec<_> = path.iter().collect();
                let (place, is_bool) = self.member(&name, ty, &path)?;
                let object = if is_bool { lane_of_bool(&object) } else { object };
                self.line(&format!("{place} = {object};"));
            }
            View::InsertDynamic { vector, part, index } => {
                let (vector, object) = (self.value(vector)?, self.value(part)?);
                let index = self.value(index)?;
                self.assign(id, ty, &vector)?;
                let lanes = self.emitter.lanes(ty)?;
                let object =
                    if lanes.scalar == Scalar::Bool { lane_of_bool(&object) } else { object };
                let (lane, last) = (lane_name(lanes), last_place(lanes));
                self.line(&format!("((private {lane} *)&{name})[{index} & {last}] = {object};"));
            }
            View::ExtractDynamic { vector, index } => {
                let index = self.value(index)?;
                // In OpenCL C, the function has a result even for a dimension that does not exist. SPIR-V's
                // vector loses it, but the call emitted here restores it.
                if let Some(function) = self.function_of_dimensions(vector) {
                    self.assign(id, ty, &format!("{function}({index})"))?;
                    return Ok(true);
                }
                let vector_ty = self.emitter.type_of(vector)?;
                let vector = self.value(vector)?;
                let lanes = self.emitter.lanes(vector_ty)?;
                let (lane, last) = (lane_name(lanes), last_place(lanes));
                self.assign(id, ty, "0")?;
                self.line(&format!(
                    "{{ {lanes} of_{name} = {vector}; \
                     {name} = ((private {lane} *)&of_{name})[{index} & {last}]; }}"
                ));
            }
            View::Binary { left, right } if instruction.class() == Some(Class::TwoResults) => {
                let lanes = self.emitter.lanes(self.emitter.type_of(left)?)?;
                if lanes.is_vector() || lanes.width() < 32 || lanes.is_odd() {
                    return Err(unsupported(format!("Op{op:?} of {lanes}")));
                }
                let (a, b) = (self.value(left)?, self.value(right)?);
                let (low, high) = match op {
                    Op::IAddCarry => (format!("{a} + {b}"), format!("{a} + {b} < {a}")),
                    Op::ISubBorrow => (format!("{a} - {b}"), format!("{a} < {b}")),
                    Op::UMulExtended => (format!("{a} * {b}"), format!("mul_hi({a}, {b})")),
                    _ => {
                        let (a, b) = (self.signed(left)?, self.signed(right)?);
                        let high = format!("as_{lanes}(mul_hi({a}, {b}))");
                        (self.infix("*", &[left, right])?, high)
                    }
                };
                let text = self.emitter.composite(ty, &[low, high], Place::Expression)?;
                self.assign(id, ty, &text)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the expression of a member of a composite, and whether the member is a Boolean in a vector,
    /// where true is -1.
    fn member(&self, base: &str, ty: u32, path: &[u32]) -> Result<(String, bool)> {
        let (mut text, mut ty, mut is_bool) = (base.to_owned(), ty, false);
        for &index in path {
            match self.emitter.ty(ty)? {
                Type::Vector { component, count } if index < count => {
                    text += &format!(".s{index:x}");
                    ty = component;
                    is_bool = self.emitter.ty(component)? == Type::Scalar(Scalar::Bool);
                }
                Type::Array { element, .. } => {
                    text += &format!(".e[{index}]");
                    ty = element;
                }
                Type::Struct => {
                    text += &format!(".m{index}");
                    let whole = self.emitter.definition(ty)?;
                    let member = whole.members().nth(index as usize);
                    ty = member.ok_or_else(|| damaged(&whole))?;
                }
                _ => return Err(malformed("the path to a member")),
            }
        }
        Ok((text, is_bool))
    }

    /// Returns the text of a value that is computed from others, or `None` if the instruction does not compute
    /// one.
    pub(super) fn expression(
        &mut self,
        op: Op,
        ty: u32,
        id: u32,
        operands: &[u32],
    ) -> Result<Option<String>> {
        let text = self.untruncated(op, ty, id, operands)?;
        Ok(match self.emitter.ty(ty)? {
            Type::Scalar(scalar @ Scalar::Int(_)) if overflows(op) => {
                let lanes = Lanes { scalar, count: 1 };
                text.map(|text| if lanes.is_odd() { truncated(lanes, &text) } else { text })
            }
            _ => text,
        })
    }

    /// Like [`expression`](Self::expression), but an integer may have bits above those of its type.
    fn untruncated(
        &mut self,
        op: Op,
        ty: u32,
        id: u32,
        operands: &[u32],
    ) -> Result<Option<String>> {
        let get = |index: usize| -> Result<u32> {
            operands.get(index).copied().ok_or_else(|| malformed(format!("Op{op:?}")))
        };
        if let Some(text) = self.conversion(op, ty, id, operands)? {
            return Ok(Some(text));
        }
        if let Some(text) = self.comparison(op, operands)? {
            return Ok(Some(text));
        }
        Ok(Some(match op {
            Op::CopyObject | Op::CopyLogical | Op::ExpectKHR => self.value(get(0)?)?,
            Op::Undef => {
                let text = self.emitter.constant(id, Place::Expression)?;
                text.ok_or_else(|| malformed("OpUndef"))?
            }
            Op::IAdd | Op::ISub | Op::IMul => {
                let symbol = match op {
                    Op::IAdd => '+',
                    Op::ISub => '-',
                    _ => '*',
                };
                let lanes = self.emitter.lanes(ty)?;
                // Compilers recognize indexes if they are known not to wrap, as in signed arithmetic.
                if self.emitter.decorated(id, Decoration::NoSignedWrap) && lanes.width() >= 32 {
                    let (a, b) = (self.signed(get(0)?)?, self.signed(get(1)?)?);
                    return Ok(Some(format!("as_{lanes}({a} {symbol} {b})")));
                }
                let (a, b) = (self.value(get(0)?)?, self.value(get(1)?)?);
                // Narrow integers are promoted to `int`, and a product must not overflow that.
                let wide = if lanes.is_vector() || lanes.width() >= 32 { "" } else { "(uint)" };
                format!("{wide}{a} {symbol} {b}")
            }
            Op::FAdd => self.infix("+", operands)?,
            Op::FSub => self.infix("-", operands)?,
            Op::FMul | Op::VectorTimesScalar => self.infix("*", operands)?,
            Op::FDiv | Op::UDiv => self.infix("/", operands)?,
            Op::UMod => self.infix("%", operands)?,
            Op::BitwiseAnd => self.infix("&", operands)?,
            Op::BitwiseOr => self.infix("|", operands)?,
            Op::BitwiseXor => self.infix("^", operands)?,
            Op::SDiv | Op::SRem => {
                let lanes = self.emitter.lanes(ty)?;
                let (a, b) = (self.signed(get(0)?)?, self.signed(get(1)?)?);
                let symbol = if op == Op::SDiv { '/' } else { '%' };
                format!("{}({a} {symbol} {b})", unsigned(lanes))
            }
            Op::SMod => {
                let lanes = self.emitter.lanes(ty)?;
                let (a, b) = (self.signed(get(0)?)?, self.signed(get(1)?)?);
                let remainder = format!("({a} % {b})");
                // The result has the sign of the divisor.
                if lanes.is_vector() {
                    let zero = format!("({})(0)", lanes.signed());
                    let differs =
                        format!("(({remainder} != {zero}) & (({remainder} ^ {b}) < {zero}))");
                    return Ok(Some(format!("as_{lanes}({remainder} + ({differs} & {b}))")));
                }
                let differs = format!("({remainder} != 0 && ({remainder} ^ {b}) < 0)");
                format!("{}({remainder} + ({differs} ? {b} : 0))", unsigned(lanes))
            }
            Op::FRem => self.function("fmod", operands)?,
            Op::FMod => {
                let function = self.emitter.modulo(self.emitter.lanes(ty)?);
                self.function(&function, operands)?
            }
            Op::SNegate | Op::FNegate => format!("-{}", self.value(get(0)?)?),
            Op::Not => format!("~{}", self.value(get(0)?)?),
            Op::ShiftLeftLogical | Op::ShiftRightLogical | Op::ShiftRightArithmetic => {
                let lanes = self.emitter.lanes(ty)?;
                let by = self.emitter.lanes(self.emitter.type_of(get(1)?)?)?;
                let mut amount = self.value(get(1)?)?;
                if by.is_vector() && by.width() != lanes.width() {
                    amount = format!("convert_{lanes}({amount})");
                }
                if op == Op::ShiftRightArithmetic {
                    if by.is_vector() {
                        amount = format!("as_{}({amount})", lanes.signed());
                    }
                    let base = self.signed(get(0)?)?;
                    return Ok(Some(format!("{}({base} >> {amount})", unsigned(lanes))));
                }
                let symbol = if op == Op::ShiftLeftLogical { "<<" } else { ">>" };
                format!("{} {symbol} {amount}", self.value(get(0)?)?)
            }
            Op::BitCount => {
                let lanes = self.emitter.lanes(self.emitter.type_of(get(0)?)?)?;
                cast(self.emitter.lanes(ty)?, lanes, &self.function("popcount", operands)?, "")
            }
            Op::BitReverse => {
                let function = self.emitter.bit_reverse(self.emitter.lanes(ty)?)?;
                self.function(&function, operands)?
            }
            Op::BitFieldInsert | Op::BitFieldSExtract | Op::BitFieldUExtract => {
                let function = self.emitter.bit_field(op, self.emitter.lanes(ty)?)?;
                self.function(&function, operands)?
            }
            Op::Dot => {
                let lanes = self.emitter.lanes(self.emitter.type_of(get(0)?)?)?;
                dot(&self.value(get(0)?)?, &self.value(get(1)?)?, lanes.count)
            }
            Op::CompositeExtract => {
                let base = self.value(get(0)?)?;
                let path = operands.get(1..).unwrap_or_default();
                let base_ty = self.emitter.type_of(get(0)?)?;
                // A swizzle of a literal needs parentheses.
                let base = if base.starts_with("(") { format!("({base})") } else { base };
                let (text, is_bool) = self.member(&base, base_ty, path)?;
                if is_bool { format!("({text} != 0)") } else { text }
            }
            Op::CompositeConstruct => {
                let is_bools = matches!(self.emitter.ty(ty)?, Type::Vector { .. })
                    && self.emitter.lanes(ty)?.scalar == Scalar::Bool;
                let mut parts = Vec::new();
                for &part in operands {
                    let text = self.value(part)?;
                    let is_scalar =
                        self.emitter.ty(self.emitter.type_of(part)?)? == Type::Scalar(Scalar::Bool);
                    parts.push(if is_bools && is_scalar { lane_of_bool(&text) } else { text });
                }
                self.emitter.composite(ty, &parts, Place::Expression)?
            }
            Op::VectorShuffle => self.shuffle(ty, get(0)?, get(1)?, operands.get(2..))?,
            _ => {
                return Ok(match self.logic(op, ty, operands)? {
                    None => self.pointer(op, ty, id, operands)?,
                    text => text,
                });
            }
        }))
    }

    /// Refuses to cast a pointer to a vector of Booleans to a pointer to something else, or the reverse. A
    /// module lays out such vectors in memory differently from the text.
    fn check_reinterpreted(&self, pointer: u32, to: u32) -> Result<()> {
        let pointee = |ty: u32| match self.emitter.ty(ty) {
            Ok(Type::Pointer { pointee, .. }) => pointee,
            _ => None,
        };
        let pointees = [pointee(self.emitter.type_of(pointer)?), pointee(to)];
        let is_bools = |ty: u32| {
            self.emitter.lanes(ty).is_ok_and(|it| it.is_vector() && it.scalar == Scalar::Bool)
        };
        if pointees[0] != pointees[1] && pointees.into_iter().flatten().any(is_bools) {
            return Err(unsupported("OpBitcast of a pointer to a vector of Booleans"));
        }
        Ok(())
    }

    fn infix(&mut self, symbol: &str, operands: &[u32]) -> Result<String> {
        let &[a, b] = operands else { return Err(malformed("an instruction with two operands")) };
        Ok(format!("{} {symbol} {}", self.value(a)?, self.value(b)?))
    }

    pub(super) fn function(&mut self, name: &str, operands: &[u32]) -> Result<String> {
        let mut texts = Vec::new();
        for &operand in operands {
            texts.push(self.value(operand)?);
        }
        Ok(format!("{name}({})", texts.join(", ")))
    }

    /// Returns the text of an integer, taken as signed.
    pub(super) fn signed(&mut self, id: u32) -> Result<String> {
        let lanes = self.emitter.lanes(self.emitter.type_of(id)?)?;
        if !matches!(lanes.scalar, Scalar::Int(_)) {
            return Err(malformed("an integer instruction"));
        }
        if !lanes.is_vector()
            && let Some(bits) = self.emitter.evaluate(id)?
        {
            return Ok(signed_literal(lanes.bits(), bits));
        }
        let (signed, value) = (lanes.signed(), self.value(id)?);
        if lanes.is_odd() {
            let above = lanes.width() - lanes.bits();
            return Ok(format!("(({signed})({value} << {above}) >> {above})"));
        }
        Ok(format!("as_{signed}({value})"))
    }

    fn shuffle(&mut self, ty: u32, a: u32, b: u32, picks: Option<&[u32]>) -> Result<String> {
        let picks = picks.unwrap_or_default();
        let lanes = self.emitter.lanes(ty)?;
        let (a_lanes, b_lanes) = (
            self.emitter.lanes(self.emitter.type_of(a)?)?,
            self.emitter.lanes(self.emitter.type_of(b)?)?,
        );
        if picks.len() != lanes.count as usize {
            return Err(malformed("OpVectorShuffle"));
        }
        let parenthesized =
            |text: String| if text.starts_with('(') { format!("({text})") } else { text };
        let (a, b) = (parenthesized(self.value(a)?), parenthesized(self.value(b)?));
        if picks.iter().all(|&pick| pick < a_lanes.count) {
            let picks: String = picks.iter().map(|pick| format!("{pick:x}")).collect();
            return Ok(format!("{a}.s{picks}"));
        }
        let mut texts = Vec::new();
        for &pick in picks {
            texts.push(match pick {
                u32::MAX => "0".to_owned(),
                pick if pick < a_lanes.count => format!("{a}.s{pick:x}"),
                pick if pick - a_lanes.count < b_lanes.count => {
                    format!("{b}.s{:x}", pick - a_lanes.count)
                }
                _ => return Err(malformed("OpVectorShuffle")),
            });
        }
        Ok(format!("({lanes})({})", texts.join(", ")))
    }

    fn conversion(&mut self, op: Op, ty: u32, id: u32, operands: &[u32]) -> Result<Option<String>> {
        let &[value] = operands else { return Ok(None) };
        if Row::of(op).is_none_or(|row| row.class != Class::Conversion) {
            return Ok(None);
        }
        let (from, to) =
            (self.emitter.lanes(self.emitter.type_of(value)?)?, self.emitter.lanes(ty)?);
        if from.count != to.count {
            return Err(malformed(format!("Op{op:?}")));
        }
        let saturated = self.emitter.decorated(id, Decoration::SaturatedConversion)
            || matches!(op, Op::SatConvertSToU | Op::SatConvertUToS);
        let rounding = self.emitter.decoration(id, Decoration::FPRoundingMode);
        let rounding = rounding.and_then(|mode| FPRoundingMode::from_u32(*mode.first()?));
        // In PoCL (3.1), these conversions have the fault of its `rint`.
        let is_rounded_first = rounding == Some(FPRoundingMode::RTE)
            && matches!(op, Op::ConvertFToS | Op::ConvertFToU);
        let rounding = match rounding {
            None => "",
            _ if is_rounded_first => "",
            Some(FPRoundingMode::RTE) => "_rte",
            Some(FPRoundingMode::RTZ) => "_rtz",
            Some(FPRoundingMode::RTP) => "_rtp",
            Some(FPRoundingMode::RTN) => "_rtn",
        };
        if saturated && to.is_odd() {
            return Err(unsupported(format!("Op{op:?}, saturated, to {} bits", to.bits())));
        }
        let mode = format!("{}{rounding}", if saturated { "_sat" } else { "" });
        let takes_signed = matches!(op, Op::ConvertSToF | Op::SConvert | Op::SatConvertSToU);
        let mut text = if takes_signed { self.signed(value)? } else { self.value(value)? };
        if is_rounded_first {
            text = from.rint(&text);
        }
        let gives_signed = matches!(op, Op::ConvertFToS | Op::SConvert | Op::SatConvertUToS);
        Ok(Some(if gives_signed {
            let signed = to.signed();
            if !to.is_vector() && mode.is_empty() {
                format!("({to})({signed}){text}")
            } else {
                format!("as_{to}(convert_{signed}{mode}({text}))")
            }
        } else {
            cast(to, from, &text, &mode)
        }))
    }

    fn comparison(&mut self, op: Op, operands: &[u32]) -> Result<Option<String>> {
        let signed = Row::of(op).is_some_and(|row| row.class == Class::Signed);
        // An unordered comparison is true where the opposite ordered one is false.
        let (symbol, negated) = match op {
            Op::IEqual | Op::FOrdEqual | Op::PtrEqual => ("==", false),
            Op::INotEqual | Op::FUnordNotEqual | Op::PtrNotEqual => ("!=", false),
            Op::UGreaterThan | Op::SGreaterThan | Op::FOrdGreaterThan => (">", false),
            Op::UGreaterThanEqual | Op::SGreaterThanEqual | Op::FOrdGreaterThanEqual => {
                (">=", false)
            }
            Op::ULessThan | Op::SLessThan | Op::FOrdLessThan => ("<", false),
            Op::ULessThanEqual | Op::SLessThanEqual | Op::FOrdLessThanEqual => ("<=", false),
            Op::FUnordGreaterThan => ("<=", true),
            Op::FUnordGreaterThanEqual => ("<", true),
            Op::FUnordLessThan => (">=", true),
            Op::FUnordLessThanEqual => (">", true),
            // `<>` stands for two comparisons.
            Op::FOrdNotEqual | Op::LessOrGreater => ("<>", false),
            Op::FUnordEqual => ("<>", true),
            Op::Ordered => ("ordered", false),
            Op::Unordered => ("ordered", true),
            Op::IsNan => ("nan", false),
            Op::IsInf => ("isinf", false),
            Op::IsFinite => ("isfinite", false),
            Op::IsNormal => ("isnormal", false),
            Op::SignBitSet => ("signbit", false),
            _ => return Ok(None),
        };
        let first = *operands.first().ok_or_else(|| malformed(format!("Op{op:?}")))?;
        let ty = self.emitter.type_of(first)?;
        let is_vector = matches!(self.emitter.ty(ty)?, Type::Vector { .. });
        let mut texts = Vec::new();
        for &operand in operands {
            texts.push(if signed { self.signed(operand)? } else { self.value(operand)? });
        }
        let (and, or) = if is_vector { ("&", "|") } else { ("&&", "||") };
        let text = match texts.as_slice() {
            [a, b] => match symbol {
                "<>" => format!("({a} < {b}) {or} ({a} > {b})"),
                "ordered" => format!("({a} == {a}) {and} ({b} == {b})"),
                symbol => format!("{a} {symbol} {b}"),
            },
            [a] if symbol == "nan" => format!("{a} != {a}"),
            [a] if is_vector => format!("{symbol}({a})"),
            [a] => format!("{symbol}({a}) != 0"),
            _ => return Err(malformed(format!("Op{op:?}"))),
        };
        Ok(Some(match (is_vector, negated) {
            (false, false) => text,
            (false, true) => format!("!({text})"),
            (true, _) => {
                let lanes = self.emitter.lanes(ty)?.with(Scalar::Bool);
                let text = if negated { format!("~({text})") } else { text };
                format!("convert_{lanes}({text})")
            }
        }))
    }

    /// Returns the text of an instruction on pointers, or of one that reinterprets bits as another type.
    fn pointer(&mut self, op: Op, ty: u32, id: u32, operands: &[u32]) -> Result<Option<String>> {
        let get = |index: usize| -> Result<u32> {
            operands.get(index).copied().ok_or_else(|| malformed(format!("Op{op:?}")))
        };
        Ok(Some(match op {
            Op::Bitcast => {
                let from = self.emitter.type_of(get(0)?)?;
                let text = self.value(get(0)?)?;
                match (self.emitter.ty(from)?, self.emitter.ty(ty)?) {
                    (Type::Pointer { .. }, Type::Vector { .. }) => {
                        let bits = self.emitter.bits_of_pointers();
                        format!("as_{}(({bits}){text})", self.emitter.lanes(ty)?)
                    }
                    (Type::Vector { .. }, Type::Pointer { .. }) => {
                        let bits = self.emitter.bits_of_pointers();
                        format!("({})as_{bits}({text})", self.type_of(id, ty)?)
                    }
                    (Type::Pointer { .. }, _) => {
                        self.check_reinterpreted(get(0)?, ty)?;
                        let size = if matches!(self.emitter.ty(ty)?, Type::Pointer { .. }) {
                            ""
                        } else {
                            "(size_t)"
                        };
                        format!("({}){size}{text}", self.type_of(id, ty)?)
                    }
                    (_, Type::Pointer { .. }) => {
                        format!("({})(size_t){text}", self.type_of(id, ty)?)
                    }
                    _ => {
                        let (from, to) = (self.emitter.lanes(from)?, self.emitter.lanes(ty)?);
                        self.emitter.bit_cast(from, to, &text)?
                    }
                }
            }
            Op::PtrCastToGeneric | Op::GenericCastToPtr => {
                format!("({}){}", self.type_of(id, ty)?, self.value(get(0)?)?)
            }
            Op::GenericCastToPtrExplicit => {
                let class = StorageClass::from_u32(get(1)?);
                let space = class.map(Space::of).transpose()?.flatten();
                if space == Some(self.space(get(0)?)?) {
                    format!("({}){}", self.type_of(id, ty)?, self.value(get(0)?)?)
                } else {
                    "0".to_owned()
                }
            }
            Op::ConvertPtrToU => {
                format!("({})(size_t){}", self.emitter.lanes(ty)?, self.value(get(0)?)?)
            }
            Op::ConvertUToPtr => {
                format!("({})(size_t){}", self.type_of(id, ty)?, self.value(get(0)?)?)
            }
            Op::PtrDiff => {
                let lanes = self.emitter.lanes(ty)?;
                format!("({lanes})({} - {})", self.value(get(0)?)?, self.value(get(1)?)?)
            }
            Op::AccessChain | Op::InBoundsAccessChain => {
                self.access_chain(get(0)?, None, None, operands.get(1..).unwrap_or_default())?
            }
            Op::PtrAccessChain | Op::InBoundsPtrAccessChain => self.access_chain(
                get(0)?,
                None,
                Some(get(1)?),
                operands.get(2..).unwrap_or_default(),
            )?,
            Op::UntypedAccessChainKHR | Op::UntypedInBoundsAccessChainKHR => self.access_chain(
                get(1)?,
                Some(get(0)?),
                None,
                operands.get(2..).unwrap_or_default(),
            )?,
            Op::UntypedPtrAccessChainKHR | Op::UntypedInBoundsPtrAccessChainKHR => self
                .access_chain(
                    get(1)?,
                    Some(get(0)?),
                    Some(get(2)?),
                    operands.get(3..).unwrap_or_default(),
                )?,
            _ => return Ok(None),
        }))
    }
}

/// Returns the dot product of two vectors. OpenCL C's `dot` takes vectors of up to four components, so longer
/// ones are split.
fn dot(a: &str, b: &str, count: u32) -> String {
    if count <= 4 {
        return format!("dot({a}, {b})");
    }
    // Access to components of a literal needs parentheses around the literal.
    let half = |part: &str| dot(&format!("({a}).{part}"), &format!("({b}).{part}"), count / 2);
    format!("{} + {}", half("lo"), half("hi"))
}

impl super::Emitter<'_> {
    /// Adds a helper function that returns the remainder with the sign of the divisor, and returns the helper's
    /// name. OpenCL C has only `fmod`, whose remainder has the sign of the dividend. Both are exact.
    fn modulo(&mut self, lanes: Lanes) -> String {
        let name = self.names.beside_fixed(format!("modulo_{lanes}"));
        let zero = format!("({lanes})(0)");
        let (differs, choice) = if lanes.is_vector() {
            (
                format!("(rest != {zero}) & ((rest < {zero}) != (divisor < {zero}))"),
                "select(copysign(rest, divisor), rest + divisor, differs)",
            )
        } else {
            (
                "rest != 0 && (rest < 0) != (divisor < 0)".to_owned(),
                "differs ? rest + divisor : copysign(rest, divisor)",
            )
        };
        let truth = if lanes.is_vector() { lanes.signed() } else { "int".to_owned() };
        let text = format!(
            "\nstatic {lanes} {name}({lanes} dividend, {lanes} divisor)\n{{\n    \
                 {lanes} rest = fmod(dividend, divisor);\n    \
                 {truth} differs = {differs};\n    \
                 return {choice};\n}}\n"
        );
        self.helpers.insert(name.clone(), text);
        name
    }
}

/// Returns the prefix that converts an expression of signed integers to unsigned ones. In such an expression,
/// narrow scalars have been promoted to `int`.
pub(super) fn unsigned(lanes: Lanes) -> String {
    if lanes.is_vector() { format!("as_{lanes}") } else { format!("({lanes})") }
}

/// Returns a number's text, converted to another type.
fn cast(to: Lanes, from: Lanes, text: &str, mode: &str) -> String {
    if to == from && mode.is_empty() {
        text.to_owned()
    } else if to.is_vector() || !mode.is_empty() {
        format!("convert_{to}{mode}({text})")
    } else {
        format!("({to}){text}")
    }
}

/// Returns whether the text of an instruction may have bits above those of its integer type.
fn overflows(op: Op) -> bool {
    !matches!(op, Op::CopyObject | Op::Undef | Op::Select | Op::CompositeExtract | Op::Bitcast)
}

/// Returns the text of an integer of a width that OpenCL C does not have, with zeros above its own bits.
fn truncated(lanes: Lanes, text: &str) -> String {
    let mask = u64::MAX >> (64 - lanes.bits());
    let mask = if lanes.width() == 64 { format!("{mask}ul") } else { format!("{mask}u") };
    format!("({lanes})(({text}) & {mask})")
}

fn lane_name(lanes: Lanes) -> String {
    match lanes.scalar {
        Scalar::Bool => "char".to_owned(),
        _ => lanes.single().to_string(),
    }
}

/// Returns the last index within the memory that a vector takes. SPIR-V does not define the result of an index
/// out of bounds, but it must not reach other memory.
fn last_place(lanes: Lanes) -> u32 {
    lanes.count.next_power_of_two() - 1
}
