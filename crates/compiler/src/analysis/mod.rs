//! Analyses of kernels: what they access, as affine values of the ids of their work-items, and what is uniform.

pub(crate) mod access;
pub(crate) mod affine;
pub(crate) mod blocks;
pub(crate) mod constants;
pub(crate) mod declaration;
pub(crate) mod equation;
pub(crate) mod explain;
pub(crate) mod images;
pub(crate) mod lifetimes;
pub(crate) mod operations;
pub(crate) mod pixel_access;
pub(crate) mod pointer_uses;
pub(crate) mod uniformity;
pub(crate) mod vector_access;
