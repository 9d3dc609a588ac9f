//! Choice of the store's directory, and the check that this user may create it.

use std::path::{Path, PathBuf};

use super::variables::Variables;

const VARIABLE: &str = "KILN_CACHE_DIR";

/// Location of the store.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Directory {
    /// A directory that the application or the environment chose.
    Chosen(PathBuf),
    Default(PathBuf),
    /// There is no default, for this reason.
    None(String),
}

impl Directory {
    /// Returns the directory that the application chose, else the environment's, else the default below the
    /// user's directory for caches.
    pub(super) fn find(chosen: Option<&Path>, variables: &impl Variables) -> Self {
        if let Some(directory) = chosen.map(Path::to_owned).or_else(|| variables.path(VARIABLE)) {
            // The process may change its working directory.
            return Self::Chosen(std::path::absolute(&directory).unwrap_or(directory));
        }
        match default_directory(variables) {
            Ok(directory) => Self::Default(directory),
            Err(reason) => Self::None(reason),
        }
    }
}

fn default_directory(variables: &impl Variables) -> Result<PathBuf, String> {
    // The base directory specification requires that relative paths are ignored.
    let base = |name: &str| variables.path(name).filter(|path| path.is_absolute());
    let local = || if cfg!(windows) { base("LOCALAPPDATA") } else { None };
    if let Some(caches) = base("XDG_CACHE_HOME").or_else(local) {
        return match refusal(&caches) {
            Some(reason) => Err(reason),
            None => Ok(caches.join("kiln")),
        };
    }
    let Some(home) = base("HOME") else {
        return Err(
            "there is no default directory: neither XDG_CACHE_HOME nor HOME is set to an absolute \
             path"
                .to_owned(),
        );
    };
    // Service accounts often have the root directory as their home, or a directory that does not exist.
    if home.parent().is_none() || !home.is_dir() {
        return Err(format!("HOME is `{}`, which is not a user's directory", home.display()));
    }
    let caches = home.join(".cache");
    match refusal(&home).or_else(|| refusal(&caches)) {
        Some(reason) => Err(reason),
        None => Ok(caches.join("kiln")),
    }
}

/// Returns the reason why nothing is created in a directory, or `None` if this user may use it. The directory,
/// or the nearest existing one above it, may belong to another user, whose programs could not use what is
/// created there. Every user may use a directory such as `/tmp`.
#[cfg(unix)]
fn refusal(directory: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;

    const STICKY_AND_PUBLIC: u32 = 0o1002;
    let user = rustix::process::geteuid().as_raw();
    for ancestor in directory.ancestors() {
        let metadata = match std::fs::metadata(ancestor) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Some(format!("`{}` cannot be used: {error}", ancestor.display())),
        };
        if metadata.uid() == user || metadata.mode() & STICKY_AND_PUBLIC == STICKY_AND_PUBLIC {
            return None;
        }
        let (ancestor, owner) = (ancestor.display(), metadata.uid());
        return Some(format!(
            "`{ancestor}` belongs to user {owner}, but this process runs as user {user}, and Kiln \
             creates nothing in directories of other users"
        ));
    }
    None
}

/// Returns `None`: on other systems, a user's variables lead to the user's own directories.
#[cfg(not(unix))]
fn refusal(_: &Path) -> Option<String> {
    None
}
