//! A service with ever new programs under a memory limit, beside a program that makes the same calls of the driver.
//!
//! No program of the service is used again, so each is loaded, kept and evicted. Drivers keep a part of each freed
//! program; the service may not grow by more than that.

#![cfg(feature = "opencl")]
#![allow(clippy::print_stderr, reason = "a log states the measurements")]

use std::collections::VecDeque;
use std::fs;
use std::process;
use std::ptr;
use std::time::{Duration, Instant};

use cl3::kernel::{create_kernels_in_program, release_kernel};
use cl3::program::{build_program, create_program_with_source, release_program};
use futures::executor::block_on;
use kiln::build::Origin;
use kiln::{Module, Runtime};
use support::children::{Child, DEVICE, report, variable};
use support::{on_each_device, test_name};

/// Environment variable with the number of seconds for which the service runs on each device.
const SECONDS: &str = "KILN_SOAK_SECONDS";

/// Environment variables with the number of programs that are loaded before the measurement, and in all, and of those
/// that exist at these two times.
const FIRST: &str = "KILN_TEST_FIRST";
const LOADS: &str = "KILN_TEST_LOADS";
const KEPT_FIRST: &str = "KILN_TEST_KEPT_FIRST";
const KEPT: &str = "KILN_TEST_KEPT";

/// Memory limit of the service, and the one for a short run, which has to reach it soon.
const LIMIT: u64 = 64 << 20;
const SHORT_LIMIT: u64 = 8 << 20;

/// Growth of the process of the service, relative to the one that calls the driver, and in bytes for what differs
/// once.
const MAX_RATIO: f64 = 1.2;
const MAX_DIFFERENCE: u64 = 16 << 20;

fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").expect("it is readable");
    let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    resident.expect("it is a number") * rustix::param::page_size() as u64
}

/// Returns the source of a program that no earlier run has compiled: PoCL keeps its results in files.
fn source(number: u64) -> String {
    let run = process::id();
    format!(
        "kernel void f(global float *x) {{ size_t i = get_global_id(0); x[i] = sin(x[i]) + {run}.5f * {number}; }}"
    )
}

fn runtime(limit: u64) -> Runtime {
    let builder = support::builder().device(variable(DEVICE));
    block_on(builder.memory_limit(limit).build()).expect("it starts")
}

fn number(name: &str) -> u64 {
    variable(name).parse().expect("it is a number")
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn service() {
    let (started, time) = (Instant::now(), Duration::from_secs(number(SECONDS)));
    let limit = if time > Duration::from_secs(10) { LIMIT } else { SHORT_LIMIT };
    let rt = runtime(limit);
    let mut loads = 0;
    let mut first: Option<(u64, u64, u64)> = None;
    block_on(async {
        while started.elapsed() < time || first.is_none_or(|(first, ..)| loads < first + first / 2)
        {
            let program = rt.build(&Module::opencl_c(source(loads))).await.expect("it builds");
            assert_eq!(program.origin(), Origin::Compiled);
            drop(program);
            loads += 1;
            let stats = rt.stats();
            assert!(stats.memory.bytes_estimated <= limit, "{stats:?}");
            // By now the limit has evicted programs, and the driver has freed some.
            if first.is_none() && stats.memory.evictions > stats.memory.programs / 4 {
                first = Some((loads, stats.memory.programs, resident_bytes()));
            }
        }
    });
    let (first, kept_first, before) = first.expect("programs were evicted");
    report("growth", resident_bytes().saturating_sub(before));
    report("first", first);
    report("kept_first", kept_first);
    report("loads", loads);
    report("kept", rt.stats().memory.programs);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn calls_of_the_driver() {
    let rt = runtime(0);
    let handles = rt.driver_handles().expect("it has a driver");
    let mut programs = VecDeque::new();
    let (first, mut before) = (number(FIRST), 0);
    for load in 0..number(LOADS) {
        // The estimate of a program changes with their number, and so does the number that fits.
        let kept = if load < first { number(KEPT_FIRST) } else { number(KEPT) };
        let program = create_program_with_source(handles.context, &[&source(load)]);
        let program = program.expect("the driver takes it");
        build_program(program, &[handles.device], c"", None, ptr::null_mut()).expect("it builds");
        let kernels = create_kernels_in_program(program).expect("it has kernels");
        programs.push_back((program, kernels));
        while programs.len() as u64 > kept {
            let (program, kernels) = programs.pop_front().expect("there is one");
            for kernel in kernels {
                // SAFETY: the kernel was created above, and is not used any more.
                unsafe { release_kernel(kernel) }.expect("it is alive");
            }
            // SAFETY: as above.
            unsafe { release_program(program) }.expect("it is alive");
        }
        if load + 1 == first {
            before = resident_bytes();
        }
    }
    report("growth", resident_bytes().saturating_sub(before));
}

#[test]
fn a_service_with_new_programs_grows_no_more_than_its_driver() {
    let seconds = std::env::var(SECONDS).unwrap_or_else(|_| "1".to_owned());
    block_on(on_each_device(async |rt| {
        if rt.device().backend != "opencl" {
            return;
        }
        let device = (DEVICE, rt.device().index().to_string());
        let limit = Duration::from_secs(300 + 3 * seconds.parse::<u64>().expect("it is a number"));
        let settings = [device.clone(), (SECONDS, seconds.clone())];
        let service = Child::start(&test_name!("service"), settings).allowing(limit).report();
        let [first, loads, kept_first, kept] =
            ["first", "loads", "kept_first", "kept"].map(|name| service[name].to_string());
        let calls =
            [device, (FIRST, first), (LOADS, loads), (KEPT_FIRST, kept_first), (KEPT, kept)];
        let raw = Child::start(&test_name!("calls_of_the_driver"), calls).allowing(limit).report();
        let (grown, allowed) = (service["growth"], raw["growth"]);
        eprintln!("{}: {service:?}; the driver's calls alone: {raw:?}", rt.device());
        assert!(
            grown as f64 <= MAX_RATIO * allowed as f64 + MAX_DIFFERENCE as f64,
            "the service grew by {grown} bytes, the calls of the driver by {allowed}: {service:?}"
        );
    }));
}
