//! Images and samplers.
//!
//! In OpenCL C, images and samplers are only parameters and constants. Unoptimised modules keep parameters in
//! variables; a load of such a variable stands for the parameter here. An OpSampledImage has no text of its
//! own: the function that reads takes the image and the sampler.
//!
//! Before version 1.4, SPIR-V does not say whether the integers of an image are signed. The text then decides
//! by the image's data type when it runs, because OpenCL C has a function for each.

use std::collections::HashMap;

use kiln_spirv::edit::{Class, Function, ImageOperands, Instruction, View};
use kiln_spirv::{Demand, Result};
use rspirv::spirv::{
    AccessQualifier, Dim, ImageOperands as Mask, Op, SamplerAddressingMode, SamplerFilterMode,
};

use super::function::Body;
use super::types::{Lanes, Scalar, Type};
use super::{Emitter, damaged, malformed, typed, unsupported};

/// Kind of an image.
#[derive(Clone, Copy, Debug)]
struct Kind {
    dim: Dim,
    is_depth: bool,
    is_array: bool,
    access: AccessQualifier,
}

impl Kind {
    /// Returns the number of coordinates that functions take.
    fn coordinates(self) -> u32 {
        match (self.dim, self.is_array) {
            (Dim::Dim1D | Dim::DimBuffer, false) => 1,
            (Dim::Dim1D, true) | (Dim::Dim2D, false) => 2,
            _ => 4,
        }
    }

    fn name(self) -> Result<String> {
        let dim = match self.dim {
            Dim::Dim1D => "1d",
            Dim::Dim2D => "2d",
            Dim::Dim3D => "3d",
            Dim::DimBuffer => "1d_buffer",
            other => return Err(unsupported(format!("OpTypeImage of dimension {other:?}"))),
        };
        let access = match self.access {
            AccessQualifier::ReadOnly => "read_only",
            AccessQualifier::WriteOnly => "write_only",
            AccessQualifier::ReadWrite => "read_write",
        };
        let array = if self.is_array { "_array" } else { "" };
        let depth = if self.is_depth { "_depth" } else { "" };
        Ok(format!("{access} image{dim}{array}{depth}_t"))
    }
}

impl Emitter<'_> {
    fn image_kind(&self, ty: u32) -> Result<Kind> {
        let image = self.definition(ty)?;
        let View::TypeImage { dim, depth, arrayed, multisampled, access, .. } = image.view() else {
            return Err(damaged(&image));
        };
        if multisampled != 0 {
            return Err(unsupported("OpTypeImage with several samples"));
        }
        let dim = Dim::from_u32(dim).ok_or_else(|| malformed("OpTypeImage"))?;
        // Without an access qualifier, an image is read-only (OpenCL SPIR-V environment).
        let access = match access {
            Some(access) => {
                AccessQualifier::from_u32(access).ok_or_else(|| malformed("OpTypeImage"))?
            }
            None => AccessQualifier::ReadOnly,
        };
        Ok(Kind { dim, is_depth: depth == 1, is_array: arrayed == 1, access })
    }

    /// Returns the name of an image type, with its access qualifier.
    pub(super) fn image_name(&mut self, ty: u32) -> Result<String> {
        let kind = self.image_kind(ty)?;
        self.demands.insert(match kind.access {
            AccessQualifier::ReadWrite => Demand::ReadWriteImages,
            _ => Demand::Images,
        });
        if kind.is_depth {
            self.extensions.insert("cl_khr_depth_images");
        }
        if kind.dim == Dim::Dim3D && kind.access != AccessQualifier::ReadOnly {
            self.extensions.insert("cl_khr_3d_image_writes");
        }
        kind.name()
    }

    /// Declares a constant sampler, once, and returns its name.
    pub(super) fn constant_sampler(&mut self, id: u32) -> Result<String> {
        let name = self.name(id, "sampler_");
        let location = self.definitions.location(id).ok_or_else(|| malformed("a sampler"))?;
        let sampler = self.definition(id)?;
        let View::ConstantSampler { addressing, normalized, filter } = sampler.view() else {
            return Err(damaged(&sampler));
        };
        let addressing = match SamplerAddressingMode::from_u32(addressing) {
            Some(SamplerAddressingMode::None) => "NONE",
            Some(SamplerAddressingMode::ClampToEdge) => "CLAMP_TO_EDGE",
            Some(SamplerAddressingMode::Clamp) => "CLAMP",
            Some(SamplerAddressingMode::Repeat) => "REPEAT",
            Some(SamplerAddressingMode::RepeatMirrored) => "MIRRORED_REPEAT",
            None => return Err(malformed("OpConstantSampler")),
        };
        let normalized = if normalized == 0 { "FALSE" } else { "TRUE" };
        let filter = match SamplerFilterMode::from_u32(filter) {
            Some(SamplerFilterMode::Nearest) => "NEAREST",
            Some(SamplerFilterMode::Linear) => "LINEAR",
            None => return Err(malformed("OpConstantSampler")),
        };
        let text = format!(
            "\nconstant sampler_t {name} = CLK_NORMALIZED_COORDS_{normalized} \
             | CLK_ADDRESS_{addressing} | CLK_FILTER_{filter};\n"
        );
        self.constants.insert(location, text);
        Ok(name)
    }

    /// Returns whether a type is that of images or samplers.
    pub(super) fn is_image(&self, ty: u32) -> Result<bool> {
        Ok(self.definition(ty)?.class() == Some(Class::Object))
    }

    /// Returns the values that are stored to the variables that hold images and samplers, by the variable.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if such a variable is stored to several times.
    pub(super) fn stored_images(&self, function: &Function) -> Result<HashMap<u32, u32>> {
        let mut stored = HashMap::new();
        for store in function.body.iter().filter(|i| i.op() == Some(Op::Store)) {
            let View::Store { pointer, value, .. } = store.view() else {
                return Err(damaged(&store));
            };
            if self.is_image(self.type_of(value)?)? && stored.insert(pointer, value).is_some() {
                return Err(unsupported(
                    "an image or sampler that is chosen while the kernel runs",
                ));
            }
        }
        Ok(stored)
    }
}

impl Body<'_, '_> {
    /// Translates an instruction about images. Returns whether the instruction is one.
    pub(super) fn image(&mut self, op: Op, instruction: &Instruction<'_>) -> Result<bool> {
        match instruction.view() {
            // Loads of images and samplers stand for what was stored.
            View::Load { .. } => return self.emitter.is_image(typed(instruction)?.0),
            View::Store { value, .. } => {
                return self.emitter.is_image(self.emitter.type_of(value)?);
            }
            View::SampledImage { .. } => {}
            View::ImageSample { image, coordinate, operands } => {
                let sampled = self.emitter.definition(self.image_source(image)?)?;
                let View::SampledImage { image, sampler } = sampled.view() else {
                    return Err(unsupported("OpImageSampleExplicitLod of a value from elsewhere"));
                };
                self.check_lod(operands)?;
                let sampler = self.value(sampler)?;
                let sampler = format!("{sampler}, ");
                self.read_image(instruction, (image, coordinate), operands.mask, &sampler)?;
            }
            View::ImageRead { image, coordinate, operands } => {
                if operands.mask.is_some_and(|mask| mask & !EXTEND != 0) {
                    return Err(unsupported("OpImageRead with operands"));
                }
                self.read_image(instruction, (image, coordinate), operands.mask, "")?;
            }
            View::ImageWrite { image, coordinate, texel, operands } => {
                self.write_image((image, coordinate), texel, operands.mask)?;
            }
            View::ImageQueryLod { image, level } => {
                if self.emitter.evaluate(level)? != Some(0) {
                    return Err(unsupported("OpImageQuerySizeLod of another level than the first"));
                }
                self.query_size(instruction, image)?;
            }
            View::ImageQuery { image } if op == Op::ImageQuerySize => {
                self.query_size(instruction, image)?;
            }
            View::ImageQuery { image } => {
                let (function, first) = match op {
                    Op::ImageQueryFormat => ("get_image_channel_data_type", "CLK_SNORM_INT8"),
                    _ => ("get_image_channel_order", "CLK_R"),
                };
                let image = self.value(image)?;
                let (ty, id) = typed(instruction)?;
                // SPIR-V counts from 0.
                let text = format!("(uint)({function}({image}) - {first})");
                self.assign(id, ty, &text)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the image, sampler or OpSampledImage that a value stands for.
    pub(super) fn image_source(&self, mut id: u32) -> Result<u32> {
        for _ in 0..=self.stored_images.len() {
            let definition = self.emitter.definition(id)?;
            if definition.op() != Some(Op::Load) {
                return Ok(id);
            }
            let variable = definition.pointer().ok_or_else(|| damaged(&definition))?;
            let stored = self.stored_images.get(&variable).copied();
            id = stored.ok_or_else(|| unsupported("an image or sampler from memory"))?;
        }
        Err(malformed("a variable of an image"))
    }

    fn kind_of(&self, image: u32) -> Result<Kind> {
        self.emitter.image_kind(self.emitter.type_of(self.image_source(image)?)?)
    }

    /// Fails unless the only operand, besides the sign, is the level of detail 0.
    fn check_lod(&self, operands: ImageOperands<'_>) -> Result<()> {
        let mask = operands.mask.unwrap_or(0) & !EXTEND;
        let is_zero = |id| {
            self.emitter.definition(id)?;
            Ok(self.emitter.definitions.is_zero(Some(id)))
        };
        match (mask, operands.ids.get(0)) {
            (0, _) => Ok(()),
            (mask, Some(lod)) if mask == Mask::LOD.bits() && is_zero(lod)? => Ok(()),
            _ => Err(unsupported("a read of an image with another level of detail than 0")),
        }
    }

    /// Translates a read. `sampler` is the text of the sampler with a comma, or empty.
    fn read_image(
        &mut self,
        instruction: &Instruction<'_>,
        (image, coordinate): (u32, u32),
        mask: Option<u32>,
        sampler: &str,
    ) -> Result<()> {
        let (ty, id) = typed(instruction)?;
        let kind = self.kind_of(image)?;
        let lanes = self.emitter.lanes(ty)?;
        let at = self.coordinate(coordinate, kind)?;
        let image = self.value(image)?;
        let arguments = format!("({image}, {sampler}{at})");
        self.declare(id, ty)?;
        let name = self.name(id);
        match lanes.scalar {
            Scalar::Float(32) => self.line(&format!("{name} = read_imagef{arguments};")),
            Scalar::Float(16) => self.line(&format!("{name} = read_imageh{arguments};")),
            Scalar::Int(32) => {
                let signed = format!("{name} = as_{lanes}(read_imagei{arguments});");
                let unsigned = format!("{name} = read_imageui{arguments};");
                self.by_sign(&image, mask, &signed, &unsigned);
            }
            _ => return Err(unsupported(format!("a read of {lanes} from an image"))),
        }
        Ok(())
    }

    fn write_image(
        &mut self,
        (image, coordinate): (u32, u32),
        texel: u32,
        mask: Option<u32>,
    ) -> Result<()> {
        if mask.is_some_and(|mask| mask & !EXTEND != 0) {
            return Err(unsupported("OpImageWrite with operands"));
        }
        let kind = self.kind_of(image)?;
        let lanes = self.emitter.lanes(self.emitter.type_of(texel)?)?;
        let at = self.coordinate(coordinate, kind)?;
        let (image, value) = (self.value(image)?, self.value(texel)?);
        match lanes.scalar {
            Scalar::Float(32) => self.line(&format!("write_imagef({image}, {at}, {value});")),
            Scalar::Float(16) => self.line(&format!("write_imageh({image}, {at}, {value});")),
            Scalar::Int(32) => {
                let signed = self.signed(texel)?;
                let signed = format!("write_imagei({image}, {at}, {signed});");
                let unsigned = format!("write_imageui({image}, {at}, {value});");
                self.by_sign(&image, mask, &signed, &unsigned);
            }
            _ => return Err(unsupported(format!("a write of {lanes} to an image"))),
        }
        Ok(())
    }

    /// Writes the statement for signed or for unsigned integers, as the image operands say, or both with a
    /// decision by the image's data type.
    fn by_sign(&mut self, image: &str, operands: Option<u32>, signed: &str, unsigned: &str) {
        let operands = Mask::from_bits_truncate(operands.unwrap_or(0));
        if operands.contains(Mask::SIGN_EXTEND) {
            return self.line(signed);
        }
        if operands.contains(Mask::ZERO_EXTEND) {
            return self.line(unsigned);
        }
        let types = ["CLK_SIGNED_INT8", "CLK_SIGNED_INT16", "CLK_SIGNED_INT32"];
        let tests = types.map(|ty| format!("get_image_channel_data_type({image}) == {ty}"));
        self.line(&format!("if ({})", tests.join(" || ")));
        self.line(&format!("    {signed}"));
        self.line("else");
        self.line(&format!("    {unsigned}"));
    }

    /// Returns the coordinates in the form that the functions for this kind of image take.
    fn coordinate(&mut self, id: u32, kind: Kind) -> Result<String> {
        let lanes = self.emitter.lanes(self.emitter.type_of(id)?)?;
        let text = match lanes.scalar {
            Scalar::Int(32) => self.signed(id)?,
            Scalar::Float(32) => self.value(id)?,
            _ => return Err(unsupported(format!("coordinates of type {lanes}"))),
        };
        let name = |count| match lanes.scalar {
            Scalar::Float(_) => Lanes { count, ..lanes }.to_string(),
            _ => Lanes { count, ..lanes }.signed(),
        };
        let needed = kind.coordinates();
        Ok(match (lanes.count, needed) {
            (given, needed) if given == needed => text,
            (3, 4) => format!("({})({text}, 0)", name(4)),
            (2.., 1) => format!("({text}).s0"),
            (3.., 2) => format!("({text}).s01"),
            (8.., 4) => format!("({text}).s0123"),
            _ => return Err(malformed("the coordinates of an image")),
        })
    }

    fn query_size(&mut self, instruction: &Instruction<'_>, image: u32) -> Result<()> {
        let (ty, id) = typed(instruction)?;
        let kind = self.kind_of(image)?;
        let lanes = self.emitter.lanes(ty)?;
        let functions = ["width", "height", "depth"];
        let dimensions = match kind.dim {
            Dim::Dim2D => 2,
            Dim::Dim3D => 3,
            _ => 1,
        };
        let mut functions = functions[..dimensions].to_vec();
        if kind.is_array {
            functions.push("array_size");
        }
        if functions.len() != lanes.count as usize || !matches!(lanes.scalar, Scalar::Int(_)) {
            return Err(malformed(instruction.name()));
        }
        let (image, element) = (self.value(image)?, lanes.single());
        let sizes = functions.iter().map(|name| format!("({element})get_image_{name}({image})"));
        let sizes: Vec<_> = sizes.collect();
        let text = match lanes.is_vector() {
            true => format!("({lanes})({})", sizes.join(", ")),
            false => sizes.join(", "),
        };
        self.assign(id, ty, &text)
    }
}

/// Image operands that state the sign of integers.
const EXTEND: u32 = Mask::SIGN_EXTEND.bits() | Mask::ZERO_EXTEND.bits();

impl Type {
    /// Returns whether values of the type are images or samplers.
    pub(super) fn is_image(self) -> bool {
        matches!(self, Self::Image | Self::Sampler | Self::SampledImage)
    }
}
