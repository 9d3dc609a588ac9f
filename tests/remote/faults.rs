//! A remote cache with faults: it is down, stops, hangs, is slow, is full, or refuses requests. Programs are
//! always right, no build waits longer than allowed, and one warning reports the fault.
//!
//! The tests run one at a time: warnings belong to the process, not to the test.

#![cfg(all(feature = "simulated", feature = "remote-redis"))]

use std::time::Duration;

use super::machines::proxy::{Mode, Proxy};
use super::machines::services::{Redis, free_port};
use super::machines::{Machine, assert_right, eventually, large_module, module};
use super::warnings::LogCapture;
use futures::executor::block_on;
use kiln::build::Origin;
use kiln::{CacheConfig, Runtime, Stats};
use tracing::Level;

/// Budget that faulty services exhaust.
const BUDGET: Duration = Duration::from_millis(500);

fn short_budget(machine: &Machine, url: &str) -> CacheConfig {
    machine.cache(url).remote_budget(BUDGET).remote_timeout(BUDGET / 4)
}

/// Builds a program, and checks its result.
async fn compile(rt: &Runtime, number: u32) -> Origin {
    let program = rt.build(&module(number)).await.expect("it builds");
    assert_right(rt, &program, number).await;
    program.origin()
}

/// Returns the number of failed requests, in all counters.
fn failed(stats: &Stats) -> u64 {
    stats.remote.errors + stats.remote.timeouts
}

/// Builds new programs, from `first` on, until the breaker has opened. All of them are right.
async fn build_until_open(rt: &Runtime, capture: &LogCapture, first: u32) -> u32 {
    let mut number = first;
    eventually("the breaker opens", async || {
        assert_eq!(compile(rt, number).await, Origin::Compiled);
        number += 1;
        capture.messages(Level::WARN).iter().any(|message| message.contains("cannot be read"))
    })
    .await;
    number
}

#[test]
fn an_unreachable_service_is_bypassed_and_reported_once() {
    if Redis::start(&[]).is_none() {
        return;
    }
    let capture = LogCapture::begin();
    let machine = Machine::new();
    let url = format!("redis://127.0.0.1:{}", free_port());
    block_on(async {
        let rt = machine.start(short_budget(&machine, &url)).await;
        let next = build_until_open(&rt, &capture, 0).await;
        let before = failed(&rt.stats());
        for number in next..next + 20 {
            assert_eq!(compile(&rt, number).await, Origin::Compiled);
        }
        // At most one or two probes.
        assert!(failed(&rt.stats()) < before + 20, "{:?}", rt.stats());
        rt.drain().await;
        assert_eq!(rt.stats().remote.misses, 0, "an error is not a miss");
    });
    let warnings = capture.messages(Level::WARN);
    let of_reads = warnings.iter().filter(|message| message.contains("cannot be read")).count();
    let of_writes = warnings.iter().filter(|message| message.contains("cannot be written")).count();
    assert_eq!(of_reads, 1, "{warnings:#?}");
    assert!(of_writes <= 1 && warnings.len() <= 2, "{warnings:#?}");
}

#[test]
fn a_service_that_recovers_is_used_again_automatically() {
    let Some(redis) = Redis::start(&[]) else { return };
    let proxy = Proxy::to(redis.address());
    let capture = LogCapture::begin();
    let (here, there) = (Machine::new(), Machine::new());
    there.build(there.cache(&redis.url()), 99);
    block_on(async {
        let rt = here.start(short_budget(&here, &proxy.redis_url())).await;
        compile(&rt, 0).await;
        proxy.set(Mode::Cuts);
        let mut next = build_until_open(&rt, &capture, 1).await;
        assert_eq!(capture.messages(Level::INFO), [""; 0]);
        proxy.set(Mode::Passes);
        eventually("the breaker closes", async || {
            compile(&rt, next % 90).await;
            next += 1;
            capture
                .messages(Level::INFO)
                .iter()
                .any(|message| message.contains("can be read again"))
        })
        .await;
        // According to the latency record, waiting may not be worthwhile. Then the first result is used.
        let pause = here.simulator.pause_compiles();
        assert_eq!(compile(&rt, 99).await, Origin::Remote);
        drop(pause);
        rt.drain().await;
    });
}

#[test]
fn a_failure_for_which_a_build_waited_is_a_warning() {
    let Some(redis) = Redis::start(&[]) else { return };
    let proxy = Proxy::to(redis.address());
    let capture = LogCapture::begin();
    let machine = Machine::new();
    let reports = |text: &str| {
        let warnings = capture.messages(Level::WARN);
        warnings.iter().filter(|message| message.contains(text)).count()
    };
    block_on(async {
        let rt = machine.start(machine.cache(&proxy.redis_url())).await;
        compile(&rt, 0).await;
        machine.simulator.delay_compiles(Duration::from_secs(4));
        proxy.set(Mode::Hangs);
        let build = rt.build(&module(1)).start();
        std::thread::sleep(Duration::from_millis(1500));
        proxy.set(Mode::Cuts);
        assert_eq!(build.await.expect("it builds").origin(), Origin::Compiled);
        rt.drain().await;
    });
    assert_eq!(
        reports("cannot be read"),
        0,
        "one failure is no outage: {:?}",
        capture.messages(Level::WARN)
    );
    assert_eq!(reports("builds waited for requests"), 1, "{:?}", capture.messages(Level::WARN));
}

#[test]
fn a_hanging_service_is_bypassed_and_reported_once() {
    let Some(redis) = Redis::start(&[]) else { return };
    let proxy = Proxy::to(redis.address());
    proxy.set(Mode::Hangs);
    let capture = LogCapture::begin();
    let machine = Machine::new();
    block_on(async {
        let rt = machine.start(short_budget(&machine, &proxy.redis_url())).await;
        let next = build_until_open(&rt, &capture, 0).await;
        assert!(rt.stats().remote.races > 0, "{:?}", rt.stats());
        assert!(rt.stats().remote.timeouts > 0, "{:?}", rt.stats());
        let before = failed(&rt.stats());
        for number in next..next + 20 {
            compile(&rt, number).await;
        }
        assert!(failed(&rt.stats()) < before + 20, "{:?}", rt.stats());
        // The drain ends although no write ever arrives.
        rt.drain().await;
        assert_eq!(rt.stats().remote.writes, 0);
    });
    let warnings = capture.messages(Level::WARN);
    assert_eq!(
        warnings.iter().filter(|message| message.contains("cannot be read")).count(),
        1,
        "{warnings:#?}"
    );
}

#[test]
fn a_compile_that_finishes_before_a_slow_answer_is_used() {
    let Some(redis) = Redis::start(&[]) else { return };
    let _alone = LogCapture::begin();
    let proxy = Proxy::to(redis.address());
    let (here, there) = (Machine::new(), Machine::new());
    there.build(there.cache(&redis.url()), 1);
    proxy.set(Mode::Slow(Duration::from_secs(10)));
    let cache = here.cache(&proxy.redis_url()).remote_budget(BUDGET);
    block_on(async {
        let rt = here.start(cache).await;
        assert_eq!(compile(&rt, 1).await, Origin::Compiled);
        assert_eq!((rt.stats().remote.races, rt.stats().remote.hits), (1, 0));
    });
}

#[test]
fn a_slow_answer_that_arrives_before_the_compile_finishes_is_used() {
    let Some(redis) = Redis::start(&[]) else { return };
    let _alone = LogCapture::begin();
    let proxy = Proxy::to(redis.address());
    let (here, there) = (Machine::new(), Machine::new());
    there.build(there.cache(&redis.url()), 1);
    proxy.set(Mode::Hangs);
    let cache = here.cache(&proxy.redis_url()).remote_budget(BUDGET);
    block_on(async {
        let rt = here.start(cache).await;
        let pause = here.simulator.pause_compiles();
        let build = rt.build(&module(1)).start();
        eventually("the compile has begun", async || here.simulator.counts().builds == 1).await;
        proxy.set(Mode::Passes);
        let program = build.await.expect("it builds");
        assert_eq!(program.origin(), Origin::Remote);
        assert_right(&rt, &program, 1).await;
        drop(pause);
        rt.drain().await;
        let stats = rt.stats();
        assert_eq!((stats.remote.races, stats.remote.hits), (1, 1));
        assert_eq!(stats.remote.writes, 0, "a compile that lost the race is not written");
        assert_eq!(stats.disk.writes, 1, "the loaded object is stored on disk");
    });
    let (origin, _) = here.build(CacheConfig::at(here.disk.path()), 1);
    assert_eq!(origin, Origin::Disk);
}

#[test]
fn late_answers_do_not_trip_the_circuit_breaker() {
    let Some(redis) = Redis::start(&[]) else { return };
    let capture = LogCapture::begin();
    let proxy = Proxy::to(redis.address());
    let (here, there) = (Machine::new(), Machine::new());
    for number in 0..5 {
        there.build(there.cache(&redis.url()), number);
    }
    proxy.set(Mode::Slow(BUDGET));
    let cache = here.cache(&proxy.redis_url()).remote_budget(BUDGET / 10);
    block_on(async {
        let rt = here.start(cache).await;
        for number in 0..5 {
            let pause = here.simulator.pause_compiles();
            let program = rt.build(&module(number)).await.expect("it builds");
            assert_eq!(program.origin(), Origin::Remote);
            drop(pause);
            rt.drain().await;
        }
        assert_eq!(rt.stats().remote.timeouts, 5);
    });
    assert_eq!(capture.messages(Level::WARN), [""; 0]);
}

#[test]
fn a_budget_of_zero_does_not_trip_the_circuit_breaker() {
    let Some(redis) = Redis::start(&[]) else { return };
    let capture = LogCapture::begin();
    let proxy = Proxy::to(redis.address());
    let (here, there) = (Machine::new(), Machine::new());
    for number in 0..6 {
        there.build(there.cache(&redis.url()), number);
    }
    proxy.set(Mode::Slow(BUDGET / 50));
    block_on(async {
        let rt = here.start(here.cache(&proxy.redis_url()).remote_budget(Duration::ZERO)).await;
        // All answers come after their builds have ended.
        for number in 0..5 {
            rt.build(&module(number)).await.expect("it builds");
        }
        rt.drain().await;
        let pause = here.simulator.pause_compiles();
        let program = rt.build(&module(5)).await.expect("it builds");
        assert_eq!(program.origin(), Origin::Remote);
        drop(pause);
    });
    assert_eq!(capture.messages(Level::WARN), [""; 0]);
}

#[test]
fn a_program_is_compiled_if_its_object_is_truncated() {
    let Some(redis) = Redis::start(&[]) else { return };
    let _alone = LogCapture::begin();
    let proxy = Proxy::to(redis.address());
    let (here, there) = (Machine::new(), Machine::new());
    block_on(async {
        let rt = there.start(there.cache(&redis.url())).await;
        rt.build(&large_module(1, 100_000)).await.expect("it builds");
        rt.drain().await;
    });
    proxy.set(Mode::Truncates(1_000));
    let cache = here.cache(&proxy.redis_url());
    block_on(async {
        let rt = here.start(cache.remote_timeout(BUDGET)).await;
        let program = rt.build(&large_module(1, 100_000)).await.expect("it builds");
        assert_eq!(program.origin(), Origin::Compiled);
        assert_eq!(failed(&rt.stats()), 1, "{:?}", rt.stats());
    });
}

#[test]
fn a_full_service_is_still_read_and_reported_once() {
    let Some(redis) = Redis::start(&[]) else { return };
    let capture = LogCapture::begin();
    let (here, there) = (Machine::new(), Machine::new());
    there.build(there.cache(&redis.url()), 99);
    redis.send(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
    block_on(async {
        let rt = here.start(here.cache(&redis.url())).await;
        for number in 0..10 {
            assert_eq!(compile(&rt, number).await, Origin::Compiled);
            rt.drain().await;
        }
        let pause = here.simulator.pause_compiles();
        assert_eq!(compile(&rt, 99).await, Origin::Remote);
        drop(pause);
        let stats = rt.stats();
        assert_eq!((stats.remote.writes, failed(&stats)), (0, 0), "{stats:?}");
        assert!(stats.remote.write_failures >= 3, "{stats:?}");
        assert_eq!(stats.remote.write_failures + stats.remote.writes_dropped, 10, "{stats:?}");
    });
    let warnings = capture.messages(Level::WARN);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("cannot be written"), "{warnings:#?}");
}

#[test]
fn a_rejected_password_is_reported_once_and_not_logged() {
    let Some(redis) = Redis::start(&["--requirepass", "hunter2"]) else { return };
    let capture = LogCapture::begin();
    let address = redis.address();
    let right = Machine::new();
    let url = format!("redis://:hunter2@{address}/0/kiln");
    assert_eq!(right.build(right.cache(&url), 1).1.remote.writes, 1, "the right one is taken");
    let machine = Machine::new();
    block_on(async {
        let url = format!("redis://:hunter3@{address}/0/kiln");
        let rt = machine.start(short_budget(&machine, &url)).await;
        build_until_open(&rt, &capture, 0).await;
        rt.drain().await;
    });
    let warnings = capture.messages(Level::WARN);
    assert!(!format!("{warnings:?}").contains("hunter"), "{warnings:#?}");
    assert_eq!(
        warnings.iter().filter(|message| message.contains("cannot be read")).count(),
        1,
        "{warnings:#?}"
    );
}

#[test]
fn writes_beyond_the_queue_limit_are_dropped_and_counted() {
    let Some(redis) = Redis::start(&[]) else { return };
    let _alone = LogCapture::begin();
    let proxy = Proxy::to(redis.address());
    let machine = Machine::new();
    block_on(async {
        let cache = machine.cache(&proxy.redis_url()).remote_budget(BUDGET);
        let rt = machine.start(cache).await;
        compile(&rt, 0).await;
        rt.drain().await;
        proxy.set(Mode::Hangs);
        // About 300 MB, of which the queue takes 256 MiB.
        let builds = (0..10).map(|number| rt.build(&large_module(number, 30 << 20)).start());
        let builds: Vec<_> = builds.collect();
        for built in futures::future::join_all(builds).await {
            assert_eq!(built.expect("it builds").origin(), Origin::Compiled);
        }
        eventually("a write is dropped", async || rt.stats().remote.writes_dropped > 0).await;
        proxy.set(Mode::Passes);
        rt.drain().await;
    });
}

#[test]
fn the_remote_thread_ends_with_the_runtime() {
    let Some(redis) = Redis::start(&[]) else { return };
    let threads = || {
        let all = std::fs::read_dir("/proc/self/task").expect("this is Linux");
        let names =
            all.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "kiln-remote").count()
    };
    let _alone = LogCapture::begin();
    let machine = Machine::new();
    block_on(async {
        let rt = machine.start(machine.cache(&redis.url())).await;
        compile(&rt, 1).await;
        assert!(threads() >= 1);
        drop(rt);
        eventually("it ends", async || threads() == 0).await;
    });
}
