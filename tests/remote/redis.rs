//! Behaviour specific to Redis: its connections, clusters, and entries that expire.

#![cfg(all(feature = "simulated", feature = "remote-redis"))]

use std::collections::BTreeMap;
use std::time::Duration;

use super::machines::flood::{Flood, Reply};
use super::machines::proxy::{Mode, Proxy};
use super::machines::services::{Redis, free_port};
use super::machines::{Machine, eventually, module};
use super::warnings::LogCapture;
use futures::executor::block_on;
use kiln::Stats;
use kiln::build::Origin;
use tracing::Level;

/// Builds a program on a new machine.
fn build(url: &str, number: u32) -> (Origin, Stats) {
    let machine = Machine::new();
    machine.build(machine.cache(url), number)
}

#[test]
fn objects_are_read_claimed_and_written_with_one_command_each() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    assert_eq!(build(&redis.url(), 1).0, Origin::Compiled);
    assert_eq!(build(&redis.url(), 1).0, Origin::Remote);
    let mut calls = redis.calls();
    calls.retain(|command, _| command != "info");
    let right = [("getrange", 2), ("set", 2)].map(|(name, calls)| (name.to_owned(), calls));
    assert_eq!(calls, BTreeMap::from(right));
}

#[test]
fn an_unreachable_service_is_an_error_rather_than_a_timeout() {
    let _alone = LogCapture::begin();
    if Redis::start(&[]).is_none() {
        return;
    }
    let (origin, stats) = build(&format!("redis://127.0.0.1:{}", free_port()), 1);
    assert_eq!((origin, stats.remote.errors, stats.remote.timeouts), (Origin::Compiled, 1, 0));
}

#[test]
fn a_connection_closed_while_idle_is_reopened() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let proxy = Proxy::to(redis.address());
    for number in 0..2 {
        build(&redis.url(), number);
    }
    let machine = Machine::new();
    block_on(async {
        let rt = machine.start(machine.cache(&proxy.redis_url())).await;
        for number in 0..2 {
            let program = rt.build(&module(number)).await.expect("it builds");
            assert_eq!(program.origin(), Origin::Remote);
            proxy.set(Mode::Cuts);
            proxy.set(Mode::Passes);
        }
        let stats = rt.stats();
        assert_eq!((stats.remote.hits, stats.remote.errors), (2, 0), "{stats:?}");
    });
}

#[test]
fn an_unresponsive_connection_is_replaced() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let proxy = Proxy::to(redis.address());
    for number in 0..2 {
        build(&redis.url(), number);
    }
    let machine = Machine::new();
    // Long enough for healthy requests, and short for others.
    let cache = machine.cache(&proxy.redis_url()).remote_timeout(Duration::from_secs(2));
    block_on(async {
        let rt = machine.start(cache).await;
        assert_eq!(rt.build(&module(0)).await.expect("it builds").origin(), Origin::Remote);
        proxy.set(Mode::Mutes);
        let build = rt.build(&module(1)).start();
        // The connection becomes unresponsive once it is to transfer an answer.
        eventually("Redis receives the request", async || redis.gets() >= 5).await;
        proxy.set(Mode::Passes);
        assert_eq!(build.await.expect("it builds").origin(), Origin::Remote);
        assert_eq!(rt.stats().remote.timeouts, 0, "the next try is in time");
    });
}

#[test]
fn oversized_objects_are_not_transferred_completely() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    build(&redis.url(), 1);
    let (key, _) = redis.only();
    redis.set(&key, &vec![0; 20 << 20]);
    let before = redis.sent();
    let machine = Machine::new();
    let (origin, stats) = machine.build(machine.cache(&redis.url()).remote_max_bytes(1 << 20), 1);
    assert_eq!((origin, stats.remote.refused), (Origin::Compiled, 1));
    let sent = redis.sent() - before;
    assert!(sent < 2 << 20, "{sent} bytes");
}

#[test]
fn an_oversized_reply_is_an_error_and_is_not_read_to_the_end() {
    let _alone = LogCapture::begin();
    let redis = Flood::start(|_, request| match request {
        _ if request.contains("GETRANGE") => Reply::Endless("$10000000000\r\n"),
        // One reply for each command.
        _ => Reply::Text("+OK\r\n".repeat(request.matches("\r\n*").count() + 1)),
    });
    let (origin, stats) = build(&format!("redis://{}/kiln", redis.address), 1);
    assert_eq!((origin, stats.remote.errors), (Origin::Compiled, 1), "{stats:?}");
    let sent = redis.sent();
    assert!(sent < 128 << 20, "{sent} bytes");
}

#[test]
fn entries_expire_only_if_a_time_to_live_is_set() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    build(&format!("{}?ttl=7d", redis.url()), 1);
    let (key, _) = redis.only();
    let left = redis.send(&[b"TTL", key.as_bytes()]).expect("Redis replies");
    let left: u64 = String::from_utf8(left).expect("it is text").parse().expect("it is a number");
    assert!((1..=7 * 86_400).contains(&left), "{left} s");
    build(&redis.url().replace("/0/", "/1/"), 1);
    let without = redis.info("keyspace");
    assert!(without.contains("db1:keys=1,expires=0"), "{without}");
}

#[test]
fn all_nodes_of_a_cluster_are_discovered_from_one() {
    let nodes = || {
        let bus = free_port().to_string();
        Redis::start(&["--cluster-enabled", "yes", "--cluster-port", &bus])
    };
    let (Some(first), Some(second)) = (nodes(), nodes()) else { return };
    let [port, bus] = ["port", "cluster-port"].map(|name| second.setting(name));
    first.send(&[b"CLUSTER", b"ADDSLOTSRANGE", b"0", b"8191"]);
    second.send(&[b"CLUSTER", b"ADDSLOTSRANGE", b"8192", b"16383"]);
    first.send(&[b"CLUSTER", b"MEET", b"127.0.0.1", port.as_bytes(), bus.as_bytes()]);
    let is_ready = |redis: &Redis| {
        let reply = redis.send(&[b"CLUSTER", b"INFO"]).expect("Redis replies");
        let reply = String::from_utf8(reply).expect("it is text");
        reply.contains("cluster_state:ok") && reply.contains("cluster_known_nodes:2")
    };
    block_on(eventually("they are a cluster", async || is_ready(&first) && is_ready(&second)));
    let unused = free_port();
    let url = format!("redis://127.0.0.1:{unused}/kiln?cluster_endpoints={}", first.address());
    for origin in [Origin::Compiled, Origin::Remote] {
        let machine = Machine::new();
        block_on(async {
            let rt = machine.start(machine.cache(&url)).await;
            for number in 0..20 {
                let program = rt.build(&module(number)).await.expect("it builds");
                assert_eq!(program.origin(), origin);
            }
            rt.drain().await;
            assert_eq!(rt.stats().remote.errors + rt.stats().remote.write_failures, 0);
        });
    }
    let (here, there) = (first.keys().len(), second.keys().len());
    assert!(here > 0 && there > 0 && here + there == 20, "{here} and {there}");
    // A cluster's node, addressed as a single Redis, answers that other nodes have the missing values.
    let capture = LogCapture::begin();
    let alone = Machine::new();
    block_on(async {
        let rt = alone.start(alone.cache(&first.url())).await;
        for number in 0..20 {
            rt.build(&module(number)).await.expect("it builds");
        }
        rt.drain().await;
    });
    let warnings = capture.messages(Level::WARN);
    assert!(warnings.iter().any(|message| message.contains("cluster_endpoints=")), "{warnings:#?}");
}
