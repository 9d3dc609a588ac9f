//! Launches of checked kernels: the decision how each runs, and verdicts for applications.

use std::sync::Arc;

use super::launch::Launch;
use super::launch_work::LaunchWork;
use crate::args::{Argument, ArgumentKind, Seal};
use crate::build_graph::{Decision, Guard, Kernel, LaunchShape};
use crate::compiler::bounds::LaunchVerdict;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::future::named_future;
use crate::stats::Counters;

impl LaunchWork {
    /// Whether the launch must not run before it is checked, or was checked already.
    pub(crate) fn is_checked(&self) -> bool {
        self.is_guarded || self.kernel.is_checked()
    }

    /// Whether this is a launch of a guarded variant.
    pub(crate) fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// Checks a launch of a checked kernel, whose arguments fit its signature. Replaces the kernel by its
    /// guarded variant if the launch is not proven. Returns `false` if the analysis or the variant is not ready
    /// yet.
    ///
    /// # Errors
    ///
    /// As for [`Queue::submit`](crate::Queue::submit).
    pub(super) fn secure(&mut self, device: &Device, counters: &Counters) -> Result<bool> {
        if !self.kernel.is_checked() {
            return match self.needs_proof {
                true => Err(Error::invalid(format!(
                    "a launch of `{0}` must be proven, but the kernel is not checked; get it from \
                     `program.checked(\"{0}\")`",
                    self.kernel.name()
                ))),
                false => Ok(true),
            };
        }
        let Some(Ok(kernel)) = self.kernel.resolved() else { return Ok(false) };
        let launch = (&self.range, &self.arguments);
        let Some(decision) = self.kernel.checks()?.decide(kernel, launch, self.needs_proof) else {
            return Ok(false);
        };
        match decision? {
            Decision::Proven => counters.launches_proven.add_one(),
            Decision::Guarded(guard) => {
                match guard.kernel.resolved() {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(in_guarded(&guard, error.clone())),
                    None => return Ok(false),
                }
                self.guard_with(&guard);
                self.check(device).transpose()?;
                counters.launches_guarded.add_one();
            }
        }
        Ok(true)
    }

    /// Makes this a launch of a guarded variant of its kernel.
    fn guard_with(&mut self, guard: &Guard) {
        let accesses: Vec<_> = {
            let parameters = self.kernel.params().unwrap_or_default();
            parameters.iter().map(|parameter| parameter.access).collect()
        };
        for (argument, access) in self.arguments.iter_mut().zip(accesses) {
            if let ArgumentKind::Memory(_, stated @ None) = &mut argument.kind {
                // The variant's signature need not state it.
                *stated = access;
            }
        }
        for &at in &guard.lengths {
            let length = match self.arguments.get(at).map(|argument| &argument.kind) {
                Some(ArgumentKind::Memory(region, _)) => region.bytes().len(),
                Some(ArgumentKind::Local(bytes)) => *bytes,
                _ => 0,
            };
            self.arguments.push((length as u64).into_value(Seal));
        }
        self.kernel = guard.kernel.clone();
        self.is_guarded = true;
    }

    /// Checks that a fused kernel stays inside its memory by itself, for launches that are checked.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported), with the reason, if that is not proven.
    pub(super) fn prove(&self) -> Result<()> {
        let launch = (&self.range, &self.arguments);
        match self.kernel.checks()?.prove(self.kernel.built()?, launch) {
            Some(proven) => proven,
            None => Err(Error::unsupported("fused kernels of untrusted modules are not checked")),
        }
    }

    /// Returns what a launch that is not ready waits for.
    pub(super) fn pending(&self) -> PendingLaunch {
        let is_checked = self.kernel.is_checked();
        let shape = is_checked.then(|| LaunchShape::of(&self.range, &self.arguments));
        PendingLaunch { kernel: self.kernel.clone(), shape, needs_proof: self.needs_proof }
    }

    /// Completes a launch that was pending. Does nothing if the launch runs as a part of another one by now.
    pub(super) fn complete(&mut self, pending: &PendingLaunch, guard: &Guard) {
        if self.kernel.is_same(&pending.kernel) {
            self.guard_with(guard);
        }
    }
}

/// Launch that was submitted before its program was built, or before it was decided how it runs.
pub(super) struct PendingLaunch {
    kernel: Kernel,
    /// Shape of the launch of a checked kernel.
    shape: Option<LaunchShape>,
    needs_proof: bool,
}

impl PendingLaunch {
    pub(super) fn is_checked(&self) -> bool {
        self.shape.is_some()
    }

    /// Waits until the launch can run. Returns the guarded variant if it must run in place of the kernel.
    /// Errors of the kernel's own build are not returned: the kernel has them.
    ///
    /// # Errors
    ///
    /// As for [`LaunchWork::secure`].
    pub(super) async fn ready(&self) -> Result<Option<Arc<Guard>>> {
        self.kernel.resolve().await;
        let (Some(shape), Some(Ok(_))) = (&self.shape, self.kernel.resolved()) else {
            return Ok(None);
        };
        let checks = Arc::clone(self.kernel.checks()?);
        match checks.decided(&self.kernel, shape.clone(), self.needs_proof).await? {
            Decision::Proven => Ok(None),
            Decision::Guarded(guard) => match guard.kernel.resolved() {
                Some(Err(error)) => Err(in_guarded(&guard, error.clone())),
                _ => Ok(Some(guard)),
            },
        }
    }
}

/// Returns the error of the build of a guarded variant.
fn in_guarded(guard: &Guard, error: Error) -> Error {
    error.within(format_args!("the guarded variant of `{}`", guard.kernel.name()))
}

impl Launch {
    /// Returns the verdict on the launch: whether it is proven to stay inside its buffers, and otherwise what a
    /// guarded variant guards. The future waits for the program, and for the translation of OpenCL C. Nothing
    /// is run, and no guarded variant is built. If there are findings about OpenCL C, it is translated once more,
    /// for their lines.
    ///
    /// The kernel need not be [checked](crate::Program::checked). Of an unchecked kernel of OpenCL C, the
    /// verdict is about the text as clang reads it.
    ///
    /// # Errors
    ///
    /// From the future: the error of the build, those of [`Program::checked`](crate::Program::checked), and
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for arguments that do not fit the kernel.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(tone: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let verdict = tone.launch(x.len()).args((&x, 0.5f32)).verdict().await?;
    /// println!("{verdict}"); // such as "`tone` is proven: all 2 accesses stay inside their memory"
    /// # Ok(())
    /// # }
    /// ```
    pub fn verdict(&self) -> Checking {
        let LaunchWork { kernel, range, arguments, .. } = &*self.work;
        let (kernel, shape) = (kernel.clone(), LaunchShape::of(range, arguments));
        let mistake = self.mistake.clone();
        Checking::new(async move {
            if let Some(mistake) = mistake {
                return Err(mistake);
            }
            kernel.resolve().await;
            let checks = Arc::clone(kernel.checks()?);
            checks.verdict(kernel, shape).await
        })
    }

    /// Makes the launch an error if it is not proven to stay inside its buffers, instead of running a guarded
    /// variant of the kernel. [`RuntimeBuilder::checked`](crate::RuntimeBuilder::checked) sets this for all
    /// checked launches.
    ///
    /// The kernel must be [checked](crate::Program::checked); otherwise the launch is an error, too.
    ///
    /// The error names the findings. [`Queue::submit`](crate::Queue::submit) does not wait for compilers, so that
    /// its error names lines of OpenCL C only after [`verdict`](Self::verdict) did for the same kernel.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, tone: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// queue.submit(tone.launch(x.len()).args((&x, 0.5f32)).require_proof())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn require_proof(mut self) -> Self {
        self.work.needs_proof = true;
        self
    }
}

named_future! {
    /// Future of the verdict on a launch, from [`Launch::verdict`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(tone: kiln::Kernel, tiles: Vec<kiln::Buffer<f32>>) -> kiln::Result<()> {
    /// let checks = tiles.iter().map(|tile| tone.launch(tile.len()).args((tile, 0.5f32)).verdict());
    /// let checks: Vec<kiln::Checking> = checks.collect();
    /// for check in checks {
    ///     println!("{}", check.await?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    Checking => Result<LaunchVerdict>
}
