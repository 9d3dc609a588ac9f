//! Memory that host and device share: guards see what commands wrote, commands see what guards wrote, the DAG
//! orders both, and nothing is used too late or leaked, however guards and their futures end.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::num::NonZeroUsize;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

use futures::FutureExt;
use futures::executor::block_on;
use futures::future::{Either, select};
use kiln::commands::Status;
use kiln::memory::{Mapped, MappedMut};
use kiln::simulated::{Fault, Simulator};
use kiln::{Buffer, ErrorKind, Event, Runtime};
use support::forgotten;
use support::simulation;
use support::simulation::{
    KERNELS, assert_at_rest, eventually, runtime, runtime_with, with_kernels,
};

const LEN: usize = 1024;

/// Runs `test` with simulated devices of both kinds, and with every real device.
fn everywhere(test: impl AsyncFn(Runtime)) {
    block_on(async {
        for simulator in [Simulator::new(), Simulator::immediate()] {
            test(runtime(&with_kernels(simulator)).await).await;
        }
        support::on_each_device(test).await;
    });
}

/// Lets everything run that can, and returns whether the command still waits.
async fn waits(rt: &Runtime, event: &Event) -> bool {
    // A command that uses no memory of the test ends after all commands that could run.
    let other = rt.buffer::<u32>(LEN).unwrap();
    for _ in 0..3 {
        rt.queue().fill(&other, 1).unwrap().await.unwrap();
    }
    matches!(event.status(), Status::Waiting)
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    future.poll_unpin(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn host_and_device_see_what_the_other_wrote() {
    everywhere(async |rt| {
        let (queue, scale) = (rt.queue(), support::kernel(&rt, KERNELS, "scale").await);
        let x = rt.host_buffer::<u32>(LEN).unwrap();
        assert_eq!(*queue.map(&x).await.unwrap(), [0; LEN], "a new buffer holds zeros");
        for round in 1..20 {
            let mut guard = queue.map_mut(&x).await.unwrap();
            for (at, element) in guard.iter_mut().enumerate() {
                *element = round * at as u32;
            }
            drop(guard);
            queue.submit(scale.launch(LEN).args((3u32, &x))).unwrap();
            let expected: Vec<_> = (0..LEN as u32).map(|at| 3 * round * at).collect();
            assert_eq!(*queue.map(&x).await.unwrap(), expected[..]);
            assert_eq!(queue.read(&x).await.unwrap(), expected);
        }
    });
}

#[test]
fn a_host_buffer_is_memory_like_any_other() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let (shared, own) = (rt.host_buffer::<u32>(LEN).unwrap(), rt.buffer::<u32>(LEN).unwrap());
        let elements: Vec<u32> = (0..LEN as u32).collect();
        queue.write(&shared, elements.clone()).unwrap();
        queue.copy(&shared, &own).unwrap();
        queue.fill(&shared, 7).unwrap();
        assert_eq!(*queue.map(&shared).await.unwrap(), [7; LEN]);
        queue.copy(&own, &shared).unwrap();
        assert_eq!(queue.read(&shared).await.unwrap(), elements);
        let part = shared.slice(5..9).unwrap();
        queue.map_mut(&part).await.unwrap().copy_from_slice(&[1; 4]);
        let bytes = shared.cast::<u8>().unwrap();
        assert_eq!(queue.map(&bytes).await.unwrap()[19..24], [0, 1, 0, 0, 0], "elements 4 and 5");
        let expected = [&elements[..5], &[1; 4], &elements[9..]].concat();
        assert_eq!(queue.read(&shared).await.unwrap(), expected);
    });
}

#[test]
fn commands_that_conflict_wait_for_the_guard_and_others_do_not() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let x = rt.host_buffer::<u32>(LEN).unwrap();
        let [left, right] = [0..LEN / 2, LEN / 2..LEN].map(|range| x.slice(range).unwrap());
        queue.fill(&x, 1).unwrap();

        let guard = queue.map(&left).await.unwrap();
        let filled = queue.fill(&x, 2).unwrap();
        assert!(waits(&rt, &filled).await, "it writes mapped elements");
        assert_eq!(*guard, [1; LEN / 2]);
        drop(guard);
        filled.await.unwrap();

        let guard = queue.map(&left).await.unwrap();
        queue.fill(&right, 3).unwrap().await.unwrap();
        assert_eq!(queue.read(&left).await.unwrap(), [2; LEN / 2], "it only reads");
        let second = queue.map(&left).await.unwrap();
        assert_eq!(guard[..], second[..]);
        drop(guard);
        let filled = queue.fill(&left, 4).unwrap();
        assert!(waits(&rt, &filled).await, "one guard is left");
        drop(second);
        filled.await.unwrap();

        let mut guard = queue.map_mut(&left).await.unwrap();
        let mut read = queue.read(&left);
        assert!(poll_once(&mut read).is_pending());
        queue.fill(&right, 5).unwrap().await.unwrap();
        let marker = queue.marker().unwrap();
        assert!(waits(&rt, &marker).await, "the mapping is not over");
        guard.fill(6);
        drop(guard);
        assert_eq!(read.await.unwrap(), [6; LEN / 2]);
        marker.await.unwrap();
        assert_eq!(queue.read(&right).await.unwrap(), [5; LEN / 2]);
    });
}

#[test]
fn a_mapping_comes_after_the_commands_before_it() {
    let simulator = with_kernels(Simulator::new());
    block_on(async {
        let rt = runtime(&simulator).await;
        let (queue, x) = (rt.queue(), rt.host_buffer::<u32>(LEN).unwrap());
        queue.fill(&x, 1).unwrap();
        let pause = simulator.pause();
        let read = queue.read(&x);
        let mut mapped = queue.map_mut(&x);
        assert!(poll_once(&mut mapped).is_pending(), "the device is paused");
        drop(pause);
        mapped.await.unwrap().fill(2);
        assert_eq!(read.await.unwrap(), [1; LEN]);
        assert_eq!(queue.read(&x).await.unwrap(), [2; LEN]);
    });
}

#[test]
fn launches_of_a_scope_come_before_a_mapping() {
    everywhere(async |rt| {
        let (queue, scale) = (rt.queue(), support::kernel(&rt, KERNELS, "scale").await);
        let x = rt.host_buffer::<u32>(LEN).unwrap();
        queue.map_mut(&x).await.unwrap().fill(1);
        let scope = queue.start_fusion();
        scope.submit(scale.launch(LEN).args((2u32, &x))).unwrap();
        scope.submit(scale.launch(LEN).args((3u32, &x))).unwrap();
        assert_eq!(*queue.map(&x).await.unwrap(), [6; LEN]);
        drop(scope);
    });
}

#[test]
fn futures_and_guards_may_be_dropped_at_any_stage() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let x = rt.host_buffer::<u32>(LEN).unwrap();
        for round in 0..60u32 {
            queue.fill(&x, round).unwrap();
            let (polls, ends) = (round % 3, round % 2 == 0);
            let (mut shared, mut own) = (queue.map(&x), queue.map_mut(&x));
            for _ in 0..polls {
                match poll_once(&mut shared) {
                    Poll::Ready(guard) => {
                        assert_eq!(*guard.unwrap(), [round; LEN]);
                        break;
                    }
                    Poll::Pending if ends => thread::yield_now(),
                    Poll::Pending => {}
                }
            }
            if polls == 0 {
                assert!(poll_once(&mut own).is_pending(), "the other mapping is before it");
            }
            if round % 5 == 0 {
                drop(own);
                drop(shared);
            } else {
                drop(shared);
                drop(own);
            }
            assert_eq!(queue.read(&x).await.unwrap(), [round; LEN]);
        }
        rt.drain().await;
        assert_eq!(rt.stats().commands.failed, 0);
    });
}

#[test]
fn guards_outlive_their_buffer_queue_and_runtime() {
    for simulator in [Simulator::new(), Simulator::immediate()] {
        block_on(async {
            let rt = runtime(&simulator).await;
            let (shared, own) = guards(&rt).await;
            drop(rt);
            use_guards(shared, own);
        });
        assert_at_rest(&simulator);
    }
    block_on(support::on_each_device(async |rt| {
        let (shared, own) = guards(&rt).await;
        drop(rt);
        use_guards(shared, own);
    }));
}

/// Returns guards of buffers of which nothing else is left.
async fn guards(rt: &Runtime) -> (Mapped<u32>, MappedMut<u32>) {
    let queue = rt.queue();
    let [x, y] = [(); 2].map(|()| rt.host_buffer::<u32>(LEN).unwrap());
    queue.fill(&x, 3).unwrap();
    (queue.map(&x).await.unwrap(), queue.map_mut(&y).await.unwrap())
}

/// Uses the guards on other threads, and drops them there.
fn use_guards(shared: Mapped<u32>, mut own: MappedMut<u32>) {
    thread::spawn(move || {
        assert_eq!(*shared, [3; LEN]);
        own.copy_from_slice(&shared);
        assert_eq!(own[LEN - 1], 3);
        drop(shared);
        assert_eq!(own[0], 3);
    })
    .join()
    .unwrap();
}

#[test]
fn a_forgotten_guard_only_keeps_back_the_commands_behind_it() {
    for simulator in [Simulator::new(), Simulator::immediate()] {
        block_on(async {
            let rt = runtime(&simulator).await;
            let queue = rt.queue();
            let (x, y) = (rt.host_buffer::<u32>(LEN).unwrap(), rt.buffer::<u32>(LEN).unwrap());
            forgotten::forget(queue.map_mut(&x).await.unwrap());
            forgotten::forget(queue.map_mut(&y));
            let filled = queue.fill(&x, 1).unwrap();
            queue.fill(&y, 2).unwrap().await.unwrap();
            assert!(waits(&rt, &filled).await);
            assert!(filled.cancel(), "a command that waits for the guard can be canceled");
            assert_eq!(filled.await.unwrap_err().kind(), ErrorKind::Canceled);
        });
        let kept = || simulator.counts().live_allocations;
        eventually("the mapped buffer alone is kept", || kept() == 1);
    }
}

#[test]
fn a_mapping_fails_with_the_command_that_should_have_written_the_elements() {
    let simulator = with_kernels(Simulator::new());
    block_on(async {
        let rt = runtime(&simulator).await;
        let (queue, scale) = (rt.queue(), simulation::kernel(&rt, "scale").await);
        let x = rt.host_buffer::<u32>(LEN).unwrap();
        simulator.fail_launches("scale", 1, Fault::Refused);
        let failed = queue.submit(scale.launch(LEN).args((2u32, &x))).unwrap();
        let (shared, own) = (queue.map(&x), queue.map_mut(&x));
        let root = failed.await.unwrap_err();
        assert!(shared.await.unwrap_err().same(&root));
        assert!(own.await.unwrap_err().same(&root));
        queue.fill(&x, 1).unwrap();
        assert_eq!(*queue.map(&x).await.unwrap(), [1; LEN], "the buffer is usable again");
        rt.drain().await;
    });
    assert_at_rest(&simulator);
}

#[test]
fn a_mapping_that_the_driver_refuses_fails_and_holds_nothing_back() {
    let faults = [
        (Fault::Refused, ErrorKind::Driver),
        (Fault::OutOfResources, ErrorKind::OutOfResources),
        (Fault::DeviceLost, ErrorKind::DeviceLost),
    ];
    for (fault, kind) in faults {
        let simulator = with_kernels(Simulator::new());
        block_on(async {
            let rt = runtime(&simulator).await;
            let (queue, x) = (rt.queue(), rt.host_buffer::<u32>(LEN).unwrap());
            queue.fill(&x, 1).unwrap().await.unwrap();
            simulator.fail_enqueues(1, fault);
            assert_eq!(queue.map(&x).await.unwrap_err().kind(), kind);
            queue.fill(&x, 2).unwrap().await.unwrap();
            // The unmap fails.
            let guard = queue.map_mut(&x).await.unwrap();
            simulator.fail_enqueues(1, fault);
            drop(guard);
            let error = queue.read(&x).await.unwrap_err();
            assert_eq!(error.kind(), kind, "what the host wrote is missing");
            queue.fill(&x, 3).unwrap();
            assert_eq!(queue.read(&x).await.unwrap(), [3; LEN]);
            rt.drain().await;
        });
        assert_at_rest(&simulator);
    }
}

#[test]
fn what_cannot_be_mapped_is_refused_by_name() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let refused = async |buffer: &Buffer<u32>, parts: [&str; 2]| {
            let (shared, own) = (queue.map(buffer).await, queue.map_mut(buffer).await);
            for error in [shared.unwrap_err(), own.unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
            }
        };
        let device = rt.buffer::<u32>(LEN).unwrap();
        refused(&device, ["a buffer that is in device memory", "`Runtime::host_buffer`"]).await;
        let bytes = rt.host_buffer::<u8>(64).unwrap().slice(2..34).unwrap();
        refused(&bytes.cast().unwrap(), ["starts at byte 2", "a multiple of 4 bytes"]).await;
        let other = runtime(&Simulator::new().named("other")).await;
        refused(&other.host_buffer(LEN).unwrap(), ["a mapping", "this queue belongs to"]).await;
        let error = rt.host_buffer::<u32>(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        rt.drain().await;
        assert_eq!(rt.stats().commands.failed, 0);
    });
}

#[test]
fn guards_take_no_place_of_a_producer() {
    block_on(async {
        let builder = Runtime::builder().max_in_flight(NonZeroUsize::MIN);
        let rt = runtime_with(&Simulator::new(), builder).await;
        let queue = rt.queue();
        let guard = queue.map_mut(&rt.host_buffer::<u32>(LEN).unwrap()).await.unwrap();
        let other = rt.buffer::<u32>(LEN).unwrap();
        for _ in 0..3 {
            queue.ready().await;
            queue.fill(&other, 1).unwrap().await.unwrap();
        }
        drop(guard);
        rt.drain().await;
    });
}

#[test]
fn drawings_and_messages_name_mappings() {
    let simulator = Simulator::new();
    block_on(async {
        let rt = runtime(&simulator).await;
        let (queue, x) = (rt.queue(), rt.host_buffer::<u32>(LEN).unwrap());
        let guard = queue.map(&x).await.unwrap();
        assert!(queue.dot().contains("unmap"), "{}", queue.dot());
        let drained = rt.drain_timeout(std::time::Duration::from_millis(20)).await;
        let message = drained.unwrap_err().to_string();
        assert!(message.contains("the guard of the mapping"), "{message}");
        let drain = pin!(rt.drain());
        let Either::Right((_, drain)) = select(drain, std::future::ready(())).await else {
            panic!("the guard exists")
        };
        drop(guard);
        drain.await;
    });
}
