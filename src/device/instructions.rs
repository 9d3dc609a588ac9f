//! Optional instructions that the host's processor has.
//!
//! Drivers for CPUs compile for the exact processor. Its name does not determine its instructions: a virtual
//! machine may hide some of them.

use std::sync::OnceLock;

/// Joins those of the given names whose instructions the processor has.
macro_rules! detected {
    ($macro:ident: $($name:tt)*) => {
        [$(($name, std::arch::$macro!($name)),)*]
            .into_iter()
            .filter_map(|(name, is_present)| is_present.then_some(name))
            .collect::<Vec<_>>()
            .join(" ")
    };
}

/// Returns the names of the instructions, in a fixed order.
pub(crate) fn of_host() -> &'static str {
    static NAMES: OnceLock<String> = OnceLock::new();
    NAMES.get_or_init(detect)
}

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn detect() -> String {
    detected!(is_x86_feature_detected:
        "aes" "pclmulqdq" "rdrand" "rdseed" "sse2" "sse3" "ssse3" "sse4.1" "sse4.2" "sse4a" "sha" "avx"
        "avx2" "avx512f" "avx512cd" "avx512bw" "avx512dq" "avx512vl" "avx512ifma" "avx512vbmi"
        "avx512vbmi2" "avx512vnni" "avx512bitalg" "avx512vpopcntdq" "avx512bf16" "avx512fp16"
        "avx512vp2intersect" "avxvnni" "gfni" "vaes" "vpclmulqdq" "f16c" "fma" "bmi1" "bmi2" "lzcnt"
        "popcnt" "adx" "movbe" "tbm" "xsave"
    )
}

#[cfg(target_arch = "aarch64")]
fn detect() -> String {
    detected!(is_aarch64_feature_detected:
        "neon" "fp16" "dotprod" "bf16" "i8mm" "sve" "sve2" "lse" "rdm" "fhm" "fcma" "jsconv" "crc" "aes"
        "sha2" "sha3" "rcpc"
    )
}

/// Returns no names for other processors: their drivers report all that is needed.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
fn detect() -> String {
    String::new()
}
