//! Many builds requested at once: while they wait, they occupy a few threads and a little memory, however many
//! they are.
//!
//! Threads, descriptors and memory are counted for a whole process, so each measurement has a process of its
//! own.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "a log states the measurements")]

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use kiln::build::Origin;
use kiln::simulated::{Pause, Simulator};
use kiln::{CacheConfig, Module, Runtime};
use support::children::{Child, Report, report, variable};
use support::test_name;

/// Environment variable with the directory of a child's cache.
const CACHE: &str = "KILN_TEST_CACHE";

/// Number of cold builds requested at once.
const BUILDS: usize = 10_000;

/// Number of programs on disk that are requested at once.
const STORED: usize = 2_000;

/// Size of a stored program's binary in bytes.
const BINARY: usize = 64 << 10;

/// Phases of a child, as it reports them: its requests wait, and then go on to their ends.
const WAITING: &str = "waiting";
const GOING_ON: &str = "going on";

/// Maximum number of threads of a process, including three of the test.
const MAX_THREADS: u64 = 40;

/// Number of threads of the crate `blocking`, which Kiln starts beforehand. A call starts a further one only if the system
/// lets all others wait for a processor.
const FILE_THREADS: u64 = 20;

/// Maximum number of open files of a process. Many systems allow a process 1,024.
const MAX_FILES: u64 = 64;

/// Maximum number of bytes that a waiting cold build adds to the process.
const MAX_BYTES_OF_A_BUILD: u64 = 16 << 10;

/// Maximum number of bytes that all waiting loads add to the process: a quarter of the binaries.
const MAX_BYTES_OF_ALL_LOADS: u64 = (STORED * BINARY / 4) as u64;

/// Resources that this process uses.
#[derive(Clone, Copy, Debug)]
struct Usage {
    threads: u64,
    files: u64,
    resident_bytes: u64,
}

impl Usage {
    fn now() -> Self {
        let count = |directory| fs::read_dir(directory).expect("it is readable").count() as u64;
        let pages = fs::read_to_string("/proc/self/statm").expect("it is readable");
        // Not the pages of files: code of the suite counts as memory when it is first used.
        let mut sizes = pages.split(' ').skip(1).map(|size| size.parse::<u64>());
        let mut next = || sizes.next().expect("it is there").expect("it is a number");
        let (all, of_files) = (next(), next());
        Self {
            threads: count("/proc/self/task"),
            files: count("/proc/self/fd"),
            resident_bytes: (all - of_files) * rustix::param::page_size() as u64,
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            threads: self.threads.max(other.threads),
            files: self.files.max(other.files),
            resident_bytes: self.resident_bytes.max(other.resident_bytes),
        }
    }
}

/// Thread that samples the usage of this process until it is stopped.
struct Sampler {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Usage>,
}

impl Sampler {
    fn start() -> Self {
        let (stop, stopped) = mpsc::channel();
        let sample = move || {
            let mut peak = Usage::now();
            while stopped.recv_timeout(Duration::from_millis(2)) == Err(RecvTimeoutError::Timeout) {
                peak = peak.max(Usage::now());
            }
            peak
        };
        Self { stop, thread: thread::spawn(sample) }
    }

    /// Returns the highest usage, of each resource on its own.
    fn peak(self) -> Usage {
        drop(self.stop);
        self.thread.join().expect("it does not panic")
    }
}

/// Waits until a runtime's statistics have not changed for a second.
fn wait_until_at_rest(rt: &Runtime) {
    let mut last = (rt.stats(), Instant::now());
    while last.1.elapsed() < Duration::from_secs(1) {
        thread::sleep(Duration::from_millis(10));
        let stats = rt.stats();
        if stats != last.0 {
            last = (stats, Instant::now());
        }
    }
}

/// Creates a runtime with a simulated device.
fn start(simulator: &Simulator, directory: impl AsRef<Path>) -> Runtime {
    let builder = Runtime::builder().simulator(simulator);
    block_on(builder.cache(CacheConfig::at(directory.as_ref())).build()).expect("it starts")
}

/// Requests all modules at once while the compiler and the loader are paused, and lets them go on once the
/// requests wait. Reports the peaks of both phases.
fn request_all(modules: &[Module], origin: Origin) {
    let simulator = Simulator::immediate();
    let rt = start(&simulator, variable(CACHE));
    let before = Usage::now();

    let paused: Pause = simulator.pause_builds();
    let sampler = Sampler::start();
    let builds: Vec<_> = modules.iter().map(|module| rt.build(module).start()).collect();
    wait_until_at_rest(&rt);
    let waiting = sampler.peak();
    let counts = simulator.counts();
    assert!(counts.builds + counts.loads > 0, "some of them wait for the pause to end: {counts:?}");

    let sampler = Sampler::start();
    drop(paused);
    for build in builds {
        assert_eq!(block_on(build).expect("it builds").origin(), origin);
    }
    block_on(rt.drain());
    let going_on = sampler.peak();

    report("completed", modules.len());
    report("file threads", file_threads());
    for (phase, peak) in [(WAITING, waiting), (GOING_ON, going_on)] {
        report(&format!("{phase} threads"), peak.threads);
        report(&format!("{phase} files"), peak.files);
        let added = peak.resident_bytes.saturating_sub(before.resident_bytes);
        report(&format!("{phase} bytes"), added);
    }
}

/// Returns the number of threads of the crate `blocking` in this process.
fn file_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("it is readable");
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    let names = tasks.filter_map(|task| name(task.ok()?).ok());
    names.filter(|name| name.starts_with("blocking-")).count()
}

/// Runs one of the children below.
fn measure(child: &str, directory: &Path) -> Report {
    let report =
        Child::start::<_, &OsStr>(&test_name!(child), [(CACHE, directory.as_ref())]).report();
    eprintln!("{child}: {report:?}");
    assert!((FILE_THREADS..=FILE_THREADS + 8).contains(&report["file threads"]), "{report:?}");
    for phase in [WAITING, GOING_ON] {
        let [threads, files] = ["threads", "files"].map(|of| report[&format!("{phase} {of}")]);
        assert!(threads <= MAX_THREADS, "{phase}: more than {MAX_THREADS} threads: {report:?}");
        assert!(files <= MAX_FILES, "{phase}: more than {MAX_FILES} open files: {report:?}");
    }
    report
}

/// Returns the bytes that a child needed while its requests waited.
fn waiting_bytes(report: &Report) -> u64 {
    report[&format!("{WAITING} bytes")]
}

fn cold_modules() -> Vec<Module> {
    let source = |number| format!("kernel void f{number}(global uint *x) {{}}");
    (0..BUILDS).map(|number| Module::opencl_c(source(number))).collect()
}

fn stored_modules() -> Vec<Module> {
    let source = |number| {
        format!("#pragma binary_size {BINARY}\nkernel void f{number}(global uint *x) {{}}")
    };
    (0..STORED).map(|number| Module::opencl_c(source(number))).collect()
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn cold_builds() {
    request_all(&cold_modules(), Origin::Compiled);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn loads() {
    request_all(&stored_modules(), Origin::Disk);
}

#[test]
fn ten_thousand_waiting_builds_take_few_threads_and_little_memory() {
    let directory = tempfile::tempdir().expect("there is room");
    let report = measure("cold_builds", directory.path());
    assert_eq!(report["completed"], BUILDS as u64);
    let bytes = waiting_bytes(&report) / BUILDS as u64;
    assert!(
        bytes <= MAX_BYTES_OF_A_BUILD,
        "{bytes} bytes a build, more than {MAX_BYTES_OF_A_BUILD}: {report:?}"
    );
}

#[test]
fn waiting_loads_do_not_hold_their_entries_in_memory() {
    let directory = tempfile::tempdir().expect("there is room");
    let rt = start(&Simulator::immediate(), directory.path());
    let modules = stored_modules();
    let builds: Vec<_> = modules.iter().map(|module| rt.build(module).start()).collect();
    for build in builds {
        block_on(build).expect("it builds");
    }
    block_on(rt.drain());
    let stats = rt.stats();
    assert_eq!(stats.disk.writes, STORED as u64, "all are stored");
    assert!(stats.disk.bytes_written >= (STORED * BINARY) as u64, "{stats:?}");

    let report = measure("loads", directory.path());
    assert_eq!(report["completed"], STORED as u64);
    let bytes = waiting_bytes(&report);
    assert!(
        bytes <= MAX_BYTES_OF_ALL_LOADS,
        "{bytes} bytes, more than {MAX_BYTES_OF_ALL_LOADS}: {report:?}"
    );
}
