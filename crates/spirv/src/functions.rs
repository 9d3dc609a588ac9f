//! Meaning of the functions of OpenCL, the set of extended instructions `OpenCL.std`, for analyses.
//!
//! The types are those of the specification "SPIR-V Extended Instructions for OpenCL", section 2. A function that is
//! not in the table is refused by name, such as `printf`, whose format decides what it reads.

use std::sync::LazyLock;

use rspirv::spirv::OpenclStd100Op as Extended;

use super::instructions::Domain::{Float, Int, Int32, Number};
use super::instructions::Types::Of;
use super::instructions::Value::{
    Any, First, HalfBits, Like, LikeBits, Literal, One, Pointer, Same, SameOrVectorOfResult,
    ToLike, ToSame, Vector, VectorOfComponents,
};
use super::instructions::{Effect, Meaning, Types};

impl Meaning {
    /// Returns the meaning of a function of OpenCL, or `None` if the function is not known.
    pub fn of_function(function: Extended) -> Option<Self> {
        static MEANINGS: LazyLock<Vec<Option<Meaning>>> = LazyLock::new(|| {
            let mut all = vec![None; COUNT];
            for (functions, meaning) in TABLE {
                for &function in *functions {
                    all[function as usize] = Some(*meaning);
                }
            }
            all
        });
        *MEANINGS.get(function as usize)?
    }
}

/// Number that is above those of all functions.
const COUNT: usize = 256;

const fn memory(types: Types) -> Meaning {
    Meaning::effect(Effect::Memory, types)
}

#[rustfmt::skip]
const TABLE: &[(&[Extended], Meaning)] = &[
    // Floating-point numbers.
    (&[
        Extended::acos, Extended::acosh, Extended::acospi, Extended::asin, Extended::asinh, Extended::asinpi,
        Extended::atan, Extended::atanh, Extended::atanpi, Extended::cbrt, Extended::ceil, Extended::cos,
        Extended::cosh, Extended::cospi, Extended::erfc, Extended::erf, Extended::exp, Extended::exp2,
        Extended::exp10, Extended::expm1, Extended::fabs, Extended::floor, Extended::lgamma, Extended::log,
        Extended::log2, Extended::log10, Extended::log1p, Extended::logb, Extended::rint, Extended::round,
        Extended::rsqrt, Extended::sin, Extended::sinh, Extended::sinpi, Extended::sqrt, Extended::tan,
        Extended::tanh, Extended::tanpi, Extended::tgamma, Extended::trunc, Extended::half_cos, Extended::half_exp,
        Extended::half_exp2, Extended::half_exp10, Extended::half_log, Extended::half_log2, Extended::half_log10,
        Extended::half_recip, Extended::half_rsqrt, Extended::half_sin, Extended::half_sqrt, Extended::half_tan,
        Extended::native_cos, Extended::native_exp, Extended::native_exp2, Extended::native_exp10,
        Extended::native_log, Extended::native_log2, Extended::native_log10, Extended::native_recip,
        Extended::native_rsqrt, Extended::native_sin, Extended::native_sqrt, Extended::native_tan, Extended::degrees,
        Extended::radians, Extended::sign, Extended::normalize, Extended::fast_normalize,
    ], Meaning::calculation(Of(Like(Float), &[Same]))),
    (&[
        Extended::atan2, Extended::atan2pi, Extended::copysign, Extended::fdim, Extended::fmax, Extended::fmin,
        Extended::fmod, Extended::hypot, Extended::maxmag, Extended::minmag, Extended::nextafter, Extended::pow,
        Extended::powr, Extended::remainder, Extended::half_divide, Extended::half_powr, Extended::native_divide,
        Extended::native_powr, Extended::fmax_common, Extended::fmin_common, Extended::step,
    ], Meaning::calculation(Of(Like(Float), &[Same, Same]))),
    (&[Extended::fma, Extended::mad, Extended::fclamp, Extended::mix, Extended::smoothstep],
        Meaning::calculation(Of(Like(Float), &[Same, Same, Same]))),
    (&[Extended::ldexp, Extended::pown, Extended::rootn],
        Meaning::calculation(Of(Like(Float), &[Same, Like(Int32)]))),
    (&[Extended::ilogb], Meaning::calculation(Of(Like(Int32), &[Like(Float)]))),
    (&[Extended::nan], Meaning::calculation(Of(Like(Float), &[LikeBits(Int)]))),
    (&[Extended::cross], Meaning::calculation(Of(Vector(Float), &[Same, Same]))),
    (&[Extended::distance, Extended::fast_distance],
        Meaning::calculation(Of(One(Float), &[SameOrVectorOfResult, First]))),
    (&[Extended::length, Extended::fast_length], Meaning::calculation(Of(One(Float), &[SameOrVectorOfResult]))),
    (&[Extended::fract, Extended::modf, Extended::sincos], memory(Of(Like(Float), &[Same, ToSame]))),
    (&[Extended::frexp, Extended::lgamma_r], memory(Of(Like(Float), &[Same, ToLike(Int32)]))),
    (&[Extended::remquo], memory(Of(Like(Float), &[Same, Same, ToLike(Int32)]))),

    // Integers.
    (&[
        Extended::s_max, Extended::u_max, Extended::s_min, Extended::u_min, Extended::s_abs_diff,
        Extended::u_abs_diff, Extended::u_sub_sat,
    ], Meaning::range(Of(Like(Int), &[Same, Same]))),
    (&[Extended::s_clamp, Extended::u_clamp], Meaning::range(Of(Like(Int), &[Same, Same, Same]))),
    (&[Extended::s_mul24, Extended::u_mul24], Meaning::range(Of(Like(Int32), &[Same, Same]))),
    (&[Extended::s_mad24, Extended::u_mad24], Meaning::range(Of(Like(Int32), &[Same, Same, Same]))),
    (&[Extended::s_abs], Meaning::range(Of(Like(Int), &[Same]))),
    (&[Extended::u_abs, Extended::clz, Extended::ctz, Extended::popcount],
        Meaning::calculation(Of(Like(Int), &[Same]))),
    (&[
        Extended::s_add_sat, Extended::u_add_sat, Extended::s_hadd, Extended::u_hadd, Extended::s_rhadd,
        Extended::u_rhadd, Extended::s_mul_hi, Extended::u_mul_hi, Extended::rotate, Extended::s_sub_sat,
    ], Meaning::calculation(Of(Like(Int), &[Same, Same]))),
    (&[Extended::s_mad_hi, Extended::u_mad_hi, Extended::s_mad_sat, Extended::u_mad_sat],
        Meaning::calculation(Of(Like(Int), &[Same, Same, Same]))),
    (&[Extended::s_upsample, Extended::u_upsample], Meaning::calculation(Of(Like(Int), &[HalfBits(Int), First]))),

    // Integers and floating-point numbers.
    (&[Extended::bitselect], Meaning::calculation(Of(Like(Number), &[Same, Same, Same]))),
    (&[Extended::select], Meaning::calculation(Of(Like(Number), &[Same, Same, LikeBits(Int)]))),
    (&[Extended::shuffle], Meaning::calculation(Of(Vector(Number), &[VectorOfComponents, LikeBits(Int)]))),
    (&[Extended::shuffle2], Meaning::calculation(Of(Vector(Number), &[VectorOfComponents, First, LikeBits(Int)]))),

    // Loads and stores.
    (&[Extended::vloadn], memory(Of(Vector(Number), &[One(Int), Pointer, Literal]))),
    (&[Extended::vload_halfn, Extended::vloada_halfn], memory(Of(Vector(Float), &[One(Int), Pointer, Literal]))),
    (&[Extended::vload_half], memory(Of(One(Float), &[One(Int), Pointer]))),
    (&[Extended::vstoren], memory(Of(Any, &[Vector(Number), One(Int), Pointer]))),
    (&[Extended::vstore_halfn, Extended::vstorea_halfn], memory(Of(Any, &[Vector(Float), One(Int), Pointer]))),
    (&[Extended::vstore_halfn_r, Extended::vstorea_halfn_r],
        memory(Of(Any, &[Vector(Float), One(Int), Pointer, Literal]))),
    (&[Extended::vstore_half], memory(Of(Any, &[One(Float), One(Int), Pointer]))),
    (&[Extended::vstore_half_r], memory(Of(Any, &[One(Float), One(Int), Pointer, Literal]))),
    (&[Extended::prefetch], memory(Of(Any, &[Pointer, One(Int)]))),
];

#[cfg(test)]
mod tests {
    use rspirv::grammar::{
        ExtInstOp, LogicalOperand, OPENCL_STD_100_INSTRUCTION_TABLE, OperandKind,
    };

    use super::*;

    /// Returns the functions that the grammar lists, with their operands.
    fn listed() -> impl Iterator<Item = (Extended, &'static [LogicalOperand])> {
        OPENCL_STD_100_INSTRUCTION_TABLE.iter().map(|known| match known.opcode {
            ExtInstOp::OpenclStd100(function) => (function, known.operands),
            other => panic!("{other:?} is not a function of OpenCL"),
        })
    }

    #[test]
    fn each_function_is_in_the_table_once_but_for_those_that_are_refused() {
        for (function, _) in listed() {
            let count = TABLE.iter().flat_map(|(all, _)| *all).filter(|own| **own == function);
            let expected = usize::from(function != Extended::printf);
            assert_eq!(count.count(), expected, "{function:?}");
        }
    }

    /// The grammar of the specification says how many operands a function has, and which of them are values.
    #[test]
    fn types_are_listed_for_each_operand_of_the_grammar() {
        for (function, operands) in listed() {
            let Some(meaning) = Meaning::of_function(function) else { continue };
            let Of(_, listed) = meaning.types else { panic!("{function:?} lists no types") };
            assert_eq!(operands.len(), listed.len(), "{function:?}");
            for (operand, value) in operands.iter().zip(listed) {
                assert_eq!(operand.kind == OperandKind::IdRef, *value != Literal, "{function:?}");
            }
        }
    }

    /// Whatever takes a pointer accesses memory, and nothing else does.
    #[test]
    fn functions_with_pointers_access_memory() {
        for (functions, meaning) in TABLE {
            let Of(_, listed) = meaning.types else { panic!("{functions:?} list no types") };
            let mut listed = listed.iter();
            let has_pointer = listed.any(|value| matches!(value, Pointer | ToSame | ToLike(_)));
            assert_eq!(has_pointer, meaning.effect == Effect::Memory, "{functions:?}");
        }
    }
}
