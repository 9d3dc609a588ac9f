//! Tests of the build graph with a device that is simulated by `fake`.

mod fake;
mod keys;
mod options;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures::executor::block_on;
use kiln_spirv::AddressSpace;

use self::fake::{FakeAdapter, Script};
use super::{
    BuildGraph, BuildRequest, CHILD_LIMIT, Children, CompilePool, DuplicateExports,
    EnvironmentOptions, Origin, Setting,
};
use crate::backend::DeviceSlot;
use crate::counters::{Counters, Stats};
use crate::device::{Device, DeviceInfo, ModuleFormat};
use crate::error::{ErrorKind, Result};
use crate::source::module::Module;
use crate::source::translate::FrontEnd;

/// A graph with one fake device.
struct Bench {
    script: Arc<Script>,
    counters: Arc<Counters>,
    graph: Arc<BuildGraph>,
}

/// Memory limit that no test reaches.
const PLENTY: u64 = 1 << 20;

impl Bench {
    fn new(memory_limit: u64) -> Self {
        Self::with_info(DeviceInfo::fake(), memory_limit)
    }

    fn with_info(info: DeviceInfo, memory_limit: u64) -> Self {
        let (script, counters) = (Arc::<Script>::default(), Arc::<Counters>::default());
        let info = Arc::new(info);
        let adapter = Arc::new(FakeAdapter(Arc::clone(&info), Arc::clone(&script)));
        let slot = Arc::new(DeviceSlot::new(Device::new(0, info), adapter));
        let graph = BuildGraph::new(Setting {
            devices: [slot].into(),
            pool: CompilePool::new("kiln-compile", 4, 0),
            untrusted_pool: CompilePool::new("kiln-compile", 4, 0),
            children: Children::new(None, CHILD_LIMIT).expect("none is chosen").into(),
            processes: None,
            memory_limit,
            disk: None,
            remote: None,
            trace: None,
            options: EnvironmentOptions::default(),
            link_objects: false,
            checked: super::CheckMode::default(),
            duplicates: DuplicateExports::default(),
            embedded_libraries: false,
            identity: None,
            front_end: FrontEnd::new(None, None).expect("none is chosen"),
            counters: Arc::clone(&counters),
        });
        Self { script, counters, graph }
    }

    fn request(&self, module: &Module) -> BuildRequest {
        BuildRequest::new(Arc::clone(&self.graph), 0, module)
    }

    fn build(&self, text: &str) -> Result<super::Program> {
        block_on(self.request(&Module::opencl_c(text)).into_future())
    }

    fn origin(&self, text: &str) -> Origin {
        self.build(text).expect("it builds").origin()
    }

    fn stats(&self) -> Stats {
        let mut stats = self.counters.snapshot();
        self.graph.fill_stats(&mut stats);
        stats
    }

    /// Waits until the condition holds. The graph wakes a waiter before its worker drops the job, so this may
    /// be a moment later.
    fn until(&self, holds: impl Fn(&Self) -> bool) {
        for _ in 0..60_000 {
            if holds(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the condition never held; {:?}", self.stats());
    }
}

fn kind(result: Result<super::Program>) -> (ErrorKind, String) {
    let error = result.expect_err("it fails");
    (error.kind(), error.to_string())
}

// ---- Single flight ------------------------------------------------------------------------------

#[test]
fn a_thousand_requests_for_ten_programs_build_ten() {
    let bench = Bench::new(PLENTY);
    bench.script.close();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let bench = &bench;
            scope.spawn(move || {
                let starts: Vec<_> = (0..125)
                    .map(|i| {
                        bench
                            .request(&Module::opencl_c(format!("kernel {}", (i + thread) % 10)))
                            .start()
                    })
                    .collect();
                if thread == 0 {
                    bench.script.open();
                }
                for start in starts {
                    block_on(start).expect("it builds");
                }
            });
        }
    });
    let stats = bench.stats();
    assert_eq!(bench.script.builds(), 10);
    assert_eq!((stats.builds.requested, stats.builds.compiles), (1_000, 10));
    assert_eq!(stats.memory.hits + stats.builds.joined, 990);
    assert_eq!((stats.memory.programs, stats.memory.bytes), (10, 80));
}

#[test]
fn trusted_and_untrusted_requests_share_programs_but_not_builds() {
    let bench = Bench::new(PLENTY);
    let request = |text: &str, trusts: bool| {
        let module = Module::opencl_c(text);
        bench.request(&if trusts { module } else { module.untrusted() }).start()
    };
    bench.script.close();
    let builds: Vec<_> =
        [true, false, true, false].map(|trusts| request("kernel", trusts)).into_iter().collect();
    bench.script.open();
    let keys: Vec<_> =
        builds.into_iter().map(|one| block_on(one).expect("it builds").key()).collect();
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    assert_eq!((bench.script.builds(), bench.stats().builds.joined), (2, 2));
    assert_eq!(bench.stats().memory.programs, 1, "both requests share one program");
    for trusts in [true, false] {
        let program = block_on(request("kernel", trusts)).expect("it exists");
        assert_eq!(program.origin(), Origin::Memory);
    }
    let failures = [true, false, true, false].map(|trusts| block_on(request("refuse", trusts)));
    let [first, second, third, fourth] = failures.map(|failed| failed.expect_err("it fails"));
    assert!(first.same(&third) && second.same(&fourth) && !first.same(&second));
    assert_eq!(bench.script.builds(), 4);
}

#[test]
fn requests_that_race_with_the_end_of_a_build_never_repeat_it() {
    for round in 0..200 {
        let bench = Bench::new(PLENTY);
        let text = format!("kernel {round}");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| bench.build(&text).expect("it builds"));
            }
        });
        assert_eq!(bench.script.builds(), 1);
    }
}

#[test]
fn a_build_completes_without_a_waiter() {
    let bench = Bench::new(PLENTY);
    bench.script.close();
    let module = Module::opencl_c("kernel");
    drop(bench.request(&module).start());
    std::mem::forget(bench.request(&module).start());
    let never_polled = bench.request(&module).start();
    let polled_once = bench.request(&module).start();
    assert!(polled_once.peek().is_none());
    drop(polled_once);
    bench.script.open();
    bench.until(|bench| bench.stats().memory.programs == 1);
    assert_eq!(bench.origin("kernel"), Origin::Memory);
    assert_eq!(bench.script.builds(), 1);
    assert_eq!(bench.stats().builds.joined, 3);
    drop(never_polled);
}

#[test]
fn builds_complete_after_the_graph_is_dropped() {
    let bench = Bench::new(PLENTY);
    bench.script.close();
    let build = bench.request(&Module::opencl_c("kernel")).start();
    let Bench { script, graph, .. } = bench;
    drop(graph);
    script.open();
    let program = block_on(build).expect("it builds");
    assert_eq!(program.kernel_names(), ["main"]);
}

#[test]
fn builds_report_their_origin_and_may_be_polled_again() {
    let bench = Bench::new(PLENTY);
    let module = Module::opencl_c("kernel");
    let mut first = bench.request(&module).start();
    for _ in 0..2 {
        assert_eq!(block_on(&mut first).expect("it builds").origin(), Origin::Compiled);
    }
    let mut second = bench.request(&module).start();
    for _ in 0..2 {
        assert_eq!(block_on(&mut second).expect("it builds").origin(), Origin::Memory);
    }
    assert_eq!(
        block_on(first.clone()).expect("it builds").key(),
        block_on(second).expect("it builds").key()
    );
}

#[test]
fn handles_can_be_sent_and_shared_between_threads() {
    fn assert<T: Clone + Send + Sync + Unpin + 'static>() {}
    assert::<super::Build>();
    assert::<BuildRequest>();
    assert::<super::Program>();
    assert::<super::Kernel>();
}

// ---- Failures -----------------------------------------------------------------------------------

#[test]
fn build_failures_are_cached_with_their_log() {
    let bench = Bench::new(PLENTY);
    let first = bench.build("refuse").expect_err("it fails");
    let second = bench.build("refuse").expect_err("it fails");
    assert!(first.same(&second));
    assert_eq!(second.kind(), ErrorKind::BuildFailed);
    assert_eq!(second.build_log(), Some("1:1: error: no"));
    let stats = bench.stats();
    assert_eq!((stats.builds.compiles, stats.builds.failed, stats.memory.hits), (1, 1, 1));
    assert_eq!((stats.memory.programs, stats.memory.bytes), (0, 0));
}

#[test]
fn a_panic_is_an_error_and_not_cached() {
    let bench = Bench::new(PLENTY);
    for builds in 1..=10 {
        let (kind, message) = kind(bench.build("panic"));
        assert_eq!(kind, ErrorKind::Panicked);
        assert!(message.contains("the compiler fell over"), "{message}");
        assert_eq!(bench.script.builds(), builds);
    }
    assert_eq!(bench.stats().builds.panics, 10);
    bench.build("kernel").expect("the workers live on");
}

#[test]
fn a_lost_device_is_neither_retried_nor_cached() {
    let bench = Bench::new(PLENTY);
    for builds in 1..=2 {
        assert_eq!(kind(bench.build("lose")).0, ErrorKind::DeviceLost);
        assert_eq!(bench.script.builds(), builds);
    }
    assert_eq!((bench.stats().builds.abandoned, bench.stats().builds.retries), (2, 0));
}

#[test]
fn a_device_that_did_not_open_is_opened_again() {
    let bench = Bench::new(PLENTY);
    bench.script.unopenable.store(1, SeqCst);
    assert_eq!(kind(bench.build("kernel")).0, ErrorKind::Driver);
    assert_eq!(bench.stats().builds.compiles, 0);
    bench.build("kernel").expect("it opens the second time");
}

#[test]
fn out_of_resources_drops_idle_programs_and_tries_again() {
    let bench = Bench::new(PLENTY);
    let held = bench.build("held").expect("it builds");
    bench.build("idle").expect("it builds");
    bench.script.exhausted.store(1, SeqCst);
    bench.until(|bench| bench.script.alive() == 2);

    let program = bench.build("kernel").expect("the second try succeeds");
    assert_eq!(program.origin(), Origin::Compiled);
    assert_eq!(bench.script.alive_before.load(SeqCst), 1, "the idle program left the device first");
    let stats = bench.stats();
    assert_eq!((stats.builds.compiles, stats.builds.retries, stats.memory.evictions), (4, 1, 1));
    assert_eq!((stats.builds.abandoned, stats.memory.programs), (0, 2));
    assert_eq!(bench.origin("held"), Origin::Memory);
    assert_eq!(bench.origin("idle"), Origin::Compiled);
    drop(held);
}

#[test]
fn persistent_exhaustion_ends_after_three_tries_and_is_not_cached() {
    let bench = Bench::new(PLENTY);
    bench.script.exhausted.store(3, SeqCst);
    assert_eq!(kind(bench.build("kernel")).0, ErrorKind::OutOfResources);
    let stats = bench.stats();
    assert_eq!((stats.builds.compiles, stats.builds.retries, stats.builds.abandoned), (3, 2, 1));
    assert_eq!(bench.origin("kernel"), Origin::Compiled);
}

#[test]
fn requests_after_a_transient_failure_build_again() {
    let bench = Bench::new(PLENTY);
    for builds in 1..=500 {
        bench.build("lose").expect_err("it fails");
        assert_eq!(bench.script.builds(), builds, "a request after the error builds again");
    }
}

// ---- Memory -------------------------------------------------------------------------------------

#[test]
fn the_least_recently_used_program_is_evicted_first() {
    let bench = Bench::new(30);
    for text in ["kernel-aaa", "kernel-bbb", "kernel-ccc"] {
        assert_eq!(bench.origin(text), Origin::Compiled);
    }
    assert_eq!(bench.origin("kernel-aaa"), Origin::Memory);
    assert_eq!(bench.origin("kernel-ddd"), Origin::Compiled);
    let stats = bench.stats();
    assert_eq!((stats.memory.programs, stats.memory.bytes, stats.memory.evictions), (3, 30, 1));
    for text in ["kernel-aaa", "kernel-ccc", "kernel-ddd"] {
        assert_eq!(bench.origin(text), Origin::Memory, "{text}");
    }
    assert_eq!(bench.origin("kernel-bbb"), Origin::Compiled);
    bench.until(|bench| bench.script.alive() == 3);
}

#[test]
fn a_limit_of_zero_caches_nothing_but_shares_in_flight_builds() {
    let bench = Bench::new(0);
    bench.script.close();
    let module = Module::opencl_c("kernel");
    let (first, second) = (bench.request(&module).start(), bench.request(&module).start());
    bench.script.open();
    let (first, second) =
        (block_on(first).expect("it builds"), block_on(second).expect("it builds"));
    assert_eq!(bench.script.builds(), 1);
    drop((first, second));
    bench.until(|bench| bench.script.alive() == 0);
    assert_eq!(bench.origin("kernel"), Origin::Compiled);
    assert_eq!((bench.script.builds(), bench.stats().memory.programs), (2, 0));
}

#[test]
fn programs_of_a_simulated_device_count_as_what_it_states() {
    let bench = Bench::new(1 << 10);
    for number in 10..100 {
        bench.build(&format!("a kernel of 34 bytes, number: {number:>4}")).expect("it builds");
    }
    let stats = bench.stats();
    assert_eq!((stats.memory.bytes, stats.memory.bytes_estimated), (1020, 1020), "{stats:?}");
    assert_eq!((stats.memory.programs, stats.memory.evictions), (30, 60), "{stats:?}");
}

#[test]
fn programs_larger_than_the_limit_are_built_but_not_cached() {
    let bench = Bench::new(8);
    assert_eq!(bench.origin("small"), Origin::Compiled);
    let large = bench.build("larger than the limit").expect("it builds");
    assert_eq!(large.binary().expect("it has one"), b"larger than the limit");
    assert_eq!(bench.origin("larger than the limit"), Origin::Memory, "it is still held");
    drop(large);
    assert_eq!(bench.origin("larger than the limit"), Origin::Compiled);
    assert!(bench.stats().memory.bytes <= 8);
}

#[test]
fn eviction_does_not_affect_programs_in_use() {
    let bench = Bench::new(10);
    let program = bench.build("kernel-aaa").expect("it builds");
    // SAFETY: never launched.
    let kernel = unsafe { program.kernel("main") }.expect("there is one");
    drop(program);
    bench.build("kernel-bbb").expect("it builds");
    assert_eq!(bench.stats().memory.evictions, 1);
    let resolved = kernel.resolved().expect("it exists").as_ref().expect("it built");
    assert_eq!((resolved.native.name(), bench.script.alive()), ("main", 2));
    drop(kernel);
    bench.until(|bench| bench.script.alive() == 1);
}

// ---- Requests that the driver does not get ------------------------------------------------------

/// A module with a `uint` constant of `SpecId` 7 and a kernel `main` with a parameter `n`.
fn spirv_module() -> Module {
    let instructions: &[&[u32]] = &[
        &[17, 4],                                     // OpCapability Addresses
        &[17, 6],                                     // OpCapability Kernel
        &[14, 2, 2],                                  // OpMemoryModel Physical64 OpenCL
        &[15, 6, 5, u32::from_le_bytes(*b"main"), 0], // OpEntryPoint Kernel %5 "main"
        &[5, 6, u32::from(b'n')],                     // OpName %6 "n"
        &[5, 4, u32::from_le_bytes(*b"wid\0")],       // OpName %4 "wid"
        &[71, 4, 1, 7],                               // OpDecorate %4 SpecId 7
        &[21, 1, 32, 0],                              // %1 = OpTypeInt 32 0
        &[19, 2],                                     // %2 = OpTypeVoid
        &[33, 3, 2, 1],                               // %3 = OpTypeFunction %2 %1
        &[50, 1, 4, 16],                              // %4 = OpSpecConstant %1 16
        &[54, 2, 5, 0, 3],                            // %5 = OpFunction %2 None %3
        &[55, 1, 6],                                  // %6 = OpFunctionParameter %1
        &[248, 7],                                    // %7 = OpLabel
        &[253],                                       // OpReturn
        &[56],                                        // OpFunctionEnd
    ];
    let header = [0x0723_0203, 0x0001_0000, 0, 8, 0];
    let body = instructions.iter().flat_map(|words| {
        let first = (words.len() as u32) << 16 | words[0];
        std::iter::once(first).chain(words[1..].iter().copied())
    });
    let bytes: Vec<u8> = header.into_iter().chain(body).flat_map(u32::to_le_bytes).collect();
    Module::spirv(bytes).expect("it is a module")
}

#[test]
fn invalid_requests_do_not_reach_the_driver() {
    let formats = vec![ModuleFormat::OpenClC, ModuleFormat::SpirV];
    let bench = Bench::with_info(DeviceInfo { formats, ..DeviceInfo::fake() }, PLENTY);
    let native = Module::native(*b"binary").expect("it has bytes");
    let text = Module::opencl_c("kernel");
    let other = Bench::new(PLENTY);
    let stranger = other.graph.device(0);
    let cases = [
        (
            bench.request(&native),
            ErrorKind::Unsupported,
            "native binary; it accepts: OpenCL C, SPIR-V",
        ),
        (bench.request(&Module::opencl_c(" \n\t")), ErrorKind::InvalidModule, "empty"),
        (bench.request(&Module::opencl_c("ker\0nel")), ErrorKind::InvalidModule, "byte 3"),
        (bench.request(&text).options("-D A\0B"), ErrorKind::InvalidArgument, "byte 4"),
        (bench.request(&text).specialize(7, 1u32), ErrorKind::InvalidArgument, "only SPIR-V"),
        (bench.request(&text).device(stranger), ErrorKind::InvalidArgument, "another runtime"),
        (
            bench.request(&spirv_module()).specialize(8, 1u32),
            ErrorKind::InvalidArgument,
            "id 8; it has 7 `wid` (uint, 4 bytes)",
        ),
        (
            bench.request(&spirv_module()).specialize(7, 1u64),
            ErrorKind::InvalidArgument,
            "8 bytes long, but the constant's type, uint, has 4",
        ),
    ];
    let requested = cases.len() as u64;
    for (request, expected, part) in cases {
        let (kind, message) = kind(block_on(request.into_future()));
        assert_eq!(kind, expected, "{message}");
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
    let stats = bench.stats();
    assert_eq!(
        (stats.builds.requested, stats.builds.failed, stats.builds.compiles),
        (requested, requested, 0)
    );
    assert_eq!(bench.script.builds(), 0);
}

#[test]
fn requests_with_different_settings_build_different_programs() {
    let bench = Bench::new(PLENTY);
    let module = spirv_module();
    let key = |request: BuildRequest| block_on(request.into_future()).expect("it builds").key();
    let keys = [
        key(bench.request(&module)),
        key(bench.request(&module).specialize(7, 1u32)),
        key(bench.request(&module).specialize(7, 2u32)),
        key(bench.request(&module).options("-w")),
    ];
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    assert_eq!(key(bench.request(&module).specialize(7, 1u32).specialize(7, 2u32)), keys[2]);
    assert_eq!(key(bench.request(&module).options("-g").options("  -w ")), keys[3]);
    assert_eq!(bench.script.builds(), keys.len());
}

#[test]
fn drivers_get_the_options_that_the_key_covers() {
    let bench = Bench::new(PLENTY);
    let request = bench.request(&Module::opencl_c("kernel")).options(" -w\t -D A=1 ");
    block_on(request.into_future()).expect("it builds");
    assert_eq!(*bench.script.built.lock().expect("not poisoned"), ["kernel|-w -D A=1"]);
}

// ---- Programs and kernels -----------------------------------------------------------------------

#[test]
fn kernels_are_found_by_name() {
    let bench = Bench::new(PLENTY);
    let program = bench.build("kernel").expect("it builds");
    assert_eq!((program.kernel_names(), program.build_log()), (vec!["main"], "warning: fake"));
    // SAFETY: never launched.
    let [main, absent, nul] =
        ["main", "absent", "ma\0in"].map(|name| unsafe { program.kernel(name) });
    let main = main.expect("there is one");
    assert_eq!((main.name(), main.params().map(<[_]>::len)), ("main", Some(1)));
    let absent = absent.expect_err("there is none");
    assert_eq!(absent.kind(), ErrorKind::UnknownKernel);
    assert!(absent.to_string().contains("`absent`; it has: main"), "{absent}");
    assert_eq!(nul.expect_err("no name").kind(), ErrorKind::InvalidArgument);
}

#[test]
fn kernels_can_be_created_before_their_program_is_built() {
    let bench = Bench::new(PLENTY);
    bench.script.close();
    let build = bench.request(&Module::opencl_c("kernel")).start();
    // SAFETY: never launched.
    let [main, absent] = ["main", "absent"].map(|name| unsafe { build.kernel(name) });
    assert!(main.resolved().is_none() && main.params().is_none());
    bench.script.open();
    block_on(build).expect("it builds");
    assert!(main.resolved().is_some_and(|kernel| kernel.is_ok()));
    assert!(main.params().is_some());
    let error = absent.resolved().expect("the build ended").as_ref().err().expect("there is none");
    assert_eq!(error.kind(), ErrorKind::UnknownKernel);
    assert!(absent.params().is_none());
}

#[test]
fn parameters_unknown_to_the_driver_are_read_from_the_module() {
    let bench = Bench::new(PLENTY);
    let program = block_on(bench.request(&spirv_module()).into_future()).expect("it builds");
    // SAFETY: never launched.
    let kernel = unsafe { program.kernel("main") }.expect("there is one");
    let [parameter] = kernel.params().expect("it exists") else { panic!("one parameter") };
    assert_eq!(parameter.name.as_deref(), Some("n"));
    assert_eq!(parameter.address_space, Some(AddressSpace::Private));
}
