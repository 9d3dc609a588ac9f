//! NVIDIA's cache of compiled code, without which its driver opens a device slowly.
//!
//! The driver opens a device in 0.1 s if it finds there what it compiled before, and in 1.4 to 1.8 s otherwise
//! (NVIDIA 580.159 on an H200). Many containers have no home that can be written, so that each process takes long.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::warning;

/// Environment variable that disables the cache, unless it is `0`.
const DISABLE: &str = "CUDA_CACHE_DISABLE";

/// Environment variable with the folder of the cache.
const FOLDER: &str = "CUDA_CACHE_PATH";

/// Folder of the cache below the user's home.
const DEFAULT_FOLDER: &str = ".nv/ComputeCache";

/// Time after which opening a device counts as slow.
const SLOW: Duration = Duration::from_secs(1);

/// Warns, once, if a device was opened slowly because of the cache. `took` is the time that it took.
pub(super) fn check(took: Duration) {
    let reason = || obstacle(|name| env::var_os(name), can_be_written);
    if let Some(message) = message(took, reason) {
        warning::warn(&message);
    }
}

/// Returns the warning for a device that took this long to be opened, if there is a reason for it.
fn message(took: Duration, obstacle: impl FnOnce() -> Option<String>) -> Option<String> {
    if took < SLOW {
        return None;
    }
    let (seconds, obstacle) = (took.as_secs_f64(), obstacle()?);
    Some(format!(
        "opening NVIDIA's device took {seconds:.1} s, because its driver cannot keep compiled code: {obstacle}; \
         each start takes as long until then"
    ))
}

/// Returns the reason why the driver cannot use its cache and what to do about it, or `None` if it can.
fn obstacle(
    variable: impl Fn(&str) -> Option<OsString>,
    can_be_written: impl Fn(&Path) -> bool,
) -> Option<String> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    if variable(DISABLE).is_some_and(|value| value != "0") {
        return Some(format!("{DISABLE} is set; unset it"));
    }
    let folder = variable(FOLDER).map(PathBuf::from);
    let default = || Some(Path::new(&variable("HOME")?).join(DEFAULT_FOLDER));
    match folder.or_else(default) {
        None => {
            Some(format!("HOME is not set; set it, or {FOLDER}, to a folder that can be written"))
        }
        Some(folder) if !can_be_written(&folder) => Some(format!(
            "its folder `{}` cannot be written; set {FOLDER} to one that can",
            folder.display()
        )),
        Some(_) => None,
    }
}

/// Returns whether files can be created in a folder, which need not exist yet.
#[cfg(unix)]
fn can_be_written(folder: &Path) -> bool {
    use rustix::fs::{Access, access};
    let existing = folder.ancestors().find(|folder| folder.exists());
    existing.is_some_and(|folder| {
        folder.is_dir() && access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    })
}

#[cfg(not(unix))]
fn can_be_written(_: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn obstacle_with(variables: &[(&str, &str)], writable: &str) -> Option<String> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        obstacle(value, |folder| folder.starts_with(writable))
    }

    #[test]
    fn a_folder_that_can_be_written_is_no_obstacle() {
        let home = ("HOME", "/home/user");
        assert_eq!(obstacle_with(&[home], "/home/user/.nv/ComputeCache"), None);
        assert_eq!(obstacle_with(&[home, (DISABLE, "0"), (FOLDER, "")], "/home/user"), None);
        assert_eq!(obstacle_with(&[home, (FOLDER, "/cache")], "/cache"), None);
    }

    #[test]
    fn the_obstacle_is_named_with_what_to_do() {
        let home = ("HOME", "/home/user");
        for (variables, part) in [
            (&[home, (DISABLE, "1")][..], "CUDA_CACHE_DISABLE is set"),
            (&[home], "`/home/user/.nv/ComputeCache` cannot be written; set CUDA_CACHE_PATH"),
            (&[home, (FOLDER, "/cache")], "`/cache` cannot be written"),
            (&[], "HOME is not set"),
        ] {
            let obstacle = obstacle_with(variables, "/writable").unwrap_or_default();
            assert!(obstacle.contains(part), "{obstacle}");
        }
    }

    #[test]
    fn only_slow_openings_are_reported() {
        let obstacle = || Some("its folder cannot be written".to_owned());
        assert_eq!(message(Duration::from_millis(999), obstacle), None);
        assert_eq!(message(Duration::from_secs(2), || None), None);
        let text = message(Duration::from_millis(1450), obstacle).unwrap_or_default();
        assert!(text.contains("took 1.4 s") || text.contains("took 1.5 s"), "{text}");
        assert!(text.contains("its folder cannot be written"), "{text}");
    }

    #[cfg(unix)]
    #[test]
    fn folders_are_tried_from_the_nearest_that_exists() {
        let folder = tempfile::tempdir().unwrap();
        assert!(can_be_written(folder.path()));
        assert!(can_be_written(&folder.path().join(DEFAULT_FOLDER)));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(!can_be_written(&file) && !can_be_written(&file.join(DEFAULT_FOLDER)));
        assert!(!can_be_written(Path::new("/proc/1/nowhere")));
    }
}
