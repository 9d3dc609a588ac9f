//! First launches on a cold machine, while the programs' binaries are fetched for the store or for the
//! application. A driver with a race between the two aborts the process, so each case runs in a process of its
//! own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::thread;

use futures::executor::block_on;
use kiln::{CacheConfig, FusionMode, Module, Program, Runtime};
use support::children::{Child, DEVICE, report, variable};
use support::scopes::{FUSION, buffers, kernels};
use support::test_name;
use support::{builder, on_each_device};
use tempfile::TempDir;

const N: usize = 8192;

/// Default number of cold runs of each device.
const RUNS: usize = 4;
const RUNS_VARIABLE: &str = "KILN_COLD_RUNS";

const STORE: &str = "KILN_TEST_STORE";

/// Steps of each work-item: a launch takes some milliseconds, so that one is always running.
const STEPS: u32 = 4000;

/// Two kernels that require work-groups of 64. Each seed gives a program of its own.
fn text(seed: u32) -> String {
    let kernel = |name: &str, change: &str| {
        format!(
            "kernel __attribute__((reqd_work_group_size(64, 1, 1))) void {name}(global uint *x) {{
                uint v = x[get_global_id(0)];
                for (uint i = 0; i < {STEPS}u; i++) v = v * 1664525u {change};
                x[get_global_id(0)] = v;
            }}"
        )
    };
    kernel("plus", &format!("+ (i ^ {seed}u)")) + &kernel("minus", &format!("- (i ^ {seed}u)"))
}

/// Returns the expected result of a kernel of the text for the number 1, after a number of launches.
fn expected(name: &str, seed: u32, launches: u32) -> u32 {
    let steps = (0..launches).flat_map(|_| 0..STEPS);
    steps.fold(1, |v: u32, i| {
        let (v, change) = (v.wrapping_mul(1_664_525), i ^ seed);
        if name == "plus" { v.wrapping_add(change) } else { v.wrapping_sub(change) }
    })
}

/// Launches both kernels repeatedly, each on a queue of its own.
async fn launch(rt: &Runtime, program: &Program, seed: u32, launches: u32) {
    let run = async |name: &str| {
        // SAFETY: the kernels stay inside the buffer.
        let kernel = unsafe { program.kernel(name) }.unwrap();
        let (queue, x) = (rt.queue(), rt.buffer_from(vec![1u32; N]).await.unwrap());
        for _ in 0..launches {
            queue.submit(kernel.launch(N).args((&x,))).unwrap();
        }
        assert!(queue.read(&x).await.unwrap() == [expected(name, seed, launches); N], "{name}");
    };
    futures::join!(run("plus"), run("minus"));
}

/// Fuses launches with required work-groups, whose programs are compiled and stored meanwhile.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn cold_child() {
    block_on(async {
        let cache = CacheConfig::at(variable(STORE));
        let builder = Runtime::builder().device(variable(DEVICE)).cache(cache);
        let rt = builder.fusion(FusionMode::Always).build().await.unwrap();
        let numbers: Vec<f32> = (0..N).map(|n| n as f32).collect();
        let [grouped, turned] = kernels(&rt, FUSION, ["grouped", "turned"]).await;
        let [src, tmp, dst] = buffers(&rt, &numbers).await;
        let queue = rt.queue();
        for _ in 0..8 {
            let scope = queue.start_fusion();
            scope.submit(turned.launch(N).args((&src, &tmp))).unwrap();
            scope.submit(grouped.launch(N).args((&tmp,))).unwrap();
            scope.submit(turned.launch(N).args((&tmp, &dst))).unwrap();
            scope.complete().await.unwrap();
            queue.submit(grouped.launch(N).args((&dst,))).unwrap();
        }
        for seed in 0..2 {
            let program = rt.build(&Module::opencl_c(text(seed))).await.unwrap();
            // The launches run while the binary is fetched.
            launch(&rt, &program, seed, 20).await;
        }
        let expected: Vec<_> = numbers.iter().map(|n| n + 2.0).collect();
        assert!(queue.read(&dst).await.unwrap() == expected);
        rt.drain().await;
        report("stored", rt.stats().disk.writes);
    });
}

/// Repeats cold runs as often as the environment states: see `make soak-cold`.
#[test]
fn cold_runs_end_well() {
    let runs = std::env::var(RUNS_VARIABLE).map_or(RUNS, |runs| runs.parse().unwrap());
    block_on(on_each_device(async |rt: Runtime| {
        for _ in 0..runs {
            let (store, driver) = (TempDir::new().unwrap(), TempDir::new().unwrap());
            let variables = [
                (DEVICE, rt.device().index().to_string()),
                (STORE, store.path().to_str().unwrap().to_owned()),
                // Directory of PoCL's own cache.
                ("POCL_CACHE_DIR", driver.path().to_str().unwrap().to_owned()),
            ];
            let stored = Child::start(&test_name!("cold_child"), variables).report()["stored"];
            assert!(stored >= 2, "{stored} programs were stored");
        }
    }));
}

/// Launches on queues of two runtimes, while the binaries of the same programs are fetched.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn fetching_child() {
    let runtimes = [(); 2].map(|()| block_on(builder().device(variable(DEVICE)).build()).unwrap());
    let mut bytes = 0;
    for seed in 0..3 {
        let module = Module::opencl_c(text(seed));
        let programs =
            [0, 1].map(|of| block_on(runtimes[of].build(&module).into_future()).unwrap());
        thread::scope(|scope| {
            for (rt, program) in runtimes.iter().zip(&programs) {
                scope.spawn(move || block_on(launch(rt, program, seed, 20)));
            }
            let fetch =
                |program| scope.spawn(move || [(); 4].map(|()| Program::binary(program).unwrap()));
            let fetched: Vec<_> = programs.iter().map(fetch).collect();
            for fetched in fetched {
                bytes += fetched.join().unwrap().iter().map(Vec::len).sum::<usize>();
            }
        });
    }
    report("bytes", bytes);
}

#[test]
fn binaries_are_fetched_while_launches_run() {
    block_on(on_each_device(async |rt: Runtime| {
        let driver = TempDir::new().unwrap();
        let variables = [
            (DEVICE, rt.device().index().to_string()),
            ("POCL_CACHE_DIR", driver.path().to_str().unwrap().to_owned()),
        ];
        assert!(Child::start(&test_name!("fetching_child"), variables).report()["bytes"] > 0);
    }));
}
