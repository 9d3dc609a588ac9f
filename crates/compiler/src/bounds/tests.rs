//! Verdicts on launches of known kernels.

#![allow(clippy::unwrap_used)]

mod claims;
mod damaged;
mod defined;
mod guarded;
mod hazards;
mod images;
mod photograph;
mod pixels;
mod polyhedral;
mod random;
mod samplers;
mod stack;
mod types;
mod unknown;

use std::collections::BTreeSet;

use bytemuck::NoUninit;
use kiln_spirv::Module;

use super::report::Report;
use super::*;
use crate::NdSize;

fn scalar(value: impl NoUninit) -> Argument {
    Argument::Scalar(bytemuck::bytes_of(&value).to_vec())
}

fn buffer(length: usize) -> Argument {
    Argument::Buffer { length, alignment: 128 }
}

/// Checks a launch.
fn checked(
    module: &[u8],
    kernel: &str,
    range: &NdRange,
    arguments: &[Argument],
) -> (Kernel, Report) {
    let module = Module::parse(module).unwrap();
    let kernel = Kernel::of(&module, kernel, &[], &BTreeSet::new()).unwrap();
    let report =
        check(&kernel, &Launch { range, arguments, uniform_groups: true, few_constants: false })
            .unwrap();
    (kernel, report)
}

/// Returns descriptions of the accesses that are not proven.
fn guarded(module: &[u8], kernel: &str, range: &NdRange, arguments: &[Argument]) -> Vec<String> {
    let (kernel, report) = checked(module, kernel, range, arguments);
    report.describe(&kernel)
}
