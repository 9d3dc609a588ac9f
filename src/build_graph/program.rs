//! What a build gives: programs and their kernels.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use super::link::near;
use super::plan::{Part, Recipe};
use super::request::Build;
use super::translated::SpirV;
use crate::args::ElementType;
use crate::backend;
use crate::compiler::signature::Parameter;
use crate::device::Device;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::process::threads;
use crate::source::image::Image;

/// Where a program came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The driver built it for this request, or for one that was made while the build ran.
    Compiled,
    /// It was in memory, from an earlier request.
    Memory,
    /// It was loaded from the disk.
    Disk,
    /// It was loaded from a remote cache.
    Remote,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Compiled => "compiled",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Remote => "remote",
        })
    }
}

/// A program as the build graph holds it. Whoever holds one keeps it usable, evicted or not.
pub(crate) struct Built {
    native: Arc<dyn backend::Program>,
    kernels: Box<[BuiltKernel]>,
    device: Device,
    key: BuildKey,
    origin: Origin,
    build_log: Box<str>,
    weight: AtomicUsize,
    parts: Box<[Part]>,
    /// What it was built from, for fusing its kernels.
    recipe: OnceLock<Recipe>,
    /// Whether anybody who got it does not trust what it was built from.
    is_untrusted: AtomicBool,
}

/// What is known of a program beside what its driver tells.
pub(crate) struct Told<'a> {
    /// Where it came from.
    pub(crate) origin: Origin,
    /// The messages of the compiler that made it.
    pub(crate) build_log: &'a str,
    /// Its size in bytes.
    pub(crate) size: usize,
    /// What it was linked from; nothing if it was not.
    pub(crate) parts: Box<[Part]>,
    /// Who knows best what its parameters are.
    pub(crate) teller: Teller,
}

/// Of two that tell what a kernel's parameters are, the one whose word counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Teller {
    /// The driver: it knows best what it built. The other may fill in what it does not tell.
    Driver,
    /// The image, or what is stored of it: the driver got a translation.
    Image,
}

struct BuiltKernel {
    native: Arc<dyn backend::Kernel>,
    parameters: Box<[Parameter]>,
    /// What the parameters' types are made of.
    elements: Box<[Option<ElementType>]>,
}

impl Built {
    pub(crate) fn new(
        native: Arc<dyn backend::Program>,
        device: Device,
        key: BuildKey,
        told: Told<'_>,
        parameters: impl Fn(&str) -> Option<Vec<Parameter>>,
    ) -> Self {
        let kernels = native.kernels().iter().map(|kernel| {
            let others = parameters(kernel.name());
            let parameters = merge(told.teller, kernel.parameters(), others.as_deref());
            let elements = parameters.iter().map(ElementType::of).collect();
            BuiltKernel { native: Arc::clone(kernel), parameters, elements }
        });
        let kernels = kernels.collect();
        let Told { origin, build_log, size, parts, .. } = told;
        let build_log = build_log.into();
        let (weight, recipe, is_untrusted) = (size.into(), OnceLock::new(), AtomicBool::new(false));
        Self {
            kernels,
            native,
            device,
            key,
            origin,
            build_log,
            weight,
            parts,
            recipe,
            is_untrusted,
        }
    }

    /// What it was built from, once the build has ended.
    pub(crate) fn recipe(&self) -> Option<&Recipe> {
        self.recipe.get()
    }

    pub(crate) fn set_recipe(&self, recipe: &Recipe) {
        self.recipe.get_or_init(|| recipe.clone());
    }

    /// Whether what is compiled from it must not be in this process.
    pub(crate) fn is_untrusted(&self) -> bool {
        self.is_untrusted.load(Relaxed)
    }

    /// Somebody gets it who does not trust it. The program is there and stays as it is; what is yet
    /// to be compiled from it, for whomever, is compiled as this one asks.
    pub(crate) fn distrust(&self) {
        self.is_untrusted.store(true, Relaxed);
    }

    /// The key that names it in every cache.
    pub(crate) fn key(&self) -> BuildKey {
        self.key
    }

    /// A kernel of it that does what kernels do for which their callers have made the promise of
    /// [`Program::kernel`].
    pub(super) fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        let resolved = self.resolve(name)?;
        Ok(Kernel::new(name, None, OnceLock::from(Ok(resolved))))
    }

    /// Where it came from when it was not in memory.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// The compiler's messages.
    pub(crate) fn build_log(&self) -> &str {
        &self.build_log
    }

    /// Its kernels with what is known of their parameters.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = (&str, &[Parameter])> {
        self.kernels.iter().map(|kernel| (kernel.native.name(), &*kernel.parameters))
    }

    /// The SPIR-V that it is, if it is no driver's program.
    pub(crate) fn spirv(&self) -> Option<&Image> {
        let native: &dyn std::any::Any = &*self.native;
        native.downcast_ref::<SpirV>().map(SpirV::image)
    }

    /// As the driver has it.
    pub(crate) fn native(&self) -> &dyn backend::Program {
        &*self.native
    }

    /// What it was linked from; nothing if it was not.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The driver's binary.
    pub(crate) fn binary(&self) -> Result<Vec<u8>> {
        self.native.binary()
    }

    /// The bytes that it stands for against the memory limit: those of its binary.
    pub(crate) fn weight(&self) -> usize {
        self.weight.load(Relaxed)
    }

    /// Corrects the weight. Whoever keeps the program has to weigh it again.
    pub(crate) fn set_weight(&self, bytes: usize) {
        self.weight.store(bytes, Relaxed);
    }

    /// The device that it was built for.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    fn resolve(self: &Arc<Self>, name: &str) -> Result<ResolvedKernel> {
        if let Some(at) = name.find('\0') {
            return Err(Error::invalid(format!(
                "the kernel name {name:?} holds a NUL character at byte {at}; names have none"
            )));
        }
        match self.kernels.iter().position(|kernel| kernel.native.name() == name) {
            Some(index) => Ok(ResolvedKernel {
                native: Arc::clone(&self.kernels[index].native),
                built: Arc::clone(self),
                index,
            }),
            None => Err(self.unknown_kernel(name)),
        }
    }

    fn unknown_kernel(&self, name: &str) -> Error {
        let names = self.names();
        let message = match names.as_slice() {
            [] => format!("the program has no kernel `{name}`; it has none at all"),
            names => {
                // PoCL's headers give its own functions such names, and so all that have theirs.
                let is_built_in = names.iter().any(|there| *there == format!("_cl_{name}"));
                let hint = match near(name, names.iter().copied()).first() {
                    _ if is_built_in => {
                        "; it is named like a function of OpenCL C's own, which PoCL renames: give it \
                         another name"
                            .to_owned()
                    }
                    Some(near) => format!("; did you mean `{near}`?"),
                    None => String::new(),
                };
                format!("the program has no kernel `{name}`; it has: {}{hint}", names.join(", "))
            }
        };
        Error::new(ErrorKind::UnknownKernel, message)
    }

    fn names(&self) -> Vec<&str> {
        self.kernels.iter().map(|kernel| kernel.native.name()).collect()
    }
}

/// What the driver and the image or the disk tell, as one.
fn merge(teller: Teller, driver: &[Parameter], others: Option<&[Parameter]>) -> Box<[Parameter]> {
    match others {
        Some(others) if driver.is_empty() => others.into(),
        Some(others) if driver.len() == others.len() && teller == Teller::Image => others.into(),
        Some(others) if driver.len() == others.len() => {
            let both = driver.iter().zip(others).map(|(driver, other)| Parameter {
                name: driver.name.clone().or_else(|| other.name.clone()),
                type_name: driver.type_name.clone().or_else(|| other.type_name.clone()),
                address_space: driver.address_space.or(other.address_space),
                access: driver.access.or(other.access),
                size: driver.size.or(other.size),
            });
            both.collect()
        }
        // Counts that differ mean that the two do not speak of the same signature.
        _ => driver.into(),
    }
}

/// An image built for a device: a handle, cheap to clone, that keeps the program usable.
///
/// With the images that it imports from, if there are any, and all their kernels. A request for an
/// image that shares symbols can be answered by a larger program that holds it and is in memory, such
/// as a library's by that of an application: its kernels are the same.
#[derive(Clone)]
pub struct Program {
    built: Arc<Built>,
    origin: Origin,
}

impl Program {
    pub(crate) fn new(built: Arc<Built>, origin: Origin) -> Self {
        Self { built, origin }
    }

    /// Where it came from, for the request that gave this handle.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The key that names it in every cache.
    #[must_use]
    pub fn key(&self) -> BuildKey {
        self.built.key
    }

    /// The device that it was built for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.built.device
    }

    /// The compiler's messages; empty if there were none.
    #[must_use]
    pub fn build_log(&self) -> &str {
        self.built.build_log()
    }

    /// The names of its kernels, those of linked libraries included, in the driver's order.
    #[must_use]
    pub fn kernel_names(&self) -> Vec<&str> {
        self.built.names()
    }

    /// The device's own form of the program, which [`Image::native`](crate::Image::native) takes.
    ///
    /// # Errors
    ///
    /// [`Driver`](ErrorKind::Driver) or [`OutOfResources`](ErrorKind::OutOfResources) if the driver
    /// does not give it. `OutOfResources` also if the system gives no thread: some drivers compile then.
    pub fn binary(&self) -> Result<Vec<u8>> {
        threads::call("kiln-binary", || self.built.binary())?
    }

    /// A kernel of the program, by name.
    ///
    /// # Safety
    ///
    /// For every launch made through the handle and its clones, the kernel's code stays inside the
    /// buffers and the local memory bound to it, and has no undefined behaviour otherwise.
    ///
    /// A kernel that writes through a pointer which its signature declares `const` gets that buffer as
    /// [`read_write()`](crate::Buffer::read_write): commands are ordered by the signature, which such a
    /// kernel contradicts.
    ///
    /// Launches check arguments against the kernel's parameters as far as those are known. Where
    /// [`Kernel::params`] shows no type, because neither the driver nor the image tells, the
    /// arguments match the kernel's signature. Where it shows the name of a type that is none of
    /// OpenCL C's own scalars and vectors, and no size, a value has the type's size, and the type is
    /// not one of samplers, events or queues: some drivers read as many bytes as they expect.
    ///
    /// # Errors
    ///
    /// [`UnknownKernel`](ErrorKind::UnknownKernel), with the names there are, if the program has
    /// none of that name; [`InvalidArgument`](ErrorKind::InvalidArgument) if the name holds a NUL.
    pub unsafe fn kernel(&self, name: &str) -> Result<Kernel> {
        self.built.kernel(name)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("key", &self.key())
            .field("device", self.device())
            .field("origin", &self.origin)
            .field("kernels", &self.kernel_names())
            .finish()
    }
}

/// An entry point of a program: a handle, cheap to clone, that keeps the program usable.
#[derive(Clone)]
pub struct Kernel(Arc<Inner>);

struct Inner {
    name: Box<str>,
    /// For a kernel of a program that was not there yet.
    build: Option<Build>,
    resolved: OnceLock<Result<ResolvedKernel>>,
}

/// A kernel that is there to be launched.
pub(crate) struct ResolvedKernel {
    pub(crate) native: Arc<dyn backend::Kernel>,
    pub(crate) built: Arc<Built>,
    index: usize,
}

/// A kernel that is not kept.
pub(crate) struct WeakKernel {
    built: Weak<Built>,
    index: usize,
}

impl WeakKernel {
    /// Whether it is that kernel, by whichever handle. The program of what is not kept is never taken for
    /// another.
    pub(crate) fn is(&self, kernel: &ResolvedKernel) -> bool {
        self.index == kernel.index && self.built.as_ptr() == Arc::as_ptr(&kernel.built)
    }
}

impl ResolvedKernel {
    /// The label of the image that it is of, if it has one.
    pub(crate) fn label(&self) -> Option<&str> {
        self.built.recipe()?.label_of(self.native.name())
    }

    pub(crate) fn downgrade(&self) -> WeakKernel {
        WeakKernel { built: Arc::downgrade(&self.built), index: self.index }
    }

    /// What the driver or the image tells of each parameter.
    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.built.kernels[self.index].parameters
    }

    /// What the types of the parameters are made of, as far as their names tell.
    pub(crate) fn elements(&self) -> &[Option<ElementType>] {
        &self.built.kernels[self.index].elements
    }
}

impl Kernel {
    pub(crate) fn of_build(build: &Build, name: &str) -> Self {
        Self::new(name, Some(build.clone()), OnceLock::new())
    }

    fn new(name: &str, build: Option<Build>, resolved: OnceLock<Result<ResolvedKernel>>) -> Self {
        Self(Arc::new(Inner { name: name.into(), build, resolved }))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its parameters, in order, as far as the driver or the image tells. `None` while its program
    /// still builds, or if that failed.
    #[must_use]
    pub fn params(&self) -> Option<&[Parameter]> {
        self.resolved()?.as_ref().ok().map(ResolvedKernel::parameters)
    }

    /// The kernel, or why there is none; `None` while its program still builds. Does not block.
    pub(crate) fn resolved(&self) -> Option<&Result<ResolvedKernel>> {
        let Inner { name, build, resolved } = &*self.0;
        if resolved.get().is_none() {
            let program = build.as_ref()?.peek()?;
            resolved.get_or_init(|| program?.built.resolve(name));
        }
        resolved.get()
    }

    /// Completes when [`resolved`](Self::resolved) tells.
    pub(crate) async fn resolve(&self) {
        let Inner { name, build, resolved } = &*self.0;
        if let (None, Some(build)) = (resolved.get(), build) {
            let program = build.clone().await;
            resolved.get_or_init(|| program?.built.resolve(name));
        }
    }

    /// Whether another handle keeps the kernel and its program.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name())
            .field("params", &self.params())
            .finish()
    }
}
