//! Indexes, calculated as programs commonly calculate them.

use super::*;

#[test]
fn an_index_split_in_rows_and_columns_is_the_index() {
    for bytes in ALL_PATTERNS {
        let launches = [
            ("split", vec![buffer(0), buffer(1), int(16)]),
            ("split_signed", vec![buffer(1), buffer(2), int(7)]),
            ("guarded_inside", vec![buffer(2), buffer(3), int(1000)]),
        ];
        let (fused, _) = fused(bytes, &plan(&launches, 64, &[1, 2]));
        assert_eq!(fused.internalized, [Memory(1), Memory(2)]);
        // With rows and columns exchanged, the launches use different elements.
        let launches = [
            ("split_transposed", vec![buffer(0), buffer(1), int(8), int(8)]),
            ("split", vec![buffer(1), buffer(2), int(16)]),
        ];
        let outcome = fuse_in(bytes, &plan(&launches, 64, &[]), Trust::ProofOnly);
        assert!(matches!(outcome.judgements[1].verdict, FusionVerdict::NeedsTrust(_)));
    }
}

#[test]
fn strided_loops_of_work_items_do_not_overlap() {
    let strided = |kernel, from, to, n| (kernel, vec![buffer(from), buffer(to), int(n)]);
    let launches = [strided("strided", 0, 1, 1000), strided("strided_int", 1, 2, 900)];
    fused(PATTERNS, &plan(&launches, 64, &[]));
    let launches = [strided("strided", 0, 1, 1000), strided("guarded_inside", 1, 2, 60)];
    fused(PATTERNS, &plan(&launches, 64, &[]));
    // The elements of the second launch are shifted by one.
    let slice = Argument::Buffer(Region { memory: Memory(1), offset: 4, length: LENGTH - 4 });
    let launches = [strided("strided", 0, 1, 900), ("strided", vec![slice, buffer(2), int(900)])];
    let outcome = fuse_in(PATTERNS, &plan(&launches, 64, &[]), Trust::ProofOnly);
    assert!(matches!(outcome.judgements[1].verdict, FusionVerdict::NeedsTrust(_)));
}

#[test]
fn pairs_of_elements_become_private() {
    for bytes in ALL_PATTERNS {
        let launches =
            [("pairs", vec![buffer(0), buffer(1)]), ("pairs", vec![buffer(1), buffer(2)])];
        let (fused, _) = fused(bytes, &plan(&launches, 64, &[1]));
        assert_eq!(fused.internalized, [Memory(1)]);
    }
}

#[test]
fn guards_of_two_dimensions_are_compared() {
    for bytes in ALL_PATTERNS {
        let guarded = |from, to, height| {
            ("guarded_plane", vec![buffer(from), buffer(to), int(10), int(height)])
        };
        let launches = [guarded(0, 1, 12), guarded(1, 2, 12), guarded(2, 3, 11)];
        let (fused, _) = fused(bytes, &plan(&launches, [16, 16], &[1, 2]));
        assert_eq!(fused.internalized, [Memory(1)]);
    }
}

#[test]
fn conditions_on_data_are_not_guards() {
    for bytes in ALL_PATTERNS {
        let by_data = |from, to| ("guarded_by_data", vec![buffer(from), buffer(to), float(1.0)]);
        let (fused, _) = fused(bytes, &plan(&[by_data(0, 1), by_data(1, 2)], 64, &[1]));
        assert!(fused.internalized.is_empty());
    }
}

#[test]
fn loops_that_read_their_own_writes_also_write_to_memory() {
    let launches =
        [("repeated", vec![buffer(1), buffer(1)]), ("repeated", vec![buffer(1), buffer(2)])];
    let outcome = fuse_in(PATTERNS, &plan(&launches, 64, &[1]), Trust::ProofOnly);
    valid(outcome.fused.as_ref().unwrap());
    let promotion = outcome.judgements[0].promotion.as_ref().unwrap();
    let kept = |slot, argument| promotion.accesses[&Place { slot, argument }].values().next();
    // The first launch writes to memory as well, because its own loop reads there.
    assert!(kept(0, 1).unwrap().in_memory);
    assert!(!kept(1, 0).unwrap().in_memory);
}
