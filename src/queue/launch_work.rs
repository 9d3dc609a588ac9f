//! Work of a launch: a kernel, its range and its arguments, which are checked against the kernel's signature
//! and the device's limits.

use std::fmt;
use std::sync::Arc;

use kiln_compiler::NdRange;
use kiln_spirv::{Access, AddressSpace, Parameter};
use smallvec::SmallVec;

use super::hazard::{Use, Uses};
use super::range_checks;
use crate::args::region::Region;
use crate::args::{ArgumentKind, ArgumentList, describe};
use crate::backend::{self, Operation};
use crate::build_graph::{Kernel, ResolvedKernel};
use crate::device::Device;
use crate::error::{Error, Result};

/// Work of a launch.
#[derive(Clone)]
pub(crate) struct LaunchWork {
    /// Kernel of the launch. Its program may still be building at submission.
    pub(crate) kernel: Kernel,
    pub(crate) range: NdRange,
    pub(crate) arguments: ArgumentList,
    /// Whether the launch is an error unless it is proven to stay inside its memory.
    pub(super) needs_proof: bool,
    /// Variant of the kernel that this is a launch of.
    pub(super) variant: Option<VariantKind>,
}

/// Kind of a variant that runs in place of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VariantKind {
    /// Whether it runs in place of a checked kernel.
    pub(super) is_checked: bool,
    /// Whether it has guards.
    pub(super) is_guarded: bool,
}

impl LaunchWork {
    pub(crate) fn new(kernel: Kernel, range: NdRange, arguments: ArgumentList) -> Self {
        Self { kernel, range, arguments, needs_proof: false, variant: None }
    }

    /// Returns the memory among the arguments, in order.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.arguments.iter().filter_map(|argument| match &argument.kind {
            ArgumentKind::Memory(region, _) => Some(region),
            ArgumentKind::Value(_) | ArgumentKind::Local(_) | ArgumentKind::Sampler(_) => None,
        })
    }

    /// Returns the memory accesses of the launch.
    pub(crate) fn uses(&self) -> Uses {
        let parameters = self.parameters();
        let mut uses = Uses::new();
        for (index, argument) in self.arguments.iter().enumerate() {
            if let ArgumentKind::Memory(region, stated) = &argument.kind {
                let signature = parameters.get(index).and_then(|parameter| parameter.access);
                // Without either, the kernel is assumed to read and write the memory. A kernel that only writes
                // an image may leave pixels out.
                let access = match stated.or(signature) {
                    Some(Access::Write) if region.image().is_some() => Access::ReadWrite,
                    known => known.unwrap_or(Access::ReadWrite),
                };
                uses.push(Use::of(region, access));
            }
        }
        uses
    }

    /// See [`Command::release`](super::command::Command::release).
    pub(crate) fn release(&mut self) {
        for argument in self.arguments.drain(..) {
            if let ArgumentKind::Memory(region, _) = argument.kind {
                region.release();
            }
        }
    }

    /// See [`Command::is_light`](super::command::Command::is_light).
    pub(super) fn is_light(&self) -> bool {
        self.kernel.is_shared() && self.arguments.is_empty()
    }

    /// See [`Command::abandon`](super::command::Command::abandon).
    pub(super) fn abandon(&self) {
        for region in self.regions() {
            std::mem::forget(Arc::clone(region));
        }
    }

    /// See [`Command::with_operation`](super::command::Command::with_operation).
    pub(super) fn with_operation<R>(
        &self,
        run: impl FnOnce(&Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        let Self { kernel, range, arguments, .. } = self;
        let kernel = match kernel.resolved() {
            Some(Ok(kernel)) => &*kernel.native,
            Some(Err(error)) => return Err(error.clone()),
            None => {
                return Err(Error::invalid("the kernel was launched before its program was built"));
            }
        };
        let mut native: SmallVec<[backend::Argument<'_>; 8]> = SmallVec::new();
        for argument in arguments {
            native.push(match &argument.kind {
                // Only variants know of the bytes that the view has before the region.
                ArgumentKind::Memory(region, _) if region.lead() > 0 && self.variant.is_none() => {
                    return Err(region.unaligned_error());
                }
                kind => native_argument(kind)?,
            });
        }
        run(&Operation::Launch { kernel, arguments: &native, range })
    }

    /// Returns the parameters in the kernel's signature; none while its program is still being built.
    fn parameters(&self) -> &[Parameter] {
        let kernel = self.kernel.resolved().and_then(|kernel| kernel.as_ref().ok());
        kernel.map_or(&[], ResolvedKernel::parameters)
    }

    /// Checks the launch against the kernel's signature and the device's limits. `None` while the
    /// program still builds.
    pub(crate) fn check(&self, device: &Device) -> Option<Result<()>> {
        Some(match self.kernel.resolved()? {
            Ok(kernel) => {
                self.check_against(kernel, device).map_err(|error| match kernel.label() {
                    Some(label) => error.within(format_args!("`{label}`")),
                    None => error,
                })
            }
            Err(error) => Err(error.clone()),
        })
    }

    /// Checks the launch like [`check`](Self::check), for the device of its program. `None` while the program still
    /// builds.
    pub(super) fn check_itself(&self) -> Option<Result<()>> {
        match self.kernel.resolved()? {
            Ok(kernel) => self.check(kernel.built.device()),
            Err(error) => Some(Err(error.clone())),
        }
    }

    fn check_against(&self, kernel: &ResolvedKernel, device: &Device) -> Result<()> {
        let name = kernel.name();
        check_same_device("its program was built for", kernel.built.device(), device)
            .map_err(|error| error.within(format!("kernel `{name}`")))?;
        let (parameters, given) = (kernel.parameters(), &self.arguments);
        if given.len() != parameters.len() {
            let expected: Vec<_> = parameters
                .iter()
                .enumerate()
                .map(|(index, parameter)| describe(index, parameter))
                .collect();
            return Err(Error::invalid(format!(
                "kernel `{name}` was given {} arguments, expected {}: {}",
                given.len(),
                parameters.len(),
                if expected.is_empty() { "none".to_owned() } else { expected.join(", ") }
            )));
        }
        let mut local = kernel.native.local_memory();
        let expected = parameters.iter().zip(kernel.elements());
        for (index, (argument, (parameter, element))) in given.iter().zip(expected).enumerate() {
            argument.check(name, index, parameter, *element)?;
            let native = native_argument(&argument.kind).map_err(|error| {
                error.within(format!("kernel `{name}`, {}", describe(index, parameter)))
            })?;
            if let ArgumentKind::Local(bytes) = &argument.kind {
                local = local.saturating_add(*bytes as u64);
            }
            // The signature does not determine whether the argument fits: the driver checks it.
            let needs_driver_check = match parameter.address_space {
                // A placeholder has no memory that the driver could check.
                _ if argument.is_placeholder() => false,
                None => true,
                Some(AddressSpace::Private) => element.is_none() && parameter.size.is_none(),
                Some(_) => false,
            };
            if needs_driver_check {
                kernel.native.accepts(index as u32, &native)?;
            }
        }
        if local > device.limits.local_memory {
            return Err(Error::invalid(format!(
                "kernel `{name}` needs {local} bytes of local memory with these arguments; a \
                 work-group of the device has {} bytes",
                device.limits.local_memory
            )));
        }
        range_checks::check(
            &self.range,
            name,
            &device.limits,
            kernel.native.max_work_group_size(),
        )?;
        let required = kernel.native.required_work_group();
        required
            .map_or(Ok(()), |required| range_checks::check_required(&self.range, name, required))
    }
}

/// Returns an argument in the backend's form.
fn native_argument(kind: &ArgumentKind) -> Result<backend::Argument<'_>> {
    Ok(match kind {
        ArgumentKind::Memory(region, _) => backend::Argument::Memory(region.view()?),
        ArgumentKind::Value(bytes) => backend::Argument::Value(bytes),
        ArgumentKind::Local(bytes) => backend::Argument::Local(*bytes),
        ArgumentKind::Sampler(sampler) => backend::Argument::Sampler(*sampler),
    })
}

/// Fails if `theirs` and `ours` are not the same device of the same runtime.
pub(crate) fn check_same_device(
    what: impl fmt::Display,
    theirs: &Device,
    ours: &Device,
) -> Result<()> {
    if Arc::ptr_eq(theirs.info(), ours.info()) {
        return Ok(());
    }
    let runtime = if theirs.index() == ours.index() { " of another runtime" } else { "" };
    // Several devices may have the same name.
    let [theirs, ours] =
        [theirs, ours].map(|device| format!("device {}, {device}", device.index()));
    Err(Error::invalid(format!("{what} {theirs}{runtime}; this queue belongs to {ours}")))
}
