//! A process that uses a store, for `scripts/check-versions`, which compiles it with several versions of Kiln. So it
//! uses only what all of them have. The feature `old-names` selects the names of versions before `EntryCheck`.
//!
//! ```sh
//! program use ROOT LIMIT FIRST COUNT # builds and launches the programs FIRST to FIRST + COUNT - 1
//! program verify ROOT                # reads all entries
//! ```
//!
//! A limit of 0 is none. `KILN_DEVICE` selects the device. Results go to standard output, one on each line:
//!
//! * `program KEY ORIGIN`: where the program comes from, as `Compiled` or `Disk`,
//! * `stats NAME=NUMBER ...`: the counts of this process,
//! * `entries NUMBER BYTES`: the entries of the store,
//! * `damaged NAME REASON`: an entry that is not valid,
//! * `warning FIELD: VALUE; ...`: a warning or an error that Kiln logs.

use std::env;
use std::error::Error;
use std::fmt::Debug;

use futures::executor::block_on;
use futures::stream::{self, StreamExt, TryStreamExt};
#[cfg(feature = "old-names")]
use kiln::store::Checked as EntryCheck;
#[cfg(not(feature = "old-names"))]
use kiln::store::EntryCheck;
use kiln::store::Store;
use kiln::{CacheConfig, Module, Runtime, Stats};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Number of elements of a program's table, which makes its entry larger than 32 KiB with each driver.
const ELEMENTS: u32 = 8192;

/// Number of work-items of a launch.
const ITEMS: u32 = 256;

/// Number of programs that are built at a time.
const AT_A_TIME: usize = 4;

/// Subscriber that prints warnings and errors of Kiln.
struct Warnings;

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("kiln")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        println!("warning {}", line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Fields of an event on one line.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}").replace('\n', " ");
        self.0 += &format!("{field}: {value}; ");
    }
}

fn main() -> Result<()> {
    tracing::subscriber::set_global_default(Warnings)?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &*arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        ["use", root, limit, first, count] => {
            let cache = CacheConfig::at(*root).max_bytes(limit.parse()?);
            block_on(use_store(cache, first.parse()?, count.parse()?))
        }
        ["verify", root] => block_on(verify(root)),
        _ => Err("expected `use ROOT LIMIT FIRST COUNT` or `verify ROOT`".into()),
    }
}

async fn use_store(cache: CacheConfig, first: u32, count: u32) -> Result<()> {
    // Programs are not kept in memory, so that each request reaches the store.
    let rt = Runtime::builder().cache(cache).memory_limit(0).build().await?;
    let uses = stream::iter(first..first + count).map(|number| use_program(&rt, number));
    uses.buffer_unordered(AT_A_TIME).try_collect::<()>().await?;
    rt.drain().await;
    let [hits, misses, damaged, refused, failures, skips, evictions, writes, bytes_written] =
        disk_counts(&rt.stats());
    println!(
        "stats hits={hits} misses={misses} damaged={damaged} refused={refused} failures={failures} \
         skips={skips} evictions={evictions} writes={writes} bytes_written={bytes_written}"
    );
    Ok(())
}

/// Returns the counts of the disk, in the order in which they are printed.
#[cfg(not(feature = "old-names"))]
fn disk_counts(Stats { disk, .. }: &Stats) -> [u64; 9] {
    [
        disk.hits,
        disk.misses,
        disk.damaged,
        disk.refused,
        disk.failures,
        disk.skips,
        disk.evictions,
        disk.writes,
        disk.bytes_written,
    ]
}

/// Returns the counts of the disk, in the order in which they are printed.
#[cfg(feature = "old-names")]
fn disk_counts(stats: &Stats) -> [u64; 9] {
    [
        stats.disk_hits,
        stats.disk_misses,
        stats.disk_damaged,
        stats.disk_refused,
        stats.disk_failures,
        stats.disk_skips,
        stats.disk_evictions,
        stats.disk_writes,
        stats.disk_bytes_written,
    ]
}

/// Builds a program, launches it, and compares its results.
async fn use_program(rt: &Runtime, number: u32) -> Result<()> {
    let program = rt.build(&module(number)).await?;
    println!("program {} {:?}", program.key(), program.origin());
    // SAFETY: the kernel writes one element for each work-item, and reads inside its table.
    let kernel = unsafe { program.kernel("look_up")? };
    let results = rt.buffer::<u32>(ITEMS as usize)?;
    rt.queue().submit(kernel.launch(ITEMS as usize).args((&results,)))?;
    let results = rt.queue().read(&results).await?;
    let expected: Vec<u32> = (0..ITEMS).map(|item| element(number, index(item)) ^ item).collect();
    if results != expected {
        return Err(format!("program {number} has wrong results: {results:?}").into());
    }
    Ok(())
}

fn module(number: u32) -> Module {
    let elements: Vec<String> =
        (0..ELEMENTS).map(|index| element(number, index).to_string()).collect();
    Module::opencl_c(format!(
        "constant uint elements[{ELEMENTS}] = {{{}}};
         kernel void look_up(global uint *results) {{
             uint item = get_global_id(0);
             results[item] = elements[item * 31u % {ELEMENTS}u] ^ item;
         }}",
        elements.join(",")
    ))
}

/// Returns the index of the element that a work-item reads.
fn index(item: u32) -> u32 {
    item * 31 % ELEMENTS
}

/// Returns an element of the table of a program.
fn element(number: u32, index: u32) -> u32 {
    (number * ELEMENTS + index).wrapping_mul(2_654_435_761)
}

async fn verify(root: &str) -> Result<()> {
    let store = Store::open(root).await?;
    let mut results = store.verify();
    let (mut entries, mut bytes) = (0, 0);
    while let Some((info, checked)) = results.next().await {
        entries += 1;
        bytes += info.bytes();
        match checked {
            EntryCheck::Whole(_) => {}
            EntryCheck::Unusable(reason) => println!("damaged {} {reason}", info.name()),
            EntryCheck::Unreadable(error) => println!("damaged {} {error}", info.name()),
            _ => println!("damaged {} for a reason that this program does not know", info.name()),
        }
    }
    println!("entries {entries} {bytes}");
    Ok(())
}
