//! Tests of device libraries: in builds, in lookups of what a build would request, and as objects.

use std::fs;
use std::io;
use std::time::{Duration, SystemTime};

use kiln::Module;
use kiln::devices::ModuleFormat;
use kiln::store::EntryInfo;
use serde_json::Value;

use crate::{Bench, on_benches};
use support::libraries::{function, module};

/// Application, the library that it imports from, and the library that this one imports from.
struct Linked {
    modules: [Module; 3],
    file: &'static str,
    /// Arguments that declare the libraries to the explorer.
    settings: Vec<String>,
}

fn linked(bench: &Bench, format: ModuleFormat) -> Linked {
    let modules = [
        module(format, &[], &[("apply", &["outer"])]),
        module(format, &[function("outer").of("inner").times(2.0)], &[]),
        module(format, &[function("inner").plus(1.0)], &[]),
    ];
    let (files, settings): (_, &[&str]) = match format {
        ModuleFormat::SpirV => (
            ["apply.spv", "outer.spv", "inner.spv"],
            &["--library=outer.spv", "--library=inner.spv"],
        ),
        _ => (
            ["apply.cl", "outer.cl", "inner.cl"],
            &[
                "--library=outer.cl=outer",
                "--library=inner.cl=inner",
                "--import=apply.cl=outer",
                "--import=outer.cl=inner",
            ],
        ),
    };
    for (file, module) in files.iter().zip(&modules) {
        fs::write(bench.path(file), module.code()).unwrap();
    }
    let settings = settings.iter().map(|&text| text.to_owned()).collect();
    Linked { modules, file: files[0], settings }
}

impl Linked {
    /// Returns arguments that end with the file and the settings.
    fn arguments<'a>(&'a self, command: &[&'a str]) -> Vec<&'a str> {
        let settings = self.settings.iter().map(String::as_str);
        command.iter().copied().chain([self.file]).chain(settings).collect()
    }

    /// Returns the key of the program for an application that registers the same modules.
    fn key(&self, bench: &Bench) -> String {
        let [application, libraries @ ..] = &self.modules;
        for library in libraries {
            bench.rt.register(library).unwrap();
        }
        bench.rt.build(application).key().unwrap().to_string()
    }
}

/// Runs a test with each format that each device links, starting with an empty cache.
fn on_linked(test: impl AsyncFn(&Bench, Linked)) {
    on_benches(async |bench| {
        for format in [ModuleFormat::OpenClC, ModuleFormat::SpirV] {
            if bench.rt.device().links.contains(&format) {
                let _ = fs::remove_dir_all(bench.path("cache"));
                test(&bench, linked(&bench, format)).await;
            }
        }
    });
}

#[test]
fn programs_are_linked_with_the_given_libraries() {
    on_linked(async |bench, linked| {
        let built = bench.json(linked.arguments(&["build"]));
        assert_eq!(built["origin"], "compiled");
        assert_eq!(built["kernels"], serde_json::json!(["apply"]));
        assert_eq!(built["key"], linked.key(bench), "an application will find it");
        assert_eq!(bench.json(linked.arguments(&["build"]))["origin"], "disk");
        bench.text(linked.arguments(&["build"]));
    });
}

#[test]
fn a_build_states_the_library_of_each_symbol() {
    on_linked(async |bench, linked| {
        let built = bench.json(linked.arguments(&["build"]));
        let symbols = built["linked"].as_array().unwrap();
        let facts = |symbol: &Value| {
            let text = |name: &str| symbol[name].as_str().unwrap().to_owned();
            (text("symbol"), text("importer"), text("exporter"), text("source"))
        };
        let file = |stem: &str| linked.file.replace("apply", stem);
        let registered = || "registered".to_owned();
        assert_eq!(
            symbols.iter().map(facts).collect::<Vec<_>>(),
            [
                ("outer".to_owned(), file("apply"), file("outer"), registered()),
                ("inner".to_owned(), file("outer"), file("inner"), registered()),
            ]
        );
        let text = bench.text(linked.arguments(&["build"]));
        assert!(text.contains("SYMBOL") && text.contains("registered"), "{text}");
    });
}

#[test]
fn libraries_are_listed_with_their_exports() {
    on_linked(async |bench, linked| {
        let settings = linked.settings.iter().filter(|text| !text.starts_with("--import=apply"));
        let command: Vec<_> =
            ["libraries"].into_iter().chain(settings.map(String::as_str)).collect();
        let Value::Array(listed) = bench.json(&command) else { panic!("not an array") };
        let exports: Vec<_> = listed.iter().map(|library| &library["exports"]).collect();
        assert_eq!(exports, [&serde_json::json!(["outer"]), &serde_json::json!(["inner"])]);
        let digest = linked.modules[1].digest().to_string();
        assert_eq!(
            (&listed[0]["source"], &listed[0]["digest"]),
            (&"registered".into(), &digest.as_str().into(),)
        );
        let text = bench.text(&command);
        assert!(text.contains("EXPORTS") && text.contains(&digest[..12]), "{text}");
    });
}

#[test]
fn a_symbol_that_no_given_library_exports_is_named() {
    on_linked(async |bench, mut linked| {
        linked.settings.retain(|text| !text.starts_with("--library=inner"));
        bench.run(linked.arguments(&["build"])).ended(1).says(&[linked.file, "`inner`"]);
        bench.run(linked.arguments(&["cache", "why"])).ended(1).says(&[linked.file, "`inner`"]);
    });
}

#[test]
fn unusable_libraries_fail_the_command_and_are_named() {
    on_benches(async |bench| {
        linked(&bench, ModuleFormat::SpirV);
        fs::write(bench.path("nothing.spv"), crate::builds::module()).unwrap();
        fs::write(bench.path("native"), [0xFF, 0xFE, 0x00]).unwrap();
        // Message of the system; the number is the same on Windows.
        let absent = io::Error::from_raw_os_error(2).to_string();
        for (library, words) in [
            ("absent.spv", &[&*absent][..]),
            ("saxpy.cl", &["--library saxpy.cl=NAME"]),
            ("nothing.spv", &["exports no symbols"]),
            ("native", &["--library native=NAME"]),
            ("inner.spv=inner", &["SPIR-V", "OpenCL C"]),
        ] {
            let file = library.split('=').next().unwrap();
            for command in [&["build", "saxpy.cl"][..], &["cache", "why", "saxpy.cl"]] {
                let run = bench.run(command.iter().chain(&["--library", library])).ended(1);
                assert!(run.out.is_empty(), "no build was started: {run:?}");
                run.says(&[&format!("library {file}: ")]).says(words);
            }
        }
        // A SPIR-V module states its imports itself.
        let run = bench.run(["build", "apply.spv", "--import", "apply.spv=outer"]);
        run.ended(1).says(&["apply.spv: ", "SPIR-V"]);
    });
}

#[test]
fn why_compares_programs_with_all_their_modules() {
    on_linked(async |bench, linked| {
        let why = linked.arguments(&["cache", "why"]);
        let json = [&*why, &["--json"]].concat();
        let key = bench.json(linked.arguments(&["build"]))["key"].as_str().unwrap().to_owned();
        assert_eq!(bench.json(&why)["stored"], true);

        // The program of other modules, and the objects, were used more recently.
        bench.build("saxpy.cl", &[]);
        let entries = bench.entries();
        let program = entries.iter().find(|entry| entry.key().to_string() == key).unwrap();
        let used = SystemTime::now() - Duration::from_secs(3600);
        fs::File::open(program.path()).unwrap().set_modified(used).unwrap();

        // One library is changed.
        let changed = module(linked.modules[2].format(), &[function("inner").plus(2.0)], &[]);
        let inner = linked.file.replace("apply", "inner");
        fs::write(bench.path(&inner), changed.code()).unwrap();
        let output = bench.run(&json).ended(1).json();
        assert_eq!((&output["stored"], &output["nearest"]["key"]), (&false.into(), &key.into()));
        assert_eq!(output["nearest"]["same_module"], false);
        let differences = output["nearest"]["differences"].as_array().unwrap();
        assert_eq!(differences.len(), 1, "{output}");
        assert_eq!(differences[0]["a"], changed.digest().to_string());
        assert_eq!(differences[0]["b"], linked.modules[2].digest().to_string());
        let text = bench.run(&why).ended(1).fits().out;
        assert!(text.contains("No program was built from these modules"), "{text}");

        // Objects of its modules do not count as programs.
        let programs = bench.json(["cache", "ls"]);
        for line in programs.as_array().unwrap().iter().filter(|line| line["kind"] == "program") {
            let is_listed = |entry: &&EntryInfo| line["key"] == entry.key().to_string();
            fs::remove_file(bench.entries().iter().find(is_listed).unwrap().path()).unwrap();
        }
        let text = bench.run(&why).ended(1).fits().out;
        assert!(text.contains("The cache has no programs"), "{text}");
    });
}

#[test]
fn the_constants_of_libraries_are_set_by_id_or_by_library() {
    on_benches(async |bench| {
        if !bench.rt.device().links.contains(&ModuleFormat::SpirV) {
            return;
        }
        let format = ModuleFormat::SpirV;
        let application = module(format, &[], &[("apply", &["a", "b", "c"])]);
        let a = module(format, &[function("a").plus_constant(7, 1.0)], &[]);
        let b = [function("b").plus_constant(7, 1.0), function("c").plus_constant(8, 1.0)];
        let b = module(format, &b, &[]);
        // No module imports from this library.
        let idle = module(format, &[function("idle").plus_constant(8, 1.0)], &[]);
        let mut settings = Vec::new();
        for (name, library) in [("a.spv", &a), ("b.spv", &b), ("idle.spv", &idle)] {
            fs::write(bench.path(name), library.code()).unwrap();
            bench.rt.register(library).unwrap();
            settings.extend(["--library", name]);
        }
        fs::write(bench.path("apply.spv"), application.code()).unwrap();
        let run = |specs: &[&str]| {
            let specs = specs.iter().flat_map(|spec| ["--spec", spec]);
            bench.run(
                ["build", "apply.spv", "--json"]
                    .iter()
                    .copied()
                    .chain(settings.clone())
                    .chain(specs),
            )
        };

        let request = bench.rt.build(&application);
        let request = request.specialize_in(&a, 7, 2.0f32).specialize_in(&b, 8, 40.0f32);
        let built = run(&["a.spv:7=2", "8=40"]).ended(0).json();
        assert_eq!(built["key"], request.key().unwrap().to_string());

        for (spec, words) in [
            ("7=2", &["several", "(a)", "(b, c)"][..]),
            ("3=2", &["id 3", "7 ", "8 "]),
            ("a.spv:8=2", &["id 8", "7 "]),
            ("b.spv:8=true", &["`true`", "float"]),
            ("idle.spv:8=2", &["not part of the program"]),
        ] {
            let line: Value = run(&[spec]).ended(1).json();
            let message = line["error"]["message"].as_str().unwrap();
            words.iter().for_each(|word| assert!(message.contains(word), "{spec}: {message}"));
        }
    });
}

#[test]
fn objects_are_distinguished_from_programs() {
    on_linked(async |bench, linked| {
        bench.json(linked.arguments(&["build"]));
        let Value::Array(lines) = bench.json(["cache", "ls"]) else { panic!("not an array") };
        let of_kind =
            |kind: &str| -> Vec<_> { lines.iter().filter(|line| line["kind"] == kind).collect() };
        let objects = of_kind("object");
        let [program] = *of_kind("program") else { panic!("{lines:?}") };
        // OpenCL C is translated if the tools for it are installed, to compare the types of imports and
        // exports.
        let translated = of_kind("spirv").len();
        assert_eq!((objects.len(), lines.len()), (3, 4 + translated), "{lines:?}");
        let text = bench.text(["cache", "ls"]);
        assert_eq!(text.matches("(object)").count(), 3, "{text}");

        let stats = bench.json(["cache", "stats"]);
        assert_eq!((&stats["entries"], &stats["objects"]), (&lines.len().into(), &3.into()));
        let text = bench.text(["cache", "stats"]);
        assert!(text.contains(&format!("{}, of which 3 are objects", lines.len())), "{text}");

        let shown = bench.text(["cache", "show", program["key"].as_str().unwrap()]);
        for module in &linked.modules {
            assert!(shown.contains(&module.digest().to_string()), "{shown}");
        }
        assert!(shown.contains("Kernels:") && !shown.contains("An object"), "{shown}");
        let shown = bench.text(["cache", "show", objects[0]["key"].as_str().unwrap()]);
        assert!(shown.contains("An object") && !shown.contains("Kernels:"), "{shown}");
    });
}
