//! The limits of a store hold at any time: during puts, and in processes that put nothing.

#![cfg(feature = "simulated")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, SystemTime};

use futures::executor::block_on;
use futures::future::join_all;
use kiln::build::Origin;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, Module, Runtime};
use support::stores;

/// Size of a program in bytes.
const SIZE: u64 = 5000;

/// Limit of a store in bytes: three programs, and not four.
pub(crate) const LIMIT: u64 = 18_507;

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn module(number: u32) -> Module {
    Module::opencl_c(format!("#pragma binary_size {SIZE}\nkernel void number_{number}() {{}}"))
}

/// Creates a runtime that keeps nothing in memory.
pub(crate) async fn runtime(cache: CacheConfig) -> Runtime {
    let builder = Runtime::builder().cache(cache).memory_limit(0);
    builder.simulator(&Simulator::immediate()).build().await.expect("it starts")
}

/// Stores this number of programs, one after another.
pub(crate) fn fill(root: &Path, programs: u32) {
    block_on(async {
        let rt = runtime(CacheConfig::at(root)).await;
        for number in 0..programs {
            rt.build(&module(number)).await.expect("it builds");
        }
        rt.drain().await;
    });
}

/// Returns the size of all files below a folder that hold programs or will.
fn size(folder: &Path) -> u64 {
    files(folder).values().sum()
}

/// Returns the size of all files below a folder that hold programs or will, at a moment at which none of them is written
/// or moved.
fn size_at_rest(folder: &Path) -> u64 {
    loop {
        let found = files(folder);
        if found == files(folder) {
            return found.values().sum();
        }
    }
}

/// Returns the files below a folder that hold programs or will, with their sizes.
fn files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for file in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let path = file.path();
        let is_program =
            path.extension().is_some_and(|suffix| suffix == "kiln" || suffix == "part");
        match file.metadata() {
            Ok(metadata) if metadata.is_dir() => found.extend(files(&path)),
            Ok(metadata) if is_program => _ = found.insert(path, metadata.len()),
            _ => {}
        }
    }
    found
}

/// Sets the time of the last use of all entries.
fn age(root: &Path, by: Duration) {
    for entry in stores::entries(&stores::open(root)) {
        let file = File::options().write(true).open(entry.path()).expect("it exists");
        file.set_modified(SystemTime::now() - by).expect("it belongs to this test");
    }
}

#[test]
fn puts_make_room_first() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let is_done = AtomicBool::new(false);
    let largest = thread::scope(|scope| {
        let look = scope.spawn(|| {
            let mut largest = 0;
            while !is_done.load(SeqCst) {
                largest = largest.max(size_at_rest(root));
                thread::sleep(Duration::from_millis(1));
            }
            largest
        });
        block_on(async {
            let rt = runtime(CacheConfig::at(root).max_bytes(LIMIT)).await;
            for round in 0..20 {
                let builds = (0..5).map(|number| rt.build(&module(5 * round + number)).start());
                for program in join_all(builds).await {
                    program.expect("it builds");
                }
                // The limit holds without a collection at the end.
                let size = size_at_rest(root);
                assert!(size <= LIMIT + SIZE + 1000, "{size} bytes");
            }
            rt.drain().await;
            assert!(rt.stats().disk.writes > 50, "{:?}", rt.stats());
        });
        is_done.store(true, SeqCst);
        look.join().expect("it only looks")
    });
    assert!((SIZE..=LIMIT + SIZE + 1000).contains(&largest), "{largest} bytes of {LIMIT}");
    assert!(size(root) <= LIMIT);
}

/// Another process writes a program, which takes room as those that are stored do.
#[test]
fn puts_make_room_beside_files_that_are_being_written() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    fill(root, 2);
    fs::write(root.join("v1/tmp/1-0-0.part"), [0; SIZE as usize]).expect("it can be written");
    // It is counted when the limit is first kept.
    fs::remove_file(root.join("v1/state")).expect("it was written");
    block_on(async {
        let rt = runtime(CacheConfig::at(root).max_bytes(LIMIT)).await;
        for number in 2..6 {
            rt.build(&module(number)).await.expect("it builds");
            rt.drain().await;
            assert!(size(root) <= LIMIT, "{} bytes", size(root));
        }
        assert_eq!((rt.stats().disk.writes, rt.stats().disk.skips), (4, 0));
    });
}

#[test]
fn a_process_that_only_loads_programs_keeps_a_lowered_limit() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    fill(root, 6);
    age(root, HOUR);
    block_on(async {
        let rt = runtime(CacheConfig::at(root)).await;
        assert_eq!(rt.build(&module(5)).await.expect("it builds").origin(), Origin::Disk);
        rt.drain().await;
        assert_eq!(stores::entries(&stores::open(root)).len(), 6);
    });
    block_on(async {
        let rt = runtime(CacheConfig::at(root).max_bytes(LIMIT)).await;
        rt.drain().await;
        assert!(size(root) <= LIMIT, "{} bytes", size(root));
        assert_eq!(rt.build(&module(5)).await.expect("it builds").origin(), Origin::Disk);
        assert_eq!(rt.stats().disk.writes, 0);
    });
}

#[test]
fn a_process_that_puts_nothing_removes_old_programs_and_empty_folders() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    fill(root, 6);
    age(root, 2 * HOUR);
    // The count is as old as the programs.
    fs::remove_file(root.join("v1/state")).expect("it was written");
    block_on(async {
        let rt = runtime(CacheConfig::at(root).max_age(HOUR)).await;
        rt.drain().await;
    });
    assert_eq!(stores::entries(&stores::open(root)).len(), 0);
    let mut left: Vec<_> = fs::read_dir(root.join("v1"))
        .expect("the store exists")
        .map(|entry| entry.expect("it can be listed").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["CACHEDIR.TAG", "lock", "state", "tmp", "totals"]);
    // A put creates the folders again.
    fill(root, 1);
    assert_eq!(stores::entries(&stores::open(root)).len(), 1);
}
