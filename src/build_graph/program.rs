//! Results of builds: programs and their kernels.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use super::link::near;
use super::plan::{BuildPlan, LinkedModule};
use super::request::Build;
use super::translated::SpirV;
use crate::args::ElementType;
use crate::backend;
use crate::compiler::signature::Parameter;
use crate::device::Device;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::process::threads;
use crate::source::module::Module;

/// Origin of a program: a compile, or the cache that it was loaded from.
///
/// # Examples
///
/// ```no_run
/// use kiln::Origin;
///
/// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
/// match rt.build(&module).await?.origin() {
///     Origin::Compiled => println!("the driver compiled it"),
///     origin => println!("found in a cache: {origin}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The driver built the program for this request, or for one that was made while the build ran.
    Compiled,
    /// The program was in memory, from an earlier request.
    Memory,
    /// The program was loaded from the disk.
    Disk,
    /// The program was loaded from a remote cache.
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

/// A program in the build graph. Each reference keeps the program usable, even after it is evicted.
pub(crate) struct Built {
    native: Arc<dyn backend::Program>,
    kernels: Box<[BuiltKernel]>,
    device: Device,
    key: BuildKey,
    origin: Origin,
    build_log: Box<str>,
    weight: AtomicUsize,
    parts: Box<[LinkedModule]>,
    /// Build plan that the program was built from, for fusing its kernels.
    plan: OnceLock<BuildPlan>,
    /// Whether any request that received the program marked its modules as untrusted.
    is_untrusted: AtomicBool,
}

/// Facts about a program that are not reported by its driver.
pub(crate) struct BuildMetadata<'a> {
    /// Origin of the program.
    pub(crate) origin: Origin,
    /// Messages of the compiler that built the program.
    pub(crate) build_log: &'a str,
    /// Size of the program in bytes.
    pub(crate) size: usize,
    /// Modules that the program was linked from; empty if it was not linked.
    pub(crate) parts: Box<[LinkedModule]>,
    /// Preferred source of the signatures of its kernels.
    pub(crate) source: SignatureSource,
}

/// Source of a kernel's parameters that takes precedence where two sources differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureSource {
    /// The driver, which reports on the program that it built. The other source fills the gaps.
    Driver,
    /// The module, or the stored record of it: the driver was given a translation.
    Module,
}

struct BuiltKernel {
    native: Arc<dyn backend::Kernel>,
    parameters: Box<[Parameter]>,
    /// Element type of each parameter, if it is known.
    elements: Box<[Option<ElementType>]>,
}

impl Built {
    pub(crate) fn new(
        native: Arc<dyn backend::Program>,
        device: Device,
        key: BuildKey,
        metadata: BuildMetadata<'_>,
        parameters: impl Fn(&str) -> Option<Vec<Parameter>>,
    ) -> Self {
        let kernels = native.kernels().iter().map(|kernel| {
            let others = parameters(kernel.name());
            let parameters = merge(metadata.source, kernel.parameters(), others.as_deref());
            let elements = parameters.iter().map(ElementType::of).collect();
            BuiltKernel { native: Arc::clone(kernel), parameters, elements }
        });
        let kernels = kernels.collect();
        let BuildMetadata { origin, build_log, size, parts, .. } = metadata;
        let build_log = build_log.into();
        let (weight, plan, is_untrusted) = (size.into(), OnceLock::new(), AtomicBool::new(false));
        Self { kernels, native, device, key, origin, build_log, weight, parts, plan, is_untrusted }
    }

    /// Returns the plan that the program was built from, once the build has ended.
    pub(crate) fn plan(&self) -> Option<&BuildPlan> {
        self.plan.get()
    }

    pub(crate) fn set_plan(&self, plan: &BuildPlan) {
        self.plan.get_or_init(|| plan.clone());
    }

    /// Whether everything compiled from this program must be compiled outside this process.
    pub(crate) fn is_untrusted(&self) -> bool {
        self.is_untrusted.load(Relaxed)
    }

    /// Marks the program as untrusted, because a request that does not trust its modules received it. The
    /// program itself stays as it is. Everything compiled from it later, for any request, is compiled as
    /// untrusted.
    pub(crate) fn distrust(&self) {
        self.is_untrusted.store(true, Relaxed);
    }

    /// Returns the key of the program in every cache.
    pub(crate) fn key(&self) -> BuildKey {
        self.key
    }

    /// Returns a kernel of the program, under the safety contract of [`Program::kernel`].
    pub(super) fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        let resolved = self.resolve(name)?;
        Ok(Kernel::new(name, None, OnceLock::from(Ok(resolved))))
    }

    /// Returns the origin of the program before it was in memory.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the compiler's messages.
    pub(crate) fn build_log(&self) -> &str {
        &self.build_log
    }

    /// Returns the names of its kernels with their parameters, as far as these are known.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = (&str, &[Parameter])> {
        self.kernels.iter().map(|kernel| (kernel.native.name(), &*kernel.parameters))
    }

    /// Returns the SPIR-V if this node is SPIR-V and not a driver's program.
    pub(crate) fn spirv(&self) -> Option<&Module> {
        let native: &dyn std::any::Any = &*self.native;
        native.downcast_ref::<SpirV>().map(SpirV::module)
    }

    /// Returns the driver's program.
    pub(crate) fn native(&self) -> &dyn backend::Program {
        &*self.native
    }

    /// Returns the modules that the program was linked from; empty if it was not linked.
    pub(crate) fn parts(&self) -> &[LinkedModule] {
        &self.parts
    }

    /// Returns the driver's binary.
    pub(crate) fn binary(&self) -> Result<Vec<u8>> {
        self.native.binary()
    }

    /// Returns the weight against the memory limit: the size of its binary in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.weight.load(Relaxed)
    }

    /// Corrects the weight. A cache that holds the program has to weigh it again.
    pub(crate) fn set_weight(&self, bytes: usize) {
        self.weight.store(bytes, Relaxed);
    }

    /// Returns the device that the program was built for.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    fn resolve(self: &Arc<Self>, name: &str) -> Result<ResolvedKernel> {
        if let Some(at) = name.find('\0') {
            return Err(Error::invalid(format!(
                "the kernel name {name:?} contains a NUL character at byte {at}; remove it"
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
            [] => format!("the program has no kernel `{name}`; it has no kernels"),
            names => {
                // PoCL's headers rename its built-in functions this way, and with them every kernel that has
                // the name of one.
                let is_built_in = names.iter().any(|there| *there == format!("_cl_{name}"));
                let hint = match near(name, names.iter().copied()).first() {
                    _ if is_built_in => {
                        "; it has the name of a built-in function of OpenCL C, which PoCL renames: \
                         give it another name"
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

/// Merges the parameters from the driver with those from the module or the disk.
fn merge(
    source: SignatureSource,
    driver: &[Parameter],
    others: Option<&[Parameter]>,
) -> Box<[Parameter]> {
    match others {
        Some(others) if driver.is_empty() => others.into(),
        Some(others) if driver.len() == others.len() && source == SignatureSource::Module => {
            others.into()
        }
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
        // Different counts mean that the two sources do not describe the same signature.
        _ => driver.into(),
    }
}

/// A module built for a device: a handle, cheap to clone, that keeps the program usable.
///
/// The program includes the modules that its module imports from, if there are any, and all their kernels. A
/// request for a module that shares symbols can be answered by a larger program in memory that contains the
/// module, such as a request for a library by the program of an application: the kernels are the same.
///
/// # Examples
///
/// ```no_run
/// # async fn example(rt: kiln::Runtime, module: kiln::Module, x: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let program = rt.build(&module).await?;
/// // SAFETY: `blur` accesses x[i] for i below the global size only.
/// let blur = unsafe { program.kernel("blur")? };
/// rt.queue().submit(blur.launch(x.len()).args((&x,)))?.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Program {
    built: Arc<Built>,
    origin: Origin,
}

impl Program {
    pub(crate) fn new(built: Arc<Built>, origin: Origin) -> Self {
        Self { built, origin }
    }

    /// Returns the origin of the program for the request that returned this handle.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Origin;
    ///
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
    /// let program = rt.build(&module).await?;
    /// if program.origin() == Origin::Compiled {
    ///     println!("cold start: {:.8} was not in any cache", program.key());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the key of the program in every cache.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(program: kiln::Program, store: kiln::store::Store) {
    /// let is_on_disk = store.entries().any(|entry| entry.key() == program.key());
    /// # }
    /// ```
    #[must_use]
    pub fn key(&self) -> BuildKey {
        self.built.key
    }

    /// Returns the device that the program was built for.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(program: kiln::Program) {
    /// let device = program.device();
    /// println!("built for {device}, with {} compute units", device.limits.compute_units);
    /// # }
    /// ```
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.built.device
    }

    /// Returns the compiler's messages; empty if there were none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
    /// let program = rt.build(&module).options("-cl-nv-verbose").await?;
    /// if !program.build_log().is_empty() {
    ///     eprintln!("the compiler reports:\n{}", program.build_log());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn build_log(&self) -> &str {
        self.built.build_log()
    }

    /// Returns the names of the kernels, including those of linked libraries, in the driver's order.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(plug_in: kiln::Program) {
    /// let filters = plug_in.kernel_names().into_iter().filter(|name| name.starts_with("filter_"));
    /// for filter in filters {
    ///     println!("{filter}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn kernel_names(&self) -> Vec<&str> {
        self.built.names()
    }

    /// Returns the device's own form of the program, which [`Module::native`](crate::Module::native) takes.
    ///
    /// # Errors
    ///
    /// [`Driver`](ErrorKind::Driver) or [`OutOfResources`](ErrorKind::OutOfResources) if the driver does not
    /// return the binary. `OutOfResources` also if the system provides no thread: some drivers compile in this
    /// call.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> Result<(), Box<dyn std::error::Error>> {
    /// let program = rt.build(&module).await?;
    /// std::fs::write("blur.bin", program.binary()?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn binary(&self) -> Result<Vec<u8>> {
        threads::call("kiln-binary", || self.built.binary())?
    }

    /// Returns a kernel of the program, by name.
    ///
    /// # Safety
    ///
    /// For every launch made through the handle and its clones, the kernel's code stays inside the buffers and
    /// the local memory bound to it, and has no undefined behaviour otherwise.
    ///
    /// If a kernel writes through a pointer that its signature declares `const`, that buffer must be passed as
    /// [`read_write()`](crate::Buffer::read_write): commands are ordered by the signature, which such a kernel
    /// contradicts.
    ///
    /// Launches check arguments against the kernel's parameters as far as those are known. If
    /// [`Kernel::params`] shows no type, because neither the driver nor the module states it, the arguments
    /// must match the kernel's signature. If it shows no size and the name of a type that is not one of
    /// OpenCL C's own scalars and vectors, a value must have the type's size, and the type must not be a
    /// sampler, event or queue: some drivers read as many bytes as they expect.
    ///
    /// # Errors
    ///
    /// [`UnknownKernel`](ErrorKind::UnknownKernel), listing the kernels of the program, if none of them has
    /// that name; [`InvalidArgument`](ErrorKind::InvalidArgument) if the name holds a NUL.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::{Buffer, Event, Kernel, Queue, Result};
    ///
    /// /// Owns the kernel, so that nothing else can launch it.
    /// struct Scale(Kernel);
    ///
    /// impl Scale {
    ///     fn new(program: &kiln::Program) -> Result<Self> {
    ///         // SAFETY: `run` launches the kernel over as many work-items as the buffer has elements.
    ///         unsafe { program.kernel("scale") }.map(Self)
    ///     }
    ///
    ///     fn run(&self, queue: &Queue, factor: f32, x: &Buffer<f32>) -> Result<Event> {
    ///         queue.submit(self.0.launch(x.len()).args((factor, x)))
    ///     }
    /// }
    /// ```
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
///
/// # Examples
///
/// ```no_run
/// # async fn example(
/// #     program: kiln::Program,
/// #     queue: kiln::Queue,
/// #     x: kiln::Buffer<f32>,
/// # ) -> kiln::Result<()> {
/// // SAFETY: `scale` accesses x[i] for i below the global size only.
/// let scale = unsafe { program.kernel("scale")? };
/// for factor in [0.5f32, 3.0] {
///     queue.submit(scale.launch(x.len()).args((factor, &x)))?; // in this order, because of `x`
/// }
/// let scaled = queue.read(&x).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Kernel(Arc<Inner>);

struct Inner {
    name: Box<str>,
    /// Build of the program, for a kernel that was named before the program existed.
    build: Option<Build>,
    resolved: OnceLock<Result<ResolvedKernel>>,
}

/// A kernel of an existing program, ready to launch.
pub(crate) struct ResolvedKernel {
    pub(crate) native: Arc<dyn backend::Kernel>,
    pub(crate) built: Arc<Built>,
    index: usize,
}

/// A weak reference to a kernel: it does not keep the program alive.
pub(crate) struct WeakKernel {
    built: Weak<Built>,
    index: usize,
}

impl WeakKernel {
    /// Whether this refers to `kernel`, regardless of the handle used. A program that has been freed is never
    /// mistaken for another one: the weak reference keeps its address from being reused.
    pub(crate) fn is(&self, kernel: &ResolvedKernel) -> bool {
        self.index == kernel.index && self.built.as_ptr() == Arc::as_ptr(&kernel.built)
    }
}

impl ResolvedKernel {
    /// Returns the label of the module that contains the kernel, if it has one.
    pub(crate) fn label(&self) -> Option<&str> {
        self.built.plan()?.label_of(self.native.name())
    }

    pub(crate) fn downgrade(&self) -> WeakKernel {
        WeakKernel { built: Arc::downgrade(&self.built), index: self.index }
    }

    /// Returns the parameters as far as the driver or the module states them.
    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.built.kernels[self.index].parameters
    }

    /// Returns the element types of the parameters, as far as the names of their types are known.
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

    /// Returns the name of the kernel.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     queue: kiln::Queue,
    /// #     kernel: kiln::Kernel,
    /// #     x: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// let started = std::time::Instant::now();
    /// queue.submit(kernel.launch(x.len()).args((&x,)))?.await?;
    /// println!("{}: {:?}", kernel.name(), started.elapsed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the parameters in order, as far as the driver or the module states them. Returns `None` while
    /// the program is being built, or if the build failed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(kernel: kiln::Kernel) {
    /// for parameter in kernel.params().unwrap_or_default() {
    ///     let type_name = parameter.type_name.as_deref().unwrap_or("?");
    ///     let name = parameter.name.as_deref().unwrap_or("?");
    ///     println!("{type_name} {name}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn params(&self) -> Option<&[Parameter]> {
        self.resolved()?.as_ref().ok().map(ResolvedKernel::parameters)
    }

    /// Returns the kernel, or the error if there is none. Returns `None` while the program is being built. Does
    /// not block.
    pub(crate) fn resolved(&self) -> Option<&Result<ResolvedKernel>> {
        let Inner { name, build, resolved } = &*self.0;
        if resolved.get().is_none() {
            let program = build.as_ref()?.peek()?;
            resolved.get_or_init(|| program?.built.resolve(name));
        }
        resolved.get()
    }

    /// Completes when [`resolved`](Self::resolved) returns a result.
    pub(crate) async fn resolve(&self) {
        let Inner { name, build, resolved } = &*self.0;
        if let (None, Some(build)) = (resolved.get(), build) {
            let program = build.clone().await;
            resolved.get_or_init(|| program?.built.resolve(name));
        }
    }

    /// Whether another handle keeps the kernel and its program alive.
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
