//! Machines that share a remote cache: each program is compiled once in the fleet, and a machine makes no
//! request for programs that it has itself.

#![cfg(all(feature = "simulated", feature = "remote-redis"))]

use std::num::NonZeroUsize;
use std::time::Duration;

use super::machines;
use super::machines::services::Redis;
use super::machines::{Machine, PATIENT, assert_right, build_all, module};
use super::warnings::LogCapture;
use futures::executor::block_on;
use futures::future::join_all;
use kiln::build::Origin;
use kiln::remote::RemoteAccess;
use kiln::{CacheConfig, Runtime};
use support::children::{Child, report, variable};
use support::test_name;

const PROGRAMS: u32 = 50;
const AT_ONCE: NonZeroUsize = NonZeroUsize::new(PROGRAMS as usize).expect("there are some");

/// A machine, as a process with a disk of its own. Requests all programs at once.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn machine() {
    block_on(async {
        let cache =
            CacheConfig::at(variable("KILN_TEST_DISK")).remote(variable("KILN_TEST_REMOTE"));
        let cache = cache.remote_budget(PATIENT).remote_timeout(PATIENT);
        let simulator = machines::simulator();
        // A compile that takes no time could finish before its lookup, which would then find the stored result.
        simulator.delay_compiles(Duration::from_secs(1));
        let builder =
            Runtime::builder().simulator(&simulator).cache(cache).compile_workers(AT_ONCE);
        let rt = builder.build().await.expect("it starts");
        let stats = build_all(&rt, PROGRAMS).await;
        report("compiles", stats.builds.compiles);
        report("hits", stats.remote.hits);
        report("misses", stats.remote.misses);
        report("written", stats.remote.writes);
        report("on-disk", stats.disk.writes);
        report("errors", stats.remote.errors + stats.remote.timeouts + stats.remote.refused);
    });
}

#[test]
fn a_program_is_compiled_once_in_a_fleet() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let all = u64::from(PROGRAMS);
    for number in 0..3 {
        let disk = tempfile::tempdir().expect("there is room");
        let variables = [
            ("KILN_TEST_DISK", disk.path().as_os_str()),
            ("KILN_TEST_REMOTE", redis.url().as_ref()),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        let report = Child::start(&test_name!("machine"), variables).report();
        let (compiled, found) = if number == 0 { (all, 0) } else { (0, all) };
        assert_eq!(report["compiles"], compiled, "machine {number}: {report:?}");
        assert_eq!(report["hits"], found, "machine {number}: {report:?}");
        assert_eq!(report["misses"], compiled, "machine {number}: {report:?}");
        assert_eq!(report["written"], compiled, "machine {number}: {report:?}");
        assert_eq!(report["on-disk"], all, "machine {number}: {report:?}");
        assert_eq!(report["errors"], 0, "machine {number}: {report:?}");
        assert_eq!(redis.gets(), all * (number + 1), "one request a program");
    }
    assert_eq!(redis.keys().len(), PROGRAMS as usize, "one object a program");
}

#[test]
fn memory_and_disk_hits_make_no_remote_request() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let machine = Machine::new();
    let (origin, _) = machine.build(machine.cache(&redis.url()), 1);
    assert_eq!(origin, Origin::Compiled);
    let requests = redis.gets();
    block_on(async {
        let rt = machine.start(machine.cache(&redis.url())).await;
        for origin in [Origin::Disk, Origin::Memory, Origin::Memory] {
            assert_eq!(rt.build(&module(1)).await.expect("it builds").origin(), origin);
        }
        rt.drain().await;
        let stats = rt.stats();
        assert_eq!((stats.remote.hits, stats.remote.misses, stats.remote.writes), (0, 0, 0));
    });
    assert_eq!(redis.gets(), requests);
}

#[test]
fn a_thousand_builds_of_a_program_make_one_remote_request() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let machine = Machine::new();
    block_on(async {
        let rt = machine.start(machine.cache(&redis.url())).await;
        let pause = machine.simulator.pause_compiles();
        let builds: Vec<_> = (0..1_000).map(|_| rt.build(&module(1)).start()).collect();
        drop(pause);
        for built in join_all(builds).await {
            built.expect("it builds");
        }
        assert_eq!((rt.stats().builds.compiles, rt.stats().remote.misses), (1, 1));
    });
    assert_eq!(redis.gets(), 1);
}

#[test]
fn remote_hits_are_stored_on_disk_for_the_next_start() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let (first, second) = (Machine::new(), Machine::new());
    first.build(first.cache(&redis.url()), 1);
    let (origin, stats) = second.build(second.cache(&redis.url()), 1);
    assert_eq!((origin, stats.builds.compiles, stats.disk.writes), (Origin::Remote, 0, 1));
    assert!(stats.remote.bytes_read > 0);
    let (origin, _) = second.build(CacheConfig::at(second.disk.path()), 1);
    assert_eq!(origin, Origin::Disk);
}

#[test]
fn the_remote_cache_works_without_a_disk_cache() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let machine = Machine::new();
    let cache = || {
        let cache = CacheConfig::memory_only().remote(redis.url());
        cache.remote_budget(PATIENT).remote_timeout(PATIENT)
    };
    let (origin, stats) = machine.build(cache(), 1);
    assert_eq!((origin, stats.remote.writes), (Origin::Compiled, 1), "`drain` waits for the write");
    let (origin, stats) = machine.build(cache(), 1);
    assert_eq!((origin, stats.remote.hits, stats.disk.writes), (Origin::Remote, 1, 0));
}

#[test]
fn read_only_writes_nothing_and_write_only_reads_nothing() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let with = |access| {
        let machine = Machine::new();
        machine.build(machine.cache(&redis.url()).remote_access(access), 1)
    };
    let (origin, stats) = with(RemoteAccess::ReadOnly);
    assert_eq!((origin, stats.remote.misses, stats.remote.writes), (Origin::Compiled, 1, 0));
    assert_eq!(redis.keys(), [""; 0]);
    for _ in 0..2 {
        let (origin, stats) = with(RemoteAccess::WriteOnly);
        assert_eq!((origin, stats.remote.hits, stats.remote.misses), (Origin::Compiled, 0, 0));
        assert_eq!(stats.remote.writes, 1);
    }
    let (origin, stats) = with(RemoteAccess::ReadOnly);
    assert_eq!((origin, stats.remote.hits), (Origin::Remote, 1));
}

#[test]
fn the_remote_cache_works_under_every_executor() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let fleet = |number: u32| {
        let url = redis.url();
        async move {
            for origin in [Origin::Compiled, Origin::Remote] {
                let machine = Machine::new();
                let rt = machine.start(machine.cache(&url)).await;
                let program = rt.build(&module(number)).await.expect("it builds");
                assert_right(&rt, &program, number).await;
                assert_eq!(program.origin(), origin);
                rt.drain().await;
            }
        }
    };
    let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let single = tokio::runtime::Builder::new_current_thread().build();
    let (multi, single) = (multi.expect("tokio starts"), single.expect("tokio starts"));
    multi.block_on(async { tokio::spawn(fleet(1)).await }).expect("it passes");
    single.block_on(fleet(2));
    smol::block_on(smol::spawn(fleet(3)));
    block_on(fleet(4));
}

#[test]
fn programs_are_not_shared_between_prefixes() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let machine = Machine::new();
    machine.build(machine.cache(&redis.url()), 1);
    let (key, _) = redis.only();
    let rest = key.strip_prefix("/kiln/v1/").or_else(|| key.strip_prefix("kiln/v1/"));
    let parts: Vec<_> = rest.unwrap_or_else(|| panic!("{key}")).split('/').collect();
    assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [16, 2, 62], "{key}");
    let other = Machine::new();
    let url = redis.url().replace("/kiln", "/others");
    assert_eq!(other.build(other.cache(&url), 1).0, Origin::Compiled);
}
