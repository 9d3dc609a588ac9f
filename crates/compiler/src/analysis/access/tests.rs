//! Accesses of the kernels that `tests/data/README.md` describes, where more than the list of accesses matters. The lists
//! are cases in `tests/files/analysis`.

#![allow(clippy::unwrap_used)]

use rspirv::binary::Assemble;
use rspirv::dr::Builder;
use rspirv::spirv::{
    AddressingModel, Capability, ExecutionModel, FunctionControl, MemoryModel, StorageClass,
};

use super::*;
use crate::plan::{Memory, Region};
use crate::{NdRange, NdSize};

mod neighbours;

const OPTIMISED: &[u8] = include_bytes!("../../../../../tests/data/fusion.spv");
const UNOPTIMISED: &[u8] = include_bytes!("../../../../../tests/data/fusion_O0.spv");

const B: Value =
    Value::Buffer(Region { memory: Memory(0), offset: 0, length: isize::MAX as usize });
const O: Value = Value::Other;

fn int(value: i32) -> Value {
    Value::Scalar(value.to_le_bytes().into())
}

fn found_in(bytes: &[u8], kernel: &str, values: &[Value], range: &NdRange) -> Accesses {
    let module = Module::parse(bytes).unwrap();
    let (_, function) = function_of(&module, kernel).unwrap();
    analyse(&module.definitions(), function, values, &Space::new(range)).unwrap()
}

/// Formats accesses, such as `0 reads 4x+0 4 always`: the parameter, the kind of access, the start in
/// bytes, the number of bytes, and whether the access is certain.
fn described(accesses: &Accesses) -> Vec<String> {
    let described = accesses.all.iter().map(|access| {
        let kind = match access.kind {
            Kind::Read => "reads",
            Kind::Write => "writes",
            Kind::Atomic => "changes",
            Kind::Escape => "escapes",
        };
        let place = match access.bytes {
            None => format!("? {}", access.note.unwrap_or_default()),
            Some(Bytes { start, width, .. }) => {
                let [x, y, z] = start.coefficients();
                let mut text = String::new();
                for (name, factor) in [("x", x), ("y", y), ("z", z)] {
                    if factor != 0 {
                        text += &format!("{factor}{name}+");
                    }
                }
                text += &start.low.to_string();
                if start.low != start.high {
                    text += &format!("..{}", start.high);
                }
                format!("{text} {width}")
            }
        };
        let always = if access.is_certain { " always" } else { "" };
        format!("{} {kind} {place}{always}", access.parameter)
    });
    described.collect()
}

#[cfg(target_pointer_width = "64")]
#[test]
fn an_index_that_may_wrap_is_unknown() {
    let wide = NdRange::from(NdSize::from(1_usize << 33));
    for bytes in [OPTIMISED, UNOPTIMISED] {
        let described = described(&found_in(bytes, "offset", &[B, B, O], &wide));
        assert!(
            described.iter().all(|access| access.contains("-8589934592..8589934588")),
            "{described:?}"
        );
    }
}

/// Builds a module with a kernel `k`, whose parameters are a buffer of numbers and a number. `make`
/// returns the index at which the kernel stores the number.
fn storing(make: impl FnOnce(&mut Builder, u32) -> u32) -> Vec<u8> {
    let mut b = Builder::new();
    b.set_version(1, 2);
    b.capability(Capability::Kernel);
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let (void, int) = (b.type_void(), b.type_int(32, 0));
    let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, int);
    let ty = b.type_function(void, [pointer, int]);
    let k = b.begin_function(void, None, FunctionControl::NONE, ty).unwrap();
    let to = b.function_parameter(pointer).unwrap();
    let number = b.function_parameter(int).unwrap();
    b.begin_block(None).unwrap();
    let index = make(&mut b, number);
    let at = b.in_bounds_ptr_access_chain(pointer, None, to, index, []).unwrap();
    b.store(at, number, None, []).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::Kernel, k, "k", []);
    b.module().assemble().into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Returns the offset in bytes at which such a kernel stores, if it is exact.
#[track_caller]
fn stored_at(make: impl FnOnce(&mut Builder, u32) -> u32) -> Option<i128> {
    let range = NdRange::from(NdSize::from(64));
    let found = found_in(&storing(make), "k", &[B, O], &range);
    let [Access { bytes: Some(bytes), .. }] = &found.all[..] else { panic!("{:?}", found.all) };
    bytes.start.is_exact().then_some(bytes.start.low)
}

#[test]
fn parts_are_known_for_vectors_only() {
    let of_constant = |is_vector| {
        stored_at(|b, _| {
            let int = b.type_int(32, 0);
            let parts = [3, 5].map(|value| b.constant_bit32(int, value));
            let two = b.constant_bit32(int, 2);
            let ty = if is_vector { b.type_vector(int, 2) } else { b.type_array(int, two) };
            let whole = b.constant_composite(ty, parts);
            b.composite_extract(int, None, whole, [1]).unwrap()
        })
    };
    assert_eq!((of_constant(true), of_constant(false)), (Some(20), None));
    let of_value = |is_vector| {
        stored_at(|b, _| {
            let int = b.type_int(32, 0);
            let parts = [3, 5].map(|value| b.constant_bit32(int, value));
            let two = b.constant_bit32(int, 2);
            let ty = if is_vector { b.type_vector(int, 2) } else { b.type_array(int, two) };
            let whole = b.composite_construct(ty, None, parts).unwrap();
            b.composite_extract(int, None, whole, [1]).unwrap()
        })
    };
    assert_eq!((of_value(true), of_value(false)), (Some(20), None));
}

#[test]
fn nested_constants_are_not_expanded() {
    let nested = |is_vector| {
        stored_at(|b, _| {
            let int = b.type_int(32, 0);
            let one = b.constant_bit32(int, 1);
            let hundred = b.constant_bit32(int, 100);
            let (_, whole) = (0..4).fold((int, one), |(part, value), _| {
                // Vectors of vectors are not valid, but malformed modules may contain them.
                let array =
                    if is_vector { b.type_vector(part, 100) } else { b.type_array(part, hundred) };
                (array, b.constant_composite(array, [value; 100]))
            });
            b.composite_extract(int, None, whole, [0, 0, 0, 0]).unwrap()
        })
    };
    assert_eq!((nested(false), nested(true)), (None, None));
}

#[test]
fn conditions_on_large_expressions_are_ignored() {
    let conditions = |squared| {
        let bytes = storing(|b, number| {
            let (int, bool) = (b.type_int(32, 0), b.type_bool());
            let limit = b.constant_bit32(int, 100);
            let value =
                (0..squared).fold(number, |value, _| b.i_mul(int, None, value, value).unwrap());
            let is_less = b.u_less_than(bool, None, value, limit).unwrap();
            let (then, after) = (b.id(), b.id());
            b.branch_conditional(is_less, then, after, []).unwrap();
            b.begin_block(Some(after)).unwrap();
            b.ret().unwrap();
            b.begin_block(Some(then)).unwrap();
            limit
        });
        let found = found_in(&bytes, "k", &[B, O], &NdRange::from(NdSize::from(64)));
        found.flow.conditions(found.all[0].location.unwrap()).len()
    };
    assert_eq!([0, 6].map(conditions), [1, 1]);
    // Without the limit, the comparison of these would take two to the power of `squared` steps.
    assert_eq!([8, 21].map(conditions), [0, 0]);
}
