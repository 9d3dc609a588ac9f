//! Pixels that instructions access, their coordinates, and sizes of images.
//!
//! The analysis gives each pixel bytes of its own. Their offset follows from the coordinates: it is
//! `x + 2^20 y + 2^40 z`, times [`PIXEL_BYTES`]. That is not how drivers store images. It only makes pixels
//! comparable in the same way as elements of buffers. Drivers drop writes outside of an image, and reads there give the
//! pixels of its edge or a color, so only coordinates that are inside of the image are followed.

use kiln_spirv::edit::{Instruction, Location, View};
use rspirv::spirv::Op;

use super::arithmetic::Arithmetic;
use super::eval::{At, Evaluation, Frame};
use super::facts::Known;
use super::pointers::{Base, Pointer};
use super::watch::PixelTouch;
use super::{Bytes, Kind, UNKNOWN_COORDINATES};
use crate::ImageShape;
use crate::analysis::affine::Form;
use crate::analysis::pixel_access::{PixelAccess, exact_channels, is_first_level};
use crate::plan::{PIXEL_BYTES, PIXEL_PITCH};

/// Maximum number of instructions that a coordinate is followed through.
const MAX_STEPS: usize = 16;

/// Maximum number of coordinates of a pixel.
const MAX_COORDINATES: usize = 3;

impl<'m> Evaluation<'m> {
    /// Records a touch of a pixel.
    pub(super) fn watch_pixel(&self, frame: &Frame<'m>, location: Location, i: &Instruction<'m>) {
        let Some(watch) = &self.watch else { return };
        let id = match i.view() {
            View::ImageRead { coordinate, .. }
            | View::ImageWrite { coordinate, .. }
            | View::ImageSample { coordinate, .. } => Some(coordinate),
            _ => None,
        };
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

    /// Records an access to a pixel.
    pub(super) fn pixel(&self, frame: &mut Frame<'m>, at: At, i: &Instruction<'m>) {
        let (image, kind) = match i.view() {
            View::ImageWrite { image, .. } => (Some(image), Kind::Write),
            View::ImageRead { image, .. } | View::ImageSample { image, .. } => {
                (Some(image), Kind::Read)
            }
            _ => (None, if i.op() == Some(Op::ImageWrite) { Kind::Write } else { Kind::Read }),
        };
        let image = image.map(|image| self.value(frame, image));
        let Some(Known::Pointer(pointer)) = image else {
            // An image from elsewhere may be any of the kernel's images.
            for &parameter in self.images.shapes.keys() {
                let any = Known::Pointer(Pointer::to(Base::Parameter(parameter)));
                self.record(frame, at, &any, kind, None, "as an image that is not followed");
            }
            return;
        };
        let shape = match &pointer.base {
            Base::Parameter(parameter) => self.images.shapes.get(parameter),
            _ => None,
        };
        let offset = match shape {
            Some(shape) => self.pixel_offset(frame, i, shape),
            None => Err("as an image that is chosen while it runs"),
        };
        let bytes = offset.map(|start| {
            let (start, inside) = (start.without_local(self.space), start.inside());
            Bytes { start, width: PIXEL_BYTES as i128, group: None, inside }
        });
        let (bytes, note) = (bytes.ok(), bytes.err().unwrap_or_default());
        self.record(frame, at, &Known::Pointer(pointer), kind, bytes, note);
    }

    /// Returns the offset of the bytes that stand for the pixel which an instruction accesses, or the reason
    /// why it is not known, in words that follow the name of the image.
    fn pixel_offset(
        &self,
        frame: &Frame<'m>,
        i: &Instruction<'m>,
        shape: &ImageShape,
    ) -> Result<Form, &'static str> {
        let access = PixelAccess::of(self.definitions, i)
            .ok_or("by an instruction whose operands are not followed")?;
        if exact_channels(shape.format).is_some() && !access.fits(shape.format) {
            return Err("as numbers of another kind than those of its format");
        }
        let width = self.part_width_of(access.coordinates);
        let Some(width) = width.filter(|&width| width == 32) else {
            return Err("at coordinates that are not integers, through a sampler");
        };
        if let Some(sampler) = access.sampler {
            let sampler = self.images.samplers.get(&sampler).filter(|sampler| sampler.is_exact());
            sampler.ok_or("through a sampler that does not select single pixels")?;
        }
        let arithmetic = Arithmetic { space: self.space, width };
        let mut sum = Form::constant(0);
        let mut step = PIXEL_BYTES as i128;
        for d in 0..shape.kind.dimensions() {
            let coordinate = match self.component(frame, access.coordinates, d, MAX_STEPS) {
                Some(Known::Integer(form)) => arithmetic.signed(&form),
                _ => return Err(UNKNOWN_COORDINATES),
            };
            let (low, high) = coordinate.bounds(self.space);
            if low < 0 || high >= shape.size[d].min(PIXEL_PITCH) as i128 {
                return Err(match low <= i32::MIN.into() && high >= i32::MAX.into() {
                    true => UNKNOWN_COORDINATES,
                    false => "at coordinates that may be outside of the image",
                });
            }
            let part = coordinate.times(step).ok_or(UNKNOWN_COORDINATES)?;
            sum = sum.plus(&part, self.space).ok_or(UNKNOWN_COORDINATES)?;
            step *= PIXEL_PITCH as i128;
        }
        Ok(sum)
    }

    /// Returns a component of a vector where it is used. Facts are about the numbers that the vector was made of, so
    /// these are looked up again.
    fn component(&self, frame: &Frame<'m>, id: u32, at: usize, steps: usize) -> Option<Known> {
        let steps = steps.checked_sub(1)?;
        let i = self.definitions.get(id);
        let made = i.and_then(|i| match i.view() {
            View::Insert { part, whole, path } => match path.single()? as usize == at {
                true => Some(self.value(frame, part)),
                false => self.component(frame, whole, at, steps),
            },
            View::Composite { parts } if i.op() == Some(Op::CompositeConstruct) => {
                let part = parts.get(at)?;
                let ty = i.result_type()?;
                let is_number = self.width_of(part).is_some() && self.is_vector(ty, &i);
                let is_whole = parts.iter().all(|part| self.width_of(part).is_some());
                (is_number && is_whole).then(|| self.value(frame, part))
            }
            View::Shuffle { first, second, lanes } => {
                let count = self.parts_of(self.definitions.type_of(first)?.result()?)?.1;
                let from = lanes.get(at)? as usize;
                match from < count {
                    true => self.component(frame, first, from, steps),
                    false => self.component(frame, second, from - count, steps),
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
    pub(super) fn image_size(&self, frame: &Frame<'m>, i: &Instruction<'m>) -> Option<Known> {
        let (View::ImageQuery { image } | View::ImageQueryLod { image, .. }) = i.view() else {
            return None;
        };
        let sizes = match self.value(frame, image) {
            Known::Pointer(Pointer { base: Base::Parameter(parameter), .. })
                if !self.is_strict && is_first_level(self.definitions, i) =>
            {
                &self.images.shapes.get(&parameter)?.size
            }
            _ => self.image_sizes.get(&image)?,
        };
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
