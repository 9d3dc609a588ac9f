#![allow(clippy::unwrap_used)]

mod images;

use kiln_spirv::{ErrorKind, Module, Result};
use proptest::prelude::*;
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, Capability, Decoration, ExecutionModel, FunctionControl, MemoryModel, Op,
    StorageClass,
};

use super::constants::{Place, literal, signed_literal};
use super::types::{Lanes, Scalar};
use super::{VERSION, opencl_c};

const SAXPY: &[u8] = include_bytes!("../../../../tests/data/saxpy.spv");
const SWITCHES: &[u8] = include_bytes!("../../../../tests/data/switches.spv");
const OPERATIONS: &[u8] = include_bytes!("../../../../tests/data/operations.spv");
const CONTROL: &[u8] = include_bytes!("../../../../tests/data/emitted/control_O2.spv");
const GENERIC: &[u8] = include_bytes!("../../../../tests/data/emitted/generic_O0.spv");
const ARITHMETIC: &[u8] = include_bytes!("../../../../tests/data/emitted/arithmetic_O2.spv");
const BITS: &[u8] = include_bytes!("../../../../tests/data/emitted/bits.spv");
const GROUPS: &[u8] = include_bytes!("../../../../tests/data/emitted/groups_O0.spv");
const UNCOMMON: &[u8] = include_bytes!("../../../../tests/data/emitted/uncommon.spv");
const MEMORY: &[u8] = include_bytes!("../../../../tests/data/emitted/memory_O0.spv");

fn emit(bytes: &[u8]) -> Result<String> {
    opencl_c(&Module::parse(bytes)?)
}

/// Returns the module with all its functions marked to be inlined, as those of fused launches are.
fn inlined(module: &[u8]) -> Vec<u8> {
    let header = ((5 << 16) | Op::Function as u32).to_le_bytes();
    let mut bytes = module.to_vec();
    for at in (0..bytes.len()).step_by(4).filter(|&at| module[at..].starts_with(&header)) {
        bytes[at + 12..at + 16].copy_from_slice(&FunctionControl::INLINE.bits().to_le_bytes());
    }
    bytes
}

/// The `VERSION`, and the digest of all texts that it emits. If the digest differs, the emitted text has
/// changed: raise `VERSION`, and put the new digest here.
const EMITTED: (u32, &str) =
    (13, "2972889d84702172719be3604cb8fa3521efdd019b15402904daec35b2fb7e6f");

#[test]
fn changes_of_the_emitted_text_require_a_new_version() {
    let mut hasher = blake3::Hasher::new();
    let bodies = [ARITHMETIC, BITS, GROUPS, UNCOMMON];
    for module in [SAXPY, SWITCHES, OPERATIONS, CONTROL, GENERIC, MEMORY].into_iter().chain(bodies)
    {
        hasher.update(emit(module).unwrap().as_bytes());
    }
    hasher.update(emit(&inlined(SAXPY)).unwrap().as_bytes());
    hasher.update(emit(&masks()).unwrap().as_bytes());
    assert_eq!((VERSION, hasher.finalize().to_hex().as_str()), EMITTED);
}

/// Returns a module whose kernel makes vectors of Booleans from integers, and the reverse.
fn masks() -> Vec<u8> {
    module_of(|b| {
        let bool = b.type_bool();
        let mut used = Vec::new();
        for count in [4, 8, 16] {
            let (int, bools) = (b.type_int(count, 0), b.type_vector(bool, count));
            used.push((b.type_pointer(None, StorageClass::Function, int), int, bools));
        }
        let function = function(b, &[], |b, _| {
            for (pointer, int, bools) in used {
                let variable = b.variable(pointer, None, StorageClass::Function, None);
                let mask = b.load(int, None, variable, None, []).unwrap();
                let bits = b.bitcast(bools, None, mask).unwrap();
                let not = b.logical_not(bools, None, bits).unwrap();
                let mask = b.bitcast(int, None, not).unwrap();
                let sum = b.i_add(int, None, mask, mask).unwrap();
                b.store(variable, sum, None, []).unwrap();
            }
        });
        vec![(function, "k")]
    })
}

#[track_caller]
fn refused(bytes: &[u8], what: &str) {
    let error = emit(bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains(what), "{error}");
}

#[test]
fn functions_marked_inline_are_inlined() {
    let text = emit(&inlined(SAXPY)).unwrap();
    let inline = "static inline __attribute__((always_inline)) void saxpy_10(";
    assert_eq!(text.replace(inline, "static void saxpy_10("), emit(SAXPY).unwrap());
    assert!(text.contains(inline), "{text}");
}

#[test]
fn reserved_names_are_suffixed_with_the_id() {
    for (from, to) in [("call", "long"), ("arrayidx", "popcount"), ("arrayidx", "get_size")] {
        let mut bytes = SAXPY.to_vec();
        let (from, to) = (format!("{from}\0"), format!("{to}\0"));
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        let text = emit(&bytes).unwrap();
        let id = if from.starts_with("call") { 16 } else { 17 };
        let made = format!("{}_{id}", to.trim_end_matches('\0'));
        assert!(text.contains(&made), "{made}\n{text}");
    }
}

#[test]
fn constructs_that_cannot_be_expressed_are_named() {
    refused(
        include_bytes!("../../../../tests/data/application.spv"),
        "function `bump`, which no module",
    );
    refused(
        &images::with_images(include_bytes!("../../../../tests/data/inferred.spv"), 5, 1),
        "inferred: Kiln cannot express OpTypeImage with several samples in OpenCL C 1.2",
    );
    refused(
        include_bytes!("../../../../tests/data/function_pointers.spv"),
        "OpFunctionPointerCallINTEL",
    );
}

#[test]
fn cases_with_the_same_target_share_one_edge() {
    const MANY: u32 = 1000;
    let module = module_of(|b| {
        let int = b.type_int(32, 0);
        let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, int);
        let function = function(b, &[pointer], |b, parameters| {
            let value = b.load(int, None, parameters[0], None, []).unwrap();
            let (from, other, to) = (b.id(), b.id(), b.id());
            b.branch(from).unwrap();
            b.begin_block(Some(from)).unwrap();
            let cases = (0..MANY).map(|n| (Operand::LiteralBit32(n), to));
            b.switch(value, other, cases).unwrap();
            b.begin_block(Some(other)).unwrap();
            b.branch(to).unwrap();
            b.begin_block(Some(to)).unwrap();
            let one = b.constant_bit32(int, 1);
            let phis: Vec<_> = (0..MANY)
                .map(|_| b.phi(int, None, [(value, from), (one, other)]).unwrap())
                .collect();
            for phi in phis {
                b.store(parameters[0], phi, None, []).unwrap();
            }
        });
        vec![(function, "k")]
    });
    let text = emit(&module).unwrap();
    assert_eq!(text.matches("case ").count(), MANY as usize);
    assert!(text.len() < 200 * MANY as usize, "{} bytes", text.len());
}

/// Returns a module whose kernel stores a value through its parameter; `make` returns the type and the value.
fn storing(make: impl FnOnce(&mut Builder) -> (u32, u32)) -> Vec<u8> {
    let mut b = Builder::new();
    b.set_version(1, 2);
    b.capability(Capability::Kernel);
    b.capability(Capability::Addresses);
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let (ty, value) = make(&mut b);
    let void = b.type_void();
    let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, ty);
    let kernel = b.type_function(void, [pointer]);
    let k = b.begin_function(void, None, FunctionControl::NONE, kernel).unwrap();
    let to = b.function_parameter(pointer).unwrap();
    b.begin_block(None).unwrap();
    b.store(to, value, None, []).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::Kernel, k, "k", []);
    b.module().assemble().into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Applies `op` to a constant and itself, `times` times in a row, and begins with the constant `first`.
fn doubled(b: &mut Builder, op: Op, (ty, first): (u32, u32), times: u32) -> (u32, u32) {
    let value = (0..times).fold(first, |before, _| {
        let value = b.spec_constant_op(ty, op);
        let made = b.module_mut().types_global_values.last_mut().unwrap();
        made.operands.extend([before; 2].map(Operand::IdRef));
        value
    });
    (ty, value)
}

#[test]
fn long_chains_of_constants_are_evaluated() {
    let sum = |times| {
        let module = storing(|b| {
            let int = b.type_int(32, 0);
            let one = b.spec_constant_bit32(int, 1);
            doubled(b, Op::IAdd, (int, one), times)
        });
        emit(&module).unwrap()
    };
    assert!(sum(20).contains("= 1048576u;"));
    assert!(sum(100_000).contains("= 0u;"));
}

#[test]
fn constants_that_are_too_large_to_be_written_are_refused() {
    let sum = |times| {
        storing(|b| {
            let float = b.type_float(32, None);
            let one = b.spec_constant_bit32(float, 1.0_f32.to_bits());
            doubled(b, Op::FAdd, (float, one), times)
        })
    };
    assert!(emit(&sum(3)).is_ok());
    refused(&sum(40), "more than 64 KiB");
    let remainders = |b: &mut Builder| {
        let int = b.type_int(32, 0);
        let one = b.spec_constant_bit32(int, 7);
        doubled(b, Op::SMod, (int, one), 12)
    };
    refused(&storing(remainders), "more than 64 KiB");
    refused(&sum(100_000), "nested deeper than 64 levels");
    let trees = |b: &mut Builder| {
        let int = b.type_int(32, 0);
        let one = b.constant_bit32(int, 1);
        (0..40).fold((int, one), |(ty, value), _| {
            let pair = b.type_struct([ty, ty]);
            (pair, b.constant_composite(pair, [value, value]))
        })
    };
    refused(&storing(trees), "more than a million parts");
}

#[test]
fn decorations_of_a_group_are_not_copied_to_each_member() {
    let members = storing(|b| {
        let group = b.decoration_group();
        for _ in 0..20_000 {
            b.decorate(group, Decoration::Volatile, []);
        }
        for member in 1_000_000..1_020_000 {
            b.group_decorate(group, [member]);
        }
        let int = b.type_int(32, 0);
        (int, b.constant_bit32(int, 1))
    });
    assert!(emit(&members).is_ok());
    let nested = storing(|b| {
        let first = b.decoration_group();
        b.decorate(first, Decoration::Volatile, []);
        (0..60).fold(first, |group, _| {
            let member = b.decoration_group();
            b.group_decorate(group, [member, member]);
            member
        });
        let int = b.type_int(32, 0);
        (int, b.constant_bit32(int, 1))
    });
    assert!(emit(&nested).is_ok());
}

#[test]
fn values_that_swap_in_a_loop_are_read_before_they_are_written() {
    let text = emit(include_bytes!("../../../../tests/data/emitted/phis.spv")).unwrap();
    let (reads, writes) = (text.find(" next_").unwrap(), text.find(" = next_").unwrap());
    assert!(reads < writes, "{text}");
}

#[test]
fn local_variables_belong_to_kernels() {
    let text = emit(CONTROL).unwrap();
    let kernel = text.find("kernel void groups").unwrap();
    let declared = text.find("    local struct").unwrap();
    assert!(declared > kernel, "{text}");
}

/// Returns the module that `make` builds. `make` returns the ids and names of the functions that are kernels.
fn module_of(make: impl FnOnce(&mut Builder) -> Vec<(u32, &'static str)>) -> Vec<u8> {
    let mut b = Builder::new();
    b.set_version(1, 2);
    b.capability(Capability::Kernel);
    b.capability(Capability::Addresses);
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    for (function, name) in make(&mut b) {
        b.entry_point(ExecutionModel::Kernel, function, name, []);
    }
    b.module().assemble().into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Adds a function without a result, whose parameters have the given types.
fn function(b: &mut Builder, types: &[u32], body: impl FnOnce(&mut Builder, &[u32])) -> u32 {
    let void = b.type_void();
    let ty = b.type_function(void, types.iter().copied());
    let function = b.begin_function(void, None, FunctionControl::NONE, ty).unwrap();
    let parameters: Vec<_> = types.iter().map(|&ty| b.function_parameter(ty).unwrap()).collect();
    b.begin_block(None).unwrap();
    body(b, &parameters);
    b.ret().unwrap();
    b.end_function().unwrap();
    function
}

#[test]
fn nested_structs_are_visited_once() {
    let nested = storing(|b| {
        let int = b.type_int(32, 0);
        let ty = (0..40).fold(int, |inner, _| b.type_struct([inner, inner]));
        (ty, b.constant_null(ty))
    });
    assert!(emit(&nested).is_ok());
}

#[test]
fn generated_functions_are_not_named_like_a_kernel() {
    let module = module_of(|b| {
        let uint = b.type_int(32, 0);
        let reversed = |b: &mut Builder, parameters: &[u32]| {
            b.bit_reverse(uint, None, parameters[0]).unwrap();
        };
        let helper = function(b, &[uint], reversed);
        let void = b.type_void();
        let call = |b: &mut Builder, parameters: &[u32]| {
            b.function_call(void, None, helper, [parameters[0]]).unwrap();
        };
        assert!(helper < 10, "the names below contain it");
        let names = ["function_1", "function_2", "function_3", "function_4", "function_5"];
        let names = names.into_iter().chain(["function_6", "function_7", "bit_reverse_uint"]);
        names.map(|name| (function(b, &[uint], call), name)).collect()
    });
    let text = emit(&module).unwrap();
    let mut names: Vec<_> = text
        .lines()
        .filter(|line| line.ends_with(')') && line.contains('('))
        .filter_map(|line| line.split('(').next()?.split(' ').next_back())
        .collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() == all && all == 10, "{names:?}\n{text}");
}

#[test]
fn copies_of_generic_pointers_keep_what_they_point_to() {
    // Two variables hold a pointer to global and one to local memory. One variable is copied over the other as
    // bytes.
    #[derive(Clone, Copy, PartialEq)]
    enum Use {
        Copied,
        Loaded,
        Cleared,
    }
    let module = |used: Use| {
        module_of(|b| {
            let (uint, uchar) = (b.type_int(32, 0), b.type_int(8, 0));
            let global = b.type_pointer(None, StorageClass::CrossWorkgroup, uint);
            let local = b.type_pointer(None, StorageClass::Workgroup, uint);
            let generic = b.type_pointer(None, StorageClass::Generic, uint);
            let variable = b.type_pointer(None, StorageClass::Function, generic);
            let bytes = b.type_pointer(None, StorageClass::Function, uchar);
            let eight = b.constant_bit32(uint, 8);
            let eight_bytes = b.type_array(uchar, eight);
            let zeros = b.constant_null(eight_bytes);
            let constant = StorageClass::UniformConstant;
            let of_zeros = b.type_pointer(None, constant, eight_bytes);
            let zeros = b.variable(of_zeros, None, constant, Some(zeros));
            let constant_bytes = b.type_pointer(None, constant, uchar);
            let k = function(b, &[global, local], |b, parameters| {
                let stored: Vec<_> = (parameters.iter().copied())
                    .map(|pointer| {
                        let to = b.variable(variable, None, StorageClass::Function, None);
                        (to, b.ptr_cast_to_generic(generic, None, pointer).unwrap())
                    })
                    .collect();
                for &(to, pointer) in &stored {
                    b.store(to, pointer, None, []).unwrap();
                }
                let [to, from] =
                    [1, 0].map(|at: usize| b.bitcast(bytes, None, stored[at].0).unwrap());
                match used {
                    Use::Loaded => _ = b.load(uchar, None, to, None, []).unwrap(),
                    Use::Copied => b.copy_memory_sized(to, from, eight, None, None, []).unwrap(),
                    Use::Cleared => {
                        let from = b.bitcast(constant_bytes, None, zeros).unwrap();
                        b.copy_memory_sized(to, from, eight, None, None, []).unwrap();
                    }
                }
            });
            vec![(k, "k")]
        })
    };
    refused(&module(Use::Copied), "points to local and to global memory");
    refused(&module(Use::Loaded), "copied as another type");
    let text = emit(&module(Use::Cleared)).expect("null is of any space");
    assert!(text.contains("local uint *") && text.contains("global uint *"), "{text}");
}

#[test]
fn constructs_that_compilers_would_refuse_or_misread_are_refused() {
    let valued = module_of(|b| {
        let uint = b.type_int(32, 0);
        let pointer = b.type_pointer(None, StorageClass::Workgroup, uint);
        let zero = b.constant_null(uint);
        let variable = b.variable(pointer, None, StorageClass::Workgroup, Some(zero));
        let k = function(b, &[], |b, _| b.store(variable, zero, None, []).unwrap());
        vec![(k, "k")]
    });
    refused(&valued, "a variable of local memory with an initial value");
    let of_pointers = module_of(|b| {
        let uint = b.type_int(32, 0);
        let inner = b.type_pointer(None, StorageClass::CrossWorkgroup, uint);
        let outer = b.type_pointer(None, StorageClass::CrossWorkgroup, inner);
        vec![(function(b, &[outer], |_, _| {}), "k")]
    });
    refused(&of_pointers, "a kernel's parameter that points to pointers");
}

#[test]
fn functions_that_are_needed_too_often_or_call_too_deep_are_refused() {
    let often = module_of(|b| {
        let (void, set) = (b.type_void(), b.ext_inst_import("NonSemantic.Words"));
        let words = vec![Operand::IdRef(set); 60_000];
        let k = function(b, &[], |b, _| _ = b.ext_inst(void, None, set, 1, words).unwrap());
        vec![(k, "k"); 150]
    });
    refused(&often, "functions of more than 32 MiB");
    let deep = module_of(|b| {
        let void = b.type_void();
        let first = function(b, &[], |_, _| {});
        let last = (0..100).fold(first, |callee, _| {
            function(b, &[], |b, _| _ = b.function_call(void, None, callee, []).unwrap())
        });
        vec![(last, "k")]
    });
    refused(&deep, "calls nested deeper than 64 levels");
}

#[test]
fn literals_keep_every_bit() {
    let expression = |scalar, bits| literal(scalar, bits, Place::Expression);
    assert_eq!(expression(Scalar::Int(8), 200), "(uchar)200");
    assert_eq!(expression(Scalar::Int(64), u64::MAX), "18446744073709551615ul");
    assert_eq!(expression(Scalar::Float(32), 0.1_f32.to_bits().into()), "0.1f");
    assert_eq!(expression(Scalar::Float(32), 1), "1e-45f");
    assert_eq!(expression(Scalar::Float(32), (-0.0_f32).to_bits().into()), "(-0.0f)");
    assert_eq!(expression(Scalar::Float(32), 0x7fc0_0001), "as_float(0x7fc00001u)");
    assert_eq!(expression(Scalar::Float(64), 0.1_f64.to_bits()), "0.1");
    assert_eq!(expression(Scalar::Float(16), 0x3e00), "(half)1.5f");
    assert_eq!(literal(Scalar::Float(32), 0xff80_0000, Place::Initializer), "(-__builtin_inff())");
    let initializer = |width, bits| literal(Scalar::Float(width), bits, Place::Initializer);
    assert_eq!(initializer(32, 0x7fc0_0001), "(__builtin_nanf(\"0x1\"))");
    assert_eq!(initializer(32, 0xff80_0002), "(-__builtin_nansf(\"0x2\"))");
    assert_eq!(initializer(64, 0x7ff0_0000_0000_0003), "(__builtin_nans(\"0x3\"))");
    assert_eq!(initializer(16, 0x7e01), "(half)(__builtin_nanf(\"0x2000\"))");
    assert_eq!(signed_literal(32, 0x8000_0000), "(-2147483647 - 1)");
    assert_eq!(signed_literal(16, 0xffff), "(short)(-1)");
    assert_eq!(signed_literal(64, 5), "5l");
}

#[test]
fn vectors_of_booleans_are_of_char() {
    let bools = Lanes { scalar: Scalar::Bool, count: 4 };
    assert_eq!((bools.to_string(), bools.single().to_string()), ("char4".into(), "bool".into()));
    assert_eq!(bools.with(Scalar::Float(64)).signed(), "long4");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any words yield an error or a text, and do so quickly.
    #[test]
    fn damaged_modules_do_not_panic(
        module in prop::sample::select(vec![SAXPY, SWITCHES, OPERATIONS, CONTROL, GENERIC, MEMORY]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0..800_u32), 1..6),
    ) {
        let mut words = module.as_chunks::<4>().0.to_vec();
        for (at, value) in damage {
            let at = 5 + at.index(words.len() - 5);
            words[at] = value.to_le_bytes();
        }
        let _ = emit(words.as_flattened());
    }
}
