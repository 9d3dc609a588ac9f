//! Level Zero on faulty GPUs, which hang, are lost, or run out of memory; on two GPUs of different
//! architectures at once; and under its validation layer.
//!
//! The GPUs are imitated: each test runs in a process of its own, started by the command in the environment
//! variable `KILN_GPU_RUNNER`. `DRMSHIM_*` variables select the fault. Without that command the tests skip
//! themselves.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "the log shows what could not be tested here")]

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use futures::future::{Either, join_all, select, try_join_all};
use kiln::build::Origin;
use kiln::commands::Status;
use kiln::images::{Addressing, R, Sampler};
use kiln::interop::DriverQueue;
use kiln::{Buffer, CacheConfig, ErrorKind, FusionMode, Module, Queue, Runtime};
use support::children::{Child, Report, on_imitated_gpu, report};
use support::test_name;
use support::tools;

const SAXPY: &[u8] = include_bytes!("../data/saxpy.spv");

/// Time limit for operations that are expected to complete.
const PATIENCE: Duration = Duration::from_secs(60);

/// Imitated GPUs, one of each architecture.
const PRODUCTS: [&str; 3] = ["tgl", "dg2", "bmg"];

/// GPUs with memory of their own, which can be exhausted. The others use the host's.
const DISCRETE: [&str; 2] = ["dg2", "bmg"];

/// Variables that make Level Zero's loader check each call, and count created and destroyed objects.
const VALIDATION: [(&str, &str); 3] = [
    ("ZE_ENABLE_VALIDATION_LAYER", "1"),
    ("ZE_ENABLE_PARAMETER_VALIDATION", "1"),
    ("ZEL_ENABLE_BASIC_LEAK_CHECKER", "1"),
];

/// Variable that makes the loader also track events. This sometimes crashes if several threads submit.
const EVENTS: [(&str, &str); 1] = [("ZEL_ENABLE_EVENTS_CHECKER", "1")];

/// Whether the loader tracks events. It does not support counting events, and warns that they are used again
/// without a reset. Events with timestamps are not counting events.
fn follows_events() -> bool {
    EVENTS.iter().all(|(name, _)| std::env::var_os(name).is_some())
}

/// Runs a test of this binary on each of the products at the same time, with `variables`. Returns the report
/// and output of each, or `None` if `KILN_GPU_RUNNER` is not set.
fn on_each(
    products: &[&str],
    test: &str,
    variables: &[(&str, &str)],
) -> Option<Vec<(Report, String)>> {
    if on_imitated_gpu().is_none() {
        let required = std::env::var("KILN_REQUIRE_TOOLS").unwrap_or_default();
        assert!(
            !required.split(',').any(|tool| tool == "gpu-runner"),
            "KILN_GPU_RUNNER is required"
        );
        eprintln!("skipped: KILN_GPU_RUNNER names no command that imitates a GPU");
        return None;
    }
    let start = |product: &&str| {
        let product = [("DRMSHIM_DEVICES", *product)];
        Child::start(&test_name!(test), product.iter().chain(variables).copied())
    };
    let children: Vec<_> = products.iter().map(start).collect();
    Some(children.into_iter().map(Child::report_and_output).collect())
}

/// Creates the runtime of the imitated GPU, in a process started by [`on_each`].
async fn runtime() -> Runtime {
    let builder = support::builder().device("level-zero").profiling(follows_events());
    builder.build().await.expect("there is a GPU")
}

async fn saxpy(rt: &Runtime) -> kiln::Kernel {
    let module = Module::spirv(SAXPY).expect("it is a module");
    let program = rt.build(&module).await.expect("it is right");
    // SAFETY: it touches one element a work-item.
    unsafe { program.kernel("saxpy") }.expect("it is there")
}

/// Returns the output of a future, if it completes within the limit.
async fn within<F: IntoFuture<IntoFuture: Unpin>>(limit: Duration, future: F) -> Option<F::Output> {
    match select(future.into_future(), smol::Timer::after(limit)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

#[test]
fn events_of_a_hanging_gpu_stay_pending_and_the_process_can_exit() {
    on_each(&PRODUCTS, "hanging", &[("DRMSHIM_HANG", "1")]);
}

#[test]
#[ignore = "another test runs it"]
fn hanging() {
    smol::block_on(async {
        let rt = runtime().await;
        let saxpy = saxpy(&rt).await;
        let (x, y) = (rt.buffer::<f32>(8).unwrap(), rt.buffer::<f32>(8).unwrap());
        let queue = rt.queue();
        let event = queue.submit(saxpy.launch(8).args((1.0f32, &x, &y))).unwrap();
        let short = Duration::from_millis(300);
        assert!(within(short, event.clone()).await.is_none(), "it hangs");
        assert!(matches!(event.status(), Status::Enqueued), "{:?}", event.status());
        // Operations that need no GPU continue.
        let other = rt.build(&Module::opencl_c("kernel void other(global int *a) { *a = 1; }"));
        if tools::has_clang() {
            within(PATIENCE, other.start()).await.expect("it ends").expect("it is right");
        }
        assert!(within(short, rt.drain()).await.is_none(), "the launch has not ended");
        assert!(rt.stats().commands.in_flight >= 1, "the launch is");
        report("hangs", 1);
    });
}

#[test]
fn operations_on_a_lost_gpu_return_device_lost() {
    on_each(&PRODUCTS, "lost", &[("DRMSHIM_HANG", "2")]);
}

#[test]
#[ignore = "another test runs it"]
fn lost() {
    smol::block_on(async {
        let rt = runtime().await;
        let saxpy = saxpy(&rt).await;
        let (x, y) = (rt.buffer::<f32>(8).unwrap(), rt.buffer::<f32>(8).unwrap());
        let queue = rt.queue();
        let event = queue.submit(saxpy.launch(8).args((1.0f32, &x, &y))).unwrap();
        let dependent = queue.read(&y);
        let error = within(PATIENCE, event).await.expect("it ends").expect_err("the GPU is lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        assert!(error.driver_code().is_some(), "{error}");
        let error = within(PATIENCE, dependent).await.expect("it ends").expect_err("it is lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        within(PATIENCE, rt.drain()).await.expect("nothing is in flight");
        let error = rt.buffer::<f32>(8).expect_err("there is no device");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        let error = match queue.submit(saxpy.launch(8).args((1.0f32, &x, &y))) {
            Ok(event) => within(PATIENCE, event).await.expect("it ends").expect_err("it is lost"),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        report("lost", 1);
    });
}

#[test]
fn other_code_shares_contexts_memory_and_commands() {
    on_each(&PRODUCTS, "shared", &VALIDATION[..2]);
}

#[test]
#[ignore = "another test runs it"]
fn shared() {
    use std::ptr::null_mut;

    smol::block_on(async {
        let own = runtime().await;
        let handles = own.driver_handles().unwrap();
        let x = own.buffer_from(vec![1u32; 1024]).await.unwrap();
        let object = x.slice(256..).unwrap().driver_handle().unwrap();
        assert_eq!(object.offset, 1024);
        let address = object.object;
        // SAFETY: the memory lives as long as `x`, which lives longer than the buffer.
        let again = unsafe { own.buffer_from_level_zero::<u32>(address, 1024) }.unwrap();
        own.queue().fill(&again, 7).unwrap().await.unwrap();
        assert_eq!(own.queue().read(&x).await.unwrap(), [7; 1024]);
        for (address, reason) in
            [(null_mut(), "is null"), (address.wrapping_byte_add(4), "must start at a multiple of")]
        {
            // SAFETY: the memory is not used.
            let refused = unsafe { own.buffer_from_level_zero::<u32>(address, 4) };
            let error = refused.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(reason), "{error}");
        }
        // SAFETY: the object is not used.
        let refused = unsafe { own.buffer_from_opencl::<u32>(address, 4) };
        assert_eq!(refused.map(drop).unwrap_err().kind(), ErrorKind::Unsupported);

        type Fill = unsafe extern "C" fn(Raw, Raw, Raw, usize, usize, Raw, u32, Raw) -> u32;
        // SAFETY: the function has this type.
        let append: Fill = unsafe { function(b"zeCommandListAppendMemoryFill\0") };
        let fill = move |driver: &DriverQueue<'_>| {
            let (list, memory, mut value) = (driver.queue(), driver.memory()[0].object, 9u32);
            let pattern = (&raw mut value).cast();
            // SAFETY: the list and the memory are alive, and the driver copies the pattern.
            let code = unsafe { append(list, memory, pattern, 4, 4096, null_mut(), 0, null_mut()) };
            if code == 0 { Ok(()) } else { Err(format!("{code:#x}")) }
        };
        // SAFETY: the command writes 1,024 elements of `x`, on the given list.
        let filled = unsafe { own.queue().native("fill", (&x,), fill) };
        assert_eq!(own.queue().read(&x).await.unwrap(), [9; 1024]);
        filled.unwrap().await.unwrap();

        type Drivers = unsafe extern "C" fn(*mut u32, *mut Raw) -> u32;
        // SAFETY: the function has this type.
        let get: Drivers = unsafe { function(b"zeDriverGet\0") };
        let (mut count, mut driver) = (1, null_mut());
        // SAFETY: there is room for one driver.
        assert_eq!(unsafe { get(&raw mut count, &raw mut driver) }, 0);
        // SAFETY: `own` keeps the context alive longer than the runtime.
        let given = unsafe {
            support::builder().level_zero_context(driver, handles.device, handles.context)
        };
        let rt = given.build().await.unwrap();
        assert_eq!((rt.devices().len(), rt.device().name.clone()), (1, own.device().name.clone()));
        assert_eq!(rt.driver_handles().unwrap(), handles);
        let y = rt.buffer_from(vec![3u32; 64]).await.unwrap();
        assert_eq!(rt.queue().read(&y).await.unwrap(), [3; 64]);
        rt.drain().await;
        drop((y, rt));
        // The context is still there.
        assert_eq!(own.queue().read(&x).await.unwrap(), [9; 1024]);
        // SAFETY: the objects are not used.
        let refused = unsafe { Runtime::from_level_zero(driver, null_mut(), null_mut()) };
        let error = refused.await.map(drop).unwrap_err();
        assert!(error.to_string().contains("`ze_device_handle_t` is null"), "{error}");
        report("shared", 1);
    });
}

type Raw = *mut std::ffi::c_void;

/// Returns a function of Level Zero's loader, which Kiln has loaded.
///
/// # Safety
///
/// The function has the type `F`.
unsafe fn function<F: Copy>(name: &[u8]) -> F {
    // SAFETY: the library's initialization has no conditions.
    let library = unsafe { libloading::Library::new("libze_loader.so.1") }.expect("it is there");
    // SAFETY: guaranteed by the caller.
    *unsafe { library.get::<F>(name) }.expect("every loader has it")
}

#[test]
fn allocations_fail_when_memory_is_exhausted_and_succeed_once_it_is_freed() {
    on_each(&DISCRETE, "exhausted", &[("DRMSHIM_MEM_MB", "512")]);
}

#[test]
#[ignore = "another test runs it"]
fn exhausted() {
    smol::block_on(async {
        let rt = runtime().await;
        const BUFFER_BYTES: usize = 32 << 20;
        let queue = rt.queue();
        // The driver itself ends the process if it has no memory for a queue.
        let first = rt.buffer::<u8>(BUFFER_BYTES).expect("there is memory");
        queue.fill(&first, 7).unwrap().await.expect("it fits");
        let mut buffers = vec![first];
        let error = loop {
            match rt.buffer::<u8>(BUFFER_BYTES) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => break error,
            }
            assert!(buffers.len() <= 16, "the GPU has 512 MiB of memory");
        };
        assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
        let last = buffers.pop().expect("some can be had");
        drop(buffers);
        queue.fill(&last, 7).unwrap().await.expect("there is memory");
        rt.buffer::<u8>(BUFFER_BYTES).expect("memory was freed");
        report("exhausted", 1);
    });
    wait_for_the_threads();
}

#[test]
fn an_idle_runtime_uses_no_processor_time() {
    for (report, _) in on_each(&PRODUCTS, "idle", &[]).into_iter().flatten() {
        // Ticks of 10 ms in 10 s. The system may charge a tick to the thread that it interrupts.
        assert!(report["ticks"] <= 2, "{report:?}");
    }
}

#[test]
#[ignore = "another test runs it"]
fn idle() {
    smol::block_on(async {
        let rt = runtime().await;
        let buffer = rt.buffer::<u32>(1024).unwrap();
        rt.queue().fill(&buffer, 7).unwrap().await.unwrap();
        rt.drain().await;
        // The reactor stays awake briefly, in case another command follows.
        smol::Timer::after(Duration::from_millis(500)).await;
        let before = ticks_of_kiln();
        smol::Timer::after(Duration::from_secs(10)).await;
        report("ticks", ticks_of_kiln() - before);
    });
}

/// Returns the processor time that the library's threads have used.
fn ticks_of_kiln() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("there is /proc");
    let ticks = tasks.filter_map(|task| {
        let line = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (name, fields) = line.split_once('(')?.1.rsplit_once(") ")?;
        let fields: Vec<_> = fields.split(' ').collect();
        let time = |at: usize| fields.get(at)?.parse::<u64>().ok();
        name.starts_with("kiln-").then(|| Some(time(11)? + time(12)?))?
    });
    ticks.sum()
}

#[test]
fn many_tasks_compile_copy_and_launch_at_once() {
    for (report, _) in on_each(&PRODUCTS, "busy", &[]).into_iter().flatten() {
        assert!(report["rounds"] >= u64::from(TASKS), "{report:?}");
    }
}

const TASKS: u32 = 64;

#[test]
#[ignore = "another test runs it"]
fn busy() {
    /// Default time in seconds; `KILN_TEST_SECONDS` sets a longer one.
    const SECONDS: u64 = 2;
    let seconds = std::env::var("KILN_TEST_SECONDS").ok();
    let seconds = seconds.map_or(SECONDS, |text| text.parse().expect("it is a number"));
    smol::block_on(async {
        let rt = runtime().await;
        let saxpy = saxpy(&rt).await;
        let until = Instant::now() + Duration::from_secs(seconds);
        let task = |task: u32| {
            let (rt, saxpy) = (rt.clone(), saxpy.clone());
            smol::spawn(async move {
                let mut rounds = 0u64;
                // At least one round, even on a slow machine.
                while rounds == 0 || Instant::now() < until {
                    // The digest differs each time, so each program is a new one.
                    let build = rounds.is_multiple_of(8).then(|| {
                        let mut module = SAXPY.to_vec();
                        let generator = task + TASKS * rounds as u32;
                        module[8..12].copy_from_slice(&generator.to_le_bytes());
                        rt.build(&Module::spirv(module).unwrap()).start()
                    });
                    let elements = 1 << (task % 16);
                    let from = vec![task; elements];
                    let buffer = rt.buffer_from(from.clone()).await.expect("there is memory");
                    let (x, y) = (rt.buffer::<f32>(64).unwrap(), rt.buffer::<f32>(64).unwrap());
                    let queue = rt.queue();
                    queue.submit(saxpy.launch(64).args((1.0f32, &x, &y))).unwrap().await.unwrap();
                    assert_eq!(queue.read(&buffer).await.expect("it is there"), from);
                    if let Some(build) = build {
                        build.await.expect("it is right");
                    }
                    rounds += 1;
                }
                rounds
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(task).collect();
        let rounds = join_all(tasks).await;
        rt.drain().await;
        report("rounds", rounds.iter().sum::<u64>());
    });
    wait_for_the_threads();
}

#[test]
fn commands_run_in_order_on_drivers_without_in_order_lists() {
    // The stand-in for this driver ends the process if a command could overtake the one before it.
    on_each(&["dg2"], "busy", &[("KILN_STAND_INS_OLDER", "1")]);
}

#[test]
fn a_waker_can_submit_commands() {
    for (report, _) in on_each(&PRODUCTS, "waking", &[]).into_iter().flatten() {
        assert!(report["woken"] > 0, "{report:?}");
    }
}

/// Waker that submits a command when it is woken. The submission takes the lock under which another thread may
/// have observed the completion.
struct SubmittingWaker {
    queue: Queue,
    buffer: Buffer<u32>,
    woken: AtomicBool,
}

impl Wake for SubmittingWaker {
    fn wake(self: Arc<Self>) {
        self.queue.fill(&self.buffer, 1).expect("it fits");
        self.woken.store(true, SeqCst);
    }
}

#[test]
#[ignore = "another test runs it"]
fn waking() {
    let rt = smol::block_on(runtime());
    let queue = rt.queue();
    let [x, y, z] = [0; 3].map(|_| rt.buffer::<u32>(8).expect("there is memory"));
    let is_over = AtomicBool::new(false);
    let mut woken = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                queue.fill(&x, 1).expect("it fits");
            }
        });
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            let submitting =
                SubmittingWaker { queue: queue.clone(), buffer: y.clone(), woken: false.into() };
            let submitting = Arc::new(submitting);
            let waker = Waker::from(submitting.clone());
            let mut event = queue.fill(&z, 1).expect("it fits");
            if Pin::new(&mut event).poll(&mut Context::from_waker(&waker)).is_ready() {
                continue;
            }
            let deadline = Instant::now() + PATIENCE;
            while !submitting.woken.load(SeqCst) {
                assert!(Instant::now() < deadline, "the waker was not called");
                std::thread::yield_now();
            }
            woken += 1;
        }
        is_over.store(true, SeqCst);
    });
    report("woken", woken);
}

#[test]
fn two_gpus_of_different_architectures_run_their_own_programs_at_once() {
    on_each(&["tgl,bmg", "tgl,dg2"], "pair", &[]);
}

#[test]
#[ignore = "another test runs it"]
fn pair() {
    /// Number of launches on each GPU.
    const ROUNDS: usize = 50;
    let directory = tempfile::tempdir().expect("there is room for a directory");
    smol::block_on(async {
        for origin in [Origin::Compiled, Origin::Disk] {
            let builder = Runtime::builder().device("level-zero").profiling(follows_events());
            let rt = builder.cache(CacheConfig::at(directory.path())).build().await.unwrap();
            let devices = rt.devices().iter().filter(|device| device.backend == "level-zero");
            let both = devices.map(|device| rt.on(device).into_future());
            let both = try_join_all(both).await.expect("they can be opened");
            assert_eq!(both.len(), 2, "{:?}", rt.devices());
            let module = Module::spirv(SAXPY).unwrap();
            let programs = both.iter().map(|rt| rt.build(&module).into_future());
            let programs = try_join_all(programs).await.expect("it is right");
            assert_ne!(programs[0].key(), programs[1].key());
            assert!(programs.iter().all(|program| program.origin() == origin), "{origin:?}");
            // SAFETY: it touches one element a work-item.
            let saxpy = |at: usize| unsafe { programs[at].kernel("saxpy") }.expect("it is there");
            let work = both.iter().enumerate().map(async |(at, rt)| {
                let x = rt.buffer_from(vec![(at + 1) as f32; 1000]).await.unwrap();
                let y = rt.buffer_from(vec![1.0_f32; 1000]).await.unwrap();
                let queue = rt.queue();
                for _ in 0..ROUNDS {
                    queue.submit(saxpy(at).launch(1000).args((2.0_f32, &x, &y))).unwrap();
                }
                let expected = 1.0 + (2 * ROUNDS * (at + 1)) as f32;
                assert_eq!(queue.read(&y).await.unwrap(), [expected; 1000]);
                y
            });
            let results = join_all(work).await;
            let foreign = (2.0_f32, &results[0], &results[1]);
            let refused = both[1].queue().submit(saxpy(1).launch(1000).args(foreign));
            let refused = refused.expect_err("a buffer is the other one's");
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
            rt.drain().await;
        }
        report("done", 1);
    });
    wait_for_the_threads();
}

#[test]
fn a_runtime_that_fused_launches_is_freed_with_its_last_handle() {
    on_each(&["tgl"], "fused", &[]);
}

#[test]
#[ignore = "another test runs it"]
fn fused() {
    smol::block_on(async {
        let builder = support::builder().device("level-zero").fusion(FusionMode::Always);
        let rt = builder.profiling(follows_events()).build().await.expect("there is a GPU");
        let saxpy = saxpy(&rt).await;
        let x = rt.buffer_from(vec![2.0_f32; 64]).await.unwrap();
        let y = rt.buffer_from(vec![1.0_f32; 64]).await.unwrap();
        let queue = rt.queue();
        let fusion = queue.start_fusion();
        for _ in 0..2 {
            fusion.submit(saxpy.launch(64).args((3.0_f32, &x, &y))).unwrap();
        }
        let outcome = fusion.complete().await.unwrap();
        assert!(outcome.is_fused(), "{}", fusion.report());
        assert_eq!(queue.read(&y).await.unwrap(), [13.0; 64]);
        report("fused", 1);
    });
    wait_for_the_threads();
}

#[test]
fn images_and_samplers_are_freed() {
    on_each(&["dg2"], "pictured", &[("KILN_STAND_INS_OLDER", "1")]);
}

#[test]
#[ignore = "another test runs it"]
fn pictured() {
    const BLUR: &str = "kernel void blur(read_only image1d_array_t from, sampler_t edge, write_only image2d_t to) {
        int2 at = (int2)(get_global_id(0), get_global_id(1));
        float4 left = read_imagef(from, edge, at - (int2)(1, 0));
        write_imagef(to, at, (left + read_imagef(from, edge, at)) / 2);
    }";
    smol::block_on(async {
        let rt = runtime().await;
        let queue = rt.queue();
        let from = rt.image_1d_array::<R<f32>>(64, 8).unwrap();
        let to = rt.image_2d::<R<f32>>(64, 8).unwrap();
        queue.fill(&from, R([1.0])).unwrap();
        queue.fill(&from.part([0, 0], [32, 8]).unwrap(), R([3.0])).unwrap();
        queue.copy(&from, &to).unwrap();
        assert_eq!(
            queue.read(&to.part([31, 7], [2, 1]).unwrap()).await.unwrap(),
            [R([3.0]), R([1.0])]
        );
        if tools::has_clang() {
            let program = rt.build(&Module::opencl_c(BLUR)).checked().await.expect("it is right");
            let blur = program.kernel("blur").unwrap();
            let edge = Sampler::new().addressing(Addressing::ClampToEdge);
            for _ in 0..10 {
                queue.submit(blur.launch([64, 8]).args((&from, edge, &to))).unwrap();
            }
            let row = queue.read(&to.part([0, 3], [64, 1]).unwrap()).await.unwrap();
            assert_eq!((row[0], row[32], row[63]), (R([3.0]), R([2.0]), R([1.0])));
        }
        report("pictured", 1);
    });
    wait_for_the_threads();
}

#[test]
fn a_fill_of_more_than_4_gib_reaches_the_end() {
    on_each(&["bmg"], "filled", &[]);
}

#[test]
#[ignore = "another test runs it"]
fn filled() {
    // The length is not a multiple of the driver's work-group size.
    const LEN: usize = (4 << 30) + 4099;
    smol::block_on(async {
        let rt = runtime().await;
        let (queue, x) = (rt.queue(), rt.buffer::<u8>(LEN).unwrap());
        queue.fill(&x, 7).unwrap().await.unwrap();
        for start in [0, 1 << 31, (1 << 32) - 8, 1 << 32, LEN - 16] {
            let part = x.slice(start..start + 16).unwrap();
            assert_eq!(queue.read(&part).await.unwrap(), [7; 16], "from {start}");
        }
        report("filled", 1);
    });
    wait_for_the_threads();
}

#[test]
fn the_validation_layer_reports_no_errors() {
    let scarce = [("DRMSHIM_MEM_MB", "512"), EVENTS[0]];
    let runs: [(&str, &str, &[_]); 5] = [
        ("tgl,bmg", "pair", &EVENTS),
        ("dg2", "exhausted", &scarce),
        ("tgl", "busy", &[]),
        ("bmg", "fused", &EVENTS),
        ("tgl", "pictured", &EVENTS),
    ];
    for (products, test, variables) in runs {
        let variables = [variables, &VALIDATION].concat();
        for (_, output) in on_each(&[products], test, &variables).into_iter().flatten() {
            assert!(output.contains("Check balance of create/destroy calls"), "{output}");
            assert!(!output.contains("LEAK") && !output.contains("Warning: "), "{output}");
        }
    }
}

/// Waits until all threads of the library that may still hold objects of a runtime have ended.
fn wait_for_the_threads() {
    let until = Instant::now() + PATIENCE;
    let are_there = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("there is /proc");
        let mut names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.any(|name| ["kiln-reactor", "kiln-watcher"].contains(&name.trim()))
    };
    while are_there() {
        assert!(Instant::now() < until, "the runtime's threads go on without it");
        std::thread::sleep(Duration::from_millis(1));
    }
}
