//! Processes that share a store: each program is compiled once on the machine, even if the process that
//! compiles it stops or dies.

#![allow(clippy::print_stderr, reason = "a log tells how long the processes took")]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::join_all;
use kiln::devices::ModuleFormat;
use kiln::store::Store;
use kiln::{CacheConfig, Module, Program, Runtime};
use support::children::{Child, DEVICE, Report, report, sum, variable};
use support::libraries;
use support::libraries::{Function, function};
use support::on_each_device;
use support::stores;
use support::test_name;
use tempfile::TempDir;

const PROCESSES: usize = 8;
const PROGRAMS: u32 = 12;
const ALL: u64 = PROGRAMS as u64;
const LIBRARIES: usize = 6;
const APPLICATIONS: usize = 8;

/// Time limit that no working process exceeds.
const PATIENT: Duration = Duration::from_secs(600);

/// Returns program `number`, whose kernel computes a result that no other program does. More functions make its
/// compile longer.
fn module(number: u32, functions: u32) -> Module {
    let mut source = String::new();
    for function in 0..functions {
        let _ = writeln!(
            source,
            "uint mix{function}(uint v, uint i) {{
                for (uint j = 0; j < 8; j++) v = v * 1664525u + i * {}u;
                return v;
            }}",
            function + 1
        );
    }
    let _ = writeln!(source, "kernel void scramble(global uint *x) {{ uint v = {number}u;");
    for function in 0..functions {
        let _ = writeln!(source, "v = mix{function}(v, (uint)get_global_id(0));");
    }
    source.push_str("x[get_global_id(0)] = v; }");
    Module::opencl_c(source)
}

/// Returns the value that the kernel of program `number` writes at `index`.
fn expected(number: u32, functions: u32, index: u32) -> u32 {
    (0..functions).fold(number, |v, function| {
        let step = index.wrapping_mul(function + 1);
        (0..8).fold(v, |v, _| v.wrapping_mul(1_664_525).wrapping_add(step))
    })
}

async fn assert_right(rt: &Runtime, program: &Program, number: u32, functions: u32) {
    // SAFETY: it writes one element a work-item.
    let scramble = unsafe { program.kernel("scramble") }.expect("the kernel exists");
    let x = rt.buffer_from(vec![0u32; 16]).await.expect("there is memory");
    let queue = rt.queue();
    queue.submit(scramble.launch(16).args((&x,))).expect("it fits");
    let found = queue.read(&x).await.expect("it runs");
    let expected: Vec<_> = (0..16).map(|index| expected(number, functions, index)).collect();
    assert_eq!(found, expected, "program {number}");
}

/// One of the processes: builds all programs at once, runs each, and reports.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn child() {
    block_on(async {
        let wait =
            Duration::from_millis(variable("KILN_TEST_WAIT").parse().expect("it is a number"));
        let cache = CacheConfig::at(variable("KILN_TEST_STORE")).build_wait(wait);
        let builder = Runtime::builder().device(variable(DEVICE)).cache(cache);
        let rt = builder.build().await.expect("it starts");
        let functions = variable("KILN_TEST_FUNCTIONS").parse().expect("it is a number");
        let build = |number| rt.build(&module(number, functions)).start();
        let builds: Vec<_> = (0..PROGRAMS).map(build).collect();
        for (number, built) in (0..PROGRAMS).zip(join_all(builds).await) {
            assert_right(&rt, &built.expect("it builds"), number, functions).await;
        }
        rt.drain().await;
        let stats = rt.stats();
        report("compiles", stats.builds.compiles);
        report("hits", stats.disk.hits);
        report("waits", stats.builds.lock_waits);
        report("timeouts", stats.builds.lock_timeouts);
        report("unwell", stats.disk.failures + stats.disk.damaged + stats.disk.refused);
    });
}

/// Returns the modules of [`linking_child`]: the libraries, and applications that use three of them each.
fn linked_modules() -> [Vec<Module>; 2] {
    let names: Vec<_> = (0..LIBRARIES).map(|n| format!("f{n}")).collect();
    let library = |n: usize| module_of(&[function(&names[n]).plus(n as f32)], &[]);
    let application = |n: usize| {
        let calls = [0, 1, 2].map(|k| names[(n + k * (1 + n / LIBRARIES)) % LIBRARIES].as_str());
        module_of(&[], &[("apply", &calls)])
    };
    [(0..LIBRARIES).map(library).collect(), (0..APPLICATIONS).map(application).collect()]
}

fn module_of(functions: &[Function<'_>], kernels: &[(&str, &[&str])]) -> Module {
    libraries::module(ModuleFormat::OpenClC, functions, kernels)
}

/// One of the processes: builds all applications at once, linked with libraries that it registers in one of two
/// orders.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn linking_child() {
    block_on(async {
        let cache = CacheConfig::at(variable("KILN_TEST_STORE")).build_wait(PATIENT);
        let builder = Runtime::builder().device(variable(DEVICE)).cache(cache);
        let rt = builder.build().await.expect("it starts");
        let [mut libraries, applications] = linked_modules();
        if variable("KILN_TEST_ORDER") == "back" {
            libraries.reverse();
        }
        for library in &libraries {
            rt.register(library).expect("it exports something");
        }
        let builds: Vec<_> = applications.iter().map(|module| rt.build(module).start()).collect();
        for program in join_all(builds).await {
            assert_eq!(program.expect("it links").kernel_names(), ["apply"]);
        }
        rt.drain().await;
        let stats = rt.stats();
        report("compiles", stats.builds.compiles);
        report("links", stats.builds.links);
        report("timeouts", stats.builds.lock_timeouts);
        report("unwell", stats.disk.failures + stats.disk.damaged + stats.disk.refused);
    });
}

/// A store for one test on one device, and the drivers' own caches.
struct Bench {
    device: String,
    directory: TempDir,
    /// Number of functions in each program.
    functions: u32,
}

impl Bench {
    fn new(rt: &Runtime, functions: u32) -> Self {
        let directory = tempfile::tempdir().expect("a directory can be created");
        Self { device: rt.device().index().to_string(), directory, functions }
    }

    fn store(&self) -> Store {
        stores::open(self.root())
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Starts a process that waits for up to `wait` for builds of other processes.
    fn start(&self, wait: Duration) -> Child {
        self.start_test("child", wait, "forth")
    }

    fn start_test(&self, test: &str, wait: Duration, order: &str) -> Child {
        // Each process has a PoCL cache of its own: PoCL must not share compiles that Kiln should share.
        let own = tempfile::tempdir_in(self.directory.path()).expect("there is disk space").keep();
        Child::start(
            &test_name!(test),
            [
                ("KILN_TEST_STORE", self.root().as_os_str()),
                (DEVICE, self.device.as_ref()),
                ("KILN_TEST_FUNCTIONS", self.functions.to_string().as_ref()),
                ("KILN_TEST_ORDER", order.as_ref()),
                ("KILN_TEST_WAIT", wait.as_millis().to_string().as_ref()),
                ("POCL_CACHE_DIR", own.as_os_str()),
                // Otherwise PoCL compiles again in every process, at the first launch of each kernel.
                ("POCL_WORK_GROUP_SPECIALIZATION", "0".as_ref()),
            ],
        )
    }

    /// Returns the reports of processes that start at the same time.
    fn run(&self, processes: usize, wait: Duration) -> Vec<Report> {
        let children: Vec<_> = (0..processes).map(|_| self.start(wait)).collect();
        children.into_iter().map(Child::report).collect()
    }

    /// Checks that the store is complete and provides all programs to another start.
    fn assert_complete(&self) {
        assert_eq!(stores::entries(&self.store()).len(), PROGRAMS as usize);
        let again = &self.run(1, PATIENT)[0];
        assert_eq!((again["compiles"], again["hits"]), (0, ALL), "{again:?}");
        assert_eq!(again["unwell"], 0, "{again:?}");
    }
}

/// The times are only logged: they depend on the whole machine, including other tests. With shorter programs,
/// they would mostly consist of the start of the driver's compiler in every process.
#[test]
fn processes_that_start_at_once_compile_each_program_once() {
    let functions = std::env::var("KILN_TEST_FUNCTIONS");
    let functions = functions.map_or(10, |text| text.parse().expect("it is a number"));
    block_on(on_each_device(async |rt: Runtime| {
        let alone = Bench::new(&rt, functions);
        let start = Instant::now();
        let report = &alone.run(1, PATIENT)[0];
        let alone = start.elapsed();
        assert_eq!(report["compiles"], ALL);

        let shared = Bench::new(&rt, functions);
        let start = Instant::now();
        let reports = shared.run(PROCESSES, PATIENT);
        let together = start.elapsed();
        assert_eq!(sum(&reports, "compiles"), ALL, "{reports:#?}");
        assert_eq!(sum(&reports, "timeouts"), 0, "{reports:#?}");
        assert_eq!(sum(&reports, "unwell"), 0, "{reports:#?}");

        let start = Instant::now();
        shared.run(PROCESSES, PATIENT);
        let again = start.elapsed();
        let ratio = together.as_secs_f64() / alone.as_secs_f64();
        eprintln!(
            "one process: {alone:.2?}; {PROCESSES}: {together:.2?}; ratio: {ratio:.2}; \
             {PROCESSES} that find all stored: {again:.2?}"
        );
        shared.assert_complete();
    }));
}

#[test]
fn processes_that_link_compile_each_module_and_link_each_program_once() {
    block_on(on_each_device(async |rt: Runtime| {
        let bench = Bench::new(&rt, 1);
        let children: Vec<_> = (0..PROCESSES)
            .map(|n| {
                let order = if n % 2 == 0 { "forth" } else { "back" };
                bench.start_test("linking_child", PATIENT, order)
            })
            .collect();
        let reports: Vec<_> = children.into_iter().map(Child::report).collect();
        assert_eq!(sum(&reports, "compiles"), (LIBRARIES + APPLICATIONS) as u64, "{reports:#?}");
        assert_eq!(sum(&reports, "links"), APPLICATIONS as u64, "{reports:#?}");
        assert_eq!(sum(&reports, "timeouts"), 0, "{reports:#?}");
        assert_eq!(sum(&reports, "unwell"), 0, "{reports:#?}");
    }));
}

/// Linux lists the holders of locks, so that a process can be stopped while it builds.
#[cfg(target_os = "linux")]
mod stopped {
    use support::build_locks::stop_while_it_builds;
    use support::signals::Stopped;

    use super::*;

    impl Bench {
        /// Starts a process, and stops it in the middle of a build.
        fn start_and_stop_while_it_builds(&self) -> (Child, Stopped) {
            let child = self.start(PATIENT);
            let stopped = stop_while_it_builds(&self.store(), child.id(), Instant::now() + PATIENT);
            (child, stopped.expect("it builds programs"))
        }
    }

    #[test]
    fn builds_of_a_killed_process_are_taken_over_at_once() {
        block_on(on_each_device(async |rt: Runtime| {
            let bench = Bench::new(&rt, 1);
            let victim = bench.start_and_stop_while_it_builds();
            let stored = stores::entries(&bench.store()).len() as u64;
            let others: Vec<_> = (1..PROCESSES).map(|_| bench.start(PATIENT)).collect();
            drop(victim); // The child first: SIGKILL also ends stopped processes.
            let reports: Vec<_> = others.into_iter().map(Child::report).collect();
            assert_eq!(sum(&reports, "compiles"), ALL - stored, "{reports:#?}");
            assert_eq!(sum(&reports, "timeouts"), 0, "the lock is free with its holder");
            assert_eq!(sum(&reports, "unwell"), 0, "{reports:#?}");
            bench.assert_complete();
        }));
    }

    #[test]
    fn others_do_not_wait_for_a_process_that_has_been_stopped() {
        block_on(on_each_device(async |rt: Runtime| {
            let bench = Bench::new(&rt, 1);
            let victim = bench.start_and_stop_while_it_builds();
            // Their deadline is later than the one of this test.
            let reports = bench.run(2, PATIENT);
            assert!(sum(&reports, "timeouts") > 0, "{reports:#?}");
            assert_eq!(sum(&reports, "unwell"), 0, "{reports:#?}");
            bench.assert_complete();
            drop(victim);
        }));
    }

    #[test]
    fn a_stopped_process_delays_others_only_until_their_deadline() {
        block_on(on_each_device(async |rt: Runtime| {
            let bench = Bench::new(&rt, 1);
            let victim = bench.start_and_stop_while_it_builds();
            let stored = stores::entries(&bench.store()).len() as u64;
            let reports = bench.run(PROCESSES - 1, Duration::from_secs(2));
            let missing = ALL - stored;
            let (compiles, timeouts) = (sum(&reports, "compiles"), sum(&reports, "timeouts"));
            assert!(timeouts > 0, "{reports:#?}");
            // Only processes whose wait timed out compile programs that another one may compile, too.
            assert!((missing..=missing + timeouts).contains(&compiles), "{missing}: {reports:#?}");
            assert_eq!(sum(&reports, "unwell"), 0, "{reports:#?}");
            bench.assert_complete();
            drop(victim);
        }));
    }
}
