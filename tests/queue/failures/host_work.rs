//! Host tasks and host futures that fail or panic, while they run and when they are dropped.

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{ErrorKind, Runtime};
use support::simulation::{kernel, runtime_with, with_kernels};

use super::{LEN, assert_same, on_both};

async fn panics(message: &str) {
    panic!("{message}");
}

#[test]
fn a_host_task_that_fails_or_panics_fails_its_dependents() {
    on_both(async |bench| {
        let x = bench.buffer(1).await;
        let failing = bench.queue.host_task(async { Err::<(), _>("no such file") }).unwrap();
        let panicking = bench.queue.host_task(panics("out of cheese")).unwrap();
        for (task, kind, text) in [
            (failing, ErrorKind::HostTask, "no such file"),
            (panicking, ErrorKind::Panicked, "out of cheese"),
        ] {
            let launch = bench.scale.launch(LEN).args((2u32, &x)).after(&task);
            let launched = bench.queue.submit(launch).unwrap();
            let root = task.clone().await.expect_err("the task fails");
            assert_eq!(root.kind(), kind);
            assert!(root.to_string().contains(text), "{root}");
            assert_eq!(
                format!("{root:?}").matches(text).count(),
                1,
                "it is printed once: {root:?}"
            );
            assert_same(&launched.await.expect_err("it comes after the task"), &root);
            let late = bench.scale.launch(LEN).args((2u32, &x)).after(&task);
            assert_same(&bench.queue.submit(late).unwrap().await.expect_err("late"), &root);
            bench.queue.fill(&x, 1).unwrap().await.unwrap();
        }
        let after = bench.queue.host_task(async {}).unwrap();
        after.await.expect("host tasks go on after a panic");
    });
}

#[test]
fn a_host_future_that_fails_or_panics_fails_the_launch_that_waits_for_it() {
    on_both(async |bench| {
        let (x, y) = (bench.buffer(1).await, bench.buffer(2).await);
        let launch = bench.scale.launch(LEN).args((2u32, &x));
        let launch = launch.after_future(async { Err::<(), _>("a bad omen") });
        let failed = bench.queue.submit(launch).unwrap();
        let copied = bench.queue.copy(&x, &y).unwrap();
        let root = copied.await.expect_err("it copies what was not made");
        assert_eq!(root.kind(), ErrorKind::HostTask);
        assert!(root.to_string().contains("`scale`: a host future failed: a bad omen"), "{root}");
        assert_same(&failed.await.expect_err("its future failed"), &root);
        let launch = bench.scale.launch(LEN).args((2u32, &bench.buffer_now(1)));
        let launch = launch.after_future(panics("a worse omen"));
        let error = bench.queue.submit(launch).unwrap().await.expect_err("its future panicked");
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert!(error.to_string().contains("`scale`: a host future panicked"), "{error}");
        assert!(error.to_string().contains("a worse omen"), "{error}");
        // A future that returns the error of a command spreads the failure of that command.
        let task = bench.queue.host_task(async { Err::<(), _>("the worst omen") }).unwrap();
        let root = task.clone().await.expect_err("the task fails");
        let launch = bench.scale.launch(LEN).args((2u32, &bench.buffer_now(1))).after_future(task);
        let error = bench.queue.submit(launch).unwrap().await.expect_err("its future failed");
        assert!(error.to_string().contains("`scale`: a host future failed"), "{error}");
        assert_same(&error, &root);
    });
}

/// Future that is ready at once, and panics when it is dropped.
struct PanicsInDrop;

impl Future for PanicsInDrop {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("a bad end");
    }
}

#[test]
fn a_host_future_that_panics_when_dropped_fails_its_command_only() {
    on_both(async |bench| {
        let error = bench.queue.host_task(PanicsInDrop).unwrap().await.expect_err("it panics");
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert!(error.to_string().contains("a bad end"), "{error}");
        bench.queue.host_task(async {}).unwrap().await.unwrap();
    });
}

/// An error and panic payload that panics when it is dropped.
#[derive(Debug)]
struct PanickingPayload;

impl Drop for PanickingPayload {
    fn drop(&mut self) {
        panic!("it goes off");
    }
}

impl std::fmt::Display for PanickingPayload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it ticks")
    }
}

impl std::error::Error for PanickingPayload {}

fn panic_with(payload: impl Send + 'static) {
    std::panic::panic_any(payload);
}

#[test]
fn a_panic_payload_that_panics_when_dropped_fails_only_its_command() {
    on_both(async |bench| {
        let task = async { panic_with(PanickingPayload) };
        let error = bench.queue.host_task(task).unwrap().await.expect_err("it panics");
        assert_eq!(error.kind(), ErrorKind::Panicked);
        bench.queue.host_task(async {}).unwrap().await.unwrap();
    });
}

#[test]
fn an_error_that_panics_when_dropped_does_not_stop_later_commands() {
    let simulator = with_kernels(Simulator::new());
    block_on(async {
        let limit = NonZeroUsize::new(1).unwrap();
        let rt = runtime_with(&simulator, Runtime::builder().max_in_flight(limit)).await;
        let (scale, x) = (kernel(&rt, "scale").await, rt.buffer::<u32>(LEN).unwrap());
        // The error must outlive the event, which would otherwise drop it here.
        let (dropped, is_dropped) = futures::channel::oneshot::channel::<()>();
        let task = async move {
            let _ = is_dropped.await;
            Err::<(), _>(PanickingPayload)
        };
        drop(rt.queue().host_task(task).unwrap());
        dropped.send(()).unwrap();
        rt.drain().await;
        // Commands beyond the in-flight limit are submitted by the thread that dropped the error.
        let launch = || rt.queue().submit(scale.launch(LEN).args((2u32, &x))).unwrap();
        let launches: Vec<_> = (0..20).map(|_| launch()).collect();
        launches[19].clone().await.unwrap();
    });
}
