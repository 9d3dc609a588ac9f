//! Kernels: their signatures and launches.

use std::ffi::{CStr, CString, c_void};
use std::iter::zip;
use std::ptr;
use std::sync::{Arc, Mutex};

use cl3::sampler::cl_sampler;
use kiln_compiler::NdRange;
use kiln_spirv::{Access, AddressSpace, Parameter};
use opencl3::command_queue::{cl_command_queue, cl_event};
use opencl3::error_codes::{DLOPEN_FUNCTION_NOT_AVAILABLE, DLOPEN_RUNTIME_LOAD_FAILED};
use opencl3::kernel::*;
use opencl3::types::cl_mem;

use super::codes::{argument_kind, error, error_of};
use super::event::WaitList;
use super::handle::{OwnedEvent, OwnedKernel};
use super::memory::{ClImage, ClMemory};
use super::program_object::ProgramObject;
use super::variants::Variants;
use super::{integer, text};
use crate::backend::exceptions::ending_on_exception;
use crate::backend::set_argument::{ArgumentIdentity, SetArgument, check_count};
use crate::backend::{Argument, Kernel, own_object, shutdown};
use crate::error::{Error, Result};
use crate::sync::lock;

pub(super) struct ClKernel {
    name: String,
    parameters: Vec<Parameter>,
    /// Indices of the parameters that are images, as far as the driver reports it.
    images: Vec<cl_uint>,
    max_work_group_size: Option<usize>,
    required: Option<[usize; 3]>,
    local_memory: u64,
    /// Locked from the first argument to the enqueue, because the driver keeps arguments in the kernel.
    bound: Mutex<BoundKernel>,
    program: Arc<ProgramObject>,
}

/// Driver's kernel with the arguments that it was last given.
struct BoundKernel {
    kernel: OwnedKernel,
    held: Vec<SetArgument>,
    /// Variants that have been launched, for a driver that compiles when kernels are launched.
    variants: Option<Variants>,
}

impl ClKernel {
    /// Creates a kernel of a built program. The error is the driver's code.
    pub(super) fn create(program: &Arc<ProgramObject>, name: &CStr) -> Result<Self, cl_int> {
        let raw = ending_on_exception(|| create_kernel(program.raw(), name))?;
        // SAFETY: just created, and referenced here alone.
        let kernel = unsafe { OwnedKernel::new(raw) };
        let count = cl_uint::from(get_kernel_info(raw, CL_KERNEL_NUM_ARGS)?);
        let workarounds = &program.context.workarounds;
        let device = program.context.device();
        let required = required_work_group(raw, device);
        let group = |what| {
            let answer = get_kernel_work_group_data(raw, device, what).ok()?;
            integer(&answer)
        };
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            parameters: (0..count).map(|index| reflect(raw, index)).collect(),
            images: (0..count).filter(|&index| image_access(raw, index).is_some()).collect(),
            max_work_group_size: group(CL_KERNEL_WORK_GROUP_SIZE)
                .and_then(|size| usize::try_from(size).ok())
                .filter(|&size| size > 0)
                .map(|size| match required {
                    Some(sizes) if workarounds.trust_required_group_size => {
                        sizes.iter().fold(1, |all: usize, &size| all.saturating_mul(size)).max(size)
                    }
                    _ => size,
                }),
            required,
            local_memory: group(CL_KERNEL_LOCAL_MEM_SIZE).unwrap_or(0),
            bound: Mutex::new(BoundKernel {
                kernel,
                held: (0..count).map(|_| SetArgument::default()).collect(),
                variants: workarounds.expect_late_compiles.then(Variants::default),
            }),
            program: Arc::clone(program),
        })
    }

    /// Returns this backend's kernel behind the trait object. Fails if it belongs to another backend.
    pub(super) fn of(kernel: &dyn Kernel) -> Result<&Self> {
        own_object(kernel, "the kernel")
    }

    /// Enqueues a launch. Returns its event, or none if `wants_event` is not set.
    ///
    /// # Safety
    ///
    /// As for [`NativeQueue::enqueue`](crate::backend::NativeQueue::enqueue); `queue` is alive.
    pub(super) unsafe fn enqueue(
        &self,
        queue: cl_command_queue,
        arguments: &[Argument<'_>],
        range: &NdRange,
        wait: &WaitList,
        wants_event: bool,
    ) -> Result<Option<OwnedEvent>> {
        check_count(self.user_name(), self.parameters.len(), arguments.len())?;
        let mut bound = lock(&self.bound);
        let BoundKernel { kernel, held, variants } = &mut *bound;
        if let Some(variants) = variants {
            variants.check(range)?;
        }
        for (index, (argument, held)) in (0..).zip(zip(arguments, held)) {
            self.set(kernel.raw(), index, argument, held)?;
        }
        // PoCL rejects a launch that leaves out the work-group size required by the kernel's code.
        let required = self.required.as_ref().map(|required| &required[..range.dimensions()]);
        let local = range.local().or(required);
        // SAFETY: the queue, the kernel and the events are alive, and every argument is set; the caller is
        // responsible for the kernel's behaviour.
        let enqueued = unsafe { launch(queue, kernel, range, local, wait, wants_event) };
        enqueued.map_err(|code| {
            error(code, format!("the driver refused the launch of kernel `{}`", self.user_name()))
        })
    }

    /// Sets an argument, unless the driver's kernel holds it already.
    fn set(
        &self,
        kernel: cl_kernel,
        index: cl_uint,
        argument: &Argument<'_>,
        held: &mut SetArgument,
    ) -> Result<()> {
        let memory: cl_mem;
        let raw_sampler: cl_sampler;
        let (identity, size, pointer): (_, usize, *const c_void) = match *argument {
            Argument::Memory(object) => {
                let id;
                (id, memory) = match ClImage::try_of(object) {
                    Some(image) => (image.id(), image.raw()),
                    None => {
                        let object = ClMemory::of(object)?;
                        (object.id(), object.raw())
                    }
                };
                (ArgumentIdentity::Memory(id), size_of::<cl_mem>(), (&raw const memory).cast())
            }
            Argument::Sampler(sampler) => {
                let context = &self.program.context;
                // The context keeps the sampler alive.
                raw_sampler = context.samplers.get(context.raw(), sampler)?.raw();
                (
                    ArgumentIdentity::Sampler(sampler),
                    size_of::<cl_sampler>(),
                    (&raw const raw_sampler).cast(),
                )
            }
            Argument::Value(bytes) => {
                (ArgumentIdentity::Value(bytes), bytes.len(), bytes.as_ptr().cast())
            }
            Argument::Local(bytes) => (ArgumentIdentity::Local(bytes), bytes, ptr::null()),
        };
        if held.holds(identity) {
            return Ok(());
        }
        self.check(index, argument)?;
        held.invalidate();
        // SAFETY: the kernel is alive and locked. The pointer has `size` bytes or, for local memory, is null.
        // The argument is of the parameter's kind, as far as that is known.
        let set = unsafe { set_kernel_arg(kernel, index, size, pointer) };
        set.map_err(|code| error_of(argument_kind(code), code, self.misfit(index, argument)))?;
        held.record(identity);
        Ok(())
    }

    /// Fails if the argument is not of the parameter's kind. Otherwise drivers would follow the bytes of a
    /// value as a pointer where they expect an object.
    fn check(&self, index: cl_uint, argument: &Argument<'_>) -> Result<()> {
        let Some(parameter) = self.parameters.get(index as usize) else {
            return Ok(());
        };
        let is_image = matches!(argument, Argument::Memory(memory) if memory.is_image());
        let fits = match (argument, parameter.address_space) {
            _ if self.images.contains(&index) => is_image,
            (_, None) => true,
            _ if is_image => false,
            (Argument::Sampler(_), Some(_)) => {
                parameter.type_name.as_deref().is_none_or(|name| name == "sampler_t")
            }
            (Argument::Memory(_), Some(space)) => {
                matches!(space, AddressSpace::Global | AddressSpace::Constant)
            }
            (Argument::Local(_), Some(space)) => space == AddressSpace::Local,
            (Argument::Value(_), Some(space)) => {
                space == AddressSpace::Private
                    && parameter.type_name.as_deref() != Some("sampler_t")
            }
        };
        if fits { Ok(()) } else { Err(Error::invalid(self.misfit(index, argument))) }
    }

    /// Asks the driver for a number about the kernel on its device.
    fn ask(&self, what: cl_kernel_work_group_info) -> Option<u64> {
        let _call = shutdown::enter().ok()?;
        let bound = lock(&self.bound);
        let device = self.program.context.device();
        integer(&get_kernel_work_group_data(bound.kernel.raw(), device, what).ok()?)
    }

    fn misfit(&self, index: cl_uint, argument: &Argument<'_>) -> String {
        let parameter = self.parameters.get(index as usize);
        let name = parameter.and_then(|parameter| parameter.name.as_deref()).unwrap_or("unnamed");
        let type_name = parameter.and_then(|parameter| parameter.type_name.as_deref());
        format!(
            "kernel `{}`: {argument} does not fit parameter {index} (`{name}`), of type `{}`",
            self.user_name(),
            type_name.unwrap_or("unknown")
        )
    }
}

impl Kernel for ClKernel {
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
        self.required
    }

    fn local_memory(&self) -> u64 {
        self.local_memory
    }

    fn preferred_multiple(&self) -> Option<usize> {
        let multiple = self.ask(CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE)?;
        usize::try_from(multiple).ok().filter(|&multiple| multiple > 0)
    }

    fn private_memory(&self) -> Option<u64> {
        self.ask(CL_KERNEL_PRIVATE_MEM_SIZE)
    }

    fn duplicate(&self) -> Option<Arc<dyn Kernel>> {
        let _call = shutdown::enter().ok()?;
        let name = CString::new(&*self.name).ok()?;
        Some(Arc::new(Self::create(&self.program, &name).ok()?))
    }

    fn accepts(&self, index: cl_uint, argument: &Argument<'_>) -> Result<()> {
        let _call = shutdown::enter()?;
        let mut bound = lock(&self.bound);
        let BoundKernel { kernel, held, .. } = &mut *bound;
        match held.get_mut(index as usize) {
            Some(held) => self.set(kernel.raw(), index, argument, held),
            None => Ok(()),
        }
    }
}

/// Enqueues a kernel whose arguments are set. The bindings of OpenCL always request an event, so this calls the
/// loader's function itself. The error is the driver's code.
///
/// # Safety
///
/// All objects are alive, and every argument of the kernel is set. `local` has as many entries as the range has
/// dimensions. The kernel stays inside its memory.
unsafe fn launch(
    queue: cl_command_queue,
    kernel: &OwnedKernel,
    range: &NdRange,
    local: Option<&[usize]>,
    wait: &WaitList,
    wants_event: bool,
) -> Result<Option<OwnedEvent>, cl_int> {
    let runtime = cl3::load_library().as_ref().map_err(|_| DLOPEN_RUNTIME_LOAD_FAILED)?;
    let mut event: cl_event = ptr::null_mut();
    let status = ending_on_exception(|| {
        runtime.clEnqueueNDRangeKernel(
            queue,
            kernel.raw(),
            range.dimensions() as cl_uint,
            range.offset().as_ptr(),
            range.global().as_ptr(),
            local.map_or(ptr::null(), <[usize]>::as_ptr),
            wait.len(),
            wait.as_ptr(),
            if wants_event { &raw mut event } else { ptr::null_mut() },
        )
    });
    match status {
        Some(CL_SUCCESS) if wants_event => {
            // SAFETY: the driver made the event for this call, with one reference.
            Ok(Some(unsafe { OwnedEvent::new(event) }))
        }
        Some(CL_SUCCESS) => Ok(None),
        Some(code) => Err(code),
        None => Err(DLOPEN_FUNCTION_NOT_AVAILABLE),
    }
}

/// Returns the work-group size that a kernel's attribute `reqd_work_group_size` requires.
fn required_work_group(kernel: cl_kernel, device: cl_device_id) -> Option<[usize; 3]> {
    let answer =
        get_kernel_work_group_data(kernel, device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE).ok()?;
    let (sizes, []) = answer.as_chunks::<{ size_of::<usize>() }>() else { return None };
    let sizes = <[[u8; size_of::<usize>()]; 3]>::try_from(sizes).ok()?.map(usize::from_ne_bytes);
    // All zeros mean that no size is required.
    (!sizes.contains(&0)).then_some(sizes)
}

/// Returns how a kernel uses a parameter that is an image or a pipe, as the driver reports it; `None` for other
/// parameters. PoCL accepts a buffer for an image, and then ends the process.
fn image_access(kernel: cl_kernel, index: cl_uint) -> Option<Access> {
    let access = get_kernel_arg_data(kernel, index, CL_KERNEL_ARG_ACCESS_QUALIFIER).ok()?;
    match cl_uint::try_from(integer(&access)?).ok()? {
        CL_KERNEL_ARG_ACCESS_READ_ONLY => Some(Access::Read),
        // A kernel may leave out pixels of an image that it only writes.
        CL_KERNEL_ARG_ACCESS_WRITE_ONLY | CL_KERNEL_ARG_ACCESS_READ_WRITE => {
            Some(Access::ReadWrite)
        }
        _ => None,
    }
}

/// Returns the driver's description of a parameter. It is often empty for programs created from binaries.
fn reflect(kernel: cl_kernel, index: cl_uint) -> Parameter {
    let query = |what| get_kernel_arg_data(kernel, index, what).ok();
    let name = |what| query(what).map(|name| text(&name)).filter(|name| !name.is_empty());
    let flags = |what| query(what).and_then(|flags| integer(&flags));

    let address_space = flags(CL_KERNEL_ARG_ADDRESS_QUALIFIER)
        .and_then(|space| cl_uint::try_from(space).ok())
        .and_then(|space| match space {
            CL_KERNEL_ARG_ADDRESS_GLOBAL => Some(AddressSpace::Global),
            CL_KERNEL_ARG_ADDRESS_CONSTANT => Some(AddressSpace::Constant),
            CL_KERNEL_ARG_ADDRESS_LOCAL => Some(AddressSpace::Local),
            CL_KERNEL_ARG_ADDRESS_PRIVATE => Some(AddressSpace::Private),
            _ => None,
        });
    // `const` is reported for the pointer's target only, not for the pointer itself.
    let points_to_const = flags(CL_KERNEL_ARG_TYPE_QUALIFIER)
        .is_some_and(|flags| flags & u64::from(CL_KERNEL_ARG_TYPE_CONST) != 0);
    let image = image_access(kernel, index);
    let access = match address_space {
        _ if image.is_some() => image,
        Some(AddressSpace::Global) if points_to_const => Some(Access::Read),
        Some(AddressSpace::Global) => Some(Access::ReadWrite),
        Some(AddressSpace::Constant) => Some(Access::Read),
        Some(AddressSpace::Local | AddressSpace::Private) | None => None,
    };
    let type_name = name(CL_KERNEL_ARG_TYPE_NAME);
    Parameter::new(name(CL_KERNEL_ARG_NAME), type_name, address_space, access, None)
}
