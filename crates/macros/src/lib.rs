//! The procedural macro behind `kiln::kernels!`.
//!
//! The macro reads OpenCL C (`parse`) or SPIR-V (`spirv`) at compile time, finds the kernels' signatures
//! and generates a module with a typed function for each kernel (`emit`). Its documentation is that of
//! `kiln::kernels!`: this package has no interface of its own.
//!
//! The text of an OpenCL C file goes through these steps:
//!
//! 1. Included files take the place of their directives (`source`). The result is what the crate embeds, so
//!    that an application needs no include files at run time.
//! 2. clang's preprocessor expands macros, if clang is installed; otherwise the preprocessor of this crate
//!    does.
//! 3. The declarations of types and kernels are read; bodies of functions are skipped.
//! 4. Each parameter becomes a type of Rust: by rule, or as the application states it.

mod docs;
mod emit;
#[cfg(test)]
mod emit_tests;
mod input;
mod names;
mod parse;
#[cfg(test)]
mod robustness_tests;
mod signature;
mod source;
mod spirv;

use std::env;
use std::path::PathBuf;

use proc_macro2::Span;

use self::input::Input;
use self::source::{Host, clang};

/// Generates modules with typed functions for kernels. Called by `kiln::kernels!` only.
#[doc(hidden)]
#[proc_macro]
pub fn kernels(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as Input);
    emit::expand(&input, &host).into()
}

/// Returns where the macro runs, for a path at a place of the source.
fn host(span: Span) -> Host {
    let chosen = clang::chosen();
    let clang_is_chosen = chosen.is_some();
    let clang = chosen.or_else(|| clang::on_path(&env::var_os("PATH")?));
    Host { folder: folder(span), clang, clang_is_chosen }
}

/// Returns the folder of the source file at a place.
fn folder(span: Span) -> Option<PathBuf> {
    let file = span.unwrap().local_file()?;
    let folder = file.parent()?;
    // The compiler's paths are relative to the folder that it runs in.
    Some(env::current_dir().ok()?.join(folder))
}
