//! Cost of embedded device libraries: `cargo bench --bench embedded`.
//!
//! The libraries are made at compile time, like the element that `device_library!` makes of a file.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]
#![allow(long_running_const_eval, reason = "the libraries have 6.4 MB")]

mod support;

use std::time::Instant;

use futures_lite::future::block_on;
use kiln::embedded::{Aligned, Code, EMBEDDED, Embedded, linkme};
use kiln::simulated::Simulator;
use kiln::{Module, Result, Runtime};
use support::{absolute, interleave, time};

const SYMBOLS: usize = 1000;

/// Words of a module: 17 for all functions, and 16 for each.
const WORDS: usize = 17 + 16 * SYMBOLS;

/// Writes words one after the other.
struct Writer {
    bytes: [u8; WORDS * 4],
    end: usize,
}

impl Writer {
    const fn words<const N: usize>(&mut self, words: [u32; N]) {
        let mut at = 0;
        while at < N {
            let word = words[at].to_le_bytes();
            let mut byte = 0;
            while byte < 4 {
                self.bytes[self.end] = word[byte];
                self.end += 1;
                byte += 1;
            }
            at += 1;
        }
    }
}

/// Returns the name of a function as words: `sAA_BBBB`, with a NUL character behind it.
const fn name(library: u32, symbol: u32) -> [u32; 3] {
    const fn digit(number: u32, divisor: u32) -> u8 {
        b'0' + (number / divisor % 10) as u8
    }
    let (a, b) = (library, symbol);
    [
        u32::from_le_bytes([b's', digit(a, 10), digit(a, 1), b'_']),
        u32::from_le_bytes([digit(b, 1000), digit(b, 100), digit(b, 10), digit(b, 1)]),
        0,
    ]
}

/// Returns SPIR-V that exports functions without parameters and results.
const fn module(library: u32) -> [u8; WORDS * 4] {
    let mut writer = Writer { bytes: [0; WORDS * 4], end: 0 };
    let bound = 3 + 2 * SYMBOLS as u32;
    writer.words([0x0723_0203, 0x0001_0200, 0, bound, 0]);
    // OpCapability Addresses and Linkage, OpMemoryModel Physical64 OpenCL
    writer.words([2 << 16 | 17, 4, 2 << 16 | 17, 5, 3 << 16 | 14, 2, 2]);
    let mut symbol = 0;
    while symbol < SYMBOLS as u32 {
        let [a, b, c] = name(library, symbol);
        // OpDecorate LinkageAttributes Export
        writer.words([7 << 16 | 71, 3 + symbol, 41, a, b, c, 0]);
        symbol += 1;
    }
    // OpTypeVoid, OpTypeFunction
    writer.words([2 << 16 | 19, 1, 3 << 16 | 33, 2, 1]);
    let mut symbol = 0;
    while symbol < SYMBOLS as u32 {
        let label = 3 + SYMBOLS as u32 + symbol;
        // OpFunction, OpLabel, OpReturn, OpFunctionEnd
        writer.words([5 << 16 | 54, 1, 3 + symbol, 0, 2]);
        writer.words([2 << 16 | 248, label, 1 << 16 | 253, 1 << 16 | 56]);
        symbol += 1;
    }
    writer.bytes
}

macro_rules! embed {
    ($($tens:literal)*) => { $(embed!(@ten $tens: 0 1 2 3 4 5 6 7 8 9);)* };
    (@ten $tens:literal: $($ones:literal)*) => {
        $(const _: () = {
            static CODE: Aligned<[u8; WORDS * 4]> = Aligned(module($tens * 10 + $ones));
            #[linkme::distributed_slice(EMBEDDED)]
            #[linkme(crate = linkme)]
            static LIBRARY: Embedded = Embedded::new(
                Code::binary(&CODE),
                [env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), concat!($tens, $ones), file!()],
                line!(),
            );
        };)*
    };
}
embed!(0 1 2 3 4 5 6 7 8 9);

fn main() -> Result<()> {
    let simulator = Simulator::immediate();
    let start = |embedded| {
        let builder = Runtime::builder().simulator(&simulator).embedded_libraries(embedded);
        block_on(builder.build())
    };
    println!("\n{} embedded libraries of {SYMBOLS} symbols", EMBEDDED.len());
    let [with, without] = [true, false].map(|embedded| move || start(embedded));
    let build = |start: &dyn Fn() -> Result<Runtime>| time(|| drop(start().expect("it starts")));
    let [with, without] =
        interleave(200, [&mut || build(&with), &mut || build(&without)]).map(|it| it.as_nanos());
    let more = with as f64 - without as f64;
    absolute("a runtime, more than without them", more.max(0.0), 1e6);

    let rt = start(true)?;
    for (what, library, symbol) in [
        ("the first symbol", 0, 0),
        ("a symbol of another library", 99, 999),
        ("once more", 99, 999),
    ] {
        let application = Module::spirv(importer(library, symbol))?;
        let started = Instant::now();
        rt.build(&application).key()?;
        absolute(what, started.elapsed().as_nanos() as f64, 0.0);
    }
    Ok(())
}

/// Returns SPIR-V that imports a function of a library.
fn importer(library: u32, symbol: u32) -> Vec<u8> {
    let [a, b, c] = name(library, symbol);
    let words: [&[u32]; 4] = [
        &[0x0723_0203, 0x0001_0200, 0, 4, 0, 2 << 16 | 17, 4, 2 << 16 | 17, 5, 3 << 16 | 14, 2, 2],
        // OpDecorate LinkageAttributes Import
        &[7 << 16 | 71, 3, 41, a, b, c, 1],
        &[2 << 16 | 19, 1, 3 << 16 | 33, 2, 1],
        &[5 << 16 | 54, 1, 3, 0, 2, 1 << 16 | 56],
    ];
    words.concat().into_iter().flat_map(u32::to_le_bytes).collect()
}
