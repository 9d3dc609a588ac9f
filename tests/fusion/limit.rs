//! Limits of fused kernels. If a compile takes longer than the limit, or never ends, the launches run one by one,
//! and later scopes do not wait. If the device does not accept the work-groups of the launches for the fused
//! kernel, or the kernel would be too large for compilers, the launches run one by one, too.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::executor::block_on;
use kiln::fusion::{FusionOutcome, Unfused};
use kiln::internal::translate;
use kiln::simulated::Simulator;
use kiln::{
    Buffer, ErrorKind, FusionMode, FusionScope, Graph, Kernel, Launch, Module, Runtime,
    RuntimeBuilder,
};
use support::late_frees::while_moka_frees_nothing;
use support::simulation::{eventually, runtime_with};
use support::tools::has_clang;

/// Module of `data/fusion.cl`.
const FUSION: &[u8] = include_bytes!("../data/fusion.spv");

/// Limit that passes soon, but not before a scope that need not wait has returned.
const LIMIT: Duration = Duration::from_millis(50);

pub(super) const FUSED: &str = "fused_scale_offset";

pub(super) const ELEMENTS: usize = 64;

/// Simulated device on which launches of `scale` and `offset` can be fused.
pub(super) struct Bench {
    pub(super) simulator: Simulator,
    pub(super) rt: Runtime,
    pub(super) kernels: [Kernel; 2],
    pub(super) src: Buffer<f32>,
    pub(super) dst: Buffer<f32>,
    /// Number of runs of the fused kernel.
    pub(super) fused_runs: Arc<AtomicUsize>,
}

impl Bench {
    pub(super) fn new(mode: FusionMode) -> Self {
        Self::with_limit(mode, LIMIT)
    }

    pub(super) fn with_limit(mode: FusionMode, limit: Duration) -> Self {
        Self::with_builder(Runtime::builder().fusion(mode).fusion_limit(limit))
    }

    pub(super) fn with_builder(builder: RuntimeBuilder) -> Self {
        let simulator = Simulator::new().fusing();
        let fused_runs = Arc::<AtomicUsize>::default();
        simulator.kernel("scale", |call| {
            let (src, factor) = (call.read::<f32>(0), call.value::<f32>(2));
            call.write(1, &src.iter().map(|x| x * factor).collect::<Vec<_>>());
        });
        simulator.kernel("offset", |call| {
            let (src, term) = (call.read::<f32>(0), call.value::<f32>(2));
            call.write(1, &src.iter().map(|x| x + term).collect::<Vec<_>>());
        });
        let runs = fused_runs.clone();
        simulator.kernel(FUSED, move |call| {
            runs.fetch_add(1, SeqCst);
            let (src, factor) = (call.read::<f32>(0), call.value::<f32>(1));
            let term = call.value::<f32>(3);
            call.write(2, &src.iter().map(|x| x * factor + term).collect::<Vec<_>>());
        });
        block_on(async {
            let rt = runtime_with(&simulator, builder).await;
            let program = rt.build(&Module::spirv(FUSION).unwrap()).await.unwrap();
            // SAFETY: the closures stay inside their arguments.
            let kernels = ["scale", "offset"].map(|name| unsafe { program.kernel(name) }.unwrap());
            let src = rt.buffer_from(vec![3.0f32; ELEMENTS]).await.unwrap();
            let dst = rt.buffer(ELEMENTS).unwrap();
            Self { simulator, rt, kernels, src, dst, fused_runs }
        })
    }

    /// Returns a scope that computes `2 * src + term`.
    pub(super) fn scope(&self, term: f32) -> FusionScope {
        self.scope_with(term, |launch| launch)
    }

    /// Returns such a scope, whose launches have these work-groups.
    pub(super) fn scope_in_groups(&self, term: f32, local: usize) -> FusionScope {
        self.scope_with(term, |launch| launch.local(local))
    }

    pub(super) fn scope_with(&self, term: f32, change: impl Fn(Launch) -> Launch) -> FusionScope {
        let scope = self.rt.queue().start_fusion();
        let [scale, offset] = self.kernels.each_ref().map(|kernel| change(kernel.launch(ELEMENTS)));
        let between: Buffer<f32> = self.rt.buffer(ELEMENTS).unwrap();
        scope.submit(scale.args((&self.src, &between, 2.0f32))).unwrap();
        scope.submit(offset.args((&between, &self.dst, term))).unwrap();
        scope
    }

    fn assert_result(&self, term: f32) {
        let result = block_on(self.rt.queue().read(&self.dst)).unwrap();
        assert_eq!(result, [6.0 + term; ELEMENTS]);
    }

    /// Returns a scope whose launches are in the other order, so that they have another kernel.
    fn other_scope(&self) -> FusionScope {
        let scope = self.rt.queue().start_fusion();
        let [scale, offset] = self.kernels.each_ref().map(|kernel| kernel.launch(ELEMENTS));
        let between: Buffer<f32> = self.rt.buffer(ELEMENTS).unwrap();
        scope.submit(offset.args((&self.src, &between, 2.0f32))).unwrap();
        scope.submit(scale.args((&between, &self.dst, 3.0f32))).unwrap();
        scope
    }

    /// Records `2 * src + term`.
    fn graph(&self, term: f32) -> Graph {
        let mut recorder = self.rt.queue().record();
        recorder.fuse();
        let [scale, offset] = self.kernels.each_ref().map(|kernel| kernel.launch(ELEMENTS));
        let between = recorder.temporary::<f32>(ELEMENTS).unwrap();
        recorder.submit(scale.args((&self.src, &between, 2.0f32))).unwrap();
        recorder.submit(offset.args((&between, &self.dst, term))).unwrap();
        block_on(recorder.finish()).unwrap()
    }

    /// Runs scopes until one is fused.
    pub(super) fn await_fused(&self) {
        eventually("the kernel is used", || {
            let outcome = block_on(self.scope(5.0).complete()).unwrap();
            let is_overdue = |why: &Unfused| matches!(why, Unfused::Overdue { .. });
            assert!(
                outcome.is_fused()
                    || matches!(&outcome, FusionOutcome::Unfused { why, .. } if is_overdue(why)),
                "{outcome}"
            );
            self.assert_result(5.0);
            outcome.is_fused()
        });
        assert_eq!(self.fused_runs.load(SeqCst), 1);
    }
}

fn assert_overdue(outcome: &FusionOutcome) {
    let FusionOutcome::Unfused { why, .. } = outcome else { panic!("{outcome}") };
    let Unfused::Overdue { kernel, limit, .. } = why else { panic!("{outcome}") };
    assert_eq!((&**kernel, *limit), (FUSED, LIMIT));
}

fn launches_run_one_by_one_until_their_kernel_is_built(mode: FusionMode) {
    let bench = Bench::new(mode);
    let builds = bench.simulator.counts().builds;
    let compiler = bench.simulator.pause_compiles();
    let outcome = block_on(bench.scope(1.0).complete()).unwrap();
    assert_overdue(&outcome);
    bench.assert_result(1.0);
    // Scopes with the same launches, or with other values of their scalars, do not wait.
    for term in [1.0, 2.0, 3.0] {
        let outcome = bench.scope(term).complete().now_or_never();
        assert_overdue(&outcome.expect("the scope does not wait").unwrap());
        bench.assert_result(term);
    }
    assert_eq!(bench.rt.stats().fusion.overdue, 4);
    eventually("the kernel is compiled", || bench.simulator.counts().builds == builds + 1);
    drop(compiler);
    bench.await_fused();
    assert_eq!(bench.simulator.counts().builds, builds + 1, "it was compiled once");
}

#[test]
fn scopes_that_always_fuse_do_not_wait_for_a_compiler_that_does_not_end() {
    launches_run_one_by_one_until_their_kernel_is_built(FusionMode::Always);
}

#[test]
fn scopes_that_try_fusion_do_not_wait_for_a_compiler_that_does_not_end() {
    launches_run_one_by_one_until_their_kernel_is_built(FusionMode::Auto);
}

#[test]
fn a_scope_that_requires_fusion_fails_with_the_kernel_the_limit_and_a_way_out() {
    let bench = Bench::new(FusionMode::Auto);
    let compiler = bench.simulator.pause_compiles();
    let scope = bench.scope(1.0);
    let error = block_on(scope.require().complete()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    for part in [FUSED, "50ms", "RuntimeBuilder::fusion_limit"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    bench.assert_result(1.0);
    let scope = bench.scope(2.0);
    let again = scope.require().complete().now_or_never().expect("the scope does not wait");
    assert_eq!(again.unwrap_err().kind(), ErrorKind::TimedOut);
    drop(compiler);
    eventually("the kernel is used", || {
        let scope = bench.scope(2.0);
        let completed = block_on(scope.require().complete());
        bench.assert_result(2.0);
        completed.is_ok_and(|outcome| outcome.is_fused())
    });
}

#[test]
fn kernels_that_are_built_within_the_limit_are_used_at_once() {
    let bench = Bench::new(FusionMode::Always);
    bench.await_fused();
}

#[test]
fn the_failure_of_an_overdue_build_is_the_outcome_of_later_scopes() {
    let bench = Bench::new(FusionMode::Always);
    let compiler = bench.simulator.pause_compiles();
    bench.simulator.fail_builds(1, kiln::simulated::Fault::Refused);
    assert_overdue(&block_on(bench.scope(1.0).complete()).unwrap());
    drop(compiler);
    eventually("the failure is known", || {
        let outcome = block_on(bench.scope(2.0).complete()).unwrap();
        bench.assert_result(2.0);
        matches!(outcome, FusionOutcome::Unfused { why: Unfused::Refused(_), .. })
    });
    assert_eq!(bench.fused_runs.load(SeqCst), 0);
}

#[test]
fn a_build_that_runs_out_of_resources_evicts_fused_kernels() {
    while_moka_frees_nothing(|| {
        let bench = Bench::new(FusionMode::Always);
        bench.await_fused();
        let programs = bench.simulator.counts().live_programs;
        bench.simulator.fail_builds(1, kiln::simulated::Fault::OutOfResources);
        let other =
            Module::opencl_c("kernel void other(global uint *x) { x[get_global_id(0)] = 1; }");
        let _other = block_on(bench.rt.build(&other).into_future()).unwrap();
        // The fused kernel makes room for the other program. The bench holds the kernels of the scope.
        eventually("the fused kernel is freed", || {
            bench.simulator.counts().live_programs == programs
        });
    });
}

/// Time that callers wait for a fused kernel at most, whatever the limit.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Time after which a caller that waits for `MAX_WAIT` counts as held up.
const HELD_UP: Duration = Duration::from_secs(30);

#[test]
fn a_compile_holds_up_no_caller_for_longer_than_a_second() {
    for builder in [Runtime::builder(), Runtime::builder().fusion_limit(LONG)] {
        let bench = Bench::with_builder(builder.fusion(FusionMode::Auto));
        let compiler = bench.simulator.pause_compiles();
        let started = Instant::now();
        let outcome = block_on(bench.scope(1.0).complete()).unwrap();
        assert!(started.elapsed() < HELD_UP, "{:?}", started.elapsed());
        let why = outcome.to_string();
        assert!(why.contains(FUSED) && why.contains("within 1s"), "{why}");
        bench.assert_result(1.0);
        let again = bench.scope(2.0).complete().now_or_never().expect("the scope does not wait");
        assert!(!again.unwrap().is_fused());
        drop(compiler);
        // The kernel is used once it is built.
        eventually("the kernel is used", || {
            block_on(bench.scope(5.0).complete()).unwrap();
            bench.assert_result(5.0);
            bench.fused_runs.load(SeqCst) > 0
        });
    }
}

#[test]
fn a_scope_that_requires_fusion_waits_longer_than_those_that_do_not() {
    let bench = Bench::with_builder(Runtime::builder().fusion(FusionMode::Auto));
    let compiler = bench.simulator.pause_compiles();
    assert!(!block_on(bench.scope(1.0).complete()).unwrap().is_fused());
    let scope = bench.scope(2.0);
    let mut completed = scope.require().complete();
    assert!((&mut completed).now_or_never().is_none(), "it waits, although another scope gave up");
    drop(compiler);
    assert!(block_on(completed).unwrap().is_fused());
    bench.assert_result(2.0);
}

#[test]
fn scopes_that_always_fuse_wait_for_their_limit() {
    let bench = Bench::with_limit(FusionMode::Always, LONG);
    let compiler = bench.simulator.pause_compiles();
    let mut completed = bench.scope(1.0).complete();
    std::thread::sleep(2 * MAX_WAIT);
    assert!((&mut completed).now_or_never().is_none(), "it waits for longer than a second");
    drop(compiler);
    assert!(block_on(completed).unwrap().is_fused());
    bench.assert_result(1.0);
}

#[test]
fn kernels_for_which_no_launch_waits_are_built_one_at_a_time() {
    let bench = Bench::with_builder(Runtime::builder().fusion(FusionMode::Auto));
    bench.simulator.kernel("fused_offset_scale", |call| {
        let (src, term) = (call.read::<f32>(0), call.value::<f32>(1));
        let factor = call.value::<f32>(3);
        call.write(2, &src.iter().map(|x| (x + term) * factor).collect::<Vec<_>>());
    });
    let builds = bench.simulator.counts().builds;
    let compiler = bench.simulator.pause_compiles();
    // The second scope does not wait for as long, because its kernel is built after that of the first one.
    let first = block_on(bench.scope(1.0).complete()).unwrap();
    assert!(first.to_string().contains("within 1s"), "{first}");
    bench.assert_result(1.0);
    let second = block_on(bench.other_scope().complete()).unwrap();
    assert!(second.to_string().contains("within 50ms"), "{second}");
    eventually("a kernel is compiled", || bench.simulator.counts().builds == builds + 1);
    // Other programs do not wait for these kernels.
    std::thread::sleep(2 * LIMIT);
    assert_eq!(bench.simulator.counts().builds, builds + 1, "the other one waits");
    drop(compiler);
    eventually("the other kernel is used", || {
        let outcome = block_on(bench.other_scope().complete()).unwrap();
        let fused = block_on(bench.rt.queue().read(&bench.dst)).unwrap();
        assert_eq!(fused, [15.0; ELEMENTS], "{outcome}");
        outcome.is_fused()
    });
}

#[test]
fn a_graph_is_recorded_within_a_second_and_uses_its_kernel_once_that_is_built() {
    let bench = Bench::with_builder(Runtime::builder().fusion(FusionMode::Auto));
    let compiler = bench.simulator.pause_compiles();
    let started = Instant::now();
    let graph = bench.graph(4.0);
    assert!(started.elapsed() < HELD_UP, "{:?}", started.elapsed());
    let why = graph.fusion().to_string();
    assert!(why.contains(FUSED) && why.contains("within 1s"), "{why}");
    block_on(graph.replay().submit().unwrap()).unwrap();
    bench.assert_result(4.0);
    drop(compiler);
    eventually("the kernel is used", || {
        block_on(graph.replay().submit().unwrap()).unwrap();
        bench.assert_result(4.0);
        bench.fused_runs.load(SeqCst) > 0
    });
}

/// Returns a module with a kernel of three instructions for each of `lines`, which no compiler simplifies.
async fn long_module(rt: &Runtime, lines: u32) -> Module {
    let line = |number| format!("a ^= a << {}; a += {number};\n", 1 + number % 30);
    let body: String = (0..lines).map(line).collect();
    let text = format!(
        "kernel void long_one(global const uint *src, global uint *dst) {{
            size_t i = get_global_id(0);
            uint a = src[i];
            {body}
            dst[i] = a;
        }}"
    );
    translate::spirv_of(rt, &Module::opencl_c(text), "").await.unwrap()
}

/// Submits launches of a kernel of this many lines to a scope, one after the other, and returns the outcome.
fn outcome_of_long_kernels(lines: u32, launches: usize) -> String {
    let simulator = Simulator::new().fusing();
    for name in ["long_one", "fused_long_one_long_one"] {
        simulator.kernel(name, |_| ());
    }
    block_on(async {
        let builder = Runtime::builder().fusion(FusionMode::Always);
        let rt = runtime_with(&simulator, builder).await;
        let program = rt.build(&long_module(&rt, lines).await).await.unwrap();
        // SAFETY: the closures access nothing.
        let kernel = unsafe { program.kernel("long_one") }.unwrap();
        let buffers: Vec<Buffer<u32>> =
            (0..=launches).map(|_| rt.buffer(ELEMENTS).unwrap()).collect();
        let scope = rt.queue().start_fusion();
        for pair in buffers.windows(2) {
            scope.submit(kernel.launch(ELEMENTS).args((&pair[0], &pair[1]))).unwrap();
        }
        scope.complete().await.unwrap().to_string()
    })
}

#[test]
fn launches_whose_kernel_would_be_too_large_are_refused_by_name_with_the_number_and_the_limit() {
    if !has_clang() {
        return;
    }
    let small = outcome_of_long_kernels(100, 2);
    assert!(small.contains("fused_long_one_long_one"), "{small}");
    assert!(!small.contains("limit"), "{small}");
    for (lines, expected) in
        [(4000, "`fused_long_one_long_one` would have"), (8000, "instructions together")]
    {
        let large = outcome_of_long_kernels(lines, 2);
        assert!(large.contains(expected), "{large}");
        assert!(large.contains("the limit of a fused kernel is 20000"), "{large}");
    }
}

/// Limit of a compile that no compile of these tests reaches.
pub(super) const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_fused_kernel_that_does_not_fit_is_refused_each_time() {
    let bench = Bench::with_limit(FusionMode::Always, LONG);
    bench.simulator.limit_work_groups(FUSED, 8);
    for term in [1.0, 1.0, 2.0, 1.0] {
        let outcome = block_on(bench.scope_in_groups(term, 16).complete()).unwrap();
        let why = outcome.to_string();
        assert!(!outcome.is_fused(), "{why}");
        for part in ["the fused kernel does not fit", FUSED, "16", "8"] {
            assert!(why.contains(part), "{why}");
        }
        bench.assert_result(term);
    }
    assert_eq!(bench.fused_runs.load(SeqCst), 0);
    // Smaller work-groups fit, in the same scopes otherwise.
    let outcome = block_on(bench.scope_in_groups(3.0, 8).complete()).unwrap();
    assert!(outcome.is_fused(), "{outcome}");
    bench.assert_result(3.0);
    assert_eq!(bench.fused_runs.load(SeqCst), 1);
}

#[test]
fn a_fused_kernel_that_does_not_fit_fails_a_scope_that_requires_it() {
    let bench = Bench::with_limit(FusionMode::Auto, LONG);
    bench.simulator.limit_work_groups(FUSED, 8);
    for term in [1.0, 2.0] {
        let scope = bench.scope_in_groups(term, 16);
        let error = block_on(scope.require().complete()).unwrap_err();
        assert!(error.to_string().contains("the fused kernel does not fit"), "{error}");
        bench.assert_result(term);
    }
    assert_eq!(bench.fused_runs.load(SeqCst), 0);
}

#[test]
fn a_fused_kernel_that_does_not_fit_loses_the_trials() {
    let bench = Bench::with_limit(FusionMode::Auto, LONG);
    bench.simulator.limit_work_groups(FUSED, 8);
    for round in 0..40 {
        let term = round as f32;
        let outcome = block_on(bench.scope_in_groups(term, 16).complete()).unwrap();
        assert!(!outcome.is_fused(), "{outcome}");
        bench.assert_result(term);
    }
    assert_eq!(bench.fused_runs.load(SeqCst), 0);
}
