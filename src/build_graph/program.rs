//! Programs as applications use them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use super::artifact::{Artifact, SignatureSource};
use super::built::{BuildMetadata, Built, Origin};
use super::graph::BuildGraph;
use super::kernel::Kernel;
use super::link::{LinkedSymbol, Resolution};
use super::requested::DeliveredProgram;
use crate::backend;
use crate::cache::store::Storage;
use crate::device::Device;
use crate::digest::BuildKey;
use crate::error::Result;
use crate::process::threads;

/// A module built for a device: a handle, cheap to clone, that keeps the program usable.
///
/// The program includes the modules that its module imports from, if there are any, and all their kernels. A
/// request for a module that shares symbols can be answered by a larger program in memory that contains the
/// module, such as a request for a library by the program of an application: the kernels are the same.
///
/// Getting a kernel of it is `unsafe`: see [`CheckedProgram`](crate::CheckedProgram) for launches without `unsafe`.
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
    /// Modules and symbols of the program for the request that returned this handle.
    resolution: Option<Arc<Resolution>>,
    graph: Weak<BuildGraph>,
}

impl Program {
    pub(super) fn of(delivered: DeliveredProgram) -> Self {
        let DeliveredProgram { built, origin, resolution, graph } = delivered;
        Self { built, origin, resolution, graph }
    }

    /// Returns a program that other code built for a device of the graph.
    pub(crate) fn given(
        graph: &Arc<BuildGraph>,
        position: usize,
        native: Arc<dyn backend::Program>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // The key of no other program, since nothing is known of the code.
        let number = format!("given {} {}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let key = BuildKey(blake3::hash(number.as_bytes()).into());
        let (origin, signature_source) = (Origin::Given, SignatureSource::Driver);
        let build_log = native.build_log().to_owned();
        let (size, parts) = (native.binary_size().unwrap_or_default(), Box::default());
        let (build_log, footprint, recipe) = (&*build_log, None, None);
        let metadata =
            BuildMetadata { origin, build_log, size, footprint, parts, recipe, signature_source };
        let device = graph.device(position).clone();
        let built = Built::new(Artifact::Native(native), device, key, metadata, |_| None);
        built.set_storage(Storage::Given);
        let graph = Arc::downgrade(graph);
        Self { built: Arc::new(built), origin, resolution: None, graph }
    }

    /// Returns the origin of the program for the request that returned this handle.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::build::Origin;
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
    /// use std::future::ready;
    ///
    /// use futures::StreamExt;
    ///
    /// # async fn example(program: kiln::Program, store: kiln::store::Store) {
    /// let is_on_disk = store.entries().any(|entry| ready(entry.key() == program.key())).await;
    /// # }
    /// ```
    #[must_use]
    pub fn key(&self) -> BuildKey {
        self.built.key()
    }

    /// Returns whether the program is kept in the store on disk, and the reason if it is not. A program that is
    /// not stored is compiled anew by each process. Programs of [untrusted](crate::Module::untrusted) modules are
    /// stored like others.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::store::Storage;
    ///
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
    /// let program = rt.build(&module).await?;
    /// rt.drain().await; // programs are written behind their callers
    /// match program.storage() {
    ///     Storage::Stored => {}
    ///     reason => eprintln!("{:.8} is compiled at each start: {reason}", program.key()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn storage(&self) -> Storage {
        self.built.storage()
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
        self.built.device()
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

    /// Returns the symbols that modules of the program take from other modules, each with the library that it
    /// comes from, as they were resolved for the request that returned this handle. Empty for a module that
    /// imports nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, application: kiln::Module) -> kiln::Result<()> {
    /// for symbol in rt.build(&application).await?.linked_symbols() {
    ///     let library = symbol.exporter.label().unwrap_or("unnamed");
    ///     println!("{}: from {library}", symbol.name);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn linked_symbols(&self) -> Vec<LinkedSymbol> {
        self.resolution.iter().flat_map(|resolution| resolution.symbols()).collect()
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
        self.built.kernel_names()
    }

    /// Returns the device's own form of the program, which [`Module::native`](crate::Module::native) takes.
    ///
    /// # Errors
    ///
    /// [`Driver`](crate::ErrorKind::Driver) or [`OutOfResources`](crate::ErrorKind::OutOfResources) if the
    /// driver does not return the binary. `OutOfResources` also if the system provides no thread for the
    /// call, in which some drivers compile.
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
    /// It accesses each buffer in the way that its signature states or, where the launch states another one, in that
    /// way: commands are ordered by this access, and the host may read a [mapped](crate::Queue::map) buffer while a
    /// kernel reads it. If a kernel writes through a pointer that its signature declares `const`, that buffer must be
    /// passed as [`read_write()`](crate::Buffer::read_write).
    ///
    /// Launches check arguments against the kernel's parameters as far as those are known. If
    /// [`Kernel::params`] shows no type, because neither the driver nor the module states it, the arguments
    /// must match the kernel's signature. If it shows no size and the name of a type that is not one of
    /// OpenCL C's own scalars and vectors, a value must have the type's size, and the type must not be a
    /// sampler, event or queue: some drivers read as many bytes as they expect.
    ///
    /// # Errors
    ///
    /// [`UnknownKernel`](crate::ErrorKind::UnknownKernel), listing the kernels of the program, if none of
    /// them has that name; [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name contains a NUL
    /// character.
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
        Kernel::of(&self.built, name, &self.graph)
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
