//! Images of the interpreter: reads and writes of pixels, and queries of sizes.
//!
//! A pixel outside of its image reads zero and is not written, as in a guarded kernel. The rules of OpenCL are
//! checked here once more, apart from the checker: the use of an image or of a sampler that OpenCL leaves undefined
//! is an [event](Event::Undefined). Reads between pixels give the nearest pixel, which is enough to tell whether
//! pixels exist.

use std::collections::BTreeMap;

use kiln_spirv::edit::{Instruction, Location, View};
use rspirv::spirv::{AccessQualifier, Dim, Op};

use super::scalars::mask;
use super::{Event, Frame, Machine, Run, Stopped, Val};
use crate::bounds::Channel;
use crate::{Addressing, Filter, Sampler};

/// Pixels of an image.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::bounds) struct Pixels {
    /// Sizes in pixels. Layers are the last of the sizes that the image has; the others are 1.
    size: [u64; 3],
    channel: Channel,
    /// Numbers of all pixels that were not written.
    content: u8,
    /// Pixels that were written, by their coordinates.
    written: BTreeMap<Vec<u64>, [u64; 4]>,
}

impl Pixels {
    pub(super) fn new(size: [usize; 3], channel: Channel, content: u8) -> Self {
        let size = size.map(|size| size as u64);
        Self { size, channel, content, written: BTreeMap::new() }
    }

    /// Returns the pixel at coordinates inside of the image.
    fn get(&self, at: &[u64]) -> [u64; 4] {
        self.written.get(at).copied().unwrap_or_else(|| {
            [match self.channel {
                Channel::Float => u64::from(f32::from(self.content).to_bits()),
                Channel::Signed | Channel::Unsigned => u64::from(self.content),
            }; 4]
        })
    }

    /// Returns as many coordinates as indexes, if all of them are inside of the image.
    fn inside(&self, at: &[i64], dimensions: usize) -> Option<Vec<u64>> {
        let indexes = self.size.iter().enumerate().take(dimensions).map(|(d, &size)| {
            let at = u64::try_from(*at.get(d)?).ok()?;
            (at < size).then_some(at)
        });
        indexes.collect()
    }
}

/// Place where an instruction reads: coordinates inside of an image, its border, or coordinates outside.
enum Place {
    Pixel(Vec<u64>),
    Border,
    Outside,
}

/// Coordinates of a pixel.
enum Coordinates {
    Integers(Vec<i64>),
    Floats(Vec<f32>),
}

/// Image that an instruction accesses: its pixels, its declared type and a sampler.
struct Accessed<'m> {
    image: usize,
    ty: Instruction<'m>,
    sampler: Option<Sampler>,
}

impl<'m> Machine<'m> {
    /// Runs an instruction about images. Returns its result, if it has one.
    pub(super) fn image(
        &mut self,
        frame: &Frame,
        at: Location,
        op: Op,
        i: &Instruction<'m>,
    ) -> Run<Option<Val>> {
        match i.view() {
            View::SampledImage { image, sampler } => {
                self.combine(frame, at, image, sampler).map(Some)
            }
            View::ImageRead { image, coordinate, .. }
            | View::ImageSample { image, coordinate, .. } => {
                let ty = i.result_type().ok_or(Stopped)?;
                self.read_pixel(frame, at, (op, ty), (image, coordinate)).map(Some)
            }
            View::ImageWrite { image, coordinate, texel, .. } => {
                self.write_pixel(frame, at, (image, coordinate), texel).map(|()| None)
            }
            View::ImageQuery { image } if op != Op::ImageQuerySize => {
                let accessed = self.accessed(frame, at, image)?;
                Ok(Some(Val::Bits(self.images[accessed.image].content.into())))
            }
            View::ImageQuery { image } | View::ImageQueryLod { image, .. } => {
                let ty = i.result_type().ok_or(Stopped)?;
                self.size_of_image(frame, at, image, ty).map(Some)
            }
            _ => Err(Stopped),
        }
    }

    /// Returns an image with a sampler.
    fn combine(&mut self, frame: &Frame, at: Location, image: u32, sampler: u32) -> Run<Val> {
        let image = self.accessed(frame, at, image)?.image;
        match self.value(frame, sampler)? {
            Val::Sampler(sampler) => Ok(Val::Combined(image, sampler)),
            _ => {
                self.note(at, Event::Undefined);
                Err(Stopped)
            }
        }
    }

    fn note(&mut self, at: Location, event: Event) {
        self.events.insert((at, event));
    }

    /// Returns the image that a value stands for. A declared type of another kind of image is not defined.
    fn accessed(&mut self, frame: &Frame, at: Location, id: u32) -> Run<Accessed<'m>> {
        let declared = self.ty(self.type_id(id)?)?;
        let (image, ty, sampler) = match self.value(frame, id)? {
            Val::Image(image) => (image, declared, None),
            Val::Combined(of, sampler) => {
                let View::TypeSampledImage { image } = declared.view() else { return Err(Stopped) };
                (of, self.ty(image)?, Some(sampler))
            }
            _ => {
                self.note(at, Event::Undefined);
                return Err(Stopped);
            }
        };
        // Kinds, access qualifiers and numbers of dimensions are all part of the type.
        if self.image_types.get(image) != Some(&ty.result().ok_or(Stopped)?) {
            self.note(at, Event::Undefined);
        }
        Ok(Accessed { image, ty, sampler })
    }

    /// Returns the coordinates of an access.
    fn coordinates(&self, frame: &Frame, id: u32) -> Run<Coordinates> {
        let ty = self.type_id(id)?;
        let declared = self.ty(ty)?;
        let (part, count) = match declared.vector() {
            Some((component, count)) => (self.ty(component)?, count),
            None => (declared, 1),
        };
        let all = match self.value(frame, id)? {
            Val::Parts(all) => all,
            one => vec![one],
        };
        // An insertion without its index may make a number of what is declared as a vector.
        if all.len() != count as usize {
            return Err(Stopped);
        }
        let bits = all.into_iter().map(|part| match part {
            Val::Bits(bits) => Ok(bits as u32),
            _ => Err(Stopped),
        });
        let bits = bits.collect::<Run<Vec<_>>>()?;
        match (part.op(), part.width().ok_or(Stopped)?) {
            (Some(Op::TypeInt), 32) => {
                let signed = |bits: u32| i64::from(bits as i32);
                Ok(Coordinates::Integers(bits.into_iter().map(signed).collect()))
            }
            (Some(Op::TypeFloat), 32) => {
                Ok(Coordinates::Floats(bits.into_iter().map(f32::from_bits).collect()))
            }
            _ => Err(Stopped),
        }
    }

    fn read_pixel(
        &mut self,
        frame: &Frame,
        at: Location,
        (op, result): (Op, u32),
        (image, coordinate): (u32, u32),
    ) -> Run<Val> {
        let accessed = self.accessed(frame, at, image)?;
        let coordinates = self.coordinates(frame, coordinate)?;
        self.touched.insert(at);
        let (part, count) = self.texel(result)?;
        let is_float = self.ty(part)?.op() == Some(Op::TypeFloat);
        let qualifier = qualifier(&accessed.ty);
        let is_allowed = match op {
            Op::ImageRead => qualifier != Some(AccessQualifier::WriteOnly),
            _ => qualifier == Some(AccessQualifier::ReadOnly),
        };
        let is_defined = match (accessed.sampler, op) {
            (Some(sampler), Op::ImageSampleExplicitLod) => {
                is_defined(sampler, &coordinates, is_float)
            }
            (None, Op::ImageRead) => matches!(coordinates, Coordinates::Integers(_)),
            _ => false,
        };
        let pixels = self.images.get(accessed.image).ok_or(Stopped)?;
        let place = place(pixels, &coordinates, accessed.sampler, &accessed.ty);
        let is_outside = matches!(place, Place::Outside);
        let lanes = match place {
            Place::Pixel(at) => pixels.get(&at),
            Place::Border | Place::Outside => [0; 4],
        };
        if !is_allowed || !is_defined {
            self.note(at, Event::Undefined);
        }
        if is_outside {
            self.note(at, Event::Outside { writes: false });
        }
        let keep = mask(self.width(part)?);
        let mut lanes = lanes.into_iter().map(|lane| Val::Bits(lane & keep));
        Ok(match count {
            None => lanes.next().ok_or(Stopped)?,
            Some(count) => Val::Parts(lanes.take(count).collect()),
        })
    }

    fn write_pixel(
        &mut self,
        frame: &Frame,
        at: Location,
        (image, coordinate): (u32, u32),
        texel: u32,
    ) -> Run<()> {
        let accessed = self.accessed(frame, at, image)?;
        let coordinates = self.coordinates(frame, coordinate)?;
        let (part, _) = self.texel(self.type_id(texel)?)?;
        let value = self.value(frame, texel)?;
        self.touched.insert(at);
        let is_float = self.ty(part)?.op() == Some(Op::TypeFloat);
        let is_allowed = matches!(
            qualifier(&accessed.ty),
            Some(AccessQualifier::WriteOnly | AccessQualifier::ReadWrite)
        );
        let pixels = self.images.get_mut(accessed.image).ok_or(Stopped)?;
        let fits = is_float == (pixels.channel == Channel::Float);
        let place = match &coordinates {
            Coordinates::Integers(at) => pixels.inside(at, dimensions(&accessed.ty)),
            Coordinates::Floats(_) => None,
        };
        let is_outside = place.is_none();
        if let Some(place) = place {
            let values = match value {
                Val::Parts(values) => values,
                one => vec![one],
            };
            let mut lanes = [0; 4];
            for (lane, value) in lanes.iter_mut().zip(values) {
                let Val::Bits(bits) = value else { return Err(Stopped) };
                *lane = bits;
            }
            pixels.written.insert(place, lanes);
        }
        if !is_allowed || !fits {
            self.note(at, Event::Undefined);
        }
        if is_outside {
            self.note(at, Event::Outside { writes: true });
        }
        Ok(())
    }

    /// Returns the type of the numbers of a pixel, and how many the value has; `None` for a single number.
    fn texel(&self, ty: u32) -> Run<(u32, Option<usize>)> {
        let declared = self.ty(ty)?;
        let (part, count) = match declared.vector() {
            Some((component, count)) => (component, Some(count as usize)),
            None => (ty, None),
        };
        let is_number = matches!(self.ty(part)?.op(), Some(Op::TypeInt | Op::TypeFloat));
        let is_known = is_number && count.is_none_or(|count| count == 4);
        is_known.then_some((part, count)).ok_or(Stopped)
    }

    fn size_of_image(&mut self, frame: &Frame, at: Location, image: u32, ty: u32) -> Run<Val> {
        let Accessed { image, ty: image_type, .. } = self.accessed(frame, at, image)?;
        let declared = self.ty(ty)?;
        let part = declared.vector().map_or(ty, |(component, _)| component);
        let keep = mask(self.width(part)?);
        let sizes = self.images.get(image).ok_or(Stopped)?.size.iter();
        let sizes = sizes.take(dimensions(&image_type));
        let mut sizes = sizes.map(|size| Val::Bits(size & keep));
        match declared.view() {
            View::TypeInt { .. } if sizes.len() == 1 => sizes.next().ok_or(Stopped),
            View::TypeVector { count, .. } if count as usize == sizes.len() => {
                Ok(Val::Parts(sizes.collect()))
            }
            _ => Err(Stopped),
        }
    }
}

fn qualifier(ty: &Instruction<'_>) -> Option<AccessQualifier> {
    match ty.view() {
        View::TypeImage { access: Some(access), .. } => AccessQualifier::from_u32(access),
        _ => Some(AccessQualifier::ReadOnly),
    }
}

fn is_array(ty: &Instruction<'_>) -> bool {
    matches!(ty.view(), View::TypeImage { arrayed: 1, .. })
}

/// Returns the number of coordinates of an image that matter.
fn dimensions(ty: &Instruction<'_>) -> usize {
    let dim = match ty.view() {
        View::TypeImage { dim, .. } => Dim::from_u32(dim),
        _ => None,
    };
    let dimensions = match dim {
        Some(Dim::Dim3D) => 3,
        Some(Dim::Dim2D) => 2,
        _ => 1,
    };
    dimensions + usize::from(is_array(ty))
}

/// Returns whether OpenCL defines a read with a sampler.
fn is_defined(sampler: Sampler, coordinates: &Coordinates, is_float: bool) -> bool {
    let repeats = matches!(sampler.addressing, Addressing::Repeat | Addressing::MirroredRepeat);
    let is_linear = sampler.filter == Filter::Linear;
    match coordinates {
        Coordinates::Integers(_) => !sampler.is_normalized && !is_linear && !repeats,
        Coordinates::Floats(_) => (sampler.is_normalized || !repeats) && (is_float || !is_linear),
    }
}

/// Returns the place of a read.
fn place(
    pixels: &Pixels,
    coordinates: &Coordinates,
    sampler: Option<Sampler>,
    ty: &Instruction<'_>,
) -> Place {
    let dimensions = dimensions(ty);
    let layer = if is_array(ty) { dimensions - 1 } else { usize::MAX };
    let addressing = sampler.map_or(Addressing::None, |sampler| sampler.addressing);
    let is_normalized = sampler.is_some_and(|sampler| sampler.is_normalized);
    let mut at = Vec::new();
    for (d, &size) in pixels.size.iter().enumerate().take(dimensions) {
        let index = match coordinates {
            Coordinates::Integers(all) => all.get(d).copied(),
            Coordinates::Floats(all) => all.get(d).map(|&given| {
                let given = f64::from(given);
                match (d == layer, is_normalized) {
                    (true, _) => (given + 0.5).floor() as i64,
                    (false, true) => (given * size as f64).floor() as i64,
                    (false, false) => given.floor() as i64,
                }
            }),
        };
        let Some(index) = index else { return Place::Outside };
        let last = size as i64 - 1;
        at.push(match addressing {
            // With a sampler, layers are limited to those that exist.
            Addressing::ClampToEdge => index.clamp(0, last),
            Addressing::Clamp | Addressing::Repeat | Addressing::MirroredRepeat if d == layer => {
                index.clamp(0, last)
            }
            Addressing::Repeat => index.rem_euclid(size as i64),
            Addressing::MirroredRepeat => {
                let within = index.rem_euclid(2 * size as i64);
                within.min(2 * size as i64 - 1 - within)
            }
            Addressing::None | Addressing::Clamp => index,
        });
    }
    match (pixels.inside(&at, dimensions), addressing) {
        (Some(at), _) => Place::Pixel(at),
        (None, Addressing::Clamp) => Place::Border,
        (None, _) => Place::Outside,
    }
}
