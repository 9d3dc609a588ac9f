//! Partition of launches that do not all run as one kernel.

use std::cell::OnceCell;

use kiln_spirv::Access;

use super::*;

/// Calls `check` with launches of the test kernels over 1,024 work-items.
fn with_launches<T>(
    launches: &[Launch],
    dead: &[u32],
    check: impl FnOnce(&Launches<'_>) -> T,
) -> T {
    let module = Module::parse(OPTIMISED).unwrap();
    let plan = plan(launches, 1024, dead);
    check(&Launches::of(&plan, &[&module]))
}

fn scale(from: u32, to: u32) -> Launch {
    ("scale", vec![buffer(from), buffer(to), float(2.0)])
}

fn offset(from: u32, to: u32) -> Launch {
    ("offset", vec![buffer(from), buffer(to), float(1.0)])
}

fn blur(from: u32, to: u32) -> Launch {
    ("blur", vec![buffer(from), buffer(to)])
}

#[test]
fn memory_that_other_groups_use_stays_in_memory() {
    let launches = [scale(0, 1), offset(1, 2), blur(1, 3), offset(3, 4)];
    with_launches(&launches, &[1, 2, 3, 4], |launches| {
        let dead = |slots: &[usize]| launches.plan_of(&Group::of(slots.iter().copied())).0.dead;
        assert_eq!(dead(&[0, 1]), BTreeSet::from([Memory(2)]));
        assert_eq!(dead(&[2, 3]), BTreeSet::from([Memory(1), Memory(3), Memory(4)]));
        assert_eq!(dead(&[0, 1, 2, 3]), launches.plan.dead);
        let internalized = |slots: &[usize]| {
            let group = Group::of(slots.iter().copied());
            let candidate = launches.candidate(&group, FusionForm::Direct).unwrap();
            candidate.outcome.fused.unwrap().internalized
        };
        assert_eq!(internalized(&[0, 1]), [Memory(2)]);
        assert_eq!(internalized(&[2, 3]), [Memory(3), Memory(4)]);
    });
}

#[test]
fn launches_of_modules_that_are_not_available_run_alone() {
    let chain = [scale(0, 1), offset(1, 2), scale(2, 3), offset(3, 4)];
    let module = Module::parse(OPTIMISED).unwrap();
    let mut plan = plan(&chain, 1024, &[]);
    plan.modules.push([1; 32]);
    plan.slots[1].module = 1;
    let mut launches = Launches {
        modules: vec![Some(&module), None],
        options: vec![0, 1],
        ..Launches::of(&plan, &[&module])
    };
    let slots = |launches: &Launches<'_>| {
        launches.partition().into_iter().map(|part| part.slots).collect::<Vec<_>>()
    };
    assert_eq!(slots(&launches), [vec![0], vec![1], vec![2, 3]]);
    // A program that is built with other options is kept apart, too.
    launches.modules[1] = Some(&module);
    launches.effects = OnceCell::new();
    assert_eq!(slots(&launches), [vec![0], vec![1], vec![2, 3]]);
}

#[test]
fn kernels_beyond_the_limits_of_the_device_are_not_used() {
    let chain = [scale(0, 1), offset(1, 2), scale(2, 3)];
    let module = Module::parse(OPTIMISED).unwrap();
    let plan = plan(&chain, 1024, &[]);
    let exceeded_limit =
        |fused: &Fused| (fused.parameters.len() > 5).then(|| "too many parameters".to_owned());
    let launches = Launches { exceeded_limit: &exceeded_limit, ..Launches::of(&plan, &[&module]) };
    let outcome = launches.fuse(&launches.whole(), FusionForm::Direct).unwrap();
    assert_eq!(outcome.fused.unwrap_err(), "too many parameters");
    let parts: Vec<_> = launches.partition().into_iter().map(|part| part.slots).collect();
    assert_eq!(parts, [vec![0, 1], vec![2]]);
}

#[test]
fn a_split_keeps_all_launches_in_order_and_fuses_some() {
    let launches = [scale(0, 1), offset(1, 2), scale(2, 3), offset(3, 4)];
    with_launches(&launches, &[1, 2, 3], |launches| {
        let [first, second] = launches.split(&[0, 1, 2, 3]).unwrap();
        let mut all = [&first.slots[..], &second.slots].concat();
        assert!(launches.keeps_order(&[&first.slots, &second.slots]));
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
        for part in [first, second] {
            assert_eq!(part.candidates.is_empty(), part.slots.len() == 1);
        }
    });
    let apart = [scale(0, 1), blur(1, 2), scale(2, 1)];
    assert!(with_launches(&apart, &[], |launches| launches.split(&[0, 1, 2]).is_none()));
}

#[test]
fn orders_that_change_a_result_are_found() {
    with_launches(&[scale(0, 1), offset(1, 2), scale(3, 0)], &[], |launches| {
        assert!(launches.keeps_order(&[&[0], &[1], &[2]]));
        assert!(launches.keeps_order(&[&[0], &[2], &[1]]));
        assert!(launches.keeps_order(&[&[0, 2], &[1]]));
        assert!(!launches.keeps_order(&[&[1], &[0, 2]]), "read after write");
        assert!(!launches.keeps_order(&[&[2], &[0, 1]]), "write after read");
    });
}

#[test]
fn a_launch_is_repeated_only_if_its_results_are_the_same_again() {
    let can_repeat = |launches: &[Launch], repeated: usize, slots: &[usize]| {
        with_launches(launches, &[], |launches| launches.can_repeat(repeated, slots))
    };
    assert!(can_repeat(&[scale(0, 1), blur(1, 2), offset(1, 3)], 0, &[2]));
    assert!(!can_repeat(&[scale(0, 1), blur(1, 0), offset(1, 3)], 0, &[2]), "its input changes");
    assert!(!can_repeat(&[scale(0, 1), blur(2, 1), offset(1, 3)], 0, &[2]), "its result changes");
    assert!(!can_repeat(&[offset(1, 3), scale(0, 1)], 1, &[0]), "it comes later");
    let in_place = ("in_place", vec![buffer(1)]);
    assert!(!can_repeat(&[in_place, offset(1, 3)], 0, &[1]), "it reads what it writes");
}

#[test]
fn effects_that_depend_on_a_scalar_name_it() {
    let effects = |n: i32| {
        let guarded = ("guarded", vec![buffer(0), buffer(1), int(n)]);
        with_launches(&[guarded, scale(1, 2)], &[], |launches| {
            let accesses: Vec<_> = launches.effects().iter().map(|e| e.accesses.clone()).collect();
            (accesses, launches.effect_constants())
        })
    };
    let accesses = [Some(Access::Read), Some(Access::Write), None];
    assert_eq!(effects(100).0, [accesses, accesses]);
    // Results that hold for one value only must say so.
    let (of_none, constants) = effects(0);
    let is_named = constants.contains(&Place { slot: 0, argument: 2 });
    assert!(is_named || of_none == [accesses, accesses], "{of_none:?}, {constants:?}");
}
