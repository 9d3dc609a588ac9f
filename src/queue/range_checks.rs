//! Checks of nd-ranges: against the limits of a device, and against the size of work-groups that a kernel requires.

use kiln_compiler::NdRange;

use crate::device::Limits;
use crate::error::{Error, Result};

/// Checks the range against the work-group size that the kernel's code requires (`reqd_work_group_size`).
pub(super) fn check_required(range: &NdRange, kernel: &str, required: [usize; 3]) -> Result<()> {
    let (needed, rest) = required.split_at(range.dimensions());
    if rest.iter().any(|&size| size != 1) {
        return Err(Error::invalid(format!(
            "kernel `{kernel}`: the global size {:?} has {} dimensions, too few for the local \
             size {required:?} that the kernel requires (`reqd_work_group_size`)",
            range.global(),
            range.dimensions()
        )));
    }
    if let Some(local) = range.local().filter(|local| *local != needed) {
        return Err(Error::invalid(format!(
            "kernel `{kernel}`: the local size is {local:?}, but the kernel requires \
             {needed:?} (`reqd_work_group_size`); omit the local size, or give {needed:?}"
        )));
    }
    if let Some(d) = (0..range.dimensions()).find(|&d| !range.global()[d].is_multiple_of(needed[d]))
    {
        return Err(Error::invalid(format!(
            "kernel `{kernel}`: the global size {:?} is not a multiple, in dimension {d}, of \
             the local size {needed:?} that the kernel requires (`reqd_work_group_size`)",
            range.global()
        )));
    }
    Ok(())
}

/// Checks the range against the device's limits and, where known, the kernel's own largest work-group.
/// `kernel` is the kernel's name, for the error message.
pub(super) fn check(
    range: &NdRange,
    kernel: &str,
    limits: &Limits,
    kernel_limit: Option<usize>,
) -> Result<()> {
    let fail = |problem: String| Err(Error::invalid(format!("kernel `{kernel}`: {problem}")));
    if range.global().contains(&0) {
        return fail(format!(
            "the global size {:?} has no work-items; every dimension must be at least 1",
            range.global()
        ));
    }
    let most = limits.largest_size();
    let fits = |number: Option<usize>| number.is_some_and(|number| number <= most);
    let items = range.global().iter().try_fold(1usize, |items, &size| items.checked_mul(size));
    let mut ends = range.global().iter().zip(range.offset());
    if !fits(items) || !ends.all(|(size, offset)| fits(size.checked_add(*offset))) {
        return fail(format!(
            "the global size {:?} with offset {:?} exceeds the {most} work-items that the \
             device can index",
            range.global(),
            range.offset()
        ));
    }
    let Some(local) = range.local() else {
        return Ok(());
    };
    if local.contains(&0) {
        return fail(format!("the local size {local:?} has no work-items"));
    }
    for (dimension, (&local_size, &global_size)) in local.iter().zip(range.global()).enumerate() {
        if !global_size.is_multiple_of(local_size) {
            return fail(format!(
                "the local size {local:?} does not divide the global size {:?} in dimension \
                 {dimension}: {global_size} is not a multiple of {local_size}",
                range.global()
            ));
        }
        let most = limits.max_work_item_sizes[dimension];
        if local_size > most {
            return fail(format!(
                "the local size {local:?} exceeds the device's limit of {most} in dimension \
                 {dimension}"
            ));
        }
    }
    let most = kernel_limit
        .map_or(limits.max_work_group_size, |most| most.min(limits.max_work_group_size));
    match local.iter().try_fold(1usize, |all, &n| all.checked_mul(n)) {
        Some(items) if items <= most => Ok(()),
        _ => fail(format!(
            "the local size {local:?} exceeds the {most} work-items that a work-group of this \
             kernel can have on this device"
        )),
    }
}
