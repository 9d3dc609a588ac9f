//! Build options from three sources: the module, the environment of the process, and the request. Each is for
//! compiling or for linking.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::print_stdout, reason = "a process reports its results")]

mod errors;

use std::path::{Path, PathBuf};
use std::process::Command;

use futures::executor::block_on;
use kiln::build::Origin;
use kiln::devices::ModuleFormat;
use kiln::fusion::FusionOutcome;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, FusionMode, Module, Program, Runtime};
use serde::{Deserialize, Serialize};
use support::libraries;
use support::scopes;
use support::test_name;
use support::tools::has_clang;
use support::{builder, on_each_device};

/// Macros by which a kernel shows which sources its options come from, and which source is the last.
const MACROS: &str = "
#ifdef MODULE
#define FROM_MODULE 1
#else
#define FROM_MODULE 0
#endif
#ifdef REPLACED
#define FROM_REPLACED 2
#else
#define FROM_REPLACED 0
#endif
#ifdef APPENDED
#define FROM_APPENDED 4
#else
#define FROM_APPENDED 0
#endif
#ifdef CALL
#define FROM_CALL 8
#else
#define FROM_CALL 0
#endif
#ifndef LAST
#define LAST 0
#endif
#define SOURCES (float)(FROM_MODULE + FROM_REPLACED + FROM_APPENDED + FROM_CALL + 100 * LAST)
";

/// Options of each source, in the order in which they reach a compiler.
const MODULE: &str = "-D MODULE -D LAST=1";
const REPLACED: &str = "-D REPLACED -D LAST=2";
const APPENDED: &str = "-D APPENDED -D LAST=3";
const CALL: &str = "-D CALL -D LAST=4";

/// Options of OpenCL's linkers, one for each source.
const LINK: [&str; 4] = [
    "-cl-denorms-are-zero",
    "-cl-finite-math-only",
    "-cl-unsafe-math-optimizations",
    "-cl-fast-relaxed-math",
];

/// Options that PoCL's linker accepts: of OpenCL's own, it takes only those for libraries.
const LINK_OF_POCL: [&str; 4] = ["-w", "-D A=1", "-D B=1", "-D C=1"];

fn link_options(rt: &Runtime) -> [&'static str; 4] {
    if rt.device().common_name() == Some("pocl") { LINK_OF_POCL } else { LINK }
}

/// Environment variable with the [`Order`] of a process.
const ORDER: &str = "KILN_TEST_OPTIONS_ORDER";

/// Programs that a process is to build.
#[derive(Serialize, Deserialize)]
struct Order {
    device: usize,
    cache: Option<PathBuf>,
    jobs: Vec<Job>,
}

/// A program, and its options from the module and the call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Job {
    module: Option<String>,
    module_link: Option<String>,
    call: Option<String>,
    call_link: Option<String>,
    /// Options of a library with which the program is linked.
    library: Option<String>,
    is_untrusted: bool,
}

/// Outcome of a job.
#[derive(Debug, Serialize, Deserialize)]
struct Built {
    key: String,
    origin: String,
    /// Fields of the key that concern options.
    options: Vec<(String, String)>,
    /// Result of the kernel, or the error.
    value: Result<f32, String>,
}

impl Job {
    fn call(options: &str) -> Self {
        Self { call: Some(options.to_owned()), ..Self::default() }
    }

    fn of_module(options: &str) -> Self {
        Self { module: Some(options.to_owned()), ..Self::default() }
    }

    fn application(&self) -> Module {
        let (declaration, call, imports) = match self.library {
            Some(_) => {
                ("float in_library(float x);", " + 1000 * in_library(0)", &["in_library"][..])
            }
            None => ("", "", &[][..]),
        };
        let text = format!(
            "{MACROS}\n{declaration}\n\
             kernel void sources(global float *x) {{ x[get_global_id(0)] = SOURCES{call}; }}"
        );
        let mut module =
            Module::opencl_c(text).importing(imports.iter().copied()).with_label("app.cl");
        if let Some(options) = &self.module {
            module = module.with_options(options);
        }
        if let Some(options) = &self.module_link {
            module = module.with_link_options(options);
        }
        if self.is_untrusted { module.untrusted() } else { module }
    }

    /// Builds and runs the program. A library stays registered for the time of the build, and then the programs
    /// that were linked with it before are evicted from memory.
    async fn run(&self, rt: &Runtime) -> Built {
        let library = self.library.as_ref().map(|options| library(options));
        if let Some(library) = &library {
            assert!(rt.register(library).unwrap());
        }
        let mut request = rt.build(&self.application());
        if let Some(options) = &self.call {
            request = request.options(options);
        }
        if let Some(options) = &self.call_link {
            request = request.link_options(options);
        }
        let key = request.key().unwrap().to_string();
        let mut options = request.key_fields().unwrap();
        options.retain(|(name, _)| name.contains("options"));
        let built = request.await;
        if let Some(library) = &library {
            assert!(rt.unregister(library));
        }
        match built {
            Ok(program) => {
                assert_eq!(program.key().to_string(), key);
                let origin = program.origin().to_string();
                Built { key, origin, options, value: Ok(value(rt, &program).await) }
            }
            Err(error) => {
                let origin = "failed".to_owned();
                Built { key, origin, options, value: Err(error.to_string()) }
            }
        }
    }
}

fn library(options: &str) -> Module {
    let text = format!("{MACROS}\nfloat in_library(float x) {{ return x + SOURCES; }}");
    let module = Module::opencl_c(text).exporting(["in_library"]).with_label("library.cl");
    if options.is_empty() { module } else { module.with_options(options) }
}

async fn value(rt: &Runtime, program: &Program) -> f32 {
    // SAFETY: it writes one element a work-item.
    let kernel = unsafe { program.kernel("sources") }.unwrap();
    let x = rt.buffer::<f32>(1).unwrap();
    rt.queue().submit(kernel.launch(1).args((&x,))).unwrap();
    rt.queue().read(&x).await.unwrap()[0]
}

/// Carries out the order of a process.
#[test]
#[ignore = "run by the other tests of this file, in processes with other environments"]
fn process() {
    let order: Order = serde_json::from_str(&std::env::var(ORDER).unwrap()).unwrap();
    block_on(async {
        let cache = order.cache.map_or_else(CacheConfig::memory_only, CacheConfig::at);
        let rt = Runtime::builder().cache(cache).device(order.device.to_string());
        let rt = rt.build_child(env!("CARGO_BIN_EXE_kiln")).build().await.unwrap();
        for job in &order.jobs {
            println!("\nresult {}", serde_json::to_string(&job.run(&rt).await).unwrap());
        }
        rt.drain().await;
    });
}

/// Runs jobs in a process with these environment variables.
fn in_process(
    rt: &Runtime,
    cache: Option<&Path>,
    environment: &[(&str, &str)],
    jobs: Vec<Job>,
) -> Vec<Built> {
    let count = jobs.len();
    let order = Order { device: rt.device().index(), cache: cache.map(Path::to_owned), jobs };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test_name!("process"), "--ignored", "--nocapture"])
        .env(ORDER, serde_json::to_string(&order).unwrap())
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("result "));
    let built: Vec<_> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(built.len(), count);
    built
}

/// A combination of sources that have options.
#[derive(Clone, Copy, Debug)]
struct Sources {
    module: bool,
    replaced: bool,
    appended: bool,
    call: bool,
}

impl Sources {
    /// Returns every combination with these variables.
    fn with_variables(replaced: bool, appended: bool) -> impl Iterator<Item = Self> {
        let of =
            move |bits: u8| Self { module: bits & 1 != 0, replaced, appended, call: bits & 2 != 0 };
        (0..4).map(of)
    }

    /// Returns the options of the sources in effect, with the names of these.
    fn effective<'a>(self, options: [&'a str; 4], kind: &str) -> Vec<(String, &'a str)> {
        let [module, replaced, appended, call] = options;
        let variable = |prefix: &str| format!("KILN_{prefix}{}_OPTIONS", kind.to_uppercase());
        [
            (self.module && !self.replaced).then(|| ("the module".to_owned(), module)),
            self.replaced.then(|| (variable(""), replaced)),
            self.appended.then(|| (variable("APPEND_"), appended)),
            self.call.then(|| ("the call".to_owned(), call)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn text(parts: &[(String, &str)]) -> String {
    parts.iter().map(|(_, text)| *text).collect::<Vec<_>>().join(" ")
}

/// Returns the value of [`MACROS`] for options.
fn shown(parts: &[(String, &str)]) -> f32 {
    let all = [MODULE, REPLACED, APPENDED, CALL];
    let numbers = parts.iter().map(|(_, text)| all.iter().position(|known| known == text).unwrap());
    let numbers: Vec<_> = numbers.collect();
    let bits: u32 = numbers.iter().map(|number| 1 << number).sum();
    (bits + 100 * numbers.last().map_or(0, |last| *last as u32 + 1)) as f32
}

/// Returns the fields that name sources, as `options from SOURCE` or `link options from SOURCE`.
fn named<'a>(built: &'a Built, prefix: &str) -> Vec<(String, &'a str)> {
    let named = built
        .options
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value.as_str())));
    named.collect()
}

/// Runs a test on each device that takes OpenCL C and links it.
fn on_linkers(test: impl AsyncFn(Runtime)) {
    block_on(on_each_device(async |rt| {
        if rt.device().links.contains(&ModuleFormat::OpenClC) {
            test(rt).await;
        }
    }));
}

const VARIABLES: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

#[test]
fn options_for_compiling_combine_module_environment_and_call() {
    on_linkers(async |rt| {
        for (replaced, appended) in VARIABLES {
            let sources: Vec<_> = Sources::with_variables(replaced, appended).collect();
            let job = |sources: &Sources| Job {
                module: sources.module.then(|| MODULE.to_owned()),
                call: sources.call.then(|| CALL.to_owned()),
                ..Job::default()
            };
            let linked = |job: Job| Job { library: Some(MODULE.to_owned()), ..job };
            let jobs: Vec<_> = sources.iter().map(job).collect();
            let jobs = [jobs.clone(), jobs.into_iter().map(linked).collect()].concat();
            let mut environment = Vec::new();
            environment.extend(replaced.then_some(("KILN_COMPILE_OPTIONS", REPLACED)));
            environment.extend(appended.then_some(("KILN_APPEND_COMPILE_OPTIONS", APPENDED)));
            let built = in_process(&rt, None, &environment, jobs);
            let (alone, linked) = built.split_at(sources.len());

            for ((sources, alone), linked) in sources.iter().zip(alone).zip(linked) {
                let own = sources.effective([MODULE, REPLACED, APPENDED, CALL], "compile");
                assert_eq!(alone.value, Ok(shown(&own)), "{sources:?}");
                // A request with all of these options has the same key.
                let plain = Job::call(&text(&own));
                let request = rt.build(&plain.application()).options(&text(&own));
                assert_eq!(alone.key, request.key().unwrap().to_string(), "{sources:?}");
                if own.iter().any(|(name, _)| name != "the call") {
                    assert_eq!(named(alone, "options from "), own, "{sources:?}");
                } else {
                    assert!(named(alone, "options from ").is_empty(), "{sources:?}");
                }

                // The library has its own options, those of the environment, and none of the call.
                let library = Sources { module: true, call: false, ..*sources };
                let library = library.effective([MODULE, REPLACED, APPENDED, CALL], "compile");
                let value = shown(&own) + 1000.0 * shown(&library);
                assert_eq!(linked.value, Ok(value), "{sources:?}");
                let texts = linked.options.iter().filter(|(name, _)| name == "options");
                let mut texts: Vec<_> = texts.map(|(_, text)| text.clone()).collect();
                let mut expected = vec![text(&own), text(&library)];
                expected.retain(|text| !text.is_empty());
                texts.sort();
                expected.sort();
                assert_eq!(texts, expected, "{sources:?}");
            }
        }
    });
}

#[test]
fn options_for_linking_combine_module_environment_and_call() {
    on_linkers(async |rt| {
        let link = link_options(&rt);
        for (replaced, appended) in VARIABLES {
            let sources: Vec<_> = Sources::with_variables(replaced, appended).collect();
            let job = |sources: &Sources| Job {
                module: Some(MODULE.to_owned()),
                module_link: sources.module.then(|| link[0].to_owned()),
                call_link: sources.call.then(|| link[3].to_owned()),
                ..Job::default()
            };
            let linked = |job: Job| Job { library: Some(MODULE.to_owned()), ..job };
            let jobs: Vec<_> = sources.iter().map(job).collect();
            let jobs = [jobs.clone(), jobs.into_iter().map(linked).collect()].concat();
            let mut environment = Vec::new();
            environment.extend(replaced.then_some(("KILN_LINK_OPTIONS", link[1])));
            environment.extend(appended.then_some(("KILN_APPEND_LINK_OPTIONS", link[2])));
            let built = in_process(&rt, None, &environment, jobs);
            let (alone, linked) = built.split_at(sources.len());

            for ((sources, alone), linked) in sources.iter().zip(alone).zip(linked) {
                let own = sources.effective(link, "link");
                // One call that compiles and links gets both.
                let both = [MODULE, &text(&own)].join(" ");
                let request = rt.build(&Job::default().application()).options(both.trim_end());
                assert_eq!(alone.key, request.key().unwrap().to_string(), "{sources:?}");
                assert_eq!(alone.value, Ok(101.0), "{sources:?}");
                assert_eq!(named(alone, "options from "), [("the module".to_owned(), MODULE)]);
                assert_eq!(named(alone, "link options from "), own, "{sources:?}");

                // The linker gets its options alone, and the objects are compiled without them.
                assert_eq!(linked.value, Ok(101.0 + 1000.0 * 101.0), "{sources:?}");
                assert_eq!(named(linked, "link options from "), own, "{sources:?}");
                let values = |name: &str| {
                    let all = linked.options.iter().filter(|(known, _)| known == name);
                    all.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
                };
                assert_eq!(values("options"), [MODULE, MODULE], "{sources:?}");
                let text = text(&own);
                let expected = if text.is_empty() { vec![] } else { vec![&*text] };
                assert_eq!(values("link options"), expected, "{sources:?}");
            }
        }
    });
}

#[test]
fn programs_are_found_again_for_equal_options_from_any_source() {
    on_linkers(async |rt| {
        let folder = tempfile::tempdir().unwrap();
        let start = async || {
            let cache = CacheConfig::at(folder.path());
            let rt = Runtime::builder().cache(cache).device(rt.device().index().to_string());
            rt.build().await.unwrap()
        };
        let both = format!("{MODULE} {CALL}");
        let call = || Job::call(CALL);
        let jobs = [
            // Equal options.
            [Job::call(&both), Job { module: Some(format!(" {MODULE}\t")), ..call() }],
            [Job::of_module(&both), Job { call_link: Some(CALL.to_owned()), ..Job::call(MODULE) }],
            // Other options: one source alone, and another order.
            [Job::default(), call()],
            [Job::of_module(MODULE), Job { module: Some(CALL.to_owned()), ..Job::call(MODULE) }],
        ];
        let origins = [["compiled", "memory"], ["memory"; 2], ["compiled"; 2], ["compiled"; 2]];
        let first = start().await;
        for (job, origin) in jobs.iter().flatten().zip(origins.iter().flatten()) {
            let built = job.run(&first).await;
            assert_eq!(built.origin, *origin, "{job:?}");
        }
        first.drain().await;
        for job in jobs.iter().flatten() {
            let second = start().await;
            assert_eq!(job.run(&second).await.origin, "disk", "{job:?}");
        }
    });
}

#[test]
fn linked_programs_are_found_again_for_equal_options_only() {
    on_linkers(async |rt| {
        let link = link_options(&rt);
        let job = |library: &str, link: &str| Job {
            library: Some(library.to_owned()),
            call_link: Some(link.to_owned()),
            ..Job::default()
        };
        let of_module = Job {
            library: Some(MODULE.to_owned()),
            module_link: Some(link[0].to_owned()),
            ..Job::default()
        };
        // Objects are shared by programs that differ in the options of the linker alone.
        for (job, origin, compiles, links) in [
            (job(MODULE, ""), "compiled", 2, 1),
            (job(MODULE, " "), "memory", 2, 1),
            (job(MODULE, link[0]), "compiled", 2, 2),
            (of_module, "memory", 2, 2),
            (job(MODULE, link[1]), "compiled", 2, 3),
            (job(CALL, link[1]), "compiled", 3, 4),
        ] {
            assert_eq!(job.run(&rt).await.origin, origin, "{job:?}");
            let stats = rt.stats();
            assert_eq!((stats.builds.compiles, stats.builds.links), (compiles, links), "{job:?}");
        }
    });
}

#[test]
fn processes_with_different_environments_share_only_what_is_equal() {
    on_linkers(async |rt| {
        let link = link_options(&rt);
        let folder = tempfile::tempdir().unwrap();
        let origins = |environment: &[(&str, &str)]| {
            let linked = Job { library: Some(String::new()), ..Job::default() };
            let jobs = vec![Job::default(), Job::of_module(MODULE), Job::call(CALL), linked];
            let built = in_process(&rt, Some(folder.path()), environment, jobs);
            built.into_iter().map(|built| built.origin).collect::<Vec<_>>()
        };
        let (compiled, disk) = ("compiled", "disk");
        assert_eq!(origins(&[]), [compiled; 4]);
        assert_eq!(origins(&[]), [disk; 4]);
        // With a replacement, the module's options do not matter.
        let replaced = [("KILN_COMPILE_OPTIONS", REPLACED)];
        assert_eq!(origins(&replaced), [compiled, "memory", compiled, compiled]);
        assert_eq!(origins(&replaced), [disk, "memory", disk, disk]);
        // The addition is what the call was before, for the first job.
        let appended = [("KILN_APPEND_COMPILE_OPTIONS", CALL)];
        assert_eq!(origins(&appended), [disk, compiled, compiled, compiled]);
        // A variable that is empty counts as unset, and a blank one removes the module's options.
        assert_eq!(origins(&[("KILN_COMPILE_OPTIONS", "")]), [disk; 4]);
        let blank = origins(&[("KILN_COMPILE_OPTIONS", " ")]);
        assert_eq!(blank, [disk, "memory", disk, disk]);
        let linked = [("KILN_APPEND_LINK_OPTIONS", link[0])];
        assert_eq!(origins(&linked), [compiled; 4]);
        assert_eq!(origins(&[]), [disk; 4], "the others are unchanged");

        // The trace lists the sources, also if the program is that of another source.
        let trace = folder.path().join("trace");
        origins(&[appended[0], ("KILN_CACHE_TRACE", trace.to_str().unwrap())]);
        let trace = std::fs::read_to_string(trace).unwrap();
        let line = trace.lines().find(|line| !line.contains("the module")).unwrap();
        let source = format!(r#"["options from KILN_APPEND_COMPILE_OPTIONS","{CALL}"]"#);
        assert_says(line, &["\"disk\"", &source]);
    });
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

async fn simulated(simulator: &Simulator) -> Runtime {
    builder().simulator(simulator).build().await.unwrap()
}

#[test]
fn modules_that_are_merged_are_compiled_with_the_options_of_the_requested_one() {
    block_on(async {
        let simulator = Simulator::immediate();
        let rt = simulated(&simulator).await;
        let spirv = |functions: &[libraries::Function<'_>], kernels: &[(&str, &[&str])]| {
            libraries::module(ModuleFormat::SpirV, functions, kernels)
        };
        let library = spirv(&[libraries::function("scale")], &[]);
        rt.register(&library.with_options(LINK[1])).unwrap();
        let application = spirv(&[], &[("apply", &["scale"])]).with_options("-w");
        let request = rt.build(&application).options("-g").link_options(LINK[0]);
        let mut fields = request.key_fields().unwrap();
        fields.retain(|(name, _)| name.contains("options"));
        let expected = [
            ("options", format!("-w -g {}", LINK[0])),
            ("options from the module", "-w".to_owned()),
            ("options from the call", "-g".to_owned()),
            ("link options from the call", LINK[0].to_owned()),
        ];
        assert_eq!(fields, expected.map(|(name, value)| (name.to_owned(), value)));
        request.await.unwrap();
        let again = rt.build(&application.with_options(format!("-w -g {}", LINK[0])));
        assert_eq!(again.await.unwrap().origin(), Origin::Memory);
        assert_eq!(simulator.counts().builds, 1);
    });
}

#[test]
fn native_binaries_are_loaded_without_the_options_of_the_environment() {
    on_linkers(async |rt| {
        let program = rt.build(&Job::call(CALL).application()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program.bin");
        std::fs::write(&file, program.binary().unwrap()).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
            .args(["build", "--json", file.to_str().unwrap()])
            .env("KILN_DEVICE", rt.device().index().to_string())
            .env("KILN_CACHE", "memory")
            .env("KILN_APPEND_COMPILE_OPTIONS", "--frobnicate")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("\"sources\"") && text.contains("\"options\":[]"), "{text}");
    });
}

#[test]
fn untrusted_modules_are_compiled_and_linked_with_all_options_in_a_child() {
    on_linkers(async |rt| {
        let untrusted = Job {
            module_link: Some(link_options(&rt)[0].to_owned()),
            library: Some(MODULE.to_owned()),
            is_untrusted: true,
            ..Job::call(CALL)
        };
        let bad = Job { module_link: Some("--frobnicate".to_owned()), ..untrusted.clone() };
        let alone = Job { library: None, ..untrusted.clone() };
        let environment = [("KILN_APPEND_COMPILE_OPTIONS", APPENDED)];
        let trusted = Job { is_untrusted: false, ..untrusted.clone() };
        let jobs = vec![untrusted, trusted, bad, alone];
        let [linked, trusted, bad, alone] = &in_process(&rt, None, &environment, jobs)[..] else {
            panic!("four were built");
        };
        assert_eq!(linked.value, Ok(412.0 + 1000.0 * 305.0));
        assert_eq!((&*trusted.origin, &trusted.key), ("memory", &linked.key));
        assert_eq!(alone.value, Ok(412.0));
        let error = bad.value.as_ref().expect_err("it is refused");
        assert_says(error, &["`--frobnicate` comes from the link options of ", "`app.cl`"]);
    });
}

#[test]
fn options_that_a_producer_recorded_are_those_of_the_module() {
    let recorded = Module::spirv(recorded_module()).unwrap();
    assert_eq!(recorded.options(), Some("-cl-denorms-are-zero -cl-mad-enable"));
    block_on(on_each_device(async |rt| {
        if !rt.device().formats.contains(&ModuleFormat::SpirV) {
            return;
        }
        let fields = rt.build(&recorded).options("-w").key_fields().unwrap();
        let field = |name: &str| fields.iter().find(|(known, _)| known == name).cloned();
        let (_, options) = field("options").unwrap();
        assert_eq!(options, "-cl-denorms-are-zero -cl-mad-enable -w");
        let (_, own) = field("options from the module's record").unwrap();
        assert_eq!(own, "-cl-denorms-are-zero -cl-mad-enable");
        // The application's options for the module replace the record.
        let stated = rt.build(&recorded.clone().with_options("-w")).key().unwrap();
        assert_eq!(
            stated,
            rt.build(&recorded.clone().with_options("")).options("-w").key().unwrap()
        );
    }));
}

/// Returns a module with a kernel and a record of the command line that made it.
fn recorded_module() -> Vec<u8> {
    use rspirv::binary::Assemble;
    use rspirv::dr::{Builder, Instruction, Operand};
    use rspirv::spirv::{
        AddressingModel, Capability, ExecutionModel, FunctionControl, MemoryModel, Op,
    };
    const COMMAND: &str = "/usr/bin/clang -x cl -D N=2 -cl-denorms-are-zero -O2 -cl-std=CL2.0 \
                           -cl-mad-enable -I a\\ -cl-opt-disable k.cl";
    let mut b = Builder::new();
    b.set_version(1, 2);
    for capability in [Capability::Addresses, Capability::Kernel] {
        b.capability(capability);
    }
    b.extension("SPV_KHR_non_semantic_info");
    let set = b.ext_inst_import("NonSemantic.Shader.DebugInfo.200");
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let [producer, command] = ["clang", COMMAND].map(|text| b.string(text));
    let void = b.type_void();
    let of_nothing = b.type_function(void, []);
    let operands = [producer, producer, producer, command].map(Operand::IdRef);
    let instruction = [Operand::IdRef(set), Operand::LiteralExtInstInteger(107)];
    let (id, operands) = (b.id(), [&instruction[..], &operands].concat());
    let record = Instruction::new(Op::ExtInst, Some(void), Some(id), operands);
    b.module_mut().types_global_values.push(record);
    let kernel = b.begin_function(void, None, FunctionControl::NONE, of_nothing).unwrap();
    b.begin_block(None).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::Kernel, kernel, "nothing", []);
    b.module().assemble().iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn launches_are_fused_with_the_options_of_their_modules() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt| {
        let rt = scopes::with_mode(&rt, FusionMode::Relaxed).await;
        let text = "kernel void scale(global const float *from, global float *to) {
            to[get_global_id(0)] = FACTOR * from[get_global_id(0)];
        }";
        let module =
            Module::opencl_c(text).with_options("-D FACTOR=3.0f").with_link_options(LINK[0]);
        let program = rt.build(&module).await.unwrap();
        // SAFETY: a work-item touches its own elements.
        let scale = unsafe { program.kernel("scale") }.unwrap();
        let x = rt.buffer_from(vec![1.0f32; 64]).await.unwrap();
        let [y, z] = [(); 2].map(|()| rt.buffer::<f32>(64).unwrap());
        let scope = rt.queue().start_fusion();
        scope.require();
        scope.submit(scale.launch(64).args((&x, &y))).unwrap();
        scope.submit(scale.launch(64).args((&y, &z))).unwrap();
        drop(y);
        let outcome = scope.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Fused { .. }), "{outcome}");
        assert_eq!(rt.queue().read(&z).await.unwrap(), [9.0; 64]);
    }));
}
