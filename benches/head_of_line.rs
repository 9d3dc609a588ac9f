//! Other requests while cold programs compile: `cargo bench --bench head_of_line`.
//!
//! Drivers compile a program in one call that cannot be interrupted, and few of these calls run at a time. A
//! request that needs no compile may wait for those that run, but not for the programs that are queued behind
//! them. Some drivers have the calls of several threads wait for each other, so the times are taken with one
//! compile at a time and with two.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::num::NonZero;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt;
use futures::future::join_all;
use futures_lite::future::block_on;
use kiln::build::{Build, Origin};
use kiln::{CacheConfig, Device, ErrorKind, Module, Program, Result, Runtime};
use support::{columns, compare, median};

/// Number of programs that compile while other requests are measured.
const PROGRAMS: usize = 12;

/// Number of kernels in each of these programs.
const KERNELS: usize = 30;

/// Number of requests that are measured alone.
const ALONE: usize = 9;

/// Maximum number of requests that are measured beside the compiles.
const BESIDE: usize = 20;

/// Pause between requests beside the compiles, so that they meet different moments of a compile.
const PAUSE: Duration = Duration::from_millis(20);

fn main() -> Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        for workers in [1, 2] {
            let directory = tempfile::tempdir().expect("there is room");
            let workers = NonZero::new(workers).expect("it is not zero");
            match measure(&Setting { platform, directory: directory.path(), workers }) {
                Err(error) if error.kind() == ErrorKind::NoDevice => {
                    println!("{platform}: no device");
                }
                measured => measured?,
            }
        }
    }
    Ok(())
}

/// Setting of the runtimes of a measurement.
struct Setting<'a> {
    platform: &'a str,
    directory: &'a Path,
    /// Number of programs that are compiled at the same time.
    workers: NonZero<usize>,
}

impl Setting<'_> {
    fn start(&self) -> Result<Runtime> {
        let builder = Runtime::builder().device(self.platform).compile_workers(self.workers);
        block_on(builder.cache(CacheConfig::at(self.directory)).build())
    }
}

/// Returns a program with this number of kernels. It differs from all others, of earlier runs as well: some
/// drivers have caches of their own.
fn unique(kernels: usize) -> Module {
    static RUN: LazyLock<u128> = LazyLock::new(|| {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since_epoch.unwrap_or_default().as_millis() % 10_000_000
    });
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let kernel = |n| {
        format!(
            "kernel void f{n}(float a, global const float *x, global float *y) {{
                 size_t i = get_global_id(0);
                 y[i] += a * x[i] + {n}.0f + {number}.0f + {}.0f;
             }}\n",
            *RUN
        )
    };
    Module::opencl_c((0..kernels).map(kernel).collect::<String>())
}

/// Builds a program. Returns it with the time from the request to the end.
fn build(rt: &Runtime, module: &Module, origin: Origin) -> (Program, Duration) {
    let start = Instant::now();
    let program = block_on(rt.build(module).into_future()).expect("it builds");
    let took = start.elapsed();
    assert_eq!(program.origin(), origin);
    (program, took)
}

/// Compiles this number of programs at the same time, and returns the time until the last one ends.
fn compile_together(rt: &Runtime, number: usize) -> Duration {
    let start = Instant::now();
    let builds: Vec<_> = (0..number).map(|_| rt.build(&unique(KERNELS)).start()).collect();
    for built in block_on(join_all(builds)) {
        built.expect("it builds");
    }
    start.elapsed()
}

/// Returns a device of another driver, if there is one.
fn other_device(rt: &Runtime) -> Option<&Device> {
    rt.devices().iter().find(|device| device.platform != rt.device().platform)
}

/// Opens a device. Returns the time of the request.
fn open(rt: &Runtime, device: &Device) -> Duration {
    let start = Instant::now();
    block_on(rt.on(device)).expect("it opens");
    start.elapsed()
}

/// A request, measured alone and then beside compiles.
struct Row<'a> {
    what: &'static str,
    alone: Duration,
    request: Box<dyn FnMut() -> Duration + 'a>,
}

impl<'a> Row<'a> {
    /// Measures a request alone. `request` returns its time.
    fn new(what: &'static str, mut request: impl FnMut() -> Duration + 'a) -> Self {
        let alone = median((0..ALONE).map(|_| request()).collect());
        Self { what, alone, request: Box::new(request) }
    }
}

/// Cold programs that compile meanwhile.
struct Compiles<'a> {
    rt: &'a Runtime,
    builds: Vec<Build>,
}

impl Compiles<'_> {
    /// Returns the number of programs that are not built yet.
    fn left(&mut self) -> usize {
        self.builds.retain_mut(|build| match build.now_or_never() {
            Some(built) => {
                built.expect("it builds");
                false
            }
            None => true,
        });
        self.builds.len()
    }

    fn finish(&mut self) {
        for built in block_on(join_all(self.builds.drain(..))) {
            built.expect("it builds");
        }
    }

    /// Starts new compiles if fewer than half are left, and waits until one of them runs.
    fn start(&mut self) {
        if self.left() >= PROGRAMS / 2 {
            return;
        }
        self.finish();
        let before = self.rt.stats().builds.compiles;
        self.builds = (0..PROGRAMS).map(|_| self.rt.build(&unique(KERNELS)).start()).collect();
        while self.rt.stats().builds.compiles == before {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Measures requests as long as programs are compiled. Returns their longest time, and their number.
    fn beside(&mut self, request: &mut dyn FnMut() -> Duration) -> (Duration, usize) {
        self.start();
        let mut times = Vec::new();
        while times.len() < BESIDE && self.left() > 0 {
            times.push(request());
            thread::sleep(PAUSE);
        }
        (times.iter().copied().max().expect("at least half of the programs were left"), times.len())
    }
}

/// Stores programs, by way of a runtime that ends. Others then have to load them.
fn store(setting: &Setting<'_>) -> Result<Vec<Module>> {
    let rt = setting.start()?;
    let modules: Vec<_> = (0..=ALONE + BESIDE).map(|_| unique(1)).collect();
    for module in &modules {
        build(&rt, module, Origin::Compiled);
    }
    block_on(rt.drain());
    Ok(modules)
}

/// Measures all requests on the devices of a platform, and prints the rows.
fn measure(setting: &Setting<'_>) -> Result<()> {
    let stored = store(setting)?;
    let rt = setting.start()?;
    let (kept, mut to_load) = (&stored[0], stored[1..].iter());
    let (program, _) = build(&rt, kept, Origin::Disk);
    // Programs that were loaded stay in use, so that no request drops one.
    let mut loaded = Vec::new();
    let mut rows = vec![
        Row::new("a disk hit", || {
            let module = to_load.next().expect("there is one for each request");
            let (program, took) = build(&rt, module, Origin::Disk);
            loaded.push(program);
            took
        }),
        Row::new("a memory hit", || build(&rt, kept, Origin::Memory).1),
        Row::new("an upload of 1 MiB", || {
            let elements = vec![1u8; 1 << 20];
            let start = Instant::now();
            let buffer = block_on(rt.buffer_from(elements)).expect("there is room");
            let took = start.elapsed();
            drop(buffer);
            took
        }),
        Row::new("a kernel of a built program", || {
            let start = Instant::now();
            // SAFETY: it is never launched.
            let kernel = unsafe { program.kernel("f0") };
            let took = start.elapsed();
            kernel.expect("it is there");
            took
        }),
    ];
    if let Some(device) = other_device(&rt) {
        // A device is opened once in a runtime, so each request alone has a runtime of its own.
        let alone = || {
            let rt = setting.start().expect("it starts as before");
            open(&rt, other_device(&rt).expect("it is there as before"))
        };
        rows.push(Row {
            what: "opening another device",
            alone: median((0..ALONE).map(|_| alone()).collect()),
            request: Box::new(|| open(&rt, device)),
        });
    } else {
        println!("no other device to open");
    }
    let workers = setting.workers;
    let compile = (0..3).map(|_| compile_together(&rt, workers.get())).max();
    let compile = compile.expect("there is more than none");

    let title = format!(
        "{}, beside {PROGRAMS} compiles, {workers} at a time in {:.3} s",
        rt.device(),
        compile.as_secs_f64()
    );
    columns(&title, ["beside, us", "alone, us"]);
    let mut compiles = Compiles { rt: &rt, builds: Vec::new() };
    for Row { what, alone, request } in &mut rows {
        let (longest, times) = compiles.beside(request);
        compare(&format!("{what}, longest of {times}"), longest, *alone, 1, 0.0);
        compare("the same, over alone and running compiles", longest, *alone + compile, 1, 1.0);
    }
    compiles.finish();
    Ok(())
}
