//! Holders of build locks: each writes into the lock's file which process it is, for those that wait.

use std::fmt;
use std::path::Path;

use async_fs::File;

use super::files;
use crate::process::{self, stopped};

/// Size in bytes of the part of a lock's file that names the holder.
pub(super) const HOLDER_BYTES: u64 = 48;

/// Process that holds a lock, as its file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    id: u32,
    /// Namespace of the number; 0 where there are none.
    namespace: u64,
}

impl Holder {
    /// Returns this process.
    fn own() -> Self {
        Self { id: process::id(), namespace: namespace() }
    }

    /// Writes this process into the file of a lock that it holds. The file has just been opened, so that its position is the
    /// beginning. If the call fails, nobody reads the process.
    pub(super) async fn write(file: &mut File) {
        let Self { id, namespace } = Self::own();
        // A line of a fixed length leaves the rest of the file as it is.
        let line = format!("{:<1$}\n", format!("{id} {namespace}"), HOLDER_BYTES as usize - 1);
        if let Err(error) = files::write(file, &[line.as_bytes()]).await {
            tracing::debug!(%error, "a lock does not say which process holds it");
        }
    }

    /// Reads the process that holds a lock, or held it last.
    pub(super) async fn read(path: &Path) -> Option<Self> {
        let text = async_fs::read_to_string(path).await.ok()?;
        let (id, namespace) = text.lines().next()?.trim_end().split_once(' ')?;
        Some(Self { id: id.parse().ok()?, namespace: namespace.parse().ok()? })
    }

    /// Returns whether a signal has stopped the process, as far as this process can see it. Blocks on a file of the
    /// system.
    pub(crate) fn is_stopped(self) -> bool {
        self.namespace == namespace() && stopped::is_stopped(self.id)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.id)?;
        if self.namespace != namespace() {
            f.write_str(" of another container")?;
        }
        Ok(())
    }
}

/// Returns the namespace in which processes have the numbers that this one sees.
#[cfg(target_os = "linux")]
fn namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

#[cfg(not(target_os = "linux"))]
fn namespace() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::executor::block_on;

    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_read_from_its_file() {
        let directory = tempfile::tempdir().expect("there is disk space");
        let path = directory.path().join("lock");
        assert_eq!(block_on(Holder::read(&path)), None);
        fs::write(&path, "a text that is longer than the line of a holder, from something else")
            .expect("it can be written");
        assert_eq!(block_on(Holder::read(&path)), None);
        let file = fs::File::options().write(true).open(&path).expect("it exists");
        block_on(Holder::write(&mut file.into()));
        let holder = block_on(Holder::read(&path)).expect("it was written");
        assert_eq!(holder, Holder::own());
        assert_eq!(holder.to_string(), format!("process {}", std::process::id()));
        assert!(!holder.is_stopped());
    }

    #[test]
    fn processes_of_other_containers_are_not_looked_up() {
        let other = Holder { id: std::process::id(), namespace: 1 };
        assert!(!other.is_stopped());
        assert_eq!(
            other.to_string(),
            format!("process {} of another container", std::process::id())
        );
    }
}
