//! The service, a process of its own: its workers request programs of a bounded pool, launch them and compare the
//! results. Another process, which shares the store, requests the programs that it is told to.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use futures::executor::block_on;
use futures::future::join_all;
use kiln::{
    CacheConfig, Error, ErrorKind, Module, Program, Queue, Result, Runtime, RuntimeBuilder,
};
use rustix::process::{Pid, getppid};
use support::children::{Child, DEVICE, report, variable};
use support::limits::Lowered;
use support::test_name;

use super::folder::Folder;
use super::records::{Clock, Outcome, Record, Records, Request, Sample};
use super::{HANGS, SEED};

/// Environment variables of the processes: their folder, the address of the remote cache, the maximum sizes of the store
/// and of the programs in memory, in bytes, and the average time between two requests of a worker, in milliseconds.
pub(super) const FOLDER: &str = "KILN_TEST_FOLDER";
pub(super) const REMOTE: &str = "KILN_TEST_REMOTE";
pub(super) const STORE_LIMIT: &str = "KILN_TEST_STORE_LIMIT";
pub(super) const MEMORY_LIMIT: &str = "KILN_TEST_MEMORY_LIMIT";
pub(super) const PAUSE: &str = "KILN_TEST_PAUSE";

/// Workers of the service, and those of them that request only programs in memory.
const WORKERS: usize = 6;
const HOT_WORKERS: usize = 2;

/// Processes that compile.
const COMPILE_PROCESSES: usize = 2;

/// Time limit of a compile process for one program, longer than it is ever stopped.
const LIMIT: Duration = Duration::from_secs(20);

/// Descriptors that the service may open besides those of its start.
const DESCRIPTORS: u64 = 256;

/// Programs that are requested most often, so that they are in memory; those that are often on the disk; and those that
/// are often only in the remote cache.
const HOT: Range<u32> = 0..6;
const WARM: Range<u32> = 6..22;
const COLD: Range<u32> = 22..46;

/// Programs that are mostly nowhere. Their numbers are used again after the last one.
const FRESH: Range<u32> = 1000..5096;

/// Programs that are requested at once from time to time: enough for compile processes.
const BURST: u32 = 18;

/// Elements of the buffers.
const LEN: usize = 256;

/// Names of the processes.
pub(super) const SERVICE: &str = "service";
pub(super) const HOLDER: &str = "holder";

/// Starts a process by its name.
pub(super) fn start(name: &str, variables: &[(&str, String)]) -> Child {
    Child::start(&test_name!(name), variables.iter().cloned())
}

/// Returns program `number`, whose kernel computes results that no other program does.
pub(super) fn module(number: u32) -> Module {
    Module::opencl_c(format!(
        "kernel void compute(global const uint *from, global uint *to) {{
            size_t i = get_global_id(0);
            to[i] = (from[i] ^ {number}u) * {}u + (uint)i;
        }}",
        factor(number)
    ))
}

fn factor(number: u32) -> u32 {
    number.wrapping_mul(2_654_435_761) | 1
}

fn expected(number: u32, from: &[u32]) -> Vec<u32> {
    let result = |(i, from): (usize, &u32)| {
        (from ^ number).wrapping_mul(factor(number)).wrapping_add(i as u32)
    };
    from.iter().enumerate().map(result).collect()
}

/// Returns a builder for the device and the caches that the environment names.
fn builder(folder: &Folder) -> RuntimeBuilder {
    let bytes = |name| variable(name).parse().expect("it is a number");
    let cache = CacheConfig::at(folder.store()).max_bytes(bytes(STORE_LIMIT));
    Runtime::builder()
        .device(variable(DEVICE))
        .cache(cache.remote(variable(REMOTE)))
        .memory_limit(bytes(MEMORY_LIMIT))
}

/// Objects that the workers of a process share.
struct Bench {
    name: &'static str,
    folder: Folder,
    rt: Runtime,
    records: Records,
    clock: Clock,
    /// Process whose child this one is, unless the parent has ended.
    parent: Option<Pid>,
    is_over: AtomicBool,
    /// Number of programs of [`FRESH`] that were requested.
    fresh: AtomicU32,
}

impl Bench {
    fn new(name: &'static str, folder: Folder, builder: RuntimeBuilder) -> Self {
        let rt = block_on(builder.build()).expect("it starts");
        let records = Records::append(&folder.records());
        let (is_over, fresh) = (AtomicBool::new(false), AtomicU32::new(0));
        let (clock, parent) = (Clock::start(), getppid());
        Self { name, folder, rt, records, clock, parent, is_over, fresh }
    }

    /// Tells the parent that the process makes its requests from now on.
    fn is_ready(&self) {
        File::create(self.folder.ready(self.name)).expect("there is space");
    }

    fn is_to_run(&self) -> bool {
        self.folder.running().exists() && getppid() == self.parent
    }

    /// Returns the number of a program that is mostly nowhere.
    fn next_fresh(&self) -> u32 {
        FRESH.start + self.fresh.fetch_add(1, SeqCst) % FRESH.len() as u32
    }

    fn add_sample(&self, memory: &Path) {
        // A lack of descriptors costs a sample.
        let Ok(pages) = fs::read_to_string(memory) else { return };
        let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let stats = self.rt.stats();
        self.records.add(&Record::Sample(Sample {
            at: self.clock.now(),
            resident: resident.expect("it is a number") * rustix::param::page_size() as u64,
            loads: stats.builds.compiles + stats.disk.hits + stats.remote.hits,
        }));
    }

    /// Makes a request, and records how it ends.
    async fn request(&self, queue: &Queue, number: u32) {
        let begin = self.clock.now();
        let outcome = self.compute(queue, number).await.unwrap_or_else(|error| Outcome::Failed {
            is_plausible: is_plausible(&error),
            message: format!("{:?}: {error}", error.kind()),
        });
        let request = Request { begin, end: self.clock.now(), number, outcome };
        self.records.add(&Record::Request(request));
    }

    async fn compute(&self, queue: &Queue, number: u32) -> Result<Outcome> {
        let program: Program = self.rt.build(&module(number)).await?;
        let input: Vec<u32> = (0..LEN as u32).map(|i| i.wrapping_mul(40_503) ^ number).collect();
        let from = self.rt.buffer_from(input.clone()).await?;
        let to = self.rt.buffer::<u32>(LEN)?;
        // SAFETY: there are as many work-items as elements.
        let kernel = unsafe { program.kernel("compute") }?;
        queue.submit(kernel.launch(LEN).args((&from, &to)))?;
        let found = queue.read(&to).await?;
        let expected = expected(number, &input);
        if found == expected {
            return Ok(Outcome::Right(program.origin().into()));
        }
        let first = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        Ok(Outcome::Wrong(format!("{} elements, the first wrong one: {first:?}", found.len())))
    }
}

/// Whether a lack of descriptors may cause an error of this kind.
fn is_plausible(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::OutOfResources | ErrorKind::Io | ErrorKind::Driver | ErrorKind::BuildFailed
    )
}

/// Makes requests, until the process is told to end.
struct Worker<'a> {
    bench: &'a Bench,
    queue: Queue,
    rng: Rng,
    /// Whether the worker requests only programs that are in memory, so that requests end in each fault.
    is_hot: bool,
    /// Programs that the worker was told to request.
    order: Option<Range<u32>>,
}

impl<'a> Worker<'a> {
    fn new(bench: &'a Bench, rng: Rng, is_hot: bool) -> Self {
        Self { bench, queue: bench.rt.queue(), rng, is_hot, order: None }
    }

    async fn run(&mut self, pause: u64) {
        while !self.bench.is_over.load(SeqCst) {
            let programs = self.next_programs();
            self.request_all(programs).await;
            smol::Timer::after(Duration::from_millis(self.rng.u64(..=2 * pause))).await;
        }
    }

    /// Returns the programs that are requested at once next.
    fn next_programs(&mut self) -> Vec<u32> {
        if self.is_hot {
            return vec![self.rng.u32(HOT)];
        }
        if let Some(programs) = self.next_order() {
            return programs.collect();
        }
        match self.rng.u32(..2000) {
            0 => (0..BURST).map(|_| self.bench.next_fresh()).collect(),
            1..20 => vec![self.bench.next_fresh()],
            20..80 => vec![self.rng.u32(COLD)],
            80..240 => vec![self.rng.u32(WARM)],
            _ => vec![self.rng.u32(HOT)],
        }
    }

    /// Returns the programs of an order, if it is a new one.
    fn next_order(&mut self) -> Option<Range<u32>> {
        let order = self.bench.folder.read_order(self.bench.name)?;
        let is_new = self.order.as_ref() != Some(&order);
        self.order = Some(order.clone());
        is_new.then_some(order)
    }

    async fn request_all(&self, numbers: impl IntoIterator<Item = u32>) {
        join_all(numbers.into_iter().map(|number| self.bench.request(&self.queue, number))).await;
    }
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn service() {
    let folder = Folder(PathBuf::from(variable(FOLDER)));
    let builder = builder(&folder)
        .build_child(env!("CARGO_BIN_EXE_kiln"))
        .build_child_limit(LIMIT)
        .compile_processes(COMPILE_PROCESSES);
    let bench = Bench::new(SERVICE, folder, builder);
    let seed: u64 = variable(SEED).parse().expect("it is a number");
    let pause: u64 = variable(PAUSE).parse().expect("it is a number");
    // All programs that are requested again are in the remote cache from now on.
    let worker = Worker::new(&bench, Rng::with_seed(seed), false);
    block_on(worker.request_all(HOT.start..COLD.end));
    block_on(bench.rt.drain_timeout(HANGS)).expect("nothing has failed yet");
    let _limited = Lowered::files(DESCRIPTORS);
    bench.is_ready();
    let working = AtomicUsize::new(WORKERS);
    thread::scope(|scope| {
        for at in 0..WORKERS {
            let (bench, working) = (&bench, &working);
            scope.spawn(move || {
                let rng = Rng::with_seed(seed.wrapping_mul(31).wrapping_add(at as u64));
                let mut worker = Worker::new(bench, rng, at < HOT_WORKERS);
                match at % 2 {
                    0 => smol::block_on(worker.run(pause)),
                    _ => block_on(worker.run(pause)),
                }
                working.fetch_sub(1, SeqCst);
            });
        }
        watch(&bench);
        bench.is_over.store(true, SeqCst);
        wait_for_end(&bench, &working);
    });
    block_on(bench.rt.drain_timeout(HANGS)).expect("everything works again");
    report_stats(&bench.rt);
}

/// Adds samples, and takes descriptors away when told to, until the process is told to end.
fn watch(bench: &Bench) {
    let memory = PathBuf::from("/proc/self/statm");
    let (mut taken, mut sampled) = (Vec::new(), Instant::now());
    while bench.is_to_run() {
        if !bench.folder.descriptors().exists() {
            taken.clear();
        } else if taken.is_empty() {
            taken = take_descriptors(&bench.folder);
        }
        if sampled.elapsed() > Duration::from_millis(250) {
            sampled = Instant::now();
            bench.add_sample(&memory);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Opens files until as many descriptors are left as the parent says.
fn take_descriptors(folder: &Folder) -> Vec<File> {
    let text = fs::read_to_string(folder.descriptors()).unwrap_or_default();
    // The parent may not have written the number yet.
    let Ok(left) = text.parse::<usize>() else { return Vec::new() };
    let mut files: Vec<_> = (0..).map_while(|_| File::open("/dev/null").ok()).collect();
    files.truncate(files.len().saturating_sub(left));
    files
}

/// Waits for the workers' last requests. Ends the process if they hang.
#[allow(clippy::print_stderr, reason = "the parent prints it")]
fn wait_for_end(bench: &Bench, working: &AtomicUsize) {
    let since = Instant::now();
    while working.load(SeqCst) > 0 {
        if since.elapsed() > HANGS {
            eprintln!("a request does not end; commands:\n{}", bench.rt.dot());
            process::exit(1);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn report_stats(rt: &Runtime) {
    let stats = rt.stats();
    for (name, number) in [
        ("builds", stats.builds.requested),
        ("compiles", stats.builds.compiles),
        ("compile processes", stats.builds.compile_processes),
        ("compiles in processes", stats.builds.process_compiles),
        ("build retries", stats.builds.retries),
        ("build panics", stats.builds.panics),
        ("evictions from memory", stats.memory.evictions),
        ("disk hits", stats.disk.hits),
        ("disk writes", stats.disk.writes),
        ("disk writes skipped", stats.disk.skips),
        ("disk failures", stats.disk.failures),
        ("disk entries damaged", stats.disk.damaged),
        ("disk evictions", stats.disk.evictions),
        ("lock waits", stats.builds.lock_waits),
        ("lock timeouts", stats.builds.lock_timeouts),
        ("remote hits", stats.remote.hits),
        ("remote errors", stats.remote.errors),
        ("remote timeouts", stats.remote.timeouts),
        ("remote races", stats.remote.races),
        ("remote objects refused", stats.remote.refused),
        ("remote writes", stats.remote.writes),
        ("remote writes dropped", stats.remote.writes_dropped),
    ] {
        report(name, number);
    }
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn holder() {
    let folder = Folder(PathBuf::from(variable(FOLDER)));
    let builder = builder(&folder);
    let bench = Bench::new(HOLDER, folder, builder);
    bench.is_ready();
    let mut worker = Worker::new(&bench, Rng::new(), false);
    while bench.is_to_run() {
        if let Some(programs) = worker.next_order() {
            block_on(worker.request_all(programs));
        }
        thread::sleep(Duration::from_millis(2));
    }
    block_on(bench.rt.drain_timeout(HANGS)).expect("everything works again");
    report("builds", bench.rt.stats().builds.requested);
}
