//! Limits of the system on this process, which tests lower for a while.

use std::fs;
use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A limit that is lower than before, until this is dropped.
#[must_use = "the limit is raised again when this is dropped"]
pub struct Lowered {
    resource: Resource,
    before: Rlimit,
}

impl Lowered {
    /// Allows a number of open files more than there are, or fewer if their numbers have gaps.
    pub fn files(more: u64) -> Self {
        let lowest = fs::File::open("/dev/null").expect("a file can be opened");
        Self::lower(Resource::Nofile, lowest.as_raw_fd() as u64 + more)
    }

    /// Allows a number of bytes of address space more than this process has.
    pub fn memory(more: u64) -> Self {
        let pages = fs::read_to_string("/proc/self/statm").expect("the system has it");
        let pages = pages.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
        let bytes = pages.expect("it is a number") * rustix::param::page_size() as u64;
        Self::lower(Resource::As, bytes + more)
    }

    /// Allows no further process or thread.
    pub fn threads() -> Self {
        Self::lower(Resource::Nproc, 0)
    }

    /// Allows no file to grow beyond a number of bytes. A process that does not ignore `SIGXFSZ` ends when it
    /// tries.
    pub fn file_size(bytes: u64) -> Self {
        Self::lower(Resource::Fsize, bytes)
    }

    fn lower(resource: Resource, left: u64) -> Self {
        let before = getrlimit(resource);
        let current = before.current.map_or(left, |current| current.min(left));
        let lowered = Rlimit { current: Some(current), maximum: before.maximum };
        setrlimit(resource, lowered).expect("a limit can be lowered");
        Self { resource, before }
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        setrlimit(self.resource, self.before).expect("a limit can be raised to its maximum");
    }
}
