//! Builds touch files only on threads for that: not on the thread that requests them, not on the threads that run
//! tasks, and not on the threads for driver calls, where a slow file system would delay other work.
//!
//! `strace` records the system calls of a process that builds cold programs and loads stored ones.

#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures::executor::block_on;
use futures::future::join_all;
use kiln::build::Origin;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, Module, Runtime};
use support::children::{Child, report, this_binary, variable};
use support::test_name;
use support::tools;
use tempfile::TempDir;

/// Environment variable with the directory of the child's files.
const DIRECTORY: &str = "KILN_TEST_DIRECTORY";

/// Number of programs.
const PROGRAMS: usize = 5;

/// Calls to trace: those that may wait for a file system, and the one that names a thread. `close` is left out,
/// because a file is closed wherever its last handle is dropped.
const CALLS: &str = "trace=%file,read,pread64,write,writev,pwrite64,fsync,fdatasync,ftruncate,\
                     getdents64,flock,prctl";

/// Beginning of the names of the threads that may access files: those of `async-fs`.
const FILE_THREADS: &str = "blocking-";

/// Files of a build, all below one directory.
struct Files {
    cache: PathBuf,
    include: PathBuf,
    trace: PathBuf,
}

impl Files {
    fn below(directory: &Path) -> Self {
        Self {
            cache: directory.join("cache"),
            include: directory.join("include"),
            trace: directory.join("lookups"),
        }
    }

    /// Writes the included files.
    fn create(directory: &TempDir) -> Self {
        let files = Self::below(directory.path());
        fs::create_dir(&files.include).expect("there is room");
        let write = |name, text| fs::write(files.include.join(name), text).expect("there is room");
        write("scale.h", "#include \"factor.h\"\n");
        write("factor.h", "#define FACTOR 2.0f\n");
        files
    }

    /// Returns the kinds of files and their paths.
    fn kinds(&self) -> [(&'static str, &Path); 3] {
        [("cache", &self.cache), ("included file", &self.include), ("trace", &self.trace)]
    }
}

/// Builds the programs, and loads them in another runtime.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn child() {
    let files = Files::below(Path::new(&variable(DIRECTORY)));
    let options = format!("-I {}", files.include.display());
    block_on(async {
        let simulator = Simulator::immediate();
        for origin in [Origin::Compiled, Origin::Disk] {
            let cache = CacheConfig::at(&files.cache);
            let builder = Runtime::builder().simulator(&simulator).cache(cache);
            let rt = builder.build().await.expect("it starts");
            let build = |number| {
                let text =
                    format!("#include \"scale.h\"\nkernel void f{number}(global float *x) {{}}");
                rt.build(&Module::opencl_c(text)).options(&options).start()
            };
            for program in join_all((0..PROGRAMS).map(build)).await {
                assert_eq!(program.expect("it builds").origin(), origin);
            }
            rt.drain().await;
        }
    });
    report("programs", 2 * PROGRAMS);
}

/// A system call in a trace.
struct Call<'a> {
    /// Name of the thread; `main` for the first one.
    thread: &'a str,
    name: &'a str,
    line: &'a str,
}

fn is_for_files(thread: &str) -> bool {
    thread.starts_with(FILE_THREADS)
}

/// Returns the system calls of a trace, without those that name a thread.
fn parse(trace: &str) -> Vec<Call<'_>> {
    let mut threads = HashMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let Some((id, rest)) = line.split_once(' ') else { continue };
        if threads.is_empty() {
            threads.insert(id, "main");
        }
        // Ends of calls, signals and ends of threads have other forms.
        let Some((name, arguments)) = rest.trim_start().split_once('(') else { continue };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            continue;
        }
        if name == "prctl" {
            if let Some(given) = arguments.strip_prefix("PR_SET_NAME, \"") {
                threads.insert(id, given.split('"').next().unwrap_or(given));
            }
            continue;
        }
        calls.push(Call { thread: threads.get(id).unwrap_or(&"without a name"), name, line });
    }
    calls
}

#[test]
fn builds_touch_files_on_threads_for_files_only() {
    if !tools::has_tool("strace", &["strace", "-o", "/dev/null", "true"]) {
        return;
    }
    let directory = tempfile::tempdir().expect("there is room");
    let files = Files::create(&directory);
    let log = directory.path().join("strace");
    let mut strace = Command::new("strace");
    // Names of threads have at most 15 bytes. Contents of files are cut, so that no path occurs in them.
    strace.args(["-f", "-y", "-s", "16", "-e", CALLS, "-o"]).arg(&log).arg(this_binary());
    let variables = [(DIRECTORY, directory.path()), ("KILN_CACHE_TRACE", &files.trace)];
    let report = Child::start_from(strace, &test_name!("child"), variables).report();
    assert_eq!(report["programs"], 2 * PROGRAMS as u64);

    let trace = fs::read_to_string(&log).expect("it was written");
    let calls = parse(&trace);
    // Calls on other threads: their number and the first of them, by thread, kind of file and call.
    let mut misplaced = BTreeMap::new();
    for (kind, path) in files.kinds() {
        let path = path.to_str().expect("it is Unicode");
        let mut seen = calls.iter().filter(|call| call.line.contains(path)).peekable();
        assert!(seen.peek().is_some(), "no call with a {kind} was traced: {trace}");
        for call in seen.filter(|call| !is_for_files(call.thread)) {
            let first = misplaced.entry((call.thread, kind, call.name)).or_insert((0, call.line));
            first.0 += 1;
        }
    }
    let lines: Vec<_> = misplaced
        .iter()
        .map(|((thread, kind, name), (count, first))| {
            format!("{thread}: {kind}: {count} times {name}, such as {first}")
        })
        .collect();
    assert!(lines.is_empty(), "calls on threads that are not for files:\n{}", lines.join("\n"));
}
