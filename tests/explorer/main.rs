//! Tests of the explorer as its users run it: as a process with arguments, output and an exit code.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

mod builds;
mod bundles;
mod cache;
mod check;
#[cfg(target_os = "linux")]
mod compilers;
mod fuse;
mod libraries;
mod manifests;
mod objects;
#[cfg(feature = "remote-fs")]
mod remote;
#[cfg(feature = "remote-fs")]
mod why;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kiln::Runtime;
use kiln::store::{EntryInfo, Store};
use serde_json::Value;
use support::stores;
use support::{SAXPY, on_each_device};
use tempfile::TempDir;

/// Source like that of a realistic application: several kernels with descriptive names in a program.
const STAGES: &str = "
    kernel void convert_to_linear_light(global float *pixels) {
        size_t i = get_global_id(0);
        pixels[i] = native_powr(pixels[i], GAMMA);
    }
    kernel void blur_horizontally(global const float *from, global float *to) {
        size_t i = get_global_id(0);
        to[i] = 0.25f * from[i] + 0.5f * from[i + 1] + 0.25f * from[i + 2];
    }
    kernel void accumulate_histogram(global const uchar *pixels, global uint *histogram) {
        atomic_inc(&histogram[pixels[get_global_id(0)]]);
    }";

const STAGES_OPTIONS: &str = "-D GAMMA=2.2f -cl-fast-relaxed-math -cl-mad-enable";

/// Device, and directory with sources and a cache, in which the explorer runs.
struct Bench {
    folder: TempDir,
    rt: Runtime,
}

/// Exit code and output of a run of the explorer.
#[derive(Debug)]
struct Run {
    code: i32,
    out: String,
    errors: String,
}

impl Bench {
    fn new(rt: Runtime) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("saxpy.cl"), SAXPY).unwrap();
        fs::write(folder.path().join("stages.cl"), STAGES).unwrap();
        fs::write(folder.path().join("broken.cl"), "kernel void broken() { mistake; }").unwrap();
        Self { folder, rt }
    }

    /// Returns a bench whose cache has the programs of `saxpy.cl` and, with options, `stages.cl`.
    fn filled(rt: Runtime) -> Self {
        let bench = Self::new(rt);
        bench.build("saxpy.cl", &[]);
        bench.build("stages.cl", &["--options", STAGES_OPTIONS]);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn device(&self) -> String {
        self.rt.device().index().to_string()
    }

    fn store(&self) -> Store {
        stores::open(self.path("cache"))
    }

    /// Returns the entries of the cache, in the order of their keys.
    fn entries(&self) -> Vec<EntryInfo> {
        let mut entries = stores::entries(&self.store());
        entries.sort_by_key(EntryInfo::key);
        entries
    }

    /// Returns the explorer's command, with the cache and the device of this bench and no other
    /// `KILN_*` variables.
    fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KILN_")) {
            command.env_remove(name);
        }
        command.env("KILN_CACHE_DIR", "cache").env("KILN_DEVICE", self.device());
        command.current_dir(&self.folder).stdin(Stdio::null()).args(arguments);
        command
    }

    fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Run {
        Run::of(self.command(arguments).output().unwrap())
    }

    /// Returns the readable output of a run that succeeds, and checks that its tables fit.
    fn text<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        self.run(arguments).ended(0).fits().out
    }

    /// Returns the JSON output of a run that succeeds.
    fn json<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Value {
        let run = Run::of(self.command(arguments).arg("--json").output().unwrap());
        run.ended(0).json()
    }

    /// Builds a file, and returns its line of JSON.
    fn build(&self, file: &str, more: &[&str]) -> Value {
        self.json(["build", file].iter().chain(more))
    }
}

impl Run {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the explorer writes UTF-8");
        let code = output.status.code().expect("no signal ended it");
        Self { code, out: text(output.stdout), errors: text(output.stderr) }
    }

    #[track_caller]
    fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Checks that the output fits into 100 columns, except paths and the compiler's messages.
    #[track_caller]
    fn fits(self) -> Self {
        let own = self.out.lines().take_while(|line| *line != "Build log:");
        for line in own.filter(|line| !line.contains(MAIN_SEPARATOR)) {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that the error output contains all of these words.
    #[track_caller]
    fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.errors.contains(word), "{word:?} is missing: {}", self.errors);
        }
        self
    }
}

/// Runs a test on every device.
fn on_benches(test: impl AsyncFn(Bench)) {
    smol::block_on(on_each_device(async |rt: Runtime| test(Bench::new(rt)).await));
}

/// Runs a test on every device, with a cache that has entries.
fn on_filled_benches(test: impl AsyncFn(Bench)) {
    smol::block_on(on_each_device(async |rt: Runtime| test(Bench::filled(rt)).await));
}

/// Runs the explorer without any device or cache.
fn run_alone(arguments: &[&str]) -> Run {
    Run::of(Command::new(env!("CARGO_BIN_EXE_kiln")).args(arguments).output().unwrap())
}

/// Changes a byte of a file.
fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Changes the format version of an entry, which is 16 bytes before its end.
fn set_version(path: &Path, version: u32) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() - 16;
    bytes[at..at + 4].copy_from_slice(&version.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

/// Returns the names below a heading of a help text, up to the next empty line. Checks that each has a
/// description.
fn listed(help: &str, heading: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != heading).skip(1);
    let items = lines.take_while(|line| !line.is_empty());
    // Lines that are indented further continue a description.
    let items = items.filter(|line| !line.starts_with("    "));
    items
        .map(|line| {
            let (name, description) = line.trim().split_once("  ").expect(line);
            assert!(!description.trim().is_empty(), "{line}");
            name.to_owned()
        })
        .collect()
}

#[test]
fn help_describes_every_command_and_every_option() {
    fn check(path: &[&str]) -> usize {
        // The short help has each description beside its name.
        let run = run_alone(&[path, &["-h"]].concat()).ended(0).fits();
        let commands = listed(&run.out, "Commands:");
        for option in listed(&run.out, "Options:") {
            assert!(option.contains("--"), "{path:?} {option}");
        }
        listed(&run.out, "Arguments:");
        run_alone(&[path, &["--help"]].concat()).ended(0).fits();
        let below = commands.iter().filter(|command| *command != "help");
        1 + below.map(|command| check(&[path, &[command]].concat())).sum::<usize>()
    }
    assert!(check(&[]) >= 15, "commands are missing from the lists");
    let help = run_alone(&["--help"]).out;
    for line in ["Exit codes:", "  0  ", "  1  ", "  2  ", "KILN_CACHE_DIR", "KILN_CACHE_TRACE"] {
        assert!(help.contains(line), "{line}");
    }
}

#[test]
fn invalid_arguments_exit_with_2() {
    for arguments in [
        &[][..],
        &["nonsense"],
        &["build"],
        &["build", "x.cl", "--spec", "0"],
        &["build", "x.cl", "--spec", "x=1"],
        &["build", "x.cl", "--spec", "0="],
        &["build", "x.cl", "--spec", "lib.spv:0=1"],
        &["build", "x.cl", "--library", "lib.cl="],
        &["build", "x.cl", "--library", "lib.cl=1"],
        &["build", "x.cl", "--import", "x.cl"],
        &["build", "x.cl", "--import", "y.cl=scale"],
        &["cache", "why", "x.cl", "--import", "y.cl=scale"],
        &["cache", "show", "abc"],
        &["cache", "show", "not-a-key"],
        &["cache", "extract", &"0".repeat(65)],
        &["cache", "ls", "--sort", "size-of-the-moon"],
        &["cache", "why", "abcd"],
        &["fuse", "x.cl"],
        &["fuse", "x.cl", "--launch", "scale(x) over 8"],
        &["fuse", "x.cl", "--launch", "scale(x)", "--launch", "scale(x) over 8"],
        &["fuse", "--launch", "scale(x) over 8", "--launch", "scale(x) over 8"],
    ] {
        let run = run_alone(arguments).ended(2);
        assert!(!run.errors.is_empty() && run.out.is_empty(), "{arguments:?}: {run:?}");
    }
}

#[test]
fn invalid_settings_exit_with_2_and_are_named() {
    on_benches(async |bench| {
        for (name, value, word) in [
            ("KILN_CACHE_MAX_SIZE", "much", "KILN_CACHE_MAX_SIZE"),
            ("KILN_CACHE_MAX_AGE", "old", "KILN_CACHE_MAX_AGE"),
            ("KILN_CACHE_MAX_ENTRY_SIZE", "0", "KILN_CACHE_MIN_ENTRY_SIZE"),
            ("KILN_LOG", "loud", "KILN_LOG"),
            ("KILN_CACHE", "yes", "KILN_CACHE"),
            ("KILN_CACHE", "off", "--cache-dir"),
            ("KILN_CACHE_DIR", "saxpy.cl", "not a directory"),
        ] {
            let output = bench.command(["cache", "ls"]).env(name, value).output().unwrap();
            Run::of(output).ended(2).says(&[word]);
        }
        // A directory that is given as an option overrides the environment.
        let mut command = bench.command(["cache", "ls", "--cache-dir", "cache"]);
        Run::of(command.env("KILN_CACHE", "off").output().unwrap()).ended(0);
    });
}

#[test]
fn devices_are_listed() {
    on_benches(async |bench| {
        let Value::Array(devices) = bench.json(["devices"]) else { panic!("not an array") };
        let absent = bench.rt.unavailable();
        assert_eq!(devices.len(), bench.rt.devices().len() + absent.len());
        let text = bench.text(["devices"]);
        for ((backend, error), line) in absent.iter().zip(&devices[bench.rt.devices().len()..]) {
            assert_eq!((&line["backend"], &line["id"]), (&(*backend).into(), &Value::Null));
            assert_eq!(line["unavailable"], error.to_string());
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words(&text).contains(&words(&error.to_string())), "{text}");
        }
        for (device, line) in bench.rt.devices().iter().zip(&devices) {
            assert_eq!(line["id"], device.index());
            assert_eq!(line["backend"], device.backend);
            assert_eq!(line["name"], *device.name);
            assert_eq!(line["driver"], *device.driver_version);
            assert_eq!(line["formats"].as_array().unwrap().len(), device.formats.len());
            assert_eq!(line["links"].as_array().unwrap().len(), device.links.len());
            assert_eq!(line["default"], device.index() == bench.rt.device().index());
        }
        let text = bench.text(["devices"]);
        assert!(text.contains(&bench.rt.device().driver_version), "{text}");
        assert!(text.contains(&format!("{}*", bench.device())), "{text}");

        let run = bench.command(["devices"]).env("KILN_DEVICE", "toaster").output().unwrap();
        Run::of(run).ended(2).says(&["KILN_DEVICE", "toaster", &bench.rt.device().name]);
    });
}

#[test]
fn a_closed_output_pipe_does_not_stop_a_command() {
    on_filled_benches(async |bench| {
        fs::remove_dir_all(bench.path("cache")).unwrap();
        for arguments in [
            &["build", "saxpy.cl", "--json"][..],
            &["cache", "ls"],
            &["cache", "ls", "--json"],
            &["cache", "verify"],
            &["cache", "export", "-"],
            &["--help"],
        ] {
            let (reader, writer) = io::pipe().unwrap();
            drop(reader);
            let run = bench.command(arguments).stdout(writer).output().unwrap();
            let run = Run::of(run).ended(0);
            assert!(!run.errors.contains("panicked"), "{arguments:?}: {run:?}");
        }
        assert_eq!(bench.entries().len(), 1, "the build was not stopped");
    });
}

#[test]
fn failures_are_reported_as_json() {
    on_benches(async |bench| {
        let failures: [(&[&str], i32, &str, &str); 7] = [
            (&["--json", "nonsense"], 2, "Usage", "nonsense"),
            (&["build", "--json"], 2, "Usage", "required"),
            (&["devices", "--json"], 2, "NoDevice", "toaster"),
            (&["build", "saxpy.cl", "--json"], 2, "NoDevice", "toaster"),
            (
                &[
                    "fuse",
                    "saxpy.cl",
                    "--json",
                    "--launch",
                    "saxpy(1) over 8",
                    "--launch",
                    "b() over 8",
                ],
                2,
                "NoDevice",
                "toaster",
            ),
            (&["cache", "show", "abcdef", "--json"], 1, "Failed", "abcdef"),
            (
                &["cache", "ls", "--cache-dir", "saxpy.cl", "--json"],
                2,
                "Configuration",
                "directory",
            ),
        ];
        for (arguments, code, kind, word) in failures {
            let mut command = bench.command(arguments);
            let run = Run::of(command.env("KILN_DEVICE", "toaster").output().unwrap()).ended(code);
            let line: Value = serde_json::from_str(run.out.lines().last().unwrap()).unwrap();
            let error = &line["error"];
            assert_eq!(error["kind"], kind, "{arguments:?}: {run:?}");
            assert!(error["message"].as_str().unwrap().contains(word), "{arguments:?}: {run:?}");
            assert!(error["log"].is_null(), "{run:?}");
        }
    });
}

#[test]
fn an_invalid_loader_path_is_an_error() {
    on_benches(async |bench| {
        let text = bench.path("saxpy.cl").display().to_string();
        let both = format!("/nowhere/libOpenCL.so;{text}");
        for (paths, named) in [("/nowhere/libOpenCL.so", "/nowhere/libOpenCL.so"), (&*both, &*text)]
        {
            let run = bench.command(["devices"]).env("OPENCL_DYLIB_PATH", paths).output().unwrap();
            Run::of(run).ended(2).says(&["OPENCL_DYLIB_PATH", named, "unset the variable"]);
        }
        // An empty value is not a valid path.
        let run = bench.command(["devices"]).env("OPENCL_DYLIB_PATH", "").output().unwrap();
        Run::of(run).ended(2).says(&["OPENCL_DYLIB_PATH"]);
    });
}

#[test]
fn devices_are_selected_by_the_common_names_of_their_drivers() {
    on_benches(async |bench| {
        let name = bench.rt.device().common_name().unwrap();
        let run = bench.command(["devices", "--json"]).env("KILN_DEVICE", name).output().unwrap();
        let run = Run::of(run).ended(0);
        let Value::Array(devices) = serde_json::from_str(&run.out).unwrap() else {
            panic!("{run:?}")
        };
        let selected = devices.iter().find(|device| device["default"] == true).unwrap();
        assert_eq!(selected["common_name"], name, "{run:?}");
    });
}
