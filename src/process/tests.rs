//! Tests with scripts that misbehave as processes.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::*;

/// Time limit that no script here reaches if it ends by itself.
const PATIENCE: Duration = Duration::from_secs(60);

fn run_script(script: &str, input: &[u8], limit: Duration) -> Result<ProcessOutput> {
    let folder = tempfile::tempdir().expect("there is disk space");
    let path = folder.path().join("program");
    support::scripts::place(&path, script);
    run(Command::new(path), input, limit)
}

#[test]
fn the_output_and_status_of_a_process_are_returned() {
    let ended = run_script("cat; echo 'so far' >&2; exit 3", b"\0input", PATIENCE);
    let ended = ended.expect("it ends");
    assert_eq!((&*ended.output, &*ended.log), (&b"\0input"[..], "so far\n"));
    assert_eq!(describe_exit(ended.status), "exited with status 3");
    assert!(!ran_out_of_resources(&ended));
    let ended = run_script("kill -KILL $$", b"", PATIENCE).expect("it ends");
    assert_eq!(describe_exit(ended.status), "was killed by signal 9");
    assert!(ran_out_of_resources(&ended));
}

#[test]
fn hanging_processes_are_killed_with_their_children() {
    let folder = tempfile::tempdir().expect("there is disk space");
    let sleeper = folder.path().join("sleeper");
    let script = format!("echo 'so far' >&2; sleep 600 & echo $! > {}; wait", sleeper.display());
    let error = run_script(&script, b"", Duration::from_secs(3)).expect_err("it hangs");
    assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
    let text = error.to_string();
    assert!(text.contains("did not end within 3 s") && text.contains("so far"), "{text}");
    let sleeper = fs::read_to_string(sleeper).expect("it was started");
    wait_until_gone(&sleeper);
}

/// Waits until a process is gone or is a zombie.
fn wait_until_gone(process: &str) {
    let status = format!("/proc/{}/stat", process.trim());
    for _ in 0..1_000 {
        let state = fs::read_to_string(&status).unwrap_or_default();
        if state.is_empty() || state.contains(") Z ") {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("what the process started still runs");
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_that_is_stopped_by_a_signal_is_killed() {
    let error =
        run_script("echo 'so far' >&2; kill -STOP $$", b"", PATIENCE).expect_err("it stops");
    assert!(error.to_string().contains("it was stopped by a signal, and was killed"), "{error}");
    assert_eq!(error.build_log(), Some("so far\n"));
}

#[test]
fn remaining_children_are_killed_when_a_process_ends() {
    let script = "sleep 600 >/dev/null 2>&1 & echo $!; exit 3";
    let ended = run_script(script, b"", PATIENCE).expect("it ends");
    assert_eq!(describe_exit(ended.status), "exited with status 3");
    wait_until_gone(&String::from_utf8_lossy(&ended.output));
}

#[test]
#[cfg(target_os = "linux")]
fn processes_have_limits_of_cpu_time_and_core_size() {
    // The limits are set when the script is already running.
    let script =
        "while [ \"$(ulimit -t)\" = unlimited ]; do sleep 0.01; done; ulimit -c; ulimit -t";
    let limits = run_script(script, b"", PATIENCE).expect("it ends");
    let limits = String::from_utf8_lossy(&limits.output).into_owned();
    let limits: Vec<u64> = limits.lines().filter_map(|line| line.parse().ok()).collect();
    assert!(limits[0] == 0 && limits[1] > PATIENCE.as_secs(), "{limits:?}");
}

#[test]
fn quoted_source_text_does_not_count_as_memory_exhaustion() {
    let exhausted = |log: &str| {
        let ended = run_script(&format!("cat >&2 <<'END'\n{log}\nEND\nexit 1"), b"", PATIENCE);
        ran_out_of_resources(&ended.expect("it ends"))
    };
    assert!(exhausted("LLVM ERROR: out of memory"));
    assert!(exhausted("a\nclang: error: unable to make temporary file: No space left on device"));
    let quoted = "<stdin>:1:1: error: expected ';'\nerror: printf(\"out of memory\")\n      ^\n";
    assert!(!exhausted(quoted));
    assert!(!exhausted("<stdin>:1:2: error: No space left on device"));
    assert!(exhausted(&format!("{quoted}1 error generated.\nLLVM ERROR: out of memory")));
    assert!(exhausted("/bin/clang: error while loading libraries: Cannot allocate memory"));
}

#[test]
fn a_process_that_writes_without_end_is_killed() {
    let script = "while :; do echo 'the same again, and again, and again'; done";
    for script in [script.to_owned(), format!("({script}) >&2")] {
        let error = run_script(&script, b"", PATIENCE).expect_err("it writes without end");
        assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
        assert!(error.to_string().contains("it wrote more than"), "{error}");
    }
}

#[test]
fn chosen_programs_have_absolute_paths() {
    let chosen = ChosenProgram::find(Some(("scripts/env".into(), "the test")), "UNSET", None);
    let chosen = chosen.expect("it exists").expect("it was chosen");
    // The path is absolute, so it depends neither on the current directory nor on `PATH`.
    assert!(chosen.path.is_absolute(), "{}", chosen.path.display());
}
