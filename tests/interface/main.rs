//! The interface for users: its types, typed kernels, and the errors of invalid input.

mod bad_input;
mod compile_fail;
mod helpful_errors;
mod typed_kernels;
mod types;
