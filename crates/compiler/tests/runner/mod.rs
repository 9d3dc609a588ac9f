//! Finds the cases, runs each as a test of its own, and compares the results with those that are expected.

mod accesses;
mod arguments;
mod case;
mod check;
mod claims;
mod differences;
mod directives;
mod emit;
mod expected;
mod fuse;
mod launches;
mod partition;
mod program;
mod self_tests;
mod translate;

use std::path::{Path, PathBuf};

use libtest_mimic::{Failed, Trial};

use case::Case;
use expected::Update;

/// Result of a directive.
#[derive(Debug, Default)]
struct Outcome {
    /// Text that the case expects.
    shown: String,
    /// Further text that claims are about.
    code: String,
}

impl Outcome {
    fn shown(shown: String) -> Self {
        Self { shown, code: String::new() }
    }
}

/// Returns a test for each case, and the tests of the runner itself.
pub(crate) fn trials() -> Vec<Trial> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let update = Update::of_environment();
    let mut trials = self_tests::trials();
    match Case::all(&folder) {
        Ok(cases) => {
            let trial = |case: Case| {
                Trial::test(case.name.clone(), move || case.run(update).map_err(Failed::from))
            };
            trials.extend(cases.into_iter().map(trial));
        }
        Err(why) => trials.push(Trial::test("cases", move || Err(Failed::from(why)))),
    }
    trials.push(Trial::test("runner::every_file_belongs_to_a_case", move || {
        strays(&folder).map_err(Failed::from)
    }));
    trials
}

/// Checks that a folder has no files that belong to no case.
fn strays(folder: &Path) -> Result<(), String> {
    let cases = Case::all(folder)?;
    let owned: Vec<_> = cases.iter().flat_map(Case::files).collect();
    let mut strays = case::files_below(folder)?;
    strays.retain(|path| !owned.contains(path) && !path.ends_with("README.md"));
    let strays: Vec<_> = strays.iter().map(|path| format!("  {}", path.display())).collect();
    match strays.is_empty() {
        true => Ok(()),
        false => Err(format!("these files belong to no case:\n{}", strays.join("\n"))),
    }
}
