//! Level Zero on GPUs that go wrong: that hang, are lost, or have no memory left.
//!
//! Such a GPU is imitated: each test runs in a process of its own, started by the command that the
//! environment variable `KILN_GPU_RUNNER` names and told by `DRMSHIM_*` variables what goes wrong.
//! Without that command the tests skip themselves.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "a log tells what could not be tested here")]

#[path = "support/children.rs"]
mod children;
mod support;

use std::future::IntoFuture;
use std::process::Command;
use std::time::Duration;

use children::{Child, Report, report, this_binary};
use futures::future::{Either, select};
use kiln::{ErrorKind, Image, Runtime, Status};

const SAXPY: &[u8] = include_bytes!("data/saxpy.spv");

/// Long enough for what ends at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// The GPUs that are imitated, one of each architecture.
const PRODUCTS: [&str; 3] = ["tgl", "dg2", "bmg"];

/// Those with memory of their own, which can be exhausted. The others have the host's.
const DISCRETE: [&str; 2] = ["dg2", "bmg"];

/// Runs a test of this binary on each of the products, with `variables`, and gives what each reported.
/// `None` without the command for that.
fn on_each(products: &[&str], test: &str, variables: &[(&str, &str)]) -> Option<Vec<Report>> {
    let Ok(runner) = std::env::var("KILN_GPU_RUNNER") else {
        let required = std::env::var("KILN_REQUIRE_TOOLS").unwrap_or_default();
        assert!(
            !required.split(',').any(|tool| tool == "gpu-runner"),
            "KILN_GPU_RUNNER is required"
        );
        eprintln!("skipped: KILN_GPU_RUNNER names no command that imitates a GPU");
        return None;
    };
    let run = |product: &&str| {
        let mut words = runner.split_whitespace();
        let mut command = Command::new(words.next().expect("KILN_GPU_RUNNER names a command"));
        command.args(words).arg(this_binary());
        let product = [("DRMSHIM_DEVICES", *product)];
        Child::start_from(command, test, product.iter().chain(variables).copied()).report()
    };
    Some(products.iter().map(run).collect())
}

/// In such a process: the runtime of its GPU.
async fn runtime() -> Runtime {
    support::builder().device("level-zero").build().await.expect("there is a GPU")
}

async fn saxpy(rt: &Runtime) -> kiln::Kernel {
    let image = Image::spirv(SAXPY).expect("it is a module");
    let program = rt.build(&image).await.expect("it is right");
    // SAFETY: it touches one element a work-item.
    unsafe { program.kernel("saxpy") }.expect("it is there")
}

/// What a future gives, if it does within the time.
async fn within<F: IntoFuture<IntoFuture: Unpin>>(limit: Duration, future: F) -> Option<F::Output> {
    match select(future.into_future(), smol::Timer::after(limit)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

#[test]
fn what_awaits_a_gpu_that_hangs_stays_pending_and_the_process_ends() {
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
        // What needs no GPU goes on.
        let other = rt.build(&Image::opencl_c("kernel void other(global int *a) { *a = 1; }"));
        if support_has_clang() {
            within(PATIENCE, other.start()).await.expect("it ends").expect("it is right");
        }
        assert!(within(short, rt.drain()).await.is_none(), "the launch has not ended");
        assert!(rt.stats().commands_in_flight >= 1, "the launch is");
        report("hangs", 1);
    });
}

fn support_has_clang() -> bool {
    Command::new("clang-15").arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_lost_gpu_ends_everything_with_an_error_that_says_so() {
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
        let behind = queue.read(&y);
        let error = within(PATIENCE, event).await.expect("it ends").expect_err("the GPU is lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        assert!(error.driver_code().is_some(), "{error}");
        let error = within(PATIENCE, behind).await.expect("it ends").expect_err("it is lost");
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
fn memory_that_is_exhausted_is_an_error_and_can_be_had_again_when_it_is_freed() {
    on_each(&DISCRETE, "exhausted", &[("DRMSHIM_MEM_MB", "512")]);
}

#[test]
#[ignore = "another test runs it"]
fn exhausted() {
    smol::block_on(async {
        let rt = runtime().await;
        const PART: usize = 32 << 20;
        let queue = rt.queue();
        // The driver itself ends the process when it has no room for a queue.
        let first = rt.buffer::<u8>(PART).expect("there is memory");
        queue.fill(&first, 7).unwrap().await.expect("it fits");
        let mut buffers = vec![first];
        let error = loop {
            match rt.buffer::<u8>(PART) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => break error,
            }
            assert!(buffers.len() <= 16, "there is no more memory than that");
        };
        assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
        let last = buffers.pop().expect("some can be had");
        drop(buffers);
        queue.fill(&last, 7).unwrap().await.expect("there is memory");
        rt.buffer::<u8>(PART).expect("memory was freed");
        report("exhausted", 1);
    });
}

#[test]
fn nothing_in_flight_uses_no_processor() {
    for report in on_each(&PRODUCTS, "idle", &[]).into_iter().flatten() {
        // Of 2 s; in units of 10 ms, of which the system may count one to whoever it interrupts.
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
        // The reactor stays awake for a moment, for what may come next.
        smol::Timer::after(Duration::from_millis(500)).await;
        let before = ticks_of_kiln();
        smol::Timer::after(Duration::from_secs(2)).await;
        report("ticks", ticks_of_kiln() - before);
    });
}

/// The processor time that the library's threads have used.
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
    for report in on_each(&PRODUCTS, "busy", &[]).into_iter().flatten() {
        assert!(report["rounds"] > 0, "{report:?}");
    }
}

#[test]
#[ignore = "another test runs it"]
fn busy() {
    /// What `KILN_TEST_SECONDS` lengthens.
    const SECONDS: u64 = 2;
    let seconds = std::env::var("KILN_TEST_SECONDS").ok();
    let seconds = seconds.map_or(SECONDS, |text| text.parse().expect("it is a number"));
    let until = std::time::Instant::now() + Duration::from_secs(seconds);
    smol::block_on(async {
        let rt = runtime().await;
        let saxpy = saxpy(&rt).await;
        let task = |task: u32| {
            let (rt, saxpy) = (rt.clone(), saxpy.clone());
            smol::spawn(async move {
                let mut rounds = 0u64;
                while std::time::Instant::now() < until {
                    // Another program each time, by its digest.
                    let build = rounds.is_multiple_of(8).then(|| {
                        let mut module = SAXPY.to_vec();
                        let generator = task + 64 * rounds as u32;
                        module[8..12].copy_from_slice(&generator.to_le_bytes());
                        rt.build(&Image::spirv(module).unwrap()).start()
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
        let tasks: Vec<_> = (0..64).map(task).collect();
        let rounds = futures::future::join_all(tasks).await;
        rt.drain().await;
        report("rounds", rounds.iter().sum::<u64>());
    });
}
