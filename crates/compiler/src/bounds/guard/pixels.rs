//! Checks of accesses to pixels: coordinates, compared with the sizes of the image.

use kiln_spirv::edit::{Definitions, Instruction, Section, View};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Dim, Op};

use super::writer::Writer;
use crate::analysis::images::{ImageType, image_type};

fn damaged_error() -> Error {
    Error::unsupported("an access to an image cannot be guarded: its types are not known")
}

impl<'m> Writer<'_, 'm> {
    /// Writes an access to a pixel. With the label of the block after it, the access is behind a check.
    ///
    /// An image is combined with a sampler in the block that reads it, as SPIR-V requires. A check before the read
    /// begins a new block.
    pub(super) fn pixel(&mut self, i: &Instruction<'m>, after: Option<&u32>) -> Result<()> {
        let op = i.op().ok_or_else(damaged_error)?;
        if op == Op::SampledImage {
            return Ok(());
        }
        let mut words: Vec<_> = i.words_from(0).collect();
        let mut sampled = None;
        if op == Op::ImageSampleExplicitLod {
            let View::ImageSample { image, .. } = i.view() else { return Err(damaged_error()) };
            let combined = self.definitions.get(image).ok_or_else(damaged_error)?;
            let ty = combined.result_type().ok_or_else(damaged_error)?;
            let View::SampledImage { image, sampler } = combined.view() else {
                return Err(damaged_error());
            };
            let id = self.code.module.fresh_id()?;
            words[2] = id;
            sampled = Some((ty, id, [image, sampler]));
        }
        let check = match after {
            Some(&after) => {
                let (image, coordinate) = match i.view() {
                    View::ImageRead { image, coordinate, .. }
                    | View::ImageWrite { image, coordinate, .. }
                    | View::ImageSample { image, coordinate, .. } => (image, coordinate),
                    _ => return Err(damaged_error()),
                };
                let image = sampled.map_or(image, |(_, _, [image, _])| image);
                Some((self.is_inside(image, coordinate)?, after))
            }
            None => None,
        };
        let write = |code: &mut super::code::Code<'_>, result: Option<u32>| {
            if let Some((ty, id, operands)) = &sampled {
                code.with_id(*ty, *id, Op::SampledImage, operands);
            }
            if let Some(result) = result {
                words[1] = result;
            }
            code.new.push(op, words);
        };
        match check {
            Some((is_inside, after)) => {
                let value = i.result().zip(i.result_type());
                self.code.only_if(is_inside, after, value, write)
            }
            None => {
                write(&mut self.code, None);
                Ok(())
            }
        }
    }

    /// Writes whether all coordinates are inside of an image. Negative ones are large as unsigned numbers.
    fn is_inside(&mut self, image: u32, coordinate: u32) -> Result<u32> {
        let ty = image_type(self.definitions, image).ok_or_else(damaged_error)?;
        let given = self.definitions.type_of(coordinate).ok_or_else(damaged_error)?;
        let (part, lanes) = match given.vector() {
            Some((component, count)) => (component, Some(count)),
            None => (given.result().ok_or_else(damaged_error)?, None),
        };
        let count = ty.coordinates() as u32;
        let code = &mut self.code;
        let (vector, bools) = match count {
            1 => (part, code.bool),
            _ => (
                code.interner.type_id(code.module, Op::TypeVector, &[part, count])?,
                code.interner.type_id(code.module, Op::TypeVector, &[code.bool, count])?,
            ),
        };
        let size = self.size(image, ty, (part, vector))?;
        let code = &mut self.code;
        let at = match lanes {
            Some(_) if count == 1 => code.typed(part, Op::CompositeExtract, &[coordinate, 0])?,
            Some(lanes) if lanes != count => {
                let operands = [coordinate, coordinate].into_iter().chain(0..count);
                let operands: Vec<_> = operands.collect();
                code.typed(vector, Op::VectorShuffle, &operands)?
            }
            _ => coordinate,
        };
        let is_less = code.typed(bools, Op::ULessThan, &[at, size])?;
        match count {
            1 => Ok(is_less),
            _ => code.typed(code.bool, Op::All, &[is_less]),
        }
    }

    /// Writes the sizes of an image, as a number of a type or a vector of these.
    fn size(&mut self, image: u32, ty: ImageType, (part, vector): (u32, u32)) -> Result<u32> {
        if ty.dim == Dim::DimBuffer {
            return self.code.typed(vector, Op::ImageQuerySize, &[image]);
        }
        let level = self.code.interner.constant_id(self.code.module, Op::Constant, part, &[0])?;
        self.code.typed(vector, Op::ImageQuerySizeLod, &[image, level])
    }
}

/// Removes the names and decorations of the values that the variant has no more.
pub(super) fn forget_combined(module: &mut Module, definitions: &Definitions<'_>) {
    let is_combined = |i: &Instruction<'_>| {
        let id = i.target().and_then(|id| definitions.get(id));
        id.is_some_and(|i| i.op() == Some(Op::SampledImage))
    };
    for section in [Section::Names, Section::Annotations] {
        module.section_mut(section).retain(|i| !is_combined(i));
    }
}
