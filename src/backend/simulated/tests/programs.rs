//! Tests of the compiler and the loader.

use super::*;

type Reflected<'a> = (Option<&'a str>, &'a str, AddressSpace, Option<Access>);

fn parameters(kernel: &Arc<dyn Kernel>) -> Vec<Reflected<'_>> {
    let reflected = kernel.parameters().iter().map(|parameter| {
        (
            parameter.name.as_deref(),
            parameter.type_name.as_deref().unwrap(),
            parameter.address_space.unwrap(),
            parameter.access,
        )
    });
    reflected.collect()
}

fn names(program: &Arc<dyn Program>) -> Vec<&str> {
    program.kernels().iter().map(|kernel| kernel.name()).collect()
}

fn reflect(parameter: &str) -> (Option<String>, String, AddressSpace, Option<Access>) {
    let device = device(&Simulator::immediate());
    let kernel = only_kernel(&*device, &format!("kernel void k({parameter}) {{}}"));
    let all = parameters(&kernel);
    assert_eq!(all.len(), 1, "{parameter}");
    let (name, ty, space, access) = all[0];
    (name.map(str::to_owned), ty.to_owned(), space, access)
}

#[test]
fn parameters_are_reflected() {
    use Access::{Read, ReadWrite};
    use AddressSpace::{Constant, Global, Local, Private};
    let cases = [
        ("global float4 *x", Some("x"), "float4*", Global, Some(ReadWrite)),
        ("__global const float * restrict x", Some("x"), "float*", Global, Some(Read)),
        ("const __global float* __restrict__ x", Some("x"), "float*", Global, Some(Read)),
        ("float const global *x", Some("x"), "float*", Global, Some(Read)),
        ("global float * const x", Some("x"), "float*", Global, Some(ReadWrite)),
        ("global volatile unsigned int *x", Some("x"), "uint*", Global, Some(ReadWrite)),
        ("global int x[]", Some("x"), "int*", Global, Some(ReadWrite)),
        ("global const int x[4]", Some("x"), "int*", Global, Some(Read)),
        ("global float *", None, "float*", Global, Some(ReadWrite)),
        ("constant struct item *t", Some("t"), "struct item*", Constant, Some(Read)),
        ("local uchar *t", Some("t"), "uchar*", Local, None),
        ("const uint n", Some("n"), "uint", Private, None),
        ("unsigned n", Some("n"), "uint", Private, None),
        ("unsigned long", None, "ulong", Private, None),
        ("signed char c", Some("c"), "char", Private, None),
        ("long int n", Some("n"), "long", Private, None),
        ("float", None, "float", Private, None),
        ("struct item i", Some("i"), "struct item", Private, None),
        ("struct item", None, "struct item", Private, None),
        ("__attribute__((unused)) int n", Some("n"), "int", Private, None),
    ];
    for (text, name, ty, space, access) in cases {
        let expected = (name.map(str::to_owned), ty.to_owned(), space, access);
        assert_eq!(reflect(text), expected, "{text}");
    }
}

#[test]
fn kernels_are_found_outside_of_comments_strings_and_macros() {
    let device = device(&Simulator::immediate());
    let text = r#"
        // kernel void not_this() {}
        /* kernel void nor_this() {} */
        constant char text[] = "kernel void nor_that() { /* ";
        constant char quote = '"';
        #define KERNEL kernel void \
            unseen() {}
        kernel void declared(int n);
        kernel void declared(int n) { if (n) { return; } }
        __attribute__((overloadable)) __kernel
        __attribute__((reqd_work_group_size(64, 1, 1)))
        void attributed(void) {}
        kernel void __attribute__((vec_type_hint(float4))) late(global float4 *x, int n)
            __attribute__((reqd_work_group_size(8, 8, 1))) {}
        void helper(int n) {}
        "#;
    let program = compile(&*device, text).unwrap();
    assert_eq!(names(&program), ["declared", "attributed", "late"]);
    let counts: Vec<_> = program.kernels().iter().map(|kernel| kernel.parameters().len()).collect();
    assert_eq!(counts, [1, 0, 2]);
    assert_eq!(program.kernels()[0].max_work_group_size(), Some(1024));
    assert_eq!(program.kernels()[0].preferred_multiple(), Some(32));
    assert_eq!(program.kernels()[0].private_memory(), Some(0));
    assert_eq!(program.build_log(), "");
}

#[test]
fn kernels_of_a_name_have_their_own_limit_of_work_groups() {
    let simulator = Simulator::immediate();
    let device = device(&simulator);
    simulator.limit_work_groups("before", 8);
    let text = "kernel void before() {} kernel void after() {} kernel void wide() {}";
    let program = compile(&*device, text).unwrap();
    simulator.limit_work_groups("after", 0);
    simulator.limit_work_groups("wide", 2048);
    let kernels = program.kernels().iter();
    let sizes: Vec<_> = kernels.map(|kernel| kernel.max_work_group_size()).collect();
    assert_eq!(sizes, [Some(8), Some(1), Some(1024)]);
}

#[test]
fn malformed_sources_build_without_kernels() {
    let device = device(&Simulator::immediate());
    let texts = [
        "",
        "kernel",
        "kernel void",
        "kernel void k",
        "kernel void k(",
        "kernel void k(int n",
        "kernel void k(int n)",
        "kernel void k() __attribute__",
        "kernel kernel kernel",
        "/*",
        "//",
        "/",
        "\"",
        "'\\",
        "#",
        "# ",
        "#pragma binary_size many",
        "kernel void k(,",
        "\u{e9}\u{2603} kernel void \u{2603}() {}",
    ];
    for text in texts {
        let program = compile(&*device, text).unwrap();
        assert_eq!(names(&program), [""; 0], "{text}");
    }
    compile(&*device, "kernel void k(,) {} kernel void l([[)]((,]) {}").unwrap();
}

#[test]
fn refusals_have_a_log() {
    let simulator = Simulator::immediate();
    let device = device(&simulator);
    let refuse = |text: &str| {
        let error = compile(&*device, text).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        error.build_log().unwrap().to_owned()
    };
    assert_eq!(refuse("  # error don't // really\nkernel void k() {}"), "error: don't // really");
    assert_eq!(refuse("#warning a\n#error b"), "warning: a\nerror: b");
    let log = refuse("kernel void k(int n, float *x) {}");
    assert_eq!(log, "error: parameter 1 of kernel `k` points to the private address space");
    let program = compile(&*device, "// #error no\n#warning look\n").unwrap();
    assert_eq!(program.build_log(), "warning: look");
    let text = source(ModuleFormat::OpenClC, SAXPY.as_bytes());
    let error = device.build(&Source { options: "-w --refuse", ..text }).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::BuildFailed);
    device.build(&Source { options: "-bad --refused", ..text }).unwrap();
    let error = device.build(&source(ModuleFormat::OpenClC, b"\xff")).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::BuildFailed);
    assert_eq!((simulator.counts().builds, simulator.counts().loads), (7, 0));
}

#[test]
fn binaries_load_again() {
    let simulator = Simulator::immediate();
    let device = device(&simulator);
    let program = compile(&*device, SAXPY).unwrap();
    let binary = program.binary().unwrap();
    assert_eq!(Some(binary.len()), program.binary_size());
    let loaded = load(&*device, &binary).unwrap();
    assert_eq!(names(&loaded), ["saxpy"]);
    assert_eq!(parameters(&loaded.kernels()[0]), parameters(&program.kernels()[0]));
    assert_eq!(loaded.binary().unwrap(), binary);
    assert_eq!((simulator.counts().builds, simulator.counts().loads), (1, 1));

    let padded = compile(&*device, &format!("#pragma binary_size 5000\n{SAXPY}")).unwrap();
    assert_eq!((padded.binary_size(), padded.binary().unwrap().len()), (Some(5000), 5000));
    assert_eq!(names(&load(&*device, &padded.binary().unwrap()).unwrap()), ["saxpy"]);
    let vast = format!("#pragma binary_size {}", usize::MAX);
    let error = compile(&*device, &vast).unwrap().binary().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfResources);
}

#[test]
fn damaged_binaries_are_refused() {
    let device = device(&Simulator::immediate());
    let binary = compile(&*device, "kernel void k() {}").unwrap().binary().unwrap();
    let refused = |bytes: &[u8]| {
        let error = load(&*device, bytes).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
    };
    for at in 0..binary.len() {
        refused(&binary[..at]);
        let mut flipped = binary.clone();
        flipped[at] ^= 1;
        refused(&flipped);
    }
    refused(b"\x7fELF");
    refused(&[&binary[..], &[0]].concat());
}

#[test]
fn build_faults_delays_and_pauses() {
    let simulator = Simulator::immediate();
    let device = device(&simulator);
    simulator.fail_builds(1, Fault::Refused);
    simulator.fail_builds(1, Fault::DeviceLost);
    let error = compile(&*device, SAXPY).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::BuildFailed);
    assert!(error.build_log().is_some());
    assert_eq!(compile(&*device, SAXPY).err().unwrap().kind(), ErrorKind::DeviceLost);
    simulator.fail_builds(1, Fault::Panic);
    thread::scope(|scope| {
        let builder = scope.spawn(|| compile(&*device, SAXPY).map(drop));
        assert!(builder.join().is_err(), "the compiler panics");
    });
    let program = compile(&*device, SAXPY).unwrap();
    assert_eq!(simulator.counts().live_programs, 1);
    let kernel = program.kernels()[0].clone();
    drop(program);
    assert_eq!(simulator.counts().live_programs, 1, "the kernel keeps it");
    drop(kernel);
    assert_eq!(simulator.counts().live_programs, 0);

    simulator.delay_builds(Duration::from_millis(5));
    let started = Instant::now();
    compile(&*device, SAXPY).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(5));
    simulator.delay_builds(Duration::ZERO);

    let pause = simulator.pause_builds();
    thread::scope(|scope| {
        let builder = scope.spawn(|| compile(&*device, SAXPY).map(drop));
        thread::sleep(Duration::from_millis(20));
        assert!(!builder.is_finished());
        // Commands go on meanwhile.
        assert!(is_complete(&marker(&mut *device.create_native_queue(false).unwrap())));
        drop(pause);
        builder.join().unwrap().unwrap();
    });
}

const SAXPY_SPIRV: &[u8] = include_bytes!("../../../../tests/data/saxpy.spv");

/// Returns the header of a SPIR-V module, which is a module without kernels.
fn empty_module() -> Vec<u8> {
    let words = [rspirv::spirv::MAGIC_NUMBER, 0x0001_0200, 0, 1, 0];
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn spirv_programs_have_the_kernels_of_the_module() {
    let simulator = Simulator::immediate();
    simulator.kernel("other", |_| {});
    let device = device(&simulator);
    let program = device.build(&source(ModuleFormat::SpirV, SAXPY_SPIRV)).unwrap();
    assert_eq!(names(&program), ["saxpy"]);
    let spaces: Vec<_> = program.kernels()[0]
        .parameters()
        .iter()
        .map(|parameter| parameter.address_space.unwrap())
        .collect();
    assert_eq!(spaces, [AddressSpace::Private, AddressSpace::Global, AddressSpace::Global]);
    let loaded = load(&*device, &program.binary().unwrap()).unwrap();
    assert_eq!(loaded.kernels()[0].parameters(), program.kernels()[0].parameters());
    let error = device.build(&source(ModuleFormat::SpirV, &SAXPY_SPIRV[..21])).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::BuildFailed);
}

#[test]
fn unknown_specialization_constants_are_refused() {
    // `OpTypeInt 1 32 0`, `OpSpecConstant 1 2 7` and its decoration with `SpecId` 3.
    let mut code = empty_module();
    code[12] = 3;
    let words = [0x0004_0047, 2, 1, 3, 0x0004_0015, 1, 32, 0, 0x0004_0032, 1, 2, 7];
    code.extend(words.into_iter().flat_map(u32::to_le_bytes));
    let device = device(&Simulator::immediate());
    let build = |id: u32, bytes: usize| {
        let constants = [(id, vec![0; bytes])];
        device.build(&Source { constants: &constants, ..source(ModuleFormat::SpirV, &code) })
    };
    build(3, 4).unwrap();
    for (id, bytes) in [(3, 8), (2, 4)] {
        let error = build(id, bytes).err().unwrap();
        assert_eq!(error.driver_code().unwrap().name, "CL_INVALID_SPEC_ID");
    }
}

#[test]
fn spirv_without_kernels_has_the_registered_ones() {
    let simulator = Simulator::immediate();
    simulator.kernel("b", |call| assert_eq!(call.arguments(), 1));
    simulator.kernel("a", |_| {});
    simulator.fail_launches("c", 1, Fault::Refused);
    let device = device(&simulator);
    let program = device.build(&source(ModuleFormat::SpirV, &empty_module())).unwrap();
    assert_eq!(names(&program), ["a", "b"]);
    let mut native_queue = device.create_native_queue(false).unwrap();
    let event =
        launch(&mut *native_queue, &program.kernels()[1], &[Argument::Value(&[0])]).unwrap();
    assert!(is_complete(&event), "its arguments are not checked");
}
