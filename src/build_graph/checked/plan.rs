//! Plans of checked programs: the SPIR-V of a program, to be compiled as it was analysed; and their kernels.

use std::collections::BTreeSet;

use kiln_compiler::bounds;
use kiln_compiler::options::{RELAXED, words};
use kiln_spirv::Access;

use crate::build_graph::formats::is_emitted;
use crate::build_graph::plan::BuildPlan;
use crate::device::{Device, DeviceInfo, ModuleFormat, Workarounds};
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

/// Returns the plan of the checked program: with what `convert` makes of `modules`, the SPIR-V of a plan's modules, in
/// their place, to be built or merged by Kiln.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported), naming the option, for an option of a text that is not
/// known, and the errors of `convert`.
fn checked_plan(
    plan: &BuildPlan,
    modules: &[Module],
    device: &Device,
    convert: fn(&Module, &DeviceInfo) -> Result<Module>,
) -> Result<BuildPlan> {
    let is_text = plan.format() == ModuleFormat::OpenClC;
    let modules = modules.iter().map(|module| convert(module, device));
    let mut checked = plan.with_modules(modules.collect::<Result<Vec<_>>>()?);
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

/// Returns a module that a device runs as it is analysed: without claims that its functions do not keep, without
/// undefined values, without vectors that the driver passes wrongly, and without loads that it does too early. The module
/// is the same if it has none of these.
pub(super) fn faithful(module: &Module, device: &DeviceInfo) -> Result<Module> {
    changed(module, device, bounds::define)
}

/// Returns a module that fusion made of such modules. Its variables are written before they are read.
fn fused(module: &Module, device: &DeviceInfo) -> Result<Module> {
    changed(module, device, |_| Ok(false))
}

/// `define` changes the module so that its values are defined, and returns whether it did.
fn changed(
    module: &Module,
    device: &DeviceInfo,
    define: impl Fn(&mut kiln_spirv::Module) -> Result<bool>,
) -> Result<Module> {
    let parsed = kiln_spirv::Module::parse(module.code())?;
    let honest = bounds::without_false_claims(&parsed);
    let is_honest = honest.is_none();
    let mut new = honest.unwrap_or(parsed);
    let Workarounds { widen_vectors, split_volatile_loads, .. } = Workarounds::of(device);
    let is_widened = widen_vectors && kiln_spirv::widen_vectors(&mut new)?;
    let is_split = split_volatile_loads && kiln_spirv::split_volatile_loads(&mut new)?;
    let is_defined = define(&mut new)?;
    if is_honest && !is_widened && !is_split && !is_defined {
        return Ok(module.clone());
    }
    let new = Module::spirv(new.assemble())?.labeled_like(module);
    Ok(new.untrusted_if(module.is_untrusted()))
}

/// Returns the plan of the checked program of a plan that fusion made, given its modules.
pub(super) fn fused_plan(
    plan: &BuildPlan,
    modules: &[Module],
    device: &Device,
) -> Result<BuildPlan> {
    checked_plan(plan, modules, device, fused)
}

/// Returns the plan of the checked program of a plan, given the SPIR-V of its modules.
pub(super) fn faithful_plan(
    plan: &BuildPlan,
    modules: &[Module],
    device: &Device,
) -> Result<BuildPlan> {
    checked_plan(plan, modules, device, faithful)
}

/// Returns the plan of the program that runs: of one module that has the kernels of a checked plan which are fit, under
/// [names](kiln_spirv::own_names) that Kiln made.
pub(super) fn plan_to_run(
    checked: &BuildPlan,
    device: &Device,
    is_fit: impl Fn(&str) -> bool,
) -> Result<BuildPlan> {
    let analysed = BuildPlan { is_emitted: false, ..checked.clone() };
    let (code, constants) = analysed.with_source(device, |source| {
        let mut module = kiln_spirv::Module::parse(source.code)?;
        kiln_spirv::own_names(&mut module, is_fit)?;
        Ok((module.assemble(), source.constants.to_vec()))
    })?;
    Ok(checked.with_merged(Module::spirv(code)?, constants))
}

/// Prepares the kernels of a checked program for the check. Returns each with its name, or the reason why its launches
/// cannot be checked.
pub(super) fn prepare_all(
    plan: &BuildPlan,
    device: &Device,
) -> Result<Vec<(String, Result<bounds::Kernel>)>> {
    let analysed = BuildPlan { is_emitted: false, ..plan.clone() };
    analysed.with_source(device, |source| {
        let module = kiln_spirv::Module::parse(source.code)?;
        let names: Vec<_> = analysed.kernel_names().map(str::to_owned).collect();
        let prepare = |name: &String| {
            let read_only = read_only(&analysed, name);
            bounds::Kernel::of(&module, name, source.constants, &read_only)
        };
        Ok(names.into_iter().map(|name| (name.clone(), prepare(&name))).collect())
    })
}

/// Returns the positions of a kernel's parameters that its declaration says are only read.
fn read_only(plan: &BuildPlan, kernel: &str) -> BTreeSet<usize> {
    let parameters = plan.parameters(kernel).unwrap_or_default().iter().enumerate();
    let read_only = parameters.filter(|(_, known)| known.access == Some(Access::Read));
    read_only.map(|(at, _)| at).collect()
}

/// Prepares a kernel of a checked program for the check. `is_fused` states whether fusion made the kernel.
pub(super) fn prepare(
    plan: &BuildPlan,
    device: &Device,
    name: &str,
    is_fused: bool,
) -> Result<bounds::Kernel> {
    let analysed = BuildPlan { is_emitted: false, ..plan.clone() };
    analysed.with_source(device, |source| {
        let module = kiln_spirv::Module::parse(source.code)?;
        let read_only = read_only(&analysed, name);
        match is_fused {
            true => bounds::Kernel::of_fused(&module, name, &read_only),
            false => bounds::Kernel::of(&module, name, source.constants, &read_only),
        }
    })
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
