//! Directives about the check of bounds: `check` shows the verdict on a launch, `guard` its guarded variant.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use kiln_compiler::bounds::{self, Kernel, Launch, Report};
use kiln_compiler::opencl_c;

use super::Outcome;
use super::arguments;
use super::directives::Directive;
use super::launches::{ArgumentText, LaunchText, RangeText, Words};
use super::program::{Program, failure};

/// Shows the verdict on a launch: `check saxpy(2.0, x[4096], y[4096]) over 1024 in 64`. The word `uneven` says that the
/// driver may choose work-groups of different sizes, `few` that the verdict shall depend on few scalars.
///
/// # Errors
///
/// Returns what is wrong with the directive. A launch that is refused is a result.
pub(super) fn check(program: &Program, directive: &Directive) -> Result<Outcome, String> {
    Ok(Outcome::shown(match checked(program, directive)? {
        Ok((kernel, report)) => describe(&kernel, &report),
        Err(error) => format!("refused: {}", failure(&error)),
    }))
}

/// Shows the verdict on a launch, and the variant of its kernel that guards what is not proven, in OpenCL C.
///
/// # Errors
///
/// Returns what is wrong with the directive.
pub(super) fn guard(program: &Program, directive: &Directive) -> Result<Outcome, String> {
    let (kernel, report) = match checked(program, directive)? {
        Ok(checked) => checked,
        Err(error) => return Ok(Outcome::shown(format!("refused: {}", failure(&error)))),
    };
    let mut shown = describe(&kernel, &report);
    let variant = bounds::variant(&kernel, Some(&report), &[]);
    match variant.and_then(|variant| Ok((opencl_c::opencl_c(&variant.module)?, variant))) {
        Ok((code, variant)) => {
            let lengths = names(&kernel, variant.lengths);
            _ = writeln!(shown, "lengths that follow the arguments: {lengths}\n\n{code}");
        }
        Err(error) => _ = writeln!(shown, "not guarded: {}", failure(&error)),
    }
    Ok(Outcome::shown(shown))
}

/// Checks the launch of a directive.
fn checked(
    program: &Program,
    directive: &Directive,
) -> Result<kiln_spirv::Result<(Kernel, Report)>, String> {
    let (launch, words) = LaunchText::parse(&directive.rest)?;
    let (mut range, mut uniform_groups, mut few_constants) = (RangeText::default(), true, false);
    let mut words = Words::of(words);
    while let Some(word) = words.next() {
        match word {
            "uneven" => uniform_groups = false,
            "few" => few_constants = true,
            _ if range.take(word, &mut words)? => {}
            _ => return Err(format!("`{word}` is not over, from, in, uneven or few")),
        }
    }
    let (range, arguments) = (range.range()?, arguments::for_bounds(program, &launch)?);
    let is_const = |argument: &ArgumentText| match argument {
        ArgumentText::Memory(memory) => memory.is_const,
        _ => false,
    };
    let positions = launch.arguments.iter().enumerate();
    let read_only: BTreeSet<_> =
        positions.filter(|(_, argument)| is_const(argument)).map(|(at, _)| at).collect();
    let kernel = Kernel::of(&program.module, &launch.kernel, &[], &read_only);
    Ok(kernel.and_then(|kernel| {
        let launch = Launch { range: &range, arguments: &arguments, uniform_groups, few_constants };
        let report = bounds::check(&kernel, &launch)?;
        Ok((kernel, report))
    }))
}

/// Returns the verdict on a launch, and what it depends on.
fn describe(kernel: &Kernel, report: &Report) -> String {
    let mut text = format!("{}\n", report.verdict(kernel));
    let guarded = report.accesses.iter().filter(|checked| !checked.is_in_bounds()).count();
    if guarded > 0 {
        _ = writeln!(text, "guarded accesses: {guarded}");
    }
    let hazards: BTreeSet<_> = report.hazards.iter().map(|(_, hazard)| *hazard).collect();
    if !hazards.is_empty() {
        let hazards: Vec<_> = hazards.iter().map(|hazard| format!("{hazard:?}")).collect();
        _ = writeln!(text, "hazards: {}", hazards.join(", "));
    }
    if !report.constants.is_empty() {
        let scalars = names(kernel, report.constants.iter().copied());
        _ = writeln!(text, "relies on the values of {scalars}");
    }
    text
}

fn names(kernel: &Kernel, positions: impl IntoIterator<Item = usize>) -> String {
    let names: Vec<_> = positions.into_iter().map(|at| kernel.parameter(at)).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
