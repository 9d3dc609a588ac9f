//! A directory that several machines share as a remote cache.

use std::path::Path;

/// Returns the address of the directory. On Windows the path in it begins with the drive.
pub fn address(directory: &Path) -> String {
    let path = directory.display().to_string().replace('\\', "/");
    format!("fs:///{}", path.trim_start_matches('/'))
}
