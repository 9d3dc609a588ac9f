//! Programs that many need at the same time: one process of a machine asks the remote cache, and one machine of the
//! fleet compiles.

#![cfg(all(feature = "simulated", feature = "remote-redis"))]

use std::path::Path;
use std::time::Duration;

use super::machines;
use super::machines::services::Redis;
use super::machines::{Machine, PATIENT, assert_right, build_all, eventually, module};
use super::warnings::LogCapture;
use futures::executor::block_on;
use kiln::build::Origin;
use kiln::simulated::Fault;
use kiln::{CacheConfig, ErrorKind, Runtime};
use support::children::{Child, Report, report, sum, variable};
use support::test_name;
use tracing::Level;

const PROGRAMS: u32 = 27;

/// A process, which requests all programs at once.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn process() {
    block_on(async {
        let cache =
            CacheConfig::at(variable("KILN_TEST_DISK")).remote(variable("KILN_TEST_REMOTE"));
        let cache = cache.remote_budget(PATIENT).remote_timeout(PATIENT);
        let simulator = machines::simulator();
        let milliseconds = variable("KILN_TEST_COMPILE").parse().expect("it is a number");
        simulator.delay_compiles(Duration::from_millis(milliseconds));
        let builder = Runtime::builder().simulator(&simulator).cache(cache);
        let rt = builder.build().await.expect("it starts");
        let stats = build_all(&rt, PROGRAMS).await;
        report("compiles", stats.builds.compiles);
        report("hits", stats.remote.hits);
        report("asked", stats.remote.hits + stats.remote.misses);
        report("errors", stats.remote.errors + stats.remote.timeouts + stats.remote.refused);
    });
}

/// Runs a process on each of these disks, all at the same time. A compile takes this number of milliseconds.
fn run(redis: &Redis, disks: &[&Path], compile: u64) -> Vec<Report> {
    let start = |disk: &&Path| {
        let variables = [
            ("KILN_TEST_DISK", disk.as_os_str().to_owned()),
            ("KILN_TEST_REMOTE", redis.url().into()),
            ("KILN_TEST_COMPILE", compile.to_string().into()),
        ];
        Child::start(&test_name!("process"), variables)
    };
    let children: Vec<_> = disks.iter().map(start).collect();
    children.into_iter().map(Child::report).collect()
}

#[test]
fn one_process_of_a_machine_asks_for_a_program() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let all = u64::from(PROGRAMS);
    for (round, [compiles, hits]) in [[all, 0], [0, all]].into_iter().enumerate() {
        let disk = tempfile::tempdir().expect("there is disk space");
        // No machine is so busy that a compile would be quicker than the service.
        let reports = run(&redis, &[disk.path(); 8], 1_000);
        assert_eq!(sum(&reports, "errors"), 0, "round {round}: {reports:?}");
        assert_eq!(sum(&reports, "compiles"), compiles, "round {round}: {reports:?}");
        assert_eq!(sum(&reports, "hits"), hits, "round {round}: {reports:?}");
        assert_eq!(sum(&reports, "asked"), all, "round {round}: {reports:?}");
        assert_eq!(redis.gets(), all * (round as u64 + 1), "one request a program");
    }
}

#[test]
fn a_cold_fleet_compiles_each_program_about_once() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let disks = [(); 4].map(|()| tempfile::tempdir().expect("there is disk space"));
    // A compile takes much longer than the rest, so that no machine gives up waiting for another one.
    let reports = run(&redis, &disks.each_ref().map(|disk| disk.path()), 2_000);
    let compiles = sum(&reports, "compiles");
    let most = u64::from(PROGRAMS) * 5 / 4;
    assert!(compiles <= most, "{compiles} compiles of {PROGRAMS} programs: {reports:?}");
    assert_eq!(redis.keys().len(), PROGRAMS as usize, "no claim is left");
}

#[test]
fn a_program_that_another_machine_compiles_is_awaited() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let (here, there) = (Machine::new(), Machine::new());
    block_on(async {
        let (rt, other) = (
            here.start(here.cache(&redis.url())).await,
            there.start(there.cache(&redis.url())).await,
        );
        let pause = there.simulator.pause_compiles();
        let compiling = other.build(&module(1)).start();
        eventually("the other machine compiles", async || there.simulator.counts().builds == 1)
            .await;
        let before = redis.gets();
        let build = rt.build(&module(1)).start();
        eventually("this one asks again", async || redis.gets() > before + 1).await;
        drop(pause);
        assert_eq!(compiling.await.expect("it builds").origin(), Origin::Compiled);
        let program = build.await.expect("it builds");
        assert_eq!(program.origin(), Origin::Remote);
        assert_right(&rt, &program, 1).await;
        let stats = rt.stats();
        assert_eq!((stats.builds.compiles, stats.remote.hits, stats.remote.misses), (0, 1, 1));
    });
}

#[test]
fn builds_behind_a_claimed_one_go_on() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let (here, there) = (Machine::new(), Machine::new());
    block_on(async {
        let other = there.start(there.cache(&redis.url())).await;
        let builder = Runtime::builder().simulator(&here.simulator);
        let builder = builder.compile_workers(std::num::NonZeroUsize::MIN);
        let rt = builder.cache(here.cache(&redis.url())).build().await.expect("it starts");
        let pause = there.simulator.pause_compiles();
        let compiling = other.build(&module(1)).start();
        eventually("the other machine compiles", async || there.simulator.counts().builds == 1)
            .await;
        let before = redis.gets();
        let waiting = rt.build(&module(1)).start();
        eventually("it asks again", async || redis.gets() > before + 1).await;
        // There is one thread to compile, which does not wait.
        assert_eq!(rt.build(&module(2)).await.expect("it builds").origin(), Origin::Compiled);
        drop(pause);
        compiling.await.expect("it builds");
        waiting.await.expect("it builds");
    });
}

/// Another runtime on the same disk compiles the program, and does not end. No thread is free to compile when the build
/// has asked the remote cache.
#[test]
fn a_build_waits_once_for_a_process_that_does_not_end() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let machine = Machine::new();
    let simulator = machines::simulator();
    block_on(async {
        let other = machine.start(machine.cache(&redis.url())).await;
        let endless = machine.simulator.pause_compiles();
        let compiling = other.build(&module(1)).start();
        eventually("the other one compiles", async || machine.simulator.counts().builds == 1).await;
        let cache = machine.cache(&redis.url()).build_wait(Duration::from_millis(500));
        let builder = Runtime::builder().simulator(&simulator);
        let builder = builder.compile_workers(std::num::NonZeroUsize::MIN);
        let rt = builder.cache(cache).build().await.expect("it starts");
        let busy = simulator.pause_compiles();
        let first = rt.build(&module(2)).start();
        eventually("the only thread compiles", async || simulator.counts().builds == 1).await;
        let waiting = rt.build(&module(1)).start();
        eventually("the wait is over", async || rt.stats().builds.lock_timeouts == 1).await;
        drop(busy);
        first.await.expect("it builds");
        assert_eq!(waiting.await.expect("it builds").origin(), Origin::Compiled);
        assert_eq!(rt.stats().builds.lock_timeouts, 1, "{:?}", rt.stats());
        drop(endless);
        compiling.await.expect("it builds");
    });
}

#[test]
fn a_claim_whose_machine_is_gone_costs_a_wait_and_is_replaced() {
    let Some(redis) = Redis::start(&[]) else { return };
    let capture = LogCapture::begin();
    let there = Machine::new();
    there.build(there.cache(&redis.url()), 1);
    let (key, _) = redis.only();
    // It never expires, unlike claims of Kiln.
    redis.set(&key, b"");
    let here = Machine::new();
    let (origin, stats) = here.build(here.cache(&redis.url()), 1);
    assert_eq!((origin, stats.remote.writes), (Origin::Compiled, 1), "{stats:?}");
    assert!(!redis.only().1.is_empty(), "the program is in the place of the claim");
    let warnings = capture.messages(Level::WARN);
    let is_reported = |message: &String| message.contains("no longer waits for the machine");
    assert!(warnings.len() == 1 && warnings.iter().all(is_reported), "{warnings:#?}");
    let next = Machine::new();
    assert_eq!(next.build(next.cache(&redis.url()), 1).0, Origin::Remote);
}

#[test]
fn a_failed_compile_leaves_no_claim() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let machine = Machine::new();
    machine.simulator.fail_builds(1, Fault::Refused);
    block_on(async {
        let rt = machine.start(machine.cache(&redis.url())).await;
        let error = rt.build(&module(1)).await.expect_err("the compiler fails");
        assert_eq!(error.kind(), ErrorKind::BuildFailed, "{error}");
        rt.drain().await;
        assert_eq!(redis.calls().get("set"), Some(&2), "the claim, and its end");
        eventually("the claim expires", async || redis.keys().is_empty()).await;
    });
}

#[test]
fn claims_expire() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let machine = Machine::new();
    block_on(async {
        let rt = machine.start(machine.cache(&redis.url())).await;
        let pause = machine.simulator.pause_compiles();
        let build = rt.build(&module(1)).start();
        eventually("it compiles", async || machine.simulator.counts().builds == 1).await;
        let (key, value) = redis.only();
        assert_eq!(value, b"", "readers find no object");
        let left = redis.send(&[b"PTTL", key.as_bytes()]).expect("Redis replies");
        let left: i64 = String::from_utf8(left).expect("it is text").parse().expect("a number");
        assert!((0..=60_000).contains(&left), "{left} ms");
        drop(pause);
        build.await.expect("it builds");
        rt.drain().await;
        let left = redis.send(&[b"PTTL", key.as_bytes()]).expect("Redis replies");
        assert_eq!(left, b"-1", "the program does not expire");
    });
}
