//! Lines of OpenCL C that findings about checked launches name. Programs do not depend on them.

use std::fs;

use kiln::internal::translate::spirv_of;
use kiln::launch::LaunchVerdict;
use kiln::{Buffer, CheckedProgram, ErrorKind, Kernel, Module, Runtime};
use support::everywhere;
use support::tools::has_clang;
use tempfile::TempDir;

/// Kernels and functions; the numbers are those of the lines.
const TEXT: &str = "#define SET(at, value) y[at] = (value)
float helper(global const float *x, size_t i) {
    return x[i + 2000];
}
kernel void filter(global const float *x, global float *y, int n) {
    size_t i = get_global_id(0);
    float sum = helper(x, i);
    for (int k = 0; k < n; k++)
        sum += x[i + k * 3000];
    SET(i + 4000,
        sum);
    y[i] = sum;
}
kernel void shown(global float *x) {
    size_t i = get_global_id(0);
    printf(\"%f\", x[i]);
}
";

const SIZE: usize = 1024;

async fn buffers(rt: &Runtime) -> (Buffer<f32>, Buffer<f32>) {
    let buffer = || rt.buffer::<f32>(SIZE).expect("it fits");
    (buffer(), buffer())
}

/// Returns the verdict on a launch of `filter`, or of a kernel like it.
async fn verdict(rt: &Runtime, kernel: &Kernel) -> LaunchVerdict {
    let (x, y) = buffers(rt).await;
    let launch = kernel.launch(SIZE).args((&x, &y, 2));
    launch.verdict().await.expect("the launch can be checked")
}

/// Returns the parameters and the lines of the findings.
fn lines(verdict: &LaunchVerdict) -> Vec<(&str, &str)> {
    let findings = verdict.findings().iter();
    let mut lines: Vec<_> = findings
        .map(|found| {
            (found.parameter.as_deref().unwrap_or(""), found.line.as_deref().unwrap_or(""))
        })
        .collect();
    lines.sort_unstable();
    lines
}

async fn build(rt: &Runtime, module: &Module) -> CheckedProgram {
    rt.build(module).checked().await.expect("it builds")
}

everywhere! {
    async fn findings_name_the_lines_of_a_text(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let module = Module::opencl_c(TEXT).with_label("filters/filter.cl");
        let expected = [("x", "filter.cl:3"), ("x", "filter.cl:9"), ("y", "filter.cl:10")];
        let filter = build(&rt, &module).await.kernel("filter").expect("it can be checked");
        let found = verdict(&rt, &filter).await;
        assert_eq!(lines(&found), expected, "{found}");
        assert!(found.to_string().contains(" (filter.cl:10)"), "{found}");
        // SAFETY: no launch of the kernel runs.
        let unchecked = unsafe { rt.build(&module).await.expect("it builds").kernel("filter") };
        assert_eq!(lines(&verdict(&rt, &unchecked.expect("it is there")).await), expected);
        let only_checked = rt.build(&module).checked().start().kernel("filter");
        assert_eq!(lines(&verdict(&rt, &only_checked).await), expected);
    }
}

everywhere! {
    async fn texts_without_a_label_have_lines_without_a_name(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let text = "kernel void filter(global const float *x, global float *y, int n) {\n\
                    \ty[get_global_id(0)] =\n\
                    \t\tx[get_global_id(0) + n];\n}";
        let filter = build(&rt, &Module::opencl_c(text)).await.kernel("filter").expect("it is fine");
        assert_eq!(lines(&verdict(&rt, &filter).await), [("x", "line 3")]);
    }
}

everywhere! {
    async fn findings_name_included_files(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let folder = TempDir::new().expect("there is room");
        let header = "// A header.\n\
                      inline void put(global float *y, size_t i, float value) {\n\
                      \ty[i + 1] = value;\n}\n\
                      #define GET(i) x[(i) + n]\n";
        fs::write(folder.path().join("accesses.h"), header).expect("there is room");
        let text = "#include \"accesses.h\"\n\n\
                    kernel void filter(global const float *x, global float *y, int n) {\n\
                    \tsize_t i = get_global_id(0);\n\
                    \tfloat value =\n\
                    \t\tGET(i);\n\
                    \tput(y, i, value);\n}";
        let module = Module::opencl_c(text).with_label("main.cl");
        let options = format!("-I {}", folder.path().display());
        let program = rt.build(&module).options(&options).checked().await.expect("it builds");
        let filter = program.kernel("filter").expect("it can be checked");
        let found = verdict(&rt, &filter).await;
        assert_eq!(lines(&found), [("x", "main.cl:6"), ("y", "accesses.h:3")], "{found}");
    }
}

everywhere! {
    async fn refused_kernels_are_refused_with_a_line(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let module = Module::opencl_c(TEXT).with_label("filter.cl");
        let refusal = build(&rt, &module).await.kernel("shown").expect_err("it is refused");
        assert_eq!(refusal.kind(), ErrorKind::Unsupported);
        let message = refusal.to_string();
        assert!(message.contains("`printf`") && message.contains("filter.cl:16"), "{message}");
    }
}

everywhere! {
    async fn errors_of_launches_that_must_be_proven_name_lines(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let module = Module::opencl_c(TEXT).with_label("filter.cl");
        let (x, y) = buffers(&rt).await;
        // The launch is submitted before the program is built, so that it can wait for the compilers.
        let build = rt.build(&module).checked().start();
        let filter = build.kernel("filter");
        let launch = || filter.launch(SIZE).args((&x, &y, 2)).require_proof();
        let error = match rt.queue().submit(launch()) {
            Ok(event) => event.await.expect_err("it is not proven"),
            Err(error) => error,
        };
        assert!(error.to_string().contains("(filter.cl:10)"), "{error}");
        // The lines are known by now.
        let error = rt.queue().submit(launch()).expect_err("it is not proven");
        assert!(error.to_string().contains("(filter.cl:10)"), "{error}");
        assert!(!error.to_string().contains("Launch::verdict"), "{error}");
        // A launch of another program does not wait for the compilers.
        let moved = Module::opencl_c(format!("\n{TEXT}")).with_label("moved.cl");
        let program = rt.build(&moved).checked().await.expect("it builds");
        let filter = program.kernel("filter").expect("it can be checked");
        let launch = || filter.launch(SIZE).args((&x, &y, 2)).require_proof();
        verdict_is_advised(&rt, &filter, launch).await;
    }
}

/// Submits a launch that must be proven, before and after the verdict on it was asked for.
async fn verdict_is_advised(rt: &Runtime, kernel: &Kernel, launch: impl Fn() -> kiln::Launch) {
    // The analysis is ready once a launch that is proven has run.
    let (x, y) =
        (rt.buffer::<f32>(8192).expect("it fits"), rt.buffer::<f32>(8192).expect("it fits"));
    let proven = kernel.launch(SIZE).args((&x, &y, 2));
    rt.queue().submit(proven).expect("it fits").await.expect("it runs");
    let error = rt.queue().submit(launch()).expect_err("it is not proven");
    assert!(error.to_string().ends_with("; `Launch::verdict` names the lines"), "{error}");
    assert!(!error.to_string().contains("moved.cl:"), "{error}");
    launch().verdict().await.expect("the launch can be checked");
    let error = rt.queue().submit(launch()).expect_err("it is not proven");
    assert!(error.to_string().contains("(moved.cl:11)"), "{error}");
}

everywhere! {
    async fn texts_with_the_same_translation_have_no_wrong_lines(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let module = Module::opencl_c(TEXT).with_label("filter.cl");
        let moved = Module::opencl_c(format!("// A comment.\n{TEXT}")).with_label("filter.cl");
        let expected = [("x", "filter.cl:3"), ("x", "filter.cl:9"), ("y", "filter.cl:10")];
        let filter = build(&rt, &module).await.kernel("filter").expect("it can be checked");
        assert_eq!(lines(&verdict(&rt, &filter).await), expected);
        let expected = [("x", "filter.cl:10"), ("x", "filter.cl:4"), ("y", "filter.cl:11")];
        let filter = build(&rt, &moved).await.kernel("filter").expect("it can be checked");
        assert_eq!(lines(&verdict(&rt, &filter).await), expected);
        // The requests get one program, and the lines of their own text.
        let (first, second) = (build(&rt, &module).await, build(&rt, &moved).await);
        assert_eq!(first.key(), second.key());
        let filter = second.kernel("filter").expect("it can be checked");
        assert_eq!(lines(&verdict(&rt, &filter).await), expected);
    }
}

everywhere! {
    async fn programs_do_not_depend_on_lines(rt: Runtime) {
        if !has_clang() {
            return;
        }
        // Lines are read at the build for kernels that are refused.
        let fit = TEXT.split("kernel void shown").next().expect("there is text before it");
        let module = Module::opencl_c(fit).with_label("filter.cl");
        let before = rt.build(&module).checked().await.expect("it builds");
        let spirv = spirv_of(&rt, &module, "").await.expect("it is translated");
        let translations = || rt.stats().builds.translations;
        let counted = translations();
        let filter = before.kernel("filter").expect("it can be checked");
        let (x, y) = (rt.buffer::<f32>(8192).expect("it fits"), rt.buffer::<f32>(8192).expect("it fits"));
        let proven = filter.launch(SIZE).args((&x, &y, 2));
        assert!(proven.verdict().await.expect("it can be checked").is_proven());
        rt.queue().submit(proven).expect("it fits").await.expect("it runs");
        assert_eq!(translations(), counted, "a proven launch needs no lines");
        let compiles = rt.stats().builds.compiles;
        assert!(!lines(&verdict(&rt, &filter).await).is_empty());
        assert_eq!(rt.stats().builds.compiles, compiles, "no program is compiled for lines");
        assert_eq!(translations(), counted + 1);
        verdict(&rt, &before.kernel("filter").expect("it can be checked")).await;
        assert_eq!(translations(), counted + 1, "the translation with lines is kept");
        let again = spirv_of(&rt, &module, "").await.expect("it is translated");
        assert_eq!(again.digest(), spirv.digest());
        let after = rt.build(&module).checked().await.expect("it builds");
        assert_eq!(after.key(), before.key());
    }
}
