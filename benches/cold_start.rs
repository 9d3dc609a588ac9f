//! Time from the start of a process to its first result, with the program on disk, relative to a process that makes
//! only the driver's calls: `cargo bench --bench cold_start --all-features`. Also the time to open a large build
//! manifest.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw.rs"]
mod raw;
mod support;

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use kiln::manifest::BuildManifest;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, Module, Runtime};
use raw::{AXPY, Raw};
use support::{compare, heading, interleave, median};

/// Number of starts of each kind.
const STARTS: usize = 21;

/// Numbers of kernels in the programs.
const KERNELS: [usize; 2] = [1, 300];

/// Number of work-items of the one launch.
const ITEMS: usize = 256;

fn main() -> kiln::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [kind, platform, kernels, folder] = &*arguments {
        let (folder, kernels) = (Path::new(folder), kernels.parse().expect("it is a number"));
        match kind.as_str() {
            "kiln" => block_on(first_result(platform, kernels, folder))?,
            "raw" => first_raw_result(platform, &folder.join("binary")),
            _ => unreachable!("this program starts only such children"),
        }
        println!("ready");
        return Ok(());
    }
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        for kernels in KERNELS {
            block_on(measure(platform, kernels))?;
        }
    }
    block_on(open_manifest())
}

async fn measure(platform: &str, kernels: usize) -> kiln::Result<()> {
    let folder = tempfile::tempdir().expect("there is room for a cache");
    let cache = CacheConfig::at(folder.path());
    let Ok(rt) = Runtime::builder().device(platform).cache(cache).build().await else {
        return Ok(());
    };
    let program = rt.build(&module(kernels)).await?;
    std::fs::write(folder.path().join("binary"), program.binary()?).expect("there is room");
    rt.drain().await;
    heading(&format!("{}, {kernels} kernels", rt.device()));
    let start = |kind| start(kind, platform, kernels, folder.path());
    let [kiln, raw] = interleave(STARTS, [&mut || start("kiln"), &mut || start("raw")]);
    compare("the first result of a process, program on disk", kiln, raw, 1, 1.2);
    Ok(())
}

/// Returns a program with this many kernels.
fn module(kernels: usize) -> Module {
    let mut text = AXPY.to_owned();
    for number in 1..kernels {
        _ = write!(
            text,
            "\nkernel void k{number}(global float *x, uint n) {{
                float sum = {number};
                for (uint i = 0; i < n; i++) sum = sum * x[i] + {number};
                x[get_global_id(0)] = sum;
            }}"
        );
    }
    Module::opencl_c(text)
}

/// Starts a process, and returns the time until it reports its result.
fn start(kind: &str, platform: &str, kernels: usize, folder: &Path) -> Duration {
    let start = Instant::now();
    let this = std::env::current_exe().expect("the system knows it");
    let mut child = Command::new(this)
        .args([kind, platform, &kernels.to_string()])
        .arg(folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut report = [0; 6];
    let mut output = child.stdout.take().expect("it is piped");
    output.read_exact(&mut report).expect("the child has a result");
    let time = start.elapsed();
    let status = child.wait().expect("it was started");
    assert!(status.success(), "{kind}: {status}");
    time
}

/// Launches a kernel of a program on disk.
async fn first_result(platform: &str, kernels: usize, folder: &Path) -> kiln::Result<()> {
    let builder = Runtime::builder().device(platform).cache(CacheConfig::at(folder));
    let rt = builder.build().await?;
    let program = rt.build(&module(kernels)).await?;
    // SAFETY: each work-item uses the element of its own number.
    let axpy = unsafe { program.kernel("axpy") }?;
    let x = rt.buffer_from(vec![1.0f32; ITEMS]).await?;
    let y = rt.buffer_from(vec![1.0f32; ITEMS]).await?;
    rt.queue().submit(axpy.launch(ITEMS).args((1.0f32, &x, &y)))?;
    assert_eq!(rt.queue().read(&y).await?, [2.0; ITEMS]);
    assert_eq!(rt.stats().builds.compiles, 0, "the program is on disk");
    Ok(())
}

/// Does the same with nothing but the driver's calls.
fn first_raw_result(platform: &str, binary: &Path) {
    let raw = Raw::of_binary(platform, binary, "axpy", ITEMS).expect("the device is there");
    raw.enqueue(None);
    assert_eq!(raw.result(), [2.0; ITEMS]);
}

/// Prints the time to open a manifest with many entries.
async fn open_manifest() -> kiln::Result<()> {
    const ENTRIES: usize = 10_000;
    let folder = tempfile::tempdir().expect("there is room for a manifest");
    let path = folder.path().join("manifest");
    let cache = CacheConfig::at(folder.path().join("cache"));
    let builder = Runtime::builder().simulator(&Simulator::immediate()).cache(cache);
    let rt = builder.build().await?;
    rt.record_manifest(&path).await?;
    for number in 0..ENTRIES {
        let text = format!("kernel void k{number}(global uint *x) {{ x[0] = {number}; }}");
        rt.build(&Module::opencl_c(text).with_label(format!("k{number}.cl"))).await?;
    }
    rt.drain().await;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let start = Instant::now();
        let manifest = BuildManifest::open(&path).await?;
        times.push(start.elapsed());
        assert_eq!(manifest.entries().len(), ENTRIES, "all are recorded");
    }
    let time = median(times).as_secs_f64() * 1e3;
    println!("a manifest of {ENTRIES} entries is opened in {time:.1} ms (goal: 50)");
    Ok(())
}
