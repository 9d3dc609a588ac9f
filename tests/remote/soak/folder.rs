//! The folder of a run: its files tell the processes what to do, and contain what they have done.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

/// Folder that the processes and their parent share.
#[derive(Clone)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn store(&self) -> PathBuf {
        self.file("store")
    }

    pub(super) fn records(&self) -> PathBuf {
        self.file("records")
    }

    /// Returns the file that exists as long as the processes are to run.
    pub(super) fn running(&self) -> PathBuf {
        self.file("running")
    }

    /// Returns the file that exists once a process of this name makes its requests.
    pub(super) fn ready(&self, name: &str) -> PathBuf {
        self.file(&format!("{name} ready"))
    }

    /// Returns the file that exists while the service opens all descriptors but the number in the file.
    pub(super) fn descriptors(&self) -> PathBuf {
        self.file("descriptors")
    }

    /// Returns the file that tells a process which programs to request at once.
    fn order(&self, name: &str) -> PathBuf {
        self.file(&format!("{name} order"))
    }

    /// Tells a process to request programs at once.
    pub(super) fn write_order(&self, name: &str, programs: &Range<u32>) {
        let new = self.file("new order");
        fs::write(&new, format!("{} {}", programs.start, programs.end)).expect("there is space");
        fs::rename(new, self.order(name)).expect("it is there");
    }

    /// Returns the programs that a process is told to request. The file is absent at first, and cannot be read without
    /// descriptors.
    pub(super) fn read_order(&self, name: &str) -> Option<Range<u32>> {
        let text = fs::read_to_string(self.order(name)).ok()?;
        let (start, end) = text.split_once(' ')?;
        Some(start.parse().ok()?..end.parse().ok()?)
    }
}
