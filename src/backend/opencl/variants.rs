//! Variants of a kernel that PoCL compiles when it is launched.
//!
//! PoCL compiles a kernel at the first launch with each work-group size, without an offset and with one, and
//! again for larger ranges. Its linker is a separate process. If that process cannot be started, PoCL ends this
//! one. Therefore a launch that may compile is rejected if the system has no resources left to start a process.

use kiln_compiler::NdRange;
use smallvec::SmallVec;

use crate::error::Result;
use crate::process::resources;

/// Variants of one kernel that have been launched.
#[derive(Default)]
pub(super) struct Variants(SmallVec<[Variant; 2]>);

#[derive(Clone, PartialEq, Eq)]
struct Variant {
    /// Work-group size; empty if the driver chooses it.
    local: SmallVec<[usize; 3]>,
    has_offset: bool,
    /// Largest dimension of the range.
    width: usize,
}

impl Variant {
    fn of(range: &NdRange) -> Self {
        Self {
            local: range.local().unwrap_or_default().into(),
            has_offset: range.offset().iter().any(|&offset| offset != 0),
            width: range.global().iter().copied().max().unwrap_or_default(),
        }
    }

    fn serves(&self, other: &Self) -> bool {
        self.local == other.local
            && self.has_offset == other.has_offset
            && self.width >= other.width
    }
}

impl Variants {
    /// Checks that the system has the resources to compile for a launch over `range`, unless a known variant
    /// serves it.
    ///
    /// # Errors
    ///
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources), with the name of the exhausted resource.
    pub(super) fn check(&mut self, range: &NdRange) -> Result<()> {
        let variant = Variant::of(range);
        if self.0.iter().any(|known| known.serves(&variant)) {
            return Ok(());
        }
        resources::check_for_process()?;
        self.0.retain(|known| !variant.serves(known));
        self.0.push(variant);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_variants_serve_smaller_ranges_of_the_same_kind() {
        let variant =
            |width, local: &[usize], has_offset| Variant { local: local.into(), has_offset, width };
        assert!(variant(64, &[8], false).serves(&variant(32, &[8], false)));
        assert!(!variant(64, &[8], false).serves(&variant(128, &[8], false)));
        assert!(!variant(64, &[8], false).serves(&variant(64, &[16], false)));
        assert!(!variant(64, &[8], false).serves(&variant(64, &[], false)));
        assert!(!variant(64, &[8], false).serves(&variant(64, &[8], true)));
    }
}
