//! Fuzz target for checked launches. The modules, the ranges and the lengths may come from arbitrary sources.
//!
//! No input may cause a panic. What a check proves must hold when an interpreter runs the kernel, and so must what
//! a guarded variant promises.

#![no_main]

mod input;

use arbitrary::Arbitrary;
use input::Module;
use kiln::internal::fuzzing::bounds::exercise;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    module: Module<'a>,
    choices: &'a [u8],
}

fuzz_target!(|input: Input<'_>| exercise(&input.module.bytes(), input.choices));
