//! Tests of `kiln check`: verdicts on launches, and the reasons.

use std::fs;

use serde_json::{Value, json};

use crate::{Bench, Run, on_benches};
use support::tools::has_clang;

/// Kernels as a module; `TEXT` is the source that it was compiled from.
const KERNELS: &[u8] = include_bytes!("../data/fusion.spv");
const TEXT: &str = include_str!("../data/fusion.cl");

const SCALE: &str = "scale(src, tmp, 3.0) over 1024";
const GATHER: &str = "gather(tmp, at, dst) over 1024";

impl Bench {
    /// Checks launches of the kernels.
    fn check(&self, file: &str, launches: &[&str], more: &[&str]) -> Run {
        fs::write(self.path("kernels.spv"), KERNELS).unwrap();
        fs::write(self.path("kernels.cl"), TEXT).unwrap();
        let launches = launches.iter().flat_map(|launch| ["--launch", launch]);
        self.run(["check", file].into_iter().chain(launches).chain(more.iter().copied()))
    }
}

#[test]
fn proven_launches_are_reported_as_such() {
    on_benches(async |bench| {
        let mut files = vec!["kernels.spv"];
        if has_clang() {
            files.push("kernels.cl");
        }
        for file in files {
            let run = bench.check(file, &[SCALE], &["--bytes", "tmp=4KiB"]).ended(0);
            for line in [
                "launch 0: scale(src, tmp, 3.0)\n",
                "`scale` is proven: all 2 accesses stay inside their memory\n",
                "buffer tmp: 4.0 KiB\n",
            ] {
                assert!(run.out.contains(line), "{line:?} is missing: {}", run.out);
            }
        }
    });
}

#[test]
fn guarded_accesses_are_listed_with_their_reasons() {
    on_benches(async |bench| {
        let run = bench.check("kernels.spv", &[SCALE, GATHER], &["--bytes", "tmp=1KiB"]).ended(1);
        for line in [
            "`scale` is guarded:\n",
            "it writes `dst`: it may touch the bytes 0 to 4096, but there are 1024\n",
            "`gather` is guarded:\n",
            "at an index that it reads from `",
        ] {
            assert!(run.out.contains(line), "{line:?} is missing: {}", run.out);
        }
    });
}

#[test]
fn json_output_has_a_verdict_for_each_launch() {
    on_benches(async |bench| {
        let more = ["--bytes", "tmp=1KiB", "--json"];
        let report: Value = bench.check("kernels.spv", &[SCALE], &more).ended(1).json();
        assert_eq!(report["device"], *bench.rt.device().name);
        assert_eq!(
            report["launches"],
            json!([{
                "kernel": "scale", "file": "kernels.spv", "arguments": ["src", "tmp", "3.0"],
                "parameters": ["src", "dst", "factor"], "verdict": "guarded", "accesses": 2,
                "findings": [{
                    "parameter": "dst", "what": "writes `dst`",
                    "reason": "it may touch the bytes 0 to 4096, but there are 1024", "line": null,
                }],
                "refusal": null,
            }])
        );
        assert_eq!(report["buffers"][1], json!({ "name": "tmp", "bytes": 1024 }));
        let report: Value = bench.check("kernels.spv", &[SCALE], &["--json"]).ended(0).json();
        assert_eq!(report["launches"][0]["verdict"], "proven");
    });
}

#[test]
fn kernels_that_cannot_be_checked_are_refused_with_the_reason() {
    on_benches(async |bench| {
        if !has_clang() {
            return;
        }
        let text = "kernel void shown(global int *x) { printf(\"%d\", *x); }";
        fs::write(bench.path("printed.cl"), text).unwrap();
        let run = bench.check("printed.cl", &["shown(x) over 4"], &[]).ended(1);
        assert!(run.out.contains("refused: ") && run.out.contains("`printf`"), "{}", run.out);
        assert!(run.out.contains("printed.cl:1"), "{}", run.out);
        let json: Value =
            bench.check("printed.cl", &["shown(x) over 4"], &["--json"]).ended(1).json();
        assert_eq!(json["launches"][0]["verdict"], "refused");
    });
}

#[test]
fn findings_name_the_lines_of_opencl_c() {
    on_benches(async |bench| {
        if !has_clang() {
            return;
        }
        let header = "#define SET(at, value) y[at] = value\n\
                      inline float get(global const float *x, size_t i) {\n\
                      \treturn x[i + 1];\n}\n";
        fs::write(bench.path("get.h"), header).unwrap();
        let text = "#include \"get.h\"\n\
                    inline float twice(global float *y, size_t i) {\n\
                    \treturn 2 * y[i + 3000];\n}\n\
                    kernel void copy(global const float *x, global float *y) {\n\
                    \tsize_t i = get_global_id(0);\n\
                    \tfloat value = get(x, i) + twice(y, i);\n\
                    \tSET(i + 2000,\n\
                    \t\tvalue);\n}\n";
        fs::write(bench.path("copy.cl"), text).unwrap();
        let options = format!("-I {}", bench.path("").display());
        let more = ["--options", &options, "--bytes", "x=4KiB", "--bytes", "y=4KiB"];
        let launch = ["copy(x, y) over 1024"];
        let run = bench.check("copy.cl", &launch, &more).ended(1);
        for line in [
            "it reads `x`: it may touch the bytes 4 to 4100, but there are 4096 (get.h:3)\n",
            "it reads `y`: it may touch the bytes 12000 to 16096, but there are 4096 (copy.cl:3)\n",
            "it writes `y`: it may touch the bytes 8000 to 12096, but there are 4096 (copy.cl:8)\n",
        ] {
            assert!(run.out.contains(line), "{line:?} is missing: {}", run.out);
        }
        let more = [&more[..], &["--json"]].concat();
        let report: Value = bench.check("copy.cl", &launch, &more).ended(1).json();
        let findings = report["launches"][0]["findings"].as_array().unwrap();
        let mut lines: Vec<_> =
            findings.iter().map(|found| found["line"].as_str().unwrap()).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["copy.cl:3", "copy.cl:8", "get.h:3"]);
    });
}
