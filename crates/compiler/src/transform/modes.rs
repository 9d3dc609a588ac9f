//! Execution modes of the kernels that are fused, and of the fused kernel.

use std::collections::BTreeSet;

use kiln_spirv::edit::{Section, View};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{ExecutionMode, Op};

use crate::ranges::Sizes;

/// Execution modes of an entry point, each with its operands. Modes of floating-point arithmetic occur once
/// for each width.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modes(BTreeSet<(u32, Vec<u32>)>);

impl Modes {
    pub(crate) fn of(module: &Module, entry: u32, kernel: &str) -> Result<Self> {
        let mut modes = BTreeSet::new();
        let instructions = module.section(Section::ExecutionModes).iter();
        for instruction in instructions {
            match instruction.view() {
                View::ExecutionMode { entry: own, mode, parameters } if own == entry => {
                    modes.insert((mode, parameters.iter().collect()));
                }
                View::ExecutionModeId { entry: own, .. } if own == entry => {
                    return Err(Error::unsupported(format!(
                        "`{kernel}` has an execution mode that depends on constants"
                    )));
                }
                _ => {}
            }
        }
        Ok(Self(modes))
    }

    /// Returns the modes without their operands.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(mode, _)| *mode)
    }

    /// Returns the operands of a mode that occurs at most once.
    fn operands(&self, mode: ExecutionMode) -> Option<&[u32]> {
        let (_, operands) = self.0.iter().find(|(known, _)| *known == mode as u32)?;
        Some(operands)
    }

    /// Returns the work-group size that launches must have.
    pub(crate) fn local_size(&self) -> Option<Sizes> {
        let size = self.operands(ExecutionMode::LocalSize)?;
        Some(std::array::from_fn(|d| size.get(d).map_or(1, |&size| size as usize)))
    }

    pub(crate) fn forbids_contraction(&self) -> bool {
        self.operands(ExecutionMode::ContractionOff).is_some()
    }

    pub(crate) fn add_contraction_off(&mut self) {
        self.0.insert((ExecutionMode::ContractionOff as u32, Vec::new()));
    }

    /// Adds the hint that the kernel mainly calculates with vectors of four numbers in single precision.
    pub(crate) fn add_vector_hint(&mut self) {
        const FLOAT4: u32 = 4 << 16 | 5;
        self.0.insert((ExecutionMode::VecTypeHint as u32, vec![FLOAT4]));
    }

    /// Returns the modes of a kernel that is fused from several. A work-group size that one kernel demands
    /// holds for all. Hints are dropped. `ContractionOff` holds if one kernel has it. All other modes must be
    /// the same in every kernel.
    pub(crate) fn join<'a>(all: impl Iterator<Item = (&'a str, &'a Self)> + Clone) -> Result<Self> {
        let name = |mode: u32, operands: &[u32]| {
            let known = ExecutionMode::from_u32(mode);
            let name = known.map_or_else(|| mode.to_string(), |mode| format!("{mode:?}"));
            if operands.is_empty() { name } else { format!("{name} {operands:?}") }
        };
        let mut joined = Self::default();
        for (kernel, modes) in all.clone() {
            for (mode, operands) in &modes.0 {
                let known = ExecutionMode::from_u32(*mode);
                let without = match known {
                    Some(ExecutionMode::LocalSizeHint | ExecutionMode::VecTypeHint) => continue,
                    Some(ExecutionMode::LocalSize | ExecutionMode::ContractionOff) => None,
                    _ => {
                        let has = |other: &Self| other.0.contains(&(*mode, operands.clone()));
                        all.clone().find(|(_, other)| !has(other))
                    }
                };
                if let Some((other, _)) = without {
                    return Err(Error::unsupported(format!(
                        "`{kernel}` has the execution mode {}, but `{other}` does not",
                        name(*mode, operands)
                    )));
                }
                if known == Some(ExecutionMode::LocalSize)
                    && let Some(earlier) = joined.operands(ExecutionMode::LocalSize)
                    && earlier != operands
                {
                    return Err(Error::unsupported(format!(
                        "the execution mode {} of `{kernel}` is {operands:?}, but that of an \
                         earlier launch is {earlier:?}",
                        name(*mode, &[])
                    )));
                }
                joined.0.insert((*mode, operands.clone()));
            }
        }
        Ok(joined)
    }

    pub(crate) fn write(&self, module: &mut Module, entry: u32) {
        let section = module.section_mut(Section::ExecutionModes);
        for (mode, operands) in &self.0 {
            let words = [entry, *mode].into_iter().chain(operands.iter().copied());
            section.push(Op::ExecutionMode, words);
        }
    }
}
