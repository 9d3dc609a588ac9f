//! Time of Kiln relative to raw Level Zero in the same run, on the first device: `cargo bench --bench
//! level_zero`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw_level_zero.rs"]
mod raw;
mod support;

use std::cell::Cell;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::block_on;
use kiln::build::Origin;
use kiln::store::Store;
use kiln::{Buffer, CacheConfig, Event, Kernel, Module, Queue, Runtime};
use raw::Raw;
use support::{compare, heading, interleave, time};

const SAXPY: &[u8] = include_bytes!("../tests/data/saxpy.spv");

/// Modules whose disk hits are measured.
const MODULES: [(&str, &[u8]); 2] =
    [("saxpy", SAXPY), ("arithmetic", include_bytes!("../tests/data/emitted/arithmetic_O2.spv"))];

/// Work-items of the kernel, in one group.
const ITEMS: usize = 64;

/// Launches of the throughput runs.
const LAUNCHES: u32 = 10_000;

/// Launches of a recorded graph.
const RECORDED: u32 = 100;

fn main() -> kiln::Result<()> {
    let Some(raw) = Raw::new(SAXPY, c"saxpy", ITEMS as u32) else {
        println!("skipped: there is no Level Zero loader");
        return Ok(());
    };
    block_on(launches(raw))?;
    block_on(replays(raw))?;
    let directory = tempfile::tempdir().expect("there is room");
    block_on(hits(raw, directory.path()))
}

/// A kernel and its arguments.
struct Saxpy {
    rt: Runtime,
    queue: Queue,
    kernel: Kernel,
    buffers: [Buffer<f32>; 2],
}

impl Saxpy {
    /// Creates a runtime whose awaits busy-wait for up to `spin`.
    async fn new(spin: Duration) -> kiln::Result<Self> {
        let builder = Runtime::builder().device("level-zero").cache(CacheConfig::memory_only());
        let rt = builder.spin(spin).build().await?;
        let program = rt.build(&Module::spirv(SAXPY)?).await?;
        // SAFETY: `saxpy` stays below the global size, which is the buffers' length.
        let kernel = unsafe { program.kernel("saxpy")? };
        let buffers = [rt.buffer(ITEMS)?, rt.buffer(ITEMS)?];
        Ok(Self { queue: rt.queue(), rt, kernel, buffers })
    }

    fn launch(&self) -> Event {
        let [x, y] = &self.buffers;
        let launch = self.kernel.launch(ITEMS).local(ITEMS).args((1.0f32, x, y));
        self.queue.submit(launch).expect("it is right")
    }
}

async fn launches(raw: &Raw) -> kiln::Result<()> {
    let saxpy = Saxpy::new(Duration::ZERO).await?;
    let spinning = Saxpy::new(Duration::from_secs(1)).await?;
    heading(&saxpy.rt.device().to_string());
    let await_one = |saxpy: &Saxpy| time(|| block_on(saxpy.launch()).expect("it runs"));
    let [kiln, spun, bare] = interleave(
        2000,
        [&mut || await_one(&saxpy), &mut || await_one(&spinning), &mut || {
            time(|| {
                raw.append(true);
                raw.spin();
            })
        }],
    );
    compare("submit and await one, over append and spin", kiln, bare, 1, 1.15);
    compare("  with awaits that spin, too", spun, bare, 1, 1.15);
    let late = kiln.saturating_sub(bare);
    println!("{:44} {:>11.1} us (goal: 50)", "  of that later than by spinning", micros(late));

    let [kiln, bare] = interleave(
        15,
        [
            &mut || {
                time(|| {
                    (1..LAUNCHES).for_each(|_| drop(saxpy.launch()));
                    block_on(saxpy.launch()).expect("it runs");
                })
            },
            &mut || {
                time(|| {
                    (1..LAUNCHES).for_each(|_| raw.append(false));
                    raw.append(true);
                    raw.spin();
                })
            },
        ],
    );
    compare("10,000 submitted, then one await", kiln, bare, LAUNCHES, 1.15);
    Ok(())
}

/// Measures replays of a graph: those with the same value, which execute a command list, and those with a new value
/// each, whose commands are enqueued one by one.
async fn replays(raw: &Raw) -> kiln::Result<()> {
    let Saxpy { rt, queue, kernel, buffers: [x, y] } = Saxpy::new(Duration::from_secs(1)).await?;
    let mut recorder = queue.record();
    let factor = recorder.scalar::<f32>();
    for _ in 0..RECORDED {
        recorder.submit(kernel.launch(ITEMS).local(ITEMS).args((&factor, &x, &y)))?;
    }
    let graph = recorder.finish().await?;
    let new_value = Cell::new(1.0);
    let replay = |value: f32| {
        time(|| {
            let event = graph.replay().set(&factor, value).submit().expect("it is right");
            block_on(event).expect("it runs");
        })
    };
    let [same, new, bare] = interleave(
        100,
        [
            &mut || replay(1.0),
            &mut || {
                new_value.set(new_value.get() + 1.0);
                replay(new_value.get())
            },
            &mut || {
                time(|| {
                    (1..RECORDED).for_each(|_| raw.append(false));
                    raw.append(true);
                    raw.spin();
                })
            },
        ],
    );
    block_on(rt.drain());
    let each = |time: Duration| micros(time) / f64::from(RECORDED);
    println!(
        "{:44} {:>11.2} us (goal: 0.3)",
        "a command of a replay with the same value",
        each(same)
    );
    println!("{:44} {:>11.2} us", "  with a new value", each(new));
    println!("{:44} {:>11.2} us", "  appended by the raw driver", each(bare));
    Ok(())
}

fn c_string(name: &str) -> CString {
    CString::new(name).expect("names hold no NUL")
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Measures disk hits, relative to reading the file and loading it with the driver.
async fn hits(raw: &'static Raw, directory: &Path) -> kiln::Result<()> {
    let builder = Runtime::builder().device("level-zero").memory_limit(0);
    let rt = builder.cache(CacheConfig::at(directory)).build().await?;
    for (name, spirv) in MODULES {
        let module = Module::spirv(spirv)?;
        let program = rt.build(&module).await?;
        rt.drain().await;
        let entry = rt.build(&module).entry_name()?;
        let whole = Store::open(directory).await?.get(&entry).await?.expect("it is stored");
        let payload = whole.payload().len();
        let names: Arc<[_]> = program.kernel_names().into_iter().map(c_string).collect();
        let path: Arc<Path> = directory.join("v1").join(entry).into();
        let build = || {
            let program = block_on(rt.build(&module).into_future()).expect("it is there");
            assert_eq!(program.origin(), Origin::Disk);
            program
        };
        let load = move |path: &Path, names: &[CString]| {
            let file = std::fs::read(path).expect("it can be read");
            raw.load(&file[..payload], names)
        };
        let load_on_a_thread = || {
            let (path, names) = (path.clone(), names.clone());
            block_on(smol::unblock(move || load(&path, &names)))
        };
        let [kiln, bare, on_a_thread] = interleave(
            100,
            [
                &mut || time_without_drop(build),
                &mut || time_without_drop(|| load(&path, &names)),
                &mut || time_without_drop(load_on_a_thread),
            ],
        );
        println!("{name}: a binary of {payload} bytes, {} kernels", names.len());
        compare("disk hit, over read, module, kernels", kiln, bare, 1, 1.05);
        compare("  over these awaited from a thread", kiln, on_a_thread, 1, 1.05);
    }
    Ok(())
}

/// Measures the time of `make`, without the time of dropping its result.
fn time_without_drop<T>(make: impl FnOnce() -> T) -> Duration {
    let mut made = None;
    time(|| made = Some(make()))
}
