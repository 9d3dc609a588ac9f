//! Tests of volatile loads that are split.

use rspirv::spirv::{MemoryAccess, Op, StorageClass};

use super::super::module::Module;
use super::super::volatile::split_volatile_loads;
use super::Builder;

const VOLATILE: u32 = MemoryAccess::VOLATILE.bits();

/// Returns the instructions of the only function, as names with operands.
fn body(module: &Module) -> Vec<(String, Vec<u32>)> {
    let body = module.functions[0].body.iter();
    body.map(|i| (i.name().to_string(), i.words_from(0).collect())).collect()
}

/// Returns a module with a function that has an integer (5) and a pointer to integers (7) as parameters, and a
/// variable (8). Returns it with the given instructions.
fn module(instructions: &[(Op, &[u32])]) -> Module {
    let mut module = Builder::new()
        .op(Op::TypeVoid, &[1])
        .op(Op::TypeInt, &[2, 32, 0])
        .op(Op::TypePointer, &[3, StorageClass::CrossWorkgroup as u32, 2])
        .op(Op::TypePointer, &[4, StorageClass::Function as u32, 2])
        .op(Op::TypeFunction, &[6, 1, 2, 3])
        .op(Op::Function, &[1, 9, 0, 6])
        .op(Op::FunctionParameter, &[2, 5])
        .op(Op::FunctionParameter, &[3, 7])
        .op(Op::Label, &[10])
        .op(Op::Variable, &[4, 8, StorageClass::Function as u32]);
    for (op, operands) in instructions {
        module = module.op(*op, operands);
    }
    let bytes = module.op(Op::Return, &[]).op(Op::FunctionEnd, &[]).bytes();
    Module::parse(bytes).unwrap()
}

#[test]
fn values_of_volatile_loads_go_through_a_variable() {
    let aligned = VOLATILE | MemoryAccess::ALIGNED.bits();
    let mut split = module(&[(Op::Load, &[2, 20, 7, aligned, 4]), (Op::Load, &[2, 21, 7])]);
    assert!(split_volatile_loads(&mut split).unwrap());
    let body = body(&split);
    let position = body.iter().position(|(name, _)| name == "OpLabel").expect("there is one");
    let [(declared, variable), .., (load, own), (store, stored), (reload, value), (last, rest)] =
        &body[position + 1..body.len() - 2]
    else {
        panic!("{body:?}")
    };
    assert_eq!([declared, load, store].map(String::as_str), ["OpVariable", "OpLoad", "OpStore"]);
    assert_eq!([reload, last].map(String::as_str), ["OpLoad"; 2]);
    assert_eq!(**own, [2, own[1], 7, MemoryAccess::ALIGNED.bits(), 4]);
    assert_eq!(**stored, [variable[1], own[1], VOLATILE]);
    assert_eq!(**value, [2, 20, variable[1], VOLATILE]);
    assert_eq!(**rest, [2, 21, 7], "other loads stay");
    assert!(!split_volatile_loads(&mut split).unwrap());
    Module::parse(split.assemble()).unwrap();
}

#[test]
fn volatile_loads_of_whole_variables_stay() {
    let mut kept = module(&[(Op::Load, &[2, 20, 8, VOLATILE])]);
    let before = kept.clone();
    assert!(!split_volatile_loads(&mut kept).unwrap());
    assert_eq!(kept, before);
}

#[test]
fn copies_lose_both_claims_to_be_volatile() {
    let aligned = VOLATILE | MemoryAccess::ALIGNED.bits();
    let mut copies = module(&[
        (Op::CopyMemory, &[8, 7, aligned, 4, aligned, 4]),
        (Op::CopyMemory, &[8, 7, VOLATILE]),
        (Op::CopyMemorySized, &[8, 7, 5, aligned, VOLATILE]),
        (Op::CopyMemory, &[8, 7]),
    ]);
    assert!(split_volatile_loads(&mut copies).unwrap());
    let body = body(&copies);
    let copies = body.iter().filter(|(name, _)| name.starts_with("OpCopy"));
    let operands: Vec<_> = copies.map(|(_, operands)| operands.as_slice()).collect();
    let only_aligned = MemoryAccess::ALIGNED.bits();
    let expected: [&[u32]; 4] = [
        &[8, 7, only_aligned, 4, only_aligned, 4],
        &[8, 7, 0],
        // The alignment is `VOLATILE`, a number like any other.
        &[8, 7, 5, only_aligned, VOLATILE],
        &[8, 7],
    ];
    assert_eq!(operands, expected);
}
