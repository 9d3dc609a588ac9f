//! Equal launches that do not depend on each other, each in work-groups of its own.

use std::cell::OnceCell;

use super::*;

const FORM: FusionForm = FusionForm::Batched;

/// Fuses a plan in the form `Batched`.
fn batched_in(bytes: &[u8], plan: &Plan) -> Outcome {
    let module = Module::parse(bytes).unwrap();
    fuse(plan, &[&module], Trust::ProofOnly, Width::ONE, FORM).unwrap()
}

/// Fuses a plan in the form `Batched`. Returns the kernel and the text of its module, which must be valid.
#[track_caller]
fn batched(bytes: &[u8], plan: &Plan) -> (Fused, String) {
    let fused = batched_in(bytes, plan).fused.unwrap();
    let text = valid(&fused);
    (fused, text)
}

#[track_caller]
fn assert_refused(plan: &Plan, expected: &str) {
    let why = batched_in(OPTIMISED, plan).fused.unwrap_err();
    assert!(why.contains(expected), "{why}");
}

/// Returns launches of `scale` from one buffer each to another one.
fn scales(count: u32) -> Vec<Launch> {
    let scale = |n: u32| ("scale", vec![buffer(2 * n), buffer(2 * n + 1), float(n as f32)]);
    (0..count).map(scale).collect()
}

fn places(argument: usize, slots: impl IntoIterator<Item = usize>) -> Vec<Place> {
    slots.into_iter().map(|slot| Place { slot, argument }).collect()
}

#[test]
fn each_launch_has_its_own_work_groups_and_arguments() {
    for bytes in ALL {
        let (fused, text) = batched(bytes, &plan(&scales(3), 1024, &[]));
        assert_eq!(
            (fused.range.global(), fused.range.local()),
            (&[1024, 3][..], Some(&[256, 1][..]))
        );
        assert_eq!(fused.kernel, "batched_scale");
        let expected = (0..3).flat_map(|argument| (0..3).map(move |slot| places(argument, [slot])));
        assert_eq!(fused.parameters, expected.collect::<Vec<_>>());
        assert_eq!(text.matches("OpSelect ").count(), 6, "two for each argument\n{text}");
        assert_eq!(text.matches("OpEntryPoint").count(), 1);
        assert!(fused.internalized.is_empty() && fused.barriers.is_empty());
    }
}

#[test]
fn launches_of_three_dimensions_follow_each_other_along_the_last_one() {
    let mut plan = plan(&scales(5), [8, 4, 6], &[]);
    let local = NdSize::from([4, 2, 3]);
    plan.slots.iter_mut().for_each(|slot| slot.range.set_local(local).unwrap());
    let (fused, text) = batched(OPTIMISED, &plan);
    assert_eq!(fused.range.global(), [8, 4, 30]);
    assert_eq!(fused.range.local(), Some(&[4, 2, 3][..]));
    assert!(text.contains("OpUDiv") && text.contains("OpUMod"), "{text}");
}

#[test]
fn arguments_in_common_are_one_parameter() {
    let scale = |n: u32| ("scale", vec![buffer(0), buffer(n + 1), float(2.0)]);
    let mut plan = plan(&[scale(0), scale(1), scale(2)], 1024, &[]);
    let (fused, _) = batched(OPTIMISED, &plan);
    assert_eq!(fused.parameters[0], places(0, 0..3));
    // Equal scalars may differ another time, unless they are fixed.
    assert_eq!(fused.parameters.len(), 7);
    assert!(batched_in(OPTIMISED, &plan).constants.is_empty());
    plan.constants.extend(places(2, 0..3));
    let (fused, _) = batched(OPTIMISED, &plan);
    assert_eq!(fused.parameters.len(), 5);
    assert_eq!(fused.parameters[4], places(2, 0..3));
}

#[test]
fn launches_that_depend_on_each_other_are_refused() {
    let scale = |from, to| ("scale", vec![buffer(from), buffer(to), float(2.0)]);
    let why = "only launches that do not depend on each other are batched: launch";
    for launches in
        [[scale(0, 1), scale(1, 2)], [scale(1, 2), scale(0, 1)], [scale(0, 1), scale(2, 1)]]
    {
        assert_refused(&plan(&launches, 1024, &[]), why);
    }
    let in_place = ("in_place", vec![buffer(0)]);
    assert_refused(&plan(&[in_place.clone(), in_place], 1024, &[]), why);
}

#[test]
fn slices_of_one_buffer_are_independent_if_they_do_not_overlap() {
    let slice = |memory, offset| {
        Argument::Buffer(Region { memory: Memory(memory), offset, length: LENGTH })
    };
    let scale = |offset| ("scale", vec![slice(0, 0), slice(1, offset), float(2.0)]);
    let (fused, _) = batched(OPTIMISED, &plan(&[scale(0), scale(LENGTH)], 1024, &[]));
    assert_eq!(fused.parameters.len(), 5);
    assert_refused(&plan(&[scale(0), scale(LENGTH - 4)], 1024, &[]), "may write, through `dst`");
}

#[test]
fn launches_that_differ_are_refused_by_name() {
    let scale = |n: u32| ("scale", vec![buffer(2 * n), buffer(2 * n + 1), float(2.0)]);
    let offset = ("offset", vec![buffer(8), buffer(9), float(1.0)]);
    assert_refused(&plan(&[scale(0), offset], 1024, &[]), "not `scale` and `offset`");
    let ranged = |size: usize, n| (scale(n).0, over(size), scale(n).1);
    let sizes = plan_of(&[ranged(1024, 0), ranged(512, 1)], &[]);
    assert_refused(&sizes, "over the same nd-range");
    let mut moved = plan(&[scale(0), scale(1)], 512, &[]);
    moved.slots.iter_mut().for_each(|slot| slot.range.set_offset(8.into()).unwrap());
    assert_refused(&moved, "without an offset are batched, not [8]");
    assert_refused(&plan(&[scale(0), scale(1)], 8191, &[]), "whole work-groups");
    assert_refused(&plan(&scales(65), 1024, &[]), "2 to 64 launches are batched, not 65");
    assert_refused(&plan(&scales(1), 1024, &[]), "2 to 64 launches are batched, not 1");
}

/// Returns the launches of each part of a partition, with the form of its first kernel.
fn partition(
    launches: &[Launch],
    forced_form: Option<FusionForm>,
    exceeded_limit: &dyn Fn(&Fused) -> Option<String>,
) -> Vec<(Vec<usize>, Option<FusionForm>)> {
    let module = Module::parse(OPTIMISED).unwrap();
    let plan = plan(launches, 1024, &[]);
    let launches = Launches {
        plan: &plan,
        modules: vec![Some(&module)],
        options: vec![0],
        trust: Trust::ProofOnly,
        width: Width::ONE,
        is_gpu: false,
        forced_form,
        exceeded_limit,
        effects: OnceCell::new(),
        examinations: Examinations::default(),
        budget: Budget::default(),
    };
    let parts = launches.partition().into_iter();
    let form = |part: &Part| part.candidates.first().map(|candidate| candidate.form);
    parts.map(|part| (part.slots.clone(), form(&part))).collect()
}

#[test]
fn independent_launches_among_others_form_a_batch() {
    let scale = |from, to| ("scale", vec![buffer(from), buffer(to), float(2.0)]);
    let blur = ("blur", vec![buffer(1), buffer(8)]);
    let launches = [scale(0, 1), blur, scale(2, 3), scale(4, 5), scale(6, 7)];
    let expected = [(vec![0, 2, 3, 4], Some(FORM)), (vec![1], None)];
    assert_eq!(partition(&launches, None, &|_| None), expected);
    // Two launches save too little, unless the form is asked for.
    let few = &launches[..3];
    assert_eq!(partition(few, None, &|_| None).len(), 3);
    assert_eq!(partition(few, Some(FORM), &|_| None), [(vec![0, 2], Some(FORM)), (vec![1], None)]);
    assert_eq!(partition(few, Some(FusionForm::Direct), &|_| None).len(), 3);
}

#[test]
fn no_batch_has_launches_between_which_another_one_must_run() {
    let scale = |from, to| ("scale", vec![buffer(from), buffer(to), float(2.0)]);
    let launches = [scale(0, 1), ("blur", vec![buffer(1), buffer(2)]), scale(2, 3)];
    let parts = partition(&launches, Some(FORM), &|_| None);
    assert_eq!(parts, [(vec![0], None), (vec![1], None), (vec![2], None)]);
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
