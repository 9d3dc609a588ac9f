//! Fused programs in the build graph: plans of launches, the results of fusing them, and the programs built for
//! the plans that could be fused.
//!
//! A plan is [looked up](query) by its launches. The lookup ignores the identity of the buffers, and the
//! values of scalars on which no proof depends. An unknown plan is compiled on a worker: the worker reads the
//! modules of the programs, translated by the [front end](crate::source::translate) if necessary, and
//! produces a SPIR-V module for each [group] of launches that run together. These modules are built
//! like any other. Plans that produce the same module, such as plans of different sizes, share the program.
//!
//! There are several [ways](way) to run a group: one by one, and as kernels in different forms.
//! [Trials](trial) on the application's own runs find the fastest, and its [times](timing) are stored on
//! disk.

mod attempt;
mod attempts;
mod background;
mod fuse;
mod fuser;
mod group;
mod kernels;
mod known;
mod material;
mod query;
mod source;
mod timing;
mod trial;
mod values;
mod way;

pub(crate) use attempt::Awaited;
pub(crate) use attempts::Overdue;
pub(crate) use fuser::Fuser;
pub(crate) use group::{Policy, SelectedWay};
pub(crate) use known::{Fusion, Selection};
pub(crate) use material::FusionRequest;
pub(crate) use query::Query;
pub(super) use timing::{Times, Timing};
pub(crate) use trial::ONE_BY_ONE;
pub(crate) use way::{FusedKernel, Step};
