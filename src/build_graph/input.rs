//! One image of a program, with all that its own compile depends on.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::key::{ConstantBytes, UnitFields};
use super::link::describe;
use super::plan::GivenConstant;
use crate::compiler::options::canonical_options;
use crate::compiler::signature::SpecializationConstant;
use crate::device::{Device, ImageFormat};
use crate::error::{Error, ErrorKind, Result};
use crate::source::image::Image;
use crate::source::includes::{Included, included_files, options_include_files, options_tell_time};

/// An image of a program, and what its compile depends on beside it.
#[derive(Clone)]
pub(crate) struct Unit {
    pub(super) image: Image,
    /// The files that its text includes, once they were read.
    pub(super) included: Option<Included>,
    /// Sorted by id, each id once.
    pub(super) constants: Vec<(u32, ConstantBytes)>,
    /// The Rust types that the constants were given in, in the same order. No key covers them.
    pub(super) constant_types: Vec<&'static str>,
    pub(super) options: String,
    /// Whether the image was translated from a text that tells the time of its build.
    pub(super) is_time_dependent: bool,
}

/// Specialization constants as a backend takes them.
pub(super) type Constants = Vec<(u32, Vec<u8>)>;

impl Unit {
    pub(super) fn new(image: Image) -> Self {
        Self {
            image,
            included: None,
            constants: Vec::new(),
            constant_types: Vec::new(),
            options: String::new(),
            is_time_dependent: false,
        }
    }

    /// With options in any form.
    pub(crate) fn with_options(image: Image, options: &str) -> Self {
        Self { options: canonical_options(options).into_owned(), ..Self::new(image) }
    }

    /// The same with its image marked as not trusted, if `mark`.
    pub(super) fn untrusted_if(self, mark: bool) -> Self {
        Self { image: self.image.untrusted_if(mark), ..self }
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// Canonical.
    pub(crate) fn options(&self) -> &str {
        &self.options
    }

    /// Whether its compiler may read files.
    pub(super) fn includes_files(&self) -> bool {
        self.image.includes_files()
            || (self.image.format() == ImageFormat::OpenClC && options_include_files(&self.options))
    }

    /// Whether its programs differ from build to build because its text tells the time of the build. Such
    /// programs must not be kept.
    pub(super) fn is_time_dependent(&self) -> bool {
        let text_tells = || {
            self.image.tells_time()
                || self.included.is_some_and(|included| included.tells_time)
                || options_tell_time(&self.options)
        };
        self.is_time_dependent || self.image.format() == ImageFormat::OpenClC && text_tells()
    }

    /// The files that its text includes, as they are now. Blocks; within `limit`, if the image is
    /// not trusted.
    ///
    /// # Errors
    ///
    /// As [`included_files`], naming the image.
    pub(super) fn read_files(&self, limit: Duration) -> Result<Option<Included>> {
        if !self.includes_files() {
            return Ok(None);
        }
        let limit = self.image.is_untrusted().then_some(limit);
        let included = included_files(self.image.code(), &self.options, limit);
        included.map(Some).map_err(|error| error.within(describe(&self.image)))
    }

    /// Makes sure that its files are those that its key tells of. Blocks.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) if they are others by now, and those of [`read_files`](Self::read_files).
    pub(crate) fn check_files(&self, limit: Duration) -> Result<()> {
        if self.included.is_none() || self.included == self.read_files(limit)? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Io,
            format!(
                "the files that {} includes have changed since it was asked for; build it again",
                describe(&self.image)
            ),
        ))
    }

    /// What a compiler gets of its image. Drivers that keep what they compiled, as NVIDIA's does, may
    /// know it by the text alone: with files that it includes, what they hold is told behind it, and the
    /// time in seconds behind one that tells the time.
    pub(super) fn code(&self) -> Cow<'_, [u8]> {
        let mut code = Cow::from(self.image.code());
        if let Some(Included { digest, .. }) = &self.included {
            code.to_mut().extend_from_slice(format!("\n// {digest}\n").as_bytes());
        }
        if self.image.format() == ImageFormat::OpenClC && self.is_time_dependent() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            code.to_mut().extend_from_slice(format!("\n// {now}\n").as_bytes());
        }
        code
    }

    /// The last value given for an id counts.
    pub(super) fn set_constant(&mut self, id: u32, value: GivenConstant) {
        let GivenConstant { bytes, type_name } = value;
        match self.constants.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => {
                self.constants[at].1 = bytes;
                self.constant_types[at] = type_name;
            }
            Err(at) => {
                self.constants.insert(at, (id, bytes));
                self.constant_types.insert(at, type_name);
            }
        }
    }

    pub(super) fn constants(&self) -> Constants {
        let owned = |(id, value): &(u32, ConstantBytes)| (*id, value.to_vec());
        self.constants.iter().map(owned).collect()
    }

    /// Whether its image exports or imports symbols.
    pub(super) fn shares(&self) -> bool {
        self.image.imports().len() > 0 || self.image.exports().len() > 0
    }

    pub(super) fn fields(&self) -> UnitFields<'_> {
        UnitFields {
            image: self.image.digest(),
            included: self.included.map(|included| included.digest),
            constants: &self.constants,
            options: &self.options,
        }
    }

    pub(super) fn constant(&self, id: u32) -> Option<&SpecializationConstant> {
        self.image.specialization_constants().iter().find(|constant| constant.id == id)
    }

    /// Whether it can be built at all, as far as the image and the device's description tell.
    pub(super) fn check(&self, device: &Device) -> Result<()> {
        let format = self.image.format();
        let is_taken = device.formats.contains(&format);
        if !is_taken && !is_emitted(device, format, false) && !is_translated(device, format) {
            return Err(Error::unsupported(format!(
                "{device} does not take the format of this image, {format}; it takes: {}",
                device.formats_in_words()
            )));
        }
        if let Some(flaw) = self.image.flaw() {
            return Err(flaw.clone());
        }
        if format != ImageFormat::SpirV && !self.constants.is_empty() {
            return Err(Error::invalid(format!(
                "specialization constants are set, but the image's format is {format}, and only SPIR-V has them; \
                 for OpenCL C define macros in the options: `-D NAME=VALUE`"
            )));
        }
        let given = self.constants.iter().zip(&self.constant_types);
        given
            .into_iter()
            .try_for_each(|((id, value), given)| self.check_constant(*id, value, given))
    }

    fn check_constant(&self, id: u32, value: &[u8], given: &str) -> Result<()> {
        let there = self.image.specialization_constants();
        let Some(constant) = self.constant(id) else {
            return Err(Error::invalid(format!(
                "the image has no specialization constant with id {id}; it has {}",
                constants_in_words(there)
            )));
        };
        let types = rust_types(&constant.type_name);
        let instead = types.map_or_else(String::new, |(types, example)| {
            let types: Vec<_> = types.iter().map(|name| format!("`{name}`")).collect();
            format!("; give {}, such as `{example}`", types.join(" or "))
        });
        if constant.default.len() != value.len() {
            return Err(Error::invalid(format!(
                "the value for specialization constant {id}, of type `{given}`, is {} bytes long, where its \
                 type, {}, has {}{instead}; the image has {}",
                value.len(),
                constant.type_name,
                constant.default.len(),
                constants_in_words(there)
            )));
        }
        if types.is_some_and(|(types, _)| !types.contains(&given)) {
            return Err(Error::invalid(format!(
                "the value for specialization constant {id} is of type `{given}`, where its own is {}{instead}; \
                 the image has {}",
                constant.type_name,
                constants_in_words(there)
            )));
        }
        Ok(())
    }
}

/// The types of Rust that values of a constant of this type are given in, and a value. None for a type
/// that is not known.
fn rust_types(type_name: &str) -> Option<(&'static [&'static str], &'static str)> {
    Some(match type_name {
        "bool" => (&["bool"], "true"),
        "char" => (&["i8", "u8"], "5i8"),
        "uchar" => (&["u8", "i8"], "5u8"),
        "short" => (&["i16", "u16"], "5i16"),
        "ushort" => (&["u16", "i16"], "5u16"),
        // Its bits: those of 1.0.
        "half" => (&["u16", "i16"], "0x3c00u16"),
        "int" => (&["i32", "u32"], "5i32"),
        "uint" => (&["u32", "i32"], "5u32"),
        "long" => (&["i64", "u64"], "5i64"),
        "ulong" => (&["u64", "i64"], "5u64"),
        "float" => (&["f32"], "3.0f32"),
        "double" => (&["f64"], "3.0f64"),
        _ => return None,
    })
}

/// Whether images of another format reach a device as OpenCL C: where it takes nothing else of them, or
/// text is preferred.
pub(super) fn is_emitted(device: &Device, format: ImageFormat, as_text: bool) -> bool {
    format == ImageFormat::SpirV
        && (as_text || !device.formats.contains(&format))
        && device.formats.contains(&ImageFormat::OpenClC)
}

/// Whether images of a format reach a device as SPIR-V.
pub(super) fn is_translated(device: &Device, format: ImageFormat) -> bool {
    format == ImageFormat::OpenClC
        && !device.formats.contains(&format)
        && device.formats.contains(&ImageFormat::SpirV)
}

/// What a message says of the constants that there are.
pub(super) fn constants_in_words(constants: &[SpecializationConstant]) -> String {
    if constants.is_empty() {
        return "none".to_owned();
    }
    let each = constants.iter().map(|constant| {
        let name = constant.name.as_deref().map(|name| format!(" `{name}`")).unwrap_or_default();
        format!("{}{name} ({}, {} bytes)", constant.id, constant.type_name, constant.default.len())
    });
    each.collect::<Vec<_>>().join(", ")
}
