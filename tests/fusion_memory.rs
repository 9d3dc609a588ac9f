//! Memory that is kept for scopes whose fastest way to run is not known yet.
//!
//! This is the only test in its binary: the allocator counts for the whole process.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

#[path = "support/simulation.rs"]
mod simulation;

use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{FusionMode, Module, Runtime};
use peak_alloc::PeakAlloc;
use rspirv::spirv::Op;
use simulation::runtime_with;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Module of `data/fusion.cl`.
const FUSION: &[u8] = include_bytes!("data/fusion.spv");

const ELEMENTS: usize = 64;

/// Number of launches of a scope.
const LAUNCHES: u32 = 8;

/// Number of bytes of a name in the module.
const LARGE: usize = 200 << 10;

/// Returns the module with a large name for a kernel that no scope launches.
fn large_module() -> Module {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let mut words: Vec<u32> = FUSION.chunks_exact(4).map(word).collect();
    let (mut at, mut kernels) = (5, Vec::new());
    loop {
        match Op::from_u32(words[at] & 0xFFFF).unwrap() {
            Op::EntryPoint => kernels.push(words[at + 2]),
            Op::Name => break,
            _ => {}
        }
        at += (words[at] >> 16) as usize;
    }
    let length = (3 + LARGE / 4) as u32;
    let mut name = vec![length << 16 | Op::Name as u32, *kernels.last().unwrap()];
    name.extend([u32::from_le_bytes(*b"name")].repeat(LARGE / 4));
    name.push(0);
    words.splice(at..at, name);
    Module::spirv(words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap()
}

/// Returns the kernels of the launches of a scope. Each number below 2 to the power of [`LAUNCHES`] gives others.
fn names_of_scope(number: usize) -> Vec<&'static str> {
    (0..LAUNCHES).map(|bit| ["scale", "offset"][number >> bit & 1]).collect()
}

#[test]
fn scopes_that_are_still_tried_keep_little_memory() {
    let scopes = 1 << LAUNCHES;
    let simulator = Simulator::immediate().fusing();
    // The tests of other suites check results.
    for name in ["scale", "offset"] {
        simulator.kernel(name, |_| {});
    }
    for number in 0..scopes {
        simulator.kernel(format!("fused_{}", names_of_scope(number).join("_")), |_| {});
    }
    block_on(async {
        let rt = runtime_with(&simulator, Runtime::builder().fusion(FusionMode::Auto)).await;
        let program = rt.build(&large_module()).await.unwrap();
        let buffer = rt.buffer_from(vec![1.0f32; ELEMENTS]).await.unwrap();
        let run = async |number| {
            let scope = rt.queue().start_fusion();
            for name in names_of_scope(number) {
                // SAFETY: the closure does nothing.
                let kernel = unsafe { program.kernel(name) }.unwrap();
                scope.submit(kernel.launch(ELEMENTS).args((&buffer, &buffer, 2.0f32))).unwrap();
            }
            let outcome = scope.complete().await.unwrap();
            assert!(outcome.is_fused(), "{outcome}");
        };
        for number in 0..scopes / 2 {
            run(number).await;
        }
        let before = MEMORY.current_usage();
        for number in scopes / 2..scopes {
            run(number).await;
        }
        let each = MEMORY.current_usage().saturating_sub(before) / (scopes / 2);
        assert!(each < 100 << 10, "{each} bytes for each scope");
    });
}
