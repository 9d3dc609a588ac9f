//! Lines of manifests for plans, modules and devices.

use crate::build_graph::input::BuildInput;
use crate::build_graph::key::DeviceKey;
use crate::build_graph::plan::BuildPlan;
use crate::build_graph::strategy::BuildStrategy;
use crate::cache::manifest::line::{
    Code, DeviceLine, Hex, InputLine, ModuleLine, ProgramLine, StatedExport, StrategyName,
    TranslationLine,
};
use crate::device::ModuleFormat;
use crate::digest::BuildKey;
use crate::source::module::Module;

pub(super) fn device_line(device: &DeviceKey) -> DeviceLine {
    DeviceLine {
        id: device.id(),
        identity: device.identity().to_vec(),
        environment: device.environment().to_vec(),
    }
}

pub(super) fn program_line(plan: &BuildPlan, key: BuildKey, device: &DeviceKey) -> ProgramLine {
    let translation = plan.translation().map(|translation| TranslationLine {
        kernels: translation.kernels().iter().cloned().collect(),
        lines: translation.has_lines(),
    });
    ProgramLine {
        key,
        device: device.id(),
        strategy: plan.strategy().into(),
        emitted: plan.is_emitted,
        checked_text: plan.is_checked_text,
        inputs: plan.inputs().iter().map(input_line).collect(),
        link_options: plan.link_options().text().to_owned(),
        translation,
    }
}

fn input_line(input: &BuildInput) -> InputLine {
    let module = input.module();
    let constants = input.constants().into_iter().map(|(id, bytes)| (id, Hex(bytes)));
    InputLine {
        module: module.digest(),
        label: module.label().map(str::to_owned),
        included: input.included.as_ref().map(|included| included.digest.to_string()),
        constants: constants.collect(),
        options: input.options().to_owned(),
        link_options: input.link_options().text().to_owned(),
        replaced: input.replaced.clone(),
        requested: input.is_requested,
        untrusted: module.is_untrusted(),
    }
}

pub(super) fn module_line(module: &Module) -> ModuleLine {
    let code = module.code().to_vec();
    let format = module.format();
    let states_symbols = format != ModuleFormat::SpirV;
    let exports = module.exports().enumerate().filter(|_| states_symbols);
    let export = |(at, name): (usize, &str)| StatedExport {
        name: name.to_owned(),
        mergeable: module.is_mergeable(at),
    };
    let made_for = |fields: (&str, &str)| (fields.0.to_owned(), fields.1.to_owned());
    ModuleLine {
        digest: module.digest(),
        code: match format {
            // The code was given as a `String`.
            ModuleFormat::OpenClC => Code::OpenclC(String::from_utf8_lossy(&code).into_owned()),
            ModuleFormat::SpirV => Code::Spirv(Hex(code)),
            ModuleFormat::Native => Code::Native(Hex(code)),
        },
        exports: exports.map(export).collect(),
        imports: module.imports().filter(|_| states_symbols).map(str::to_owned).collect(),
        made_for: module.made_for().map(|device| device.fields().map(made_for).collect()),
        whole: true,
    }
}

impl From<BuildStrategy> for StrategyName {
    fn from(strategy: BuildStrategy) -> Self {
        match strategy {
            BuildStrategy::Build => Self::Build,
            BuildStrategy::Compile => Self::Compile,
            BuildStrategy::Link => Self::Link,
            BuildStrategy::LinkByCalls => Self::LinkByCalls,
            BuildStrategy::Merge => Self::Merge,
            BuildStrategy::Translate => Self::Translate,
            BuildStrategy::TranslateFirst => Self::TranslateFirst,
        }
    }
}

impl From<StrategyName> for BuildStrategy {
    fn from(name: StrategyName) -> Self {
        match name {
            StrategyName::Build => Self::Build,
            StrategyName::Compile => Self::Compile,
            StrategyName::Link => Self::Link,
            StrategyName::LinkByCalls => Self::LinkByCalls,
            StrategyName::Merge => Self::Merge,
            StrategyName::Translate => Self::Translate,
            StrategyName::TranslateFirst => Self::TranslateFirst,
        }
    }
}
