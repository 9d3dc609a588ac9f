//! A remote cache that answers slowly: a build waits for it only as long as loading the program is quicker than
//! compiling it, and the requests of many builds are under way at the same time.

#![cfg(all(feature = "simulated", feature = "remote-redis"))]

use std::time::Duration;

use super::machines::proxy::{Mode, Proxy};
use super::machines::services::Redis;
use super::machines::{Machine, assert_right, eventually, module};
use super::warnings::LogCapture;
use futures::executor::block_on;
use futures::future::join_all;
use kiln::build::Origin;

const PROGRAMS: u32 = 10;

/// Returns a machine whose compiles take this time, and the service with the programs that it has built.
fn service_with_programs(compile: Duration) -> Option<Redis> {
    let redis = Redis::start(&[])?;
    let machine = Machine::new();
    machine.simulator.delay_compiles(compile);
    block_on(async {
        let rt = machine.start(machine.cache(&redis.url())).await;
        let builds: Vec<_> =
            (0..PROGRAMS).map(|number| rt.build(&module(number)).start()).collect();
        for built in join_all(builds).await {
            built.expect("it builds");
        }
        rt.drain().await;
    });
    Some(redis)
}

#[test]
fn programs_compile_beside_a_service_that_answers_more_slowly() {
    let _alone = LogCapture::begin();
    let compile = Duration::from_millis(50);
    let Some(redis) = service_with_programs(compile) else { return };
    let proxy = Proxy::to(redis.address());
    proxy.set(Mode::Slow(Duration::from_secs(2)));
    let machine = Machine::new();
    machine.simulator.delay_compiles(compile);
    block_on(async {
        let rt = machine.start(machine.cache(&proxy.redis_url())).await;
        // The first program shows how long the service and a compile take. The budget allows to wait for that.
        assert_eq!(rt.build(&module(0)).await.expect("it builds").origin(), Origin::Remote);
        for number in 1..PROGRAMS {
            let program = rt.build(&module(number)).await.expect("it builds");
            assert_eq!(program.origin(), Origin::Compiled, "program {number}");
            assert_right(&rt, &program, number).await;
        }
        rt.drain().await;
        let stats = rt.stats();
        assert_eq!(stats.remote.races, u64::from(PROGRAMS) - 1, "{stats:?}");
        assert_eq!(stats.remote.writes, 0, "the service has the programs");
    });
}

#[test]
fn programs_that_load_more_quickly_than_they_compile_are_awaited() {
    let _alone = LogCapture::begin();
    let compile = Duration::from_secs(2);
    let Some(redis) = service_with_programs(compile) else { return };
    let proxy = Proxy::to(redis.address());
    proxy.set(Mode::Slow(compile / 20));
    let machine = Machine::new();
    machine.simulator.delay_compiles(compile);
    block_on(async {
        let rt = machine.start(machine.cache(&proxy.redis_url())).await;
        for number in 0..PROGRAMS {
            let program = rt.build(&module(number)).await.expect("it builds");
            assert_eq!(program.origin(), Origin::Remote, "program {number}");
        }
        let stats = rt.stats();
        assert_eq!((stats.remote.races, stats.builds.compiles), (0, 0), "{stats:?}");
    });
}

#[test]
fn the_requests_of_a_cold_start_are_under_way_at_the_same_time() {
    let _alone = LogCapture::begin();
    let Some(redis) = Redis::start(&[]) else { return };
    let proxy = Proxy::to(redis.address());
    let machine = Machine::new();
    block_on(async {
        let rt = machine.start(machine.cache(&proxy.redis_url())).await;
        // Opens the connection.
        rt.build(&module(99)).await.expect("it builds");
        rt.drain().await;
        let before = redis.gets();
        proxy.set(Mode::Hangs);
        let builds: Vec<_> = (0..30).map(|number| rt.build(&module(number)).start()).collect();
        eventually("all programs are requested", async || redis.gets() == before + 30).await;
        proxy.set(Mode::Passes);
        for built in join_all(builds).await {
            built.expect("it builds");
        }
    });
}
