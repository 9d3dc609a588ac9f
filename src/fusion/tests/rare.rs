//! Kernels as compilers seldom write them: of accesses to whole values some bytes of which are not
//! touched.

use super::groups::grouped;
use super::*;

const RARE: &[u8] = include_bytes!("../../../tests/data/rare.spv");

/// That a memory that two launches use is kept in no variable.
#[track_caller]
fn assert_in_memory(launches: &[Launch], why: &str) {
    let plan = plan(launches, 64, &[]);
    let outcome = fuse_in(RARE, &plan, Trust::ProofOnly);
    let fused = outcome.fused.unwrap();
    valid(&fused);
    assert_eq!(outcome.judgements[0].promotion.as_ref().unwrap_err(), why);
}

#[test]
fn bytes_that_a_store_skips_are_read_from_memory() {
    let why = |kernel| format!("`{kernel}` reads `src` before all of that is surely written");
    let filled = ("filled", vec![buffer(0), float(1.5)]);
    let fourth = ("fourth", vec![buffer(0), buffer(1)]);
    assert_in_memory(&[filled, fourth.clone()], &why("fourth"));
    assert_in_memory(&[("arrays", vec![buffer(0), float(1.5)]), fourth], &why("fourth"));
    let byte = ("byte", vec![buffer(0), buffer(1)]);
    assert_in_memory(&[("padded", vec![buffer(0)]), byte], &why("byte"));
}

#[test]
fn what_a_later_store_skips_is_written() {
    let fourths = ("fourths", vec![buffer(0), float(0.5)]);
    let filled = ("filled", vec![buffer(0), float(1.5)]);
    assert_in_memory(&[fourths, filled], "its contents may be read later");
}

#[test]
fn bytes_that_a_store_skips_are_not_local() {
    let launches =
        [("filled", vec![buffer(0), float(1.5)]), ("fourth", vec![buffer(0), buffer(1)])];
    let forms = BTreeMap::from([(Memory(0), Internalization::Local)]);
    let plan = Plan { forms, ..grouped(&launches, &[0]) };
    let outcome = fuse_in(RARE, &plan, Trust::ProofOnly);
    assert_eq!(
        outcome.judgements[0].locality.as_ref().unwrap_err(),
        "`filled` writes `x` in a way that only memory allows"
    );
    assert!(outcome.fused.unwrap().internalized.is_empty());
}
