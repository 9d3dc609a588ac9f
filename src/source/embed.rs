//! Device libraries that crates embed, collected by the linker.
//!
//! Each [`device_library!`](crate::device_library) is an element of a distributed slice: the linker places
//! all of them side by side. Nothing runs before `main`, and nothing is read before a program needs a
//! library.

use std::borrow::Cow;
use std::str::Split;

pub use linkme;

use super::library::{DeviceLibrary, Embedding, LibrarySource};
use super::module::Module;
use crate::cache::store::MAGIC as END_OF_OBJECT;

use crate::device::ModuleFormat;
use crate::error::Result;

/// All embedded libraries of the program or shared library that this copy of Kiln is part of, in no particular
/// order.
#[linkme::distributed_slice]
pub static EMBEDDED: [Embedded];

/// A device library as a crate embeds it: made by [`device_library!`](crate::device_library) only.
#[derive(Debug)]
pub struct Embedded {
    pub(super) code: Code,
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    pub(super) file: &'static str,
    pub(super) declared_in: &'static str,
    pub(super) line: u32,
}

/// Embedded device code.
#[derive(Clone, Copy, Debug)]
pub enum Code {
    /// SPIR-V in either byte order.
    SpirV(&'static [u8]),
    /// The file of an [`Object`](crate::libraries::Object), which states its device and its symbols.
    Object(&'static [u8]),
    /// OpenCL C with its stated names.
    OpenClC {
        /// Source text.
        text: &'static str,
        /// Stated exports, each with a NUL character behind it.
        exports: &'static str,
        /// Stated imports, in the same form.
        imports: &'static str,
    },
}

/// Bytes at an address that is a multiple of 4, as words of SPIR-V need.
#[derive(Debug)]
#[repr(C, align(4))]
pub struct Aligned<T: ?Sized>(pub T);

impl Code {
    /// Creates SPIR-V, and checks its header at compile time; or native code from the file of an object.
    ///
    /// # Panics
    ///
    /// If the bytes neither begin like SPIR-V nor end like the file of an object. In a constant, that is an
    /// error of the compiler.
    #[must_use]
    pub const fn binary(code: &'static Aligned<[u8]>) -> Self {
        let bytes = &code.0;
        if matches!(bytes.last_chunk(), Some(&END_OF_OBJECT)) {
            return Self::Object(bytes);
        }
        let Some(&[a, b, c, d]) = bytes.first_chunk() else {
            panic!("the file of the device library is too short to be SPIR-V: give the whole file");
        };
        let is_spirv = matches!(u32::from_le_bytes([a, b, c, d]), MAGIC | SWAPPED_MAGIC);
        assert!(
            is_spirv,
            "the file of the device library is not SPIR-V, which begins with 0x07230203: give a \
             `.spv` file, or state the exports of OpenCL C with `exporting: [..]`"
        );
        assert!(
            bytes.len() >= HEADER_BYTES && bytes.len().is_multiple_of(4),
            "the file of the device library is not whole words of SPIR-V after a header: it was \
             truncated or changed in transfer"
        );
        Self::SpirV(bytes)
    }

    /// Creates OpenCL C, and checks at compile time that it has text and exports.
    ///
    /// # Panics
    ///
    /// If the text is blank, or if there are no exports.
    #[must_use]
    pub const fn opencl_c(
        text: &'static str,
        exports: &'static str,
        imports: &'static str,
    ) -> Self {
        assert!(!exports.is_empty(), "the device library exports nothing: name its functions");
        let is_blank = text.as_bytes().trim_ascii().is_empty();
        assert!(!is_blank, "the file of the device library is empty");
        Self::OpenClC { text, exports, imports }
    }

    /// Returns the code, and the stated exports and imports.
    pub(super) fn stated(&self) -> (&'static [u8], &'static str, &'static str) {
        match *self {
            Self::SpirV(code) | Self::Object(code) => (code, "", ""),
            Self::OpenClC { text, exports, imports } => (text.as_bytes(), exports, imports),
        }
    }
}

const MAGIC: u32 = rspirv::spirv::MAGIC_NUMBER;
const SWAPPED_MAGIC: u32 = MAGIC.swap_bytes();
const HEADER_BYTES: usize = 20;

impl Embedded {
    /// Creates the element of a library.
    #[must_use]
    pub const fn new(
        code: Code,
        [package, version, file, declared_in]: [&'static str; 4],
        line: u32,
    ) -> Self {
        Self { code, package, version, file, declared_in, line }
    }

    pub(super) fn format(&self) -> ModuleFormat {
        match self.code {
            Code::SpirV(_) => ModuleFormat::SpirV,
            Code::Object(_) => ModuleFormat::Native,
            Code::OpenClC { .. } => ModuleFormat::OpenClC,
        }
    }

    pub(super) fn embedding(&self) -> Embedding {
        Embedding {
            package: self.package.to_owned(),
            version: self.version.to_owned(),
            file: self.file.to_owned(),
            declared_in: self.declared_in.to_owned(),
            line: self.line,
        }
    }

    /// Makes the module, labelled by its file and package.
    pub(super) fn module(&self) -> Result<Module> {
        let module = match self.code {
            Code::SpirV(bytes) => Module::spirv(bytes),
            Code::Object(bytes) => Module::native(bytes),
            Code::OpenClC { text, exports, imports } => {
                Ok(Module::opencl_c(text).exporting(names(exports)).importing(names(imports)))
            }
        };
        let place = || format!("the embedded device library {}", self.embedding());
        let module = module.map_err(|error| error.within(place()))?;
        Ok(module.with_label(format!("{} of {} {}", self.file, self.package, self.version)))
    }

    /// Returns the names that the library probably exports, and perhaps more. Quick: the module is made only
    /// for native code, and for SPIR-V that is unusual.
    fn probable_exports(&'static self) -> Vec<Cow<'static, str>> {
        match self.code {
            Code::OpenClC { exports, .. } => names(exports).map(Cow::Borrowed).collect(),
            Code::SpirV(bytes) => match kiln_spirv::exported_names(bytes) {
                Some(names) => names.into_iter().map(Cow::Borrowed).collect(),
                None => self.exports(),
            },
            Code::Object(_) => self.exports(),
        }
    }

    /// Returns the names that the library exports; none if it is not valid.
    fn exports(&self) -> Vec<Cow<'static, str>> {
        let module = self.module();
        let exports = module.iter().flat_map(Module::exports);
        exports.map(|name| Cow::Owned(name.to_owned())).collect()
    }
}

/// Splits names, each of which has a NUL character behind it.
pub(super) fn names(joined: &str) -> Split<'_, char> {
    let mut names = joined.split('\0');
    // The part after the last NUL character is empty.
    names.next_back();
    names
}

/// Returns all embedded libraries, each with the names that it probably exports. The order depends on the
/// packages and files only, not on the linker.
pub(crate) fn embedded() -> Vec<(DeviceLibrary, Vec<Cow<'static, str>>)> {
    let mut sorted: Vec<_> = EMBEDDED.iter().collect();
    sorted.sort_by_key(|it| {
        // A macro can embed several libraries in one line.
        (it.package, it.version, it.declared_in, it.line, it.file, it.code.stated())
    });
    let library = |it: &'static Embedded| {
        let source = LibrarySource::Embedded(it.embedding());
        let library = DeviceLibrary::lazy(source, it.format(), || it.module());
        (library, it.probable_exports())
    };
    sorted.into_iter().map(library).collect()
}

/// Embeds a device library in the crate that contains the macro, for all programs with that crate.
///
/// ```ignore
/// kiln::device_library!("tone.spv");
/// kiln::device_library!("curve.cl", exporting: ["curve"], importing: ["tone"]);
/// kiln::device_library!(opencl_c: "float halve(float x) { return x / 2; }", exporting: ["halve"]);
/// ```
///
/// The path is relative to the source file with the macro, as for [`include_bytes!`]. A file that a build
/// script makes is named by `concat!(env!("OUT_DIR"), "/tone.spv")`. SPIR-V declares its exports and imports
/// itself, as does the file of an [`Object`](crate::libraries::Object); those of OpenCL C are stated as for
/// [`Module::exporting`](crate::Module::exporting) and [`Module::importing`](crate::Module::importing).
///
/// Every [`Runtime`](crate::Runtime) of the process finds the library when a program imports from it, unless
/// [`RuntimeBuilder::embedded_libraries`](crate::RuntimeBuilder::embedded_libraries) is off. Libraries that
/// the application registers or preloads come first. The order in which crates are linked makes no
/// difference. Nothing runs before `main`, and building a runtime reads no library: the first program with an
/// import that no registered library exports makes Kiln read the names of all embedded libraries, once in the
/// process.
///
/// # Which crates are linked
///
/// Rust links a crate only if something refers to it. An application that uses any item of the crate need do
/// nothing else. If the crate has nothing but the macro, or if the application uses nothing else of it, the
/// application states it once:
///
/// ```ignore
/// use tone as _;
/// ```
///
/// A crate that another linked crate refers to is linked as well. A `cdylib` has embedded libraries of its
/// own, which its host does not see: see [`export_device_libraries!`](crate::export_device_libraries). The
/// crate that contains the macro depends on the same version of Kiln as the application; embedded libraries
/// of another version are not found.
///
/// # Errors
///
/// A file that is missing, is neither an object nor SPIR-V or whole words of it, or for OpenCL C is not UTF-8,
/// blank or without exports, is an error of the compiler. SPIR-V or an object that is damaged further on is an
/// error of the builds that need the library. The error names the file, the package and the line.
///
/// # Examples
///
/// ```no_run,standalone_crate
/// kiln::device_library!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.spv"));
///
/// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
/// let application = kiln::Module::open("application.spv").await?; // imports from the library
/// let program = rt.build(&application).await?; // without a call of `register`
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! device_library {
    (
        opencl_c: $text:expr, exporting: [$($export:expr),* $(,)?]
        $(, importing: [$($import:expr),* $(,)?])? $(,)?
    ) => {
        $crate::device_library!(@embed ::core::file!(), $crate::embedded::Code::opencl_c(
            $text,
            ::core::concat!($($export, "\0"),*),
            ::core::concat!($($($import, "\0"),*)?),
        ));
    };
    ($file:expr $(,)?) => {
        $crate::device_library!(@embed $file, {
            const CODE: &$crate::embedded::Aligned<[u8]> =
                &$crate::embedded::Aligned(*::core::include_bytes!($file));
            $crate::embedded::Code::binary(CODE)
        });
    };
    (
        $file:expr, exporting: [$($export:expr),* $(,)?]
        $(, importing: [$($import:expr),* $(,)?])? $(,)?
    ) => {
        $crate::device_library!(@embed $file, $crate::embedded::Code::opencl_c(
            ::core::include_str!($file),
            ::core::concat!($($export, "\0"),*),
            ::core::concat!($($($import, "\0"),*)?),
        ));
    };
    (@embed $file:expr, $code:expr) => {
        const _: () = {
            #[$crate::embedded::linkme::distributed_slice($crate::embedded::EMBEDDED)]
            #[linkme(crate = $crate::embedded::linkme)]
            static LIBRARY: $crate::embedded::Embedded = $crate::embedded::Embedded::new(
                $code,
                [::core::env!("CARGO_PKG_NAME"), ::core::env!("CARGO_PKG_VERSION"), $file, ::core::file!()],
                ::core::line!(),
            );
        };
    };
}
