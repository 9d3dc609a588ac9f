//! Guarantees of the build graph: a program is built once, however many tasks request it and even if they are
//! dropped. Failures are kept or retried, depending on their kind. Memory stays within its limit.

#![cfg(feature = "simulated")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod failures;

use std::collections::VecDeque;
use std::future::IntoFuture;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::executor::block_on;
use futures::future::join_all;
use futures::poll;
use kiln::build::{Build, Origin};
use kiln::simulated::Simulator;
use kiln::{BuildRequest, Kernel, Module, Program, Runtime};
use proptest::prelude::*;
use support::children::{Child, DEVICE, report, variable};
use support::everywhere;
use support::late_frees::while_moka_frees_nothing;
use support::module_for;
use support::specialized::specialized;
use support::test_name;

/// Creates a runtime with one simulated device, and the device's controls.
async fn simulated() -> (Simulator, Runtime) {
    let simulator = Simulator::immediate();
    let rt = Runtime::builder().simulator(&simulator).build().await.unwrap();
    (simulator, rt)
}

/// Creates a runtime that keeps up to `memory_limit` bytes of programs.
async fn limited(memory_limit: u64) -> (Simulator, Runtime) {
    let simulator = Simulator::immediate();
    let builder = Runtime::builder().simulator(&simulator).memory_limit(memory_limit);
    (simulator.clone(), builder.build().await.unwrap())
}

/// Returns a module whose kernel `write_number` writes a number.
fn module(number: u32) -> Module {
    Module::opencl_c(source(number))
}

fn source(number: u32) -> String {
    format!("kernel void write_number(global uint *x) {{ x[get_global_id(0)] = {number}; }}\n")
}

/// Like [`module`], with a binary of `size` bytes on a simulated device.
fn sized(number: u32, size: usize) -> Module {
    Module::opencl_c(format!("#pragma binary_size {size}\n{}", source(number)))
}

/// Returns a module that no compiler accepts.
fn broken() -> Module {
    Module::opencl_c("#error this is the mistake\nkernel void broken() { return }\n")
}

fn write_number(program: &Program) -> Kernel {
    // SAFETY: each work-item writes one element, and the buffers have as many elements as work-items.
    unsafe { program.kernel("write_number") }.expect("the kernel exists")
}

/// Returns the number that a program of [`module`] writes.
async fn number_of(rt: &Runtime, program: &Program) -> u32 {
    let x = rt.buffer_from(vec![u32::MAX; 4]).await.unwrap();
    rt.queue().submit(write_number(program).launch(4).args((&x,))).unwrap().await.unwrap();
    let read = rt.queue().read(&x).await.unwrap();
    assert_eq!(read, [read[0]; 4]);
    read[0]
}

/// Returns the origin of the program in one more request.
async fn origin(rt: &Runtime, module: &Module) -> Origin {
    rt.build(module).await.unwrap().origin()
}

/// Checks that this number of programs is left on the device.
fn assert_live_programs(simulator: &Simulator, programs: u64) {
    assert_eq!(simulator.counts().live_programs, programs);
}

// ---- One build for all requests ------------------------------------------------------------------

#[test]
#[expect(clippy::async_yields_async, reason = "requesting and waiting are two steps here")]
fn a_thousand_tasks_on_eight_threads_share_ten_builds_in_flight() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(8).build().unwrap();
    tokio.block_on(async {
        let (simulator, rt) = simulated().await;
        let compiler = simulator.pause_builds();
        let requests = (0..1000).map(|task| {
            let rt = rt.clone();
            tokio::spawn(async move { rt.build(&module(task % 10)).start() })
        });
        let builds: Vec<Build> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
        assert_eq!((rt.stats().builds.requested, rt.stats().builds.joined), (1000, 990));
        drop(compiler);
        let waiting = builds.into_iter().map(|build| tokio::spawn(async { build.await.unwrap() }));
        let programs: Vec<Program> =
            join_all(waiting).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(simulator.counts().builds, 10);
        assert_live_programs(&simulator, 10);
        for (task, program) in programs.iter().enumerate() {
            assert_eq!(program.key(), programs[task % 10].key());
            assert_eq!(program.origin(), Origin::Compiled);
        }
        let stats = rt.stats();
        assert_eq!((stats.builds.compiles, stats.builds.joined, stats.memory.hits), (10, 990, 0));
        assert_eq!((stats.memory.programs, stats.memory.evictions), (10, 0));
    });
}

#[test]
fn a_thousand_tasks_on_eight_threads_get_ten_programs_of_each_device() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(8).build().unwrap();
    tokio.block_on(support::on_each_device(async |rt| {
        let tasks = (0..1000).map(|task| {
            let rt = rt.clone();
            tokio::spawn(async move { rt.build(&module(task % 10)).await.unwrap() })
        });
        let programs: Vec<Program> =
            join_all(tasks).await.into_iter().map(Result::unwrap).collect();
        let stats = rt.stats();
        assert_eq!((stats.builds.requested, stats.builds.compiles), (1000, 10));
        assert_eq!(stats.builds.joined + stats.memory.hits, 990);
        for (task, program) in programs.iter().enumerate() {
            assert_eq!(program.key(), programs[task % 10].key());
        }
        for (number, program) in (0..10).zip(&programs) {
            assert_eq!(number_of(&rt, program).await, number);
        }
    }));
}

// ---- Abandoned requests --------------------------------------------------------------------------

/// Passes the first request for a program to `abandon` while its build is paused, and checks that later
/// requests get the program from the same build.
async fn assert_others_get_program<T>(abandon: impl AsyncFnOnce(BuildRequest) -> T) {
    let (simulator, rt) = simulated().await;
    let compiler = simulator.pause_builds();
    let leftover = abandon(rt.build(&module(1))).await;
    let second = rt.build(&module(1)).start();
    let third = rt.build(&module(1)).start();
    assert_eq!((rt.stats().builds.requested, rt.stats().builds.joined), (3, 2));
    drop(compiler);
    assert_eq!(second.await.unwrap().origin(), Origin::Compiled);
    assert_eq!(third.await.unwrap().origin(), Origin::Compiled);
    assert_eq!(origin(&rt, &module(1)).await, Origin::Memory);
    drop(leftover);
    assert_eq!(simulator.counts().builds, 1);
    assert_eq!((rt.stats().builds.compiles, rt.stats().memory.hits), (1, 1));
}

/// Requests a program and polls once, so that the build has a task to wake.
async fn polled(request: BuildRequest) -> Build {
    let mut build = request.start();
    assert!(poll!(&mut build).is_pending());
    build
}

#[test]
fn dropping_a_build_does_not_affect_other_requests() {
    block_on(assert_others_get_program(async |request| drop(request.start())));
    block_on(assert_others_get_program(async |request| drop(polled(request).await)));
}

#[test]
fn forgetting_a_build_does_not_affect_other_requests() {
    block_on(assert_others_get_program(async |request| std::mem::forget(request.start())));
    block_on(assert_others_get_program(async |request| std::mem::forget(polled(request).await)));
}

#[test]
fn a_build_that_is_never_polled_does_not_affect_other_requests() {
    block_on(assert_others_get_program(async |request| request.start()));
}

#[test]
fn a_build_that_is_polled_only_once_does_not_affect_other_requests() {
    block_on(assert_others_get_program(polled));
}

#[test]
fn aborting_a_tokio_task_that_builds_does_not_affect_other_requests() {
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio.block_on(assert_others_get_program(async |request| {
        let (sender, receiver) = futures::channel::oneshot::channel();
        let task = tokio::spawn(async move {
            let build = polled(request).await;
            sender.send(()).unwrap();
            build.await
        });
        receiver.await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }));
}

#[test]
fn cancelling_a_smol_task_that_builds_does_not_affect_other_requests() {
    smol::block_on(assert_others_get_program(async |request| {
        let (sender, receiver) = async_channel::bounded(1);
        let task = smol::spawn(async move {
            let build = polled(request).await;
            sender.send(()).await.unwrap();
            build.await
        });
        receiver.recv().await.unwrap();
        assert!(task.cancel().await.is_none());
    }));
}

everywhere! {
    async fn a_build_whose_only_request_was_dropped_serves_the_next_request(rt: Runtime) {
        drop(rt.build(&module(2)).start());
        let program = rt.build(&module(2)).await.unwrap();
        assert_eq!(number_of(&rt, &program).await, 2);
        assert_eq!(rt.stats().builds.compiles, 1);
    }
}

// ---- The memory limit ---------------------------------------------------------------------------

#[test]
fn a_memory_hit_makes_a_program_the_most_recently_used() {
    block_on(async {
        let (simulator, rt) = limited(3000).await;
        let modules: Vec<Module> = (0..4).map(|number| sized(number, 1000)).collect();
        for module in &modules[..3] {
            assert_eq!(origin(&rt, module).await, Origin::Compiled);
        }
        assert_eq!(origin(&rt, &modules[0]).await, Origin::Memory);
        assert_eq!(origin(&rt, &modules[3]).await, Origin::Compiled);
        for number in [0, 2, 3] {
            assert_eq!(origin(&rt, &modules[number]).await, Origin::Memory, "program {number}");
        }
        assert_eq!(origin(&rt, &modules[1]).await, Origin::Compiled);
        let stats = rt.stats();
        assert_eq!((stats.memory.evictions, stats.memory.hits, stats.builds.compiles), (2, 4, 5));
        assert_eq!((stats.memory.programs, stats.memory.bytes), (3, 3000));
        assert_live_programs(&simulator, 3);
    });
}

/// Expected contents of a cache of `limit` bytes: numbers and sizes, the least recently used first.
struct Model {
    limit: usize,
    kept: VecDeque<(u32, usize)>,
}

impl Model {
    /// Uses a program, and returns whether it was in the cache.
    fn request(&mut self, number: u32, size: usize) -> bool {
        let at = self.kept.iter().position(|&kept| kept == (number, size));
        let hit = at.and_then(|at| self.kept.remove(at)).is_some();
        if size <= self.limit {
            self.kept.push_back((number, size));
        }
        while self.bytes() > self.limit {
            self.kept.pop_front();
        }
        hit
    }

    fn bytes(&self) -> usize {
        self.kept.iter().map(|&(_, size)| size).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..Default::default() })]

    #[test]
    fn memory_is_a_least_recently_used_cache_of_exact_size(
        requests in prop::collection::vec(0u32..12, 1..120)
    ) {
        block_on(assert_like_model(requests));
    }
}

/// Requests programs by their numbers, and compares each answer with that of a model.
async fn assert_like_model(requests: impl IntoIterator<Item = u32>) {
    let mut model = Model { limit: 5000, kept: VecDeque::new() };
    let (simulator, rt) = limited(5000).await;
    for number in requests {
        // The last few are larger than the limit.
        let size = 700 * (number as usize % 10) + 500;
        let hit = model.request(number, size);
        let expected = if hit { Origin::Memory } else { Origin::Compiled };
        let program = rt.build(&sized(number, size)).await.unwrap();
        assert_eq!(program.origin(), expected, "program {number}");
        drop(program);
        let stats = rt.stats();
        assert_eq!(stats.memory.programs, model.kept.len() as u64);
        assert_eq!(stats.memory.bytes, model.bytes() as u64);
        assert_live_programs(&simulator, model.kept.len() as u64);
    }
}

#[test]
fn other_caches_of_the_process_do_not_keep_evicted_programs() {
    while_moka_frees_nothing(|| {
        block_on(assert_like_model((0..12).chain(0..12).chain([0, 0, 1, 0])));
    });
}

#[test]
fn an_evicted_program_in_use_works_and_is_freed_afterwards() {
    block_on(async {
        let (simulator, rt) = limited(1000).await;
        simulator.kernel("write_number", |call| call.write(0, &[7u32; 4]));
        let kernel = write_number(&rt.build(&sized(1, 1000)).await.unwrap());
        rt.build(&sized(2, 1000)).await.unwrap();
        assert_eq!((rt.stats().memory.evictions, rt.stats().memory.programs), (1, 1));
        assert_eq!(simulator.counts().live_programs, 2);

        let x = rt.buffer_from(vec![0u32; 4]).await.unwrap();
        rt.queue().submit(kernel.launch(4).args((&x,))).unwrap().await.unwrap();
        assert_eq!(rt.queue().read(&x).await.unwrap(), [7; 4]);
        // A new request finds the program that the kernel holds, and keeps it in place of the other one.
        assert_eq!(origin(&rt, &sized(1, 1000)).await, Origin::Memory);
        assert_eq!((rt.stats().builds.compiles, rt.stats().memory.evictions), (2, 2));
        drop(kernel);
        assert_live_programs(&simulator, 1);
        assert_eq!(origin(&rt, &sized(2, 1000)).await, Origin::Compiled);
    });
}

everywhere! {
    async fn programs_evicted_from_memory_still_run(rt: Runtime) {
        let mut modules = Vec::new();
        // Enough programs, although the estimate of what the driver takes for each changes meanwhile.
        for number in 0..40 {
            modules.push(module_for(&rt, &source(number)).await);
        }
        rt.build(&modules[0]).await.unwrap();
        let limit = 8 * rt.stats().memory.bytes_estimated;
        let selector = rt.device().index().to_string();
        let builder = support::builder().device(selector).memory_limit(limit);
        let rt = builder.build().await.unwrap();
        let mut programs = Vec::new();
        for module in &modules {
            programs.push(rt.build(module).await.unwrap());
            assert!(rt.stats().memory.bytes_estimated <= limit);
        }
        let stats = rt.stats();
        assert!(stats.memory.evictions > 0, "{stats:?}");
        assert_eq!(stats.memory.programs + stats.memory.evictions, modules.len() as u64);
        for (number, program) in (0..).zip(&programs) {
            assert_eq!(number_of(&rt, program).await, number);
        }
    }
}

#[test]
fn a_program_larger_than_the_limit_is_returned_without_evicting_others() {
    block_on(async {
        let (simulator, rt) = limited(3000).await;
        simulator.kernel("write_number", |call| call.write(0, &[7u32; 4]));
        rt.build(&sized(1, 1000)).await.unwrap();
        let large = rt.build(&sized(2, 3001)).await.unwrap();
        assert_eq!(number_of(&rt, &large).await, 7);
        let stats = rt.stats();
        assert_eq!((stats.memory.programs, stats.memory.bytes), (1, 1000));
        assert_eq!(origin(&rt, &sized(1, 1000)).await, Origin::Memory);
        assert_eq!(origin(&rt, &sized(2, 3001)).await, Origin::Memory, "it is still held");
        drop(large);
        assert_eq!(origin(&rt, &sized(2, 3001)).await, Origin::Compiled);
    });
}

#[test]
fn a_limit_of_zero_caches_nothing_but_shares_in_flight_builds() {
    block_on(async {
        let (simulator, rt) = limited(0).await;
        let compiler = simulator.pause_builds();
        let (first, second) = (rt.build(&module(1)).start(), rt.build(&module(1)).start());
        drop(compiler);
        first.await.unwrap();
        second.await.unwrap();
        assert_eq!((simulator.counts().builds, rt.stats().builds.joined), (1, 1));
        assert_eq!(origin(&rt, &module(1)).await, Origin::Compiled);
        assert!(rt.build(&broken()).await.is_err());
        assert!(rt.build(&broken()).await.is_err());
        assert_eq!(simulator.counts().builds, 4);
        let stats = rt.stats();
        assert_eq!((stats.memory.hits, stats.memory.programs, stats.memory.bytes), (0, 0, 0));
        assert_live_programs(&simulator, 0);
    });
}

// ---- Inputs that change the program --------------------------------------------------------------

everywhere! {
    async fn options_change_the_program_but_white_space_between_them_does_not(rt: Runtime) {
        let module = Module::opencl_c(
            "kernel void write_number(global uint *x) { x[get_global_id(0)] = A; }",
        );
        let one = rt.build(&module).options("-D A=1 -cl-mad-enable").await.unwrap();
        let two = rt.build(&module).options("-D A=2 -cl-mad-enable").await.unwrap();
        assert_ne!(one.key(), two.key());
        assert_eq!(number_of(&rt, &one).await, 1);
        assert_eq!(number_of(&rt, &two).await, 2);
        assert_eq!(rt.stats().builds.compiles, 2);
        let spaced = rt.build(&module).options("  -D A=1\t -cl-mad-enable\n").await.unwrap();
        assert_eq!((spaced.key(), spaced.origin()), (one.key(), Origin::Memory));
        assert_eq!(rt.stats().builds.compiles, 2);
    }
}

#[test]
fn white_space_inside_quotes_changes_the_program() {
    block_on(async {
        let (_, rt) = simulated().await;
        let one = rt.build(&module(1)).options("-D \"A=1  2\"").await.unwrap();
        let other = rt.build(&module(1)).options("-D \"A=1 2\"").await.unwrap();
        assert_ne!(one.key(), other.key());
        assert_eq!(rt.stats().builds.compiles, 2);
    });
}

#[test]
fn devices_have_programs_of_their_own() {
    block_on(async {
        let (left, right) = (Simulator::new().named("left"), Simulator::new().named("right"));
        let rt = Runtime::builder().simulator(&left).simulator(&right).build().await.unwrap();
        let programs = join_all(
            rt.devices().iter().map(|device| rt.build(&module(1)).device(device).into_future()),
        )
        .await;
        let keys: Vec<_> = programs.iter().map(|program| program.as_ref().unwrap().key()).collect();
        assert_ne!(keys[0], keys[1]);
        assert_eq!((left.counts().builds, right.counts().builds), (1, 1));
    });
}

/// Two identical devices in one machine.
#[test]
fn identical_devices_have_programs_of_their_own() {
    block_on(async {
        let twins = [Simulator::new(), Simulator::new()];
        let builder = twins.iter().fold(Runtime::builder(), |all, twin| all.simulator(twin));
        let rt = builder.build().await.unwrap();
        for (device, twin) in rt.devices().iter().zip(&twins) {
            let rt = rt.on(device).await.unwrap();
            let program = rt.build(&module(1)).await.unwrap();
            assert_eq!(program.device().index(), device.index());
            assert_eq!(twin.counts().builds, 1);
            number_of(&rt, &program).await;
        }
    });
}

everywhere! {
    async fn specialization_constants_change_the_program(rt: Runtime) {
        let plain = rt.build(&specialized()).await.unwrap();
        let default = rt.build(&specialized()).specialize(7, 16u32).await.unwrap();
        let other = rt.build(&specialized()).specialize(7, 17u32).await.unwrap();
        for (program, expected) in [(&plain, 16), (&default, 16), (&other, 17)] {
            let x = rt.buffer_from(vec![0u32]).await.unwrap();
            drop(rt.queue().submit(write_number(program).launch(1).args((&x,))).unwrap());
            assert_eq!(rt.queue().read(&x).await.unwrap(), [expected]);
        }
        assert_ne!(default.key(), other.key());
        assert_ne!(plain.key(), other.key());
        let last = rt.build(&specialized()).specialize(7, 0u32).specialize(7, 17u32).await.unwrap();
        assert_eq!((last.key(), last.origin()), (other.key(), Origin::Memory));
    }
}

#[test]
fn equal_sources_share_a_program_however_the_module_was_created() {
    block_on(async {
        let (_, rt) = simulated().await;
        let first = rt.build(&module(1)).await.unwrap();
        let path = std::env::temp_dir().join(format!("kiln-builds-{}.cl", std::process::id()));
        std::fs::write(&path, source(1)).unwrap();
        let opened = Module::open(&path).await;
        std::fs::remove_file(&path).unwrap();
        let second = rt.build(&opened.unwrap()).await.unwrap();
        assert_eq!((second.key(), second.origin()), (first.key(), Origin::Memory));
    });
}

#[test]
fn native_binaries_have_keys_of_their_own() {
    block_on(async {
        let (simulator, rt) = simulated().await;
        let compiled = rt.build(&module(1)).await.unwrap();
        let binary = Module::native(compiled.binary().unwrap()).unwrap();
        let loaded = rt.build(&binary).await.unwrap();
        assert_ne!(compiled.key(), loaded.key());
        assert_eq!((simulator.counts().builds, simulator.counts().loads), (1, 1));
        assert_eq!(origin(&rt, &binary).await, Origin::Memory);
    });
}

#[test]
fn a_process_can_end_while_a_program_is_compiled() {
    block_on(support::on_each_device(async |rt| {
        for _ in 0..4 {
            Child::start_on(rt.device(), &test_name!("child_that_exits_during_a_build")).report();
        }
    }));
}

#[test]
#[ignore = "another test runs it"]
fn child_that_exits_during_a_build() {
    block_on(async {
        let rt = support::builder().device(variable(DEVICE)).build().await.unwrap();
        drop(rt.build(&module_for(&rt, &source(1)).await).start());
        report("started", 1);
    });
}

/// A subscriber that panics at spans.
struct PanickingSubscriber;

impl tracing::Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        panic!("the subscriber panics")
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_panicking_subscriber_does_not_leave_a_build_pending() {
    block_on(async {
        let (_simulator, rt) = simulated().await;
        // `tracing` may take a scoped subscriber for uninterested if another thread registers a span just then.
        let panics = |at: &u32| {
            let started = tracing::subscriber::with_default(PanickingSubscriber, || {
                catch_unwind(AssertUnwindSafe(|| drop(rt.build(&module(*at)).start())))
            });
            started.is_err()
        };
        let at = (1..100).find(panics).expect("it panicked");
        // Concurrent requests may get that error. Later requests get the program.
        let ended = async { while rt.build(&module(at)).await.is_err() {} };
        let late = smol::Timer::after(Duration::from_secs(20));
        futures::pin_mut!(ended);
        match futures::future::select(ended, late).await {
            futures::future::Either::Left(_) => {}
            futures::future::Either::Right(_) => panic!("the build never ends"),
        }
    });
}
