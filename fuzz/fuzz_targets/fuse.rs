//! Fuzz target for fusing kernels. The modules and the launches may come from arbitrary sources.
//!
//! No input may cause a panic, and the result must be a valid module.

#![no_main]

mod input;

use arbitrary::Arbitrary;
use input::Module;
use kiln::internal::fuzzing::fusion::exercise;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    first: Module<'a>,
    second: Option<Module<'a>>,
    choices: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let first = input.first.bytes();
    match input.second.map(|second| second.bytes()) {
        None => exercise(&[&first], input.choices),
        Some(second) => exercise(&[&first, &second], input.choices),
    }
});
