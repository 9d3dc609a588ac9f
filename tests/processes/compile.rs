//! Compile processes: programs, keys and errors are those of threads, whatever happens to the processes, and no
//! process remains.
//!
//! The processes run the tool `kiln`, started by a script that records their numbers.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::print_stderr, reason = "a log states what was killed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{Either, join_all, select};
use kiln::build::{CompileProcesses, Origin};
use kiln::{CacheConfig, ErrorKind, Module, Program, Runtime, RuntimeBuilder};
use rustix::process::{Pid, Signal, kill_process};
use support::children::{Child, DEVICE, report, sum, variable};
use support::scripts;
use support::test_name;
use support::{SAXPY, assert_computes, builder, on_a_device_with, on_each_device_with, tier};
use tempfile::TempDir;

const SAXPY_SPIRV: &[u8] = include_bytes!("../data/saxpy.spv");

/// Environment variable with the directory that a child of a test uses.
const FOLDER: &str = "KILN_TEST_FOLDER";

/// Number of programs that starts a process.
const ENOUGH: usize = 24;

/// Time limit of a compile in tests that stop processes.
const LIMIT: Duration = Duration::from_secs(10);

/// Time limit of a compile in the other tests, which no busy machine exceeds.
const LONG: Duration = Duration::from_secs(300);

/// A directory with the script that starts the tool.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(directory: &Path) -> Self {
        let folder = Self(directory.to_owned());
        folder.place(&format!("exec {}", env!("CARGO_BIN_EXE_kiln")));
        folder
    }

    /// Replaces the script.
    fn place(&self, script: &str) {
        let started = self.0.join("started");
        scripts::place(&self.script(), &format!("echo $$ >> {}\n{script}", started.display()));
    }

    fn script(&self) -> PathBuf {
        self.0.join("child")
    }

    /// Returns the processes that were started, the last one last.
    fn started(&self) -> Vec<Pid> {
        let lines = fs::read_to_string(self.0.join("started")).unwrap_or_default();
        lines.lines().map(|line| Pid::from_raw(line.parse().unwrap()).unwrap()).collect()
    }

    fn last(&self) -> Pid {
        *self.started().last().expect("a process was started")
    }

    pub(crate) fn builder(&self, number: usize) -> RuntimeBuilder {
        builder().build_child(self.script()).compile_processes(number)
    }

    /// Waits until none of the processes exists, not even as a zombie.
    #[track_caller]
    fn wait_until_all_are_gone(&self) {
        let started = self.started();
        assert!(!started.is_empty());
        wait_until("the processes end", || {
            started
                .iter()
                .all(|pid| !Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists())
        });
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < Duration::from_secs(60), "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a test on each device, and on one in the fast tier, with a number of processes.
fn on_each_device(number: usize, test: impl AsyncFn(Runtime, &Folder)) {
    on_each_device_within(LONG, number, test);
}

/// Like [`on_each_device`], with a time limit of a compile.
fn on_each_device_within(limit: Duration, number: usize, test: impl AsyncFn(Runtime, &Folder)) {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::new(directory.path());
    let builder = || {
        let _ = fs::remove_file(folder.0.join("started"));
        folder.place(&format!("exec {}", env!("CARGO_BIN_EXE_kiln")));
        folder.builder(number).build_child_limit(limit)
    };
    smol::block_on(on_a_device_with(builder, async |rt| test(rt, &folder).await));
}

/// The working directory is gone, or has a name that is not text, so that a process cannot be told about it.
#[test]
fn programs_are_compiled_from_any_directory() {
    use std::os::unix::ffi::OsStringExt as _;
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::new(directory.path());
    for (name, is_removed) in [(b"gone".to_vec(), true), (b"\xff\xfe".to_vec(), false)] {
        let working = directory.path().join(std::ffi::OsString::from_vec(name));
        fs::create_dir(&working).unwrap();
        let mut command = std::process::Command::new(support::children::this_binary());
        command.current_dir(&working);
        let variables =
            [(FOLDER, folder.0.to_str().unwrap()), (REMOVED, if is_removed { "1" } else { "" })];
        let report =
            Child::start_from(command, &test_name!("from_its_directory"), variables).report();
        assert_eq!(report["built"], ENOUGH as u64);
    }
}

/// Environment variable that tells a child to remove its working directory.
const REMOVED: &str = "KILN_TEST_REMOVED";

#[test]
#[ignore = "another test runs it"]
fn from_its_directory() {
    let folder = Folder(PathBuf::from(variable(FOLDER)));
    if !variable(REMOVED).is_empty() {
        fs::remove_dir(std::env::current_dir().unwrap()).unwrap();
    }
    smol::block_on(on_a_device_with(
        || folder.builder(2),
        async |rt| {
            let builds = (0..ENOUGH).map(|_| rt.build(&unique()).start());
            let built = join_all(builds).await.into_iter().map(Result::unwrap).count();
            report("built", built as u64);
        },
    ));
}

/// Returns a small program that no other call returns.
pub(crate) fn unique() -> Module {
    let number = fastrand::u64(..);
    Module::opencl_c(format!(
        "kernel void k(global ulong *x) {{ x[get_global_id(0)] = {number}ul; }}"
    ))
}

/// Builds programs until a process compiles.
pub(crate) async fn warm_up(rt: &Runtime) {
    let builds = (0..ENOUGH).map(|_| rt.build(&unique()).start());
    for built in join_all(builds).await {
        built.unwrap();
    }
    for _ in 0..600 {
        let before = rt.stats().builds.process_compiles;
        rt.build(&unique()).await.unwrap();
        if rt.stats().builds.process_compiles > before {
            return;
        }
        smol::Timer::after(Duration::from_millis(100)).await;
    }
    panic!("no process compiles: {:?}", rt.stats());
}

/// Creates a runtime with threads only, for the same device.
async fn with_threads(rt: &Runtime) -> Runtime {
    let device = format!("{}:{}", rt.device().backend, rt.device().index());
    builder().device(device).build().await.unwrap()
}

// ---- Programs and errors ------------------------------------------------------------------------

#[test]
fn programs_and_keys_are_those_of_threads() {
    on_each_device(1, async |rt, folder| {
        warm_up(&rt).await;
        let threads = with_threads(&rt).await;
        let source = Module::opencl_c(SAXPY.replace("saxpy", "NAME"));
        for (module, options) in
            [(source, "-D NAME=saxpy"), (Module::spirv(SAXPY_SPIRV).unwrap(), "")]
        {
            let before = rt.stats();
            let program = rt.build(&module).options(options).await.unwrap();
            assert_eq!(rt.stats().builds.process_compiles, before.builds.process_compiles + 1);
            assert_eq!(rt.stats().builds.compiles, before.builds.compiles + 1);
            assert_eq!(program.origin(), Origin::Compiled);
            assert_computes(&rt, &program).await;
            let expected = threads.build(&module).options(options).await.unwrap();
            assert_eq!(program.key(), expected.key());
            assert_eq!(program.build_log(), expected.build_log());
            // SAFETY: it is not launched.
            let params = |program: &Program| unsafe {
                program.kernel("saxpy").unwrap().params().unwrap().to_vec()
            };
            assert_eq!(params(&program), params(&expected));
        }
        assert_eq!((folder.started().len(), rt.stats().builds.compile_processes), (1, 1));
        assert_eq!(
            (rt.stats().builds.child_processes, threads.stats().builds.process_compiles),
            (0, 0)
        );
    });
}

#[test]
fn errors_and_logs_are_those_of_threads() {
    on_each_device(1, async |rt, folder| {
        warm_up(&rt).await;
        let threads = with_threads(&rt).await;
        let before = rt.stats().builds.process_compiles;
        let broken = Module::opencl_c("kernel void broken() { undeclared_name = 1; }");
        let error = rt.build(&broken).await.unwrap_err();
        let expected = threads.build(&broken).await.unwrap_err();
        assert_eq!(rt.stats().builds.process_compiles, before + 1);
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert_eq!(error.driver_code(), expected.driver_code());
        assert_eq!(error.is_deterministic(), expected.is_deterministic());
        assert_eq!(without_places(&error.to_string()), without_places(&expected.to_string()));
        assert!(rt.build(&broken).await.unwrap_err().same(&error), "it is kept");
        rt.build(&unique()).await.unwrap();
        assert_eq!((rt.stats().builds.process_compiles, folder.started().len()), (before + 2, 1));
    });
}

/// Removes the names of temporary files from PoCL's logs, and from Intel's the number of the text among those that
/// the process has compiled.
fn without_places(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !word.contains('/'));
    let words = words.map(|word| word.trim_start_matches(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn included_files_are_found() {
    on_each_device(1, async |rt, folder| {
        warm_up(&rt).await;
        fs::write(folder.0.join("scale.h"), "#define SCALE(a, x) ((a) * (x))\n").unwrap();
        let text = format!("#include \"scale.h\"\n{}", SAXPY.replace("a * x[i]", "SCALE(a, x[i])"));
        let before = rt.stats().builds.process_compiles;
        let options = format!("-I {}", folder.0.display());
        let program = rt.build(&Module::opencl_c(text)).options(&options).await.unwrap();
        assert_computes(&rt, &program).await;
        assert_eq!(rt.stats().builds.process_compiles, before + 1);
    });
}

#[test]
fn untrusted_modules_have_children_of_their_own() {
    on_each_device(1, async |rt, folder| {
        warm_up(&rt).await;
        let before = rt.stats();
        rt.build(&unique().untrusted()).await.unwrap();
        assert_eq!(rt.stats().builds.process_compiles, before.builds.process_compiles);
        assert_eq!((rt.stats().builds.child_processes, folder.started().len()), (1, 2));
    });
}

#[test]
fn a_few_builds_start_no_process_and_many_start_no_more_than_the_maximum() {
    on_each_device(2, async |rt, folder| {
        for _ in 0..4 {
            rt.build(&unique()).await.unwrap();
        }
        assert_eq!((rt.stats().builds.compile_processes, folder.started().len()), (0, 0));
        let builds = (0..3 * ENOUGH).map(|_| rt.build(&unique()).start());
        assert!(join_all(builds).await.iter().all(Result::is_ok));
        wait_until("both are ready", || rt.stats().builds.compile_processes == 2);
        assert_eq!(folder.started().len(), 2);
    });
}

// ---- Processes that fail ------------------------------------------------------------------------

#[test]
fn a_killed_process_is_replaced() {
    on_each_device(1, async |rt, folder| {
        for signal in [Signal::KILL, Signal::SEGV] {
            warm_up(&rt).await;
            let killed = folder.last();
            kill_process(killed, signal).unwrap();
            let builds = (0..ENOUGH).map(|_| rt.build(&unique()).start());
            for built in join_all(builds).await {
                built.unwrap();
            }
            let path = format!("/proc/{}", killed.as_raw_nonzero());
            wait_until("it is reaped", || !Path::new(&path).exists());
        }
        warm_up(&rt).await;
        assert!(folder.started().len() >= 3);
    });
}

#[test]
fn a_program_whose_process_is_killed_is_compiled_by_another() {
    on_each_device(1, async |rt, folder| {
        warm_up(&rt).await;
        let (before, first) = (rt.stats(), folder.last());
        // The process does not take the request, so that it is certain to be killed with it.
        kill_process(first, Signal::STOP).unwrap();
        let build = rt.build(&unique()).start();
        smol::Timer::after(Duration::from_millis(300)).await;
        kill_process(first, Signal::KILL).unwrap();
        build.await.unwrap();
        assert_eq!(rt.stats().builds.process_compiles, before.builds.process_compiles + 1);
        assert_eq!(folder.started().len(), 2);
    });
}

#[test]
fn a_program_whose_process_is_stopped_is_compiled_by_another() {
    // The build does not wait for the time limit of a compile.
    let [limit, patience] = [3600, 60].map(Duration::from_secs);
    on_each_device_within(limit, 1, async |rt, folder| {
        warm_up(&rt).await;
        kill_process(folder.last(), Signal::STOP).unwrap();
        let build = rt.build(&unique()).start();
        // Threads compile meanwhile.
        rt.build(&unique()).await.unwrap();
        let is_late = async { smol::Timer::after(patience).await };
        match select(pin!(build), pin!(is_late)).await {
            Either::Left((built, _)) => drop(built.unwrap()),
            Either::Right(_) => panic!("the build waits for a process that has been stopped"),
        }
        assert_eq!(folder.started().len(), 2);
    });
}

#[test]
fn a_program_that_no_process_compiles_in_time_fails_alone() {
    on_each_device_within(LIMIT, 1, async |rt, folder| {
        warm_up(&rt).await;
        folder.place("sleep 1000");
        kill_process(folder.last(), Signal::STOP).unwrap();
        let module = unique();
        let error = rt.build(&module).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
        assert!(error.to_string().contains("stopped by a signal"), "{error}");
        assert!(!error.is_deterministic());
        // Threads compile this program and others from now on.
        rt.build(&module).await.unwrap();
        let builds = (0..ENOUGH).map(|_| rt.build(&unique()).start());
        for built in join_all(builds).await {
            built.unwrap();
        }
    });
}

#[test]
fn a_compiler_that_never_ends_is_killed() {
    const HANGS: &str = "kernel void hang(global uchar4 *out) {
        size_t i = get_global_id(0);
        uchar4 v = (uchar4)((uchar)i); if (i > 1) v = v * (uchar)5 ^ v; out[i] = v.x; }";
    on_each_device_within(LIMIT, 1, async |rt, _| {
        if !rt.device().platform.contains("Intel") || rt.device().backend != "opencl" {
            return;
        }
        warm_up(&rt).await;
        let build = rt.build(&Module::opencl_c(HANGS)).start();
        rt.build(&unique()).await.unwrap();
        // A later version of the driver may compile it.
        if let Err(error) = build.await {
            assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
        }
        warm_up(&rt).await;
    });
}

#[test]
fn without_a_working_program_threads_compile() {
    let scripts = vec!["exit 3", "echo hello", "cat > /dev/null", "kill -KILL $$"];
    for script in tier::sample(scripts, 2) {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::new(directory.path());
        folder.place(script);
        let builder = || folder.builder(2).build_child_limit(Duration::from_secs(1));
        smol::block_on(on_a_device_with(builder, async |rt| {
            let builds = (0..2 * ENOUGH).map(|_| rt.build(&unique()).start());
            for built in join_all(builds).await {
                built.unwrap();
            }
            assert_eq!(
                (rt.stats().builds.compile_processes, rt.stats().builds.process_compiles),
                (0, 0)
            );
        }));
        folder.wait_until_all_are_gone();
    }
}

#[test]
fn processes_without_resources_lose_no_program() {
    let limits = [
        "ulimit -n 16",     // open files
        "ulimit -v 400000", // address space in KiB
        "ulimit -t 1",      // seconds of processors, after which a signal ends the process
        "ulimit -f 0",      // size of written files
        "ulimit -u 1",      // threads
    ];
    for limit in tier::sample(limits.to_vec(), 2) {
        on_each_device_within(LIMIT, 2, async |rt, folder| {
            let tool = env!("CARGO_BIN_EXE_kiln");
            folder.place(&format!("{limit}\nexec {tool}"));
            let modules: Vec<_> = (0..2 * ENOUGH).map(|_| unique()).collect();
            let builds: Vec<_> = modules.iter().map(|module| rt.build(module).start()).collect();
            let mut failed = Vec::new();
            for (module, built) in modules.iter().zip(join_all(builds).await) {
                if let Err(error) = built {
                    assert!(!error.is_deterministic(), "{limit}: {error}");
                    failed.push(module);
                }
            }
            eprintln!("{limit}: {} started, {} failed", folder.started().len(), failed.len());
            // With resources, everything is compiled.
            folder.place(&format!("exec {tool}"));
            for pid in folder.started() {
                let _ = kill_process(pid, Signal::KILL);
            }
            for module in failed {
                rt.build(module).await.unwrap();
            }
            let program = rt.build(&Module::opencl_c(SAXPY)).await.unwrap();
            assert_computes(&rt, &program).await;
            drop((program, rt));
            folder.wait_until_all_are_gone();
        });
    }
}

/// Returns the niceness of a process.
fn niceness(pid: Pid) -> i64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    // The nineteenth field; the second one ends with the last parenthesis.
    let fields = stat.rsplit(") ").next().unwrap();
    fields.split(' ').nth(16).unwrap().parse().unwrap()
}

#[test]
fn processes_have_the_niceness_that_is_set() {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::new(directory.path());
    let own = niceness(rustix::process::getpid());
    for nice in [0, 7] {
        let builder = || folder.builder(1).compile_niceness(nice);
        smol::block_on(on_each_device_with(builder, async |rt| {
            warm_up(&rt).await;
            assert_eq!(niceness(folder.last()), (own + i64::from(nice)).min(19));
        }));
    }
}

// ---- Ends ---------------------------------------------------------------------------------------

#[test]
fn processes_end_with_their_runtime() {
    on_each_device(2, async |rt, folder| {
        warm_up(&rt).await;
        drop(rt);
        folder.wait_until_all_are_gone();
    });
}

#[test]
#[ignore = "run by another test"]
fn child_that_is_killed() {
    let folder = Folder(PathBuf::from(variable(FOLDER)));
    block_on(async {
        let rt = folder.builder(1).build().await.unwrap();
        warm_up(&rt).await;
        fs::write(folder.0.join("ready"), "").unwrap();
        std::future::pending::<()>().await;
    });
}

#[test]
fn processes_end_with_an_application_that_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::new(directory.path());
    let child = Child::start(&test_name!("child_that_is_killed"), [(FOLDER, directory.path())]);
    wait_until("it is ready", || folder.0.join("ready").exists());
    // A stopped process ends as well.
    kill_process(folder.last(), Signal::STOP).unwrap();
    drop(child);
    folder.wait_until_all_are_gone();
}

/// Returns the number of open files, once it does not change any more.
fn open_files() -> usize {
    let count = || fs::read_dir("/proc/self/fd").unwrap().count();
    let mut last = count();
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(100));
        let now = count();
        if now == last {
            return now;
        }
        last = now;
    }
    last
}

/// Returns the number of child processes of this process, zombies included.
fn child_processes() -> usize {
    let is_child = |stat: &str| {
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        fields.split(' ').nth(1) == Some(&std::process::id().to_string())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter(|stat| is_child(stat)).count()
}

#[test]
#[ignore = "run by another test"]
fn child_whose_processes_are_killed_at_random() {
    let folder = Folder(PathBuf::from(variable(FOLDER)));
    let count = tier::cases("KILN_TEST_MODULES", 60, 40);
    let builder = || folder.builder(2).device(variable(DEVICE)).build_child_limit(LIMIT);
    let start = || block_on(builder().build()).unwrap();
    // The driver opens files of its own.
    block_on(start().build(&unique()).start()).unwrap();
    let before = open_files();
    let rt = start();
    let builds: Vec<_> = (0..count).map(|_| rt.build(&unique()).start()).collect();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let failed = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(std::sync::atomic::Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(fastrand::u64(..1500)));
                let all = folder.started();
                if let Some(&pid) = fastrand::choice(&all[all.len().saturating_sub(2)..]) {
                    let signal = fastrand::choice([Signal::KILL, Signal::STOP]).unwrap();
                    let _ = kill_process(pid, signal);
                }
            }
        });
        let outcomes = block_on(join_all(builds));
        is_done.store(true, std::sync::atomic::Ordering::SeqCst);
        outcomes.into_iter().filter_map(Result::err).collect::<Vec<_>>()
    });
    // A program may be hit twice: then it fails with an error that does not last.
    eprintln!("{} processes, errors: {failed:?}", folder.started().len());
    assert!(failed.iter().all(|error| !error.is_deterministic()));
    drop(rt);
    folder.wait_until_all_are_gone();
    wait_until("the worker threads end", || open_files() <= before);
    assert_eq!(child_processes(), 0);
    report("failed", failed.len());
    report("started", folder.started().len());
}

#[test]
fn killed_and_stopped_processes_leave_neither_files_nor_zombies() {
    on_each_device(0, async |rt, folder| {
        let device = rt.device().index().to_string();
        let variables = [(FOLDER, folder.0.as_os_str()), (DEVICE, device.as_ref())];
        let child =
            Child::start(&test_name!("child_whose_processes_are_killed_at_random"), variables);
        assert!(child.report()["started"] > 0);
    });
}

// ---- Several applications -----------------------------------------------------------------------

/// Number of programs that each application of a stampede requests.
const PROGRAMS: usize = 24;

#[test]
#[ignore = "run by another test"]
fn child_of_a_stampede() {
    let folder = Folder(PathBuf::from(variable(FOLDER)));
    let cache = CacheConfig::at(folder.0.join("cache"));
    block_on(async {
        let rt = folder.builder(1).cache(cache).build().await.unwrap();
        let module = |number: usize| {
            Module::opencl_c(format!(
                "kernel void k(global uint *x) {{ x[get_global_id(0)] = {number}; }}"
            ))
        };
        let builds = (0..PROGRAMS).map(|number| rt.build(&module(number)).start());
        assert!(join_all(builds).await.iter().all(Result::is_ok));
        rt.drain().await;
        report("compiles", rt.stats().builds.compiles);
    });
}

#[test]
fn applications_with_compile_processes_compile_each_program_once() {
    let directory: TempDir = tempfile::tempdir().unwrap();
    let _folder = Folder::new(directory.path());
    let start = |_| Child::start(&test_name!("child_of_a_stampede"), [(FOLDER, directory.path())]);
    let children: Vec<_> = (0..8).map(start).collect();
    let reports: Vec<_> = children.into_iter().map(Child::report).collect();
    assert_eq!(sum(&reports, "compiles"), PROGRAMS as u64);
}

#[test]
#[ignore = "run by another test"]
fn child_with_an_invalid_variable() {
    let error = block_on(builder().build()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    let text = error.to_string();
    assert!(text.contains("KILN_COMPILE_PROCESSES") && text.contains("`many`"), "{text}");
    block_on(builder().compile_processes(CompileProcesses::Off).build()).unwrap();
    report("refused", 1);
}

#[test]
fn an_invalid_variable_is_an_error_that_names_it() {
    Child::start(
        &test_name!("child_with_an_invalid_variable"),
        [("KILN_COMPILE_PROCESSES", "many")],
    )
    .report();
}
