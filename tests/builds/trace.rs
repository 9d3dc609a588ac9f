//! Trace of lookups that `KILN_CACHE_TRACE` enables: every outcome, each with its key.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use futures::executor::block_on;
use futures::future::join;
use kiln::build::Origin;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, ErrorKind, Module, Runtime};
use serde_json::Value;
use support::test_name;

const SOURCE: &str = "kernel void f(global uint *x) { x[get_global_id(0)] = 1; }";
const BROKEN: &str = "#error this is the mistake\nkernel void broken() { return }\n";

/// Environment variable with the directory of a process's cache.
const CACHE: &str = "KILN_TEST_TRACED_CACHE";

/// Runs as another process, whose environment enables a trace.
#[test]
#[ignore = "run by the other test of this file"]
fn traced() {
    let cache = std::env::var(CACHE).unwrap();
    block_on(async {
        let simulator = Simulator::immediate();
        let start =
            || Runtime::builder().simulator(&simulator).cache(CacheConfig::at(&cache)).build();
        let module = Module::opencl_c(SOURCE);
        let first = start().await.unwrap();
        let pause = simulator.pause_builds();
        let (one, other) = (first.build(&module).start(), first.build(&module).start());
        drop(pause);
        let (one, other) = join(one, other).await;
        assert_eq!(one.unwrap().key(), other.unwrap().key());
        assert_eq!(first.build(&module).await.unwrap().origin(), Origin::Memory);
        first.drain().await;

        let second = start().await.unwrap();
        assert_eq!(second.build(&module).await.unwrap().origin(), Origin::Disk);
        for _ in 0..2 {
            let error = second.build(&Module::opencl_c(BROKEN)).options("-w").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BuildFailed);
        }
        second.drain().await;
    });
}

/// Runs as another process, whose environment enables a trace.
#[test]
#[ignore = "run by the other test of this file"]
fn traced_link() {
    block_on(async {
        let simulator = Simulator::immediate();
        let rt = Runtime::builder().simulator(&simulator).build().await.unwrap();
        let library = Module::opencl_c("float tone(float x) { return x; }").exporting(["tone"]);
        rt.register(&library).unwrap();
        rt.build(&Module::opencl_c(SOURCE).importing(["tone"])).await.unwrap();
        rt.drain().await;
    });
}

#[test]
fn the_line_of_a_linked_program_names_the_library_of_each_symbol() {
    let directory = tempfile::tempdir().unwrap();
    let lines = trace("traced_link", "file", directory.path());
    // The objects of the two modules take no symbols from others.
    let linked: Vec<_> =
        lines.iter().flat_map(|line| line["linked"].as_array().expect("it is there")).collect();
    let [symbol] = linked[..] else { panic!("{lines:?}") };
    let library = Module::opencl_c("float tone(float x) { return x; }").exporting(["tone"]);
    assert_eq!(symbol["symbol"], "tone");
    assert_eq!(symbol["exporter"], library.digest().to_string());
    assert_eq!((&symbol["source"], &symbol["replaces"]), (&"registered".into(), &false.into()));
}

/// Returns the lines that a process, which runs a test of this file, writes to this trace.
fn trace(test: &str, to: &str, directory: &Path) -> Vec<Value> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test_name!(test), "--ignored", "--nocapture"])
        .env(CACHE, directory.join("cache"))
        .env("KILN_CACHE_TRACE", to)
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let trace = match to {
        "stderr" => String::from_utf8(output.stderr).unwrap(),
        file => std::fs::read_to_string(directory.join(file)).unwrap(),
    };
    trace
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

#[test]
fn every_lookup_has_a_line_with_its_outcome_and_the_fields_of_its_key() {
    for to in ["file", "stderr"] {
        let directory = tempfile::tempdir().unwrap();
        let lines = trace("traced", to, directory.path());
        let mut outcomes: Vec<_> =
            lines.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
        outcomes.sort_unstable();
        // The second time, the failure is in memory.
        assert_eq!(outcomes, ["compiled", "disk", "failed", "joined", "memory", "memory"], "{to}");

        let mut keys = Vec::new();
        for line in &lines {
            assert!(line["time"].as_f64().unwrap() > 0.0);
            assert!(line["process"].as_u64().unwrap() > 0);
            keys.push(line["key"].as_str().unwrap());
            let field = |name: &str| {
                let mut fields = line["fields"].as_array().unwrap().iter();
                fields.find(|field| field[0] == name).map(|field| field[1].as_str().unwrap())
            };
            let source = if field("options") == Some("-w") { BROKEN } else { SOURCE };
            assert_eq!(field("module"), Some(&*Module::opencl_c(source).digest().to_string()));
            assert_eq!(field("backend"), Some("simulated"));
            let looked = matches!(line["outcome"].as_str(), Some("compiled" | "disk" | "failed"));
            assert_eq!(line["microseconds"].is_u64(), looked, "{line}");
            let missed = matches!(line["outcome"].as_str(), Some("compiled" | "failed"));
            assert_eq!(line["miss"], if missed { "absent".into() } else { Value::Null }, "{line}");
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 2, "one of each program");
    }
}
