//! Directives about the analysis of accesses: `accesses` and `limits` show the bytes that each work-item accesses.

use std::fmt::Write as _;

use kiln_compiler::fusion::{AccessDetail, list_accesses};

use super::Outcome;
use super::arguments::Memories;
use super::directives::Directive;
use super::launches::{LaunchText, RangeText, Words};
use super::program::{Program, failure};

/// Length in bytes of buffers whose length is not stated: no limit.
const UNLIMITED: usize = isize::MAX as usize;

/// Shows the accesses of a launch as fusion compares them: `accesses scale(src, dst, _) over 1000`.
///
/// # Errors
///
/// Returns what is wrong with the directive.
pub(super) fn accesses(program: &Program, directive: &Directive) -> Result<Outcome, String> {
    listed(program, directive, AccessDetail::Offsets)
}

/// Shows the accesses of a launch, with the values of the scalars that limit them, such as those of guards.
///
/// # Errors
///
/// Returns what is wrong with the directive.
pub(super) fn limits(program: &Program, directive: &Directive) -> Result<Outcome, String> {
    listed(program, directive, AccessDetail::Limits)
}

fn listed(
    program: &Program,
    directive: &Directive,
    detail: AccessDetail,
) -> Result<Outcome, String> {
    let (launch, words) = LaunchText::parse(&directive.rest)?;
    let (mut range, mut words) = (RangeText::default(), Words::of(words));
    while let Some(word) = words.next() {
        if !range.take(word, &mut words)? {
            return Err(format!("`{word}` is not over, from or in"));
        }
    }
    let range = range.range()?;
    let arguments = Memories::default().arguments(program, &launch, UNLIMITED)?;
    let list = match list_accesses(&program.module, &launch.kernel, &arguments, &range, detail) {
        Ok(list) => list,
        Err(error) => return Ok(Outcome::shown(format!("refused: {}", failure(&error)))),
    };
    let mut shown: String = list.accesses.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    if list.accesses.is_empty() {
        shown += "no accesses\n";
    }
    if !list.constants.is_empty() {
        _ = writeln!(shown, "relies on the values of the arguments {:?}", list.constants);
    }
    Ok(Outcome::shown(shown))
}
