//! Plain data that describes the interface of a kernel: its parameters, and the specialization constants of its
//! module.

/// Memory in which a parameter's bytes live.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_spirv as launch; }
/// use kiln::launch::{AddressSpace, Parameter};
///
/// fn local_arguments(parameters: &[Parameter]) -> usize {
///     let is_local = |p: &&Parameter| p.address_space == Some(AddressSpace::Local);
///     parameters.iter().filter(is_local).count()
/// }
/// # assert_eq!(local_arguments(&[]), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressSpace {
    /// Device memory: the argument is a buffer.
    Global,
    /// Device memory that the kernel only reads: the argument is a buffer.
    Constant,
    /// Memory of the work-group: the argument is a `Local`.
    Local,
    /// The argument is a value.
    Private,
}

/// Use of a buffer by a kernel or a command.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_spirv as launch; }
/// use kiln::launch::{Access, Parameter};
///
/// fn inputs(parameters: &[Parameter]) -> usize {
///     parameters.iter().filter(|parameter| parameter.access == Some(Access::Read)).count()
/// }
/// # assert_eq!(inputs(&[]), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only reads the buffer.
    Read,
    /// Only writes the buffer; its previous contents do not matter.
    Write,
    /// Reads and writes the buffer, or its use is not known.
    ReadWrite,
}

/// Parameter of a kernel, as far as the module or the driver describes it.
///
/// # Examples
///
/// ```no_run
/// # fn example(parameters: &[kiln_spirv::Parameter]) { // from `Kernel::params`
/// for (index, parameter) in parameters.iter().enumerate() {
///     let type_name = parameter.type_name.as_deref().unwrap_or("not known");
///     println!("parameter {index}: {type_name}");
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// Name in the source.
    pub name: Option<String>,
    /// Type as written in OpenCL C, such as `float4*` or `uint`.
    pub type_name: Option<String>,
    /// Memory in which the parameter's bytes live.
    pub address_space: Option<AddressSpace>,
    /// Use of a buffer that the kernel's signature permits.
    pub access: Option<Access>,
    /// Size of a value, in bytes.
    pub size: Option<usize>,
}

impl Parameter {
    /// Creates a parameter.
    #[doc(hidden)]
    #[must_use]
    pub fn new(
        name: Option<String>,
        type_name: Option<String>,
        address_space: Option<AddressSpace>,
        access: Option<Access>,
        size: Option<usize>,
    ) -> Self {
        Self { name, type_name, address_space, access, size }
    }
}

/// Returns whether a type, as written in OpenCL C, is that of an image, a sampler or another OpenCL object.
/// Launches cannot pass such objects.
#[must_use]
pub fn is_object(type_name: &str) -> bool {
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

/// Value of a SPIR-V module that is fixed when the module is built.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_spirv as build; }
/// use kiln::build::SpecializationConstant;
///
/// fn width(constants: &[SpecializationConstant]) -> Option<u32> {
///     constants.iter().find(|it| it.name.as_deref() == Some("WIDTH")).map(|width| width.id)
/// }
/// # assert_eq!(width(&[]), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecializationConstant {
    /// `SpecId` of the constant.
    pub id: u32,
    /// Name, if the module keeps names.
    pub name: Option<String>,
    /// Type as written in OpenCL C, such as `uint`.
    pub type_name: String,
    /// Default value, little-endian; its length is the constant's size.
    pub default: Vec<u8>,
}
