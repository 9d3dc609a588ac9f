//! Macros that a text finds defined before its first line.

use std::collections::HashSet;
use std::rc::Rc;

use super::token::Token;

/// Macro with the version of the device. It differs from device to device.
pub(crate) const DEVICE_VERSION: &str = "__OPENCL_VERSION__";

/// Values of [`DEVICE_VERSION`] for the devices that Kiln opens.
pub(crate) const DEVICE_VERSIONS: [u32; 5] = [120, 200, 210, 220, 300];

/// Macros that have one value for all devices.
///
/// The compilers of all known drivers are built on clang, for OpenCL C 1.2 without an option that says otherwise.
pub(super) const PREDEFINED: [&str; 11] = [
    "__STDC__=1",
    "__STDC_VERSION__=199901L",
    "CL_VERSION_1_0=100",
    "CL_VERSION_1_1=110",
    "CL_VERSION_1_2=120",
    "CL_VERSION_2_0=200",
    "CL_VERSION_3_0=300",
    "__ENDIAN_LITTLE__=1",
    "NULL=0",
    "__clang__=1",
    "__CHAR_BIT__=8",
];

/// Beginnings of the names of macros that a device either defines as 1 or does not define.
const OPTIONAL: [&str; 5] =
    ["cl_", "__opencl_c_", "__IMAGE_SUPPORT__", "__FAST_RELAXED_MATH__", "FP_FAST_"];

/// Returns whether a macro is one that a device either defines as 1 or does not define, such as that of an
/// extension.
pub(crate) fn is_optional(name: &str) -> bool {
    OPTIONAL.iter().any(|prefix| name.starts_with(prefix))
}

/// Macros of other languages, systems and compilers, which no compiler for OpenCL C defines.
const NEVER_DEFINED: [&str; 18] = [
    "__CUDACC__",
    "__CUDA_ARCH__",
    "__CUDA__",
    "__GNUC__",
    "__GNUC_MINOR__",
    "__GNUC_PATCHLEVEL__",
    "__GNUG__",
    "__HIPCC__",
    "__HIP__",
    "__HIP_DEVICE_COMPILE__",
    "__HIP_PLATFORM_AMD__",
    "__HIP_PLATFORM_NVIDIA__",
    "__METAL_VERSION__",
    "__NVCC__",
    "__OPENCL_CPP_VERSION__",
    "__cplusplus",
    "_MSC_VER",
    "_OPENMP",
];

/// Beginnings of the names of OpenCL C's macros that are not reserved by C.
const OF_OPENCL: [&str; 20] = [
    "cl_",
    "CL_VERSION_",
    "CLK_",
    "FP_FAST_",
    "FP_",
    "CHAR_",
    "SCHAR_",
    "UCHAR_",
    "SHRT_",
    "USHRT_",
    "INT_",
    "UINT_",
    "LONG_",
    "ULONG_",
    "HALF_",
    "FLT_",
    "DBL_",
    "M_",
    "MAXFLOAT",
    "HUGE_VAL",
];

/// Names about which nothing is known: compilers may define them.
///
/// C reserves the names that begin with two underscores, or with one and a capital letter. Among these a text owns
/// those that it defines or removes itself, such as the name that keeps a file from being included twice.
pub(super) struct Unknown {
    of_text: HashSet<Rc<str>>,
}

impl Unknown {
    /// `definitions` are those of the build options.
    pub(super) fn new(text: &[Token], definitions: &[(String, bool)]) -> Self {
        let defined = text.windows(3).filter_map(|tokens| {
            let [sign, directive, name] = tokens else { return None };
            let is_directive = sign.begins_line && sign.is("#");
            let names = is_directive && (directive.is("define") || directive.is("undef"));
            names.then(|| name.text.clone())
        });
        let by_options = definitions
            .iter()
            .map(|(definition, _)| definition.split(['=', '(']).next().unwrap_or_default().into());
        Self { of_text: defined.chain(by_options).collect() }
    }

    /// Returns whether a compiler may define a macro that the text has not defined so far.
    pub(super) fn contains(&self, name: &str) -> bool {
        let is_reserved = match name.as_bytes() {
            [b'_', second, ..] => *second == b'_' || second.is_ascii_uppercase(),
            _ => OF_OPENCL.iter().any(|prefix| name.starts_with(prefix)),
        };
        is_reserved && !NEVER_DEFINED.contains(&name) && !self.of_text.contains(name)
    }
}
