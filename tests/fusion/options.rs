//! Chains of elementwise kernels under the build options of common applications: a fused kernel is as accurate
//! as the launches one by one.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use std::path::Path;
use std::process::Command;

use kiln::devices::ModuleFormat;
use kiln::fusion::FusionOutcome;
use kiln::{Buffer, FusionMode, Kernel, Module, Program, Runtime};
use support::scopes;
use support::tier;
use support::tools::has_clang;

const KERNELS: &str = "
#ifndef FACTOR
#define FACTOR 1.0f
#endif
#ifdef __FAST_RELAXED_MATH__
#define FAST 1.0f
#else
#define FAST 0.0f
#endif
#define EACH(name, expression) \\
    kernel void name(global const float *src, global float *dst, float a) \\
    { \\
        size_t i = get_global_id(0); \\
        float x = src[i]; \\
        dst[i] = expression; \\
    }
EACH(scale, x * a * FACTOR)
EACH(silu, x / (1.0f + exp(-x)))
EACH(gelu, 0.5f * x * (1.0f + tanh(0.79788456080286535588f * x * (1.0f + 0.044715f * x * x))))
EACH(softmax, exp(x - a))
EACH(divide, x / a)
EACH(divisor, a / x)
EACH(rms, x * rsqrt(a + 1e-6f))
EACH(exposure, fmax(0.0f, (x - 0.001f) * a))
EACH(logarithm, (log2(fmax(x, 1.5e-5f)) + 8.0f) / a)
EACH(raise, exp2(x * a - 8.0f))
EACH(power, pow(fabs(x), a))
EACH(root, sqrt(fabs(x) * a))
EACH(sigmoid, native_recip(1.0f + native_exp(-x)))
EACH(is_fast, x + FAST)
kernel void turn(global const float *src, global float *dst, float a)
{
    size_t i = get_global_id(0);
    float c, s = sincos(src[i] * a, &c);
    dst[i] = s + 2.0f * c;
}
";

/// Returns the value of a kernel in double precision.
fn reference(kernel: &str, x: f64, a: f64) -> f64 {
    match kernel {
        "scale" => x * a,
        "silu" => x / (1.0 + (-x).exp()),
        "gelu" => {
            let inner = 0.797_884_560_802_865_4 * x * (1.0 + 0.044_715 * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        "softmax" => (x - a).exp(),
        "divide" => x / a,
        "divisor" => a / x,
        "rms" => x / (a + f64::from(1e-6_f32)).sqrt(),
        "exposure" => ((x - f64::from(0.001_f32)) * a).max(0.0),
        "logarithm" => (x.max(f64::from(1.5e-5_f32)).log2() + 8.0) / a,
        "raise" => (x * a - 8.0).exp2(),
        "power" => x.abs().powf(a),
        "root" => (x.abs() * a).sqrt(),
        "sigmoid" => 1.0 / (1.0 + (-x).exp()),
        "turn" => (x * a).sin() + 2.0 * (x * a).cos(),
        other => panic!("{other}"),
    }
}

/// Chains of kernels, each with its scalar. `1 + tanh` cancels for negative numbers, which `exposure` makes
/// zero.
const CHAINS: &[&[(&str, f32)]] = &[
    &[("scale", 0.7), ("silu", 0.0)],
    &[("exposure", 1.3), ("gelu", 0.0), ("scale", 0.5)],
    &[("softmax", 3.1), ("divide", 17.3)],
    &[("rms", 2.3), ("scale", 1.7)],
    &[("exposure", 1.9), ("logarithm", 16.0), ("power", 1.8), ("raise", 16.0)],
    &[("root", 3.7), ("divisor", 0.9)],
    &[("scale", 0.3), ("turn", 1.1)],
    &[("divide", 3.0), ("root", 1.0), ("silu", 0.0), ("power", 2.4)],
    &[("scale", 0.7), ("sigmoid", 0.0)],
];

const LLAMA: &str = "-cl-std=CL2.0 -cl-mad-enable -cl-unsafe-math-optimizations \
                     -cl-finite-math-only -cl-fast-relaxed-math";

/// Options of darktable and llama.cpp, and each option that affects arithmetic.
const OPTIONS: &[&str] = &[
    "",
    "-cl-fast-relaxed-math",
    LLAMA,
    "-cl-std=CL3.0 -cl-fast-relaxed-math",
    "-cl-mad-enable",
    "-cl-no-signed-zeros",
    "-cl-unsafe-math-optimizations",
    "-cl-finite-math-only",
    "-cl-denorms-are-zero",
    "-cl-single-precision-constant",
    "-cl-fp32-correctly-rounded-divide-sqrt",
    "-cl-opt-disable",
    "-Werror",
    "-DFACTOR=1.0f -I /usr/include -cl-fast-relaxed-math",
];

/// Returns extreme numbers, followed by ordinary ones of several magnitudes.
fn values() -> Vec<f32> {
    let edges = [
        0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 1e-30, -1e-30, 1e30, -1e30, 88.0, -88.0, 104.0,
        -104.0, 1e4, -1e4, 3e38, -3e38,
    ];
    let ordinary = (0..4096_u64).map(|n| {
        let bits = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let unit = bits as f32 / (1 << 24) as f32 - 0.5;
        unit * [2.0, 20.0, 100.0, 8.0][n as usize % 4]
    });
    edges.into_iter().chain(ordinary).collect()
}

/// Returns the correct result, or `None` if an intermediate value is not a normal number in single precision:
/// options allow drivers to return any result then.
fn right(chain: &[(&str, f32)], x: f32) -> Option<f64> {
    let is_ordinary = |x: f64| x == 0.0 || (1e-36..1e36).contains(&x.abs());
    chain.iter().try_fold(f64::from(x), |x, (kernel, a)| {
        Some(reference(kernel, x, f64::from(*a))).filter(|&y| is_ordinary(x) && is_ordinary(y))
    })
}

/// Returns the largest error and the mean error, in units in the last place.
fn errors(chain: &[(&str, f32)], results: &[f32]) -> (f64, f64) {
    let values = values();
    let errors = values.iter().zip(results).filter_map(|(x, result)| {
        let right = right(chain, *x)?;
        let nearest = (right as f32).abs().max(f32::MIN_POSITIVE);
        let ulp = f64::from(nearest.next_up()) - f64::from(nearest);
        let error = (f64::from(*result) - right).abs() / ulp;
        Some(if error.is_nan() { f64::INFINITY } else { error })
    });
    let errors: Vec<_> = errors.collect();
    assert!(errors.len() > 1000, "{} values are ordinary", errors.len());
    let largest = errors.iter().copied().fold(0.0, f64::max);
    (largest, errors.iter().sum::<f64>() / errors.len() as f64)
}

fn kernel(program: &Program, name: &str) -> Kernel {
    // SAFETY: a work-item touches its own element, and all buffers have as many.
    unsafe { program.kernel(name) }.unwrap()
}

async fn run(rt: &Runtime, program: &Program, chain: &[(&str, f32)], fused: bool) -> Vec<f32> {
    let (queue, values) = (rt.queue(), values());
    let count = values.len();
    let mut buffers: Vec<Buffer<f32>> = vec![rt.buffer_from(values).await.unwrap()];
    buffers.extend(chain.iter().map(|_| rt.buffer(count).unwrap()));
    let scope = fused.then(|| queue.start_fusion());
    for (at, (name, a)) in chain.iter().enumerate() {
        let launch = kernel(program, name).launch(count);
        let launch = launch.args((&buffers[at], &buffers[at + 1], *a));
        match &scope {
            Some(scope) => scope.submit(launch).unwrap(),
            None => queue.submit(launch).unwrap(),
        };
    }
    if let Some(scope) = scope {
        scope.require();
        let outcome = scope.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Fused { .. }), "{chain:?}: {outcome}");
    }
    queue.read(&buffers[chain.len()]).await.unwrap()
}

/// Returns the module of the kernels, whose instructions a compiler may rearrange if the options allow it.
fn module(options: &str) -> Module {
    let folder = tempfile::tempdir().unwrap();
    let run = |command: &mut Command| {
        assert!(command.current_dir(&folder).status().unwrap().success(), "{command:?}");
    };
    std::fs::write(folder.path().join("kernels.cl"), KERNELS).unwrap();
    let mut clang = Command::new("clang-15");
    clang.args(["-x", "cl", "--target=spir64", "-O2", "-w", "-Xclang", "-finclude-default-header"]);
    clang.args(options.split_whitespace());
    run(clang.args(["-emit-llvm", "-c", "kernels.cl", "-o", "kernels.bc"]));
    let mut translator = Command::new("llvm-spirv-15");
    run(translator.args(["--spirv-max-version=1.2", "kernels.bc", "-o", "kernels.spv"]));
    Module::spirv(std::fs::read(Path::new(folder.path()).join("kernels.spv")).unwrap()).unwrap()
}

/// Additional error allowed to the fused kernel if functions have full accuracy, since the launches may happen
/// to be exact: up to one unit for the largest error, and 0.25 units for the mean.
const SLACK: (f64, f64) = (1.0, 0.25);

async fn compare(rt: &Runtime, what: &str, program: &Program) {
    for chain in CHAINS {
        let plain = errors(chain, &run(rt, program, chain, false).await);
        let fused = errors(chain, &run(rt, program, chain, true).await);
        let is_as_good = fused.0 <= plain.0 + SLACK.0 && fused.1 <= plain.1 + SLACK.1;
        let device = rt.device();
        assert!(
            is_as_good,
            "{device}, {what}, {chain:?}: largest and mean error {fused:?}, unfused {plain:?}"
        );
    }
}

#[test]
fn fused_kernels_are_as_accurate_as_their_launches_with_all_build_options() {
    if !has_clang() {
        return;
    }
    support::on_all_devices_at_once(async |rt| {
        let rt = scopes::with_mode(&rt, FusionMode::Relaxed).await;
        for options in tier::sample(OPTIONS.to_vec(), 3) {
            let module = Module::opencl_c(KERNELS);
            let program = rt.build(&module).options(options).await.unwrap();
            compare(&rt, options, &program).await;
        }
    });
}

#[test]
fn fused_modules_are_as_accurate_as_their_launches_with_all_build_options() {
    if !has_clang() {
        return;
    }
    let all = ["-cl-std=CL1.2", "-cl-fast-relaxed-math", LLAMA].to_vec();
    let modules: Vec<_> = tier::sample(all, 1).into_iter().map(|o| (o, module(o))).collect();
    support::on_all_devices_at_once(async |rt| {
        let rt = scopes::with_mode(&rt, FusionMode::Relaxed).await;
        let is_emitted = !rt.device().formats.contains(&ModuleFormat::SpirV);
        for (made_with, module) in &modules {
            if is_emitted && *made_with == LLAMA {
                continue;
            }
            for options in ["", "-cl-fast-relaxed-math"] {
                let program = rt.build(module).options(options).await.unwrap();
                let what = format!("module by `{made_with}`, `{options}`");
                compare(&rt, &what, &program).await;
            }
        }
    });
}

/// A text can detect the option through the macro that OpenCL C defines with it.
#[test]
fn the_fast_math_macro_is_defined_in_fused_kernels() {
    if !has_clang() {
        return;
    }
    let chain = [("is_fast", 0.0), ("scale", 3.0)];
    support::on_all_devices_at_once(async |rt| {
        let rt = scopes::with_mode(&rt, FusionMode::Relaxed).await;
        for options in ["", "-cl-finite-math-only", "-cl-fast-relaxed-math"] {
            let module = Module::opencl_c(KERNELS);
            let program = rt.build(&module).options(options).await.unwrap();
            let plain = run(&rt, &program, &chain, false).await;
            let fused = run(&rt, &program, &chain, true).await;
            let of_one = values().iter().position(|x| *x == 1.0).unwrap();
            let expected = if options == "-cl-fast-relaxed-math" { 6.0 } else { 3.0 };
            let found = [plain[of_one], fused[of_one]];
            assert_eq!(found, [expected; 2], "{}, `{options}`", rt.device());
        }
    });
}

/// A fused kernel is built without the options in which these programs differ.
#[test]
fn programs_with_and_without_fast_math_are_fused() {
    if !has_clang() {
        return;
    }
    support::on_all_devices_at_once(async |rt| {
        let rt = scopes::with_mode(&rt, FusionMode::Relaxed).await;
        let module = Module::opencl_c(KERNELS);
        let fast = rt.build(&module).options("-cl-fast-relaxed-math").await.unwrap();
        let plain = rt.build(&module).await.unwrap();
        let queue = rt.queue();
        let [src, tmp, dst] = scopes::buffers(&rt, &values()).await;
        let scope = queue.start_fusion();
        scope.require();
        let n = src.len();
        scope.submit(kernel(&fast, "scale").launch(n).args((&src, &tmp, 0.7f32))).unwrap();
        scope.submit(kernel(&plain, "silu").launch(n).args((&tmp, &dst, 0.0f32))).unwrap();
        let outcome = scope.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Fused { .. }), "{outcome}");
        let (largest, _) =
            errors(&[("scale", 0.7), ("silu", 0.0)], &queue.read(&dst).await.unwrap());
        let plain = run(&rt, &plain, &[("scale", 0.7), ("silu", 0.0)], false).await;
        let (of_launches, _) = errors(&[("scale", 0.7), ("silu", 0.0)], &plain);
        assert!(largest <= of_launches + SLACK.0, "{largest} {of_launches}");
    });
}

/// Runs a chain of a program ten times in a scope, once its kernel is built. Returns the results of each run, and the
/// last outcome.
async fn repeated(rt: &Runtime, program: &Program) -> (Vec<Vec<u32>>, FusionOutcome) {
    let (queue, mut results, mut last) = (rt.queue(), Vec::new(), None);
    while results.len() < 10 {
        let [src, tmp, dst] = scopes::buffers(rt, &values()).await;
        let (scope, n) = (queue.start_fusion(), src.len());
        scope.submit(kernel(program, "scale").launch(n).args((&src, &tmp, 0.7f32))).unwrap();
        scope.submit(kernel(program, "gelu").launch(n).args((&tmp, &dst, 0.0f32))).unwrap();
        let outcome = scope.complete().await.unwrap();
        let bits = queue.read(&dst).await.unwrap().into_iter().map(f32::to_bits);
        if !scopes::is_overdue(&outcome) {
            results.push(bits.collect());
            last = Some(outcome);
        }
    }
    (results, last.unwrap())
}

#[test]
fn programs_that_allow_other_results_are_fused_in_the_relaxed_mode_only() {
    const ALLOW: [&str; 6] = [
        "-cl-fast-relaxed-math",
        "-cl-unsafe-math-optimizations",
        "-cl-finite-math-only",
        "-cl-mad-enable",
        "-cl-no-signed-zeros",
        "-cl-denorms-are-zero",
    ];
    if !has_clang() {
        return;
    }
    support::on_all_devices_at_once(async |rt| {
        for mode in [FusionMode::Auto, FusionMode::Always] {
            let rt = scopes::with_mode(&rt, mode).await;
            for option in ALLOW {
                let program = rt.build(&Module::opencl_c(KERNELS)).options(option).await.unwrap();
                let (results, outcome) = repeated(&rt, &program).await;
                assert!(results.iter().all(|other| *other == results[0]), "{option}");
                let why = outcome.to_string();
                assert!(why.contains(option) && why.contains("KILN_FUSION=relaxed"), "{why}");
            }
        }
        // A module says it by its instructions.
        if rt.device().formats.contains(&ModuleFormat::SpirV) {
            let rt = scopes::always(&rt).await;
            let program = rt.build(&module("-cl-fast-relaxed-math")).await.unwrap();
            let (_, outcome) = repeated(&rt, &program).await;
            assert!(outcome.to_string().contains("fast-math mode"), "{outcome}");
        }
    });
}
