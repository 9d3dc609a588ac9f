//! Build manifests: what one process records is built ahead for others, which then compile nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::{StreamExt, future};
use kiln::build::Origin;
use kiln::devices::ModuleFormat;
use kiln::manifest::{BuildManifest, EntryKind, Warm, WarmOutcome, WarmProgress};
use kiln::simulated::Simulator;
use kiln::{CacheConfig, ErrorKind, FusionMode, Module, Runtime};
use support::children::{Child, variable};
use support::everywhere;
use support::libraries;
use support::libraries::function;
use support::scopes;
use support::simulation::eventually;
use support::specialized::specialized;
use support::test_name;
use support::{SAXPY, under_executors};
use tempfile::TempDir;

/// Folder with a manifest and the stores of several machines.
struct Fleet(TempDir);

impl Fleet {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn manifest(&self) -> PathBuf {
        self.0.path().join("service.manifest")
    }

    /// Returns the configuration of a cache in the folder of a machine.
    fn cache(&self, machine: &str) -> CacheConfig {
        CacheConfig::at(self.0.path().join(machine))
    }

    /// Starts a runtime with the store of a machine, on the same device as another.
    async fn start(&self, machine: &str, like: &Runtime) -> Runtime {
        let builder = Runtime::builder().cache(self.cache(machine)).fusion(FusionMode::Auto);
        let builder = builder.build_child(env!("CARGO_BIN_EXE_kiln"));
        builder.device(like.device().index().to_string()).build().await.unwrap()
    }

    /// Starts a runtime that has the store of a machine and records a manifest.
    async fn start_recording(&self, machine: &str, like: &Runtime) -> Runtime {
        let rt = self.start(machine, like).await;
        rt.record_manifest(self.manifest()).await.unwrap();
        rt
    }

    async fn open(&self) -> BuildManifest {
        let manifest = BuildManifest::open(self.manifest()).await.unwrap();
        assert_eq!(manifest.damaged_lines(), 0, "{manifest:?}");
        manifest
    }
}

/// Awaits the end of building ahead.
async fn ended(warm: Warm) -> Vec<WarmProgress> {
    let all: Vec<_> = warm.collect().await;
    let done: Vec<_> = all.iter().map(|progress| progress.done).collect();
    assert_eq!(done, (1..=all.len()).collect::<Vec<_>>());
    assert!(all.iter().all(|progress| progress.total == all.len()));
    all
}

/// Counts the outcomes by what they are.
fn counted(all: &[WarmProgress]) -> [usize; 5] {
    let mut counts = [0; 5];
    for progress in all {
        counts[match &progress.outcome {
            WarmOutcome::Found(_) => 0,
            WarmOutcome::Made => 1,
            WarmOutcome::Missing => 2,
            WarmOutcome::Skipped(_) => 3,
            WarmOutcome::Failed(error) => panic!("{}: {error}", progress.entry),
            other => panic!("{}: {other:?}", progress.entry),
        }] += 1;
    }
    counts
}

/// Reasons why entries were skipped.
fn skipped(all: &[WarmProgress]) -> Vec<&str> {
    let reason = |progress| match progress {
        &WarmProgress { outcome: WarmOutcome::Skipped(ref reason), .. } => Some(reason.as_str()),
        _ => None,
    };
    all.iter().filter_map(reason).collect()
}

const FOUND: usize = 0;
const MADE: usize = 1;
const MISSING: usize = 2;
const SKIPPED: usize = 3;

/// Builds programs of all kinds: with options, with constants, linked, and from untrusted text.
async fn build_all_kinds(rt: &Runtime) {
    let saxpy = Module::opencl_c(SAXPY).with_label("saxpy.cl");
    rt.build(&saxpy).options("-cl-fast-relaxed-math").await.unwrap();
    rt.build(&specialized()).specialize(7, 17u32).await.unwrap();
    // An imitated GPU is not there for the child.
    if rt.device().backend == "opencl" {
        let module = Module::opencl_c(SAXPY.replace("saxpy", "other")).untrusted();
        rt.build(&module).await.unwrap();
    }
    for format in [ModuleFormat::OpenClC, ModuleFormat::SpirV] {
        let (tone, kernel) = match format {
            ModuleFormat::SpirV => ("spirv_tone", "apply_spirv_tone"),
            _ => ("text_tone", "apply_text_tone"),
        };
        let library = libraries::module(format, &[function(tone).times(3.0)], &[]);
        rt.register(&library).unwrap();
        let application = libraries::module(format, &[], &[(kernel, &[tone])]);
        let program = rt.build(&application).await.unwrap();
        assert_eq!(program.kernel_names(), [kernel]);
    }
}

everywhere! {
    async fn programs_of_all_kinds_are_not_compiled_again(rt: Runtime) {
        let fleet = Fleet::new();
        let recording = fleet.start_recording("first", &rt).await;
        build_all_kinds(&recording).await;
        recording.drain().await;
        let made = recording.stats().builds.compiles;
        assert!(made > 0);

        // A machine without any program builds all of them ahead.
        let manifest = fleet.open().await;
        let builder = fleet.start("second", &rt).await;
        let all = ended(builder.warm(&manifest).into_caches()).await;
        assert!(counted(&all)[MADE] > 0, "{all:?}");
        assert_eq!(counted(&all)[SKIPPED], 0, "{all:?}");
        builder.drain().await;

        // The check finds them, and so does the service.
        let service = fleet.start("second", &rt).await;
        let all = ended(service.warm(&manifest).check()).await;
        assert_eq!(counted(&all)[FOUND], all.len(), "{all:?}");
        build_all_kinds(&service).await;
        assert_eq!(service.stats().builds.compiles, 0);

        // With the programs in memory, the service does not even read the disk.
        let service = fleet.start("second", &rt).await;
        let all = ended(service.warm(&manifest)).await;
        assert_eq!(counted(&all)[FOUND], all.len(), "{all:?}");
        let before = service.stats();
        assert_eq!(before.builds.compiles, 0);
        build_all_kinds(&service).await;
        assert_eq!(service.stats().disk.hits, before.disk.hits);
        assert_eq!(service.stats().builds.compiles, 0);
    }
}

/// Runs launches that can be fused. Returns whether the fastest way to run them was known each time.
async fn run_scopes(rt: &Runtime, times: usize) -> bool {
    let chain = scopes::Chain::new(rt, (0..4096).map(|n| n as f32).collect(), 3.0).await;
    let mut is_known = true;
    for _ in 0..times {
        chain.queue.fill(&chain.dst, -1.0).unwrap();
        let (fusion, _) = chain.begin();
        fusion.complete().await.unwrap();
        assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result());
        // The times of a run are reported after its results.
        rt.drain().await;
        let report = fusion.report();
        is_known &= report.parts().iter().all(|part| part.ways.iter().any(|way| way.is_chosen));
    }
    is_known
}

everywhere! {
    async fn fused_kernels_and_the_choices_between_them_are_built_ahead(rt: Runtime) {
        let fleet = Fleet::new();
        let recording = fleet.start_recording("first", &rt).await;
        let is_choice = |entry: &kiln::manifest::ManifestEntry| entry.kind() == EntryKind::Choice;
        let mut manifest = BuildManifest::default();
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline && !manifest.entries().iter().any(is_choice) {
            run_scopes(&recording, 10).await;
            manifest = fleet.open().await;
        }
        assert!(manifest.entries().iter().any(is_choice), "the trials end: {manifest:?}");

        let builder = fleet.start("second", &rt).await;
        let all = ended(builder.warm(&manifest).into_caches()).await;
        assert_eq!(counted(&all)[SKIPPED], 0, "{all:?}");
        builder.drain().await;

        let service = fleet.start("second", &rt).await;
        assert!(run_scopes(&service, 3).await, "the choice was known");
        assert_eq!(service.stats().builds.compiles, 0, "{all:?}");
    }
}

/// Defines a test of the simulated device that runs under each executor.
macro_rules! simulated {
    ($(async fn $name:ident() $body:block)*) => {
        $(
            #[test]
            fn $name() {
                under_executors(|| async move { $body });
            }
        )*
    };
}

async fn simulated(cache: CacheConfig, simulator: &Simulator) -> Runtime {
    Runtime::builder().simulator(simulator).cache(cache).build().await.unwrap()
}

fn module(number: usize) -> Module {
    let text = format!("kernel void k{number}(global uint *x) {{ x[0] = {number}; }}");
    Module::opencl_c(text).with_label(format!("k{number}.cl"))
}

/// Builds these programs, and returns once they are recorded.
async fn build_and_drain(rt: &Runtime, numbers: impl IntoIterator<Item = usize>) {
    for number in numbers {
        rt.build(&module(number)).await.unwrap();
    }
    rt.drain().await;
}

/// Returns the names of a manifest's entries, in the order of building.
fn names(manifest: &BuildManifest) -> Vec<String> {
    manifest.entries().iter().map(ToString::to_string).collect()
}

simulated! {
    async fn entries_have_the_order_and_the_number_of_their_uses() {
        let (fleet, simulator) = (Fleet::new(), Simulator::immediate());
        for (run, numbers) in [vec![1, 0, 2, 3], vec![0], vec![2, 0]].into_iter().enumerate() {
            let rt = simulated(fleet.cache(&run.to_string()), &simulator).await;
            rt.record_manifest(fleet.manifest()).await.unwrap();
            build_and_drain(&rt, numbers).await;
            for _ in 0..5 {
                rt.build(&module(0)).await.unwrap();
            }
            rt.drain().await;
        }
        let manifest = fleet.open().await;
        assert_eq!(names(&manifest), ["k0.cl", "k2.cl", "k1.cl", "k3.cl"]);
        let counts = |entry: &kiln::manifest::ManifestEntry| (entry.runs(), entry.uses());
        let counts: Vec<_> = manifest.entries().iter().map(counts).collect();
        assert_eq!(counts, [(3, 18), (2, 2), (1, 1), (1, 1)]);
    }

    async fn failures_and_forgotten_programs_are_not_recorded() {
        let (fleet, simulator) = (Fleet::new(), Simulator::immediate());
        let rt = simulated(fleet.cache("first"), &simulator).await;
        build_and_drain(&rt, [0]).await;
        rt.record_manifest(fleet.manifest()).await.unwrap();
        rt.build(&Module::opencl_c("#error no")).await.unwrap_err();
        build_and_drain(&rt, [1]).await;
        assert_eq!(names(&fleet.open().await), ["k1.cl"]);
        // A program that was built before the recording is recorded when it is used again.
        build_and_drain(&rt, [0]).await;
        assert_eq!(names(&fleet.open().await), ["k1.cl", "k0.cl"]);
    }

    async fn building_ahead_is_no_use() {
        let (fleet, simulator) = (Fleet::new(), Simulator::immediate());
        let rt = simulated(fleet.cache("first"), &simulator).await;
        rt.record_manifest(fleet.manifest()).await.unwrap();
        build_and_drain(&rt, 0..3).await;

        let manifest = fleet.open().await;
        let other = simulated(fleet.cache("second"), &simulator).await;
        other.record_manifest(fleet.manifest()).await.unwrap();
        assert_eq!(counted(&ended(other.warm(&manifest)).await)[MADE], 3);
        build_and_drain(&other, [1]).await;
        let manifest = fleet.open().await;
        assert_eq!(names(&manifest)[0], "k1.cl");
        let runs: Vec<_> = manifest.entries().iter().map(kiln::manifest::ManifestEntry::runs).collect();
        assert_eq!(runs, [2, 1, 1]);
    }

    async fn a_check_compiles_and_stores_nothing() {
        let (fleet, simulator) = (Fleet::new(), Simulator::immediate());
        let rt = simulated(fleet.cache("first"), &simulator).await;
        rt.record_manifest(fleet.manifest()).await.unwrap();
        build_and_drain(&rt, 0..8).await;

        let manifest = fleet.open().await;
        let other = simulated(fleet.cache("second"), &simulator).await;
        build_and_drain(&other, 0..3).await;
        let all = ended(other.warm(&manifest).check()).await;
        assert_eq!((counted(&all)[FOUND], counted(&all)[MISSING]), (3, 5), "{all:?}");
        other.drain().await;
        assert_eq!(other.stats().builds.compiles, 3);

        let fresh = simulated(fleet.cache("second"), &simulator).await;
        let all = ended(fresh.warm(&manifest).check()).await;
        assert_eq!((counted(&all)[FOUND], counted(&all)[MISSING]), (3, 5), "{all:?}");
        assert_eq!(fresh.stats().builds.compiles, 0);
    }

    async fn entries_of_other_devices_are_skipped_by_name() {
        let (fleet, simulator) = (Fleet::new(), Simulator::immediate());
        let rt = simulated(fleet.cache("first"), &simulator).await;
        rt.record_manifest(fleet.manifest()).await.unwrap();
        build_and_drain(&rt, 0..2).await;
        let text = fs::read_to_string(fleet.manifest()).unwrap();
        let device = rt.device().name.clone();
        fs::write(fleet.manifest(), text.replace(&format!("\"{device}\""), "\"Other GPU\"")).unwrap();
        // The id of the device differs as well.
        let manifest = fleet.open().await;
        let id = manifest.entries()[0].device().to_owned();
        assert_eq!(id, "Other GPU");
        let text = fs::read_to_string(fleet.manifest()).unwrap();
        let line = text.lines().find(|line| line.starts_with("{\"device\"")).unwrap();
        let recorded: serde_json::Value = serde_json::from_str(line).unwrap();
        let recorded = recorded["device"]["id"].as_str().unwrap().to_owned();
        fs::write(fleet.manifest(), text.replace(&recorded, "00112233445566ff")).unwrap();
        let all = ended(rt.warm(&fleet.open().await)).await;
        assert_eq!(skipped(&all), ["there is no device `Other GPU` here"; 2]);
    }

    async fn a_driver_of_another_version_builds_the_programs_for_itself() {
        let (fleet, simulator) = (Fleet::new(), Simulator::immediate());
        let rt = simulated(fleet.cache("first"), &simulator).await;
        rt.record_manifest(fleet.manifest()).await.unwrap();
        build_and_drain(&rt, 0..2).await;
        // As if the version of the driver, and so the id of the device, had been another.
        let text = fs::read_to_string(fleet.manifest()).unwrap();
        let line = text.lines().find(|line| line.starts_with("{\"device\"")).unwrap();
        let recorded: serde_json::Value = serde_json::from_str(line).unwrap();
        let recorded = recorded["device"]["id"].as_str().unwrap().to_owned();
        fs::write(fleet.manifest(), text.replace(&recorded, "00112233445566ff")).unwrap();

        let other = simulated(fleet.cache("second"), &simulator).await;
        let all = ended(other.warm(&fleet.open().await)).await;
        assert_eq!(counted(&all)[MADE], 2, "{all:?}");
        build_and_drain(&other, 0..2).await;
        assert_eq!(other.stats().builds.compiles, 2);
    }

    async fn several_runtimes_record_into_one_file() {
        let (fleet, simulator) = (Fleet::new(), Simulator::immediate());
        let runs = (0..8).map(|run| {
            let (fleet, simulator) = (&fleet, &simulator);
            async move {
                let rt = simulated(fleet.cache(&run.to_string()), simulator).await;
                rt.record_manifest(fleet.manifest()).await.unwrap();
                build_and_drain(&rt, run..run + 20).await;
            }
        });
        future::join_all(runs).await;
        let manifest = fleet.open().await;
        assert_eq!(manifest.entries().len(), 27);
        let runs: usize = manifest.entries().iter().map(kiln::manifest::ManifestEntry::runs).sum();
        assert_eq!(runs, 8 * 20);
    }

    async fn a_dropped_stream_builds_no_further_entry() {
        let (fleet, simulator) = (Fleet::new(), Simulator::immediate());
        let rt = simulated(fleet.cache("first"), &simulator).await;
        rt.record_manifest(fleet.manifest()).await.unwrap();
        build_and_drain(&rt, 0..200).await;
        let other = simulated(fleet.cache("second"), &simulator).await;
        drop(other.warm(&fleet.open().await));
        other.drain().await;
        assert_eq!(other.stats().builds.compiles, 0, "nothing starts before the stream is polled");
        let mut warm = other.warm(&fleet.open().await);
        warm.next().await.unwrap();
        drop(warm);
        other.drain().await;
        assert!(other.stats().builds.compiles < 200, "{}", other.stats().builds.compiles);
    }

    async fn a_manifest_that_cannot_be_written_is_an_error() {
        let (fleet, simulator) = (Fleet::new(), Simulator::immediate());
        let rt = simulated(fleet.cache("first"), &simulator).await;
        let folder = fleet.0.path().join("absent/service.manifest");
        let error = rt.record_manifest(&folder).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains(&*folder.to_string_lossy()), "{error}");
    }
}

/// Builds a program whose text includes a file.
async fn build_including(rt: &Runtime, folder: &Path) {
    let module =
        Module::opencl_c("#include \"factor.h\"\nkernel void f(global int *x) { *x = F; }");
    let options = format!("-I {}", folder.display());
    rt.build(&module).options(&options).await.unwrap();
    rt.drain().await;
}

/// Records a program whose text includes a file. Returns the folder of the file.
async fn recorded_including(fleet: &Fleet, rt: &Runtime) -> PathBuf {
    let folder = fleet.0.path().join("include");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("factor.h"), "#define F 3").unwrap();
    let recording = fleet.start_recording("first", rt).await;
    build_including(&recording, &folder).await;
    folder
}

everywhere! {
    async fn texts_whose_included_files_changed_are_skipped(rt: Runtime) {
        let fleet = Fleet::new();
        let folder = recorded_including(&fleet, &rt).await;

        let manifest = fleet.open().await;
        let same = fleet.start("second", &rt).await;
        let all = ended(same.warm(&manifest)).await;
        assert_eq!(counted(&all)[SKIPPED], 0, "{all:?}");
        let made = same.stats().builds.compiles;
        build_including(&same, &folder).await;
        assert_eq!(same.stats().builds.compiles, made);

        for content in [Some("#define F 4"), None] {
            match content {
                Some(content) => fs::write(folder.join("factor.h"), content).unwrap(),
                None => fs::remove_file(folder.join("factor.h")).unwrap(),
            }
            let other = fleet.start("third", &rt).await;
            let mut all = ended(other.warm(&manifest)).await;
            // The text of a translation to SPIR-V contains the files.
            all.retain(|progress| progress.entry.kind() == EntryKind::Program);
            let [reason] = skipped(&all)[..] else { panic!("{content:?}: {all:?}") };
            assert!(reason.contains("the files that its text includes"), "{content:?}: {reason}");
        }
    }
}

/// Anybody may have edited the manifest, to have a file read, or a pipe.
#[test]
fn texts_that_include_files_of_unknown_contents_are_skipped() {
    block_on(support::on_a_device_with(support::builder, async |rt| {
        let fleet = Fleet::new();
        let folder = recorded_including(&fleet, &rt).await;
        drop(fleet.open().await);
        let edited = fs::read_to_string(fleet.manifest()).unwrap();
        let (before, digest) = edited.split_once("\"included\":\"").expect("a line has the digest");
        let (_, after) = digest.split_once("\",").expect("more fields follow");
        let lines = format!("{before}{after}");
        assert_ne!(edited, lines, "a line has the digest of its included files");
        fs::write(fleet.manifest(), lines).unwrap();
        fs::write(folder.join("factor.h"), "#error hunter2-is-a-secret").unwrap();
        let manifest = fleet.open().await;
        let other = fleet.start("second", &rt).await;
        let mut all = ended(other.warm(&manifest)).await;
        all.retain(|progress| progress.entry.kind() == EntryKind::Program);
        let [reason] = skipped(&all)[..] else { panic!("{all:?}") };
        assert!(reason.contains("does not say which contents they had"), "{reason}");
        assert!(!format!("{all:?}").contains("hunter2"), "{all:?}");
    }));
}

/// A manifest does not wait for what takes the place of an included file.
#[cfg(unix)]
#[test]
fn texts_whose_included_file_is_a_pipe_are_skipped() {
    block_on(support::on_a_device_with(support::builder, async |rt| {
        let fleet = Fleet::new();
        let file = recorded_including(&fleet, &rt).await.join("factor.h");
        fs::remove_file(&file).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success(), "a pipe can be created");
        let manifest = fleet.open().await;
        let other = fleet.start("second", &rt).await;
        let mut all = ended(other.warm(&manifest)).await;
        all.retain(|progress| progress.entry.kind() == EntryKind::Program);
        let [reason] = skipped(&all)[..] else { panic!("{all:?}") };
        assert!(reason.contains("factor.h") && reason.contains("not a regular file"), "{reason}");
    }));
}

/// Environment variables of processes that record: the folder of the manifest, and a number of their own.
const FOLDER: &str = "KILN_TEST_FOLDER";
const NUMBER: &str = "KILN_TEST_NUMBER";

/// Records programs until it is killed.
#[test]
#[ignore = "run by another test"]
fn child_that_records() {
    let number: usize = variable(NUMBER).parse().unwrap();
    let cache = CacheConfig::memory_only();
    block_on(async {
        let rt = simulated(cache, &Simulator::immediate()).await;
        rt.record_manifest(PathBuf::from(variable(FOLDER)).join("service.manifest")).await.unwrap();
        for at in 0.. {
            rt.build(&module(number * 1_000_000 + at)).await.unwrap();
        }
    });
}

#[test]
fn killed_processes_lose_at_most_their_last_lines() {
    let fleet = Fleet::new();
    let mut killed = 0;
    for round in 0..5 {
        let start = |number: usize| {
            let number = (round * 3 + number).to_string();
            let variables = [(FOLDER, fleet.0.path().as_os_str()), (NUMBER, number.as_ref())];
            Child::start(&test_name!("child_that_records"), variables)
        };
        let recorded = || fs::metadata(fleet.manifest()).map_or(0, |file| file.len());
        let before = recorded();
        let children: Vec<_> = (0..3).map(start).collect();
        eventually("they record", || recorded() > before);
        std::thread::sleep(Duration::from_millis(fastrand::u64(..300)));
        killed += children.len();
        // Dropping a child kills it.
        drop(children);
    }
    let manifest = block_on(BuildManifest::open(fleet.manifest())).unwrap();
    assert!(manifest.damaged_lines() <= killed, "{manifest:?}");
    // Each process has recorded the first of its programs without a gap.
    let mut last = vec![0; killed];
    let mut count = vec![0; killed];
    for entry in manifest.entries() {
        let name = entry.to_string();
        let number: usize = name[1..name.len() - 3].parse().unwrap();
        let (process, at) = (number / 1_000_000, number % 1_000_000);
        last[process] = last[process].max(at + 1);
        count[process] += 1;
    }
    assert!(last.iter().sum::<usize>() > killed, "they have recorded: {last:?}");
    for (last, count) in last.into_iter().zip(count) {
        assert!(last - count <= 1, "{count} of {last}");
    }
    block_on(async {
        let rt = simulated(fleet.cache("other"), &Simulator::immediate()).await;
        let all = ended(rt.warm(&manifest)).await;
        assert_eq!(counted(&all)[MADE], all.len());
    });
}

#[test]
fn a_manifest_warms_memory_from_a_disk_once() {
    block_on(async {
        let (fleet, simulator) = (Fleet::new(), Simulator::immediate());
        let rt = simulated(fleet.cache("first"), &simulator).await;
        rt.record_manifest(fleet.manifest()).await.unwrap();
        build_and_drain(&rt, 0..50).await;
        let service = simulated(fleet.cache("first"), &simulator).await;
        let all = ended(service.warm(&fleet.open().await)).await;
        let from_disk = |it: &&WarmProgress| matches!(it.outcome, WarmOutcome::Found(Origin::Disk));
        assert_eq!(all.iter().filter(from_disk).count(), 50, "{all:?}");
        assert_eq!(service.stats().disk.hits, 50);
        build_and_drain(&service, 0..50).await;
        assert_eq!(service.stats().disk.hits, 50);
        assert_eq!(service.stats().builds.compiles, 0);
    });
}
