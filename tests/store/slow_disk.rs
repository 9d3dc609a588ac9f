//! A disk that takes long to write or to read: programs are built all the same, and some are not stored.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use futures::executor::block_on;
use futures::future::join_all;
use kiln::build::Origin;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, Module, Runtime};
use support::children::{Child, report, this_binary, variable};
use support::{stores, test_name, tools};

const ROOT: &str = "KILN_TEST_STORE";

/// Programs of a cold start, more than may be in memory to be stored.
const PROGRAMS: u32 = 80;

#[test]
#[ignore = "run by another test, in a process of its own"]
fn cold_start() {
    block_on(async {
        let cache = CacheConfig::at(variable(ROOT));
        let rt =
            Runtime::builder().simulator(&Simulator::new()).cache(cache).build().await.unwrap();
        let build = |number| rt.build(&module(number)).start();
        let builds: Vec<_> = (0..PROGRAMS).map(build).collect();
        for built in join_all(builds).await {
            built.unwrap();
        }
        report("written", rt.stats().disk.writes);
        report("skipped", rt.stats().disk.skips);
        report("compiles", rt.stats().builds.compiles);
    });
}

fn module(number: u32) -> Module {
    Module::opencl_c(format!("kernel void k{number}(global uint *x) {{}}"))
}

async fn runtime(root: &str) -> Runtime {
    let cache = CacheConfig::at(root);
    Runtime::builder().simulator(&Simulator::immediate()).cache(cache).build().await.unwrap()
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn warm_start() {
    block_on(async {
        let rt = runtime(&variable(ROOT)).await;
        let mut compiled = 0;
        for number in 0..10 {
            let program = rt.build(&module(number)).await.unwrap();
            compiled += u32::from(program.origin() == Origin::Compiled);
        }
        report("compiled", compiled);
        report("failures", rt.stats().disk.failures);
    });
}

#[test]
fn a_disk_that_hangs_while_it_reads_costs_compiles() {
    if !tools::has_tool("strace", &["strace", "-o", "/dev/null", "true"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("store");
    let root = root.to_str().unwrap();
    block_on(async {
        let rt = runtime(root).await;
        for number in 0..10 {
            rt.build(&module(number)).await.unwrap();
        }
        rt.drain().await;
    });
    let mut strace = Command::new("strace");
    // Opening an entry takes so long that a process that waits for it does not compile. `strace` ends after that time, too.
    strace.args(["-f", "-o", "/dev/null", "-e", "trace=openat"]);
    for entry in stores::entries(&stores::open(root)) {
        strace.arg("-P").arg(entry.path());
    }
    strace.args(["-e", "inject=openat:delay_enter=10000000"]).arg(this_binary());
    let report = Child::start_from(strace, &test_name!("warm_start"), [(ROOT, root)]).report();
    assert_eq!(report["compiled"], 10, "{report:?}");
    assert!(report["failures"] > 0, "{report:?}");
}

#[test]
fn a_disk_that_hangs_while_it_writes_delays_no_build() {
    if !tools::has_tool("strace", &["strace", "-o", "/dev/null", "true"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("store");
    let mut strace = Command::new("strace");
    // Each write to the disk takes 12 s.
    strace.args(["-f", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"]);
    strace.args(["-e", "inject=fdatasync,fsync:delay_enter=12000000"]).arg(this_binary());
    let variables = [(ROOT, root.to_str().unwrap())];
    let report = Child::start_from(strace, &test_name!("cold_start"), variables).report();
    assert_eq!(report["compiles"], u64::from(PROGRAMS), "{report:?}");
    assert_eq!(report["written"], 0, "builds waited for the disk: {report:?}");
    assert!(report["skipped"] > 0, "{report:?}");
}
