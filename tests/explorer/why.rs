//! Tests of `why`: the differences between two keys, and why a source is not in the cache.

use std::fs;

use serde_json::{Value, json};

use crate::{Run, SAXPY, STAGES_OPTIONS, flip, on_benches, on_filled_benches};

/// Returns the names of the fields in which two keys differ.
fn fields(differences: &Value) -> Vec<&str> {
    let lines = differences.as_array().unwrap().iter();
    lines.map(|line| line["field"].as_str().unwrap()).collect()
}

#[test]
fn two_keys_are_compared_field_by_field() {
    on_filled_benches(async |bench| {
        let [a, b] = &*bench.entries() else { panic!("there are two") };
        let [a, b] = [a, b].map(|entry| entry.key().to_string());
        let why = bench.run(["cache", "why", &a[..8], &b[..8], "--json"]).ended(1).json();
        assert_eq!((&why["equal"], &why["a"]["key"]), (&false.into(), &a.clone().into()));
        assert_eq!(fields(&why["differences"]).len(), 2, "{why}");
        for field in ["module", "options"] {
            assert!(fields(&why["differences"]).contains(&field), "{why}");
        }
        let text = bench.run(["cache", "why", &a, &b]).ended(1).fits().out;
        assert!(text.contains("-cl-fast-relaxed-math") && text.contains("(none)"), "{text}");

        let why = bench.json(["cache", "why", &a, &a]);
        assert_eq!((&why["equal"], fields(&why["differences"]).len()), (&true.into(), 0));
        assert!(bench.text(["cache", "why", &a, &a[..8]]).contains("equal"));
        bench.run(["cache", "why", &a, &"0".repeat(64)]).ended(1).says(&["no key"]);
    });
}

#[test]
fn a_file_stands_for_the_key_that_its_build_requests() {
    on_filled_benches(async |bench| {
        let saxpy = bench.build("saxpy.cl", &[])["key"].as_str().unwrap().to_owned();
        let why = bench.json(["cache", "why", &saxpy, "saxpy.cl"]);
        assert_eq!((&why["equal"], &why["b"]["stored"]), (&true.into(), &true.into()));

        let options = ["--options", "-cl-mad-enable"];
        let arguments = ["cache", "why", "saxpy.cl", &saxpy, "--json"];
        let why = bench.run(arguments.iter().chain(&options)).ended(1).json();
        assert_eq!(fields(&why["differences"]), ["options"]);
        assert_eq!(why["differences"][0]["a"], "-cl-mad-enable");
        assert!(why["differences"][0]["b"].is_null());
        assert_eq!((&why["a"]["stored"], &why["b"]["stored"]), (&false.into(), &true.into()));

        let text = bench.run(["cache", "why", "saxpy.cl", "stages.cl"]).ended(1).fits().out;
        assert!(text.contains("module") && text.contains("not in the cache"), "{text}");
        bench.run(["cache", "why", "saxpy.cl", "absent.cl"]).ended(1).says(&["absent.cl"]);
    });
}

#[test]
fn a_source_alone_is_compared_with_the_nearest_entry() {
    on_filled_benches(async |bench| {
        let why = bench.json(["cache", "why", "saxpy.cl"]);
        assert_eq!((&why["stored"], &why["nearest"]), (&true.into(), &Value::Null));
        assert!(bench.text(["cache", "why", "saxpy.cl"]).contains("in the cache"));

        // The cache has a program of the same module, with other options.
        let why = bench.run(["cache", "why", "stages.cl", "--json"]).ended(1).json();
        assert_eq!((&why["stored"], &why["nearest"]["same_module"]), (&false.into(), &true.into()));
        assert_eq!(fields(&why["nearest"]["differences"]), ["options"]);
        assert_eq!(why["nearest"]["differences"][0]["b"], STAGES_OPTIONS);
        let text = bench.run(["cache", "why", "stages.cl"]).ended(1).fits().out;
        assert!(text.contains("same module") && text.contains("options"), "{text}");

        // The source is changed after it was built.
        fs::write(bench.path("saxpy.cl"), format!("{SAXPY}\n")).unwrap();
        let why = bench.run(["cache", "why", "saxpy.cl", "--json"]).ended(1).json();
        assert_eq!(why["nearest"]["same_module"], false);
        assert_eq!(fields(&why["nearest"]["differences"]), ["module"]);
        let text = bench.run(["cache", "why", "saxpy.cl"]).ended(1).fits().out;
        assert!(text.contains("No program was built from this module"), "{text}");
    });
}

#[test]
fn the_header_that_changed_is_named() {
    on_benches(async |bench| {
        if !bench.rt.device().formats.contains(&kiln::devices::ModuleFormat::OpenClC) {
            return;
        }
        fs::create_dir(bench.path("include")).unwrap();
        let write = |name: &str, text: &str| fs::write(bench.path(name), text).unwrap();
        write("include/sizes.h", "#include \"more.h\"\n#define SIZE 4\n");
        write("include/more.h", "#define MORE 1\n");
        write("include/same.h", "#define SAME 1\n");
        write(
            "text.cl",
            "#include \"sizes.h\"\n#include \"same.h\"\n\
             kernel void k(global int *x) { x[0] = SIZE + MORE + SAME; }",
        );
        let options = ["--options", "-I include"];
        bench.build("text.cl", &options);
        let [entry] = &*bench.entries() else { panic!("there is one") };
        let shown = bench.json(["cache", "show", &entry.key().to_string()]);
        let listed = shown["fields"].as_array().unwrap().iter().map(|field| &field[0]);
        let listed: Vec<_> = listed.filter_map(|name| name.as_str()).collect();
        for name in ["sizes.h", "more.h", "same.h"] {
            let field = format!("included file {name}");
            assert_eq!(listed.iter().filter(|known| **known == field).count(), 1, "{listed:?}");
        }
        assert_eq!(shown["labels"][0][1], "text.cl");

        let why = |arguments: &[&str]| {
            bench.run(["cache", "why", "text.cl"].iter().chain(&options).chain(arguments)).ended(1)
        };
        write("include/more.h", "#define MORE 2\n");
        let nearest = &why(&["--json"]).json()["nearest"];
        assert_eq!(
            (&nearest["same_module"], &nearest["labels"]),
            (&true.into(), &json!(["text.cl"]))
        );
        assert_eq!(fields(&nearest["differences"]), ["included files"], "{nearest}");
        let files = nearest["differences"][0]["files"].as_array().unwrap();
        assert_eq!(files.len(), 1, "{nearest}");
        assert_eq!(files[0]["name"], "more.h");
        assert_ne!(files[0]["a"], files[0]["b"]);
        let text = why(&[]).fits().out;
        assert!(
            text.contains("included file more.h") && text.contains("built from text.cl"),
            "{text}"
        );
        assert!(!text.contains("sizes.h") && !text.contains("included files"), "{text}");

        // A header that is gone, or new, is named as well.
        write("include/more.h", "#define MORE 1\n#include \"new.h\"\n");
        write("include/new.h", "#define NEW 1\n");
        let text = why(&[]).out;
        let line = text.lines().find(|line| line.contains("included file new.h"));
        assert!(line.is_some_and(|line| line.contains("(none)")), "{text}");
    });
}

#[test]
fn entries_that_cannot_be_loaded_are_reported() {
    on_benches(async |bench| {
        let run = bench.run(["cache", "why", "saxpy.cl"]).ended(1);
        assert!(run.out.contains("The cache has no programs"), "{run:?}");

        bench.build("saxpy.cl", &[]);
        flip(bench.entries()[0].path(), 0);
        let why = bench.run(["cache", "why", "saxpy.cl", "--json"]).ended(1).json();
        assert!(why["unusable"].as_str().unwrap().contains("checksum"), "{why}");
        let text = bench.run(["cache", "why", "saxpy.cl"]).ended(1).out;
        assert!(text.contains("checksum"), "{text}");

        fs::write(bench.path("native"), [0xFF, 0xFE, 0x00]).unwrap();
        let text = bench.run(["cache", "why", "native"]).ended(1).out;
        assert!(text.contains("not stored"), "{text}");
    });
}

#[test]
fn the_source_of_options_that_differ_is_named() {
    on_filled_benches(async |bench| {
        let why = |arguments: &[&str], variables: &[(&str, &str)]| {
            let mut command = bench.command(["cache", "why"].iter().chain(arguments));
            Run::of(command.envs(variables.iter().copied()).output().unwrap())
        };
        // The cache has the program without options.
        let saxpy = ["saxpy.cl", "--options", "-D N=1", "--json"];
        let output = why(&saxpy, &[("KILN_APPEND_COMPILE_OPTIONS", "-w")]).ended(1).json();
        let differences = &output["nearest"]["differences"];
        assert_eq!(fields(differences), ["options"], "{output}");
        assert_eq!(differences[0]["a"], "-w -D N=1");
        let source = |kind: &str, source: &str, text: &str| json!({ "kind": kind, "source": source, "a": text, "b": null });
        let expected = [
            source("compile", "KILN_APPEND_COMPILE_OPTIONS", "-w"),
            source("compile", "the call", "-D N=1"),
        ];
        assert_eq!(differences[0]["sources"], json!(expected));
        let linked = why(&["saxpy.cl"], &[("KILN_LINK_OPTIONS", "-cl-denorms-are-zero")]);
        let text = linked.ended(1).fits().out;
        assert!(text.contains("  link options from KILN_LINK_OPTIONS"), "{text}");
        let text = why(&saxpy[..3], &[]).ended(1).fits().out;
        assert!(text.contains("  from the call"), "{text}");

        // Equal options from another source are the same program.
        let variables = [("KILN_COMPILE_OPTIONS", STAGES_OPTIONS)];
        assert_eq!(why(&["stages.cl", "--json"], &variables).ended(0).json()["stored"], true);
    });
}

/// The file's name has the form of a key.
#[test]
fn a_path_with_a_directory_is_not_read_as_a_key() {
    on_benches(async |bench| {
        fs::write(bench.path("facade"), SAXPY).unwrap();
        bench.run(["cache", "why", "facade", "saxpy.cl"]).ended(1).says(&["no key", "facade"]);
        let why = bench.json(["cache", "why", "./facade", "saxpy.cl"]);
        assert_eq!(why["equal"], true, "the same contents are the same module");
    });
}
