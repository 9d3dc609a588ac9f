//! Tests of the runner: it fails where it should.

use std::fs;
use std::path::Path;

use libtest_mimic::{Failed, Trial};

use super::case::Case;
use super::expected::Update;
use super::strays;

/// Case about a module that is there.
const GOOD: &str = "module saxpy.spv\naccesses saxpy(_, x, y) over 16\n";

type Test = fn(&Path) -> Result<(), String>;

const TESTS: [(&str, Test); 11] = [
    ("unknown_directives_fail", unknown_directives_fail),
    ("malformed_directives_fail", malformed_directives_fail),
    ("inputs_without_directives_fail", inputs_without_directives_fail),
    ("missing_modules_fail", missing_modules_fail),
    ("missing_expectations_fail_and_are_written", missing_expectations_fail_and_are_written),
    ("expectations_without_a_case_fail", expectations_without_a_case_fail),
    ("two_inputs_of_one_name_fail", two_inputs_of_one_name_fail),
    ("all_differences_are_shown", all_differences_are_shown),
    ("claims_that_do_not_hold_fail_even_when_written_anew", claims_that_do_not_hold_fail),
    ("results_that_differ_between_modules_are_shown_for_each", results_are_shown_for_each),
    ("modules_of_an_older_source_fail", modules_of_an_older_source_fail),
];

pub(super) fn trials() -> Vec<Trial> {
    let trial = |(name, test): (&str, Test)| {
        Trial::test(format!("runner::{name}"), move || {
            let folder = tempfile::tempdir()?;
            test(folder.path()).map_err(Failed::from)
        })
    };
    TESTS.into_iter().map(trial).collect()
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    fs::write(folder.join(name), text).map_err(|error| error.to_string())
}

/// Runs the only case in a folder.
fn run(folder: &Path, update: Update) -> Result<(), String> {
    let cases = Case::all(folder)?;
    cases.first().ok_or("there is no case")?.run(update)
}

/// Checks that the only case in a folder fails, with these words in the message.
fn fails(folder: &Path, update: Update, words: &[&str]) -> Result<(), String> {
    match run(folder, update) {
        Ok(()) => Err(format!("the case passed, expected {words:?}")),
        Err(why) => contains(&why, words),
    }
}

fn contains(text: &str, words: &[&str]) -> Result<(), String> {
    match words.iter().find(|word| !text.contains(**word)) {
        Some(word) => Err(format!("`{word}` is not in: {text}")),
        None => Ok(()),
    }
}

fn unknown_directives_fail(folder: &Path) -> Result<(), String> {
    write(folder, "a.case", "module saxpy.spv\n\nacceses saxpy(_, x, y) over 16\n")?;
    fails(folder, Update::Results, &["a.case", "line 3", "`acceses` is not a directive"])
}

fn malformed_directives_fail(folder: &Path) -> Result<(), String> {
    for (text, words) in [
        ("accesses saxpy over 16", "no `(`"),
        ("accesses saxpy(_, x, y)", "no size is given"),
        ("accesses saxpy(_, x, y) over", "nothing follows `over`"),
        ("accesses saxpy(_, x, y) by 16", "`by` is not over"),
        ("accesses saxpy(_, x[, y) over 16", "not a valid argument"),
        ("check saxpy(2.0, x[64], y) over 16", "write the size of `y`"),
        ("check saxpy(two, x[64], y[64]) over 16", "write the size of `two`"),
        ("fuse over 16 dead z\n  saxpy(2.0, x, y)", "no launch uses `z`"),
        ("fuse over 16 fast\n  saxpy(2.0, x, y)", "`fast` is not a word"),
        ("emit text", "`text` is not a constant"),
        ("emit\ncount many times", "count NUMBER TEXT"),
        ("  emit", "no directive is above"),
        ("emit\n  saxpy(2.0, x, y)", "no indented lines belong to `emit`"),
        ("module saxpy.spv\nlacks x", "`module` has no result"),
    ] {
        write(folder, "a.case", &format!("# A comment.\n{text}\n"))?;
        let is_above = text.starts_with(' ') || text.contains("many");
        if !is_above {
            write(folder, "a.case", &format!("module saxpy.spv\n{text}\n"))?;
        }
        fails(folder, Update::Results, &["line ", words])?;
    }
    Ok(())
}

fn inputs_without_directives_fail(folder: &Path) -> Result<(), String> {
    write(folder, "a.cl", "// check: nothing\nkernel void k() {}\n")?;
    fails(folder, Update::Results, &["there is no directive"])
}

fn missing_modules_fail(folder: &Path) -> Result<(), String> {
    write(folder, "a.cl", "//@ emit\nkernel void k() {}\n")?;
    fails(folder, Update::Results, &["a.spv"])?;
    fs::remove_file(folder.join("a.cl")).map_err(|error| error.to_string())?;
    write(folder, "b.case", "module missing.spv\nemit\n")?;
    fails(folder, Update::Results, &["missing.spv"])?;
    write(folder, "b.case", "emit\n")?;
    fails(folder, Update::Results, &["no module is given"])
}

fn missing_expectations_fail_and_are_written(folder: &Path) -> Result<(), String> {
    write(folder, "a.case", GOOD)?;
    fails(folder, Update::Nothing, &["a.expected", "KILN_TEST_BLESS=1", "1 reads 4x+0 4 always"])?;
    run(folder, Update::Results)?;
    run(folder, Update::Nothing)
}

fn expectations_without_a_case_fail(folder: &Path) -> Result<(), String> {
    write(folder, "a.case", GOOD)?;
    run(folder, Update::Results)?;
    strays(folder)?;
    write(folder, "b.expected", "> emit\n")?;
    match strays(folder) {
        Ok(()) => Err("the folder has a file that belongs to no case".to_owned()),
        Err(why) => contains(&why, &["b.expected"]),
    }
}

fn two_inputs_of_one_name_fail(folder: &Path) -> Result<(), String> {
    write(folder, "a.case", GOOD)?;
    write(folder, "a.cl", "//@ emit\nkernel void k() {}\n")?;
    fails(folder, Update::Nothing, &["two inputs of the case a"])
}

fn all_differences_are_shown(folder: &Path) -> Result<(), String> {
    write(folder, "a.case", GOOD)?;
    run(folder, Update::Results)?;
    let path = folder.join("a.expected");
    let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let text = text.replace("1 reads 4x", "1 reads 8x").replace("2 writes 4x", "2 writes 8x");
    fs::write(&path, text).map_err(|error| error.to_string())?;
    let words = ["- 1 reads 8x", "+ 1 reads 4x", "- 2 writes 8x", "+ 2 writes 4x", "  2 reads 4x"];
    fails(folder, Update::Nothing, &words)
}

fn claims_that_do_not_hold_fail(folder: &Path) -> Result<(), String> {
    for (claim, words) in [
        ("contains 7x", "`7x` is there 0 times, expected at least once"),
        ("lacks reads", "`reads` is there 2 times, expected never"),
        ("count 3 reads", "`reads` is there 2 times, expected 3 times"),
    ] {
        write(folder, "a.case", &format!("{GOOD}{claim}\n"))?;
        for update in [Update::Results, Update::Nothing] {
            fails(folder, update, &["line 3", "in saxpy.spv", words])?;
        }
    }
    write(folder, "a.case", &format!("{GOOD}contains 4x\nlacks 7x\ncount 2 reads\n"))?;
    run(folder, Update::Nothing)
}

fn results_are_shown_for_each(folder: &Path) -> Result<(), String> {
    let text = "module fusion.spv fusion_O0.spv\n\
                accesses scale(a, b, _) over 16\naccesses in_place(a) over 16\n";
    write(folder, "a.case", text)?;
    run(folder, Update::Results)?;
    let text = fs::read_to_string(folder.join("a.expected")).map_err(|error| error.to_string())?;
    let (same, different) = text.split_once("> accesses in_place").ok_or("a result is missing")?;
    contains(different, &["in fusion.spv:", "in fusion_O0.spv:"])?;
    if same.contains("in fusion") { Err(same.to_owned()) } else { Ok(()) }
}

fn modules_of_an_older_source_fail(folder: &Path) -> Result<(), String> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    fs::copy(data.join("saxpy.spv"), folder.join("a.spv")).map_err(|error| error.to_string())?;
    write(folder, "a.cl", "//@ emit\nkernel void saxpy() {}\n")?;
    fails(folder, Update::Results, &["KILN_TEST_BLESS=spirv"])
}
