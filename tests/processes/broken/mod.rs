//! No failure is silent: what a command was to write is lost when the command did not run, whatever broke.
//!
//! Tasks drop every event and read their buffers, while compilers break, files and memory run out, and processes
//! that compile are killed, at random. Contents that are read without an error are those that the buffers have if
//! all commands run.
//!
//! `KILN_SOAK_SECONDS` sets the time on each device, and `KILN_SEED` the first seed.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::print_stderr, reason = "a log states what was broken, and how the rounds ended")]

mod counts;
mod disturber;
mod model;
mod rounds;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use futures::executor::block_on;
use kiln::{CacheConfig, Device, FusionMode, Runtime};
use support::children::{Child, DEVICE, Report, report, variable};
use support::tools::has_clang;
use support::{on_each_device, test_name, tier};
use tempfile::TempDir;

use self::counts::{Counts, Disturbance, IN_EFFECT, Survivable, Watch};
use self::disturber::{Compilers, Disturber};
use self::rounds::{Bench, Kind, Log, Worker};

const SECONDS: &str = "KILN_SOAK_SECONDS";
const SEED: &str = "KILN_SEED";

/// Environment variable with the directory of a child.
const FOLDER: &str = "KILN_TEST_FOLDER";

/// Maximum number of seconds of one process. The next one has another seed, and other settings.
const PROCESS_SECONDS: u64 = 20;

/// Numbers of processes that worked again at their end, and of those that a driver ended.
const RECOVERED: &str = "processes that recovered";
const ENDED: &str = "processes that a driver ended";

/// Workers of a process.
const WORKERS: usize = 4;

/// Time limit of a compile. Processes that are stopped exceed it.
const LIMIT: Duration = Duration::from_secs(10);

/// Time after which a round counts as hanging, once nothing is broken any more.
const HANGS: Duration = Duration::from_secs(120);

/// Tries of each kind of round, once nothing is broken any more.
const TRIES: usize = 20;

/// Exit status with which the dynamic loader ends a process that has no memory for the data of a thread.
const WITHOUT_MEMORY: i32 = 127;

/// Faults that a child finds, as exit statuses. The status of a panic is higher, and counts as a fault, too.
#[derive(Clone, Copy)]
enum Finding {
    /// Contents that were read without an error, and that are wrong.
    Silent = 70,
    /// An error that nothing that was broken causes.
    WrongError = 71,
    /// A round that does not end.
    Hanging = 72,
}

impl Finding {
    /// Returns whether an exit status is that of a fault. Drivers that end a process use others.
    fn is_one(status: i32) -> bool {
        status >= Self::Silent as i32 && status != WITHOUT_MEMORY
    }
}

/// Ends the process with a finding. Works without memory and files.
fn found(finding: Finding, message: &str) -> ! {
    eprintln!("{message}");
    // SAFETY: the call ends the process.
    unsafe { libc::_exit(finding as i32) }
}

#[test]
fn no_failure_is_silent() {
    if !has_clang() {
        return;
    }
    let seconds = tier::cases(SECONDS, 60, 5) as u64;
    block_on(on_each_device(async |rt: Runtime| soak(&rt, seconds)));
}

/// Runs processes for a time, and until enough of their rounds failed and succeeded.
fn soak(rt: &Runtime, seconds: u64) {
    let seed = std::env::var(SEED).map(|text| text.parse().expect("it is a number"));
    let first = seed.unwrap_or_else(|_| fastrand::u64(..1 << 32));
    let mut totals = Report::new();
    let since = Instant::now();
    for process in 0.. {
        let left = seconds.saturating_sub(since.elapsed().as_secs());
        let missing = missing(&totals, rt.device(), seconds);
        if left == 0 && missing.is_empty() {
            break;
        }
        assert!(process < 8 + seconds, "{missing:?}: {totals:#?}");
        let now = if left == 0 { seconds } else { left }.min(PROCESS_SECONDS);
        for (name, number) in run_process(rt, first + process, now) {
            *totals.entry(name).or_default() += number;
        }
    }
    totals.retain(|name, _| !name.ends_with(IN_EFFECT));
    eprintln!("{}, {} s: {totals:#?}", rt.device(), since.elapsed().as_secs());
}

/// Returns what did not happen often enough in a time.
fn missing(totals: &Report, device: &Device, seconds: u64) -> Vec<String> {
    let number = |name: &str| totals.get(name).copied().unwrap_or_default();
    let outcomes = ["failed", "succeeded"];
    let mut least = outcomes.map(|outcome| (format!("rounds {outcome}"), 1 + seconds / 5)).to_vec();
    // Drivers end processes that have no memory or files, but not most of them.
    least.push((RECOVERED.to_owned(), 1 + number(ENDED) / 4));
    for outcome in outcomes {
        let of = |name| (format!("{name} {outcome}"), seconds / 60);
        let disturbances = Survivable::on(device).disturbances.iter();
        least.extend(disturbances.map(|disturbance| of(format!("{disturbance:?}"))));
        least.extend(Kind::ALL.map(|kind| of(format!("{kind:?}"))));
    }
    let missing = least.into_iter().filter(|(name, least)| number(name) < *least);
    missing.map(|(name, least)| format!("{name}: {} of {least}", number(&name))).collect()
}

/// Runs rounds in a process. Returns its numbers.
fn run_process(rt: &Runtime, seed: u64, seconds: u64) -> Report {
    eprintln!("{SEED}={seed}: {seconds} s");
    let folder = TempDir::new().unwrap();
    let [driver, temporary] = ["driver", "temporary"].map(|name| folder.path().join(name));
    for path in [&driver, &temporary] {
        fs::create_dir(path).unwrap();
    }
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let variables = [
        (DEVICE, rt.device().index().to_string()),
        (SEED, seed.to_string()),
        (SECONDS, seconds.to_string()),
        (FOLDER, path(folder.path())),
        ("POCL_CACHE_DIR", path(&driver)),
        ("TMPDIR", path(&temporary)),
    ];
    let child = Child::start(&test_name!("child_that_is_disturbed"), variables);
    let (status, output) = child.status_and_output();
    let mut numbers = Counts::load(&counts_of(folder.path()));
    if status.success() {
        numbers.insert(RECOVERED.to_owned(), 1);
    } else {
        let affecting = Disturbance::affecting_driver(&numbers);
        let is_finding = status.code().is_some_and(Finding::is_one);
        assert!(!affecting.is_empty() && !is_finding, "{SEED}={seed}, {status}:\n{output}");
        let tail: Vec<_> = output.lines().rev().take(12).collect();
        eprintln!("{affecting:?} limited: a driver ended the process, {status}: {tail:#?}");
        numbers.insert(ENDED.to_owned(), 1);
    }
    numbers
}

fn counts_of(folder: &Path) -> PathBuf {
    folder.join("counts")
}

// ---- In the process -----------------------------------------------------------------------------

#[test]
#[ignore = "run by another test, in processes of its own"]
fn child_that_is_disturbed() {
    // SAFETY: to ignore a signal takes no handler. A write beyond the limit of a file's size fails then.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let seed: u64 = variable(SEED).parse().unwrap();
    let duration = Duration::from_secs(variable(SECONDS).parse().unwrap());
    let folder = PathBuf::from(variable(FOLDER));
    let compilers = Compilers::new(&folder);
    let counts = Counts::at(&counts_of(&folder));
    let mut rng = Rng::with_seed(seed);
    let cache = match rng.bool() {
        true => CacheConfig::at(folder.join("store")),
        false => CacheConfig::memory_only(),
    };
    let builder = Runtime::builder()
        .device(variable(DEVICE))
        .cache(cache)
        .fusion(FusionMode::Always)
        .front_end(compilers.path("clang"), compilers.path("llvm-spirv"))
        .build_child(env!("CARGO_BIN_EXE_kiln"))
        .build_child_limit(LIMIT)
        .compile_processes(rng.usize(..3));
    let bench = block_on(async { Bench::new(builder.build().await.unwrap()).await });
    let watch = Watch::default();
    let (is_over, working) = (AtomicBool::new(false), AtomicUsize::new(WORKERS));
    let mut workers: Vec<_> = (0..WORKERS)
        .map(|at| {
            let name = format!("{SEED}={seed}, worker {at}");
            Worker::new(&bench, name, Rng::with_seed(seed.wrapping_mul(31).wrapping_add(at as u64)))
        })
        .collect();
    let logs: Vec<_> = workers.iter().map(Worker::log).collect();
    thread::scope(|scope| {
        for (at, worker) in workers.iter_mut().enumerate() {
            let (is_over, working, watch, counts) = (&is_over, &working, &watch, &counts);
            scope.spawn(move || {
                let rounds = run_rounds(worker, is_over, watch, counts);
                match at % 2 {
                    0 => smol::block_on(rounds),
                    _ => block_on(rounds),
                }
                working.fetch_sub(1, SeqCst);
            });
        }
        let (compilers, watch, counts) = (&compilers, &watch, &counts);
        let survivable = Survivable::on(bench.rt.device());
        Disturber { rng, compilers, watch, counts, survivable }.run(duration);
        is_over.store(true, SeqCst);
        wait_for_end(&working, &bench.rt, &logs);
    });
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        block_on(recover(&mut workers[at % WORKERS], kind));
    }
    block_on(bench.rt.drain_timeout(HANGS)).unwrap();
    counts.save();
    report("rounds recovered", Kind::ALL.len());
}

/// Runs rounds until the disturbances are over, and counts how they end.
async fn run_rounds(worker: &mut Worker<'_>, is_over: &AtomicBool, watch: &Watch, counts: &Counts) {
    let mut rng = worker.fork_rng();
    while !is_over.load(SeqCst) {
        let (kind, since) = (Kind::random(&mut rng), watch.now());
        let errors = worker.round(kind).await;
        let outcome = if errors.is_empty() { "succeeded" } else { "failed" };
        for error in &errors {
            worker.expect_plausible(error);
            counts.add(format!("error {:?}", error.kind()));
        }
        let disturbances = watch.since(&since);
        if disturbances.is_empty() {
            counts.add(format!("undisturbed {outcome}"));
        }
        for disturbance in disturbances {
            counts.add(format!("{disturbance:?} {outcome}"));
        }
        counts.add(format!("{kind:?} {outcome}"));
        counts.add(format!("rounds {outcome}"));
    }
}

/// Waits for the workers' last rounds.
fn wait_for_end(working: &AtomicUsize, rt: &Runtime, logs: &[Log]) {
    let since = Instant::now();
    while working.load(SeqCst) > 0 {
        if since.elapsed() > HANGS {
            let logs: String = logs.iter().map(|log| format!("{log}\n")).collect();
            found(Finding::Hanging, &format!("{SEED}={}\n{logs}{}", variable(SEED), rt.dot()));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Expects a round to succeed within some tries, now that nothing is broken.
async fn recover(worker: &mut Worker<'_>, kind: Kind) {
    let mut errors = Vec::new();
    for _ in 0..TRIES {
        errors = worker.round(kind).await;
        if errors.is_empty() {
            return;
        }
        smol::Timer::after(Duration::from_millis(100)).await;
    }
    panic!("{kind:?} does not work again: {errors:#?}");
}
