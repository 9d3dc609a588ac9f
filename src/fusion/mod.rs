//! Several launches made one kernel, where that is proven to change nothing.
//!
//! A pure compiler: a [`plan`] and the modules of its kernels go in, SPIR-V comes out. It knows no
//! driver and no queue.

mod access;
mod form;
mod plan;

pub(crate) use plan::{Argument, Memory, Place, Plan, Region, Slot};
