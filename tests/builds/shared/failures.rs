//! Failures of builds are kept or retried, depending on their kind, and do not fail the requests that joined a build.

use std::future::IntoFuture;

use futures::executor::block_on;
use futures::future::join_all;
use kiln::build::{Build, Origin};
use kiln::simulated::{Fault, Simulator};
use kiln::{Error, ErrorKind, Module, Program, Runtime};
use support::{everywhere, under_executors};

use super::{assert_live_programs, broken, module, number_of, origin, simulated, write_number};

/// Makes ten requests before any build can end, and returns their results. The first one begins the build.
async fn ten_results(
    simulator: &Simulator,
    rt: &Runtime,
    module: &Module,
) -> Vec<kiln::Result<Program>> {
    let compiler = simulator.pause_builds();
    let builds: Vec<Build> = (0..10).map(|_| rt.build(module).start()).collect();
    drop(compiler);
    join_all(builds).await
}

/// Like [`ten_results`], for a build that fails.
async fn ten_waiters(simulator: &Simulator, rt: &Runtime, module: &Module) -> Vec<Error> {
    let results = ten_results(simulator, rt, module).await;
    results.into_iter().map(|result| result.expect_err("the build fails")).collect()
}

#[test]
fn a_compile_error_is_shared_by_all_waiters_and_cached() {
    block_on(async {
        let (simulator, rt) = simulated().await;
        let errors = ten_waiters(&simulator, &rt, &broken()).await;
        let later = rt.build(&broken()).await.unwrap_err();
        assert_eq!(later.kind(), ErrorKind::BuildFailed);
        assert_eq!(later.build_log(), Some("error: this is the mistake"));
        assert!(errors.iter().all(|error| error.same(&later)));
        assert_eq!(simulator.counts().builds, 1);
        let stats = rt.stats();
        assert_eq!((stats.builds.failed, stats.builds.joined, stats.memory.hits), (1, 9, 1));
        assert_eq!((stats.builds.retries, stats.memory.programs), (0, 0));
    });
}

everywhere! {
    async fn a_source_with_errors_is_compiled_only_once(rt: Runtime) {
        let builds = join_all((0..10).map(|_| rt.build(&broken()).into_future())).await;
        let later = rt.build(&broken()).await.unwrap_err();
        assert_eq!(later.kind(), ErrorKind::BuildFailed);
        assert!(later.build_log().unwrap().contains("this is the mistake"), "{later}");
        assert!(builds.iter().all(|result| result.as_ref().unwrap_err().same(&later)));
        // The driver's compiler ran, or the one that translates for it.
        let stats = rt.stats();
        assert_eq!((stats.builds.compiles + stats.builds.translations, stats.builds.failed), (1, 1));
    }
}

/// Checks that a failure of the first build reaches the request that began it, and that those that joined it get the
/// program from one more build. `tries` is how often the driver is called for the first build, and `fault` the failure of
/// each of these calls.
fn requests_that_joined_build_again(fault: Fault, tries: u64, kind: ErrorKind) {
    under_executors(move || async move {
        let (simulator, rt) = simulated().await;
        simulator.fail_builds(tries as usize, fault);
        let mut results = ten_results(&simulator, &rt, &module(1)).await.into_iter();
        let error = results.next().unwrap().expect_err("it began the build that fails");
        assert_eq!(error.kind(), kind);
        for result in results {
            assert_eq!(result.expect("it joined the build").origin(), Origin::Compiled);
        }
        assert_eq!(simulator.counts().builds, tries + 1);
        assert_eq!(origin(&rt, &module(1)).await, Origin::Memory);
        let stats = rt.stats();
        assert_eq!((stats.builds.requested, stats.builds.joined), (11, 9));
        // The retries of the calls, and the one of the build.
        assert_eq!((stats.builds.retries, stats.builds.failed), (tries - 1 + 1, 0), "{stats:?}");
        assert_eq!(stats.builds.panics + stats.builds.abandoned, 1);
    });
}

#[test]
fn a_panic_of_the_compiler_does_not_fail_the_requests_that_joined_the_build() {
    requests_that_joined_build_again(Fault::Panic, 1, ErrorKind::Panicked);
}

#[test]
fn a_lack_of_resources_does_not_fail_the_requests_that_joined_the_build() {
    requests_that_joined_build_again(Fault::OutOfResources, 3, ErrorKind::OutOfResources);
}

#[test]
fn a_panic_in_both_builds_reaches_every_waiter_and_is_not_cached() {
    under_executors(|| async {
        let (simulator, rt) = simulated().await;
        simulator.fail_builds(2, Fault::Panic);
        let errors = ten_waiters(&simulator, &rt, &module(1)).await;
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::Panicked));
        assert!(errors[2..].iter().all(|error| error.same(&errors[1]) && !error.same(&errors[0])));
        assert!(errors[0].to_string().contains("set to panic"), "{}", errors[0]);
        assert_eq!(simulator.counts().builds, 2, "there is no third one");
        assert_eq!(origin(&rt, &module(1)).await, Origin::Compiled);
        assert_eq!(simulator.counts().builds, 3);
        let stats = rt.stats();
        assert_eq!((stats.builds.panics, stats.builds.failed, stats.builds.retries), (2, 0, 1));
    });
}

#[test]
fn launches_of_a_build_that_joined_one_that_fails_run() {
    under_executors(|| async {
        let (simulator, rt) = simulated().await;
        simulator.kernel("write_number", |call| call.write(0, &[7u32; 4]));
        simulator.fail_builds(1, Fault::Panic);
        let compiler = simulator.pause_builds();
        let first = rt.build(&module(1)).start();
        let joined = rt.build(&module(1)).start();
        // SAFETY: each work-item writes one element, and the buffers have as many elements as work-items.
        let kernel = unsafe { joined.kernel("write_number") };
        drop(joined);
        let x = rt.buffer::<u32>(4).unwrap();
        let event = rt.queue().submit(kernel.launch(4).args((&x,))).unwrap();
        drop(compiler);
        assert_eq!(first.await.unwrap_err().kind(), ErrorKind::Panicked);
        event.await.unwrap();
        assert_eq!(rt.queue().read(&x).await.unwrap(), [7; 4]);
        rt.drain().await;
    });
}

#[test]
fn a_panic_without_other_requests_builds_nothing_again() {
    block_on(async {
        let (simulator, rt) = simulated().await;
        simulator.fail_builds(1, Fault::Panic);
        assert_eq!(rt.build(&module(1)).await.unwrap_err().kind(), ErrorKind::Panicked);
        rt.drain().await;
        assert_eq!((simulator.counts().builds, rt.stats().builds.retries), (1, 0));
    });
}

#[test]
fn a_device_loss_reaches_every_waiter_and_is_not_retried_or_cached() {
    block_on(async {
        let (simulator, rt) = simulated().await;
        simulator.fail_builds(1, Fault::DeviceLost);
        let errors = ten_waiters(&simulator, &rt, &module(1)).await;
        assert!(errors.iter().all(|error| error.same(&errors[0])));
        assert_eq!(errors[0].kind(), ErrorKind::DeviceLost);
        assert_eq!(simulator.counts().builds, 1);
        assert_eq!(origin(&rt, &module(1)).await, Origin::Compiled);
        let stats = rt.stats();
        assert_eq!(
            (stats.builds.abandoned, stats.builds.retries, stats.builds.compiles),
            (1, 0, 2)
        );
    });
}

#[test]
fn a_build_that_runs_out_of_resources_evicts_idle_programs_and_retries() {
    block_on(async {
        let (simulator, rt) = simulated().await;
        simulator.kernel("write_number", |call| call.write(0, &[7u32; 4]));
        let held = rt.build(&module(1)).await.unwrap();
        let kernel = write_number(&rt.build(&module(2)).await.unwrap());
        rt.build(&module(3)).await.unwrap();
        simulator.fail_builds(1, Fault::OutOfResources);
        assert_eq!(origin(&rt, &module(4)).await, Origin::Compiled);

        let stats = rt.stats();
        assert_eq!(
            (stats.builds.retries, stats.memory.evictions, stats.builds.abandoned),
            (1, 1, 0)
        );
        assert_eq!((stats.builds.compiles, stats.memory.programs), (5, 3));
        assert_live_programs(&simulator, 3);
        // The held program and kernel work, and their programs are still in memory.
        assert_eq!(number_of(&rt, &held).await, 7);
        let x = rt.buffer::<u32>(4).unwrap();
        rt.queue().submit(kernel.launch(4).args((&x,))).unwrap().await.unwrap();
        assert_eq!(origin(&rt, &module(1)).await, Origin::Memory);
        assert_eq!(origin(&rt, &module(2)).await, Origin::Memory);
        assert_eq!(origin(&rt, &module(3)).await, Origin::Compiled);
    });
}

#[test]
fn retries_of_a_build_are_limited_and_a_later_request_builds_again() {
    block_on(async {
        let (simulator, rt) = simulated().await;
        simulator.fail_builds(usize::MAX, Fault::OutOfResources);
        let error = rt.build(&module(1)).await.unwrap_err();
        let tries = simulator.counts().builds;
        assert!((2..=10).contains(&tries), "{tries} tries");
        assert_eq!(error.kind(), ErrorKind::OutOfResources);
        let stats = rt.stats();
        assert_eq!((stats.builds.abandoned, stats.builds.retries), (1, tries - 1));

        // The requests that join a build that fails build once more, together.
        let errors = ten_waiters(&simulator, &rt, &module(1)).await;
        assert!(!errors[0].same(&error));
        assert!(errors[1..].iter().all(|error| error.same(&errors[1])));
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::OutOfResources));
        assert_eq!((simulator.counts().builds, rt.stats().memory.hits), (3 * tries, 0));

        // As above, but the memory is available again at the second request.
        let (simulator, rt) = simulated().await;
        simulator.fail_builds(tries.try_into().unwrap(), Fault::OutOfResources);
        let error = rt.build(&module(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfResources);
        assert_eq!(origin(&rt, &module(1)).await, Origin::Compiled);
    });
}
