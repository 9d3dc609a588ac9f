//! Collection of the store: the least recently used entry is evicted first. The time of the last use is a stamp
//! that needs only modification times of the file system.

#![cfg(feature = "simulated")]

use std::fs::{File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures::executor::block_on;
use futures::io::Cursor;
use kiln::build::{BuildKey, Origin};
use kiln::simulated::Simulator;
use kiln::store::{Collected, EntryInfo, Store};
use kiln::{CacheConfig, Module, Runtime};
use support::children;
use support::stores;
#[cfg(target_os = "linux")]
use support::test_name;

const SIZE: u64 = 64 << 10;
const HOUR: Duration = Duration::from_secs(3600);

/// Returns program `number`, whose entry is a little larger than [`SIZE`].
fn module(number: u32) -> Module {
    Module::opencl_c(format!("#pragma binary_size {SIZE}\nkernel void number_{number}() {{}}"))
}

/// Starts as another process would, and builds a program. Nothing is evicted, since the default limit is much
/// larger.
fn start(root: &Path, number: u32) -> (BuildKey, Origin) {
    let builder = Runtime::builder().cache(CacheConfig::at(root));
    block_on(async {
        let rt = builder.simulator(&Simulator::immediate()).build().await.expect("it starts");
        let program = rt.build(&module(number)).await.expect("it builds");
        rt.drain().await;
        (program.key(), program.origin())
    })
}

/// Opens the store again, with a limit for this number of programs.
fn with_room_for(root: &Path, programs: u64) -> Store {
    stores::open_with(&CacheConfig::at(root).max_bytes(programs * SIZE * 11 / 10))
}

fn path(store: &Store, key: BuildKey) -> Option<PathBuf> {
    let mut entries = stores::entries(store).into_iter();
    entries.find(|entry| entry.key() == key).map(|entry| entry.path().to_owned())
}

fn collect(store: &Store, dry_run: bool) -> Collected {
    block_on(store.collect(dry_run)).expect("no other collection runs")
}

/// Stores this number of programs.
fn fill(root: &Path, programs: u32) -> Vec<BuildKey> {
    let key = |number| {
        let (key, origin) = start(root, number);
        assert_eq!(origin, Origin::Compiled);
        key
    };
    (0..programs).map(key).collect()
}

/// Sets the times of the last use of an entry, and of the last read of its file, to these ages.
fn age(store: &Store, key: BuildKey, used: Duration, accessed: Duration) {
    let now = SystemTime::now();
    let times = FileTimes::new().set_modified(now - used).set_accessed(now - accessed);
    let path = path(store, key).expect("it exists");
    File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_times(times))
        .expect("it belongs to this test");
}

/// Returns the numbers of the programs that are left.
fn left(store: &Store, keys: &[BuildKey]) -> Vec<usize> {
    (0..keys.len()).filter(|number| path(store, keys[*number]).is_some()).collect()
}

/// Checks the order of eviction of ten programs. They were used in another order than they were written, and
/// read in another order than they were used.
fn least_recently_used_go_first(root: &Path) {
    let keys = fill(root, 10);
    let store = with_room_for(root, 10);
    for (number, key) in keys.iter().enumerate() {
        age(&store, *key, HOUR * (20 - number as u32), HOUR * (number as u32 + 1));
    }
    // Each use is by a process of its own.
    for number in [3, 0] {
        assert_eq!(start(root, number).1, Origin::Disk);
    }
    // The order of last use is 1 2 4 5 6 7 8 9, then 3 and 0. Each collection leaves nine tenths of its limit.
    for (room, expected) in
        [(10, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9][..]), (8, &[0, 3, 5, 6, 7, 8, 9]), (5, &[0, 3, 8, 9])]
    {
        let store = with_room_for(root, room);
        let predicted = collect(&store, true);
        let done = collect(&store, false);
        assert_eq!(predicted, done, "a dry run reports what a collection does");
        assert_eq!(left(&store, &keys), expected, "with room for {room}");
    }
}

#[test]
fn least_recently_used_entries_are_evicted_first_despite_access_times() {
    let directory = tempfile::tempdir().expect("there is disk space");
    least_recently_used_go_first(directory.path());
}

#[test]
#[ignore = "run by the next test, in a process of its own"]
fn child() {
    let mount = PathBuf::from(children::variable("KILN_TEST_MOUNT"));
    least_recently_used_go_first(&mount.join("store"));
    children::report("done", 1);
}

/// Runs on a file system without access times, in a mount namespace of the child.
#[cfg(target_os = "linux")]
#[test]
#[allow(clippy::print_stderr, reason = "a log tells what was skipped")]
fn the_order_survives_a_noatime_mount() {
    use std::process::Command;

    let directory = tempfile::tempdir().expect("there is disk space");
    // The program and its arguments are `$@`.
    let mount = "mount -t tmpfs -o noatime,mode=0700 none \"$KILN_TEST_MOUNT\" || exit 99; ";
    let namespace = |then: &str| {
        let mut command = Command::new("unshare");
        // Users other than root can have a user namespace of their own.
        let share = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
        command.args([share, "sh", "-c"]);
        command.arg(format!("{mount}{then}")).arg("sh");
        command.env("KILN_TEST_MOUNT", directory.path());
        command
    };
    if !namespace("true").output().is_ok_and(|output| output.status.success()) {
        let required = std::env::var("KILN_REQUIRE_TOOLS").unwrap_or_default();
        assert!(
            !required.split(',').any(|required| required == "unshare"),
            "unshare is required, and cannot make a mount"
        );
        return eprintln!("skipped on a noatime mount: unshare cannot make one here");
    }
    let mut command = namespace("exec \"$@\"");
    command.arg(children::this_binary());
    let report =
        children::Child::start_from(command, &test_name!("child"), [("LC_ALL", "C")]).report();
    assert_eq!(report["done"], 1);
}

#[test]
fn an_entry_in_use_survives_ten_collections() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let keys = fill(root, 4);
    let mut numbers = 4..;
    for round in 0..10 {
        let store = with_room_for(root, 4);
        // All entries are made old, and the one that will be used is the oldest.
        for (rank, entry) in stores::entries(&store).iter().enumerate() {
            age(&store, entry.key(), HOUR * (rank as u32 + 1), HOUR);
        }
        age(&store, keys[0], HOUR * 1000, HOUR * 1000);
        assert_eq!(start(root, 0).1, Origin::Disk, "round {round}");
        for number in numbers.by_ref().take(2) {
            let (new, origin) = start(root, number);
            assert_eq!(origin, Origin::Compiled);
            age(&store, new, HOUR / 2, HOUR);
        }
        let collected = collect(&store, false);
        assert!(collected.removed > 0, "round {round}: {collected:?}");
        assert!(path(&store, keys[0]).is_some(), "round {round}");
    }
}

/// A process that waits for a build reads its entry within a short time, so an entry that was just used goes last.
#[test]
fn an_entry_that_was_just_used_goes_last() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let keys = fill(root, 3);
    let store = with_room_for(root, 3);
    for key in &keys {
        age(&store, *key, HOUR, HOUR);
    }
    assert_eq!(start(root, 1).1, Origin::Disk);
    let store = with_room_for(root, 2);
    collect(&store, false);
    assert_eq!(left(&store, &keys), [1]);
    let nothing = CacheConfig::at(root).max_bytes(1);
    let store = stores::open_with(&nothing);
    collect(&store, false);
    assert_eq!(left(&store, &keys), [0; 0]);
}

/// The first use of an entry by a process is recorded at once, and the later ones when another process can notice them.
#[test]
fn entries_are_evicted_in_the_order_of_their_uses() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let keys = fill(root, 3);
    let store = with_room_for(root, 3);
    for (key, seconds) in keys.iter().zip([300, 200, 100]) {
        age(&store, *key, Duration::from_secs(seconds), Duration::ZERO);
    }
    let cache = CacheConfig::at(root).max_bytes(0);
    let simulator = Simulator::immediate();
    let builder = Runtime::builder().cache(cache).memory_limit(0).simulator(&simulator);
    block_on(async {
        let rt = builder.build().await.expect("it starts");
        // The last use of each entry is not the first of the process.
        for number in [0, 2, 1, 2, 0] {
            let program = rt.build(&module(number)).await.expect("it builds");
            assert_eq!(program.origin(), Origin::Disk);
            drop(program);
        }
        rt.drain().await;
    });
    let mut by_use = stores::entries(&store);
    by_use.sort_by_key(EntryInfo::used);
    let by_use: Vec<_> = by_use.iter().map(EntryInfo::key).collect();
    assert_eq!(by_use, [keys[1], keys[2], keys[0]]);
    let store = with_room_for(root, 2);
    collect(&store, false);
    assert_eq!(left(&store, &keys), [0]);
}

#[test]
fn entries_older_than_the_maximum_age_are_removed_at_any_size() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let keys = fill(root, 4);
    let cache = CacheConfig::at(root).max_bytes(0).max_age(HOUR * 24);
    let store = stores::open_with(&cache);
    for (key, hours) in keys.iter().zip([1, 23, 25, 1000]) {
        age(&store, *key, HOUR * hours, Duration::ZERO);
    }
    let collected = collect(&store, false);
    assert_eq!((collected.entries, collected.removed), (4, 2));
    assert_eq!(left(&store, &keys), [0, 1]);
}

/// A program that is larger than the limit is not stored, and does not evict any entry.
#[test]
fn a_program_larger_than_the_limit_does_not_evict_entries() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let keys = fill(root, 4);
    let store = with_room_for(root, 5);
    for key in &keys {
        age(&store, *key, HOUR, HOUR);
    }
    let large = Module::opencl_c("#pragma binary_size 500000\nkernel void large() {}");
    let cache = CacheConfig::at(root).max_bytes(5 * SIZE);
    let builder = Runtime::builder().cache(cache).simulator(&Simulator::immediate());
    let stats = block_on(async {
        let rt = builder.build().await.expect("it starts");
        let program = rt.build(&large).await.expect("it builds");
        assert_eq!(program.kernel_names(), ["large"]);
        rt.drain().await;
        rt.stats()
    });
    assert_eq!((stats.disk.writes, stats.disk.skips, stats.disk.evictions), (0, 1, 0));
    assert_eq!(left(&store, &keys), [0, 1, 2, 3]);
}

/// Another application, with a larger limit, has stored it.
#[test]
fn an_entry_larger_than_the_limit_is_removed_first() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let mut keys = fill(root, 4);
    let large = Module::opencl_c("#pragma binary_size 500000\nkernel void large() {}");
    let builder = Runtime::builder().cache(CacheConfig::at(root));
    let builder = builder.simulator(&Simulator::immediate());
    keys.push(block_on(async {
        let rt = builder.build().await.expect("it starts");
        let key = rt.build(&large).await.expect("it builds").key();
        rt.drain().await;
        key
    }));
    let store = with_room_for(root, 5);
    for (key, hours) in keys.iter().zip([5, 4, 3, 2, 1]) {
        age(&store, *key, HOUR * hours, HOUR);
    }
    assert_eq!(collect(&store, true).removed, 1);
    assert_eq!(collect(&store, false).removed, 1);
    assert_eq!(left(&store, &keys), [0, 1, 2, 3]);

    // The entry cannot return in any other way.
    let name = stores::entries(&stores::open(root)).first().expect("it exists").name();
    let bytes = std::fs::read(root.join("v1").join(&name)).expect("it exists");
    let small = stores::open_with(&CacheConfig::at(root).max_bytes(SIZE));
    let refused = block_on(small.import(&name, Cursor::new(bytes)));
    let refused = refused.expect_err("it is larger than the limit");
    assert!(refused.to_string().contains("65536"), "{refused}");
    assert_eq!(left(&store, &keys), [0, 1, 2, 3], "other entries stay");
}

/// In memory as on disk, a program larger than the limit does not evict the others.
#[test]
fn a_program_larger_than_the_memory_limit_does_not_evict_others() {
    let builder = Runtime::builder().memory_limit(5 * SIZE).simulator(&Simulator::immediate());
    block_on(async {
        let rt = builder.build().await.expect("it starts");
        for number in 0..4 {
            rt.build(&module(number)).await.expect("it builds");
        }
        let large = Module::opencl_c("#pragma binary_size 500000\nkernel void large() {}");
        rt.build(&large).await.expect("it builds");
        for number in 0..4 {
            rt.build(&module(number)).await.expect("it builds");
        }
        let stats = rt.stats();
        assert_eq!((stats.memory.hits, stats.builds.compiles), (4, 5), "{stats:?}");
        assert_eq!(stats.memory.programs, 4);
    });
}

/// If a clock is set back, some stamps are in the future, although their entries are not used.
#[test]
fn entries_from_the_future_are_evicted_before_entries_in_use() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let keys = fill(root, 6);
    let store = with_room_for(root, 6);
    for (key, hours) in keys.iter().zip([3, 2, 1]) {
        age(&store, *key, HOUR * hours, HOUR);
    }
    for (key, hours) in keys.iter().skip(3).zip([10_000, 10, 1]) {
        let future = SystemTime::now() + HOUR * hours;
        let file = path(&store, *key).expect("it exists");
        let file = File::options().write(true).open(file).expect("it belongs to this test");
        file.set_modified(future).expect("it belongs to this test");
    }
    // Nine tenths of a limit for four programs are enough for three.
    let collected = collect(&with_room_for(root, 4), false);
    assert_eq!((collected.entries, collected.removed), (6, 3));
    assert_eq!(left(&store, &keys), [0, 1, 2]);
}

#[test]
fn an_entry_from_the_future_is_older_than_any_maximum_age() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let keys = fill(root, 2);
    let cache = CacheConfig::at(root).max_bytes(0).max_age(HOUR * 24);
    let store = stores::open_with(&cache);
    let file = path(&store, keys[0]).expect("it exists");
    let file = File::options().write(true).open(file).expect("it belongs to this test");
    file.set_modified(SystemTime::now() + HOUR * 10).expect("it belongs to this test");
    assert_eq!(collect(&store, false).removed, 1);
    assert_eq!(left(&store, &keys), [1]);
}

/// A file of a writer that died before the clock was set back.
#[test]
fn an_abandoned_file_from_the_future_is_swept() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    fill(root, 1);
    let abandoned = root.join("v1/tmp/1-0-0.part");
    let file = File::create(&abandoned).expect("there is disk space");
    file.set_modified(SystemTime::now() + HOUR * 10).expect("it belongs to this test");
    drop(file);
    let store = with_room_for(root, 2);
    assert_eq!(collect(&store, false).swept, 1);
    assert!(!abandoned.exists());
}

/// A clock that was wrong when an entry was written must not keep the entry forever.
#[test]
fn a_time_in_the_future_is_corrected_by_the_next_use() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let keys = fill(root, 1);
    let store = with_room_for(root, 1);
    let file = path(&store, keys[0]).expect("it exists");
    let future = SystemTime::now() + HOUR * 10_000;
    File::options()
        .write(true)
        .open(file)
        .and_then(|file| file.set_modified(future))
        .expect("it belongs to this test");
    assert_eq!(start(root, 0).1, Origin::Disk);
    let entry = stores::only_entry(&store);
    assert!(entry.used() <= SystemTime::now());
}

/// Foreign files are not removed, and do not stop a collection.
#[test]
fn foreign_files_are_kept_and_do_not_stop_a_collection() {
    let directory = tempfile::tempdir().expect("there is disk space");
    let root = directory.path();
    let keys = fill(root, 4);
    let store = with_room_for(root, 2);
    let shard = path(&store, keys[0]).expect("it exists");
    let shard = shard.parent().expect("it has one");
    let foreign = [shard.join("README"), shard.join("no-key.kiln"), root.join("v1/notes")];
    for file in &foreign {
        std::fs::write(file, vec![b'x'; 1 << 20]).expect("it belongs to this test");
    }
    for (key, hours) in keys.iter().zip(1..) {
        age(&store, *key, HOUR * hours, HOUR);
    }
    let collected = collect(&store, false);
    assert_eq!((collected.entries, collected.removed), (4, 3));
    assert_eq!(left(&store, &keys), [0]);
    assert!(foreign.iter().all(|file| file.exists()));
}
