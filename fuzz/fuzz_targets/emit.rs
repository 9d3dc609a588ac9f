//! What translates SPIR-V modules, which may come from anywhere, to OpenCL C.
//!
//! Whatever the bytes, it must not panic, nor take memory or time that does not end, and of the same
//! module it must make the same text.

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
