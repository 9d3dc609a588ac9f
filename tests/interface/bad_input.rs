//! Invalid input from users: each case returns an error of the right kind that states what was given and what
//! was expected. No command is lost, and the runtime works afterwards.

#![cfg(feature = "simulated")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kiln::build::Origin;
use kiln::devices::ModuleFormat;
use kiln::images::R;
use kiln::simulated::Simulator;
use kiln::{Error, ErrorKind, Kernel, Local, Module, Runtime};
use support::everywhere;
use support::test_name;
use support::{SAXPY, kernel};

/// Checks that the error has this kind, and that its message contains all of `parts`.
#[track_caller]
fn refused<T>(result: kiln::Result<T>, kind: ErrorKind, parts: &[&str]) -> Error {
    let Err(error) = result else { panic!("it was accepted; expected {kind}: {parts:?}") };
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is missing in: {error}");
    }
    error
}

/// Like [`refused`], for the kind of nearly all errors in this file.
#[track_caller]
fn invalid<T>(result: kiln::Result<T>, parts: &[&str]) {
    refused(result, ErrorKind::InvalidArgument, parts);
}

/// Checks that refused commands were never submitted, that no command is left, and that the runtime still
/// works.
async fn assert_works(rt: &Runtime) {
    rt.drain().await;
    let stats = rt.stats();
    assert_eq!((stats.commands.in_flight, stats.commands.failed), (0, 0));
    let saxpy = kernel(rt, SAXPY, "saxpy").await;
    let x = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
    let y = rt.buffer_from(vec![2.0f32; 8]).await.unwrap();
    rt.queue().submit(saxpy.launch(8).args((3.0f32, &x, &y))).unwrap().await.unwrap();
    assert_eq!(rt.queue().read(&y).await.unwrap(), [5.0; 8]);
}

/// Creates a runtime with a simulated device on which `saxpy` computes its result.
async fn simulated() -> Runtime {
    let simulator = Simulator::new();
    simulator.kernel("saxpy", |call| {
        let (a, x, y): (f32, Vec<f32>, Vec<f32>) = (call.value(0), call.read(1), call.read(2));
        let sums: Vec<f32> = x.iter().zip(y).map(|(x, y)| a * x + y).collect();
        call.write(2, &sums);
    });
    Runtime::builder().simulator(&simulator).build().await.unwrap()
}

/// A kernel with a parameter of every kind.
const EVERY_KIND: &str = "kernel void every_kind(
    int count, float4 bias, constant float *table, local float *scratch, global const uchar *input,
    global float *output)
{
    size_t i = get_global_id(0);
    scratch[get_local_id(0)] = table[0] + bias.y;
    output[i] = scratch[get_local_id(0)] + input[i] + count;
}";

// ---- Modules and builds --------------------------------------------------------------------------

everywhere! {
    async fn malformed_opencl_c_fails_with_the_compilers_log(rt: Runtime) {
        let source = "kernel void broken(global float *x) { x[0] = undeclared_name; }";
        let build = rt.build(&Module::opencl_c(source)).await;
        let error = refused(build, ErrorKind::BuildFailed, &[&rt.device().name, "OpenCL C"]);
        assert!(error.build_log().unwrap().contains("undeclared_name"), "{error}");
        let by_driver = rt.device().formats.contains(&ModuleFormat::OpenClC);
        assert_eq!(error.driver_code().is_some(), by_driver);
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn undeclared_imports_of_library_functions_are_named(rt: Runtime) {
        let library = Module::opencl_c("float tone_of(float x) { return x; }").exporting(["tone_of"]);
        rt.register(&library).expect("it exports a function");
        for declared in ["", "float tone_of(float x);"] {
            let text = format!("{declared} kernel void tone(global float* x) {{ *x = tone_of(*x); }}");
            let mut parts = vec!["`tone_of`", "registered library exports", "`Module::importing`"];
            // An undefined declaration becomes an import of the translated SPIR-V, which Kiln refuses.
            if !declared.is_empty() && !rt.device().formats.contains(&ModuleFormat::OpenClC) {
                parts = vec!["imports `tone_of`"];
            }
            refused(rt.build(&Module::opencl_c(text)).await, ErrorKind::BuildFailed, &parts);
        }
    }
}

everywhere! {
    async fn options_that_the_driver_rejects_fail_and_are_named(rt: Runtime) {
        for option in ["-cl-no-such-option", "-cl-std=CL9.9", "--frobnicate"] {
            let build = rt.build(&Module::opencl_c(SAXPY)).options(option).await;
            let kind = if rt.device().formats.contains(&ModuleFormat::OpenClC) {
                ErrorKind::BuildFailed
            } else {
                // Not every option of drivers has the same meaning for the compilers that translate.
                ErrorKind::Unsupported
            };
            refused(build, kind, &[option]);
        }
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn nul_characters_in_sources_options_and_kernel_names_are_refused(rt: Runtime) {
        // Drivers stop reading at a NUL character: the second kernel would be missing without a message.
        let source = format!("{SAXPY}\0kernel void second(global int *x) {{ x[0] = 1; }}");
        let at = format!("byte {}", SAXPY.len());
        refused(rt.build(&Module::opencl_c(source)).await, ErrorKind::InvalidModule, &["NUL", &at]);
        invalid(rt.build(&Module::opencl_c(SAXPY)).options("-D A\0B").await, &["NUL", "byte 4"]);
        let program = support::program(&rt, SAXPY).await;
        // SAFETY: as in `support::kernel`.
        let kernel = unsafe { program.kernel("sax\0py") };
        invalid(kernel, &["NUL", "byte 3", "sax\\0py"]);
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn empty_modules_are_refused(rt: Runtime) {
        for text in ["", " \n\t "] {
            let build = rt.build(&Module::opencl_c(text)).await;
            refused(build, ErrorKind::InvalidModule, &["OpenCL C", "empty"]);
        }
        refused(Module::spirv(Vec::new()), ErrorKind::InvalidModule, &["SPIR-V", "empty"]);
        refused(Module::native(Vec::new()), ErrorKind::InvalidModule, &["native binary", "empty"]);
        assert_eq!(rt.stats().builds.compiles, 0);
        assert_works(&rt).await;
    }
}

#[test]
fn truncated_spirv_is_refused_before_a_driver_crashes_on_it() {
    let whole = include_bytes!("../data/saxpy.spv");
    let (function, function_end) = ([54, 0, 5, 0], [56, 0, 1, 0]);
    for length in 0..whole.len() {
        let result = Module::spirv(&whole[..length]);
        let count = |word: [u8; 4]| whole[..length].chunks(4).filter(|&w| w == word).count();
        // If it is cut between two instructions outside of functions, it is a smaller module.
        if result.is_err() || length % 4 != 0 || count(function) > count(function_end) {
            refused(result, ErrorKind::InvalidModule, &["SPIR-V"]);
        }
    }
    for (length, parts) in [
        (10, ["10 bytes", "words of 4 bytes"]),
        (16, ["16 bytes", "header"]),
        (24, ["OpCapability", "only 1 words are left"]),
        (whole.len() - 1, ["1163 bytes", "words of 4 bytes"]),
        (whole.len() - 4, ["OpFunctionEnd", "truncated"]),
    ] {
        refused(Module::spirv(&whole[..length]), ErrorKind::InvalidModule, &parts);
    }
    let text = refused(Module::spirv("kernel void f() {}"), ErrorKind::InvalidModule, &["magic"]);
    assert!(text.to_string().contains("Module::opencl_c"), "{text}");
}

everywhere! {
    async fn spirv_without_a_body_is_refused_by_the_driver_or_has_no_kernels(rt: Runtime) {
        let header = &include_bytes!("../data/saxpy.spv")[..20];
        let build = rt.build(&Module::spirv(header).unwrap()).await;
        if rt.device().backend == "level-zero" {
            assert_eq!(build.unwrap().kernel_names(), [""; 0]);
        } else if rt.device().formats.contains(&ModuleFormat::SpirV) {
            refused(build, ErrorKind::BuildFailed, &[&rt.device().name, "SPIR-V"]);
        } else {
            refused(build, ErrorKind::InvalidModule, &["SPIR-V", "memory model"]);
        }
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn capabilities_that_the_device_lacks_are_reported_with_its_name(rt: Runtime) {
        let double = Module::spirv(include_bytes!("../data/double.spv").to_vec()).unwrap();
        let extensions = &rt.device().extensions;
        match rt.build(&double).await {
            Ok(_) => assert!(extensions.iter().any(|name| name == "cl_khr_fp64")),
            error => _ = refused(error, ErrorKind::Unsupported, &["Float64", &rt.device().name]),
        }
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn malformed_native_binaries_are_refused(rt: Runtime) {
        let text = b"this was never a binary of any driver".to_vec();
        for garbage in [text, vec![0; 4096], (0..=255).cycle().take(10_000).collect()] {
            let build = rt.build(&Module::native(garbage).unwrap()).await;
            refused(build, ErrorKind::BuildFailed, &[&rt.device().name, "native binary"]);
        }
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn unknown_kernels_are_reported_with_the_available_kernels(rt: Runtime) {
        let source = format!("{SAXPY}\nkernel void clear(global int *x) {{ x[0] = 0; }}");
        let program = support::program(&rt, &source).await;
        for name in ["sapxy", "", "SAXPY", "saxpy ", "ядро"] {
            // SAFETY: as in `support::kernel`.
            let kernel = unsafe { program.kernel(name) };
            let quoted = format!("`{name}`");
            refused(kernel, ErrorKind::UnknownKernel, &[&quoted, "saxpy", "clear"]);
        }
        let program = support::program(&rt, "int helper(int x) { return x; }").await;
        assert!(program.kernel_names().is_empty());
        // SAFETY: as in `support::kernel`.
        let kernel = unsafe { program.kernel("helper") };
        refused(kernel, ErrorKind::UnknownKernel, &["`helper`", "no kernels"]);
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn specialization_constants_need_a_module_that_has_them(rt: Runtime) {
        let module = Module::opencl_c(SAXPY);
        invalid(rt.build(&module).specialize(7, 1u32).await, &["OpenCL C", "only SPIR-V", "-D"]);
        let module = Module::spirv(include_bytes!("../data/saxpy.spv")).unwrap();
        invalid(rt.build(&module).specialize(7, 1u32).await, &["id 7", "it has none"]);
        assert_eq!(rt.stats().builds.compiles, 0);
        assert_works(&rt).await;
    }
}

#[test]
fn files_that_are_absent_empty_or_damaged_are_named() {
    futures::executor::block_on(async {
        let folder = std::env::temp_dir().join(format!("kiln-bad-input-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("empty.cl"), "").unwrap();
        std::fs::write(folder.join("blank.cl"), " \n").unwrap();
        std::fs::write(folder.join("short.spv"), &include_bytes!("../data/saxpy.spv")[..99])
            .unwrap();
        std::fs::write(folder.join("latin.cl"), b"// 5 \xb5s\nkernel void f() {}\n").unwrap();
        let open = async |name: &str| Module::open(folder.join(name)).await;
        let latin = open("latin.cl").await;
        let (absent, directory) = (open("absent.cl").await, open("").await);
        let (empty, blank, short) =
            (open("empty.cl").await, open("blank.cl").await, open("short.spv").await);
        std::fs::remove_dir_all(&folder).unwrap();

        let absent = refused(absent, ErrorKind::Io, &["absent.cl"]);
        let cause = std::error::Error::source(&absent).unwrap();
        let cause = cause.downcast_ref::<std::io::Error>().unwrap();
        assert_eq!(cause.kind(), std::io::ErrorKind::NotFound);
        refused(directory, ErrorKind::Io, &["kiln-bad-input"]);
        refused(empty, ErrorKind::InvalidModule, &["empty.cl", "is empty"]);
        refused(blank, ErrorKind::InvalidModule, &["blank.cl", "is empty"]);
        refused(short, ErrorKind::InvalidModule, &["short.spv", "99 bytes"]);
        let words = ["latin.cl", "not valid UTF-8", "byte 5 is 0xb5"];
        refused(latin, ErrorKind::InvalidModule, &words);
    });
}

// ---- Memory -------------------------------------------------------------------------------------

everywhere! {
    async fn buffers_larger_than_any_device_fail_with_out_of_resources(rt: Runtime) {
        let name = &rt.device().name;
        for (len, bytes) in [(1_000_000_000_000, "8000000000000 bytes"), (usize::MAX / 16, "bytes")] {
            let parts = [&len.to_string(), "elements of 8 bytes", bytes, name];
            refused(rt.buffer::<f64>(len), ErrorKind::OutOfResources, &parts);
        }
        let parts = [&usize::MAX.to_string(), "elements of 8 bytes", "address space"];
        refused(rt.buffer::<f64>(usize::MAX), ErrorKind::OutOfResources, &parts);
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn buffers_of_zero_bytes_are_refused(rt: Runtime) {
        invalid(rt.buffer::<f32>(0), &["0 elements of `f32`", "at least one byte"]);
        invalid(rt.buffer::<[f32; 0]>(9), &["9 elements of `[f32; 0]`", "at least one byte"]);
        invalid(rt.buffer_from(Vec::<u16>::new()).await, &["0 elements of `u16`"]);
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn empty_or_out_of_bounds_slices_and_invalid_casts_are_refused(rt: Runtime) {
        let buffer = rt.buffer_from(vec![1u32; 10]).await.unwrap();
        let ten = "10 elements";
        invalid(buffer.slice(3..11), &["3", "11", ten]);
        invalid(buffer.slice(10..), &["10", ten]);
        invalid(buffer.slice(4..4), &["4", "empty", ten]);
        #[expect(clippy::reversed_empty_ranges, reason = "the range is meant to be invalid")]
        let backwards = buffer.slice(7..3);
        invalid(backwards, &["7", "3", ten]);
        invalid(buffer.slice(0..=usize::MAX), &["0", ten]);
        invalid(buffer.slice((std::ops::Bound::Excluded(usize::MAX), std::ops::Bound::Unbounded)), &[ten]);
        let inner = buffer.slice(2..8).unwrap();
        invalid(inner.slice(..7), &["7", "6 elements"]);
        invalid(buffer.cast::<[u32; 3]>(), &["40 bytes", "[u32; 3]", "12"]);
        invalid(inner.cast::<u8>().unwrap().slice(24..25), &["24 elements"]);
        assert_eq!(rt.queue().read(&inner).await.unwrap(), [1; 6]);
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn writes_and_copies_that_differ_from_their_target_in_length_are_refused(rt: Runtime) {
        let queue = rt.queue();
        let buffer = rt.buffer_from(vec![7u32; 10]).await.unwrap();
        let other = rt.buffer_from(vec![8u32; 4]).await.unwrap();
        for len in [0, 9, 11] {
            let given = format!("a write of {len} elements");
            invalid(queue.write(&buffer, vec![1; len]), &[&given, "10 elements", "u32", "slice"]);
        }
        invalid(queue.copy(&buffer, &other), &["a copy of 10 elements", "4 elements", "u32"]);
        let part = buffer.slice(..4).unwrap();
        invalid(queue.write(&part, vec![1; 10]), &["10 elements", "4 elements"]);
        assert_eq!(queue.read(&buffer).await.unwrap(), [7; 10]);
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn overlapping_copies_are_refused(rt: Runtime) {
        let queue = rt.queue();
        let buffer = rt.buffer_from((0..10u32).collect::<Vec<_>>()).await.unwrap();
        let (low, high) = (buffer.slice(0..6).unwrap(), buffer.slice(4..10).unwrap());
        invalid(queue.copy(&low, &high), &["bytes 0..24", "bytes 16..40", "overlap"]);
        invalid(queue.copy(&buffer, &buffer), &["0..40", "overlap"]);
        let (low, high) = (buffer.slice(0..5).unwrap(), buffer.slice(5..10).unwrap());
        queue.copy(&low, &high).unwrap().await.unwrap();
        assert_eq!(queue.read(&buffer).await.unwrap(), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        assert_works(&rt).await;
    }
}

// ---- Arguments ----------------------------------------------------------------------------------

everywhere! {
    async fn arguments_are_checked_for_number_kind_size_type_and_access(rt: Runtime) {
        let kernel = kernel(&rt, EVERY_KIND, "every_kind").await;
        let floats = rt.buffer_from(vec![1.0f32; 16]).await.unwrap();
        let bytes = rt.buffer_from(vec![1u8; 16]).await.unwrap();
        let (bias, scratch) = ([0.0f32; 4], Local::<f32>::new(16));
        let queue = rt.queue();
        let submit = |launch: kiln::Launch| queue.submit(launch);
        let launch = || kernel.launch(16);
        let name = "kernel `every_kind`";

        invalid(submit(launch()), &[name, "0 arguments", "expected 6", "`int count`", "output"]);
        invalid(submit(launch().args((1i32, bias))), &[name, "2 arguments", "expected 6"]);
        let all = || launch().args((1i32, bias, &floats, scratch, &bytes, &floats));
        invalid(submit(all().arg(1i32)), &[name, "7 arguments", "expected 6"]);

        // The kind of the argument.
        let bad = launch().args((&floats, bias, &floats, scratch, &bytes, &floats));
        invalid(submit(bad), &[name, "parameter 0 `int count`", "given a buffer", "expected a value"]);
        let bad = launch().args((1i32, bias, 1.0f32, scratch, &bytes, &floats));
        invalid(submit(bad), &[name, "parameter 2", "table", "given a value", "expected a buffer"]);
        let bad = launch().args((1i32, bias, &floats, &floats, &bytes, &floats));
        invalid(submit(bad), &[name, "parameter 3", "scratch", "given a buffer", "Local::new"]);
        let bad = launch().args((1i32, bias, &floats, scratch, scratch, &floats));
        invalid(submit(bad), &[name, "parameter 4", "input", "Local::new", "expected a buffer"]);

        // The size and the type.
        let bad = launch().args((1i64, bias, &floats, scratch, &bytes, &floats));
        invalid(submit(bad), &[name, "parameter 0 `int count`", "given `i64`", "expected `int`"]);
        let bad = launch().args((1u32, bias, &floats, scratch, &bytes, &floats));
        invalid(submit(bad), &[name, "parameter 0 `int count`", "given `u32`", "expected `int`"]);
        let bad = launch().args((1i32, [0.0f32; 2], &floats, scratch, &bytes, &floats));
        invalid(submit(bad), &[name, "`float4 bias`", "[f32; 2]", "of 8 bytes", "of 16 bytes"]);
        let bad = launch().args((1i32, bias, &bytes, scratch, &bytes, &floats));
        invalid(submit(bad), &[name, "parameter 2", "table", "given `u8`", "expected `float*`"]);
        let bad = launch().args((1i32, bias, &floats, scratch, &floats, &floats));
        invalid(submit(bad), &[name, "parameter 4", "input", "given `f32`", "expected `uchar*`"]);
        let bad = launch().args((1i32, bias, &floats, Local::<u64>::new(8), &bytes, &floats));
        invalid(submit(bad), &[name, "parameter 3", "scratch", "given `u64`", "expected `float*`"]);

        // Memory that the kernel only reads.
        let bad = launch().args((1i32, bias, &floats, scratch, bytes.write_only(), &floats));
        invalid(submit(bad), &[name, "parameter 4", "input", "`write_only()`", "read-only", "`read_only()`"]);
        let bad = launch().args((1i32, bias, floats.read_write(), scratch, &bytes, &floats));
        invalid(submit(bad), &[name, "parameter 2", "table", "`read_write()`", "read-only"]);

        let output = rt.buffer_from(vec![0.0f32; 16]).await.unwrap();
        submit(launch().args((1i32, bias, &floats, scratch, &bytes, output.write_only()))).unwrap().await.unwrap();
        assert_eq!(queue.read(&output).await.unwrap(), [3.0; 16]);
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn arguments_of_native_binaries_are_checked_for_kind_and_size(rt: Runtime) {
        if rt.device().backend != "level-zero" {
            // OpenCL drivers make checks of their own, which differ.
            return;
        }
        let binary = support::program(&rt, EVERY_KIND).await.binary().unwrap();
        let program = rt.build(&Module::native(binary).unwrap()).await.unwrap();
        // SAFETY: the kernel stays inside its buffers.
        let kernel = unsafe { program.kernel("every_kind") }.unwrap();
        let floats = rt.buffer_from(vec![1.0f32; 16]).await.unwrap();
        let bytes = rt.buffer_from(vec![1u8; 16]).await.unwrap();
        let (bias, scratch) = ([0.0f32; 4], Local::<f32>::new(16));
        let queue = rt.queue();
        let launch = || kernel.launch(16);
        for (parameter, bad) in [
            ("parameter 0", launch().args((1i64, bias, &floats, scratch, &bytes, &floats))),
            ("parameter 0", launch().args((&floats, bias, &floats, scratch, &bytes, &floats))),
            ("parameter 1", launch().args((1i32, [0.0f32; 2], &floats, scratch, &bytes, &floats))),
            ("parameter 2", launch().args((1i32, bias, 1.0f32, scratch, &bytes, &floats))),
            ("parameter 3", launch().args((1i32, bias, &floats, 1i32, &bytes, &floats))),
            ("parameter 4", launch().args((1i32, bias, &floats, scratch, 1i32, &floats))),
        ] {
            invalid(queue.submit(bad), &["kernel `every_kind`", parameter]);
        }
        let output = rt.buffer_from(vec![0.0f32; 16]).await.unwrap();
        let good = launch().args((1i32, bias, &floats, scratch, &bytes, &output));
        queue.submit(good).unwrap().await.unwrap();
        assert_eq!(queue.read(&output).await.unwrap(), [3.0; 16]);
        assert_works(&rt).await;
    }
}

everywhere! {
    async fn local_memory_that_is_empty_or_exceeds_the_limit_is_refused(rt: Runtime) {
        let kernel = kernel(&rt, EVERY_KIND, "every_kind").await;
        let floats = rt.buffer_from(vec![1.0f32; 16]).await.unwrap();
        let bytes = rt.buffer_from(vec![1u8; 16]).await.unwrap();
        let most = rt.device().limits.local_memory;
        let submit = |scratch| {
            let launch = kernel.launch(16).args((1i32, [0.0f32; 4], &floats, scratch, &bytes, &floats));
            rt.queue().submit(launch)
        };
        for len in [0, usize::MAX] {
            invalid(submit(Local::<f32>::new(len)), &["kernel `every_kind`", "parameter 3", "f32"]);
        }
        let too_many = most as usize / size_of::<f32>() + 1;
        let parts = ["kernel `every_kind`", "local memory", &most.to_string()];
        invalid(submit(Local::new(too_many)), &parts);
        submit(Local::new(16)).unwrap().await.unwrap();
        assert_works(&rt).await;
    }
}

// ---- Ranges -------------------------------------------------------------------------------------

everywhere! {
    async fn invalid_launch_ranges_are_refused(rt: Runtime) {
        let saxpy = kernel(&rt, SAXPY, "saxpy").await;
        let x = rt.buffer_from(vec![1.0f32; 64]).await.unwrap();
        let y = rt.buffer_from(vec![1.0f32; 64]).await.unwrap();
        let queue = rt.queue();
        let submit = |launch: kiln::Launch| queue.submit(launch.args((1.0f32, &x, &y)));
        let name = "kernel `saxpy`";

        invalid(submit(saxpy.launch(0)), &[name, "[0]", "at least 1"]);
        invalid(submit(saxpy.launch([8, 0, 2])), &[name, "[8, 0, 2]", "at least 1"]);
        let most = usize::MAX;
        invalid(submit(saxpy.launch(most)), &[name, &most.to_string(), "work-items"]);
        invalid(submit(saxpy.launch([1 << 40, 1 << 40])), &[name, "1099511627776", "work-items"]);
        invalid(submit(saxpy.launch(8).offset(most)), &[name, "[8]", &most.to_string(), "offset"]);

        let parts = ["local size [8, 8]", "2 dimensions", "global size [64]", "has 1"];
        invalid(submit(saxpy.launch(64).local([8, 8])), &parts);
        let parts = ["offset [1]", "1 dimensions", "[8, 8]", "has 2"];
        invalid(submit(saxpy.launch([8, 8]).offset(1)), &parts);
        invalid(submit(saxpy.launch(64).local(0)), &[name, "local size [0]"]);
        let parts = [name, "local size [48]", "global size [64]", "dimension 0", "not a multiple of 48"];
        invalid(submit(saxpy.launch(64).local(48)), &parts);
        invalid(submit(saxpy.launch([8, 9]).local([8, 2])), &[name, "[8, 2]", "dimension 1", "9"]);

        let limits = rt.device().limits.clone();
        let wide = limits.max_work_item_sizes[0] + 1;
        let parts = [&format!("[{wide}]"), &format!("limit of {}", wide - 1), "dimension 0"];
        invalid(submit(saxpy.launch(wide).local(wide)), &parts);
        // Each dimension alone is within the limits.
        let side = 1 << (limits.max_work_group_size.ilog2() / 2 + 1);
        let parts = [name, &format!("[{side}, {side}]"), "work-group"];
        invalid(submit(saxpy.launch([side, side]).local([side, side])), &parts);

        // The first error is the one that is reported.
        let twice = saxpy.launch(64).local([1, 2]).offset([1, 2, 3]);
        invalid(submit(twice), &["local size [1, 2]"]);
        assert_eq!(queue.read(&y).await.unwrap(), [1.0; 64]);
        assert_works(&rt).await;
    }
}

// ---- Objects of another runtime -----------------------------------------------------------------

/// Passes objects of every kind that belong to `theirs` to `ours`, and checks that they are refused.
async fn assert_foreign_objects_are_refused(ours: &Runtime, theirs: &Runtime, reason: &str) {
    let queue = ours.queue();
    let (own, foreign) = (kernel(ours, SAXPY, "saxpy").await, kernel(theirs, SAXPY, "saxpy").await);
    let x = ours.buffer_from(vec![1.0f32; 8]).await.unwrap();
    let y = ours.buffer_from(vec![1.0f32; 8]).await.unwrap();
    let other = theirs.buffer_from(vec![9.0f32; 8]).await.unwrap();
    let launch = |kernel: &Kernel| kernel.launch(8);

    let parts = ["kernel `saxpy`, argument 1", "buffer", &theirs.device().name, reason];
    invalid(queue.submit(launch(&own).args((1.0f32, &other, &y))), &parts);
    let parts = ["kernel `saxpy`", "program", &theirs.device().name, reason];
    invalid(queue.submit(launch(&foreign).args((1.0f32, &x, &y))), &parts);
    invalid(queue.write(&other, vec![0.0; 8]), &["a write", reason]);
    invalid(queue.read(&other).await, &["a read", reason]);
    invalid(queue.fill(&other, 0.0), &["a fill", reason]);
    invalid(queue.copy(&other, &other.slice(..).unwrap()), &["a copy", reason]);
    let half = other.grid([4, 2]).unwrap().part([0, 0], [2, 2]).unwrap();
    invalid(queue.read(&half).await, &["a read", reason]);
    let host = theirs.host_buffer::<u32>(8).unwrap();
    invalid(queue.map(&host).await.map(drop), &["a mapping", reason]);
    invalid(queue.map_mut(&host).await.map(drop), &["a mapping", reason]);
    if ours.device().backend == "opencl" {
        // SAFETY: the closure is not called.
        let called = unsafe { queue.native("other", (&host,), |_| Ok::<_, String>(())) };
        invalid(called, &["the native command `other`", reason]);
    }
    if theirs.device().limits.images.d2 != [0, 0] {
        let image = theirs.image_2d::<R<f32>>(4, 2).unwrap();
        invalid(queue.write(&image, vec![R([0.0]); 8]), &["a write", reason]);
        invalid(queue.read(&image.part([0, 0], [2, 2]).unwrap()).await, &["a read", reason]);
        invalid(queue.fill(&image, R([0.0])), &["a fill", reason]);
        invalid(queue.copy(&image, &image.part([0, 0], [2, 2]).unwrap()), &["a copy", "pixels"]);
        invalid(queue.copy(&image, &image), &["a copy", reason]);
        let bad = launch(&own).args((1.0f32, &image, &y));
        invalid(queue.submit(bad), &["kernel `saxpy`", "image"]);
    }
    let module = Module::opencl_c(SAXPY);
    let parts = [&*theirs.device().name, "another runtime"];
    let device = theirs.device();
    if ours.devices().iter().all(|own| !std::ptr::eq(&**own, &**device)) {
        invalid(ours.build(&module).device(device).await, &parts);
        invalid(ours.on(device).await, &parts);
    }
    assert_eq!(theirs.queue().read(&other).await.unwrap(), [9.0; 8]);
    assert_works(ours).await;
    assert_works(theirs).await;
}

everywhere! {
    async fn objects_of_another_runtime_are_refused(rt: Runtime) {
        let selector = rt.device().index().to_string();
        let other = support::builder().device(selector).build().await.unwrap();
        assert_foreign_objects_are_refused(&rt, &other, "of another runtime").await;
    }
}

#[test]
fn objects_of_another_device_are_refused() {
    futures::executor::block_on(async {
        let simulators = [Simulator::new().named("twin"), Simulator::new().named("twin")];
        for simulator in &simulators {
            simulator.kernel("saxpy", |call| {
                let (a, x, y): (f32, Vec<f32>, Vec<f32>) =
                    (call.value(0), call.read(1), call.read(2));
                call.write(2, &x.iter().zip(y).map(|(x, y)| a * x + y).collect::<Vec<_>>());
            });
        }
        let builder = Runtime::builder().simulator(&simulators[0]).simulator(&simulators[1]);
        let one = builder.device("0").build().await.unwrap();
        let other = one.on(&one.devices()[1]).await.unwrap();
        assert_foreign_objects_are_refused(&one, &other, "this queue belongs to device 0, twin")
            .await;
        assert_foreign_objects_are_refused(&other, &one, "this queue belongs to device 1, twin")
            .await;
        assert_foreign_objects_are_refused(&one, &simulated().await, "of another runtime").await;
    });
}

// ---- Settings -----------------------------------------------------------------------------------

#[test]
fn selectors_that_match_no_device_list_the_devices() {
    futures::executor::block_on(async {
        let rt = simulated().await;
        let devices = [Simulator::new().named("left"), Simulator::new().named("right")];
        let builder = Runtime::builder().simulator(&devices[0]).simulator(&devices[1]);
        for selector in ["no such device", "7", "gpu", "left:right", "left:1"] {
            let built = builder.clone().device(selector).build().await;
            let parts = [&format!("`{selector}`"), "0: left", "1: right", "accelerator"];
            refused(built, ErrorKind::NoDevice, &parts);
        }
        let named = Simulator::new().named("RTX 4090");
        builder.clone().simulator(&named).device("4090").build().await.expect("it matches");
        for selector in ["", " ", "left:", ":", "a::b"] {
            let built = builder.clone().device(selector).build().await;
            refused(built, ErrorKind::Configuration, &[&format!("{selector:?}"), "opencl:cpu"]);
        }
        assert_works(&rt).await;
    });
}

everywhere! {
    async fn selectors_that_match_no_real_device_list_the_real_devices(rt: Runtime) {
        let built = support::builder().device("no such device").build().await;
        let names: Vec<&str> = rt.devices().iter().map(|device| device.name.as_str()).collect();
        refused(built, ErrorKind::NoDevice, &[&["`no such device`"][..], &names].concat());
        assert_works(&rt).await;
    }
}

/// Environment variable that is set for a copy of this process, since all tests share the environment.
const CHILD: &str = "KILN_TEST_CHILD";

#[test]
fn an_invalid_device_variable_is_named() {
    if std::env::var_os(CHILD).is_some() {
        let builder = Runtime::builder().simulator(&Simulator::new());
        let built = futures::executor::block_on(builder.clone().build());
        refused(built, ErrorKind::Configuration, &["KILN_DEVICE", "\"opencl:\"", "`opencl:cpu`"]);
        // A setting in the program takes precedence.
        futures::executor::block_on(builder.device("0").build()).unwrap();
        return;
    }
    // `current_exe` would return the dynamic loader if the loader was run to start this program.
    let child = std::process::Command::new(std::env::args_os().next().unwrap())
        .args(["--exact", &test_name!("an_invalid_device_variable_is_named"), "--nocapture"])
        .env(CHILD, "1")
        .env("KILN_DEVICE", "opencl:")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("1 passed"), "{child:?}");
}

// ---- Kernels of programs that still build -------------------------------------------------------

everywhere! {
    async fn argument_errors_found_after_the_build_are_reported_by_the_event(rt: Runtime) {
        let program = rt.build(&Module::opencl_c(format!("{SAXPY}\n// built late\n"))).start();
        // SAFETY: as in `support::kernel`.
        let saxpy = unsafe { program.kernel("saxpy") };
        let y = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        // The build may have ended by now. Then the launch itself is refused.
        let outcome = match rt.queue().submit(saxpy.launch(8).args((1.0f64, &y, &y))) {
            Ok(event) => event.await,
            Err(error) => Err(error),
        };
        invalid(outcome, &["kernel `saxpy`", "parameter 0 `float a`", "given `f64`", "`float`"]);
        assert_eq!(program.await.unwrap().origin(), Origin::Compiled);
        rt.drain().await;
        assert_eq!(rt.stats().commands.in_flight, 0);
        // The output of the failed launch stays failed until it is written again.
        rt.queue().write(&y, vec![2.0; 8]).unwrap().await.unwrap();
        assert_eq!(rt.queue().read(&y).await.unwrap(), [2.0; 8]);
    }
}

#[test]
fn required_work_group_sizes_are_applied_and_checked() {
    futures::executor::block_on(support::on_each_device(async |rt| {
        let source =
            "kernel __attribute__((reqd_work_group_size(16, 1, 1))) void fixed(global uint *y)
            { y[get_global_id(0)] = get_local_size(0); }";
        let fixed = kernel(&rt, source, "fixed").await;
        let y = rt.buffer_from(vec![0u32; 64]).await.unwrap();
        let submit = |launch: kiln::Launch| rt.queue().submit(launch.args((&y,)));
        submit(fixed.launch(64)).unwrap();
        assert_eq!(rt.queue().read(&y).await.unwrap(), [16; 64]);
        submit(fixed.launch(64).local(16)).unwrap().await.unwrap();
        let asks = "`fixed`: the local size is [32], but the kernel requires [16]";
        invalid(submit(fixed.launch(64).local(32)), &[asks, "reqd_work_group_size"]);
        let asks = "the local size is [4, 4], but the kernel requires [16, 1]";
        invalid(submit(fixed.launch([8, 8]).local([4, 4])), &[asks, "omit the local size"]);
        invalid(submit(fixed.launch(60)), &["`fixed`", "[60]", "not a multiple", "[16]"]);
        let flat = kernel(&rt, &source.replace("16, 1", "4, 4"), "fixed").await;
        invalid(submit(flat.launch(64)), &["[64] has 1 dimensions, too few", "[4, 4, 1]"]);
        assert_works(&rt).await;
    }));
}
