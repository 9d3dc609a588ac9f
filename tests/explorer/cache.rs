//! Tests of the commands that inspect and maintain a cache.

use std::fs;
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use kiln::store::EntryCheck;
use kiln::{CacheConfig, Runtime};
use serde_json::Value;

use crate::{Run, STAGES_OPTIONS, flip, on_benches, on_filled_benches, set_version};
use support::scopes::Chain;

#[test]
fn entries_are_listed_by_last_use() {
    on_filled_benches(async |bench| {
        let entries = bench.entries();
        for (entry, hours) in entries.iter().zip([5, 3]) {
            let used = SystemTime::now() - Duration::from_secs(hours * 3600);
            fs::File::open(entry.path()).unwrap().set_modified(used).unwrap();
        }
        let by_use = [entries[1].key().to_string(), entries[0].key().to_string()];

        let Value::Array(lines) = bench.json(["cache", "ls"]) else { panic!("not an array") };
        assert_eq!(
            lines.iter().map(|line| &line["key"]).collect::<Vec<_>>(),
            by_use.each_ref().map(String::as_str)
        );
        for line in &lines {
            assert_eq!(line["device"], *bench.rt.device().name);
            assert!(line["bytes"].as_u64().unwrap() > 0);
            assert!(line["unusable"].is_null());
        }
        let stages = lines.iter().find(|line| line["kernels"].as_array().unwrap().len() == 3);
        assert_eq!(stages.unwrap()["options"], STAGES_OPTIONS);

        let text = bench.text(["cache", "ls"]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "a line for each, and a header: {text}");
        for (line, (key, age)) in lines[1..].iter().zip(by_use.iter().zip(["3 h", "5 h"])) {
            assert!(line.starts_with(&key[..12]) && line.contains(age), "{text}");
        }

        let Value::Array(sorted) = bench.json(["cache", "ls", "--sort", "bytes"]) else { panic!() };
        let sizes: Vec<_> = sorted.iter().map(|line| line["bytes"].as_u64().unwrap()).collect();
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
        let few = |device: &str| bench.json(["cache", "ls", "--device", device]);
        assert_eq!(few(&bench.rt.device().name.to_uppercase()).as_array().unwrap().len(), 2);
        assert_eq!(few(entries[0].device()).as_array().unwrap().len(), 2);
        assert_eq!(few("toaster"), Value::Array(Vec::new()));
    });
}

#[test]
fn a_missing_cache_is_treated_as_empty() {
    on_benches(async |bench| {
        assert!(bench.text(["cache", "ls"]).contains("no entries"));
        assert_eq!(bench.json(["cache", "ls"]), Value::Array(Vec::new()));
        assert_eq!(bench.json(["cache", "stats"])["entries"], 0);
        assert_eq!(bench.json(["cache", "verify"])["entries"], 0);
        bench.text(["cache", "stats"]);
        bench.run(["cache", "show", "abcd"]).ended(1).says(&["abcd"]);
        assert!(!bench.path("cache").exists(), "inspecting does not create a cache");
    });
}

#[test]
fn show_prints_the_whole_manifest_of_an_entry() {
    on_filled_benches(async |bench| {
        for entry in bench.entries() {
            let key = entry.key().to_string();
            let EntryCheck::Whole(whole) = bench.store().check(&entry).await else {
                panic!("it is whole")
            };
            let shown = bench.json(["cache", "show", &key[..8]]);
            assert_eq!(shown["key"], *key);
            assert_eq!(shown["binary_bytes"], whole.payload().len());
            let record = serde_json::to_value(whole.record()).unwrap();
            for (name, value) in record.as_object().unwrap() {
                assert_eq!(&shown[name], value);
            }
            let text = bench.text(["cache", "show", &key.to_uppercase()]);
            for word in ["Kernels:", "global float", "driver version", &key] {
                assert!(text.contains(word), "{word:?} is missing: {text}");
            }
        }
    });
}

#[test]
fn stats_count_entries_and_bytes() {
    on_filled_benches(async |bench| {
        let bytes: u64 = bench.entries().iter().map(|entry| entry.bytes()).sum();
        let stats = bench.json(["cache", "stats"]);
        assert_eq!((&stats["entries"], &stats["bytes"]), (&2.into(), &bytes.into()));
        assert_eq!(stats["limit"], 1u64 << 30);
        assert_eq!(stats["devices"][0]["name"], *bench.rt.device().name);
        assert_eq!(stats["devices"][0]["entries"], 2);
        let text = bench.text(["cache", "stats"]);
        assert!(
            text.contains("of 1.0 GiB") && text.contains(bench.entries()[0].device()),
            "{text}"
        );

        let unlimited = bench.command(["cache", "stats"]).env("KILN_CACHE_MAX_SIZE", "0").output();
        let unlimited = Run::of(unlimited.unwrap()).ended(0);
        assert!(unlimited.out.contains("without limit"), "{unlimited:?}");
    });
}

#[test]
fn stats_lead_with_the_hits_and_misses_of_all_processes() {
    on_benches(async |bench| {
        let stats = bench.json(["cache", "stats"]);
        assert_eq!((&stats["hits"], &stats["misses"]), (&0.into(), &0.into()));
        assert!(stats["since"].is_null(), "{stats}");
        // Each run is a process of its own.
        for _ in 0..3 {
            bench.build("saxpy.cl", &[]);
        }
        let stats = bench.json(["cache", "stats"]);
        let number = |name: &str| stats[name].as_u64().unwrap();
        let compiled = bench.entries().len() as u64;
        assert_eq!((number("hits"), number("misses")), (2 * compiled, compiled), "{stats}");
        let entry = bench.entries()[0].key().to_string();
        let took = bench.json(["cache", "show", &entry])["build_microseconds"].as_u64().unwrap();
        assert!(took > 0 && number("since") > 0);
        if compiled == 1 {
            assert_eq!(
                (number("saved_microseconds"), number("spent_microseconds")),
                (2 * took, took)
            );
        }
        let text = bench.text(["cache", "stats"]);
        let first: Vec<_> = text.lines().take(4).map(|line| &line[..10]).collect();
        assert_eq!(first, ["hits      ", "misses    ", "time saved", "time spent"], "{text}");
        assert!(text.contains("(66.7 %)"), "{text}");
    });
}

#[test]
fn verify_reports_damaged_entries_and_removes_them_on_request() {
    on_filled_benches(async |bench| {
        assert_eq!(bench.json(["cache", "verify"])["whole"], 2);
        bench.text(["cache", "verify"]);

        let [first, second] = &*bench.entries() else { panic!("there are two") };
        flip(first.path(), 0);
        let cut = fs::read(second.path()).unwrap();
        fs::write(second.path(), &cut[..cut.len() / 2]).unwrap();
        let run = bench.run(["cache", "verify", "--json"]).ended(1).json();
        assert_eq!((&run["entries"], &run["whole"]), (&2.into(), &0.into()));
        let kind = |run: &Value, key: String| {
            let damaged = run["damaged"].as_array().unwrap();
            let line = damaged.iter().find(|line| line["key"] == *key).expect("it is listed");
            (line["kind"].as_str().unwrap().to_owned(), line["removed"].as_bool().unwrap())
        };
        assert_eq!(kind(&run, first.key().to_string()), ("checksum".to_owned(), false));
        assert_eq!(kind(&run, second.key().to_string()), ("foreign".to_owned(), false));
        let text = bench.run(["cache", "verify"]).ended(1).fits().out;
        assert!(text.contains("2 damaged") && text.contains("--fix"), "{text}");
        bench.run(["cache", "show", &first.key().to_string()]).ended(1).says(&["checksum"]);

        let text = bench.run(["cache", "verify", "--fix"]).ended(0).fits().out;
        assert!(text.contains("2 removed"), "{text}");
        assert_eq!(bench.entries().len(), 0);
    });
}

#[test]
fn entries_of_newer_versions_are_kept_and_reported() {
    on_filled_benches(async |bench| {
        let [newer, older] = &*bench.entries() else { panic!("there are two") };
        set_version(newer.path(), u32::MAX);
        set_version(older.path(), 0);
        let run = bench.run(["cache", "verify", "--fix", "--json"]).ended(0).json();
        assert_eq!((&run["newer"], &run["damaged"][0]["kind"]), (&1.into(), &"version".into()));
        assert_eq!(bench.entries()[0].key(), newer.key());
        assert!(bench.text(["cache", "verify"]).contains("newer version"));

        // An imported entry does not replace the newer one either.
        let other = ["--cache-dir", "other"];
        bench.build("saxpy.cl", &other);
        bench.build("stages.cl", &[&other[..], &["--options", STAGES_OPTIONS]].concat());
        bench.json(["cache", "export", "all.tar"].iter().chain(&other));
        let run = bench.run(["cache", "import", "all.tar", "--json"]).ended(1).json();
        assert_eq!(run["imported"].as_array().unwrap().len(), 1);
        assert_eq!(run["refused"][0]["name"], newer.name());
        assert!(run["refused"][0]["reason"].as_str().unwrap().contains("newer version"));
    });
}

#[test]
fn fusion_timings_are_distinguished_from_programs() {
    on_benches(async |bench| {
        let builder = Runtime::builder().cache(CacheConfig::at(bench.path("cache")));
        let rt = builder.device(bench.device()).build().await.unwrap();
        let store = bench.store();
        let timing = async || {
            let entries = store.entries().filter_map(async |entry| {
                let record = store.record(&entry).await.unwrap();
                (record.field("kind") == Some("timing")).then_some(entry)
            });
            pin!(entries).next().await
        };
        // Runs until the times of the fused and the separate launches are stored.
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < deadline, "the times are not kept");
            let chain = Chain::new(&rt, vec![1.0; 64], 2.0).await;
            let (scope, _) = chain.begin();
            drop(chain.tmp);
            scope.complete().await.unwrap();
            chain.queue.read(&chain.dst).await.unwrap();
            rt.drain().await;
            if timing().await.is_some() {
                break;
            }
        }
        let key = timing().await.unwrap().key().to_string();
        assert_eq!(bench.json(["cache", "stats"])["timings"], 1);
        assert!(bench.text(["cache", "stats"]).contains("1 has fusion times"));
        let text = bench.text(["cache", "ls"]);
        let line = text.lines().find(|line| line.starts_with(&key[..12])).unwrap();
        assert!(line.contains("(fusion times)"), "{text}");
        let text = bench.text(["cache", "show", &key]);
        assert!(text.contains("its launches one by one") && !text.contains("Kernels:"), "{text}");
    });
}

#[test]
fn garbage_collection_has_a_dry_run() {
    on_filled_benches(async |bench| {
        let entries = bench.entries();
        for (entry, hours) in entries.iter().zip([2, 1]) {
            let used = SystemTime::now() - Duration::from_secs(hours * 3600);
            fs::File::open(entry.path()).unwrap().set_modified(used).unwrap();
        }
        // The limit is too small for both entries.
        let limit = entries.iter().map(|entry| entry.bytes()).sum::<u64>() - 1;
        let gc = |more: &[&str]| {
            let mut command = bench.command(["cache", "gc"].iter().chain(more));
            Run::of(command.env("KILN_CACHE_MAX_SIZE", limit.to_string()).output().unwrap())
        };
        assert!(gc(&["--dry-run"]).ended(0).fits().out.contains("1 entry"));
        let tried = gc(&["--dry-run", "--json"]).ended(0).json();
        assert_eq!((&tried["removed"], &tried["dry_run"]), (&1.into(), &true.into()));
        assert_eq!(bench.entries().len(), 2);

        let done = gc(&["--json"]).ended(0).json();
        assert_eq!((&done["entries"], &done["removed"]), (&2.into(), &1.into()));
        assert_eq!(done["removed_bytes"], entries[0].bytes());
        assert_eq!(bench.entries()[0].key(), entries[1].key());
        gc(&[]).ended(0).fits();
    });
}

#[test]
fn build_and_import_do_not_evict_entries_above_the_default_limit() {
    on_filled_benches(async |bench| {
        let bundle = bench.path("bundle");
        bench.text(["cache", "export", bundle.to_str().unwrap()]);
        // The entry is larger than the default limit, and was used less recently than all others.
        let entry = bench.entries()[0].path().to_owned();
        let large = entry.with_file_name(format!("{}.kiln", "0".repeat(62)));
        let file = fs::File::create(&large).unwrap();
        file.set_len(2 << 30).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        let forget_the_size = || fs::remove_file(bench.path("cache/v1/state")).unwrap();

        forget_the_size();
        bench.build("saxpy.cl", &["--options", "-D N=1"]);
        assert_eq!(bench.entries().len(), 4);
        forget_the_size();
        bench.text(["cache", "import", bundle.to_str().unwrap()]);
        assert_eq!(bench.entries().len(), 4);
        bench.text(["cache", "gc"]);
        assert_eq!(bench.entries().len(), 3);
    });
}

#[test]
fn clearing_a_cache_requires_confirmation() {
    on_filled_benches(async |bench| {
        bench.run(["cache", "clear"]).ended(2).says(&["--yes"]);
        assert_eq!(bench.entries().len(), 2);
        assert_eq!(bench.json(["cache", "clear", "--yes"])["removed"], 2);
        assert_eq!(bench.entries().len(), 0);
        assert!(bench.text(["cache", "clear", "--yes"]).contains("0 entries"));
    });
}

#[test]
fn keys_are_selected_by_unambiguous_prefixes() {
    on_benches(async |bench| {
        // The contents of the files do not affect their names.
        let folder = bench.path("cache/v1/0123456789abcdef/ab");
        fs::create_dir_all(&folder).unwrap();
        let keys = ["cd0", "cd1"].map(|digits| format!("ab{digits}{}", "0".repeat(59)));
        for key in &keys {
            fs::write(folder.join(format!("{}.kiln", &key[2..])), "anything").unwrap();
        }
        for arguments in [&["show", "abcd"][..], &["extract", "abcd"], &["why", "abcd", &keys[0]]] {
            let run = bench.run(["cache"].iter().chain(arguments)).ended(1);
            run.says(&["2 keys", &keys[0], &keys[1]]);
        }
        bench.run(["cache", "show", "abcd0"]).ended(1).says(&[&keys[0], "cannot be used"]);
        bench.run(["cache", "show", "abce"]).ended(1).says(&["no key", "abce"]);
        let text = bench.text(["cache", "ls"]);
        assert_eq!(text.matches("damaged").count(), 2, "{text}");
    });
}
