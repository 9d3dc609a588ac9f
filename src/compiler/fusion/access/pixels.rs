//! Coordinates of pixels, and sizes of images.

use rspirv::spirv::Op;

use super::arithmetic::Arithmetic;
use super::eval::{Evaluation, Frame};
use super::facts::Known;
use super::watch::PixelTouch;
use crate::compiler::fusion::affine::Form;
use crate::compiler::spirv::edit::{Instruction, Location};

/// Maximum number of instructions that a coordinate is followed through.
const MAX_STEPS: usize = 16;

/// Maximum number of coordinates of a pixel.
const MAX_COORDINATES: usize = 3;

impl<'m> Evaluation<'m> {
    /// Records a touch of a pixel.
    pub(super) fn watch_pixel(
        &self,
        frame: &Frame<'m>,
        location: Location,
        op: Op,
        i: &Instruction<'m>,
    ) {
        let Some(watch) = &self.watch else { return };
        let id = if op == Op::ImageWrite { i.word(1) } else { i.word(3) };
        let width = id.and_then(|id| self.part_width_of(id));
        let mut coordinates = Vec::new();
        if let Some((id, width)) = id.zip(width) {
            let arithmetic = Arithmetic { space: self.space, width };
            for at in 0..MAX_COORDINATES {
                let form = match self.component(frame, id, at, MAX_STEPS) {
                    Some(Known::Integer(form)) => arithmetic.signed(&form),
                    _ => arithmetic.unknown(),
                };
                coordinates.push(form.bounds(self.space));
            }
        }
        watch.pixels.borrow_mut().push(PixelTouch { location, coordinates });
    }

    /// Returns a component of a vector where it is used. Facts are about the numbers that the vector was made of, so
    /// these are looked up again.
    fn component(&self, frame: &Frame<'m>, id: u32, at: usize, steps: usize) -> Option<Known> {
        let steps = steps.checked_sub(1)?;
        let i = self.definitions.get(id);
        let made = i.and_then(|i| match i.op()? {
            Op::CompositeInsert if i.word(5).is_none() => match i.word(4)? as usize == at {
                true => Some(self.value(frame, i.word(2)?)),
                false => self.component(frame, i.word(3)?, at, steps),
            },
            Op::CompositeConstruct => {
                let part = i.word(2 + at)?;
                let is_number = self.width_of(part).is_some() && self.is_vector(i.word(0)?, &i);
                let is_whole = i.words_from(2).all(|part| self.width_of(part).is_some());
                (is_number && is_whole).then(|| self.value(frame, part))
            }
            Op::VectorShuffle => {
                let count = self.parts_of(self.definitions.type_of(i.word(2)?)?.result()?)?.1;
                let from = i.word(4 + at)? as usize;
                match from < count {
                    true => self.component(frame, i.word(2)?, from, steps),
                    false => self.component(frame, i.word(3)?, from - count, steps),
                }
            }
            _ => None,
        });
        made.or_else(|| match self.value(frame, id) {
            Known::Parts(parts) => parts.get(at).cloned(),
            known if at == 0 => Some(known),
            _ => None,
        })
    }

    /// Returns the sizes of an image that an instruction asks for.
    pub(super) fn image_size(&self, i: &Instruction<'m>) -> Option<Known> {
        let sizes = self.image_sizes.get(&i.word(2)?)?;
        let ty = i.result_type()?;
        let (part, count) = self.parts_of(ty).unwrap_or((ty, 1));
        let sizes = sizes.get(..count)?;
        let width = self.width(part)?;
        if sizes.iter().any(|&size| size as i128 >= 1 << width) {
            return None;
        }
        let number = |size: &usize| Known::Integer(Form::constant(*size as i128));
        Some(match self.parts_of(ty) {
            Some(_) => Known::Parts(sizes.iter().map(number).collect()),
            None => number(&sizes[0]),
        })
    }
}
