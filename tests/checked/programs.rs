//! Checked launches of linked, specialized, untrusted, stored and fused programs.

use std::fs;

use kiln::internal::translate::spirv_of;
use kiln::{
    Buffer, CacheConfig, ErrorKind, FusionMode, FusionOutcome, Kernel, Module, ModuleFormat,
    Origin, Program, Runtime,
};
use support::everywhere;
use support::tools::has_clang;

const STAGES: &str = "
kernel void scale(global const float *x, global float *y, float by) {
    size_t i = get_global_id(0);
    y[i] = by * x[i];
}
kernel void offset(global const float *x, global float *y, float by) {
    size_t i = get_global_id(0);
    y[i] = x[i] + by;
}";

async fn build(rt: &Runtime, module: &Module) -> Program {
    rt.build(module).await.expect("it builds")
}

async fn stages(rt: &Runtime) -> [Kernel; 2] {
    let program = build(rt, &Module::opencl_c(STAGES)).await;
    ["scale", "offset"].map(|name| program.checked(name).expect("it can be checked"))
}

async fn upload(rt: &Runtime, elements: Vec<f32>) -> Buffer<f32> {
    rt.buffer_from(elements).await.expect("there is memory")
}

async fn read(rt: &Runtime, buffer: &Buffer<f32>) -> Vec<f32> {
    rt.queue().read(buffer).await.expect("the launches succeed")
}

everywhere! {
    async fn functions_of_libraries_are_part_of_the_check(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let library = Module::opencl_c("float pick(global const float *x, int at) { return x[at]; }");
        let application = "float pick(global const float *x, int at);
            kernel void shifted(global const float *x, global float *y, int by) {
                int i = get_global_id(0);
                y[i] = pick(x, i + by);
            }";
        let application = Module::opencl_c(application).importing(["pick"]);
        rt.register(&library.exporting(["pick"])).expect("it exports its function");
        let program = build(&rt, &application).await;
        let shifted = program.checked("shifted").expect("it can be checked");
        let (x, y) = (upload(&rt, vec![1.0, 2.0, 3.0, 4.0]).await, upload(&rt, vec![9.0; 4]).await);
        for (by, is_proven, expected) in [(0, true, [1.0, 2.0, 3.0, 4.0]), (2, false, [3.0, 4.0, 0.0, 0.0])] {
            let launch = shifted.launch(4).args((&x, &y, by));
            let verdict = launch.verdict().await.expect("it is checked");
            assert_eq!(verdict.is_proven(), is_proven, "{verdict}");
            rt.queue().submit(launch).expect("it fits").await.expect("it runs");
            assert_eq!(read(&rt, &y).await, expected);
        }
    }
}

everywhere! {
    async fn specialization_constants_have_the_values_of_the_build(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let text = "kernel void strided(global float *x) { x[STRIDE * get_global_id(0)] = 1.0f; }";
        let module = spirv_of(&rt, &Module::opencl_c(text), "-D STRIDE=7").await.expect("it is valid");
        let module = specialized(&module);
        let x = rt.buffer::<f32>(8).expect("it fits");
        for (stride, is_proven) in [(1_u64, true), (2, false)] {
            let program = rt.build(&module).specialize(3, stride).await.expect("it builds");
            let strided = program.checked("strided").expect("it can be checked");
            let launch = strided.launch(8).args((&x,));
            assert_eq!(launch.verdict().await.expect("it is checked").is_proven(), is_proven);
            rt.queue().submit(launch).expect("it fits").await.expect("it runs");
        }
        assert_eq!(read(&rt, &x).await, [1.0; 8]);
    }
}

/// Makes the 64-bit constant 7 of a module a specialization constant with the id 3.
fn specialized(module: &Module) -> Module {
    use rspirv::binary::Assemble as _;
    use rspirv::dr::{Instruction, Operand, load_bytes};
    use rspirv::spirv::{Decoration, Op};
    let mut known = load_bytes(module.code()).expect("it is valid");
    let is_seven = |i: &&mut Instruction| {
        i.class.opcode == Op::Constant && i.operands == [Operand::LiteralBit64(7)]
    };
    let seven = known.types_global_values.iter_mut().find(is_seven).expect("it multiplies by 7");
    seven.class = Instruction::new(Op::SpecConstant, None, None, Vec::new()).class;
    let operands = vec![
        Operand::IdRef(seven.result_id.expect("constants have one")),
        Operand::Decoration(Decoration::SpecId),
        Operand::LiteralBit32(3),
    ];
    known.annotations.push(Instruction::new(Op::Decorate, None, None, operands));
    Module::spirv(bytemuck::cast_slice::<u32, u8>(&known.assemble())).expect("it is valid")
}

everywhere! {
    async fn options_that_assume_something_have_no_effect(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let module = spirv_of(&rt, &Module::opencl_c(STAGES), "").await.expect("it is valid");
        let x = upload(&rt, vec![2.0; 4]).await;
        for (options, compiles) in [("-cl-mad-enable", 1), ("-cl-finite-math-only", 2)] {
            let before = rt.stats().compiles;
            let program = rt.build(&module).options(options).await.expect("it builds");
            let scale = program.checked("scale").expect("it can be checked");
            rt.queue().submit(scale.launch(4).args((&x, &x, 0.5f32))).expect("it fits").await.expect("it runs");
            assert_eq!(rt.stats().compiles - before, compiles, "{options}");
        }
        assert_eq!(read(&rt, &x).await, [0.5; 4]);
    }
}

everywhere! {
    async fn untrusted_kernels_are_checked(rt: Runtime) {
        if !has_clang() {
            return;
        }
        // This process is no build child, so that the program has to be in memory.
        let _kept = build(&rt, &Module::opencl_c(STAGES)).await;
        let program = rt.build(&Module::opencl_c(STAGES).untrusted()).await.expect("it is in memory");
        let scale = program.checked("scale").expect("it can be checked");
        let (x, y) = (upload(&rt, vec![1.0; 4]).await, upload(&rt, vec![7.0; 4]).await);
        let verdict = scale.launch(5).args((&x, &y, 2.0f32)).verdict().await;
        assert!(!verdict.expect("it is checked").is_proven());
    }
}

everywhere! {
    async fn guarded_variants_are_loaded_from_the_disk(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let folder = tempfile::tempdir().expect("there is room");
        let selector = rt.device().index().to_string();
        let mut outcomes = Vec::new();
        for _ in 0..2 {
            let cache = CacheConfig::at(folder.path());
            let rt = Runtime::builder().device(&*selector).cache(cache).build().await.expect("it starts");
            let [scale, _] = stages(&rt).await;
            let (x, y) = (upload(&rt, vec![1.0; 4]).await, upload(&rt, vec![7.0; 4]).await);
            let short = y.slice(..3).expect("it fits");
            rt.queue().submit(scale.launch(4).args((&x, &short, 2.0f32))).expect("it fits").await.expect("it runs");
            assert_eq!(read(&rt, &y).await, [2.0, 2.0, 2.0, 7.0]);
            rt.drain().await;
            let stats = rt.stats();
            outcomes.push((stats.guarded_variants, stats.compiles > 0, stats.disk_hits > 0));
        }
        assert_eq!(outcomes, [(1, true, false), (1, false, true)]);
    }
}

everywhere! {
    async fn equal_launches_share_one_variant(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let [scale, _] = stages(&rt).await;
        let (x, y) = (upload(&rt, vec![1.0; 4]).await, upload(&rt, vec![7.0; 4]).await);
        for by in 0..20_u8 {
            let launch = scale.launch(5).args((&x, &y, f32::from(by)));
            rt.queue().submit(launch).expect("it fits").await.expect("it runs");
        }
        assert_eq!(read(&rt, &y).await, [19.0; 4]);
        let stats = rt.stats();
        assert_eq!((stats.launches_guarded, stats.guarded_variants), (20, 1));
    }
}

everywhere! {
    async fn traces_and_drawings_mark_guarded_launches(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let [scale, offset] = stages(&rt).await;
        let (x, y) = (upload(&rt, vec![1.0; 4]).await, upload(&rt, vec![7.0; 4]).await);
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("trace.json");
        let trace = rt.trace_to(&path);
        // A launch that waits for its variant is marked as well.
        rt.queue().submit(scale.launch(5).args((&x, &y, 2.0f32))).expect("it fits").await.expect("it runs");
        rt.queue().submit(scale.launch(5).args((&x, &y, 2.0f32))).expect("it fits").await.expect("it runs");
        rt.queue().submit(offset.launch(4).args((&x, &y, 2.0f32))).expect("it fits").await.expect("it runs");
        rt.drain().await;
        let drawing = rt.queue().dot();
        assert_eq!(drawing.matches("scale (guarded)").count(), 2, "{drawing}");
        trace.finish().await.expect("there is room");
        let trace = fs::read_to_string(&path).expect("it is written");
        assert!(trace.contains("scale (guarded)") && !trace.contains("offset (guarded)"), "{trace}");
    }
}

everywhere! {
    async fn programs_outlive_their_runtimes_without_checks(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let other = support::builder().device(rt.device().index().to_string()).build().await;
        let other = other.expect("it starts");
        // The analysis of a SPIR-V module leaves nothing that uses the runtime.
        let module = spirv_of(&rt, &Module::opencl_c(STAGES), "").await.expect("it is valid");
        let program = build(&other, &module).await;
        other.drain().await;
        drop(other);
        // Threads of the runtime may still hold it for a moment.
        let error = loop {
            match program.checked("scale") {
                Ok(_) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("`scale`"), "{error}");
    }
}

/// Submits two launches to a scope, the second one over `items` work-items, and returns the outcome.
async fn fused(
    rt: &Runtime,
    [scale, offset]: &[Kernel; 2],
    items: usize,
    y: &Buffer<f32>,
) -> FusionOutcome {
    let x = upload(rt, vec![1.0; 64]).await;
    let tmp = rt.buffer::<f32>(64).expect("it fits");
    let scope = rt.queue().start_fusion();
    scope.submit(scale.launch(64).args((&x, &tmp, 2.0f32))).expect("it fits");
    scope.submit(offset.launch(items).args((&tmp, y, 1.0f32))).expect("it fits");
    drop(tmp);
    scope.complete().await.expect("fusion is not required")
}

#[test]
fn fused_kernels_of_checked_launches_are_proven() {
    if !has_clang() {
        return;
    }
    let builder = || support::builder().fusion(FusionMode::Always);
    let test = async |rt: Runtime| {
        let stages = stages(&rt).await;
        // The kernels are built before the scope, so that nothing is pending.
        let y = upload(&rt, vec![0.0; 64]).await;
        let outcome = fused(&rt, &stages, 64, &y).await;
        assert!(outcome.is_fused(), "{outcome}");
        assert_eq!(read(&rt, &y).await, [3.0; 64]);
        // A slice that is too short: the launch is guarded, and so is the kernel that it is fused to.
        for _ in 0..2 {
            let y = upload(&rt, vec![7.0; 64]).await;
            let short = y.slice(..32).expect("it fits");
            fused(&rt, &stages, 64, &short).await;
            let expected: Vec<f32> = [3.0; 32].into_iter().chain([7.0; 32]).collect();
            assert_eq!(read(&rt, &y).await, expected);
        }
    };
    futures::executor::block_on(support::on_each_device_with(builder, test));
}

everywhere! {
    async fn checked_programs_of_modules_are_the_programs_themselves(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let module = spirv_of(&rt, &Module::opencl_c(STAGES), "").await.expect("it is valid");
        let program = build(&rt, &module).await;
        let before = rt.stats();
        let scale = program.checked("scale").expect("it can be checked");
        assert!(scale.params().is_some(), "it is there at once");
        let x = upload(&rt, vec![2.0; 4]).await;
        rt.queue().submit(scale.launch(4).args((&x, &x, 0.5f32))).expect("it fits").await.expect("it runs");
        assert_eq!(rt.stats().compiles, before.compiles);
        assert_eq!(rt.build(&module).await.expect("it is in memory").origin(), Origin::Memory);
        assert!(!rt.device().formats.is_empty() && module.format() == ModuleFormat::SpirV);
    }
}

everywhere! {
    async fn requests_for_checked_launches_compile_one_program(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let module = Module::opencl_c(STAGES);
        let x = upload(&rt, vec![2.0; 4]).await;
        let before = rt.stats();
        let request = rt.build(&module).checked().start();
        let kernels = [request.checked("scale"), request.checked("offset")];
        let program = request.await.expect("it builds");
        for kernel in kernels.into_iter().chain([program.checked("scale").expect("it has the kernel")]) {
            rt.queue().submit(kernel.launch(4).args((&x, &x, 0.5f32))).expect("it fits").await.expect("it runs");
        }
        assert_eq!(rt.stats().compiles - before.compiles, 1);
        let again = rt.build(&module).checked().await.expect("it is in memory");
        assert_eq!((again.origin(), again.key()), (Origin::Memory, program.key()));
        // The text itself is another program, with checked kernels of the same one.
        let plain = build(&rt, &module).await;
        assert_eq!(plain.origin(), Origin::Compiled);
        let scale = plain.checked("scale").expect("it can be checked");
        rt.queue().submit(scale.launch(4).args((&x, &x, 2.0f32))).expect("it fits").await.expect("it runs");
        assert_eq!(rt.stats().compiles - before.compiles, 2);
        assert_eq!(read(&rt, &x).await, [1.5; 4]);
        // A variant is made of the program, too.
        let launch = program.checked("scale").expect("it has the kernel").launch(8).args((&x, &x, 2.0f32));
        assert!(!launch.verdict().await.expect("it is checked").is_proven());
        rt.queue().submit(launch).expect("it fits").await.expect("it runs");
        assert_eq!(read(&rt, &x).await, [3.0; 4]);
    }
}

everywhere! {
    async fn requests_for_checked_launches_have_the_errors_of_others(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let x = upload(&rt, vec![2.0; 4]).await;
        let printed = "kernel void printed(global float *x) { printf(\"%f\", x[get_global_id(0)]); }
            kernel void doubled(global float *x) { x[get_global_id(0)] *= 2.0f; }";
        // The drivers accept this text, and clang does not.
        let refused = "#if !defined(POCL_DEVICE_ADDRESS_BITS) && !defined(__INTEL_LLVM_COMPILER)
            #error for drivers only
            #endif
            kernel void doubled(global float *x) { x[get_global_id(0)] *= 2.0f; }";
        for (text, kernel) in [(printed, "printed"), (printed, "missing"), (refused, "doubled")] {
            let module = Module::opencl_c(text);
            let mut errors = Vec::new();
            for request in [rt.build(&module), rt.build(&module).checked()] {
                let program = request.await.expect("it builds");
                let error = match program.checked(kernel) {
                    Ok(kernel) => match rt.queue().submit(kernel.launch(4).args((&x,))) {
                        Ok(event) => event.await.expect_err("it cannot be checked"),
                        Err(error) => error,
                    },
                    Err(error) => error,
                };
                errors.push(error);
            }
            assert_eq!(errors[0].kind(), errors[1].kind(), "{errors:?}");
            assert_eq!(errors[0].to_string(), errors[1].to_string());
        }
        let program = rt.build(&Module::opencl_c(printed)).checked().await.expect("it builds");
        let doubled = program.checked("doubled").expect("it can be checked");
        rt.queue().submit(doubled.launch(4).args((&x,))).expect("it fits").await.expect("it runs");
        assert_eq!(read(&rt, &x).await, [4.0; 4]);
        let broken = Module::opencl_c("kernel void broken(global float *x) { x[0] = nothing; }");
        let error = rt.build(&broken).checked().await.expect_err("it is not valid");
        assert!(error.kind() == ErrorKind::BuildFailed && error.to_string().contains("nothing"), "{error}");
    }
}
