//! Fuzz target for the translation of SPIR-V modules from arbitrary sources to OpenCL C.
//!
//! No input may cause a panic, or unbounded use of memory or time. Translating a module twice must
//! produce the same text.

#![no_main]

mod input;

use arbitrary::Arbitrary;
use input::Module;
use kiln::internal::spirv::emit;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Anything(&'a [u8]),
    Module(Module<'a>),
}

fuzz_target!(|input: Input<'_>| {
    let exercise = |bytes: &[u8]| {
        if let Ok(text) = emit(bytes) {
            assert_eq!(emit(bytes).expect("it was translated just now"), text);
        }
    };
    match input {
        Input::Anything(bytes) => exercise(bytes),
        Input::Module(module) => exercise(&module.bytes()),
    }
});
