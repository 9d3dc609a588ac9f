//! Directive about the translation to OpenCL C: `emit` shows the text.

use std::fmt::Write as _;

use kiln_compiler::opencl_c;

use super::Outcome;
use super::directives::Directive;
use super::launches::Words;
use super::program::{Program, failure};

/// Shows a module in OpenCL C. `emit object` emits an object that is linked with others, and `emit 0=4d000000` gives
/// the specialization constant 0 a value, whose bytes are in hexadecimal digits.
///
/// # Errors
///
/// Returns what is wrong with the directive. A module that is refused is a result.
pub(super) fn emit(program: &Program, directive: &Directive) -> Result<Outcome, String> {
    let (mut is_object, mut constants) = (false, Vec::new());
    let mut words = Words::of(&directive.rest);
    while let Some(word) = words.next() {
        match word {
            "object" => is_object = true,
            _ => constants.push(constant(word)?),
        }
    }
    let text = match is_object {
        true => opencl_c::object(&program.module, &constants),
        false => opencl_c::specialized(&program.module, &constants),
    };
    Ok(Outcome::shown(match text {
        Ok(text) => {
            let mut shown = text.code;
            if !text.demands.is_empty() {
                _ = writeln!(shown, "\ndemands: {:?}", text.demands);
            }
            shown
        }
        Err(error) => format!("refused: {}", failure(&error)),
    }))
}

/// Parses the value of a specialization constant, such as `0=4d000000`.
///
/// # Errors
///
/// Returns that the text is malformed.
pub(super) fn constant(text: &str) -> Result<(u32, Vec<u8>), String> {
    let parsed = || {
        let (id, digits) = text.split_once('=')?;
        let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<_>> = (0..digits.len()).step_by(2).map(byte).collect();
        Some((id.parse().ok()?, bytes?))
    };
    parsed().ok_or_else(|| format!("`{text}` is not a constant, such as 0=4d000000"))
}
