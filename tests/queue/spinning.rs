//! The first poll of an event busy-waits for the command's end for as long as the application allows, and no
//! longer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{Event, Queue, Runtime};

fn queue(simulator: &Simulator, spin: Option<Duration>) -> Queue {
    let builder = Runtime::builder().simulator(simulator);
    let builder = spin.into_iter().fold(builder, |builder, spin| builder.spin(spin));
    block_on(builder.build()).unwrap().queue()
}

/// Submits a command of the device.
fn command(queue: &Queue) -> Event {
    queue.marker().unwrap()
}

#[test]
fn commands_that_end_within_the_budget_are_ready_at_the_first_poll() {
    let simulator = Simulator::new();
    simulator.delay_commands(Duration::from_millis(20));
    let event = command(&queue(&simulator, Some(Duration::MAX)));
    event.now_or_never().expect("the poll has waited for it").unwrap();
}

#[test]
fn commands_that_outlast_the_budget_are_awaited_as_usual() {
    let simulator = Simulator::new();
    for spin in [None, Some(Duration::from_millis(1))] {
        let pause = simulator.pause();
        let event = command(&queue(&simulator, spin));
        assert!(event.clone().now_or_never().is_none());
        drop(pause);
        block_on(event).unwrap();
    }
}

#[test]
fn host_tasks_wait_for_commands_without_keeping_others_from_running() {
    let simulator = Simulator::new();
    let queue = queue(&simulator, Some(Duration::MAX));
    let pause = simulator.pause();
    let event = command(&queue);
    let waiting = queue.host_task(event).unwrap();
    let (sender, receiver) = oneshot::channel();
    let other = queue.host_task(async move { sender.send(()).expect("the test waits") }).unwrap();
    block_on(receiver).expect("the other task runs");
    drop(pause);
    block_on(async { futures::try_join!(waiting, other) }).unwrap();
}

#[test]
fn commands_that_are_not_on_the_device_are_awaited_as_usual() {
    let simulator = Simulator::new();
    let queue = queue(&simulator, Some(Duration::MAX));
    let (sender, receiver) = oneshot::channel::<()>();
    let event = queue.host_task(async move { receiver.await.expect("the test sends it") }).unwrap();
    assert!(event.clone().now_or_never().is_none());
    sender.send(()).expect("it is awaited");
    block_on(event).unwrap();
}
