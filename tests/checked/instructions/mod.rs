//! The analysis of checked launches, instruction by instruction, against the drivers.
//!
//! A driver calculates the results of each instruction that is modelled, at each width and with each
//! decoration: for all pairs of integers of 8 bits, and for integers around the edges of 16 to 64 bits. The
//! results are the indexes of writes to a buffer. The verdict on a launch whose buffer is one byte too short
//! must never be that it is proven. Where the buffer fits exactly, it should be. Some launches are executed,
//! between bytes that must not change.
//!
//! `KILN_INSTRUCTION_CASES` sets the number of cases, which `KILN_SEED` chooses. `KILN_TEST_INSTRUCTION` tests only
//! the cases of an instruction, such as `UMod`.

#![allow(clippy::print_stderr, reason = "a log tells what was tested")]

mod cases;
mod emit;
mod grids;
mod list;
mod oracle;
mod tables;

use std::collections::BTreeSet;

use fastrand::Rng;
use futures::executor::block_on;
use kiln::internal::bounds::instructions_with_ranges;
use kiln::{ErrorKind, Module, Runtime};
use rspirv::spirv::Op;
use support::tier;

use cases::{Case, Entry, Usage};
use list::{COVERED, Code, Decorated, Form, Instruction, REFUSED};
use oracle::{Counts, Effort, check};

/// Numbers of cases in the full and in the fast tier. `make soak-instructions` has all, which take long without
/// optimization.
const CASES: [usize; 2] = [400, 40];

/// Grids of operands of each case.
const GRIDS: [usize; 2] = [30, 10];

/// Number of cases of which one is executed.
const PER_EXECUTED: [usize; 2] = [6, 8];

fn effort() -> Effort {
    let tier = usize::from(!tier::is_full());
    Effort { grids: GRIDS[tier], per_executed: PER_EXECUTED[tier], executed: 1 }
}

#[test]
fn no_short_buffer_is_proven_for_any_instruction() {
    let seed = std::env::var("KILN_SEED").map(|seed| seed.parse().expect("it is a number"));
    let seed = seed.unwrap_or_else(|_| fastrand::u64(..1 << 32));
    let number = tier::cases("KILN_INSTRUCTION_CASES", CASES[0], CASES[1]);
    block_on(support::on_each_device(async |rt| {
        let mut rng = Rng::with_seed(seed);
        let mut all = cases::all(&mut rng);
        let only = std::env::var("KILN_TEST_INSTRUCTION").ok();
        all.retain(|case| {
            only.as_ref().is_none_or(|name| case.entry.instruction.code.name() == *name)
        });
        let tried = &all[..number.min(all.len())];
        eprintln!("KILN_SEED={seed}: {} of {} cases", tried.len(), all.len());
        let mut counts = check(&rt, tried, effort(), &mut rng, None).await;
        refuse(&rt, &mut counts).await;
        eprintln!("{counts:?}");
        let first: Vec<_> = counts.violations.iter().take(10).collect();
        assert!(first.is_empty(), "{} violations: {first:#?}", counts.violations.len());
        if only.is_none() {
            assert_enough(&counts, tried.len() as u64);
        }
        if only.is_none() && tried.len() == all.len() {
            assert_followed(&counts);
        }
    }));
}

/// Asserts that launches of each kind were tested.
fn assert_enough(counts: &Counts, cases: u64) {
    assert!(counts.not_built <= cases / 4, "{counts:?}");
    assert!(counts.proven >= cases / 2 && counts.guarded >= cases / 2, "{counts:?}");
    assert!(counts.undefined > 0 && counts.short >= 10 * cases, "{counts:?}");
    assert!(counts.agreed >= cases / 2, "{counts:?}");
    assert_eq!(counts.refused, REFUSED.len() as u64, "{counts:?}");
    assert!(counts.executed_proven + counts.executed_guarded >= cases / 8, "{counts:?}");
    // With few cases, it may be that no launch is proven whose bytes fit into a buffer that is executed.
    assert!(cases < 100 || counts.executed_proven >= cases / 50, "{counts:?}");
}

/// Asserts that some launch of each instruction that the analysis follows was proven.
fn assert_followed(counts: &Counts) {
    let is_missing = |at: &usize| COVERED[*at].is_followed && !counts.followed.contains(at);
    let missing = (0..COVERED.len()).filter(is_missing);
    let missing: Vec<_> = missing.map(|at| (COVERED[at].code, COVERED[at].form)).collect();
    assert!(missing.is_empty(), "no launch is proven of {missing:?}");
}

/// Builds kernels with instructions that checked kernels must not have.
async fn refuse(rt: &Runtime, counts: &mut Counts) {
    for instruction in REFUSED {
        let entry = entry(instruction, Decorated::Plain, 32);
        let case = Case { entry, usage: Usage::Index, is_signed: false };
        let module = Module::spirv(emit::indexes(&[case])).expect("it is a module");
        let error = rt.build(&module).checked().await.map(drop).expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        counts.refused += 1;
    }
}

fn entry(instruction: &'static Instruction, decorated: Decorated, width: u32) -> Entry {
    Entry { instruction, decorated, width, is_lanes: false }
}

/// Returns the cases of an instruction's results as indexes.
fn cases_of(op: Op, form: Form, decorated: Decorated, width: u32) -> Vec<Case> {
    let is_own = |known: &&Instruction| known.code == Code::Core(op) && known.form == form;
    let entry = entry(COVERED.iter().find(is_own).expect("it is covered"), decorated, width);
    [false, true].map(|is_signed| Case { entry, usage: Usage::Index, is_signed }).to_vec()
}

#[test]
fn wrong_results_are_found() {
    block_on(support::on_each_device(async |rt| {
        let effort = Effort { grids: 12, per_executed: 1, executed: 12 };
        let mut rng = Rng::with_seed(7);
        let sums = cases_of(Op::IAdd, Form::Plain, Decorated::Plain, 16);
        let change = |entry: &Entry, _, sum: u64| (sum + 1) & emit::mask(entry.width);
        let counts = check(&rt, &sums, effort, &mut rng, Some(change)).await;
        let is_proven = |text: &String| text.starts_with("a short buffer is proven");
        assert!(counts.violations.iter().any(is_proven), "{counts:?}");

        let saturated = cases_of(Op::SConvert, Form::Convert(8), Decorated::Saturated, 16);
        let truncated = |_: &Entry, operands: [u64; 3], _| operands[0] & 0xff;
        let counts = check(&rt, &saturated, effort, &mut rng, Some(truncated)).await;
        let differs = |text: &String| text.starts_with("the slice has other bytes");
        assert!(counts.violations.iter().any(differs), "{counts:?}");
    }));
}

#[test]
fn every_instruction_with_a_range_is_covered() {
    let covered: BTreeSet<_> = COVERED.iter().map(|known| known.code.name()).collect();
    let all = instructions_with_ranges();
    assert!(all.len() > 40, "{all:?}");
    let missing: Vec<_> = all.difference(&covered).collect();
    assert!(missing.is_empty(), "the oracle does not cover {missing:?}");
}
