//! Locks of a store that another process holds and does not free, such as one that was stopped.

#![cfg(feature = "simulated")]

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use super::limits::{LIMIT, fill, module, runtime};
use futures::executor::block_on;
use kiln::CacheConfig;
use support::log_recorder::LogRecorder;
use support::stores;
use tracing::Level;

/// Takes a lock of a store.
fn hold(root: &Path, name: &str) -> File {
    let path = root.join("v1/lock").join(name);
    let file = File::options().write(true).create(true).truncate(false).open(path);
    let file = file.expect("it can be opened");
    file.try_lock().expect("nobody holds it");
    file
}

fn size(root: &Path) -> u64 {
    stores::entries(&stores::open(root)).iter().map(|entry| entry.bytes()).sum()
}

#[test]
fn the_limit_holds_while_the_size_hint_cannot_be_changed() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    fill(root, 2);
    let _hint = hold(root, "state");
    block_on(async {
        let rt = runtime(CacheConfig::at(root).max_bytes(LIMIT)).await;
        for number in 2..12 {
            rt.build(&module(number)).await.expect("it builds");
            rt.drain().await;
            assert!(size(root) <= LIMIT, "{} bytes", size(root));
        }
        assert!(rt.stats().disk.writes > 5, "{:?}", rt.stats());
    });
}

/// A process that has compiled nothing yet waits for another one no longer than compiles have taken in others, but for some
/// seconds.
#[test]
fn a_new_process_knows_from_the_store_how_long_compiles_take() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    fill(root, 20);
    let _held: Vec<_> =
        (0..1024).map(|number| hold(root, &format!("build-{number:03x}"))).collect();
    block_on(async {
        let rt = runtime(CacheConfig::at(root)).await;
        let started = Instant::now();
        rt.build(&module(100)).await.expect("it builds");
        assert!(started.elapsed() < Duration::from_secs(40), "{:?}", started.elapsed());
        assert_eq!(rt.stats().builds.lock_timeouts, 1);
    });
}

#[test]
fn a_process_that_collects_for_ever_delays_one_put_and_is_reported() {
    let log = LogRecorder::install();
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    fill(root, 3);
    let collector = hold(root, "gc");
    block_on(async {
        let rt = runtime(CacheConfig::at(root).max_bytes(LIMIT)).await;
        let started = Instant::now();
        for number in 3..23 {
            rt.build(&module(number)).await.expect("it builds");
        }
        rt.drain().await;
        // If each put waited as long as the first one, this would take 40 s.
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert!(size(root) <= LIMIT, "{} bytes", size(root));
        let reports = |text: &String| text.contains("another process has been collecting");
        assert_eq!(log.at(Level::WARN).iter().filter(|text| reports(text)).count(), 1);
        drop(collector);
        rt.build(&module(30)).await.expect("it builds");
        rt.drain().await;
        assert_eq!(rt.stats().disk.writes, 1, "it is stored again");
    });
}
