//! Sixteen processes that write far more to one store than its limit. They run for `KILN_CHURN_SECONDS`
//! seconds, by default ten.

#![cfg(feature = "simulated")]
#![allow(clippy::print_stderr, reason = "a log tells how much was done")]

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::executor::block_on;
use futures::io::Cursor;
use kiln::simulated::Simulator;
use kiln::store::{Durability, EntryCheck, EntryInfo, Store};
use kiln::{CacheConfig, Module, Runtime};
use support::children::{Child, Report, report, sum, variable};
use support::stores;
use support::test_name;

const PROCESSES: u32 = 16;
const PROGRAMS: u32 = 1000;

/// One twentieth of the size of all programs.
const LIMIT: u64 = 2 << 20;

fn seconds() -> u64 {
    std::env::var("KILN_CHURN_SECONDS").map_or(10, |text| text.parse().expect("it is a number"))
}

/// Returns program `number`, of about 8 to 72 KiB; the number is in the name of its kernel.
fn module(number: u32) -> Module {
    let size = 8192 + number * 64;
    Module::opencl_c(format!("#pragma binary_size {size}\nkernel void number_{number}() {{}}"))
}

fn xorshift(state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state
}

/// One of the processes: builds programs that are mostly not on the disk, or only for a short time, and
/// replaces entries in between.
#[test]
#[ignore = "run by the other test, in processes of their own"]
fn child() {
    let root = variable("KILN_TEST_STORE");
    let mut random = variable("KILN_TEST_SEED").parse().expect("it is a number");
    let end =
        Instant::now() + Duration::from_secs(variable("KILN_TEST_SECONDS").parse().expect("one"));
    let store = stores::open(&*root);
    let cache = CacheConfig::at(&root).max_bytes(LIMIT).durability(Durability::None);
    // Nothing stays in memory: every build uses the disk.
    let builder = Runtime::builder().cache(cache).memory_limit(0);
    let mut replaced = 0;
    block_on(async {
        let rt = builder.simulator(&Simulator::immediate()).build().await.expect("it starts");
        while Instant::now() < end {
            for _ in 0..20 {
                let number = xorshift(&mut random) % PROGRAMS;
                let program = rt.build(&module(number)).await.expect("it builds");
                assert_eq!(program.kernel_names(), [format!("number_{number}")]);
                let size = program.binary().expect("it has one").len();
                assert_eq!(size, 8192 + number as usize * 64, "program {number}");
            }
            // Entries that a collector takes next.
            let mut entries: Vec<_> = store.entries().collect().await;
            entries.sort_by_key(EntryInfo::used);
            for entry in entries.into_iter().take(5) {
                replaced += u64::from(replace(&store, &entry).await);
            }
        }
        rt.drain().await;
        let stats = rt.stats();
        report("loads", stats.disk.hits);
        report("compiles", stats.builds.compiles);
        report("evictions", stats.disk.evictions);
        report("replaced", replaced);
        report("unwell", stats.disk.damaged + stats.disk.refused + stats.disk.failures);
    });
}

/// Replaces an entry by a copy of itself, unless it was collected just now. Returns whether it was replaced.
async fn replace(store: &Store, entry: &EntryInfo) -> bool {
    let EntryCheck::Whole(whole) = store.check(entry).await else { return false };
    let file = Cursor::new(whole.bytes().to_vec());
    store.import(&entry.name(), file).await.expect("it can be written");
    true
}

#[test]
fn a_store_overfilled_by_many_processes_stays_valid_within_its_limit() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path().join("store");
    let seconds = seconds().to_string();
    let children: Vec<_> = (1..=PROCESSES)
        .map(|seed| {
            Child::start(
                &test_name!("child"),
                [
                    ("KILN_TEST_STORE", root.as_os_str()),
                    ("KILN_TEST_SEED", seed.wrapping_mul(0x9E37_79B9).to_string().as_ref()),
                    ("KILN_TEST_SECONDS", seconds.as_ref()),
                ],
            )
        })
        .collect();
    let reports: Vec<Report> = children.into_iter().map(Child::report).collect();
    let totals: Vec<_> = ["loads", "compiles", "evictions", "replaced", "unwell"]
        .map(|name| (name, sum(&reports, name)))
        .into();
    eprintln!("{totals:?}");
    assert_eq!(sum(&reports, "unwell"), 0, "{totals:?}");
    for name in ["loads", "compiles", "evictions", "replaced"] {
        assert!(sum(&reports, name) > 0, "there was no churn: {totals:?}");
    }

    let verified: Vec<_> = block_on(stores::open(&root).verify().collect());
    let mut bytes = 0;
    for (entry, checked) in verified {
        assert!(matches!(checked, EntryCheck::Whole(_)), "{entry:?}");
        bytes += entry.bytes();
    }
    eprintln!("at rest: {bytes} bytes of {LIMIT}");
    assert!(bytes <= LIMIT, "{bytes} bytes are left of {LIMIT}");
}
