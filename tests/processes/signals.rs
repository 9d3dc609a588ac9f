//! Signals belong to the application, although drivers register handlers of their own.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use kiln::{Module, Runtime};
use support::children::{Child, DEVICE, report, variable};
use support::test_name;
use support::{SAXPY, kernel};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Environment variable that states when a child registers its handler.
const WHEN: &str = "KILN_TEST_WHEN";

const NEVER: &str = "never";

fn child(rt: &Runtime, test: &str, when: &str) -> Child {
    Child::start(
        &test_name!(test),
        [(DEVICE, rt.device().index().to_string()), (WHEN, when.to_owned())],
    )
}

#[test]
fn a_service_shuts_down_whenever_it_registers_its_handler() {
    block_on(support::on_each_device(async |rt| {
        for when in ["before the runtime", "after the runtime", "after a build", "after launches"] {
            let report = child(&rt, "serves_until_the_signal", when).report();
            assert_eq!(report["drained"], 1, "{when}");
        }
    }));
}

#[test]
fn a_process_without_a_handler_ends_by_the_signal() {
    block_on(support::on_each_device(async |rt| {
        let status = child(&rt, "serves_until_the_signal", NEVER).status();
        assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
    }));
}

#[test]
#[ignore = "another test runs it"]
fn serves_until_the_signal() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    tokio.unwrap().block_on(async {
        let when = variable(WHEN);
        let mut terminated: Option<Signal> = None;
        let mut register_if = |now: &str| {
            if now == when {
                terminated = Some(signal(SignalKind::terminate()).unwrap());
            }
        };
        register_if("before the runtime");
        let rt = support::builder().device(variable(DEVICE)).build().await.unwrap();
        register_if("after the runtime");
        let saxpy = kernel(&rt, SAXPY, "saxpy").await;
        register_if("after a build");
        let launching = rt.clone();
        let (sender, launched) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let (x, y) =
                (launching.buffer::<f32>(4096).unwrap(), launching.buffer::<f32>(4096).unwrap());
            let mut sender = Some(sender);
            loop {
                let launch = saxpy.launch(4096).args((2.0f32, &x, &y));
                launching.queue().submit(launch).unwrap().await.unwrap();
                if let Some(sender) = sender.take() {
                    sender.send(()).unwrap();
                }
            }
        });
        launched.await.unwrap();
        register_if("after launches");
        // SAFETY: sends this process a signal.
        unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGTERM) };
        match terminated {
            Some(mut terminated) => _ = terminated.recv().await,
            None => thread::sleep(Duration::from_secs(60)),
        }
        rt.drain().await;
        report("drained", 1);
    });
}

#[test]
fn drivers_leave_no_handlers_behind() {
    block_on(support::on_each_device(async |rt| {
        let report = child(&rt, "compares_handlers", NEVER).report();
        assert_eq!(report["changed"], 0, "the last that changed is {}", report["last"]);
    }));
}

/// Returns the handler of each signal except SIGFPE, which PoCL needs.
fn registered() -> Vec<(i32, usize, i32)> {
    let numbers = (1..32).filter(|number| *number != libc::SIGFPE);
    let registered = numbers.filter_map(|number| {
        let mut found = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the call changes nothing, and there is space for the result.
        let result = unsafe { libc::sigaction(number, std::ptr::null(), found.as_mut_ptr()) };
        // SAFETY: zeros are a valid value of the structure.
        let found = unsafe { found.assume_init() };
        // The C library adds this flag to every registration.
        const SA_RESTORER: i32 = 0x0400_0000;
        let flags = found.sa_flags & !SA_RESTORER;
        (result == 0).then_some((number, found.sa_sigaction, flags))
    });
    registered.collect()
}

#[test]
#[ignore = "another test runs it"]
fn compares_handlers() {
    let before = registered();
    let mut changed = Vec::new();
    let mut compare = || {
        let now = registered();
        let pairs = before.iter().zip(&now).filter(|(before, now)| before != now);
        changed.extend(pairs.map(|(before, _)| before.0));
    };
    block_on(async {
        let rt = support::builder().device(variable(DEVICE)).build().await.unwrap();
        compare();
        let saxpy = kernel(&rt, SAXPY, "saxpy").await;
        rt.build(&Module::opencl_c("kernel void wrong(")).await.expect_err("it is not source text");
        compare();
        let (x, y) = (rt.buffer::<f32>(64).unwrap(), rt.buffer::<f32>(64).unwrap());
        rt.queue().submit(saxpy.launch(64).args((1.0f32, &x, &y))).unwrap().await.unwrap();
        rt.drain().await;
        drop(rt);
        compare();
    });
    report("changed", changed.len());
    report("last", changed.last().copied().unwrap_or_default());
}

#[test]
fn pocl_keeps_the_handler_that_divisions_by_zero_need() {
    block_on(support::on_each_device(async |rt| {
        if !rt.device().platform.contains("Portable") {
            return;
        }
        let source = "kernel void divide(global const int *x, global int *y) {
            size_t i = get_global_id(0);
            y[i] = 7 / x[i];
        }";
        let divide = kernel(&rt, source, "divide").await;
        let x = rt.buffer_from(vec![1, 0, 7, 0]).await.unwrap();
        let y = rt.buffer::<i32>(4).unwrap();
        rt.queue().submit(divide.launch(4).args((&x, &y))).unwrap().await.unwrap();
        let y = rt.queue().read(&y).await.unwrap();
        assert_eq!((y[0], y[2]), (7, 1));
    }));
}
