//! Objects of drivers that applications share with other code.

use std::ffi::c_void;

use bytemuck::Pod;

use super::Runtime;
#[cfg(any(feature = "opencl", feature = "level-zero"))]
use super::{StartRuntime, builder::RuntimeBuilder};
use crate::args::buffer::Buffer;
use crate::args::image::Image;
use crate::args::image::pixel::Pixel;
use crate::backend::DriverHandles;
#[cfg(feature = "level-zero")]
use crate::backend::level_zero;
#[cfg(feature = "opencl")]
use crate::backend::opencl;
use crate::build_graph::Program;
use crate::device::ImageKind;
use crate::error::{Error, Result};
use crate::process;

#[cfg(any(feature = "opencl", feature = "level-zero"))]
impl RuntimeBuilder {
    /// Makes the runtime use an OpenCL context that other code created, with one of its devices: a `cl_device_id` and
    /// a `cl_context`. The runtime has no other device, whatever selectors say. See
    /// [`Runtime::from_opencl`](crate::Runtime::from_opencl).
    ///
    /// # Safety
    ///
    /// Both are objects of the OpenCL loader that Kiln uses. They live until every runtime that is built with this
    /// setting has started.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::ffi::c_void;
    /// # async fn example(device: *mut c_void, context: *mut c_void) -> kiln::Result<()> {
    /// // SAFETY: both live until the runtime has started.
    /// let builder = unsafe { kiln::Runtime::builder().opencl_context(device, context) };
    /// let rt = builder.profiling(true).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "opencl")]
    pub unsafe fn opencl_context(self, device: *mut c_void, context: *mut c_void) -> Self {
        // SAFETY: guaranteed by the caller.
        self.in_context(unsafe { opencl::given_context::GivenContext::new(device, context) })
    }

    /// Makes the runtime use a Level Zero context that other code created, with a device of its driver: a
    /// `ze_driver_handle_t`, a `ze_device_handle_t` and a `ze_context_handle_t`. The runtime has no other device,
    /// whatever selectors say. See [`Runtime::from_level_zero`](crate::Runtime::from_level_zero).
    ///
    /// # Safety
    ///
    /// All three are objects of the Level Zero loader that Kiln uses, and belong together. The context lives as long
    /// as every runtime that is built with this setting, its memory, its programs and its commands.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::ffi::c_void;
    /// # async fn example(driver: *mut c_void, device: *mut c_void, context: *mut c_void) -> kiln::Result<()> {
    /// // SAFETY: the context is never destroyed.
    /// let builder = unsafe { kiln::Runtime::builder().level_zero_context(driver, device, context) };
    /// let rt = builder.profiling(true).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "level-zero")]
    pub unsafe fn level_zero_context(
        self,
        driver: *mut c_void,
        device: *mut c_void,
        context: *mut c_void,
    ) -> Self {
        // SAFETY: guaranteed by the caller.
        let given =
            unsafe { level_zero::given_context::GivenContext::new(driver, device, context) };
        self.in_context(given)
    }
}

impl Runtime {
    /// Starts a runtime in an OpenCL context that other code created, with one of its devices: a `cl_device_id` and a
    /// `cl_context`. The runtime has no other device. It keeps a reference to the context, so that the other code may
    /// release its own. All settings have their defaults; for others, see
    /// [`RuntimeBuilder::opencl_context`](crate::RuntimeBuilder::opencl_context).
    ///
    /// Buffers and programs of the context can then be used by Kiln, and Kiln's by the other code, without copies.
    ///
    /// # Safety
    ///
    /// Both are objects of the OpenCL loader that Kiln uses. They live until the future has completed.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if one is null, or if the device is
    /// not one of the context; otherwise as for [`RuntimeBuilder::build`](crate::RuntimeBuilder::build).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Runtime;
    /// use opencl3::context::Context;
    /// use opencl3::device::{CL_DEVICE_TYPE_GPU, Device, get_all_devices};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = get_all_devices(CL_DEVICE_TYPE_GPU)?[0];
    /// let context = Context::from_device(&Device::new(device))?;
    /// // SAFETY: both live until the runtime has started.
    /// let rt = unsafe { Runtime::from_opencl(device, context.get()) }.await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "opencl")]
    pub unsafe fn from_opencl(device: *mut c_void, context: *mut c_void) -> StartRuntime {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::builder().opencl_context(device, context) }.build()
    }

    /// Starts a runtime in a Level Zero context that other code created, with a device of its driver: a
    /// `ze_driver_handle_t`, a `ze_device_handle_t` and a `ze_context_handle_t`. The runtime has no other device. All
    /// settings have their defaults; for others, see
    /// [`RuntimeBuilder::level_zero_context`](crate::RuntimeBuilder::level_zero_context).
    ///
    /// # Safety
    ///
    /// All three are objects of the Level Zero loader that Kiln uses, and belong together. The context lives as long
    /// as the runtime, its memory, its programs and its commands: Level Zero counts no references.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if one is null; otherwise as for
    /// [`RuntimeBuilder::build`](crate::RuntimeBuilder::build).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::ffi::c_void;
    /// # async fn example(driver: *mut c_void, device: *mut c_void, context: *mut c_void) -> kiln::Result<()> {
    /// // SAFETY: the context is never destroyed.
    /// let rt = unsafe { kiln::Runtime::from_level_zero(driver, device, context) }.await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "level-zero")]
    pub unsafe fn from_level_zero(
        driver: *mut c_void,
        device: *mut c_void,
        context: *mut c_void,
    ) -> StartRuntime {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::builder().level_zero_context(driver, device, context) }.build()
    }

    /// Returns the driver's objects of the device, for code that calls the driver itself. See [`Queue::native`] for
    /// commands of such code.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a simulated device.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn compile_kernels(_: *mut std::ffi::c_void) {}
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// compile_kernels(rt.driver_handles()?.context); // a library that needs a `cl_context`
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Queue::native`]: crate::Queue::native
    pub fn driver_handles(&self) -> Result<DriverHandles> {
        process::check()?;
        self.inner.slots[self.device].open()?.handles()
    }

    /// Returns an OpenCL buffer that other code created as a buffer of `len` elements: a `cl_mem` of the runtime's
    /// [context](Self::driver_handles). It may be longer, and may be a sub-buffer. Kiln keeps a reference of its own.
    ///
    /// Memory that Kiln has already, because it was given before, as a whole or as another part, or because its
    /// object is that of a [buffer of Kiln](Buffer::driver_handle), becomes a [slice](Buffer::slice) of that buffer:
    /// commands on both are ordered like those on two slices.
    ///
    /// # Safety
    ///
    /// The object is alive. While a command of Kiln uses the buffer, other code does not change its contents, and
    /// does not use contents that the command changes: Kiln orders its own commands only. Kernels that are launched
    /// with the buffer keep to the flags with which it was created, such as `CL_MEM_READ_ONLY`. Memory of the host
    /// that it was created over (`CL_MEM_USE_HOST_PTR`) lives until the buffer is freed.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the object is null, is no buffer, belongs to another
    /// context, or has fewer bytes than the elements, for a size of zero bytes, and for memory that another device or
    /// runtime of Kiln uses, whose commands are not ordered with those of this one.
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a device that is not one of OpenCL.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, queue: kiln::Queue, blur: kiln::Kernel,
    /// #     pixels: opencl3::memory::Buffer<f32>, len: usize) -> kiln::Result<()> {
    /// use opencl3::memory::ClMem as _;
    ///
    /// // SAFETY: the buffer is alive, was created with `CL_MEM_READ_WRITE`, and only Kiln uses it from here on.
    /// let pixels = unsafe { rt.buffer_from_opencl::<f32>(pixels.get(), len)? };
    /// queue.submit(blur.launch(len).args((&pixels,)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn buffer_from_opencl<T: Pod>(
        &self,
        object: *mut c_void,
        len: usize,
    ) -> Result<Buffer<T>> {
        self.check_api("opencl")?;
        let scheduler = self.scheduler();
        // SAFETY: guaranteed by the caller.
        unsafe { Buffer::adopt(scheduler.slot(), scheduler.freed(), object, len) }
    }

    /// Returns device or shared memory of Level Zero that other code allocated, by its address, as a buffer of `len`
    /// elements. The memory belongs to the runtime's [context](Self::driver_handles).
    ///
    /// # Safety
    ///
    /// The memory has as many elements, and lives as long as the buffer and the commands that use it. Otherwise as
    /// for [`buffer_from_opencl`](Self::buffer_from_opencl).
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the address is null or no multiple of the device's
    /// [`slice_alignment`](crate::devices::Limits::slice_alignment), for a size of zero bytes, and if another buffer
    /// has only a part of the memory: give the whole first.
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a device that is not one of Level Zero.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, queue: kiln::Queue, address: *mut std::ffi::c_void) -> kiln::Result<()> {
    /// // SAFETY: there are 1024 numbers, which are freed after the runtime was drained, and only Kiln uses them.
    /// let counts = unsafe { rt.buffer_from_level_zero::<u32>(address, 1024)? };
    /// queue.fill(&counts, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn buffer_from_level_zero<T: Pod>(
        &self,
        address: *mut c_void,
        len: usize,
    ) -> Result<Buffer<T>> {
        self.check_api("level-zero")?;
        let scheduler = self.scheduler();
        // SAFETY: guaranteed by the caller.
        unsafe { Buffer::adopt(scheduler.slot(), scheduler.freed(), address, len) }
    }

    /// Returns an OpenCL image that other code created as an image with pixels of the type `P`: a `cl_mem` of the
    /// runtime's [context](Self::driver_handles). Its kind and its sizes are those of the object. Kiln keeps a
    /// reference of its own.
    ///
    /// # Safety
    ///
    /// As for [`buffer_from_opencl`](Self::buffer_from_opencl).
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the object is null, is no image with memory of its
    /// own, belongs to another context, or has pixels of another format.
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a format for which there is no type of pixels, and for a
    /// device that is not one of OpenCL.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, decoded: opencl3::memory::Image) -> kiln::Result<()> {
    /// use kiln::images::{Rgba, Unorm};
    /// use opencl3::memory::ClMem as _;
    ///
    /// // SAFETY: the image is alive, was created with `CL_MEM_READ_WRITE`, and only Kiln uses it from here on.
    /// let frame = unsafe { rt.image_from_opencl::<Rgba<Unorm<u8>>>(decoded.get())? };
    /// println!("a frame of {:?} pixels", frame.size());
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn image_from_opencl<P: Pixel>(&self, object: *mut c_void) -> Result<Image<P>> {
        self.check_api("opencl")?;
        let scheduler = self.scheduler();
        // SAFETY: guaranteed by the caller.
        unsafe { Image::adopt(scheduler.slot(), scheduler.freed(), object) }
    }

    /// Returns an OpenCL program that other code built: a `cl_program` of the runtime's
    /// [context](Self::driver_handles). Kiln keeps a reference of its own, and creates kernels of its own.
    ///
    /// Such a program is in no cache. Kiln does not know the modules that it was built from, so its launches run one
    /// by one in a [scope of fusion](crate::FusionScope), and cannot be [checked](crate::CheckedProgram). Some drivers
    /// describe the parameters of kernels only if the program was built with the option `-cl-kernel-arg-info`;
    /// without it, arguments are checked by the driver alone, and buffers count as read and written.
    ///
    /// # Safety
    ///
    /// The object is alive, and nothing builds it anew or sets its constants.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the object is null, or belongs to another context.
    /// The driver's error if the program was not built for the device.
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a device that is not one of OpenCL.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, built: opencl3::program::Program) -> kiln::Result<()> {
    /// // SAFETY: the program is alive, and nothing changes it.
    /// let program = unsafe { rt.program_from_opencl(built.get())? };
    /// // SAFETY: `blur` accesses x[i] for i below the global size only.
    /// let blur = unsafe { program.kernel("blur")? };
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn program_from_opencl(&self, object: *mut c_void) -> Result<Program> {
        self.check_api("opencl")?;
        // SAFETY: guaranteed by the caller.
        let native = unsafe { self.inner.slots[self.device].open()?.adopt_program(object)? };
        Ok(Program::given(&self.inner.graph, self.device, native))
    }

    /// Returns an image of Level Zero that other code created as an image with pixels of the type `P`: a
    /// `ze_image_handle_t` of the runtime's [context](Self::driver_handles). Level Zero does not report the properties
    /// of an image, so the kind and the sizes are given, too: as many as the kind has dimensions, layers included.
    ///
    /// # Safety
    ///
    /// The object is an image of this kind, with these sizes and with the format `P::FORMAT`. It lives as long as the
    /// image and the commands that use it, and kernels may write to it (`ZE_IMAGE_FLAG_KERNEL_WRITE`) if they are
    /// launched to do so. Otherwise as for [`buffer_from_opencl`](Self::buffer_from_opencl).
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the object is null, if the number of sizes is not that
    /// of the kind, for a size of 0 or beyond the [limits](crate::devices::ImageLimits), and for an image over a
    /// buffer. [`Unsupported`](crate::ErrorKind::Unsupported) for a format that Kiln does not have on the device, and
    /// for a device that is not one of Level Zero.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, decoded: *mut std::ffi::c_void) -> kiln::Result<()> {
    /// use kiln::images::{ImageKind, Rgba, Unorm};
    ///
    /// // SAFETY: the image has this form, is destroyed after the runtime was drained, and only Kiln uses it.
    /// let frame = unsafe {
    ///     rt.image_from_level_zero::<Rgba<Unorm<u8>>>(decoded, ImageKind::D2, &[1920, 1080])?
    /// };
    /// println!("a frame of {} pixels", frame.len());
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn image_from_level_zero<P: Pixel>(
        &self,
        object: *mut c_void,
        kind: ImageKind,
        size: &[usize],
    ) -> Result<Image<P>> {
        self.check_api("level-zero")?;
        let scheduler = self.scheduler();
        // SAFETY: guaranteed by the caller.
        unsafe { Image::adopt_of(scheduler.slot(), scheduler.freed(), object, kind, size) }
    }

    /// Returns a program of Level Zero that other code built: a `ze_module_handle_t` of the runtime's
    /// [context](Self::driver_handles), without unresolved imports. Kiln creates kernels of its own.
    ///
    /// Such a program is in no cache, and its launches are not fused or checked, as for
    /// [`program_from_opencl`](Self::program_from_opencl). The parameters of its kernels are those that the module's
    /// binary describes.
    ///
    /// # Safety
    ///
    /// The module is alive, and lives as long as the program, its kernels and their commands.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the object is null. The driver's error if kernels
    /// cannot be created, such as for unresolved imports. [`Unsupported`](crate::ErrorKind::Unsupported) for a device
    /// that is not one of Level Zero.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, module: *mut std::ffi::c_void) -> kiln::Result<()> {
    /// // SAFETY: the module is destroyed after the runtime was drained and the program was dropped.
    /// let program = unsafe { rt.program_from_level_zero(module)? };
    /// // SAFETY: `blur` accesses x[i] for i below the global size only.
    /// let blur = unsafe { program.kernel("blur")? };
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn program_from_level_zero(&self, object: *mut c_void) -> Result<Program> {
        self.check_api("level-zero")?;
        // SAFETY: guaranteed by the caller.
        let native = unsafe { self.inner.slots[self.device].open()?.adopt_program(object)? };
        Ok(Program::given(&self.inner.graph, self.device, native))
    }

    /// Fails if the device is not reached through the API of an object that was given.
    fn check_api(&self, api: &str) -> Result<()> {
        process::check()?;
        let device = self.device();
        if device.backend == api {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "an object of the API `{api}` cannot be used on {device}, which is a device of `{}`",
            device.backend
        )))
    }
}
