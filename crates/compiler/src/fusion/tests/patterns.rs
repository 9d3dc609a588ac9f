//! Loops of a kernel over a memory that it also writes.

use super::*;

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
