//! A first poll waits for a command's end for as long as the application allows, and no longer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{Event, Runtime};

/// A command that takes a while.
fn command(simulator: &Simulator, spin: Option<Duration>) -> Event {
    let builder = Runtime::builder().simulator(simulator);
    let builder = spin.into_iter().fold(builder, |builder, spin| builder.spin(spin));
    let rt = block_on(builder.build()).unwrap();
    let buffer = rt.buffer::<u32>(4).unwrap();
    rt.queue().fill(&buffer, 7).unwrap()
}

#[test]
fn what_ends_within_the_budget_is_there_at_the_first_poll() {
    let simulator = Simulator::new();
    simulator.delay_commands(Duration::from_millis(20));
    let event = command(&simulator, Some(Duration::MAX));
    event.now_or_never().expect("the poll has waited for it").unwrap();
}

#[test]
fn what_outlasts_the_budget_is_awaited_as_ever() {
    let simulator = Simulator::new();
    for spin in [None, Some(Duration::from_millis(1))] {
        let pause = simulator.pause();
        let event = command(&simulator, spin);
        assert!(event.clone().now_or_never().is_none());
        drop(pause);
        block_on(event).unwrap();
    }
}
