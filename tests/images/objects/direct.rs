//! Launches over images by OpenCL directly, with the driver of a runtime's device.

use std::ptr;

use kiln::DeviceInfo;
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_TYPE_ALL, Device, get_all_devices};
use opencl3::kernel::{ExecuteKernel, Kernel};
use opencl3::memory::*;
use opencl3::program::Program;

use super::{Case, Format, Given, Picture, Reading};

/// Runs a case by OpenCL.
pub(crate) fn run(device: &DeviceInfo, case: &Case) -> Vec<u8> {
    let context = Context::from_device(&find(device)).expect("a context");
    let queue = CommandQueue::create_default(&context, 0).expect("a queue");
    let program = Program::create_and_build_from_source(&context, case.source, "");
    let program = program.expect("the source is valid");
    let images: Vec<_> =
        case.pictures.iter().map(|picture| upload(&context, &queue, picture)).collect();
    let mut zeros = vec![0u32; case.numbers.max(1)];
    let flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
    // SAFETY: the driver copies as many numbers as there are.
    let numbers =
        unsafe { Buffer::<u32>::create(&context, flags, zeros.len(), zeros.as_mut_ptr().cast()) };
    let numbers = numbers.expect("a buffer");
    for (name, size, arguments) in &case.launches {
        let kernel = Kernel::create(&program, name).expect("a kernel");
        let (mut launch, mut samplers) = (ExecuteKernel::new(&kernel), Vec::new());
        for argument in arguments {
            set(&mut launch, argument, &context, &images, &numbers, &mut samplers);
        }
        launch.set_global_work_sizes(size);
        // SAFETY: every argument is set, and the kernels stay inside their images and their buffer.
        let launched = unsafe { launch.enqueue_nd_range(&queue) };
        launched.expect("a launch").wait().expect("the launch succeeds");
    }
    match (case.pictures.last(), images.last()) {
        (Some(picture), Some(image)) if case.numbers == 0 => read(&queue, image, picture),
        _ => {
            // SAFETY: the buffer has as many numbers, and the read has ended when the call returns.
            let read = unsafe { queue.enqueue_read_buffer(&numbers, 1, 0, &mut zeros, &[]) };
            read.expect("a read");
            bytemuck::cast_slice(&zeros).to_vec()
        }
    }
}

fn find(device: &DeviceInfo) -> Device {
    let ids = get_all_devices(CL_DEVICE_TYPE_ALL).expect("there are devices");
    let mut devices = ids.into_iter().map(Device::new);
    devices.find(|id| id.name().is_ok_and(|name| name == device.name)).expect("it exists")
}

fn format(format: Format) -> cl_image_format {
    let (order, channel) = match format {
        Format::R8 => (CL_R, CL_UNSIGNED_INT8),
        Format::R16 => (CL_R, CL_UNSIGNED_INT16),
        Format::R32F => (CL_R, CL_FLOAT),
        Format::Rgba8 => (CL_RGBA, CL_UNSIGNED_INT8),
        Format::Rgba8Unorm => (CL_RGBA, CL_UNORM_INT8),
        Format::Rgba16 => (CL_RGBA, CL_UNSIGNED_INT16),
    };
    cl_image_format { image_channel_order: order, image_channel_data_type: channel }
}

/// Returns the sizes of a picture in three dimensions.
fn region(picture: &Picture) -> [usize; 3] {
    let mut region = [1; 3];
    region[..picture.size.len()].copy_from_slice(&picture.size);
    region
}

fn upload(context: &Context, queue: &CommandQueue, picture: &Picture) -> Image {
    let [width, height, depth] = region(picture);
    let image_type = match picture.size.len() {
        1 => CL_MEM_OBJECT_IMAGE1D,
        2 => CL_MEM_OBJECT_IMAGE2D,
        _ => CL_MEM_OBJECT_IMAGE3D,
    };
    let description = cl_image_desc {
        image_type,
        image_width: width,
        image_height: height,
        image_depth: depth,
        image_array_size: 0,
        image_row_pitch: 0,
        image_slice_pitch: 0,
        num_mip_levels: 0,
        num_samples: 0,
        buffer: ptr::null_mut(),
    };
    let (format, none) = (format(picture.format), ptr::null_mut());
    // SAFETY: the format and the description are complete, and the image takes no host memory.
    let image = unsafe { Image::create(context, CL_MEM_READ_WRITE, &format, &description, none) };
    let mut image = image.expect("an image");
    let (origin, size) = ([0; 3], region(picture));
    let pixels = picture.bytes.as_ptr().cast_mut().cast();
    // SAFETY: the picture has as many pixels as the image, and the write has ended when the call returns.
    let written = unsafe {
        let (origin, size) = (origin.as_ptr(), size.as_ptr());
        queue.enqueue_write_image(&mut image, 1, origin, size, 0, 0, pixels, &[])
    };
    written.expect("a write");
    image
}

fn read(queue: &CommandQueue, image: &Image, picture: &Picture) -> Vec<u8> {
    let (origin, size) = ([0; 3], region(picture));
    let mut bytes = vec![0u8; picture.bytes.len()];
    // SAFETY: as for a write.
    let read = unsafe {
        let (origin, size, to) = (origin.as_ptr(), size.as_ptr(), bytes.as_mut_ptr().cast());
        queue.enqueue_read_image(image, 1, origin, size, 0, 0, to, &[])
    };
    read.expect("a read");
    bytes
}

/// Sets the next argument of a launch. A sampler is added to `samplers`, which outlive the launch.
fn set(
    launch: &mut ExecuteKernel<'_>,
    argument: &Given,
    context: &Context,
    images: &[Image],
    numbers: &Buffer<u32>,
    samplers: &mut Vec<Sampler>,
) {
    match argument {
        // SAFETY: each argument has the type of its parameter.
        Given::Picture(image) => unsafe { launch.set_arg(&images[*image].get()) },
        // SAFETY: as above.
        Given::Numbers => unsafe { launch.set_arg(&numbers.get()) },
        // SAFETY: as above.
        Given::Float(number) => unsafe { launch.set_arg(number) },
        // SAFETY: as above.
        Given::Int(number) => unsafe { launch.set_arg(number) },
        Given::Sampler(Reading { normalized, clamps_to_edge, linear }) => {
            let addressing =
                if *clamps_to_edge { CL_ADDRESS_CLAMP_TO_EDGE } else { CL_ADDRESS_CLAMP };
            let filter = if *linear { CL_FILTER_LINEAR } else { CL_FILTER_NEAREST };
            let normalized = (*normalized).into();
            let sampler = Sampler::create(context, normalized, addressing, filter);
            samplers.push(sampler.expect("a sampler"));
            // SAFETY: as above.
            unsafe { launch.set_arg(&samplers[samplers.len() - 1].get()) }
        }
    };
}
