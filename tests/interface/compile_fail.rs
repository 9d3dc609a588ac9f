//! Programs that must not compile: the compiler's message is short and states what to write instead.
//!
//! `TRYBUILD=overwrite cargo test --test interface -- --ignored compile_fail` regenerates the expected messages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use support::test_name;

/// Compiler whose messages are in `tests/ui/*.stderr`. Other compilers word and arrange them differently.
const COMPILER: &str = "rustc 1.95.";

/// Environment variable for the process that runs trybuild: the directory of its programs.
const PROGRAMS: &str = "KILN_TEST_PROGRAMS";

/// Returns the directory of the programs' package.
fn package() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "ui"].iter().collect()
}

fn is_expected_compiler() -> bool {
    let version = Command::new("rustc").arg("--version").output().expect("there is a compiler");
    version.stdout.starts_with(COMPILER.as_bytes())
}

#[test]
#[ignore = "it compiles Kiln anew: `make test-ui` runs it"]
fn invalid_programs_are_refused_with_a_suggestion() {
    if let Some(programs) = env::var_os(PROGRAMS) {
        trybuild::TestCases::new().compile_fail(Path::new(&programs).join("*.rs"));
        return;
    }
    if is_expected_compiler() {
        return run_trybuild(&package(), None);
    }
    // Every compiler must refuse the programs, with the first line of the expected message.
    let copies = tempfile::tempdir().expect("there is a temporary directory");
    for expected in expected_messages() {
        let program = expected.with_extension("rs");
        let name = program.file_name().expect("it is a file");
        fs::copy(&program, copies.path().join(name)).expect("it is copied");
    }
    run_trybuild(copies.path(), Some("overwrite"));
    for expected in expected_messages() {
        let name = expected.file_name().expect("it is a file");
        let [expected, given] = [&expected, &copies.path().join(name)]
            .map(|path| fs::read_to_string(path).expect("trybuild has written it"));
        let first = expected.lines().next().expect("it is not empty");
        assert!(given.contains(first), "expected: {first}\ngiven: {given}");
    }
}

fn expected_messages() -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(package()).expect("it is there");
    let files = files.map(|file| file.expect("it can be listed").path());
    files.filter(|file| file.extension().is_some_and(|extension| extension == "stderr"))
}

/// Runs trybuild in a process whose `CARGO_MANIFEST_DIR` is the programs' own package. With Kiln's package,
/// trybuild would compile all optional dependencies, and those of the tests, again.
fn run_trybuild(programs: &Path, update: Option<&str>) {
    let mut child = Command::new(env::current_exe().expect("it is known"));
    child
        .args([
            &test_name!("invalid_programs_are_refused_with_a_suggestion"),
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(PROGRAMS, programs)
        .env("CARGO_MANIFEST_DIR", package());
    if let Some(update) = update {
        child.env("TRYBUILD", update);
    }
    assert!(child.status().expect("it starts").success(), "see above");
}
