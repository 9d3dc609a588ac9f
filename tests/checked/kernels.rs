//! Random kernels whose launches are checked, against the same kernels with guards that are written by hand.
//!
//! Buffers have random lengths, many of which are too short. A checked launch must leave all memory as the
//! reference does. Where the reference needs no guard, so must the kernel as it is, unchecked. `make test-races`
//! runs this on Oclgrind, which reports each access outside of its memory.

use super::random_kernels::compare::check;
use futures::executor::block_on;
use kiln::Runtime;
use support::tools::has_clang;

/// Number of random programs, unless `KILN_CHECKED_CASES` says another one.
const CASES: u64 = 1;

#[test]
fn random_kernels_do_what_guards_by_hand_do() {
    if !has_clang() {
        return;
    }
    let test = async |rt: Runtime| {
        check(&rt, CASES).await;
    };
    block_on(support::on_each_device(test));
}
