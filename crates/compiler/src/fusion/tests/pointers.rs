//! Pointers that are not followed: each may point to any of the buffers that it was derived from.

use super::*;

/// Asserts that a launch may write to the whole of a buffer, and that the buffer's contents stay in memory.
#[track_caller]
fn assert_any(bytes: &[u8], second: Launch, memory: u32) {
    let launches = [("guarded_inside", vec![buffer(0), buffer(1), int(64)]), second.clone()];
    let plan = plan(&launches, 64, &[1, 2]);
    let outcome = fuse_in(bytes, &plan, Trust::ProofOnly);
    let judgement = outcome.judgements.iter().find(|j| j.memory == Memory(memory)).unwrap();
    assert!(matches!(judgement.verdict, FusionVerdict::NeedsTrust(_)), "{second:?}: {judgement:?}");
    let trusted = fuse_in(bytes, &plan, Trust::Caller).fused.unwrap();
    valid(&trusted);
    assert!(!trusted.internalized.contains(&Memory(memory)));
}

#[test]
fn a_pointer_that_is_stored_twice_is_followed() {
    let twice = ("twice_stored", vec![buffer(1), buffer(2)]);
    let launches = [("guarded_inside", vec![buffer(0), buffer(1), int(64)]), twice];
    // Without optimisation, the pointer is a variable, which becomes one value for each store.
    for bytes in ALL_PATTERNS {
        let (fused, _) = fused(bytes, &plan(&launches, 64, &[1, 2]));
        assert_eq!(fused.internalized, [Memory(1), Memory(2)]);
    }
}

#[test]
fn pointers_that_are_stored_in_an_array_are_not_followed() {
    for bytes in ALL_PATTERNS {
        let several = ("one_of_several", vec![buffer(1), buffer(2), buffer(3)]);
        assert_any(bytes, several, 1);
    }
}

#[test]
fn a_pointer_that_moves_in_a_loop_is_not_followed() {
    for bytes in ALL_PATTERNS {
        assert_any(bytes, ("walked", vec![buffer(1), int(2)]), 1);
    }
}

#[test]
fn volatile_accesses_stay_in_memory() {
    for bytes in ALL_PATTERNS {
        let launches = [
            ("guarded_inside", vec![buffer(0), buffer(1), int(64)]),
            ("volatile_twice", vec![buffer(1)]),
            ("guarded_inside", vec![buffer(1), buffer(2), int(64)]),
        ];
        let (fused, text) = fused(bytes, &plan(&launches, 64, &[1]));
        assert!(fused.internalized.is_empty());
        let volatile = text.lines().filter(|line| line.contains("Volatile"));
        assert_eq!(volatile.count(), 2);
    }
}
