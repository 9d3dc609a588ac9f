//! Limit of the number of commands that are submitted to a device at the same time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use futures::executor::block_on;
use kiln::commands::Status;
use kiln::simulated::Simulator;
use kiln::{Error, Kernel, Module, Runtime};
use support::simulation::{eventually, runtime_with, with_kernels};

const LEN: usize = 64;

const MAX_IN_FLIGHT: usize = 4;

/// Creates a runtime that limits commands in flight, and a kernel `step` that records its argument.
async fn bounded() -> (Simulator, Runtime, Kernel, Arc<Mutex<Vec<u32>>>) {
    let simulator = with_kernels(Simulator::new());
    let steps = Arc::new(Mutex::new(Vec::new()));
    simulator.kernel("step", {
        let steps = steps.clone();
        move |call| steps.lock().unwrap().push(call.value::<u32>(0))
    });
    let builder = Runtime::builder().max_in_flight(NonZeroUsize::new(MAX_IN_FLIGHT).unwrap());
    let rt = runtime_with(&simulator, builder).await;
    let module = Module::opencl_c("kernel void step(uint number, global uint *x) { }");
    // SAFETY: the kernel touches nothing.
    let step = unsafe { rt.build(&module).await.unwrap().kernel("step") }.unwrap();
    (simulator, rt, step, steps)
}

#[test]
fn commands_in_flight_never_exceed_the_limit_and_run_in_order() {
    const COMMANDS: usize = 1000;
    block_on(async {
        let (simulator, rt, step, steps) = bounded().await;
        // The buffer exists already, so that only launches are in flight.
        let buffer = rt.buffer_from(vec![0u32]).await.unwrap();
        let queue = rt.queue();
        let pause = simulator.pause();
        let events: Vec<_> = (0..COMMANDS as u32)
            .map(|number| queue.submit(step.launch(1).args((number, &buffer))).unwrap())
            .collect();
        let waiting = || events.iter().filter(|event| matches!(event.status(), Status::Waiting));
        assert_eq!(simulator.counts().launches, MAX_IN_FLIGHT as u64);
        assert_eq!(waiting().count(), COMMANDS - MAX_IN_FLIGHT);
        drop(pause);
        eventually("all commands run", || {
            // Read in this order: a step that runs between the two reads only makes the difference smaller.
            let submitted = simulator.counts().launches as usize;
            let run = steps.lock().unwrap().len();
            assert!(
                submitted.saturating_sub(run) <= MAX_IN_FLIGHT,
                "{submitted} submitted, {run} run"
            );
            run == COMMANDS
        });
        for event in events {
            event.await.unwrap();
        }
        assert!(steps.lock().unwrap().iter().copied().eq(0..COMMANDS as u32));
    });
}

#[test]
fn commands_held_back_only_by_the_limit_are_counted() {
    block_on(async {
        let (simulator, rt, ..) = bounded().await;
        let pause = simulator.pause();
        for _ in 0..100 {
            rt.queue().fill(&rt.buffer::<u32>(LEN).unwrap(), 1).unwrap();
        }
        assert_eq!(rt.stats().commands.parked, 100 - MAX_IN_FLIGHT as u64);
        drop(pause);
        rt.drain().await;
        assert_eq!(rt.stats().commands.failed, 0);
    });
}

#[test]
fn the_limit_holds_with_preconditions_and_other_devices() {
    const COMMANDS: usize = 200;
    let other_simulator = with_kernels(Simulator::new().named("other"));
    block_on(async {
        let (simulator, _, _, steps) = bounded().await;
        let simulator = simulator.named("bounded");
        let builder = Runtime::builder()
            .device("bounded")
            .max_in_flight(NonZeroUsize::new(MAX_IN_FLIGHT).unwrap())
            .simulator(&simulator);
        let rt = runtime_with(&other_simulator, builder).await;
        let other = rt.on(&rt.devices()[1]).await.unwrap();
        let module = Module::opencl_c("kernel void step(uint number, global uint *x) { }");
        // SAFETY: the kernel touches nothing.
        let step = unsafe { rt.build(&module).await.unwrap().kernel("step") }.unwrap();
        let submitted = |before: u64| simulator.counts().launches - before;
        let before = simulator.counts().launches;
        let buffers = (0..8).map(|_| rt.buffer_from(vec![0u32]).into_future());
        let buffers = futures::future::try_join_all(buffers).await.unwrap();
        let elsewhere = other.buffer::<u32>(LEN).unwrap();
        let queue = rt.queue();
        let pause = simulator.pause();
        let (open, gate) = async_channel::bounded::<()>(1);
        let mut events = Vec::new();
        for number in 0..COMMANDS as u32 {
            let buffer = &buffers[number as usize % buffers.len()];
            let launch = step.launch(1).args((number, buffer));
            let launch = match number % 4 {
                0 => {
                    let gate = gate.clone();
                    launch.after_future(
                        async move { gate.recv().await.map_or(Ok(()), Ok::<_, Error>) },
                    )
                }
                1 => launch.after(&other.queue().fill(&elsewhere, number).unwrap()),
                _ => launch,
            };
            events.push(queue.submit(launch).unwrap());
        }
        // Dropping the sender closes the channel, which lets all launches pass.
        drop(open);
        other.queue().read(&elsewhere).await.unwrap();
        assert_eq!(submitted(before), MAX_IN_FLIGHT as u64);
        drop(pause);
        eventually("all commands run", || {
            let submitted = submitted(before) as usize;
            let run = steps.lock().unwrap().len();
            assert!(
                submitted.saturating_sub(run) <= MAX_IN_FLIGHT,
                "{submitted} submitted, {run} run"
            );
            run == COMMANDS
        });
        for event in events {
            event.await.unwrap();
        }
        // Launches run in order wherever the data requires it.
        let steps = steps.lock().unwrap();
        for index in 0..buffers.len() as u32 {
            let of_buffer = steps.iter().copied().filter(|step| step % 8 == index);
            assert!(of_buffer.is_sorted(), "{steps:?}");
        }
    });
}
