//! Contents of memories that become private, and contents that still reach memory.

use super::*;
use crate::fusion::private_legality::Promotion;

#[track_caller]
fn judged(bytes: &[u8], plan: &Plan, memory: u32) -> Result<Promotion, String> {
    let outcome = fuse_in(bytes, plan, Trust::ProofOnly);
    valid(outcome.fused.as_ref().unwrap());
    let judgement = outcome.judgements.into_iter().find(|j| j.memory == Memory(memory));
    judgement.unwrap().promotion
}

/// Returns the number of loads from buffers and of stores to buffers in the fused kernel.
#[track_caller]
fn traffic(bytes: &[u8], plan: &Plan) -> (usize, usize) {
    let (fused, _) = fused(bytes, plan);
    let definitions = fused.module.definitions();
    let is_global = |pointer: Option<u32>| {
        let ty = pointer.and_then(|pointer| definitions.type_of(pointer));
        ty.and_then(|ty| ty.word(1)) == Some(StorageClass::CrossWorkgroup as u32)
    };
    let body = fused.module.functions.iter().flat_map(|function| function.body.iter());
    let (mut loads, mut stores) = (0, 0);
    for i in body {
        match i.op() {
            Some(Op::Load) if is_global(i.word(2)) => loads += 1,
            Some(Op::Store) if is_global(i.word(0)) => stores += 1,
            _ => {}
        }
    }
    (loads, stores)
}

#[test]
fn buffers_that_are_read_later_are_written_but_not_read_again() {
    for bytes in ALL {
        let mut plan = plan(&chain(), 1000, &[]);
        // Memories 1, 2 and 3 are written. Memory 2 is written twice, but only the second write remains.
        assert_eq!(traffic(bytes, &plan), (1, 3));
        let promotion = judged(bytes, &plan, 1).unwrap();
        assert_eq!(promotion.remains.as_deref(), Some("its contents may be read later"));
        plan.dead.insert(Memory(1));
        assert_eq!(traffic(bytes, &plan), (1, 2));
        plan.dead.insert(Memory(2));
        assert_eq!(traffic(bytes, &plan), (1, 1));
    }
}

#[test]
fn unwritten_memory_is_read_once() {
    let launches = [
        ("scale", vec![buffer(0), buffer(1), float(3.0)]),
        ("scale", vec![buffer(0), buffer(2), float(3.0)]),
        ("vectors", vec![buffer(3), buffer(4)]),
        ("loaded", vec![buffer(3), buffer(5)]),
    ];
    let plan = plan(&launches, 64, &[]);
    assert_eq!(traffic(OPTIMISED, &plan), (2, 3));
    let promotion = judged(OPTIMISED, &plan, 0).unwrap();
    let why = "`scale` reads `src`, but not all of these bytes are certainly written before";
    assert_eq!(promotion.remains.as_deref(), Some(why));
}

#[test]
fn contents_from_before_the_launches_are_read_first() {
    let launches = [
        ("in_place", vec![buffer(1)]),
        ("in_place", vec![buffer(1)]),
        ("scale", vec![buffer(1), buffer(2), float(1.0)]),
    ];
    // At `-O0`, the kernel reads an element twice; the second read gets the value of the first.
    for bytes in ALL {
        let live = plan(&launches, 64, &[]);
        assert_eq!(traffic(bytes, &live), (1, 2));
        let dead = plan(&launches, 64, &[1]);
        assert_eq!(traffic(bytes, &dead), (1, 1));
        assert!(fused(bytes, &dead).0.internalized.is_empty());
    }
}

#[test]
fn parts_that_only_some_launches_write_are_read_from_memory() {
    // One float of four is written, then all four are read.
    let launches =
        [("first_of_four", vec![buffer(0), buffer(1)]), ("quads", vec![buffer(1), buffer(2)])];
    let plan = plan(&launches, 64, &[1]);
    let module = Module::parse(PATTERNS).unwrap();
    let quads = Module::parse(OPTIMISED).unwrap();
    let mut plan = Plan { modules: vec![[0; 32], [1; 32]], ..plan };
    plan.slots[1].module = 1;
    let outcome =
        fuse(&plan, &[&module, &quads], Trust::ProofOnly, Width::ONE, FusionForm::Direct).unwrap();
    valid(outcome.fused.as_ref().unwrap());
    let promotion = outcome.judgements[1].promotion.as_ref().unwrap();
    let kept: Vec<_> = promotion.accesses[&Place { slot: 1, argument: 0 }].values().collect();
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].offset, kept[0].in_memory), (0, false));
    let own: Vec<_> = promotion.accesses[&Place { slot: 0, argument: 1 }].values().collect();
    assert_eq!(own.len(), 1);
    // No access reads it in memory.
    assert!(!own[0].in_memory);
}

#[track_caller]
fn assert_kept(launches: &[Launch], why: &str) {
    let promotion = judged(OPTIMISED, &plan(launches, 64, &[1]), 1);
    assert_eq!(promotion.unwrap_err(), why);
}

#[test]
fn buffers_not_proven_private_stay_in_memory() {
    assert_kept(
        &[
            ("guarded", vec![buffer(0), buffer(1), int(60)]),
            ("scale", vec![buffer(1), buffer(2), float(1.0)]),
        ],
        "`scale` reads `src`, but not all of these bytes are certainly written before",
    );
}

#[test]
fn accesses_of_helper_functions_become_private() {
    for (bytes, launches) in [
        (
            ALL,
            [
                ("scale", vec![buffer(0), buffer(1), float(2.0)]),
                ("helped", vec![buffer(1), buffer(2)]),
            ],
        ),
        (
            ALL_PATTERNS,
            [("squared", vec![buffer(0), buffer(1)]), ("squared", vec![buffer(1), buffer(2)])],
        ),
    ] {
        for bytes in bytes {
            let (fused, text) = fused(bytes, &plan(&launches, 64, &[1]));
            assert_eq!(fused.internalized, [Memory(1)], "{text}");
        }
    }
}

#[test]
fn slices_of_one_memory_share_their_bytes() {
    let slice = |offset| Argument::Buffer(Region { memory: Memory(1), offset, length: 1024 });
    // Each work-item's element is at another place of the slice.
    let launches = [
        ("by_group", vec![buffer(0), slice(256)]),
        ("scale", vec![slice(256), buffer(2), float(1.0)]),
    ];
    let mut range = NdRange::from(NdSize::from(64));
    range.set_local(16.into()).unwrap();
    let mut plan = plan(&launches, 64, &[1]);
    plan.slots.iter_mut().for_each(|slot| slot.range = range);
    assert_eq!(fused(OPTIMISED, &plan).0.internalized, [Memory(1)]);
    // The whole memory is passed instead.
    let whole = Argument::Buffer(Region { memory: Memory(1), offset: 0, length: LENGTH });
    plan.slots[0].arguments[1] = whole.clone();
    plan.slots[1].arguments[0] = whole;
    assert_eq!(fused(OPTIMISED, &plan).0.internalized, [Memory(1)]);
}

#[test]
fn equal_guards_make_guarded_buffers_private() {
    for bytes in ALL {
        let launches = |n| {
            [
                ("guarded", vec![buffer(0), buffer(1), int(60)]),
                ("guarded", vec![buffer(1), buffer(2), int(60)]),
                ("guarded", vec![buffer(2), buffer(3), int(n)]),
            ]
        };
        let outcome = fuse_in(bytes, &plan(&launches(60), 64, &[1, 2]), Trust::ProofOnly);
        let fused = outcome.fused.unwrap();
        valid(&fused);
        assert_eq!(fused.internalized, [Memory(1), Memory(2)]);
        // The values themselves are not relied on, only that they are equal.
        assert!(outcome.constants.is_empty());
        let n = |slot| Place { slot, argument: 2 };
        let all = BTreeSet::from([n(0), n(1), n(2)]);
        assert_eq!(outcome.equal, BTreeSet::from([all.clone()]));
        assert!(outcome.unequal.is_empty());
        let parameters: Vec<_> = fused.parameters.iter().filter(|p| p.contains(&n(0))).collect();
        assert_eq!(parameters, [&Vec::from_iter(all)]);
        // A different bound is a different guard, even if it is lower.
        for other in [59, 61] {
            let outcome = fuse_in(bytes, &plan(&launches(other), 64, &[1, 2]), Trust::ProofOnly);
            assert_eq!(outcome.fused.unwrap().internalized, [Memory(1)]);
            assert_eq!(outcome.equal, BTreeSet::from([BTreeSet::from([n(0), n(1)])]));
            assert_eq!(outcome.unequal, BTreeSet::from([[n(1), n(2)]]));
        }
    }
}

#[test]
fn values_that_are_only_compared_stay_arguments() {
    for bytes in ALL {
        let launches = [
            ("guarded", vec![buffer(0), buffer(1), int(64)]),
            ("guarded", vec![buffer(1), buffer(2), int(65)]),
        ];
        let places = [0, 1].map(|slot| Place { slot, argument: 2 });
        let mut plan = plan(&launches, 64, &[1]);
        let outcome = fuse_in(bytes, &plan, Trust::ProofOnly);
        assert_eq!(outcome.constants, BTreeSet::from(places));
        assert!(outcome.injected.is_empty());
        let fused = outcome.fused.unwrap();
        assert_eq!(fused.internalized, [Memory(1)]);
        assert!(places.iter().all(|place| fused.parameters.contains(&vec![*place])));
        // Other global sizes make the same kernel.
        for slot in &mut plan.slots {
            slot.range = NdRange::from(NdSize::from(60));
        }
        let other = fuse_in(bytes, &plan, Trust::ProofOnly).fused.unwrap();
        assert_eq!(fused.module.assemble(), other.module.assemble());
    }
    // The bound of a loop becomes a constant.
    let launches = [("strided", vec![buffer(0), buffer(1), int(100)])];
    let outcome = fuse_in(PATTERNS, &plan(&launches, 64, &[]), Trust::ProofOnly);
    let n = BTreeSet::from([Place { slot: 0, argument: 2 }]);
    assert_eq!((&outcome.injected, &outcome.constants), (&n, &n));
}
