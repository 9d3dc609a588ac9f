//! Values that OpenCL C leaves undefined: in a checked program they are defined, and no compiler takes code that uses
//! them for code that never runs.

use kiln::{Buffer, Kernel, Runtime};
use support::everywhere;
use support::tools::has_clang;

/// Elements of a buffer, and of the slice in its middle that kernels get.
const WHOLE: usize = 3 * LEN;
const LEN: usize = 128;

/// Value of the elements that nothing writes.
const UNTOUCHED: i32 = 0x5555_5555;

async fn kernel(rt: &Runtime, text: &str) -> Kernel {
    support::checked_program(rt, text).await.kernel("k").expect("it can be checked")
}

async fn whole(rt: &Runtime) -> Buffer<i32> {
    rt.buffer_from(vec![UNTOUCHED; WHOLE]).await.expect("it fits")
}

/// Runs a launch of one work-item on a slice, and returns the slice's contents. Nothing around it changes.
async fn run(rt: &Runtime, text: &str) -> Vec<i32> {
    let whole = whole(rt).await;
    let slice = whole.slice(LEN..2 * LEN).expect("it is inside");
    let launch = kernel(rt, text).await.launch(1).args((&slice, 3i32));
    rt.queue()
        .submit(launch)
        .expect("it fits")
        .await
        .unwrap_or_else(|error| panic!("{text}: {error}"));
    let mut found = rt.queue().read(&whole).await.expect("it was written");
    let after = found.split_off(2 * LEN);
    let inside = found.split_off(LEN);
    assert!(found.iter().chain(&after).all(|&x| x == UNTOUCHED), "{text}");
    inside
}

everywhere! {
    async fn conversions_of_numbers_that_are_too_large_are_saturated(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let cases = [
            ("convert_int(1e30f)", i32::MAX),
            ("convert_int(-1e30f)", i32::MIN),
            ("convert_int_rte(1e30f)", i32::MAX),
            ("convert_int_rtp(1e30f)", i32::MAX),
            ("convert_int_rtz(-1e30f)", i32::MIN),
            ("(int)convert_short_rte(1e30f)", 0x7fff),
            ("(int)convert_short_sat_rte(-1e30f)", -0x8000),
            ("(int)convert_char_sat_rte(1e30f)", 127),
            ("(int)(convert_long_rte(1e30f) >> 32)", i32::MAX),
            ("(int)(convert_ulong_rte(1e30f) >> 33)", i32::MAX),
            ("(int)convert_uint(-1.5f)", 0),
            ("(int)convert_uchar(1e3f)", 255),
            ("convert_int_rte(2.5f)", 2),
            ("convert_int_rte(-3.5f)", -4),
            ("convert_int4_rte((float4)(0.5f, 1.5f, 1e30f, NAN)).y", 2),
            ("convert_int4_rte((float4)(0.5f, 1.5f, 1e30f, NAN)).z", i32::MAX),
        ];
        let lines = cases.iter().enumerate().map(|(at, (value, _))| format!("y[{at}] = {value};\n"));
        let text = format!("kernel void k(global int *y, int n) {{ {} }}", lines.collect::<String>());
        let found = run(&rt, &text).await;
        for ((value, expected), found) in cases.iter().zip(found) {
            assert_eq!(found, *expected, "{value}");
        }
        // As the argument of a function, which compilers may take for defined, and as a divisor. Drivers convert NaN to
        // different numbers.
        let nan = ["convert_int(NAN)", "convert_int_sat_rte(NAN)", "convert_uint_sat_rte(NAN)", "rint(NAN)"];
        let values = cases.map(|(value, _)| value).into_iter().chain(nan);
        let uses = values.zip((0..).step_by(3)).map(|(value, at)| {
            format!(
                "y[{at}] = as_int(sin((float){value}));
                y[{at} + 1] = max((int){value}, n);
                y[{at} + 2] = n / ((int){value} | 1);\n"
            )
        });
        let (uses, last) = (uses.collect::<String>(), LEN - 1);
        let text = format!("kernel void k(global int *y, int n) {{ {uses} y[{last}] = 7; }}");
        assert_eq!(run(&rt, &text).await[last], 7);
    }
}

everywhere! {
    async fn pointers_are_selected_by_defined_conditions(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for condition in ["convert_int(1e30f) > 100", "convert_uint(-1.5f) > 100", "unset > 3", "unset"] {
            let text = format!(
                "kernel void k(global int *a, global int *b, int i) {{
                    int unset;
                    global int *p = {condition} ? a + i : b;
                    *p = 7;
                }}"
            );
            let k = kernel(&rt, &text).await;
            for index in [3, 40, 1 << 20] {
                let (first, second) = (whole(&rt).await, whole(&rt).await);
                let [a, b] = [&first, &second].map(|whole| whole.slice(LEN..LEN + 4).unwrap());
                let launch = k.launch(1).args((&a, &b, index));
                rt.queue().submit(launch).expect("it fits").await.expect("it runs");
                for whole in [&first, &second] {
                    let found = rt.queue().read(whole).await.unwrap();
                    let around = found[..LEN].iter().chain(&found[LEN + 4..]);
                    assert!(around.into_iter().all(|&x| x == UNTOUCHED), "{condition}, {index}");
                }
            }
        }
    }
}

everywhere! {
    async fn private_variables_start_as_zeros(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let text = "
            typedef struct { int at[4]; } Struct;
            __attribute__((noinline)) int of(const int *x) { return x[0] | x[1]; }
            __attribute__((noinline)) int by_value(Struct s) { return s.at[1] + s.at[2]; }
            kernel void k(global int *y, int n) {
                int pair[2];
                Struct s;
                y[0] = max(of(pair), n);
                y[1] = by_value(s);
                y[2] = n / (of(pair) | 1);
                if ((uint)of(pair) < 4u) y[3 + of(pair)] = 9;
            }";
        assert_eq!(run(&rt, text).await[..4], [3, 0, 3, 9]);
    }
}

everywhere! {
    async fn a_struct_that_is_passed_by_value_is_copied_inside_of_its_memory(rt: Runtime) {
        if !has_clang() {
            return;
        }
        // The struct is larger than the variable that it is said to be in.
        let text = "
            struct Large { int at[500000]; };
            __attribute__((noinline)) int changed(struct Large large, int n) {
                large.at[n & 3] += n;
                large.at[(n + 1) & 3] *= 3;
                return large.at[(n ^ 1) & 3];
            }
            kernel void k(global int *y, int n) {
                int small[4] = {n, 2, 3, n + 4};
                y[1] = changed(*(struct Large *)small, n);
                for (int i = 0; i < 4; i++) y[4 + i] = small[(i + n) & 3];
            }";
        let program = support::checked_program(&rt, text).await;
        let whole = whole(&rt).await;
        let slice = whole.slice(LEN..2 * LEN).unwrap();
        // The kernel may be refused for its stack, or the launch because the struct is not inside of its memory.
        if let Ok(k) = program.kernel("k")
            && let Ok(event) = rt.queue().submit(k.launch(1).args((&slice, 3i32)))
        {
            let _ = event.await;
        }
        // One that fits is copied, and the function changes its copy.
        let text = text.replace("500000", "4");
        let found = run(&rt, &text).await;
        assert_eq!(found[1], 3);
        assert_eq!(found[4..8], [7, 3, 2, 3]);
    }
}
