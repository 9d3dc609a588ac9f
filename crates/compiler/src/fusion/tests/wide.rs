//! Work-items that do the work of several.

use super::*;

const FOUR: Width = Width { most: 4, least_left: 64 };

/// Fuses a plan with the width `FOUR`. Returns the global size of the fused kernel, which must be valid.
#[track_caller]
fn sizes(plan: &Plan) -> Vec<usize> {
    let module = Module::parse(OPTIMISED).unwrap();
    let outcome = fuse(plan, &[&module], Trust::ProofOnly, FOUR, FusionForm::Direct).unwrap();
    let fused = outcome.fused.unwrap();
    valid(&fused);
    let as_launched = fused_range(plan);
    assert_eq!(fused.range.offset(), as_launched.offset());
    assert_eq!(fused.range.local(), as_launched.local());
    fused.range.global().to_vec()
}

fn fused_range(plan: &Plan) -> NdRange {
    fuse_in(OPTIMISED, plan, Trust::ProofOnly).fused.unwrap().range
}

#[test]
fn coarsening_a_chain_by_four_keeps_its_arguments() {
    let plan = plan(&chain(), 1024, &[1, 2]);
    assert_eq!(sizes(&plan), [256]);
    let module = Module::parse(OPTIMISED).unwrap();
    let wide =
        fuse(&plan, &[&module], Trust::ProofOnly, FOUR, FusionForm::Direct).unwrap().fused.unwrap();
    let one = fuse_in(OPTIMISED, &plan, Trust::ProofOnly).fused.unwrap();
    assert_eq!(wide.parameters, one.parameters);
    assert_eq!(wide.internalized, one.internalized);
}

#[test]
fn small_or_indivisible_sizes_are_not_coarsened() {
    for (size, left) in [(1024, 256), (128, 64), (64, 64), (1000, 1000), (384, 192)] {
        assert_eq!(sizes(&plan(&chain(), size, &[])), [left], "{size}");
    }
    let launch = |from, to| ("plane", vec![buffer(from), buffer(to), int(32)]);
    assert_eq!(sizes(&plan(&[launch(0, 1), launch(1, 2)], [32, 32], &[])), [32, 8]);
    assert_eq!(sizes(&plan(&[launch(0, 1), launch(1, 2)], [32, 31], &[])), [32, 31]);
    assert_eq!(sizes(&plan(&[launch(0, 1), launch(1, 2)], [2, 333], &[])), [2, 333]);
}

#[test]
fn kernels_with_loops_are_not_coarsened() {
    let launch = |from, to| ("rows", vec![buffer(from), buffer(to), int(1)]);
    assert_eq!(sizes(&plan(&[launch(0, 1), launch(1, 2)], 1024, &[])), [1024]);
}
