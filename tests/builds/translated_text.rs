//! Translations of OpenCL C by clang and llvm-spirv: they compute the same bytes as the output of the device's
//! own compiler, are valid SPIR-V, and can be fused.
#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use bytemuck::Pod;
use futures::StreamExt;
use kiln::devices::ModuleFormat;
use kiln::fusion::FusionOutcome;
use kiln::internal::translate::{options_for_device, spirv_of};
use kiln::store::EntryCheck;
use kiln::{CacheConfig, ErrorKind, FusionMode, Kernel, Module, Runtime};
use smol::block_on;
use support::processes;
use support::stores;
use support::tools::{has_clang, has_tool};
use support::{SAXPY, on_each_device};

const N: usize = 256;

/// Returns numbers of many magnitudes.
fn inputs() -> Vec<f32> {
    let mut random = 7u32;
    let mut next = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random >> 8
    };
    (0..N)
        .map(|_| (next() as f32 / (1 << 23) as f32 - 1.0) * 10f32.powi(next() as i32 % 7 - 3))
        .collect()
}

/// Returns the bytes that the kernel `k` computes from the inputs.
async fn results(rt: &Runtime, module: &Module, options: &str) -> Vec<u8> {
    let program = rt.build(module).options(options).await.expect("it builds");
    // SAFETY: the kernels of this suite touch the element of their global id only.
    let kernel = unsafe { program.kernel("k") }.expect("it exists");
    let of_result = kernel.params().expect("it is built")[1].type_name.clone();
    match of_result.as_deref() {
        Some("float*" | "float4*") => run::<f32>(rt, &kernel).await,
        Some("double2*") => run::<f64>(rt, &kernel).await,
        // SPIR-V may state no type, and then accepts any argument.
        _ => run::<u32>(rt, &kernel).await,
    }
}

async fn run<T: Pod + Send>(rt: &Runtime, kernel: &Kernel) -> Vec<u8> {
    let x = rt.buffer_from(inputs()).await.expect("there is memory");
    let zeros = vec![T::zeroed(); 16 * N / size_of::<T>()];
    let y = rt.buffer_from(zeros).await.expect("there is memory");
    let queue = rt.queue();
    queue.submit(kernel.launch(N).args((x.read_only(), y.read_write()))).expect("it fits");
    bytemuck::cast_slice(&queue.read(&y).await.expect("it runs")).to_vec()
}

/// Kernels, with their options, that write four words for each element.
const KERNELS: &[(&str, &str)] = &[
    // Dimensions that do not exist.
    ("", "kernel void k(global float *x, global uint *y) {
              size_t i = get_global_id(0);
              y[4 * i] = get_global_id(i % 9);
              y[4 * i + 1] = get_global_offset(i - 5);
          }"),
    // OpenCL C 3.0 features of the device.
    ("-cl-std=CL3.0", "kernel void k(global float *x, global uint *y) {
              size_t i = get_global_id(0);
          #ifdef __opencl_c_fp64
              y[4 * i] = 1;
          #endif
          #ifdef __opencl_c_int64
              y[4 * i + 1] = 2;
          #endif
          #ifdef __opencl_c_generic_address_space
              y[4 * i + 2] = 3;
          #endif
          #ifdef __opencl_c_3d_image_writes
              y[4 * i + 3] = 4;
          #endif
          }"),
    // Contraction: expressions where it is allowed, and where it is not.
    ("", "kernel void k(global float *x, global float *y) {
              size_t i = get_global_id(0);
              float t = x[i] * x[(i + 1) % 256];
              y[4 * i] = x[i] * x[(i + 1) % 256] + x[(i + 2) % 256];
              y[4 * i + 1] = t + x[(i + 2) % 256];
              y[4 * i + 2] = mad(x[i], x[(i + 1) % 256], x[(i + 2) % 256]);
              y[4 * i + 3] = x[i] * 3.0f - x[(i + 1) % 256] * 0.7f;
          }"),
    ("", "#pragma OPENCL FP_CONTRACT OFF
          kernel void k(global float *x, global float *y) {
              size_t i = get_global_id(0);
              y[4 * i] = x[i] * x[(i + 1) % 256] + x[(i + 2) % 256];
          }"),
    // Functions of mathematics.
    ("", "kernel void k(global float *x, global float *y) {
              size_t i = get_global_id(0);
              y[4 * i] = sin(x[i]) + exp(-fabs(x[i]));
              y[4 * i + 1] = x[i] / x[(i + 1) % 256] + sqrt(fabs(x[i]));
              y[4 * i + 2] = pow(fabs(x[i]), 0.3f) - native_log(fabs(x[i]) + 1.0f);
              y[4 * i + 3] = fmod(x[i], 0.7f) * rsqrt(fabs(x[i]) + 0.1f);
          }"),
    // Macros, including those of the device.
    ("-DSCALE=2.5f -D OFFSET=\"1.0f + 2.0f\" -DAPPLY(a)=((a)*SCALE+OFFSET)",
     "#define TWICE(a) ((a) + (a))
      #ifdef cl_khr_fp64
      #define HAS 1
      #else
      #define HAS 0
      #endif
      kernel void k(global float *x, global uint *y) {
          size_t i = get_global_id(0);
          y[4 * i] = as_uint(TWICE(APPLY(x[i])));
          y[4 * i + 1] = __OPENCL_VERSION__ * 1000 + HAS;
          y[4 * i + 2] = __ENDIAN_LITTLE__ + 2 * __IMAGE_SUPPORT__;
          y[4 * i + 3] = as_uint(M_PI_F) + sizeof(size_t);
      }"),
    ("-cl-std=CL2.0", "kernel void k(global float *x, global uint *y) {
          size_t i = get_global_id(0);
          generic float *p = &x[i];
          y[4 * i] = as_uint(*p) + __OPENCL_C_VERSION__;
      }"),
    // Structs, vectors and local arrays.
    ("", "typedef struct { float3 a; int n; char c[5]; } S;
          S make(float x, int n) { S s; s.a = (float3)(x, x + 1, x * 2); s.n = n; s.c[n % 5] = n; return s; }
          kernel void k(global float *x, global float4 *y) {
              size_t i = get_global_id(0);
              S s = make(x[i], i);
              float4 v = (float4)(s.a, s.n).wzyx;
              y[i] = select(v, v.s3210 * 2.0f, isless(v, (float4)(1.0f))) + s.c[s.n % 5];
          }"),
    // Branches, switches and loops whose blocks LLVM rearranges.
    ("", "kernel void k(global float *x, global float4 *y) {
              int i = get_global_id(0);
              float4 sum = 0;
              float weights = 0;
              for (int d = -2; d <= 2; ++d) {
                  for (int e = -2; e <= 2; ++e) {
                      float v = x[clamp(i + d + e, 0, 255)];
                      float w = exp(-0.5f * (d * d + e * e));
                      sum += w * (float4)(v, v * v, 1, 0);
                      weights += w;
                  }
              }
              switch (i % 5) {
              case 0: sum.x += 1; break;
              case 1: sum.y *= 2;
              case 2: sum.z -= 3; break;
              default: if (x[i] < 0) sum = -sum; else return;
              }
              y[i] = sum / weights;
          }"),
    // Integers of every width.
    ("", "constant uchar table[4] = { 3, 1, 4, 1 };
          kernel void k(global float *floats, global uint *y) {
              size_t i = get_global_id(0);
              global int *x = (global int *)floats;
              y[4 * i] = mul_hi((uint)x[i], 2654435769u) ^ rotate((uint)x[i], 7u);
              y[4 * i + 1] = convert_uchar_sat(x[i] >> 20) + table[i % 4];
              y[4 * i + 2] = (uint)(((long)x[i] * x[i]) >> 13);
              y[4 * i + 3] = popcount(x[i]) + clz(x[i]) + (short)x[i] % 7;
          }"),
    ("-cl-mad-enable -cl-no-signed-zeros -cl-finite-math-only",
     "kernel void k(global float *x, global float *y) {
          size_t i = get_global_id(0);
          y[4 * i] = x[i] * x[i] + 1.0f;
          y[4 * i + 1] = x[i] + 0.0f;
      }"),
    ("-cl-single-precision-constant -cl-denorms-are-zero",
     "kernel void k(global float *x, global float *y) {
          size_t i = get_global_id(0);
          y[4 * i] = x[i] * 0.1;
          y[4 * i + 1] = x[i] * 1e-38f;
      }"),
    ("-cl-opt-disable -w -Werror -cl-kernel-arg-info",
     "kernel void k(global float *x, global float *y) {
          size_t i = get_global_id(0);
          int unused;
          y[4 * i] = x[i] * x[i] + 1.0f;
      }"),
];

const DOUBLES: &str = "#pragma OPENCL EXTENSION cl_khr_fp64: enable
    kernel void k(global float *x, global double2 *y) {
        size_t i = get_global_id(0);
        double v = x[i];
        y[i] = (double2)(sin(v) * v + 1.0, sqrt(fabs(v)) / 3.0);
    }";

/// Checks that a plain build and the translation compute the same bytes: as SPIR-V where the device takes it,
/// and translated back to OpenCL C where it takes text.
async fn assert_same(rt: &Runtime, options: &str, text: &str) {
    let module = Module::opencl_c(text);
    let plain = results(rt, &module, options).await;
    let spirv =
        spirv_of(rt, &module, options).await.unwrap_or_else(|error| panic!("{error}\n{text}"));
    let for_device = options_for_device(options).expect("they are understood");
    for module in taken(rt, spirv) {
        let translated = results(rt, &module, &for_device).await;
        assert!(plain == translated, "`{options}`: other bytes of\n{text}");
    }
}

/// Returns a module in each form that the device takes.
fn taken(rt: &Runtime, spirv: Module) -> Vec<Module> {
    let emitted = kiln::internal::spirv::emit(spirv.code()).expect("it can be emitted");
    let mut modules = vec![spirv, Module::opencl_c(emitted)];
    modules.retain(|module| rt.device().formats.contains(&module.format()));
    modules
}

#[test]
fn translated_kernels_compute_the_same_bytes() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt: Runtime| {
        let has_spirv = rt.device().formats.contains(&ModuleFormat::SpirV);
        for (options, text) in KERNELS {
            // PoCL 3.1 claims to support it, but then has no generic pointers.
            if options.contains("CL2.0") && !has_spirv {
                continue;
            }
            assert_same(&rt, options, text).await;
        }
        if rt.device().extensions.iter().any(|name| name == "cl_khr_fp64") {
            assert_same(&rt, "", DOUBLES).await;
        }
        assert_eq!(rt.stats().builds.failed, 0);
    }));
}

/// llvm-spirv alone writes invalid modules for some of these texts.
#[test]
fn translations_are_valid() {
    if !has_clang() || !has_tool("spirv-val", &["spirv-val", "--version"]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts: Vec<_> =
        KERNELS.iter().map(|(options, text)| ((*text).to_owned(), (*options).to_owned())).collect();
    for folder in ["tests/data", "tests/data/emitted", "examples/pipeline"] {
        for path in processes::files(&root.join(folder)) {
            if path.extension().is_some_and(|extension| extension == "cl") {
                let text = fs::read_to_string(path).expect("it can be read");
                texts.push((text, "-cl-std=CL2.0".to_owned()));
            }
        }
    }
    block_on(on_each_device(async |rt: Runtime| {
        for (text, options) in &texts {
            let spirv = spirv_of(&rt, &Module::opencl_c(&**text), options).await;
            let spirv = spirv.unwrap_or_else(|error| panic!("{error}\n{text}"));
            let mut validator = Command::new("spirv-val")
                .args(["--target-env", "opencl2.2"])
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it exists");
            let mut stdin = validator.stdin.take().expect("it is piped");
            stdin.write_all(spirv.code()).expect("it reads");
            drop(stdin);
            let output = validator.wait_with_output().expect("it ends");
            assert!(output.status.success(), "{output:?}\n{text}");
        }
    }));
}

/// Devices that take no SPIR-V also get translations, which are emitted as OpenCL C.
#[test]
fn each_device_has_translations() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt: Runtime| {
        let module = Module::opencl_c(SAXPY);
        let spirv = spirv_of(&rt, &module, "").await.expect("it is translated");
        assert_eq!(spirv.kernels(), ["saxpy"]);
        assert_eq!(rt.stats().builds.translations, 1);
    }));
}

#[test]
fn included_files_are_part_of_the_key() {
    if !has_clang() {
        return;
    }
    let folder = tempfile::tempdir().expect("there is disk space");
    let header = folder.path().join("header.h");
    let options = format!("-I {}", folder.path().display());
    let module = Module::opencl_c(
        "#include \"header.h\"\nkernel void k(global float *x, global float *y) {
             size_t i = get_global_id(0);
             y[4 * i] = apply(x[i]) + M_PI_F;
         }",
    );
    block_on(on_each_device(async |rt: Runtime| {
        if !rt.device().formats.contains(&ModuleFormat::SpirV) {
            return;
        }
        let mut seen = Vec::new();
        for factor in [2, 3, 2] {
            write_header(&header, factor);
            let spirv = spirv_of(&rt, &module, &options).await.expect("it is translated");
            let computed = results(&rt, &spirv, "").await;
            let expected = Module::opencl_c(format!(
                "kernel void k(global float *x, global float *y) {{
                     size_t i = get_global_id(0);
                     y[4 * i] = {factor}.0f * x[i] + M_PI_F;
                 }}"
            ));
            assert!(computed == results(&rt, &expected, "-cl-mad-enable").await, "{factor}");
            seen.push(spirv.digest());
        }
        assert!(seen[0] == seen[2] && seen[0] != seen[1]);
        assert_eq!(rt.stats().builds.translations, 2);
        fs::remove_file(&header).expect("it existed");
        let error = spirv_of(&rt, &module, &options).await.expect_err("there is no file");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.build_log().is_some_and(|log| log.contains("header.h")), "{error}");
    }));
}

fn write_header(path: &Path, factor: u32) {
    let text = format!("#define FACTOR {factor}.0f\n#define apply(x) (FACTOR * (x))\n");
    fs::write(path, text).expect("there is disk space");
}

const CHAIN: [&str; 2] = [
    "kernel void first(global const float *x, global float *y, float a) {
         size_t i = get_global_id(0);
         y[i] = FACTOR * x[i] + a;
     }",
    "float apply(float x) { return sin(x) * x + 0.5f; }
     kernel void second(global const float *x, global float *y) {
         size_t i = get_global_id(0);
         y[i] = apply(x[i]);
     }",
];

const OPTIONS: &str = "-DFACTOR=1.1f";

/// Returns the result of the chain, and whether it ran as one kernel.
async fn chain(rt: &Runtime, modules: &[Module]) -> (Vec<f32>, FusionOutcome) {
    let mut kernels = Vec::new();
    for (module, name) in modules.iter().zip(["first", "second"]) {
        let program = rt.build(module).options(OPTIONS).await;
        // SAFETY: they touch the element of their global id only.
        let kernel = unsafe { program.expect("it builds").kernel(name) };
        kernels.push(kernel.expect("it exists"));
    }
    let x = rt.buffer_from(inputs()).await.expect("there is memory");
    let (between, y) =
        (rt.buffer::<f32>(N).expect("it fits"), rt.buffer::<f32>(N).expect("it fits"));
    let queue = rt.queue();
    let fusion = queue.start_fusion();
    fusion.submit(kernels[0].launch(N).args((&x, &between, 0.3f32))).expect("it fits");
    fusion.submit(kernels[1].launch(N).args((&between, &y))).expect("it fits");
    drop(between);
    let outcome = fusion.complete().await.expect("the launches run");
    (queue.read(&y).await.expect("it runs"), outcome)
}

#[test]
fn kernels_given_as_text_are_fused() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt: Runtime| {
        let mut computed = Vec::new();
        for (mode, fuses) in [(FusionMode::Never, false), (FusionMode::Always, true)] {
            let builder = support::builder().device(rt.device().index().to_string());
            let rt = builder.fusion(mode).build().await.expect("it starts");
            let (result, outcome) = chain(&rt, &CHAIN.map(Module::opencl_c)).await;
            assert_eq!(outcome.is_fused(), fuses, "{outcome}");
            assert_eq!(rt.stats().builds.translations, if fuses { 2 } else { 0 });
            computed.push(result.into_iter().map(f32::to_bits).collect::<Vec<_>>());
        }
        assert!(computed[0] == computed[1], "{computed:x?}");
    }));
}

/// clang creates integers of two bits for such a `switch`, which llvm-spirv does not accept. All cases are exact:
/// PoCL's `rsqrt` has other last bits in another kernel, on processors without AVX2.
#[test]
fn switches_with_few_cases_are_optimised() {
    if !has_clang() {
        return;
    }
    let text = "float shaped(uint kind, float x) {
            switch (kind & 3) {
            case 0: return x + 1;
            case 1: return x * x;
            case 2: return floor(x);
            default: return fabs(x);
            }
        }
        void put(global float *y, size_t i, float x) { y[i] = x; }
        kernel void second(global const float *x, global float *y) {
            size_t i = get_global_id(0);
            put(y, i, shaped((uint)i, x[i]));
        }";
    block_on(on_each_device(async |rt: Runtime| {
        const FUNCTION: u32 = 54;
        let spirv = spirv_of(&rt, &Module::opencl_c(text), "").await.expect("it is translated");
        let words: Vec<_> =
            spirv.code().as_chunks().0.iter().copied().map(u32::from_le_bytes).collect();
        let (mut at, mut functions) = (5, 0);
        while let Some(word) = words.get(at) {
            functions += usize::from(word & 0xffff == FUNCTION && words[at + 1] != 0);
            at += (word >> 16) as usize;
        }
        // Besides the kernel, only declarations and the stand-in for the kernel itself.
        assert!(functions <= 4, "{functions} functions: they are not inlined");
        let modules = [Module::opencl_c(CHAIN[0]), Module::opencl_c(text)];
        let mut computed = Vec::new();
        for mode in [FusionMode::Never, FusionMode::Always] {
            let builder = support::builder().device(rt.device().index().to_string());
            let rt = builder.fusion(mode).build().await.expect("it starts");
            let (result, outcome) = chain(&rt, &modules).await;
            assert_eq!(outcome.is_fused(), mode == FusionMode::Always, "{outcome}");
            computed.push(result.into_iter().map(f32::to_bits).collect::<Vec<_>>());
        }
        let differences =
            computed[0].iter().zip(&computed[1]).enumerate().filter(|(_, (a, b))| a != b);
        let differences: Vec<_> = differences.collect();
        assert!(differences.is_empty(), "at, one by one, fused: {differences:x?}");
    }));
}

/// A driver may optimise one language better than the other, so a fused kernel should use the language of its
/// launches.
#[test]
fn a_fused_kernel_reaches_the_driver_in_the_language_of_its_launches() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt: Runtime| {
        let mut modules = Vec::new();
        for text in CHAIN.map(Module::opencl_c) {
            modules.push(spirv_of(&rt, &text, OPTIONS).await.expect("it is translated"));
        }
        let takes = |format| rt.device().formats.contains(&format);
        for modules in [CHAIN.map(Module::opencl_c).to_vec(), modules] {
            let folder = tempfile::tempdir().expect("there is disk space");
            let cache = CacheConfig::at(folder.path());
            let builder = Runtime::builder().device(rt.device().index().to_string());
            let rt = builder.cache(cache.clone()).fusion(FusionMode::Always).build().await;
            let rt = rt.expect("it starts");
            let (_, outcome) = chain(&rt, &modules).await;
            assert!(outcome.is_fused(), "{outcome}");
            rt.drain().await;

            let verified: Vec<_> = stores::open_with(&cache).verify().collect().await;
            let emitted = verified.into_iter().filter_map(|(_, checked)| match checked {
                EntryCheck::Whole(entry) => {
                    let record = entry.record();
                    let kernel = record.kernels.first()?;
                    let is_program = record.field("kind") == Some("program");
                    let is_fused = is_program && kernel.name.starts_with("fused_");
                    is_fused.then(|| record.field("emitter").is_some())
                }
                _ => panic!("it is damaged"),
            });
            let is_text = modules[0].format() == ModuleFormat::OpenClC;
            let expected = takes(ModuleFormat::OpenClC) && (is_text || !takes(ModuleFormat::SpirV));
            assert_eq!(emitted.collect::<Vec<_>>(), [expected]);
        }
    }));
}
