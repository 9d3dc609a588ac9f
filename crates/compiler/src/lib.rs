//! The compiler of `kiln`: fusion of kernels, proofs that launches stay inside their memory, and translation of SPIR-V to
//! OpenCL C.
//!
//! The compiler is pure: plain data in and plain data out. It does not use drivers, files or executors. The only
//! description of a device that it takes is a [`Target`](fusion::Target).
//!
//! The crate belongs to [`kiln`](https://docs.rs/kiln): its interface changes with any version of `kiln`, which names the
//! exact version of this crate.

#![forbid(unsafe_code)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the crate is internal to `kiln`: its documentation is for those who change it"
)]

mod analysis;
pub mod bounds;
pub mod fusion;
mod image;
mod nd_range;
pub mod opencl_c;
pub mod options;
mod plan;
mod ranges;
mod sampler;
mod transform;
mod work_group;

pub use image::{ChannelOrder, ChannelType, ImageBox, ImageFormat, ImageKind, ImageShape};
pub use nd_range::{IntoNdSize, NdRange, NdSize};
pub use sampler::{Addressing, Filter, Sampler};
pub use work_group::WorkGroup;
