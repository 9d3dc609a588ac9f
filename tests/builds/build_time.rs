//! Programs whose source uses the time of their build, and the driver's part of a key.

use std::fs;
use std::time::Duration;

use futures::future::join_all;
use kiln::build::Origin;
use kiln::devices::{DeviceKind, ModuleFormat};
use kiln::{CacheConfig, Module, Program, Runtime};
use support::builder;
use support::everywhere;

const CLOCK: &str = "constant char built[] = __TIME__;
kernel void tell(global uchar *text) { text[get_global_id(0)] = built[get_global_id(0)]; }";

/// Creates a runtime for the same device, with a store in a directory.
async fn start(rt: &Runtime, directory: &tempfile::TempDir) -> Runtime {
    let builder = builder().device(rt.device().index().to_string());
    builder.cache(CacheConfig::at(directory.path())).build().await.expect("it starts")
}

/// Returns the time that a program contains, such as `12:34:56`.
async fn embedded_time(rt: &Runtime, program: &Program) -> String {
    // SAFETY: each work-item writes one byte.
    let tell = unsafe { program.kernel("tell") }.expect("it is there");
    let text = rt.buffer::<u8>(8).expect("there is memory");
    rt.queue().submit(tell.launch(8).args((&text,))).expect("it fits");
    String::from_utf8(rt.queue().read(&text).await.expect("it runs")).expect("it is text")
}

/// Whether the device accepts OpenCL C. On other devices, translations to SPIR-V are counted as well.
fn accepts_opencl_c(rt: &Runtime) -> bool {
    rt.device().formats.contains(&ModuleFormat::OpenClC)
}

everywhere! {
    async fn sources_with_time_macros_are_compiled_on_every_request(rt: Runtime) {
        if !accepts_opencl_c(&rt) {
            return;
        }
        let directory = tempfile::tempdir().expect("there is room");
        let mut times = Vec::new();
        for _ in 0..2 {
            let rt = start(&rt, &directory).await;
            for _ in 0..2 {
                let program = rt.build(&Module::opencl_c(CLOCK)).await.expect("it builds");
                assert_eq!(program.origin(), Origin::Compiled);
                times.push(embedded_time(&rt, &program).await);
                // The macro has a resolution of one second.
                smol::Timer::after(Duration::from_millis(1100)).await;
            }
            rt.drain().await;
            let stats = rt.stats();
            assert_eq!((stats.builds.compiles, stats.memory.hits, stats.disk.writes), (2, 0, 0));
        }
        assert!(times.iter().all(|time| time.len() == 8 && time.as_bytes()[2] == b':'), "{times:?}");
        let all = times.len();
        times.dedup();
        assert_eq!(times.len(), all, "each build has a time of its own: {times:?}");
    }
}

everywhere! {
    async fn requests_during_a_build_share_it(rt: Runtime) {
        if !accepts_opencl_c(&rt) {
            return;
        }
        let module = Module::opencl_c(CLOCK);
        let builds = join_all((0..8).map(|_| rt.build(&module).start())).await;
        assert!(builds.iter().all(Result::is_ok));
        let stats = rt.stats();
        // Some requests may be made after the build has ended.
        assert_eq!(stats.builds.compiles + stats.builds.joined, 8, "{stats:?}");
        assert_eq!(stats.memory.hits, 0);
    }
}

everywhere! {
    async fn time_macros_are_found_in_included_files_options_and_spliced_lines(rt: Runtime) {
        if !accepts_opencl_c(&rt) {
            return;
        }
        let directory = tempfile::tempdir().expect("there is room");
        let folder = tempfile::tempdir().expect("there is room");
        fs::write(folder.path().join("built.h"), "#define BUILT __DATE__\n").expect("there is room");
        let kernel = "constant char built[] = BUILT;
            kernel void tell(global uchar *text) { text[get_global_id(0)] = built[get_global_id(0)]; }";
        let including = format!("#include \"built.h\"\n{kernel}");
        let spliced = format!("#define BUILT __TI\\\nME__\n{kernel}");
        let mentioned = format!("// __TIME__\n#define BUILT \"not __DATE__\"\n{kernel}");
        let include = format!("-I {}", folder.path().display());
        for (text, options, expected) in [
            (&*including, &*include, Origin::Compiled),
            (&spliced, "", Origin::Compiled),
            (kernel, "-D BUILT=__DATE__", Origin::Compiled),
            (&mentioned, "", Origin::Memory),
        ] {
            let rt = start(&rt, &directory).await;
            let build = async || {
                let build = rt.build(&Module::opencl_c(text)).options(options).await;
                build.expect("it builds").origin()
            };
            assert_eq!(build().await, Origin::Compiled, "{text}");
            rt.drain().await;
            assert_eq!(build().await, expected, "{text}");
            assert_eq!(rt.stats().disk.writes, u64::from(expected == Origin::Memory), "{text}");
        }
    }
}

everywhere! {
    async fn keys_contain_the_platform_version_and_the_cpu_instructions(rt: Runtime) {
        let request = rt.build(&Module::opencl_c("kernel void k() {}"));
        let Ok(fields) = request.key_fields() else { return }; // There is no compiler to SPIR-V.
        let field = |name: &str| {
            let field = fields.iter().find(|(known, _)| known == name);
            field.unwrap_or_else(|| panic!("no {name}: {fields:?}")).1.clone()
        };
        let device = rt.device();
        assert_eq!(field("platform version"), device.platform_version);
        if device.platform == "Portable Computing Language" {
            assert!(field("platform version").contains("LLVM"), "{fields:?}");
        }
        if device.backend == "opencl" {
            assert!(field("platform version").starts_with("OpenCL "), "{fields:?}");
        }
        let instructions = field("instructions");
        assert_eq!(instructions.is_empty(), device.kind != DeviceKind::Cpu, "{instructions}");
        if device.kind == DeviceKind::Cpu && cfg!(target_arch = "x86_64") {
            assert!(instructions.contains("sse2"), "{instructions}");
        }
    }
}
