//! Kernels as applications use them.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::built::{Built, ResolvedKernel};
use super::requested::RequestedProgram;
use crate::compiler::signature::Parameter;
use crate::error::Result;

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
}

impl Kernel {
    /// Returns a kernel of a program, under the safety contract of
    /// [`Program::kernel`](super::Program::kernel).
    pub(super) fn of(built: &Arc<Built>, name: &str) -> Result<Self> {
        let resolved = built.resolve(name)?;
        Ok(Self::new(name, None, OnceLock::from(Ok(resolved))))
    }

    pub(super) fn of_build(build: &RequestedProgram, name: &str) -> Self {
        Self::new(name, Some(build.clone()), OnceLock::new())
    }

    fn new(
        name: &str,
        build: Option<RequestedProgram>,
        resolved: OnceLock<Result<ResolvedKernel>>,
    ) -> Self {
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
