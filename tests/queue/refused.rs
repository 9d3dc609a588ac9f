//! Launches that are refused before they run: at submission, without any effect, or later, so that what they were to
//! write is lost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use futures::executor::block_on;
use kiln::commands::Status;
use kiln::simulated::{Fault, Simulator};
use kiln::{ErrorKind, Kernel, Module, Runtime};
use support::everywhere;
use support::simulation::{KERNELS, kernel, runtime, with_kernels};

const LEN: usize = 64;

/// A kernel that takes a structure by value, whose size only the driver can check.
const TEXT: &str = "
    typedef struct { float a; float b; } pair;
    kernel void st(pair p, global float *y) { y[get_global_id(0)] += p.a * p.b; }
    kernel void saxpy(float a, global const float *x, global float *y) {
        y[get_global_id(0)] += a * x[get_global_id(0)];
    }";

everywhere! {
    async fn a_value_of_the_wrong_size_is_rejected_at_submission(rt: Runtime) {
        let [st, saxpy] = kernels(&rt).await;
        let queue = rt.queue();
        let x = rt.buffer_from(vec![2.0f32; LEN]).await.unwrap();
        let y = rt.buffer_from(vec![1.0f32; LEN]).await.unwrap();
        for _ in 0..2 {
            if takes_any_size(&rt) {
                break;
            }
            let error = queue.submit(st.launch(LEN).args((1.0f32, &y))).expect_err("4 of 8 bytes");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains("kernel `st`"), "{error}");
            assert!(error.to_string().contains("parameter 0"), "{error}");
        }
        let event = queue.submit(saxpy.launch(LEN).args((3.0f32, &x, &y))).unwrap();
        event.await.unwrap();
        assert_eq!(queue.read(&y).await.unwrap(), [7.0; LEN]);
        let scope = queue.start_fusion();
        if !takes_any_size(&rt) {
            scope.submit(st.launch(LEN).args((1.0f32, &y))).expect_err("in a scope as well");
        }
        scope.cancel();
        queue.submit(st.launch(LEN).args(([1.0f32, 4.0], &y))).unwrap().await.unwrap();
        assert_eq!(queue.read(&y).await.unwrap(), [11.0; LEN]);
    }
}

everywhere! {
    async fn a_launch_that_does_not_match_its_program_loses_what_it_was_to_write(rt: Runtime) {
        let queue = rt.queue();
        let x = rt.buffer_from(vec![2.0f32; LEN]).await.unwrap();
        for round in 0..4 {
            if takes_any_size(&rt) {
                break;
            }
            let y = rt.buffer_from(vec![1.0f32; LEN]).await.unwrap();
            // The text was never built before, so that most of these are submitted before the program is ready.
            let text = format!("{TEXT}\n// {round} {}", std::process::id());
            let build = rt.build(&support::module_for(&rt, &text).await).start();
            // SAFETY: as the kernels of `kernels`.
            let [st, saxpy] = ["st", "saxpy"].map(|name| unsafe { build.kernel(name) });
            let Ok(refused) = queue.submit(st.launch(LEN).args((1.0f32, &y))) else { continue };
            let saxpy = queue.submit(saxpy.launch(LEN).args((3.0f32, x.read_only(), &y))).unwrap();
            let read = queue.read(&y);
            let error = refused.await.expect_err("4 of 8 bytes");
            assert!(error.to_string().contains("kernel `st`"), "{error}");
            assert!(saxpy.await.expect_err("it changes what was not written").same(&error));
            assert!(read.await.expect_err("it was not written").same(&error));
        }
    }
}

/// PoCL does not check the size of a structure.
fn takes_any_size(rt: &Runtime) -> bool {
    rt.device().platform.contains("Portable Computing Language")
}

async fn kernels(rt: &Runtime) -> [Kernel; 2] {
    let program = support::program(rt, TEXT).await;
    // SAFETY: the buffers have as many elements as there are work-items.
    ["st", "saxpy"].map(|name| unsafe { program.kernel(name) }.expect("it is there"))
}

/// Runs a test on a device with threads and on one without, with the kernel `scale`.
fn on_both(test: impl AsyncFn(&Simulator, &Runtime, &Kernel)) {
    for simulator in [Simulator::new(), Simulator::immediate()] {
        let simulator = with_kernels(simulator);
        block_on(async {
            let rt = runtime(&simulator).await;
            let scale = kernel(&rt, "scale").await;
            test(&simulator, &rt, &scale).await;
        });
    }
}

#[test]
fn what_a_refused_launch_was_to_write_is_lost() {
    on_both(async |simulator, rt, scale| {
        let queue = rt.queue();
        let x = rt.buffer_from(vec![3u32; LEN]).await.unwrap();
        for _ in 0..2 {
            let pause = simulator.pause();
            let before = queue.fill(&x, 3).unwrap();
            simulator.fail_enqueues(1, Fault::Refused);
            let refused = queue.submit(scale.launch(LEN).args((2u32, &x))).unwrap();
            let after = queue.submit(scale.launch(LEN).args((5u32, &x))).unwrap();
            let other = rt.buffer::<u32>(LEN).unwrap();
            let dependent = scale.launch(LEN).args((5u32, &other)).after(&refused);
            let dependent = queue.submit(dependent).unwrap();
            let read = queue.read(&x);
            drop(pause);
            let root = refused.await.expect_err("the driver does not take it");
            before.await.unwrap();
            let error = after.await.expect_err("it changes what was not written");
            assert!(error.same(&root), "{error}");
            let error = read.await.expect_err("it was not written");
            assert!(error.same(&root), "{error}");
            let error = dependent.await.expect_err("it must run after the refused launch");
            assert!(error.same(&root), "{error}");
            let error = queue.read(&other).await.expect_err("it was not written");
            assert!(error.same(&root), "{error}");
            queue.fill(&x, 3).unwrap().await.unwrap();
        }
    });
}

#[test]
fn a_launch_without_resources_or_device_fails_its_output_buffers() {
    for fault in [Fault::OutOfResources, Fault::DeviceLost] {
        let simulator = with_kernels(Simulator::new());
        block_on(async {
            let rt = runtime(&simulator).await;
            let queue = rt.queue();
            let scale = kernel(&rt, "scale").await;
            let x = rt.buffer_from(vec![3u32; LEN]).await.unwrap();
            simulator.fail_enqueues(1, fault);
            let failed = queue.submit(scale.launch(LEN).args((2u32, &x))).unwrap();
            let error = queue.read(&x).await.expect_err("the launch was not run");
            assert!(error.same(&failed.await.unwrap_err()), "{error}");
            queue.fill(&x, 3).unwrap().await.unwrap();
            assert_eq!(queue.read(&x).await.unwrap(), [3; LEN]);
        });
    }
}

#[test]
fn the_last_launch_that_was_to_write_is_the_root_cause() {
    on_both(async |simulator, rt, scale| {
        let queue = rt.queue();
        let source = rt.buffer_from(vec![3u32; LEN]).await.unwrap();
        // Whether the failure is known before the refused launch is submitted.
        for is_known in [true, false] {
            let x = rt.buffer_from(vec![1u32; LEN]).await.unwrap();
            let [half, rest] = [0..LEN / 2, LEN / 2..LEN].map(|range| x.slice(range).unwrap());
            let mut pause = Some(simulator.pause());
            simulator.fail_launches("scale", 1, Fault::Refused);
            let failed = queue.submit(scale.launch(LEN).args((2u32, &x))).unwrap();
            if is_known {
                drop(pause.take());
                failed.clone().await.expect_err("the simulator makes it fail");
            }
            let builds = simulator.pause_builds();
            let text = format!("{KERNELS}\n#error no luck, {is_known}\n");
            let build = rt.build(&Module::opencl_c(text)).start();
            // SAFETY: a program that is never built touches nothing.
            let duplicate = unsafe { build.kernel("duplicate") };
            let launch = duplicate.launch(LEN / 2).args((source.read_only(), half.write_only()));
            let refused = queue.submit(launch).unwrap();
            let (first, second) = (queue.read(&half), queue.read(&rest));
            drop(builds);
            drop(pause);
            let root = failed.await.expect_err("the simulator makes it fail");
            let own = refused.await.expect_err("it has no program");
            assert_eq!(own.kind(), ErrorKind::BuildFailed, "{own}");
            let error = first.await.expect_err("it was not overwritten");
            assert!(error.same(&own), "{error}");
            let error = second.await.expect_err("it was not written");
            assert!(error.same(&root), "{error}");
            queue.fill(&x, 5).unwrap().await.unwrap();
            assert_eq!(queue.read(&x).await.unwrap(), [5; LEN]);
        }
    });
}

#[test]
fn errors_of_commands_that_were_not_run_name_the_original_failure() {
    let simulator = with_kernels(Simulator::new());
    block_on(async {
        let rt = runtime(&simulator).await;
        let queue = rt.queue();
        let [scale, duplicate] = [kernel(&rt, "scale").await, kernel(&rt, "duplicate").await];
        let [x, y] = [(); 2].map(|()| rt.buffer::<u32>(LEN).unwrap());
        simulator.fail_launches("scale", 1, Fault::Refused);
        let failed = queue.submit(scale.launch(LEN).args((2u32, &x))).unwrap();
        let copied = queue.submit(duplicate.launch(LEN).args((&x, y.write_only()))).unwrap();
        let root = failed.clone().await.expect_err("the simulator makes it fail");
        assert!(root.to_string().contains("`scale`"), "{root}");
        let error = copied.await.expect_err("it reads what the launch should have written");
        let expected = "`duplicate` was not run: an earlier command on the same memory failed: ";
        assert!(error.to_string().contains(expected), "{error}");
        assert!(
            error.to_string().contains(root.to_string().split(": ").nth(1).unwrap()),
            "{error}"
        );
        assert_eq!((error.kind(), error.driver_code()), (root.kind(), root.driver_code()));
        let error = queue.read(&y).await.expect_err("it was not written");
        let expected = "a read was not run: an earlier command on the same memory failed: `scale`";
        assert!(error.to_string().contains(expected), "{error}");
        let launch = scale.launch(LEN).args((2u32, &rt.buffer::<u32>(LEN).unwrap())).after(&failed);
        let error = queue.submit(launch).unwrap().await.expect_err("it comes after a failure");
        let said = "`scale` was not run: a command that it waits for failed: ";
        assert!(error.to_string().contains(said), "{error}");
    });
}

#[test]
fn a_launch_whose_program_fails_to_build_fails_its_scope() {
    let simulator = with_kernels(Simulator::new());
    block_on(async {
        let rt = runtime(&simulator).await;
        let queue = rt.queue();
        let scale = kernel(&rt, "scale").await;
        let x = rt.buffer_from(vec![3u32; LEN]).await.unwrap();
        let pause = simulator.pause_builds();
        let bad = rt.build(&Module::opencl_c(format!("{KERNELS}\n#error no luck\n"))).start();
        // SAFETY: a program that is never built touches nothing.
        let refused = unsafe { bad.kernel("scale") };
        let scope = queue.start_fusion();
        let first = scope.submit(scale.launch(LEN).args((2u32, &x))).unwrap();
        let refused = scope.submit(refused.launch(LEN).args((7u32, &x))).unwrap();
        let last = scope.submit(scale.launch(LEN).args((5u32, &x))).unwrap();
        let fusing = scope.complete();
        assert!(matches!(refused.status(), Status::Waiting));
        drop(pause);
        let root = fusing.await.expect_err("a launch has no program");
        first.await.unwrap();
        assert!(refused.await.expect_err("it has no program").same(&root));
        assert!(last.await.expect_err("it changes what was not written").same(&root));
        assert!(queue.read(&x).await.expect_err("it was not written").same(&root));
    });
}
