//! Random kernels whose launches are checked, on drivers for CPUs, with buffers between pages that cannot be
//! accessed. An access outside of a buffer ends the process.
//!
//! The tests run this binary again, with a layer of OpenCL's loader that allocates the buffers.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "a log tells what was tested")]

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use super::random_kernels::compare::check;
use futures::executor::block_on;
use kiln::devices::DeviceKind;
use kiln::{FusionMode, Runtime};
use support::children::{DEVICE, report, this_binary, variable};
use support::test_name;
use support::tools::{compile_library, has_clang, has_tool};
use tempfile::TempDir;

/// Number of random programs, unless `KILN_CHECKED_CASES` says another one.
const CASES: u64 = 1;

/// Variable with the index at which a child writes.
const PLACE: &str = "KILN_TEST_PLACE";

/// Variable with the number of elements of a child's buffers.
const COUNT: &str = "KILN_TEST_COUNT";

/// Layer, compiled into a folder.
pub(crate) struct Layer {
    folder: TempDir,
}

impl Layer {
    /// Compiles the layer. Returns `None` where there is no compiler.
    pub(crate) fn build() -> Option<Self> {
        if !has_tool("cc", &["cc", "--version"]) {
            return None;
        }
        let layer = Self { folder: tempfile::tempdir().expect("there is room") };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checked/guard_pages.c");
        compile_library(source, &layer.path());
        Some(layer)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("layer.so")
    }

    /// Returns a command that runs a test of this binary that is otherwise ignored, on a device, with the layer.
    pub(crate) fn command(&self, device: usize, test: &str) -> Command {
        let mut command = Command::new(this_binary());
        command
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env("OPENCL_LAYERS", self.path())
            .env(DEVICE, device.to_string());
        command
    }

    /// Runs a test of this module that is otherwise ignored, on a device, with the layer.
    fn run(&self, rt: &Runtime, test: &str, variables: &[(&str, &str)]) -> Output {
        self.command_for(rt, test, variables).output().expect("this binary can be run again")
    }

    fn command_for(&self, rt: &Runtime, test: &str, variables: &[(&str, &str)]) -> Command {
        let mut command = self.command(rt.device().index(), &test_name!(test));
        if rt.device().common_name() == Some("pocl") && has_avx_512() {
            // LLVM 15 moves reads of private arrays before their writes there when it makes vectors of work-items.
            command.env("POCL_WORK_GROUP_METHOD", "loops");
        }
        command.envs(variables.iter().copied());
        command
    }
}

/// Whether this processor has the instructions for vectors of 512 bits.
fn has_avx_512() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx512f")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Calls a test on each driver for CPUs.
pub(crate) fn on_each_cpu(test: impl AsyncFn(Runtime)) {
    block_on(support::on_each_device(async |rt| {
        if rt.device().kind == DeviceKind::Cpu {
            test(rt).await;
        }
    }));
}

/// Creates a runtime for the device that the parent names.
pub(crate) async fn runtime() -> Runtime {
    support::builder().device(variable(DEVICE)).build().await.expect("the parent uses it")
}

#[test]
fn random_kernels_stay_between_guard_pages() {
    let Some(layer) = Layer::build().filter(|_| has_clang()) else { return };
    on_each_cpu(async |rt| {
        // Some kernel of the second seed branches by a value that it reads behind a guard.
        for seed in [None, Some(("KILN_SEED", "20118"))] {
            let mut command = layer.command_for(&rt, "random_kernels", seed.as_slice());
            // A soak takes hours, and tells how far it is.
            let output = command.stderr(Stdio::inherit()).output();
            let output = output.expect("this binary can be run again");
            let out = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{}:\n{out}", output.status);
            assert!(out.contains("report launches="), "{out}");
        }
    });
}

/// Intel's runtime for CPUs does volatile reads regardless of the branches around them.
#[test]
fn volatile_reads_behind_branches_stay_between_guard_pages() {
    let Some(layer) = Layer::build().filter(|_| has_clang()) else { return };
    on_each_cpu(async |rt| {
        let output = layer.run(&rt, "volatile_reads", &[]);
        assert!(output.status.success(), "{}:\n{output:?}", output.status);
        eprintln!("{}", String::from_utf8_lossy(&output.stdout));
    });
}

/// The pages and the bytes beside buffers are what the tests above rely on.
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

/// Kernels that read `x` only where an index is below 32, which is their last argument. Of each two work-items, one has
/// an index outside, or all have.
const VOLATILE_READS: &str = "
    struct pair { int a, b; };
    int far(int i) { return i % 2 == 0 ? i % 32 : 32 + i; }
    kernel void behind_a_branch(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = far(i);
        if (at < n) y[i] = x[at];
    }
    kernel void by_an_index_from_memory(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = far(i);
        y[i] = at;
        at = y[i];
        y[i] = 0;
        if (0 <= at && at < n) y[i] = x[at];
    }
    kernel void of_vectors(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = far(i);
        if (at < n) y[i] = ((global const volatile int4 *)x)[at / 4].y;
    }
    kernel void of_bytes(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = far(i);
        if (at < n) y[i] = ((global const volatile uchar *)x)[4 * at];
    }
    kernel void of_structs(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = far(i);
        struct pair own = {0, 0};
        if (at < n) own = ((global const volatile struct pair *)x)[at / 2];
        y[i] = own.a + own.b;
    }
    int read(global const volatile int *x, int at) { return x[at]; }
    kernel void in_a_function(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = far(i);
        if (at < n) y[i] = read(x, at);
    }
    kernel void in_a_loop(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), sum = 0;
        for (int at = far(i); at < n; at += 5) sum += x[at];
        y[i] = sum;
    }
    kernel void by_a_value_behind_a_branch(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = far(i), value = 0;
        if (at < n) value = x[at];
        if (value % 3 == 1) y[i] = x[value];
    }
    kernel void in_a_loop_by_a_value(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = far(i), value = 0, sum = 0;
        if (at < n) value = x[at];
        for (int k = 0; k < value; k++) if (x[k] % 2) sum += x[k];
        y[i] = sum;
    }
    kernel void with_a_return(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = far(i);
        if (at >= n) return;
        int value = x[at];
        if (value < 7) return;
        y[i] = x[value / 2] + x[at];
    }
    kernel void by_the_same_index(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = n * 5 % 60, value = 0;
        if (at < n) value = x[at];
        if ((value & 1) == 0) return;
        y[i] = 1;
    }
    kernel void of_vectors_by_the_same_index(global const volatile int *x, global int *y, int n) {
        int i = get_global_id(0), at = n * 5 % 60;
        ushort16 value = 0;
        if (at < n) value = ((global const volatile ushort16 *)x)[at];
        if ((value.s8 & 1) == 0) return;
        y[i] = value.s0;
    }
    kernel void of_local_memory(global const volatile int *x, global int *y, int n) {
        local volatile int own[32];
        int i = get_global_id(0), at = far(i);
        if (get_local_id(0) < 32) own[get_local_id(0)] = 5;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (at < n) y[i] = own[at];
    }
    kernel void of_private_memory(global const volatile int *x, global int *y, int n) {
        volatile int own[32];
        int i = get_global_id(0), at = far(i);
        for (int k = 0; k < 32; k++) own[k] = i + k;
        if (at < n) y[i] = own[at];
    }
";

const INCREASE: &str = "kernel void increase(global const int *x, global int *y) {
    int i = get_global_id(0);
    y[i] = x[i] + 1;
}";

#[test]
#[ignore = "run by another test, in a process of its own"]
fn volatile_reads() {
    block_on(async {
        let builder = support::builder().fusion(FusionMode::Always).device(variable(DEVICE));
        let rt = builder.build().await.expect("the parent uses it");
        let program = support::checked_program(&rt, VOLATILE_READS).await;
        let increase = support::checked_program(&rt, INCREASE).await;
        let increase = increase.kernel("increase").expect("the program has it");
        let mut fused = 0;
        for name in program.kernel_names() {
            let kernel = program.kernel(name).expect("the program has it");
            // The buffers begin behind a page and end before one in turn.
            let x = async || rt.buffer_from((0..32).collect::<Vec<i32>>()).await;
            let inputs = [x().await, x().await].map(|x| x.expect("there is memory"));
            for x in &inputs {
                let [y, z] = [(); 2].map(|()| rt.buffer::<i32>(256).expect("there is memory"));
                let read = || kernel.launch(256).local(64).args((x.read_only(), &y, 32));
                rt.queue().submit(read()).expect("it can be checked").await.expect("it runs");
                let expected = rt.queue().read(&y).await.expect("it can be read");
                // Work-items with an odd id read nothing.
                assert!((1..256).step_by(2).all(|i| expected[i] == 0), "{name}: {expected:?}");

                let scope = rt.queue().start_fusion();
                scope.submit(read()).expect("it can be checked");
                let increase = increase.launch(256).local(64).args((y.read_only(), &z));
                scope.submit(increase).expect("it can be checked");
                let outcome = scope.complete().await.expect("fusion is not required");
                fused += u32::from(outcome.is_fused());
                let z = rt.queue().read(&z).await.expect("it can be read");
                assert!(z.iter().zip(&expected).all(|(z, y)| *z == y + 1), "{name}: {z:?}");
            }
        }
        report("fused", fused);
    });
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
