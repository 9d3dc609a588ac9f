//! Reads the signatures of kernels from OpenCL C.

mod cursor;
mod declarations;
mod declarator;
mod definition;
mod expression;
pub(crate) mod kernels;
mod parser;
pub(crate) mod predefined;
pub(crate) mod preprocess;
#[cfg(test)]
mod tests;
pub(crate) mod token;
pub(crate) mod types;
pub(crate) mod unreadable;

use self::cursor::Cursor;
use self::token::Token;
use self::unreadable::Unreadable;
use crate::signature::Kernel;

/// Returns the kernels that a preprocessed text defines, and the problems of the definitions that cannot be
/// read.
pub(crate) fn read(tokens: &[Token]) -> (Vec<Kernel>, Vec<Unreadable>) {
    let (definitions, problems) = declarations::kernels(Cursor::new(tokens));
    (definitions.into_iter().map(kernels::kernel).collect(), problems)
}

/// Returns the type that a name in metadata denotes, such as `uint` or `float4`.
pub(crate) fn type_named(name: &str) -> Option<types::Type> {
    let tokens = token::tokens(&format!("kernel void k({name} x) {{}}"), &"".into());
    let (mut definitions, _) = declarations::kernels(Cursor::new(&tokens));
    Some(definitions.pop()?.parameters.pop()?.ty.ty)
}
