//! Kiln runs compute kernels from async Rust.

mod args;
mod backend;
mod buffer;
mod build;
mod device;
mod error;
mod image;
mod nd_range;
mod queue;
mod runtime;
mod spirv;
mod stats;
