//! Memory that is kept for scopes: the input of trials, and the kernels.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use std::time::{Duration, Instant};

use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{FusionMode, Module, Runtime};
use rspirv::spirv::Op;
use support::scopes::is_overdue;
use support::simulation::{eventually, runtime_with};

use crate::{MEMORY, alone};

/// Module of `data/fusion.cl`.
const FUSION: &[u8] = include_bytes!("../data/fusion.spv");

/// Module of `data/stencils.cl`.
const STENCILS: &[u8] = include_bytes!("../data/stencils.spv");

const ELEMENTS: usize = 64;

/// Width and height of a picture, in pixels.
const SIDE: usize = 64;

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
    let _alone = alone();
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
        let run = async |number| loop {
            let scope = rt.queue().start_fusion();
            for name in names_of_scope(number) {
                // SAFETY: the closure does nothing.
                let kernel = unsafe { program.kernel(name) }.unwrap();
                scope.submit(kernel.launch(ELEMENTS).args((&buffer, &buffer, 2.0f32))).unwrap();
            }
            let outcome = scope.complete().await.unwrap();
            if outcome.is_fused() {
                break;
            }
            assert!(is_overdue(&outcome), "{outcome}");
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

#[test]
fn kernels_that_lost_the_trials_are_freed() {
    let _alone = alone();
    let simulator = Simulator::immediate().fusing();
    for name in ["blur_x", "blur_y", "fused_blur_x_blur_y"] {
        simulator.kernel(name, |_| {});
    }
    block_on(async {
        // Programs are kept by those that use them only.
        let builder = Runtime::builder().fusion(FusionMode::Auto).memory_limit(0);
        let rt = runtime_with(&simulator, builder).await;
        let program = rt.build(&Module::spirv(STENCILS).unwrap()).await.unwrap();
        // SAFETY: the closures do nothing.
        let blurs = ["blur_x", "blur_y"].map(|name| unsafe { program.kernel(name) }.unwrap());
        let [src, dst] = [(); 2].map(|()| rt.buffer::<[f32; 4]>(SIDE * SIDE).unwrap());
        let mut most_programs = 0;
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(60) {
            let between = rt.buffer::<[f32; 4]>(SIDE * SIDE).unwrap();
            let scope = rt.queue().start_fusion();
            let [blur_x, blur_y] = &blurs;
            scope.submit(blur_x.launch([SIDE, SIDE]).args((&src, &between))).unwrap();
            scope.submit(blur_y.launch([SIDE, SIDE]).args((&between, &dst))).unwrap();
            drop(between);
            scope.complete().await.unwrap();
            most_programs = most_programs.max(simulator.counts().live_programs);
            let report = scope.report();
            // A scope whose kernel is built for longer than it waits has no parts.
            let part = report.parts().first();
            if part.is_some_and(|part| part.ways.iter().any(|way| way.is_chosen)) {
                assert!(most_programs > 2, "{report}");
                // One is the program of the launches.
                eventually("one fused kernel is left", || simulator.counts().live_programs == 2);
                return;
            }
        }
        panic!("the trials do not end");
    });
}
