//! Fusion of kernels of whole files, as people write them: beside kernels that cannot be translated or are
//! hard to translate, not optimised, and with numbers of half precision in memory.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use kiln::fusion::FusionOutcome;
use kiln::internal::spirv::emit;
use kiln::internal::translate::spirv_of;
use kiln::{Buffer, Kernel, Module, Runtime};
use support::on_each_device;
use support::scopes::{always, kernels, kernels_of_text};
use support::tools::has_clang;

const N: usize = 512;

/// Kernels that clang translates without difficulty: each work-item uses its own element, in a loop.
const PLAIN: &str = include_str!("../data/files.cl");

/// Kernels with what llvm-spirv refuses: integers of 2 and of 33 bits and `freeze`, which optimisation creates,
/// and a reduction of a vector.
const HARD: &str = "
kernel void chosen(global const int *a, global float *b) {
    int i = get_global_id(0);
    float r;
    switch (a[i] & 3) {
    case 0: r = 1.5f; break;
    case 1: r = 2.5f; break;
    case 2: r = a[3]; break;
    default: r = b[4];
    }
    b[i] = r;
}
kernel void summed(global float *b, int n) {
    int i = get_global_id(0);
    int s = 0;
    for (int k = 0; k < n; ++k)
        s += k * k;
    b[i] = s;
}
kernel void unrolled(global const float *a, global float *b, int n) {
    int i = get_global_id(0);
    float s = 0;
    #pragma unroll 4
    for (int k = 0; k < n; ++k)
        s += a[i * n + k];
    b[i] = s;
}
kernel void wrapped(global const uint *a, global float *b, uint n) {
    int i = get_global_id(0);
    uint x = a[i] % n;
    uint y = x + 1;
    b[i] = y % n;
}
kernel void largest(global const int4 *a, global float *b) {
    size_t i = get_global_id(0);
    b[i] = __builtin_reduce_max(a[i]);
}";

/// A kernel that llvm-spirv refuses at all levels of optimisation.
const REFUSED: &str = "
kernel void ahead(global const float *a, global float *b) {
    size_t i = get_global_id(0);
    __builtin_prefetch((const void *)0);
    b[i] = a[i];
}";

fn numbers() -> Vec<f32> {
    (0..N).map(|n| n as f32 * 0.37 - 50.0).collect()
}

/// Runs two kernels one after the other, and in a scope. Asserts that the scope is fused, that the buffer
/// between them is no longer used, and that the results are the same.
async fn assert_fused(rt: &Runtime, [first, second]: &[Kernel; 2]) {
    let queue = rt.queue();
    let src = rt.buffer_from(numbers()).await.unwrap();
    let new = || -> Buffer<f32> { rt.buffer(N).unwrap() };
    let (between, expected) = (new(), new());
    queue.submit(first.launch(N).args((&src, &between))).unwrap();
    queue.submit(second.launch(N).args((&between, &expected))).unwrap();
    let (between, dst) = (new(), new());
    let fusion = queue.start_fusion();
    fusion.submit(first.launch(N).args((&src, &between))).unwrap();
    fusion.submit(second.launch(N).args((&between, &dst))).unwrap();
    drop(between);
    let outcome = fusion.complete().await.unwrap();
    match &outcome {
        FusionOutcome::Fused { launches: 2, internalized: 1, .. } => {}
        other => panic!("{}: {other:?}: {}", rt.device(), fusion.report()),
    }
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let (expected, found) = (queue.read(&expected).await.unwrap(), queue.read(&dst).await.unwrap());
    assert_eq!(bits(found), bits(expected), "{}", rt.device());
}

fn on_fusing_devices(test: impl AsyncFn(Runtime)) {
    if !has_clang() {
        return;
    }
    futures::executor::block_on(on_each_device(async |rt| test(always(&rt).await).await));
}

#[test]
fn kernels_beside_those_that_are_hard_to_translate_are_fused() {
    on_fusing_devices(async |rt| {
        let text = format!("{PLAIN}{HARD}");
        assert_fused(&rt, &kernels_of_text(&rt, &text, ["twice", "square"]).await).await;
    });
}

/// Returns the number of lines of a function in the translation of a text, as OpenCL C.
async fn lines_of(rt: &Runtime, text: &str, function: &str) -> usize {
    let spirv = spirv_of(rt, &Module::opencl_c(text), "").await.unwrap();
    let text = emit(spirv.code()).unwrap();
    let start = text.find(&format!("void {function}(")).unwrap_or_else(|| panic!("{text}"));
    text[start..].lines().take_while(|line| *line != "}").count()
}

#[test]
fn only_what_is_hard_to_translate_is_optimised_less() {
    on_fusing_devices(async |rt| {
        let text = format!("{PLAIN}{HARD}");
        for function in ["twice", "square"] {
            let (alone, beside) =
                (lines_of(&rt, PLAIN, function).await, lines_of(&rt, &text, function).await);
            assert_eq!(beside, alone, "`{function}` for {}", rt.device());
        }
        // An unoptimised function stores its parameters, and has a line for each.
        for function in ["chosen", "summed", "unrolled", "wrapped", "largest"] {
            let alone = lines_of(&rt, &text, function).await;
            assert!(alone < 60, "`{function}` has {alone} lines for {}", rt.device());
        }
    });
}

#[test]
fn kernels_that_are_hard_to_translate_are_fused_themselves() {
    on_fusing_devices(async |rt| {
        let text = format!("{PLAIN}{HARD}");
        let [wrapped, square] = kernels_of_text(&rt, &text, ["wrapped", "square"]).await;
        let queue = rt.queue();
        let src = rt.buffer_from((0..N as u32).map(|n| n * 7).collect::<Vec<_>>()).await.unwrap();
        let between: Buffer<f32> = rt.buffer(N).unwrap();
        let dst: Buffer<f32> = rt.buffer(N).unwrap();
        let fusion = queue.start_fusion();
        fusion.submit(wrapped.launch(N).args((&src, &between, 5_u32))).unwrap();
        fusion.submit(square.launch(N).args((&between, &dst))).unwrap();
        drop(between);
        let outcome = fusion.complete().await.unwrap();
        assert!(outcome.is_fused(), "{}: {}", rt.device(), fusion.report());
        let expected = (0..N as u32).map(|n| ((n * 7 % 5 + 1) % 5) as f32);
        let expected: Vec<_> = expected.map(|n| n * n + 1.0).collect();
        assert_eq!(queue.read(&dst).await.unwrap(), expected, "{}", rt.device());
    });
}

#[test]
fn kernels_beside_one_that_cannot_be_translated_are_fused() {
    on_fusing_devices(async |rt| {
        let text = format!("{PLAIN}{REFUSED}");
        let [twice, square, ahead] =
            kernels_of_text(&rt, &text, ["twice", "square", "ahead"]).await;
        assert_fused(&rt, &[twice.clone(), square]).await;
        // A scope with that kernel itself runs its launches one by one, and says why.
        let queue = rt.queue();
        let src = rt.buffer_from(numbers()).await.unwrap();
        let [between, dst] = [(); 2].map(|()| -> Buffer<f32> { rt.buffer(N).unwrap() });
        let fusion = queue.start_fusion();
        fusion.submit(ahead.launch(N).args((&src, &between))).unwrap();
        fusion.submit(twice.launch(N).args((&between, &dst))).unwrap();
        let outcome = fusion.complete().await.unwrap();
        assert!(outcome.to_string().contains("llvm-spirv"), "{}: {outcome}", rt.device());
        assert_eq!(queue.read(&between).await.unwrap(), numbers(), "{}", rt.device());
    });
}

#[test]
fn kernels_that_are_not_optimised_are_fused() {
    futures::executor::block_on(on_each_device(async |rt| {
        let rt = always(&rt).await;
        let module = include_bytes!("../data/files_O0.spv");
        assert_fused(&rt, &kernels(&rt, module, ["twice", "square"]).await).await;
    }));
}

/// Kernels that keep numbers in half precision, as scalars and as vectors.
const HALVES: &str = "
kernel void packed(global const float *src, global half *dst) {
    size_t i = get_global_id(0);
    vstore_half_rtz(src[i] * 3.3f, i, dst);
}
kernel void unpacked(global const half *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = vload_half(i, src) + vload_half(i, src) * 0.5f;
}
kernel void packed_fours(global const float4 *src, global half *dst) {
    size_t i = get_global_id(0);
    vstorea_half4(src[i] * 1.7f, i, dst);
}
kernel void added_fours(global half *x) {
    size_t i = get_global_id(0);
    vstore_half4_rte(vload_half4(i, x) + 0.1f, i, x);
}
kernel void unpacked_fours(global const half *src, global float4 *dst) {
    size_t i = get_global_id(0);
    dst[i] = vloada_half4(i, src) - vload_half4(i, src) * 0.25f;
}
kernel void neighbours(global const half *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = vload_half(i + 1, src);
}
kernel void threes(global const float *src, global half *dst) {
    size_t i = get_global_id(0);
    vstorea_half3((float3)(src[i], 1.0f, 2.0f), i, dst);
}
kernel void from_threes(global const half *src, global float *dst) {
    size_t i = get_global_id(0);
    float3 value = vloada_half3(i, src);
    dst[i] = value.x + value.y * value.z;
}";

/// Submits kernels to a queue, one by one or in a scope, each from one buffer to the next. Returns the last
/// buffer, and how the scope ran.
async fn through_halves(
    rt: &Runtime,
    all: &[&Kernel],
    items: usize,
    fuses: bool,
) -> (Vec<u32>, Option<String>) {
    let queue = rt.queue();
    let src = rt.buffer_from(numbers()).await.unwrap();
    let between: Buffer<u16> = rt.buffer(4 * N + 8).unwrap();
    queue.fill(&between, 0_u16).unwrap().await.unwrap();
    let dst: Buffer<f32> = rt.buffer(N).unwrap();
    let fusion = fuses.then(|| queue.start_fusion());
    let (last, middle) = (all.len() - 1, 1..all.len() - 1);
    for (at, kernel) in all.iter().enumerate() {
        let launch = kernel.launch(items);
        let launch = match at {
            0 => launch.args((&src, &between)),
            at if at == last => launch.args((&between, &dst)),
            at => {
                assert!(middle.contains(&at));
                launch.args((&between,))
            }
        };
        match &fusion {
            Some(fusion) => fusion.submit(launch).unwrap(),
            None => queue.submit(launch).unwrap(),
        };
    }
    drop(between);
    let mut report = None;
    if let Some(fusion) = fusion {
        let outcome = fusion.complete().await.unwrap();
        report = Some(format!("{outcome:?}\n{}", fusion.report()));
    }
    let values = queue.read(&dst).await.unwrap();
    (values.into_iter().map(f32::to_bits).collect(), report)
}

#[test]
fn numbers_in_half_precision_become_private() {
    const NAMES: [&str; 8] = [
        "packed",
        "unpacked",
        "packed_fours",
        "added_fours",
        "unpacked_fours",
        "neighbours",
        "threes",
        "from_threes",
    ];
    on_fusing_devices(async |rt| {
        let [
            packed,
            unpacked,
            packed_fours,
            added_fours,
            unpacked_fours,
            neighbours,
            threes,
            from_threes,
        ] = &kernels_of_text(&rt, HALVES, NAMES).await;
        for (kernels, items, expected) in [
            (&[packed, unpacked][..], N, "internalized: 1"),
            (&[packed_fours, added_fours, unpacked_fours], N / 4, "internalized: 1"),
            // The fourth number of such a vector may be written or not, so that it stays in memory.
            (&[threes, from_threes], N, "internalized: 0"),
            (&[packed, neighbours], N, "Refuted"),
        ] {
            let (one_by_one, _) = through_halves(&rt, kernels, items, false).await;
            let (in_scope, report) = through_halves(&rt, kernels, items, true).await;
            let report = report.unwrap();
            let is_refused = expected == "Refuted";
            assert_eq!(report.starts_with("Fused"), !is_refused, "{}: {report}", rt.device());
            assert!(is_refused || report.contains(expected), "{}: {report}", rt.device());
            assert_eq!(in_scope, one_by_one, "{}: {report}", rt.device());
        }
    });
}
