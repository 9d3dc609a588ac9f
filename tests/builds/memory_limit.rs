//! The memory limit in terms of what programs cost: drivers take far more memory for a small program than its binary
//! has.
//!
//! Memory is counted, and warnings are given, for a whole process, so tests of these have processes of their own.

#![allow(clippy::print_stderr, reason = "a log states the measurements")]

use std::fs;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use kiln::build::Origin;
use kiln::{Kernel, Module, Runtime};
use support::children::{Child, DEVICE, report, variable};
use support::log_recorder::LogRecorder;
use support::{everywhere, module_for, on_each_device, test_name};
use tracing::Level;

/// Memory limit with room for few programs of any driver.
const LOW: u64 = 4 << 20;

/// Time after which a warning counts as missing.
const MISSING: Duration = Duration::from_secs(60);

async fn module(rt: &Runtime, number: usize) -> Module {
    let body = format!("x[get_global_id(0)] = {number};");
    module_for(rt, &format!("kernel void write_number(global uint *x) {{ {body} }}")).await
}

/// Returns a runtime on the same device, with a memory limit and no program.
async fn limited(rt: &Runtime, bytes: u64) -> Runtime {
    let builder = support::builder().device(rt.device().index().to_string());
    builder.memory_limit(bytes).build().await.expect("it starts")
}

/// Builds a program and returns its kernel.
async fn kernel(rt: &Runtime, number: usize) -> Kernel {
    let program = rt.build(&module(rt, number).await).await.expect("it builds");
    // SAFETY: each work-item writes one element, and the buffers have as many elements as work-items.
    unsafe { program.kernel("write_number") }.expect("it exists")
}

everywhere! {
    async fn a_low_limit_evicts_small_programs(rt: Runtime) {
        let rt = limited(&rt, LOW).await;
        for number in 0..80 {
            let program = rt.build(&module(&rt, number).await).await.expect("it builds");
            assert_eq!(program.origin(), Origin::Compiled);
            drop(program);
            let stats = rt.stats();
            assert!(stats.memory.bytes_estimated <= LOW, "{stats:?}");
            assert!(stats.memory.bytes < stats.memory.bytes_estimated, "{stats:?}");
        }
        let stats = rt.stats();
        assert!(stats.memory.programs > 0, "{stats:?}");
        assert!(stats.memory.programs < 80, "{stats:?}");
        assert_eq!(stats.memory.evictions, 80 - stats.memory.programs, "{stats:?}");
        // The least recently used programs were evicted.
        let last = rt.build(&module(&rt, 79).await).await.expect("it builds");
        assert_eq!(last.origin(), Origin::Memory);
        let first = rt.build(&module(&rt, 0).await).await.expect("it builds");
        assert_eq!(first.origin(), Origin::Compiled);
    }
}

everywhere! {
    async fn evicted_programs_that_are_held_are_found_and_run(rt: Runtime) {
        let rt = limited(&rt, LOW).await;
        let mut kernels = Vec::new();
        for number in 0..40 {
            kernels.push(kernel(&rt, number).await);
        }
        let stats = rt.stats();
        assert!(stats.memory.evictions > 0, "{stats:?}");
        assert_eq!(stats.builds.compiles, 40);
        for (number, kernel) in kernels.iter().enumerate() {
            let program = rt.build(&module(&rt, number).await).await.expect("it builds");
            assert_eq!(program.origin(), Origin::Memory, "program {number}");
            let x = rt.buffer_from(vec![u32::MAX; 4]).await.expect("it is allocated");
            rt.queue().submit(kernel.launch(4).args((&x,))).expect("it is accepted").await.expect("it runs");
            assert_eq!(rt.queue().read(&x).await.expect("it runs"), [number as u32; 4]);
        }
        let stats = rt.stats();
        assert_eq!(stats.builds.compiles, 40, "none was compiled again");
        assert!(stats.memory.bytes_estimated <= LOW, "{stats:?}");
    }
}

/// Starts a runtime in a child, on the device that its parent names.
fn start(bytes: u64) -> Runtime {
    let builder = support::builder().device(variable(DEVICE));
    block_on(builder.memory_limit(bytes).build()).expect("it starts")
}

/// Returns the warnings so far about the memory limit.
fn warnings(log: &LogRecorder) -> Vec<String> {
    let mut messages = log.at(Level::WARN);
    messages.retain(|text| text.contains("memory limit"));
    messages
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn programs_are_built_and_held() {
    let log = LogRecorder::install();
    let rt = start(LOW);
    block_on(async {
        for number in 0..60 {
            drop(kernel(&rt, number).await);
        }
        assert_eq!(warnings(&log), Vec::<String>::new(), "nothing is held");
        let mut held = Vec::new();
        for number in 0..60 {
            held.push(kernel(&rt, number).await);
        }
        let started = Instant::now();
        while warnings(&log).is_empty() && started.elapsed() < MISSING {
            thread::sleep(Duration::from_millis(10));
        }
        for number in 60..70 {
            held.push(kernel(&rt, number).await);
        }
    });
    let warnings = warnings(&log);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in ["programs in use take about", "limit of 4.0 MiB", "RuntimeBuilder::memory_limit"] {
        assert!(warnings[0].contains(part), "{warnings:?}");
    }
    report("warnings", warnings.len());
}

#[test]
fn one_warning_says_that_the_programs_in_use_exceed_the_limit() {
    block_on(on_each_device(async |rt| {
        let child = Child::start_on(rt.device(), &test_name!("programs_are_built_and_held"));
        assert_eq!(child.report()["warnings"], 1);
    }));
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn no_program_fits() {
    let log = LogRecorder::install();
    let rt = start(16 << 10);
    block_on(async {
        for number in 0..10 {
            drop(kernel(&rt, number).await);
        }
    });
    let (warnings, stats) = (warnings(&log), rt.stats());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in ["no program of", "MiB for each", "RuntimeBuilder::memory_limit"] {
        assert!(warnings[0].contains(part), "{warnings:?}");
    }
    assert_eq!((stats.memory.programs, stats.memory.bytes_estimated), (0, 0), "{stats:?}");
    report("warnings", warnings.len());
}

#[test]
fn one_warning_says_that_the_limit_is_below_what_any_program_takes() {
    block_on(on_each_device(async |rt| {
        let child = Child::start_on(rt.device(), &test_name!("no_program_fits"));
        assert_eq!(child.report()["warnings"], 1);
    }));
}

fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").expect("it is readable");
    let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    resident.expect("it is a number") * rustix::param::page_size() as u64
}

/// Number of programs that a child builds first, and then of those whose memory it measures.
const FIRST: usize = 40;
const MEASURED: usize = 80;

#[test]
#[ignore = "run by another test, in a process of its own"]
fn programs_take_memory() {
    let rt = start(1 << 30);
    block_on(async {
        // PoCL keeps what it has compiled in files. The first programs load the compiler, and the estimate follows
        // the latest 32 programs.
        let new = process::id() as usize * 1000;
        for number in new..new + FIRST {
            drop(kernel(&rt, number).await);
        }
        let (before, first) = (resident_bytes(), rt.stats().memory.bytes_estimated);
        for number in new + FIRST..new + FIRST + MEASURED {
            drop(kernel(&rt, number).await);
        }
        report("measured", resident_bytes().saturating_sub(before));
        report("estimated", rt.stats().memory.bytes_estimated - first);
    });
}

#[test]
fn the_estimate_follows_what_programs_take() {
    block_on(on_each_device(async |rt| {
        let child = Child::start_on(rt.device(), &test_name!("programs_take_memory"));
        let report = child.report();
        let (measured, estimated) = (report["measured"], report["estimated"]);
        eprintln!("{}: {measured} bytes measured, {estimated} estimated", rt.device());
        assert!(estimated < 3 * measured && measured < 3 * estimated, "{report:?}");
    }));
}
