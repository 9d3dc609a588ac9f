//! The store while the system fails: the process is killed at every system call of a put and of a collection,
//! every call fails in turn, and some places cannot store anything.
//!
//! `strace` injects the faults into a process that has one thing to do and waits for a start signal, so that
//! they affect only the store. Each call is killed, and fails in two ways that change from call to call; with
//! `KILN_FAULTS=all`, in every way.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "a log tells how many faults there were")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use futures::executor::block_on;
use kiln::CacheConfig;
use kiln::build::Origin;
use kiln::store::{EntryCheck, Store};
use support::processes;
use support::processes::{Ended, Order, Process, Report, Sample, Step, files, runtime};
use support::stores;
use support::test_name;
use support::tier;
use support::tools::has_tool;
use tempfile::TempDir;

/// Errors that a system call can return.
const ERRORS: [&str; 6] = ["ENOSPC", "EIO", "EDQUOT", "EMFILE", "EACCES", "EINTR"];

const PROGRAM: Sample = Sample { number: 100, bytes: 5000 };

/// Programs that are stored already, the least recently used first.
const OLD: [Sample; 4] = [
    Sample { number: 1, bytes: 5000 },
    Sample { number: 2, bytes: 5000 },
    Sample { number: 3, bytes: 5000 },
    Sample { number: 4, bytes: 5000 },
];

/// Number of system calls of a scenario that fail in the fast tier.
const FAST_CALLS: usize = 60;

/// Limit of two and a half programs, of which a collection leaves two.
const TWO_AND_A_HALF: u64 = 15_000;

#[test]
#[ignore = "is run by other tests, in a process of its own"]
fn child() {
    processes::run_order();
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory can be created")
}

/// Steps of a process with a store, and the store that it finds.
struct Scenario {
    found: TempDir,
    max_bytes: u64,
    strict: bool,
    steps: Vec<Step>,
    /// An entry that was damaged before, and may stay damaged.
    damaged: Option<PathBuf>,
    /// Whether to test lasting faults. They would make a collection in the background repeat.
    lasting: bool,
}

/// A system call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    name: String,
    /// Number of calls of that name in its thread so far.
    nth: usize,
    /// Result, such as the number of bytes written. 0 for those that do not return a number.
    result: usize,
}

/// Fault of a system call.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Error(&'static str),
    /// This call and all later ones of its name fail.
    Errors(&'static str),
    /// The call does nothing, and returns this number of bytes as written.
    Claim(usize),
}

/// Returns the number of warnings, without those of entries that are damaged.
fn failures_reported(report: &Report) -> usize {
    report.warnings.iter().filter(|warning| !warning.contains("are not used")).count()
}

impl Scenario {
    fn new(stored: &[Sample], steps: impl Into<Vec<Step>>) -> Self {
        let found = directory();
        block_on(store(found.path(), stored));
        Self {
            found,
            max_bytes: 0,
            strict: false,
            steps: steps.into(),
            damaged: None,
            lasting: true,
        }
    }

    fn order(&self, root: &Path) -> Order {
        Order {
            root: Some(root.to_owned()),
            max_bytes: self.max_bytes,
            strict: self.strict,
            steps: self.steps.clone(),
        }
    }

    /// Creates a store as the process should find it, with entries that were not used for a long time.
    fn prepare(&self) -> TempDir {
        let root = directory();
        copy(self.found.path(), root.path());
        let mut entries = stores::entries(&stores::open(root.path()));
        entries.sort_by_key(|entry| entry.path().to_owned());
        for (index, entry) in entries.iter().enumerate() {
            age(entry.path(), Duration::from_secs(36_000 + 60 * index as u64));
        }
        root
    }

    /// Returns the system calls that access the store, and starts of threads, in a run without faults.
    fn calls(&self) -> Vec<Call> {
        let root = self.prepare();
        let log = root.path().with_extension("log");
        let ended = Process::start(&test_name!("child"), &self.order(root.path()), &[], &[])
            .traced(&[], &log)
            .run();
        let report = ended.report.as_ref().unwrap_or_else(|| panic!("{ended:?}"));
        assert_eq!((report.disk_failures, failures_reported(report)), (0, 0), "{ended:?}");
        assert_eq!(report.evictions > 0, self.max_bytes > 0, "{ended:?}");
        let trace = fs::read_to_string(&log).expect("it was written");
        fs::remove_file(log).expect("it exists");
        let place = root.path().to_str().expect("it is Unicode");
        let mut counts = BTreeMap::new();
        let mut calls = BTreeSet::new();
        for (thread, call, line) in parse(&trace) {
            let count = counts.entry((thread, call)).or_insert(0);
            *count += 1;
            // The standard library checks that a file is open before it closes it, on any thread.
            let is_check = line.contains("F_GETFD");
            if (line.contains(place) && !is_check) || call == "clone3" {
                let result = line.rsplit("= ").next().and_then(|result| result.parse().ok());
                let result = result.unwrap_or_default();
                calls.insert(Call { name: call.to_owned(), nth: *count, result });
            }
        }
        calls.into_iter().collect()
    }

    /// Runs the process with a fault. Returns whether the fault occurred, and an error if something is wrong afterwards.
    fn run_with_fault(&self, call: &Call, fault: Fault) -> Result<bool, String> {
        let Call { name: call, nth, .. } = call;
        let root = self.prepare();
        let log = root.path().with_extension("log");
        let what = match fault {
            Fault::Kill => "signal=SIGKILL".to_owned(),
            Fault::Error(error) | Fault::Errors(error) => format!("error={error}"),
            Fault::Claim(bytes) => format!("retval={bytes}"),
        };
        let later = if matches!(fault, Fault::Errors(_)) { "+" } else { "" };
        let inject = format!("inject={call}:{what}:when={nth}{later}");
        let only = format!("trace={call}");
        let arguments = ["-e", &only, "-e", &inject];
        let process = Process::start(&test_name!("child"), &self.order(root.path()), &[], &[]);
        let ended = process.traced(&arguments, &log).run();
        let trace = fs::read_to_string(&log).expect("it was written");
        fs::remove_file(log).expect("it exists");
        let met = match fault {
            Fault::Kill => trace.contains("killed by SIGKILL"),
            _ => trace.contains("(INJECTED)"),
        };
        if !met {
            return Ok(false);
        }
        let claimed = matches!(fault, Fault::Claim(_));
        self.check_outcome(fault, &ended)
            .and_then(|()| self.recover(root.path(), claimed))
            .map_err(|wrong| format!("{call} {nth}, {fault:?}: {wrong}\n{ended:?}"))?;
        Ok(true)
    }

    /// Checks the outcome of the process itself.
    fn check_outcome(&self, fault: Fault, ended: &Ended) -> Result<(), String> {
        let Some(report) = &ended.report else {
            return if matches!(fault, Fault::Kill) {
                Ok(())
            } else {
                Err("the process died".into())
            };
        };
        ensure(ended.status.success() || matches!(fault, Fault::Kill), "the process failed")?;
        ensure(report.wrong.is_empty(), "programs computed wrong results")?;
        let put = report.origins.iter().filter(|origin| *origin == "Compiled").count();
        ensure(
            put as u64 <= report.disk_writes + report.disk_failures,
            "a failure was not counted",
        )?;
        ensure(failures_reported(report) <= 1, "a failure was reported more than once")?;
        ensure(
            report.disk_failures == 0 || failures_reported(report) == 1,
            "a failure was not reported",
        )
    }

    /// Checks that later processes find a usable store.
    fn recover(&self, root: &Path, claimed: bool) -> Result<(), String> {
        let store = stores::open(root);
        for (entry, checked) in block_on(store.verify().collect::<Vec<_>>()) {
            let excused =
                claimed || self.damaged.as_deref() == entry.path().strip_prefix(root).ok();
            match checked {
                EntryCheck::Whole(_) => {}
                EntryCheck::Unusable(_) if excused => {}
                checked => return Err(format!("{entry:?} is {checked:?}")),
            }
        }
        let unfinished = root.join("v1/tmp");
        let left = files(&unfinished);
        left.iter().for_each(|file| age(file, Duration::from_secs(120)));
        let collected = block_on(store.collect(false)).map_err(|error| error.to_string())?;
        ensure(collected.swept == left.len() as u64, "the sweep miscounts")?;
        ensure(files(&unfinished).is_empty(), "the sweep left files behind")?;
        ensure(size_hint_is_right(&store), "the size hint is wrong")?;

        let samples = || OLD.into_iter().chain([PROGRAM]);
        for origin in [None, Some(Origin::Disk)] {
            block_on(async {
                let rt = runtime(CacheConfig::at(root), samples()).await;
                for sample in samples() {
                    let program = rt.build(&sample.module()).await.map_err(|e| e.to_string())?;
                    ensure(
                        sample.is(&rt, &program).await,
                        "a later program computed a wrong result",
                    )?;
                    ensure(
                        origin.is_none_or(|origin| program.origin() == origin),
                        "the entry was not replaced",
                    )?;
                }
                rt.drain().await;
                ensure(rt.stats().disk.failures == 0, "later builds failed to use the store")
            })?;
        }
        let tag = fs::read(root.join("v1/CACHEDIR.TAG")).unwrap_or_default();
        ensure(claimed || tag.ends_with(b"deleted.\n"), "no tag for backups")
    }

    /// Returns the faults for one system call.
    fn faults(&self, call: &Call, index: usize, all: bool) -> Vec<Fault> {
        let errors: Vec<_> = match &*call.name {
            // Linux closes a file even if it reports an error, which injection cannot imitate.
            "close" => Vec::new(),
            "clone3" => vec!["EAGAIN"],
            _ if all => ERRORS.into(),
            _ => (0..2).map(|more| ERRORS[(2 * index + more) % ERRORS.len()]).collect(),
        };
        // An interruption does not last: interrupted calls are repeated until they succeed.
        let lasting = errors.iter().filter(|error| self.lasting && **error != "EINTR");
        let lasting: Vec<_> = lasting.take(if all { errors.len() } else { 1 }).copied().collect();
        let mut faults = vec![Fault::Kill];
        faults.extend(errors.into_iter().map(Fault::Error));
        faults.extend(lasting.into_iter().map(Fault::Errors));
        if call.name == "write" {
            // `async-fs` also makes writes without bytes.
            let possible = [0, 1, 20].into_iter().filter(|claim| *claim <= call.result);
            faults.extend(possible.map(Fault::Claim));
        }
        faults
    }

    /// Kills the process at every system call, and makes every call fail in every way or in some.
    fn run_with_every_fault(&self) {
        if !has_strace() {
            return;
        }
        let all = std::env::var("KILN_FAULTS").is_ok_and(|faults| faults == "all");
        let mut wrong = Vec::new();
        let (mut faults, mut missing) = (0, 0);
        let calls = tier::sample(self.calls().into_iter().enumerate().collect(), FAST_CALLS);
        for (index, call) in &calls {
            let index = *index;
            for fault in self.faults(call, index, all) {
                faults += 1;
                match self.run_with_fault(call, fault) {
                    Ok(is_met) => missing += u32::from(!is_met),
                    Err(error) => wrong.push(error),
                }
            }
        }
        eprintln!("{} of {faults} faults did harm, and {missing} did not occur", wrong.len());
        assert!(faults > 20, "too few faults were injected");
        // A file is read in as many calls as its bytes arrive in, so a process may make fewer calls than the first one.
        assert!(missing * 20 <= faults, "{missing} of {faults} faults did not occur");
        assert!(wrong.is_empty(), "{} of {faults}: {}", wrong.len(), wrong.join("\n"));
    }
}

/// Returns the thread, name and text of each system call in a trace.
fn parse(trace: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    trace.lines().filter_map(|line| {
        let (thread, rest) = line.split_once(' ')?;
        let (call, _) = rest.trim_start().split_once('(')?;
        let is_name = call.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name.then_some((thread, call, line))
    })
}

fn ensure(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn has_strace() -> bool {
    has_tool("strace", &["strace", "-o", "/dev/null", "true"])
}

/// Stores programs.
async fn store(root: &Path, samples: &[Sample]) {
    if samples.is_empty() {
        return;
    }
    let rt = runtime(CacheConfig::at(root), samples.iter().copied()).await;
    for sample in samples {
        rt.build(&sample.module()).await.expect("it builds");
    }
    rt.drain().await;
    assert_eq!(rt.stats().disk.writes, samples.len() as u64);
}

/// Whether the size hint equals the counted size. Its first word is the number of bytes.
fn size_hint_is_right(store: &Store) -> bool {
    let expected: u64 = stores::entries(store).iter().map(|entry| entry.bytes()).sum();
    let version = store.root().join("v1");
    // There can be no hint without its lock, and the next put counts.
    !version.join("lock").exists()
        || fs::read(version.join("state"))
            .is_ok_and(|state| state.starts_with(&expected.to_le_bytes()))
}

fn age(file: &Path, by: Duration) {
    let file = File::open(file).expect("it exists");
    file.set_modified(SystemTime::now() - by).expect("it belongs to this test");
}

fn copy(from: &Path, to: &Path) {
    for path in files(from) {
        let to = to.join(path.file_name().expect("it has one"));
        if path.is_dir() {
            fs::create_dir_all(&to).expect("there is disk space");
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).expect("there is disk space");
        }
    }
}

#[test]
fn a_first_put_survives_every_fault() {
    let scenario = Scenario::new(&[], [Step::Build(PROGRAM)]);
    Scenario { strict: true, ..scenario }.run_with_every_fault();
}

#[test]
fn a_hit_survives_every_fault() {
    Scenario::new(&[PROGRAM], [Step::Build(PROGRAM)]).run_with_every_fault();
}

#[test]
fn a_put_in_place_of_a_damaged_entry_survives_every_fault() {
    let scenario = Scenario::new(&[PROGRAM], [Step::Build(PROGRAM)]);
    let root = scenario.found.path();
    let store = stores::open(root);
    let entry = stores::only_entry(&store);
    let mut bytes = fs::read(entry.path()).expect("it exists");
    bytes[1000] ^= 1;
    fs::write(entry.path(), bytes).expect("it belongs to this test");
    assert!(matches!(block_on(store.check(&entry)), EntryCheck::Unusable(_)), "it was damaged");
    let damaged = entry.path().strip_prefix(root).expect("it is in that directory").to_owned();
    Scenario { damaged: Some(damaged), ..scenario }.run_with_every_fault();
}

#[test]
fn a_collection_survives_every_fault() {
    let scenario = Scenario::new(&OLD, [Step::Collect]);
    Scenario { max_bytes: TWO_AND_A_HALF, ..scenario }.run_with_every_fault();
}

#[test]
fn a_put_that_has_the_store_collected_survives_every_fault() {
    let scenario = Scenario::new(&OLD, [Step::Build(PROGRAM)]);
    Scenario { max_bytes: TWO_AND_A_HALF, lasting: false, ..scenario }.run_with_every_fault();
}

/// A write that a file system completes only in part, which `strace` cannot inject.
#[test]
fn partial_writes_leave_no_files() {
    // `$0` is the number of blocks of 512 bytes, and `$@` the process, which must survive to report.
    let limited = r#"trap "" XFSZ; ulimit -f $0; exec "$@""#;
    let program = Sample { bytes: 20_000, ..PROGRAM };
    for blocks in ["0", "1", "8", "39", "40", "1000"] {
        let root = directory();
        let steps = vec![Step::Build(program), Step::Count];
        let order = Order { root: Some(root.path().to_owned()), steps, ..Order::default() };
        let ended =
            Process::start(&test_name!("child"), &order, &["sh", "-c", limited, blocks], &[]).run();
        let report = ended.report.as_ref().unwrap_or_else(|| panic!("{ended:?}"));
        let stored = blocks == "1000";
        assert!(report.wrong.is_empty(), "{ended:?}");
        assert_eq!(report.disk_writes, u64::from(stored), "{ended:?}");
        assert_eq!(report.disk_failures > 0, !stored, "{ended:?}");
        assert_eq!(report.warnings.len(), usize::from(!stored), "{ended:?}");
        assert_eq!(report.unfinished, 0, "{ended:?}");
        let entries = stores::entries(&stores::open(root.path()));
        assert_eq!(entries.len(), usize::from(stored), "{ended:?}");
    }
}

/// Returns the report of a process that runs these steps in an environment that `through` creates.
fn report(order: &Order, through: &[&str], without: &[&str]) -> Report {
    let ended = Process::start(&test_name!("child"), order, through, without).run();
    let Ended { report: Some(report), .. } = ended else { panic!("{ended:?}") };
    assert!(report.wrong.is_empty(), "{report:?}");
    assert_eq!(report.unfinished, 0, "{report:?}");
    report
}

/// Runs a process with a file system of its own on a directory. The shell command `mount` mounts it, and `$0`
/// in it is the directory. Returns `None` if that is not permitted.
fn mounted(mount: &str, root: &Path, steps: Vec<Step>) -> Option<Report> {
    // Users other than root can have a user namespace of their own.
    let share = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
    let probe = directory();
    let place = probe.path().to_str().expect("it is Unicode");
    if !has_tool("unshare", &["unshare", share, "mount", "-t", "tmpfs", "none", place]) {
        return None;
    }
    let script = format!(r#"{mount} && exec "$@""#);
    let place = root.to_str().expect("it is Unicode");
    let order = Order { root: Some(root.to_owned()), steps, ..Order::default() };
    Some(report(&order, &["unshare", share, "sh", "-c", &script, place], &[]))
}

const READ_ONLY: &str = r#"mount --bind "$0" "$0" && mount -o remount,bind,ro "$0""#;
const ONE_MEBIBYTE: &str = r#"mount -t tmpfs -o size=1M,mode=700 none "$0""#;

#[test]
fn a_read_only_root_is_reported_once_and_costs_only_builds() {
    let root = directory();
    let steps = OLD.map(Step::Build).to_vec();
    let Some(report) = mounted(READ_ONLY, root.path(), steps) else { return };
    assert!(report.came_from(&[Origin::Compiled; 4]), "{report:?}");
    assert_eq!(report.warnings.len(), 1, "{report:?}");
    assert!(report.disk_failures >= 4 && report.disk_writes == 0, "{report:?}");
}

#[test]
fn programs_in_a_read_only_root_are_loaded_without_a_warning() {
    let root = directory();
    block_on(store(root.path(), &OLD));
    for entry in stores::entries(&stores::open(root.path())) {
        // The entry is so old that its use would be recorded.
        age(entry.path(), Duration::from_secs(36_000));
    }
    let steps = OLD.map(Step::Build).to_vec();
    let Some(report) = mounted(READ_ONLY, root.path(), steps) else { return };
    assert!(report.came_from(&[Origin::Disk; 4]), "{report:?}");
    assert_eq!((report.warnings.len(), report.disk_failures), (0, 0), "{report:?}");
}

#[test]
fn a_full_file_system_is_reported_once_and_costs_only_builds() {
    let root = directory();
    let mut steps = vec![Step::Fill];
    steps.extend(OLD.map(Step::Build));
    steps.push(Step::Count);
    let Some(report) = mounted(ONE_MEBIBYTE, root.path(), steps) else { return };
    assert!(report.came_from(&[Origin::Compiled; 4]), "{report:?}");
    assert_eq!(report.warnings.len(), 1, "{report:?}");
    assert!(report.disk_failures >= 4 && report.disk_writes == 0, "{report:?}");
}

#[test]
fn a_program_that_does_not_fit_leaves_space_for_smaller_ones() {
    let root = directory();
    let large = Sample { number: 5, bytes: 2 << 20 };
    let steps = vec![Step::Build(OLD[0]), Step::Build(large), Step::Build(OLD[1]), Step::Count];
    let Some(report) = mounted(ONE_MEBIBYTE, root.path(), steps) else { return };
    assert_eq!((report.disk_failures, report.disk_writes), (1, 2), "{report:?}");
    assert_eq!(report.warnings.len(), 1, "{report:?}");
}

#[test]
fn a_missing_home_disables_the_store_with_one_warning() {
    let steps = OLD.map(Step::Build).to_vec();
    let order = Order { steps, ..Order::default() };
    let report = report(&order, &[], &["HOME", "XDG_CACHE_HOME", "KILN_CACHE_DIR", "KILN_CACHE"]);
    assert!(report.came_from(&[Origin::Compiled; 4]), "{report:?}");
    assert_eq!((report.warnings.len(), report.disk_failures), (1, 1), "{report:?}");
    assert_eq!(report.disk_writes, 0, "{report:?}");
}

#[test]
fn a_deleted_root_is_created_again() {
    let parent = directory();
    let root = parent.path().join("root");
    let steps = vec![Step::Build(OLD[0]), Step::RemoveRoot, Step::Build(OLD[1])];
    let order = Order { root: Some(root.clone()), steps, ..Order::default() };
    let first = report(&order, &[], &[]);
    assert_eq!((first.disk_writes, first.disk_failures), (2, 0), "{first:?}");
    assert_eq!(first.warnings.len(), 0, "nothing was lost but programs: {first:?}");
    let order = Order { steps: OLD[..2].iter().copied().map(Step::Build).collect(), ..order };
    let second = report(&order, &[], &[]);
    assert!(second.came_from(&[Origin::Compiled, Origin::Disk]), "{second:?}");
}

#[test]
fn a_root_that_cannot_be_recreated_is_reported_once() {
    let parent = directory();
    let root = parent.path().join("root");
    let mut steps = vec![Step::Build(PROGRAM), Step::RemoveRoot, Step::BlockRoot];
    steps.extend(OLD.map(Step::Build));
    let report = report(&Order { root: Some(root), steps, ..Order::default() }, &[], &[]);
    assert!(report.came_from(&[Origin::Compiled; 5]), "{report:?}");
    assert_eq!((report.warnings.len(), report.disk_writes), (1, 1), "{report:?}");
    assert!(report.disk_failures >= 4, "{report:?}");
}

#[test]
fn a_file_system_without_locks_is_reported_once_and_keeps_programs() {
    if !has_strace() {
        return;
    }
    for error in ["ENOLCK", "EOPNOTSUPP"] {
        let root = directory();
        let steps = OLD.map(Step::Build).to_vec();
        let order = Order { root: Some(root.path().to_owned()), steps, ..Order::default() };
        let log = root.path().join("log");
        let inject = format!("inject=flock:error={error}");
        let arguments = ["-e", "trace=flock", "-e", &inject];
        let ended =
            Process::start(&test_name!("child"), &order, &[], &[]).traced(&arguments, &log).run();
        let report = ended.report.as_ref().unwrap_or_else(|| panic!("{ended:?}"));
        assert!(report.came_from(&[Origin::Compiled; 4]) && report.wrong.is_empty(), "{ended:?}");
        assert_eq!((report.disk_writes, report.disk_failures), (4, 0), "{ended:?}");
        assert_eq!(report.warnings.len(), 1, "{ended:?}");
        assert!(report.warnings[0].contains("cannot be locked"), "{ended:?}");
        assert!(size_hint_is_right(&stores::open(root.path())), "{error}: the size hint");
    }
}

#[test]
fn memory_hits_touch_no_files_and_disk_hits_read_and_stamp_their_entry() {
    if !has_strace() {
        return;
    }
    let root = directory();
    block_on(store(root.path(), &OLD[..1]));
    let entry = stores::only_entry(&stores::open(root.path())).path().to_owned();
    let [on_disk, in_memory] = [OLD[0], OLD[1]].map(Step::Build);
    let steps = vec![in_memory.clone(), Step::Mark, in_memory, Step::Mark, on_disk, Step::Mark];
    let order = Order { root: Some(root.path().to_owned()), steps, ..Order::default() };
    let log = root.path().join("log");
    let arguments = ["-e", "trace=%file,%desc,getppid"];
    let ended =
        Process::start(&test_name!("child"), &order, &[], &[]).traced(&arguments, &log).run();
    let report = ended.report.as_ref().unwrap_or_else(|| panic!("{ended:?}"));
    assert!(report.came_from(&[Origin::Compiled, Origin::Memory, Origin::Disk]), "{ended:?}");

    let trace = fs::read_to_string(log).expect("it was written");
    // Memory may be mapped and unmapped at any time. The process drains after each build, which reads the size hint.
    let calls = parse(&trace).filter(|(_, call, line)| {
        !matches!(*call, "mmap" | "munmap") && !line.contains("/v1/state")
    });
    let calls: Vec<_> = calls.map(|(_, call, line)| (call, line)).collect();
    let parts: Vec<_> = calls.split(|(call, _)| *call == "getppid").collect();
    let [build, memory, disk, _] = *parts else { panic!("three marks: {trace}") };
    for call in ["openat", "write", "flock", "rename"] {
        assert!(build.iter().any(|(known, _)| *known == call), "seen in a put: {call}: {trace}");
    }
    assert!(memory.is_empty(), "{memory:?}");
    let entry = entry.to_str().expect("it is Unicode");
    for call in ["read", "utimensat"] {
        assert!(disk.iter().any(|(known, _)| *known == call), "{call}: {trace}");
    }
    // The hit is counted for the store's totals behind the caller, who awaits that with `drain`.
    for (call, line) in disk.iter().filter(|(_, line)| !line.contains("/totals")) {
        assert!(line.contains(entry), "another file: {line}");
        let reads = match *call {
            "openat" => line.contains("O_RDONLY") && !line.contains("O_CREAT"),
            // The standard library checks that a file is open before it closes it. The handle that stamps the file is a
            // duplicate.
            "fcntl" => line.contains("F_GETFD") || line.contains("F_DUPFD_CLOEXEC"),
            call => {
                matches!(
                    call,
                    "statx" | "fstat" | "newfstatat" | "read" | "lseek" | "close" | "utimensat"
                )
            }
        };
        assert!(reads, "more than reading and stamping: {line}");
    }
}
