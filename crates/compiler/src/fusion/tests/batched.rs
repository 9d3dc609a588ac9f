//! Equal launches that do not depend on each other, each in work-groups of its own.

use super::*;

const FORM: FusionForm = FusionForm::Batched;

/// Returns launches of `scale` from one buffer each to another one.
fn scales(count: u32) -> Vec<Launch> {
    let scale = |n: u32| ("scale", vec![buffer(2 * n), buffer(2 * n + 1), float(n as f32)]);
    (0..count).map(scale).collect()
}

/// Returns the launches of each part of a partition, with the form of its first kernel.
fn partition(
    launches: &[Launch],
    forced_form: Option<FusionForm>,
    exceeded_limit: &dyn Fn(&Fused) -> Option<String>,
) -> Vec<(Vec<usize>, Option<FusionForm>)> {
    let module = Module::parse(OPTIMISED).unwrap();
    let plan = plan(launches, 1024, &[]);
    let launches = Launches { forced_form, exceeded_limit, ..Launches::of(&plan, &[&module]) };
    let parts = launches.partition().into_iter();
    let form = |part: &Part| part.candidates.first().map(|candidate| candidate.form);
    parts.map(|part| (part.slots.clone(), form(&part))).collect()
}

#[test]
fn batches_beyond_a_limit_of_the_device_are_divided() {
    let limit = |fused: &Fused| (fused.parameters.len() > 12).then(|| "too many".to_owned());
    let parts = partition(&scales(8), Some(FORM), &limit);
    assert_eq!(parts, [(vec![0, 1, 2, 3], Some(FORM)), (vec![4, 5, 6, 7], Some(FORM))]);
    let many = partition(&scales(70), Some(FORM), &|_| None);
    assert_eq!(many.iter().map(|(slots, _)| slots.len()).collect::<Vec<_>>(), [64, 6]);
}

#[test]
fn only_equal_launches_are_tried_as_a_batch() {
    let chain = [
        ("scale", vec![buffer(0), buffer(1), float(2.0)]),
        ("offset", vec![buffer(1), buffer(2), float(1.0)]),
    ];
    for (launches, is_tried) in [(scales(2), true), (chain.to_vec(), false)] {
        let plan = plan(&launches, 1024, &[]);
        assert_eq!(form::forms(&plan, false).contains(&FORM), is_tried);
    }
}
