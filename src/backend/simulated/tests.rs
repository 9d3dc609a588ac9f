//! Tests of each behaviour of the simulated device, through the traits that the rest of Kiln uses.

#![allow(clippy::unwrap_used)]

mod commands;
mod control;
mod programs;

use std::mem::size_of_val;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kiln_compiler::{NdRange, NdSize};
use kiln_spirv::{Access, AddressSpace};

use super::memory::{FRESH, SLICE_ALIGNMENT};
use super::*;
use crate::backend::{
    Adapter, Argument, Device, Kernel, Memory, NativeEvent, NativeQueue, Operation, Program,
    Progress, Source,
};
use crate::device::ModuleFormat;
use crate::error::{ErrorKind, Result};

const SAXPY: &str =
    "kernel void saxpy(float a, global const float *x, global float *y) { /* ... */ }";

fn adapter(simulator: &Simulator) -> Arc<dyn Adapter> {
    let backend = simulator.backend();
    assert_eq!(backend.name(), "simulated");
    backend.adapters().unwrap().remove(0)
}

fn device(simulator: &Simulator) -> Arc<dyn Device> {
    adapter(simulator).open().unwrap()
}

fn source(format: ModuleFormat, code: &[u8]) -> Source<'_> {
    Source { format, code, options: "", constants: &[] }
}

fn compile(device: &dyn Device, text: &str) -> Result<Arc<dyn Program>> {
    device.build(&source(ModuleFormat::OpenClC, text.as_bytes()))
}

fn load(device: &dyn Device, binary: &[u8]) -> Result<Arc<dyn Program>> {
    device.build(&source(ModuleFormat::Native, binary))
}

fn only_kernel(device: &dyn Device, text: &str) -> Arc<dyn Kernel> {
    compile(device, text).unwrap().kernels()[0].clone()
}

/// Enqueues `operation`. The tests keep everything that it names for as long as required.
fn enqueue(
    native_queue: &mut dyn NativeQueue,
    operation: &Operation<'_>,
) -> Result<Arc<dyn NativeEvent>> {
    enqueue_after(native_queue, operation, &[])
}

fn enqueue_after(
    native_queue: &mut dyn NativeQueue,
    operation: &Operation<'_>,
    wait: &[Arc<dyn NativeEvent>],
) -> Result<Arc<dyn NativeEvent>> {
    // SAFETY: every test waits for the ends of its commands before it drops the objects that they name.
    unsafe { native_queue.enqueue(operation, wait) }
}

fn marker(native_queue: &mut dyn NativeQueue) -> Arc<dyn NativeEvent> {
    enqueue(native_queue, &Operation::Marker).unwrap()
}

fn launch(
    native_queue: &mut dyn NativeQueue,
    kernel: &Arc<dyn Kernel>,
    arguments: &[Argument<'_>],
) -> Result<Arc<dyn NativeEvent>> {
    let range = NdRange::from(NdSize::from(4));
    enqueue(native_queue, &Operation::Launch { kernel: &**kernel, arguments, range: &range })
}

fn notified(event: &Arc<dyn NativeEvent>) -> Receiver<()> {
    let (sender, receiver) = channel();
    event.notify(Box::new(move || sender.send(()).unwrap_or_default())).unwrap();
    receiver
}

/// Waits for the end through a callback, and returns the outcome.
fn end_of(event: &Arc<dyn NativeEvent>) -> Result<()> {
    notified(event).recv_timeout(Duration::from_secs(20)).expect("the command hangs");
    match event.progress() {
        Progress::Pending => panic!("notified before the command ended"),
        Progress::Complete => Ok(()),
        Progress::Failed(error) | Progress::Unknown(error) => Err(error),
    }
}

fn is_pending(event: &Arc<dyn NativeEvent>) -> bool {
    matches!(event.progress(), Progress::Pending)
}

fn is_complete(event: &Arc<dyn NativeEvent>) -> bool {
    matches!(event.progress(), Progress::Complete)
}

fn write<'a>(to: &'a dyn Memory, host: &'a [f32]) -> Operation<'a> {
    Operation::Write { to, offset: 0, from: host.as_ptr().cast(), bytes: size_of_val(host) }
}

fn read_back(native_queue: &mut dyn NativeQueue, memory: &dyn Memory, len: usize) -> Vec<f32> {
    let mut host = vec![0.0f32; len];
    let to = host.as_mut_ptr().cast();
    let bytes = size_of_val(&host[..]);
    let event =
        enqueue(native_queue, &Operation::Read { from: memory, offset: 0, to, bytes }).unwrap();
    native_queue.flush().unwrap();
    end_of(&event).unwrap();
    host
}

/// Polls for a condition that the device meets just after it has reported an end.
fn soon(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        thread::yield_now();
    }
    true
}

fn both() -> [Simulator; 2] {
    [Simulator::new(), Simulator::immediate()]
}

fn launch_and_flush(
    native_queue: &mut dyn NativeQueue,
    kernel: &Arc<dyn Kernel>,
) -> Arc<dyn NativeEvent> {
    let event = launch(native_queue, kernel, &[]).unwrap();
    native_queue.flush().unwrap();
    event
}
