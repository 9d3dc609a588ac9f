//! Kernels and examinations that several plans have in common.

use std::sync::Arc;

use super::*;

/// Plans over the same kernels, whose launches share more or fewer buffers.
fn plans() -> Vec<Plan> {
    let scale = |from, to| ("scale", vec![buffer(from), buffer(to), float(2.0)]);
    let mut plans = vec![
        plan(&[scale(0, 1), scale(1, 2)], 64, &[1]),
        plan(&[scale(0, 1), scale(1, 2)], 64, &[]),
        plan(&[scale(0, 0), scale(0, 0)], 64, &[]),
        plan(&[scale(0, 1)], 32, &[]),
    ];
    let separate = plans.iter().cloned().map(|mut plan| {
        plan.target.separate_functions = true;
        plan
    });
    let separate: Vec<_> = separate.collect();
    plans.extend(separate);
    plans
}

fn describe(outcome: &Outcome) -> String {
    let fused = outcome.fused.as_ref().map(|fused| (fused.module.assemble(), &fused.internalized));
    format!("{fused:?} {:?} {:?} {:?}", outcome.constants, outcome.injected, outcome.equal)
}

#[test]
fn outcomes_do_not_depend_on_what_was_examined_before() {
    let modules = ALL.map(|bytes| Module::parse(bytes).unwrap());
    let examinations = Examinations::default();
    for plan in plans().iter().chain(&plans()) {
        for module in &modules {
            for form in [FusionForm::Direct, FusionForm::Inlined, FusionForm::Batched] {
                let programs = Programs { modules: &[module], examinations: &examinations };
                let known = super::super::fuse(plan, programs, Trust::ProofOnly, Width::ONE, form);
                let alone = fuse(plan, &[module], Trust::ProofOnly, Width::ONE, form);
                assert_eq!(describe(&known.unwrap()), describe(&alone.unwrap()), "{form}");
            }
        }
    }
}

#[test]
fn a_kernel_is_extracted_once_for_all_plans() {
    let module = Module::parse(OPTIMISED).unwrap();
    let examinations = Examinations::default();
    let programs = Programs { modules: &[&module], examinations: &examinations };
    let all = plans().iter().flat_map(|plan| programs.kernels(plan).unwrap()).collect::<Vec<_>>();
    assert!(all.iter().all(|kernel| Arc::ptr_eq(kernel, &all[0])), "they are equal");
}

#[test]
fn equal_modules_have_kernels_of_their_own() {
    let [first, second] = [OPTIMISED; 2].map(|bytes| Module::parse(bytes).unwrap());
    let examinations = Examinations::default();
    let plan = &plans()[0];
    let kernel = |module| {
        let programs = Programs { modules: &[module], examinations: &examinations };
        Arc::clone(&programs.kernels(plan).unwrap()[0])
    };
    assert!(!Arc::ptr_eq(&kernel(&first), &kernel(&second)));
    assert!(Arc::ptr_eq(&kernel(&first), &kernel(&first)));
}
