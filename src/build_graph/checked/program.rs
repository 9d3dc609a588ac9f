//! Checked programs as applications request and use them.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use super::ended::runtime_ended_error;
use crate::build_graph::built::unknown_kernel_error;
use crate::build_graph::kernel::Kernel;
use crate::build_graph::link::LinkedSymbol;
use crate::build_graph::option_report::OptionReport;
use crate::build_graph::program::Program;
use crate::build_graph::request::BuildRequest;
use crate::build_graph::requested::RequestedProgram;
use crate::build_graph::shared_outcome::{SharedOutcome, completed};
use crate::build_graph::{BuildGraph, Origin};
use crate::cache::store::Storage;
use crate::device::Device;
use crate::digest::BuildKey;
use crate::error::{Error, Result};
use crate::process;

/// Request for a [`CheckedProgram`], from [`BuildRequest::checked`]. The build starts when the request is awaited or
/// [started](Self::start).
///
/// # Examples
///
/// ```no_run
/// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
/// let request = rt.build(&module).options("-D RADIUS=4").checked();
/// let program = request.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built until the request is awaited or started"]
pub struct CheckedBuildRequest(BuildRequest);

impl BuildRequest {
    /// Builds a [`CheckedProgram`](crate::CheckedProgram) instead: one whose kernels are analysed and can be launched
    /// without `unsafe`.
    ///
    /// The program is built from the SPIR-V that is analysed. OpenCL C is translated for this: if clang or llvm-spirv is
    /// missing or refuses the text, the build fails. Kernels that cannot be checked disable no others.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let program = rt.build(&module).checked().await?;
    /// let blur = program.kernel("blur")?; // no `unsafe`
    /// rt.queue().submit(blur.launch(x.len()).args((&x,)))?.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn checked(self) -> CheckedBuildRequest {
        CheckedBuildRequest(self)
    }
}

impl CheckedBuildRequest {
    /// Starts the build without waiting for it, to warm up or to launch its kernels before it has ended. The build runs
    /// to its end even if the returned handle is dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let blur = rt.build(&module).checked().start().kernel("blur");
    /// rt.queue().submit(blur.launch(x.len()).args((&x,)))?.await?; // runs after the build
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(self) -> CheckedBuild {
        let (graph, plan) = match self.0.into_plan() {
            Ok(resolved) => resolved,
            Err(error) => return CheckedBuild::failed(error),
        };
        let options = OptionReport::of(&plan);
        CheckedBuild {
            graph: Arc::downgrade(&graph),
            options,
            kernels: graph.request_checked(plan),
        }
    }
}

impl IntoFuture for CheckedBuildRequest {
    type Output = Result<CheckedProgram>;
    type IntoFuture = CheckedBuild;

    fn into_future(self) -> CheckedBuild {
        self.start()
    }
}

/// A requested build of a [`CheckedProgram`]: a future of it, and a handle that can be cloned.
///
/// # Errors
///
/// * Those of [`Build`](crate::build::Build).
/// * [`Unsupported`](crate::ErrorKind::Unsupported) if none of the kernels can be checked, with the reason for the first: for
///   code that the check does not cover, for native binaries, for the kernels of simulated devices, and with what to
///   install if OpenCL C cannot be translated.
///
/// # Cancel safety
///
/// The build does not depend on its handles. Dropping them cancels nothing. Polling again after completion returns the
/// result again.
///
/// # Examples
///
/// ```no_run
/// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
/// let build = rt.build(&module).checked().start();
/// let another = build.clone(); // for another task, which awaits the same build
/// let program = build.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "the build continues, but its program or its error is lost"]
pub struct CheckedBuild {
    graph: Weak<BuildGraph>,
    /// Explains errors that the options of the request caused.
    options: Option<Arc<OptionReport>>,
    kernels: SharedOutcome<Result<Arc<CheckedKernels>>>,
}

impl CheckedBuild {
    fn failed(error: Error) -> Self {
        Self { graph: Weak::new(), options: None, kernels: completed(Err(error)) }
    }

    /// Returns a kernel of the program that is being built, for launches made before the program exists. If the program
    /// has no kernel of that name, or if the kernel cannot be checked, the launches fail.
    ///
    /// Until the program exists, the signatures of its kernels are not known, and a plain `&buffer` counts as read and
    /// written. To keep launches independent that only read the same buffer, pass
    /// [`buffer.read_only()`](crate::Buffer::read_only).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let build = rt.build(&module).checked().start();
    /// let blur = build.kernel("blur");
    /// let event = rt.queue().submit(blur.launch(x.len()).args((&x,)))?; // runs after the build
    /// event.await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kernel(&self, name: &str) -> Kernel {
        let failed = |error| Kernel::of_build(&RequestedProgram::failed(error), name);
        match (self.kernels.peek(), self.graph.upgrade()) {
            (Some(Err(error)), _) => failed(self.explain(error)),
            (Some(Ok(kernels)), _) => kernels.kernel(name).unwrap_or_else(failed),
            (None, None) => failed(runtime_ended_error(name)),
            (None, Some(graph)) => graph.checked_kernel_of(self.kernels.clone(), name),
        }
    }

    fn explain(&self, error: Error) -> Error {
        match &self.options {
            Some(options) => options.explain(error),
            None => error,
        }
    }
}

impl Future for CheckedBuild {
    type Output = Result<CheckedProgram>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = process::check() {
            return Poll::Ready(Err(error));
        }
        let polled = Pin::new(&mut self.kernels).poll(context);
        polled.map(|kernels| match kernels {
            Ok(kernels) => Ok(CheckedProgram(kernels)),
            Err(error) => Err(self.explain(error)),
        })
    }
}

impl fmt::Debug for CheckedBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CheckedBuild")
            .field(&self.kernels.peek().map(|all| all.map(CheckedProgram)))
            .finish()
    }
}

/// A module built for a device, whose kernels are checked before they are launched: a handle, cheap to clone, that keeps
/// the program usable. Launching its kernels is safe.
///
/// Kiln analyses which bytes each work-item may access. A launch that is proven to stay inside its buffers, and to have
/// no other undefined behaviour, runs as it is. Otherwise a guarded variant of the kernel runs: a read outside of a
/// buffer gives zero, and a write outside is dropped. [`Launch::verdict`](crate::Launch::verdict) says which, and why.
/// The [guide](crate::guides::checked) describes the whole contract.
///
/// The program is built once, from the SPIR-V that is analysed. OpenCL C is translated for this, by clang and llvm-spirv,
/// since other compilers may read the text in another way.
///
/// # Examples
///
/// ```no_run
/// # async fn example(rt: kiln::Runtime, module: kiln::Module, x: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let program: kiln::CheckedProgram = rt.build(&module).checked().await?;
/// let blur = program.kernel("blur")?; // no `unsafe`
/// rt.queue().submit(blur.launch(x.len()).args((&x,)))?.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CheckedProgram(Arc<CheckedKernels>);

impl CheckedProgram {
    /// Returns a kernel of the program, by name, whose launches are checked before they run. This is a look-up.
    ///
    /// # Errors
    ///
    /// * [`UnknownKernel`](crate::ErrorKind::UnknownKernel), listing the kernels of the program, if none of them has that name.
    /// * [`Unsupported`](crate::ErrorKind::Unsupported), with the reason, if launches of the kernel cannot be checked: for code
    ///   that the check does not cover.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let program = rt.build(&module).checked().await?;
    /// let blur = program.kernel("blur")?;
    /// rt.queue().submit(blur.launch(x.len()).args((&x,)))?.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        self.0.kernel(name)
    }

    /// Returns the names of the kernels, including those of linked libraries, in alphabetic order. It contains those that
    /// cannot be checked.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(plug_in: kiln::CheckedProgram) {
    /// for name in plug_in.kernel_names() {
    ///     match plug_in.kernel(name) {
    ///         Ok(_) => println!("{name}"),
    ///         Err(error) => println!("{error}"), // why its launches cannot be checked
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn kernel_names(&self) -> Vec<&str> {
        self.0.kernels.keys().map(AsRef::as_ref).collect()
    }

    /// Returns the origin of the program when it was first requested for checked launches.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
    /// if rt.build(&module).checked().await?.origin() == kiln::build::Origin::Compiled {
    ///     println!("it was not in any cache");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.0.program.origin()
    }

    /// Returns whether the program is kept in the store on disk, like [`Program::storage`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
    /// let program = rt.build(&module).checked().await?;
    /// rt.drain().await;
    /// println!("{}", program.storage()); // such as `it is stored`
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn storage(&self) -> Storage {
        self.0.program.storage()
    }

    /// Returns the key of the program in every cache. It is not that of the [`Program`] of the same module.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(program: kiln::CheckedProgram) {
    /// println!("{}", program.key());
    /// # }
    /// ```
    #[must_use]
    pub fn key(&self) -> BuildKey {
        self.0.program.key()
    }

    /// Returns the device that the program was built for.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(program: kiln::CheckedProgram) {
    /// println!("built for {}", program.device());
    /// # }
    /// ```
    #[must_use]
    pub fn device(&self) -> &Device {
        self.0.program.device()
    }

    /// Returns the compiler's messages; empty if there were none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(program: kiln::CheckedProgram) {
    /// eprintln!("{}", program.build_log());
    /// # }
    /// ```
    #[must_use]
    pub fn build_log(&self) -> &str {
        self.0.program.build_log()
    }

    /// Returns the symbols that modules of the program take from other modules, each with the library that it comes from.
    /// Empty for a module that imports nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(program: kiln::CheckedProgram) {
    /// for symbol in program.linked_symbols() {
    ///     println!("{}", symbol.name);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn linked_symbols(&self) -> Vec<LinkedSymbol> {
        self.0.program.linked_symbols()
    }
}

impl fmt::Debug for CheckedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedProgram")
            .field("key", &self.key())
            .field("device", self.device())
            .field("kernels", &self.kernel_names())
            .finish()
    }
}

/// Kernels of a checked program, by name.
pub(in crate::build_graph) struct CheckedKernels {
    pub(super) program: Program,
    /// Each kernel, or the reason why its launches cannot be checked.
    pub(super) kernels: BTreeMap<Box<str>, Result<Kernel>>,
}

impl CheckedKernels {
    /// Returns a kernel.
    ///
    /// # Errors
    ///
    /// [`UnknownKernel`](crate::ErrorKind::UnknownKernel), and the reason why the kernel's launches cannot be checked.
    pub(super) fn kernel(&self, name: &str) -> Result<Kernel> {
        match self.kernels.get(name) {
            Some(known) => known.clone(),
            None => {
                let names: Vec<_> = self.kernels.keys().map(AsRef::as_ref).collect();
                Err(unknown_kernel_error(name, &names))
            }
        }
    }
}
