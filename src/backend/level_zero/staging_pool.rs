//! Host memory, allocated by the driver, that is kept for later transfers.

use std::collections::HashMap;
use std::sync::Mutex;

use super::handle::OwnedMemory;
use crate::sync::lock;

/// Smallest size of staging memory, in bytes. Sizes are powers of two.
const MIN_SIZE: usize = 4096;

/// Maximum number of bytes that are kept for later transfers.
const MAX_KEPT: usize = 64 << 20;

/// Host memory, allocated by the driver, that no transfer uses.
#[derive(Default)]
pub(super) struct StagingPool(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    bytes: usize,
    by_size: HashMap<usize, Vec<OwnedMemory>>,
}

/// Returns the size of the staging memory for a transfer of `bytes`. `None` if it is not a valid size.
pub(super) fn staging_size(bytes: usize) -> Option<usize> {
    bytes.max(MIN_SIZE).checked_next_power_of_two()
}

impl StagingPool {
    /// Takes memory of exactly `bytes`, a [`staging_size`]. `None` if no such memory is kept.
    pub(super) fn take(&self, bytes: usize) -> Option<OwnedMemory> {
        let mut kept = lock(&self.0);
        let memory = kept.by_size.get_mut(&bytes).and_then(Vec::pop);
        kept.bytes -= if memory.is_some() { bytes } else { 0 };
        memory
    }

    /// Takes back memory of `bytes`, and frees it if there is too much already.
    pub(super) fn give(&self, memory: OwnedMemory, bytes: usize) {
        let mut kept = lock(&self.0);
        if kept.bytes + bytes <= MAX_KEPT {
            kept.bytes += bytes;
            kept.by_size.entry(bytes).or_default().push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(staging_size(0), Some(MIN_SIZE));
        assert_eq!(staging_size(MIN_SIZE + 1), Some(2 * MIN_SIZE));
        assert_eq!(staging_size(1 << 20), Some(1 << 20));
        assert_eq!(staging_size(usize::MAX), None);
    }
}
