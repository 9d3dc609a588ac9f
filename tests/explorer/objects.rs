//! Tests of objects: `kiln build --object`, `kiln cache extract`, and libraries in native code.

use std::fs;

use kiln::Module;
use kiln::devices::ModuleFormat;

use crate::{Bench, on_benches};
use support::libraries::{function, module};

/// Writes a library `lib.cl` with the function `twice`, and an application `app.cl` that imports it.
fn write_files(bench: &Bench) {
    let library = module(ModuleFormat::OpenClC, &[function("twice").times(2.0)], &[]);
    let application = module(ModuleFormat::OpenClC, &[], &[("apply", &["twice"])]);
    fs::write(bench.path("lib.cl"), library.code()).unwrap();
    fs::write(bench.path("app.cl"), application.code()).unwrap();
}

const MAKE: [&str; 6] = ["build", "lib.cl", "--export=lib.cl=twice", "--object", "-o", "lib.o"];

const IMPORT: [&str; 3] = ["build", "app.cl", "--import=app.cl=twice"];

#[test]
fn an_object_of_a_file_is_a_library_of_another() {
    on_benches(async |bench| {
        write_files(&bench);
        let made = bench.json(MAKE);
        let device = bench.rt.device();
        assert_eq!(made["device"], *device.name);
        assert_eq!(made["driver"], *device.driver_version);
        assert_eq!((&made["origin"], &made["output"]), (&"compiled".into(), &"lib.o".into()));
        assert_eq!(made["exports"], serde_json::json!(["twice"]));
        assert_eq!(made["imports"], serde_json::json!([]));
        assert_eq!(made["bytes"], fs::metadata(bench.path("lib.o")).unwrap().len());
        let text = bench.text(MAKE);
        for part in [&device.name, &device.driver_version, "lib.o", "exports twice"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        // Its exports need not be named, unlike those of the text.
        let built = bench.json(IMPORT.iter().chain(&["--library=lib.o"]));
        assert_eq!(built["kernels"], serde_json::json!(["apply"]));
        assert_eq!(built["linked"][0]["exporter"], "lib.o");
        // The application's object imports, and is linked with the object of the library.
        let make_app = ["--object", "--output=app.o"];
        let made = bench.json(IMPORT.iter().chain(&make_app));
        assert_eq!(made["imports"], serde_json::json!(["twice"]));
        let built = bench.json(["build", "app.o", "--library=lib.o"]);
        assert_eq!(built["kernels"], serde_json::json!(["apply"]));
    });
}

#[test]
fn objects_are_extracted_with_their_description() {
    on_benches(async |bench| {
        write_files(&bench);
        let key = bench.json(MAKE)["key"].as_str().unwrap().to_owned();
        let entries = bench.entries();
        let entry = entries.iter().find(|entry| entry.key().to_string() == key).unwrap();
        let made = Module::native(fs::read(bench.path("lib.o")).unwrap()).unwrap();
        for name in [&key, &entry.name()] {
            let extracted = bench.json(["cache", "extract", name, "-o", "extracted.o"]);
            assert_eq!(extracted["device"], *bench.rt.device().name);
            assert_eq!(extracted["driver"], *bench.rt.device().driver_version);
            let extracted = Module::native(fs::read(bench.path("extracted.o")).unwrap()).unwrap();
            assert_eq!(extracted.digest(), made.digest());
            assert!(extracted.exports().eq(["twice"]));
        }
        bench.json(["cache", "extract", &key, "--raw", "-o", "raw.o"]);
        assert_eq!(fs::read(bench.path("raw.o")).unwrap(), made.code());
        let text = bench.text(["cache", "show", &key]);
        assert!(text.contains("exports twice"), "{text}");
        // A binary without the description has only the symbols that are named.
        let with_raw = |library| IMPORT.into_iter().chain([library]);
        bench.run(with_raw("--library=raw.o")).ended(1).says(&["raw.o", "--library raw.o=NAME"]);
        bench.json(with_raw("--library=raw.o=twice"));
        bench.run(with_raw("--library=raw.o=thrice")).ended(1).says(&["app.cl", "`twice`"]);
    });
}

#[test]
fn objects_are_made_of_one_file_and_written_to_a_file() {
    on_benches(async |bench| {
        write_files(&bench);
        bench.run(["build", "lib.cl", "--object"]).ended(2).says(&["--output"]);
        bench.run(["build", "lib.cl", "-o", "lib.o"]).ended(2).says(&["--object"]);
        let two = ["build", "lib.cl", "app.cl", "--object", "-o", "lib.o"];
        bench.run(two).ended(2).says(&["one file"]);
        bench.run(["build", "absent.cl", "--object", "-o", "lib.o"]).ended(1).says(&["absent.cl"]);
        let broken = ["build", "broken.cl", "--object", "-o", "lib.o"];
        bench.run(broken).ended(1).says(&["broken.cl", "mistake"]);
        assert!(!bench.path("lib.o").exists());
        bench.run(["build", "lib.cl", "--export", "other.cl=f"]).ended(2).says(&["--export"]);
    });
}
