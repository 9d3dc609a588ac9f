//! Failures around fused kernels: what a launch was to write is lost, also where it is internalized, and launches that
//! need nothing of a failed command have their results.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::sync::atomic::Ordering::SeqCst;

use futures::executor::block_on;
use kiln::fusion::Internalization;
use kiln::simulated::Fault;
use kiln::{Buffer, Error, Event, FusionMode, Module};

use super::limit::{Bench, ELEMENTS, FUSED, LONG};

/// Reason for which the launches of a scope, or the first of them, do not run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cause {
    /// The fused kernel fails.
    Device,
    /// The first launch is canceled.
    Canceled,
    /// An earlier launch, whose result the first one needs, is not built.
    Build,
}

/// A scope over memory of the application that is internalized.
struct Internalized {
    bench: Bench,
    between: Buffer<f32>,
}

impl Internalized {
    fn new() -> Self {
        let bench = Bench::with_limit(FusionMode::Always, LONG);
        let between = bench.rt.host_buffer(ELEMENTS).unwrap();
        let own = Self { bench, between };
        // From here on, the fused kernel is known.
        own.complete();
        block_on(own.bench.rt.drain());
        assert_eq!(own.bench.fused_runs.load(SeqCst), 1);
        let _ = own.bench.rt.queue().fill(&own.between, 77.0).unwrap();
        block_on(own.bench.rt.drain());
        own
    }

    /// Submits the launches, in a scope, and returns their events.
    fn complete(&self) -> [Event; 2] {
        let Self { bench: Bench { rt, kernels, src, dst, .. }, between } = self;
        let [scale, offset] = kernels.each_ref().map(|kernel| kernel.launch(ELEMENTS));
        let scope = rt.queue().start_fusion();
        let first = scope.submit(scale.args((src, between, 2.0f32))).unwrap();
        let second = scope.submit(offset.args((between, dst, 1.0f32))).unwrap();
        scope.internalize(between, Internalization::Private);
        let outcome = block_on(scope.complete()).unwrap();
        assert!(outcome.is_fused(), "{outcome}");
        [first, second]
    }

    /// Submits a launch that may write `src`. Its build ends once the returned value is dropped.
    fn submit_pending_launch(&self, directive: &str) -> impl Drop + use<> {
        let Bench { simulator, rt, src, .. } = &self.bench;
        simulator.kernel("keep", |_| {});
        let builds = simulator.pause_builds();
        let module =
            Module::opencl_c(format!("kernel void keep(global float *x) {{}}\n{directive}\n"));
        // SAFETY: the kernel accesses no memory.
        let keep = unsafe { rt.build(&module).start().kernel("keep") };
        let _ = rt.queue().submit(keep.launch(ELEMENTS).args((src,))).unwrap();
        builds
    }
}

#[track_caller]
fn assert_same<T>(result: kiln::Result<T>, root: &Error) {
    let error = result.err().expect("the contents are lost");
    assert!(error.same(root), "{error} instead of {root}");
}

#[test]
fn what_a_failed_launch_was_to_write_is_lost_even_if_it_is_internalized() {
    for cause in [Cause::Device, Cause::Canceled, Cause::Build] {
        let own = Internalized::new();
        let Internalized { bench: Bench { rt, simulator, dst, .. }, between } = &own;
        let builds = match cause {
            Cause::Device => {
                simulator.fail_launches(FUSED, 1, Fault::Refused);
                None
            }
            Cause::Canceled => Some(own.submit_pending_launch("")),
            Cause::Build => Some(own.submit_pending_launch("#error")),
        };
        let [first, second] = own.complete();
        if cause == Cause::Canceled {
            assert!(first.cancel());
        }
        drop(builds);
        let root = block_on(first).unwrap_err();
        assert_same(block_on(second), &root);
        let queue = rt.queue();
        assert_same(block_on(queue.read(between)), &root);
        assert_same(block_on(queue.map_mut(between)).map(drop), &root);
        assert_same(block_on(queue.copy(between, dst).unwrap()), &root);
        // The contents are good again once they are written.
        let _ = queue.fill(between, 5.0).unwrap();
        assert_eq!(block_on(queue.read(between)).unwrap(), [5.0; ELEMENTS], "{cause:?}");
    }
}

#[test]
fn a_launch_that_runs_alone_writes_memory_that_was_to_be_internalized() {
    let own = Internalized::new();
    let builds = own.submit_pending_launch("");
    let [first, second] = own.complete();
    assert!(second.cancel());
    drop(builds);
    block_on(first).unwrap();
    assert!(block_on(second).is_err());
    assert_eq!(block_on(own.bench.rt.queue().read(&own.between)).unwrap(), [6.0; ELEMENTS]);
}

#[test]
fn a_launch_does_not_fail_with_data_that_only_its_neighbour_needs() {
    let bench = Bench::with_limit(FusionMode::Always, LONG);
    let Bench { rt, simulator, kernels, src, dst, .. } = &bench;
    let queue = rt.queue();
    let [scale, offset] = kernels.each_ref();
    let buffers = [(); 4].map(|()| rt.buffer::<f32>(ELEMENTS).unwrap());
    let [needed, between, after, lost] = &buffers;
    for _ in 0..2 {
        for buffer in [needed, lost] {
            let _ = queue.fill(buffer, 1.0).unwrap();
        }
        block_on(rt.drain());
        let pause = simulator.pause();
        simulator.fail_launches("scale", 1, Fault::Refused);
        // This launch is on the device, and fails.
        let failed = queue.submit(scale.launch(ELEMENTS).args((src, needed, 1.0f32))).unwrap();
        let scope = queue.start_fusion();
        let alone = scale.launch(ELEMENTS).args((src, between, 2.0f32));
        let alone = scope.submit(alone).unwrap();
        let behind = offset.launch(ELEMENTS).args((between, after, 4.0f32));
        let behind = scope.submit(behind).unwrap();
        let dependent = offset.launch(ELEMENTS).args((needed, lost, 1.0f32));
        let dependent = scope.submit(dependent).unwrap();
        let outcome = block_on(scope.complete()).unwrap();
        assert!(outcome.is_fused(), "{outcome}");
        drop(pause);
        let root = block_on(failed).unwrap_err();
        // Nothing waits for the launch before it.
        block_on(behind).unwrap();
        block_on(alone).unwrap();
        assert_eq!(block_on(queue.read(between)).unwrap(), [6.0; ELEMENTS]);
        assert_eq!(block_on(queue.read(after)).unwrap(), [10.0; ELEMENTS]);
        assert_same(block_on(dependent), &root);
        assert_same(block_on(queue.read(lost)), &root);
        assert!(block_on(queue.read(dst)).is_ok());
    }
}
