//! SPIR-V modules: whether bytes are one, and what one says of itself.
//!
//! Everything here is a pure function of bytes that may come from anywhere. What the physical
//! layout requires is checked ([`words`]), for nothing can be read from a stream that breaks it.
//! The meaning of instructions is read as far as it goes ([`reflect`]) and is left to the driver to
//! judge: a module with instructions of an extension nobody here knows is as good as any other.
//!
//! Memory and time are linear in the size of the module, whatever its header claims.

mod reflect;
#[cfg(test)]
mod tests;
mod types;
mod words;

use std::collections::HashMap;
use std::sync::Arc;

use crate::backend::Parameter;
use crate::error::Result;
use crate::image::SpecializationConstant;
use words::Words;

/// What a module says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Module {
    /// The SPIR-V version that it is written in, major and minor.
    pub(crate) version: (u8, u8),
    /// The names of its kernels, in its order, each once.
    pub(crate) kernels: Vec<String>,
    /// Sorted by id, each id once. Integers whose sign the module does not tell, which is all of
    /// them in OpenCL's SPIR-V, are named as unsigned.
    pub(crate) specialization_constants: Vec<SpecializationConstant>,
    parameters: HashMap<String, Arc<[Parameter]>>,
}

impl Module {
    /// The parameters of a kernel, in order; `None` if the module does not show them.
    ///
    /// A field is set only where the module is certain of it. Types are those of the source, and
    /// complete, if the module was made with `llvm-spirv
    /// --preserve-ocl-kernel-arg-type-metadata-through-string`. Otherwise integers have none,
    /// because their sign is not kept, and pointers have none, because LLVM with opaque pointers
    /// infers the pointee from how it is used: `global float *` read through a cast becomes
    /// `float4 *`. Names are kept by `clang -cl-kernel-arg-info` or `-fno-discard-value-names`.
    pub(crate) fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.parameters.get(kernel).map(AsRef::as_ref)
    }
}

/// Whether the bytes begin as a SPIR-V module does, in either byte order.
pub(crate) fn has_magic(bytes: &[u8]) -> bool {
    words::byte_order(bytes).is_some()
}

/// Checks a module and reads what it says of itself.
///
/// The bytes come back in little-endian order, which is what drivers take, whatever order they
/// came in.
///
/// # Errors
///
/// [`InvalidImage`](crate::ErrorKind::InvalidImage) if the bytes are no module: empty, no whole
/// number of words, without the magic number, of an unknown version, with a header that is cut
/// short or has no ids, or with instructions or a function that do not end where the module does.
pub(crate) fn read(bytes: Vec<u8>) -> Result<(Vec<u8>, Module)> {
    let words = Words::new(bytes)?;
    let module = reflect::reflect(&words);
    Ok((words.into_bytes(), module))
}
