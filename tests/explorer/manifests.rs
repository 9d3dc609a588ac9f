//! Tests of `kiln warm` and `kiln manifest`.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::{Bench, Run, on_benches, run_alone};

const MANIFEST: &str = "service.manifest";

impl Bench {
    /// Returns a command that uses the cache of another machine.
    fn elsewhere(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.env("KILN_CACHE_DIR", "elsewhere");
        command
    }

    fn run_elsewhere(&self, arguments: &[&str]) -> Run {
        Run::of(self.elsewhere(arguments).output().unwrap())
    }

    /// Records the builds of files in a run of their own.
    fn record(&self, files: &[&str]) {
        let mut command = self.command([&["build"], files].concat());
        command.env("KILN_MANIFEST", format!("record:{MANIFEST}"));
        Run::of(command.output().unwrap()).ended(0);
    }

    /// Returns the lines of JSON that `kiln warm` prints, with its exit code.
    fn warm(&self, more: &[&str]) -> (i32, Vec<Value>) {
        let run = self.run_elsewhere(&[&["warm", MANIFEST, "--json"], more].concat());
        let lines = run.out.lines().map(|line| serde_json::from_str(line).unwrap());
        (run.code, lines.collect())
    }
}

/// Returns the sorted outcomes of lines.
fn outcomes(lines: &[Value]) -> Vec<&str> {
    let mut outcomes: Vec<_> = lines.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
    outcomes.sort_unstable();
    outcomes
}

#[test]
fn a_cache_is_filled_from_a_manifest() {
    on_benches(async |bench| {
        bench.record(&["saxpy.cl"]);
        let shown = bench.json(["manifest", "show", MANIFEST]);
        let entries = shown.as_array().unwrap();
        let programs: Vec<_> = entries.iter().filter(|line| line["kind"] == "program").collect();
        let [program] = programs[..] else { panic!("{shown}") };
        assert_eq!(program["entry"], "saxpy.cl");
        assert_eq!(program["device"], *bench.rt.device().name);
        assert_eq!((&program["runs"], &program["uses"]), (&1.into(), &1.into()));

        let (code, missing) = bench.warm(&["--check"]);
        assert_eq!((code, outcomes(&missing)), (1, vec!["missing"; entries.len()]));
        bench.run_elsewhere(&["cache", "ls"]).ended(0).fits();
        let (code, made) = bench.warm(&[]);
        assert_eq!(code, 0, "{made:?}");
        assert!(outcomes(&made).contains(&"made"), "{made:?}");
        for more in [&["--check"][..], &[]] {
            let (code, found) = bench.warm(more);
            assert_eq!((code, outcomes(&found)), (0, vec!["found"; entries.len()]));
            assert_eq!(found[0]["cache"], "disk");
        }
        let built = Run::of(bench.elsewhere(&["build", "saxpy.cl", "--json"]).output().unwrap());
        assert_eq!(built.json()["origin"], "disk");

        let text = bench.run_elsewhere(&["warm", MANIFEST]).ended(0).fits().out;
        assert!(text.contains("in the caches already"), "{text}");
        let text = bench.text(["manifest", "show", MANIFEST]);
        assert!(text.contains("saxpy.cl") && text.contains("RUNS"), "{text}");
    });
}

#[test]
fn only_the_selected_devices_are_warmed() {
    on_benches(async |bench| {
        bench.record(&["saxpy.cl"]);
        let (code, lines) = bench.warm(&["--device", &bench.device()]);
        assert_eq!(code, 0, "{lines:?}");
        assert!(!lines.is_empty());
        for other in bench.rt.devices() {
            if other.name != bench.rt.device().name {
                let (code, lines) = bench.warm(&["--device", &other.index().to_string()]);
                assert_eq!((code, lines.len()), (0, 0), "{lines:?}");
            }
        }
        let run = bench.run_elsewhere(&["warm", MANIFEST, "--device", "nothing like it"]);
        run.ended(2).says(&["nothing like it"]);
    });
}

#[test]
fn entries_of_absent_devices_are_skipped_by_name() {
    on_benches(async |bench| {
        bench.record(&["saxpy.cl"]);
        let text = fs::read_to_string(bench.path(MANIFEST)).unwrap();
        let name = serde_json::to_string(&bench.rt.device().name).unwrap();
        let (line, device) = text
            .lines()
            .filter(|line| line.contains(&name))
            .find_map(|line| Some((line, serde_json::from_str::<Value>(line).ok()?)))
            .unwrap();
        let id = device["device"]["id"].as_str().unwrap();
        let other = text
            .replace(line, &line.replace(&name, "\"Other GPU\""))
            .replace(id, "0011223344556677");
        fs::write(bench.path(MANIFEST), other).unwrap();
        let text = bench.run_elsewhere(&["warm", MANIFEST]).ended(0).fits().out;
        for part in ["skipped", "saxpy.cl", "Other GPU"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        bench.run_elsewhere(&["warm", MANIFEST, "--check"]).ended(0);

        // As the device that the application states, it is built.
        let device = bench.device();
        let arguments = ["--device", &device, "--recorded-identity"];
        let (code, lines) = bench.warm(&arguments);
        assert_eq!((code, outcomes(&lines).contains(&"skipped")), (0, false), "{lines:?}");
        let folders: Vec<_> = fs::read_dir(bench.path("elsewhere/v1")).unwrap().collect();
        assert!(!folders.is_empty());
        let run = bench.run_elsewhere(&["warm", MANIFEST, "--recorded-identity"]);
        run.ended(2).says(&["--recorded-identity", "--device"]);
    });
}

#[test]
fn manifests_are_merged_and_pruned() {
    on_benches(async |bench| {
        bench.record(&["saxpy.cl"]);
        fs::rename(bench.path(MANIFEST), bench.path("first.manifest")).unwrap();
        fs::write(bench.path("other.cl"), "kernel void other() { }").unwrap();
        bench.record(&["saxpy.cl", "other.cl"]);
        let names = |file: &str| {
            let shown = bench.json(["manifest", "show", file]);
            let lines = shown.as_array().unwrap().iter();
            let programs = lines.filter(|line| line["kind"] == "program");
            let name =
                |line: &Value| format!("{} {}", line["entry"].as_str().unwrap(), line["runs"]);
            programs.map(name).collect::<Vec<_>>()
        };
        let merged = bench.json([
            "manifest",
            "merge",
            "first.manifest",
            MANIFEST,
            "--output",
            "all.manifest",
        ]);
        assert_eq!((&merged["file"], &merged["removed"]), (&"all.manifest".into(), &0.into()));
        assert_eq!(names("all.manifest"), ["saxpy.cl 2", "other.cl 1"]);

        bench.text(["manifest", "prune", "all.manifest", "--min-runs", "2", "-o", "few.manifest"]);
        assert_eq!(names("few.manifest"), ["saxpy.cl 2"]);
        assert_eq!(names("all.manifest").len(), 2);
        bench.text(["manifest", "prune", "all.manifest", "--max-age", "1", "--device", ""]);
        assert_eq!(names("all.manifest").len(), 2);
        bench.text(["manifest", "prune", "all.manifest", "--device", "nothing like it"]);
        assert_eq!(names("all.manifest").len(), 0);
        let text = bench.text(["manifest", "show", "all.manifest"]);
        assert_eq!(text.trim(), "no entries");
    });
}

#[test]
fn files_that_are_not_manifests_are_refused_by_name() {
    on_benches(async |bench| {
        for command in [&["manifest", "show"][..], &["warm"]] {
            let run = bench.run([command, &["saxpy.cl"]].concat());
            run.ended(2).says(&["saxpy.cl", "is not a build manifest"]);
            bench.run([command, &["absent"]].concat()).ended(1).says(&["absent"]);
        }
        let mut command = bench.command(["build", "saxpy.cl"]);
        let run = Run::of(command.env("KILN_MANIFEST", "service.manifest").output().unwrap());
        run.ended(2).says(&["KILN_MANIFEST", "record:"]);
    });
}

#[test]
fn pruning_needs_a_condition() {
    run_alone(&["manifest", "prune", "x.manifest"]).ended(2).says(&["--min-runs", "--max-age"]);
}
