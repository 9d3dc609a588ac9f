//! A library of device code: ten functions on brightness.
//!
//! A program that links this crate can import them in its kernels. It calls nothing for that, only refers to
//! the crate: `use tones as _;`.

#![forbid(unsafe_code)]

kiln::device_library!("tones.spv");
