//! SPIR-V modules on devices that take none: Kiln translates them to OpenCL C, and the module's kernels are
//! unchanged for users. `emitted.rs` tests that the results are equal.

use kiln::build::Origin;
use kiln::devices::ModuleFormat;
use kiln::internal::translate::spirv_of;
use kiln::{CacheConfig, ErrorKind, Local, Module, Program, Runtime};
use support::children::{Child, DEVICE, report, variable};
use support::test_name;
use support::tools::has_clang;

const SAXPY: &[u8] = include_bytes!("../data/saxpy.spv");
const MIXED: &[u8] = include_bytes!("../data/mixed.spv");

/// Runs a test on every device that takes no SPIR-V.
fn where_it_is_translated(test: impl AsyncFn(Runtime)) {
    futures::executor::block_on(support::on_each_device(async |rt| {
        if !rt.device().formats.contains(&ModuleFormat::SpirV) {
            test(rt).await;
        }
    }));
}

fn module(bytes: &[u8]) -> Module {
    Module::spirv(bytes).expect("it is a module")
}

/// Launches `mixed`, which has parameters of all kinds, including signed integers and a struct.
async fn assert_mixed_runs(rt: &Runtime, program: &Program) {
    // SAFETY: it reads eight bytes and floats and writes as many pairs.
    let mixed = unsafe { program.kernel("mixed") }.expect("it exists");
    let names: Vec<_> =
        mixed.params().expect("it is built").iter().map(|p| p.name.clone()).collect();
    let expected = ["count", "seed", "bias", "settings", "table", "scratch", "input", "output"];
    assert_eq!(names, expected.map(|name| Some(name.to_owned())));

    let table =
        rt.buffer_from((0..8).map(|at| at as f32).collect::<Vec<_>>()).await.expect("memory");
    let input = rt.buffer_from((10..18u8).collect::<Vec<_>>()).await.expect("memory");
    let output = rt.buffer_from(vec![[0u32; 2]; 8]).await.expect("memory");
    let settings = [4.0f32.to_bits(), 1, 0];
    let launch = mixed.launch(8).local(8);
    let launch = launch.args((6i32, 100u32, [0.0f32, 2.0, 0.0, 0.0], settings));
    let launch = launch.arg(table.read_only()).arg(Local::<f32>::new(8)).arg(&input).arg(&output);
    rt.queue().submit(launch).expect("the arguments fit");
    // 4 * (at ^ 1) + 2, halved.
    let expected: Vec<_> =
        (0..8u32).map(|at| if at < 6 { [110 + at, 2 * (at ^ 1) + 1] } else { [0, 0] }).collect();
    assert_eq!(rt.queue().read(&output).await.expect("it ran"), expected);

    let launch = mixed.launch(8).local(8).args((6u32, 100u32, [0.0f32; 4], settings));
    let launch = launch.arg(&table).arg(Local::<f32>::new(8)).arg(&input).arg(&output);
    let error = rt.queue().submit(launch).expect_err("the count is signed");
    let text = error.to_string();
    assert!(text.contains("parameter 0 `int count`"), "{text}");
}

#[test]
fn parameters_are_those_of_the_module_in_memory_and_on_disk() {
    where_it_is_translated(async |like| {
        let directory = tempfile::tempdir().expect("there is disk space");
        for origin in [Origin::Compiled, Origin::Disk] {
            let builder = Runtime::builder().device(like.device().index().to_string());
            let rt = builder.cache(CacheConfig::at(directory.path())).build().await;
            let rt = rt.expect("it starts");
            let program = rt.build(&module(MIXED)).await.expect("it builds");
            assert_eq!(program.origin(), origin);
            assert_mixed_runs(&rt, &program).await;
            rt.drain().await;
        }
    });
}

#[test]
fn the_key_includes_the_translation() {
    futures::executor::block_on(support::on_each_device(async |rt| {
        let takes = rt.device().formats.contains(&ModuleFormat::SpirV);
        let fields = rt.build(&module(SAXPY)).key_fields().expect("it can be built");
        assert_eq!(fields.iter().any(|(name, _)| name == "emitter"), !takes);
        let fields = rt.build(&Module::opencl_c(support::SAXPY)).key_fields();
        let fields = fields.expect("it can be built");
        assert!(fields.iter().all(|(name, _)| name != "emitter"));
    }));
}

#[test]
fn macros_do_not_affect_the_translation() {
    where_it_is_translated(async |rt| {
        let options = "-D return=break -DConstant -cl-std=CL3.0 -cl-mad-enable";
        let program = rt.build(&module(MIXED)).options(options).await.expect("it builds");
        assert_mixed_runs(&rt, &program).await;
    });
}

#[test]
fn errors_name_the_untranslatable_instruction_and_its_kernel() {
    where_it_is_translated(async |rt| {
        // Images with several samples.
        let mut bytes = include_bytes!("../data/inferred.spv").to_vec();
        let header = (10_u32 << 16 | 25).to_le_bytes();
        for at in (0..bytes.len()).step_by(4) {
            if bytes[at..].starts_with(&header) {
                bytes[at + 24] = 1;
            }
        }
        let error = rt.build(&module(&bytes)).await.expect_err("it has images");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for part in ["inferred: ", "OpTypeImage", "device that accepts SPIR-V"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(rt.stats().builds.compiles, 0);
    });
}

#[test]
fn compile_errors_have_the_log_and_mention_the_translation() {
    where_it_is_translated(async |rt| {
        // A name that modules can have and text cannot.
        let mut bytes = SAXPY.to_vec();
        let at = bytes.windows(6).position(|part| part == b"saxpy\0").expect("the kernel's name");
        bytes[at..at + 5].copy_from_slice(b"float");
        let error = rt.build(&module(&bytes)).await.expect_err("no such name");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.to_string().contains("translated to OpenCL C"), "{error}");
        assert!(error.build_log().is_some_and(|log| log.contains("error")), "{error}");
    });
}

const PRINTS: &str = r#"
    kernel void prints(global const float *x) {
        uint i = get_global_id(0);
        if (i == 3)
            printf("item %u of %s has %.2f, %d\n", i, "four", x[i], -(int)i);
    }"#;

#[test]
fn printf_works_in_translated_kernels() {
    if !has_clang() {
        return;
    }
    where_it_is_translated(async |rt| {
        let (_, output) = Child::start_on(rt.device(), &test_name!("prints")).report_and_output();
        assert!(output.contains("item 3 of four has 1.50, -3\n"), "{output}");
    });
}

#[test]
#[ignore = "another test runs it"]
fn prints() {
    futures::executor::block_on(async {
        let rt = support::builder().device(variable(DEVICE)).build().await.expect("it starts");
        let spirv = spirv_of(&rt, &Module::opencl_c(PRINTS), "").await.expect("it is translated");
        let program = rt.build(&spirv).await.expect("it builds");
        // SAFETY: it reads the element of its global id.
        let prints = unsafe { program.kernel("prints") }.expect("it exists");
        let x = rt.buffer_from(vec![1.5f32; 4]).await.expect("there is disk space");
        rt.queue().submit(prints.launch(4).args((&x,))).expect("it fits").await.expect("it runs");
        report("ran", 1);
    });
}
