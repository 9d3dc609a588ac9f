//! Properties of a kernel that matter for the size of its work-groups.

/// Properties of a kernel from which an application chooses the size of work-groups, from
/// `Kernel::work_group`. Sizes are numbers of work-items.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_compiler as launch; }
/// # let group = kiln::launch::WorkGroup::default(); // from `Kernel::work_group`
/// let multiple = group.preferred_multiple.unwrap_or(1);
/// println!("at most {:?} work-items, in multiples of {multiple}", group.max_size);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkGroup {
    /// Maximum size of a work-group of this kernel, which can be less than the device's
    /// `Limits::max_work_group_size`; `None` if the driver does not report it.
    pub max_size: Option<usize>,
    /// Number of which the size of a work-group should be a multiple for best performance, such as the number of
    /// work-items that a processor runs at once; `None` if the driver does not report it.
    pub preferred_multiple: Option<usize>,
    /// Size in each dimension that the kernel's code requires (`reqd_work_group_size`), if it does.
    pub required: Option<[usize; 3]>,
    /// Bytes of local memory that the kernel's code declares. Those of local arguments are not included.
    pub local_bytes: u64,
    /// Bytes of private memory that a work-item uses; `None` if the driver does not report it. Some drivers report
    /// only what does not fit into registers.
    pub private_bytes: Option<u64>,
}

impl WorkGroup {
    /// Creates the properties of a kernel.
    #[doc(hidden)]
    #[must_use]
    pub fn new(
        max_size: Option<usize>,
        preferred_multiple: Option<usize>,
        required: Option<[usize; 3]>,
        local_bytes: u64,
        private_bytes: Option<u64>,
    ) -> Self {
        Self { max_size, preferred_multiple, required, local_bytes, private_bytes }
    }

    /// Returns a size for work-groups of one dimension: the largest multiple of
    /// [`preferred_multiple`](Self::preferred_multiple) that is at most `limit` and the kernel's maximum, or else
    /// the smaller of these two. A size that the kernel requires comes first. `limit` is at least 1.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod kiln { pub use kiln_compiler as launch; }
    /// # let (group, length) = (kiln::launch::WorkGroup::default(), 1000usize);
    /// let group = group.size_up_to(256);
    /// let range = length.next_multiple_of(group); // the kernel ignores work-items beyond the length
    /// # assert_eq!((group, range), (256, 1024));
    /// ```
    #[must_use]
    pub fn size_up_to(&self, limit: usize) -> usize {
        if let Some(required) = self.required {
            return required.iter().product();
        }
        let most = limit.min(self.max_size.unwrap_or(limit)).max(1);
        match self.preferred_multiple {
            Some(multiple) if (1..=most).contains(&multiple) => most - most % multiple,
            _ => most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_multiples_within_both_limits() {
        let size = |max_size, preferred_multiple, limit| {
            let group = WorkGroup { max_size, preferred_multiple, ..WorkGroup::default() };
            group.size_up_to(limit)
        };
        assert_eq!(size(Some(1024), Some(32), 256), 256);
        assert_eq!(size(Some(100), Some(32), 256), 96);
        assert_eq!(size(Some(1024), Some(32), 50), 32);
        assert_eq!(size(Some(1024), Some(64), 50), 50, "no multiple fits");
        assert_eq!(size(Some(1024), Some(0), 50), 50, "a driver reports zero");
        assert_eq!(size(None, None, 7), 7);
        assert_eq!(size(Some(8), None, 0), 1);
    }

    #[test]
    fn a_required_size_comes_first() {
        let group = WorkGroup {
            max_size: Some(64),
            preferred_multiple: Some(32),
            required: Some([8, 2, 1]),
            ..WorkGroup::default()
        };
        assert_eq!(group.size_up_to(4), 16);
    }
}
