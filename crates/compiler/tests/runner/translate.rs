//! Modules of sources: made by clang and llvm-spirv, or by spirv-as, where a run is asked to make them anew.

use std::fs;
use std::path::Path;
use std::process::Command;

use kiln_spirv::{Module, remove_debug_info};

/// Options of clang for every source: names and lines are kept, and loops stay loops over single elements.
const CLANG: [&str; 14] = [
    "-target",
    "spir64",
    "-fno-discard-value-names",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-gline-tables-only",
    "-fdebug-compilation-dir=.",
    "-Xclang",
    "-finclude-default-header",
    "-emit-llvm",
    "-S",
    "-x",
    "cl",
    "-o",
];

/// Options of clang for sources without a directive `clang`.
const USUAL: &str = "-cl-std=CL1.2 -O2";

/// Writes the module of a source. `options` are those of clang.
///
/// # Errors
///
/// Returns why a compiler failed.
pub(super) fn write(source: &Path, module: &Path, options: Option<&str>) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let name = source.file_name().ok_or("the source has no name")?;
    let copy = folder.path().join(name);
    fs::copy(source, &copy).map_err(|error| format!("{}: {error}", source.display()))?;
    let name = name.to_string_lossy();
    let made = match name.ends_with(".spvasm") {
        true => assemble(folder.path(), &name),
        false => translate(folder.path(), &name, options.unwrap_or(USUAL)),
    };
    made?;
    let made = folder.path().join("module.spv");
    keep_lines(&made)?;
    fs::copy(made, module).map_err(|error| error.to_string())?;
    Ok(())
}

/// Removes what a module states for debuggers, except the lines of its source.
fn keep_lines(path: &Path) -> Result<(), String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let mut module = Module::parse(bytes).map_err(|error| error.to_string())?;
    remove_debug_info(&mut module);
    fs::write(path, module.assemble()).map_err(|error| error.to_string())
}

fn assemble(folder: &Path, name: &str) -> Result<(), String> {
    run(folder, "spirv-as", &["--target-env", "spv1.2", name, "-o", "module.spv"])
}

fn translate(folder: &Path, name: &str, options: &str) -> Result<(), String> {
    let options: Vec<_> = options.split_whitespace().chain(CLANG).chain(["a.ll", name]).collect();
    run(folder, "clang-15", &options)?;
    // llvm-spirv 15 does not accept `freeze`, which changes no value that is defined.
    let path = folder.join("a.ll");
    let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let lines = text.lines().map(|line| without_freeze(line) + "\n");
    fs::write(&path, lines.collect::<String>()).map_err(|error| error.to_string())?;
    let plain = ["-target", "spir64", "-O0", "-Xclang", "-disable-llvm-passes"];
    let files = ["-emit-llvm", "-c", "-x", "ir", "a.ll", "-o", "a.bc"];
    run(folder, "clang-15", &[&plain[..], &files].concat())?;
    run(folder, "llvm-spirv-15", &["--spirv-max-version=1.2", "a.bc", "-o", "module.spv"])
}

/// Returns a line of LLVM's text with an addition of zero in place of `freeze`.
fn without_freeze(line: &str) -> String {
    let Some((result, rest)) = line.split_once(" = freeze i") else { return line.to_owned() };
    let (operand, lines) = rest.split_once(", !dbg").unwrap_or((rest, ""));
    let lines = if lines.is_empty() { String::new() } else { format!(", !dbg{lines}") };
    format!("{result} = add i{operand}, 0{lines}")
}

fn run(folder: &Path, command: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(command).args(arguments).current_dir(folder).output();
    let output = output.map_err(|error| format!("{command}: {error}"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command}: {log}")) }
}
