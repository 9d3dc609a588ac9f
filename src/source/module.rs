//! Device code as the application provides it, with its content digest.

mod options;

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use kiln_spirv::{Parameter, SpecializationConstant};
use rspirv::spirv::LinkageType;

use crate::cache::store::has_footer;
use crate::device::ModuleFormat;
use crate::digest::Digest;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::run_blocking;
use crate::future::named_future;
use crate::process::file;
use crate::process::{self, pin_library};
use crate::source::content;
use crate::source::includes::{includes_files, uses_time};
use crate::source::made_for::MadeFor;

/// Maximum size of a file that is read as a module, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Device code: OpenCL C text, SPIR-V words or a native binary, with its content digest.
///
/// A handle, cheap to clone. The digest is computed once, when the module is made. All caches treat two modules
/// with the same format and content as equal.
///
/// # Examples
///
/// ```
/// use kiln::Module;
/// use kiln::devices::ModuleFormat;
///
/// let text = "kernel void halve(global float *x) { x[get_global_id(0)] *= 0.5f; }";
/// let halve = Module::opencl_c(text);
/// assert_eq!(halve.format(), ModuleFormat::OpenClC);
/// assert_eq!(halve.digest(), Module::opencl_c(text).digest()); // every cache treats them as equal
/// ```
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
    /// Whether the code is untrusted. A property of the handle, not of the content: no digest covers it.
    is_untrusted: bool,
    /// Name for messages. Also a property of the handle.
    label: Option<Arc<str>>,
    /// Options for compiling and for linking that were set for the module. Also properties of the handle.
    options: Option<Arc<str>>,
    link_options: Option<Arc<str>>,
}

struct Inner {
    format: ModuleFormat,
    code: Box<[u8]>,
    digest: Digest,
    /// Symbols, kernels and constants that a SPIR-V module declares; empty for other formats.
    reflection: kiln_spirv::Reflection,
    /// Private memory of the module's functions in bytes, computed at the first use.
    private_memory: OnceLock<u64>,
    /// Whether OpenCL C text may include files, computed at the first use.
    includes_files: OnceLock<bool>,
    /// Whether OpenCL C text uses the time of its build, computed at the first use.
    uses_time: OnceLock<bool>,
    /// Reason why the module cannot be built for any device, if there is one.
    flaw: Option<Error>,
    /// Device for which Kiln made the native object; `None` for other modules.
    made_for: Option<Arc<MadeFor>>,
}

impl Module {
    /// Creates a module from OpenCL C source text. Errors in the text are reported when it is built.
    ///
    /// For devices that take only SPIR-V, and for fusion, clang and llvm-spirv translate the text: see
    /// [`RuntimeBuilder::front_end`](crate::RuntimeBuilder::front_end).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let invert = Module::opencl_c(
    ///     "kernel void invert(global uchar *pixels) {
    ///          size_t i = get_global_id(0);
    ///          pixels[i] = 255 - pixels[i];
    ///      }",
    /// );
    /// let program = rt.build(&invert).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn opencl_c(text: impl Into<String>) -> Self {
        let code = text.into().into_bytes();
        Self::new(ModuleFormat::OpenClC, code, kiln_spirv::Reflection::default())
    }

    /// Creates a module from SPIR-V, in the byte order of its producer.
    ///
    /// # Errors
    ///
    /// [`InvalidModule`](ErrorKind::InvalidModule) if the bytes are not a valid SPIR-V module: wrong magic
    /// number, unknown version, or instructions or a function that do not end within the module.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # fn example(uploaded: Vec<u8>) -> kiln::Result<()> {
    /// let module = Module::spirv(uploaded)?;
    /// println!("the module has the kernels {:?}", module.kernels());
    /// # Ok(())
    /// # }
    /// ```
    pub fn spirv(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let (code, mut reflection) = kiln_spirv::read(bytes.into())?;
        // Some compilers also export the functions behind the kernels, even the function of every kernel.
        let kernels: HashSet<_> = reflection.kernels.iter().map(String::as_str).collect();
        reflection.exports.retain(|symbol| !kernels.contains(&*symbol.name));
        Ok(Self::new(ModuleFormat::SpirV, code, reflection))
    }

    /// Creates a native module, with the symbols and the device that are known of it.
    pub(super) fn of_native(
        code: Vec<u8>,
        symbols: kiln_spirv::Reflection,
        made_for: Option<MadeFor>,
    ) -> Self {
        Self::with_device(ModuleFormat::Native, code, symbols, made_for.map(Arc::new))
    }

    /// Sets the label of the module: a name for people, such as the path of its file, with which errors and
    /// logs refer to the module and its kernels. Replaces an earlier label.
    ///
    /// The label belongs to this handle and its clones. It is not part of the digest or of any key. A request
    /// for a program that exists already, or is being built, returns it with the label under which it was
    /// built.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Module;
    ///
    /// let text = "kernel void halve(global float *x) { x[get_global_id(0)] *= 0.5f; }";
    /// let module = Module::opencl_c(text).with_label("filters/halve.cl");
    /// assert_eq!(module.label(), Some("filters/halve.cl"));
    /// assert_eq!(module.digest(), Module::opencl_c(text).digest());
    /// ```
    #[must_use]
    pub fn with_label(self, label: impl Into<String>) -> Self {
        Self { label: Some(label.into().into()), ..self }
    }

    /// Returns the [label](Self::with_label), if there is one.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module) {
    /// if let Err(error) = rt.build(&module).await {
    ///     eprintln!("{}: {error}", module.label().unwrap_or("unnamed module"));
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Copies the label of the module that this one was derived from.
    pub(crate) fn labeled_like(self, other: &Self) -> Self {
        Self { label: other.label.clone(), ..self }
    }

    /// Reads a module from a file, whose path becomes its [label](Self::with_label). The format is detected from the
    /// content: SPIR-V by its magic number, OpenCL C if it is text, and a native binary otherwise.
    ///
    /// # Errors
    ///
    /// The future fails with [`Io`](ErrorKind::Io) if the file cannot be read, is not a regular file, or is
    /// larger than 1 GiB, and with [`InvalidModule`](ErrorKind::InvalidModule) if it is empty, is a malformed
    /// SPIR-V module, or is text that is not UTF-8. Both errors name the path.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let module = Module::open("filters/blur.cl").await?; // or `blur.spv`
    /// let program = rt.build(&module).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(path: impl Into<PathBuf>) -> OpenModule {
        let path = path.into();
        pin_library();
        let started = process::start();
        OpenModule::new(async move {
            started?;
            let open = move || {
                let bytes = file::read(&path, MAX_FILE_BYTES).map_err(|error| {
                    let message = format!("cannot read the module {}", path.display());
                    Error::of_system(message, error)
                })?;
                let module =
                    Self::from_content(bytes).map_err(|error| error.within(path.display()))?;
                Ok(module.with_label(path.to_string_lossy()))
            };
            run_blocking(open).await
        })
    }

    /// Creates a module from the content of a file, whose format is detected.
    fn from_content(bytes: Vec<u8>) -> Result<Self> {
        if kiln_spirv::has_magic(&bytes) {
            return Self::spirv(bytes);
        }
        if has_footer(&bytes) {
            return Self::native(bytes);
        }
        match String::from_utf8(bytes) {
            Ok(text) if text.trim().is_empty() => {
                Err(Error::new(ErrorKind::InvalidModule, "the file is empty"))
            }
            Ok(text) if !text.contains('\0') => Ok(Self::opencl_c(text)),
            Ok(text) => Self::native(text),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let bytes = error.into_bytes();
                let is_text = |&byte: &u8| byte >= b' ' || byte.is_ascii_whitespace();
                if !bytes.iter().all(is_text) {
                    return Self::native(bytes);
                }
                let message = format!(
                    "the file looks like text, but is not valid UTF-8: byte {at} is {:#04x}; \
                     convert it, for example with iconv",
                    bytes[at]
                );
                Err(Error::new(ErrorKind::InvalidModule, message))
            }
        }
    }

    fn new(format: ModuleFormat, code: Vec<u8>, reflection: kiln_spirv::Reflection) -> Self {
        Self::with_device(format, code, reflection, None)
    }

    /// Creates a module, with the device for which Kiln made it, if it is a native object of Kiln's.
    fn with_device(
        format: ModuleFormat,
        code: Vec<u8>,
        reflection: kiln_spirv::Reflection,
        made_for: Option<Arc<MadeFor>>,
    ) -> Self {
        let digest = content::digest(format, &code, &reflection, made_for.as_deref());
        let flaw =
            if format == ModuleFormat::OpenClC { content::flaw_of_text(&code) } else { None };
        let inner = Inner {
            format,
            code: code.into(),
            digest,
            reflection,
            private_memory: OnceLock::new(),
            includes_files: OnceLock::new(),
            uses_time: OnceLock::new(),
            flaw,
            made_for,
        };
        let inner = Arc::new(inner);
        Self { inner, is_untrusted: false, label: None, options: None, link_options: None }
    }

    /// Returns the reason why the module cannot be built for any device, if there is one. Constructors that
    /// return a `Result` report such errors themselves.
    pub(crate) fn flaw(&self) -> Option<&Error> {
        self.inner.flaw.as_ref()
    }

    /// Returns the format of the code.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Module;
    /// use kiln::devices::ModuleFormat;
    ///
    /// let module = Module::opencl_c("kernel void clear(global int *x) { x[get_global_id(0)] = 0; }");
    /// assert_eq!(module.format(), ModuleFormat::OpenClC);
    /// ```
    #[must_use]
    pub fn format(&self) -> ModuleFormat {
        self.inner.format
    }

    /// Returns the code as it is passed to the driver.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Module;
    ///
    /// let text = "kernel void clear(global int *x) { x[get_global_id(0)] = 0; }";
    /// assert_eq!(Module::opencl_c(text).code(), text.as_bytes());
    /// ```
    #[must_use]
    pub fn code(&self) -> &[u8] {
        &self.inner.code
    }

    /// Returns the BLAKE3 digest of the format, the stated names and the code.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::HashSet;
    ///
    /// use kiln::Module;
    ///
    /// let texts = ["kernel void a() {}", "kernel void b() {}", "kernel void a() {}"];
    /// let different: HashSet<_> = texts.map(|text| Module::opencl_c(text).digest()).into();
    /// assert_eq!(different.len(), 2);
    /// ```
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.inner.digest
    }

    /// Returns the names of the kernels of a SPIR-V module, in its order; empty for other formats.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # async fn example() -> kiln::Result<()> {
    /// let module = Module::open("filters.spv").await?;
    /// for kernel in module.kernels() {
    ///     println!("{kernel}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kernels(&self) -> &[String] {
        &self.inner.reflection.kernels
    }

    /// Returns the specialization constants of a SPIR-V module, sorted by id; empty for other formats.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(module: kiln::Module) {
    /// for constant in module.specialization_constants() {
    ///     let name = constant.name.as_deref().unwrap_or("unnamed");
    ///     println!("{}: {} {name} = {:?}", constant.id, constant.type_name, constant.default);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn specialization_constants(&self) -> &[SpecializationConstant] {
        &self.inner.reflection.specialization_constants
    }

    /// States the names of the functions and global variables that other modules can import from this one. For
    /// OpenCL C and native code: SPIR-V modules declare their exports, so for them this changes nothing.
    ///
    /// The names are part of the module's content and of its digest; their order is not. Replaces names stated
    /// before.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let library = Module::opencl_c("float tone(float x) { return x * x; }").exporting(["tone"]);
    /// rt.register(&library)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn exporting<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        let exports = content::stated(names, LinkageType::Export);
        self.stating(|reflection| reflection.exports = exports)
    }

    /// States the names of the functions and global variables that this module declares but does not define,
    /// and imports from others. For OpenCL C and native code, as for [`exporting`](Self::exporting). Replaces
    /// names stated before.
    ///
    /// A declaration must have the types of the definition. [`Runtime::register`] describes how far that is
    /// checked.
    ///
    /// [`Runtime::register`]: crate::Runtime::register
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let application = Module::opencl_c(
    ///     "float tone(float x);
    ///      kernel void apply(global float *x) { x[get_global_id(0)] = tone(x[get_global_id(0)]); }",
    /// );
    /// let program = rt.build(&application.importing(["tone"])).await?; // from a registered library
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn importing<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        let imports = content::stated(names, LinkageType::Import);
        self.stating(|reflection| reflection.imports = imports)
    }

    /// Changes the stated names of a module that does not declare its symbols.
    fn stating(self, change: impl FnOnce(&mut kiln_spirv::Reflection)) -> Self {
        if self.format() == ModuleFormat::SpirV {
            return self;
        }
        let mut reflection = self.inner.reflection.clone();
        change(&mut reflection);
        let (code, made_for) = (self.code().to_vec(), self.inner.made_for.clone());
        let stated = Self::with_device(self.format(), code, reflection, made_for);
        Self { inner: stated.inner, ..self }
    }

    /// Marks a module whose code comes from an untrusted source: a plug-in, an upload, a download. Such code
    /// may crash the driver's compiler, make it hang, or take it over. So the compiler and the linker run in a
    /// child process for everything that is built from the module, alone, linked with others, or fused. If the
    /// child crashes, the build fails as for a refusal, with [`BuildFailed`](ErrorKind::BuildFailed), and the
    /// failure is cached as one. If it does not end in time, the build fails with
    /// [`Driver`](ErrorKind::Driver). If it runs out of memory, the build fails with
    /// [`OutOfResources`](ErrorKind::OutOfResources). These two failures are not cached.
    ///
    /// The child is a program whose `main` calls [`build_child`](crate::build::build_child); it can be this program
    /// itself. If there is no such program, the build fails with an error that describes what to do. The
    /// compiler never runs in this process instead.
    /// [`RuntimeBuilder::build_child`](crate::RuntimeBuilder::build_child) names the program, and
    /// [`build_child_limit`](crate::RuntimeBuilder::build_child_limit) sets its time limit.
    ///
    /// The mark belongs to this handle and its clones. It is not part of the digest or of any key. A program
    /// that is in memory or on disk is loaded from there, without a compile. A build of an untrusted module
    /// never joins a build of the same content without the mark, since that build may hang, and never takes
    /// over its failure. Likewise, builds of trusted modules never receive failures of a child.
    ///
    /// Each compiled program costs a process that loads the driver: from tens of milliseconds to half a second.
    /// The child compiles everything that the program is linked from, including trusted libraries: objects are
    /// not shared. Such builds have threads of their own, so that hanging compilers do not delay other builds.
    ///
    /// # What it does not protect against
    ///
    /// * The program runs on the device, from this process, and its kernels can do whatever the driver and the
    ///   device allow: the safety contract of [`Program::kernel`](crate::Program::kernel) still applies. Check
    ///   arguments. If kernels may run forever, use a device that you can afford to lose.
    /// * The driver loads the child's output into this process. Some drivers compile further at that point, or
    ///   when a kernel is first launched: PoCL for each work-group size, NVIDIA's driver from its PTX.
    /// * The child is not a sandbox. It has the permissions, the environment and the files of this process, so
    ///   OpenCL C can include any of these files, and a compiler that was taken over can do anything that the
    ///   application can. If that matters, name a script that starts the child in a sandbox. The child's memory
    ///   is not limited; on Linux it is the first process to be ended when memory runs out.
    /// * Parsing, linking and fusing SPIR-V, and translating it to OpenCL C, is Kiln's own Rust code and stays
    ///   in this process. Translating OpenCL C to SPIR-V runs clang in a process of its own, also for trusted
    ///   modules.
    /// * A compiler in this process has a stack of 16 MiB, twice the size of a main thread's. Text that is
    ///   nested too deeply for this stack ends the process; in a child, it ends the child.
    /// * Simulated devices have no driver, so nothing runs in a child for them.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::{ErrorKind, Module};
    ///
    /// # async fn example(rt: kiln::Runtime, upload: String) {
    /// let module = Module::opencl_c(upload).untrusted();
    /// match rt.build(&module).await {
    ///     Ok(program) => println!("it has the kernels {:?}", program.kernel_names()),
    ///     Err(error) if error.kind() == ErrorKind::BuildFailed => println!("refused: {error}"),
    ///     Err(error) => println!("try again later: {error}"),
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn untrusted(self) -> Self {
        self.untrusted_if(true)
    }

    /// Sets the mark of [`untrusted`](Self::untrusted) if `mark`; never removes it.
    pub(crate) fn untrusted_if(self, mark: bool) -> Self {
        Self { is_untrusted: self.is_untrusted || mark, ..self }
    }

    /// Whether the module was marked by [`untrusted`](Self::untrusted).
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Module;
    ///
    /// let module = Module::opencl_c("kernel void clear(global int *x) { x[get_global_id(0)] = 0; }");
    /// assert!(!module.is_untrusted());
    /// assert!(module.untrusted().is_untrusted());
    /// ```
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        self.is_untrusted
    }

    /// Returns the names that other modules can import from this one. For a SPIR-V module, these are the
    /// symbols with linkage `Export` or `LinkOnceODR`, except its kernels, which cannot be imported. For other
    /// formats, these are the [stated](Self::exporting) names; the file of an [`Object`](crate::libraries::Object)
    /// states them itself.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Module;
    ///
    /// let library = Module::opencl_c("float tone(float x) { return x * x; }").exporting(["tone"]);
    /// assert!(library.exports().eq(["tone"]));
    /// ```
    #[must_use]
    pub fn exports(&self) -> impl ExactSizeIterator<Item = &str> {
        self.inner.reflection.exports.iter().map(|symbol| symbol.name.as_str())
    }

    /// Returns the names that this module imports from others. For a SPIR-V module, these are the symbols with
    /// linkage `Import`; for other formats, the [stated](Self::importing) names. Values that each device
    /// provides, such as the global id, are not included.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Module;
    ///
    /// let text = "float tone(float x); kernel void apply(global float *x) { *x = tone(*x); }";
    /// let application = Module::opencl_c(text).importing(["tone"]);
    /// assert!(application.imports().eq(["tone"]));
    /// ```
    #[must_use]
    pub fn imports(&self) -> impl ExactSizeIterator<Item = &str> {
        self.inner.reflection.imports.iter().map(|symbol| symbol.name.as_str())
    }

    /// Returns the export at an index below the number of [`exports`](Self::exports).
    pub(crate) fn export(&self, at: usize) -> &str {
        &self.inner.reflection.exports[at].name
    }

    /// Returns the import at an index below the number of [`imports`](Self::imports).
    pub(crate) fn import(&self, at: usize) -> &str {
        &self.inner.reflection.imports[at].name
    }

    /// Whether the export at an index has linkage `LinkOnceODR`, so that other modules may define it as well.
    pub(crate) fn is_mergeable(&self, export: usize) -> bool {
        self.inner.reflection.exports[export].linkage == LinkageType::LinkOnceODR
    }

    /// Whether the module exports a name with linkage `LinkOnceODR`, so that other modules may define it as
    /// well.
    pub(crate) fn exports_mergeably(&self, name: &str) -> bool {
        let symbol = self.inner.reflection.exports.iter().find(|symbol| symbol.name == name);
        symbol.is_some_and(|symbol| symbol.linkage == LinkageType::LinkOnceODR)
    }

    /// Whether kernels of other objects can call the module's functions through a linker that only resolves
    /// calls, as Level Zero's does. Such calls have 4 KiB of private memory for each work-item. The compiler
    /// may use half of it, so variables must fit into the rest. The linker drops functions of linkage
    /// `LinkOnceODR` from objects that do not call them, so the module must not have any.
    pub(crate) fn can_be_called(&self) -> bool {
        const MAX_PRIVATE_MEMORY: u64 = 2 << 10;
        if self.format() == ModuleFormat::Native {
            // Nothing is known of it, and it cannot be merged instead.
            return true;
        }
        let mut linkages = self.inner.reflection.exports.iter().map(|symbol| symbol.linkage);
        let private_memory = || kiln_spirv::private_memory(self.code());
        *self.inner.private_memory.get_or_init(private_memory) <= MAX_PRIVATE_MEMORY
            && linkages.all(|linkage| linkage == LinkageType::Export)
    }

    /// Returns the device for which Kiln made the native object; `None` for other modules.
    pub(crate) fn made_for(&self) -> Option<&MadeFor> {
        self.inner.made_for.as_deref()
    }

    /// Whether the module is OpenCL C text that may include files.
    pub(crate) fn includes_files(&self) -> bool {
        let includes_files = || includes_files(self.code());
        self.format() == ModuleFormat::OpenClC
            && *self.inner.includes_files.get_or_init(includes_files)
    }

    /// Whether the module is OpenCL C text that uses the time of its build.
    pub(crate) fn uses_time(&self) -> bool {
        let uses_time = || uses_time(self.code());
        self.format() == ModuleFormat::OpenClC && *self.inner.uses_time.get_or_init(uses_time)
    }

    /// Whether the module is SPIR-V that uses function pointers.
    pub(crate) fn has_function_pointers(&self) -> bool {
        self.inner.reflection.has_function_pointers
    }

    /// Returns the parameters of a kernel that a SPIR-V module declares; `None` for other formats.
    pub(crate) fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.inner.reflection.parameters(kernel)
    }
}

named_future! {
    /// A module that is read from a file. Returned by [`Module::open`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no side effects.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    /// use kiln::build::OpenModule;
    ///
    /// # async fn example() -> kiln::Result<()> {
    /// let paths = ["filters/blur.cl", "filters/tone.cl"];
    /// let opening: Vec<OpenModule> = paths.into_iter().map(|path| Module::open(path)).collect();
    /// let modules = futures::future::try_join_all(opening).await?;
    /// # Ok(())
    /// # }
    /// ```
    OpenModule => Result<Module>
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("label", &self.label)
            .field("format", &self.format())
            .field("bytes", &self.code().len())
            .field("digest", &self.digest())
            .field("untrusted", &self.is_untrusted)
            .field("options", &self.options())
            .field("link options", &self.link_options())
            .finish()
    }
}
