//! Random cases in batches, and the reasons for which cases were refused.
//!
//! `KILN_FUSION_CASES` is the number of cases, and `KILN_FUSION_SEED` the first seed.

#![allow(clippy::print_stderr, reason = "what was covered is of interest")]

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Mutex;

use kiln::{Runtime, RuntimeBuilder};
use support::tier;

/// Numbers of refused cases, by the reason without names and numbers.
#[derive(Default)]
pub(crate) struct Reasons(BTreeMap<String, usize>);

impl Reasons {
    pub(crate) fn add(&mut self, reason: &str) {
        *self.0.entry(kind_of(reason)).or_default() += 1;
    }

    pub(crate) fn add_all(&mut self, other: Self) {
        for (reason, count) in other.0 {
            *self.0.entry(reason).or_default() += count;
        }
    }

    /// Prints the most frequent reasons.
    pub(crate) fn print(&self) {
        let mut reasons: Vec<_> = self.0.iter().collect();
        reasons.sort_by_key(|(_, count)| Reverse(**count));
        for (reason, count) in reasons.iter().take(40) {
            eprintln!("{count:6} {reason}");
        }
    }
}

/// Returns a reason without names and numbers.
fn kind_of(reason: &str) -> String {
    let (mut kind, mut is_name) = (String::new(), false);
    for c in reason.chars() {
        match c {
            '`' => {
                is_name = !is_name;
                kind += if is_name { "`" } else { "..`" };
            }
            _ if is_name => {}
            '0'..='9' if kind.ends_with('#') => {}
            '0'..='9' => kind.push('#'),
            c => kind.push(c),
        }
    }
    kind
}

/// Returns a builder of runtimes for batches. Cases share no programs, and drivers keep several times the size of
/// a program's binary, so few programs stay in memory. The tool builds untrusted modules.
pub(crate) fn builder() -> RuntimeBuilder {
    support::builder().memory_limit(8 << 20).build_child(env!("CARGO_BIN_EXE_kiln"))
}

/// Returns a runtime for each device.
pub(crate) fn devices() -> Vec<Runtime> {
    let devices = RefCell::new(Vec::new());
    let add_device = async |rt| devices.borrow_mut().push(rt);
    futures::executor::block_on(support::on_each_device_with(builder, add_device));
    devices.into_inner()
}

/// Calls `run` for each batch of at most `size` cases, with its seed, its number of cases and all devices,
/// several at a time, and `add` with each result. The number of cases is one of the tiers, `full` or `fast`. Returns
/// all results together.
pub(crate) fn in_batches<T: Default + Send>(
    [full, fast]: [usize; 2],
    size: usize,
    run: impl Fn(usize, usize, &[Runtime]) -> T + Sync,
    add: impl Fn(&mut T, T) + Sync,
) -> T {
    let devices = devices();
    let cases = tier::cases("KILN_FUSION_CASES", full, fast);
    let seed = tier::cases("KILN_FUSION_SEED", 1, 1);
    let all = Mutex::new(T::default());
    let batches: Vec<_> = (0..cases.div_ceil(size)).collect();
    support::at_once(&batches, |&number| {
        let done = run(seed + number, size.min(cases - number * size), &devices);
        add(&mut all.lock().expect("no other batch panicked"), done);
    });
    all.into_inner().expect("no batch panicked")
}

/// Fails with the first failures, if there are any.
#[track_caller]
pub(crate) fn assert_none(failures: &[String]) {
    let first = &failures[..failures.len().min(4)];
    assert!(failures.is_empty(), "{}: {}", failures.len(), first.join("\n"));
}
