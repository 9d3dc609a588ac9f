//! A command holds no resources once its end is known: its buffers can be internalized, and their memory is
//! available for the next buffer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use futures::executor::block_on;
use futures::future::join_all;
use kiln::fusion::FusionOutcome;
use kiln::simulated::{Fault, Simulator};
use kiln::{Buffer, Runtime};
use support::everywhere;
use support::scopes;
use support::simulation;

const N: usize = 1024;

/// Returns the number of scopes of each kind; `make soak-internalize` sets more.
fn scopes() -> usize {
    let set = std::env::var("KILN_TEST_SCOPES").ok();
    set.map_or(100, |scopes| scopes.parse().expect("KILN_TEST_SCOPES is a number"))
}

/// A use of a scope's intermediate buffer before the scope uses it.
#[derive(Clone, Copy, Debug)]
enum Before {
    Write,
    Upload,
    LargeUpload,
    Fill,
    CopyTo,
    CopyFrom,
    Read,
    Launch,
    Slice,
    HostTask,
    Failed,
    Drain,
}

const KINDS: [Before; 12] = [
    Before::Write,
    Before::Upload,
    Before::LargeUpload,
    Before::Fill,
    Before::CopyTo,
    Before::CopyFrom,
    Before::Read,
    Before::Launch,
    Before::Slice,
    Before::HostTask,
    Before::Failed,
    Before::Drain,
];

async fn intermediate(chain: &scopes::Chain, rt: &Runtime, before: Before) -> Buffer<f32> {
    let queue = &chain.queue;
    let len = if matches!(before, Before::LargeUpload) { 4 << 20 } else { N };
    let tmp = match before {
        Before::Upload | Before::LargeUpload => rt.buffer_from(vec![1.0f32; len]).await.unwrap(),
        _ => rt.buffer::<f32>(len).unwrap(),
    };
    match before {
        Before::Upload | Before::LargeUpload => {}
        Before::Write => queue.write(&tmp, vec![1.0f32; N]).unwrap().await.unwrap(),
        Before::Fill => queue.fill(&tmp, 1.0f32).unwrap().await.unwrap(),
        Before::CopyTo => queue.copy(&chain.src, &tmp).unwrap().await.unwrap(),
        Before::CopyFrom => {
            let other = rt.buffer::<f32>(N).unwrap();
            queue.copy(&tmp, &other).unwrap().await.unwrap();
        }
        Before::Read => drop(queue.read(&tmp).await.unwrap()),
        Before::Launch => {
            let launch = chain.in_place.launch(N).args((&tmp,));
            queue.submit(launch).unwrap().await.unwrap();
        }
        Before::Slice => {
            let slice = tmp.slice(..N / 2).unwrap();
            let event = queue.fill(&slice, 1.0f32).unwrap();
            drop(slice);
            event.await.unwrap();
        }
        Before::HostTask => {
            let held = tmp.clone();
            queue.host_task(async move { assert_eq!(held.len(), N) }).unwrap().await.unwrap();
        }
        Before::Failed => {
            let failing = queue.host_task(async { Err::<(), _>("it fails") }).unwrap();
            let other = rt.buffer::<f32>(N).unwrap();
            let launch =
                chain.scale.launch(N).args((&tmp, other.write_only(), 2.0f32)).after(&failing);
            queue.submit(launch).unwrap().await.expect_err("it comes after a failure");
        }
        Before::Drain => {
            let _ = queue.fill(&tmp, 1.0f32).unwrap();
            rt.drain().await;
        }
    }
    tmp
}

everywhere! {
    async fn a_buffer_used_by_completed_commands_is_internalized(rt: Runtime) {
        let rt = scopes::always(&rt).await;
        let numbers: Vec<_> = (0..N).map(|n| n as f32 - 100.0).collect();
        let mut chain = scopes::Chain::new(&rt, numbers, 3.0).await;
        for kind in KINDS {
            let count = if matches!(kind, Before::LargeUpload) { scopes() / 10 } else { scopes() };
            for scope in 0..count {
                let tmp = intermediate(&chain, &rt, kind).await;
                let fusion = chain.queue.start_fusion();
                let first = chain.scale.launch(N).args((&chain.src, &tmp, chain.factor));
                let _ = fusion.submit(first).unwrap();
                let second = chain.offset.launch(N).args((&tmp, &chain.dst, 1.0f32));
                let _ = fusion.submit(second).unwrap();
                drop(tmp);
                let outcome = fusion.complete().await.unwrap();
                let is_internalized =
                    matches!(outcome, FusionOutcome::Fused { internalized: 1, .. });
                assert!(is_internalized, "{kind:?}, scope {scope}: {outcome}");
            }
            chain.tmp = chain.src.clone();
            assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result(), "{kind:?}");
        }
    }
}

/// The device has memory for one and a half buffers: the next one fits only if the last one is freed.
#[test]
fn awaiting_a_command_frees_its_memory_for_the_next_allocation() {
    const LEN: usize = 1 << 14;
    let simulator = simulation::with_kernels(Simulator::new().memory((LEN * 4 * 3 / 2) as u64));
    block_on(async {
        let rt = simulation::runtime(&simulator).await;
        let scale = simulation::kernel(&rt, "scale").await;
        let queue = rt.queue();
        for round in 0..400 {
            let buffer = rt.buffer::<u32>(LEN).unwrap_or_else(|error| panic!("{round}: {error}"));
            if round % 8 == 7 {
                simulator.fail_launches("scale", 1, Fault::Refused);
            }
            let event = match round % 8 {
                0 => queue.fill(&buffer, 1).unwrap(),
                1 => queue.write(&buffer, vec![1; LEN]).unwrap(),
                2 => {
                    let slice = buffer.slice(..LEN / 2).unwrap();
                    queue.fill(&slice, 1).unwrap()
                }
                3 => {
                    let _ = queue.fill(&buffer, 1).unwrap();
                    queue.marker().unwrap()
                }
                4 => {
                    let held = buffer.clone();
                    queue.host_task(async move { assert_eq!(held.len(), LEN) }).unwrap()
                }
                5 => {
                    let read = queue.read(&buffer);
                    drop(buffer);
                    read.await.unwrap();
                    continue;
                }
                6 => {
                    let _ = queue.fill(&buffer, 1).unwrap();
                    drop(buffer);
                    rt.drain().await;
                    continue;
                }
                _ => queue.submit(scale.launch(LEN).args((2u32, &buffer))).unwrap(),
            };
            drop(buffer);
            let _ = event.await;
        }
    });
}

#[test]
fn awaiting_several_commands_frees_their_memory() {
    const LEN: usize = 1 << 14;
    let simulator = Simulator::new().memory((LEN * 4 * 3 / 2) as u64);
    block_on(async {
        let rt = simulation::runtime(&simulator).await;
        for _ in 0..200 {
            let buffer = rt.buffer::<u32>(LEN).unwrap();
            let events: Vec<_> = (0..4).map(|n| rt.queue().fill(&buffer, n).unwrap()).collect();
            drop(buffer);
            join_all(events.into_iter().rev()).await;
        }
    });
}
