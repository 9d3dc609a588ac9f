//! Kernels as applications use them.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use kiln_compiler::WorkGroup;
use kiln_spirv::Parameter;

use super::built::{Built, ResolvedKernel};
use super::checked::{Checks, graph_of};
use super::graph::BuildGraph;
use super::requested::RequestedProgram;
use crate::error::{Error, Result};

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
    build: Option<RequestedProgram>,
    resolved: OnceLock<Result<ResolvedKernel>>,
    graph: Weak<BuildGraph>,
    /// Whether launches are checked before they run.
    is_checked: bool,
    /// Whether fusion made the kernel.
    is_fused: bool,
    /// Checks of the launches: from the start for a checked kernel, otherwise once they are needed.
    checks: OnceLock<Arc<Checks>>,
}

impl Kernel {
    /// Returns a kernel of a program, under the safety contract of
    /// [`Program::kernel`](super::Program::kernel).
    pub(super) fn of(built: &Arc<Built>, name: &str, graph: &Weak<BuildGraph>) -> Result<Self> {
        let resolved = built.resolve(name)?;
        Ok(Self::new(name, Ok(resolved), graph.clone(), None, false))
    }

    /// Returns the kernel of a program that fusion made.
    pub(super) fn of_fused(
        built: &Arc<Built>,
        name: &str,
        graph: &Weak<BuildGraph>,
    ) -> Result<Self> {
        let resolved = built.resolve(name)?;
        Ok(Self::new(name, Ok(resolved), graph.clone(), None, true))
    }

    pub(super) fn of_build(build: &RequestedProgram, name: &str) -> Self {
        Self::new(name, Err(build.clone()), build.graph().clone(), None, false)
    }

    /// Returns a kernel whose launches are checked: the kernel of the program that was analysed, or the request
    /// for this program.
    pub(super) fn checked(
        name: &str,
        kernel: std::result::Result<ResolvedKernel, RequestedProgram>,
        graph: &Arc<BuildGraph>,
        checks: Arc<Checks>,
    ) -> Self {
        Self::new(name, kernel, Arc::downgrade(graph), Some(checks), false)
    }

    fn new(
        name: &str,
        kernel: std::result::Result<ResolvedKernel, RequestedProgram>,
        graph: Weak<BuildGraph>,
        checks: Option<Arc<Checks>>,
        is_fused: bool,
    ) -> Self {
        let (resolved, build) = match kernel {
            Ok(resolved) => (OnceLock::from(Ok(resolved)), None),
            Err(build) => (OnceLock::new(), Some(build)),
        };
        let is_checked = checks.is_some();
        let checks = checks.map_or_else(OnceLock::new, OnceLock::from);
        let name = name.into();
        Self(Arc::new(Inner { name, build, resolved, graph, is_checked, is_fused, checks }))
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

    /// Returns the maximum and preferred sizes of the kernel's work-groups, and the local and private memory that
    /// it needs, as far as the driver reports them. May call the driver. Returns `None` while the program is
    /// being built, or if the build failed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: kiln::Queue, blur: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let group = blur.work_group().unwrap_or_default().size_up_to(256);
    /// let range = x.len().next_multiple_of(group); // `blur` ignores work-items beyond the length
    /// queue.submit(blur.launch(range).local(group).args((&x, x.len())))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn work_group(&self) -> Option<WorkGroup> {
        let native = &self.resolved()?.as_ref().ok()?.native;
        Some(WorkGroup::new(
            native.max_work_group_size(),
            native.preferred_multiple(),
            native.required_work_group(),
            native.local_memory(),
            native.private_memory(),
        ))
    }

    /// Returns the kernel, or the error if there is none. Returns `None` while the program is being built. Does
    /// not block.
    pub(crate) fn resolved(&self) -> Option<&Result<ResolvedKernel>> {
        let Inner { name, build, resolved, .. } = &*self.0;
        if resolved.get().is_none() {
            let program = build.as_ref()?.peek()?;
            resolved.get_or_init(|| program?.built.resolve(name));
        }
        resolved.get()
    }

    /// Returns the kernel of a program that is built.
    ///
    /// # Errors
    ///
    /// The error of the build, and [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if it has not ended.
    pub(crate) fn built(&self) -> Result<&ResolvedKernel> {
        match self.resolved() {
            Some(Ok(resolved)) => Ok(resolved),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::invalid("its program is not built yet")),
        }
    }

    /// Completes when [`resolved`](Self::resolved) returns a result.
    pub(crate) async fn resolve(&self) {
        let Inner { name, build, resolved, .. } = &*self.0;
        if let (None, Some(build)) = (resolved.get(), build) {
            let program = build.clone().await;
            resolved.get_or_init(|| program?.built.resolve(name));
        }
    }

    /// Waits until it is known whether the kernel can be launched: for the build of its program and, if its launches
    /// are checked, for the analysis of the kernel.
    ///
    /// # Errors
    ///
    /// The errors of the build and of the analysis.
    pub(crate) async fn fitness(&self) -> Result<()> {
        self.resolve().await;
        self.built()?;
        match self.is_checked() {
            true => self.checks()?.analysis().await.map(drop),
            false => Ok(()),
        }
    }

    /// Whether another handle is of the same kernel object.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether launches are checked before they run.
    pub(crate) fn is_checked(&self) -> bool {
        self.0.is_checked
    }

    /// Returns the checks of the kernel's launches. Creates them for a kernel that is not checked, whose
    /// program must be built.
    ///
    /// # Errors
    ///
    /// The errors of the build, and those of [`CheckedProgram::kernel`](super::CheckedProgram::kernel).
    pub(crate) fn checks(&self) -> Result<&Arc<Checks>> {
        let Inner { name, graph, checks, is_fused, .. } = &*self.0;
        if let Some(known) = checks.get() {
            return Ok(known);
        }
        let new = graph_of(graph, name)?.checks_of(&self.built()?.built, name, *is_fused)?;
        Ok(checks.get_or_init(|| new))
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
            .field("checked", &self.is_checked())
            .finish()
    }
}
