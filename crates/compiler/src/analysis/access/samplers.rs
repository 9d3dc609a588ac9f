//! Constant samplers of a module.

use std::collections::HashMap;

use kiln_spirv::edit::{Definitions, Section, View};
use rspirv::spirv::{SamplerAddressingMode, SamplerFilterMode};

use crate::{Addressing, Filter, Sampler};

/// Returns the constant samplers, by their ids.
pub(crate) fn constants(definitions: &Definitions<'_>) -> HashMap<u32, Sampler> {
    let globals = definitions.module().section(Section::Globals).iter();
    let constants = globals.filter_map(|i| {
        let View::ConstantSampler { addressing, normalized, filter } = i.view() else {
            return None;
        };
        let addressing = match SamplerAddressingMode::from_u32(addressing)? {
            SamplerAddressingMode::None => Addressing::None,
            SamplerAddressingMode::ClampToEdge => Addressing::ClampToEdge,
            SamplerAddressingMode::Clamp => Addressing::Clamp,
            SamplerAddressingMode::Repeat => Addressing::Repeat,
            SamplerAddressingMode::RepeatMirrored => Addressing::MirroredRepeat,
        };
        let filter = match SamplerFilterMode::from_u32(filter)? {
            SamplerFilterMode::Nearest => Filter::Nearest,
            SamplerFilterMode::Linear => Filter::Linear,
        };
        let sampler = Sampler::new().normalized(normalized != 0);
        Some((i.result()?, sampler.addressing(addressing).filter(filter)))
    });
    constants.collect()
}
