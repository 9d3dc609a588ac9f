//! End of a process whose threads use devices: it neither crashes nor hangs, however and by which thread it is
//! ended. Each case is a process of its own.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::cell::RefCell;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use kiln::{Error, ErrorKind, Module, Result, Runtime};
use support::SAXPY;
use support::children;
use support::children::{Child, DEVICE, report, variable};
use support::plug_ins;
use support::plug_ins::PlugIn;
use support::test_name;

/// Environment variable with the workload of a child's threads.
const WORKLOAD: &str = "KILN_TEST_WORK";

/// Environment variable that states how a child ends.
const END: &str = "KILN_TEST_END";

/// Environment variable with the time until a child ends, in milliseconds.
const DELAY: &str = "KILN_TEST_DELAY";

/// Environment variable with the number of runs of each case in the soak test.
const RUNS: &str = "KILN_SOAK_RUNS";

const WORKLOADS: [&str; 5] = ["launches", "runtimes", "builds", "transfers", "wakers"];

const ENDS: [&str; 3] = ["main returns", "a thread exits", "a waker exits"];

/// Exit statuses of a child that found a fault.
const WRONG_ERROR: i32 = 70;
const PANICKED: i32 = 71;

fn child(device: usize, workload: &str, end: &str, delay: u64) -> Child {
    let variables = [
        (DEVICE, device.to_string()),
        (WORKLOAD, workload.to_owned()),
        (END, end.to_owned()),
        (DELAY, delay.to_string()),
        // glibc overwrites freed memory, so that its use fails each time.
        ("MALLOC_PERTURB_", "165".to_owned()),
    ];
    Child::start(&test_name!("works_until_the_end"), variables)
}

#[test]
fn a_process_can_end_while_its_threads_use_a_device() {
    block_on(support::on_each_device(async |rt| {
        for (delay, workload) in [5, 60, 300].into_iter().zip(WORKLOADS.chunks(1).cycle()) {
            child(rt.device().index(), workload[0], ENDS[0], delay).report();
        }
        for workload in WORKLOADS {
            for end in ENDS {
                child(rt.device().index(), workload, end, 20).report();
            }
        }
    }));
}

#[test]
fn a_forked_child_gets_errors_and_ends() {
    block_on(support::on_each_device(async |rt| {
        let report =
            Child::start_on(rt.device(), &test_name!("forks_while_threads_use_the_device"))
                .report();
        assert_eq!(report["children that succeeded"], FORKS);
    }));
}

/// Number of children of one process.
const FORKS: u64 = 20;

#[test]
#[ignore = "another test runs it"]
fn forks_while_threads_use_the_device() {
    let rt = block_on(runtime()).unwrap();
    let program = block_on(rt.build(&Module::opencl_c(SAXPY)).into_future()).unwrap();
    for thread in 0..2 {
        let rt = rt.clone();
        thread::spawn(move || {
            for number in 0.. {
                let _ = block_on(launch(&rt));
                let _ = block_on(build(&rt, 1000 * thread + number % 4));
            }
        });
    }
    let mut succeeded = 0;
    for _ in 0..FORKS {
        let buffer = rt.buffer::<u8>(64).unwrap();
        let event = rt.queue().fill(&buffer, 1).unwrap();
        let reading = rt.queue().read(&buffer);
        let building = rt.build(&Module::opencl_c(SAXPY)).start();
        let draining = rt.drain();
        let (rt, program) = (rt.clone(), program.clone());
        // SAFETY: the child has only one thread, which its code expects.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the alarm ends the child if it hangs.
            unsafe { libc::alarm(60) };
            expect_forked("a build that was begun", block_on(building));
            expect_forked("a read that was begun", block_on(reading));
            block_on(draining);
            use_after_fork(&rt);
            expect_forked("a program", program.binary());
            drop((event, buffer, program, rt));
            process::exit(0);
        }
        let mut status = 0;
        // SAFETY: the child belongs to this process, and there is space for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child's status");
        succeeded += 1;
        block_on(event).unwrap();
    }
    report("children that succeeded", succeeded);
}

fn expect_forked<T>(what: &str, result: Result<T>) {
    match result {
        Err(error) if error.kind() == ErrorKind::Forked => {
            assert!(error.to_string().contains(&process::id().to_string()), "{error}");
        }
        // The operation may have ended before the fork.
        Ok(_) if what.ends_with("was begun") => {}
        Ok(_) => exit_with(WRONG_ERROR, &format!("{what} works in a forked child")),
        Err(error) => exit_with(WRONG_ERROR, &format!("{what}: {error:?}")),
    }
}

fn use_after_fork(rt: &Runtime) {
    expect_forked("a runtime", block_on(runtime()));
    expect_forked("a device", block_on(rt.on(rt.device())));
    expect_forked("a buffer", rt.buffer::<u8>(64));
    expect_forked("a buffer with elements", block_on(rt.buffer_from(vec![1u8; 64])));
    expect_forked("a build", block_on(rt.build(&Module::opencl_c(SAXPY)).into_future()));
    expect_forked("a key", rt.build(&Module::opencl_c(SAXPY)).key());
    expect_forked("a module", block_on(Module::open("/dev/null")));
    expect_forked("a marker", rt.queue().marker());
    expect_forked("a host task", rt.queue().host_task(async {}));
    block_on(rt.drain());
    let _ = (rt.stats(), rt.queue().dot());
    drop(rt.queue().start_fusion());
    expect_forked("a trace", block_on(rt.trace_to("/dev/null").finish()));
}

#[test]
fn a_thread_local_destructor_can_wait_for_a_command() {
    block_on(support::on_each_device(async |rt| {
        let (sender, ended) = mpsc::channel();
        let rt = rt.clone();
        let thread = thread::spawn(move || {
            // The first registered destructor runs last.
            AT_THREAD_EXIT.with(|at_exit| {
                at_exit.0.replace(Some(Box::new(move || sender.send(wait(&rt)).unwrap())))
            });
            AT_THREAD_EXIT.with(|at_exit| at_exit.0.borrow_mut().as_mut().unwrap()());
        });
        thread.join().unwrap();
        for _ in 0..2 {
            ended.try_recv().expect("it waited").unwrap();
        }
    }));
}

fn wait(rt: &Runtime) -> Result<()> {
    let buffer = rt.buffer::<u8>(1 << 20)?;
    rt.queue().fill(&buffer, 1)?.wait()?;
    let module = Module::opencl_c(format!("{SAXPY} // in a destructor"));
    let _key = rt.build(&module).key()?;
    rt.queue().marker()?.wait()
}

type Job = Box<dyn FnMut()>;

/// Runs a job when the thread ends.
struct AtThreadExit(RefCell<Option<Job>>);

impl Drop for AtThreadExit {
    fn drop(&mut self) {
        if let Some(job) = self.0.get_mut() {
            job();
        }
    }
}

thread_local!(static AT_THREAD_EXIT: AtThreadExit = const { AtThreadExit(RefCell::new(None)) });

#[test]
fn a_plug_in_can_be_unloaded() {
    let library = plug_ins::build(&children::this_binary());
    block_on(support::on_each_device(async |rt| {
        for end in ["main returns", "a thread exits"] {
            let variables = [
                (DEVICE, rt.device().index().to_string()),
                (PLUG_IN, library.to_str().unwrap().to_owned()),
                (END, end.to_owned()),
            ];
            let report =
                Child::start(&test_name!("loads_and_unloads_a_plug_in"), variables).report();
            assert_eq!(report["sum"], 3 * 4096);
        }
    }));
}

/// Environment variable with the path of a library.
const PLUG_IN: &str = "KILN_TEST_PLUG_IN";

#[test]
#[ignore = "another test runs it"]
fn loads_and_unloads_a_plug_in() {
    let device: usize = variable(DEVICE).parse().unwrap();
    let mut sum = 0;
    for _ in 0..3 {
        let plug_in = PlugIn::load(&variable(PLUG_IN));
        let function = plug_in.function(c"kiln_plug_in_sum");
        // SAFETY: the plug-in defines the function with this type.
        let function: extern "C" fn(usize) -> u64 = unsafe { std::mem::transmute(function) };
        sum += function(device);
        drop(plug_in);
        thread::sleep(Duration::from_millis(20));
    }
    report("sum", sum);
    if variable(END) == "a thread exits" {
        thread::spawn(|| process::exit(0)).join().unwrap();
    }
}

#[test]
#[ignore = "`make soak-exit` runs it"]
#[allow(clippy::print_stderr, reason = "it counts")]
fn soak() {
    let runs: u64 = std::env::var(RUNS).map_or(1, |runs| runs.parse().expect("it is a number"));
    let faults = AtomicUsize::new(0);
    block_on(support::on_each_device(async |rt| {
        for workload in WORKLOADS {
            for end in ENDS {
                let run = |run| child(rt.device().index(), workload, end, run * 7 % 150).status();
                let failed: Vec<_> =
                    (0..runs).map(run).filter(|status| !status.success()).collect();
                let succeeded = runs - failed.len() as u64;
                eprintln!(
                    "{}: {workload}, {end}: {succeeded} of {runs} {failed:?}",
                    rt.device().platform
                );
                faults.fetch_add(failed.len(), SeqCst);
            }
        }
    }));
    assert_eq!(faults.into_inner(), 0, "processes that failed");
}

#[test]
#[ignore = "another test runs it"]
fn works_until_the_end() {
    std::panic::set_hook(Box::new(|panic| exit_with(PANICKED, &panic.to_string())));
    let delay = Duration::from_millis(variable(DELAY).parse().unwrap());
    let (workload, end) = (variable(WORKLOAD), variable(END));
    if end == "a waker exits" {
        let rt = block_on(runtime()).unwrap();
        thread::sleep(delay);
        report("ends", 1);
        end_in_a_waker(&rt);
    }
    if end == "a thread exits" && std::env::var_os(RUNS).is_none() {
        // While drivers are loaded for the first time, only a thread that has used Kiln can end the process
        // safely. The soak test counts how often another thread does not.
        drop(block_on(runtime()).unwrap());
    }
    for thread in 0..3 {
        let workload = workload.clone();
        thread::spawn(move || run_workload(&workload, thread));
    }
    thread::sleep(delay);
    report("ends", 1);
    if end == "a thread exits" {
        thread::spawn(|| process::exit(0)).join().unwrap();
    }
}

#[allow(clippy::print_stderr, reason = "the parent shows it")]
fn exit_with(status: i32, message: &str) -> ! {
    eprintln!("{message}");
    // SAFETY: the call ends the process.
    unsafe { libc::_exit(status) }
}

async fn runtime() -> Result<Runtime> {
    support::builder().device(variable(DEVICE)).build().await
}

/// Returns the value, or `None` if the process is ending. Exits with any other error.
fn check<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.kind() == ErrorKind::ProcessEnding => None,
        Err(error) => exit_with(WRONG_ERROR, &format!("{error:?}")),
    }
}

fn run_workload(workload: &str, thread: usize) {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let mut count = 0;
    loop {
        count += 1;
        if workload == "runtimes" {
            check(block_on(runtime()));
            continue;
        }
        let Some(rt) = RUNTIME.get_or_init(|| check(block_on(runtime()))) else { return };
        let done = match workload {
            "launches" => block_on(launch(rt)),
            "builds" => block_on(build(rt, 1000 * thread + count)),
            "transfers" => block_on(transfer(rt)),
            _ => await_with_other_wakers(rt),
        };
        check(done);
    }
}

async fn build(rt: &Runtime, number: usize) -> Result<()> {
    let module = Module::opencl_c(format!("{SAXPY} constant int number = {number};"));
    rt.build(&module).await.map(drop)
}

async fn launch(rt: &Runtime) -> Result<()> {
    let program = rt.build(&Module::opencl_c(SAXPY)).await?;
    // SAFETY: as in `support::kernel`.
    let saxpy = unsafe { program.kernel("saxpy") }?;
    let (x, y) = (rt.buffer::<f32>(4096)?, rt.buffer::<f32>(4096)?);
    let queue = rt.queue();
    for _ in 0..4 {
        let _launched = queue.submit(saxpy.launch(4096).args((2.0f32, &x, &y)))?;
    }
    queue.submit(saxpy.launch(4096).args((2.0f32, &x, &y)))?.await
}

async fn transfer(rt: &Runtime) -> Result<()> {
    let buffer = rt.buffer_from(vec![1u8; 4 << 20]).await?;
    let half = buffer.slice(2 << 20..)?;
    let _filled = rt.queue().fill(&half, 3)?;
    rt.queue().read(&buffer).await.map(drop)
}

/// Waker that calls a function.
struct CallbackWaker(Box<dyn Fn() + Send + Sync>);

impl Wake for CallbackWaker {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// Polls events with a waker that is slow and uses the runtime.
fn await_with_other_wakers(rt: &Runtime) -> Result<()> {
    static WOKEN: AtomicU64 = AtomicU64::new(0);
    let buffer = rt.buffer::<u8>(1 << 16)?;
    let mut event = rt.queue().fill(&buffer, 1)?;
    let has_woken = Arc::new(AtomicBool::new(false));
    let (woken, other) = (has_woken.clone(), rt.clone());
    let waker = Waker::from(Arc::new(CallbackWaker(Box::new(move || {
        WOKEN.fetch_add(1, SeqCst);
        let _ = other.stats();
        thread::sleep(Duration::from_micros(200));
        woken.store(true, SeqCst);
    }))));
    loop {
        if let Poll::Ready(outcome) = event.poll_unpin(&mut Context::from_waker(&waker)) {
            return outcome;
        }
        while !has_woken.swap(false, SeqCst) {
            thread::yield_now();
        }
    }
}

/// Ends the process in a waker, which a driver's callback may have called.
fn end_in_a_waker(rt: &Runtime) {
    let waker = Waker::from(Arc::new(CallbackWaker(Box::new(|| process::exit(0)))));
    loop {
        // Another thread may be ending the process by now.
        let Some(buffer) = check(rt.buffer::<u8>(4 << 20)) else { continue };
        let Some(mut event) = check(rt.queue().fill(&buffer, 1)) else { continue };
        let _ = event.poll_unpin(&mut Context::from_waker(&waker));
        check(event.wait());
    }
}
