//! Work-items that do the work of several.

use rspirv::spirv::ExecutionMode;

use super::*;

const FOUR: Width = Width { most: 4, least_left: 64, group: None };

/// The sizes of what is made of a plan, which is valid.
#[track_caller]
fn sizes(plan: &Plan) -> Vec<usize> {
    let module = Module::parse(OPTIMISED).unwrap();
    let outcome = fuse(plan, &[&module], Trust::ProofOnly, FOUR).unwrap();
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
fn a_chain_takes_a_quarter_of_the_work_items_and_the_same_arguments() {
    let plan = plan(&chain(), 1024, &[1, 2]);
    assert_eq!(sizes(&plan), [256]);
    let module = Module::parse(OPTIMISED).unwrap();
    let wide = fuse(&plan, &[&module], Trust::ProofOnly, FOUR).unwrap().fused.unwrap();
    let one = fuse_in(OPTIMISED, &plan, Trust::ProofOnly).fused.unwrap();
    assert_eq!(wide.parameters, one.parameters);
    assert_eq!(wide.internalized, one.internalized);
}

#[test]
fn sizes_that_leave_too_few_or_groups_of_odd_sizes_stay() {
    for (size, left) in [(1024, 256), (128, 64), (64, 64), (1000, 1000), (384, 192)] {
        assert_eq!(sizes(&plan(&chain(), size, &[])), [left], "{size}");
    }
    let launch = |from, to| ("plane", vec![buffer(from), buffer(to), int(32)]);
    assert_eq!(sizes(&plan(&[launch(0, 1), launch(1, 2)], [32, 32], &[])), [32, 8]);
    assert_eq!(sizes(&plan(&[launch(0, 1), launch(1, 2)], [32, 31], &[])), [32, 31]);
    assert_eq!(sizes(&plan(&[launch(0, 1), launch(1, 2)], [2, 333], &[])), [2, 333]);
}

#[test]
fn kernels_with_loops_stay() {
    let launch = |from, to| ("rows", vec![buffer(from), buffer(to), int(1)]);
    assert_eq!(sizes(&plan(&[launch(0, 1), launch(1, 2)], 1024, &[])), [1024]);
}

/// The work-group that a chain asks for, where its launches do or do not.
#[track_caller]
fn group(kind: &str, size: usize, local: Option<usize>) -> Option<[u32; 3]> {
    const CHAIN: &[u8] = include_bytes!("../../../benches/gpu/chain.spv");
    let names = [0, 1].map(|step| format!("{kind}_{step}"));
    let mut plan =
        plan(&[("", vec![buffer(0), buffer(1)]), ("", vec![buffer(1), buffer(2)])], size, &[]);
    for (slot, name) in plan.slots.iter_mut().zip(names) {
        slot.kernel = name;
        if let Some(local) = local {
            slot.range.set_local(local.into()).unwrap();
        }
    }
    let module = Module::parse(CHAIN).unwrap();
    let width = Width { group: Some(128), ..FOUR };
    let fused = fuse(&plan, &[&module], Trust::ProofOnly, width).unwrap().fused.unwrap();
    valid(&fused);
    let mut modes = fused.module.section(Section::ExecutionModes).iter();
    let size = modes.find(|i| i.word(1) == Some(ExecutionMode::LocalSize as u32))?;
    Some([2, 3, 4].map(|word| size.word(word).unwrap()))
}

#[test]
fn light_kernels_ask_for_a_group_where_the_driver_would_choose() {
    assert_eq!(group("light", 1024, None), Some([128, 1, 1]));
    assert_eq!(group("light", 768, None), None, "192 are left");
    assert_eq!(group("light", 1024, Some(32)), None, "the launches ask for another");
    assert_eq!(group("heavy", 1024, None), None, "they need many registers");
}
