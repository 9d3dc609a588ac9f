//! Tests of the meaning of decorations and built-in variables.

use rspirv::spirv::{BuiltIn, Decoration, Op, StorageClass};

use super::super::decorations::changed;
use super::super::meaning::unfit_built_in;
use super::super::module::{Module, Section};
use super::Builder;

/// Returns why a variable in a storage class cannot be a built-in one. Types of values are integers of 32 (2) and 64
/// bits (3), and three of the latter (4).
fn unfit(built_in: u32, ty: u32, class: StorageClass) -> Option<String> {
    let module = Builder::new()
        .decorate(10, Decoration::BuiltIn, built_in)
        .op(Op::TypeInt, &[2, 32, 0])
        .op(Op::TypeInt, &[3, 64, 0])
        .op(Op::TypeVector, &[4, 3, 3])
        .op(Op::TypePointer, &[5, class as u32, ty])
        .op(Op::Variable, &[5, 10, class as u32]);
    let module = Module::parse(module.bytes()).unwrap();
    let decoration = module.section(Section::Annotations).iter().next().unwrap();
    unfit_built_in(&module.definitions(), &decoration, 64)
}

#[test]
fn input_variables_of_the_right_type_are_built_in() {
    for (built_in, ty) in [
        (BuiltIn::GlobalInvocationId, 4),
        (BuiltIn::WorkgroupSize, 4),
        (BuiltIn::GlobalLinearId, 3),
        (BuiltIn::WorkDim, 2),
        (BuiltIn::SubgroupSize, 2),
    ] {
        assert_eq!(unfit(built_in as u32, ty, StorageClass::Input), None, "{built_in:?}");
        for other in [2, 3, 4].into_iter().filter(|&other| other != ty) {
            let why = unfit(built_in as u32, other, StorageClass::Input).unwrap();
            assert!(why.contains("another type than it has"), "{why}");
        }
    }
}

#[test]
fn other_variables_are_not_built_in() {
    for class in [
        StorageClass::Workgroup,
        StorageClass::UniformConstant,
        StorageClass::CrossWorkgroup,
        StorageClass::Function,
    ] {
        let why = unfit(BuiltIn::LocalInvocationId as u32, 4, class).unwrap();
        assert!(why.contains("LocalInvocationId outside of an input variable"), "{why}");
    }
    let module = Builder::new()
        .decorate(10, Decoration::BuiltIn, BuiltIn::WorkDim as u32)
        .op(Op::TypeInt, &[2, 32, 0])
        .op(Op::Constant, &[2, 10, 7]);
    let module = Module::parse(module.bytes()).unwrap();
    let decoration = module.section(Section::Annotations).iter().next().unwrap();
    unfit_built_in(&module.definitions(), &decoration, 64).unwrap();
}

#[test]
fn built_in_variables_that_are_not_known_are_refused_by_name() {
    let why = unfit(BuiltIn::FragCoord as u32, 4, StorageClass::Input).unwrap();
    assert!(why.contains("FragCoord, which is not followed"), "{why}");
    let why = unfit(0xfff0, 4, StorageClass::Input).unwrap();
    assert!(why.contains("65520, which is not known"), "{why}");
}

#[test]
fn only_listed_decorations_keep_a_value() {
    let decorated = |decoration: u32| {
        let module = Builder::new().op(Op::Decorate, &[10, decoration]).op(Op::TypeVoid, &[10]);
        let module = Module::parse(module.bytes()).unwrap();
        changed(&module).contains(10)
    };
    assert!(!decorated(Decoration::NoSignedWrap as u32));
    assert!(!decorated(Decoration::Restrict as u32));
    assert!(decorated(Decoration::SaturatedConversion as u32));
    assert!(decorated(Decoration::FPRoundingMode as u32));
    assert!(decorated(0xfff0), "a decoration of tomorrow");
    let group = Builder::new()
        .op(Op::Decorate, &[11, Decoration::Restrict as u32])
        .op(Op::DecorationGroup, &[11])
        .op(Op::GroupDecorate, &[11, 10])
        .op(Op::TypeVoid, &[10]);
    let module = Module::parse(group.bytes()).unwrap();
    assert!(changed(&module).contains(10), "groups are not followed");
}
