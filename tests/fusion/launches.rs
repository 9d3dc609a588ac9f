//! Fusion scopes: launches that run as one kernel, or one by one, with the same results.

#![allow(clippy::print_stderr, reason = "the log shows what was fused")]
#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use kiln::fusion::{FusionOutcome, Internalization, Unfused};
use kiln::{FusionMode, Runtime};
use support::everywhere;
use support::scopes::{
    Chain, FUSION, always, buffers, is_imitated, is_overdue, kernels, kernels_of_text,
};
use support::tools::has_clang;

/// Module of `data/estimates.cl`.
const ESTIMATES: &[u8] = include_bytes!("../data/estimates.spv");

const N: usize = 1024;

fn numbers() -> Vec<f32> {
    (0..N).map(|n| n as f32 - 100.0).collect()
}

async fn chain(rt: &Runtime) -> Chain {
    Chain::new(rt, numbers(), 3.0).await
}

everywhere! {
    async fn a_chain_runs_as_one_kernel_with_the_same_result(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt).await;
        let fusion = chain.queue.start_fusion();
        assert!(chain.queue.is_fusing() && fusion.is_fusing());
        let first = chain.first(&fusion);
        chain.second(&fusion);
        let last = fusion.submit(chain.in_place.launch(N).args((&chain.dst,))).unwrap();
        let expected: Vec<_> = chain.result().iter().map(|n| n * n).collect();
        drop(chain.tmp);
        let outcome = fusion.complete().await.unwrap();
        assert!(!chain.queue.is_fusing() && !fusion.is_fusing());
        match &outcome {
            FusionOutcome::Fused { launches: 3, internalized: 1, .. } => {}
            other => panic!("{other:?}: {}", fusion.report()),
        }
        last.await.unwrap();
        first.await.unwrap();
        assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), expected);
        assert_eq!(rt.stats().fusion.fused, 1);
    }
}

everywhere! {
    async fn launches_of_a_fused_scope_can_be_awaited_in_any_order(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt).await;
        for n in 0..60 {
            let (fusion, [first, last]) = chain.begin();
            let outcome = fusion.complete().await.unwrap();
            assert!(outcome.is_fused(), "{outcome}");
            match n % 4 {
                0 => first.await.unwrap(),
                1 => last.await.unwrap(),
                2 => _ = futures::try_join!(first, last).unwrap(),
                _ => _ = futures::try_join!(last, first).unwrap(),
            }
        }
        assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result());
    }
}

everywhere! {
    async fn a_buffer_with_a_live_handle_has_its_contents_after_fusion(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt).await;
        let (fusion, _) = chain.begin();
        let outcome = fusion.complete().await.unwrap();
        assert!(outcome.is_fused(), "{outcome}");
        assert_eq!(chain.queue.read(&chain.tmp).await.unwrap(), chain.scaled());
        assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result());
    }
}

everywhere! {
    async fn reading_a_buffer_internalized_on_request_is_an_error(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt).await;
        let (fusion, _) = chain.begin();
        fusion.internalize(&chain.tmp, Internalization::Private);
        let outcome = fusion.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Fused { internalized: 1, .. }), "{outcome}");
        let error = chain.queue.read(&chain.tmp).await.expect_err("its contents are lost");
        assert!(error.to_string().contains("internalized"), "{error}");
        chain.queue.fill(&chain.tmp, 7.0).unwrap();
        assert_eq!(chain.queue.read(&chain.tmp).await.unwrap(), [7.0; N]);
        assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result());
    }
}

everywhere! {
    async fn launches_whose_fusion_would_change_the_result_run_unfused(rt: Runtime) {
        let rt = always(&rt).await;
        let [scale, blur] = kernels(&rt, FUSION, ["scale", "blur"]).await;
        let queue = rt.queue();
        let [src, tmp, dst] = buffers(&rt, &numbers()).await;
        queue.fill(&dst, 0.0).unwrap();
        let fusion = queue.start_fusion();
        fusion.submit(scale.launch(N).args((&src, &tmp, 2.0f32))).unwrap();
        fusion.submit(blur.launch(N - 2).offset(1).args((&tmp, &dst))).unwrap();
        let outcome = fusion.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Unfused { why: Unfused::Refused(_), .. }));
        let read = queue.read(&dst).await.unwrap();
        let scaled: Vec<_> = numbers().iter().map(|n| n * 2.0).collect();
        assert!((1..N - 1).all(|i| read[i] == scaled[i - 1] + scaled[i] + scaled[i + 1]));
    }
}

everywhere! {
    async fn a_scope_that_requires_fusion_returns_an_error_and_runs_unfused(rt: Runtime) {
        let [scale, blur] = kernels(&rt, FUSION, ["scale", "blur"]).await;
        let queue = rt.queue();
        let [src, tmp, dst] = buffers(&rt, &numbers()).await;
        queue.fill(&dst, 0.0).unwrap();
        let fusion = queue.start_fusion();
        fusion.submit(scale.launch(N).args((&src, &tmp, 2.0f32))).unwrap();
        let last = fusion.submit(blur.launch(N - 2).offset(1).args((&tmp, &dst))).unwrap();
        let error = fusion.require().complete().await.expect_err("it cannot be fused");
        assert_eq!(error.kind(), kiln::ErrorKind::Unsupported);
        last.await.unwrap();
    }
}

/// Runs a chain once. Returns its outcome, and whether it is known which way is the fastest.
async fn run_chain(rt: &Runtime) -> (FusionOutcome, bool) {
    loop {
        let chain = chain(rt).await;
        let (fusion, _) = chain.begin();
        let expected = chain.result();
        drop(chain.tmp);
        let outcome = fusion.complete().await.unwrap();
        assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), expected);
        // The times of a run are reported after its results.
        rt.drain().await;
        if !is_overdue(&outcome) {
            let report = fusion.report();
            let mut ways = report.parts().iter().flat_map(|part| &part.ways);
            return (outcome, ways.any(|way| way.is_chosen));
        }
    }
}

/// Runs the chain until Kiln has decided which way is faster.
async fn find_faster(rt: &Runtime) -> FusionOutcome {
    let mut timed = 0;
    for _ in 0..100 {
        let (outcome, is_known) = run_chain(rt).await;
        timed += usize::from(outcome.to_string().contains("this run is timed"));
        if is_known {
            assert!((1..=4).contains(&timed), "{timed}");
            return run_chain(rt).await.0;
        }
    }
    panic!("after 100 runs it is not known which way is faster");
}

everywhere! {
    async fn the_faster_variant_is_determined_in_trial_runs_and_stored_on_disk(rt: Runtime) {
        let folder = tempfile::tempdir().expect("there is room");
        let start = async || {
            let builder = Runtime::builder().cache(kiln::CacheConfig::at(folder.path()));
            let builder = builder.fusion(FusionMode::Auto);
            builder.device(rt.device().index().to_string()).build().await.expect("the device is there")
        };
        let rt = start().await;
        let found = find_faster(&rt).await;
        rt.drain().await;

        let rt = start().await;
        for _ in 0..3 {
            let (outcome, is_known) = run_chain(&rt).await;
            assert_eq!(outcome.is_fused(), found.is_fused(), "{outcome}");
            assert!(is_known);
            assert!(!matches!(outcome, FusionOutcome::Unfused { why: Unfused::Timing, .. }));
        }
        assert_eq!(rt.stats().builds.compiles, 0, "the fused program was on disk");
    }
}

everywhere! {
    async fn other_buffers_and_sizes_reuse_the_fused_program(rt: Runtime) {
        let rt = always(&rt).await;
        let mut compiles = Vec::new();
        for (len, factor) in [(N, 2.0f32), (N, 3.0), (N / 2, 3.0), (N / 4, 1.0)] {
            let chain = Chain::new(&rt, vec![1.0; len], factor).await;
            let (fusion, _) = chain.begin();
            drop(chain.tmp);
            assert!(fusion.complete().await.unwrap().is_fused());
            assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), vec![factor + 1.0; len]);
            compiles.push(rt.stats().builds.compiles);
        }
        assert_eq!(compiles, [compiles[0]; 4]);
    }
}

/// PoCL's compiler is known to move a load before a conditional store.
const PARTLY_WRITTEN: &str = "
    kernel void first(global const int *src, global int *dst) {
        size_t i = get_global_id(1) * get_global_size(0) + get_global_id(0);
        dst[i] = (src[i] + src[i]) & src[i];
    }
    kernel void rows(global const int *src, global int *dst, uint width) {
        size_t i = get_global_id(1) * width + get_global_id(0);
        dst[i] = src[i] + 1;
    }
    kernel void last(global const int *src, global int *dst) {
        int i = get_global_id(0);
        dst[i] = src[i] + 1;
    }";

everywhere! {
    async fn a_larger_launch_reads_the_output_of_a_smaller_one(rt: Runtime) {
        let rt = always(&rt).await;
        let program = support::program(&rt, PARTLY_WRITTEN).await;
        // SAFETY: they touch what belongs to their work-item, of which there are no more than elements.
        let kernel = |name| unsafe { program.kernel(name) }.expect("it is there");
        let queue = rt.queue();
        let old: Vec<i32> = (0..64).map(|n| n * 40_503).collect();
        let [src, both, some, dst] = [(); 4].map(|()| rt.buffer_from(old.clone()));
        let [src, both, some, dst] =
            [src.await, both.await, some.await, dst.await].map(|buffer| buffer.unwrap());
        let fusion = queue.start_fusion();
        fusion.submit(kernel("first").launch([8, 8]).args((&src, &both))).unwrap();
        fusion.submit(kernel("rows").launch([8, 4]).args((&both, &some, 8u32))).unwrap();
        fusion.submit(kernel("last").launch(64).args((&some, &dst))).unwrap();
        let outcome = fusion.complete().await.unwrap();
        assert!(outcome.is_fused() || !has_clang(), "{outcome}");
        let expected: Vec<_> = (0..64)
            .map(|i| if i < 32 { ((old[i] + old[i]) & old[i]) + 2 } else { old[i] + 1 })
            .collect();
        assert_eq!(queue.read(&dst).await.unwrap(), expected);
    }
}

/// Part of a random chain whose result was wrong on PoCL: its compiler moved the third kernel's reads before
/// the first one's writes, within the same work-item.
const READ_THROUGH_HELPERS: &str = "
    __attribute__((noinline)) long get(global const long *p, size_t i) { return p[i]; }
    __attribute__((noinline)) void put(global long *p, size_t i, long a) { p[i] = (ulong)((ulong)a >> 3); }
    kernel void first(global const long *src, global long *dst, uint width) {
        uint x = get_global_id(0), y = get_global_id(1);
        uint i = y * width + x;
        put(dst, i, get(src, i));
    }
    kernel void other(global uint *own) {
        ulong i = get_global_id(1) * get_global_size(0) + get_global_id(0);
        own[i] = rotate(own[i], 4u);
    }
    kernel void last(global const long *src, global long *dst, uint width) {
        int x = get_global_id(0), y = get_global_id(1);
        int i = y * width + x;
        dst[i] = (ulong)src[i] + 1;
    }";

everywhere! {
    async fn two_dimensional_launches_read_the_output_of_earlier_launches(rt: Runtime) {
        let rt = always(&rt).await;
        let program = support::program(&rt, READ_THROUGH_HELPERS).await;
        // SAFETY: they touch what belongs to their work-item, of which there are as many as elements.
        let kernel = |name| unsafe { program.kernel(name) }.expect("it is there");
        let queue = rt.queue();
        let numbers: Vec<_> = (1..65).map(|n: i64| n.wrapping_mul(0x1e37_79b9_7f4a_7c15)).collect();
        let src = rt.buffer_from(numbers.clone()).await.unwrap();
        let own = rt.buffer_from(vec![1u32; 64]).await.unwrap();
        let [tmp, dst] = [(); 2].map(|()| rt.buffer::<i64>(64).unwrap());
        queue.fill(&tmp, 7).unwrap();
        let fusion = queue.start_fusion();
        fusion.submit(kernel("first").launch([8, 8]).args((&src, &tmp, 8u32))).unwrap();
        fusion.submit(kernel("other").launch([8, 8]).args((&own,))).unwrap();
        fusion.submit(kernel("last").launch([8, 8]).args((&tmp, &dst, 8u32))).unwrap();
        let outcome = fusion.complete().await.unwrap();
        assert!(outcome.is_fused() || !has_clang(), "{outcome}");
        let expected: Vec<_> = numbers.iter().map(|n| (*n as u64 >> 3) as i64 + 1).collect();
        assert_eq!(queue.read(&dst).await.unwrap(), expected);
    }
}

/// A compiler may compute the sine and the native sine of one number by one function, which rounds differently.
const ANGLES: &str = "
    kernel void sines(global const float *x, global float *y) {
        size_t i = get_global_id(0);
        y[i] = sin(x[i]) + native_sin(x[i]);
    }
    kernel void cosines(global const float *x, global float *y) {
        size_t i = get_global_id(0);
        y[i] = cos(x[i]) + native_cos(x[i]);
    }";

everywhere! {
    async fn fused_sines_and_cosines_match_their_unfused_results(rt: Runtime) {
        if is_imitated() {
            return;
        }
        let rt = always(&rt).await;
        let kernels = kernels_of_text(&rt, ANGLES, ["sines", "cosines"]).await;
        let numbers: Vec<_> = (0..N).map(|n| n as f32 * 0.37 - 40.0).collect();
        let [x, sines, cosines] = buffers(&rt, &numbers).await;
        let queue = rt.queue();
        let mut alone = Vec::new();
        for (kernel, y) in kernels.iter().zip([&sines, &cosines]) {
            queue.submit(kernel.launch(N).args((&x, y))).unwrap();
            alone.push(queue.read(y).await.unwrap());
            queue.fill(y, 0.0).unwrap();
        }
        let fusion = queue.start_fusion();
        for (kernel, y) in kernels.iter().zip([&sines, &cosines]) {
            fusion.submit(kernel.launch(N).args((&x, y))).unwrap();
        }
        let outcome = fusion.complete().await.unwrap();
        assert!(outcome.is_fused() || !has_clang(), "{outcome}");
        for (y, alone) in [&sines, &cosines].into_iter().zip(alone) {
            assert_eq!(queue.read(y).await.unwrap(), alone);
        }
    }
}

everywhere! {
    async fn fused_estimates_of_uniform_values_match_their_unfused_results(rt: Runtime) {
        if is_imitated() {
            return;
        }
        let rt = always(&rt).await;
        let names = ["written", "estimated", "by_scalar"];
        let [written, estimated, by_scalar] = kernels(&rt, ESTIMATES, names).await;
        let [shared, first, second] = buffers(&rt, &numbers()).await;
        let queue = rt.queue();
        let third = rt.buffer::<f32>(N).unwrap();
        let results = async || {
            let mut all = Vec::new();
            for buffer in [&first, &second, &third] {
                all.push(queue.read(buffer).await.unwrap());
                queue.fill(buffer, 0.0).unwrap();
            }
            all
        };
        // Known limit: Intel's driver chooses work-groups by the number of processors. With those of one
        // processor, it estimates what all work-items share differently in a fused kernel, and Kiln fuses all the same.
        let count = if rt.device().limits.compute_units == 1 { 1 } else { 2 };
        let scopes = || {
            let written = written.launch(N).args((&shared,));
            let by_scalar = |to| by_scalar.launch(N / 13).args((to, 13i32));
            let all = [
                [written, estimated.launch(N).args((&shared, &first))],
                [by_scalar(&second), by_scalar(&third)],
            ];
            all.into_iter().take(count)
        };
        for buffer in [&second, &third] {
            queue.fill(buffer, 0.0).unwrap();
        }
        for launch in scopes().flatten() {
            queue.submit(launch).unwrap();
        }
        let alone = results().await;
        for launches in scopes() {
            let fusion = queue.start_fusion();
            for launch in launches {
                fusion.submit(launch).unwrap();
            }
            let outcome = fusion.complete().await.unwrap();
            assert!(outcome.is_fused(), "{outcome}");
        }
        assert_eq!(results().await, alone);
    }
}

/// C compilers assume that memory is not read as another type than it was written as.
const TWO_TYPES: &str = "
    kernel void look(global const int *q, global float *out, int n) {
        int g = get_global_id(0);
        for (int k = 0; k < n; k++) out[g * n + k] = (float)(q[g * n + k] & 0xffffff);
    }
    kernel void stir(global float *p, int n, float f) {
        int g = get_global_id(0);
        for (int k = 0; k < n; k++) p[g * n + k] = f;
    }";

everywhere! {
    async fn floats_written_to_a_slice_are_read_as_integers_of_the_whole_buffer(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let rt = always(&rt).await;
        let program = support::program(&rt, TWO_TYPES).await;
        // SAFETY: they touch what belongs to their work-item, which the buffers have.
        let [look, stir] = ["look", "stir"].map(|name| unsafe { program.kernel(name) }.unwrap());
        let queue = rt.queue();
        let numbers: Vec<_> = (0..8 * N as u32).map(f32::from_bits).collect();
        let whole = rt.buffer_from(numbers).await.unwrap();
        let head = whole.slice(..4 * N).unwrap();
        let bits = whole.cast::<i32>().unwrap();
        let [before, after] = [(); 2].map(|()| rt.buffer::<f32>(4 * N).unwrap());
        let fusion = queue.start_fusion();
        fusion.submit(look.launch(N).args((&bits, &before, 4))).unwrap();
        fusion.submit(stir.launch(N).args((&head, 4, 2.5f32))).unwrap();
        fusion.submit(look.launch(N).args((&bits, &after, 4))).unwrap();
        let outcome = fusion.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Fused { launches: 3, .. }), "{outcome}");
        let expected: Vec<_> = (0..4 * N).map(|n| n as f32).collect();
        assert_eq!(queue.read(&before).await.unwrap(), expected);
        let expected = (2.5f32.to_bits() & 0xff_ffff) as f32;
        assert_eq!(queue.read(&after).await.unwrap(), vec![expected; 4 * N]);
    }
}

/// Module of `data/rare.spvasm`.
const RARE: &[u8] = include_bytes!("../data/rare.spv");

everywhere! {
    async fn elements_skipped_by_three_component_vectors_keep_their_values(rt: Runtime) {
        let rt = always(&rt).await;
        let [filled, fourths, fourth] = kernels(&rt, RARE, ["filled", "fourths", "fourth"]).await;
        let queue = rt.queue();
        let numbers: Vec<_> = (0..4 * N).map(|n| n as f32).collect();
        let [x, y] = [(); 2].map(|()| rt.buffer_from(numbers.clone()));
        let (x, y) = (x.await.unwrap(), y.await.unwrap());
        let dst = rt.buffer::<f32>(N).unwrap();
        let fusion = queue.start_fusion();
        fusion.submit(filled.launch(N).args((&x, 1.5f32))).unwrap();
        fusion.submit(fourth.launch(N).args((&x, &dst))).unwrap();
        fusion.submit(fourths.launch(N).args((&y, 0.5f32))).unwrap();
        fusion.submit(filled.launch(N).args((&y, 2.5f32))).unwrap();
        let outcome = fusion.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Fused { launches: 4, .. }), "{outcome}");
        let expected: Vec<_> = numbers.iter().copied().skip(3).step_by(4).collect();
        assert_eq!(queue.read(&dst).await.unwrap(), expected);
        assert_eq!(queue.read(&y).await.unwrap(), [2.5, 2.5, 2.5, 0.5].repeat(N));
    }
}

everywhere! {
    async fn a_buffer_can_be_passed_to_two_restricted_read_only_parameters(rt: Runtime) {
        const RESTRICTED: &[u8] = include_bytes!("../data/restricted.spv");

        let rt = always(&rt).await;
        let [accumulate, copy] = kernels(&rt, RESTRICTED, ["accumulate", "copy"]).await;
        let queue = rt.queue();
        let source = rt.buffer_from((0..N as u32).collect::<Vec<_>>()).await.unwrap();
        let sums = rt.buffer_from(vec![1_u32; N]).await.unwrap();
        let copied = rt.buffer::<u32>(N).unwrap();
        let fusion = queue.start_fusion();
        fusion.submit(accumulate.launch(N).args((&source, &source, &sums, 4))).unwrap();
        fusion.submit(copy.launch(N).args((&sums, &copied))).unwrap();
        let outcome = fusion.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Fused { launches: 2, .. }), "{outcome}");
        let expected: Vec<_> = (0..N as u32).map(|n| 1 + 4 * n * n).collect();
        assert_eq!(queue.read(&copied).await.unwrap(), expected);
    }
}

/// OpenCL C defines the results for dimensions that do not exist; SPIR-V does not.
const MISSING_DIMENSIONS: &str = "
    kernel void places(global uint *dst, uint dimensions) {
        size_t at = get_global_id(1) * get_global_size(0) + get_global_id(0);
        uint hash = 0;
        for (uint d = 0; d < dimensions; ++d)
            hash = hash * 31 + get_global_id(d) + 7 * get_global_size(d) + 3 * get_global_offset(d);
        dst[at] = hash;
    }";

everywhere! {
    async fn dimensions_beyond_the_range_have_one_work_item(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let rt = always(&rt).await;
        let places = support::kernel(&rt, MISSING_DIMENSIONS, "places").await;
        let queue = rt.queue();
        let fusion = queue.start_fusion();
        let mut all = Vec::new();
        for [width, height] in [[8, 8], [4, 8], [32, 1]] {
            let dst = rt.buffer::<u32>(64).unwrap();
            fusion.submit(places.launch([width, height]).args((&dst, 6u32))).unwrap();
            let place = |at: usize, d: usize| match d {
                0 => (at % width) + 7 * width,
                1 => (at / width) + 7 * height,
                _ => 7,
            };
            let hash = |at| (0..6).fold(0u32, |hash, d| hash.wrapping_mul(31) + place(at, d) as u32);
            all.push((dst, (0..width * height).map(hash).collect::<Vec<_>>()));
        }
        let outcome = fusion.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Fused { launches: 3, .. }), "{outcome}");
        for (dst, expected) in all {
            let values = queue.read(&dst).await.unwrap();
            assert_eq!(values[..expected.len()], expected);
        }
    }
}

everywhere! {
    async fn scopes_with_fewer_than_two_launches_report_why_they_are_unfused(rt: Runtime) {
        let rt = always(&rt).await;
        let [in_place] = kernels(&rt, FUSION, ["in_place"]).await;
        let (queue, [buffer, ..]) = (rt.queue(), buffers(&rt, &numbers()).await);
        let why = |outcome: FusionOutcome| match outcome {
            FusionOutcome::Unfused { why, .. } => why,
            other => panic!("{other}"),
        };
        let empty = queue.start_fusion();
        assert!(matches!(why(empty.complete().await.unwrap()), Unfused::Empty));
        assert!(matches!(why(empty.complete().await.unwrap()), Unfused::Canceled));

        let single = queue.start_fusion();
        let event = single.submit(in_place.launch(N).args((&buffer,))).unwrap();
        assert!(matches!(why(single.complete().await.unwrap()), Unfused::Single));
        event.await.unwrap();
        let error = single.submit(in_place.launch(N).args((&buffer,))).expect_err("it has ended");
        assert_eq!(error.kind(), kiln::ErrorKind::InvalidArgument);

        let canceled = queue.start_fusion();
        let event = canceled.submit(in_place.launch(N).args((&buffer,))).unwrap();
        canceled.cancel();
        event.await.unwrap();
        assert!(matches!(why(canceled.complete().await.unwrap()), Unfused::Canceled));
    }
}

everywhere! {
    async fn a_scope_runs_even_if_its_completion_future_is_dropped(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt).await;
        let (fusion, [_, last]) = chain.begin();
        drop(fusion.complete());
        drop(fusion);
        last.await.unwrap();
        assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result());
    }
}

everywhere! {
    async fn a_failure_before_a_scope_reaches_only_dependent_launches(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt).await;
        let failed = chain.queue.host_task(async { Err::<(), _>("on purpose") }).unwrap();
        failed.clone().await.expect_err("it fails");
        let fusion = chain.queue.start_fusion();
        let independent = chain.first(&fusion);
        let launch = chain.offset.launch(N).args((&chain.src, &chain.dst, 1.0f32));
        let first = fusion.submit(launch.after(&failed)).unwrap();
        let second = fusion.submit(chain.in_place.launch(N).args((&chain.dst,))).unwrap();
        let error = fusion.complete().await.expect_err("a launch of the scope is certain to fail");
        assert!(error.to_string().contains("on purpose"), "{error}");
        independent.await.unwrap();
        for event in [first, second] {
            let error = event.await.expect_err("it comes after what failed");
            assert!(error.to_string().contains("on purpose"), "{error}");
        }
    }
}

everywhere! {
    async fn examining_a_scope_does_not_run_its_launches(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt).await;
        chain.queue.fill(&chain.dst, 0.0).unwrap().await.unwrap();
        let fusion = chain.queue.start_fusion();
        fusion.examine().await.expect_err("there is nothing to examine");
        chain.first(&fusion);
        let last = chain.second(&fusion);
        let report = fusion.examine().await.unwrap();
        assert!(fusion.is_fusing());
        assert!(matches!(last.status(), kiln::commands::Status::Waiting));
        let [first, second] = report.launches() else { panic!("{report}") };
        assert_eq!((&*first.kernel, &*second.kernel), ("scale", "offset"));
        assert_eq!(first.range.global(), [N]);
        assert!(report.kernel().is_some() && report.spirv().is_some(), "{report}");
        assert!(report.opencl_c().unwrap().contains("kernel void"));
        assert!(fusion.complete().await.unwrap().is_fused());
        last.await.unwrap();
    }
}

everywhere! {
    async fn examining_a_scope_with_a_failed_launch_is_an_error(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt).await;
        let failing = chain.queue.host_task(async { Err::<(), _>("on purpose") }).unwrap();
        failing.clone().await.expect_err("it fails");
        let fusion = chain.queue.start_fusion();
        chain.first(&fusion);
        let launch = chain.in_place.launch(N).args((&chain.dst,)).after(&failing);
        fusion.submit(launch).unwrap();
        let Err(error) = fusion.examine().await else { panic!("a launch has failed") };
        assert!(error.to_string().contains("failed, so the other launches are not examined"), "{error}");
    }
}
