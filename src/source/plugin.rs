//! Device libraries that a plug-in embeds, copied into its host.
//!
//! Host and plug-in may be built by different compilers and with different versions of Kiln, so only plain C
//! types pass between them.

use std::sync::Arc;

use super::embed::{Code, EMBEDDED, Embedded, names};
use super::library::{DeviceLibrary, Embedding, LibrarySource};
use super::module::Module;
use crate::error::{Error, ErrorKind, Result};

/// Version of the layout of [`ExportedLibraries`] and [`ExportedLibrary`].
const LAYOUT: u32 = 1;

/// Format numbers of [`ExportedLibrary`].
const SPIRV: u32 = 1;
const OPENCL_C: u32 = 2;
const OBJECT: u32 = 3;

/// Embedded device libraries of a plug-in: the result of the function that
/// [`export_device_libraries!`](crate::export_device_libraries) defines. Plain data, for
/// [`PluginLibraries::read`].
///
/// # Examples
///
/// ```no_run
/// use kiln::libraries::{ExportedLibraries, PluginLibraries};
///
/// /// # Safety
/// ///
/// /// `function` is the exported function of a plug-in that is loaded.
/// unsafe fn read(function: unsafe extern "C" fn() -> ExportedLibraries) -> kiln::Result<PluginLibraries> {
///     // SAFETY: as the caller promises.
///     let exported = unsafe { function() };
///     // SAFETY: the plug-in stays loaded during the call.
///     unsafe { PluginLibraries::read(&exported) }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExportedLibraries {
    /// Version of the layout. This field comes first in every version.
    layout: u32,
    count: usize,
    /// Returns a library by its index, which is below `count`.
    get: extern "C" fn(usize) -> ExportedLibrary,
}

/// Library of a plug-in, in static memory of the plug-in.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct ExportedLibrary {
    format: u32,
    line: u32,
    code: Bytes,
    /// Stated names of OpenCL C, each with a NUL character behind it.
    exports: Bytes,
    imports: Bytes,
    package: Bytes,
    version: Bytes,
    file: Bytes,
    declared_in: Bytes,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Bytes {
    start: *const u8,
    length: usize,
}

impl Bytes {
    const EMPTY: Self = Self { start: std::ptr::null(), length: 0 };

    const fn of(bytes: &'static [u8]) -> Self {
        Self { start: bytes.as_ptr(), length: bytes.len() }
    }

    /// Copies the bytes.
    ///
    /// # Safety
    ///
    /// The plug-in that they come from is loaded.
    unsafe fn copy(self) -> Vec<u8> {
        if self.length == 0 {
            return Vec::new();
        }
        // SAFETY: they were made from a static slice of the plug-in, which is loaded.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }.to_vec()
    }

    /// Copies text.
    ///
    /// # Safety
    ///
    /// As for [`copy`](Self::copy).
    unsafe fn copy_text(self) -> String {
        // SAFETY: as the caller promises.
        let bytes = unsafe { self.copy() };
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl ExportedLibrary {
    const NONE: Self = Self {
        format: 0,
        line: 0,
        code: Bytes::EMPTY,
        exports: Bytes::EMPTY,
        imports: Bytes::EMPTY,
        package: Bytes::EMPTY,
        version: Bytes::EMPTY,
        file: Bytes::EMPTY,
        declared_in: Bytes::EMPTY,
    };

    fn of(embedded: &'static Embedded) -> Self {
        let (code, exports, imports) = embedded.code.stated();
        let format = match embedded.code {
            Code::SpirV(_) => SPIRV,
            Code::Object(_) => OBJECT,
            Code::OpenClC { .. } => OPENCL_C,
        };
        let text = |text: &'static str| Bytes::of(text.as_bytes());
        Self {
            format,
            line: embedded.line,
            code: Bytes::of(code),
            exports: text(exports),
            imports: text(imports),
            package: text(embedded.package),
            version: text(embedded.version),
            file: text(embedded.file),
            declared_in: text(embedded.declared_in),
        }
    }

    /// Copies the library.
    ///
    /// # Safety
    ///
    /// The plug-in that it comes from is loaded.
    unsafe fn copy(&self) -> Result<DeviceLibrary> {
        let text = |bytes: Bytes| {
            // SAFETY: as the caller promises.
            unsafe { bytes.copy_text() }
        };
        let embedding = Embedding {
            package: text(self.package),
            version: text(self.version),
            file: text(self.file),
            declared_in: text(self.declared_in),
            line: self.line,
        };
        // SAFETY: as the caller promises.
        let code = unsafe { self.code.copy() };
        let (exports, imports) = (text(self.exports), text(self.imports));
        let module = match self.format {
            SPIRV => Module::spirv(code),
            OBJECT => Module::native(code),
            OPENCL_C => {
                let module = Module::opencl_c(String::from_utf8_lossy(&code));
                Ok(module.exporting(names(&exports)).importing(names(&imports)))
            }
            format => Err(Error::new(
                ErrorKind::InvalidModule,
                format!("the format of the code has the number {format}, which is not known"),
            )),
        };
        let module =
            module.map_err(|error| error.within(format!("the device library {embedding}")))?;
        let Embedding { file, package, version, .. } = &embedding;
        let module = module.with_label(format!("{file} of {package} {version}"));
        Ok(DeviceLibrary::new(module, LibrarySource::Attached(embedding)))
    }
}

extern "C" fn library(index: usize) -> ExportedLibrary {
    EMBEDDED.get(index).map_or(ExportedLibrary::NONE, ExportedLibrary::of)
}

/// Returns the libraries that are embedded in this program or shared library.
#[must_use]
pub fn exported() -> ExportedLibraries {
    ExportedLibraries { layout: LAYOUT, count: EMBEDDED.len(), get: library }
}

/// Device libraries of a plug-in, for [`Runtime::attach`](crate::Runtime::attach): copies that do not depend on
/// the plug-in any more. A handle, cheap to clone.
///
/// # Examples
///
/// ```no_run
/// use kiln::Runtime;
/// use kiln::libraries::{ExportedLibraries, PluginLibraries};
///
/// type Function = unsafe extern "C" fn() -> ExportedLibraries;
///
/// /// Builds a program with functions of a plug-in.
/// ///
/// /// # Safety
/// ///
/// /// `function` is the function `PluginLibraries::FUNCTION` of a plug-in that is loaded.
/// async unsafe fn build(rt: Runtime, function: Function, module: kiln::Module) -> kiln::Result<kiln::Program> {
///     // SAFETY: as the caller promises.
///     let libraries = unsafe { PluginLibraries::read(&function()) }?;
///     let _attached = rt.attach(&libraries)?; // until it is dropped
///     rt.build(&module).await
/// }
/// ```
#[derive(Clone, Debug)]
pub struct PluginLibraries(Arc<[DeviceLibrary]>);

impl PluginLibraries {
    /// Name of the function that [`export_device_libraries!`](crate::export_device_libraries) defines.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(kiln::libraries::PluginLibraries::FUNCTION, "kiln_device_libraries");
    /// ```
    pub const FUNCTION: &'static str = "kiln_device_libraries";

    /// Copies the device libraries of a plug-in. The plug-in may be unloaded afterwards.
    ///
    /// The plug-in may be built by another compiler and with another version of Kiln than the host. Both must
    /// be built for the same processor architecture and have the same layout of the exported data, which the
    /// error names otherwise.
    ///
    /// # Safety
    ///
    /// `exported` is the result of the function that
    /// [`export_device_libraries!`](crate::export_device_libraries) defines in a plug-in, and that plug-in
    /// stays loaded during the call.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) if the plug-in has another layout.
    /// [`InvalidModule`](ErrorKind::InvalidModule), naming the file and the package, if the code of a library
    /// is not valid.
    ///
    /// # Examples
    ///
    /// ```standalone_crate
    /// unsafe extern "C" {
    ///     // Here the program itself exports the function.
    ///     safe fn kiln_device_libraries() -> kiln::libraries::ExportedLibraries;
    /// }
    /// kiln::export_device_libraries!();
    ///
    /// # fn main() -> kiln::Result<()> {
    /// // SAFETY: the program stays loaded.
    /// let libraries = unsafe { kiln::libraries::PluginLibraries::read(&kiln_device_libraries()) }?;
    /// assert_eq!(libraries.libraries().len(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn read(exported: &ExportedLibraries) -> Result<Self> {
        let &ExportedLibraries { layout, count, get } = exported;
        if layout != LAYOUT {
            return Err(Error::unsupported(format!(
                "the plug-in exports its device libraries in layout {layout}, but this program \
                 reads layout {LAYOUT}; build both with the same version of Kiln"
            )));
        }
        let copy = |index| {
            let library = get(index);
            // SAFETY: as the caller promises.
            unsafe { library.copy() }
        };
        (0..count).map(copy).collect::<Result<_>>().map(Self)
    }

    /// Returns the libraries.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(plug_in: kiln::libraries::PluginLibraries) {
    /// for library in plug_in.libraries() {
    ///     println!("{library}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn libraries(&self) -> &[DeviceLibrary] {
        &self.0
    }
}

/// Exports the device libraries that a plug-in (a `cdylib`) embeds, for its host: defines the function
/// `kiln_device_libraries`. Once in each plug-in, in the crate that is the `cdylib`.
///
/// The exported libraries are those of [`device_library!`](crate::device_library) in this crate and in all
/// crates that are linked into the plug-in. The host reads them with [`PluginLibraries::read`] and decides
/// with [`Runtime::attach`](crate::Runtime::attach) how long its programs are linked with them.
///
/// The function has no mangled name, so a crate that forbids unsafe code cannot use this macro.
///
/// # Examples
///
/// ```standalone_crate
/// kiln::export_device_libraries!();
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! export_device_libraries {
    () => {
        const _: () = {
            #[unsafe(no_mangle)]
            extern "C" fn kiln_device_libraries() -> $crate::libraries::ExportedLibraries {
                $crate::embedded::exported()
            }
        };
    };
}
