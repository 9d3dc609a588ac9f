//! Kernels that nobody of this project wrote, from packages of Debian and PyPI, as checked launches with random
//! arguments: buffers of random lengths, many too short, between pages that cannot be accessed, on drivers for CPUs.
//!
//! `make soak-foreign` downloads the kernels and runs this. Nothing of them is part of the project.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "a log tells what was tested")]

mod arguments;
mod child;
mod expected;
mod report;
mod sources;

use std::fs::{self, File};
use std::io::Read as _;
use std::process::ExitStatus;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, thread};

use futures::executor::block_on;
use support::children::variable;
use support::tools::has_clang;
use support::{at_once, test_name, tier};

use self::child::Work;
use self::report::{Counts, Event};
use self::sources::{SOURCES, Source};
use crate::guard_pages::{Layer, on_each_cpu, runtime};

/// Number of launches of each kernel in the full and in the fast tier, unless `KILN_TEST_LAUNCHES` says another one.
const LAUNCHES: [usize; 2] = [4, 1];

/// Number of programs of each source in the full and in the fast tier, unless `KILN_TEST_FILES` says another one.
const FILES: [usize; 2] = [usize::MAX, 2];

/// Processor time after which a step of a child counts as overdue, and the child is ended. A step may be a compile.
const LIMIT: Duration = Duration::from_secs(90);

/// Time after which a step of a child counts as overdue, however much of the processors it got.
const HANGS: Duration = Duration::from_secs(1200);

/// Variables of a child: the name of its source, and where it begins.
const SOURCE: &str = "KILN_TEST_SOURCE";
const FROM: &str = "KILN_TEST_FROM";
const SEED: &str = "KILN_SEED";

/// Variable with words, separated by commas. Only programs are tried whose source and name contain one of them.
const ONLY: &str = "KILN_TEST_ONLY";

#[test]
#[ignore = "takes long, and needs kernels that `make soak-foreign` downloads"]
fn kernels_of_others_stay_between_guard_pages() {
    let Some(layer) = Layer::build().filter(|_| has_clang()) else { return };
    let found: Vec<_> = SOURCES.iter().filter(|source| !files_of(source).is_empty()).collect();
    if found.is_empty() {
        return eprintln!("skipped: run scripts/fetch-kernels, which needs a network");
    }
    let seed = env::var(SEED).unwrap_or_else(|_| "1".to_owned());
    eprintln!("{SEED}={seed}");
    on_each_cpu(async |rt| {
        let device = rt.device().index();
        let problems = Mutex::new(Vec::new());
        at_once(&found, |source| {
            let counts = run(&layer, device, source, &seed);
            problems.lock().expect("no thread panics").extend(judge(source, &counts));
        });
        let problems = problems.into_inner().expect("no thread panics");
        assert!(problems.is_empty(), "on {}:\n{}", rt.device(), problems.join("\n"));
    });
}

/// Prints the counts of a source, and returns what must not be.
fn judge(source: &Source, counts: &Counts) -> Vec<String> {
    let mut text = format!("{}: {counts}\n", source.name);
    let mut reasons: Vec<_> = counts.reasons.iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (reason, count) in reasons {
        text += &format!("  {count:6} {reason}\n");
    }
    let lists = [
        ("invalid", &counts.invalid),
        ("untranslated", &counts.untranslated),
        ("failed", &counts.failed),
        ("unexpected", &counts.unexpected),
        ("overdue", &counts.overdue),
        ("ended", &counts.ended),
    ];
    for (name, list) in lists {
        list.iter().for_each(|what| text += &format!("  {name}: {what}\n"));
    }
    eprintln!("{text}");
    let mut problems = Vec::new();
    for (name, list) in lists.into_iter().skip(2).filter(|(name, _)| *name != "overdue") {
        problems.extend(list.iter().map(|what| format!("{}: {name}: {what}", source.name)));
    }
    let events = [Event::Proven, Event::Guarded, Event::Executed];
    for (event, minimum) in events.into_iter().zip(source.minimum) {
        let count = counts.of(event);
        if files_of(source).len() == source.files().len() && count < minimum {
            problems.push(format!("{}: {count} {event}, fewer than {minimum}", source.name));
        }
    }
    problems
}

/// Returns the programs of a source that are tried: all, or those whose names contain one of the words in
/// `KILN_TEST_ONLY`, and of these as many as are to be tried.
fn files_of(source: &Source) -> Vec<String> {
    let mut all = source.files();
    if let Ok(only) = env::var(ONLY) {
        let is_meant = |file: &String| {
            let name = format!("{}/{file}", source.name);
            only.split(',').any(|word| name.contains(word))
        };
        all.retain(is_meant);
    }
    let most = tier::cases("KILN_TEST_FILES", FILES[0], FILES[1]);
    let step = all.len().div_ceil(most).max(1);
    all.into_iter().step_by(step).collect()
}

/// Runs children until all programs of a source were tried.
fn run(layer: &Layer, device: usize, source: &Source, seed: &str) -> Counts {
    let mut counts = Counts::default();
    let mut from = (0, 0);
    loop {
        let (output, status) = run_child(layer, device, source, seed, from);
        let (position, what) = counts.add_lines(&output);
        let phase = position.phase;
        match status {
            Some(status) if status.success() && output.contains("1 passed") => return counts,
            Some(status) => {
                let last: Vec<_> = output.lines().rev().take(12).collect();
                let last: Vec<_> = last.into_iter().rev().collect();
                counts.ended.push(format!("{phase} {what}: {status}: {}", last.join(" | ")));
            }
            None => counts.overdue.push(format!("{phase} {what}")),
        }
        from = match phase {
            "build" => (position.program + 1, 0),
            _ => (position.program, position.kernel + 1),
        };
        if phase.is_empty() {
            return counts;
        }
    }
}

/// Runs a child that begins at a program and its kernel. Returns its output, and its status unless it was ended because
/// a step took too long.
fn run_child(
    layer: &Layer,
    device: usize,
    source: &Source,
    seed: &str,
    from: (usize, usize),
) -> (String, Option<ExitStatus>) {
    let mut command = layer.command(device, &test_name!("tries_the_programs_of_a_source"));
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("output");
    let file = File::create(&path).expect("there is room");
    let errors = file.try_clone().expect("there are descriptors");
    let from = format!("{} {}", from.0, from.1);
    command.env(SOURCE, source.name).env(FROM, from).env(SEED, seed);
    command.stdout(file).stderr(errors);
    let mut child = command.spawn().expect("this binary can be run again");
    let (mut length, mut since, mut used) = (0, Instant::now(), Duration::ZERO);
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break Some(status);
        }
        let now = fs::metadata(&path).expect("it is there").len();
        if now != length {
            (length, since, used) = (now, Instant::now(), processor_time(child.id()));
        } else if processor_time(child.id()) > used + LIMIT || since.elapsed() > HANGS {
            child.kill().expect("it runs");
            child.wait().expect("it was ended");
            break None;
        }
        thread::sleep(Duration::from_millis(50));
    };
    let mut output = Vec::new();
    File::open(&path).expect("it is there").read_to_end(&mut output).expect("it can be read");
    (String::from_utf8_lossy(&output).into_owned(), status)
}

/// Returns the processor time of a process and of its children that ended.
fn processor_time(process: u32) -> Duration {
    /// Ticks of the clock in a second, as Linux states them to all processes.
    const TICKS: u64 = 100;
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name in parentheses may contain spaces.
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    let ticks: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS)
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn tries_the_programs_of_a_source() {
    let name = variable(SOURCE);
    let source = SOURCES.iter().find(|source| source.name == name).expect("the parent knows it");
    let from = variable(FROM);
    let (program, kernel) = from.split_once(' ').expect("the parent sets both");
    let number = |text: &str| text.parse().expect("it is a number");
    let work = Work {
        source,
        from: (number(program), number(kernel)),
        files: files_of(source),
        launches: tier::cases("KILN_TEST_LAUNCHES", LAUNCHES[0], LAUNCHES[1]) as u64,
        seed: variable(SEED).parse().expect("it is a number"),
    };
    block_on(async { work.run(&runtime().await).await });
}
