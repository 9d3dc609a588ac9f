//! Reads with samplers, of all modes.

use rspirv::dr::Operand;
use rspirv::spirv::{AccessQualifier, ImageOperands, SamplerAddressingMode, SamplerFilterMode};

use super::images::{Code, outcome, picture};
use super::pixels::image;
use super::*;
use crate::{Addressing, Filter, Sampler};

/// How a kernel gets its sampler.
#[derive(Clone, Copy, Debug)]
enum From {
    Constant,
    Argument,
    /// The kernel passes its argument to a function.
    Function,
}

/// Read of a pixel with a sampler.
#[derive(Clone, Copy, Debug)]
struct Read {
    sampler: Sampler,
    has_integer_coordinates: bool,
    has_integer_pixels: bool,
}

/// Verdict that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Proven, whatever the coordinates are.
    Proven,
    /// Proven inside of the image.
    Guarded,
    Refused,
}

impl Read {
    /// Returns the verdict that follows from the specification of OpenCL C, case by case.
    fn expected(self) -> Expected {
        let repeats =
            matches!(self.sampler.addressing, Addressing::Repeat | Addressing::MirroredRepeat);
        let is_linear = self.sampler.filter == Filter::Linear;
        let is_normalized = self.sampler.is_normalized;
        let is_limited = self.sampler.addressing != Addressing::None;
        match self.has_integer_coordinates {
            true if is_linear || is_normalized || repeats => Expected::Refused,
            true if is_limited => Expected::Proven,
            true => Expected::Guarded,
            false if repeats && !is_normalized => Expected::Refused,
            false if is_linear && self.has_integer_pixels => Expected::Refused,
            false if !is_limited => Expected::Refused,
            false => Expected::Proven,
        }
    }

    /// Returns a kernel that reads the pixel (1, 2).
    fn module(self, from: From) -> Module {
        let mut code = Code::new();
        let ty = code.picture(AccessQualifier::ReadOnly);
        let sampler = code.b.type_sampler();
        let constant = code.constant(sampler, self.sampler);
        match from {
            From::Constant => {
                let (kernel, parameters) = code.function(code.void, &[ty]);
                code.sample(ty, parameters[0], constant, self);
                code.finish(kernel)
            }
            From::Argument => {
                let (kernel, parameters) = code.function(code.void, &[ty, sampler]);
                code.sample(ty, parameters[0], parameters[1], self);
                code.finish(kernel)
            }
            From::Function => {
                let (helper, parameters) = code.function(code.void, &[ty, sampler]);
                code.sample(ty, parameters[0], parameters[1], self);
                code.end();
                let (kernel, parameters) = code.function(code.void, &[ty, sampler]);
                code.call(helper, &parameters);
                code.finish(kernel)
            }
        }
    }

    fn arguments(self, from: From, size: usize) -> Vec<Argument> {
        let channel = if self.has_integer_pixels { Channel::Signed } else { Channel::Float };
        let mut arguments = vec![image("image2d_t", [size, size, 1], channel)];
        if !matches!(from, From::Constant) {
            arguments.push(Argument::Sampler(self.sampler));
        }
        arguments
    }
}

impl Code {
    fn constant(&mut self, ty: u32, sampler: Sampler) -> u32 {
        let mode = match sampler.addressing {
            Addressing::None => SamplerAddressingMode::None,
            Addressing::ClampToEdge => SamplerAddressingMode::ClampToEdge,
            Addressing::Clamp => SamplerAddressingMode::Clamp,
            Addressing::Repeat => SamplerAddressingMode::Repeat,
            Addressing::MirroredRepeat => SamplerAddressingMode::RepeatMirrored,
        };
        let filter = match sampler.filter {
            Filter::Nearest => SamplerFilterMode::Nearest,
            Filter::Linear => SamplerFilterMode::Linear,
        };
        self.b.constant_sampler(ty, mode, sampler.is_normalized.into(), filter)
    }

    fn sample(&mut self, ty: u32, image: u32, sampler: u32, read: Read) {
        let combined_type = self.b.type_sampled_image(ty);
        let combined = self.b.sampled_image(combined_type, None, image, sampler).unwrap();
        let mut at = self.place();
        if !read.has_integer_coordinates {
            let pair = self.b.type_vector(self.float, 2);
            at = self.b.convert_s_to_f(pair, None, at).unwrap();
        }
        let pixel = match read.has_integer_pixels {
            true => self.b.type_vector(self.int, 4),
            false => self.pixel,
        };
        let zero = self.b.constant_bit32(self.float, 0);
        let operands = [Operand::IdRef(zero)];
        let lod = ImageOperands::LOD;
        self.b.image_sample_explicit_lod(pixel, None, combined, at, lod, operands).unwrap();
    }
}

/// Returns reads with samplers of all modes.
fn reads() -> Vec<Read> {
    let addressings = [
        Addressing::None,
        Addressing::ClampToEdge,
        Addressing::Clamp,
        Addressing::Repeat,
        Addressing::MirroredRepeat,
    ];
    let mut reads = Vec::new();
    for addressing in addressings {
        for mode in 0..16 {
            let is = |bit: u32| mode & (1 << bit) != 0;
            let filter = if is(0) { Filter::Linear } else { Filter::Nearest };
            let sampler = Sampler::new().addressing(addressing).filter(filter).normalized(is(1));
            reads.push(Read { sampler, has_integer_coordinates: is(2), has_integer_pixels: is(3) });
        }
    }
    reads
}

#[test]
fn reads_with_samplers_of_all_modes_are_judged_by_their_mode() {
    for read in reads() {
        for from in [From::Constant, From::Argument, From::Function] {
            let module = read.module(from);
            for size in [16, 2] {
                let outcome = outcome(&module, &read.arguments(from, size));
                let given = outcome.as_ref().map(|(_, report)| report.is_proven()).ok();
                let expected = match read.expected() {
                    Expected::Proven => Some(true),
                    Expected::Guarded => Some(size == 16),
                    Expected::Refused => None,
                };
                assert_eq!(given, expected, "{read:?} {from:?} {size}: {outcome:?}");
                if let (Err(error), From::Constant) = (outcome, from) {
                    let error = error.to_string();
                    assert!(error.contains("`k`") && error.contains("constant sampler"), "{error}");
                }
            }
        }
    }
}

/// An image in place of the sampler would have no mode, and the read no limits.
#[test]
fn images_are_combined_with_samplers_alone() {
    let read =
        Read { sampler: Sampler::new(), has_integer_coordinates: true, has_integer_pixels: false };
    for (is_swapped, is_known) in [(false, false), (true, false), (false, true)] {
        let mut code = Code::new();
        let ty = code.picture(AccessQualifier::ReadOnly);
        let sampler = code.b.type_sampler();
        let (kernel, parameters) = code.function(code.void, &[ty, ty, sampler]);
        let (image, with) = match (is_swapped, is_known) {
            (true, _) => (parameters[2], parameters[0]),
            (_, true) => (parameters[0], parameters[2]),
            _ => (parameters[0], parameters[1]),
        };
        code.sample(ty, image, with, read);
        let arguments = [picture(2), picture(2), Argument::Sampler(read.sampler)];
        let outcome = outcome(&code.finish(kernel), &arguments);
        assert_eq!(outcome.is_ok(), is_known, "{outcome:?}");
        assert!(outcome.is_err() || outcome.is_ok_and(|(_, report)| !report.is_proven()));
    }
}

/// A function that is called with several samplers is proven if all of them limit its coordinates.
#[test]
fn functions_are_proven_for_all_samplers_that_they_are_called_with() {
    for (second, is_proven) in [(Addressing::Clamp, true), (Addressing::None, false)] {
        let read = Read {
            sampler: Sampler::new().addressing(Addressing::ClampToEdge),
            has_integer_coordinates: true,
            has_integer_pixels: false,
        };
        let mut code = Code::new();
        let ty = code.picture(AccessQualifier::ReadOnly);
        let sampler = code.b.type_sampler();
        let constant = code.constant(sampler, read.sampler);
        let (helper, parameters) = code.function(code.void, &[ty, sampler]);
        code.sample(ty, parameters[0], parameters[1], read);
        code.end();
        let (kernel, parameters) = code.function(code.void, &[ty, sampler]);
        code.call(helper, &[parameters[0], constant]);
        code.call(helper, &parameters);
        let given = Argument::Sampler(Sampler::new().addressing(second));
        let (_, report) = outcome(&code.finish(kernel), &[picture(2), given]).unwrap();
        assert_eq!(report.is_proven(), is_proven, "{report:?}");
    }
}
