//! Unit tests of the file format: damaged lines, merging, and what is saved.

use std::time::{Duration, UNIX_EPOCH};

use futures::executor::block_on;

use super::line::{ChoiceLine, Code, DeviceLine, InputLine, StrategyName};
use super::*;

fn session(id: u64, time: u64) -> Line {
    Line::Session(SessionLine {
        version: line::VERSION,
        id: SessionId(id),
        time,
        kiln: "0.1.0".to_owned(),
    })
}

fn device() -> Line {
    let identity = vec![("device".to_owned(), "A CPU".to_owned())];
    let id = "0011223344556677".to_owned();
    Line::Device(DeviceLine { id, identity, environment: Vec::new() })
}

fn module(number: u8) -> Line {
    Line::Module(ModuleLine {
        digest: Digest([number; 32]),
        code: Code::OpenclC(format!("kernel void k{number}() {{{{ }}}}\n// ,\"whole\":true}}}}\n")),
        exports: Vec::new(),
        imports: Vec::new(),
        made_for: None,
        whole: true,
    })
}

fn program(number: u8) -> Line {
    Line::Program(line::ProgramLine {
        key: BuildKey([number; 32]),
        device: "0011223344556677".to_owned(),
        strategy: StrategyName::Build,
        emitted: false,
        checked_text: false,
        inputs: vec![InputLine {
            module: Digest([number; 32]),
            label: Some(format!("k{number}.cl")),
            included: None,
            constants: Vec::new(),
            options: String::new(),
            link_options: String::new(),
            replaced: Vec::new(),
            requested: true,
            untrusted: false,
        }],
        link_options: String::new(),
        translation: None,
    })
}

fn uses(number: u8, session: u64, count: u64, first: u64) -> Line {
    let (key, session) = (BuildKey([number; 32]), SessionId(session));
    Line::Uses(line::UsesLine { key, session, count, first })
}

fn text(lines: &[Line]) -> String {
    lines.iter().map(|line| line.to_text().unwrap()).collect()
}

fn read(text: &str) -> BuildManifest {
    BuildManifest::read(text.into()).unwrap()
}

/// Returns the name, the number of runs and the number of uses of each entry.
fn summary(manifest: &BuildManifest) -> Vec<(String, usize, u64)> {
    let entries = manifest.entries().iter();
    entries.map(|entry| (entry.to_string(), entry.runs(), entry.uses())).collect()
}

/// Returns the text of a manifest with two programs, used in one session.
fn two_programs(session_id: u64) -> String {
    text(&[
        session(session_id, 1000 + session_id),
        device(),
        module(1),
        program(1),
        uses(1, session_id, 1, 5),
        module(2),
        program(2),
        uses(2, session_id, 1, 9),
        uses(1, session_id, 2, 5),
        uses(1, session_id, 4, 5),
    ])
}

#[test]
fn later_lines_state_the_uses_so_far() {
    let manifest = read(&two_programs(7));
    let expected = [("k1.cl".to_owned(), 1, 4), ("k2.cl".to_owned(), 1, 1)];
    assert_eq!(summary(&manifest), expected);
    assert_eq!(manifest.damaged_lines(), 0);
    let last = UNIX_EPOCH + Duration::from_secs(1007);
    assert!(manifest.entries().iter().all(|entry| entry.last_used() == last));
}

#[test]
fn a_file_that_is_cut_off_anywhere_has_the_lines_before() {
    let whole = two_programs(7);
    let first_line = whole.find('\n').unwrap();
    for end in first_line..whole.len() {
        // Another process goes on writing, at the start of a line.
        let torn = format!("{}\n{}", &whole[..end], text(&[session(8, 1), uses(1, 8, 1, 0)]));
        let manifest = read(&torn);
        let is_at_end_of_line = whole.as_bytes()[end] == b'\n';
        let is_torn = !whole[..end].ends_with('\n') && !is_at_end_of_line;
        assert_eq!(manifest.damaged_lines(), usize::from(is_torn), "{end}");
        let lines = whole[..end].matches('\n').count() + usize::from(is_at_end_of_line);
        // The programs are the fourth and the seventh line.
        let programs = usize::from(lines >= 4) + usize::from(lines >= 7);
        assert_eq!(manifest.entries().len(), programs, "{end}");
    }
}

#[test]
fn damaged_lines_are_counted_and_the_others_are_read() {
    let good = two_programs(7);
    let program_of_no_device = text(&[program(3)]).replace("0011223344556677", "8899aabbccddeeff");
    let damage = [
        "{\"session\":{}}\n",
        "{\"other\":{}}\n",
        "[1, 2\n",
        "\u{0}\u{0}\u{0}\n",
        &program_of_no_device,
        // Modules are recognized by their start.
        "{ \"module\": {\"digest\": \"\"}}\n",
    ];
    for damage in damage {
        for at in [0, good.find('\n').unwrap() + 1, good.len()] {
            let manifest = read(&[&good[..at], damage, &good[at..]].concat());
            assert_eq!(manifest.damaged_lines(), 1, "{damage:?}");
            assert_eq!(summary(&manifest), summary(&read(&good)), "{damage:?}");
        }
    }
}

#[test]
fn a_damaged_module_is_an_error_when_it_is_needed() {
    let damaged = two_programs(7).replace("kernel void k2", "kernel \\q k2");
    let manifest = read(&damaged);
    assert!(manifest.module(Digest([1; 32])).is_ok());
    for (number, problem) in [(2, "damaged"), (3, "does not contain")] {
        let error = manifest.module(Digest([number; 32])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidModule);
        assert!(error.to_string().contains(problem), "{error}");
        assert!(error.to_string().contains("record it again"), "{error}");
    }
}

#[test]
fn other_files_and_versions_are_refused_with_the_reason() {
    for other in ["", "\n", "kernel void f() { }\n", "{\"a\": 1}\n"] {
        let error = BuildManifest::read(other.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains("is not a build manifest"), "{error}");
    }
    let newer = two_programs(7).replace("\"version\":1", "\"version\":2");
    let error = BuildManifest::read(newer.into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("version 2 of the format"), "{error}");
}

#[test]
fn merging_adds_sessions_once() {
    let (one, other) = (read(&two_programs(7)), read(&two_programs(8)));
    let mut merged = one.clone();
    merged.merge(one.clone());
    assert_eq!(summary(&merged), summary(&one));
    merged.merge(other.clone());
    merged.merge(other);
    let expected = [("k1.cl".to_owned(), 2, 8), ("k2.cl".to_owned(), 2, 2)];
    assert_eq!(summary(&merged), expected);
    let last = UNIX_EPOCH + Duration::from_secs(1008);
    assert!(merged.entries().iter().all(|entry| entry.last_used() == last));
}

#[test]
fn a_saved_manifest_has_what_its_entries_need() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pruned.manifest");
    let mut manifest = read(&two_programs(7));
    let choice = ChoiceLine {
        key: BuildKey([9; 32]),
        device: "0011223344556677".to_owned(),
        module: Digest([9; 32]),
        launches: "two launches".to_owned(),
        times: "1000 direct 0 1".to_owned(),
    };
    manifest.merge(read(&text(&[
        session(8, 2000),
        device(),
        Line::Choice(choice.clone()),
        uses(9, 8, 3, 1),
    ])));
    block_on(manifest.save(&path)).unwrap();
    let saved = block_on(BuildManifest::open(&path)).unwrap();
    assert_eq!(summary(&saved), summary(&manifest));
    let module = |manifest: &BuildManifest| manifest.module(Digest([2; 32])).unwrap();
    assert_eq!(module(&saved), module(&manifest));
    let found = saved.entries().iter().find(|entry| entry.kind() == EntryKind::Choice).unwrap();
    let EntryLine::Choice(found) = found.line() else { panic!("{found:?}") };
    assert_eq!(*found, choice);

    manifest.retain(|entry| entry.key() == BuildKey([1; 32]));
    block_on(manifest.save(&path)).unwrap();
    let pruned = block_on(BuildManifest::open(&path)).unwrap();
    assert_eq!(summary(&pruned), [("k1.cl".to_owned(), 1, 4)]);
    assert!(pruned.module(Digest([1; 32])).is_ok());
    assert!(pruned.module(Digest([2; 32])).is_err());
    let sessions: Vec<_> = pruned.sessions.keys().collect();
    assert_eq!(sessions, [&SessionId(7)], "the other session used nothing that is left");

    manifest.retain(|_| false);
    block_on(manifest.save(&path)).unwrap();
    assert_eq!(block_on(BuildManifest::open(&path)).unwrap().entries().len(), 0);
}

#[test]
fn files_that_are_absent_or_not_regular_are_errors_that_name_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent.manifest");
    for path in [&absent, folder.path()] {
        let error = block_on(BuildManifest::open(path)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    }
    let into = folder.path().join("absent/saved.manifest");
    let error = block_on(read(&two_programs(7)).save(&into)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("saved.manifest"), "{error}");
}
