//! Tests of the remote cache: entries that are pushed and pulled, and the output about it.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::{Bench, Run, flip, on_filled_benches};
use support::share;

impl Bench {
    /// Returns the explorer's command, with a remote cache in the bench's own folder.
    fn remote(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.env("KILN_CACHE_REMOTE", share::address(&self.path("share")));
        // Limits so long that they never expire.
        command.env("KILN_CACHE_REMOTE_BUDGET", "10min");
        command.env("KILN_CACHE_REMOTE_TIMEOUT", "10min");
        command
    }

    fn remote_json(&self, arguments: &[&str], code: i32) -> Value {
        Run::of(self.remote(arguments).arg("--json").output().unwrap()).ended(code).json()
    }

    fn remote_text(&self, arguments: &[&str], code: i32) -> Run {
        Run::of(self.remote(arguments).output().unwrap()).ended(code).fits()
    }
}

#[test]
fn entries_are_pushed_once_and_pulled_once() {
    on_filled_benches(async |bench| {
        let keys: Vec<_> = bench.entries().iter().map(|entry| entry.key().to_string()).collect();
        let first = bench.remote_json(&["cache", "push", &keys[0][..12]], 0);
        assert_eq!((&first["pushed"], &first["present"]), (&1.into(), &0.into()), "{first}");
        let rest = bench.remote_json(&["cache", "push"], 0);
        assert_eq!((&rest["pushed"], &rest["present"]), (&1.into(), &1.into()), "{rest}");
        let text = bench.remote_text(&["cache", "push"], 0).out;
        assert!(text.contains("0 entries pushed") && text.contains("2 already present"), "{text}");

        fs::remove_dir_all(bench.path("cache")).unwrap();
        let first = bench.remote_json(&["cache", "pull", &keys[1][..12]], 0);
        assert_eq!(first["pulled"], Value::from(vec![keys[1].clone()]), "{first}");
        let text = bench.remote_text(&["cache", "pull"], 0).out;
        assert!(text.contains("1 entry pulled; 1 already present"), "{text}");
        assert_eq!(bench.json(["cache", "verify"])["whole"], 2);
        assert_eq!(bench.build("saxpy.cl", &[])["origin"], "disk");
        bench.remote_text(&["cache", "pull", "0123456789"], 1).says(&["no key in fs://"]);
    });
}

#[test]
fn damaged_entries_are_not_pushed_or_pulled() {
    on_filled_benches(async |bench| {
        let [first, second] = &bench.entries()[..] else { panic!("there are two") };
        bench.remote_json(&["cache", "push", &first.key().to_string()], 0);
        flip(second.path(), 0);
        let pushed = bench.remote_json(&["cache", "push"], 1);
        assert_eq!(pushed["refused"][0]["name"], second.name(), "{pushed}");

        let object = bench.path("share/v1").join(first.name().trim_end_matches(".kiln"));
        flip(&object, 0);
        fs::remove_dir_all(bench.path("cache")).unwrap();
        let pulled = bench.remote_json(&["cache", "pull"], 1);
        assert_eq!(pulled["refused"][0]["name"], first.name(), "{pulled}");
        assert_eq!(pulled["pulled"], Value::Array(Vec::new()), "{pulled}");
        assert_eq!(bench.entries().len(), 0);
    });
}

#[test]
fn named_entries_are_pushed_even_if_present() {
    on_filled_benches(async |bench| {
        let first = bench.entries()[0].clone();
        bench.remote_json(&["cache", "push"], 0);
        let object = bench.path("share/v1").join(first.name().trim_end_matches(".kiln"));
        flip(&object, 0);
        let pushed = bench.remote_json(&["cache", "push", &first.key().to_string()], 0);
        assert_eq!((&pushed["pushed"], &pushed["present"]), (&1.into(), &0.into()), "{pushed}");
        // With write-only access, existing objects are not looked up.
        let mut push = bench.remote(&["cache", "push", "--json"]);
        push.env("KILN_CACHE_REMOTE_ACCESS", "write-only");
        let pushed = Run::of(push.output().unwrap()).ended(0).json();
        assert_eq!((&pushed["pushed"], &pushed["present"]), (&2.into(), &0.into()), "{pushed}");
        fs::remove_dir_all(bench.path("cache")).unwrap();
        let pulled = bench.remote_json(&["cache", "pull"], 0);
        assert_eq!(pulled["pulled"].as_array().map(Vec::len), Some(2), "{pulled}");
    });
}

#[test]
fn programs_built_with_a_remote_cache_are_loaded_from_it() {
    on_filled_benches(async |bench| {
        fs::remove_dir_all(bench.path("cache")).unwrap();
        assert_eq!(bench.remote_json(&["build", "saxpy.cl"], 0)["origin"], "compiled");
        fs::remove_dir_all(bench.path("cache")).unwrap();
        let mut traced = bench.remote(&["build", "saxpy.cl", "--json"]);
        traced.env("KILN_CACHE_TRACE", "trace");
        let built = Run::of(traced.output().unwrap()).ended(0).json();
        assert_eq!(built["origin"], "remote", "{built}");
        let trace = fs::read_to_string(bench.path("trace")).unwrap();
        let lines = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let outcomes: Vec<_> = lines.map(|line| line["outcome"].clone()).collect();
        assert!(outcomes.contains(&"remote".into()), "{trace}");
        assert_eq!(bench.build("saxpy.cl", &[])["origin"], "disk");
    });
}

#[test]
fn stats_and_why_report_the_remote_cache() {
    on_filled_benches(async |bench| {
        assert_eq!(bench.json(["cache", "stats"])["remote"], Value::Null);
        let stats = bench.remote_json(&["cache", "stats"], 0);
        let remote = &stats["remote"];
        assert!(remote["address"].as_str().unwrap().starts_with("fs://"), "{stats}");
        assert_eq!(
            (&remote["access"], &remote["authenticated"]),
            (&"read-write".into(), &false.into())
        );
        assert!(remote["milliseconds"].is_number() && remote["error"].is_null(), "{stats}");
        assert!(
            bench.remote_text(&["cache", "stats"], 0).out.contains("read-write; response time")
        );

        let absent = bench.remote_json(&["cache", "why", "saxpy.cl", "--options", "-D N=1"], 1);
        assert_eq!((&absent["stored"], &absent["remote"]["whole"]), (&false.into(), &false.into()));
        bench.remote_json(&["build", "saxpy.cl", "--options", "-D N=1"], 0);
        fs::remove_dir_all(bench.path("cache")).unwrap();
        let there = bench.remote_json(&["cache", "why", "saxpy.cl", "--options", "-D N=1"], 0);
        assert_eq!((&there["stored"], &there["remote"]["whole"]), (&false.into(), &true.into()));
        let text = bench.remote_text(&["cache", "why", "saxpy.cl", "--options", "-D N=1"], 0).out;
        assert!(text.contains("has it"), "{text}");
    });
}

#[test]
fn a_missing_or_unsuitable_remote_cache_is_an_error() {
    on_filled_benches(async |bench| {
        for command in ["push", "pull"] {
            bench.run(["cache", command]).ended(2).says(&["KILN_CACHE_REMOTE"]);
        }
        let mut bad = bench.command(["cache", "stats"]);
        bad.env("KILN_CACHE_REMOTE", "gopher://:hunter2@host");
        let run = Run::of(bad.output().unwrap()).ended(2).says(&["KILN_CACHE_REMOTE", "gopher"]);
        assert!(!run.errors.contains("hunter2"), "{run:?}");
        for (command, access, reason) in
            [("push", "read-only", "is read-only"), ("pull", "write-only", "is write-only")]
        {
            let mut command = bench.remote(&["cache", command]);
            command.env("KILN_CACHE_REMOTE_ACCESS", access);
            Run::of(command.output().unwrap()).ended(2).says(&[reason]);
        }
        if cfg!(feature = "remote-redis") {
            let mut redis = bench.command(["cache", "pull"]);
            redis.env("KILN_CACHE_REMOTE", "redis://127.0.0.1:1");
            Run::of(redis.output().unwrap()).ended(2).says(&["cannot be listed", "kiln build"]);
        }
    });
}
