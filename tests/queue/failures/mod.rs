//! Failures: the commands that they affect and those that they do not, recovery of buffers, and hanging
//! devices.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

mod host_work;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use futures::future::join_all;
use kiln::commands::Status;
use kiln::simulated::{Fault, Simulator};
use kiln::{Buffer, Error, ErrorKind, Event, Kernel, Module, Queue, Runtime};
use support::simulation::{KERNELS, eventually, kernel, runtime, runtime_with, with_kernels};

const LEN: usize = 64;

/// An error of the application whose drop runs more code than freeing memory.
#[derive(Debug)]
struct ErrorWithScope(kiln::FusionScope);

impl std::fmt::Display for ErrorWithScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.is_fusing())
    }
}

impl std::error::Error for ErrorWithScope {}

/// A runtime with a simulated device, and the objects that most tests need.
struct Bench {
    simulator: Simulator,
    rt: Runtime,
    queue: Queue,
    duplicate: Kernel,
    scale: Kernel,
}

impl Bench {
    async fn new(simulator: Simulator) -> Self {
        let simulator = with_kernels(simulator);
        let rt = runtime(&simulator).await;
        let queue = rt.queue();
        let duplicate = kernel(&rt, "duplicate").await;
        let scale = kernel(&rt, "scale").await;
        Self { simulator, rt, queue, duplicate, scale }
    }

    async fn buffer(&self, value: u32) -> Buffer<u32> {
        self.rt.buffer_from(vec![value; LEN]).await.unwrap()
    }

    fn buffer_now(&self, value: u32) -> Buffer<u32> {
        let buffer = self.rt.buffer(LEN).unwrap();
        let _ = self.queue.fill(&buffer, value).unwrap();
        buffer
    }

    /// Submits a launch that writes `to` and fails when it runs.
    fn fail_to_write(&self, to: &Buffer<u32>) -> Event {
        self.simulator.fail_launches("scale", 1, Fault::Refused);
        self.queue.submit(self.scale.launch(to.len()).args((2u32, to))).unwrap()
    }

    fn duplicate(&self, from: &Buffer<u32>, to: &Buffer<u32>) -> Event {
        self.queue.submit(self.duplicate.launch(LEN).args((from, to.write_only()))).unwrap()
    }

    /// Uses every native queue of the device, so that later commands are spread over them.
    async fn use_all_native_queues(&self) {
        let pause = self.simulator.pause();
        let events: Vec<_> = (0..8)
            .map(|_| self.queue.fill(&self.rt.buffer::<u32>(1).unwrap(), 0).unwrap())
            .collect();
        drop(pause);
        join_all(events).await;
    }
}

/// Runs a test on simulated devices with and without threads.
fn on_both(test: impl AsyncFn(Bench)) {
    for simulator in [Simulator::new(), Simulator::immediate()] {
        block_on(async { test(Bench::new(simulator).await).await });
    }
}

#[track_caller]
fn assert_same(error: &Error, root: &Error) {
    assert!(error.same(root), "{error} instead of {root}");
}

#[test]
fn dependents_of_a_failed_kernel_fail_with_its_error() {
    on_both(async |bench| {
        let (x, y, z) = (bench.buffer(1).await, bench.buffer(2).await, bench.buffer(3).await);
        let pause = bench.simulator.pause();
        let failed = bench.fail_to_write(&x);
        let direct = bench.duplicate(&x, &y);
        let copied = bench.queue.copy(&y, &z).unwrap();
        let other_queue = bench.rt.queue();
        let read = other_queue.read(&z);
        let ordered_after = bench
            .queue
            .submit(bench.scale.launch(LEN).args((1u32, &bench.buffer_now(4))).after(&failed))
            .unwrap();
        let unrelated = bench.queue.fill(&bench.buffer_now(5), 6).unwrap();
        drop(pause);
        let root = failed.await.expect_err("the simulator makes it fail");
        assert_eq!(root.kind(), ErrorKind::Driver);
        assert_eq!(root.driver_code().map(|code| code.name), Some("CL_INVALID_OPERATION"));
        for event in [direct, copied, ordered_after] {
            assert_same(&event.await.expect_err("it depends on the failure"), &root);
        }
        assert_same(&read.await.expect_err("there is nothing to read"), &root);
        unrelated.await.unwrap();
        // A command that is submitted after the failed command has ended gets its error, too.
        assert_same(&bench.queue.read(&x).await.expect_err("it was not written"), &root);
    });
}

#[test]
fn a_failure_whose_event_was_dropped_still_fails_dependents() {
    on_both(async |bench| {
        let x = bench.buffer(1).await;
        let pause = bench.simulator.pause();
        drop(bench.fail_to_write(&x));
        let read = bench.queue.read(&x);
        drop(pause);
        let error = read.await.expect_err("what it reads was not written");
        assert_eq!(error.kind(), ErrorKind::Driver);
    });
}

#[test]
fn a_failure_does_not_affect_independent_commands_on_its_native_queue() {
    on_both(async |bench| {
        let buffers: Vec<_> = (0..64).map(|_| bench.rt.buffer::<u32>(LEN).unwrap()).collect();
        let pause = bench.simulator.pause();
        let mut failed = Vec::new();
        for (index, buffer) in buffers.iter().enumerate() {
            // The event is dropped.
            let _ = bench.queue.fill(buffer, index as u32).unwrap();
            // Three commands in each round on four native queues: every queue gets some of each.
            let _ = bench.buffer_now(0);
            failed.push(bench.fail_to_write(&bench.rt.buffer(LEN).unwrap()));
        }
        let reads: Vec<_> = buffers.iter().map(|buffer| bench.queue.read(buffer)).collect();
        drop(pause);
        for (index, read) in reads.into_iter().enumerate() {
            assert_eq!(read.await.unwrap(), vec![index as u32; LEN]);
        }
        for event in failed {
            event.await.expect_err("the simulator makes it fail");
        }
    });
}

#[test]
fn dependents_on_other_native_queues_are_unaffected_by_later_failures() {
    on_both(async |bench| {
        bench.use_all_native_queues().await;
        let pause = bench.simulator.pause();
        let sources: Vec<_> = (0..8).map(|_| bench.rt.buffer::<u32>(LEN).unwrap()).collect();
        let broken: Vec<_> = (0..8).map(|_| bench.rt.buffer::<u32>(LEN).unwrap()).collect();
        for (source, broken) in sources.iter().zip(&broken) {
            let _ = bench.queue.fill(source, 3).unwrap();
            // On the same native queue as the fill, because it reads the fill's output.
            bench.simulator.fail_launches("duplicate", 1, Fault::OutOfResources);
            let _ = bench.duplicate(source, broken);
        }
        // Each pair is most likely on two native queues.
        let target = bench.rt.buffer::<u32>(LEN).unwrap();
        let _ = bench.queue.fill(&target, 1).unwrap();
        let copies: Vec<_> =
            sources.iter().map(|source| bench.queue.copy(source, &target).unwrap()).collect();
        let read = bench.queue.read(&target);
        drop(pause);
        assert_eq!(read.await.unwrap(), [3; LEN]);
        for event in copies {
            event.await.unwrap();
        }
    });
}

#[test]
fn failures_reach_dependents_on_other_native_queues() {
    on_both(async |bench| {
        bench.use_all_native_queues().await;
        for round in 0..50 {
            let pause = bench.simulator.pause();
            let x = bench.rt.buffer::<u32>(LEN).unwrap();
            let y = bench.rt.buffer::<u32>(LEN).unwrap();
            let sum = bench.rt.buffer::<u32>(LEN).unwrap();
            let failed = bench.fail_to_write(&x);
            let independent = bench.queue.fill(&y, round).unwrap();
            let add = kernel(&bench.rt, "add").await;
            let added =
                bench.queue.submit(add.launch(LEN).args((&x, &y, sum.write_only()))).unwrap();
            let read = bench.rt.queue().read(&sum);
            drop(pause);
            let error = read.await.expect_err("one of its terms is missing");
            let root = failed.await.expect_err("the simulator makes it fail");
            assert_same(&error, &root);
            assert_same(&added.await.expect_err("one of its terms is missing"), &root);
            independent.await.unwrap();
        }
    });
}

#[test]
fn a_failed_buffer_is_restored_only_by_overwriting_all_of_it() {
    on_both(async |bench| {
        let source = bench.buffer(8).await;
        type Overwrite = fn(&Bench, &Buffer<u32>, &Buffer<u32>) -> Event;
        let ways: [(&str, Overwrite); 4] = [
            ("write", |bench, _, x| bench.queue.write(x, vec![8; LEN]).unwrap()),
            ("fill", |bench, _, x| bench.queue.fill(x, 8).unwrap()),
            ("copy", |bench, source, x| bench.queue.copy(source, x).unwrap()),
            ("launch", |bench, source, x| bench.duplicate(source, x)),
        ];
        for (name, overwrite) in ways {
            let x = bench.buffer(1).await;
            let root = bench.fail_to_write(&x).await.expect_err("the simulator makes it fail");
            let half = x.slice(..LEN / 2).unwrap();
            bench.queue.fill(&half, 2).unwrap().await.unwrap();
            assert_eq!(bench.queue.read(&half).await.unwrap(), [2; LEN / 2]);
            let rest = bench.queue.read(&x).await.expect_err("half of it still has failed");
            assert_same(&rest, &root);
            let launch = bench.scale.launch(LEN).args((2u32, &x));
            let reader = bench.queue.submit(launch).unwrap().await;
            assert_same(&reader.expect_err("it reads what has failed"), &root);
            overwrite(&bench, &source, &x).await.unwrap();
            assert_eq!(bench.queue.read(&x).await.unwrap(), [8; LEN], "after a {name}");
            let launch = bench.scale.launch(LEN).args((2u32, &x));
            bench.queue.submit(launch).unwrap().await.unwrap();
            assert_eq!(bench.queue.read(&x).await.unwrap(), [16; LEN], "after a {name}");
        }
    });
}

#[test]
fn a_command_that_the_driver_refuses_fails_its_dependents_only() {
    on_both(async |bench| {
        let (x, y) = (bench.buffer(1).await, bench.buffer(2).await);
        bench.simulator.fail_enqueues(1, Fault::OutOfResources);
        let failed = bench.queue.fill(&x, 7).unwrap();
        let copied = bench.queue.copy(&x, &y).unwrap();
        let overwritten = bench.queue.fill(&x, 9).unwrap();
        let root = failed.await.expect_err("the simulator makes it fail");
        assert_eq!(root.kind(), ErrorKind::OutOfResources);
        assert_same(&copied.await.expect_err("it copies what failed"), &root);
        overwritten.await.unwrap();
        assert_eq!(bench.queue.read(&x).await.unwrap(), [9; LEN]);
        assert_same(&bench.queue.read(&y).await.expect_err("it was not copied"), &root);
        assert!(root.to_string().contains("a fill"), "{root}");

        // The error of a launch has the names of its module and its kernel.
        let module = Module::opencl_c(format!("{KERNELS}\n")).with_label("kernels.cl");
        let program = bench.rt.build(&module).await.unwrap();
        // SAFETY: the buffer has as many elements as work-items.
        let scale = unsafe { program.kernel("scale") }.unwrap();
        bench.simulator.fail_enqueues(1, Fault::OutOfResources);
        let launch = scale.launch(LEN).args((2u32, &x));
        let root = bench.queue.submit(launch).unwrap().await.unwrap_err().to_string();
        assert!(root.contains("`kernels.cl`") && root.contains("`scale`"), "{root}");
    });
}

#[test]
fn a_host_task_runs_while_another_host_task_blocks_on_it() {
    const TIMEOUT: Duration = Duration::from_secs(20);
    on_both(async |bench| {
        let (open, gate) = futures::channel::oneshot::channel::<()>();
        let awaited = bench.queue.host_task(async { gate.await.unwrap() }).unwrap();
        let (sender, waits) = mpsc::channel();
        let of_task = awaited.clone();
        let blocks = async move {
            sender.send(Ok(())).unwrap();
            sender.send(of_task.wait()).unwrap();
        };
        let blocks = bench.queue.host_task(blocks).unwrap();
        waits.recv_timeout(TIMEOUT).expect("it begins").unwrap();
        open.send(()).unwrap();
        waits.recv_timeout(TIMEOUT).expect("the other task runs meanwhile").unwrap();
        blocks.await.unwrap();
    });
}

#[test]
fn dependents_on_another_device_fail_with_the_original_error() {
    let (first, second) = (
        with_kernels(Simulator::new().named("first")),
        with_kernels(Simulator::new().named("second")),
    );
    block_on(async {
        let rt = runtime_with(&second, Runtime::builder().device("first").simulator(&first)).await;
        let other = rt.on(&rt.devices()[1]).await.unwrap();
        let scale = kernel(&rt, "scale").await;
        let other_scale = kernel(&other, "scale").await;
        let x = rt.buffer_from(vec![1u32; LEN]).await.unwrap();
        let y = other.buffer_from(vec![1u32; LEN]).await.unwrap();
        let pause = first.pause();
        first.fail_launches("scale", 1, Fault::DeviceLost);
        let failed = rt.queue().submit(scale.launch(LEN).args((2u32, &x))).unwrap();
        let launch = other_scale.launch(LEN).args((2u32, &y)).after(&failed);
        let event = other.queue().submit(launch).unwrap();
        let read = other.queue().read(&y);
        drop(pause);
        let root = failed.clone().await.expect_err("the simulator makes it fail");
        assert_eq!(root.kind(), ErrorKind::DeviceLost);
        assert_same(&event.await.expect_err("it comes after the failure"), &root);
        assert_same(&read.await.expect_err("it was not written"), &root);
        let late = other_scale.launch(LEN).args((2u32, &y)).after(&failed);
        assert_same(&other.queue().submit(late).unwrap().await.expect_err("late"), &root);
    });
}

#[test]
fn launches_that_wait_for_a_failed_build_fail_with_its_error() {
    on_both(async |bench| {
        let x = bench.buffer(1).await;
        let pause = bench.simulator.pause_builds();
        let module =
            Module::opencl_c("kernel void scale(uint f, global uint *x) {}\n#error no luck\n");
        let build = bench.rt.build(&module).start();
        // SAFETY: a program that is never built touches nothing.
        let scale = unsafe { build.kernel("scale") };
        let event = bench.queue.submit(scale.launch(LEN).args((2u32, &x))).unwrap();
        let read = bench.queue.read(&x);
        assert!(matches!(event.status(), Status::Waiting));
        drop(pause);
        let root = build.await.expect_err("the compiler refuses it");
        assert_eq!(root.kind(), ErrorKind::BuildFailed);
        assert!(root.build_log().is_some_and(|log| log.contains("no luck")), "{root}");
        assert_same(&event.await.expect_err("it has no program"), &root);
        assert_same(&read.await.expect_err("what it reads was not written"), &root);
        bench.queue.fill(&x, 5).unwrap().await.unwrap();
        let late = bench.queue.submit(scale.launch(LEN).args((2u32, &x)));
        assert_same(&late.expect_err("there is no program"), &root);
        assert_eq!(bench.queue.read(&x).await.unwrap(), [5; LEN]);
    });
}

/// Reads, copies and launches, submitted before the failure and after it, with the event dropped.
#[test]
fn what_a_launch_was_to_write_is_lost_whatever_the_reason() {
    on_both(async |bench| {
        let Bench { simulator, rt, queue, .. } = &bench;
        let builds = simulator.pause_builds();
        let broken = |text: &str| {
            let build = rt.build(&Module::opencl_c(text)).start();
            // SAFETY: a program that is never built touches nothing.
            unsafe { build.kernel("scale") }
        };
        let no_program = broken("kernel void scale(uint f, global uint *x) {}\n#error no luck\n");
        let no_kernel = broken("kernel void other(uint f, global uint *x) { x[0] = f; }");
        let few_arguments = broken("kernel void scale(uint f) {}");
        let buffers: Vec<_> = (0..5).map(|_| bench.buffer_now(1)).collect();
        let spectator = bench.buffer_now(6);
        for (kernel, x) in [&no_program, &no_kernel, &few_arguments].into_iter().zip(&buffers) {
            drop(queue.submit(kernel.launch(LEN).args((2u32, x))).unwrap());
        }
        let gate = queue.submit(
            bench
                .scale
                .launch(LEN)
                .args((2u32, &buffers[3]))
                .after_future(std::future::pending::<()>()),
        );
        assert!(gate.unwrap().cancel());
        rt.drain_timeout(Duration::ZERO).await.ok();
        simulator.fail_enqueues_after(0, 1, Fault::Refused);
        drop(queue.submit(bench.scale.launch(LEN).args((2u32, &buffers[4]))).unwrap());
        let copies: Vec<_> = buffers.iter().map(|_| rt.buffer::<u32>(LEN).unwrap()).collect();
        let early: Vec<_> = buffers.iter().map(|x| queue.read(x)).collect();
        let copied = buffers.iter().zip(&copies).map(|(x, y)| queue.copy(x, y).unwrap());
        let copied: Vec<_> = copied.collect();
        let launched = buffers.iter().zip(&copies).map(|(x, y)| bench.duplicate(x, y));
        let launched: Vec<_> = launched.collect();
        let untouched = queue.read(&spectator);
        drop(builds);
        assert_eq!(untouched.await.unwrap(), [6; LEN], "what needs nothing of it goes on");
        let roots =
            join_all(early).await.into_iter().map(|read| read.expect_err("it was not written"));
        for (at, root) in roots.enumerate() {
            let x = &buffers[at];
            let later = queue.read(x).await.expect_err("it is still not written");
            assert_same(&later, &root);
            assert_same(&queue.read(&x.slice(3..9).unwrap()).await.expect_err("nor a part"), &root);
            assert_same(&copied[at].clone().await.expect_err("nor copied"), &root);
            assert_same(&launched[at].clone().await.expect_err("nor used"), &root);
            let scaled = queue.submit(bench.scale.launch(LEN).args((2u32, x))).unwrap();
            assert_same(&scaled.await.expect_err("nor changed"), &root);
            // A write of a part leaves the rest as it is, and a complete one makes it good.
            queue.write(&x.slice(..9).unwrap(), vec![4; 9]).unwrap().await.unwrap();
            assert_eq!(queue.read(&x.slice(..9).unwrap()).await.unwrap(), [4; 9]);
            assert_same(&queue.read(x).await.expect_err("the rest is missing"), &root);
            match at % 3 {
                0 => _ = queue.write(x, vec![5; LEN]).unwrap(),
                1 => _ = queue.fill(x, 5).unwrap(),
                _ => _ = bench.duplicate(&bench.buffer_now(5), x),
            }
            assert_eq!(queue.read(x).await.unwrap(), [5; LEN]);
        }
    });
}

/// Memory that the signature of the kernel, or the launch, says is only read.
#[test]
fn what_a_launch_was_only_to_read_is_not_lost() {
    on_both(async |bench| {
        let (x, y) = (bench.buffer(3).await, bench.buffer(4).await);
        bench.simulator.fail_launches("duplicate", 1, Fault::Refused);
        drop(bench.duplicate(&x, &y));
        assert_eq!(bench.queue.read(&x).await.unwrap(), [3; LEN]);
        bench.queue.read(&y).await.expect_err("it was not written");
        let pause = bench.simulator.pause_builds();
        let module = Module::opencl_c("#error no luck\n");
        let build = bench.rt.build(&module).start();
        // SAFETY: a program that is never built touches nothing.
        let unbuilt = unsafe { build.kernel("k") };
        drop(bench.queue.submit(unbuilt.launch(LEN).args((x.read_only(), &y))).unwrap());
        let read = bench.queue.read(&x);
        drop(pause);
        assert_eq!(read.await.unwrap(), [3; LEN]);
        assert_eq!(bench.queue.read(&x).await.unwrap(), [3; LEN]);
    });
}

#[test]
fn a_scope_whose_launch_cannot_run_returns_its_error() {
    on_both(async |bench| {
        let (x, y) = (bench.buffer(1).await, bench.buffer(2).await);
        let pause = bench.simulator.pause_builds();
        let build = bench.rt.build(&Module::opencl_c("#error no luck\n")).start();
        // SAFETY: a program that is never built touches nothing.
        let unbuilt = unsafe { build.kernel("k") };
        let scope = bench.queue.start_fusion();
        drop(scope.submit(bench.scale.launch(LEN).args((3u32, &y))).unwrap());
        drop(scope.submit(unbuilt.launch(LEN).args((&x,))).unwrap());
        let completed = scope.complete();
        drop(pause);
        let root = completed.await.expect_err("a launch of the scope cannot run");
        assert!(root.build_log().is_some_and(|log| log.contains("no luck")), "{root}");
        assert_same(&bench.queue.read(&x).await.expect_err("it was not written"), &root);
        assert_eq!(bench.queue.read(&y).await.unwrap(), [6; LEN], "the other launch runs");
    });
}

#[test]
fn markers_and_drains_complete_even_if_earlier_commands_failed() {
    on_both(async |bench| {
        bench.use_all_native_queues().await;
        let buffers: Vec<_> = (0..8).map(|_| bench.buffer_now(1)).collect();
        let pause = bench.simulator.pause();
        let events: Vec<_> = buffers.iter().map(|buffer| bench.fail_to_write(buffer)).collect();
        let marker = bench.queue.marker().unwrap();
        let drain = bench.rt.drain();
        drop(pause);
        marker.await.unwrap();
        assert!(events.iter().all(|event| matches!(event.status(), Status::Failed(_))));
        drain.await;
    });
}

/// Dependents fail whether the failure or their submission comes first.
#[test]
fn a_failure_that_races_with_a_submission_reaches_the_dependent() {
    let bench = block_on(Bench::new(Simulator::new()));
    let (x, y, z) = (bench.buffer_now(1), bench.buffer_now(2), bench.buffer_now(3));
    let done = bench.queue.fill(&x, 1).unwrap();
    done.wait().unwrap();
    let waits_begun = Arc::new(AtomicUsize::new(0));
    let (send, failures) = mpsc::channel::<Event>();
    let waiter = thread::spawn({
        let waits_begun = waits_begun.clone();
        move || {
            for event in failures {
                waits_begun.fetch_add(1, SeqCst);
                event.wait().expect_err("the simulator makes it fail");
            }
        }
    });
    for round in 1..=2000 {
        let failed = bench.fail_to_write(&x);
        // Completed events keep `submit` busy between two checks of the failing event.
        let launches: Vec<_> = (0..4)
            .map(|_| {
                let launch = bench.duplicate.launch(LEN).args((&y, z.write_only())).after(&failed);
                (0..300).fold(launch, |launch, _| launch.after(&done))
            })
            .collect();
        send.send(failed.clone()).unwrap();
        while waits_begun.load(SeqCst) < round {
            thread::yield_now();
        }
        let events: Vec<_> =
            launches.into_iter().map(|launch| bench.queue.submit(launch).unwrap()).collect();
        let root = failed.wait().expect_err("the simulator makes it fail");
        for event in events {
            assert_same(&event.wait().expect_err("it comes after a failure"), &root);
        }
    }
    drop(send);
    waiter.join().unwrap();
}

#[test]
fn a_hanging_device_does_not_block_other_devices_or_host_tasks() {
    let (hanging, busy) = (
        with_kernels(Simulator::new().named("hanging")),
        with_kernels(Simulator::new().named("busy")),
    );
    block_on(async {
        let builder = Runtime::builder()
            .device("hanging")
            .max_in_flight(NonZeroUsize::new(4).unwrap())
            .simulator(&hanging);
        let rt = runtime_with(&busy, builder).await;
        let other = rt.on(&rt.devices()[1]).await.unwrap();
        let pause = hanging.pause();
        let buffer = rt.buffer::<u32>(LEN).unwrap();
        let mut events: Vec<_> = (0..16).map(|n| rt.queue().fill(&buffer, n).unwrap()).collect();
        for event in &mut events {
            assert!(event.now_or_never().is_none(), "the device hangs");
        }
        let y = other.buffer_from(vec![1u32; LEN]).await.unwrap();
        for _ in 0..100 {
            let _ = other.queue().fill(&y, 7).unwrap();
            assert_eq!(other.queue().read(&y).await.unwrap(), [7; LEN]);
        }
        // Also on the hanging device's own queue, whose limit is reached.
        let task = rt.queue().host_task(async {}).unwrap();
        eventually("the host task ends", || matches!(task.status(), Status::Complete));
        kernel(&rt, "scale").await;
        for event in &mut events {
            assert!(event.now_or_never().is_none(), "the device still hangs");
        }
        drop(pause);
        for event in events {
            event.await.unwrap();
        }
        assert_eq!(rt.queue().read(&buffer).await.unwrap(), [15; LEN]);
    });
}

#[test]
fn a_failed_reader_does_not_fail_a_later_write_on_another_native_queue() {
    block_on(async {
        let bench = Bench::new(Simulator::new()).await;
        bench.use_all_native_queues().await;
        let pause = bench.simulator.pause();
        let [source, out, other] = [(); 3].map(|()| bench.rt.buffer::<u32>(LEN).unwrap());
        let _ = bench.queue.fill(&source, 3).unwrap();
        bench.simulator.fail_launches("duplicate", 1, Fault::OutOfResources);
        let failed = bench.duplicate(&source, &out);
        let _ = bench.queue.fill(&other, 1).unwrap();
        let copied = bench.queue.copy(&other, &source).unwrap();
        drop(pause);
        failed.await.expect_err("the simulator makes it fail");
        copied.await.unwrap();
    });
}

#[test]
fn application_errors_are_dropped_while_no_lock_is_held() {
    let bench = block_on(Bench::new(Simulator::new()));
    let x = bench.buffer_now(1);
    let scope = bench.queue.start_fusion();
    let failing = async move { Err::<(), _>(ErrorWithScope(scope)) };
    let launch = bench.scale.launch(LEN).args((2u32, &x)).after_future(failing);
    let failed = bench.queue.submit(launch).unwrap();
    drop(block_on(failed.clone()).expect_err("the future failed"));
    drop(failed);
    // The buffer that stores the error is overwritten, so that nothing refers to the error.
    let queue = bench.queue.clone();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(queue.fill(&x, 1).map(drop)));
    let filled = receiver.recv_timeout(Duration::from_secs(20));
    filled.expect("the thread does not wait for a lock that it holds").unwrap();
}
