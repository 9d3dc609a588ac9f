//! Proofs that launches stay inside their memory: a fused kernel of proven launches is proven, too. All tests of
//! fusion assert this for their plans.

use kiln_spirv::Result;

use super::*;
use crate::ChannelType;
use crate::bounds;

/// Returns an argument in the form of the check of bounds.
fn given(argument: &Argument) -> bounds::Argument {
    match argument {
        Argument::Buffer(Region { offset, length, .. }) => {
            let alignment = if *offset == 0 { 128 } else { 1 << offset.trailing_zeros().min(7) };
            bounds::Argument::Buffer { length: *length, alignment }
        }
        Argument::Scalar(bytes) => bounds::Argument::Scalar(bytes.clone()),
        Argument::Local(bytes) => bounds::Argument::Local(*bytes),
        Argument::Image(Image { shape, .. }) => bounds::Argument::Image {
            type_name: shape.kind.type_name(),
            size: shape.size,
            channel: match shape.format.channel {
                ChannelType::Int32 => bounds::Channel::Signed,
                ChannelType::Uint32 => bounds::Channel::Unsigned,
                _ => bounds::Channel::Float,
            },
        },
        Argument::Sampler(sampler) => bounds::Argument::Sampler(*sampler),
    }
}

/// Returns what is not proven of a launch.
fn findings(
    kernel: Result<bounds::Kernel>,
    range: &NdRange,
    arguments: &[bounds::Argument],
) -> Vec<String> {
    let launch = bounds::Launch { range, arguments, uniform_groups: false, few_constants: false };
    let report = kernel.and_then(|kernel| Ok((bounds::check(&kernel, &launch)?, kernel)));
    match report {
        Ok((report, kernel)) => report.describe(&kernel),
        Err(error) => vec![error.to_string()],
    }
}

/// Asserts that a fused kernel is proven if all launches of its plan are.
#[track_caller]
pub(super) fn assert_kept(plan: &Plan, modules: &[&Module], fused: &Fused) {
    let is_proven = |Slot { module, kernel, range, arguments, constants }: &Slot| {
        let arguments: Vec<_> = arguments.iter().map(given).collect();
        let kernel = bounds::Kernel::of(modules[*module], kernel, constants, &BTreeSet::new());
        findings(kernel, range, &arguments).is_empty()
    };
    if !plan.slots.iter().all(is_proven) {
        return;
    }
    let argument =
        |places: &Vec<Place>| given(&plan.slots[places[0].slot].arguments[places[0].argument]);
    let arguments: Vec<_> = fused.parameters.iter().map(argument).collect();
    let kernel = bounds::Kernel::of_fused(&fused.module, &fused.kernel, &BTreeSet::new());
    let findings = findings(kernel, &fused.range, &arguments);
    let names: Vec<_> = plan.slots.iter().map(|slot| slot.kernel.as_str()).collect();
    assert!(findings.is_empty(), "the fused kernel of {names:?}: {findings:#?}");
}
