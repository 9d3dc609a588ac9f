//! Contents of memories that become private, and contents that still reach memory.

use kiln_spirv::edit::View;

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
    let is_global = |pointer: u32| {
        let ty = definitions.type_of(pointer);
        ty.and_then(|ty| ty.storage_class()) == Some(StorageClass::CrossWorkgroup as u32)
    };
    let body = fused.module.functions.iter().flat_map(|function| function.body.iter());
    let (mut loads, mut stores) = (0, 0);
    for i in body {
        match i.view() {
            View::Load { pointer, .. } if is_global(pointer) => loads += 1,
            View::Store { pointer, .. } if is_global(pointer) => stores += 1,
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
