//! What reads, prunes and links SPIR-V modules, which may come from anywhere.
//!
//! Whatever the bytes, it must not panic, nor take memory or time beyond their size. What it makes
//! of modules that are in order must be in order.

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
