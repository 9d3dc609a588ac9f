//! Instructions that the oracle covers, with the widths and the decorations that each takes.

use rspirv::spirv::{Op, OpenclStd100Op as Std};

/// Instruction of SPIR-V, or function of its set `OpenCL.std`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Core(Op),
    Std(Std),
}

impl Code {
    /// Returns the name in SPIR-V, without `Op`.
    pub(super) fn name(self) -> String {
        match self {
            Self::Core(op) => format!("{op:?}"),
            Self::Std(function) => format!("{function:?}"),
        }
    }
}

/// Operands and result of an instruction, as functions of the integers `a`, `b` and `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Takes the integers, and gives one of their width.
    Plain,
    /// Takes the integers, and gives a condition.
    Comparison,
    /// Takes this number of conditions, of `a < b` signed and `a < b` unsigned, and gives a condition.
    Logic(usize),
    /// Takes a vector of both conditions, and gives a condition.
    LogicOfVector,
    /// Takes the integer, and gives one of this width.
    Convert(u32),
    /// Takes the integers, and gives one of twice the width.
    Double,
    /// Takes the integers, and gives a structure of two, of which this is used.
    Member(u32),
    /// Takes a floating-point number that was made of the integer, and gives an integer of this width.
    FromFloat { is_signed: bool, to: u32 },
    /// Takes the integer, and gives a floating-point number that is converted back, saturated.
    ToFloat { is_signed: bool },
    /// Takes the bits of a floating-point number that was made of the integer's.
    FloatBits,
    /// Takes a vector of two halves that was made of the integer.
    Halves,
    /// Chooses `a` where `a < b` signed, and otherwise `c`.
    Choice,
    /// Moves components of vectors of the integers.
    Vector,
}

/// Decorations of an instruction's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Decorated {
    Plain,
    NoSignedWrap,
    NoUnsignedWrap,
    NoWrap,
    Saturated,
    RoundedUp,
    RoundedToZero,
    SaturatedAndRoundedUp,
}

/// Instruction, as the oracle uses it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    pub(super) code: Code,
    pub(super) form: Form,
    /// Number of the integers that the result depends on.
    pub(super) operands: usize,
    pub(super) widths: &'static [u32],
    pub(super) decorations: &'static [Decorated],
    /// Whether the instruction takes vectors, component by component.
    pub(super) has_lanes: bool,
    /// Whether the analysis knows more about the result than its width, for some operands.
    pub(super) is_followed: bool,
}

impl Instruction {
    const fn core(op: Op, operands: usize) -> Self {
        Self {
            code: Code::Core(op),
            form: Form::Plain,
            operands,
            widths: &[8, 16, 32, 64],
            decorations: &[Decorated::Plain],
            has_lanes: true,
            is_followed: false,
        }
    }

    const fn std(function: Std, operands: usize) -> Self {
        Self { code: Code::Std(function), ..Self::core(Op::Nop, operands) }
    }

    const fn comparison(op: Op) -> Self {
        Self { form: Form::Comparison, is_followed: true, ..Self::core(op, 2) }
    }

    const fn convert(op: Op, to: u32, widths: &'static [u32]) -> Self {
        let decorations = &[Decorated::Plain, Decorated::Saturated];
        Self { form: Form::Convert(to), widths, decorations, ..Self::core(op, 1) }
    }

    const fn from_float(op: Op, is_signed: bool, to: u32) -> Self {
        let decorations = &[
            Decorated::Plain,
            Decorated::Saturated,
            Decorated::RoundedToZero,
            Decorated::SaturatedAndRoundedUp,
        ];
        Self { decorations, ..Self::core(op, 1).with(Form::FromFloat { is_signed, to }) }
    }

    const fn to_float(op: Op, is_signed: bool) -> Self {
        let decorations = &[Decorated::Plain, Decorated::RoundedUp, Decorated::RoundedToZero];
        Self { decorations, ..Self::core(op, 1).with(Form::ToFloat { is_signed }) }
    }

    /// Returns an instruction that takes no vectors.
    const fn single(op: Op, operands: usize, form: Form) -> Self {
        Self { has_lanes: false, form, ..Self::core(op, operands) }
    }

    const fn with(self, form: Form) -> Self {
        Self { form, ..self }
    }

    const fn wrapping(self) -> Self {
        let decorations = &[
            Decorated::Plain,
            Decorated::NoSignedWrap,
            Decorated::NoUnsignedWrap,
            Decorated::NoWrap,
        ];
        Self { decorations, ..self }
    }

    const fn of(self, widths: &'static [u32]) -> Self {
        Self { widths, ..self }
    }

    const fn followed(self) -> Self {
        Self { is_followed: true, ..self }
    }
}

/// Instructions that the oracle covers.
pub(super) static COVERED: &[Instruction] = &[
    Instruction::core(Op::IAdd, 2).wrapping().followed(),
    Instruction::core(Op::ISub, 2).wrapping().followed(),
    Instruction::core(Op::IMul, 2).wrapping().followed(),
    Instruction::core(Op::UDiv, 2).followed(),
    Instruction::core(Op::SDiv, 2).followed(),
    Instruction::core(Op::UMod, 2).followed(),
    Instruction::core(Op::SRem, 2).followed(),
    Instruction::core(Op::SMod, 2).followed(),
    Instruction::core(Op::ShiftLeftLogical, 2).wrapping().followed(),
    Instruction::core(Op::ShiftRightLogical, 2).followed(),
    Instruction::core(Op::ShiftRightArithmetic, 2).followed(),
    Instruction::core(Op::BitwiseAnd, 2).followed(),
    Instruction::core(Op::BitwiseOr, 2).followed(),
    Instruction::core(Op::BitwiseXor, 2).followed(),
    Instruction { decorations: SIGNED_WRAP, ..Instruction::core(Op::SNegate, 1).followed() },
    Instruction::core(Op::Not, 1).followed(),
    Instruction::core(Op::CopyObject, 1).followed(),
    Instruction::core(Op::BitCount, 1),
    Instruction::core(Op::BitReverse, 1),
    Instruction::comparison(Op::IEqual),
    Instruction::comparison(Op::INotEqual),
    Instruction::comparison(Op::ULessThan),
    Instruction::comparison(Op::ULessThanEqual),
    Instruction::comparison(Op::UGreaterThan),
    Instruction::comparison(Op::UGreaterThanEqual),
    Instruction::comparison(Op::SLessThan),
    Instruction::comparison(Op::SLessThanEqual),
    Instruction::comparison(Op::SGreaterThan),
    Instruction::comparison(Op::SGreaterThanEqual),
    Instruction::core(Op::LogicalAnd, 2).with(Form::Logic(2)).followed(),
    Instruction::core(Op::LogicalOr, 2).with(Form::Logic(2)).followed(),
    Instruction::core(Op::LogicalNot, 2).with(Form::Logic(1)).followed(),
    Instruction::core(Op::LogicalEqual, 2).with(Form::Logic(2)),
    Instruction::core(Op::LogicalNotEqual, 2).with(Form::Logic(2)),
    Instruction::single(Op::Any, 2, Form::LogicOfVector),
    Instruction::single(Op::All, 2, Form::LogicOfVector),
    Instruction::core(Op::Select, 3).with(Form::Choice).followed(),
    Instruction::single(Op::Phi, 3, Form::Choice).followed(),
    Instruction::convert(Op::UConvert, 8, &[16, 32, 64]).followed(),
    Instruction::convert(Op::UConvert, 16, &[8, 32, 64]).followed(),
    Instruction::convert(Op::UConvert, 32, &[8, 16, 64]).followed(),
    Instruction::convert(Op::UConvert, 64, &[8, 16, 32]).followed(),
    Instruction::convert(Op::SConvert, 8, &[16, 32, 64]).followed(),
    Instruction::convert(Op::SConvert, 16, &[8, 32, 64]).followed(),
    Instruction::convert(Op::SConvert, 32, &[8, 16, 64]).followed(),
    Instruction::convert(Op::SConvert, 64, &[8, 16, 32]).followed(),
    Instruction::core(Op::SatConvertSToU, 1).with(Form::Convert(8)),
    Instruction::core(Op::SatConvertSToU, 1).with(Form::Convert(32)),
    Instruction::core(Op::SatConvertUToS, 1).with(Form::Convert(8)),
    Instruction::core(Op::SatConvertUToS, 1).with(Form::Convert(32)),
    Instruction::from_float(Op::ConvertFToS, true, 8),
    Instruction::from_float(Op::ConvertFToS, true, 32),
    Instruction::from_float(Op::ConvertFToS, false, 16),
    Instruction::from_float(Op::ConvertFToS, false, 64),
    Instruction::from_float(Op::ConvertFToU, true, 8),
    Instruction::from_float(Op::ConvertFToU, true, 32),
    Instruction::from_float(Op::ConvertFToU, false, 16),
    Instruction::from_float(Op::ConvertFToU, false, 64),
    Instruction::to_float(Op::ConvertSToF, true),
    Instruction::to_float(Op::ConvertUToF, false),
    Instruction::core(Op::Bitcast, 1).with(Form::FloatBits).of(&[32, 64]),
    Instruction::single(Op::Bitcast, 1, Form::Halves).of(&[16, 32, 64]),
    Instruction::core(Op::IAddCarry, 2).with(Form::Member(0)),
    Instruction::core(Op::IAddCarry, 2).with(Form::Member(1)),
    Instruction::core(Op::ISubBorrow, 2).with(Form::Member(0)),
    Instruction::core(Op::ISubBorrow, 2).with(Form::Member(1)),
    Instruction::core(Op::UMulExtended, 2).with(Form::Member(0)),
    Instruction::core(Op::UMulExtended, 2).with(Form::Member(1)),
    Instruction::core(Op::SMulExtended, 2).with(Form::Member(0)),
    Instruction::core(Op::SMulExtended, 2).with(Form::Member(1)),
    Instruction::single(Op::CompositeConstruct, 3, Form::Vector).followed(),
    Instruction::single(Op::CompositeExtract, 3, Form::Vector).followed(),
    Instruction::single(Op::CompositeInsert, 3, Form::Vector).followed(),
    Instruction::single(Op::VectorShuffle, 3, Form::Vector).followed(),
    Instruction::single(Op::VectorExtractDynamic, 3, Form::Vector).followed(),
    Instruction::single(Op::VectorInsertDynamic, 3, Form::Vector),
    Instruction::std(Std::s_abs, 1).followed(),
    Instruction::std(Std::u_abs, 1),
    Instruction::std(Std::s_abs_diff, 2).followed(),
    Instruction::std(Std::u_abs_diff, 2).followed(),
    Instruction::std(Std::s_add_sat, 2),
    Instruction::std(Std::u_add_sat, 2),
    Instruction::std(Std::s_sub_sat, 2),
    Instruction::std(Std::u_sub_sat, 2).followed(),
    Instruction::std(Std::s_hadd, 2),
    Instruction::std(Std::u_hadd, 2),
    Instruction::std(Std::s_rhadd, 2),
    Instruction::std(Std::u_rhadd, 2),
    Instruction::std(Std::s_min, 2).followed(),
    Instruction::std(Std::u_min, 2).followed(),
    Instruction::std(Std::s_max, 2).followed(),
    Instruction::std(Std::u_max, 2).followed(),
    Instruction::std(Std::s_clamp, 3).followed(),
    Instruction::std(Std::u_clamp, 3).followed(),
    Instruction::std(Std::s_mul_hi, 2),
    Instruction::std(Std::u_mul_hi, 2),
    Instruction::std(Std::s_mad_hi, 3),
    Instruction::std(Std::u_mad_hi, 3),
    Instruction::std(Std::s_mad_sat, 3),
    Instruction::std(Std::u_mad_sat, 3),
    Instruction::std(Std::s_mul24, 2).of(&[32]).followed(),
    Instruction::std(Std::u_mul24, 2).of(&[32]).followed(),
    Instruction::std(Std::s_mad24, 3).of(&[32]).followed(),
    Instruction::std(Std::u_mad24, 3).of(&[32]).followed(),
    Instruction::std(Std::s_upsample, 2).with(Form::Double).of(&[8, 16, 32]),
    Instruction::std(Std::u_upsample, 2).with(Form::Double).of(&[8, 16, 32]),
    Instruction::std(Std::rotate, 2),
    Instruction::std(Std::clz, 1),
    Instruction::std(Std::ctz, 1),
    Instruction::std(Std::popcount, 1),
    Instruction::std(Std::bitselect, 3),
    Instruction::std(Std::select, 3),
];

const SIGNED_WRAP: &[Decorated] = &[Decorated::Plain, Decorated::NoSignedWrap];

/// Instructions on integers that checked kernels must not have.
pub(super) static REFUSED: &[Instruction] = &[
    Instruction::core(Op::BitFieldInsert, 3),
    Instruction::core(Op::BitFieldSExtract, 3),
    Instruction::core(Op::BitFieldUExtract, 3),
];
