//! Objects of drivers that applications share with other code.

use std::ffi::c_void;

use bytemuck::Pod;

use super::Runtime;
#[cfg(feature = "opencl")]
use super::Starting;
use crate::args::buffer::Buffer;
use crate::args::image::Image;
use crate::args::image::pixel::Pixel;
use crate::backend::DriverHandles;
use crate::build_graph::Program;
use crate::error::Result;
use crate::process;

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
    pub unsafe fn from_opencl(device: *mut c_void, context: *mut c_void) -> Starting {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::builder().opencl_context(device, context) }.build()
    }

    /// Returns the driver's objects of the device, for code that calls the driver itself. See [`Queue::native`] for
    /// commands of such code.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a device that is not one of OpenCL.
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
    /// context, or has fewer bytes than the elements, and for a size of zero bytes.
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
        process::check()?;
        let scheduler = self.scheduler();
        // SAFETY: guaranteed by the caller.
        unsafe { Buffer::adopt(scheduler.slot(), scheduler.freed(), object, len) }
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
    /// use kiln::{Rgba, Unorm};
    /// use opencl3::memory::ClMem as _;
    ///
    /// // SAFETY: the image is alive, was created with `CL_MEM_READ_WRITE`, and only Kiln uses it from here on.
    /// let frame = unsafe { rt.image_from_opencl::<Rgba<Unorm<u8>>>(decoded.get())? };
    /// println!("a frame of {:?} pixels", frame.size());
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn image_from_opencl<P: Pixel>(&self, object: *mut c_void) -> Result<Image<P>> {
        process::check()?;
        let scheduler = self.scheduler();
        // SAFETY: guaranteed by the caller.
        unsafe { Image::adopt(scheduler.slot(), scheduler.freed(), object) }
    }

    /// Returns an OpenCL program that other code built: a `cl_program` of the runtime's
    /// [context](Self::driver_handles). Kiln keeps a reference of its own, and creates kernels of its own.
    ///
    /// Such a program is in no cache. Kiln does not know the modules that it was built from, so its launches run one
    /// by one in a [scope of fusion](crate::FusionScope), and cannot be [checked](Program::checked). Some drivers
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
        process::check()?;
        // SAFETY: guaranteed by the caller.
        let native = unsafe { self.inner.slots[self.device].open()?.adopt_program(object)? };
        Ok(Program::given(&self.inner.shared.graph, self.device, native))
    }
}
