//! Data that work-items of one work-group pass to each other.

use super::*;

pub(super) fn grouped(launches: &[Launch], dead: &[u32]) -> Plan {
    let mut plan = plan(launches, 256, dead);
    plan.slots.iter_mut().for_each(|slot| slot.range.set_local(64.into()).unwrap());
    plan
}

#[track_caller]
fn assert_barriers(bytes: &[u8], plan: &Plan, expected: &[usize]) {
    let (fused, text) = fused(bytes, plan);
    assert_eq!(Vec::from_iter(fused.barriers), expected);
    let entry = text.rfind("OpFunction ").unwrap();
    let count = text[entry..].matches("OpControlBarrier").count();
    assert_eq!(count, expected.len(), "{text}");
}

#[test]
fn barriers_are_inserted_where_a_work_group_shares_data() {
    for bytes in ALL_PATTERNS {
        let turn = |from, to| ("turned_in_memory", vec![buffer(from), buffer(to)]);
        assert_barriers(bytes, &grouped(&[turn(0, 1), turn(1, 2)], &[]), &[1]);
        // One barrier between the first and the last launch is enough, as late as possible.
        let launches = [turn(0, 1), turn(3, 4), turn(1, 2)];
        assert_barriers(bytes, &grouped(&launches, &[]), &[2]);
        // One barrier is also enough for several memories.
        let launches = [turn(0, 1), turn(3, 4), turn(1, 2), turn(4, 5)];
        assert_barriers(bytes, &grouped(&launches, &[]), &[2]);
        let launches = [turn(0, 1), turn(1, 2), turn(2, 3)];
        assert_barriers(bytes, &grouped(&launches, &[]), &[1, 2]);
        // Data must be read before it is overwritten.
        assert_barriers(bytes, &grouped(&[turn(0, 1), turn(2, 0)], &[]), &[1]);
    }
}

#[test]
fn values_of_a_work_group_are_read_behind_a_barrier() {
    for bytes in ALL_PATTERNS {
        let launches = [
            ("group_most", vec![buffer(0), buffer(1)]),
            ("group_scaled", vec![buffer(0), buffer(1), buffer(2)]),
        ];
        assert_barriers(bytes, &grouped(&launches, &[]), &[1]);
    }
}

#[test]
fn sharing_within_work_groups_of_unknown_size_needs_trust() {
    let launches = [
        ("turned_in_memory", vec![buffer(0), buffer(1)]),
        ("turned_in_memory", vec![buffer(1), buffer(2)]),
    ];
    for bytes in ALL_PATTERNS {
        let outcome = fuse_in(bytes, &plan(&launches, 256, &[]), Trust::ProofOnly);
        assert!(matches!(outcome.judgements[1].verdict, FusionVerdict::NeedsTrust(_)));
    }
}

#[test]
fn reading_neighbours_in_other_work_groups_refutes_fusion() {
    let launches =
        [("scale", vec![buffer(0), buffer(1), float(2.0)]), ("blur", vec![buffer(1), buffer(2)])];
    for bytes in ALL {
        let outcome = fuse_in(bytes, &grouped(&launches, &[]), Trust::ProofOnly);
        assert!(matches!(outcome.judgements[1].verdict, FusionVerdict::Refuted(_)));
    }
}

#[test]
fn each_pair_of_slots_that_shares_a_memory_has_its_own_verdict() {
    let launches = [
        ("scale", vec![buffer(0), buffer(1), float(2.0)]),
        ("turned", vec![buffer(1), buffer(2)]),
        ("blur", vec![buffer(1), buffer(3)]),
        ("gather", vec![buffer(1), buffer(4), buffer(5)]),
    ];
    for bytes in ALL {
        let outcome = fuse_in(bytes, &grouped(&launches, &[]), Trust::ProofOnly);
        let judgement = &outcome.judgements[1];
        let pairs: Vec<_> = judgement.pairs.iter().map(|(&pair, v)| (pair, v.name())).collect();
        let expected = [
            ((0, 1), "proven"),
            ((0, 2), "refuted"),
            ((0, 3), "needs trust"),
            // Both launches of these pairs only read.
            ((1, 2), "proven"),
            ((1, 3), "proven"),
            ((2, 3), "proven"),
        ];
        assert_eq!(pairs, expected);
        // The memory has the verdict of its worst pair, with its reason.
        assert_eq!(judgement.verdict, judgement.pairs[&(0, 2)]);
        assert!(outcome.judgements[0].pairs.is_empty());
    }
}

#[test]
fn pairs_that_a_barrier_makes_legal_are_proven() {
    let turn = |from, to| ("turned_in_memory", vec![buffer(from), buffer(to)]);
    for bytes in ALL_PATTERNS {
        let plan = grouped(&[turn(0, 1), turn(1, 2)], &[]);
        let outcome = fuse_in(bytes, &plan, Trust::ProofOnly);
        let shared = &outcome.judgements[1];
        assert_eq!(shared.pairs, [((0, 1), FusionVerdict::Proven)].into());
        assert_eq!(shared.barriers, [(0, 1)].into());
        let text = FusionReport::of(&plan, &outcome).to_string();
        for line in ["launches 0 and 1: proven, with a barrier between", "a barrier before it"] {
            assert!(text.contains(line), "{text}");
        }
    }
}

#[test]
fn barriers_order_partial_writes_with_other_accesses() {
    // Only the first 100 of 256 work-items write.
    let some = |from, to| ("guarded", vec![buffer(from), buffer(to), int(100)]);
    let all = |from, to| ("scale", vec![buffer(from), buffer(to), float(2.0)]);
    assert_barriers(OPTIMISED, &plan(&[some(0, 1), all(1, 2)], 256, &[]), &[1]);
    assert_barriers(OPTIMISED, &plan(&[all(0, 1), some(2, 1)], 256, &[]), &[1]);
    assert_barriers(OPTIMISED, &plan(&[some(0, 1), some(2, 3)], 256, &[]), &[]);
    assert_barriers(OPTIMISED, &plan(&[all(0, 1), all(1, 2)], 256, &[]), &[]);
    // Accesses to variables are in order, and data that is overwritten is not written to memory.
    assert_barriers(OPTIMISED, &plan(&[some(0, 1), some(1, 2)], 256, &[1]), &[]);
    assert_barriers(OPTIMISED, &plan(&[some(0, 1), all(2, 1)], 256, &[]), &[]);
    // By the specification, all accesses of a work-item are in order.
    for launches in [[some(0, 1), all(1, 2)], [all(0, 1), some(2, 1)]] {
        let mut kept = plan(&launches, 256, &[]);
        kept.target.order_own_accesses = false;
        assert_barriers(OPTIMISED, &kept, &[]);
    }
}

#[test]
fn values_that_helpers_keep_in_variables_need_no_barrier() {
    for bytes in ALL_PATTERNS {
        let line = |from, to| ("squared", vec![buffer(from), buffer(to)]);
        assert_barriers(bytes, &plan(&[line(0, 1), line(1, 2)], 256, &[]), &[]);
        assert_barriers(bytes, &plan(&[line(0, 1), line(2, 1)], 256, &[]), &[]);
        assert_barriers(bytes, &plan(&[line(0, 1), line(2, 0)], 256, &[]), &[]);
        let plane = |from, to| ("squared_plane", vec![buffer(from), buffer(to), int(16)]);
        assert_barriers(bytes, &plan(&[plane(0, 1), plane(1, 2)], [16, 8], &[]), &[]);
        assert_barriers(bytes, &plan(&[plane(0, 1), plane(2, 1)], [16, 8], &[]), &[]);
        assert_barriers(bytes, &plan(&[plane(0, 1), plane(2, 1)], [16, 1], &[]), &[]);
        assert_barriers(bytes, &plan(&[plane(0, 1), plane(2, 0)], [16, 8], &[]), &[]);
    }
}
