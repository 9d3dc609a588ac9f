//! Definition of undefined values: which variables start as zeros, and what becomes of structs passed by value.

use kiln_spirv::edit::{Section, View};
use rspirv::dr::Builder;
use rspirv::spirv::{Decoration, FunctionControl, Op, StorageClass};

use super::*;

const STRUCT_IN_SMALLER_VARIABLE: &[u8] = include_bytes!(
    "../../../tests/files/bounds/a_struct_by_value_in_a_smaller_variable_is_refused.spv"
);

/// Returns a module with a function that has some variables of the type `uint`. `write` gets the pointers to them, and a
/// condition.
fn with_variables(count: usize, write: impl FnOnce(&mut Builder, &[u32], u32)) -> Module {
    let mut b = Builder::new();
    let (void, bool, uint) = (b.type_void(), b.type_bool(), b.type_int(32, 0));
    let pointer = b.type_pointer(None, StorageClass::Function, uint);
    let ty = b.type_function(void, [bool]);
    b.begin_function(void, None, FunctionControl::NONE, ty).unwrap();
    let condition = b.function_parameter(bool).unwrap();
    b.begin_block(None).unwrap();
    let variable = |_| b.variable(pointer, None, StorageClass::Function, None);
    let variables: Vec<_> = (0..count).map(variable).collect();
    write(&mut b, &variables, condition);
    b.ret().unwrap();
    b.end_function().unwrap();
    let words = rspirv::binary::Assemble::assemble(&b.module());
    Module::parse(bytemuck::cast_slice::<u32, u8>(&words)).unwrap()
}

/// Returns whether each variable starts as zero.
fn are_zero(module: &Module) -> Vec<bool> {
    let all = module.functions.iter().flat_map(|function| function.body.iter());
    let initial = all.filter_map(|i| match i.view() {
        View::Variable { initial, .. } => Some(initial.is_some()),
        _ => None,
    });
    initial.collect()
}

#[test]
fn variables_that_may_be_read_before_they_are_written_start_as_zeros() {
    let mut module = with_variables(4, |b, variables, condition| {
        let uint = b.type_int(32, 0);
        let seven = b.constant_bit32(uint, 7);
        let &[first, later, on_one_way, never] = variables else { unreachable!() };
        b.store(first, seven, None, []).unwrap();
        b.load(uint, None, first, None, []).unwrap();
        b.load(uint, None, later, None, []).unwrap();
        b.store(later, seven, None, []).unwrap();
        let (then, after) = (b.id(), b.id());
        b.branch_conditional(condition, then, after, []).unwrap();
        b.begin_block(Some(then)).unwrap();
        b.store(on_one_way, seven, None, []).unwrap();
        b.load(uint, None, on_one_way, None, []).unwrap();
        b.branch(after).unwrap();
        b.begin_block(Some(after)).unwrap();
        b.load(uint, None, on_one_way, None, []).unwrap();
        b.load(uint, None, first, None, []).unwrap();
        b.load(uint, None, never, None, []).unwrap();
    });
    assert!(define(&mut module).unwrap());
    assert_eq!(are_zero(&module), [false, true, true, true]);
    assert!(!define(&mut module).unwrap(), "all values are defined");
}

#[test]
fn undefined_values_become_zeros_and_conversions_are_saturated() {
    let mut module = with_variables(1, |b, variables, _| {
        let (uint, float) = (b.type_int(32, 0), b.type_float(32, None));
        let large = b.constant_bit32(float, 1e30_f32.to_bits());
        let undefined = b.undef(uint, None);
        b.store(variables[0], undefined, None, []).unwrap();
        let converted = b.convert_f_to_u(uint, None, large).unwrap();
        b.store(variables[0], converted, None, []).unwrap();
    });
    assert!(define(&mut module).unwrap());
    let annotations = module.section(Section::Annotations).iter();
    let saturated = annotations.filter(|i| i.decoration(Decoration::SaturatedConversion).is_some());
    assert_eq!(saturated.count(), 1);
    let bodies = module.functions.iter().flat_map(|function| function.body.iter());
    let mut all = bodies.chain(module.section(Section::Globals).iter());
    assert!(all.all(|i| i.op() != Some(Op::Undef)));
}

#[test]
fn structs_in_smaller_variables_are_copied_by_an_access_that_is_checked() {
    let mut module = Module::parse(STRUCT_IN_SMALLER_VARIABLE).unwrap();
    Kernel::of(&module, "k", &[], &BTreeSet::new()).unwrap_err();
    assert!(define(&mut module).unwrap());
    let bytes = module.assemble();
    let found = guarded(&bytes, "k", &NdRange::from(NdSize::from(1)), &[buffer(64), scalar(1)]);
    assert_eq!(found.len(), 1, "{found:?}");
    let (kernel, report) =
        checked(&bytes, "k", &NdRange::from(NdSize::from(1)), &[buffer(64), scalar(1)]);
    variant(&kernel, Some(&report), &[]).unwrap();
}
