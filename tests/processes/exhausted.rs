//! Exhaustion of a system resource at every stage: the affected operations fail with `OutOfResources`,
//! no operation hangs, and operations succeed once the resource is available again.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a log states the outcome of each stage")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use futures::executor::block_on;
use kiln::build::Origin;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, ErrorKind, FusionMode, Kernel, Module, Queue, Result, Runtime};
use support::children::{Child, DEVICE, report, variable};
use support::limits::Lowered;
use support::test_name;
use support::{Executor, SAXPY, builder, on_each_device};
use tempfile::TempDir;

const RESOURCE: &str = "KILN_TEST_RESOURCE";

/// Time limit of a process in seconds.
const TIME_LIMIT: u32 = 240;

const INVALID_SOURCE: &str = "kernel void bad(global uint *x) { x[0] = absent; }";

/// Drops root, whom limits do not bind. Runs before any thread depends on the user id.
fn become_nobody() {
    const NOBODY: u32 = 65534;
    // SAFETY: the calls change the ids of this process only.
    if unsafe { libc::getuid() } == 0 {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
    }
    // SAFETY: the system ends this process if it hangs.
    unsafe { libc::alarm(TIME_LIMIT) };
}

/// Calls `work` while the system grants no more of a resource.
fn without<T>(resource: &str, work: impl FnOnce() -> T) -> T {
    let _lowered = match resource {
        "threads" => Lowered::threads(),
        "files" => Lowered::files(0),
        // Enough memory for two threads and their work, but not for a compiler.
        "memory" => Lowered::memory(40 << 20),
        _ => panic!("{resource} is unknown"),
    };
    work()
}

/// An executor that was started while there were threads.
enum Started {
    Tokio(tokio::runtime::Runtime),
    Smol,
    BlockOn,
}

impl Started {
    fn new(executor: Executor) -> Self {
        let started = match executor {
            Executor::Tokio => {
                let mut tokio = tokio::runtime::Builder::new_multi_thread();
                Self::Tokio(tokio.worker_threads(2).enable_all().build().expect("tokio starts"))
            }
            Executor::Smol => Self::Smol,
            Executor::BlockOn => Self::BlockOn,
        };
        // Smol starts its thread for timers and sockets at the first call.
        started.run(async {});
        started
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        match self {
            Self::Tokio(tokio) => tokio.block_on(future),
            Self::Smol => smol::block_on(future),
            Self::BlockOn => block_on(future),
        }
    }
}

/// Runtime, kernels and buffers that the stages use.
struct Bench {
    executor: Started,
    rt: Runtime,
    queue: Queue,
    kernel: Kernel,
    folder: TempDir,
}

fn module(factor: u32) -> Module {
    Module::opencl_c(format!(
        "kernel void k(global uint *x) {{ x[get_global_id(0)] = {factor}u; }}"
    ))
}

type Stage = (&'static str, fn(&Bench) -> Result<()>);

const STAGES: [Stage; 11] = [
    ("host task", |bench| bench.queue.host_task(async {})?.wait()),
    ("host task that waits", |bench| {
        let fill = bench.queue.fill(&bench.rt.buffer::<u32>(4)?, 1)?;
        bench.queue.host_task(fill)?.wait()
    }),
    ("drain", |bench| {
        bench.executor.run(bench.rt.drain());
        Ok(())
    }),
    ("build", |bench| bench.executor.run(bench.rt.build(&module(1)).into_future()).map(drop)),
    ("refusal", |bench| {
        let error =
            bench.executor.run(bench.rt.build(&Module::opencl_c(INVALID_SOURCE)).into_future());
        match error.expect_err("the source is invalid") {
            error if error.kind() == ErrorKind::BuildFailed => {
                assert!(error.to_string().contains("absent"), "{error}");
                Ok(())
            }
            error => Err(error),
        }
    }),
    ("launch", |bench| {
        let x = bench.executor.run(bench.rt.buffer_from(vec![1.0f32; 64]).into_future())?;
        let y = bench.executor.run(bench.rt.buffer_from(vec![1.0f32; 64]).into_future())?;
        bench.executor.run(bench.queue.submit(bench.kernel.launch(64).args((2.0f32, &x, &y)))?)?;
        assert_eq!(bench.executor.run(bench.queue.read(&y).into_future())?, [3.0; 64]);
        Ok(())
    }),
    ("launch of a program that still builds", |bench| {
        let build = bench.rt.build(&module(2)).start();
        // SAFETY: the kernel stays inside the buffer.
        let kernel = unsafe { build.kernel("k") };
        let x = bench.rt.buffer::<u32>(64)?;
        bench.executor.run(bench.queue.submit(kernel.launch(64).args((&x,)))?)?;
        assert_eq!(bench.executor.run(bench.queue.read(&x).into_future())?, [2; 64]);
        Ok(())
    }),
    ("untrusted build", |bench| {
        bench.executor.run(bench.rt.build(&module(3).untrusted()).into_future()).map(drop)
    }),
    ("fusion", |bench| {
        let x = bench.executor.run(bench.rt.buffer_from(vec![1.0f32; 64]).into_future())?;
        let y = bench.executor.run(bench.rt.buffer_from(vec![1.0f32; 64]).into_future())?;
        let scope = bench.queue.start_fusion();
        let submit = || scope.submit(bench.kernel.launch(64).args((2.0f32, &x, &y)));
        let launches = [submit()?, submit()?];
        let fused = bench.executor.run(scope.complete());
        for launch in launches {
            bench.executor.run(launch)?;
        }
        assert_eq!(bench.executor.run(bench.queue.read(&y).into_future())?, [5.0; 64]);
        fused.map(drop)
    }),
    ("module", |bench| {
        let path = bench.folder.path().join("module.cl");
        bench.executor.run(Module::open(path).into_future()).map(drop)
    }),
    ("runtime", |bench| {
        bench
            .executor
            .run(Runtime::builder().cache(CacheConfig::memory_only()).build().into_future())
            .map(drop)
    }),
];

/// Runs each stage without the resource, and then with it.
fn run_stages(bench: &Bench) {
    fs::write(bench.folder.path().join("module.cl"), SAXPY).unwrap();
    let resource = variable(RESOURCE);
    let mut refused = 0;
    for (name, stage) in STAGES {
        let outcome = without(&resource, || stage(bench));
        eprintln!("{name}: {outcome:?}");
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::OutOfResources, "{name}: {error:?}");
            assert!(!error.is_deterministic(), "{name}");
            refused += 1;
        }
        // A program that was built is stored before the resource is taken away again, as in `device_child`.
        bench.executor.run(bench.rt.drain());
    }
    without(&resource, || bench.executor.run(bench.rt.drain()));
    for (name, stage) in STAGES {
        stage(bench).unwrap_or_else(|error| panic!("{name}, with all resources: {error:?}"));
    }
    bench.executor.run(bench.rt.drain());
    report("refused", refused);
}

#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn device_child() {
    become_nobody();
    let folder = TempDir::new().unwrap();
    let cache = CacheConfig::at(folder.path().join("store"));
    let builder = Runtime::builder().device(variable(DEVICE)).cache(cache);
    let builder = builder.fusion(FusionMode::Always).build_child(env!("CARGO_BIN_EXE_kiln"));
    let rt = block_on(builder.build().into_future()).unwrap();
    let program = block_on(rt.build(&Module::opencl_c(SAXPY)).into_future()).unwrap();
    // SAFETY: the kernel stays inside its buffers.
    let kernel = unsafe { program.kernel("saxpy") }.unwrap();
    // The program is stored by then: PoCL links it to store it, and ends the process if it cannot start a linker.
    block_on(rt.drain());
    let [executor] = Executor::of_test("")[..] else { panic!("the parent names one executor") };
    let executor = Started::new(executor);
    run_stages(&Bench { executor, queue: rt.queue(), rt, kernel, folder });
}

/// Runs the stages on each device. The child of a device awaits them under one executor in the fast tier, and children
/// for all executors run in the full one.
fn run(resource: &str) {
    for executor in Executor::of_test(resource) {
        run_under(executor, resource);
    }
}

fn run_under(executor: Executor, resource: &str) {
    block_on(on_each_device(async |rt: Runtime| {
        let driver = TempDir::new().unwrap();
        fs::set_permissions(driver.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let variables = [
            (DEVICE, rt.device().index().to_string()),
            (RESOURCE, resource.to_owned()),
            ("KILN_TEST_EXECUTOR", executor.name().to_owned()),
            ("POCL_CACHE_DIR", path(driver.path())),
        ];
        let (report, output) =
            Child::start(&test_name!("device_child"), variables).report_and_output();
        assert!(report["refused"] > 0, "{output}");
        eprintln!("{output}");
    }));
}

#[test]
fn operations_recover_after_threads_are_exhausted() {
    run("threads");
}

#[test]
fn operations_recover_after_file_descriptors_are_exhausted() {
    run("files");
}

#[test]
fn operations_recover_after_the_address_space_is_exhausted() {
    run("memory");
}

/// Requests a program that is in memory, and that nobody holds, after a build that fails.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn hit_child() {
    let rt = block_on(builder().device(variable(DEVICE)).build().into_future()).unwrap();
    let build = |factor| block_on(rt.build(&module(factor)).into_future());
    drop(build(1).unwrap());
    let (failed, hit) = without("files", || (build(2).map(drop), build(1)));
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::OutOfResources);
    assert_eq!(hit.expect("it needs no file").origin(), Origin::Memory);
    assert_eq!(rt.stats().memory.evictions, 0);
    report("done", 1);
}

#[test]
fn programs_stay_in_memory_when_file_descriptors_are_exhausted() {
    block_on(on_each_device(async |rt: Runtime| {
        Child::start_on(rt.device(), &test_name!("hit_child")).report();
    }));
}

/// Runs on a runtime that has not run a task yet.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn first_task_child() {
    become_nobody();
    let simulator = Simulator::new();
    let rt = block_on(builder().simulator(&simulator).build().into_future()).unwrap();
    let queue = rt.queue();
    let (task, drained) = without("threads", || {
        let task = queue.host_task(async {}).unwrap();
        (task.wait(), block_on(rt.drain()))
    });
    assert_eq!(task.expect_err("no thread runs it").kind(), ErrorKind::OutOfResources);
    let () = drained;
    queue.host_task(async {}).unwrap().wait().expect("there are threads again");
    report("done", 1);
}

#[test]
fn the_first_host_task_without_a_thread_fails() {
    let none: [(&str, &str); 0] = [];
    Child::start(&test_name!("first_task_child"), none).report();
}
