//! The stream of builds that wait, compile and have ended.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use futures::StreamExt;
use futures::future::join_all;
use kiln::build::BuildProgress;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, Module, Runtime};
use support::under_executors;

async fn start(simulator: &Simulator) -> Runtime {
    let builder = Runtime::builder().simulator(simulator).cache(CacheConfig::memory_only());
    builder.compile_workers(2.try_into().unwrap()).build().await.unwrap()
}

fn module(number: usize) -> Module {
    Module::opencl_c(format!("kernel void k{number}(global uint *x) {{ x[0] = {number}; }}"))
}

fn numbers(progress: BuildProgress) -> [u64; 3] {
    [progress.queued, progress.compiling, progress.done]
}

#[test]
fn builds_wait_compile_and_end() {
    under_executors(|| async {
        let simulator = Simulator::immediate();
        let rt = start(&simulator).await;
        let mut progress = rt.progress();
        let first = progress.next().await.unwrap();
        assert!(first.is_idle());
        assert_eq!(numbers(first), [0, 0, 0]);

        let pause = simulator.pause_builds();
        let builds: Vec<_> = (0..8).map(|number| rt.build(&module(number)).start()).collect();
        // Two threads compile, and the other builds wait for them.
        let busy = progress.by_ref().filter(|now| std::future::ready(now.compiling == 2));
        assert_eq!(numbers(Box::pin(busy).next().await.unwrap()), [6, 2, 0]);

        drop(pause);
        join_all(builds).await.into_iter().for_each(|built| _ = built.unwrap());
        let idle = progress.by_ref().filter(|now| std::future::ready(now.is_idle()));
        assert_eq!(numbers(Box::pin(idle).next().await.unwrap()), [0, 0, 8]);

        // A stream that starts later begins with the current numbers. Hits in memory are no builds.
        rt.build(&module(0)).await.unwrap();
        assert_eq!(numbers(rt.progress().next().await.unwrap()), [0, 0, 8]);
    });
}

#[test]
fn a_waiter_sees_its_own_build_as_ended() {
    under_executors(|| async {
        let simulator = Simulator::immediate();
        let rt = start(&simulator).await;
        for number in 0..50 {
            rt.build(&module(number)).await.unwrap();
            let progress = rt.progress().next().await.unwrap();
            assert_eq!(numbers(progress), [0, 0, number as u64 + 1]);
        }
    });
}

#[test]
fn failures_and_dropped_requests_end() {
    under_executors(|| async {
        let simulator = Simulator::immediate();
        let rt = start(&simulator).await;
        rt.build(&Module::opencl_c("#error no")).await.unwrap_err();
        drop(rt.build(&module(1)).start());
        rt.build(&module(1)).await.unwrap();
        assert_eq!(numbers(rt.progress().next().await.unwrap()), [0, 0, 2]);
    });
}

#[test]
fn the_stream_ends_with_the_runtime() {
    under_executors(|| async {
        let simulator = Simulator::immediate();
        let rt = start(&simulator).await;
        let progress = rt.progress();
        rt.build(&module(0)).await.unwrap();
        rt.drain().await;
        drop(rt);
        let all: Vec<_> = progress.collect().await;
        assert!(all.len() <= 1, "{all:?}");
    });
}
