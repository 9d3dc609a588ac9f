//! Modules that break the rules of SPIR-V: a check and its guard must neither panic nor prove what is wrong.

use super::super::fuzzing::exercise;
use super::pixels::IMAGES;
use test_tools::damage::{Random, test_changed};

/// Modules with images, of several kinds and levels of optimisation, and one without.
const MODULES: [&[u8]; 5] = [
    IMAGES,
    IMAGES,
    include_bytes!("../../../../../tests/data/emitted/images_O2.spv"),
    include_bytes!("../../../../../tests/data/emitted/images_O0.spv"),
    include_bytes!("../../../../../tests/data/bounds/hazards.spv"),
];

/// Number of changed modules in a run.
const CHANGES: usize = 1500;

#[test]
fn randomly_changed_modules_are_proven_rightly_or_not_at_all() {
    // Some modules stay as they are, so that their launches alone are random.
    let changes = |random: &mut Random| random.below(4);
    test_changed(&MODULES, CHANGES, changes, |bytes, random| {
        for _ in 0..4 {
            let choices: Vec<_> = (0..96).map(|_| random.below(256) as u8).collect();
            exercise(bytes, &choices);
        }
    });
}
