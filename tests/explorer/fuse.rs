//! Tests of `kiln fuse`: the outcome for launches, and the reasons.

use std::fs;

use serde_json::{Value, json};

use crate::{Bench, Run, on_benches};
use support::tools::has_clang;

/// Kernels as a module; `TEXT` is the source that it was compiled from.
const KERNELS: &[u8] = include_bytes!("../data/fusion.spv");
const TEXT: &str = include_str!("../data/fusion.cl");

/// Kernels that read neighbours.
const STENCILS: &[u8] = include_bytes!("../data/stencils.spv");

/// Kernels over images.
const PICTURES: &[u8] = include_bytes!("../data/pictures.spv");

const SCALE: &str = "scale(src, tmp, 3.0) over 1024";
const OFFSET: &str = "offset(tmp, dst, 1.0) over 1024";
const BLUR: &str = "blur(tmp, dst) over 1024";
const GATHER: &str = "gather(tmp, at, dst) over 1024";

impl Bench {
    /// Examines launches of the kernels.
    fn fuse(&self, launches: &[&str], more: &[&str]) -> Run {
        self.fuse_file("kernels.spv", launches, more)
    }

    fn fuse_file(&self, file: &str, launches: &[&str], more: &[&str]) -> Run {
        fs::write(self.path("kernels.spv"), KERNELS).unwrap();
        fs::write(self.path("kernels.cl"), TEXT).unwrap();
        let launches = launches.iter().flat_map(|launch| ["--launch", launch]);
        self.run(["fuse", file].into_iter().chain(launches).chain(more.iter().copied()))
    }

    fn fuse_json(&self, launches: &[&str], more: &[&str], code: i32) -> Value {
        self.fuse(launches, &[more, &["--json"]].concat()).ended(code).json()
    }
}

/// Returns the report on a buffer.
#[track_caller]
fn buffer<'a>(report: &'a Value, name: &str) -> &'a Value {
    let buffers = report["buffers"].as_array().expect("they are an array");
    buffers.iter().find(|buffer| buffer["name"] == name).unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn a_fused_chain_is_reported_with_the_given_names() {
    on_benches(async |bench| {
        let run = bench.fuse(&[SCALE, OFFSET], &["--bytes", "tmp=4KiB"]).ended(0);
        for line in [
            "launch 0: scale(src, tmp, 3.0) over 1024",
            "launch 1: offset(tmp, dst, 1.0) over 1024",
            "tmp, 4.0 KiB: `dst` of launch 0, `src` of launch 1\n  proven\n  internalized, private\n",
            ", kept: `dst` of launch 1\n  proven\n",
            "fused: `fused_scale_offset`",
            "kernel void fused_scale_offset(",
        ] {
            assert!(run.out.contains(line), "{line:?} is missing: {}", run.out);
        }
    });
}

#[test]
fn json_output_reports_a_fusion_as_one_object() {
    on_benches(async |bench| {
        let report = bench.fuse_json(&[SCALE, OFFSET], &["--bytes", "tmp=4KiB"], 0);
        assert_eq!(report["device"], *bench.rt.device().name);
        assert_eq!(report["kernel"], "fused_scale_offset");
        assert!(report["refusal"].is_null() && report["output"].is_null(), "{report}");
        assert_eq!(report["format"], "opencl-c");
        assert!(report["code"].as_str().unwrap().contains("kernel void fused_scale_offset("));
        assert_eq!(
            report["launches"][0],
            json!({
                "kernel": "scale", "file": "kernels.spv", "arguments": ["src", "tmp", "3.0"],
                "parameters": ["src", "dst", "factor"], "global": [1024], "offset": [0],
                "local": null, "barrier": false, "remapped": false, "guard": null, "fixed": [],
                "presumed": [],
            })
        );
        assert_eq!(
            *buffer(&report, "tmp"),
            json!({
                "name": "tmp", "bytes": 4096, "kept": false, "verdict": "proven", "reason": null,
                "parameters": [
                    { "launch": 0, "index": 1, "name": "dst" },
                    { "launch": 1, "index": 0, "name": "src" },
                ],
                "internalized": "private", "in_memory": null,
                "pairs": [
                    { "launches": [0, 1], "verdict": "proven", "reason": null, "barrier": false },
                ],
            })
        );
    });
}

#[test]
fn kept_buffers_stay_in_memory() {
    on_benches(async |bench| {
        let fate = |report: &Value, name| {
            let buffer = buffer(report, name);
            (buffer["kept"] == true, !buffer["internalized"].is_null())
        };
        let report = bench.fuse_json(&[SCALE, OFFSET], &["--keep", "tmp", "--keep", "dst"], 0);
        assert_eq!(fate(&report, "tmp"), (true, false));
        let why = buffer(&report, "tmp")["in_memory"].as_str().unwrap();
        assert!(why.contains("read later"), "{why}");
        // With `--keep src`, no other buffer is kept.
        let report = bench.fuse_json(&[SCALE, OFFSET], &["--keep", "src"], 0);
        assert_eq!(fate(&report, "dst"), (false, true));
        // A buffer that the last launch changes is kept, even if that launch also reads it.
        let report = bench.fuse_json(&[SCALE, "in_place(tmp) over 1024"], &[], 0);
        assert_eq!(fate(&report, "tmp"), (true, false));
    });
}

#[test]
fn illegal_fusions_are_refused_with_the_conflicting_launches() {
    on_benches(async |bench| {
        let run = bench.fuse(&[SCALE, BLUR, GATHER], &[]).ended(1);
        for line in [
            "  refuted\n    launches 0 and 1: refuted: `blur` reads `src` at gid-1, written by `scale`",
            "    launches 0 and 2: needs trust: `gather` reads `src`",
            "launch 0 alone\nlaunches 1 and 2 as `fused_blur_gather`, direct\n",
            "fused in parts: `blur` reads `src` at gid-1",
        ] {
            assert!(run.out.contains(line), "{line:?} is missing: {}", run.out);
        }
        assert!(!run.out.contains("kernel void"), "{}", run.out);

        let report = bench.fuse_json(&[SCALE, BLUR, GATHER], &[], 1);
        assert!(report["kernel"].is_null() && report["code"].is_null(), "{report}");
        let steps = report["steps"].as_array().unwrap();
        assert_eq!(steps[0]["launches"], json!([0]));
        assert_eq!((&steps[1]["launches"], &steps[1]["form"]), (&json!([1, 2]), &json!("direct")));
        let shared = buffer(&report, "tmp");
        assert_eq!(
            (&shared["verdict"], &shared["reason"]),
            (&json!("refuted"), &report["refusal"])
        );
        let verdicts = shared["pairs"].as_array().unwrap().iter().map(|pair| &pair["verdict"]);
        // Two launches that only read the buffer do not conflict.
        assert_eq!(verdicts.collect::<Vec<_>>(), ["refuted", "needs-trust", "proven"]);
        assert_eq!(buffer(&report, "src")["verdict"], "proven");

        // `--assume-legal` covers what is unknown, but not what is refuted.
        bench.fuse(&[SCALE, GATHER], &[]).ended(1);
        bench.fuse(&[SCALE, GATHER], &["--assume-legal"]).ended(0);
        bench.fuse(&[SCALE, BLUR], &["--assume-legal"]).ended(1);
    });
}

#[test]
fn launches_that_are_fused_in_another_form_are_reported_with_the_form() {
    on_benches(async |bench| {
        fs::write(bench.path("stencils.spv"), STENCILS).unwrap();
        let launches = ["scale(src, 2.0, tmp) over 64x64", "blur_x(tmp, dst) over 64x64"];
        let run = bench.fuse_file("stencils.spv", &launches, &[]).ended(0);
        assert!(run.out.contains("fused: `fused_scale_blur_x`, "), "{}", run.out);
        assert!(run.out.contains("kernel void fused_scale_blur_x("), "{}", run.out);
        let report = bench.fuse_file("stencils.spv", &launches, &["--json"]).ended(0).json();
        assert_eq!(report["kernel"], "fused_scale_blur_x");
        assert!(report["refusal"].is_null(), "{report}");
        let steps = report["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 1, "{report}");
        assert!(steps[0]["form"].is_string() && steps[0]["form"] != "direct", "{report}");
        let shared = buffer(&report, "tmp");
        assert_eq!((&shared["verdict"], &shared["in_memory"]), (&json!("proven"), &Value::Null));
    });
}

#[test]
fn changes_to_a_launch_in_the_fused_kernel_are_reported() {
    on_benches(async |bench| {
        let small = "plane(tmp, dst, 8i32) over 8x4";
        let report = bench.fuse_json(&["in_place(tmp) over 1024", small], &[], 0);
        let launch = &report["launches"][1];
        assert_eq!((&launch["global"], &launch["guard"]), (&json!([8, 4]), &json!(32)));
        assert_eq!((&launch["remapped"], &launch["fixed"]), (&json!(true), &json!([2])));
        let run = bench.fuse(&["in_place(tmp) over 1024", small], &[]).ended(0);
        for line in ["remapped", "only the first 32 work-items", "constants: `width`"] {
            assert!(run.out.contains(line), "{line:?} is missing: {}", run.out);
        }
        let report = bench.fuse_json(&[SCALE, OFFSET], &["--fix-scalars"], 0);
        assert_eq!(report["launches"][0]["fixed"], json!([2]));
        let from = ["in_place(x) over 8 from 4 in 4", "in_place(x) over 8 from 4"];
        let launch = &bench.fuse_json(&from, &[], 0)["launches"][0];
        assert_eq!((&launch["offset"], &launch["local"]), (&json!([4]), &json!([4])));
    });
}

#[test]
fn code_is_written_to_a_file_in_the_requested_format() {
    on_benches(async |bench| {
        let report = bench.fuse_json(&[SCALE, OFFSET], &["--output", "fused.cl"], 0);
        assert_eq!((&report["output"], &report["code"]), (&json!("fused.cl"), &Value::Null));
        let text = fs::read_to_string(bench.path("fused.cl")).unwrap();
        assert!(text.contains("kernel void fused_scale_offset("), "{text}");

        let spirv = ["--code", "spirv", "-o", "fused.spv"];
        let run = bench.fuse(&[SCALE, OFFSET], &spirv).ended(0);
        assert!(run.out.contains("code written to fused.spv"), "{}", run.out);
        let module = kiln::Module::spirv(fs::read(bench.path("fused.spv")).unwrap()).unwrap();
        assert!(module.kernels().contains(&"fused_scale_offset".to_owned()));
        bench.fuse(&[SCALE, OFFSET], &spirv[..2]).ended(2).says(&["--output FILE"]);
    });
}

#[test]
fn arguments_must_fit_their_parameters() {
    on_benches(async |bench| {
        for (launch, words) in [
            ("offset(tmp, dst) over 8", &["given 2 arguments", "3 parameters", "term"][..]),
            ("offset(tmp, dst, x) over 8", &["`x`", "float term", "a number"]),
            ("offset(tmp, 7, 1.0) over 8", &["`7`", "dst", "the name of a buffer"]),
            ("offset(tmp, dst, local:4) over 8", &["`local:4`", "float term"]),
            ("guarded(tmp, dst, -1) over 8", &["`-1`", "uint n", "not below 0"]),
            ("guarded(tmp, dst, 1.5) over 8", &["`1.5`", "uint n", "whole number"]),
            ("guarded(tmp, dst, 8f32) over 8", &["`f32`", "`uint`"]),
            ("guarded(tmp, dst, 300u8) over 8", &["`300u8`", "0 to 255"]),
            ("group_sums(tmp, dst, 3) over 8", &["`3`", "scratch", "local:256"]),
            ("by_value(tmp, dst, 3) over 8", &["`3`", "zeros:8"]),
            ("absent(tmp) over 8", &["no kernel `absent`", "by_group"]),
            ("other.cl:offset(tmp, dst, 1.0) over 8", &["other.cl", "not among the files"]),
            ("offset(tmp, dst, 1.0) over 0", &["the global size [0]"]),
            ("offset(tmp, dst, 1.0) over 8 in 3", &["does not divide"]),
            ("offset(tmp, dst, 1.0) over 8 in 2x2", &["dimensions"]),
        ] {
            bench.fuse_file("kernels.cl", &[SCALE, launch], &[]).ended(2).says(words);
        }
        bench.fuse(&[SCALE], &[]).ended(2).says(&["at least two launches"]);
        bench.fuse(&[SCALE, OFFSET], &["--keep", "x"]).ended(2).says(&["`x`", "src, tmp, dst"]);
        bench.fuse(&[SCALE, OFFSET], &["--bytes", "x=4"]).ended(2).says(&["`x`", "--bytes"]);
    });
}

#[test]
fn numbers_state_their_type_if_the_parameter_does_not() {
    on_benches(async |bench| {
        // A module does not state the sign of integers; a driver may.
        let launch = |n| format!("guarded(tmp, dst, {n}) over 1024");
        for number in ["8u32", "0x10u32"] {
            bench.fuse(&[SCALE, &launch(number)], &[]).ended(0);
        }
        let plain = bench.fuse(&[SCALE, &launch("8")], &[]);
        assert!(
            plain.code == 0 || plain.errors.contains("with its type, such as 8u32"),
            "{plain:?}"
        );
        bench.fuse(&[SCALE, "by_value(tmp, dst, zeros:8) over 1024"], &[]).ended(0);
        let last = "group_sums(dst, sums, local:32) over 1024 in 8";
        bench.fuse(&[SCALE, OFFSET, last], &[]).ended(0);
    });
}

#[test]
fn kernels_are_taken_from_the_named_file() {
    on_benches(async |bench| {
        fs::write(bench.path("more.spv"), KERNELS).unwrap();
        let more = ["more.spv"];
        let run = bench.fuse(&[SCALE, OFFSET], &more).ended(2);
        run.says(&["kernels.spv and more.spv have a kernel `scale`", "kernels.spv:scale(..)"]);
        let launches = [&*format!("more.spv:{SCALE}"), &format!("kernels.spv:{OFFSET}")];
        let report = bench.fuse_json(&launches, &more, 0);
        assert_eq!(report["launches"][0]["file"], "more.spv");
        let run = bench.fuse(&launches, &["broken.cl"]).ended(1);
        run.says(&["broken.cl: build failed", "mistake"]);
    });
}

#[test]
fn translations_of_opencl_c_are_listed_as_spirv_entries() {
    if !has_clang() {
        return;
    }
    on_benches(async |bench| {
        let kernels = "kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }";
        fs::write(bench.path("twice.cl"), kernels).unwrap();
        let launch = ["--launch", "twice(x) over 64"];
        let arguments = [&["fuse", "twice.cl"][..], &launch, &launch].concat();
        let report = bench.json(&arguments);
        assert_eq!(report["kernel"], "fused_twice_twice");

        let listed = bench.json(["cache", "ls"]);
        let lines = listed.as_array().unwrap();
        let of_kind = |kind: &str| lines.iter().filter(|l| l["kind"] == kind).collect::<Vec<_>>();
        let [translation] = &*of_kind("spirv") else { panic!("{listed}") };
        assert_eq!(translation["kernels"], json!(["twice"]));
        // The original kernels, and the fused one.
        assert_eq!(of_kind("program").len(), 2);
        let text = bench.text(["cache", "ls"]);
        assert!(text.contains("twice (SPIR-V)"), "{text}");
        let text = bench.text(["cache", "stats"]);
        assert!(text.contains("of which 1 is SPIR-V"), "{text}");

        let key = translation["key"].as_str().unwrap();
        let text = bench.text(["cache", "show", key]);
        for part in ["SPIR-V translated from OpenCL C", "made by", "clang", "twice"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let shown = bench.json(["cache", "show", key]);
        assert_eq!(shown["kernels"][0]["name"], "twice");
        // The extracted file is a module.
        bench.run(["cache", "extract", key, "-o", "twice.spv"]).ended(0);
        let module = kiln::Module::spirv(fs::read(bench.path("twice.spv")).unwrap()).unwrap();
        assert!(module.kernels().contains(&"twice".to_owned()));
    });
}

#[test]
fn launches_over_images_are_examined() {
    on_benches(async |bench| {
        fs::write(bench.path("pictures.spv"), PICTURES).unwrap();
        let fuse = |launches: [&str; 2], more: &[&str]| {
            let launches = launches.iter().flat_map(|launch| ["--launch", launch]);
            bench.run(
                ["fuse", "pictures.spv"].into_iter().chain(launches).chain(more.iter().copied()),
            )
        };
        let launches = [
            "tone(photograph, toned, 1.5f32) over 64x48",
            "with_sampler(toned, nearest, shown) over 64x48",
        ];
        let run = fuse(launches, &[]).ended(0);
        for line in [
            "toned, 64x48 pixels of Rgba<Float>: `toned` of launch 0, `src` of launch 1\n  proven\n  \
             internalized, private\n",
            "fused: `fused_tone_with_sampler`",
            "read_only image2d_t photograph",
        ] {
            assert!(run.out.contains(line), "{line:?} is missing: {}", run.out);
        }
        let run = fuse(launches, &["--format", "toned=Rgba<Unorm8>"]).ended(1);
        let why =
            "images of the format `Rgba<Unorm8>` do not store pixels exactly as kernels write them";
        assert!(run.out.contains(why), "{}", run.out);
        let linear = [launches[0], "with_sampler(toned, linear, shown) over 64x48"];
        let run = fuse(linear, &[]).ended(1);
        assert!(run.out.contains("through a sampler that does not select single"), "{}", run.out);
        let other = [launches[0], "with_sampler(toned, 3, shown) over 64x48"];
        let run = fuse(other, &[]).ended(2);
        assert!(run.errors.contains("give the sampler nearest or linear"), "{}", run.errors);
    });
}
