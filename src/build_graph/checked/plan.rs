//! Plans of checked programs: the SPIR-V of a program, to be compiled as it was analysed.

use crate::build_graph::formats::is_emitted;
use crate::build_graph::plan::BuildPlan;
use crate::compiler::options::{RELAXED, words};
use crate::device::{Device, ModuleFormat};
use crate::error::Result;
use crate::source::module::Module;
use crate::source::translate::options_for_device;

/// Option by which a compiler assumes that all work-groups have the same size, which no driver has to verify.
const UNIFORM_GROUPS: &str = "-cl-uniform-work-group-size";

/// Returns options without those by which a compiler assumes something that a launch might not keep. A number
/// that is assumed to be finite is undefined where it is not, and so is a branch that depends on it.
fn without_assumptions(options: &str) -> String {
    let mut kept = words(options);
    kept.retain(|word| !RELAXED.contains(word) && *word != UNIFORM_GROUPS);
    kept.join(" ")
}

/// Returns the plan of the checked program: with `modules`, the SPIR-V of a plan's modules, in their place, to
/// be built or merged by Kiln.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported), naming the option, for an option of a text that is not
/// known.
pub(super) fn checked_plan(
    plan: &BuildPlan,
    modules: Vec<Module>,
    device: &Device,
) -> Result<BuildPlan> {
    let is_text = plan.format() == ModuleFormat::OpenClC;
    let mut checked = plan.with_modules(modules);
    for input in &mut checked.inputs {
        if is_text {
            input.options = input.options.converted(options_for_device)?;
        }
        let convert = |options: &str| Ok(without_assumptions(options));
        input.options = input.options.converted(convert)?;
        input.link_options = input.link_options.converted(convert)?;
    }
    checked.link_options =
        checked.link_options.converted(|options| Ok(without_assumptions(options)))?;
    if checked.strategy != plan.strategy {
        checked.assign_options();
    }
    checked.inputs.sort_unstable_by_key(|input| input.module.digest());
    // A driver may optimise text better than SPIR-V.
    let as_text =
        if is_text { device.formats.contains(&ModuleFormat::OpenClC) } else { plan.is_emitted };
    checked.is_emitted = is_emitted(device, ModuleFormat::SpirV, as_text);
    checked.is_checked_text = is_text || plan.is_checked_text;
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_assume_something_are_left_out() {
        let options = "-cl-fast-relaxed-math -DA=1 -cl-uniform-work-group-size -cl-mad-enable";
        assert_eq!(without_assumptions(options), "-DA=1 -cl-mad-enable");
    }
}
