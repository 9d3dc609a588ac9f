//! Buffers that kernels pass to their own functions become variables, even if the functions must not be
//! inlined.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use kiln::Module;
use kiln::devices::ModuleFormat;
use kiln::fusion::FusionOutcome;
use support::everywhere;
use support::scopes;
use support::scopes::always;
use support::tools::has_clang;

const N: usize = 256;

/// Functions that compilers do not inline.
const HELPERS: &str = "
    #define APART __attribute__((noinline))
    typedef struct { float a, b; } Pair;
    APART float get(global const float *p, size_t i) { return p[i]; }
    APART void put(global float *p, size_t i, float v) { p[i] = v; }
    APART float twice(global const float *p, size_t i) { return get(p, i) * 2.0f; }
    APART float first(global const float *p) { return *p; }
    APART float clamped(global const float *p, size_t i) {
        float v = p[i];
        if (v < 0.0f) return 0.0f;
        if (v > 10.0f) return 10.0f;
        return v;
    }
    APART float summed(global const float *p, size_t i, int n) {
        float sum = 0.0f;
        for (int k = 0; k < n; k++) sum += p[i] * k;
        return sum;
    }
    APART void move(global const float *from, global float *to, size_t i) { to[i] = from[i]; }
    APART void spread(global float *to, size_t i, float v) {
        if (v > 20.0f) { to[i] = v - 1.0f; return; }
        to[i] = v;
    }
    APART float by_value(global const float *p, size_t i, Pair c) {
        c.a += 1.0f;
        return p[i] * c.a + c.b;
    }
    APART float field(global const Pair *p, size_t i) { return p[i].a + p[i].b; }
    APART float4 get4(global const float4 *p, size_t i) { return p[i]; }
    APART float local_array(global const float *p, size_t i) {
        float own[4] = {1.0f, 2.0f, 3.0f, 4.0f};
        own[i & 3] += p[i];
        return own[0] + own[1] + own[2] + own[3];
    }
    APART float chosen(global const float *p, size_t i, int mode) {
        switch (mode) {
            case 0: return p[i];
            case 1: return p[i] + 100.0f;
            default: return -p[i];
        }
    }
    ";

/// A kernel that computes each element of `tmp` from the one of `src`, a kernel that computes `dst` from `tmp`,
/// and the expected element of `dst` for an element of `src`.
struct Case {
    name: &'static str,
    write: &'static str,
    read: &'static str,
    expected: fn(f32) -> f32,
}

const fn case(
    name: &'static str,
    write: &'static str,
    read: &'static str,
    expected: fn(f32) -> f32,
) -> Case {
    Case { name, write, read, expected }
}

const PLAIN: &str = "tmp[i] = src[i] + 1.0f;";

fn clamped(x: f32) -> f32 {
    x.clamp(0.0, 10.0)
}

const CASES: &[Case] = &[
    case("read", PLAIN, "dst[i] = get(tmp, i);", |x| x + 1.0),
    case("written", "put(tmp, i, src[i] + 1.0f);", "dst[i] = tmp[i];", |x| x + 1.0),
    case("both", "put(tmp, i, get(src, i));", "put(dst, i, get(tmp, i));", |x| x),
    case("nested", PLAIN, "dst[i] = twice(tmp, i);", |x| (x + 1.0) * 2.0),
    case("offset", PLAIN, "dst[i] = first(tmp + i);", |x| x + 1.0),
    case("early_return", PLAIN, "dst[i] = clamped(tmp, i) + 1.0f;", |x| clamped(x + 1.0) + 1.0),
    case("early_return_of_nothing", "spread(tmp, i, src[i]);", "dst[i] = tmp[i];", |x| {
        if x > 20.0 { x - 1.0 } else { x }
    }),
    case("loop", PLAIN, "dst[i] = summed(tmp, i, 4);", |x| (x + 1.0) * 6.0),
    case("two_pointers", "move(src, tmp, i);", "move(tmp, dst, i);", |x| x),
    case("several_calls", PLAIN, "dst[i] = get(tmp, i) + get(src, i) + clamped(tmp, i);", |x| {
        (x + 1.0) + x + clamped(x + 1.0)
    }),
    case(
        "calls_in_a_loop",
        PLAIN,
        "float sum = 0.0f;
         for (int k = 0; k < 3; k++) sum += clamped(tmp, i) + (float)k;
         dst[i] = sum;",
        |x| clamped(x + 1.0) * 3.0 + 3.0,
    ),
    case(
        "calls_on_one_side",
        PLAIN,
        "float v; if (src[i] > 3.0f) v = clamped(tmp, i); else v = get(tmp, i); dst[i] = v;",
        |x| if x > 3.0 { clamped(x + 1.0) } else { x + 1.0 },
    ),
    case(
        "struct_by_value",
        PLAIN,
        "Pair c = {1.0f, 2.0f}; float v = by_value(tmp, i, c); dst[i] = v + c.a;",
        |x| (x + 1.0) * 2.0 + 2.0 + 1.0,
    ),
    case(
        "field",
        "global Pair *to = (global Pair *)tmp; to[i].a = src[i]; to[i].b = 2.0f;",
        "dst[i] = field((global const Pair *)tmp, i);",
        |x| x + 2.0,
    ),
    case(
        "vector",
        "((global float4 *)tmp)[i] = (float4)(src[i], 1.0f, 2.0f, 3.0f);",
        "float4 v = get4((global const float4 *)tmp, i); dst[i] = v.x + v.y + v.z + v.w;",
        |x| x + 6.0,
    ),
    case("own_array", PLAIN, "dst[i] = local_array(tmp, i);", |x| x + 11.0),
    case("switch", PLAIN, "dst[i] = chosen(tmp, i, (int)(i & 1) * 0 + 1);", |x| x + 101.0),
];

fn text() -> String {
    let kernels = CASES.iter().map(|Case { name, write, read, .. }| {
        format!(
            "kernel void write_{name}(global const float *src, global float *tmp) {{
                 size_t i = get_global_id(0);
                 {write}
             }}
             kernel void read_{name}(global const float *tmp, global const float *src, global float *dst) {{
                 size_t i = get_global_id(0);
                 {read}
             }}
             "
        )
    });
    HELPERS.to_owned() + &kernels.collect::<String>()
}

everywhere! {
    async fn a_buffer_passed_to_a_helper_function_becomes_a_variable(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let rt = always(&rt).await;
        let program = rt.build(&Module::opencl_c(text())).await.unwrap();
        let numbers: Vec<f32> = (0..N).map(|n| n as f32 * 0.5 - 16.0).collect();
        let queue = rt.queue();
        for case in CASES {
            // SAFETY: each work-item touches at most four floats of its own, which the buffers have.
            let kernel = |kind: &str| unsafe {
                program.kernel(&format!("{kind}_{}", case.name)).unwrap()
            };
            let (write, read) = (kernel("write"), kernel("read"));
            let src = rt.buffer_from(numbers.clone()).await.unwrap();
            let tmp = rt.buffer::<f32>(N * 4).unwrap();
            let dst = rt.buffer::<f32>(N).unwrap();
            let scope = queue.start_fusion();
            scope.submit(write.launch(N).args((&src, &tmp))).unwrap();
            scope.submit(read.launch(N).args((&tmp, &src, &dst))).unwrap();
            drop(tmp);
            let outcome = scope.complete().await.unwrap();
            let expected: Vec<_> = numbers.iter().map(|&x| (case.expected)(x)).collect();
            assert_eq!(queue.read(&dst).await.unwrap(), expected, "{}", case.name);
            match &outcome {
                FusionOutcome::Fused { launches: 2, internalized: 1, .. } => {}
                other => panic!("{}: {other:?}: {}", case.name, scope.report()),
            }
        }
    }
}

/// Returns the expected results of the kernels of [`GROUPS`].
fn turned_groups(numbers: &[f32]) -> Vec<f32> {
    let group = |group: &[f32]| group.iter().rev().map(|x| x.max(0.0)).collect::<Vec<_>>();
    numbers.chunks(64).flat_map(group).collect()
}

/// A work-group passes values through a helper, in local memory.
const GROUPS: &str = "
    __attribute__((noinline)) float get(global const float *p, size_t i) { return p[i]; }
    __attribute__((noinline)) void put(global float *p, size_t i, float v) {
        if (v < 0.0f) { p[i] = 0.0f; return; }
        p[i] = v;
    }
    kernel void write(global const float *src, global float *tmp) {
        put(tmp, get_global_id(0), src[get_global_id(0)]);
    }
    kernel __attribute__((reqd_work_group_size(64, 1, 1)))
    void turned(global const float *tmp, global float *dst) {
        size_t l = get_local_id(0), first = get_group_id(0) * get_local_size(0);
        dst[first + l] = get(tmp, first + get_local_size(0) - 1 - l);
    }";

everywhere! {
    async fn a_buffer_passed_to_a_helper_function_becomes_local_memory(rt: Runtime) {
        if !has_clang() || !rt.device().formats.contains(&ModuleFormat::OpenClC) {
            return;
        }
        let rt = always(&rt).await;
        let [write, turned] = scopes::kernels_of_text(&rt, GROUPS, ["write", "turned"]).await;
        let numbers: Vec<f32> = (0..N).map(|n| n as f32 - 16.0).collect();
        let queue = rt.queue();
        let src = rt.buffer_from(numbers.clone()).await.unwrap();
        let [tmp, dst] = [(); 2].map(|()| rt.buffer::<f32>(N).unwrap());
        let scope = queue.start_fusion();
        scope.submit(write.launch(N).args((&src, &tmp))).unwrap();
        scope.submit(turned.launch(N).args((&tmp, &dst))).unwrap();
        drop(tmp);
        let outcome = scope.complete().await.unwrap();
        assert_eq!(queue.read(&dst).await.unwrap(), turned_groups(&numbers));
        assert!(
            matches!(outcome, FusionOutcome::Fused { launches: 2, internalized: 1, .. }),
            "{outcome:?}: {}",
            scope.report()
        );
    }
}
