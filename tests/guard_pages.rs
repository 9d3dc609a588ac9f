//! Random kernels whose launches are checked, on drivers for CPUs, with buffers between pages that cannot be
//! accessed. An access outside of a buffer ends the process.
//!
//! The tests run this binary again, with a layer of OpenCL's loader that allocates the buffers.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "a log tells what was tested")]

#[path = "support/children.rs"]
mod children;
#[path = "support/random_kernels/mod.rs"]
mod random_kernels;
mod support;
#[path = "support/tools.rs"]
mod tools;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use children::{DEVICE, report, this_binary, variable};
use futures::executor::block_on;
use kiln::{DeviceKind, Runtime};
use random_kernels::compare::check;
use tempfile::TempDir;
use tools::{has_clang, has_tool};

/// Number of random programs, unless `KILN_CHECKED_CASES` says another one.
const CASES: u64 = 1;

/// Variable with the index at which a child writes.
const PLACE: &str = "KILN_TEST_PLACE";

/// Variable with the number of elements of a child's buffers.
const COUNT: &str = "KILN_TEST_COUNT";

/// Layer, compiled into a folder.
struct Layer {
    folder: TempDir,
}

impl Layer {
    /// Compiles the layer. Returns `None` where there is no compiler.
    fn build() -> Option<Self> {
        if !has_tool("cc", &["cc", "--version"]) {
            return None;
        }
        let layer = Self { folder: tempfile::tempdir().expect("there is room") };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/guard_pages/layer.c");
        let mut compiler = Command::new("cc");
        let compiler = compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
        let output = compiler.arg(source).arg("-o").arg(layer.path()).output();
        let output = output.expect("the compiler runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(layer)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("layer.so")
    }

    /// Runs a test of this binary that is otherwise ignored, on a device, with the layer.
    fn run(&self, rt: &Runtime, test: &str, variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(this_binary());
        let command = command
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env("OPENCL_LAYERS", self.path())
            .env(DEVICE, rt.device().index().to_string())
            .envs(variables.iter().copied());
        command.output().expect("this binary can be run again")
    }
}

/// Calls a test on each driver for CPUs.
fn on_each_cpu(test: impl AsyncFn(Runtime)) {
    block_on(support::on_each_device(async |rt| {
        if rt.device().kind == DeviceKind::Cpu {
            test(rt).await;
        }
    }));
}

/// Creates a runtime for the device that the parent names.
async fn runtime() -> Runtime {
    support::builder().device(variable(DEVICE)).build().await.expect("the parent uses it")
}

#[test]
fn random_kernels_stay_between_guard_pages() {
    let Some(layer) = Layer::build().filter(|_| has_clang()) else { return };
    on_each_cpu(async |rt| {
        // Some kernel of the second seed branches by a value that it reads behind a guard.
        for seed in [None, Some(("KILN_SEED", "20118"))] {
            let output = layer.run(&rt, "random_kernels", seed.as_slice());
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{}:\n{out}\n{err}", output.status);
            assert!(out.contains("report launches="), "{out}\n{err}");
            eprintln!("{err}");
        }
    });
}

/// The pages and the bytes beside buffers are what the test above relies on.
#[test]
fn kernels_that_leave_their_buffers_end_the_process() {
    let Some(layer) = Layer::build() else { return };
    on_each_cpu(async |rt| {
        for (count, place) in [("32", "32"), ("32", "-1"), ("32", "2000"), ("31", "31")] {
            let variables = [(COUNT, count), (PLACE, place)];
            let output = layer.run(&rt, "a_kernel_leaves_its_buffer", &variables);
            let err = String::from_utf8_lossy(&output.stderr);
            // Address Sanitizer handles the signal.
            let is_caught = match count {
                "32" => output.status.signal() == Some(11) || err.contains("SEGV"),
                _ => err.contains("bytes beside a buffer of 124 bytes were written"),
            };
            assert!(is_caught, "{count}, {place}: {}:\n{err}", output.status);
        }
        let output = layer.run(&rt, "a_kernel_leaves_its_buffer", &[(COUNT, "32"), (PLACE, "31")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn random_kernels() {
    let launches = block_on(async { check(&runtime().await, CASES).await });
    report("launches", launches);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn a_kernel_leaves_its_buffer() {
    let [place, count] =
        [PLACE, COUNT].map(|name| variable(name).parse::<i32>().expect("the parent sets it"));
    let source = "kernel void poke(global int *x, int at) { x[at] = x[at] + 1; }";
    block_on(async {
        let rt = runtime().await;
        let poke = support::kernel(&rt, source, "poke").await;
        // One buffer begins behind a page, and the other one ends before a page. Both are kept, because their
        // bytes are checked when they are released.
        let mut kept = Vec::new();
        for _ in 0..2 {
            let buffer = rt.buffer_from(vec![0; count as usize]).await.expect("there is memory");
            let launch = poke.launch(1).args((&buffer, place));
            rt.queue().submit(launch).expect("it fits").await.expect("it runs");
            kept.push(buffer);
        }
    });
}
