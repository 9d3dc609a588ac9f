//! Plain data that describes what a kernel takes: its parameters, and the specialization constants of its
//! module.

/// Where a parameter's bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressSpace {
    /// Device memory: the argument is a buffer.
    Global,
    /// Device memory that the kernel only reads: the argument is a buffer.
    Constant,
    /// Memory of the work-group: the argument is a [`Local`](crate::Local).
    Local,
    /// The argument is a value.
    Private,
}

/// What a kernel or a command does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Only writes it; what it held before does not matter.
    Write,
    /// Reads and writes it, or it is not known.
    ReadWrite,
}

/// A parameter of a kernel, as far as the image or the driver tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// Its name in the source.
    pub name: Option<String>,
    /// Its type as OpenCL C writes it, such as `float4*` or `uint`.
    pub type_name: Option<String>,
    /// Where its bytes live.
    pub address_space: Option<AddressSpace>,
    /// What the kernel's signature lets it do with a buffer.
    pub access: Option<Access>,
    /// The bytes of a value.
    pub size: Option<usize>,
}

/// Whether a type, as OpenCL C writes it, is that of an image, a sampler or another object of
/// OpenCL's, which launches cannot give.
pub(crate) fn is_object(type_name: &str) -> bool {
    matches!(
        type_name,
        "sampler_t"
            | "queue_t"
            | "event_t"
            | "clk_event_t"
            | "reserve_id_t"
            | "image1d_t"
            | "image1d_array_t"
            | "image1d_buffer_t"
            | "image2d_t"
            | "image2d_array_t"
            | "image2d_depth_t"
            | "image2d_array_depth_t"
            | "image2d_msaa_t"
            | "image2d_array_msaa_t"
            | "image2d_msaa_depth_t"
            | "image2d_array_msaa_depth_t"
            | "image3d_t"
    )
}

/// A value of a SPIR-V module that is fixed when the module is built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecializationConstant {
    /// Its `SpecId`.
    pub id: u32,
    /// Its name, where the module keeps names.
    pub name: Option<String>,
    /// Its type as OpenCL C writes it, such as `uint`.
    pub type_name: String,
    /// The value it has unless it is set, little-endian; its length is the constant's size.
    pub default: Vec<u8>,
}
