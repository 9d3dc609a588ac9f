//! Contraction: products of one launch and sums of another stay apart, and so do launches that a compiler would
//! calculate differently together.

use kiln_spirv::edit::{Instruction, View};

use super::*;

/// Returns the module without the mode that forbids contraction.
fn contracting(bytes: &[u8]) -> Module {
    let mut module = Module::parse(bytes).unwrap();
    let mode = rspirv::spirv::ExecutionMode::ContractionOff as u32;
    let is_mode = |i: &Instruction<'_>| matches!(i.view(), View::ExecutionMode { mode: own, .. } if own == mode);
    module.section_mut(Section::ExecutionModes).retain(|i| !is_mode(i));
    module
}

fn products_then_sums() -> Plan {
    let launches =
        [("in_place", vec![buffer(0)]), ("offset", vec![buffer(0), buffer(1), float(1.0)])];
    plan(&launches, 64, &[])
}

#[test]
fn contraction_is_disabled_where_fusion_joins_products_and_sums() {
    for bytes in ALL {
        let module = contracting(bytes);
        let outcome = fuse(
            &products_then_sums(),
            &[&module],
            Trust::ProofOnly,
            Width::ONE,
            FusionForm::Direct,
        )
        .unwrap();
        let text = valid(&outcome.fused.unwrap());
        assert!(text.contains("ContractionOff"), "{text}");
        // A launch between only passes the products on.
        let launches = [
            ("in_place", vec![buffer(0)]),
            ("copy", vec![buffer(0), buffer(1)]),
            ("offset", vec![buffer(1), buffer(2), float(1.0)]),
        ];
        let mut passing = plan(&launches, 64, &[]);
        passing.modules = vec![[0; 32], [1; 32]];
        passing.slots[1].module = 1;
        let modules =
            [&module, &contracting(include_bytes!("../../../../../tests/data/restricted.spv"))];
        let outcome =
            fuse(&passing, &modules, Trust::ProofOnly, Width::ONE, FusionForm::Direct).unwrap();
        let text = valid(&outcome.fused.unwrap());
        assert!(text.contains("ContractionOff"), "{text}");
        // Here the products come last, and no launch adds to them.
        let launches =
            [("offset", vec![buffer(0), buffer(1), float(1.0)]), ("in_place", vec![buffer(1)])];
        let outcome = fuse(
            &plan(&launches, 64, &[]),
            &[&module],
            Trust::ProofOnly,
            Width::ONE,
            FusionForm::Direct,
        )
        .unwrap();
        let text = valid(&outcome.fused.unwrap());
        assert!(!text.contains("ContractionOff"), "{text}");
    }
}

#[test]
fn contractible_launches_that_pass_products_on_are_not_fused() {
    let module = contracting(PATTERNS);
    let sums = |from, to| ("sum_of_products", vec![buffer(from), buffer(to)]);
    let chain = plan(&[sums(0, 1), sums(1, 2)], 64, &[1]);
    let why = fuse(&chain, &[&module], Trust::ProofOnly, Width::ONE, FusionForm::Direct)
        .unwrap()
        .fused
        .unwrap_err();
    assert_eq!(
        why,
        "the driver may contract products of `sum_of_products` and sums of `sum_of_products` \
         (fused multiply-add), because their modules allow it"
    );
    // With the caller's trust, the launches are fused.
    valid(
        &fuse(&chain, &[&module], Trust::Caller, Width::ONE, FusionForm::Direct)
            .unwrap()
            .fused
            .unwrap(),
    );
    // Launches that only share their input are fused, and contraction stays allowed.
    let apart = plan(&[sums(0, 1), sums(0, 2)], 64, &[]);
    let text = valid(
        &fuse(&apart, &[&module], Trust::ProofOnly, Width::ONE, FusionForm::Direct)
            .unwrap()
            .fused
            .unwrap(),
    );
    assert!(!text.contains("ContractionOff"), "{text}");
    // Next to a kernel that forbids contraction, the results would differ.
    let strict = Module::parse(OPTIMISED).unwrap();
    let mut mixed = plan(&[sums(0, 1), ("quads", vec![buffer(2), buffer(3)])], 64, &[]);
    mixed.modules = vec![[0; 32], [1; 32]];
    mixed.slots[1].module = 1;
    let why = fuse(&mixed, &[&module, &strict], Trust::ProofOnly, Width::ONE, FusionForm::Direct)
        .unwrap()
        .fused
        .unwrap_err();
    assert_eq!(
        why,
        "`sum_of_products` allows drivers to contract products and sums (fused multiply-add), but \
         `quads` forbids it"
    );
}

const ESTIMATES: [&[u8]; 2] = [
    include_bytes!("../../../../../tests/data/estimates.spv"),
    include_bytes!("../../../../../tests/data/estimates_O0.spv"),
];

/// Returns the module with all functions open to inlining. Translators forbid inlining if they do not optimise.
fn inlined(bytes: &[u8]) -> Module {
    let mut module = Module::parse(bytes).unwrap();
    for function in module.functions.iter().map(|function| function.id).collect::<Vec<_>>() {
        crate::transform::merge::set_control(&mut module, function, |_| 0);
    }
    module
}

/// Returns whether the launches stay functions of their own, for a compiler that requires it.
#[track_caller]
fn are_apart(launches: &[Launch]) -> bool {
    let apart = |bytes: &[u8]| {
        let mut plan = plan(launches, 64, &[1]);
        plan.target.separate_functions = true;
        plan.target.order_own_accesses = false;
        let outcome =
            fuse(&plan, &[&inlined(bytes)], Trust::ProofOnly, Width::ONE, FusionForm::Direct)
                .unwrap();
        valid(&outcome.fused.unwrap()).contains("DontInline")
    };
    let [optimised, not] = ESTIMATES.map(apart);
    assert_eq!(optimised, not, "{launches:?}");
    optimised
}

#[test]
fn operations_that_differ_for_vectors_are_kept_separate_or_unfused() {
    let [src, a, o] = [0, 1, 2].map(buffer);
    let launches =
        |kernel| [("squared", vec![src.clone(), a.clone()]), (kernel, vec![a.clone(), o.clone()])];
    assert!(are_apart(&launches("estimated")) && !are_apart(&launches("dotted")));
    let assert_alone = |bytes, mut plan: Plan, why: &str| {
        plan.target.separate_functions = false;
        fused(bytes, &plan);
        plan.target.separate_functions = true;
        let refused = fuse_in(bytes, &plan, Trust::ProofOnly).fused.unwrap_err();
        assert!(refused.starts_with(why), "{refused}");
    };
    for (bytes, kernel) in ESTIMATES.into_iter().zip(["dotted_doubles", "normal_of_doubles"]) {
        let plan = plan(&launches(kernel), 64, &[]);
        assert_alone(bytes, plan, &format!("`{kernel}` calculates `dot` or a length"));
    }
    let mut plan = plan(&launches("estimated"), 64, &[]);
    // So few work-items that they cannot do the work of the others.
    plan.slots[1].range = NdRange::from(NdSize::from(3));
    assert_alone(ESTIMATES[0], plan, "`estimated` calculates estimates");
}
