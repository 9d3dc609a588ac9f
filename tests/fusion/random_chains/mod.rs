//! Random kernels over pictures and rows, and random chains of launches of them.
//!
//! The result of each launch is the same in every run: each work-item writes elements of its own, and reads no
//! element that another one of the launch writes. Numbers stay finite.

mod chains;
mod elements;
mod kernels;
mod rows;
mod stencils;

pub(crate) use chains::{CELL, Case, Value, size};
pub(crate) use kernels::Pool;
