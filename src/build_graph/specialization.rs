//! Values of specialization constants.

use super::key::ConstantBytes;

/// A value of a specialization constant.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct GivenConstant {
    pub(super) bytes: ConstantBytes,
    /// Rust type of the given value.
    pub(super) type_name: &'static str,
}

mod sealed {
    use super::GivenConstant;

    pub trait Sealed: Copy {
        /// Returns the value as a SPIR-V module stores it, little-endian.
        fn to_constant(self) -> GivenConstant;
    }
}

pub(crate) use sealed::Sealed;

/// A value for a specialization constant: `bool`, an integer of 8 to 64 bits, `f32` or `f64`.
///
/// The value must have the constant's type. A signed integer can be given for an unsigned one of the same size,
/// and the other way round. A `half`, which Rust lacks, is given as the bits of a `u16`.
///
/// # Examples
///
/// ```no_run
/// use kiln::BuildRequest;
/// use kiln::build::SpecializationValue;
///
/// /// Sets several constants of one type.
/// fn specialize<T: SpecializationValue>(request: BuildRequest, values: &[(u32, T)]) -> BuildRequest {
///     values.iter().fold(request, |request, (id, value)| request.specialize(*id, *value))
/// }
///
/// # async fn example(rt: kiln::Runtime, blur: kiln::Module) -> kiln::Result<()> {
/// let program = specialize(rt.build(&blur), &[(0, 4u32), (1, 16)]).await?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a value of a specialization constant",
    label = "give a `bool`, an integer of 8 to 64 bits, `f32` or `f64`, such as `16u32`"
)]
pub trait SpecializationValue: Sealed {}

macro_rules! specialization_values {
    ($($type:ty)*) => {
        $(
            impl Sealed for $type {
                fn to_constant(self) -> GivenConstant {
                    let bytes = ConstantBytes::from_slice(&self.to_le_bytes());
                    GivenConstant { bytes, type_name: stringify!($type) }
                }
            }

            impl SpecializationValue for $type {}
        )*
    };
}

specialization_values!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

impl Sealed for bool {
    fn to_constant(self) -> GivenConstant {
        GivenConstant { type_name: "bool", ..u8::from(self).to_constant() }
    }
}

impl SpecializationValue for bool {}
