//! Tests of `kiln build`, and of the trace of its lookups.

use std::fs;

use kiln::devices::ModuleFormat;
use serde_json::Value;

use crate::{Bench, Run, on_benches};

/// Returns the lines of JSON that a run printed.
fn lines(run: &Run) -> Vec<Value> {
    run.out.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn build_reports_one_json_line_for_each_file() {
    on_benches(async |bench| {
        let files = ["saxpy.cl", "broken.cl", "absent.cl", "saxpy.cl"];
        let run = bench.run(["build", "--json"].iter().chain(&files)).ended(1);
        let lines = lines(&run);
        assert_eq!(lines.iter().map(|line| &line["file"]).collect::<Vec<_>>(), files);

        let [built, broken, absent, again] = &*lines else { panic!("{run:?}") };
        assert_eq!(built["device"], *bench.rt.device().name);
        assert_eq!(built["origin"], "compiled");
        assert_eq!(built["kernels"], serde_json::json!(["saxpy"]));
        assert!(built["milliseconds"].as_f64().unwrap() > 0.0);
        assert!(built["bytes"].as_u64().unwrap() > 0);
        assert!(built.get("error").is_none());
        assert_eq!(built["key"], bench.entries()[0].key().to_string());
        assert_eq!(again["key"], built["key"]);

        assert_eq!(broken["error"]["kind"], "BuildFailed");
        assert!(broken["error"]["log"].as_str().unwrap().contains("mistake"), "{broken}");
        assert!(!broken["error"]["message"].as_str().unwrap().contains("mistake"), "{broken}");
        assert!(broken["origin"].is_null());
        assert_eq!(absent["error"]["kind"], "Io");
        assert!(absent["error"]["message"].as_str().unwrap().contains("absent.cl"), "{absent}");
        assert!(absent["key"].is_null());
    });
}

#[test]
fn built_programs_are_found_by_the_next_run() {
    on_benches(async |bench| {
        assert_eq!(bench.build("saxpy.cl", &[])["origin"], "compiled");
        assert_eq!(bench.build("saxpy.cl", &[])["origin"], "disk");
        assert_eq!(bench.build("saxpy.cl", &["--options=-w"])["origin"], "compiled");
        assert_eq!(bench.entries().len(), 2);
        let text = bench.text(["build", "saxpy.cl"]);
        assert!(text.contains("disk") && text.contains("saxpy"), "{text}");
    });
}

#[test]
fn readable_output_contains_the_compilers_log() {
    on_benches(async |bench| {
        let run = bench.run(["build", "saxpy.cl", "broken.cl"]).ended(1).fits();
        assert!(run.out.contains("BuildFailed"), "{run:?}");
        run.says(&["broken.cl: build failed", "mistake"]);
    });
}

#[test]
fn untrusted_modules_are_compiled_by_child_processes() {
    on_benches(async |bench| {
        let untrusted = ["build", "--untrusted", "--json", "saxpy.cl"];
        // Without a child, nothing is compiled.
        let run =
            Run::of(bench.command(untrusted).env("KILN_BUILD_CHILD", "absent").output().unwrap());
        run.ended(2).says(&["KILN_BUILD_CHILD", "absent"]);

        let run = bench.run(untrusted.iter().chain(&["broken.cl"])).ended(1);
        let [built, broken] = &*lines(&run) else { panic!("{run:?}") };
        assert_eq!((&built["origin"], &built["kernels"][0]), (&"compiled".into(), &"saxpy".into()));
        assert_eq!(broken["error"]["kind"], "BuildFailed");
        assert!(broken["error"]["log"].as_str().unwrap().contains("mistake"), "{broken}");
        assert_eq!(bench.build("saxpy.cl", &[])["origin"], "disk", "a trusted build finds it");
    });
}

#[test]
fn programs_that_could_not_be_stored_are_reported() {
    on_benches(async |bench| {
        // A cache directory cannot be created below a file.
        let run = bench.run(["build", "saxpy.cl", "--json", "--cache-dir", "saxpy.cl/cache"]);
        let run = run.ended(1).says(&["could not be used"]);
        assert_eq!(lines(&run)[0]["origin"], "compiled");

        let mut command = bench.command(["build", "saxpy.cl"]);
        let run = Run::of(command.env("KILN_CACHE", "off").output().unwrap());
        run.ended(0).says(&["programs are not stored"]);
    });
}

#[test]
fn options_are_reported_with_their_sources() {
    on_benches(async |bench| {
        let arguments = ["build", "saxpy.cl", "--link-options", "-cl-denorms-are-zero", "--json"];
        let mut command = bench.command(arguments);
        let run = Run::of(command.env("KILN_COMPILE_OPTIONS", "-w").output().unwrap());
        let options = run.ended(0).json()["options"].clone();
        let expected = serde_json::json!([
            { "kind": "compile", "source": "KILN_COMPILE_OPTIONS", "text": "-w" },
            { "kind": "link", "source": "the call", "text": "-cl-denorms-are-zero" },
        ]);
        assert_eq!(options, expected);
        // One call compiles and links, and gets both.
        assert_eq!(bench.json(["cache", "ls"])[0]["options"], "-w -cl-denorms-are-zero");
    });
}

#[test]
fn every_lookup_is_traced_with_its_fields_and_its_outcome() {
    on_benches(async |bench| {
        let run = |file: &str| {
            let mut command = bench.command(["build", file, "--options", "-w"]);
            Run::of(command.env("KILN_CACHE_TRACE", "trace").output().unwrap())
        };
        run("saxpy.cl").ended(0);
        run("saxpy.cl").ended(0);
        run("broken.cl").ended(1);
        let trace = fs::read_to_string(bench.path("trace")).unwrap();
        let lines: Vec<Value> =
            trace.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let outcomes: Vec<_> = lines.iter().map(|line| (&line["outcome"], &line["miss"])).collect();
        assert_eq!(
            outcomes,
            [
                (&"compiled".into(), &"absent".into()),
                (&"disk".into(), &Value::Null),
                (&"failed".into(), &"absent".into()),
            ]
        );
        let entry = &bench.entries()[0];
        for line in &lines[..2] {
            assert_eq!(line["key"], entry.key().to_string());
            let fields: Vec<(String, String)> =
                serde_json::from_value(line["fields"].clone()).unwrap();
            assert_eq!(fields, bench.store().record(entry).await.unwrap().fields);
            assert!(fields.contains(&("options".to_owned(), "-w".to_owned())));
        }
        assert_ne!(lines[0]["process"], lines[1]["process"]);

        // The stored entry is damaged.
        crate::flip(entry.path(), 0);
        let mut command = bench.command(["build", "saxpy.cl", "--options", "-w"]);
        let run = Run::of(command.env("KILN_CACHE_TRACE", "stderr").output().unwrap());
        run.ended(0).says(&[r#""outcome":"compiled""#, "checksum"]);
    });
}

/// Returns a module with a specialization constant of each type. Its kernel does not use them.
pub(crate) fn module() -> Vec<u8> {
    use rspirv::binary::Assemble as _;
    use rspirv::dr::{Builder, Operand};
    use rspirv::spirv::*;

    let mut b = Builder::new();
    b.set_version(1, 0);
    for capability in [
        Capability::Addresses,
        Capability::Kernel,
        Capability::Int8,
        Capability::Int16,
        Capability::Int64,
        Capability::Float64,
    ] {
        b.capability(capability);
    }
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let (int8, int16, int32, int64) =
        (b.type_int(8, 0), b.type_int(16, 0), b.type_int(32, 0), b.type_int(64, 0));
    let (float, double) = (b.type_float(32, None), b.type_float(64, None));
    let bool = b.type_bool();
    let constants = [
        b.spec_constant_bit32(int32, 16),
        b.spec_constant_bit32(float, 0),
        b.spec_constant_true(bool),
        b.spec_constant_bit32(int8, 0),
        b.spec_constant_bit32(int16, 0),
        b.spec_constant_bit64(int64, 0),
        b.spec_constant_bit64(double, 0),
    ];
    for (id, constant) in constants.into_iter().enumerate() {
        b.decorate(constant, Decoration::SpecId, [Operand::LiteralBit32(id as u32)]);
    }
    let void = b.type_void();
    let signature = b.type_function(void, []);
    let kernel = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
    b.begin_block(None).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::Kernel, kernel, "nothing", []);
    bytemuck::cast_slice(&b.module().assemble()).to_vec()
}

/// Adds `module.spv` to the bench. Returns whether its device takes SPIR-V.
fn add_spirv_module(bench: &Bench) -> bool {
    fs::write(bench.path("module.spv"), module()).unwrap();
    bench.rt.device().formats.contains(&ModuleFormat::SpirV)
}

#[test]
fn specialization_constants_are_parsed_as_their_declared_types() {
    on_benches(async |bench| {
        if !add_spirv_module(&bench) {
            return;
        }
        bench.build("module.spv", &[]);
        let specs = ["0=0x10", "1=1.5", "2=false", "3=255", "4=513", "5=0x100000002", "6=-2"];
        let specs = specs.iter().flat_map(|spec| ["--spec", spec]);
        let mut arguments = vec!["cache", "why", "module.spv", "--json"];
        arguments.extend(specs);
        let run = bench.run(&arguments).ended(1).json();
        assert_eq!(run["nearest"]["same_module"], true);
        let differences = run["nearest"]["differences"].as_array().unwrap();
        let values: Vec<_> = differences.iter().map(|line| line["a"].as_str().unwrap()).collect();
        assert_eq!(
            values,
            [
                "0x00000010",
                "0x3fc00000",
                "0x00",
                "0xff",
                "0x0201",
                "0x0000000100000002",
                "0xc000000000000000",
            ]
        );
        let built = bench.build("module.spv", &["--spec", "0=17", "--spec", "2=true"]);
        assert_eq!(built["kernels"], serde_json::json!(["nothing"]));
    });
}

#[test]
fn values_that_do_not_fit_a_constant_are_refused() {
    on_benches(async |bench| {
        if !add_spirv_module(&bench) {
            return;
        }
        for (spec, words) in [
            ("0=1.5", &["`1.5`", "constant 0", "uint"][..]),
            ("0=-1", &["`-1`", "uint"]),
            ("0=4294967296", &["uint"]),
            ("0=0xzz", &["uint"]),
            ("1=true", &["float"]),
            ("2=16", &["bool", "true or false"]),
            ("3=256", &["uchar"]),
            ("9=1", &["9", "uint"]),
        ] {
            bench.run(["build", "module.spv", "--spec", spec]).ended(1).says(words);
        }
        // OpenCL C has no specialization constants.
        bench.run(["build", "saxpy.cl", "--spec", "0=1"]).ended(1).says(&["-D NAME=VALUE"]);
    });
}
