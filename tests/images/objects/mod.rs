//! Launches over images, run by Kiln and by OpenCL directly.

pub(crate) mod direct;

use kiln::images::{Addressing, Filter, Pixel, R, Rgba, Sampler, Unorm};
use kiln::{Buffer, Image, Launch, Module, Runtime};

/// Format of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Format {
    R8,
    R16,
    R32F,
    Rgba8,
    Rgba8Unorm,
    Rgba16,
}

/// Sizes of a picture in pixels, and its pixels. The dimensions that it lacks are left out.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) format: Format,
    pub(crate) size: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Picture {
    pub(crate) fn of<T: bytemuck::Pod>(format: Format, size: &[usize], channels: &[T]) -> Self {
        Self { format, size: size.to_vec(), bytes: bytemuck::cast_slice(channels).to_vec() }
    }
}

/// How a kernel reads a picture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) normalized: bool,
    pub(crate) clamps_to_edge: bool,
    pub(crate) linear: bool,
}

/// Argument of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Given {
    /// Picture of the case, by its position.
    Picture(usize),
    /// The case's buffer of numbers.
    Numbers,
    Sampler(Reading),
    Float(f32),
    Int(i32),
}

/// Launches one after another, and what they leave in the last picture, or in the buffer if there is one.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) source: &'static str,
    pub(crate) pictures: Vec<Picture>,
    /// Length of the buffer of numbers, which are zeros at first.
    pub(crate) numbers: usize,
    pub(crate) launches: Vec<(&'static str, Vec<usize>, Vec<Given>)>,
}

/// Image of one of the formats.
enum AnyImage {
    R8(Image<R<u8>>),
    R16(Image<R<u16>>),
    R32F(Image<R<f32>>),
    Rgba8(Image<Rgba<u8>>),
    Rgba8Unorm(Image<Rgba<Unorm<u8>>>),
    Rgba16(Image<Rgba<u16>>),
}

macro_rules! each {
    ($image:expr, $name:ident => $body:expr) => {
        match $image {
            AnyImage::R8($name) => $body,
            AnyImage::R16($name) => $body,
            AnyImage::R32F($name) => $body,
            AnyImage::Rgba8($name) => $body,
            AnyImage::Rgba8Unorm($name) => $body,
            AnyImage::Rgba16($name) => $body,
        }
    };
}

/// Returns the values whose bytes are given.
pub(crate) fn values<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn upload<P: Pixel>(rt: &Runtime, picture: &Picture) -> Image<P> {
    let image = match *picture.size {
        [width] => rt.image_1d(width),
        [width, height] => rt.image_2d(width, height),
        [width, height, depth] => rt.image_3d(width, height, depth),
        _ => panic!("{picture:?} has other dimensions"),
    };
    let image = image.expect("the device has such images");
    let pixels: Vec<P> = values(&picture.bytes);
    rt.queue().write(&image, pixels).expect("they fit");
    image
}

impl AnyImage {
    fn of(rt: &Runtime, picture: &Picture) -> Self {
        match picture.format {
            Format::R8 => Self::R8(upload(rt, picture)),
            Format::R16 => Self::R16(upload(rt, picture)),
            Format::R32F => Self::R32F(upload(rt, picture)),
            Format::Rgba8 => Self::Rgba8(upload(rt, picture)),
            Format::Rgba8Unorm => Self::Rgba8Unorm(upload(rt, picture)),
            Format::Rgba16 => Self::Rgba16(upload(rt, picture)),
        }
    }

    fn add_to(&self, launch: Launch) -> Launch {
        each!(self, image => launch.arg(image))
    }

    async fn bytes(&self, rt: &Runtime) -> Vec<u8> {
        each!(self, image => {
            let pixels = rt.queue().read(image).await.expect("the launches succeed");
            bytemuck::cast_slice(&pixels).to_vec()
        })
    }
}

fn sampler(reading: Reading) -> Sampler {
    let addressing =
        if reading.clamps_to_edge { Addressing::ClampToEdge } else { Addressing::Clamp };
    let filter = if reading.linear { Filter::Linear } else { Filter::Nearest };
    Sampler::new().normalized(reading.normalized).addressing(addressing).filter(filter)
}

/// Runs a case by Kiln, with kernels from a module.
pub(crate) async fn run(rt: &Runtime, case: &Case, module: &Module) -> Vec<u8> {
    let program = rt.build(module).await.expect("the module is valid");
    let images: Vec<_> = case.pictures.iter().map(|picture| AnyImage::of(rt, picture)).collect();
    let numbers: Buffer<u32> = rt.buffer(case.numbers.max(1)).expect("there is memory");
    let mut launches = Vec::new();
    for (name, size, arguments) in &case.launches {
        // SAFETY: the kernels stay inside their images and their buffer.
        let kernel = unsafe { program.kernel(name) }.expect("the kernel exists");
        let mut launch = kernel.launch(support::size(size));
        for argument in arguments {
            launch = match *argument {
                Given::Picture(at) => images[at].add_to(launch),
                Given::Numbers => launch.arg(&numbers),
                Given::Sampler(reading) => launch.arg(sampler(reading)),
                Given::Float(number) => launch.arg(number),
                Given::Int(number) => launch.arg(number),
            };
        }
        let launched = rt.queue().submit(launch).expect("the arguments fit");
        launches.push(launched);
    }
    for launch in launches {
        launch.await.expect("the driver takes the launch");
    }
    match images.last() {
        Some(image) if case.numbers == 0 => image.bytes(rt).await,
        _ => {
            let numbers = rt.queue().read(&numbers).await.expect("the launches succeed");
            bytemuck::cast_slice(&numbers).to_vec()
        }
    }
}
