//! Images of random kernels: their declarations, and accesses to pixels.
//!
//! Kernels begin with the sizes of all images as values, so that indexes are compared with them.

use rspirv::dr::Operand;
use rspirv::spirv::{
    AccessQualifier, Capability, Dim, FunctionControl, ImageFormat, ImageOperands, Op,
    SamplerAddressingMode, SamplerFilterMode,
};

use super::{Builder, Condition, GIVEN, Generator, Statement, Var, Writer};

/// Image of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picture {
    dim: Dim,
    is_array: bool,
    access: AccessQualifier,
}

/// Kinds of images, each with its name in OpenCL C.
const KINDS: [(Dim, bool, &str); 6] = [
    (Dim::Dim1D, false, "image1d_t"),
    (Dim::Dim1D, true, "image1d_array_t"),
    (Dim::DimBuffer, false, "image1d_buffer_t"),
    (Dim::Dim2D, false, "image2d_t"),
    (Dim::Dim2D, true, "image2d_array_t"),
    (Dim::Dim3D, false, "image3d_t"),
];

impl Picture {
    pub(super) fn random(rng: &mut fastrand::Rng) -> Self {
        let (dim, is_array, _) = KINDS[rng.usize(..KINDS.len())];
        let access = match rng.u8(..8) {
            0 => AccessQualifier::ReadWrite,
            1..5 => AccessQualifier::ReadOnly,
            _ => AccessQualifier::WriteOnly,
        };
        Self { dim, is_array, access }
    }

    pub(crate) fn type_name(self) -> &'static str {
        let mut kinds = KINDS.iter();
        let kind = kinds.find(|(dim, is_array, _)| (*dim, *is_array) == (self.dim, self.is_array));
        kind.map_or("", |(.., name)| name)
    }

    /// Returns the number of coordinates, layers included.
    pub(crate) fn coordinates(self) -> usize {
        let dimensions = match self.dim {
            Dim::Dim3D => 3,
            Dim::Dim2D => 2,
            _ => 1,
        };
        dimensions + usize::from(self.is_array)
    }
}

/// Access to a pixel.
#[derive(Clone, Debug)]
pub(super) struct PixelAccess {
    image: usize,
    at: Vec<Var>,
    kind: PixelKind,
    /// Whether a function that the kernel calls does the access.
    is_called: bool,
    /// Way in which the coordinates become a vector.
    form: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PixelKind {
    Read,
    /// Read with the kernel's own sampler, or with a constant one, at integer coordinates.
    Sample {
        is_constant: bool,
    },
    /// Read with a constant sampler at floating-point coordinates.
    SampleFloat,
    Write,
}

impl PixelAccess {
    /// Returns whether the access defines a value.
    pub(super) fn is_value(&self) -> bool {
        self.kind != PixelKind::Write
    }
}

impl Generator {
    /// Returns the number of values that a kernel begins with.
    pub(super) fn given(&self) -> usize {
        GIVEN + self.pictures.iter().map(|picture| picture.coordinates()).sum::<usize>()
    }

    /// Makes an access to a pixel, often one behind a comparison with the sizes of its image.
    pub(super) fn pixel(&mut self, count: usize) -> Statement {
        let image = self.rng.usize(..self.pictures.len());
        let picture = self.pictures[image];
        let at: Vec<_> = (0..picture.coordinates()).map(|_| self.rng.usize(..count)).collect();
        let kind = match (picture.access, picture.dim) {
            (AccessQualifier::WriteOnly, _) => PixelKind::Write,
            (AccessQualifier::ReadWrite, _) if self.rng.bool() => PixelKind::Write,
            (AccessQualifier::ReadWrite, _) | (_, Dim::DimBuffer) => PixelKind::Read,
            _ => match self.rng.u8(..5) {
                0 => PixelKind::Sample { is_constant: false },
                1 => PixelKind::Sample { is_constant: true },
                2 => PixelKind::SampleFloat,
                _ => PixelKind::Read,
            },
        };
        let is_called = self.rng.u8(..3) == 0;
        let access = PixelAccess { image, at: at.clone(), kind, is_called, form: self.rng.u8(..4) };
        let is_value = access.is_value();
        let access = Statement::Pixel(access);
        if self.rng.bool() {
            return access;
        }
        let before = self.pictures[..image].iter().map(|picture| picture.coordinates());
        let first = GIVEN + before.sum::<usize>();
        let is_inside = at.iter().enumerate().map(|(d, &var)| {
            let size = first + d;
            // A mistake in the comparison makes some accesses leave their images.
            let op = if self.rng.u8(..8) == 0 { Op::SLessThan } else { Op::ULessThan };
            Condition::Compare(op, var, size)
        });
        let both = |a, b| Condition::Both(Box::new(a), Box::new(b));
        let Some(condition) = is_inside.reduce(both) else { return access };
        let chosen = [if is_value { count } else { count - 1 }, count - 1];
        Statement::If(condition, vec![access], Vec::new(), chosen)
    }
}

/// Declarations of a module's images.
#[derive(Clone, Debug, Default)]
pub(super) struct Declared {
    pub(super) pictures: Vec<Picture>,
    /// Types of the images.
    pub(super) types: Vec<u32>,
    /// Functions that read and write a pixel of each image, as far as it has them.
    functions: Vec<[Option<u32>; 2]>,
    /// Parameters of the kernel.
    pub(super) parameters: Vec<u32>,
    pub(super) sampler_type: u32,
    pub(super) sampler: u32,
    constant_sampler: u32,
    float: u32,
    texel: u32,
    vectors: [u32; 4],
    floats: [u32; 4],
}

impl Declared {
    /// Declares the types of images, and functions that access pixels. Without images, nothing is declared.
    pub(super) fn of(b: &mut Builder, pictures: &[Picture], void: u32, int: u32) -> Self {
        if pictures.is_empty() {
            return Self::default();
        }
        for capability in [
            Capability::ImageBasic,
            Capability::ImageReadWrite,
            Capability::LiteralSampler,
            Capability::Sampled1D,
            Capability::SampledBuffer,
            Capability::Image1D,
            Capability::ImageBuffer,
        ] {
            b.capability(capability);
        }
        let float = b.type_float(32, None);
        let vectors = [int, b.type_vector(int, 2), b.type_vector(int, 3), b.type_vector(int, 4)];
        let floats =
            [float, b.type_vector(float, 2), b.type_vector(float, 3), b.type_vector(float, 4)];
        let types = pictures.iter().map(|picture| {
            let (array, format) = (picture.is_array.into(), ImageFormat::Unknown);
            b.type_image(void, picture.dim, 0, array, 0, 0, format, Some(picture.access))
        });
        let types: Vec<_> = types.collect();
        let sampler_type = b.type_sampler();
        let (mode, filter) = (SamplerAddressingMode::ClampToEdge, SamplerFilterMode::Nearest);
        let constant_sampler = b.constant_sampler(sampler_type, mode, 0, filter);
        let mut declared = Self {
            pictures: pictures.to_vec(),
            types,
            sampler_type,
            constant_sampler,
            float,
            texel: vectors[3],
            vectors,
            floats,
            ..Self::default()
        };
        for at in 0..pictures.len() {
            let functions = declared.functions_of(b, at, void);
            declared.functions.push(functions);
        }
        declared
    }

    /// Returns the type of the coordinates of an image. Three coordinates are in a vector of four, as in OpenCL C.
    fn coordinate_type(&self, image: usize) -> u32 {
        let count = self.pictures[image].coordinates();
        self.vectors[if count == 3 { 3 } else { count - 1 }]
    }

    /// Writes the functions that access a pixel of an image.
    fn functions_of(&self, b: &mut Builder, image: usize, void: u32) -> [Option<u32>; 2] {
        let (ty, coordinate) = (self.types[image], self.coordinate_type(image));
        let access = self.pictures[image].access;
        let read = (access != AccessQualifier::WriteOnly).then(|| {
            let signature = b.type_function(self.texel, [ty, coordinate]);
            let id = b.begin_function(self.texel, None, FunctionControl::NONE, signature).unwrap();
            let parameters = [ty, coordinate].map(|ty| b.function_parameter(ty).unwrap());
            b.begin_block(None).unwrap();
            let [image, at] = parameters;
            let pixel = b.image_read(self.texel, None, image, at, None, []).unwrap();
            b.ret_value(pixel).unwrap();
            b.end_function().unwrap();
            id
        });
        let write = (access != AccessQualifier::ReadOnly).then(|| {
            let signature = b.type_function(void, [ty, coordinate, self.texel]);
            let id = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
            let parameters =
                [ty, coordinate, self.texel].map(|ty| b.function_parameter(ty).unwrap());
            b.begin_block(None).unwrap();
            let [image, at, texel] = parameters;
            b.image_write(image, at, texel, None, []).unwrap();
            b.ret().unwrap();
            b.end_function().unwrap();
            id
        });
        [read, write]
    }
}

impl Writer {
    /// Writes the sizes of all images. Returns them as values.
    pub(super) fn sizes(&mut self) -> Vec<u32> {
        let mut sizes = Vec::new();
        let Declared { pictures, parameters, vectors, .. } = self.declared.clone();
        for (picture, image) in pictures.into_iter().zip(parameters) {
            let count = picture.coordinates();
            let ty = vectors[count - 1];
            let size = if picture.dim == Dim::DimBuffer {
                self.insert(Op::ImageQuerySize, ty, &[image])
            } else {
                let level = self.b.constant_bit32(self.int, 0);
                self.insert(Op::ImageQuerySizeLod, ty, &[image, level])
            };
            for d in 0..count as u32 {
                sizes.push(match count {
                    1 => size,
                    _ => self.b.composite_extract(self.int, None, size, [d]).unwrap(),
                });
            }
        }
        sizes
    }

    /// Writes an access to a pixel. Returns the value that it reads.
    pub(super) fn pixel(&mut self, access: &PixelAccess, values: &[u32]) -> Option<u32> {
        let declared = self.declared.clone();
        let image = declared.parameters[access.image];
        let at: Vec<_> = access.at.iter().map(|&var| values[var]).collect();
        let coordinate = self.coordinate(&at, access.form);
        let ([read, write], texel) = (declared.functions[access.image], declared.texel);
        let pixel = match access.kind {
            PixelKind::Write => {
                let pixel = [at[0]; 4];
                let pixel = self.insert(Op::CompositeConstruct, texel, &pixel);
                match write.filter(|_| access.is_called) {
                    Some(write) => {
                        let arguments = [image, coordinate, pixel];
                        self.b.function_call(self.void, None, write, arguments).unwrap();
                    }
                    None => self.b.image_write(image, coordinate, pixel, None, []).unwrap(),
                }
                return None;
            }
            PixelKind::Read => match read.filter(|_| access.is_called) {
                Some(read) => self.b.function_call(texel, None, read, [image, coordinate]).unwrap(),
                None => self.b.image_read(texel, None, image, coordinate, None, []).unwrap(),
            },
            PixelKind::Sample { is_constant: false } => {
                self.sample(access.image, declared.sampler, coordinate)
            }
            PixelKind::Sample { is_constant: true } => {
                self.sample(access.image, declared.constant_sampler, coordinate)
            }
            PixelKind::SampleFloat => {
                let count = if at.len() == 3 { 4 } else { at.len() };
                let ty = declared.floats[count - 1];
                let coordinate = self.insert(Op::ConvertSToF, ty, &[coordinate]);
                self.sample(access.image, declared.constant_sampler, coordinate)
            }
        };
        Some(self.b.composite_extract(self.int, None, pixel, [1]).unwrap())
    }

    fn sample(&mut self, image: usize, sampler: u32, coordinate: u32) -> u32 {
        let declared = self.declared.clone();
        let ty = self.b.type_sampled_image(declared.types[image]);
        let combined = self.insert(Op::SampledImage, ty, &[declared.parameters[image], sampler]);
        let level = Operand::IdRef(self.b.constant_bit32(declared.float, 0));
        let operands = ImageOperands::LOD;
        let texel = declared.texel;
        self.b
            .image_sample_explicit_lod(texel, None, combined, coordinate, operands, [level])
            .unwrap()
    }

    /// Writes coordinates as a number or a vector, in one of several ways.
    fn coordinate(&mut self, at: &[u32], form: u8) -> u32 {
        let vectors = self.declared.vectors;
        if let [one] = *at {
            return one;
        }
        let count = if at.len() == 3 { 4 } else { 2 };
        let ty = vectors[count - 1];
        match form {
            // The last one of four coordinates is never used.
            0 => {
                let parts: Vec<_> = (0..count).map(|d| *at.get(d).unwrap_or(&at[0])).collect();
                self.insert(Op::CompositeConstruct, ty, &parts)
            }
            1 => {
                let own = self.insert(Op::CompositeConstruct, vectors[at.len() - 1], at);
                let indexes = (0..count).map(|d| if d < at.len() { d as u32 } else { u32::MAX });
                let indexes: Vec<_> = indexes.collect();
                self.b.vector_shuffle(ty, None, own, own, indexes).unwrap()
            }
            _ => {
                let mut vector = self.b.undef(ty, None);
                for (d, &part) in at.iter().enumerate() {
                    vector = self.b.composite_insert(ty, None, part, vector, [d as u32]).unwrap();
                }
                vector
            }
        }
    }
}
