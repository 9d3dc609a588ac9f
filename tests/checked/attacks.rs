//! Kernels that were written to leave their buffers: their launches are proven only where they stay inside.
//!
//! Each launch writes to a slice of a larger buffer, whose other elements must not change.

use kiln::internal::translate::spirv_of;
use kiln::{Buffer, CheckedProgram, Error, ErrorKind, Kernel, Launch, Module, Runtime};
use support::everywhere;
use support::tools::has_clang;

/// Number of elements before the slice, and behind it.
const AROUND: usize = 1 << 10;

/// Elements of the slice.
const LEN: usize = 64;

/// Value of the elements around the slice.
const UNTOUCHED: i32 = 0x5555_5555;

/// Slice that kernels write to, in a larger buffer.
struct Target {
    whole: Buffer<i32>,
    slice: Buffer<i32>,
}

impl Target {
    async fn new(rt: &Runtime) -> Self {
        let whole = rt.buffer_from(vec![UNTOUCHED; 2 * AROUND + LEN]).await.expect("it fits");
        let slice = whole.slice(AROUND..AROUND + LEN).expect("it is inside");
        Self { whole, slice }
    }

    /// Launches, and checks that nothing around the slice has changed. Returns whether the launch was proven.
    async fn launch(&self, rt: &Runtime, what: &str, launch: Launch) -> bool {
        let verdict = launch.verdict().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        rt.queue().submit(launch).expect("it fits").await.expect("it runs");
        let found = rt.queue().read(&self.whole).await.expect("it was written");
        let around = found[..AROUND].iter().chain(&found[AROUND + LEN..]);
        assert!(around.into_iter().all(|&x| x == UNTOUCHED), "{what}: {verdict}");
        verdict.is_proven()
    }
}

async fn kernel(rt: &Runtime, text: &str, name: &str) -> Kernel {
    support::checked_program(rt, text).await.kernel(name).expect("it can be checked")
}

/// Builds a text whose translation needs options.
async fn translated(rt: &Runtime, text: &str, options: &str) -> kiln::Result<CheckedProgram> {
    let module = spirv_of(rt, &Module::opencl_c(text), options).await.expect("clang knows it");
    rt.build(&module).checked().await
}

fn assert_refused(what: &str, found: kiln::Result<CheckedProgram>, part: &str) -> Error {
    let error = found.and_then(|program| program.kernel("k")).expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
    assert!(error.to_string().contains(part), "{what}: {error}");
    error
}

everywhere! {
    async fn saturating_conversions_are_not_truncations(rt: Runtime) {
        if !has_clang() {
            return;
        }
        // Each conversion gives its largest or smallest value. If it were a truncation, each index would be inside.
        let cases = [
            ("char", "int", "190 + i", 66),
            ("uchar", "int", "256 + i", 0),
            ("uchar", "int", "-256 + i", 0),
            ("short", "int", "65536 + i", 0),
            ("ushort", "long", "65536L + i", 0),
            ("uchar", "ulong", "512UL + i", 0),
            ("char", "long", "-256L + i", 0),
        ];
        for (to, from, value, offset) in cases {
            let text = format!(
                "kernel void k(global int *y) {{
                    int i = get_global_id(0);
                    {from} wide = {value};
                    y[(int)convert_{to}_sat(wide) + {offset}] = 7;
                }}"
            );
            let target = Target::new(&rt).await;
            let k = kernel(&rt, &text, "k").await;
            target.launch(&rt, &text, k.launch(LEN).args((&target.slice,))).await;
        }
        // A table with an element for each value is large enough.
        let text = "kernel void k(global const int *x, global int *y) {
            int i = get_global_id(0);
            y[i] = x[convert_uchar_sat(1000 * i - 500)];
        }";
        let k = kernel(&rt, text, "k").await;
        let (x, y) = (rt.buffer::<i32>(256).unwrap(), rt.buffer::<i32>(LEN).unwrap());
        assert!(k.launch(LEN).args((&x, &y)).verdict().await.unwrap().is_proven());
        let short = x.slice(..255).unwrap();
        assert!(!k.launch(LEN).args((&short, &y)).verdict().await.unwrap().is_proven());
    }
}

everywhere! {
    async fn scans_and_sub_groups_are_not_uniform(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let barrier = "{ barrier(CLK_LOCAL_MEM_FENCE); y[0] = 1; }";
        let refused = [
            "work_group_scan_inclusive_add(1) > 3",
            "work_group_scan_exclusive_add(n) > 3",
            "work_group_scan_inclusive_max(n) > 3",
            "work_group_reduce_add((int)get_local_id(0)) + (int)get_local_id(0) > 3",
        ];
        for condition in refused {
            let text = format!("kernel void k(global int *y, int n) {{ if ({condition}) {barrier} }}");
            assert_refused(condition, translated(&rt, &text, "-cl-std=CL2.0").await, "a barrier");
        }
        // A function of the whole group is the same for all work-items, also of values that differ between them, and
        // one of the sub-group is not.
        let accepted = [
            "work_group_reduce_add(n) > 3",
            "work_group_reduce_max((int)get_local_id(0)) > 3",
            "work_group_any(get_local_id(0) > n)",
            "work_group_all(get_local_id(0) > n)",
        ];
        for condition in accepted {
            let text = format!("kernel void k(global int *y, int n) {{ if ({condition}) {barrier} }}");
            let group = spirv_of(&rt, &Module::opencl_c(text), "-cl-std=CL2.0").await.expect("clang knows it");
            let sub_group = rt.build(&over_sub_groups(&group)).checked().await;
            assert_refused(condition, sub_group, "a barrier");
            if let Ok(program) = rt.build(&group).checked().await {
                program.kernel("k").unwrap_or_else(|error| panic!("{condition}: {error}"));
            }
        }
    }
}

/// Makes the functions of the work-group functions of the sub-group.
fn over_sub_groups(module: &Module) -> Module {
    use rspirv::binary::Assemble as _;
    use rspirv::dr::{Instruction, Operand, load_bytes};
    use rspirv::spirv::{Op, Scope};
    let mut known = load_bytes(module.code()).expect("it is valid");
    let is_int = |i: &&Instruction| {
        i.class.opcode == Op::TypeInt && i.operands[0] == Operand::LiteralBit32(32)
    };
    let int = known.types_global_values.iter().find(is_int).and_then(|i| i.result_id);
    let header = known.header.as_mut().expect("it has one");
    let scope = header.bound;
    header.bound += 1;
    let value = vec![Operand::LiteralBit32(Scope::Subgroup as u32)];
    known.types_global_values.push(Instruction::new(Op::Constant, int, Some(scope), value));
    let combines = |i: &&mut Instruction| {
        matches!(i.class.opcode, Op::GroupIAdd | Op::GroupSMax | Op::GroupAny | Op::GroupAll)
    };
    for i in known.all_inst_iter_mut().filter(combines) {
        i.operands[0] = Operand::IdScope(scope);
    }
    Module::spirv(bytemuck::cast_slice::<u32, u8>(&known.assemble())).expect("it is valid")
}

everywhere! {
    async fn barriers_beside_loops_with_several_entries_are_refused(rt: Runtime) {
        if !has_clang() {
            return;
        }
        // PoCL ends the process for such loops, although all work-items take the same way.
        let loops = [
            "switch (n % 3) {
                case 0: do { barrier(1); t[l] += 1;
                case 1: barrier(1); t[l] *= 3;
                case 2: barrier(1); t[l] ^= n; } while (--n > 0);
            }",
            "if (n & 1) goto middle;
            again: barrier(1); t[l] += n;
            middle: barrier(1); t[l] ^= 5;
            if (--n > 0) goto again;",
        ];
        for code in loops {
            let text = format!(
                "kernel void k(global int *y, int n) {{
                    local int t[16];
                    int l = get_local_id(0) & 15;
                    t[l] = l;
                    {code}
                    y[get_global_id(0)] = t[l];
                }}"
            );
            assert_refused(code, translated(&rt, &text, "").await, "several places");
        }
        let text = loops[1].replace("if (n & 1) goto middle;", "");
        let text = format!("kernel void k(global int *y, int n) {{ local int t[1]; int l = 0; t[0] = n; {text} }}");
        translated(&rt, &text, "").await.and_then(|program| program.kernel("k")).expect("it has one entry");
    }
}

everywhere! {
    async fn constant_memory_must_not_be_written_by_the_launch(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let text = "kernel void k(constant int *n, global int *y) {
            int i = get_global_id(0);
            if (i < n[0]) y[n[0] - 1] = 1 << 20;
        }";
        let k = kernel(&rt, text, "k").await;
        let target = Target::new(&rt).await;
        let error = rt.queue().submit(k.launch(LEN).args((&target.slice, &target.slice)));
        let error = error.expect_err("the memory is constant, and written");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("`n` is declared `constant`"), "{error}");
        let n = rt.buffer_from(vec![1_000_000i32]).await.unwrap();
        target.launch(&rt, "a bound that is too large", k.launch(LEN).args((&n, &target.slice))).await;
    }
}

everywhere! {
    async fn the_stack_of_a_thread_is_not_exceeded(rt: Runtime) {
        if !has_clang() || rt.device().kind != kiln::devices::DeviceKind::Cpu {
            return;
        }
        let values = 64;
        let names = |format: fn(usize) -> String| -> String { (0..values).map(format).collect() };
        let across = format!(
            "kernel void k(global const float16 *x, global int *y) {{
                size_t i = get_global_id(0);
                {}
                barrier(CLK_LOCAL_MEM_FENCE);
                float16 sum = 0;
                {}
                y[i % {LEN}] = sum.s0 + sum.sf;
            }}",
            names(|n| format!("float16 v{n} = x[(i + {n}) & 1023];\n")),
            names(|n| format!("sum = sum * v{n} + {n};\n")),
        );
        let by_value = "
            typedef struct { int at[16384]; } Large;
            __attribute__((noinline)) int last(Large large, int n) { large.at[n & 16383]++; return large.at[16383 - n]; }
            __attribute__((noinline)) int more(Large large, int n) { large.at[n & 16383] += n; return last(large, n); }
            kernel void k(global const Large *x, global int *y) {
                Large own = x[0];
                own.at[y[0] & 16383] = 1;
                y[get_global_id(0) & 63] = more(own, y[1] & 3) + last(own, y[2] & 3);
            }";
        let size = rt.device().limits.max_work_group_size;
        let target = Target::new(&rt).await;
        let x = rt.buffer::<[f32; 16]>(1024).unwrap();
        let k = kernel(&rt, &across, "k").await;
        let refused = rt.queue().submit(k.launch(size).local(size).args((&x, &target.slice)));
        let message = refused.expect_err("it needs too much memory").to_string();
        // Some drivers know the limit themselves.
        assert!(message.contains("the stack") || message.contains("the local size"), "{message}");
        // A small work-group fits.
        target.launch(&rt, "a small work-group", k.launch(64).local(16).args((&x, &target.slice))).await;
        let x = rt.buffer::<i32>(16384).unwrap();
        let k = kernel(&rt, by_value, "k").await;
        let refused = rt.queue().submit(k.launch(size).local(size).args((&x, &target.slice)));
        let message = refused.expect_err("it needs too much memory").to_string();
        // Some drivers know the limit themselves.
        assert!(message.contains("the stack") || message.contains("the local size"), "{message}");
    }
}

everywhere! {
    async fn kernels_that_are_too_complex_are_refused_by_name_or_checked(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let branches: String =
            (0..300).map(|n| format!("if (x[i + {n}] > n) return;\n")).collect();
        let selects: String =
            (0..200).map(|n| format!("at = at > {n} + n ? at - {n} : at + n;\n")).collect();
        let many: String = (0..1200).map(|n| format!("if (x[i] == {n}) at ^= x[i + 1];\n")).collect();
        for body in [branches, format!("{selects} y[at & 63] = 1;"), many] {
            let text = format!(
                "kernel void k(global const int *x, global int *y, int n) {{
                    int i = get_global_id(0), at = i;
                    {body}
                    y[i] = at;
                }}"
            );
            let target = Target::new(&rt).await;
            let x = rt.buffer::<i32>(1024).unwrap();
            let k = kernel(&rt, &text, "k").await;
            let launch = || k.launch(LEN).args((&x, &target.slice, 3));
            match launch().verdict().await {
                Ok(_) => _ = target.launch(&rt, "many decisions", launch()).await,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unsupported);
                    let is_named = |error: &Error| {
                        let message = error.to_string();
                        message.contains("too complex to check") || message.contains("is too large to")
                    };
                    assert!(is_named(&error), "{error}");
                    let submitted = rt.queue().submit(launch());
                    let failed = match submitted {
                        Ok(event) => event.await.expect_err("it is refused"),
                        Err(error) => error,
                    };
                    assert!(is_named(&failed), "{failed}");
                }
            }
        }
    }
}

everywhere! {
    async fn a_generic_pointer_is_local_only_if_it_comes_from_there(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let text = "kernel void k(global int *y, local int *own) {
            generic int *any = y;
            local int *wrong = (local int *)any;
            wrong[get_local_id(0)] = 1;
            y[get_global_id(0)] = own[0];
        }";
        let program = translated(&rt, text, "-cl-std=CL2.0").await;
        let k = match program.and_then(|program| program.kernel("k")) {
            Ok(k) => k,
            Err(error) => return assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        };
        let target = Target::new(&rt).await;
        let own = kiln::Local::<i32>::new(LEN);
        let launch = k.launch(LEN).local(LEN).args((&target.slice, own));
        let refused = launch.verdict().await.expect_err("it is not local memory");
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    }
}

everywhere! {
    async fn values_of_shared_memory_are_shared_in_private_memory_too(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let text = "kernel void k(global int *x, global int *y, int n, int which) {
            int own[4] = {0, 0, 0, 0};
            own[which & 3] = x[0];
            x[0] = get_global_id(0) * 100000;
            if (own[which & 3] >= 0 && own[which & 3] < n) y[own[which & 3]] = 1;
        }";
        let k = kernel(&rt, text, "k").await;
        let target = Target::new(&rt).await;
        let x = rt.buffer::<i32>(1).unwrap();
        let launch = k.launch(LEN).args((&x, &target.slice, LEN as i32, 2));
        assert!(!target.launch(&rt, "a value that changes", launch).await, "it is loaded once only if it is guarded");
    }
}

everywhere! {
    async fn functions_that_call_themselves_reach_no_driver(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let text = "int g(int n);
            int f(int n) { return n < 1 ? 0 : g(n - 1); }
            int g(int n) { return n < 2 ? 1 : n * f(n - 2) + f(n - 3); }
            kernel void k(global int *y) { y[get_global_id(0)] = f(get_global_id(0)); }";
        let module = spirv_of(&rt, &Module::opencl_c(text), "").await.expect("clang knows it");
        let before = rt.stats().builds.compiles;
        for error in [
            rt.build(&module).await.map(drop).expect_err("it is recursive"),
            rt.build(&module).checked().await.map(drop).expect_err("it is recursive"),
            rt.build(&Module::opencl_c(text)).checked().await.map(drop).expect_err("it is recursive"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("calls itself"), "{error}");
        }
        assert_eq!(rt.stats().builds.compiles, before, "no driver was asked");
    }
}

everywhere! {
    async fn a_verdict_says_what_a_launch_would_do(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let texts = [
            "typedef struct { int a[8]; } Row;
            kernel void k(global const Row *x, global Row *y) {
                y[get_global_id(0)] = x[get_global_id(0) + 3];
            }",
            "typedef struct { char a[3]; short b; long c; } Odd;
            kernel void k(global const Odd *x, global Odd *y) {
                Odd own = x[get_global_id(0) + 3];
                own.b++;
                y[get_global_id(0) + 2] = own;
            }",
            "kernel void k(global const int *x, global int *y) {
                int own[64];
                for (int n = 0; n < 64; n++) own[n] = x[n + get_global_id(0)];
                for (int n = 0; n < 64; n++) y[get_global_id(0) * 64 + n] = own[n];
            }",
            "__attribute__((noinline)) global int *at(global int *y, int n) { return y + n; }
            kernel void k(global const int *x, global int *y) {
                *at(y, get_global_id(0) * 9) = x[get_global_id(0)];
            }",
            "__attribute__((noinline)) global int *either(global int *a, global int *b, int n) { return n > 3 ? a : b + n; }
            kernel void k(global int *x, global int *y) {
                *either(x, y, get_global_id(0)) = 7;
            }",
        ];
        for text in texts {
            let k = support::checked_program(&rt, text).await.kernel("k");
            let Ok(k) = k else { continue };
            let (x, target) = (rt.buffer::<i32>(LEN).unwrap(), Target::new(&rt).await);
            let launch = || k.launch(LEN).args((&x, &target.slice));
            let verdict = launch().verdict().await;
            let ran = match rt.queue().submit(launch()) {
                Ok(event) => event.await,
                Err(error) => Err(error),
            };
            match (verdict, ran) {
                (Ok(_), Ok(())) => {}
                (Err(told), Err(ran)) => {
                    assert_eq!(told.to_string(), ran.to_string(), "{text}");
                    assert!(told.to_string().contains("(line "), "{told}");
                }
                (told, ran) => panic!("{text}\n{told:?}\n{ran:?}"),
            }
            let found = rt.queue().read(&target.whole).await;
            if let Ok(found) = found {
                let around = found[..AROUND].iter().chain(&found[AROUND + LEN..]);
                assert!(around.into_iter().all(|&x| x == UNTOUCHED), "{text}");
            }
        }
    }
}

everywhere! {
    async fn a_verdict_refuses_the_sizes_that_a_launch_refuses(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let text = "
            kernel void k(global int *y, local int *own) {
                own[get_local_id(0) & 7] = 1;
                y[get_global_id(0)] = own[0];
            }
            __attribute__((reqd_work_group_size(16, 1, 1))) kernel void of_sixteen(global int *y) {
                y[get_global_id(0)] = 1;
            }";
        let program = support::checked_program(&rt, text).await;
        let [k, of_sixteen] = ["k", "of_sixteen"].map(|name| program.kernel(name).unwrap());
        let y = rt.buffer::<i32>(LEN).unwrap();
        let local = kiln::Local::<i32>::new;
        let too_large = rt.device().limits.local_memory as usize / 4 + 1;
        let launches = [
            ("a local size that does not divide", k.launch(60).local(16).args((&y, local(8)))),
            ("no local memory", k.launch(64).local(16).args((&y, local(0)))),
            ("too much local memory", k.launch(64).local(16).args((&y, local(too_large)))),
            ("another local size than required", of_sixteen.launch(64).local(8).args((&y,))),
            ("a global size that is no multiple", of_sixteen.launch(63).args((&y,))),
            ("too few arguments", k.launch(64).args((&y,))),
        ];
        for (what, launch) in launches {
            let told = launch.verdict().await.expect_err(what);
            let refused = rt.queue().submit(launch).expect_err(what);
            assert_eq!(told.to_string(), refused.to_string(), "{what}");
            assert_eq!(told.kind(), ErrorKind::InvalidArgument, "{what}: {told}");
        }
    }
}
