//! Modules that break the rules of SPIR-V: the compiler must neither panic nor hang on any of them.

use super::super::fuzzing;
use super::*;
use crate::{bounds, opencl_c};
use rspirv::spirv::AddressingModel;
use test_tools::damage::{Random, assemble, instructions, test_changed};

/// Modules of several producers and levels of optimisation.
const MODULES: [&[u8]; 14] = [
    include_bytes!("../../../../../tests/data/application.spv"),
    include_bytes!("../../../../../tests/data/application_intel.spv"),
    include_bytes!("../../../../../tests/data/library_debug.spv"),
    include_bytes!("../../../../../tests/data/function_pointers.spv"),
    include_bytes!("../../../../../tests/data/fusion.spv"),
    include_bytes!("../../../../../tests/data/fusion_O0.spv"),
    include_bytes!("../../../../../tests/data/patterns.spv"),
    include_bytes!("../../../../../tests/data/rare.spv"),
    include_bytes!("../../../../../tests/data/operations.spv"),
    include_bytes!("../../../../../tests/data/emitted/control_O0.spv"),
    include_bytes!("../../../../../tests/data/emitted/generic_O0.spv"),
    include_bytes!("../../../../../tests/data/emitted/memory_O2.spv"),
    include_bytes!("../../../../../tests/data/emitted/phis.spv"),
    include_bytes!("../../../../../tests/data/emitted/uncommon.spv"),
];

/// Number of changed modules in a run.
const CHANGES: usize = 400;

fn exercise(bytes: &[u8], choices: &[u8]) {
    if let Ok(module) = Module::parse(bytes) {
        let _ = opencl_c::opencl_c(&module);
    }
    fuzzing::exercise(&[bytes], choices);
}

#[test]
fn randomly_changed_modules_do_not_panic() {
    let changes = |random: &mut Random| 1 + random.below(3);
    test_changed(&MODULES, CHANGES, changes, |bytes, random| {
        let choices: Vec<_> = (0..64).map(|_| random.below(256) as u8).collect();
        exercise(bytes, &choices);
    });
}

/// The sizes of pointers, and the offsets of members after them, would be guessed otherwise.
#[test]
fn modules_without_a_size_of_addresses_are_refused_by_name() {
    let scale = |from, to| ("scale", vec![buffer(from), buffer(to), float(2.0)]);
    let plan = plan(&[scale(0, 1), scale(1, 2)], 64, &[]);
    let changed = |change: &dyn Fn(&mut Vec<Vec<u32>>)| {
        let mut all = instructions(OPTIMISED);
        change(&mut all);
        Module::parse(assemble(&all)).unwrap()
    };
    let is_model = |i: &Vec<u32>| i[0] & 0xffff == Op::MemoryModel as u32;
    let with_model = |model: u32| {
        changed(&|all| all.iter_mut().filter(|i| is_model(i)).for_each(|i| i[1] = model))
    };
    let outcome = |module: &Module| {
        fuse(&plan, &[module], Trust::ProofOnly, Width::ONE, FusionForm::Direct).unwrap().fused
    };
    assert!(outcome(&with_model(AddressingModel::Physical64 as u32)).is_ok());
    for (module, in_text) in [
        (with_model(AddressingModel::Logical as u32), "addressing model"),
        (with_model(AddressingModel::PhysicalStorageBuffer64 as u32), "addressing model"),
        (with_model(77), "addressing model"),
        (changed(&|all| all.retain(|i| !is_model(i))), "its memory model"),
    ] {
        let refused = outcome(&module).unwrap_err();
        assert!(refused.contains("addressing model"), "{refused}");
        let refused = opencl_c::opencl_c(&module).unwrap_err().to_string();
        assert!(refused.contains(in_text), "{refused}");
        let refused = bounds::Kernel::of(&module, "scale", &[], &BTreeSet::new()).unwrap_err();
        assert!(refused.to_string().contains("addressing model"), "{refused}");
    }
}

/// Parts of the compiler would otherwise use different definitions of the function.
#[test]
fn a_kernel_whose_function_is_defined_twice_is_refused_by_its_id() {
    const FUNCTION: u32 = Op::Function as u32;
    const PARAMETER: u32 = Op::FunctionParameter as u32;
    let opcode = |instruction: &Vec<u32>| instruction[0] & 0xffff;
    let original = instructions(OPTIMISED);
    let is_scale = |entry: &&Vec<u32>| {
        opcode(entry) == Op::EntryPoint as u32 && entry[3] == u32::from_le_bytes(*b"scal")
    };
    let id = original.iter().find(is_scale).unwrap()[2];
    let is_own = |i: &Vec<u32>| opcode(i) == FUNCTION && i[2] == id;
    let start = original.iter().position(is_own).unwrap();
    let end =
        start + original[start..].iter().position(|i| opcode(i) == Op::FunctionEnd as u32).unwrap();
    let mut short = original[start..=end].to_vec();
    short.retain(|i| opcode(i) != PARAMETER);
    let mut changed = original.clone();
    changed.splice(start..start, short);
    let launches = [
        ("scale", vec![buffer(0), buffer(1), float(3.0)]),
        ("offset", vec![buffer(1), buffer(2), float(0.5)]),
    ];
    let fused = Module::parse(assemble(&changed)).and_then(|module| {
        fuse(
            &plan(&launches, 64, &[1]),
            &[&module],
            Trust::ProofOnly,
            Width::ONE,
            FusionForm::Direct,
        )
    });
    let error = fused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidModule);
    assert!(error.to_string().contains(&format!("defines id {id}")), "{error}");
}

/// Returns a module of 32-bit integers with a kernel of the given body. Ids from 100 on are free.
fn deep(globals: &[Vec<u32>], body: &[Vec<u32>], functions: &[Vec<u32>]) -> Vec<u8> {
    let op = |op: Op, operands: &[u32]| [&[op as u32][..], operands].concat();
    let mut all = vec![vec![rspirv::spirv::MAGIC_NUMBER, 0x0001_0200, 0, 1 << 22, 0]];
    all.extend([4, 6, 11].map(|capability| op(Op::Capability, &[capability])));
    all.push(op(Op::MemoryModel, &[2, 2]));
    all.push(op(Op::EntryPoint, &[6, 1, u32::from(b'k')]));
    all.push(op(Op::TypeVoid, &[2]));
    all.push(op(Op::TypeInt, &[3, 32, 0]));
    all.push(op(Op::TypePointer, &[4, 5, 3]));
    all.push(op(Op::TypeFunction, &[5, 2, 4]));
    all.push(op(Op::Constant, &[3, 6, 1]));
    all.extend_from_slice(globals);
    all.push(op(Op::Function, &[2, 1, 0, 5]));
    all.push(op(Op::FunctionParameter, &[4, 7]));
    all.push(op(Op::Label, &[8]));
    all.extend_from_slice(body);
    all.push(op(Op::Return, &[]));
    all.push(op(Op::FunctionEnd, &[]));
    all.extend_from_slice(functions);
    assemble(&all)
}

/// Code that walks a module does so without recursion, or to a limited depth.
#[test]
fn deep_modules_do_not_overflow_the_stack() {
    const DEPTH: u32 = 5_000;
    let op = |op: Op, operands: &[u32]| [&[op as u32][..], operands].concat();
    let all = |each: &dyn Fn(u32) -> Vec<u32>| (0..DEPTH).map(each).collect::<Vec<_>>();
    let pointers = all(&|n| op(Op::TypePointer, &[100 + n, 5, if n > 0 { 99 + n } else { 3 }]));
    let composites =
        all(&|n| op(Op::ConstantComposite, &[3, 100 + n, if n > 0 { 99 + n } else { 6 }]));
    let sums = all(&|n| op(Op::IAdd, &[3, 100 + n, if n > 0 { 99 + n } else { 6 }, 6]));
    let addresses =
        all(&|n| op(Op::InBoundsPtrAccessChain, &[4, 100 + n, if n > 0 { 99 + n } else { 7 }, 6]));
    let store = |address: u32, value: u32| vec![op(Op::Store, &[address, value])];
    let last = 99 + DEPTH;
    let mut blocks = Vec::new();
    for n in 0..DEPTH {
        blocks.push(op(Op::Branch, &[100 + n]));
        blocks.push(op(Op::Label, &[100 + n]));
    }
    let mut functions = Vec::new();
    for n in 0..DEPTH {
        let ids = 100 + 4 * n;
        functions.push(op(Op::Function, &[2, ids, 0, 5]));
        functions.push(op(Op::FunctionParameter, &[4, ids + 1]));
        functions.push(op(Op::Label, &[ids + 2]));
        if n + 1 < DEPTH {
            functions.push(op(Op::FunctionCall, &[2, ids + 3, ids + 4, ids + 1]));
        }
        functions.push(op(Op::Return, &[]));
        functions.push(op(Op::FunctionEnd, &[]));
    }
    for module in [
        deep(&pointers, &[], &[]),
        deep(&composites, &store(7, last), &[]),
        deep(&[], &[sums, store(7, last)].concat(), &[]),
        deep(&[], &[addresses, store(last, 6)].concat(), &[]),
        deep(&[], &blocks, &[]),
        deep(&[], &[op(Op::FunctionCall, &[2, 99, 100, 7])], &functions),
    ] {
        exercise(&module, &[0; 64]);
    }
}
