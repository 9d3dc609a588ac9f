//! The nd-range of the fused kernel.
//!
//! All launches must have the same global size and offset. Those that leave their work-group size to
//! the driver take that of the others.

use super::merge::unsupported;
use super::plan::Slot;
use crate::error::Result;
use crate::nd_range::NdRange;

/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported), naming the launches, if there is none for all.
pub(super) fn join(slots: &[Slot]) -> Result<NdRange> {
    let first = &slots[0];
    let differ = |slot: &Slot, what: &str, own: &[usize], other: &[usize]| {
        unsupported(format!(
            "the {what} of `{}` is {own:?}, that of `{}` {other:?}; launches of different nd-ranges \
             are not fused",
            first.kernel, slot.kernel
        ))
    };
    let mut joined = first;
    for slot in slots {
        let (range, other) = (&first.range, &slot.range);
        if range.global() != other.global() {
            return Err(differ(slot, "global size", range.global(), other.global()));
        }
        if range.offset() != other.offset() {
            return Err(differ(slot, "offset", range.offset(), other.offset()));
        }
        match (joined.range.local(), other.local()) {
            (None, Some(_)) => joined = slot,
            (Some(own), Some(other)) if own != other => {
                return Err(unsupported(format!(
                    "the work-group size of `{}` is {own:?}, that of `{}` {other:?}",
                    joined.kernel, slot.kernel
                )));
            }
            _ => {}
        }
    }
    Ok(joined.range)
}

/// Whether the work-groups are those that a kernel demands.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported) if not.
pub(super) fn check_local_size(range: &NdRange, demanded: Option<&[u32]>) -> Result<()> {
    let (Some(local), Some(demanded)) = (range.local(), demanded) else { return Ok(()) };
    let size = |d: usize| demanded.get(d).map_or(1, |&size| size as usize);
    let own = |d: usize| local.get(d).copied().unwrap_or(1);
    if (0..3).all(|d| size(d) == own(d)) {
        return Ok(());
    }
    Err(unsupported(format!(
        "the launches have work-groups of {local:?}, but a kernel demands {demanded:?}"
    )))
}
