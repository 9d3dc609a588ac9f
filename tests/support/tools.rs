//! Tools of the system that some tests need.

#![allow(dead_code, unreachable_pub, reason = "each suite uses a part of it")]
#![allow(clippy::print_stderr, reason = "a log tells what could not be tested here")]

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
