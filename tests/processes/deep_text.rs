//! Text on which compilers recurse deeply, built from threads with small stacks. A compiler that overflows its
//! stack ends the process, so each case has a process of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use futures::executor::block_on;
use kiln::{Module, Runtime};
use support::children::{Child, DEVICE, report, variable};
use support::test_name;
use support::{builder, on_each_device};

/// Number of terms. With a stack of 2 MiB, Intel's compiler for CPUs ends the process at 1,500 terms; with 8
/// MiB, it accepts more than 5,000.
const TERMS: u32 = 3000;

/// Number of branches. The time of Intel's compiler grows with its square.
const BRANCHES: u32 = 2000;

/// Returns the source of `y[i] = x[i] + 1 + x[i] + 2 + ..`, in one expression.
fn sum() -> String {
    let terms: String = (1..=TERMS).map(|term| format!(" + x[i] + {term}u")).collect();
    format!(
        "kernel void sum(global const uint *x, global uint *y) {{
            size_t i = get_global_id(0);
            y[i] = 0{terms};
        }}"
    )
}

/// Returns the source of an if-else chain with `BRANCHES` branches.
fn choice() -> String {
    let mut text = "kernel void choice(global const uint *x, global uint *y) {
        size_t i = get_global_id(0);
        if (x[i] == 0) y[i] = 7;"
        .to_owned();
    for branch in 1..BRANCHES {
        let _ = write!(text, " else if (x[i] == {}u) y[i] = {branch}u;", branch * 3);
    }
    text + " else y[i] = 9; }"
}

/// Builds and runs one of the texts on a test's thread, whose stack has 2 MiB.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn deep_child() {
    block_on(async {
        let rt = builder().device(variable(DEVICE)).build_child(env!("CARGO_BIN_EXE_kiln"));
        let rt = rt.build().await.unwrap();
        let (name, is_untrusted) =
            (variable("KILN_TEST_TEXT"), variable("KILN_TEST_UNTRUSTED") == "1");
        let module = Module::opencl_c(if name == "sum" { sum() } else { choice() });
        let module = if is_untrusted { module.untrusted() } else { module };
        let program = rt.build(&module).await.unwrap();
        // SAFETY: the kernel touches one element of each buffer.
        let kernel = unsafe { program.kernel(&name) }.unwrap();
        let inputs = [0, 3, 30, 3 * (BRANCHES - 1), 4];
        let x = rt.buffer_from(inputs.to_vec()).await.unwrap();
        let y = rt.buffer::<u32>(inputs.len()).unwrap();
        let queue = rt.queue();
        queue.submit(kernel.launch(inputs.len()).args((&x, &y))).unwrap();
        let expected = match &*name {
            "sum" => inputs.map(|x| TERMS * x + TERMS * (TERMS + 1) / 2),
            _ => [7, 1, 10, BRANCHES - 1, 9],
        };
        assert_eq!(queue.read(&y).await.unwrap(), expected);
        // Some drivers compile only at this point.
        report("bytes", program.binary().unwrap().len());
    });
}

fn run(name: &str, is_untrusted: bool) {
    block_on(on_each_device(async |rt: Runtime| {
        let variables = [
            (DEVICE, rt.device().index().to_string()),
            ("KILN_TEST_TEXT", name.to_owned()),
            ("KILN_TEST_UNTRUSTED", u8::from(is_untrusted).to_string()),
        ];
        assert!(Child::start(&test_name!("deep_child"), variables).report()["bytes"] > 0);
    }));
}

#[test]
fn long_sums_build() {
    run("sum", false);
}

#[test]
fn long_if_else_chains_build() {
    run("choice", false);
}

#[test]
fn long_sums_build_in_a_child() {
    run("sum", true);
}
