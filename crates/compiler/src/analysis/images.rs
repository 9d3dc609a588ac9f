//! Images and samplers of a kernel, and the instructions that access pixels.
//!
//! In OpenCL C, images and samplers are parameters and constants only. So the image of each instruction is known,
//! in called functions, too. Images from memory are refused by name, and so are images that are written although
//! they are declared `read_only`, or read although they are declared `write_only`.

use std::collections::{BTreeSet, HashMap};

use kiln_spirv::edit::{
    Definitions, Effect, ImageOperands, Instruction, Location, Meaning, Section, View, located,
    operand_ids,
};
use rspirv::spirv::{AccessQualifier, Dim, ImageOperands as Mask, Op};

use super::access::samplers;
use super::pixel_access::is_first_level;
use crate::Sampler;

/// Type of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageType {
    pub(crate) dim: Dim,
    is_array: bool,
    is_depth: bool,
    access: AccessQualifier,
}

impl ImageType {
    /// Returns the type that a definition declares, or `None` for other types and for images that launches cannot
    /// pass.
    pub(crate) fn of(ty: &Instruction<'_>) -> Option<Self> {
        let View::TypeImage { dim, depth, arrayed, multisampled: 0, access, .. } = ty.view() else {
            return None;
        };
        let dim = Dim::from_u32(dim)?;
        // Without an access qualifier, an image is read-only (OpenCL SPIR-V environment).
        let access = match access {
            Some(access) => AccessQualifier::from_u32(access)?,
            None => AccessQualifier::ReadOnly,
        };
        let kind = Self { dim, is_depth: depth == 1, is_array: arrayed == 1, access };
        kind.name().map(|_| kind)
    }

    /// Returns the type's name in OpenCL C; `None` for images that launches cannot pass.
    pub(crate) fn name(self) -> Option<&'static str> {
        match (self.dim, self.is_array, self.is_depth) {
            (Dim::Dim1D, false, false) => Some("image1d_t"),
            (Dim::Dim1D, true, false) => Some("image1d_array_t"),
            (Dim::DimBuffer, false, false) => Some("image1d_buffer_t"),
            (Dim::Dim2D, false, false) => Some("image2d_t"),
            (Dim::Dim2D, true, false) => Some("image2d_array_t"),
            (Dim::Dim3D, false, false) => Some("image3d_t"),
            _ => None,
        }
    }

    /// Returns the number of coordinates, layers included.
    pub(crate) fn coordinates(self) -> usize {
        let dimensions = match self.dim {
            Dim::Dim2D => 2,
            Dim::Dim3D => 3,
            _ => 1,
        };
        dimensions + usize::from(self.is_array)
    }

    /// Returns the sizes of an image of this type: the given ones as far as the type has them, and otherwise 1.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn size_of(self, sizes: [usize; 3]) -> [usize; 3] {
        std::array::from_fn(|d| if d < self.coordinates() { sizes[d] } else { 1 })
    }

    pub(crate) fn is_read_only(self) -> bool {
        self.access == AccessQualifier::ReadOnly
    }
}

/// Returns the type of an image, by the id of the image.
pub(crate) fn image_type(definitions: &Definitions<'_>, image: u32) -> Option<ImageType> {
    definitions.type_of(image).and_then(|ty| ImageType::of(&ty))
}

/// Returns whether an instruction reads an image that a kernel may write.
pub(crate) fn reads_changing(definitions: &Definitions<'_>, i: &Instruction<'_>) -> bool {
    let View::ImageRead { image, .. } = i.view() else { return false };
    image_type(definitions, image).is_none_or(|ty| !ty.is_read_only())
}

/// Returns whether an instruction reads or writes a pixel.
pub(crate) fn is_access(op: Op) -> bool {
    Meaning::of(op).is_some_and(|meaning| meaning.effect == Effect::Pixel)
}

/// Returns whether an instruction about images is one that is followed.
pub(crate) fn is_known(op: Op) -> bool {
    Meaning::of(op).is_some_and(|meaning| matches!(meaning.effect, Effect::Image | Effect::Pixel))
}

/// Image or sampler that a value stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// Argument of the kernel, by its position.
    Argument(usize),
    /// Constant sampler, by its id.
    Constant(u32),
}

/// Instruction that reads or writes a pixel.
#[derive(Clone, Debug)]
pub(crate) struct PixelAccess {
    pub(crate) location: Location,
    /// Positions of the arguments that may be the image.
    pub(crate) images: BTreeSet<usize>,
    pub(crate) ty: ImageType,
    pub(crate) writes: bool,
    /// Samplers of a read; `None` without a sampler.
    pub(crate) samplers: Option<BTreeSet<Source>>,
    /// Whether the coordinates are integers.
    pub(crate) has_integer_coordinates: bool,
    pub(crate) texel: Texel,
}

/// Numbers that an instruction reads from an image or writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Texel {
    Float,
    /// Integers, and whether they are signed if the instruction states it.
    Integer(Option<bool>),
}

/// Images and samplers of a kernel, and its accesses to pixels.
#[derive(Debug, Default)]
pub(crate) struct Images {
    pub(crate) accesses: Vec<PixelAccess>,
    /// Images and samplers that the parameters of functions stand for, by the parameter's id.
    pub(crate) sources: HashMap<u32, BTreeSet<Source>>,
    /// Constant samplers, by their ids.
    pub(crate) constants: HashMap<u32, Sampler>,
}

/// Reason to refuse a kernel, worded to follow "it", with its location.
pub(crate) type Refusal = (Location, String);

impl Images {
    /// Finds the images of a kernel, by the id of its function.
    pub(crate) fn of(definitions: &Definitions<'_>, kernel: u32) -> Result<Self, Refusal> {
        let module = definitions.module();
        let mut images = Self { constants: samplers::constants(definitions), ..Self::default() };
        images.follow_calls(definitions, kernel);
        for (stream, known) in (Section::COUNT as u32..).zip(&module.functions) {
            for (location, i) in located((stream, &known.body)) {
                let found = images.instruction(definitions, location, &i);
                images.accesses.extend(found.map_err(|reason| (location, reason))?);
            }
        }
        Ok(images)
    }

    /// Finds the images and samplers that are passed to functions.
    fn follow_calls(&mut self, definitions: &Definitions<'_>, kernel: u32) {
        let module = definitions.module();
        let mut parameters = HashMap::<u32, Vec<u32>>::new();
        for function in &module.functions {
            let all = function.body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
            parameters.insert(function.id, all.filter_map(|i| i.result()).collect());
        }
        for (at, &id) in parameters.get(&kernel).into_iter().flatten().enumerate() {
            if is_object(definitions, id) {
                self.sources.insert(id, BTreeSet::from([Source::Argument(at)]));
            }
        }
        loop {
            let before = self.sources.values().map(BTreeSet::len).sum::<usize>();
            let bodies = module.functions.iter().flat_map(|function| function.body.iter());
            for call in bodies.filter(|i| i.op() == Some(Op::FunctionCall)) {
                let called = call.called().and_then(|called| parameters.get(&called));
                for (&parameter, given) in called.into_iter().flatten().zip(call.arguments()) {
                    if is_object(definitions, parameter) {
                        let sources = self.resolve(given).unwrap_or_default();
                        self.sources.entry(parameter).or_default().extend(sources);
                    }
                }
            }
            if before == self.sources.values().map(BTreeSet::len).sum::<usize>() {
                return;
            }
        }
    }

    /// Returns the images or samplers that a value stands for; `None` for a value from elsewhere.
    fn resolve(&self, id: u32) -> Option<BTreeSet<Source>> {
        if self.constants.contains_key(&id) {
            return Some(BTreeSet::from([Source::Constant(id)]));
        }
        self.sources.get(&id).cloned()
    }

    /// Checks an instruction. Returns the access that it is, if it is one.
    fn instruction(
        &self,
        definitions: &Definitions<'_>,
        location: Location,
        i: &Instruction<'_>,
    ) -> Result<Option<PixelAccess>, String> {
        let Some(op) = i.op() else { return Ok(None) };
        self.check_operands(definitions, op, i)?;
        if op == Op::FunctionCall {
            check_call(definitions, i)?;
        }
        if op == Op::ImageQuerySizeLod && !is_first_level(definitions, i) {
            return Err("it asks for the size of another level of an image than the first".into());
        }
        if !is_access(op) {
            return Ok(None);
        }
        let name = i.name();
        let damaged = || format!("the operands of {name} are not known");
        let (image, coordinate, texel, operands, sampler) = match i.view() {
            View::ImageWrite { image, coordinate, texel, operands } => {
                (image, coordinate, Some(texel), operands, None)
            }
            View::ImageRead { image, coordinate, operands } => {
                (image, coordinate, i.result(), operands, None)
            }
            View::ImageSample { image, coordinate, operands } => {
                let (image, sampler) = definitions
                    .get(image)
                    .and_then(|sampled| combination(definitions, &sampled))
                    .ok_or_else(damaged)?;
                (image, coordinate, i.result(), operands, Some(sampler))
            }
            _ => return Err(damaged()),
        };
        let mask = operands.mask.unwrap_or(0);
        check_level(definitions, i, operands)?;
        let samplers = match sampler {
            Some(sampler) => Some(self.resolve(sampler).ok_or_else(damaged)?),
            None => None,
        };
        let ty = image_type(definitions, image)
            .ok_or_else(|| "it uses an image of a kind that launches cannot pass".to_owned())?;
        check_access(op, ty.access)?;
        let texel = texel.ok_or_else(damaged)?;
        let has_integer_coordinates = check_coordinate(definitions, coordinate, ty, op)?;
        let sources = self.resolve(image).ok_or_else(damaged)?;
        let images = sources.into_iter().filter_map(|source| match source {
            Source::Argument(at) => Some(at),
            Source::Constant(_) => None,
        });
        let texel = texel_of(definitions, texel, mask)
            .ok_or_else(|| format!("{name} has a pixel whose type is not followed"))?;
        Ok(Some(PixelAccess {
            location,
            images: images.collect(),
            ty,
            writes: op == Op::ImageWrite,
            samplers,
            has_integer_coordinates,
            texel,
        }))
    }

    /// Checks that images and samplers are used by known instructions only, and that they are known.
    fn check_operands(
        &self,
        definitions: &Definitions<'_>,
        op: Op,
        i: &Instruction<'_>,
    ) -> Result<(), String> {
        let (mut objects, mut combined) = (Vec::new(), Vec::new());
        _ = operand_ids(i, definitions, |id| {
            match definitions.type_of(id).and_then(|ty| ty.op()) {
                Some(Op::TypeImage | Op::TypeSampler) => objects.push(id),
                Some(Op::TypeSampledImage) => combined.push(id),
                _ => {}
            }
        });
        let is_use = is_known(op) || op == Op::FunctionCall;
        let is_combination = |id: &u32| {
            definitions
                .get(*id)
                .is_some_and(|combined| combination(definitions, &combined).is_some())
        };
        let is_sample = op == Op::ImageSampleExplicitLod && combined.iter().all(is_combination);
        if !objects.is_empty() && !is_use || !combined.is_empty() && !is_sample {
            let name = i.name();
            return Err(format!("it uses an image or a sampler in {name}, which is not followed"));
        }
        match objects.iter().find(|id| self.resolve(**id).is_none()) {
            Some(_) => Err(format!(
                "{} uses an image or a sampler that is not a parameter, and these are not followed",
                i.name()
            )),
            None => Ok(()),
        }
    }
}

fn is_object(definitions: &Definitions<'_>, id: u32) -> bool {
    let ty = definitions.type_of(id).and_then(|ty| ty.op());
    matches!(ty, Some(Op::TypeImage | Op::TypeSampler))
}

/// Returns the image and the sampler that an instruction combines, as its type says.
fn combination(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<(u32, u32)> {
    let View::SampledImage { image, sampler } = i.view() else { return None };
    let View::TypeSampledImage { image: declared } = definitions.get(i.result_type()?)?.view()
    else {
        return None;
    };
    let is_image = definitions.get(image)?.result_type() == Some(declared);
    let is_sampler = definitions.type_of(sampler)?.op() == Some(Op::TypeSampler);
    (is_image && is_sampler).then_some((image, sampler))
}

/// Fails if a call passes an image or a sampler as a value of another type. The parameter could be written although
/// the image is only read, or have coordinates that the image lacks.
fn check_call(definitions: &Definitions<'_>, call: &Instruction<'_>) -> Result<(), String> {
    let mut functions = definitions.module().functions.iter();
    let called = functions.find(|function| Some(function.id) == call.called());
    let body = called.into_iter().flat_map(|function| function.body.iter());
    let parameters = body.filter(|i| i.op() == Some(Op::FunctionParameter));
    for (parameter, given) in parameters.zip(call.arguments()) {
        let given_type = definitions.get(given).and_then(|i| i.result_type());
        let is_known = given_type == parameter.result_type();
        let is_image = is_object(definitions, given)
            || parameter.result().is_some_and(|id| is_object(definitions, id));
        if is_image && !is_known {
            return Err(
                "it passes an image or a sampler to a function whose parameter has another type"
                    .into(),
            );
        }
    }
    Ok(())
}

/// Fails unless an access is to the first level of an image, and has no operands that are not followed.
fn check_level(
    definitions: &Definitions<'_>,
    i: &Instruction<'_>,
    operands: ImageOperands<'_>,
) -> Result<(), String> {
    let mask = operands.mask.unwrap_or(0);
    let extend = Mask::SIGN_EXTEND | Mask::ZERO_EXTEND;
    let is_lod = mask & !extend.bits() == Mask::LOD.bits();
    let is_sample = i.op() == Some(Op::ImageSampleExplicitLod);
    let is_known = mask & !extend.bits() == 0 || is_sample && is_lod;
    if !is_known {
        let name = i.name();
        return Err(format!("{name} has the operands {mask:#x}, which are not followed"));
    }
    if is_lod && !definitions.is_zero(operands.ids.get(0)) {
        return Err("it reads another level of an image than the first".to_owned());
    }
    Ok(())
}

fn check_access(op: Op, access: AccessQualifier) -> Result<(), String> {
    let problem = match (op, access) {
        (Op::ImageWrite, AccessQualifier::ReadOnly) => {
            "it writes to an image that is declared `read_only`"
        }
        (Op::ImageRead | Op::ImageSampleExplicitLod, AccessQualifier::WriteOnly) => {
            "it reads an image that is declared `write_only`"
        }
        (Op::ImageSampleExplicitLod, AccessQualifier::ReadWrite) => {
            "it reads an image that is declared `read_write` with a sampler"
        }
        _ => return Ok(()),
    };
    Err(problem.to_owned())
}

/// Checks the type of coordinates. Returns whether they are integers.
fn check_coordinate(
    definitions: &Definitions<'_>,
    coordinate: u32,
    ty: ImageType,
    op: Op,
) -> Result<bool, String> {
    let given = definitions.type_of(coordinate);
    let (part, count) = match given {
        Some(given) if given.op() == Some(Op::TypeVector) => match given.vector() {
            Some((component, count)) => (definitions.get(component), count),
            None => (None, 0),
        },
        other => (other, 1),
    };
    let is_32 = part.is_some_and(|part| part.width() == Some(32));
    let is_integer = match part.and_then(|part| part.op()) {
        Some(Op::TypeInt) if is_32 => Some(true),
        Some(Op::TypeFloat) if is_32 && op == Op::ImageSampleExplicitLod => Some(false),
        _ => None,
    };
    is_integer
        .filter(|_| count as usize >= ty.coordinates())
        .ok_or_else(|| "it uses coordinates of an image whose type is not followed".to_owned())
}

/// Returns the numbers of a pixel: four, as OpenCL C has them.
fn texel_of(definitions: &Definitions<'_>, id: u32, mask: u32) -> Option<Texel> {
    let (component, count) = definitions.type_of(id)?.vector()?;
    let part = definitions.get(component).filter(|_| count == 4)?;
    match (part.op()?, part.width()?) {
        (Op::TypeFloat, 16 | 32) => Some(Texel::Float),
        (Op::TypeInt, 32) => {
            let is_signed = mask & Mask::SIGN_EXTEND.bits() != 0;
            let is_stated = is_signed || mask & Mask::ZERO_EXTEND.bits() != 0;
            Some(Texel::Integer(is_stated.then_some(is_signed)))
        }
        _ => None,
    }
}
