//! Limits of fused kernels. If a compile takes longer than the limit, or never ends, the launches run one by one,
//! and later scopes do not wait. If the device does not accept the work-groups of the launches for the fused
//! kernel, the launches run one by one, too.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{
    Buffer, ErrorKind, FusionMode, FusionOutcome, FusionScope, Kernel, Launch, Module, Runtime,
    Unfused,
};
use support::simulation::{eventually, runtime_with};

/// Module of `data/fusion.cl`.
const FUSION: &[u8] = include_bytes!("../data/fusion.spv");

/// Limit that passes soon, but not before a scope that need not wait has returned.
const LIMIT: Duration = Duration::from_millis(50);

const FUSED: &str = "fused_scale_offset";

const ELEMENTS: usize = 64;

/// Simulated device on which launches of `scale` and `offset` can be fused.
struct Bench {
    simulator: Simulator,
    rt: Runtime,
    kernels: [Kernel; 2],
    src: Buffer<f32>,
    dst: Buffer<f32>,
    /// Number of runs of the fused kernel.
    fused_runs: Arc<AtomicUsize>,
}

impl Bench {
    fn new(mode: FusionMode) -> Self {
        Self::with_limit(mode, LIMIT)
    }

    fn with_limit(mode: FusionMode, limit: Duration) -> Self {
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
            let builder = Runtime::builder().fusion(mode).fusion_limit(limit);
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
    fn scope(&self, term: f32) -> FusionScope {
        self.scope_with(term, |launch| launch)
    }

    /// Returns such a scope, whose launches have these work-groups.
    fn scope_in_groups(&self, term: f32, local: usize) -> FusionScope {
        self.scope_with(term, |launch| launch.local(local))
    }

    fn scope_with(&self, term: f32, change: impl Fn(Launch) -> Launch) -> FusionScope {
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

    /// Runs scopes until one is fused.
    fn await_fused(&self) {
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
    assert_eq!(bench.rt.stats().fusions_overdue, 4);
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

/// Limit of a compile that no compile of these tests reaches.
const LONG: Duration = Duration::from_secs(600);

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
