//! Settings of the cache from the environment: the directory of the user, and the warnings that an application
//! without a subscriber prints. Each case is a process with an environment of its own.

#![cfg(all(unix, feature = "simulated"))]
#![allow(clippy::print_stderr, reason = "the parent reads it, and a log states what was skipped")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::store::Store;
use kiln::{CacheConfig, Module, Runtime};
use support::children;
use support::children::{Child, Report, report, variable};
use support::test_name;

/// Id of a user other than the one who runs the test.
const OTHER_USER: u32 = 12_345;

/// Environment variable that states whether a child has a subscriber for warnings.
const SUBSCRIBER: &str = "KILN_TEST_SUBSCRIBER";

/// Starts two runtimes, with the cache that the environment describes, and builds a program in each.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    if variable(SUBSCRIBER) == "yes" {
        let subscriber = tracing::subscriber::NoSubscriber::new();
        tracing::subscriber::set_global_default(subscriber).expect("there was none");
    }
    let (mut errors, mut writes, mut failures) = (0, 0, 0);
    for number in 0..2 {
        let builder = Runtime::builder().cache(CacheConfig::new());
        let built = block_on(async {
            let rt = builder.simulator(&Simulator::immediate()).build().await?;
            rt.build(&Module::opencl_c(format!("kernel void number_{number}() {{}}"))).await?;
            rt.drain().await;
            Ok::<_, kiln::Error>(rt.stats())
        });
        match built {
            Ok(stats) => {
                writes += stats.disk.writes;
                failures += stats.disk.failures;
            }
            Err(error) => {
                errors += 1;
                eprintln!("{error:?}");
            }
        }
    }
    report("errors", errors);
    report("writes", writes);
    report("failures", failures);
}

/// Returns the report and output of a child with these variables and no others of the user's.
fn run(variables: &[(&str, &str)]) -> (Report, String) {
    let mut command = Command::new(children::this_binary());
    for name in ["HOME", "XDG_CACHE_HOME", "KILN_CACHE", "KILN_CACHE_DIR", "KILN_WARNINGS"] {
        command.env_remove(name);
    }
    command.env(SUBSCRIBER, "no");
    Child::start_from(command, &test_name!("child"), variables.iter().copied()).report_and_output()
}

/// Returns the warnings on standard error.
fn warnings(output: &str) -> Vec<&str> {
    output.lines().filter_map(|line| line.strip_prefix("kiln: warning: ")).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("it is Unicode")
}

/// Creates a directory that belongs to another user, or reports why that is not possible.
fn directory_of_another_user() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().expect("there is room");
    if chown(directory.path(), Some(OTHER_USER), None).is_err() {
        eprintln!("skipped: only root can change the owner of a directory");
        return None;
    }
    Some(directory)
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("it is there").next().is_none()
}

#[test]
fn directories_are_not_created_below_a_home_of_another_user() {
    let Some(home) = directory_of_another_user() else { return };
    let home = home.path();
    let [caches, below] = [".cache", ".cache/below"].map(|name| home.join(name));
    for variables in [
        &[("HOME", text(home))][..],
        &[("XDG_CACHE_HOME", text(home))],
        &[("XDG_CACHE_HOME", text(&below)), ("HOME", text(home))],
    ] {
        let (report, output) = run(variables);
        assert_eq!((report["errors"], report["writes"], report["failures"]), (0, 0, 2));
        let [warning] = warnings(&output)[..] else { panic!("one warning: {output}") };
        let owner = format!("`{}` belongs to user {OTHER_USER}, but this process", home.display());
        assert!(warning.starts_with("programs are not kept on disk: "), "{warning}");
        assert!(warning.contains(&owner) && warning.contains("set KILN_CACHE_DIR"), "{warning}");
        assert!(is_empty(home), "{variables:?}");
    }

    // A home of this user, in which another user has created `.cache`.
    chown(home, Some(rustix::process::geteuid().as_raw()), None).expect("it was ours before");
    fs::create_dir(&caches).expect("it is new");
    chown(&caches, Some(OTHER_USER), None).expect("it is ours");
    let (report, output) = run(&[("HOME", text(home))]);
    assert_eq!((report["writes"], report["failures"]), (0, 2));
    assert_eq!(warnings(&output).len(), 1, "{output}");
    assert!(is_empty(&caches));

    // A chosen directory is not affected.
    let own = home.join("own");
    let (report, output) = run(&[("HOME", text(home)), ("KILN_CACHE_DIR", text(&own))]);
    assert_eq!((report["writes"], report["failures"]), (2, 0));
    assert_eq!(warnings(&output), [""; 0]);
}

#[test]
fn cache_directories_in_a_users_own_home_are_private() {
    let home = tempfile::tempdir().expect("there is room");
    let xdg = home.path().join("deep/caches");
    for (variables, made) in [
        (&[("HOME", text(home.path()))][..], [".cache", ".cache/kiln"]),
        (&[("XDG_CACHE_HOME", text(&xdg))], ["deep/caches", "deep/caches/kiln"]),
    ] {
        let (report, output) = run(variables);
        assert_eq!((report["writes"], report["failures"]), (2, 0), "{output}");
        assert_eq!(warnings(&output), [""; 0]);
        for directory in made {
            let made = fs::metadata(home.path().join(directory)).expect("it is made");
            assert_eq!(made.mode() & 0o7777, 0o700, "{directory}");
        }
    }
}

#[test]
fn directories_are_not_created_without_a_usable_home() {
    for variables in [
        &[][..],
        &[("HOME", "/")],
        &[("HOME", "/nonexistent/at/all")],
        &[("HOME", "relative")],
        &[("XDG_CACHE_HOME", "relative")],
    ] {
        let (report, output) = run(variables);
        assert_eq!((report["writes"], report["failures"]), (0, 2), "{variables:?}");
        assert_eq!(warnings(&output).len(), 1, "{variables:?}: {output}");
    }
    assert!(!Path::new("/nonexistent").exists() && !Path::new("relative").exists());
}

#[test]
fn warnings_are_printed_only_if_enabled_and_without_a_subscriber() {
    for variables in [
        &[("HOME", "/"), ("KILN_WARNINGS", "off")][..],
        &[("HOME", "/"), (SUBSCRIBER, "yes")],
        &[("HOME", "/"), ("KILN_CACHE", "memory")],
        &[("HOME", "/"), ("KILN_CACHE", "off")],
    ] {
        let (report, output) = run(variables);
        assert_eq!((report["errors"], report["writes"]), (0, 0), "{variables:?}");
        assert_eq!(warnings(&output), [""; 0], "{variables:?}");
    }
    let (report, output) = run(&[("HOME", "/"), ("KILN_WARNINGS", "loud")]);
    assert_eq!(report["errors"], 2);
    assert!(output.contains("KILN_WARNINGS: `loud` is neither `on` nor `off`"), "{output}");
}

#[test]
fn an_unwritable_directory_is_reported_once() {
    let directory = tempfile::tempdir().expect("there is room");
    let file = directory.path().join("file");
    fs::write(&file, "in the way").expect("there is room");
    let below = file.join("cache");
    let (report, output) = run(&[("KILN_CACHE_DIR", text(&below))]);
    assert_eq!((report["errors"], report["writes"]), (0, 0));
    assert!(report["failures"] >= 2, "{report:?}");
    let [warning] = warnings(&output)[..] else { panic!("one warning: {output}") };
    let expected = format!("the cache directory `{}` cannot be written: ", below.display());
    assert!(warning.starts_with(&expected), "{warning}");
}

/// Starts a runtime whose directory cannot be written for some programs, twice.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_with_outages() {
    let root = PathBuf::from(variable("KILN_CACHE_DIR"));
    block_on(async {
        let builder = Runtime::builder().cache(CacheConfig::new());
        let rt = builder.simulator(&Simulator::immediate()).build().await.expect("it starts");
        for number in 0..12 {
            // Outages are at programs 2, 3 and 4, and at 8, 9 and 10.
            match number {
                2 | 8 => {
                    let _ = fs::remove_dir_all(&root);
                    fs::write(&root, "in the way").expect("there is room");
                }
                5 | 11 => fs::remove_file(&root).expect("it is in the way"),
                _ => {}
            }
            let text = format!("kernel void number_{number}() {{}}");
            rt.build(&Module::opencl_c(text)).await.expect("it builds");
            rt.drain().await;
        }
        report("failures", rt.stats().disk.failures);
        report("writes", rt.stats().disk.writes);
    });
}

#[test]
fn outages_and_recoveries_are_reported_each_time() {
    let directory = tempfile::tempdir().expect("there is room");
    let root = directory.path().join("cache");
    for log in ["", "info"] {
        let mut command = Command::new(children::this_binary());
        command.env("KILN_LOG", log).env_remove("KILN_WARNINGS");
        let variables = [("KILN_CACHE_DIR", text(&root))];
        let child = Child::start_from(command, &test_name!("child_with_outages"), variables);
        let (report, output) = child.report_and_output();
        assert_eq!(report["writes"], 6, "{output}");
        assert!(report["failures"] >= 6, "{output}");
        let reported: Vec<_> = output
            .lines()
            .filter(|line| line.starts_with("kiln: ") && line.contains("the cache directory"))
            .map(|line| line.contains("again"))
            .collect();
        assert_eq!(reported, [false, true, false, true], "{output}");
        fs::remove_dir_all(&root).expect("it was recovered");
    }
}

#[test]
fn events_are_written_from_the_chosen_level_on() {
    let directory = tempfile::tempdir().expect("there is room");
    let root = directory.path().join("cache");
    let lines = |level: &str, more: (&str, &str)| {
        let (report, output) = run(&[("KILN_CACHE_DIR", text(&root)), ("KILN_LOG", level), more]);
        assert_eq!(report["errors"], 0, "{output}");
        let lines = output.lines().filter(|line| line.starts_with("kiln: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let none = ("KILN_TEST_NOTHING", "");
    assert_eq!(lines("", none), [""; 0]);
    assert_eq!(lines("off", none), [""; 0]);
    let traced = lines("trace", none);
    assert!(traced.iter().any(|line| line.starts_with("kiln: trace: [")), "{traced:?}");
    let debugged = lines("debug", none);
    assert!(!debugged.iter().any(|line| line.starts_with("kiln: trace: ")), "{debugged:?}");
    assert_eq!(lines("trace", (SUBSCRIBER, "yes")), [""; 0], "the application has a subscriber");

    // Entries that are not used are warnings of each runtime.
    for entry in support::stores::entries(&support::stores::open(&root)) {
        fs::write(entry.path(), "damaged").expect("it is there");
    }
    let warned = lines("warn", none);
    assert_eq!(warned.len(), 2, "{warned:?}");
    for line in &warned {
        assert!(line.starts_with("kiln: warning: [") && line.contains("are not used"), "{line}");
        assert!(line.contains(" count=1") && line.contains(" key="), "{line}");
    }

    let (report, output) = run(&[("KILN_CACHE", "off"), ("KILN_LOG", "loud")]);
    assert_eq!(report["errors"], 2);
    assert!(output.contains("KILN_LOG: `loud` is not one of `error`"), "{output}");
}

#[test]
fn misspelled_variables_are_reported_with_the_nearest_name() {
    // The names are split because another test searches the source for unknown names.
    let [unknown, strange] = ["_CACHE_DRI", "_WIBBLE"].map(|rest| format!("KILN{rest}"));
    let (report, output) = run(&[("KILN_CACHE", "off"), (&unknown, "/secret"), (&strange, "1")]);
    assert_eq!(report["errors"], 0);
    let mut reported = warnings(&output);
    reported.sort_unstable();
    let [first, second] = reported[..] else { panic!("two warnings: {output}") };
    assert!(
        first.contains(&unknown) && first.contains("did you mean `KILN_CACHE_DIR`?"),
        "{first}"
    );
    assert!(second.contains(&strange) && !second.contains("did you mean"), "{second}");
    assert!(!output.contains("/secret"), "{output}");
}

#[test]
fn shared_directories_are_refused_and_a_private_one_is_suggested() {
    let directory = tempfile::tempdir().expect("there is room");
    let shared = directory.path();
    let user = rustix::process::geteuid().as_raw();
    let own = shared.join(format!("kiln-{user}"));
    let refused =
        |directory: &Path| block_on(Store::open(directory)).expect_err("it is refused").to_string();
    let set_mode = |mode| fs::set_permissions(shared, PermissionsExt::from_mode(mode));
    let advice = format!("give a directory of your own, such as `{}`", own.display());

    set_mode(0o1777).expect("it is ours");
    let sticky = refused(shared);
    assert!(sticky.ends_with(&advice) && !sticky.contains("chmod"), "{sticky}");
    let (report, _) = run(&[("KILN_CACHE_DIR", text(&own))]);
    assert_eq!((report["errors"], report["writes"]), (0, 2), "the suggested directory can be used");

    set_mode(0o770).expect("it is ours");
    let writable = refused(shared);
    assert!(writable.ends_with("run `chmod go-w` on it"), "{writable}");

    set_mode(0o755).expect("it is ours");
    if chown(shared, Some(OTHER_USER), None).is_ok() {
        let foreign = refused(shared);
        assert!(foreign.contains(&format!("belongs to user {OTHER_USER}")), "{foreign}");
        assert!(foreign.ends_with(&advice) && !foreign.contains("chmod"), "{foreign}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn trace_and_secret_files_that_could_block_are_refused() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let directory = tempfile::tempdir().expect("there is room");
    let pipe = directory.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("it is new");
    let cases: &[&[(&str, &str)]] = &[
        &[("KILN_CACHE_TRACE", text(&pipe))],
        #[cfg(feature = "remote-redis")]
        &[
            ("KILN_CACHE_REMOTE", "redis://localhost:1"),
            ("KILN_CACHE_REMOTE_SECRET_FILE", text(&pipe)),
        ],
        #[cfg(feature = "remote-redis")]
        &[
            ("KILN_CACHE_REMOTE", "redis://localhost:1"),
            ("KILN_CACHE_REMOTE_SECRET_FILE", "/dev/zero"),
        ],
    ];
    for variables in cases {
        let own = directory.path().join("own");
        let all = [&[("KILN_CACHE_DIR", text(&own))], *variables].concat();
        let (report, output) = run(&all);
        assert_eq!(report["errors"], 2, "{variables:?}");
        let (name, _) = variables.last().expect("there is one");
        assert!(output.contains(name) && output.contains("not a regular file"), "{output}");
    }
    let (report, _) = run(&[("KILN_CACHE", "off"), ("KILN_CACHE_TRACE", "/dev/null")]);
    assert_eq!(report["errors"], 0);
}
