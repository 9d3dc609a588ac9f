//! Kernels: their signatures, and launching them.

use std::ffi::{CStr, c_void};
use std::iter::zip;
use std::ptr;
use std::sync::{Arc, Mutex};

use kiln_compiler::NdRange;
use kiln_spirv::Parameter;

use super::bindings::*;
use super::codes::{Code, check};
use super::event::WaitList;
use super::handle::{OwnedKernel, OwnedModule};
use super::image::LzImage;
use super::memory::LzMemory;
use super::module::Modules;
use super::ze_info::{Kind, KnownParameter};
use crate::backend::set_argument::{ArgumentIdentity, SetArgument, check_count};
use crate::backend::{Argument, Kernel, own_object, shutdown};
use crate::error::{Error, Result};
use crate::sync::lock;

pub(super) struct LzKernel {
    name: String,
    /// Parameters, as many as the driver reports. Their properties come from the binary.
    parameters: Vec<Parameter>,
    /// Kinds of the parameters, as far as the binary describes them.
    kinds: Vec<Option<Kind>>,
    max_work_group_size: Option<usize>,
    preferred_multiple: Option<usize>,
    local_memory: u64,
    private_memory: u64,
    /// Work-group size that the kernel's code requires, if any.
    required: Option<[u32; 3]>,
    /// Driver's kernel. Locked from the first argument to the launch, because the driver keeps arguments in the
    /// kernel.
    bound: Mutex<BoundKernel>,
    modules: Arc<Modules>,
}

/// The driver's kernel, with the arguments and sizes that were set last.
struct BoundKernel {
    kernel: OwnedKernel,
    held: Vec<SetArgument>,
    group: Option<[u32; 3]>,
    offset: [u32; 3],
    /// Last global size without a work-group size, and the work-group size that was chosen for it.
    suggested: Option<([u32; 3], [u32; 3])>,
}

impl LzKernel {
    /// Creates a kernel of one of a program's modules.
    pub(super) fn create(
        modules: &Arc<Modules>,
        module: &OwnedModule,
        name: &CStr,
        known: &[KnownParameter<'_>],
    ) -> Result<Self, Code> {
        let api = modules.context.api;
        let description = ze_kernel_desc_t {
            stype: ZE_STRUCTURE_TYPE_KERNEL_DESC,
            pKernelName: name.as_ptr(),
            ..Default::default()
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the module is alive, and the description is valid.
        check(unsafe { (api.zeKernelCreate)(module.raw(), &raw const description, &raw mut raw) })?;
        // SAFETY: just created, and owned only here; it is dropped before the module.
        let kernel = unsafe { OwnedKernel::new(api, raw) };
        let mut group_size = ze_kernel_max_group_size_properties_ext_t {
            stype: ZE_STRUCTURE_TYPE_KERNEL_MAX_GROUP_SIZE_EXT_PROPERTIES,
            ..Default::default()
        };
        let mut preferred = ze_kernel_preferred_group_size_properties_t {
            stype: ZE_STRUCTURE_TYPE_KERNEL_PREFERRED_GROUP_SIZE_PROPERTIES,
            pNext: extension_pointer(&mut group_size),
            ..Default::default()
        };
        let mut properties = ze_kernel_properties_t {
            stype: ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES,
            pNext: extension_pointer(&mut preferred),
            ..Default::default()
        };
        // SAFETY: the kernel is alive, and each structure is of the type that its `stype` states.
        check(unsafe { (api.zeKernelGetProperties)(raw, &raw mut properties) })?;
        let required = [
            properties.requiredGroupSizeX,
            properties.requiredGroupSizeY,
            properties.requiredGroupSizeZ,
        ];
        let count = properties.numKernelArgs as usize;
        let known = &known[..known.len().min(count)];
        let parameter = |known: &KnownParameter<'_>| {
            Parameter::new(
                known.name.map(str::to_owned),
                known.object.map(str::to_owned),
                known.address_space(),
                known.access,
                known.bytes.filter(|_| known.kind == Some(Kind::Value)),
            )
        };
        let mut parameters: Vec<_> = known.iter().map(parameter).collect();
        parameters.resize(count, Parameter::default());
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            parameters,
            kinds: known.iter().map(|known| known.kind).collect(),
            max_work_group_size: Some(group_size.maxGroupSize as usize).filter(|&size| size > 0),
            preferred_multiple: Some(preferred.preferredMultiple as usize).filter(|&size| size > 0),
            local_memory: properties.localMemSize.into(),
            private_memory: properties.privateMemSize.into(),
            required: (!required.contains(&0)).then_some(required),
            bound: Mutex::new(BoundKernel {
                kernel,
                held: (0..count).map(|_| SetArgument::default()).collect(),
                group: None,
                offset: [0; 3],
                suggested: None,
            }),
            modules: Arc::clone(modules),
        })
    }

    /// Returns the kernel as this backend's type. Fails for a kernel of another backend.
    pub(super) fn of(kernel: &dyn Kernel) -> Result<&Self> {
        own_object(kernel, "the kernel")
    }

    /// Appends a launch.
    ///
    /// # Safety
    ///
    /// As for [`NativeQueue::enqueue`](crate::backend::NativeQueue::enqueue), until `signal` is signalled;
    /// `list` is alive.
    pub(super) unsafe fn append(
        &self,
        list: ze_command_list_handle_t,
        arguments: &[Argument<'_>],
        range: &NdRange,
        signal: ze_event_handle_t,
        wait: &WaitList,
    ) -> Result<()> {
        check_count(self.user_name(), self.parameters.len(), arguments.len())?;
        let context = &self.modules.context;
        let mut bound = lock(&self.bound);
        for (index, argument) in (0..).zip(arguments) {
            self.set(&mut bound, index, argument)?;
        }
        let groups = self.set_sizes(&mut bound, range)?;
        // SAFETY: all objects are alive, and every argument and the sizes are set; the caller is responsible
        // for the effects of the kernel.
        let appended = unsafe {
            (context.api.zeCommandListAppendLaunchKernel)(
                list,
                bound.kernel.raw(),
                &raw const groups,
                signal,
                wait.len(),
                wait.as_ptr(),
            )
        };
        check(appended).map_err(|code| {
            context.error(
                code,
                format!("the driver refused the launch of kernel `{}`", self.user_name()),
            )
        })
    }

    /// Sets an argument of the driver's kernel, unless it is set already.
    fn set(&self, bound: &mut BoundKernel, index: u32, argument: &Argument<'_>) -> Result<()> {
        let BoundKernel { kernel, held, .. } = bound;
        let Some(held) = held.get_mut(index as usize) else { return Ok(()) };
        // An address, or the handle of an image or a sampler.
        let address: *mut c_void;
        let (identity, size, pointer): (_, usize, *const c_void) = match *argument {
            Argument::Memory(object) => {
                let id;
                (id, address) = match LzImage::try_of(object) {
                    Some(image) => (image.id(), image.raw().cast()),
                    None => {
                        let object = LzMemory::of(object)?;
                        (object.id(), object.at(0))
                    }
                };
                (ArgumentIdentity::Memory(id), size_of_val(&address), (&raw const address).cast())
            }
            Argument::Value(bytes) => {
                (ArgumentIdentity::Value(bytes), bytes.len(), bytes.as_ptr().cast())
            }
            Argument::Local(bytes) => (ArgumentIdentity::Local(bytes), bytes, ptr::null()),
            Argument::Sampler(sampler) => {
                let context = &self.modules.context;
                // The context keeps the sampler alive.
                address = context.sampler(sampler)?.raw().cast();
                (
                    ArgumentIdentity::Sampler(sampler),
                    size_of_val(&address),
                    (&raw const address).cast(),
                )
            }
        };
        if held.holds(identity) {
            return Ok(());
        }
        self.check(index, argument)?;
        held.invalidate();
        let context = &self.modules.context;
        // SAFETY: the kernel is alive and locked. The pointer has `size` bytes or, for local memory, is null.
        // The argument is of the parameter's kind, as far as that is known.
        let set =
            unsafe { (context.api.zeKernelSetArgumentValue)(kernel.raw(), index, size, pointer) };
        check(set).map_err(|code| {
            let message =
                format!("kernel `{}`: {argument} does not fit parameter {index}", self.user_name());
            code.error_of(code.argument_kind(), message)
        })?;
        held.record(identity);
        Ok(())
    }

    /// Fails if an object is given for a parameter of another kind, or something else for an object: the driver takes
    /// the bytes of any argument for a handle.
    fn check(&self, index: u32, argument: &Argument<'_>) -> Result<()> {
        let Some(kind) = self.kinds.get(index as usize).copied().flatten() else { return Ok(()) };
        let is_image = matches!(argument, Argument::Memory(memory) if memory.is_image());
        let is_sampler = matches!(argument, Argument::Sampler(_));
        let expected = match kind {
            Kind::Image if is_image => return Ok(()),
            Kind::Sampler if is_sampler => return Ok(()),
            Kind::Image => "an image",
            Kind::Sampler => "a sampler",
            Kind::Object => "an object that Kiln does not have",
            _ if !is_image && !is_sampler => return Ok(()),
            Kind::Memory(_) => "a buffer",
            Kind::Local => "local memory",
            Kind::Value => "a value",
        };
        Err(Error::invalid(format!(
            "kernel `{}`, parameter {index}: given {argument}, expected {expected}",
            self.user_name()
        )))
    }

    /// Sets the sizes of a launch in the driver's kernel, and returns the number of work-groups.
    fn set_sizes(&self, bound: &mut BoundKernel, range: &NdRange) -> Result<ze_group_count_t> {
        let global = range.global();
        let offset = self.three_sizes(range.offset(), 0)?;
        for (dimension, &size) in global.iter().enumerate() {
            // Intel's code counts the ids of a dimension in 32 bits, and does not report an overflow.
            self.checked_size(size.saturating_add(offset[dimension] as usize))?;
        }
        let group = match range.local() {
            Some(local) => self.three_sizes(local, 1)?,
            None => self.group_for(bound, global)?,
        };
        self.set_group_size(bound, group)?;
        self.set_offset(bound, offset)?;
        let mut groups = [1; 3];
        for (count, (&size, &local)) in zip(&mut groups, zip(global, &group)) {
            *count = self.checked_size(size / (local as usize).max(1))?;
        }
        let [x, y, z] = groups;
        Ok(ze_group_count_t { groupCountX: x, groupCountY: y, groupCountZ: z })
    }

    /// Sets the work-group size in the driver's kernel, unless it is set already.
    fn set_group_size(&self, bound: &mut BoundKernel, group: [u32; 3]) -> Result<()> {
        if bound.group == Some(group) {
            return Ok(());
        }
        bound.group = None;
        let api = self.modules.context.api;
        let [x, y, z] = group;
        // SAFETY: the kernel is alive and locked.
        let set = unsafe { (api.zeKernelSetGroupSize)(bound.kernel.raw(), x, y, z) };
        check(set).map_err(|code| {
            let message = format!(
                "kernel `{}`: the driver refused the local size {group:?}",
                self.user_name()
            );
            code.error_of(code.argument_kind(), message)
        })?;
        bound.group = Some(group);
        Ok(())
    }

    /// Sets the offset in the driver's kernel, unless it is set already.
    fn set_offset(&self, bound: &mut BoundKernel, offset: [u32; 3]) -> Result<()> {
        if bound.offset == offset {
            return Ok(());
        }
        let api = self.modules.context.api;
        let set_offset = api.zeKernelSetGlobalOffsetExp.ok_or_else(|| {
            Error::unsupported(
                "the Level Zero loader is too old: it does not support launches with an offset; \
                 update it",
            )
        })?;
        let [x, y, z] = offset;
        // SAFETY: the kernel is alive and locked.
        let set = unsafe { set_offset(bound.kernel.raw(), x, y, z) };
        check(set).map_err(|code| {
            let name = self.user_name();
            code.error(format!("kernel `{name}`: the driver refused the offset {offset:?}"))
        })?;
        bound.offset = offset;
        Ok(())
    }

    /// Returns the work-group size for a launch without one: the size that the kernel requires, the size that
    /// the driver suggests, or else a size that divides the global size.
    fn group_for(&self, bound: &mut BoundKernel, global: &[usize]) -> Result<[u32; 3]> {
        if let Some(required) = self.required {
            return Ok(required);
        }
        let divides = |group: &[u32; 3]| {
            let mut sizes = zip(global.iter().chain(&[1, 1]), group);
            sizes.all(|(&size, &local)| local > 0 && size.is_multiple_of(local as usize))
        };
        let [x, y, z] = self.three_sizes(global, 1)?;
        if let Some((global, group)) = bound.suggested
            && global == [x, y, z]
        {
            return Ok(group);
        }
        let [mut a, mut b, mut c] = [1; 3];
        let api = self.modules.context.api;
        let kernel = bound.kernel.raw();
        // SAFETY: the kernel is alive and locked.
        let suggested = unsafe {
            (api.zeKernelSuggestGroupSize)(kernel, x, y, z, &raw mut a, &raw mut b, &raw mut c)
        };
        let group = [a, b, c];
        let fits = check(suggested).is_ok() && divides(&group);
        let group = if fits { group } else { self.dividing_group(global) };
        bound.suggested = Some(([x, y, z], group));
        Ok(group)
    }

    /// Returns a work-group size along the first dimension: the largest possible power of two that divides the
    /// global size.
    fn dividing_group(&self, global: &[usize]) -> [u32; 3] {
        let limits = &self.modules.context.info.limits;
        let limit = self.max_work_group_size.unwrap_or(limits.max_work_group_size);
        let limit = limit.min(limits.max_work_item_sizes[0]).max(1);
        let power = 1 << global[0].trailing_zeros().min(limit.ilog2());
        [power, 1, 1]
    }

    /// Returns the sizes of three dimensions; `default` for those that the launch does not have.
    fn three_sizes(&self, sizes: &[usize], default: u32) -> Result<[u32; 3]> {
        let mut three = [default; 3];
        for (to, &from) in zip(&mut three, sizes) {
            *to = self.checked_size(from)?;
        }
        Ok(three)
    }

    /// Returns a number of work-items or work-groups as Level Zero takes it.
    fn checked_size(&self, size: usize) -> Result<u32> {
        u32::try_from(size).map_err(|_| {
            Error::invalid(format!(
                "kernel `{}`: {size} work-items, with their offset, are more than the limit of \
                 Level Zero, {} per dimension; split the launch, or use more dimensions",
                self.user_name(),
                u32::MAX
            ))
        })
    }
}

impl Kernel for LzKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn max_work_group_size(&self) -> Option<usize> {
        self.max_work_group_size
    }

    fn required_work_group(&self) -> Option<[usize; 3]> {
        self.required.map(|required| required.map(|size| size as usize))
    }

    fn local_memory(&self) -> u64 {
        self.local_memory
    }

    fn preferred_multiple(&self) -> Option<usize> {
        self.preferred_multiple
    }

    fn private_memory(&self) -> Option<u64> {
        Some(self.private_memory)
    }

    fn accepts(&self, index: u32, argument: &Argument<'_>) -> Result<()> {
        let _call = shutdown::enter()?;
        self.set(&mut lock(&self.bound), index, argument)
    }
}

/// Returns a pointer to an extension, for a description that takes untyped pointers.
fn extension_pointer<T>(extension: &mut T) -> *mut c_void {
    (&raw mut *extension).cast()
}
