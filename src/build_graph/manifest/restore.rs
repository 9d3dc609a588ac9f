//! Plans from the entries of a manifest.

use std::sync::Arc;

use crate::build_graph::graph::BuildGraph;
use crate::build_graph::input::BuildInput;
use crate::build_graph::key::ConstantBytes;
use crate::build_graph::options::{OptionSource, SourcedOptions};
use crate::build_graph::plan::BuildPlan;
use crate::cache::manifest::line::{Code, InputLine, ModuleLine, ProgramLine, TranslationLine};
use crate::cache::manifest::{BuildManifest, ManifestEntry};
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result};
use crate::source::includes::Included;
use crate::source::module::Module;
use crate::source::translate::{self, Translation};

/// Plan of an entry.
pub(super) enum Restored {
    Plan(Box<BuildPlan>),
    /// The entry does not apply here, for this reason.
    Inapplicable(String),
}

/// Input of a plan, and the digest that its included files had.
struct RestoredInput {
    input: BuildInput,
    included: Option<String>,
}

impl BuildGraph {
    /// Returns the position of the device that an entry is for: the one with the same key, or else the first of the
    /// same name and backend, whose driver may have another version.
    pub(crate) fn device_of(&self, entry: &ManifestEntry) -> Option<usize> {
        let id = &entry.device_line().id;
        let mut positions = self.device_positions();
        let is_namesake = |position| {
            let identity = self.device_key(position).identity();
            ["backend", "device"].into_iter().all(|name| {
                let value = field(identity, name);
                value.is_some() && value == field(entry.device_identity(), name)
            })
        };
        positions
            .clone()
            .find(|&position| self.device_key(position).id() == *id)
            .or_else(|| positions.find(|&position| is_namesake(position)))
    }

    /// Returns the plan of a program, for the device at a position.
    ///
    /// # Errors
    ///
    /// [`OutOfResources`](ErrorKind::OutOfResources) if there is no thread, and the errors of looking for the
    /// compilers of a translation.
    pub(super) async fn restored_plan(
        self: &Arc<Self>,
        manifest: &Arc<BuildManifest>,
        program: &ProgramLine,
        device: usize,
    ) -> Result<Restored> {
        let is_untrusted = program.inputs.iter().any(|input| input.untrusted);
        let (lines, own, limit) =
            (program.inputs.clone(), Arc::clone(manifest), self.children().limit());
        let read = move || {
            let restore = |line: &InputLine| {
                let mut restored = restored_input(&own, line)?;
                // The text of a translation contains the files.
                if restored.included.is_some() {
                    restored.input.included = restored.input.read_files(limit)?;
                }
                Ok(restored)
            };
            Ok(lines.iter().map(restore).collect::<Result<Vec<_>>>())
        };
        let inputs = match self.read_files(is_untrusted, read).await? {
            Ok(inputs) => inputs,
            Err(error) => return Ok(Restored::Inapplicable(error.to_string())),
        };
        if let Some(reason) = self.inapplicable(program, &inputs, device) {
            return Ok(Restored::Inapplicable(reason));
        }
        let translation = match &program.translation {
            None => None,
            Some(line) => Some(Arc::new(self.restored_translation(line, &inputs, device).await?)),
        };
        let inputs = inputs.into_iter().map(|restored| restored.input);
        let plan = BuildPlan {
            inputs: inputs.collect(),
            device,
            strategy: program.strategy.into(),
            link_options: options(&program.link_options),
            is_emitted: program.emitted,
            is_checked_text: program.checked_text,
            translation,
            resolution: None,
        };
        Ok(Restored::Plan(Box::new(plan)))
    }

    /// Returns the reason why a program does not apply to a device, if there is one.
    fn inapplicable(
        &self,
        program: &ProgramLine,
        inputs: &[RestoredInput],
        device: usize,
    ) -> Option<String> {
        if inputs.is_empty() || (program.translation.is_some() && inputs.len() != 1) {
            return Some("the manifest has a damaged line for it; record it again".to_owned());
        }
        let is_same_device = self.device_key(device).id() == program.device;
        for RestoredInput { input, included } in inputs {
            let module = input.module();
            // The files are read only if it is known which contents they should have. Anybody may have written the line.
            if included.is_none() && input.includes_files() {
                return Some(
                    "its text includes files, and the manifest does not say which contents they had; record it again"
                        .to_owned(),
                );
            }
            if module.format() == ModuleFormat::Native && !is_same_device {
                return Some(format!(
                    "it contains native code for another device or driver version than that of {}",
                    self.device(device)
                ));
            }
            let found = input.included.as_ref().map(|Included { digest, .. }| digest.to_string());
            if found != *included {
                return Some(
                    "the files that its text includes are missing, or are not those with which it \
                     was recorded"
                        .to_owned(),
                );
            }
        }
        None
    }

    async fn restored_translation(
        &self,
        line: &TranslationLine,
        inputs: &[RestoredInput],
        device: usize,
    ) -> Result<Translation> {
        let tools = self.front_end().tools().await?;
        let options = inputs.first().map_or("", |restored| restored.input.options());
        let translation = Translation::new(tools, translate::LIMIT, options, self.device(device))?;
        let translation = if line.lines { translation.with_lines() } else { translation };
        Ok(match line.kernels.is_empty() {
            true => translation,
            false => translation.limited_to(line.kernels.iter().cloned().collect()),
        })
    }
}

fn field<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn restored_input(manifest: &BuildManifest, line: &InputLine) -> Result<RestoredInput> {
    let module = restored_module(manifest.module(line.module)?)?.untrusted_if(line.untrusted);
    let module = match &line.label {
        Some(label) => module.with_label(label.as_str()),
        None => module,
    };
    let constants = line.constants.iter();
    let input = BuildInput {
        constants: constants
            .map(|(id, bytes)| (*id, ConstantBytes::from_slice(&bytes.0)))
            .collect(),
        constant_types: vec!["a recorded value"; line.constants.len()],
        options: options(&line.options),
        link_options: options(&line.link_options),
        is_requested: line.requested,
        replaced: line.replaced.clone(),
        ..BuildInput::new(module)
    };
    Ok(RestoredInput { input, included: line.included.clone() })
}

/// Returns the module of a line.
///
/// # Errors
///
/// [`InvalidModule`](ErrorKind::InvalidModule) if the module does not have the digest that the line states.
fn restored_module(line: ModuleLine) -> Result<Module> {
    let ModuleLine { digest, code, exports, imports, made_for, whole: _ } = line;
    let exports = exports.into_iter();
    let module = match code {
        Code::OpenclC(text) => {
            let names = exports.map(|export| export.name);
            Module::opencl_c(text).exporting(names).importing(imports)
        }
        Code::Spirv(code) => Module::spirv(code.0)?,
        Code::Native(code) => {
            let exports = exports.map(|export| (export.name, export.mergeable));
            Module::described_native(code.0, exports, imports, made_for)
        }
    };
    if module.digest() == digest {
        return Ok(module);
    }
    Err(Error::new(
        ErrorKind::InvalidModule,
        format!("the module {digest:.8} is damaged in the manifest; record it again"),
    ))
}

/// Returns options whose source is not known any more. It is not part of keys.
fn options(text: &str) -> SourcedOptions {
    SourcedOptions::of(OptionSource::Call, text)
}
