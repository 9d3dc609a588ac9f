//! What to build: an image for a device, with specialization constants and options, checked as far
//! as that needs no driver.

use crate::backend::Source;
use crate::build::key::{ConstantBytes, DeviceKey, ProgramFields, canonical_options};
use crate::device::{Device, ImageFormat};
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::image::{Image, SpecializationConstant};

/// The inputs of one build.
#[derive(Clone)]
pub(crate) struct Recipe {
    image: Image,
    /// The device's position in the graph.
    device: usize,
    /// Sorted by id, each id once.
    constants: Vec<(u32, ConstantBytes)>,
    options: String,
}

impl Recipe {
    pub(crate) fn new(image: Image, device: usize) -> Self {
        Self { image, device, constants: Vec::new(), options: String::new() }
    }

    pub(crate) fn set_device(&mut self, device: usize) {
        self.device = device;
    }

    /// The last value given for an id counts.
    pub(crate) fn set_constant(&mut self, id: u32, value: ConstantBytes) {
        match self.constants.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => self.constants[at].1 = value,
            Err(at) => self.constants.insert(at, (id, value)),
        }
    }

    pub(crate) fn set_options(&mut self, options: &str) -> Result<()> {
        if let Some(at) = options.find('\0') {
            return Err(Error::invalid(format!(
                "the build options hold a NUL character at byte {at}; drivers take text without any"
            )));
        }
        self.options = canonical_options(options).into_owned();
        Ok(())
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// Whether the program is worth storing: native images are what would be stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.image.format() != ImageFormat::Native
    }

    pub(crate) fn device(&self) -> usize {
        self.device
    }

    pub(crate) fn key(&self, device: &DeviceKey) -> BuildKey {
        self.with_fields(device, |fields| fields.key())
    }

    /// The key's fields by name and value.
    pub(crate) fn key_fields(&self, device: &DeviceKey) -> Vec<(String, String)> {
        self.with_fields(device, |fields| fields.fields())
    }

    fn with_fields<T>(&self, device: &DeviceKey, read: impl FnOnce(&ProgramFields<'_>) -> T) -> T {
        read(&ProgramFields {
            images: &[self.image.digest()],
            constants: &self.constants,
            options: &self.options,
            device,
        })
    }

    /// Calls `build` with the recipe as a backend takes it.
    pub(crate) fn with_source<T>(&self, build: impl FnOnce(&Source<'_>) -> T) -> T {
        let constants: Vec<_> =
            self.constants.iter().map(|(id, value)| (*id, value.to_vec())).collect();
        build(&Source {
            format: self.image.format(),
            code: self.image.code(),
            options: &self.options,
            constants: &constants,
        })
    }

    /// Whether it can be built at all, as far as the image and the device's description tell.
    pub(crate) fn check(&self, device: &Device) -> Result<()> {
        let format = self.image.format();
        if !device.formats.contains(&format) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{device} does not take the format of this image, {format}; it takes: {}",
                    device.formats_in_words()
                ),
            ));
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
        self.constants.iter().try_for_each(|(id, value)| self.check_constant(*id, value))
    }

    fn check_constant(&self, id: u32, value: &[u8]) -> Result<()> {
        let there = self.image.specialization_constants();
        let Some(constant) = there.iter().find(|constant| constant.id == id) else {
            return Err(Error::invalid(format!(
                "the image has no specialization constant with id {id}; it has {}",
                constants_in_words(there)
            )));
        };
        if constant.default.len() != value.len() {
            return Err(Error::invalid(format!(
                "the value for specialization constant {id} is {} bytes long, where its type, {}, has {}; \
                 the image has {}",
                value.len(),
                constant.type_name,
                constant.default.len(),
                constants_in_words(there)
            )));
        }
        Ok(())
    }
}

fn constants_in_words(constants: &[SpecializationConstant]) -> String {
    if constants.is_empty() {
        return "none".to_owned();
    }
    let each = constants.iter().map(|constant| {
        let name = constant.name.as_deref().map(|name| format!(" `{name}`")).unwrap_or_default();
        format!("{}{name} ({}, {} bytes)", constant.id, constant.type_name, constant.default.len())
    });
    each.collect::<Vec<_>>().join(", ")
}

mod sealed {
    use super::ConstantBytes;

    pub trait Sealed: Copy {
        /// The value as a SPIR-V module stores it, little-endian.
        fn to_constant(self) -> ConstantBytes;
    }
}

pub(crate) use sealed::Sealed;

/// A value for a specialization constant: `bool`, an integer of 8 to 64 bits, `f32` or `f64`.
///
/// Its size has to be that of the constant's type; a `bool` has one byte. The bits are taken as
/// they are, so a constant of a type that Rust lacks, such as `half`, is set by an integer of its
/// size.
pub trait SpecializationValue: Sealed {}

macro_rules! specialization_values {
    ($($type:ty)*) => {
        $(
            impl Sealed for $type {
                fn to_constant(self) -> ConstantBytes {
                    ConstantBytes::from_slice(&self.to_le_bytes())
                }
            }

            impl SpecializationValue for $type {}
        )*
    };
}

specialization_values!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

impl Sealed for bool {
    fn to_constant(self) -> ConstantBytes {
        u8::from(self).to_constant()
    }
}

impl SpecializationValue for bool {}
