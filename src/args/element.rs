//! Types of elements: those of Rust values, and those of kernels' parameters.

use std::any::TypeId;
use std::fmt;

use kiln_spirv::Parameter;

/// Rust type of an argument's elements.
pub(crate) struct Element {
    pub(super) name: fn() -> &'static str,
    /// Returns the scalar type that the element is, or is an array of.
    pub(super) scalar: fn() -> Option<Scalar>,
    pub(super) size: usize,
}

impl Element {
    pub(super) const fn of<T: 'static>() -> &'static Self {
        const {
            let (name, scalar) = (std::any::type_name::<T>, Scalar::of::<T>);
            &Self { name, scalar, size: size_of::<T>() }
        }
    }

    /// Returns the size in bytes of a type that stands for a struct: one that is neither a scalar nor an array of
    /// scalars, which may be the members of a struct one by one.
    pub(crate) fn struct_size(&self) -> Option<usize> {
        (self.scalar)().is_none().then_some(self.size)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str((self.name)())
    }
}

/// Scalar type of OpenCL C that Rust values can represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Char,
    UChar,
    Short,
    UShort,
    Int,
    UInt,
    Long,
    ULong,
    /// Passed as bits, because Rust has no such type.
    Half,
    Float,
    Double,
}

impl Scalar {
    /// Returns the scalar type that `T` is, or is an array of.
    fn of<T: 'static>() -> Option<Self> {
        macro_rules! search {
            ($($rust:ty => $scalar:ident),*) => {
                $(if is_or_is_array_of::<T, $rust>() { return Some(Self::$scalar); })*
            };
        }
        search!(
            f32 => Float, f64 => Double, i32 => Int, u32 => UInt, i64 => Long, u64 => ULong,
            i8 => Char, u8 => UChar, i16 => Short, u16 => UShort, isize => Long, usize => ULong
        );
        None
    }

    /// Returns whether elements of type `given` can be passed for this type.
    pub(super) fn accepts(self, given: Self) -> bool {
        given == self || self == Self::Half && matches!(given, Self::Short | Self::UShort)
    }

    /// Returns the Rust type to pass for this type, and an example value.
    const fn in_rust(self) -> (&'static str, &'static str) {
        match self {
            Self::Char => ("i8", "5i8"),
            Self::UChar => ("u8", "5u8"),
            Self::Short => ("i16", "5i16"),
            Self::UShort => ("u16", "5u16"),
            Self::Int => ("i32", "5i32"),
            Self::UInt => ("u32", "5u32"),
            Self::Long => ("i64", "5i64"),
            Self::ULong => ("u64", "5u64"),
            // The bits of 1.0.
            Self::Half => ("u16", "0x3c00u16"),
            Self::Float => ("f32", "3.0f32"),
            Self::Double => ("f64", "3.0f64"),
        }
    }

    const fn size(self) -> usize {
        match self {
            Self::Char | Self::UChar => 1,
            Self::Short | Self::UShort | Self::Half => 2,
            Self::Int | Self::UInt | Self::Float => 4,
            Self::Long | Self::ULong | Self::Double => 8,
        }
    }
}

/// Type of a parameter's elements: a scalar type, and the number of scalars that one element takes space for.
/// Determined once for each parameter of a kernel, not for each launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElementType {
    pub(super) scalar: Scalar,
    pub(super) lanes: usize,
}

impl ElementType {
    /// Returns the element type that a parameter's type name denotes. Returns `None` for the names of
    /// structures and of type definitions, which do not determine one.
    pub(crate) fn of(parameter: &Parameter) -> Option<Self> {
        let name = parameter.type_name.as_ref()?.trim_end().trim_end_matches('*').trim();
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (base, lanes) = name.split_at(name.len() - digits);
        let scalar = match base {
            "char" => Scalar::Char,
            "uchar" | "unsigned char" => Scalar::UChar,
            "short" => Scalar::Short,
            "ushort" | "unsigned short" => Scalar::UShort,
            "int" => Scalar::Int,
            "uint" | "unsigned int" => Scalar::UInt,
            "long" => Scalar::Long,
            "ulong" | "unsigned long" => Scalar::ULong,
            "half" => Scalar::Half,
            "float" => Scalar::Float,
            "double" => Scalar::Double,
            _ => return None,
        };
        let lanes = match lanes {
            "" => 1,
            "2" => 2,
            // OpenCL C, 6.1.5: a vector of three takes the space of four.
            "3" | "4" => 4,
            "8" => 8,
            "16" => 16,
            _ => return None,
        };
        Some(Self { scalar, lanes })
    }

    pub(super) const fn size(self) -> usize {
        self.scalar.size() * self.lanes
    }

    /// Returns the Rust type to pass for an element, and an example value, if there is a short one.
    pub(super) fn in_rust(self) -> (String, Option<&'static str>) {
        let (name, example) = self.scalar.in_rust();
        match self.lanes {
            1 => (name.to_owned(), Some(example)),
            lanes => (format!("[{name}; {lanes}]"), None),
        }
    }
}

/// Returns whether `T` is `U` or an array of as many `U` as a vector of OpenCL C has.
fn is_or_is_array_of<T: 'static, U: 'static>() -> bool {
    let id = TypeId::of::<T>();
    id == TypeId::of::<U>()
        || id == TypeId::of::<[U; 2]>()
        || id == TypeId::of::<[U; 3]>()
        || id == TypeId::of::<[U; 4]>()
        || id == TypeId::of::<[U; 8]>()
        || id == TypeId::of::<[U; 16]>()
}
