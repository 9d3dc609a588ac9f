//! Fusion scopes whose launches run in several parts, because they cannot all run as one kernel.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use std::time::{Duration, Instant};

use kiln::fusion::{FusionForm, FusionOutcome, Unfused};
use kiln::{Buffer, CacheConfig, Event, FusionMode, FusionScope, Kernel, Launch, Runtime};
use support::everywhere;
use support::scopes::{FUSION, always, is_overdue, kernels, kernels_of_text};
use support::tools::has_clang;

const N: usize = 1024;

/// Five launches, of which the third reads what neighbouring work-items of the second wrote.
struct Stages {
    scale: Kernel,
    offset: Kernel,
    blur: Kernel,
    buffers: Vec<Buffer<f32>>,
}

impl Stages {
    async fn new(rt: &Runtime) -> Self {
        let [scale, offset, blur] = kernels(rt, FUSION, ["scale", "offset", "blur"]).await;
        let numbers: Vec<_> = (0..N).map(|n| n as f32 - 100.0).collect();
        let mut buffers = vec![rt.buffer_from(numbers).await.unwrap()];
        for _ in 0..5 {
            let buffer = rt.buffer(N).unwrap();
            rt.queue().fill(&buffer, 0.0).unwrap();
            buffers.push(buffer);
        }
        // Commands in flight hold handles of their buffers.
        rt.drain().await;
        Self { scale, offset, blur, buffers }
    }

    fn launches(&self) -> [Launch; 5] {
        let Self { scale, offset, blur, buffers } = self;
        let [src, a, b, c, d, dst] = &buffers[..] else { panic!("there are six buffers") };
        [
            scale.launch(N - 2).offset(1).args((src, a, 2.0f32)),
            offset.launch(N - 2).offset(1).args((a, b, 3.0f32)),
            blur.launch(N - 2).offset(1).args((b, c)),
            scale.launch(N - 2).offset(1).args((c, d, 0.5f32)),
            offset.launch(N - 2).offset(1).args((d, dst, -1.0f32)),
        ]
    }

    fn submit(&self, scope: &FusionScope) -> Vec<Event> {
        self.launches().map(|launch| scope.submit(launch).unwrap()).into()
    }

    /// Returns the contents of the buffers that `is_read` holds for.
    async fn contents(&self, rt: &Runtime, is_read: impl Fn(usize) -> bool) -> Vec<Vec<f32>> {
        let mut contents = Vec::new();
        for (_, buffer) in self.buffers.iter().enumerate().filter(|(at, _)| is_read(*at)) {
            contents.push(rt.queue().read(buffer).await.unwrap());
        }
        contents
    }

    /// Returns the contents of the buffers after the launches ran without a scope.
    async fn expected(rt: &Runtime, is_read: impl Fn(usize) -> bool) -> Vec<Vec<f32>> {
        let stages = Self::new(rt).await;
        for launch in stages.launches() {
            rt.queue().submit(launch).unwrap();
        }
        stages.contents(rt, is_read).await
    }
}

/// Returns the launches of each part, and whether a fused kernel does their work.
fn parts(outcome: &FusionOutcome) -> Vec<(Vec<usize>, bool)> {
    match outcome {
        FusionOutcome::Parts { parts, .. } => {
            parts.iter().map(|part| (part.launches.clone(), part.kernel.is_some())).collect()
        }
        other => panic!("{other}"),
    }
}

everywhere! {
    async fn launches_around_a_pair_that_cannot_be_fused_are_fused(rt: Runtime) {
        let rt = always(&rt).await;
        let expected = Stages::expected(&rt, |_| true).await;
        let stages = Stages::new(&rt).await;
        for n in 0..12 {
            let scope = rt.queue().start_fusion();
            let events = stages.submit(&scope);
            let outcome = scope.complete().await.unwrap();
            assert_eq!(parts(&outcome), [(vec![0, 1], true), (vec![2, 3, 4], true)], "{outcome}");
            assert!(!outcome.is_fused(), "not as one kernel");
            events[n % 5].clone().await.unwrap();
            for event in events.into_iter().rev() {
                event.await.unwrap();
            }
            assert_eq!(stages.contents(&rt, |_| true).await, expected);
        }
        assert_eq!((rt.stats().fusion.fused, rt.stats().fusion.refused), (12, 0));
        assert_eq!(rt.stats().commands.in_flight, 0);
    }
}

everywhere! {
    async fn parts_do_without_buffers_that_no_other_part_reads(rt: Runtime) {
        let rt = always(&rt).await;
        let expected = Stages::expected(&rt, |at| at == 5).await;
        let mut stages = Stages::new(&rt).await;
        let scope = rt.queue().start_fusion();
        stages.submit(&scope);
        stages.buffers.drain(..5);
        let outcome = scope.complete().await.unwrap();
        let FusionOutcome::Parts { parts, .. } = &outcome else { panic!("{outcome}") };
        let internalized: Vec<_> = parts.iter().map(|part| part.internalized).collect();
        assert_eq!(internalized, [1, 2], "{outcome}: {}", scope.report());
        let report = scope.report();
        let is_internalized = report.buffers().iter().map(|buffer| buffer.internalized.is_some());
        let is_internalized: Vec<_> = is_internalized.collect();
        assert_eq!(is_internalized, [false, true, false, true, true, false], "{report}");
        assert_eq!(stages.contents(&rt, |_| true).await, expected);
    }
}

everywhere! {
    async fn a_report_lists_the_parts_with_their_kernels_and_forms(rt: Runtime) {
        let rt = always(&rt).await;
        let stages = Stages::new(&rt).await;
        let scope = rt.queue().start_fusion();
        stages.submit(&scope);
        let report = scope.examine().await.unwrap();
        assert!(report.kernel().is_none());
        assert!(report.refusal().unwrap().contains("`blur` reads"), "{report}");
        let [first, second] = report.parts() else { panic!("{report}") };
        assert_eq!((&first.launches[..], &second.launches[..]), (&[0, 1][..], &[2, 3, 4][..]));
        for part in report.parts() {
            let forms = part.ways.iter().flat_map(|way| &way.steps).filter_map(|step| step.form);
            assert_eq!(forms.collect::<Vec<_>>(), [FusionForm::Direct], "{report}");
        }
        assert!(report.to_string().contains("fused in parts: `blur` reads"), "{report}");
        scope.cancel();
    }
}

everywhere! {
    async fn a_scope_that_requires_one_kernel_does_not_run_in_parts(rt: Runtime) {
        let rt = always(&rt).await;
        let expected = Stages::expected(&rt, |_| true).await;
        let stages = Stages::new(&rt).await;
        for _ in 0..2 {
            let scope = rt.queue().start_fusion();
            stages.submit(&scope);
            let error = scope.require().complete().await.unwrap_err();
            assert_eq!(error.kind(), kiln::ErrorKind::Unsupported);
            assert!(error.to_string().contains("`blur` reads"), "{error}");
            assert_eq!(stages.contents(&rt, |_| true).await, expected);
        }
    }
}

everywhere! {
    async fn launches_that_come_after_events_run_in_parts(rt: Runtime) {
        let rt = always(&rt).await;
        let expected = Stages::expected(&rt, |_| true).await;
        let stages = Stages::new(&rt).await;
        let marker = rt.queue().marker().unwrap();
        let scope = rt.queue().start_fusion();
        for launch in stages.launches() {
            scope.submit(launch.after(&marker)).unwrap();
        }
        let outcome = scope.complete().await.unwrap();
        assert_eq!(parts(&outcome), [(vec![0, 1], true), (vec![2, 3, 4], true)], "{outcome}");
        assert_eq!(stages.contents(&rt, |_| true).await, expected);
    }
}

everywhere! {
    async fn launches_stay_behind_those_whose_events_they_come_after(rt: Runtime) {
        let rt = always(&rt).await;
        let [scale, blur] = kernels(&rt, FUSION, ["scale", "blur"]).await;
        let ones = vec![1.0f32; N];
        let mut buffers = Vec::new();
        for _ in 0..4 {
            buffers.push(rt.buffer_from(ones.clone()).await.unwrap());
        }
        let [a, b, c, d] = &buffers[..] else { panic!("there are four buffers") };
        let over = |kernel: &Kernel| kernel.launch(N - 2).offset(1);
        for is_after in [false, true] {
            let scope = rt.queue().start_fusion();
            scope.submit(over(&scale).args((a, b, 2.0f32))).unwrap();
            let blurred = scope.submit(over(&blur).args((b, c))).unwrap();
            // Without the event, it runs together with the first launch.
            let last = over(&scale).args((a, d, 3.0f32));
            let last = if is_after { last.after(&blurred) } else { last };
            scope.submit(last).unwrap();
            let outcome = scope.complete().await.unwrap();
            if is_after {
                let why = outcome.to_string();
                assert!(why.contains("launch 2 was submitted to come after launch 1"), "{why}");
            } else {
                assert_eq!(parts(&outcome), [(vec![0, 2], true), (vec![1], false)], "{outcome}");
            }
            assert_eq!(rt.queue().read(d).await.unwrap()[1..N - 1], [3.0; N - 2]);
            assert_eq!(rt.queue().read(c).await.unwrap()[2..N - 2], [6.0; N - 4]);
        }
    }
}

everywhere! {
    async fn the_fastest_way_of_each_part_is_stored_on_disk(rt: Runtime) {
        let folder = tempfile::tempdir().expect("there is room");
        let start = async || {
            let builder = Runtime::builder().cache(CacheConfig::at(folder.path()));
            let builder = builder.fusion(FusionMode::Auto).device(rt.device().index().to_string());
            builder.build().await.expect("the device is there")
        };
        let run = async |rt: &Runtime, stages: &Stages, expected: &[Vec<f32>]| loop {
            let scope = rt.queue().start_fusion();
            stages.submit(&scope);
            let outcome = scope.complete().await.unwrap();
            assert_eq!(stages.contents(rt, |_| true).await, expected, "{outcome}");
            // The times of a run are reported after its results.
            rt.drain().await;
            if !is_overdue(&outcome) {
                break (outcome, scope.report());
            }
        };
        let chosen = |report: &kiln::fusion::FusionReport| {
            let parts = report.parts().iter();
            let chosen = parts.map(|part| {
                part.ways.iter().find(|way| way.is_chosen).map(|way| format!("{:?}", way.steps))
            });
            chosen.collect::<Option<Vec<_>>>()
        };
        let rt = start().await;
        let expected = Stages::expected(&rt, |_| true).await;
        let stages = Stages::new(&rt).await;
        let mut winners = None;
        let deadline = Instant::now() + Duration::from_secs(60);
        while winners.is_none() && Instant::now() < deadline {
            let (_, report) = run(&rt, &stages, &expected).await;
            assert_eq!(report.parts().len(), 2, "{report}");
            winners = chosen(&report);
        }
        let winners = winners.expect("the trials end");
        drop(stages);
        rt.drain().await;

        let rt = start().await;
        let stages = Stages::new(&rt).await;
        for _ in 0..2 {
            let (outcome, report) = run(&rt, &stages, &expected).await;
            assert!(
                !matches!(outcome, FusionOutcome::Unfused { why: Unfused::Timing, .. }),
                "{outcome}"
            );
            let kernels = |winners: &[String]| {
                winners.iter().map(|way| way.matches("Direct").count()).collect::<Vec<_>>()
            };
            let again = chosen(&report).expect("the winners are known from the start");
            assert_eq!(kernels(&again), kernels(&winners), "{report}");
        }
        assert_eq!(rt.stats().builds.compiles, 0, "the fused programs were on disk");
    }
}

/// The last launch reads the result of the first, and cannot run before the two in between. These read elements
/// that the launch before them does not write.
const REPEATED: &str = "
    kernel void ramp(global float *dst, float step) {
        size_t i = get_global_id(0);
        dst[i] = i * step;
    }
    kernel void blur(global const float *src, global float *dst) {
        size_t i = get_global_id(0);
        dst[i] = src[i - 1] + src[i] + src[i + 1];
    }
    kernel void add(global const float *a, global const float *b, global float *dst) {
        size_t i = get_global_id(0);
        dst[i] = a[i] + b[i];
    }";

everywhere! {
    async fn a_part_repeats_launches_of_other_parts_instead_of_reading_their_results(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let rt = always(&rt).await;
        let [ramp, blur, add] = kernels_of_text(&rt, REPEATED, ["ramp", "blur", "add"]).await;
        let run = async |scope: Option<&FusionScope>, step: f32| {
            let buffers: Vec<_> = (0..4).map(|_| rt.buffer::<f32>(N).unwrap()).collect();
            let [a, b, c, d] = &buffers[..] else { panic!("there are four buffers") };
            for buffer in &buffers {
                rt.queue().fill(buffer, 1.0).unwrap();
            }
            let over = |kernel: &Kernel| kernel.launch(N - 2).offset(1);
            let launches = [
                over(&ramp).args((a, step)),
                over(&blur).args((a, b)),
                over(&blur).args((b, c)),
                over(&add).args((a, c, d)),
            ];
            let mut outcome = None;
            for launch in launches {
                match scope {
                    Some(scope) => _ = scope.submit(launch).unwrap(),
                    None => _ = rt.queue().submit(launch).unwrap(),
                }
            }
            if let Some(scope) = scope {
                outcome = Some(scope.complete().await.unwrap());
            }
            let mut contents = Vec::new();
            for buffer in &buffers {
                contents.push(rt.queue().read(buffer).await.unwrap());
            }
            (outcome, contents)
        };
        for step in [0.5, 3.0] {
            let (_, expected) = run(None, step).await;
            let scope = rt.queue().start_fusion();
            let (outcome, contents) = run(Some(&scope), step).await;
            let outcome = outcome.unwrap();
            let FusionOutcome::Parts { parts, .. } = &outcome else { panic!("{outcome}") };
            let last = parts.last().unwrap();
            assert_eq!((&last.launches[..], &last.repeated[..]), (&[2, 3][..], &[0][..]), "{outcome}");
            assert_eq!(contents, expected);
        }
    }
}

/// Launches that can only be one kernel if the first runs again for other work-items.
const STENCILS: &str = "
    kernel void rows(global const float *src, global float *dst, int width) {
        int x = get_global_id(0), y = get_global_id(1);
        float sum = 0.0f;
        for (int d = -2; d <= 2; d++) sum += src[y * width + clamp(x + d, 0, width - 1)];
        dst[y * width + x] = sum;
    }
    kernel void columns(global const float *src, global float *dst, int width, int height) {
        int x = get_global_id(0), y = get_global_id(1);
        float sum = 0.0f;
        for (int d = -2; d <= 2; d++) sum += src[clamp(y + d, 0, height - 1) * width + x];
        dst[y * width + x] = sum;
    }";

everywhere! {
    async fn several_forms_are_tried_with_the_same_results_until_the_fastest_is_known(rt: Runtime) {
        const SIDE: usize = 64;

        if !has_clang() {
            return;
        }
        let rt = automatic(&rt).await;
        let [rows, columns] = kernels_of_text(&rt, STENCILS, ["rows", "columns"]).await;
        let numbers = (0..SIDE * SIDE).map(|n| (n * 37 % 101) as f32).collect::<Vec<_>>();
        let src = rt.buffer_from(numbers).await.unwrap();
        let dst = rt.buffer::<f32>(SIDE * SIDE).unwrap();
        let launches = |tmp: &Buffer<f32>| {
            let (width, size) = (SIDE as i32, [SIDE, SIDE]);
            [
                rows.launch(size).args((&src, tmp, width)),
                columns.launch(size).args((tmp, &dst, width, width)),
            ]
        };
        for launch in launches(&rt.buffer(SIDE * SIDE).unwrap()) {
            rt.queue().submit(launch).unwrap();
        }
        let expected = rt.queue().read(&dst).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut last = None;
        while Instant::now() < deadline {
            rt.queue().fill(&dst, 0.0).unwrap();
            let scope = rt.queue().start_fusion();
            for launch in launches(&rt.buffer(SIDE * SIDE).unwrap()) {
                scope.submit(launch).unwrap();
            }
            let outcome = scope.complete().await.unwrap();
            assert_eq!(rt.queue().read(&dst).await.unwrap(), expected, "{outcome}");
            rt.drain().await;
            if is_overdue(&outcome) {
                continue;
            }
            let report = scope.report();
            let [part] = report.parts() else { panic!("{report}") };
            assert_eq!((report.kernel(), report.refusal()), (Some("fused_rows_columns"), None));
            assert!(report.to_string().ends_with("fused: `fused_rows_columns`"), "{report}");
            if part.ways.iter().any(|way| way.is_chosen) {
                let timed = part.ways.iter().filter(|way| way.time.is_some());
                let forms = timed.flat_map(|way| &way.steps).filter_map(|step| step.form);
                let forms: std::collections::BTreeSet<_> = forms.collect();
                assert!(forms.len() > 1, "{report}");
                return;
            }
            last = Some(report);
        }
        panic!("after a minute it is not known which way is the fastest: {}", last.map_or_else(String::new, |report| report.to_string()));
    }
}

/// Launches that can be one kernel, but are expected to be slower as one: the kernel repeats launches for hundreds
/// of neighbours.
const WIDE_STENCILS: &str = "
    kernel void shifted(global const int *src, global int *dst, int n) {
        int i = get_global_id(0);
        dst[i] = src[i] + src[min(i + 1, n - 1)];
    }
    kernel void wide(global const int *src, global int *dst, int n) {
        int i = get_global_id(0);
        int sum = 0;
        for (int d = -200; d <= 200; d++) sum += src[clamp(i + d, 0, n - 1)];
        dst[i] = sum;
    }
    kernel void counted(global const int *src, global int *dst) {
        int i = get_global_id(0);
        atomic_add(&dst[i], src[i]);
    }";

async fn automatic(rt: &Runtime) -> Runtime {
    let builder = support::builder().fusion(FusionMode::Auto);
    builder.device(rt.device().index().to_string()).build().await.unwrap()
}

everywhere! {
    async fn launches_that_are_expected_to_be_slower_as_one_kernel_are_one_if_that_is_required(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let rt = automatic(&rt).await;
        let names = ["shifted", "wide"];
        let [shifted, wide] = kernels_of_text(&rt, WIDE_STENCILS, names).await;
        let numbers = (0..N as i32).map(|n| n * 37 % 101).collect::<Vec<_>>();
        let src = rt.buffer_from(numbers).await.unwrap();
        let run = async |requires: Option<bool>| {
            let buffers: Vec<_> = (0..4).map(|_| rt.buffer::<i32>(N).unwrap()).collect();
            let [a, b, c, d] = &buffers[..] else { panic!("there are four buffers") };
            let n = N as i32;
            let launches = [
                shifted.launch(N).args((&src, a, n)),
                wide.launch(N).args((a, b, n)),
                shifted.launch(N).args((b, c, n)),
                wide.launch(N).args((c, d, n)),
            ];
            let mut result = None;
            if let Some(is_required) = requires {
                let scope = rt.queue().start_fusion();
                for launch in launches {
                    scope.submit(launch).unwrap();
                }
                if is_required {
                    scope.require();
                }
                let outcome = scope.complete().await.unwrap();
                result = Some((outcome, scope.report()));
            } else {
                for launch in launches {
                    rt.queue().submit(launch).unwrap();
                }
            }
            (result, rt.queue().read(d).await.unwrap())
        };
        let (_, expected) = run(None).await;
        for is_required in [false, true, true, false] {
            let (result, contents) = run(Some(is_required)).await;
            let (outcome, report) = result.unwrap();
            let is_one = matches!(outcome, FusionOutcome::Fused { .. });
            assert_eq!(is_one, is_required, "{outcome}\n{report}");
            assert_eq!(report.kernel().is_some(), is_required, "{report}");
            assert_eq!(contents, expected, "{outcome}");
        }
    }
}

everywhere! {
    async fn a_scope_that_requires_one_kernel_states_why_other_forms_are_not_legal_either(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let rt = automatic(&rt).await;
        let names = ["counted", "shifted"];
        let [counted, shifted] = kernels_of_text(&rt, WIDE_STENCILS, names).await;
        let buffers: Vec<_> = (0..3).map(|_| rt.buffer::<i32>(N).unwrap()).collect();
        let scope = rt.queue().start_fusion();
        scope.submit(counted.launch(N).args((&buffers[0], &buffers[1]))).unwrap();
        scope.submit(shifted.launch(N).args((&buffers[1], &buffers[2], N as i32))).unwrap();
        let error = scope.require().complete().await.unwrap_err().to_string();
        let (direct, others) = error.split_once("; in the form `").unwrap_or((&error, ""));
        assert!(direct.contains("`shifted` reads `src` at gid to gid+1"), "{error}");
        assert!(others.contains("`counted`"), "{error}");
    }
}

const PRODUCTS: &str = "
    kernel void unit(global const float *x, global float *y, uint n) {
        float squares = 0;
        for (uint k = 0; k < n; k++) squares += x[k] * x[k];
        size_t i = get_global_id(0);
        y[i] = x[i] * rsqrt(squares + 1.0f);
    }
    kernel void multiply(global const float *matrix, global const float *x, global float *y, uint n) {
        size_t row = get_global_id(0);
        float sum = 0;
        for (uint k = 0; k < n; k++) sum += matrix[row * n + k] * x[k];
        y[row] = sum;
    }";

// Each work-item of a kernel for all three would run the first launch 64 * 64 times.
everywhere! {
    async fn kernels_in_which_launches_run_again_too_often_are_not_tried(rt: Runtime) {
        if !has_clang() {
            return;
        }
        const N: usize = 64;
        let [unit, multiply] =
            kernels_of_text(&rt, PRODUCTS, ["unit", "multiply"]).await;
        let x = rt.buffer_from(vec![1.0f32; N]).await.unwrap();
        let matrix = rt.buffer_from(vec![1.0f32 / N as f32; N * N]).await.unwrap();
        let (result, queue) = (rt.buffer::<f32>(N).unwrap(), rt.queue());
        for _ in 0..30 {
            let [normal, product] = [(); 2].map(|()| rt.buffer::<f32>(N).unwrap());
            let scope = queue.start_fusion();
            let n = N as u32;
            scope.submit(unit.launch(N).args((&x, &normal, n))).unwrap();
            scope.submit(multiply.launch(N).args((&matrix, &normal, &product, n))).unwrap();
            scope.submit(multiply.launch(N).args((&matrix, &product, &result, n))).unwrap();
            drop((normal, product));
            scope.complete().await.unwrap();
            let expected = 1.0 / (N as f32 + 1.0).sqrt();
            let read = queue.read(&result).await.unwrap();
            assert!(read.iter().all(|value| (value - expected).abs() < 1e-4), "{}", read[0]);
            for way in scope.report().parts().iter().flat_map(|part| &part.ways) {
                let kernels = way.steps.iter().filter(|step| step.kernel.is_some());
                for step in kernels {
                    let launches = step.launches.len() + step.repeated.len();
                    assert!(launches < 3, "{}", scope.report());
                }
            }
        }
    }
}
