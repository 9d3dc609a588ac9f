//! Device code as it is handed in, with its content digest.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rspirv::spirv::LinkageType;

use crate::compiler::signature::Parameter;
use crate::compiler::signature::SpecializationConstant;
use crate::compiler::spirv::{self, Symbol};
use crate::device::ImageFormat;
use crate::digest::Digest;
use crate::error::{Error, ErrorKind, Result};
use crate::future::named_future;
use crate::process::file::{self, Links};
use crate::process::threads;
use crate::process::{self, pin_library};
use crate::source::includes::{includes_files, tells_time};

/// The bytes of the largest file that is read as a module.
const LARGEST_FILE: u64 = 1 << 30;

/// Device code: OpenCL C text, SPIR-V words or a native binary, with its content digest.
///
/// A handle, cheap to clone. The digest is computed once, when the image is made; two images with
/// the same format and content are the same to every cache.
#[derive(Clone)]
pub struct Image {
    inner: Arc<Inner>,
    /// Of the handle, not of the content: no digest covers it.
    is_untrusted: bool,
    /// Likewise.
    label: Option<Arc<str>>,
}

struct Inner {
    format: ImageFormat,
    code: Box<[u8]>,
    digest: Digest,
    /// What a SPIR-V module says of itself; empty for other formats.
    reflection: spirv::Reflection,
    /// Of its functions, once somebody has asked.
    private_memory: OnceLock<u64>,
    /// Of OpenCL C, once somebody has asked.
    includes_files: OnceLock<bool>,
    /// Of OpenCL C, once somebody has asked.
    tells_time: OnceLock<bool>,
    /// Why it cannot be built for any device.
    flaw: Option<Error>,
}

impl Image {
    /// OpenCL C source text. Mistakes in it come out when it is built.
    ///
    /// For devices that take SPIR-V alone, and for fusion, it is translated by clang and llvm-spirv: see
    /// [`RuntimeBuilder::front_end`](crate::RuntimeBuilder::front_end).
    #[must_use]
    pub fn opencl_c(text: impl Into<String>) -> Self {
        let code = text.into().into_bytes();
        Self::new(ImageFormat::OpenClC, code, spirv::Reflection::default())
    }

    /// A SPIR-V module, in the byte order of its producer.
    ///
    /// # Errors
    ///
    /// [`InvalidImage`](ErrorKind::InvalidImage) if the bytes are no SPIR-V module: wrong magic
    /// number, unknown version, or instructions or a function that do not end where the module
    /// does.
    pub fn spirv(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let (code, mut reflection) = spirv::read(bytes.into())?;
        // Some compilers export the functions behind the kernels, too, and that of every kernel.
        let kernels: HashSet<_> = reflection.kernels.iter().map(String::as_str).collect();
        reflection.exports.retain(|symbol| !kernels.contains(&*symbol.name));
        Ok(Self::new(ImageFormat::SpirV, code, reflection))
    }

    /// A binary that [`Program::binary`](crate::Program::binary) or a driver's own tool made, for
    /// the very device and driver that it will run on.
    ///
    /// # Errors
    ///
    /// [`InvalidImage`](ErrorKind::InvalidImage) if there are no bytes. Anything else only the
    /// driver can tell, when the image is built.
    pub fn native(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let code = bytes.into();
        if code.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidImage,
                "the native binary is empty; give the bytes that `Program::binary` returned",
            ));
        }
        Ok(Self::new(ImageFormat::Native, code, spirv::Reflection::default()))
    }

    /// Labels the image: a name for people, such as the path of its file, by which errors and logs tell
    /// of it and of its kernels. In place of any given before.
    ///
    /// The label is the handle's and its clones'; it is no part of the digest or of any key. Who asks for
    /// a program that is there already, or is being built, gets it with the label that it was built
    /// under.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: Some(label.into().into()), ..self }
    }

    /// Its [label](Self::label), if it has one.
    #[must_use]
    pub fn get_label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// With the label of another image that it is made of.
    pub(crate) fn labeled_like(self, other: &Self) -> Self {
        Self { label: other.label.clone(), ..self }
    }

    /// Reads an image from a file, whose path is its [label](Self::label); the format is found by the content: SPIR-V by its magic number,
    /// OpenCL C if it is text, else a native binary.
    ///
    /// # Errors
    ///
    /// From the future: [`Io`](ErrorKind::Io) if the file cannot be read, is not a regular file, or
    /// has more than 1 GiB; [`InvalidImage`](ErrorKind::InvalidImage) if it is empty, a malformed SPIR-V module, or
    /// text that is not in UTF-8; both name the path.
    pub fn open(path: impl Into<PathBuf>) -> OpenImage {
        let path = path.into();
        pin_library();
        let started = process::start();
        OpenImage::new(async move {
            started?;
            let opened = threads::run("kiln-open", move || {
                let bytes = file::read(&path, Links::Follow, LARGEST_FILE).map_err(|error| {
                    let message = format!("cannot read the image {}", path.display());
                    Error::of_system(message, error)
                })?;
                let image =
                    Self::from_content(bytes).map_err(|error| error.within(path.display()))?;
                Ok(image.label(path.to_string_lossy()))
            });
            opened.await?
        })
    }

    fn from_content(bytes: Vec<u8>) -> Result<Self> {
        if spirv::has_magic(&bytes) {
            return Self::spirv(bytes);
        }
        match String::from_utf8(bytes) {
            Ok(text) if text.trim().is_empty() => {
                Err(Error::new(ErrorKind::InvalidImage, "the file is empty"))
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
                    "it looks like text, but is not in UTF-8: byte {at} is {:#04x}; convert it, as \
                     with iconv",
                    bytes[at]
                );
                Err(Error::new(ErrorKind::InvalidImage, message))
            }
        }
    }

    fn new(format: ImageFormat, code: Vec<u8>, reflection: spirv::Reflection) -> Self {
        let mut hasher = blake3::Hasher::new();
        let stated = !reflection.exports.is_empty() || !reflection.imports.is_empty();
        if format != ImageFormat::SpirV && stated {
            // Not the byte that others begin with, whatever follows it.
            hasher.update(&[format as u8 | STATED]);
            for symbols in [&reflection.exports, &reflection.imports] {
                hasher.update(&(symbols.len() as u64).to_le_bytes());
                for symbol in symbols {
                    hasher.update(&(symbol.name.len() as u64).to_le_bytes());
                    hasher.update(symbol.name.as_bytes());
                }
            }
        } else {
            hasher.update(&[format as u8]);
        }
        hasher.update(&code);
        let digest = Digest(hasher.finalize().into());
        let flaw = if format == ImageFormat::OpenClC { flaw_of_text(&code) } else { None };
        let inner = Inner {
            format,
            code: code.into(),
            digest,
            reflection,
            private_memory: OnceLock::new(),
            includes_files: OnceLock::new(),
            tells_time: OnceLock::new(),
            flaw,
        };
        Self { inner: Arc::new(inner), is_untrusted: false, label: None }
    }

    /// Why it cannot be built for any device, as far as it was not refused when it was made.
    pub(crate) fn flaw(&self) -> Option<&Error> {
        self.inner.flaw.as_ref()
    }

    /// The format of the code.
    #[must_use]
    pub fn format(&self) -> ImageFormat {
        self.inner.format
    }

    /// The code as it goes to the driver.
    #[must_use]
    pub fn code(&self) -> &[u8] {
        &self.inner.code
    }

    /// BLAKE3 of the format, the names that were stated, and the code.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.inner.digest
    }

    /// The names of the kernels of a SPIR-V module, in its order; empty for other formats.
    #[must_use]
    pub fn kernels(&self) -> &[String] {
        &self.inner.reflection.kernels
    }

    /// The specialization constants of a SPIR-V module, sorted by id; empty for other formats.
    #[must_use]
    pub fn specialization_constants(&self) -> &[SpecializationConstant] {
        &self.inner.reflection.specialization_constants
    }

    /// States what other images can import from this one: the names of functions and global
    /// variables. For OpenCL C; SPIR-V modules say so themselves, and nothing is changed for them.
    ///
    /// The names are part of the image's content and of its digest; their order is not. In place of
    /// any stated before.
    #[must_use]
    pub fn exporting<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        let exports = stated(names, LinkageType::Export);
        self.stating(|reflection| reflection.exports = exports)
    }

    /// States what this image needs of others: the names of functions and global variables that it
    /// declares and does not define. For OpenCL C, as [`exporting`](Self::exporting), and in place of
    /// any stated before.
    ///
    /// A declaration has to have the types of the definition. [`Runtime::register`] says how far that is
    /// checked.
    ///
    /// [`Runtime::register`]: crate::Runtime::register
    #[must_use]
    pub fn importing<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        let imports = stated(names, LinkageType::Import);
        self.stating(|reflection| reflection.imports = imports)
    }

    fn stating(self, change: impl FnOnce(&mut spirv::Reflection)) -> Self {
        if self.format() != ImageFormat::OpenClC {
            return self;
        }
        let mut reflection = self.inner.reflection.clone();
        change(&mut reflection);
        let stated = Self::new(self.format(), self.code().to_vec(), reflection);
        Self { inner: stated.inner, ..self }
    }

    /// Marks an image whose code comes from somebody who is not trusted: a plug-in, an upload, a
    /// download. The driver's compiler, which such code may crash, hang or take over, then runs in
    /// a child process, and so does its linker: for whatever is built of the image, alone, linked
    /// with others, or fused. That it crashes is an error like a refusal,
    /// [`BuildFailed`](ErrorKind::BuildFailed), and is kept like one; that it does not end in time
    /// is one of kind [`Driver`](ErrorKind::Driver), that it runs out of memory
    /// [`OutOfResources`](ErrorKind::OutOfResources), and neither is kept.
    ///
    /// The child is a program whose `main` calls [`build_child`](crate::build_child), which this
    /// one can be itself. If there is none, such a build is an error that says what to do; the
    /// compiler is never run in this process instead.
    /// [`RuntimeBuilder::build_child`](crate::RuntimeBuilder::build_child) names the program, and
    /// [`build_child_limit`](crate::RuntimeBuilder::build_child_limit) says how long it may take.
    ///
    /// The mark is the handle's and its clones'; it is no part of the digest or of any key. A
    /// program that is in memory or on disk already is taken from there: nothing is compiled then.
    /// A build of the same content that somebody else asked for without the mark is never joined,
    /// since it may hang, and its failure is never taken over; nor do those who trust the content
    /// get to hear of failures of a child.
    ///
    /// A child costs a process, and loading the driver in it, for each program that is compiled:
    /// from tens of milliseconds to half a second. It compiles all that the program is linked of,
    /// libraries that are trusted included: objects are not shared. Such builds have threads of
    /// their own, so that compilers that hang hold up no others.
    ///
    /// # What it does not protect against
    ///
    /// * The program runs on the device, from this process, and its kernels do what their driver
    ///   and device let them do: the promise of [`Program::kernel`](crate::Program::kernel) is
    ///   still yours to make. Check arguments, and where kernels run forever, have a device to
    ///   lose.
    /// * The driver loads what the child made into this process. Some drivers go on compiling then,
    ///   or when a kernel is first launched: PoCL for each size of a work-group, NVIDIA's from its
    ///   PTX.
    /// * The child is no sandbox. It has the rights, the environment and the files of this process,
    ///   so that OpenCL C can include any of them, and a compiler that was taken over could do
    ///   anything that the application can. Name a script that starts the child in a sandbox if
    ///   that matters. Its memory is not limited; on Linux it is the first to be ended where memory
    ///   runs out.
    /// * Parsing, linking and fusing SPIR-V, and translating it to OpenCL C, is Kiln's own code: it
    ///   stays in this process, in Rust. Translating OpenCL C to SPIR-V takes clang in a process of
    ///   its own, whoever the image is from.
    /// * A compiler in this process has a stack of 16 MiB, twice that of a main thread. Text that is nested
    ///   so deeply that this does not suffice ends the process; in a child, it ends the child.
    /// * Simulated devices have no driver; nothing of theirs is run in a child.
    #[must_use]
    pub fn untrusted(self) -> Self {
        self.untrusted_if(true)
    }

    /// The same with the mark, if `mark`; else as it is.
    pub(crate) fn untrusted_if(self, mark: bool) -> Self {
        Self { is_untrusted: self.is_untrusted || mark, ..self }
    }

    /// Whether it was marked by [`untrusted`](Self::untrusted).
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        self.is_untrusted
    }

    /// The names that other images can import from this one: of a SPIR-V module those with linkage
    /// `Export` or `LinkOnceODR`, except those of its kernels, which cannot be imported; of OpenCL
    /// C those that were [stated](Self::exporting).
    #[must_use]
    pub fn exports(&self) -> impl ExactSizeIterator<Item = &str> {
        self.inner.reflection.exports.iter().map(|symbol| symbol.name.as_str())
    }

    /// The names that this image needs of others: of a SPIR-V module those with linkage `Import`,
    /// of OpenCL C those that were [stated](Self::importing). Values that each device has, such as
    /// the global id, are not among them.
    #[must_use]
    pub fn imports(&self) -> impl ExactSizeIterator<Item = &str> {
        self.inner.reflection.imports.iter().map(|symbol| symbol.name.as_str())
    }

    /// The names that no other module of a program may define as well.
    pub(crate) fn exports_alone(&self) -> impl Iterator<Item = &str> {
        let exports = self.inner.reflection.exports.iter();
        let alone = exports.filter(|symbol| symbol.linkage != LinkageType::LinkOnceODR);
        alone.map(|symbol| symbol.name.as_str())
    }

    /// Whether it exports the name as what other modules may define just as well: of linkage
    /// `LinkOnceODR`.
    pub(crate) fn exports_mergeably(&self, name: &str) -> bool {
        let symbol = self.inner.reflection.exports.iter().find(|symbol| symbol.name == name);
        symbol.is_some_and(|symbol| symbol.linkage == LinkageType::LinkOnceODR)
    }

    /// Whether kernels of other objects can call its functions where a linker only resolves the calls,
    /// as Level Zero's does. Such calls have 4 KiB of private memory for each work-item; the compiler may
    /// take half of it for itself, so that variables must fit into the rest. Functions of linkage
    /// `LinkOnceODR` are dropped from objects that do not call them, so there must be none.
    pub(crate) fn can_be_called(&self) -> bool {
        const PRIVATE_MEMORY: u64 = 2 << 10;
        let mut linkages = self.inner.reflection.exports.iter().map(|symbol| symbol.linkage);
        let private_memory = || spirv::private_memory(self.code());
        *self.inner.private_memory.get_or_init(private_memory) <= PRIVATE_MEMORY
            && linkages.all(|linkage| linkage == LinkageType::Export)
    }

    /// Whether it is OpenCL C that may include files.
    pub(crate) fn includes_files(&self) -> bool {
        let includes_files = || includes_files(self.code());
        self.format() == ImageFormat::OpenClC
            && *self.inner.includes_files.get_or_init(includes_files)
    }

    /// Whether it is OpenCL C that tells the time of its build.
    pub(crate) fn tells_time(&self) -> bool {
        let tells_time = || tells_time(self.code());
        self.format() == ImageFormat::OpenClC && *self.inner.tells_time.get_or_init(tells_time)
    }

    /// Whether it is a SPIR-V module with pointers to functions.
    pub(crate) fn has_function_pointers(&self) -> bool {
        self.inner.reflection.has_function_pointers
    }

    /// What a SPIR-V module tells of a kernel's parameters; none for other formats.
    pub(crate) fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.inner.reflection.parameters(kernel)
    }
}

fn flaw_of_text(text: &[u8]) -> Option<Error> {
    let flaw = |message: String| Some(Error::new(ErrorKind::InvalidImage, message));
    if text.trim_ascii().is_empty() {
        return flaw("the OpenCL C text is empty; give the source of at least one kernel".into());
    }
    // Drivers read no further, and what follows would be missing without a word.
    let at = text.iter().position(|byte| *byte == 0)?;
    flaw(format!("the OpenCL C text holds a NUL character at byte {at}; text has none"))
}

/// Marks, in a digest, that names come before the code.
const STATED: u8 = 0x80;

fn stated<S: Into<String>>(
    names: impl IntoIterator<Item = S>,
    linkage: LinkageType,
) -> Vec<Symbol> {
    let mut names: Vec<String> = names.into_iter().map(Into::into).collect();
    names.sort_unstable();
    names.dedup();
    let symbol = |name| Symbol { name, linkage };
    names.into_iter().map(symbol).collect()
}

named_future! {
    /// An image that is read from a file: from [`Image::open`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    OpenImage => Result<Image>
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("label", &self.label)
            .field("format", &self.format())
            .field("bytes", &self.code().len())
            .field("digest", &self.digest())
            .field("untrusted", &self.is_untrusted)
            .finish()
    }
}
