//! Tests of the translation with scripts in place of the compilers: some work, some fail.
#![cfg(unix)]

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use futures::executor::block_on;
use tempfile::TempDir;

use super::*;
use crate::device::DeviceInfo;
use crate::error::{Error, ErrorKind};
use support::scripts;

/// Last command of a working compiler: writes a module.
const MODULE: &str = concat!("cat ", env!("CARGO_MANIFEST_DIR"), "/tests/data/saxpy.spv");

/// Directory of scripts.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("there is disk space"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn program(&self, name: &str, script: &str) -> PathBuf {
        let path = self.file(name);
        scripts::place(&path, script);
        path
    }

    /// Creates a compiler that reports this version, and otherwise runs `script`.
    fn compiler(&self, name: &str, version: &str, script: &str) -> PathBuf {
        self.program(
            name,
            &format!("if [ \"$1\" = --version ]; then echo '{version}'; exit; fi\n{script}"),
        )
    }

    fn clang(&self, name: &str, major: u32, script: &str) -> PathBuf {
        self.compiler(name, &format!("Tested clang version {major}.0.6"), script)
    }

    fn llvm_spirv(&self, name: &str, major: u32, script: &str) -> PathBuf {
        self.compiler(name, &format!("  LLVM version {major}.0.6"), script)
    }

    /// Creates a front end with this directory first in `PATH`, and with other variables.
    fn front_end(&self, variables: &[(&'static str, &Path)]) -> Result<FrontEnd> {
        let variables: HashMap<_, _> =
            variables.iter().map(|(name, path)| (*name, OsString::from(path))).collect();
        FrontEnd::new_in(None, None, |name| match name {
            "PATH" => Some(self.path().into()),
            name => variables.get(name).cloned(),
        })
    }

    fn found(&self) -> Result<Arc<Tools>> {
        self.front_end(&[]).and_then(|front_end| block_on(front_end.tools()).cloned())
    }

    /// Returns the number of lines that programs wrote to a file.
    fn lines(&self, file: &str) -> usize {
        fs::read_to_string(self.file(file)).unwrap_or_default().lines().count()
    }

    /// Translates with scripts in place of both compilers.
    fn translate_within(
        &self,
        clang: &str,
        llvm_spirv: &str,
        limit: Duration,
    ) -> Result<translation::Translated> {
        self.clang("clang", 15, clang);
        self.llvm_spirv("llvm-spirv", 15, llvm_spirv);
        let tools = self.found().expect("they exist");
        Translation::new(&tools, limit, "", &device())?.run(b"kernel void k() {}")
    }

    fn translate(&self, clang: &str, llvm_spirv: &str) -> Result<translation::Translated> {
        self.translate_within(clang, llvm_spirv, LIMIT)
    }
}

pub(super) fn device() -> DeviceInfo {
    DeviceInfo {
        device_version: "OpenCL 3.0".to_owned(),
        il_version: "SPIR-V_1.0 SPIR-V_1.1".to_owned(),
        extensions: vec!["cl_khr_fp64".to_owned(), "bad,name".to_owned()],
        opencl_c_features: vec!["__opencl_c_fp64".to_owned()],
        ..DeviceInfo::fake()
    }
}

#[track_caller]
fn assert_error<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let error = result.expect_err("it fails");
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
    error
}

// ---- Finding ------------------------------------------------------------------------------------

#[test]
fn compilers_of_equal_versions_are_found() {
    let folder = Folder::new();
    folder.clang("clang-22", 22, "echo '  spirv64 - SPIR-V'");
    folder.clang("clang-14", 14, "");
    folder.clang("clang-15", 15, "");
    let translator = folder.llvm_spirv("llvm-spirv-15", 15, "");
    let tools = folder.found().expect("there is one");
    assert_eq!(tools.clang.path, folder.file("clang-15"));
    assert_eq!(tools.llvm_spirv.as_ref().map(|tool| &tool.path), Some(&translator));
    let identity: Vec<_> = tools.identity().collect();
    let version = ("llvm-spirv", "LLVM version 15.0.6");
    assert_eq!(identity, [("clang", "Tested clang version 15.0.6"), version]);
}

#[test]
fn names_without_a_version_are_preferred() {
    let folder = Folder::new();
    for name in ["clang", "clang-15"] {
        folder.clang(name, if name == "clang" { 17 } else { 15 }, "");
    }
    folder.llvm_spirv("llvm-spirv-15", 15, "");
    folder.llvm_spirv("llvm-spirv-17", 17, "");
    assert_eq!(folder.found().expect("there is one").clang.path, folder.file("clang"));
}

#[test]
fn a_chosen_clang_that_writes_spirv_needs_no_translator() {
    let folder = Folder::new();
    let spirv = "echo '    spirv64    - SPIR-V 64-bit'";
    let other = "echo '    x86-64     - 64-bit X86'";
    for (major, targets, suffices) in [(19, spirv, false), (20, other, false), (20, spirv, true)] {
        let clang = folder.clang("clang", major, targets);
        let front_end = folder.front_end(&[("KILN_CLANG", &clang)]).expect("it is a program");
        if suffices {
            let tools = block_on(front_end.tools()).expect("it suffices");
            assert_eq!((tools.clang.major, tools.llvm_spirv.is_none()), (major, true));
        } else {
            assert_error(block_on(front_end.tools()), ErrorKind::Unsupported, &["llvm-spirv"]);
        }
        assert_error(folder.found(), ErrorKind::Unsupported, &["llvm-spirv"]);
    }
}

#[test]
fn without_compilers_the_error_says_what_to_install() {
    let folder = Folder::new();
    let install = "apt install clang-15 llvm-spirv-15";
    let variables = ["KILN_CLANG", "KILN_LLVM_SPIRV"];
    assert_error(folder.found(), ErrorKind::Unsupported, &[install, variables[0], variables[1]]);
    folder.clang("clang", 16, "");
    folder.llvm_spirv("llvm-spirv", 15, "");
    let found = ["clang version 16.0.6", "LLVM version 15.0.6"];
    assert_error(folder.found(), ErrorKind::Unsupported, &found);
    let chosen = folder.front_end(&[("KILN_CLANG", &folder.file("clang"))]).expect("it exists");
    let install = ["apt install clang-16 llvm-spirv-16"];
    let error = assert_error(block_on(chosen.tools()), ErrorKind::Unsupported, &install);
    assert!(!error.is_deterministic(), "compilers may be installed later");
}

#[test]
fn compilers_that_cannot_be_run_are_named_with_the_reason() {
    use ErrorKind::{Io, OutOfResources, Unsupported};
    let folder = Folder::new();
    let front_end = folder.front_end(&[]).expect("nothing is chosen");
    let clang = folder.file("clang");
    let loader = "clang: error while loading shared libraries: libLLVM.so: cannot open it";
    let missing = format!("echo '{loader}' >&2; exit 127");
    let script = |script: &str| drop(folder.program("clang", script));
    let broken = |what| match what {
        "not executable" => fs::write(&clang, b"").expect("there is disk space"),
        "a foreign processor's" => scripts::place_bytes(&clang, b"\x7fELF"),
        "without its interpreter" => scripts::place_bytes(&clang, b"#!/nowhere/interpreter\n"),
        "without a library" => script(&missing),
        "killed" => script("kill -KILL $$"),
        _ => std::os::unix::fs::symlink("/nowhere/clang", &clang).expect("there is disk space"),
    };
    for (what, kind, words) in [
        ("not executable", Io, &["not executable"][..]),
        ("a foreign processor's", Io, &["Exec format error"]),
        ("without its interpreter", Io, &["interpreter that it names is missing"]),
        ("without a library", Unsupported, &["status 127", "libLLVM.so"]),
        ("killed", OutOfResources, &["signal 9"]),
        ("a link to nothing", Io, &["the link is broken"]),
    ] {
        let _ = fs::remove_file(&clang);
        broken(what);
        let error = assert_error(block_on(front_end.tools()), kind, words);
        let text = error.to_string();
        assert!(text.contains(&format!("`{}`: ", clang.display())), "{what}: {text}");
        assert!(!text.contains("neither was found"), "{what}: {text}");
        assert!(!error.is_deterministic(), "{what}: the cause may be removed");
    }
    fs::remove_file(&clang).expect("it exists");
    folder.clang("clang", 15, "");
    folder.llvm_spirv("llvm-spirv", 15, "");
    block_on(front_end.tools()).expect("they work now");
}

#[test]
fn compilers_that_cannot_be_run_are_skipped() {
    let (broken, working) = (Folder::new(), Folder::new());
    scripts::place_bytes(&broken.file("clang"), b"\x7fELF");
    let clang = working.clang("clang", 15, "");
    working.llvm_spirv("llvm-spirv", 15, "");
    let path = std::env::join_paths([broken.path(), working.path()]).expect("they are plain");
    let front_end = FrontEnd::new_in(None, None, |name| (name == "PATH").then(|| path.clone()));
    let tools =
        front_end.and_then(|front_end| block_on(front_end.tools()).cloned()).expect("it exists");
    assert_eq!(tools.clang.path, clang);
}

#[test]
fn files_that_are_not_compilers_are_skipped() {
    let folder = Folder::new();
    fs::create_dir(folder.file("clang")).expect("there is disk space");
    fs::write(folder.file("clang-18"), "no script").expect("there is disk space");
    folder.program("clang-17", "exit 3");
    folder.program("clang-16", "echo 'some other program, version 1'");
    folder.clang("clang-15", 15, "");
    folder.llvm_spirv("llvm-spirv-15", 15, "");
    assert_eq!(folder.found().expect("there is one").clang.path, folder.file("clang-15"));
}

#[test]
fn a_bad_path_is_an_error_that_names_its_variable() {
    let folder = Folder::new();
    for variable in ["KILN_CLANG", "KILN_LLVM_SPIRV"] {
        let missing = folder.file("nothing");
        let result = folder.front_end(&[(variable, &missing)]);
        assert_error(result, ErrorKind::Configuration, &[variable, "nothing"]);
        let other = folder.program("other", "echo other 1.0");
        let front_end = folder.front_end(&[(variable, &other)]).expect("it is a program");
        assert_error(block_on(front_end.tools()), ErrorKind::Configuration, &[variable, "other"]);
    }
}

#[test]
fn chosen_paths_may_have_any_name() {
    let folder = Folder::new();
    folder.clang("clang", 15, "");
    folder.llvm_spirv("llvm-spirv", 15, "");
    let clang = folder.clang("first", 16, "");
    let llvm_spirv = folder.llvm_spirv("second", 16, "");
    let chosen = [("KILN_CLANG", &*clang), ("KILN_LLVM_SPIRV", &*llvm_spirv)];
    let front_end = folder.front_end(&chosen).expect("they are programs");
    assert_eq!(block_on(front_end.tools()).expect("they fit").clang.path, clang);
    let unequal = folder.clang("third", 14, "");
    let chosen = [("KILN_CLANG", &*unequal), ("KILN_LLVM_SPIRV", &*llvm_spirv)];
    let front_end = folder.front_end(&chosen).expect("they are programs");
    assert_error(
        block_on(front_end.tools()),
        ErrorKind::Configuration,
        &["KILN_CLANG", "KILN_LLVM_SPIRV"],
    );
}

#[test]
fn compilers_are_searched_until_found_and_then_remembered() {
    let folder = Folder::new();
    let front_end = folder.front_end(&[]).expect("nothing is chosen");
    assert!(block_on(front_end.tools()).is_err());
    let count = format!("echo 1 >> {}", folder.file("probes").display());
    folder.program("clang", &format!("{count}; echo clang version 15.0"));
    folder.llvm_spirv("llvm-spirv", 15, "");
    for _ in 0..3 {
        block_on(front_end.tools()).expect("they exist now");
    }
    assert_eq!(folder.lines("probes"), 1);
}

// ---- Translating --------------------------------------------------------------------------------

#[test]
fn the_output_of_the_compilers_is_the_module() {
    let folder = Folder::new();
    let warn = "echo 'a warning' >&2; cat";
    let translated = folder.translate(warn, MODULE).expect("it is SPIR-V");
    assert_eq!(translated.module.kernels(), ["saxpy"]);
    assert_eq!(translated.log, "a warning\n".repeat(2), "clang runs twice");
}

#[test]
fn the_text_and_the_intermediate_code_are_passed_unchanged() {
    let folder = Folder::new();
    let keep = |name: &str| format!("tee {}", folder.file(name).display());
    folder.translate(&keep("text"), &format!("{} > /dev/null; {MODULE}", keep("code"))).expect("");
    for name in ["text", "code"] {
        assert_eq!(fs::read(folder.file(name)).expect("it exists"), b"kernel void k() {}");
    }
}

#[test]
fn refused_texts_are_compiled_once_and_reported_with_the_log() {
    let folder = Folder::new();
    let script = format!(
        "echo 1 >> {}; echo '<stdin>:1:2: error: no' >&2; exit 1",
        folder.file("runs").display()
    );
    let words = ["rejected the text", "clang version 15.0.6"];
    let error = assert_error(folder.translate(&script, ""), ErrorKind::BuildFailed, &words);
    assert_eq!(error.build_log(), Some("<stdin>:1:2: error: no\n"));
    assert_eq!(folder.lines("runs"), 1);
}

#[test]
fn a_compiler_that_crashes_is_an_error_with_its_log() {
    let folder = Folder::new();
    let crash = "echo 'Stack dump:' >&2; kill -SEGV $$";
    let words = ["crashed on the text", "signal 11", "Stack dump:"];
    let error = assert_error(folder.translate(crash, ""), ErrorKind::BuildFailed, &words);
    assert!(error.is_deterministic());
    let words = ["could not translate", "signal 11", "llvm-spirv", "Stack dump:"];
    assert_error(folder.translate("cat", crash), ErrorKind::BuildFailed, &words);
    assert_error(folder.translate("exit 70", ""), ErrorKind::BuildFailed, &["status 70"]);
}

#[test]
fn compilers_that_run_out_of_memory_may_be_retried() {
    let folder = Folder::new();
    for script in [
        "kill -KILL $$",
        "echo 'LLVM ERROR: out of memory' >&2; exit 1",
        "echo 'error: unable to open output file: Input/output error' >&2; exit 1",
        "echo 'LLVM ERROR: IO failure on output stream: File too large' >&2; exit 1",
        "echo 'LLVM ERROR: IO failure on output stream: No space left on device' >&2; exit 1",
    ] {
        let error = assert_error(folder.translate(script, ""), ErrorKind::OutOfResources, &[]);
        assert!(!error.is_deterministic());
    }
    for signal in ["TERM", "XFSZ", "XCPU"] {
        let script = format!("kill -{signal} $$");
        let error = assert_error(folder.translate(&script, ""), ErrorKind::Io, &["it was stopped"]);
        assert!(!error.is_deterministic());
    }
}

#[test]
fn compilers_that_fail_without_a_log_may_be_retried() {
    let folder = Folder::new();
    let words = ["without a message", "free memory"];
    let error = assert_error(folder.translate("exit 1", ""), ErrorKind::Io, &words);
    assert!(!error.is_deterministic());
}

#[test]
fn compilers_that_time_out_may_be_retried() {
    let folder = Folder::new();
    let result = folder.translate_within("exec sleep 600", "", Duration::from_millis(100));
    let error = assert_error(result, ErrorKind::Driver, &["did not end within 0.1 s"]);
    assert!(!error.is_deterministic());
}

#[test]
fn invalid_or_empty_output_is_an_error() {
    let folder = Folder::new();
    // A tool that writes nothing has not done its work.
    let error = assert_error(folder.translate("cat", ""), ErrorKind::Io, &["wrote nothing"]);
    assert!(!error.is_deterministic());
    for script in ["echo garbage", &format!("{MODULE} | head -c 200")] {
        let words = ["did not write usable SPIR-V"];
        let error = assert_error(folder.translate("cat", script), ErrorKind::BuildFailed, &words);
        assert!(std::error::Error::source(&error).is_some(), "{error:?}");
    }
}

#[test]
fn refused_optimised_code_is_translated_with_less_optimisation() {
    let folder = Folder::new();
    let runs = format!("echo \"$*\" >> {}", folder.file("runs").display());
    let picky = format!("case \"$*\" in *mem2reg*) {MODULE};; *) echo 'i3' >&2; exit 6;; esac");
    folder.translate(&format!("{runs}; cat"), &picky).expect("the third strategy works");
    let runs = fs::read_to_string(folder.file("runs")).expect("it was run");
    let runs: Vec<_> = runs.lines().collect();
    let levels: Vec<_> = runs.iter().map(|run| run.contains(" -O2 ")).collect();
    // The second strategy takes one more run.
    assert_eq!(levels, [true, true, true, true, true, false, false], "{runs:?}");
}

#[test]
fn kernels_are_translated_alone_if_the_others_are_refused() {
    let folder = Folder::new();
    // Preprocesses without changes, and refuses a text with a word.
    let text = folder.file("text");
    let script = format!(
        "cat > {0}\ncase \" $* \" in *\" -E \"*) ;; *) grep -q unknown {0} && {{ echo no >&2; exit 1; }};; \
         esac\ncat {0}",
        text.display()
    );
    folder.clang("clang", 15, &script);
    folder.llvm_spirv("llvm-spirv", 15, MODULE);
    let tools = folder.found().expect("they exist");
    let source = b"kernel void bad() { unknown(); } kernel void good() {}";
    let translation = || Translation::new(&tools, LIMIT, "", &device()).expect("no options");
    let error = translation().run(source).expect_err("a function is unknown");
    assert_eq!(error.kind(), ErrorKind::BuildFailed);
    let only = |name: &str| translation().limited_to([name.to_owned()].into());
    only("good").run(source).expect("the kernel itself is valid");
    assert_error(only("bad").run(source), ErrorKind::BuildFailed, &["rejected the text"]);
    assert_ne!(only("good").fields(), translation().fields());
}

#[test]
fn compilers_get_a_minimal_environment() {
    let folder = Folder::new();
    let translated = folder.translate("env >&2; cat", MODULE).expect("it is SPIR-V");
    let expected = ["PATH", "TMPDIR", "LD_LIBRARY_PATH", "LC_ALL"];
    let shell = ["PWD", "OLDPWD", "SHLVL", "_"];
    for line in translated.log.lines() {
        let name = line.split('=').next().unwrap_or_default();
        assert!(expected.contains(&name) || shell.contains(&name), "{line}");
    }
    assert!(translated.log.contains("PATH="));
}

#[test]
fn removed_compilers_may_be_retried() {
    let folder = Folder::new();
    folder.clang("clang", 15, "");
    folder.llvm_spirv("llvm-spirv", 15, "");
    let tools = folder.found().expect("they exist");
    fs::remove_file(folder.file("clang")).expect("it existed");
    let translation = Translation::new(&tools, LIMIT, "", &device()).expect("no options");
    let error = assert_error(translation.run(b""), ErrorKind::Io, &["cannot be started"]);
    assert!(!error.is_deterministic());
}

// ---- Arguments of the compilers ----------------------------------------------------------------

fn arguments(options: &str, device: &DeviceInfo) -> String {
    let folder = Folder::new();
    folder.clang("clang", 15, "");
    folder.llvm_spirv("llvm-spirv", 15, "");
    let tools = folder.found().expect("they exist");
    let translation = Translation::new(&tools, LIMIT, options, device).expect("understood");
    let fields = translation.fields();
    let field = |name: &str| fields.iter().find(|(known, _)| *known == name).expect("it exists");
    format!("{} spirv:{}", field("arguments").1, field("spirv version").1)
}

#[test]
fn predefined_macros_describe_the_device() {
    let passed = arguments("", &device());
    for argument in [
        "-cl-std=CL1.2 ",
        "--target=spir64 ",
        "-D__OPENCL_VERSION__=300 ",
        "-U__IMAGE_SUPPORT__ ",
        "-Xclang -cl-ext=-all,+cl_khr_fp64 ",
        "-Dcl_khr_fp64=1 ",
        "spirv:1.1",
    ] {
        assert!(passed.contains(argument), "no `{argument}` in {passed}");
    }
    assert!(!passed.contains("bad,name") && !passed.contains("__opencl_c_fp64"), "{passed}");
    let passed = arguments("-cl-std=CL3.0", &device());
    assert!(passed.contains("+__opencl_c_fp64 "), "{passed}");
    let mut small = device();
    small.limits.address_bits = 32;
    (small.images, small.il_version) = (true, String::new());
    let passed = arguments("", &small);
    assert!(passed.contains("--target=spir ") && passed.contains("spirv:1.2"), "{passed}");
    assert!(!passed.contains("__IMAGE_SUPPORT__"), "{passed}");
}

#[test]
fn include_directories_are_not_part_of_the_key() {
    assert_eq!(arguments("-I somewhere -DA", &device()), arguments("-I elsewhere -DA", &device()));
    assert_ne!(arguments("-DA", &device()), arguments("-DB", &device()));
}
