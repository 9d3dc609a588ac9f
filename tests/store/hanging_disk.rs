//! A disk that hangs, at single calls: programs are built without it, also by other runtimes and processes, and what lies on
//! other disks is read.
//!
//! Each test runs a child with a library that makes the calls of the C library on some paths wait.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, Module, Runtime};
use support::children::{Child, report, this_binary, variable};
use support::test_name;
use support::tools::{compile_library, has_tool};
use tempfile::TempDir;

const FOLDER: &str = "KILN_TEST_FOLDER";

/// Time after which something waits for the disk. Builds of the simulated device take milliseconds.
const HELD_UP: Duration = Duration::from_secs(20);

/// Returns what a function returns, or `None` if it takes longer than [`HELD_UP`].
fn in_time<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || _ = sender.send(run()));
    receiver.recv_timeout(HELD_UP).ok()
}

fn module(number: u32) -> Module {
    Module::opencl_c(format!("kernel void k{number}(global uint *x) {{}}"))
}

fn folder() -> PathBuf {
    PathBuf::from(variable(FOLDER))
}

/// Makes these calls wait on paths with a part.
fn hang(calls: &str, part: &str) {
    let (new, name) = (folder().join("new"), folder().join("hang"));
    fs::write(&new, format!("{calls}\n{part}\n")).unwrap();
    fs::rename(new, name).unwrap();
}

fn store() -> CacheConfig {
    CacheConfig::at(folder().join("store"))
}

fn start(cache: CacheConfig) -> Runtime {
    let simulator = Simulator::immediate();
    block_on(Runtime::builder().simulator(&simulator).cache(cache).build()).unwrap()
}

fn build(rt: &Runtime, number: u32) -> Option<Duration> {
    let rt = rt.clone();
    in_time(move || {
        let started = Instant::now();
        block_on(async { rt.build(&module(number)).await }).unwrap();
        started.elapsed()
    })
}

/// Ends a child whose calls on the disk still hang.
fn end(is_well: bool) -> ! {
    report("well", u64::from(is_well));
    process::exit(0)
}

/// Runs a test of this module that is otherwise ignored, with the library.
fn run(test: &str) {
    let Some((folder, library)) = library() else { return };
    let variables = [(FOLDER, folder.path().as_os_str()), ("LD_PRELOAD", library.as_os_str())];
    let child = Child::start_from(Command::new(this_binary()), test, variables);
    let (report, output) = child.report_and_output();
    assert_eq!(report["well"], 1, "{output}");
}

/// Returns a folder with the library. Returns `None` where there is no compiler.
fn library() -> Option<(TempDir, PathBuf)> {
    if !has_tool("cc", &["cc", "--version"]) {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("hanging_disk.so");
    compile_library(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store/hanging_disk.c"), &library);
    Some((folder, library))
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_that_starts() {
    drop(start(store()));
    hang("stat open", "store");
    let is_started = in_time(|| {
        let rt = start(store());
        build(&rt, 1).is_some()
    });
    end(is_started == Some(true));
}

#[test]
fn a_runtime_starts_without_a_disk_that_hangs() {
    run(&test_name!("child_that_starts"));
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_that_publishes() {
    let [one, two] = [(); 2].map(|()| start(store()));
    build(&one, 0).unwrap();
    block_on(one.drain());
    hang("sync", "store");
    // The first runtime has the program, and does not end storing it.
    let both = [build(&one, 1), build(&two, 1)];
    end(both.iter().all(Option::is_some));
}

#[test]
fn a_program_that_is_not_stored_in_time_is_compiled_by_others() {
    run(&test_name!("child_that_publishes"));
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_that_includes_files() {
    let rt = start(store());
    (0..5).for_each(|number| _ = build(&rt, number).unwrap());
    block_on(rt.drain());
    let include = folder().join("included");
    fs::create_dir_all(&include).unwrap();
    fs::write(include.join("included.h"), "// nothing\n").unwrap();
    hang("open stat", "included");
    let begin = |number| {
        let text = format!("#include \"included.h\"\nkernel void i{number}(global uint *x) {{}}");
        let options = format!("-I {}", include.display());
        rt.build(&Module::opencl_c(text)).options(&options).start()
    };
    let hanging: Vec<_> = (0..12).map(begin).collect();
    thread::sleep(Duration::from_secs(1));
    let is_started = in_time(|| drop(start(store()))).is_some();
    let failures = rt.stats().disk.failures;
    let built = (10..20).filter_map(|number| build(&rt, number)).count();
    drop(hanging);
    end(is_started && built == 10 && rt.stats().disk.failures == failures);
}

#[test]
fn included_files_on_a_disk_that_hangs_do_not_hold_up_the_store() {
    run(&test_name!("child_that_includes_files"));
}

#[cfg(feature = "remote-fs")]
mod remote {
    use std::path::Path;

    use futures::future::join_all;
    use support::simulation::eventually;

    use super::*;

    #[test]
    #[ignore = "run by another test, in a process of its own"]
    fn child_with_a_remote_cache() {
        let remote = folder().join("remote");
        fs::create_dir_all(&remote).unwrap();
        let rt = start(store().remote(format!("fs://{}", remote.display())));
        build(&rt, 0).unwrap();
        block_on(rt.drain());
        // The marks of programs that the remote cache does not have cannot be written, nor programs to the disk.
        hang("truncate sync", "store");
        let builds = rt.clone();
        let built = in_time(move || {
            let builds: Vec<_> =
                (1..60).map(|number| builds.build(&module(number)).start()).collect();
            block_on(join_all(builds)).len()
        });
        eventually("the remote cache has the programs", || files_below(&remote) >= 60);
        end(built == Some(59));
    }

    fn files_below(folder: &Path) -> usize {
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        entries
            .map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 })
            .sum()
    }

    #[test]
    fn programs_reach_the_remote_cache_although_the_disk_hangs() {
        run(&test_name!("child_with_a_remote_cache"));
    }
}
