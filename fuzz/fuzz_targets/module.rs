//! Fuzz target for reading, pruning and linking SPIR-V modules from arbitrary sources.
//!
//! No input may cause a panic, or use of memory or time out of proportion to its size. If the input
//! modules are valid, the result must be valid.

#![no_main]

mod input;

use arbitrary::Arbitrary;
use input::Module;
use kiln::internal::fuzzing::spirv::exercise;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Anything(&'a [u8]),
    Modules(Module<'a>, Option<Module<'a>>),
}

fuzz_target!(|input: Input<'_>| match input {
    Input::Anything(bytes) => exercise(&[bytes]),
    Input::Modules(first, None) => exercise(&[&first.bytes()]),
    Input::Modules(first, Some(second)) => exercise(&[&first.bytes(), &second.bytes()]),
});
