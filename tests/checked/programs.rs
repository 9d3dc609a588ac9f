//! Checked launches of linked, specialized, untrusted, stored and fused programs.

use std::fs;

use kiln::fusion::FusionOutcome;
use kiln::internal::translate::spirv_of;
use kiln::{Buffer, CacheConfig, CheckedProgram, ErrorKind, FusionMode, Kernel, Module, Runtime};
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

async fn build(rt: &Runtime, module: &Module) -> CheckedProgram {
    rt.build(module).checked().await.expect("it builds")
}

async fn stages(rt: &Runtime) -> [Kernel; 2] {
    let program = build(rt, &Module::opencl_c(STAGES)).await;
    ["scale", "offset"].map(|name| program.kernel(name).expect("it can be checked"))
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
        let shifted = program.kernel("shifted").expect("it can be checked");
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
            let program = rt.build(&module).specialize(3, stride).checked().await.expect("it builds");
            let strided = program.kernel("strided").expect("it can be checked");
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
        // The second program is the first one, without the option.
        for (options, compiles) in [("", 1), ("-cl-finite-math-only", 0), ("-cl-mad-enable", 1)] {
            let before = rt.stats().builds.compiles;
            let program = rt.build(&module).options(options).checked().await.expect("it builds");
            let scale = program.kernel("scale").expect("it can be checked");
            rt.queue().submit(scale.launch(4).args((&x, &x, 0.5f32))).expect("it fits").await.expect("it runs");
            assert_eq!(rt.stats().builds.compiles - before, compiles, "{options}");
        }
        assert_eq!(read(&rt, &x).await, [0.25; 4]);
    }
}

everywhere! {
    async fn untrusted_kernels_are_checked(rt: Runtime) {
        if !has_clang() {
            return;
        }
        // This process is no build child, so that the program has to be in memory.
        let _kept = build(&rt, &Module::opencl_c(STAGES)).await;
        let program = build(&rt, &Module::opencl_c(STAGES).untrusted()).await;
        let scale = program.kernel("scale").expect("it can be checked");
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
            outcomes.push((stats.launches.guarded_variants, stats.builds.compiles > 0, stats.disk.hits > 0));
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
        assert_eq!((stats.launches.guarded, stats.launches.guarded_variants), (20, 1));
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
        let program = build(&other, &Module::opencl_c(STAGES)).await;
        let x = other.buffer_from(vec![1.0f32; 4]).await.expect("there is memory");
        other.drain().await;
        drop(other);
        let scale = program.kernel("scale").expect("it is a look-up");
        // Threads of the runtime may still hold it for a moment.
        let error = loop {
            match scale.launch(4).args((&x, &x, 2.0f32)).verdict().await {
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
    async fn a_checked_program_is_compiled_once(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let text = Module::opencl_c(STAGES);
        let spirv = spirv_of(&rt, &text, "").await.expect("it is valid");
        for (module, is_text) in [(text, true), (spirv, false)] {
            let x = upload(&rt, vec![2.0; 4]).await;
            let before = rt.stats();
            let request = rt.build(&module).checked().start();
            let kernels = [request.kernel("scale"), request.kernel("offset")];
            let program = request.await.expect("it builds");
            assert_eq!(program.kernel_names(), ["offset", "scale"]);
            let again = [(); 2].map(|()| program.kernel("scale").expect("it has the kernel"));
            assert!(again.iter().all(|kernel| kernel.params().is_some()), "they are there at once");
            for kernel in kernels.into_iter().chain(again) {
                rt.queue().submit(kernel.launch(4).args((&x, &x, 0.5f32))).expect("it fits").await.expect("it runs");
            }
            assert_eq!(read(&rt, &x).await, [0.375; 4]);
            // Where the text is compiled as SPIR-V, its program is that of its translation.
            let compiles = rt.stats().builds.compiles - before.builds.compiles;
            assert!(compiles == 1 || (compiles == 0 && !is_text), "{compiles}");
            let other = rt.build(&module).checked().await.expect("it is in memory");
            assert_eq!(other.key(), program.key());
            // A variant is made of the program, too.
            let launch = program.kernel("scale").expect("it has the kernel").launch(8).args((&x, &x, 2.0f32));
            assert!(!launch.verdict().await.expect("it is checked").is_proven());
            rt.queue().submit(launch).expect("it fits").await.expect("it runs");
            assert_eq!(read(&rt, &x).await, [0.75; 4]);
        }
    }
}

everywhere! {
    async fn a_checked_program_fails_if_no_kernel_can_be_checked(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let printed = "kernel void printed(global float *x) { printf(\"%f\", x[get_global_id(0)]); }";
        // The drivers accept this text, and clang does not.
        let refused = "#if !defined(POCL_DEVICE_ADDRESS_BITS) && !defined(__INTEL_LLVM_COMPILER)
            #error for drivers only
            #endif
            kernel void doubled(global float *x) { x[get_global_id(0)] *= 2.0f; }";
        let broken = "kernel void broken(global float *x) { x[0] = nothing; }";
        for (text, kind, part) in [
            (printed, ErrorKind::Unsupported, "printf"),
            (refused, ErrorKind::BuildFailed, "for drivers only"),
            (broken, ErrorKind::BuildFailed, "nothing"),
        ] {
            let before = rt.stats().builds.compiles;
            let error = rt.build(&Module::opencl_c(text)).checked().await.expect_err("it is not built");
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(rt.stats().builds.compiles, before, "no driver was asked");
        }
    }
}

everywhere! {
    async fn names_that_drivers_know_mean_nothing_in_checked_programs(rt: Runtime) {
        if !has_clang() {
            return;
        }
        // Readers of SPIR-V take the functions for those of OpenCL C, whatever their bodies say.
        let text = "
            __attribute__((overloadable)) int first(int a, int b) { return a < 4 ? a : b; }
            kernel void least(global const int *x, global int *y) {
                size_t i = get_global_id(0);
                y[i] = x[first(i, 0)];
            }
            kernel void _Z3minii(global int *y) { y[get_global_id(0)] = 3; }";
        let module = spirv_of(&rt, &Module::opencl_c(text), "").await.expect("it is valid");
        for name in ["_Z3minii", "_Z13get_global_idj", "least", "kiln_kernel_least"] {
            let named = renamed(&module, "first", name);
            let program = build(&rt, &named).await;
            let least = program.kernel("least").expect("it can be checked");
            let x = rt.buffer_from((0..4).collect::<Vec<i32>>()).await.expect("there is memory");
            let y = rt.buffer_from(vec![9i32; 16]).await.expect("there is memory");
            let launch = least.launch(16).args((&x, &y));
            assert!(launch.verdict().await.expect("it is checked").is_proven(), "{name}");
            rt.queue().submit(launch).expect("it fits").await.expect("it runs");
            let expected: Vec<_> = (0..4).chain([0; 12]).collect();
            assert_eq!(rt.queue().read(&y).await.expect("it runs"), expected, "{name}");
            let other = program.kernel("_Z3minii").expect("it can be checked");
            rt.queue().submit(other.launch(16).args((&y,))).expect("it fits").await.expect("it runs");
            assert_eq!(rt.queue().read(&y).await.expect("it runs"), [3; 16], "{name}");
        }
    }
}

everywhere! {
    async fn names_of_variables_and_types_mean_nothing_to_drivers(rt: Runtime) {
        if !has_clang() {
            return;
        }
        // Readers of SPIR-V take the variable for a built-in one, and pointers to the struct for images and samplers.
        let text = "
            struct pair { int first, second; };
            kernel void sums(global const struct pair *x, global int *y) {
                local struct pair own[16];
                size_t i = get_global_id(0);
                if (get_local_id(0) < 16) own[get_local_id(0)] = x[i];
                barrier(CLK_LOCAL_MEM_FENCE);
                y[i] = own[15 - get_local_id(0)].first + own[0].second;
            }";
        let module = spirv_of(&rt, &Module::opencl_c(text), "").await.expect("it is valid");
        let of_variables = ["__spirv_BuiltInGlobalInvocationId", "_Z13get_global_idj", "kiln_kernel_sums"];
        let of_types = ["opencl.image2d_wo_t", "opencl.clk_event_t", "opencl.sampler_t", "image2d_t"];
        let cases = of_variables.map(|name| ("sums.own", name));
        for (part, name) in cases.into_iter().chain(of_types.map(|name| ("struct.pair", name))) {
            let named = with_name(&module, part, name);
            let sums = build(&rt, &named).await.kernel("sums").expect("it can be checked");
            let x = rt.buffer_from((0..32).map(|i| [i, 100]).collect::<Vec<[i32; 2]>>()).await;
            let (x, y) = (x.expect("there is memory"), rt.buffer_from(vec![9i32; 32]).await);
            let y = y.expect("there is memory");
            for (length, is_proven) in [(32, true), (20, false)] {
                let short = y.slice(..length).expect("it fits");
                let launch = sums.launch(32).local(16).args((&x, &short));
                let verdict = launch.verdict().await.expect("it is checked");
                // Values of local memory are not followed, but its addresses are.
                assert_eq!(!verdict.to_string().contains("`y`"), is_proven, "{name}: {verdict}");
                rt.queue().submit(launch).expect("it fits").await.expect("it runs");
            }
            let expected = |i: i32| if i < 16 { 115 - i } else { 147 - i };
            let found = rt.queue().read(&y).await.expect("it runs");
            assert_eq!(found, (0..32).map(expected).collect::<Vec<_>>(), "{name}");
        }
    }
}

/// Lets the function of a module whose name contains `part` have the name `name`, and export it.
fn renamed(module: &Module, part: &str, name: &str) -> Module {
    use rspirv::dr::{Instruction, Operand};
    use rspirv::spirv::{Decoration, LinkageType, Op};
    changed(module, |known| {
        let target = set_name(known, part, name);
        known.annotations.retain(|i| {
            i.operands[0] != target
                || i.operands[1] != Operand::Decoration(Decoration::LinkageAttributes)
        });
        let linkage = vec![
            target,
            Operand::Decoration(Decoration::LinkageAttributes),
            Operand::LiteralString(name.to_owned()),
            Operand::LinkageType(LinkageType::Export),
        ];
        known.annotations.push(Instruction::new(Op::Decorate, None, None, linkage));
    })
}

/// Lets the first id of a module whose name contains `part` have the name `name`.
fn with_name(module: &Module, part: &str, name: &str) -> Module {
    changed(module, |known| _ = set_name(known, part, name))
}

/// Changes the name of the first id whose name contains `part`. Returns the id.
fn set_name(known: &mut rspirv::dr::Module, part: &str, name: &str) -> rspirv::dr::Operand {
    use rspirv::dr::{Instruction, Operand};
    let is_meant = |i: &Instruction| matches!(&i.operands[..], [_, Operand::LiteralString(own)] if own.contains(part));
    let found = known.debug_names.iter_mut().find(|i| is_meant(i)).expect("it has the name");
    found.operands[1] = Operand::LiteralString(name.to_owned());
    found.operands[0].clone()
}

fn changed(module: &Module, change: impl FnOnce(&mut rspirv::dr::Module)) -> Module {
    use rspirv::binary::Assemble as _;
    let mut known = rspirv::dr::load_bytes(module.code()).expect("it is valid");
    change(&mut known);
    Module::spirv(bytemuck::cast_slice::<u32, u8>(&known.assemble())).expect("it is valid")
}
