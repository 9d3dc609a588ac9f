//! Check of a launch's accesses to pixels: coordinates and samplers, compared with the images.
//!
//! | case | in OpenCL | here |
//! | --- | --- | --- |
//! | coordinates outside, without a sampler or with one that has no addressing mode | undefined | guarded |
//! | floating-point coordinates, with a sampler that has no addressing mode | undefined outside | refused |
//! | integer coordinates, with a sampler that is normalized, linear or repeats | undefined | refused |
//! | a sampler that repeats, with coordinates in pixels | undefined | refused |
//! | a linear sampler for integers | undefined | refused |
//! | a write of numbers that do not fit the format | undefined | refused |
//! | a read of numbers that do not fit the format | gives undefined numbers | allowed: unspecified numbers |

use kiln_spirv::edit::Definitions;
use kiln_spirv::{Error, Result};

use super::kernel::Kernel;
use super::refusal;
use super::report::{AccessVerdict, Reason};
use super::{Argument, Channel};
use crate::analysis::images::{PixelAccess, Source, Texel};
use crate::{Addressing, Filter, Sampler};

/// Returns the verdict on an access at coordinates between limits.
///
/// # Errors
///
/// [`InvalidArgument`](kiln_spirv::ErrorKind::InvalidArgument) for an image or a sampler that the access cannot use.
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) for such a sampler of the kernel itself.
pub(super) fn verdict(
    kernel: &Kernel,
    definitions: &Definitions<'_>,
    arguments: &[Argument],
    access: &PixelAccess,
    limits: &[(i128, i128)],
) -> Result<AccessVerdict> {
    check_format(kernel, arguments, access)?;
    let mut is_limited = access.samplers.is_some();
    for source in access.samplers.iter().flatten() {
        let (sampler, name) = match source {
            Source::Constant(id) => (kernel.images.constants.get(id), "a constant sampler".into()),
            Source::Argument(at) => (sampler(&arguments[*at]), kernel.parameter(*at)),
        };
        let Some(sampler) = sampler else { continue };
        if let Some(problem) = problem(access, *sampler) {
            let images = described(kernel, access);
            let reason = format!("it reads {images} with {name}, {problem}");
            return Err(match source {
                Source::Constant(_) => {
                    let reason = refusal::at_line(definitions, access.location, reason);
                    refusal::refuse(&kernel.name, &reason)
                }
                Source::Argument(_) => {
                    Error::invalid(format!("kernel `{}`: {reason}", kernel.name))
                }
            });
        }
        is_limited &= sampler.addressing != Addressing::None;
    }
    if is_limited {
        return Ok(AccessVerdict::InBounds);
    }
    for &at in &access.images {
        let Argument::Image { size, .. } = &arguments[at] else { continue };
        for (dimension, &size) in size.iter().enumerate().take(access.ty.coordinates()) {
            let limits = limits.get(dimension).copied();
            let (low, high) = limits.unwrap_or((i32::MIN.into(), i32::MAX.into()));
            if low < 0 || high >= size as i128 {
                let reason = Reason::OutsideImage { dimension, low, high, size };
                return Ok(AccessVerdict::Guarded(reason));
            }
        }
    }
    Ok(AccessVerdict::InBounds)
}

fn sampler(argument: &Argument) -> Option<&Sampler> {
    match argument {
        Argument::Sampler(sampler) => Some(sampler),
        _ => None,
    }
}

fn described(kernel: &Kernel, access: &PixelAccess) -> String {
    let names: Vec<_> = access.images.iter().map(|&at| kernel.parameter(at)).collect();
    names.join(" or ")
}

/// Returns why an access cannot use a sampler, worded to follow the name of the sampler.
fn problem(access: &PixelAccess, sampler: Sampler) -> Option<&'static str> {
    let (repeats, is_linear) = (sampler.repeats(), sampler.filter == Filter::Linear);
    if access.has_integer_coordinates && (sampler.is_normalized || is_linear || repeats) {
        return Some(
            "but at integer coordinates, a sampler must be of the nearest pixels, with coordinates in pixels, and \
             must not repeat",
        );
    }
    if repeats && !sampler.is_normalized {
        return Some("which repeats, but has no normalized coordinates");
    }
    if is_linear && access.texel != Texel::Float {
        return Some(
            "which is linear, but integers are not interpolated: give one of the nearest pixels",
        );
    }
    if sampler.addressing == Addressing::None && !access.has_integer_coordinates {
        return Some(
            "which has no addressing mode, and floating-point coordinates are not checked: give one with an \
             addressing mode, such as `ClampToEdge`",
        );
    }
    None
}

/// Fails if numbers are written to an image whose format they do not fit.
fn check_format(kernel: &Kernel, arguments: &[Argument], access: &PixelAccess) -> Result<()> {
    if !access.writes {
        return Ok(());
    }
    for &at in &access.images {
        let Argument::Image { channel, .. } = arguments[at] else { continue };
        let fits = match (access.texel, channel) {
            (Texel::Float, Channel::Float) | (Texel::Integer(None), Channel::Signed) => true,
            (Texel::Integer(None), Channel::Unsigned) => true,
            (Texel::Integer(Some(is_signed)), Channel::Signed) => is_signed,
            (Texel::Integer(Some(is_signed)), Channel::Unsigned) => !is_signed,
            _ => false,
        };
        if !fits {
            let written = match access.texel {
                Texel::Float => "floating-point numbers",
                Texel::Integer(Some(true)) => "signed integers",
                Texel::Integer(Some(false)) => "unsigned integers",
                Texel::Integer(None) => "integers",
            };
            let expected = match channel {
                Channel::Float => "floating-point numbers (`write_imagef`)",
                Channel::Signed => "signed integers (`write_imagei`)",
                Channel::Unsigned => "unsigned integers (`write_imageui`)",
            };
            return Err(Error::invalid(format!(
                "kernel `{}`: it writes {written} to {}, whose format takes {expected}; give an image of another \
                 format",
                kernel.name,
                kernel.parameter(at)
            )));
        }
    }
    Ok(())
}
