//! A service under load whose caches, disk and helpers fail one after the other: no request hangs, no result is wrong,
//! nothing panics, and the memory of the process does not grow.
//!
//! `KILN_SOAK_SECONDS` sets the time on each device, and `KILN_SEED` the seed of the faults.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::print_stderr, reason = "a log states the faults, and how the requests ended")]

mod faults;
mod folder;
mod records;
mod service;
mod verdict;

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use futures::executor::block_on;
use kiln::{CacheConfig, Device, Runtime};
use support::children::{DEVICE, Report, number_of, on_imitated_gpu};
use support::tools::{compile_library, has_tool};
use support::{builder, on_a_device_with, stores, tier};

use self::faults::{Disturber, Fault, Pace, Process, wait_until_ready};
use self::folder::Folder;
use self::records::{Clock, Records, Source};
use self::service::{FOLDER, HOLDER, MEMORY_LIMIT, PAUSE, REMOTE, SERVICE, STORE_LIMIT};
use self::verdict::Run;
use crate::machines::proxy::Proxy;
use crate::machines::services::Redis;

const SECONDS: &str = "KILN_SOAK_SECONDS";
const SEED: &str = "KILN_SEED";

/// Time after which a process counts as hanging that is to start or to end.
const HANGS: Duration = Duration::from_secs(120);

/// Time of a run in seconds from which the memory of the service is compared with that of a service without faults, and
/// from which faults last as long as in operation.
const LONG: u64 = 120;
const MEDIUM: u64 = 30;

/// Number of programs that have space in the store, in a short run as well, and in memory: fewer than are requested again
/// and again.
const STORED: u64 = 80;
const STORED_SHORT: u64 = 28;
const IN_MEMORY: u64 = 16;

/// Growth of the service with faults, relative to the one without faults per loaded program, and in bytes for what
/// differs once.
const MAX_RATIO: f64 = 1.2;
const MAX_DIFFERENCE: f64 = (16 << 20) as f64;

/// Name of the library with the disk that has faults.
const DISK: &str = "disk.so";

#[test]
fn a_service_survives_faults_one_after_the_other() {
    let has_tools = has_tool("cc", &["cc", "--version"])
        && has_tool("redis-server", &["redis-server", "--version"]);
    // The command that starts programs on an imitated GPU does not pass on the disk with faults.
    if !has_tools || on_imitated_gpu().is_some() {
        return;
    }
    let seconds = tier::cases(SECONDS, 60, 4) as u64;
    block_on(on_a_device_with(builder, async |rt: Runtime| {
        if rt.device().backend == "opencl" {
            soak(rt.device(), seconds).await;
        }
    }));
}

/// Runs a service with faults, and before one without, if there is time to compare their memory.
async fn soak(device: &Device, seconds: u64) {
    let seed = std::env::var(SEED).map(|text| text.parse().expect("it is a number"));
    let seed = seed.unwrap_or_else(|_| fastrand::u64(..1 << 32));
    eprintln!("{SEED}={seed}: {device}, {seconds} s");
    let service = Service { device, seed, seconds, sizes: Sizes::on(device, seconds).await };
    let calm = (seconds >= LONG).then(|| service.run(&[], seconds / 4));
    let (run, stats) = service.run(&Fault::ALL, seconds);
    print(&run, &stats);
    let mut findings = run.findings();
    findings.extend(missing(&run, &stats, seconds));
    if let Some((calm, _)) = calm {
        findings.extend(calm.findings());
        findings.extend(growing(&run, &calm));
    }
    assert!(findings.is_empty(), "{SEED}={seed}, {device}: {findings:#?}");
}

/// Maximum sizes of the caches in bytes.
struct Sizes {
    store: u64,
    memory: u64,
}

impl Sizes {
    /// Builds a program to find out how large programs are.
    async fn on(device: &Device, seconds: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = CacheConfig::at(folder.path());
        let builder = Runtime::builder().device(device.index().to_string()).cache(cache);
        let rt = builder.build().await.unwrap();
        let _program = rt.build(&service::module(1)).await.unwrap();
        rt.drain().await;
        let memory = rt.stats().memory.bytes_estimated;
        let stored = stores::only_entry(&stores::open(folder.path())).bytes();
        let programs = if seconds >= MEDIUM { STORED } else { STORED_SHORT };
        Self { store: stored * programs, memory: memory * IN_MEMORY }
    }
}

/// A service to run on a device.
struct Service<'a> {
    device: &'a Device,
    seed: u64,
    /// Time of the run with faults.
    seconds: u64,
    sizes: Sizes,
}

impl Service<'_> {
    /// Runs the service with faults of some kinds. Returns its records, and its counts.
    fn run(&self, faults: &[Fault], seconds: u64) -> (Run, Report) {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder(directory.path().canonicalize().unwrap());
        let redis = Redis::start(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]);
        let redis = redis.expect("it can be started");
        let proxy = Proxy::to(redis.address());
        let pace = self.pace();
        let slow = Duration::from_millis(pace.slow);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/remote/soak/disk.c");
        compile_library(source, &folder.file(DISK));
        fs::write(folder.running(), "").unwrap();
        let limit = Duration::from_secs(2 * seconds) + 4 * HANGS;
        let start = |name| {
            let variables = self.variables(name, &folder, &proxy, pace.slow);
            Process::new(service::start(name, &variables), limit)
        };
        let clock = Clock::start();
        let [service, holder] = [start(SERVICE), start(HOLDER)];
        let mut disturber = Disturber {
            rng: Rng::with_seed(self.seed),
            pace,
            clock: &clock,
            folder: &folder,
            redis: &redis,
            proxy: &proxy,
            service: &service,
            holder: &holder,
            descriptors: descriptors(self.device),
            intervals: Vec::new(),
            requested: 0,
        };
        wait_until_ready(&folder, &[(SERVICE, &service), (HOLDER, &holder)]);
        let begin = clock.now();
        disturber.run(faults, Duration::from_secs(seconds));
        let span = begin..clock.now();
        let faults = std::mem::take(&mut disturber.intervals);
        drop(disturber);
        let stats = self.end(SERVICE, service, &faults);
        self.end(HOLDER, holder, &faults);
        let (mut requests, samples) = Records::load(&folder.records());
        requests.retain(|request| request.end > span.start);
        (Run { patience: self.patience(), slow, faults, requests, samples, span }, stats)
    }

    fn pace(&self) -> Pace {
        match self.seconds >= MEDIUM {
            true => Pace {
                fault: 1000..5000,
                rest: 2000..3000,
                slow: if self.seconds >= LONG { 20_000 } else { 4000 },
                requested: 3,
                compiled: 20,
            },
            false => {
                Pace { fault: 200..500, rest: 100..200, slow: 1000, requested: 2, compiled: 18 }
            }
        }
    }

    /// Returns the time beyond faults that a request may take. Short runs are for busy systems, too.
    fn patience(&self) -> Duration {
        Duration::from_secs(if self.seconds >= MEDIUM { 10 } else { 60 })
    }

    fn variables(
        &self,
        name: &str,
        folder: &Folder,
        proxy: &Proxy,
        slow: u64,
    ) -> Vec<(&'static str, String)> {
        let text = |path: &Path| path.to_str().expect("it is Unicode").to_owned();
        let pocl = folder.file(&format!("{name} pocl"));
        fs::create_dir(&pocl).unwrap();
        vec![
            (DEVICE, self.device.index().to_string()),
            (SEED, self.seed.to_string()),
            (FOLDER, text(&folder.0)),
            (REMOTE, proxy.redis_url()),
            (STORE_LIMIT, self.sizes.store.to_string()),
            (MEMORY_LIMIT, self.sizes.memory.to_string()),
            (PAUSE, if self.seconds >= MEDIUM { "25" } else { "5" }.to_owned()),
            ("KILN_TEST_SLOW_MS", slow.to_string()),
            ("LD_PRELOAD", text(&folder.file(DISK))),
            ("POCL_CACHE_DIR", text(&pocl)),
            // Otherwise PoCL compiles again at the first launch of each kernel, which needs descriptors.
            ("POCL_WORK_GROUP_SPECIALIZATION", "0".to_owned()),
        ]
    }

    /// Expects a process to end well. Returns its counts.
    fn end(&self, name: &str, process: Process, faults: &[faults::Interval]) -> Report {
        let (status, output) = process.status_and_output();
        let is_well = status.success() && !output.contains("panicked at");
        let last = faults.last();
        assert!(is_well, "{SEED}={}, the {name}, {status}, after {last:?}:\n{output}", self.seed);
        output.lines().filter_map(|line| number_of(line.strip_prefix("report ")?)).collect()
    }
}

/// Returns the numbers of descriptors that are left in a fault. A compile takes up to 16. PoCL ends the process if it
/// cannot open a library when a kernel is launched.
fn descriptors(device: &Device) -> Range<u64> {
    if device.common_name() == Some("pocl") { 32..64 } else { 0..24 }
}

/// Prints the numbers of a run.
fn print(run: &Run, stats: &Report) {
    eprintln!("faults: {}", run.describe_faults());
    eprintln!("errors: {:#?}", run.errors());
    eprintln!("requests: {}, by source: {:?}", run.requests.len(), run.sources());
    for fault in Fault::ALL {
        eprintln!("{fault:?}: {:.2?}", run.around(fault));
    }
    eprintln!("slowest request without a fault: {:.2?}", run.slowest_without_fault());
    if let Some(growth) = run.growth() {
        eprintln!("{}", describe(&growth));
    }
    eprintln!("{stats:?}");
}

fn describe(growth: &verdict::Growth) -> String {
    let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
    format!(
        "resident: {:.1} MiB early, {:.1} MiB late, with {:.0} programs loaded between",
        mebibytes(growth.early),
        mebibytes(growth.late),
        growth.loads
    )
}

/// Returns what did not happen often enough in a run.
fn missing(run: &Run, stats: &Report, seconds: u64) -> Vec<String> {
    let mut numbers = Vec::new();
    let sources = run.sources();
    let least = seconds / 10;
    numbers
        .extend(Source::ALL.map(|source| (format!("{source:?}"), sources[&source] as u64, least)));
    for fault in Fault::ALL {
        let around = run.around(fault);
        let least = 1 + seconds / 120;
        numbers.push((format!("{fault:?}"), around.faults as u64, least));
        numbers.push((format!("right in {fault:?}"), around.right_during as u64, least));
        numbers.push((format!("right after {fault:?}"), around.right_after as u64, least));
    }
    if seconds >= LONG {
        // These show that the faults had effects.
        let number = |name: &str| stats[name];
        numbers.push(("slow and full disk".to_owned(), number("disk failures"), 1));
        numbers.push(("stopped holder".to_owned(), number("lock timeouts"), 1));
        let unavailable = number("remote errors") + number("remote timeouts");
        numbers.push(("stopped Redis, and network".to_owned(), unavailable, 1));
        numbers.push(("compile processes".to_owned(), number("compile processes"), 1));
        numbers.push(("evictions".to_owned(), number("disk evictions"), 1));
    }
    let missing = numbers.into_iter().filter(|(_, number, least)| number < least);
    missing.map(|(name, number, least)| format!("{name}: {number} of {least}")).collect()
}

/// Returns a finding if the service with faults grows more than the one without faults, whose driver keeps a part of
/// each program, too.
fn growing(run: &Run, calm: &Run) -> Option<String> {
    let [run, calm] = [run, calm].map(|run| run.growth().expect("there are samples"));
    eprintln!("without faults, {}", describe(&calm));
    let of_driver = calm.bytes().max(0.0) / calm.loads.max(1.0) * run.loads;
    let allowed = MAX_RATIO * of_driver + MAX_DIFFERENCE;
    (run.bytes() > allowed).then(|| {
        format!("the service grew by {:.0} bytes, of which {allowed:.0} are allowed", run.bytes())
    })
}
