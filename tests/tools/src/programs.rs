//! Tools of the system that some tests need.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Whether a tool can be used, as `probe` shows. A missing tool is reported by name. If the environment
/// variable `KILN_REQUIRE_TOOLS` names it, the test fails.
pub fn has_tool(name: &str, probe: &[&str]) -> bool {
    let tried = Command::new(probe[0]).args(&probe[1..]).output();
    if tried.as_ref().is_ok_and(|output| output.status.success()) {
        return true;
    }
    let required = std::env::var("KILN_REQUIRE_TOOLS").unwrap_or_default();
    assert!(!required.split(',').any(|tool| tool == name), "{name} is required: {tried:?}");
    eprintln!("skipped: {name} cannot be used here");
    false
}

/// Whether this system has compilers that translate OpenCL C to SPIR-V.
pub fn has_clang() -> bool {
    has_tool("clang", &["clang-15", "--version"])
        && has_tool("clang", &["llvm-spirv-15", "--version"])
}

/// Compiles a library in C, without warnings.
pub fn compile_library(source: &str, library: &Path) {
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
    let output = compiler.arg(source).arg("-o").arg(library).output().expect("the compiler runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn run(folder: &Path, command: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(command).args(arguments).current_dir(folder).output();
    let output = output.map_err(|error| format!("{command}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command}: {said}")) }
}

/// Translates OpenCL C to SPIR-V, at the first optimisation level at which the translator is correct.
pub fn translate(folder: &Path, text: &str, levels: &[&str]) -> Vec<u8> {
    std::fs::write(folder.join("kernels.cl"), text).expect("there is room");
    let mut problems = String::new();
    for level in levels {
        let language =
            ["-cl-std=CL1.2", "-target", "spir64", "-Xclang", "-finclude-default-header"];
        let files = [level, "-emit-llvm", "-c", "kernels.cl", "-o", "kernels.bc"];
        let arguments = [&language[..], &["-ffp-contract=off", "-w"], &files].concat();
        if let Err(why) = run(folder, "clang-15", &arguments) {
            panic!("{why}\n{text}");
        }
        let translated = run(folder, "llvm-spirv-15", &["kernels.bc", "-o", "kernels.spv"])
            .and_then(|()| run(folder, "spirv-val", &["kernels.spv"]));
        match translated {
            Ok(()) => return std::fs::read(folder.join("kernels.spv")).expect("it is there"),
            Err(why) => _ = writeln!(problems, "{level}: {why}"),
        }
    }
    panic!("{problems}\n{text}");
}

/// Checks a module with `spirv-val`.
///
/// # Errors
///
/// Returns what is wrong with it.
pub fn validate(module: &[u8]) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("there is room");
    std::fs::write(folder.path().join("module.spv"), module).expect("there is room");
    run(folder.path(), "spirv-val", &["module.spv"])
}

/// Returns a module with its only entry point renamed.
pub fn renamed(module: &[u8], name: &str) -> Vec<u8> {
    const ENTRY_POINT: u32 = 15;
    let words: Vec<u32> =
        module.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let mut all = words[..5].to_vec();
    let mut rest = &words[5..];
    while let Some(&first) = rest.first() {
        let (instruction, after) = rest.split_at((first >> 16) as usize);
        if first & 0xffff == ENTRY_POINT {
            let ends = |word: &u32| word.to_le_bytes().contains(&0);
            let behind = 3 + instruction[3..].iter().position(ends).expect("names end") + 1;
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize(name.len() / 4 * 4 + 4, 0);
            let text = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
            let mut new = instruction[..3].to_vec();
            new.extend(text);
            new.extend(&instruction[behind..]);
            new[0] = (new.len() as u32) << 16 | ENTRY_POINT;
            all.extend(new);
        } else {
            all.extend(instruction);
        }
        rest = after;
    }
    all.into_iter().flat_map(u32::to_le_bytes).collect()
}
