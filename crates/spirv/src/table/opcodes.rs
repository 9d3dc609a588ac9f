//! Rows of the table. Each row answers every column, so that an opcode cannot be added without.

use std::sync::LazyLock;

use rspirv::spirv::Op;

use super::columns::{Address, Class, Evaluation, Global};
use super::formats::Format;
use super::row::Row;
use crate::instructions::Domain::{Bool, Float, Int, Int32};
use crate::instructions::Types::{self, Of, Own};
use crate::instructions::Value::{
    Any, Component, Condition, First, Like, Literal, One, OtherBits, Pointer, Same, Vector,
    VectorOfResult,
};
use crate::instructions::{Effect, Meaning};
use crate::words::OPCODES;

/// Lists the rows: format, class, address, evaluation, treatment outside of functions, and meaning in functions.
macro_rules! opcodes {
    ($($format:ident, $class:ident, $address:ident, $evaluation:ident, $global:ident, $meaning:expr => $($op:ident)+;)*) => {
        pub(super) static ROWS: &[(&[Op], Row)] = &[$(
            (&[$(Op::$op),+], Row {
                format: Format::$format,
                class: Class::$class,
                address: Address::$address,
                evaluation: Evaluation::$evaluation,
                global: Global::$global,
                meaning: $meaning,
            }),
        )*];
    };
}

/// Meaning of an instruction that analyses refuse by name, or that does not stand in functions.
const REFUSED: Option<Meaning> = None;

const fn calculation(types: Types) -> Option<Meaning> {
    Some(Meaning::calculation(types))
}

const fn range(types: Types) -> Option<Meaning> {
    Some(Meaning::range(types))
}

const fn effect(effect: Effect, types: Types) -> Option<Meaning> {
    Some(Meaning::effect(effect, types))
}

const fn uniform(effect: Effect, types: Types) -> Option<Meaning> {
    Some(Meaning::uniform(effect, types))
}

use Effect::Address as Addresses;
use Effect::{Atomic, Extended, Fence, Group, Image, Memory, Pixel, Structure};

#[rustfmt::skip]
opcodes! {
    // The module.
    Capability, Other, No, No, Refused, REFUSED => Capability;
    Note, Other, No, No, Refused, REFUSED => Extension ModuleProcessed SourceContinued SourceExtension;
    Import, Other, No, No, Refused, REFUSED => ExtInstImport;
    MemoryModel, Other, No, No, Refused, REFUSED => MemoryModel;
    EntryPoint, Other, No, No, Refused, REFUSED => EntryPoint;
    ExecutionMode, Other, No, No, Refused, REFUSED => ExecutionMode;
    ExecutionModeId, Other, No, No, Refused, REFUSED => ExecutionModeId;
    String, Other, No, No, Refused, REFUSED => String;
    Source, Other, No, No, Refused, REFUSED => Source;
    Name, Other, No, No, Refused, REFUSED => Name;
    MemberName, Other, No, No, Refused, REFUSED => MemberName;
    Decorate, Decoration, No, No, Refused, REFUSED => Decorate DecorateString;
    DecorateId, Decoration, No, No, Refused, REFUSED => DecorateId;
    MemberDecorate, MemberDecoration, No, No, Refused, REFUSED => MemberDecorate MemberDecorateString;
    Plain, DecorationGroup, No, No, Refused, REFUSED => DecorationGroup;
    GroupDecorate, DecorationGroup, No, No, Refused, REFUSED => GroupDecorate;
    GroupMemberDecorate, DecorationGroup, No, No, Refused, REFUSED => GroupMemberDecorate;
    Line, Line, No, No, Followed, effect(Structure, Types::Any) => Line;
    Plain, Line, No, No, Followed, effect(Structure, Types::Any) => NoLine;

    // Types. Objects of types that are followed are refused where they are used.
    Plain, Other, No, No, Interned, REFUSED => TypeVoid TypeEvent TypeDeviceEvent TypeReserveId TypeQueue;
    Plain, Scalar, No, No, Interned, REFUSED => TypeBool;
    TypeInt, Scalar, No, No, Interned, REFUSED => TypeInt;
    TypeFloat, Scalar, No, No, Interned, REFUSED => TypeFloat;
    TypeVector, Aggregate, No, No, Interned, REFUSED => TypeVector;
    TypeArray, Aggregate, No, No, Interned, REFUSED => TypeArray;
    TypeStruct, Aggregate, No, No, Interned, REFUSED => TypeStruct;
    TypeOpaque, Other, No, No, Interned, REFUSED => TypeOpaque;
    TypePointer, Other, No, No, Interned, REFUSED => TypePointer;
    TypeForwardPointer, Other, No, No, Followed, REFUSED => TypeForwardPointer;
    TypeUntypedPointer, Other, No, No, InternedOnly, REFUSED => TypeUntypedPointerKHR;
    TypeFunction, Other, No, No, Interned, REFUSED => TypeFunction;
    TypeImage, Object, No, No, Interned, REFUSED => TypeImage;
    Plain, Object, No, No, Interned, REFUSED => TypeSampler;
    TypeSampledImage, Object, No, No, Interned, REFUSED => TypeSampledImage;
    TypePipe, Other, No, No, Interned, REFUSED => TypePipe;

    // Constants and variables.
    Plain, Constant, No, No, Interned, effect(Structure, Types::Any) => Undef;
    Plain, Constant, No, No, Interned, REFUSED => ConstantTrue ConstantFalse ConstantNull;
    Constant, Constant, No, No, Interned, REFUSED => Constant;
    Composite, Constant, No, No, Interned, REFUSED => ConstantComposite;
    ConstantSampler, Constant, No, No, Interned, REFUSED => ConstantSampler;
    ConstantPipeStorage, Constant, No, No, Refused, REFUSED => ConstantPipeStorage;
    Plain, Specialized, No, No, Followed, REFUSED => SpecConstantTrue SpecConstantFalse;
    Constant, Specialized, No, No, Followed, REFUSED => SpecConstant;
    Composite, Specialized, No, No, Followed, REFUSED => SpecConstantComposite;
    SpecConstantOp, Specialized, No, No, Followed, REFUSED => SpecConstantOp;
    Variable, Variable, No, No, Followed, uniform(Structure, Own) => Variable;
    UntypedVariable, Other, No, No, Refused, REFUSED => UntypedVariableKHR;

    // Functions and control flow.
    Function, Head, No, No, Refused, uniform(Structure, Types::Any) => Function;
    Plain, Head, No, No, Refused, uniform(Structure, Types::Any) => FunctionParameter;
    Plain, End, No, No, Refused, effect(Structure, Types::Any) => FunctionEnd;
    Plain, Label, No, No, Refused, uniform(Structure, Types::Any) => Label;
    Call, Other, No, No, Refused, uniform(Structure, Own) => FunctionCall;
    ExtInst, Other, No, No, Followed, effect(Extended, Types::Any) => ExtInst;
    ExtInst, Other, No, No, Refused, REFUSED => ExtInstWithForwardRefsKHR;
    Phi, Phi, No, No, Refused, effect(Structure, Own) => Phi;
    LoopMerge, Merge, No, No, Refused, effect(Structure, Types::Any) => LoopMerge;
    SelectionMerge, Merge, No, No, Refused, effect(Structure, Types::Any) => SelectionMerge;
    Branch, Branch, No, No, Refused, effect(Structure, Types::Any) => Branch;
    BranchIf, Branch, No, No, Refused, effect(Structure, Own) => BranchConditional;
    Switch, Branch, No, No, Refused, effect(Structure, Own) => Switch;
    Plain, Exit, No, No, Refused, effect(Structure, Types::Any) => Return Unreachable;
    Plain, Exit, No, No, Refused, REFUSED => Kill TerminateInvocation;
    Return, Exit, No, No, Refused, effect(Structure, Own) => ReturnValue;
    Lifetime, Lifetime, No, No, Refused, effect(Structure, Of(Any, &[Pointer, Literal])) => LifetimeStart LifetimeStop;
    Plain, Nothing, No, No, Refused, effect(Structure, Types::Any) => Nop;
    Assume, Other, No, No, Refused, REFUSED => AssumeTrueKHR;

    // Calculations with integers.
    Binary, Other, No, Invariant, Refused, range(Of(Like(Int), &[Same, Same])) => IAdd ISub IMul;
    Binary, Division, No, Invariant, Refused, range(Of(Like(Int), &[Same, Same])) => UDiv SDiv;
    Binary, Division, No, Recomputed, Refused, range(Of(Like(Int), &[Same, Same])) => UMod SRem SMod;
    Binary, Other, No, Recomputed, Refused, range(Of(Like(Int), &[Same, Same])) => BitwiseAnd BitwiseOr;
    Binary, Other, No, Symbolic, Refused, range(Of(Like(Int), &[Same, Same])) => BitwiseXor;
    Binary, Shift, No, Invariant, Refused, range(Of(Like(Int), &[Same, Like(Int)]))
        => ShiftLeftLogical ShiftRightLogical ShiftRightArithmetic;
    Unary, Other, No, Recomputed, Refused, range(Of(Like(Int), &[Same])) => Not SNegate;
    Unary, Conversion, No, Invariant, Refused, range(Of(Like(Int), &[OtherBits(Int)])) => UConvert SConvert;
    Binary, Equality, No, Recomputed, Refused, range(Of(Like(Bool), &[Like(Int), First])) => IEqual INotEqual;
    Binary, Unsigned, No, Recomputed, Refused, range(Of(Like(Bool), &[Like(Int), First]))
        => ULessThan ULessThanEqual UGreaterThan UGreaterThanEqual;
    Binary, Signed, No, Recomputed, Refused, range(Of(Like(Bool), &[Like(Int), First]))
        => SLessThan SLessThanEqual SGreaterThan SGreaterThanEqual;
    Unary, Other, No, No, Refused, calculation(Of(Like(Int), &[Same])) => BitReverse;
    Unary, Other, No, No, Refused, calculation(Of(Like(Int), &[Like(Int)])) => BitCount;
    Unary, Conversion, No, No, Refused, calculation(Of(Like(Int), &[Like(Int)])) => SatConvertSToU SatConvertUToS;
    Binary, TwoResults, No, No, Refused, calculation(Own) => IAddCarry ISubBorrow UMulExtended SMulExtended;
    BitExtract, Other, No, No, Refused, REFUSED => BitFieldSExtract BitFieldUExtract;
    BitInsert, Other, No, No, Refused, REFUSED => BitFieldInsert;

    // Calculations with truth values.
    Binary, Other, No, Recomputed, Refused, range(Of(Like(Bool), &[Same, Same])) => LogicalAnd LogicalOr;
    Binary, Other, No, No, Refused, range(Of(Like(Bool), &[Same, Same])) => LogicalEqual LogicalNotEqual;
    Unary, Other, No, Recomputed, Refused, range(Of(Like(Bool), &[Same])) => LogicalNot;
    Unary, Other, No, No, Refused, calculation(Of(One(Bool), &[Vector(Bool)])) => Any All;

    // Calculations with floating-point numbers.
    Binary, FloatSum, No, No, Refused, calculation(Of(Like(Float), &[Same, Same])) => FAdd FSub;
    Binary, FloatProduct, No, No, Refused, calculation(Of(Like(Float), &[Same, Same])) => FMul;
    Binary, Other, No, No, Refused, calculation(Of(Like(Float), &[Same, Same])) => FDiv FRem FMod;
    Unary, Other, No, No, Refused, calculation(Of(Like(Float), &[Same])) => FNegate;
    Binary, FloatProduct, No, No, Refused, calculation(Of(Vector(Float), &[Same, Component])) => VectorTimesScalar;
    Binary, FloatProduct, No, No, Refused, calculation(Of(One(Float), &[VectorOfResult, First])) => Dot;
    Binary, FloatProduct, No, No, Refused, REFUSED
        => MatrixTimesScalar MatrixTimesVector VectorTimesMatrix MatrixTimesMatrix;
    Unary, Conversion, No, No, Refused, calculation(Of(Like(Int), &[Like(Float)])) => ConvertFToU ConvertFToS;
    Unary, Conversion, No, No, Refused, calculation(Of(Like(Float), &[Like(Int)])) => ConvertSToF ConvertUToF;
    Unary, Conversion, No, No, Refused, calculation(Of(Like(Float), &[OtherBits(Float)])) => FConvert;
    Unary, Other, No, No, Refused, calculation(Of(Like(Bool), &[Like(Float)]))
        => IsNan IsInf IsFinite IsNormal SignBitSet;
    Binary, Other, No, No, Refused, calculation(Of(Like(Bool), &[Like(Float), First]))
        => LessOrGreater Ordered Unordered FOrdEqual FUnordEqual FOrdNotEqual FUnordNotEqual FOrdLessThan FUnordLessThan
           FOrdGreaterThan FUnordGreaterThan FOrdLessThanEqual FUnordLessThanEqual FOrdGreaterThanEqual
           FUnordGreaterThanEqual;

    // Values of all types, and parts of values.
    Unary, Other, Copy, No, Refused, range(Of(Any, &[Same])) => CopyObject;
    Unary, Other, No, No, Refused, REFUSED => CopyLogical;
    Select, Other, No, No, Refused, range(Of(Any, &[Condition, Same, Same])) => Select;
    Unary, Other, Copy, No, Refused, range(Own) => Bitcast;
    Binary, Other, No, No, Refused, REFUSED => ExpectKHR;
    ExtractDynamic, Other, No, No, Refused, range(Of(Any, &[VectorOfResult, One(Int)])) => VectorExtractDynamic;
    InsertDynamic, Other, No, No, Refused, calculation(Of(Any, &[Same, Component, One(Int)])) => VectorInsertDynamic;
    Shuffle, Other, No, No, Refused, range(Own) => VectorShuffle;
    Composite, Other, No, No, Refused, range(Own) => CompositeConstruct;
    Extract, Other, No, No, Refused, range(Own) => CompositeExtract;
    Insert, Other, No, No, Refused, range(Own) => CompositeInsert;

    // Memory.
    Load, Other, No, No, Refused, effect(Memory, Own) => Load;
    Store, Other, No, No, Refused, effect(Memory, Own) => Store;
    CopyMemory, Other, No, No, Refused, effect(Memory, Own) => CopyMemory;
    CopyMemorySized, Other, No, No, Refused, effect(Memory, Own) => CopyMemorySized;
    Chain, Other, Part, No, Refused, uniform(Addresses, Own) => AccessChain InBoundsAccessChain;
    PtrChain, Other, Part, No, Refused, uniform(Addresses, Own) => PtrAccessChain InBoundsPtrAccessChain;
    UntypedChain, Other, No, No, Refused, REFUSED => UntypedAccessChainKHR UntypedInBoundsAccessChainKHR;
    UntypedPtrChain, Other, No, No, Refused, REFUSED => UntypedPtrAccessChainKHR UntypedInBoundsPtrAccessChainKHR;
    Unary, Other, Cast, No, Refused, uniform(Addresses, Own) => PtrCastToGeneric GenericCastToPtr;
    CastExplicit, Other, Checked, No, Refused, effect(Addresses, Own) => GenericCastToPtrExplicit;
    Unary, Other, No, No, Refused, REFUSED => GenericPtrMemSemantics ConvertUToPtr;
    Binary, Other, No, No, Refused, effect(Addresses, Of(One(Bool), &[Pointer, Pointer])) => PtrEqual PtrNotEqual;
    Binary, Other, No, No, Refused, effect(Addresses, Of(One(Int), &[Pointer, Pointer])) => PtrDiff;
    Unary, Other, No, No, Refused, effect(Addresses, Of(One(Int), &[Pointer])) => ConvertPtrToU;
    Atomic, ExtendedAtomic, No, No, Refused, effect(Atomic, Own) => AtomicLoad;
    Atomic, LongAtomic, No, No, Refused, effect(Atomic, Own) => AtomicIIncrement AtomicIDecrement;
    Atomic, Other, No, No, Refused, effect(Atomic, Own) => AtomicFlagTestAndSet AtomicFlagClear;
    AtomicUpdate, LongAtomic, No, No, Refused, effect(Atomic, Own) => AtomicExchange AtomicIAdd AtomicISub;
    AtomicUpdate, ExtendedAtomic, No, No, Refused, effect(Atomic, Own)
        => AtomicSMin AtomicUMin AtomicSMax AtomicUMax AtomicAnd AtomicOr AtomicXor;
    AtomicUpdate, Other, No, No, Refused, effect(Atomic, Own)
        => AtomicStore AtomicFMinEXT AtomicFMaxEXT AtomicFAddEXT;
    AtomicCompare, LongAtomic, No, No, Refused, effect(Atomic, Own) => AtomicCompareExchange;
    AtomicCompare, Other, No, No, Refused, effect(Atomic, Own) => AtomicCompareExchangeWeak;

    // Groups of work-items.
    MemoryBarrier, Other, No, No, Refused, effect(Fence, Types::Any) => MemoryBarrier;
    ControlBarrier, Barrier, No, No, Refused, effect(Group, Types::Any) => ControlBarrier;
    ControlBarrier, Barrier, No, No, Refused, REFUSED => ControlBarrierArriveINTEL ControlBarrierWaitINTEL;
    NamedBarrier, Barrier, No, No, Refused, REFUSED => MemoryNamedBarrier;
    GroupVote, Group, No, No, Refused, effect(Group, Of(One(Bool), &[One(Int32), One(Bool)])) => GroupAll GroupAny;
    GroupReduce, Group, No, No, Refused, effect(Group, Of(Like(Int), &[One(Int32), Literal, Same]))
        => GroupIAdd GroupUMin GroupSMin GroupUMax GroupSMax;
    GroupReduce, Group, No, No, Refused, effect(Group, Of(Like(Float), &[One(Int32), Literal, Same]))
        => GroupFAdd GroupFMin GroupFMax;
    GroupBroadcast, Group, No, No, Refused, REFUSED => GroupBroadcast;
    GroupElect, Other, No, No, Refused, REFUSED => GroupNonUniformElect;
    GroupVote, Other, No, No, Refused, REFUSED
        => GroupNonUniformAll GroupNonUniformAny GroupNonUniformAllEqual GroupNonUniformBallot
           GroupNonUniformBroadcastFirst;
    GroupBroadcast, Other, No, No, Refused, REFUSED
        => GroupNonUniformBroadcast GroupNonUniformShuffle GroupNonUniformShuffleXor GroupNonUniformShuffleUp
           GroupNonUniformShuffleDown;
    GroupCluster, Other, No, No, Refused, REFUSED
        => GroupNonUniformIAdd GroupNonUniformFAdd GroupNonUniformIMul GroupNonUniformFMul GroupNonUniformSMin
           GroupNonUniformUMin GroupNonUniformFMin GroupNonUniformSMax GroupNonUniformUMax GroupNonUniformFMax
           GroupNonUniformBitwiseAnd GroupNonUniformBitwiseOr GroupNonUniformBitwiseXor GroupNonUniformLogicalAnd
           GroupNonUniformLogicalOr GroupNonUniformLogicalXor;
    GroupCopy, Other, No, No, Refused, REFUSED => GroupAsyncCopy;
    GroupWait, Other, No, No, Refused, REFUSED => GroupWaitEvents;
    SubgroupShuffle, Other, No, No, Refused, REFUSED => SubgroupShuffleINTEL SubgroupShuffleXorINTEL;
    SubgroupShift, Other, No, No, Refused, REFUSED => SubgroupShuffleDownINTEL SubgroupShuffleUpINTEL;

    // Images. An analysis of images follows them by their types, and those of pixels and coordinates.
    SampledImage, Other, No, No, Refused, uniform(Image, Types::Any) => SampledImage;
    ImageQueryLod, Other, No, No, Refused, uniform(Image, Of(Like(Int), &[Any, One(Int)])) => ImageQuerySizeLod;
    ImageQuery, Other, No, No, Refused, uniform(Image, Of(Like(Int), &[Any])) => ImageQuerySize;
    ImageQuery, Other, No, No, Refused, uniform(Image, Of(One(Int), &[Any])) => ImageQueryFormat ImageQueryOrder;
    ImageRead, Other, No, No, Refused, effect(Pixel, Types::Any) => ImageRead;
    ImageWrite, Other, No, No, Refused, effect(Pixel, Types::Any) => ImageWrite;
    ImageSample, Other, No, No, Refused, uniform(Pixel, Types::Any) => ImageSampleExplicitLod;
}

/// Returns the row of the number of an opcode, or `None` if the table has none.
#[must_use]
pub fn row(opcode: u16) -> Option<&'static Row> {
    static BY_OPCODE: LazyLock<Vec<Option<&'static Row>>> = LazyLock::new(|| {
        let mut all = vec![None; OPCODES.into()];
        for (ops, row) in ROWS {
            ops.iter().for_each(|&op| all[op as usize] = Some(row));
        }
        all
    });
    *BY_OPCODE.get(usize::from(opcode))?
}

impl Row {
    /// Returns the row of an opcode, or `None` if the table has none.
    #[must_use]
    pub fn of(op: Op) -> Option<&'static Self> {
        row(op as u16)
    }
}

impl Meaning {
    /// Returns the meaning of an instruction, or `None` if the instruction is not known.
    #[must_use]
    pub fn of(op: Op) -> Option<Self> {
        Row::of(op)?.meaning
    }
}

/// Whether an operation accesses memory atomically.
#[must_use]
pub fn is_atomic(op: Op) -> bool {
    Meaning::of(op).is_some_and(|meaning| meaning.effect == Atomic)
}
