//! Pointers to host memory that commands read and write.

/// Pointer to host memory that has as many bytes as the region beside it.
pub(super) struct HostMemory<P>(pub(super) P);

// SAFETY: `NativeQueue::enqueue` requires its caller to keep the memory alive until the command has ended, on
// whatever thread that is, and to let no other code access memory that the command writes.
unsafe impl Send for HostMemory<*const u8> {}

// SAFETY: as above.
unsafe impl Send for HostMemory<*mut u8> {}
