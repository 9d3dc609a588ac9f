//! Compilers that translate OpenCL C to SPIR-V: when they run, and how their messages are handled. Most of them
//! are scripts here; `translated_text.rs` tests the results of clang's translations.
#![cfg(unix)]

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use futures::future::join_all;
use kiln::devices::ModuleFormat;
use kiln::internal::translate::spirv_of;
use kiln::simulated::Simulator;
use kiln::store::EntryCheck;
use kiln::{CacheConfig, Error, ErrorKind, Module, Runtime};
use smol::block_on;
use support::children::{Child, report, variable};
use support::scripts;
use support::stores;
use support::test_name;
use support::tools::has_clang;
use support::{SAXPY, on_each_device};
use tempfile::TempDir;

/// Compilers that are scripts, in a directory of their own, beside a store.
struct Scripts(TempDir);

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/saxpy.spv");

impl Scripts {
    /// Creates a clang that records the run and then does what `script` says, and a translator that writes a
    /// module for any input.
    fn new(script: &str) -> Self {
        let scripts = Self(tempfile::tempdir().expect("there is room"));
        scripts.clang("15.0.6", script);
        let translator = format!(
            "case \"$1\" in --version) echo 'LLVM version 15.0.6'; exit;; esac\ncat {MODULE}"
        );
        scripts.program("llvm-spirv", &translator);
        scripts
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn clang(&self, version: &str, script: &str) {
        let runs = self.file("runs");
        let clang = format!(
            "case \"$1\" in --version) echo 'clang version {version}'; exit;; esac\n\
             echo \"$*\" >> {}\n{script}",
            runs.display()
        );
        self.program("clang", &clang);
    }

    fn program(&self, name: &str, script: &str) {
        scripts::place(&self.file(name), script);
    }

    /// Starts a runtime as another process would.
    fn start(&self) -> Runtime {
        self.start_with(CacheConfig::at(self.file("store")))
    }

    fn start_with(&self, cache: CacheConfig) -> Runtime {
        let builder = Runtime::builder().simulator(&Simulator::immediate()).cache(cache);
        let builder = builder.front_end(self.file("clang"), self.file("llvm-spirv"));
        block_on(builder.build()).expect("it starts")
    }

    /// Returns the number of texts that clang translated.
    fn runs(&self) -> usize {
        let runs = fs::read_to_string(self.file("runs")).unwrap_or_default();
        runs.lines().filter(|arguments| arguments.contains("-x cl ")).count()
    }
}

fn translate(rt: &Runtime, text: &str) -> Result<Module, Error> {
    block_on(spirv_of(rt, &Module::opencl_c(text), ""))
}

fn wait_for_store(rt: &Runtime) {
    block_on(rt.drain());
}

// ---- Caching ------------------------------------------------------------------------------------

#[test]
fn concurrent_requests_share_one_translation() {
    let scripts = Scripts::new("sleep 0.2; cat");
    let rt = scripts.start_with(CacheConfig::memory_only());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| translate(&rt, "kernel").expect("it is translated"));
        }
    });
    let module = translate(&rt, "kernel").expect("it is kept");
    assert_eq!(
        (module.format(), module.kernels()),
        (ModuleFormat::SpirV, &["saxpy".to_owned()][..])
    );
    assert_eq!((scripts.runs(), rt.stats().builds.translations), (1, 1));
    assert_eq!((rt.stats().builds.compiles, rt.stats().memory.programs), (0, 0));
}

#[test]
fn translations_are_loaded_from_disk_after_a_restart() {
    let scripts = Scripts::new("case $2 in cl) echo 'a warning' >&2;; esac; cat");
    let first = scripts.start();
    let module = translate(&first, "kernel").expect("it is translated");
    wait_for_store(&first);
    assert_eq!((first.stats().builds.translations, first.stats().disk.writes), (1, 1));
    let second = scripts.start();
    let loaded = translate(&second, "kernel").expect("it is loaded");
    assert_eq!(loaded.digest(), module.digest());
    assert_eq!((second.stats().builds.translations, second.stats().disk.hits), (0, 1));
    assert_eq!(scripts.runs(), 1);
}

#[test]
fn an_entry_records_the_inputs_and_tools_of_its_translation() {
    let scripts = Scripts::new("case $2 in cl) echo 'a warning' >&2;; esac; cat");
    let rt = scripts.start();
    let module = Module::opencl_c("kernel");
    let spirv = block_on(spirv_of(&rt, &module, "-DA=1")).expect("it is translated");
    wait_for_store(&rt);
    let store = stores::open(scripts.file("store"));
    let entry = stores::only_entry(&store);
    let EntryCheck::Whole(entry) = block_on(store.check(&entry)) else { panic!("it is damaged") };
    assert_eq!(entry.payload(), spirv.code());
    let record = entry.record();
    assert_eq!(record.field("kind"), Some("spirv"));
    assert_eq!(record.field("options"), Some("-DA=1"));
    assert_eq!(record.field("module"), Some(&*module.digest().to_string()));
    assert_eq!(record.field("clang"), Some("clang version 15.0.6"));
    assert_eq!(record.build_log, "a warning\n");
    assert_eq!(record.kernels[0].name, "saxpy");
    let tools: Vec<_> = record.tools.iter().map(|(name, _)| &**name).collect();
    assert_eq!(tools, ["kiln", "clang", "llvm-spirv"]);
}

#[test]
fn sources_are_translated_again_after_a_compiler_upgrade() {
    let scripts = Scripts::new("cat");
    let first = scripts.start();
    translate(&first, "kernel").expect("it is translated");
    wait_for_store(&first);
    scripts.clang("15.0.7", "cat");
    let second = scripts.start();
    translate(&second, "kernel").expect("it is translated");
    assert_eq!((second.stats().builds.translations, second.stats().disk.hits), (1, 0));
}

#[test]
fn different_sources_and_options_are_translated_separately() {
    let scripts = Scripts::new("cat");
    let rt = scripts.start();
    for (text, options) in [("a", ""), ("b", ""), ("a", "-DA"), ("a", "-cl-std=CL2.0"), ("a", "-w")]
    {
        block_on(spirv_of(&rt, &Module::opencl_c(text), options)).expect("it is translated");
    }
    block_on(spirv_of(&rt, &Module::opencl_c("a"), "  -DA ")).expect("it is kept");
    assert_eq!(rt.stats().builds.translations, 5);
}

#[test]
fn a_compile_error_is_cached_with_its_log() {
    let scripts = Scripts::new("echo '1:1: error: no' >&2; exit 1");
    let rt = scripts.start();
    let first = translate(&rt, "kernel").expect_err("it is refused");
    let second = translate(&rt, "kernel").expect_err("it is refused");
    assert!(first.same(&second));
    assert_eq!(
        (first.kind(), first.build_log()),
        (ErrorKind::BuildFailed, Some("1:1: error: no\n"))
    );
    assert_eq!(scripts.runs(), 1);
}

#[test]
fn the_failure_of_a_killed_compiler_is_not_cached() {
    let scripts = Scripts::new("kill -KILL $$");
    let rt = scripts.start();
    let error = translate(&rt, "kernel").expect_err("it is killed each time");
    assert_eq!(error.kind(), ErrorKind::OutOfResources);
    scripts.clang("15.0.6", "cat");
    translate(&rt, "kernel").expect("it works now");
}

#[test]
fn dropped_requests_do_not_repeat_a_translation() {
    let scripts = Scripts::new("cat");
    let rt = scripts.start();
    for _ in 0..3 {
        drop(spirv_of(&rt, &Module::opencl_c("kernel"), ""));
    }
    translate(&rt, "kernel").expect("it is translated");
    assert_eq!((scripts.runs(), rt.stats().builds.translations), (1, 1));
}

#[test]
fn slow_untrusted_sources_do_not_delay_other_translations() {
    let scripts = Scripts::new("");
    let go = scripts.file("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.01; done", go.display());
    let script = format!(
        "text=$(cat)\ncase \"$text\" in *hostile*) {wait};; esac\nprintf '%s\\n' \"$text\""
    );
    scripts.clang("15.0.6", &script);
    let rt = scripts.start_with(CacheConfig::memory_only());
    translate(&rt, "the tools are known now").expect("it is translated");
    let include = "\n#include \"there is none\"";
    let hostile: Vec<_> = ["hostile", "hostile 2", "hostile 3", &format!("hostile {include}")]
        .into_iter()
        .map(|text| Box::pin(spirv_of(&rt, &Module::opencl_c(text).untrusted(), "")))
        .collect();
    translate(&rt, "kernel").expect("it is translated");
    translate(&rt, &format!("kernel {include}")).expect("it is translated");
    fs::write(go, "").expect("there is room");
    for translated in block_on(join_all(hostile)) {
        translated.expect("it is only slow");
    }
}

#[test]
fn a_damaged_entry_is_translated_again() {
    let scripts = Scripts::new("cat");
    let first = scripts.start();
    translate(&first, "kernel").expect("it is translated");
    wait_for_store(&first);
    let entry = stores::only_entry(&stores::open(scripts.file("store")));
    let mut bytes = fs::read(entry.path()).expect("it can be read");
    bytes[30] ^= 1;
    fs::write(entry.path(), bytes).expect("it can be written");
    let second = scripts.start();
    translate(&second, "kernel").expect("it is translated");
    assert_eq!((second.stats().disk.damaged, second.stats().builds.translations), (1, 1));
}

#[test]
fn spirv_translates_to_itself_and_native_binaries_are_rejected() {
    let scripts = Scripts::new("cat");
    let rt = scripts.start();
    let module = Module::spirv(fs::read(MODULE).expect("it is there")).expect("it is a module");
    let same = block_on(spirv_of(&rt, &module, "")).expect("it is SPIR-V");
    assert_eq!(same.digest(), module.digest());
    let binary = Module::native(*b"binary").expect("it is not empty");
    let error = block_on(spirv_of(&rt, &binary, "")).expect_err("it has none");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = block_on(spirv_of(&rt, &Module::opencl_c(SAXPY), "-O3"))
        .expect_err("it is not a valid option");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = translate(&rt, " ").expect_err("there is no text");
    assert_eq!(error.kind(), ErrorKind::InvalidModule);
    assert_eq!(scripts.runs(), 0);
}

#[test]
fn a_missing_front_end_program_is_named_by_the_startup_error() {
    let builder = Runtime::builder().simulator(&Simulator::immediate());
    let error = block_on(builder.front_end("/nowhere/clang", "/nowhere/llvm-spirv").build());
    let error = error.expect_err("there is no such program");
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("RuntimeBuilder::front_end: `/nowhere/clang`"), "{error}");
}

// ---- In restricted processes --------------------------------------------------------------------

/// Translates two texts, in a process that ignores SIGCHLD if `KILN_TEST_SIGCHLD` is `ignored`.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
#[allow(clippy::print_stdout, reason = "the parent shows it")]
fn translating_process() {
    if variable("KILN_TEST_SIGCHLD") == "ignored" {
        // SAFETY: to ignore a signal takes no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    }
    let builder = Runtime::builder().simulator(&Simulator::immediate());
    let rt = block_on(builder.cache(CacheConfig::memory_only()).build()).expect("it starts");
    let translated = translate(&rt, "kernel void k(global int *x) { x[0] = 1; }");
    report("translated", u8::from(translated.is_ok()));
    let refused = translate(&rt, "hostile");
    let log = refused.as_ref().map_err(|error| error.build_log().unwrap_or_default().to_owned());
    report("refused", u8::from(log.is_err_and(|log| log.contains("error:"))));
    println!("{translated:?} {refused:?}");
}

/// Runs the process with these tools in `PATH`, and few other variables.
fn assert_translates(path: &OsStr) {
    for (temporary, signal) in
        [("/nowhere/at/all", "default"), ("/tmp", "ignored"), ("/nowhere/at/all", "ignored")]
    {
        let variables: [(&str, &OsStr); 3] = [
            ("PATH", path),
            ("TMPDIR", temporary.as_ref()),
            ("KILN_TEST_SIGCHLD", signal.as_ref()),
        ];
        let child = Child::start(&test_name!("translating_process"), variables);
        let (report, output) = child.report_and_output();
        let outcome = (report["translated"], report["refused"]);
        assert_eq!(outcome, (1, 1), "TMPDIR={temporary}, SIGCHLD {signal}: {output}");
    }
}

#[test]
fn compilers_run_without_a_temporary_directory_and_with_sigchld_ignored() {
    // Processes that the compiler leaves running are killed; they would keep its log open.
    let scripts = Scripts::new(
        "sleep 600 &\ntext=$(cat)\ncase \"$text\" in *hostile*) echo '1:1: error: no' >&2; exit 1;; \
         esac\nprintf '%s\\n' \"$text\"",
    );
    let system = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::iter::once(scripts.0.path().to_owned()).chain(std::env::split_paths(&system));
    assert_translates(&std::env::join_paths(folders).expect("they are plain"));
}

#[test]
fn clang_runs_without_a_temporary_directory_and_with_sigchld_ignored() {
    if has_clang() {
        assert_translates(&std::env::var_os("PATH").unwrap_or_default());
    }
}

// ---- With clang ---------------------------------------------------------------------------------

#[test]
fn a_translation_error_contains_the_compiler_log() {
    if !has_clang() {
        return;
    }
    let rt = block_on(Runtime::builder().simulator(&Simulator::immediate()).build());
    let rt = rt.expect("it starts");
    let error =
        translate(&rt, "kernel void k() { nothing(); }").expect_err("there is no such function");
    assert_eq!(error.kind(), ErrorKind::BuildFailed);
    let log = error.build_log().expect("there is a log");
    assert!(log.contains("<stdin>:1:19: error:") && log.contains("nothing"), "{log}");
    assert!(error.same(&translate(&rt, "kernel void k() { nothing(); }").expect_err("it is kept")));
}

/// Counts the runs of the real compilers, through scripts in front of them.
#[test]
fn clang_does_not_run_again_after_a_restart() {
    if !has_clang() {
        return;
    }
    let scripts = Scripts::new("");
    let count = |tool: &str| {
        format!("echo \"$*\" >> {}\nexec {tool} \"$@\"", scripts.file("runs").display())
    };
    scripts.program("clang", &count("clang-15"));
    scripts.program("llvm-spirv", &count("llvm-spirv-15"));
    block_on(on_each_device(async |rt: Runtime| {
        let start = || {
            Runtime::builder()
                .device(rt.device().index().to_string())
                .cache(CacheConfig::at(scripts.file("store")))
                .front_end(scripts.file("clang"), scripts.file("llvm-spirv"))
                .build()
        };
        let before = scripts.runs();
        let mut digests = Vec::new();
        for _ in 0..2 {
            let rt = start().await.expect("it starts");
            let spirv =
                spirv_of(&rt, &Module::opencl_c(SAXPY), "").await.expect("it is translated");
            rt.drain().await;
            digests.push(spirv.digest());
            assert_eq!(scripts.runs(), before + 1);
        }
        assert_eq!(digests[0], digests[1]);
    }));
}
