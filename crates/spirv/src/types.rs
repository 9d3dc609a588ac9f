//! Types as OpenCL C spells them, where SPIR-V keeps enough information.

use rspirv::spirv::{AccessQualifier, Dim, Op, StorageClass};

use super::words::Instruction;

/// Type, with the details that kernel parameters and specialization constants need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Bool,
    Int {
        width: u32,
        signed: bool,
    },
    Float {
        width: u32,
    },
    Vector {
        component: u32,
        count: u32,
    },
    Struct,
    Pointer {
        class: StorageClass,
        pointee: u32,
    },
    /// Pointer whose pointee type the module does not state.
    UntypedPointer {
        class: StorageClass,
    },
    Image(Image),
    Pipe,
    /// Handle, with its name in OpenCL C.
    Handle(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) read_only: bool,
    /// Name in OpenCL C; `None` for combinations that OpenCL C has no type for.
    pub(super) name: Option<&'static str>,
}

impl Type {
    /// Returns the type that an instruction declares, or `None` if it declares no type or one without a
    /// variant here.
    pub(super) fn declared(instruction: &Instruction<'_>) -> Option<Self> {
        let word = |index| instruction.word(index);
        let class = || StorageClass::from_u32(word(1)?);
        Some(match instruction.op()? {
            Op::TypeBool => Self::Bool,
            Op::TypeInt => Self::Int { width: word(1)?, signed: word(2)? == 1 },
            // A further operand states that the format is not IEEE 754.
            Op::TypeFloat if word(2).is_none() => Self::Float { width: word(1)? },
            Op::TypeVector => Self::Vector { component: word(1)?, count: word(2)? },
            Op::TypeStruct => Self::Struct,
            Op::TypePointer => Self::Pointer { class: class()?, pointee: word(2)? },
            Op::TypeUntypedPointerKHR => Self::UntypedPointer { class: class()? },
            Op::TypeImage => Self::Image(Image::declared(instruction)?),
            Op::TypePipe => Self::Pipe,
            Op::TypeSampler => Self::Handle("sampler_t"),
            Op::TypeQueue => Self::Handle("queue_t"),
            Op::TypeEvent => Self::Handle("event_t"),
            Op::TypeDeviceEvent => Self::Handle("clk_event_t"),
            Op::TypeReserveId => Self::Handle("reserve_id_t"),
            _ => return None,
        })
    }
}

impl Image {
    fn declared(instruction: &Instruction<'_>) -> Option<Self> {
        let word = |index| instruction.word(index);
        let dim = Dim::from_u32(word(2)?)?;
        // Depth is 2 if the module does not state it.
        let (depth, arrayed, multisampled) = (word(3)? == 1, word(4)? == 1, word(5)? == 1);
        let name = match (dim, arrayed, multisampled, depth) {
            (Dim::Dim1D, false, false, false) => Some("image1d_t"),
            (Dim::Dim1D, true, false, false) => Some("image1d_array_t"),
            (Dim::DimBuffer, false, false, false) => Some("image1d_buffer_t"),
            (Dim::Dim2D, false, false, false) => Some("image2d_t"),
            (Dim::Dim2D, false, false, true) => Some("image2d_depth_t"),
            (Dim::Dim2D, false, true, false) => Some("image2d_msaa_t"),
            (Dim::Dim2D, false, true, true) => Some("image2d_msaa_depth_t"),
            (Dim::Dim2D, true, false, false) => Some("image2d_array_t"),
            (Dim::Dim2D, true, false, true) => Some("image2d_array_depth_t"),
            (Dim::Dim2D, true, true, false) => Some("image2d_array_msaa_t"),
            (Dim::Dim2D, true, true, true) => Some("image2d_array_msaa_depth_t"),
            (Dim::Dim3D, false, false, false) => Some("image3d_t"),
            _ => None,
        };
        Some(Self { read_only: word(8) == Some(AccessQualifier::ReadOnly as u32), name })
    }
}

/// Access to the types, constants and names that a module declares.
pub(super) trait Declarations {
    /// Returns the instruction that declares a type or a constant.
    fn declaration(&self, id: u32) -> Option<Instruction<'_>>;

    fn name(&self, id: u32) -> Option<&str>;

    fn ty(&self, id: u32) -> Option<Type> {
        Type::declared(&self.declaration(id)?)
    }

    /// Returns the source's spelling of the type of a parameter passed by value, if it is certain.
    fn value_name(&self, id: u32) -> Option<String> {
        match self.ty(id)? {
            Type::Vector { component, count } => {
                let name = certain_scalar(self.ty(component)?)?;
                matches!(count, 2 | 3 | 4 | 8 | 16).then(|| format!("{name}{count}"))
            }
            Type::Struct => self.struct_name(id),
            Type::Image(image) => image.name.map(str::to_owned),
            Type::Handle(name) => Some(name.to_owned()),
            scalar => certain_scalar(scalar).map(str::to_owned),
        }
    }

    /// Returns the size, in bytes, of a number or vector passed by value, or `None` for other types. A vector
    /// of 3 components takes the space of 4.
    fn value_size(&self, id: u32) -> Option<usize> {
        match self.ty(id)? {
            Type::Vector { component, count } => {
                let (_, bytes) = constant_scalar(self.ty(component)?)?;
                matches!(count, 2 | 3 | 4 | 8 | 16)
                    .then(|| bytes * count.next_power_of_two() as usize)
            }
            scalar => constant_scalar(scalar).map(|(_, bytes)| bytes),
        }
    }

    fn struct_name(&self, id: u32) -> Option<String> {
        source_struct(self.name(id)?)
    }
}

/// Returns the source's spelling of a struct type, from its name in the module. LLVM writes `struct.Name`,
/// followed by a number if the name occurs twice.
pub(super) fn source_struct(name: &str) -> Option<String> {
    let (keyword, rest) = name.split_once('.')?;
    let name = rest.split('.').next()?;
    let known = matches!(keyword, "struct" | "union" | "class");
    (known && !name.is_empty() && name != "anon").then(|| format!("{keyword} {name}"))
}

/// Returns the name of a scalar, or `None` if it is uncertain. An integer that the module declares as
/// unsigned may be signed in the source: OpenCL's SPIR-V declares all integers so.
fn certain_scalar(ty: Type) -> Option<&'static str> {
    match ty {
        Type::Int { signed: false, .. } => None,
        _ => constant_scalar(ty).map(|(name, _)| name),
    }
}

/// Returns the name of a scalar, unsigned if the sign is not kept, and its size in bytes.
pub(super) fn constant_scalar(ty: Type) -> Option<(&'static str, usize)> {
    Some(match ty {
        Type::Bool => ("bool", 1),
        Type::Int { width, signed } => match (width, signed) {
            (8, false) => ("uchar", 1),
            (8, true) => ("char", 1),
            (16, false) => ("ushort", 2),
            (16, true) => ("short", 2),
            (32, false) => ("uint", 4),
            (32, true) => ("int", 4),
            (64, false) => ("ulong", 8),
            (64, true) => ("long", 8),
            _ => return None,
        },
        Type::Float { width } => match width {
            16 => ("half", 2),
            32 => ("float", 4),
            64 => ("double", 8),
            _ => return None,
        },
        _ => return None,
    })
}
