//! OpenCL C that includes files: a program corresponds to the contents of the files at the time of the request,
//! in every cache.

use std::fs;
use std::path::Path;

use futures::future::join_all;
use kiln::build::Origin;
use kiln::devices::ModuleFormat;
use kiln::simulated::Simulator;
use kiln::{
    CacheConfig, ErrorKind, FusionMode, Kernel, Module, Program, Result, Runtime, RuntimeBuilder,
};
use smol::block_on;
use support::everywhere;
use support::tools;
use support::{builder, on_each_device};
use tempfile::TempDir;

/// A directory with a file that includes another one, which defines the factor of a kernel.
struct Folder(TempDir);

const TEXT: &str = "#include \"scale.h\"
kernel void scale(global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] = FACTOR * x[i];
}";

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("there is room"));
        folder.write("scale.h", "#include \"details/factor.h\"\n");
        fs::create_dir(folder.0.path().join("details")).expect("there is room");
        folder
    }

    fn with_factor(factor: u32) -> Self {
        let folder = Self::new();
        folder.set_factor(factor);
        folder
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).expect("there is room");
    }

    fn set_factor(&self, factor: u32) {
        self.write("details/factor.h", &format!("#define FACTOR {factor}.0f\n"));
    }

    fn options(&self) -> String {
        format!("-I {}", self.0.path().display())
    }

    async fn build(&self, rt: &Runtime) -> Result<Program> {
        rt.build(&Module::opencl_c(TEXT)).options(&self.options()).await
    }
}

/// Whether the device takes text, or there are compilers that translate it to SPIR-V.
fn takes_text(rt: &Runtime) -> bool {
    rt.device().formats.contains(&ModuleFormat::OpenClC) || tools::has_clang()
}

/// Creates a runtime for the same device.
async fn runtime_like(rt: &Runtime, builder: RuntimeBuilder) -> Runtime {
    builder.device(rt.device().index().to_string()).build().await.expect("it starts")
}

fn scale(program: &Program) -> Kernel {
    // SAFETY: the suite gives it buffers with as many elements as work-items.
    unsafe { program.kernel("scale") }.expect("it is there")
}

/// Returns the result of the kernel for 1.
async fn factor(rt: &Runtime, scale: &Kernel) -> f32 {
    let x = rt.buffer_from(vec![1.0f32]).await.expect("there is room");
    let y = rt.buffer::<f32>(1).expect("there is room");
    let queue = rt.queue();
    queue.submit(scale.launch(1).args((&x, &y))).expect("it fits");
    queue.read(&y).await.expect("it runs")[0]
}

everywhere! {
    async fn changed_file_contents_yield_another_program(rt: Runtime) {
        if !takes_text(&rt) {
            return;
        }
        let folder = Folder::new();
        let mut built = Vec::new();
        for number in [2, 3, 2] {
            folder.set_factor(number);
            let program = folder.build(&rt).await.expect("the text is right");
            assert_eq!(factor(&rt, &scale(&program)).await, number as f32);
            built.push(program);
        }
        assert_eq!((built[0].origin(), built[2].origin()), (Origin::Compiled, Origin::Memory));
        assert!(built[0].key() == built[2].key() && built[0].key() != built[1].key());
        let stats = rt.stats();
        assert_eq!((stats.builds.requested, stats.memory.hits, stats.builds.compiles), (3, 1, 2));
    }
}

everywhere! {
    async fn a_failed_build_succeeds_once_the_missing_file_exists(rt: Runtime) {
        if !takes_text(&rt) {
            return;
        }
        let folder = Folder::new();
        let error = folder.build(&rt).await.expect_err("there is no `factor.h`");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.build_log().is_some_and(|log| log.contains("factor.h")), "{error}");
        assert!(error.same(&folder.build(&rt).await.expect_err("it is kept")));
        folder.set_factor(2);
        let program = folder.build(&rt).await.expect("now it is there");
        assert_eq!(factor(&rt, &scale(&program)).await, 2.0);
    }
}

everywhere! {
    async fn kernels_can_be_launched_before_included_files_are_read(rt: Runtime) {
        if !takes_text(&rt) {
            return;
        }
        let folder = Folder::with_factor(2);
        for _ in 0..2 {
            let request = rt.build(&Module::opencl_c(TEXT)).options(&folder.options());
            let build = request.start();
            // SAFETY: as in `scale`.
            let kernel = unsafe { build.kernel("scale") };
            assert_eq!(factor(&rt, &kernel).await, 2.0);
            assert_eq!(build.clone().await.expect("it is right").key(), build.await.unwrap().key());
        }
    }
}

everywhere! {
    async fn concurrent_requests_share_one_build(rt: Runtime) {
        if !takes_text(&rt) {
            return;
        }
        let folder = Folder::with_factor(2);
        let programs = join_all((0..20).map(|_| folder.build(&rt))).await;
        assert!(programs.iter().all(|program| program.is_ok()));
        let stats = rt.stats();
        assert_eq!((stats.builds.requested, stats.builds.compiles), (20, 1));
        assert_eq!(stats.memory.hits + stats.builds.joined, 19);
    }
}

#[test]
fn a_program_for_each_file_content_is_stored_on_disk() {
    block_on(on_each_device(async |rt: Runtime| {
        if !takes_text(&rt) {
            return;
        }
        let (folder, store) = (Folder::new(), tempfile::tempdir().expect("there is room"));
        let start = || runtime_like(&rt, Runtime::builder().cache(CacheConfig::at(store.path())));
        for origin in [Origin::Compiled, Origin::Disk] {
            let rt = start().await;
            for number in [2, 3] {
                folder.set_factor(number);
                let program = folder.build(&rt).await.expect("the text is right");
                assert_eq!(program.origin(), origin);
                assert_eq!(factor(&rt, &scale(&program)).await, number as f32);
            }
            rt.drain().await;
        }
    }));
}

#[test]
fn the_key_depends_on_the_included_files() {
    block_on(async {
        let rt = simulated(&Simulator::immediate()).await;
        let folder = Folder::with_factor(2);
        let request = || rt.build(&Module::opencl_c(TEXT)).options(&folder.options());
        let field = || {
            let fields = request().key_fields().expect("it can be built").into_iter();
            fields.filter(|(name, _)| name == "included files").collect::<Vec<_>>()
        };
        let (key, included) = (request().key(), field());
        assert_eq!(included.len(), 1);
        assert_eq!(folder.build(&rt).await.expect("it builds").key(), key.clone().unwrap());
        folder.set_factor(3);
        assert!(request().key().unwrap() != key.unwrap() && field() != included);
        let plain = rt.build(&Module::opencl_c("kernel void k() {}")).key_fields();
        assert!(plain.unwrap().iter().all(|(name, _)| name != "included files"));
    });
}

async fn simulated(simulator: &Simulator) -> Runtime {
    let builder = Runtime::builder().cache(CacheConfig::memory_only());
    builder.simulator(simulator).build().await.expect("it starts")
}

/// The compiler may have read the files before or after the change, so no key matches its output.
#[test]
fn a_build_whose_files_change_meanwhile_fails_and_is_not_cached() {
    block_on(async {
        let simulator = Simulator::immediate();
        let (rt, folder) = (simulated(&simulator).await, Folder::with_factor(2));
        let pause = simulator.pause_builds();
        let build = rt.build(&Module::opencl_c(TEXT)).options(&folder.options()).start();
        while rt.stats().builds.compiles == 0 {
            smol::Timer::after(std::time::Duration::from_millis(1)).await;
        }
        folder.set_factor(3);
        drop(pause);
        let error = build.await.expect_err("the files are others");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("have changed"), "{error}");
        folder.set_factor(2);
        assert_eq!(folder.build(&rt).await.expect("it builds").origin(), Origin::Compiled);
    });
}

/// A library is compiled without options: it names its files by absolute paths, or relative to the process's
/// directory.
#[test]
fn files_included_by_libraries_are_tracked() {
    block_on(on_each_device(async |rt: Runtime| {
        if !takes_text(&rt) {
            return;
        }
        let folder = Folder::new();
        let library = library(folder.0.path());
        rt.register(&library).expect("it exports something");
        let application = Module::opencl_c(
            "float scaled(float x);
             kernel void scale(global const float *x, global float *y) {
                 size_t i = get_global_id(0);
                 y[i] = scaled(x[i]);
             }",
        );
        let application = application.importing(["scaled"]);
        for number in [2, 3] {
            folder.set_factor(number);
            match rt.build(&application).await {
                Ok(program) => {
                    assert_eq!(factor(&rt, &scale(&program)).await, number as f32);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    assert!(rt.device().links.is_empty(), "{error}");
                }
            }
        }
    }));
}

fn library(folder: &Path) -> Module {
    let text = format!(
        "#include \"{}/details/factor.h\"\nfloat scaled(float x) {{ return FACTOR * x; }}",
        folder.display()
    );
    Module::opencl_c(text).exporting(["scaled"])
}

/// The launches that run as one kernel are translated from the text, which has changed by then. If the program
/// was made from its translation, that is kept and used.
#[test]
fn scopes_use_the_file_contents_their_programs_were_built_from() {
    block_on(on_each_device(async |rt: Runtime| {
        if !tools::has_clang() {
            return;
        }
        let rt = runtime_like(&rt, builder().fusion(FusionMode::Always)).await;
        let is_kept = !rt.device().formats.contains(&ModuleFormat::OpenClC);
        let folder = Folder::with_factor(2);
        let program = folder.build(&rt).await.expect("the text is right");
        let scale = scale(&program);
        for (number, fuses) in [(3, is_kept), (2, true)] {
            folder.set_factor(number);
            let x = rt.buffer_from(vec![1.0f32; 64]).await.expect("there is room");
            let between = rt.buffer::<f32>(64).expect("there is room");
            let y = rt.buffer::<f32>(64).expect("there is room");
            let queue = rt.queue();
            let scope = queue.start_fusion();
            scope.submit(scale.launch(64).args((&x, &between))).expect("it fits");
            scope.submit(scale.launch(64).args((&between, &y))).expect("it fits");
            drop(between);
            let outcome = scope.complete().await.expect("the launches run");
            assert_eq!(outcome.is_fused(), fuses, "{outcome}");
            assert!(fuses || outcome.to_string().contains("have changed"), "{outcome}");
            assert_eq!(queue.read(&y).await.expect("it runs"), [4.0; 64]);
        }
    }));
}

#[test]
fn drain_waits_for_builds_whose_files_are_not_read_yet() {
    block_on(async {
        let store = tempfile::tempdir().expect("there is room");
        let builder = Runtime::builder().simulator(&Simulator::immediate());
        let rt = builder.cache(CacheConfig::at(store.path())).build().await.expect("it starts");
        let folder = Folder::with_factor(2);
        for text in 0..20 {
            let module = Module::opencl_c(format!("// {text}\n{TEXT}"));
            let _unpolled = rt.build(&module).options(&folder.options()).start();
            rt.drain().await;
            assert_eq!(rt.stats().disk.writes, text + 1);
        }
    });
}

/// The simulator's binary is the text that it was given, like the keys of drivers with caches of their own.
#[test]
fn driver_caches_keyed_by_source_distinguish_file_contents() {
    block_on(async {
        let rt = Runtime::builder().simulator(&Simulator::immediate()).build().await;
        let rt = rt.expect("it starts");
        let folder = Folder::new();
        let mut binaries = Vec::new();
        for factor in [2, 3, 2] {
            folder.set_factor(factor);
            let program = folder.build(&rt).await.expect("it builds");
            binaries.push(program.binary().expect("it has one"));
        }
        assert_ne!(binaries[0], binaries[1]);
        assert_eq!(binaries[0], binaries[2]);
    });
}

/// A driver's compiler would block on the pipe, and read the device until memory runs out.
#[cfg(target_os = "linux")]
#[test]
fn included_pipes_and_devices_are_rejected_by_name() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let folder = TempDir::new().expect("there is room");
    let path = |name: &str| folder.path().join(name);
    mknodat(CWD, path("pipe.h"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("it is new");
    std::os::unix::fs::symlink("/dev/zero", path("zero.h")).expect("it is new");
    std::os::unix::fs::symlink("/dev/null", path("null.h")).expect("it is new");
    fs::write(path("deep.h"), "#define FILE \"pipe.h\"\n#include FILE\n").expect("there is room");
    let include = format!("-I {}", folder.path().display());
    block_on(on_each_device(async |rt: Runtime| {
        if !takes_text(&rt) {
            return;
        }
        let build = async |text: &str, options: &str| {
            let options = format!("{include} {options}");
            let build = async { rt.build(&Module::opencl_c(text)).options(&options).await };
            let late = async {
                smol::Timer::after(std::time::Duration::from_secs(60)).await;
                panic!("{text} {options}: it hangs")
            };
            smol::future::or(build, late).await
        };
        for (text, options, named, kind) in [
            ("#include \"pipe.h\"\n", "", "pipe.h", "a named pipe"),
            ("#include \"deep.h\"\n", "", "pipe.h", "a named pipe"),
            ("#include <zero.h>\n", "", "zero.h", "a character device"),
            ("", "-include zero.h", "zero.h", "a character device"),
        ] {
            let text = format!("{text}kernel void k() {{}}");
            let error = build(&text, options).await.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let message = error.to_string();
            assert!(message.contains(named) && message.contains(kind), "{message}");
        }
        let text =
            "#include \"null.h\"\n// \"pipe.h\"\n#define PIPE \"pipe.h\"\nkernel void k() {}";
        build(text, "").await.expect("an empty file, and a name that is not included");
    }));
}
