//! What to build: images for a device, with their specialization constants and options, checked as
//! far as that needs no driver.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::capabilities;
use super::input::{Constants, Unit, constants_in_words, is_emitted, is_translated};
use super::key::{ConstantBytes, DeviceKey, NodeKind, ProgramFields, UnitFields};
use super::link::{Libraries, describe, undefined_functions};
use super::program::Teller;
use crate::backend::Source;
use crate::compiler::opencl_c;
use crate::compiler::options::canonical_options;
use crate::compiler::signature::Parameter;
use crate::compiler::spirv::{self, Module};
use crate::device::{Device, ImageFormat};
use crate::digest::{BuildKey, Digest};
use crate::error::{Error, ErrorKind, Result};
use crate::source::image::Image;
use crate::source::translate::{Translation, options_for_device};

/// What was asked for, before the image's imports are resolved.
#[derive(Clone)]
pub(crate) struct Wanted {
    unit: Unit,
    /// Whether SPIR-V is handed to the driver as OpenCL C, even where the driver takes SPIR-V.
    as_text: bool,
    /// The device's position in the graph.
    device: usize,
    /// Constants of libraries, by their images.
    of_libraries: Vec<(Image, u32, GivenConstant)>,
}

/// The inputs of one build.
#[derive(Clone)]
pub(crate) struct Recipe {
    /// Sorted by the images' digests, each once: the order of registration makes no difference.
    units: SmallVec<[Unit; 1]>,
    device: usize,
    way: Way,
    /// Modules of SPIR-V that the device gets as OpenCL C.
    is_emitted: bool,
    /// How it is translated, if it is.
    translation: Option<Arc<Translation>>,
}

/// An image of a program that was linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) image: Digest,
    /// The key of its object: of the image with its constants, and the options that it is compiled with.
    pub(crate) object: BuildKey,
}

/// How the device comes from the images to what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The image is built at once.
    Build,
    /// The image is compiled to an object.
    Compile,
    /// The objects of the images, nodes of their own, are linked.
    Link,
    /// The same by a driver whose kernels then call what one module would have inlined.
    LinkByCalls,
    /// The images, modules of SPIR-V, are made one, and that is built.
    Merge,
    /// The image, OpenCL C, is made SPIR-V.
    Translate,
    /// The images, OpenCL C for a device that takes SPIR-V alone, are made SPIR-V by nodes of their own
    /// first. What they become is then [built](Self::Build), [merged](Self::Merge) or
    /// [linked](Self::LinkByCalls).
    Front,
}

impl Way {
    /// Whether the driver links objects.
    pub(crate) fn is_link(self) -> bool {
        matches!(self, Self::Link | Self::LinkByCalls)
    }
}

impl Wanted {
    pub(crate) fn new(image: Image, device: usize) -> Self {
        Self { unit: Unit::new(image), as_text: false, device, of_libraries: Vec::new() }
    }

    pub(crate) fn set_device(&mut self, device: usize) {
        self.device = device;
    }

    /// Lets SPIR-V reach the device as OpenCL C even if it takes both.
    pub(crate) fn prefer_text(&mut self) {
        self.as_text = true;
    }

    pub(crate) fn set_constant(&mut self, id: u32, value: GivenConstant) {
        self.unit.set_constant(id, value);
    }

    pub(crate) fn set_constant_of(&mut self, library: &Image, id: u32, value: GivenConstant) {
        self.of_libraries.push((library.clone(), id, value));
    }

    pub(crate) fn set_options(&mut self, options: &str) -> Result<()> {
        if let Some(at) = options.find('\0') {
            return Err(Error::invalid(format!(
                "the build options hold a NUL character at byte {at}; drivers take text without any"
            )));
        }
        self.unit.options = canonical_options(options).into_owned();
        Ok(())
    }

    pub(crate) fn image(&self) -> &Image {
        &self.unit.image
    }

    pub(crate) fn device(&self) -> usize {
        self.device
    }

    /// Finds out how the device comes from the images to a program. `libraries` gives those that an
    /// image needs, and is only called for one that shares symbols. With `link_objects` the driver
    /// links wherever it can.
    pub(crate) fn resolve(
        self,
        device: &Device,
        link_objects: bool,
        libraries: impl FnOnce(&Image) -> Result<Vec<Image>>,
    ) -> Result<Recipe> {
        let Self { unit, as_text, device: position, of_libraries } = self;
        let image = &unit.image;
        let others = if unit.shares() { libraries(image)? } else { Vec::new() };
        let way = match unit.shares() {
            _ if is_translated(device, image.format()) => Way::Front,
            true => way(device, link_objects, image, &others)?,
            false => Way::Build,
        };
        let mut units: SmallVec<[Unit; 1]> = smallvec![unit];
        units.extend(others.into_iter().map(Unit::new));
        set_constants(&mut units, of_libraries)?;
        units.iter().try_for_each(|unit| unit.check(device))?;
        let is_emitted = is_emitted(device, units[0].image.format(), as_text);
        units.sort_unstable_by_key(|unit| unit.image.digest());
        Ok(Recipe { units, device: position, way, is_emitted, translation: None })
    }
}

/// How a device comes to a program of an image that shares symbols, and of those that it needs.
fn way(device: &Device, link_objects: bool, image: &Image, others: &[Image]) -> Result<Way> {
    let format = image.format();
    let imports_its_own = |image: &Image| {
        let own: HashSet<_> = image.exports().collect();
        image.imports().any(|name| own.contains(name))
    };
    let can_be_called = || [image].into_iter().chain(others).all(Image::can_be_called);
    Ok(match format {
        // Drivers take a module that imports what it exports for one that defines it twice.
        ImageFormat::SpirV if imports_its_own(image) || others.iter().any(imports_its_own) => {
            Way::Merge
        }
        _ if device.links.contains(&format) && !device.links_by_calls => Way::Link,
        _ if device.links.contains(&format) && link_objects && can_be_called() => Way::LinkByCalls,
        _ if image.imports().len() == 0 && others.is_empty() => Way::Build,
        ImageFormat::SpirV => Way::Merge,
        _ => {
            return Err(Error::unsupported(format!(
                "{} imports `{}`, and {device} does not link {format}",
                describe(image),
                image.imports().next().unwrap_or_default()
            )));
        }
    })
}

/// Whose constant an id is. The first unit is the image that was asked for: an id that it has is its
/// own.
fn owner(units: &[Unit], id: u32) -> Result<usize> {
    let has = |at: &usize| units[*at].constant(id).is_some();
    // If the only image does not have it either, its check says so.
    if units.len() == 1 || has(&0) {
        return Ok(0);
    }
    let owners: Vec<_> = (1..units.len()).filter(has).collect();
    let in_words = |units: &mut dyn Iterator<Item = &Unit>| {
        let constants = |unit: &Unit| {
            let constants = constants_in_words(unit.image.specialization_constants());
            format!("{} has {constants}", describe(&unit.image))
        };
        units.map(constants).collect::<Vec<_>>().join("; ")
    };
    match owners[..] {
        [owner] => Ok(owner),
        [] => Err(Error::invalid(format!(
            "none of the linked images has a specialization constant with id {id}; {}",
            in_words(&mut units.iter())
        ))),
        _ => Err(Error::invalid(format!(
            "several of the linked images have a specialization constant with id {id}; set it with \
             `specialize_in`, which names the image: {}",
            in_words(&mut owners.iter().map(|at| &units[*at]))
        ))),
    }
}

/// Gives constants to the units that have them. The first unit is the image that was asked for.
fn set_constants(units: &mut [Unit], of_libraries: Vec<(Image, u32, GivenConstant)>) -> Result<()> {
    let asked = std::mem::take(&mut units[0].constants);
    let types = std::mem::take(&mut units[0].constant_types);
    for ((id, bytes), type_name) in asked.into_iter().zip(types) {
        let owner = owner(units, id)?;
        units[owner].set_constant(id, GivenConstant { bytes, type_name });
    }
    for (image, id, value) in of_libraries {
        match units.iter_mut().find(|unit| unit.image.digest() == image.digest()) {
            Some(unit) => unit.set_constant(id, value),
            None => {
                let linked: Vec<_> = units.iter().map(|unit| describe(&unit.image)).collect();
                return Err(Error::invalid(format!(
                    "specialization constant {id} is set in {}, which is not part of the program; \
                     its images are: {}",
                    describe(&image),
                    linked.join("; ")
                )));
            }
        }
    }
    Ok(())
}

impl Recipe {
    /// Whether its key takes [reading files](Self::read_files).
    pub(crate) fn includes_files(&self) -> bool {
        self.units.iter().any(Unit::includes_files)
    }

    /// Makes its key that of the files that its texts include, as they are now. Blocks, as
    /// [`Unit::read_files`].
    pub(crate) fn read_files(&mut self, limit: Duration) -> Result<()> {
        for unit in &mut self.units {
            unit.included = unit.read_files(limit)?;
        }
        Ok(())
    }

    /// As [`Unit::check_files`].
    pub(crate) fn check_files(&self, limit: Duration) -> Result<()> {
        self.units.iter().try_for_each(|unit| unit.check_files(limit))
    }

    /// For the SPIR-V of OpenCL C. The text includes no files any more.
    pub(crate) fn of_translation(unit: Unit, device: usize, translation: Translation) -> Self {
        let translation = Some(Arc::new(translation));
        Self { units: smallvec![unit], device, way: Way::Translate, is_emitted: false, translation }
    }

    /// How its image is translated, if it is.
    pub(crate) fn translation(&self) -> Option<&Translation> {
        self.translation.as_deref()
    }

    /// Whether a driver's compiler must not be given it in this process. Translating OpenCL C takes
    /// no driver.
    pub(crate) fn is_untrusted(&self) -> bool {
        self.way != Way::Translate && self.has_untrusted()
    }

    /// Whether one of its images is not trusted.
    pub(crate) fn has_untrusted(&self) -> bool {
        self.units.iter().any(|unit| unit.image.is_untrusted())
    }

    /// Its image; of an object or a translation the only one.
    pub(crate) fn image(&self) -> &Image {
        &self.units[0].image
    }

    pub(crate) fn way(&self) -> Way {
        self.way
    }

    pub(crate) fn device(&self) -> usize {
        self.device
    }

    pub(crate) fn format(&self) -> ImageFormat {
        // A linker takes images of one format.
        self.units[0].image.format()
    }

    /// Adds to a compiler's refusal what it may have refused.
    pub(crate) fn explain(&self, error: Error, libraries: &Libraries, device: &Device) -> Error {
        let error = self.explain_refusal(error, libraries, device);
        let labels: Vec<_> = self
            .units
            .iter()
            .filter_map(|unit| unit.image.get_label())
            .filter(|label| !error.message().contains(label))
            .map(|label| format!("`{label}`"))
            .collect();
        if labels.is_empty() { error } else { error.within(labels.join(", ")) }
    }

    /// The label of the image that a kernel is of, as far as that is known.
    pub(crate) fn label_of(&self, kernel: &str) -> Option<&str> {
        let has_it = |unit: &&Unit| unit.image.kernels().iter().any(|known| known == kernel);
        match &self.units[..] {
            [unit] => unit.image.get_label(),
            units => units.iter().find(has_it)?.image.get_label(),
        }
    }

    fn explain_refusal(&self, error: Error, libraries: &Libraries, device: &Device) -> Error {
        let refused = matches!(error.kind(), ErrorKind::BuildFailed | ErrorKind::Unsupported);
        let error = if error.kind() == ErrorKind::BuildFailed && self.is_emitted {
            error.within(
                "the SPIR-V was translated to OpenCL C for the device, and the log speaks of that text",
            )
        } else {
            error
        };
        if refused && self.units.iter().any(|unit| unit.image.has_function_pointers()) {
            return error.within(
                "the program has pointers to functions (SPV_INTEL_function_pointers), which few \
                 drivers take",
            );
        }
        if let Some(log) = error.build_log()
            && self.format() == ImageFormat::OpenClC
            && let Some(lacking) = capabilities::lacking_by_log(log, &self.describe(), device)
        {
            return error.within(lacking);
        }
        match self.not_stated(&error, libraries) {
            Some(names) => error.within(format_args!(
                "the log names {names}, which a registered library exports; `Image::importing` states \
                 what a text needs of others"
            )),
            None => match self.undefined(&error) {
                Some((names, first)) => error.within(format_args!(
                    "{names} is not defined, as the log says; a function of another module is declared in \
                     the text, stated by `Image::importing([\"{first}\"])`, and exported by a library that \
                     `Runtime::register` was given"
                )),
                None => error,
            },
        }
    }

    /// The functions that a text lacks, and the first of them, if a compiler's log names any.
    fn undefined(&self, error: &Error) -> Option<(String, String)> {
        let log = error.build_log().filter(|_| self.format() == ImageFormat::OpenClC)?;
        let texts =
            self.units.iter().map(|unit| std::str::from_utf8(unit.image.code()).unwrap_or(""));
        let texts: Vec<_> = texts.collect();
        let names = undefined_functions(log, &texts);
        let first = (*names.first()?).to_owned();
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        Some((names.join(", "), first))
    }

    /// What its texts seem to need of libraries without saying so.
    fn not_stated(&self, error: &Error, libraries: &Libraries) -> Option<String> {
        let log = error.build_log().filter(|_| self.format() == ImageFormat::OpenClC)?;
        let images: Vec<_> = self.units.iter().map(|unit| &unit.image).collect();
        let names = libraries.not_stated(&images, log);
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Its image as messages name it; that of an object is the only one.
    pub(crate) fn image_in_words(&self) -> String {
        describe(&self.units[0].image)
    }

    /// The images, with the options of each.
    pub(crate) fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The same with other images in the place of its own, which are made one. They are trusted as
    /// those that they were made from.
    pub(crate) fn with_images(&self, images: impl IntoIterator<Item = Image>) -> Self {
        let units = self.units.iter().zip(images).map(|(unit, image)| {
            let (is_untrusted, is_time_dependent) =
                (unit.image.is_untrusted(), unit.is_time_dependent());
            let image = image.labeled_like(&unit.image);
            Unit { image, included: None, is_time_dependent, ..unit.clone() }
                .untrusted_if(is_untrusted)
        });
        let way = if self.units.len() == 1 { Way::Build } else { Way::Merge };
        Self {
            units: units.collect(),
            device: self.device,
            way,
            is_emitted: false,
            translation: None,
        }
    }

    /// The options that its compile is given: those of the image that was asked for.
    pub(crate) fn options(&self) -> &str {
        let options = self.units.iter().map(|unit| &*unit.options);
        options.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
    }

    /// The images, by the beginnings of their digests.
    pub(crate) fn images_in_short(&self) -> String {
        let each = self.units.iter().map(|Unit { image, .. }| {
            let label = image.get_label().map(|label| format!(" `{label}`")).unwrap_or_default();
            format!("{:.8}{label}", image.digest())
        });
        each.collect::<Vec<_>>().join(" ")
    }

    /// Bytes of code, of all images.
    pub(crate) fn code_len(&self) -> usize {
        self.units.iter().map(|unit| unit.image.code().len()).sum()
    }

    pub(crate) fn kind(&self) -> NodeKind {
        match self.way {
            Way::Compile => NodeKind::Object,
            Way::Translate => NodeKind::SpirV,
            Way::Build | Way::Link | Way::LinkByCalls | Way::Merge | Way::Front => {
                NodeKind::Program
            }
        }
    }

    /// The recipes of the objects that its images are compiled to, for the linker.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Self> {
        self.units.iter().map(|unit| Self {
            units: smallvec![unit.clone()],
            device: self.device,
            way: Way::Compile,
            is_emitted: self.is_emitted,
            translation: None,
        })
    }

    /// What it is linked from; nothing if it is not.
    pub(crate) fn parts(&self, device: &DeviceKey) -> Box<[Part]> {
        self.parts_by(self.way, device)
    }

    /// The same of texts, whose SPIR-V is built in this way.
    pub(crate) fn parts_by(&self, way: Way, device: &DeviceKey) -> Box<[Part]> {
        match self.way {
            Way::Link | Way::LinkByCalls | Way::Merge => {}
            Way::Front if self.units.iter().any(Unit::shares) => {}
            _ => return Box::default(),
        }
        let part = |mut object: Self| {
            let unit = &mut object.units[0];
            if !way.is_link() {
                // One module is made of them, and compiled with the options of one.
                unit.options = self.options().to_owned();
            }
            Part { image: unit.image.digest(), object: object.key(device) }
        };
        self.objects().map(part).collect()
    }

    /// Whether its program is worth storing: a native image is stored by the application, and a program
    /// that tells the time of its build is of no use later.
    pub(crate) fn is_stored(&self) -> bool {
        self.format() != ImageFormat::Native && !self.is_time_dependent()
    }

    /// Whether its programs differ from build to build, so that they must not be kept.
    pub(crate) fn is_time_dependent(&self) -> bool {
        self.units.iter().any(Unit::is_time_dependent)
    }

    /// What is built in the place of texts once they are SPIR-V: images in the order of the texts'. Its
    /// key covers all that went into the translations.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for an option that is not known, by name.
    pub(crate) fn translated(
        &self,
        images: Vec<Image>,
        device: &Device,
        link_objects: bool,
    ) -> Result<Self> {
        let mut recipe = self.with_images(images);
        if recipe.units.iter().any(Unit::shares) {
            let others: Vec<_> = recipe.units[1..].iter().map(|unit| unit.image.clone()).collect();
            recipe.way = way(device, link_objects, recipe.image(), &others)?;
        }
        for unit in &mut recipe.units {
            let options = options_for_device(&unit.options)?;
            unit.options = canonical_options(&options).into_owned();
        }
        recipe.units.sort_unstable_by_key(|unit| unit.image.digest());
        Ok(recipe)
    }

    pub(crate) fn key(&self, device: &DeviceKey) -> BuildKey {
        self.with_fields(device, |fields| fields.key())
    }

    /// The key's fields by name and value.
    pub(crate) fn key_fields(&self, device: &DeviceKey) -> Vec<(String, String)> {
        self.with_fields(device, |fields| fields.fields())
    }

    fn with_fields<T>(&self, device: &DeviceKey, read: impl FnOnce(&ProgramFields<'_>) -> T) -> T {
        let units: SmallVec<[UnitFields<'_>; 1]> = self.units.iter().map(Unit::fields).collect();
        let emitter = self.is_emitted.then_some(opencl_c::VERSION);
        let front_end = self.translation().map(Translation::fields).unwrap_or_default();
        read(&ProgramFields {
            kind: self.kind(),
            emitter,
            merger: (self.way == Way::Merge).then_some(spirv::MERGER),
            is_linked_by_calls: self.way == Way::LinkByCalls,
            units: &units,
            front_end: &front_end,
            device,
        })
    }

    /// What the images tell of a kernel's parameters.
    pub(crate) fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.units.iter().find_map(|unit| unit.image.parameters(kernel))
    }

    /// Who knows best what the parameters are. The driver's names and types of emitted ones are not
    /// those of the source.
    pub(crate) fn teller(&self) -> Teller {
        if self.is_emitted { Teller::Image } else { Teller::Driver }
    }

    /// Calls `build` with what the device's compiler gets: the one image, or the one module that is
    /// made of several.
    pub(crate) fn with_source<T>(
        &self,
        device: &Device,
        build: impl FnOnce(&Source<'_>) -> Result<T>,
    ) -> Result<T> {
        let (code, constants) = match &self.units[..] {
            [unit] if self.way != Way::Merge => (unit.code(), unit.constants()),
            units => {
                let (merged, constants) = merge(units)?;
                (merged.into(), constants)
            }
        };
        let options = self.options();
        if self.is_emitted {
            let text = opencl_c::specialized(&Module::parse(&*code)?, &constants)?;
            capabilities::check_translated(&code, text.demands, &self.describe(), device)?;
            let text = text.code;
            tracing::trace!(%text, "translated to OpenCL C");
            return build(&Source {
                format: ImageFormat::OpenClC,
                code: text.as_bytes(),
                options: &opencl_c::options(options),
                constants: &[],
            });
        }
        build(&Source { format: self.format(), code: &code, options, constants: &constants })
    }

    /// The images, as messages name them.
    pub(crate) fn describe(&self) -> String {
        let names: Vec<_> = self.units.iter().map(|unit| describe(&unit.image)).collect();
        names.join(" with ")
    }

    /// Calls `link` with what the device's compiler gets of each image that the device links.
    pub(crate) fn with_sources<T>(&self, link: impl FnOnce(&[Source<'_>]) -> T) -> T {
        let units: Vec<_> =
            self.units.iter().map(|unit| (unit, unit.code(), unit.constants())).collect();
        let sources: Vec<_> = units
            .iter()
            .map(|(Unit { image, options, .. }, code, constants)| Source {
                format: image.format(),
                code,
                options,
                constants,
            })
            .collect();
        link(&sources)
    }
}

/// Links modules of SPIR-V to one, with the constants under their ids in that.
fn merge(units: &[Unit]) -> Result<(Vec<u8>, Constants)> {
    let names: Vec<_> = units.iter().map(|unit| describe(&unit.image)).collect();
    let mut modules = Vec::with_capacity(units.len());
    for (unit, name) in units.iter().zip(&names) {
        let module = Module::parse(unit.image.code()).map_err(|error| error.within(name))?;
        modules.push(module);
    }
    let inputs: Vec<_> =
        names.iter().zip(&modules).map(|(name, module)| spirv::Input { name, module }).collect();
    let spirv::Merged { module, spec_ids } = spirv::merge(&inputs, spirv::Options::default())?;
    let (code, reflection) = spirv::read(module.assemble())?;
    let mut constants = Vec::new();
    for (unit, ids) in units.iter().zip(&spec_ids) {
        for (id, value) in &unit.constants {
            let became = ids.iter().find(|(before, _)| before == id).map(|(_, after)| *after);
            // One that no kernel reaches is not there any more.
            let there = &reflection.specialization_constants;
            let found = there.iter().find(|constant| Some(constant.id) == became);
            constants.extend(found.map(|constant| (constant.id, value.to_vec())));
        }
    }
    constants.sort_unstable_by_key(|(id, _)| *id);
    Ok((code, constants))
}

/// A value of a specialization constant.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct GivenConstant {
    pub(super) bytes: ConstantBytes,
    /// The Rust type that it was given in.
    pub(super) type_name: &'static str,
}

mod sealed {
    use super::GivenConstant;

    pub trait Sealed: Copy {
        /// The value as a SPIR-V module stores it, little-endian.
        fn to_constant(self) -> GivenConstant;
    }
}

pub(crate) use sealed::Sealed;

/// A value for a specialization constant: `bool`, an integer of 8 to 64 bits, `f32` or `f64`.
///
/// It has to be of the constant's type, where signed integers stand for unsigned ones of their size
/// and the other way round. A `half`, which Rust lacks, is given as the bits of a `u16`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a value of a specialization constant",
    label = "give a `bool`, an integer of 8 to 64 bits, `f32` or `f64`, such as `16u32`"
)]
pub trait SpecializationValue: Sealed {}

macro_rules! specialization_values {
    ($($type:ty)*) => {
        $(
            impl Sealed for $type {
                fn to_constant(self) -> GivenConstant {
                    let bytes = ConstantBytes::from_slice(&self.to_le_bytes());
                    GivenConstant { bytes, type_name: stringify!($type) }
                }
            }

            impl SpecializationValue for $type {}
        )*
    };
}

specialization_values!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

impl Sealed for bool {
    fn to_constant(self) -> GivenConstant {
        GivenConstant { type_name: "bool", ..u8::from(self).to_constant() }
    }
}

impl SpecializationValue for bool {}
