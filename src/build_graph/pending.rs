//! Builds in progress, as applications await them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::kernel::Kernel;
use super::outcome::Answer;
use super::program::Program;
use super::requested::{RequestDetails, RequestedProgram};
use crate::error::{Error, Result};

/// A requested build: a future of its [`Program`], and a handle that can be cloned.
///
/// # Errors
///
/// * [`BuildFailed`](crate::ErrorKind::BuildFailed), with the compiler's or linker's log, if it refused the
///   program. If the log names a place or a symbol of the program, the failure is kept like a program:
///   requesting it again gives the same error. Otherwise requesting it again compiles again. There is no log if
///   no library, or more than one, exports a symbol that a module imports; a later request resolves the symbol
///   against the libraries that are registered then.
/// * [`Unsupported`](crate::ErrorKind::Unsupported) if the device does not accept the module's format, or does
///   not link it; if a module uses a feature that the device lacks, or an extension that its compiler may not
///   know; if a module has to be translated to OpenCL C, which cannot express it; or if clang or llvm-spirv,
///   which translate OpenCL C, is missing.
/// * [`InvalidModule`](crate::ErrorKind::InvalidModule) for text that is empty or contains a NUL character.
/// * [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for options, constants or a device that do not fit
///   the module.
/// * [`OutOfResources`](crate::ErrorKind::OutOfResources), [`DeviceLost`](crate::ErrorKind::DeviceLost),
///   [`Panicked`](crate::ErrorKind::Panicked), [`Driver`](crate::ErrorKind::Driver), or
///   [`Io`](crate::ErrorKind::Io) (included files have changed meanwhile, or a compiler had no space for its
///   output) for transient failures. They are not kept: requesting the program again builds it again. Requests that
///   joined a build that ran out of resources or panicked get the outcome of one more build, after 0.1 s.
/// * [`Configuration`](crate::ErrorKind::Configuration) if OpenCL C is to be translated and a compiler set for
///   that is not a valid compiler.
/// * For [untrusted](crate::Module::untrusted) modules also: `BuildFailed` if the compiler crashes, which is
///   kept; `Driver` if it does not end in time; and [`Configuration`](crate::ErrorKind::Configuration) or
///   [`NoDevice`](crate::ErrorKind::NoDevice) if there is no [build child](crate::build::build_child), if it is of
///   another version, or if it does not find the device.
///
/// # Cancel safety
///
/// The build does not depend on its handles. Dropping them cancels nothing, and a later request for the same
/// program joins the build or finds its result. Polling again after completion returns the result again.
///
/// # Examples
///
/// ```no_run
/// use kiln::build::Build;
///
/// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
/// let build: Build = rt.build(&module).start();
/// let another = build.clone(); // for another task, which awaits the same build
/// let program = build.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "the build continues, but its program or its error is lost"]
pub struct Build(RequestedProgram);

impl Build {
    pub(super) fn new(answer: Answer, request: RequestDetails) -> Self {
        Self(RequestedProgram::new(answer, request))
    }

    pub(super) fn failed(error: Error) -> Self {
        Self(RequestedProgram::failed(error))
    }

    /// Returns a kernel of the program that is being built, for launches made before the program exists. If the
    /// program has no kernel of that name, the launches fail.
    ///
    /// Until the program exists, the signatures of its kernels are not known, and a plain `&buffer` counts as
    /// read and written. To keep launches independent that only read the same buffer, pass
    /// [`buffer.read_only()`](crate::Buffer::read_only).
    ///
    /// # Safety
    ///
    /// As for [`Program::kernel`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let build = rt.build(&module).start();
    /// // SAFETY: `blur` accesses x[i] for i below the global size only.
    /// let blur = unsafe { build.kernel("blur") };
    /// let event = rt.queue().submit(blur.launch(x.len()).args((&x,)))?; // runs after the build
    /// event.await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub unsafe fn kernel(&self, name: &str) -> Kernel {
        Kernel::of_build(&self.0, name)
    }

    /// Returns the result, if the build has ended. Does not block.
    pub(crate) fn peek(&self) -> Option<Result<Program>> {
        Some(self.0.peek()?.map(Program::of))
    }
}

impl Future for Build {
    type Output = Result<Program>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_ok(Program::of)
    }
}

impl fmt::Debug for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Build").field(&self.peek()).finish()
    }
}
