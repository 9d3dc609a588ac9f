//! Fusion scopes: launches that are collected to run as one kernel.

pub(super) mod completion;
pub(super) mod mode;
mod outcome;
pub(super) mod parts;
pub(super) mod plan;
pub(super) mod recent;
mod scope;
#[cfg(test)]
mod tests;

pub use self::mode::FusionMode;
pub use self::outcome::{CompleteFusion, FusedPart, FusionOutcome, Unfused};
pub use self::scope::{ExamineFusion, FusionScope};
pub use kiln_compiler::fusion::Internalization;
