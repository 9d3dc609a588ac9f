//! Device libraries, with the place that they come from.

use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::device::ModuleFormat;
use crate::error::{Error, Result};
use crate::source::module::Module;

/// Origin of a device library: how a runtime came to know it. From [`DeviceLibrary::source`].
///
/// # Examples
///
/// ```no_run
/// use kiln::libraries::LibrarySource;
///
/// # fn example(rt: kiln::Runtime) {
/// for library in rt.libraries() {
///     if let LibrarySource::Embedded(embedding) = library.source() {
///         println!("{} {} brings {}", embedding.package, embedding.version, embedding.file);
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LibrarySource {
    /// The application preloaded it: see [`Runtime::preload`](crate::Runtime::preload).
    Preloaded,
    /// The application registered it: see [`Runtime::register`](crate::Runtime::register).
    Registered,
    /// A crate of the application embeds it: see [`device_library!`](crate::device_library).
    Embedded(Embedding),
    /// A plug-in embeds it, and the application attached the plug-in's libraries: see
    /// [`Runtime::attach`](crate::Runtime::attach).
    Attached(Embedding),
}

/// Place in the source code that embeds a device library with [`device_library!`](crate::device_library).
///
/// # Examples
///
/// ```
/// use kiln::libraries::Embedding;
///
/// fn place(embedding: &Embedding) -> String {
///     format!("{}:{}", embedding.declared_in, embedding.line)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Embedding {
    /// Name of the package.
    pub package: String,
    /// Version of the package.
    pub version: String,
    /// File of the device code, as the macro names it; for text in the macro itself, the source file.
    pub file: String,
    /// Source file with the macro.
    pub declared_in: String,
    /// Line of the macro in that file.
    pub line: u32,
}

impl fmt::Display for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { package, version, file, declared_in, line } = self;
        write!(f, "`{file}` of {package} {version}, {declared_in}:{line}")
    }
}

impl fmt::Display for LibrarySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preloaded => f.pad("preloaded"),
            Self::Registered => f.pad("registered"),
            Self::Embedded(embedding) => write!(f, "embedded: {embedding}"),
            Self::Attached(embedding) => write!(f, "attached: {embedding}"),
        }
    }
}

/// Device library that a runtime links programs with. From [`Runtime::libraries`](crate::Runtime::libraries).
/// A handle, cheap to clone.
///
/// # Examples
///
/// ```no_run
/// # fn example(rt: kiln::Runtime) {
/// for library in rt.libraries() {
///     println!("{library}"); // its module, its exports and where it comes from
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct DeviceLibrary(Arc<Inner>);

struct Inner {
    source: LibrarySource,
    content: Content,
}

enum Content {
    Module(Module),
    /// Format of the code, and the module that is made of it at the first use.
    Lazy(ModuleFormat, LazyLock<Result<Module>, Make>),
}

/// Function that makes a module.
type Make = Box<dyn FnOnce() -> Result<Module> + Send>;

impl DeviceLibrary {
    pub(crate) fn new(module: Module, source: LibrarySource) -> Self {
        Self(Arc::new(Inner { source, content: Content::Module(module) }))
    }

    /// Creates a library of a format, whose module `make` makes at the first use.
    pub(crate) fn lazy(
        source: LibrarySource,
        format: ModuleFormat,
        make: impl FnOnce() -> Result<Module> + Send + 'static,
    ) -> Self {
        let content = Content::Lazy(format, LazyLock::new(Box::new(make)));
        Self(Arc::new(Inner { source, content }))
    }

    /// Returns the origin of the library.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::libraries::LibrarySource;
    ///
    /// # fn example(rt: kiln::Runtime) {
    /// let registered = |library: &kiln::libraries::DeviceLibrary| *library.source() == LibrarySource::Registered;
    /// println!("{} libraries are registered", rt.libraries().iter().filter(|it| registered(it)).count());
    /// # }
    /// ```
    #[must_use]
    pub fn source(&self) -> &LibrarySource {
        &self.0.source
    }

    /// Returns the module. The module of an embedded library is made at the first call, or at the first build
    /// that needs it.
    ///
    /// # Errors
    ///
    /// [`InvalidModule`](crate::ErrorKind::InvalidModule), naming the file and the package, if the code that a
    /// crate embeds is not valid.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// for library in rt.libraries() {
    ///     println!("{:.8}: {:?}", library.module()?.digest(), library.exports());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn module(&self) -> Result<&Module> {
        self.loaded().map_err(Clone::clone)
    }

    /// Returns the names that other modules can import from the library: see
    /// [`Module::exports`](crate::Module::exports). Empty if the embedded code is not valid.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let exports_tone = |library: &kiln::libraries::DeviceLibrary| library.exports().contains(&"tone");
    /// assert!(rt.libraries().iter().any(exports_tone));
    /// # }
    /// ```
    #[must_use]
    pub fn exports(&self) -> Vec<&str> {
        self.loaded().map_or_else(|_| Vec::new(), |module| module.exports().collect())
    }

    /// Returns the format of the code. Does not make the module.
    pub(crate) fn format(&self) -> ModuleFormat {
        match &self.0.content {
            Content::Module(module) => module.format(),
            Content::Lazy(format, _) => *format,
        }
    }

    /// Whether both are handles of one library.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn loaded(&self) -> std::result::Result<&Module, &Error> {
        match &self.0.content {
            Content::Module(module) => Ok(module),
            Content::Lazy(_, module) => module.as_ref(),
        }
    }
}

impl fmt::Display for DeviceLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.loaded() {
            Ok(module) => {
                let exports = self.exports().join(", ");
                let (format, digest) = (module.format(), module.digest());
                write!(f, "{format} {digest:.8}, {}; exports {exports}", self.source())
            }
            Err(error) => write!(f, "{}; not valid: {error}", self.source()),
        }
    }
}

impl fmt::Debug for DeviceLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceLibrary")
            .field("source", self.source())
            .field("module", &self.loaded())
            .finish()
    }
}
