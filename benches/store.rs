//! Cost and benefit of the disk cache: `cargo bench --bench store --all-features`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw.rs"]
mod raw;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

use futures_lite::future::block_on;
use kiln::build::Origin;
use kiln::simulated::Simulator;
use kiln::store::{Durability, Store};
use kiln::{CacheConfig, Module, Program, Result, Runtime};
use raw::Raw;
use support::{absolute, compare, heading, interleave, median, time};

/// Number of programs in the cold and the warm start.
const PROGRAMS: usize = 200;

/// Number of entries in the collection.
const ENTRIES: u32 = 100_000;

fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("there is room");
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        let Some(raw) = Raw::new(platform, "kernel void none() {}", "none", 1) else { continue };
        hits(&directory.path().join("hits"), platform, &Arc::new(raw))?;
        starts(&directory.path().join("starts"), platform)?;
    }
    puts("a new store", &directory.path().join("new"))?;
    // Each of the 1,024 build locks is a file, created when the lock is first taken.
    let used = directory.path().join("used");
    fs::create_dir_all(used.join("v1/lock")).expect("there is room");
    for lock in 0..1024 {
        fs::write(used.join(format!("v1/lock/build-{lock:03x}")), "").expect("there is room");
    }
    puts("a store with all its lock files", &used)?;
    collection(&directory.path().join("collection"))
}

/// Creates a runtime that keeps nothing in memory: every build uses the disk.
fn start(platform: &str, directory: &Path) -> Result<Runtime> {
    let builder = Runtime::builder().device(platform).memory_limit(0);
    block_on(builder.cache(CacheConfig::at(directory)).build())
}

fn build(rt: &Runtime, module: &Module, origin: Origin) -> Program {
    let program = block_on(rt.build(module).into_future()).expect("it builds");
    assert_eq!(program.origin(), origin);
    program
}

/// Returns a program whose binary has about `bytes` bytes, because of a table in it.
fn sized(bytes: usize) -> Module {
    let numbers: String =
        (0..bytes / 4).map(|n| format!("{},", n * 2_654_435_761 % 999_983)).collect();
    Module::opencl_c(format!(
        "constant uint table[] = {{{numbers}}};
         kernel void look(global uint *x) {{
             size_t i = get_global_id(0);
             x[i] = table[x[i] % {}];
         }}",
        bytes / 4
    ))
}

fn hits(directory: &Path, platform: &str, raw: &Arc<Raw>) -> Result<()> {
    let rt = start(platform, directory)?;
    heading(&rt.device().to_string());
    for (name, bytes) in [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)] {
        let module = sized(bytes);
        if let Err(error) = block_on(rt.build(&module).into_future()) {
            // GPUs have little memory for constants.
            println!("{name}: {}", error.kind());
            continue;
        }
        block_on(rt.drain());
        let (path, payload) = entry(directory, &rt, &module)?;
        let load = || raw.load(&path, payload).create_kernels();
        let load_on_a_thread = || {
            let (raw, path) = (Arc::clone(raw), path.clone());
            block_on(smol::unblock(move || raw.load(&path, payload).create_kernels()))
        };
        let [kiln, bare, with_kernels, on_a_thread] = interleave(
            60,
            [
                &mut || time_without_drop(|| build(&rt, &module, Origin::Disk)),
                &mut || time_without_drop(|| raw.load(&path, payload)),
                &mut || time_without_drop(load),
                &mut || time_without_drop(load_on_a_thread),
            ],
        );
        println!("a binary of {payload} bytes");
        // Kiln's program is ready to launch. Some drivers link a program when its kernels are created.
        compare(
            &format!("disk hit, {name}, over read, build, kernels"),
            kiln,
            with_kernels,
            1,
            1.05,
        );
        compare("the same, over these awaited from a thread", kiln, on_a_thread, 1, 1.15);
        compare("the same, over read and build alone", kiln, bare, 1, 0.0);
    }
    Ok(())
}

/// Measures the time of `make`, without the time of dropping its result.
fn time_without_drop<T>(make: impl FnOnce() -> T) -> Duration {
    let mut made = None;
    time(|| made = Some(make()))
}

/// Returns the file of a program's entry, and the size of its payload.
fn entry(directory: &Path, rt: &Runtime, module: &Module) -> Result<(PathBuf, usize)> {
    let store = block_on(Store::open(directory))?;
    let name = rt.build(module).entry_name()?;
    let whole = block_on(store.get(&name))?.expect("it is stored");
    Ok((directory.join("v1").join(name), whole.payload().len()))
}

fn starts(directory: &Path, platform: &str) -> Result<()> {
    // The kernels are unique to this run: some drivers have caches of their own.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let modules: Vec<_> = (0..PROGRAMS)
        .map(|n| {
            Module::opencl_c(format!(
                "kernel void f{n}(float a, global const float *x, global float *y) {{
                     size_t i = get_global_id(0);
                     y[i] += a * x[i] + {n}.0f + {}.0f;
                 }}",
                run.as_millis() % 10_000_000
            ))
        })
        .collect();
    let start = |origin| -> Result<Duration> {
        let begin = Instant::now();
        let rt = start(platform, directory)?;
        let builds: Vec<_> = modules.iter().map(|module| rt.build(module).start()).collect();
        for build in builds {
            assert_eq!(block_on(build)?.origin(), origin);
        }
        let took = begin.elapsed();
        block_on(rt.drain());
        Ok(took)
    };
    let cold = start(Origin::Compiled)?;
    let warm = median((0..5).map(|_| start(Origin::Disk)).collect::<Result<_>>()?);
    println!(
        "{PROGRAMS} programs: cold {:.0} ms, warm {:.0} ms, {:.0} times",
        cold.as_secs_f64() * 1e3,
        warm.as_secs_f64() * 1e3,
        cold.as_secs_f64() / warm.as_secs_f64()
    );
    Ok(())
}

/// Measures the cost that the disk adds, on a device whose builds take no time.
fn puts(store: &str, directory: &Path) -> Result<()> {
    heading(&format!("a put into {store}, on a device that builds in no time"));
    let runtime =
        |cache| block_on(Runtime::builder().simulator(&Simulator::new()).cache(cache).build());
    let (stored, unstored) =
        (runtime(CacheConfig::at(directory))?, runtime(CacheConfig::memory_only())?);
    let mut number = 0;
    let mut once = |rt: &Runtime| {
        number += 1;
        let module = Module::opencl_c(format!(
            "#pragma binary_size 65536\nkernel void f{number}(global uint *x) {{}}"
        ));
        let took = time_without_drop(|| build(rt, &module, Origin::Compiled));
        block_on(rt.drain());
        took
    };
    let mut unstored_number = 1_000_000;
    let [with, without] = interleave(
        500,
        [&mut || once(&stored), &mut || {
            unstored_number += 1;
            let module = Module::opencl_c(format!(
                "#pragma binary_size 65536\nkernel void f{unstored_number}(global uint *x) {{}}"
            ));
            time_without_drop(|| build(&unstored, &module, Origin::Compiled))
        }],
    );
    compare("a build with a store, over one without", with, without, 1, 0.0);
    absolute("what the store adds", with.saturating_sub(without).as_nanos() as f64, 60_000.0);
    Ok(())
}

fn collection(directory: &Path) -> Result<()> {
    const BYTES: usize = 256;
    heading(&format!("collection of {ENTRIES} entries"));
    let config = CacheConfig::at(directory).durability(Durability::None);
    let rt = block_on(
        Runtime::builder()
            .simulator(&Simulator::new())
            .memory_limit(0)
            .cache(config.clone())
            .build(),
    )?;
    let module = Module::opencl_c("#pragma binary_size 65536\nkernel void f(global uint *x) {}");
    build(&rt, &module, Origin::Compiled);
    block_on(rt.drain());
    // A scan reads only names and sizes.
    let device = directory.join("v1").join("00112233445566aa");
    for shard in 0..=255u8 {
        fs::create_dir_all(device.join(format!("{shard:02x}"))).expect("there is room");
    }
    let long_ago = SystemTime::now() - Duration::from_secs(1000);
    for n in 0..ENTRIES {
        let path = device.join(format!("{:02x}/{n:062x}.kiln", n % 256));
        fs::write(&path, [0; BYTES]).expect("there is room");
        let file = fs::File::options().write(true).open(path).expect("it is there");
        file.set_modified(long_ago).expect("it is ours");
    }
    let quiet: Vec<_> =
        (0..2000).map(|_| time_without_drop(|| build(&rt, &module, Origin::Disk))).collect();
    let limit = u64::from(ENTRIES) * BYTES as u64;
    let store = block_on(config.max_bytes(limit).open_store())?.expect("it has a directory");
    let done = AtomicBool::new(false);
    let (hits, took, collected) = std::thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let begin = Instant::now();
            let collected = block_on(store.collect(false));
            let took = begin.elapsed();
            done.store(true, SeqCst);
            (took, collected)
        });
        let mut hits = Vec::new();
        while !done.load(SeqCst) {
            hits.push(time_without_drop(|| build(&rt, &module, Origin::Disk)));
        }
        let (took, collected) = collector.join().expect("it does not panic");
        (hits, took, collected)
    });
    let collected = collected?;
    println!(
        "{} removed of {}, while {} hits came",
        collected.removed,
        collected.entries,
        hits.len()
    );
    absolute("the collection", took.as_nanos() as f64, 1e9);
    compare("a hit meanwhile, over one in quiet", median(hits), median(quiet), 1, 1.10);
    Ok(())
}
