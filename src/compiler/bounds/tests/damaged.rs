//! Modules that break the rules of SPIR-V: a check and its guard must neither panic nor prove what is wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::fuzzing::exercise;
use super::pixels::IMAGES;
use crate::compiler::damage_tests::{Random, assemble, change, instructions};

/// Modules with images, of several kinds and levels of optimisation, and one without.
const MODULES: [&[u8]; 5] = [
    IMAGES,
    IMAGES,
    include_bytes!("../../../../tests/data/emitted/images_O2.spv"),
    include_bytes!("../../../../tests/data/emitted/images_O0.spv"),
    include_bytes!("../../../../tests/data/bounds/hazards.spv"),
];

/// Number of changed modules in a run; the environment variable `KILN_MALFORMED` sets another number.
const CHANGES: u64 = 1500;

#[test]
fn randomly_changed_modules_are_proven_rightly_or_not_at_all() {
    let requested = std::env::var("KILN_MALFORMED").ok().and_then(|number| number.parse().ok());
    let all: Vec<_> = MODULES.iter().map(|bytes| instructions(bytes)).collect();
    for seed in 1..=requested.unwrap_or(CHANGES) {
        let mut random = Random::of(seed);
        let module = random.below(all.len());
        let mut changed = all[module].clone();
        // Some modules stay as they are, so that their launches alone are random.
        for _ in 0..random.below(4) {
            change(&mut changed, &mut random);
        }
        let bytes = assemble(&changed);
        for _ in 0..4 {
            let choices: Vec<_> = (0..96).map(|_| random.below(256) as u8).collect();
            let caught = catch_unwind(AssertUnwindSafe(|| exercise(&bytes, &choices)));
            assert!(caught.is_ok(), "module {module}, seed {seed}");
        }
    }
}
