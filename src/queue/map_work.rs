//! Mappings of memory that host and device share, as work of commands.
//!
//! A mapping is two commands, which are added to the DAG at once: one maps the memory, and one unmaps it. The
//! second one uses the same memory, and waits until the host's guard is dropped. Until then, commands that
//! conflict with the mapping wait behind it in the DAG.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

use kiln_spirv::Access;

use super::hazard::Use;
use crate::args::region::Region;
use crate::backend::{HostAccess, Operation};

/// Address at which the driver maps memory; null until the driver has returned it.
#[derive(Debug)]
pub(crate) struct MappedAddress(AtomicPtr<u8>);

/// Mapping of a region, or the end of one.
#[derive(Clone)]
pub(crate) struct MapWork {
    region: Arc<Region>,
    /// Access of the host: it reads the memory, or reads and writes it.
    access: Access,
    address: Arc<MappedAddress>,
}

impl MappedAddress {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicPtr::new(ptr::null_mut())))
    }

    pub(crate) fn get(&self) -> *mut u8 {
        self.0.load(SeqCst)
    }
}

impl MapWork {
    pub(crate) fn new(region: &Arc<Region>, access: Access, address: &Arc<MappedAddress>) -> Self {
        Self { region: region.clone(), access, address: address.clone() }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn used(&self) -> Use {
        Use::of(&self.region, self.access)
    }

    /// Returns the operation that maps the memory.
    pub(crate) fn map(&self) -> Operation<'_> {
        let bytes = self.region.bytes();
        Operation::Map {
            memory: self.region.memory(),
            offset: bytes.start,
            bytes: bytes.len(),
            access: self.host_access(),
            start: &self.address.0,
        }
    }

    /// Returns the operation that unmaps the memory.
    pub(crate) fn unmap(&self) -> Operation<'_> {
        let bytes = self.region.bytes();
        Operation::Unmap {
            memory: self.region.memory(),
            offset: bytes.start,
            bytes: bytes.len(),
            access: self.host_access(),
            start: self.address.get(),
        }
    }

    fn host_access(&self) -> HostAccess {
        if self.access == Access::Read { HostAccess::Read } else { HostAccess::ReadWrite }
    }

    /// Drops a handle of a finished command without calling the driver.
    pub(crate) fn release(self) {
        self.region.release();
    }

    /// Leaks the memory, because the device may still use it.
    pub(crate) fn abandon(&self) {
        std::mem::forget(self.region.clone());
    }
}
