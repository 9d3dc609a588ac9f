//! Untrusted modules: their compiler runs in a child process, and whatever happens there, the application
//! gets a program or an error in time.
//!
//! The child is the tool `kiln`, or a script in its place that imitates faulty compilers. If this process runs
//! on an imitated GPU, the command in `KILN_GPU_RUNNER` also starts the child there.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

mod mutated;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kiln::build::Origin;
use kiln::devices::ModuleFormat;
use kiln::{CacheConfig, Error, ErrorKind, Module, Program, Runtime, RuntimeBuilder};
use smol::Timer;
use support::children;
use support::children::{Child, report, this_binary};
use support::scripts;
use support::specialized::specialized;
use support::test_name;
use support::tools;
use support::{SAXPY, assert_computes, builder, on_each_device_with};
use tempfile::TempDir;

const SAXPY_SPIRV: &[u8] = include_bytes!("../../data/saxpy.spv");

/// Whether a loader started this process, which then sees a GPU that other processes do not.
fn is_by_loader() -> bool {
    std::env::current_exe().unwrap() != this_binary()
}

/// Returns the command that starts the tool with access to this process's devices.
fn tool() -> String {
    let tool = env!("CARGO_BIN_EXE_kiln");
    match std::env::var("KILN_GPU_RUNNER") {
        Ok(runner) if is_by_loader() => format!("{runner} {tool}"),
        _ => tool.to_owned(),
    }
}

/// Returns this process's `PATH` without the folders that have the tool. Drivers and loaders find their programs in the
/// rest: PoCL runs `ld`, and the command that imitates a GPU runs others.
fn path_without_tool() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let without_tool = path.split(':').filter(|folder| !Path::new(folder).join("kiln").exists());
    without_tool.collect::<Vec<_>>().join(":")
}

/// A directory with programs that replace the tool.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates a child that runs the script. In it, `kiln` is the tool, and `greet` prints the greeting of each
    /// child.
    fn child(&self, script: &str) -> PathBuf {
        let (path, folder) = (self.file("child"), self.0.path().display());
        let functions = format!(
            "cd {folder}\necho $$ >> started\nkiln() {{ {0}; }}\n\
             greet() {{ kiln < /dev/null 2> /dev/null; }}\n",
            tool()
        );
        scripts::place(&path, &format!("{functions}{script}"));
        path
    }

    /// Returns the ids of the processes that were started as children.
    fn started(&self) -> Vec<u32> {
        let lines = fs::read_to_string(self.file("started")).unwrap_or_default();
        lines.lines().map(|line| line.parse().unwrap()).collect()
    }
}

/// Runs a test on each device, with a child that runs the script.
fn on_each_device_with_child(script: &str, test: impl AsyncFn(Runtime, &Folder)) {
    on_each_device_within(Duration::from_secs(60), script, test);
}

fn on_each_device_within(limit: Duration, script: &str, test: impl AsyncFn(Runtime, &Folder)) {
    let folder = Folder::new();
    let child = folder.child(script);
    let builder = || builder().build_child(&child).build_child_limit(limit);
    smol::block_on(on_each_device_with(builder, async |rt| {
        let _ = fs::remove_file(folder.file("started"));
        test(rt, &folder).await;
    }));
}

/// A script that behaves like the tool.
const WORKING: &str = "kiln";

/// Checks that the error has this kind, and that its message contains all of `parts`.
#[track_caller]
fn refused<T>(result: kiln::Result<T>, kind: ErrorKind, parts: &[&str]) -> Error {
    let Err(error) = result else { panic!("it was not refused; expected {kind}: {parts:?}") };
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is missing in: {error}");
    }
    error
}

/// Returns a different program for each number, with the same result.
fn source(number: usize) -> Module {
    Module::opencl_c(format!("// {number}\n{SAXPY}"))
}

/// Creates a runtime for the same device.
async fn runtime_like(rt: &Runtime, builder: RuntimeBuilder) -> Runtime {
    let device = format!("{}:{}", rt.device().backend, rt.device().index());
    builder.device(device).build().await.unwrap()
}

// ---- Programs -----------------------------------------------------------------------------------

#[test]
fn a_child_compiles_every_format_to_the_same_programs() {
    on_each_device_with_child(WORKING, async |rt, folder| {
        let other = runtime_like(&rt, builder()).await;
        let native = other.build(&source(0)).await.unwrap().binary().unwrap();
        let modules =
            [source(1), Module::spirv(SAXPY_SPIRV).unwrap(), Module::native(native).unwrap()];
        for (at, module) in modules.iter().enumerate() {
            assert!(!module.is_untrusted() && module.clone().untrusted().is_untrusted());
            let program = rt.build(&module.clone().untrusted()).await.unwrap();
            assert_eq!(program.origin(), Origin::Compiled);
            assert_eq!(rt.stats().builds.child_processes, at as u64 + 1);
            assert_computes(&rt, &program).await;

            let trusted = other.build(module).await.unwrap();
            assert_eq!(program.key(), trusted.key());
            // SAFETY: it is not launched.
            let params = |program: &Program| unsafe {
                program.kernel("saxpy").unwrap().params().unwrap().to_vec()
            };
            if module.format() != ModuleFormat::Native {
                assert_eq!(params(&program), params(&trusted), "{}", module.format());
            }
        }
        assert_eq!(folder.started().len(), 3);
        assert_eq!(rt.stats().builds.child_processes, rt.stats().builds.compiles);
        assert_eq!(other.stats().builds.child_processes, 0);
    });
}

#[test]
fn errors_and_logs_of_the_compiler_are_returned_by_the_child() {
    on_each_device_with_child(WORKING, async |rt, folder| {
        let broken = Module::opencl_c("kernel void broken() { undeclared_name = 1; }");
        let build = rt.build(&broken.clone().untrusted()).await;
        let error = refused(build, ErrorKind::BuildFailed, &["undeclared_name"]);
        let trusted = refused(rt.build(&broken).await, ErrorKind::BuildFailed, &[]);
        assert_eq!(error.driver_code(), trusted.driver_code());
        assert!(!error.same(&trusted), "failures are cached separately");
        let again = rt.build(&broken.untrusted()).await.unwrap_err();
        assert!(again.same(&error), "it is cached");
        // If the text is translated first, no driver has compiled it.
        let by_driver = rt.device().formats.contains(&ModuleFormat::OpenClC);
        assert_eq!(folder.started().len(), usize::from(by_driver));

        let warned = format!("#warning untrusted and odd\n{SAXPY}");
        let program = rt.build(&Module::opencl_c(warned).untrusted()).await.unwrap();
        if by_driver && rt.device().platform.contains("Intel") {
            assert!(program.build_log().contains("untrusted and odd"), "{}", program.build_log());
        }
    });
}

#[test]
fn options_and_constants_reach_the_child() {
    on_each_device_with_child(WORKING, async |rt, _| {
        let named = Module::opencl_c(SAXPY.replace("saxpy", "NAME")).untrusted();
        let program = rt.build(&named).options("-D NAME=saxpy").await.unwrap();
        assert_computes(&rt, &program).await;
        let module = specialized().untrusted();
        let program = rt.build(&module).specialize(7, 17u32).await.unwrap();
        // SAFETY: it writes one element.
        let write = unsafe { program.kernel("write_number") }.unwrap();
        let x = rt.buffer_from(vec![0u32]).await.unwrap();
        rt.queue().submit(write.launch(1).args((&x,))).unwrap();
        assert_eq!(rt.queue().read(&x).await.unwrap(), [17]);
    });
}

#[test]
fn programs_in_memory_are_returned_without_a_child_process() {
    on_each_device_with_child("exit 3", async |rt, folder| {
        let trusted = rt.build(&source(0)).await.unwrap();
        let program = rt.build(&source(0).untrusted()).await.unwrap();
        assert_eq!((program.origin(), program.key()), (Origin::Memory, trusted.key()));
        assert!(folder.started().is_empty());
    });
}

#[test]
fn programs_on_disk_are_loaded_without_a_child_process() {
    on_each_device_with_child(WORKING, async |rt, folder| {
        let disk = folder.file(rt.device().backend).join(rt.device().index().to_string());
        let stored = || Runtime::builder().cache(CacheConfig::at(&disk));
        let first = runtime_like(&rt, stored().build_child(folder.file("child"))).await;
        let module = source(0).untrusted();
        let program = first.build(&module).await.unwrap();
        assert_eq!(program.origin(), Origin::Compiled);
        first.drain().await;
        drop(first);
        let runs = folder.started().len();
        assert_eq!(runs, 1);

        let broken = folder.file("broken");
        scripts::place(&broken, "exit 3");
        let second = runtime_like(&rt, stored().build_child(broken)).await;
        let loaded = second.build(&module).await.unwrap();
        assert_eq!((loaded.origin(), loaded.key()), (Origin::Disk, program.key()));
        assert_eq!((second.stats().builds.compiles, second.stats().builds.child_processes), (0, 0));
        assert_computes(&second, &loaded).await;
    });
}

/// Returns a library, and an application that imports from it.
fn linked_modules() -> (Module, Module) {
    let library = Module::opencl_c("float scaled(float a, float x) { return a * x; }");
    let application = format!(
        "float scaled(float a, float x);\n{}",
        SAXPY.replace("a * x[i]", "scaled(a, x[i])")
    );
    let application = Module::opencl_c(application).importing(["scaled"]);
    (library.exporting(["scaled"]), application)
}

#[test]
fn native_libraries_are_linked_with_untrusted_modules_by_a_child() {
    on_each_device_with_child(WORKING, async |rt, folder| {
        let (library, application) = linked_modules();
        let object = rt.build(&library).object().await.unwrap();
        let library = Module::native(object.bytes()).unwrap();
        for (library, application) in
            [(library.clone(), application.clone().untrusted()), (library.untrusted(), application)]
        {
            let rt = runtime_like(&rt, builder().build_child(folder.file("child"))).await;
            rt.register(&library).unwrap();
            let program = rt.build(&application).await.unwrap();
            assert_computes(&rt, &program).await;
            assert_eq!((rt.stats().builds.child_processes, rt.stats().builds.links), (1, 1));
        }
    });
}

#[test]
fn programs_with_an_untrusted_module_are_linked_by_a_child() {
    on_each_device_with_child(WORKING, async |rt, folder| {
        let (library, application) = linked_modules();
        for (library, application) in
            [(library.clone(), application.clone().untrusted()), (library.untrusted(), application)]
        {
            let rt = runtime_like(&rt, builder().build_child(folder.file("child"))).await;
            rt.register(&library).unwrap();
            let program = rt.build(&application).await.unwrap();
            assert_computes(&rt, &program).await;
            let stats = rt.stats();
            assert_eq!(stats.builds.child_processes, 1, "{stats:?}");
            // The driver's linker takes the objects of both modules; Kiln's own linker leaves one module to
            // compile.
            let linked = rt.device().links.contains(&application.format());
            let expected = if linked { (2, 1) } else { (1, 0) };
            assert_eq!((stats.builds.compiles, stats.builds.links), expected, "{stats:?}");
        }
    });
}

#[test]
fn kernels_fused_from_an_untrusted_program_are_compiled_by_a_child() {
    on_each_device_with_child(WORKING, async |rt, folder| {
        if rt.device().backend != "opencl" {
            // An imitated GPU only runs kernels that the test prepared.
            return;
        }
        let builder = builder().fusion(kiln::FusionMode::Always);
        let rt = runtime_like(&rt, builder.build_child(folder.file("child"))).await;
        let module = Module::spirv(SAXPY_SPIRV).unwrap();
        // The program is in memory, and trusted, before it is requested as untrusted.
        rt.build(&module).await.unwrap();
        let program = rt.build(&module.untrusted()).await.unwrap();
        assert_eq!((program.origin(), rt.stats().builds.child_processes), (Origin::Memory, 0));
        // SAFETY: as in `assert_computes`.
        let saxpy = unsafe { program.kernel("saxpy") }.unwrap();
        let x = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        let y = rt.buffer_from(vec![2.0f32; 8]).await.unwrap();
        let queue = rt.queue();
        let fusion = queue.start_fusion();
        fusion.require();
        for _ in 0..2 {
            fusion.submit(saxpy.launch(8).args((3.0f32, &x, &y))).unwrap();
        }
        fusion.complete().await.unwrap();
        assert_eq!(queue.read(&y).await.unwrap(), [8.0; 8]);
        assert_eq!((rt.stats().builds.compiles, rt.stats().builds.child_processes), (2, 1));
    });
}

// ---- Children that go wrong ---------------------------------------------------------------------

/// Checks that a fault affects only one build: the application continues, and the trusted module can be built.
async fn assert_still_builds(rt: &Runtime, number: usize) {
    let program = rt.build(&source(number)).await.unwrap();
    assert_eq!(program.origin(), Origin::Compiled);
    assert_computes(rt, &program).await;
    // The fault does not stay with the module once there is a program.
    let program = rt.build(&source(number).untrusted()).await.unwrap();
    assert_eq!(program.origin(), Origin::Memory);
}

#[test]
fn a_compiler_crash_is_a_build_failure_with_its_output() {
    on_each_device_with_child(
        "greet; echo 'Stack dump:' >&2; kill -SEGV $$",
        async |rt, folder| {
            let words = ["crashed on the program", "signal 11", "Stack dump:"];
            let error =
                refused(rt.build(&source(0).untrusted()).await, ErrorKind::BuildFailed, &words);
            assert!(error.is_deterministic() && error.build_log().unwrap().contains("Stack dump:"));
            let again = rt.build(&source(0).untrusted()).await.unwrap_err();
            assert!(again.same(&error), "it is kept");
            assert_eq!(folder.started().len(), 1);
            assert_still_builds(&rt, 0).await;
        },
    );
}

#[test]
fn a_compiler_that_exits_the_process_is_a_build_failure() {
    for (script, how) in [
        ("greet; exit 0", "exited with status 0"),
        ("greet; exit 5", "exited with status 5"),
        ("greet; echo nonsense", "without an answer"),
        ("kiln | head -c 200", "without an answer"),
    ] {
        on_each_device_with_child(script, async |rt, _| {
            let build = rt.build(&source(0).untrusted()).await;
            refused(build, ErrorKind::BuildFailed, &[how]);
            assert_still_builds(&rt, 0).await;
        });
    }
}

#[test]
fn a_crash_after_the_answer_does_not_affect_the_result() {
    on_each_device_with_child("kiln; kill -SEGV $$", async |rt, _| {
        let program = rt.build(&source(0).untrusted()).await.unwrap();
        assert_computes(&rt, &program).await;
    });
}

#[test]
fn a_hanging_compiler_is_killed_and_may_be_retried() {
    let limit = Duration::from_millis(1_500);
    on_each_device_within(limit, "echo 'so far' >&2; sleep 600", async |rt, folder| {
        for runs in 1..=2 {
            let words = ["did not end within 1.5 s", "so far"];
            let build = rt.build(&source(0).untrusted()).await;
            let error = refused(build, ErrorKind::Driver, &words);
            assert!(!error.is_deterministic());
            assert_eq!(folder.started().len(), runs);
        }
        for process in folder.started() {
            assert!(!Path::new(&format!("/proc/{process}")).exists(), "{process} still runs");
        }
        assert_still_builds(&rt, 0).await;
    });
}

#[test]
fn a_compiler_that_runs_out_of_memory_is_not_retried() {
    on_each_device_with_child("greet; kill -KILL $$", async |rt, folder| {
        let build = rt.build(&source(0).untrusted()).await;
        let error = refused(build, ErrorKind::OutOfResources, &["ran out of memory"]);
        assert!(!error.is_deterministic());
        assert_eq!(folder.started().len(), 1, "a retry would need as much memory");
        assert_still_builds(&rt, 0).await;
    });
}

#[test]
fn programs_that_are_not_a_matching_child_are_reported_and_retried() {
    let other = format!("greet | sed 's/{}/9.8.7/'", env!("CARGO_PKG_VERSION"));
    for (script, words) in [
        (
            "echo hello; exit 4",
            &["is not a build child", "status 4", "kiln::build::build_child()"][..],
        ),
        ("cat > /dev/null", &["is not a build child"]),
        (&other, &["9.8.7", env!("CARGO_PKG_VERSION"), "the same version"]),
    ] {
        on_each_device_with_child(script, async |rt, folder| {
            for runs in 1..=2 {
                let build = rt.build(&source(0).untrusted()).await;
                let error = refused(build, ErrorKind::Configuration, words);
                assert!(!error.is_deterministic(), "the program may be replaced");
                assert_eq!(folder.started().len(), runs);
            }
            assert_still_builds(&rt, 0).await;
        });
    }
}

#[test]
fn output_of_drivers_does_not_corrupt_the_answer() {
    // The command that starts programs on an imitated GPU would print, too.
    if is_by_loader() || !tools::has_tool("cc", &["cc", "--version"]) {
        return;
    }
    let folder = Folder::new();
    // The text is written when the process ends. Text written there is a message.
    let code = "#include <stdio.h>\n\
                __attribute__((constructor)) static void chat(void) { printf(\"chatter\\n\"); }";
    fs::write(folder.file("chatter.c"), code).unwrap();
    let [from, to] = ["chatter.c", "chatter.so"].map(|name| folder.file(name));
    let cc = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&to, &from]).status();
    assert!(cc.unwrap().success());
    let preload = format!("export LD_PRELOAD={}\nkiln", to.display());
    on_each_device_with_child(&preload, async |rt, _| {
        let program = rt.build(&source(0).untrusted()).await.unwrap();
        assert_computes(&rt, &program).await;
    });
}

#[test]
fn a_missing_child_program_is_refused_when_the_runtime_is_built() {
    let folder = Folder::new();
    let runtime = smol::block_on(builder().build_child(folder.file("nothing")).build());
    let words = ["RuntimeBuilder::build_child", "nothing", "no executable file"];
    // There may be no device at all.
    if !runtime.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoDevice) {
        refused(runtime, ErrorKind::Configuration, &words);
    }
}

// ---- Which program ------------------------------------------------------------------------------

/// Runs a test of this binary in another process, with these variables.
fn in_another_process(test: &str, variables: &[(&str, &str)]) -> children::Report {
    let command = if !is_by_loader() {
        Command::new(this_binary())
    } else {
        let runner = std::env::var("KILN_GPU_RUNNER").expect("it started this process");
        let mut words = runner.split_whitespace();
        let mut command = Command::new(words.next().expect("it names a command"));
        command.args(words).arg(this_binary());
        command
    };
    Child::start_from(command, &test_name!(test), variables.iter().copied()).report()
}

#[test]
fn without_a_child_the_error_explains_how_to_configure_one() {
    let path = path_without_tool();
    in_another_process("childless", &[("KILN_BUILD_CHILD", ""), ("PATH", &path)]);
}

#[test]
#[ignore = "another test runs it"]
fn childless() {
    smol::block_on(on_each_device_with(builder, async |rt| {
        let build = rt.build(&source(0).untrusted()).await;
        let ways = [
            "kiln::build::build_child()",
            "RuntimeBuilder::build_child",
            "KILN_BUILD_CHILD",
            "`kiln`",
        ];
        let error = refused(build, ErrorKind::Configuration, &ways);
        assert!(!error.is_deterministic());
        assert_eq!(rt.stats().memory.programs, 0);
        assert_still_builds(&rt, 0).await;
    }));
    report("done", 1);
}

#[test]
fn the_application_overrides_the_child_that_the_environment_names() {
    let folder = Folder::new();
    let child = folder.child(WORKING);
    in_another_process("by_environment", &[("KILN_BUILD_CHILD", child.to_str().unwrap())]);
    assert!(!folder.started().is_empty());
}

#[test]
#[ignore = "another test runs it"]
fn by_environment() {
    let folder = Folder::new();
    let child = folder.child("exit 4");
    smol::block_on(on_each_device_with(builder, async |rt| {
        assert_computes(&rt, &rt.build(&source(0).untrusted()).await.unwrap()).await;
        let overruled = runtime_like(&rt, builder().build_child(&child)).await;
        let build = overruled.build(&source(0).untrusted()).await;
        refused(build, ErrorKind::Configuration, &["is not a build child"]);
    }));
    report("done", 1);
}

#[test]
fn a_build_child_finds_no_passwords() {
    let folder = Folder::new();
    let child = folder.child(&format!("env >> seen\n{WORKING}"));
    let variables = [
        ("KILN_BUILD_CHILD", child.to_str().unwrap()),
        ("KILN_CACHE_REMOTE_SECRET", "hunter2-is-a-secret"),
        ("AWS_SECRET_ACCESS_KEY", "hunter2-is-a-secret"),
        ("OF_THE_APPLICATION", "hunter2-is-a-secret"),
    ];
    in_another_process("by_path", &variables);
    let seen = fs::read_to_string(folder.file("seen")).expect("a child was started");
    assert!(seen.contains("PATH=") && !seen.contains("hunter2"), "{seen}");
}

#[test]
fn the_tool_is_found_in_path() {
    let folder = Folder::new();
    let child = folder.child(WORKING);
    fs::rename(child, folder.file("kiln")).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", folder.0.path().display());
    in_another_process("by_path", &[("KILN_BUILD_CHILD", ""), ("PATH", &path)]);
    assert!(!folder.started().is_empty());
}

#[test]
#[ignore = "another test runs it"]
fn by_path() {
    smol::block_on(on_each_device_with(builder, async |rt| {
        assert_computes(&rt, &rt.build(&source(0).untrusted()).await.unwrap()).await;
    }));
    report("done", 1);
}

#[test]
fn a_program_that_calls_build_child_is_its_own_child() {
    if is_by_loader() {
        // Such a program cannot be started again without the loader.
        return;
    }
    smol::block_on(support::on_each_device(async |rt| {
        let folder = Folder::new();
        fs::write(folder.file("saxpy.cl"), SAXPY).unwrap();
        let build = |child: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
            command.args(["build", "--json", "--untrusted", "--device"]);
            command.arg(format!("{}:{}", rt.device().backend, rt.device().index()));
            command.arg(folder.file("saxpy.cl")).env("PATH", path_without_tool());
            command.env("KILN_CACHE", "memory").env("KILN_BUILD_CHILD", child);
            let output = command.output().unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        let (is_well, out) = build("");
        assert!(is_well && out.contains("\"origin\":\"compiled\""), "{out}");
        let (is_well, out) = build(folder.child("exit 4").to_str().unwrap());
        assert!(!is_well && out.contains("is not a build child"), "{out}");
    }));
}

// ---- Trusted and untrusted requests -------------------------------------------------------------

#[test]
fn trusted_builds_do_not_wait_for_child_processes() {
    let script = "while [ ! -e go ]; do sleep 0.01; done; kiln";
    on_each_device_with_child(script, async |rt, folder| {
        let _ = fs::remove_file(folder.file("go"));
        let (one, two) = (source(0).untrusted(), source(1).untrusted());
        // The number of builds equals the number of threads for them.
        let builds = [rt.build(&one).start(), rt.build(&two).start()];
        while folder.started().len() < 2 {
            Timer::after(Duration::from_millis(10)).await;
        }
        let program = rt.build(&source(0)).await.unwrap();
        assert_eq!(program.origin(), Origin::Compiled);
        assert_computes(&rt, &program).await;
        fs::write(folder.file("go"), "").unwrap();
        for build in builds {
            let program = build.await.unwrap();
            assert_eq!(program.origin(), Origin::Compiled);
            assert_computes(&rt, &program).await;
        }
        assert_eq!((rt.stats().builds.compiles, rt.stats().builds.child_processes), (3, 2));
    });
}

#[test]
fn concurrent_untrusted_requests_share_one_child() {
    on_each_device_with_child(WORKING, async |rt, folder| {
        let module = source(0).untrusted();
        let builds: Vec<_> = (0..8).map(|_| rt.build(&module).start()).collect();
        for build in builds {
            assert_eq!(build.await.unwrap().origin(), Origin::Compiled);
        }
        assert_eq!(folder.started().len(), 1);
        assert_eq!(rt.stats().builds.joined, 7);
    });
}
