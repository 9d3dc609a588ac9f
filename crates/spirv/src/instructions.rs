//! Meaning of the instructions of functions for analyses.
//!
//! An analysis that proves something accepts only what it knows. Here is the table of the known instructions: what
//! each does besides giving a result, whether its result is the same for work-items with the same operands, whether
//! ranges of integers are calculated through it, and which types it takes (SPIR-V, section 3.49). An instruction that
//! is not in the table, such as one of a new extension, has no meaning, so that it is refused by name.
//!
//! The functions of the set `OpenCL.std` have a [table](super::functions) of their own.

use std::sync::LazyLock;

use rspirv::spirv::Op;

use super::words::{Instruction, OPCODES};

/// Effect of an instruction besides its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It shapes the code: it declares, begins or ends a function, a block or a variable, branches, or joins values.
    Structure,
    /// Nothing: the result depends on the values of the operands alone.
    Calculation,
    /// It makes, converts or compares pointers.
    Address,
    /// It reads or writes memory.
    Memory,
    /// It accesses memory atomically.
    Atomic,
    /// It orders accesses to memory.
    Fence,
    /// The work-items of a group take part together, and wait for each other.
    Group,
    /// It is about an image or a sampler, but not about pixels.
    Image,
    /// It reads or writes a pixel.
    Pixel,
    /// It calls a function of a set of extended instructions.
    Extended,
}

/// Kind of numbers, or of values that are not numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Booleans.
    Bool,
    /// Integers.
    Int,
    /// Integers of 32 bits.
    Int32,
    /// Floating-point numbers.
    Float,
    /// Integers or floating-point numbers.
    Number,
}

/// Type of a result or of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Any type. As a result: there may be none.
    Any,
    /// The type of the result.
    Same,
    /// The type of the first operand.
    First,
    /// A value or a vector of a domain; for an operand, with as many components as the result.
    Like(Domain),
    /// A value or a vector of a domain, with as many components as the result, each of as many bits.
    LikeBits(Domain),
    /// A value or a vector as for `LikeBits`, with components of another number of bits.
    OtherBits(Domain),
    /// A value or a vector as for `LikeBits`, with components of half as many bits.
    HalfBits(Domain),
    /// A value of a domain that is not a vector.
    One(Domain),
    /// A vector of a domain.
    Vector(Domain),
    /// The type of a component of the result, which is a vector.
    Component,
    /// A vector of components of the result's type.
    VectorOfResult,
    /// The type of the result, or a vector of components of that type.
    SameOrVectorOfResult,
    /// A vector of components of the type of the result's components.
    VectorOfComponents,
    /// A condition for the whole result, or one for each component.
    Condition,
    /// A pointer.
    Pointer,
    /// A pointer to a value of the result's type.
    ToSame,
    /// A pointer to a value of a domain, with as many components as the result.
    ToLike(Domain),
    /// A literal.
    Literal,
}

/// Types of an instruction's result and operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Types {
    /// The instruction takes no values, or values of any type.
    Any,
    /// A list of types does not say which types fit: literals, labels or several operands decide.
    Own,
    /// The type of the result, and the types of the operands in their order.
    Of(Value, &'static [Value]),
}

/// Meaning of an instruction for analyses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Effect besides the result.
    pub effect: Effect,
    /// Whether work-items whose operands are the same have the same result.
    pub is_uniform: bool,
    /// Whether the range of the result is calculated from those of integer operands.
    pub has_range: bool,
    /// Types of the result and of the operands.
    pub types: Types,
}

impl Meaning {
    /// Returns the meaning of an instruction, or `None` if the instruction is not known.
    pub fn of(op: Op) -> Option<Self> {
        static MEANINGS: LazyLock<Vec<Option<Meaning>>> = LazyLock::new(|| {
            let mut all = vec![None; OPCODES.into()];
            for (ops, meaning) in TABLE {
                for &op in *ops {
                    all[op as usize] = Some(*meaning);
                }
            }
            all
        });
        *MEANINGS.get(op as usize)?
    }

    /// A calculation.
    #[must_use]
    pub const fn calculation(types: Types) -> Self {
        Self { effect: Effect::Calculation, is_uniform: true, has_range: false, types }
    }

    /// A calculation whose results' ranges are calculated.
    #[must_use]
    pub const fn range(types: Types) -> Self {
        Self { has_range: true, ..Self::calculation(types) }
    }

    /// An instruction that gives no result, or one that each work-item may have for itself.
    #[must_use]
    pub const fn effect(effect: Effect, types: Types) -> Self {
        Self { effect, is_uniform: false, has_range: false, types }
    }

    const fn uniform(effect: Effect, types: Types) -> Self {
        Self { is_uniform: true, ..Self::effect(effect, types) }
    }
}

/// Returns whether an instruction stands before the code of a function: as a part of its head, or as a variable of its
/// first block.
#[must_use]
pub fn precedes_code(i: &Instruction<'_>) -> bool {
    matches!(
        i.op(),
        Some(
            Op::Function | Op::FunctionParameter | Op::Label | Op::Variable | Op::Line | Op::NoLine
        )
    )
}

/// Whether an operation accesses memory atomically.
#[must_use]
pub fn is_atomic(op: Op) -> bool {
    Meaning::of(op).is_some_and(|meaning| meaning.effect == Effect::Atomic)
}

use Domain::{Bool, Float, Int, Int32};
use Types::{Of, Own};
use Value::{
    Any, Component, Condition, First, Like, Literal, One, OtherBits, Pointer, Same, Vector,
    VectorOfResult,
};

#[rustfmt::skip]
const TABLE: &[(&[Op], Meaning)] = &[
    // Structure of the code.
    (&[
        Op::Nop, Op::Undef, Op::Line, Op::NoLine, Op::FunctionEnd, Op::LoopMerge, Op::SelectionMerge, Op::Branch,
        Op::Return, Op::Unreachable,
    ], Meaning::effect(Effect::Structure, Types::Any)),
    (&[Op::Function, Op::FunctionParameter, Op::Label], Meaning::uniform(Effect::Structure, Types::Any)),
    (&[Op::FunctionCall, Op::Variable], Meaning::uniform(Effect::Structure, Own)),
    (&[Op::Phi, Op::ReturnValue, Op::BranchConditional, Op::Switch], Meaning::effect(Effect::Structure, Own)),
    (&[Op::LifetimeStart, Op::LifetimeStop], Meaning::effect(Effect::Structure, Of(Any, &[Pointer, Literal]))),

    // Calculations with integers.
    (&[
        Op::IAdd, Op::ISub, Op::IMul, Op::UDiv, Op::SDiv, Op::UMod, Op::SRem, Op::SMod, Op::BitwiseAnd, Op::BitwiseOr,
        Op::BitwiseXor,
    ], Meaning::range(Of(Like(Int), &[Same, Same]))),
    (&[Op::ShiftLeftLogical, Op::ShiftRightLogical, Op::ShiftRightArithmetic],
        Meaning::range(Of(Like(Int), &[Same, Like(Int)]))),
    (&[Op::Not, Op::SNegate], Meaning::range(Of(Like(Int), &[Same]))),
    (&[Op::UConvert, Op::SConvert], Meaning::range(Of(Like(Int), &[OtherBits(Int)]))),
    (&[
        Op::IEqual, Op::INotEqual, Op::ULessThan, Op::SLessThan, Op::ULessThanEqual, Op::SLessThanEqual,
        Op::UGreaterThan, Op::SGreaterThan, Op::UGreaterThanEqual, Op::SGreaterThanEqual,
    ], Meaning::range(Of(Like(Bool), &[Like(Int), First]))),
    (&[Op::BitReverse], Meaning::calculation(Of(Like(Int), &[Same]))),
    (&[Op::BitCount, Op::SatConvertSToU, Op::SatConvertUToS], Meaning::calculation(Of(Like(Int), &[Like(Int)]))),
    (&[Op::IAddCarry, Op::ISubBorrow, Op::UMulExtended, Op::SMulExtended], Meaning::calculation(Own)),

    // Calculations with truth values.
    (&[Op::LogicalAnd, Op::LogicalOr, Op::LogicalEqual, Op::LogicalNotEqual],
        Meaning::range(Of(Like(Bool), &[Same, Same]))),
    (&[Op::LogicalNot], Meaning::range(Of(Like(Bool), &[Same]))),
    (&[Op::Any, Op::All], Meaning::calculation(Of(One(Bool), &[Vector(Bool)]))),

    // Calculations with floating-point numbers.
    (&[Op::FAdd, Op::FSub, Op::FMul, Op::FDiv, Op::FRem, Op::FMod],
        Meaning::calculation(Of(Like(Float), &[Same, Same]))),
    (&[Op::FNegate], Meaning::calculation(Of(Like(Float), &[Same]))),
    (&[Op::VectorTimesScalar], Meaning::calculation(Of(Vector(Float), &[Same, Component]))),
    (&[Op::Dot], Meaning::calculation(Of(One(Float), &[VectorOfResult, First]))),
    (&[Op::ConvertFToU, Op::ConvertFToS], Meaning::calculation(Of(Like(Int), &[Like(Float)]))),
    (&[Op::ConvertSToF, Op::ConvertUToF], Meaning::calculation(Of(Like(Float), &[Like(Int)]))),
    (&[Op::FConvert], Meaning::calculation(Of(Like(Float), &[OtherBits(Float)]))),
    (&[Op::IsNan, Op::IsInf, Op::IsFinite, Op::IsNormal, Op::SignBitSet],
        Meaning::calculation(Of(Like(Bool), &[Like(Float)]))),
    (&[
        Op::LessOrGreater, Op::Ordered, Op::Unordered, Op::FOrdEqual, Op::FUnordEqual, Op::FOrdNotEqual,
        Op::FUnordNotEqual, Op::FOrdLessThan, Op::FUnordLessThan, Op::FOrdGreaterThan, Op::FUnordGreaterThan,
        Op::FOrdLessThanEqual, Op::FUnordLessThanEqual, Op::FOrdGreaterThanEqual, Op::FUnordGreaterThanEqual,
    ], Meaning::calculation(Of(Like(Bool), &[Like(Float), First]))),

    // Values of all types, and parts of values.
    (&[Op::CopyObject], Meaning::range(Of(Any, &[Same]))),
    (&[Op::Select], Meaning::range(Of(Any, &[Condition, Same, Same]))),
    (&[Op::Bitcast], Meaning::range(Own)),
    (&[Op::VectorExtractDynamic], Meaning::range(Of(Any, &[VectorOfResult, One(Int)]))),
    (&[Op::VectorInsertDynamic], Meaning::calculation(Of(Any, &[Same, Component, One(Int)]))),
    (&[Op::VectorShuffle, Op::CompositeConstruct, Op::CompositeExtract, Op::CompositeInsert], Meaning::range(Own)),

    // Memory.
    (&[Op::Load, Op::Store, Op::CopyMemory, Op::CopyMemorySized], Meaning::effect(Effect::Memory, Own)),
    (&[Op::AccessChain, Op::InBoundsAccessChain, Op::PtrAccessChain, Op::InBoundsPtrAccessChain],
        Meaning::uniform(Effect::Address, Own)),
    (&[Op::PtrCastToGeneric, Op::GenericCastToPtr], Meaning::uniform(Effect::Address, Own)),
    (&[Op::GenericCastToPtrExplicit], Meaning::effect(Effect::Address, Own)),
    (&[Op::PtrEqual, Op::PtrNotEqual], Meaning::effect(Effect::Address, Of(One(Bool), &[Pointer, Pointer]))),
    (&[Op::PtrDiff], Meaning::effect(Effect::Address, Of(One(Int), &[Pointer, Pointer]))),
    (&[Op::ConvertPtrToU], Meaning::effect(Effect::Address, Of(One(Int), &[Pointer]))),
    (&[
        Op::AtomicLoad, Op::AtomicStore, Op::AtomicExchange, Op::AtomicCompareExchange, Op::AtomicCompareExchangeWeak,
        Op::AtomicIIncrement, Op::AtomicIDecrement, Op::AtomicIAdd, Op::AtomicISub, Op::AtomicSMin, Op::AtomicUMin,
        Op::AtomicSMax, Op::AtomicUMax, Op::AtomicAnd, Op::AtomicOr, Op::AtomicXor, Op::AtomicFlagTestAndSet,
        Op::AtomicFlagClear, Op::AtomicFMinEXT, Op::AtomicFMaxEXT, Op::AtomicFAddEXT,
    ], Meaning::effect(Effect::Atomic, Own)),

    // Groups of work-items.
    (&[Op::MemoryBarrier], Meaning::effect(Effect::Fence, Types::Any)),
    (&[Op::ControlBarrier], Meaning::effect(Effect::Group, Types::Any)),
    (&[Op::GroupAll, Op::GroupAny], Meaning::effect(Effect::Group, Of(One(Bool), &[One(Int32), One(Bool)]))),
    (&[Op::GroupIAdd, Op::GroupUMin, Op::GroupSMin, Op::GroupUMax, Op::GroupSMax],
        Meaning::effect(Effect::Group, Of(Like(Int), &[One(Int32), Literal, Same]))),
    (&[Op::GroupFAdd, Op::GroupFMin, Op::GroupFMax],
        Meaning::effect(Effect::Group, Of(Like(Float), &[One(Int32), Literal, Same]))),

    // Images. An analysis of images follows them by their types, and those of pixels and coordinates.
    (&[Op::SampledImage], Meaning::uniform(Effect::Image, Types::Any)),
    (&[Op::ImageQuerySizeLod], Meaning::uniform(Effect::Image, Of(Like(Int), &[Any, One(Int)]))),
    (&[Op::ImageQuerySize], Meaning::uniform(Effect::Image, Of(Like(Int), &[Any]))),
    (&[Op::ImageQueryFormat, Op::ImageQueryOrder], Meaning::uniform(Effect::Image, Of(One(Int), &[Any]))),
    (&[Op::ImageRead, Op::ImageWrite], Meaning::effect(Effect::Pixel, Types::Any)),
    (&[Op::ImageSampleExplicitLod], Meaning::uniform(Effect::Pixel, Types::Any)),

    // Functions of extended sets, which have meanings of their own.
    (&[Op::ExtInst], Meaning::effect(Effect::Extended, Types::Any)),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rspirv::grammar::{INSTRUCTION_TABLE, OperandKind, OperandQuantifier};

    use super::*;

    fn in_table(op: Op) -> usize {
        TABLE.iter().flat_map(|(ops, _)| *ops).filter(|own| **own == op).count()
    }

    #[test]
    fn each_instruction_is_in_the_table_once_at_most() {
        let all: Vec<_> = TABLE.iter().flat_map(|(ops, _)| *ops).collect();
        assert!(all.iter().all(|op| in_table(**op) == 1));
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }

    /// The grammar of the specification says how many operands an instruction has, and which of them are values.
    #[test]
    fn types_are_listed_for_each_operand_of_the_grammar() {
        for known in INSTRUCTION_TABLE.iter() {
            let Some(meaning) = Meaning::of(known.opcode) else { continue };
            let Of(result, listed) = meaning.types else { continue };
            let (results, operands): (Vec<_>, Vec<_>) =
                known.operands.iter().partition(|operand| {
                    matches!(operand.kind, OperandKind::IdResultType | OperandKind::IdResult)
                });
            let (op, count) = (known.opcode, operands.len());
            assert_eq!(count, listed.len(), "{op:?}");
            assert!(!results.is_empty() || result == Any, "{op:?} has no result");
            for (operand, value) in operands.iter().zip(listed) {
                let is_id = matches!(operand.kind, OperandKind::IdRef | OperandKind::IdScope);
                assert_eq!(is_id, *value != Literal, "{op:?}");
                assert_eq!(operand.quantifier, OperandQuantifier::One, "{op:?}");
            }
        }
    }

    #[test]
    fn atomic_instructions_are_those_that_are_named_so() {
        for known in INSTRUCTION_TABLE.iter() {
            let op = known.opcode;
            let is_named = format!("{op:?}").starts_with("Atomic");
            assert_eq!(is_atomic(op), is_named, "{op:?}");
        }
    }

    /// A calculation has a result, and neither pointers nor labels among the operands that are listed.
    #[test]
    fn calculations_give_results() {
        for known in INSTRUCTION_TABLE.iter() {
            let Some(meaning) = Meaning::of(known.opcode) else { continue };
            let mut kinds = known.operands.iter().map(|operand| operand.kind);
            let is_calculation = meaning.effect == Effect::Calculation;
            let gives = kinds.any(|kind| kind == OperandKind::IdResult);
            assert!(gives || !is_calculation && !meaning.is_uniform, "{:?}", known.opcode);
            assert!(is_calculation || !meaning.has_range, "{:?}", known.opcode);
        }
    }
}
