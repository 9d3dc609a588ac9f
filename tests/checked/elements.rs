//! Arguments whose types are known by their names in OpenCL C when a test runs.

#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "guard pages need Linux"))]

use kiln::{Buffer, Launch, Local};

/// Evaluates the first expression with the Rust type of a scalar of OpenCL C, or the second one for other names.
macro_rules! by_scalar {
    ($name:expr, $ty:ident => $known:expr, $other:expr) => {
        by_scalar!(
            @ $name, $ty => $known, $other;
            "char" i8, "uchar" u8, "short" i16, "ushort" u16, "int" i32, "uint" u32, "long" i64, "ulong" u64,
            "half" u16, "float" f32, "double" f64
        )
    };
    (@ $name:expr, $ty:ident => $known:expr, $other:expr; $($scalar:literal $rust:ty),*) => {
        match $name {
            $($scalar => {
                type $ty = $rust;
                $known
            })*
            _ => $other,
        }
    };
}

/// Adds a buffer to a launch's arguments, with the scalar type of its elements.
///
/// # Errors
///
/// Returns an error if the buffer's length is not a multiple of the type's size.
pub(crate) fn with_buffer(
    launch: Launch,
    buffer: &Buffer<u8>,
    scalar: &str,
) -> kiln::Result<Launch> {
    Ok(by_scalar!(scalar, T => launch.arg(&buffer.cast::<T>()?), launch.arg(buffer)))
}

/// Adds local memory of a number of bytes to a launch's arguments, with the scalar type of its elements.
pub(crate) fn with_local(launch: Launch, bytes: usize, scalar: &str) -> Launch {
    by_scalar!(scalar, T => {
        launch.arg(Local::<T>::new(bytes.div_ceil(size_of::<T>())))
    }, launch.arg(Local::<u8>::new(bytes)))
}

/// Adds a value to a launch's arguments: its bytes, and its scalar type. Returns `None` if no Rust type of this module
/// has its size.
pub(crate) fn with_value(launch: Launch, bytes: &[u8], scalar: &str) -> Option<Launch> {
    macro_rules! by_count {
        ($ty:ty: $($count:literal)*) => {
            match bytes.len() / size_of::<$ty>() {
                1 => Some(launch.arg(bytemuck::pod_read_unaligned::<$ty>(bytes))),
                $($count => Some(launch.arg(bytemuck::pod_read_unaligned::<[$ty; $count]>(bytes))),)*
                _ => None,
            }
        };
    }
    by_scalar!(scalar, T => by_count!(T: 2 4 8 16), match bytes.len() {
        // Structs, whose names are not known.
        1 | 2 => by_count!(u8: 2),
        _ => by_count!([u8; 4]: 2 3 4 5 6 7 8 9 10 11 12 14 16 18 20 24 28 32),
    })
}

/// Returns the size of a scalar of OpenCL C in bytes, or 1 for other names.
pub(crate) fn size_of_scalar(scalar: &str) -> usize {
    by_scalar!(scalar, T => size_of::<T>(), 1)
}
