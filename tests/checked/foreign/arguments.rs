//! Random arguments of kernels, by their signatures.

use kiln::images::{Addressing, Filter, Pixel, R, Rgba, Sampler, Unorm};
use kiln::launch::{Access, AddressSpace, Parameter};
use kiln::{Buffer, Image, Launch, Runtime};

use crate::elements::{size_of_scalar, with_buffer, with_local, with_value};

/// Value of all bytes around a slice.
const CANARY: u8 = 0x5a;

/// Random arguments of a launch.
pub(super) struct Arguments<'a> {
    rt: &'a Runtime,
    rng: &'a mut fastrand::Rng,
    /// Share of images whose pixels are floating-point numbers, unsigned and signed integers.
    pixels: [usize; 3],
    /// Whether scalars may be far from zero.
    is_edgy: bool,
    lengths: Lengths,
    /// Memory of the buffers, whose bytes are compared after the launch.
    pub(super) memory: Vec<Memory>,
}

/// Lengths of a launch's buffers.
#[derive(Clone, Copy)]
enum Lengths {
    Long,
    Short,
    Mixed,
}

/// Memory of a buffer: a slice of a larger one, or all of it.
pub(super) struct Memory {
    name: String,
    whole: Buffer<u8>,
    content: Vec<u8>,
    /// Number of bytes before the slice, and after it.
    margin: usize,
    is_read_only: bool,
}

impl Memory {
    /// Panics if a byte around the slice has changed, or one in it that the kernel may only read.
    pub(super) async fn check(&self, rt: &Runtime) {
        let bytes = rt.queue().read(&self.whole).await.expect("the launch has ended");
        let (before, rest) = bytes.split_at(self.margin);
        let (inside, after) = rest.split_at(self.content.len());
        let is_canary = |byte: &u8| *byte == CANARY;
        assert!(before.iter().chain(after).all(is_canary), "`{}` was left", self.name);
        assert!(!self.is_read_only || inside == self.content, "`{}` changed", self.name);
    }
}

/// Returns the scalar type and the number of components that a type's name denotes.
pub(super) fn parts(type_name: &str) -> (&str, usize) {
    let name = type_name.trim_end().trim_end_matches('*').trim();
    let scalar = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let lanes = match &name[scalar.len()..] {
        // A vector of three takes the space of four.
        "3" => 4,
        lanes => lanes.parse().unwrap_or(1),
    };
    let scalar = match scalar {
        "unsigned char" => "uchar",
        "unsigned short" => "ushort",
        "unsigned int" => "uint",
        "unsigned long" => "ulong",
        scalar => scalar,
    };
    (scalar, lanes)
}

impl<'a> Arguments<'a> {
    /// `text` is the program's text.
    pub(super) fn new(rt: &'a Runtime, rng: &'a mut fastrand::Rng, text: &str) -> Self {
        let count = |names: [&str; 2]| names.map(|name| text.matches(name).count()).iter().sum();
        let pixels = [
            ["read_imagef", "write_imagef"],
            ["read_imageui", "write_imageui"],
            ["read_imagei", "write_imagei"],
        ];
        let lengths = match rng.u8(..4) {
            0 | 1 => Lengths::Long,
            2 => Lengths::Mixed,
            _ => Lengths::Short,
        };
        let is_edgy = rng.u8(..4) == 0;
        Self { rt, rng, pixels: pixels.map(count), is_edgy, lengths, memory: Vec::new() }
    }

    /// Adds an argument for a parameter. Returns `None` if this module has none of its type.
    pub(super) async fn add(&mut self, launch: Launch, parameter: &Parameter) -> Option<Launch> {
        let type_name = parameter.type_name.as_deref().unwrap_or_default();
        if type_name == "sampler_t" {
            return Some(launch.arg(self.sampler()));
        }
        if type_name.starts_with("image") {
            return self.image(launch, type_name).await;
        }
        let (scalar, lanes) = parts(type_name);
        match parameter.address_space? {
            AddressSpace::Global | AddressSpace::Constant => {
                Some(self.buffer(launch, parameter, scalar).await)
            }
            AddressSpace::Local => {
                let bytes = match self.lengths {
                    Lengths::Long => 4096,
                    _ => self.rng.usize(1..600),
                };
                Some(with_local(launch, bytes, scalar))
            }
            AddressSpace::Private => {
                let known = size_of_scalar(scalar) * lanes;
                let bytes = self.value(scalar, parameter.size.unwrap_or(known));
                with_value(launch, &bytes, scalar)
            }
        }
    }

    /// Returns the bytes of a value: small numbers mostly.
    fn value(&mut self, scalar: &str, size: usize) -> Vec<u8> {
        let is_edgy = self.is_edgy;
        let mut bytes = Vec::with_capacity(size + 8);
        while bytes.len() < size {
            bytes.extend(self.number(scalar, is_edgy));
        }
        bytes.truncate(size);
        bytes
    }

    /// Returns the bytes of a random number of a scalar type. Other types are taken for structs of integers.
    fn number(&mut self, scalar: &str, is_edgy: bool) -> Vec<u8> {
        let is_edge = is_edgy && self.rng.u8(..4) == 0;
        let small = self.rng.i64(0..40);
        if matches!(scalar, "float" | "double" | "half") {
            let number = match (is_edge, self.rng.u8(..6)) {
                (true, at) => {
                    [f64::NAN, f64::INFINITY, -1e30, 1e30, -1.0, 65536.5][usize::from(at)]
                }
                (false, 0..3) => small as f64,
                (false, _) => self.rng.f64() * 4.0 - 1.0,
            };
            return match scalar {
                "float" => (number as f32).to_le_bytes().to_vec(),
                "double" => number.to_le_bytes().to_vec(),
                _ => self.rng.u16(..).to_le_bytes().to_vec(),
            };
        }
        let number = match (is_edge, self.rng.u8(..6)) {
            (true, at) => [-1, i64::MIN, i64::from(i32::MIN), 0, 4096, 65537][usize::from(at)],
            (false, _) => small,
        };
        let size = match scalar {
            "size_t" | "ptrdiff_t" => 8,
            _ => size_of_scalar(scalar),
        };
        match size {
            1 if !matches!(scalar, "char" | "uchar") => (number as i32).to_le_bytes().to_vec(),
            size => number.to_le_bytes()[..size].to_vec(),
        }
    }

    async fn buffer(&mut self, launch: Launch, parameter: &Parameter, scalar: &str) -> Launch {
        let rng = &mut *self.rng;
        let bytes = match (self.lengths, rng.u8(..3)) {
            (Lengths::Long, _) | (Lengths::Mixed, 0) => 1 << 16,
            (Lengths::Mixed, _) => rng.usize(1..400),
            (Lengths::Short, 0) => rng.usize(1..8),
            (Lengths::Short, _) => rng.usize(1..80),
        };
        let step = size_of_scalar(scalar);
        let length = (bytes / step).max(1) * step;
        // A slice has bytes of its own on both sides. Otherwise the buffer is beside a page without access.
        let is_slice = rng.u8(..3) == 0;
        let margin = if is_slice { self.rt.device().limits.slice_alignment.max(128) } else { 0 };
        // Numbers in memory are mostly small, so that those that are indexes have elements.
        let is_edgy = self.rng.u8(..4) == 0;
        let mut content = Vec::with_capacity(length + 8);
        while content.len() < length {
            let number = self.number(scalar, is_edgy);
            content.extend(number);
        }
        content.truncate(length);
        let all = [vec![CANARY; margin], content.clone(), vec![CANARY; margin]].concat();
        let whole = self.rt.buffer_from(all).await.expect("there is memory");
        let slice = whole.slice(margin..margin + length).expect("it fits");
        let launch = with_buffer(launch, &slice, scalar).expect("the length is a multiple");
        self.memory.push(Memory {
            name: parameter.name.clone().unwrap_or_default(),
            whole,
            content,
            margin,
            is_read_only: parameter.access == Some(Access::Read),
        });
        launch
    }

    fn sampler(&mut self) -> Sampler {
        let sampler = Sampler::new();
        match self.rng.u8(..6) {
            0 => sampler,
            1 => sampler.addressing(Addressing::Clamp),
            2 => sampler.addressing(Addressing::ClampToEdge).filter(Filter::Linear),
            3 => sampler.normalized(true).addressing(Addressing::Repeat).filter(Filter::Linear),
            _ => sampler.addressing(Addressing::ClampToEdge),
        }
    }

    async fn image(&mut self, launch: Launch, type_name: &str) -> Option<Launch> {
        let all = self.pixels.iter().sum::<usize>().max(1);
        let at = self.rng.usize(..all);
        let [floats, unsigned, _] = self.pixels;
        if at < floats {
            return match self.rng.u8(..4) {
                0 => self.image_of::<R<f32>>(launch, type_name).await,
                1 => self.image_of::<Rgba<Unorm<u8>>>(launch, type_name).await,
                _ => self.image_of::<Rgba<f32>>(launch, type_name).await,
            };
        }
        if at < floats + unsigned {
            return match self.rng.bool() {
                true => self.image_of::<Rgba<u8>>(launch, type_name).await,
                false => self.image_of::<R<u32>>(launch, type_name).await,
            };
        }
        self.image_of::<Rgba<i32>>(launch, type_name).await
    }

    /// Adds an image of a type of pixels. Returns `None` if the device or this module has none of the kind.
    async fn image_of<P: Pixel>(&mut self, launch: Launch, type_name: &str) -> Option<Launch> {
        let (rt, rng) = (self.rt, &mut *self.rng);
        let mut side = || rng.usize(1..24);
        let (x, y, z) = (side(), side(), side());
        let image: Image<P> = match type_name {
            "image1d_t" => rt.image_1d(x),
            "image1d_array_t" => rt.image_1d_array(x, y),
            "image1d_buffer_t" => rt.image_buffer(&rt.buffer::<P>(x).ok()?),
            "image2d_t" => rt.image_2d(x, y),
            "image2d_array_t" => rt.image_2d_array(x, y, z),
            "image3d_t" => rt.image_3d(x, y, z),
            _ => return None,
        }
        .ok()?;
        let bytes: Vec<_> = (0..image.len() * size_of::<P>()).map(|_| rng.u8(..64)).collect();
        let pixels = bytes.chunks_exact(size_of::<P>()).map(bytemuck::pod_read_unaligned::<P>);
        rt.queue().write(&image, pixels.collect::<Vec<_>>()).ok()?;
        Some(launch.arg(&image))
    }
}
