//! Command lines that the producer of a module recorded in it.
//!
//! SPIR-V has no field for the options of a compiler. One kind of debug information has a command line for each
//! entry point: the instruction `DebugEntryPoint` of the set `NonSemantic.Shader.DebugInfo`, of which the
//! translator of LLVM also knew versions for kernels. It writes the command line that clang records in the
//! debug information with `-grecord-command-line`.

/// Flags that the device's compiler also needs for SPIR-V that was made from OpenCL C with them, because the
/// module does not express them, or only in part.
pub const FOR_DEVICE: &[&str] = &[
    "-cl-denorms-are-zero",
    "-cl-fast-relaxed-math",
    "-cl-finite-math-only",
    "-cl-fp32-correctly-rounded-divide-sqrt",
    "-cl-mad-enable",
    "-cl-no-signed-zeros",
    "-cl-opt-disable",
    "-cl-uniform-work-group-size",
    "-cl-unsafe-math-optimizations",
];

/// Names of the instruction sets with `DebugEntryPoint`.
pub(super) const INSTRUCTION_SETS: [&str; 3] = [
    "NonSemantic.Shader.DebugInfo.100",
    "NonSemantic.Shader.DebugInfo.200",
    "NonSemantic.Kernel.DebugInfo.100",
];

/// Number of the instruction `DebugEntryPoint`. Its operands are the function, the compilation unit, the
/// producer and the command line.
pub(super) const DEBUG_ENTRY_POINT: u32 = 107;

/// Returns the options of command lines that the device's compiler needs as well, because the module does not
/// express them, or only in part. One set of options applies to all entry points, so only options that are in
/// every command line count. All other options took effect when the module was made.
pub(super) fn options(command_lines: &[&str]) -> Option<Box<str>> {
    let (first, others) = command_lines.split_first()?;
    let others: Vec<Vec<&str>> = others.iter().map(|line| for_device(line).collect()).collect();
    let mut common: Vec<&str> = Vec::new();
    for option in for_device(first) {
        if !common.contains(&option) && others.iter().all(|other| other.contains(&option)) {
            common.push(option);
        }
    }
    (!common.is_empty()).then(|| common.join(" ").into())
}

/// Returns the options for the device in a command line. In it, blanks within an argument follow a backslash.
fn for_device(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(' ');
    let mut is_continued = false;
    words.filter(move |word| {
        let is_argument = !std::mem::replace(&mut is_continued, word.ends_with('\\'));
        is_argument && FOR_DEVICE.contains(word)
    })
}

#[cfg(test)]
mod tests {
    use super::options;

    #[test]
    fn options_that_all_command_lines_share_and_the_device_needs_are_taken() {
        let lines = [
            "clang -x cl -O2 -D N=2 -cl-mad-enable -cl-std=CL2.0 -cl-denorms-are-zero -cl-mad-enable",
            "clang -x cl -cl-denorms-are-zero -cl-mad-enable",
            "clang -x cl -cl-denorms-are-zero",
        ];
        assert_eq!(options(&[]), None);
        assert_eq!(options(&lines[..1]).as_deref(), Some("-cl-mad-enable -cl-denorms-are-zero"));
        assert_eq!(options(&lines).as_deref(), Some("-cl-denorms-are-zero"));
        assert_eq!(options(&[lines[0], ""]), None);
        assert_eq!(options(&[r"clang -D A=b\ -cl-mad-enable -I -cl-mad-enables"]), None);
    }
}
