//! Decisions how launches run: as the kernel itself or as a variant of it. Verdicts for applications.

use std::sync::Arc;

use kiln_compiler::bounds::{LaunchVerdict, Offset};
use smallvec::SmallVec;

use super::launch::Launch;
use super::launch_work::{LaunchWork, VariantKind};
use crate::args::{Argument, ArgumentKind, ArgumentList, Seal, describe};
use crate::build_graph::{Decision, Kernel, LaunchShape, Variant};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::future::named_future;

impl LaunchWork {
    /// Whether this launch requires a check, or has passed one.
    pub(crate) fn is_checked(&self) -> bool {
        self.variant.is_some_and(|variant| variant.is_checked) || self.kernel.is_checked()
    }

    /// Whether this is a launch of a guarded variant.
    pub(crate) fn is_guarded(&self) -> bool {
        self.variant.is_some_and(|variant| variant.is_guarded)
    }

    /// Fails if the launch must be proven, but its kernel is not checked.
    ///
    /// # Errors
    ///
    /// As for [`Queue::submit`](crate::Queue::submit).
    pub(super) fn check_proof(&self) -> Result<()> {
        if !self.needs_proof || self.kernel.is_checked() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a launch of `{}` must be proven, but the kernel is not checked; get it from a \
             `CheckedProgram`, as `rt.build(&module).checked().await?` returns",
            self.kernel.name()
        )))
    }

    /// Decides how a launch runs: whether its arguments fit, whether it is proven if it is checked, and whether the
    /// device takes the slices among its arguments. Replaces the kernel by a variant if it must. Returns `false` if the
    /// program, the analysis or the variant is not ready yet: then what is [pending](Self::pending) decides.
    ///
    /// # Errors
    ///
    /// As for [`Queue::submit`](crate::Queue::submit).
    pub(super) fn resolve_variant(&mut self, device: &Device) -> Result<bool> {
        if self.check(device).transpose()?.is_none() {
            return Ok(false);
        }
        let Some(variant) = self.known_variant() else { return Ok(false) };
        self.run_as(variant?.as_deref(), device).map(|()| true)
    }

    /// Decides how a launch runs that was not ready, given what [`PendingLaunch::ready`] returned. Decides nothing if
    /// the launch runs as a part of another one by now.
    ///
    /// # Errors
    ///
    /// As for [`resolve_variant`](Self::resolve_variant).
    pub(super) fn settle(
        &mut self,
        pending: &PendingLaunch,
        ready: &Result<Option<Arc<Variant>>>,
        device: &Device,
    ) -> Result<()> {
        self.check(device).transpose()?;
        let variant = ready.as_ref().map_err(|error| self.pending_error(error.clone()))?;
        match self.kernel.is_same(&pending.kernel) {
            true => self.run_as(variant.as_deref(), device),
            false => Ok(()),
        }
    }

    /// Returns the variant that must run in place of the kernel, if there is one; `None` if the analysis or the variant
    /// is not ready yet.
    fn known_variant(&self) -> Option<Result<Option<Arc<Variant>>>> {
        let is_checked = self.kernel.is_checked();
        // The check of a checked launch finds its slices by itself.
        if !is_checked && self.regions().all(|region| region.lead() == 0) {
            return Some(Ok(None));
        }
        let checks = match self.kernel.checks() {
            Ok(checks) => checks,
            Err(error) => return Some(Err(self.pending_error(error))),
        };
        let variant = if is_checked {
            let launch = (&self.range, &self.arguments);
            let kernel = self.kernel.resolved()?.as_ref().ok()?;
            match checks.decide(kernel, launch, self.needs_proof)? {
                Ok(Decision::Proven) => return Some(Ok(None)),
                Ok(Decision::Variant(variant)) => variant,
                Err(error) => return Some(Err(error)),
            }
        } else {
            match checks.with_offsets(&self.unaligned())? {
                Ok(variant) => variant,
                Err(error) => return Some(Err(self.pending_error(error))),
            }
        };
        match variant.kernel.resolved()? {
            Ok(_) => Some(Ok(Some(variant))),
            Err(error) => Some(Err(in_variant(&variant, error.clone()))),
        }
    }

    /// Makes this a launch of a variant of its kernel, if there is one, and checks it again.
    fn run_as(&mut self, variant: Option<&Variant>, device: &Device) -> Result<()> {
        let Some(variant) = variant else { return Ok(()) };
        self.replace_by(variant)?;
        self.check(device).transpose().map(drop)
    }

    /// Returns the positions of the slices that the device does not take as arguments.
    fn unaligned(&self) -> SmallVec<[usize; 4]> {
        let arguments = self.arguments.iter().enumerate();
        let is_unaligned = |kind: &ArgumentKind| match kind {
            ArgumentKind::Memory(region, _) => region.lead() > 0,
            ArgumentKind::Value(_) | ArgumentKind::Local(_) | ArgumentKind::Sampler(_) => false,
        };
        arguments.filter(|(_, given)| is_unaligned(&given.kind)).map(|(at, _)| at).collect()
    }

    /// Returns the error for a slice that the device does not take, given the reason why the kernel cannot add its
    /// offset.
    fn no_offsets_error(&self, reason: &Error) -> Error {
        let regions = self.arguments.iter().enumerate().find_map(|(at, given)| match &given.kind {
            ArgumentKind::Memory(region, _) if region.lead() > 0 => Some((at, region)),
            _ => None,
        });
        let Some((at, region)) = regions else { return reason.clone() };
        let error = Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{}, and the kernel cannot be changed to start there: {reason}",
                region.unaligned_error()
            ),
        );
        let parameter = self.kernel.params().and_then(|all| all.get(at));
        let argument =
            parameter.map_or_else(|| format!("argument {at}"), |known| describe(at, known));
        error.within(format!("kernel `{}`, {argument}", self.kernel.name()))
    }

    /// Makes this a launch of a variant of its kernel.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if a slice of an unchecked launch is less aligned than the type
    /// that its parameter points to.
    fn replace_by(&mut self, variant: &Variant) -> Result<()> {
        let accesses: Vec<_> = {
            let parameters = self.kernel.params().unwrap_or_default();
            parameters.iter().map(|parameter| parameter.access).collect()
        };
        let mut added = ArgumentList::new();
        for &at in &variant.lengths {
            let length = match self.arguments.get(at).map(|argument| &argument.kind) {
                Some(ArgumentKind::Memory(region, _)) => region.bytes().len(),
                Some(ArgumentKind::Local(bytes)) => *bytes,
                _ => 0,
            };
            added.push((length as u64).into_value(Seal));
        }
        for &Offset { at, alignment } in &variant.offsets {
            let Some(ArgumentKind::Memory(region, _)) =
                self.arguments.get(at).map(|argument| &argument.kind)
            else {
                continue;
            };
            // The check of a launch covers its alignments.
            if !variant.is_checked() && !region.alignment().is_multiple_of(alignment) {
                let reason = format!(
                    "its elements are aligned to {alignment} bytes; give a slice that starts at a multiple of that"
                );
                return Err(self.no_offsets_error(&Error::invalid(reason)));
            }
            added.push((region.lead() as u64).into_value(Seal));
        }
        for (argument, access) in self.arguments.iter_mut().zip(accesses) {
            if let ArgumentKind::Memory(_, stated @ None) = &mut argument.kind {
                // The variant's signature need not state it.
                *stated = access;
            }
        }
        self.arguments.append(&mut added);
        self.kernel = variant.kernel.clone();
        let (is_checked, is_guarded) = (variant.is_checked(), variant.is_guarded());
        self.variant = Some(VariantKind { is_checked, is_guarded });
        Ok(())
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
        let decided = if self.kernel.is_checked() {
            Decided::Checked {
                shape: Box::new(LaunchShape::of(&self.range, &self.arguments)),
                needs_proof: self.needs_proof,
            }
        } else {
            Decided::Unchecked(self.unaligned().into_vec().into())
        };
        PendingLaunch { kernel: self.kernel.clone(), decided }
    }

    /// Returns the error for a launch that was pending: for an unchecked one, why its slices cannot be given.
    fn pending_error(&self, error: Error) -> Error {
        if self.kernel.is_checked() { error } else { self.no_offsets_error(&error) }
    }
}

/// Launch that was submitted before its program was built, or before it was decided how it runs.
pub(super) struct PendingLaunch {
    kernel: Kernel,
    decided: Decided,
}

/// Facts that decide how a pending launch runs.
enum Decided {
    Checked {
        shape: Box<LaunchShape>,
        needs_proof: bool,
    },
    /// Positions of the slices that the device does not take as arguments.
    Unchecked(Box<[usize]>),
}

impl PendingLaunch {
    /// Waits until the launch can run. Returns the variant if it must run in place of the kernel.
    /// Errors of the kernel's own build are not returned: the kernel has them.
    ///
    /// # Errors
    ///
    /// As for [`LaunchWork::resolve_variant`].
    pub(super) async fn ready(&self) -> Result<Option<Arc<Variant>>> {
        self.kernel.resolve().await;
        if !matches!(self.kernel.resolved(), Some(Ok(_))) {
            return Ok(None);
        }
        let variant = match &self.decided {
            Decided::Unchecked(unaligned) if unaligned.is_empty() => return Ok(None),
            Decided::Unchecked(unaligned) => {
                let checks = Arc::clone(self.kernel.checks()?);
                checks.built_with_offsets(unaligned.clone()).await?
            }
            Decided::Checked { shape, needs_proof } => {
                let checks = Arc::clone(self.kernel.checks()?);
                match checks.decided(&self.kernel, (**shape).clone(), *needs_proof).await? {
                    Decision::Proven => return Ok(None),
                    Decision::Variant(variant) => variant,
                }
            }
        };
        match variant.kernel.resolved() {
            Some(Err(error)) => Err(in_variant(&variant, error.clone())),
            _ => Ok(Some(variant)),
        }
    }
}

/// Returns the error of the build of a variant.
fn in_variant(variant: &Variant, error: Error) -> Error {
    let kind = if variant.is_guarded() { "guarded variant" } else { "variant with offsets" };
    error.within(format_args!("the {kind} of `{}`", variant.kernel.name()))
}

impl Launch {
    /// Returns the verdict on the launch: whether it is proven to stay inside its buffers, and otherwise what a
    /// guarded variant guards. The future waits for the program, and for the translation of OpenCL C. Nothing
    /// is run, and no guarded variant is built. If there are findings about OpenCL C, it is translated once more,
    /// for their lines.
    ///
    /// The kernel need not be one of a [`CheckedProgram`](crate::CheckedProgram). Of an unchecked kernel of OpenCL C, the
    /// verdict is about the text as clang reads it.
    ///
    /// # Errors
    ///
    /// From the future: the error of the build, those of [`CheckedProgram::kernel`](crate::CheckedProgram::kernel), and
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for arguments and sizes with which
    /// [`Queue::submit`](crate::Queue::submit) refuses the launch.
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
    pub fn verdict(&self) -> CheckLaunch {
        let work = self.work.clone();
        let mistake = self.conditions().and_then(|conditions| conditions.mistake.clone());
        CheckLaunch::new(async move {
            if let Some(mistake) = mistake {
                return Err(mistake);
            }
            work.kernel.resolve().await;
            work.check_itself().transpose()?;
            let checks = Arc::clone(work.kernel.checks()?);
            let shape = LaunchShape::of(&work.range, &work.arguments);
            checks.verdict(work.kernel, shape).await
        })
    }

    /// Makes the launch an error if it is not proven to stay inside its buffers, instead of running a guarded
    /// variant of the kernel. [`RuntimeBuilder::checked`](crate::RuntimeBuilder::checked) sets this for all
    /// checked launches.
    ///
    /// The kernel must be one of a [`CheckedProgram`](crate::CheckedProgram); otherwise the launch is an error, too.
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
    /// let checks: Vec<kiln::launch::CheckLaunch> = checks.collect();
    /// for check in checks {
    ///     println!("{}", check.await?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    CheckLaunch => Result<LaunchVerdict>
}
