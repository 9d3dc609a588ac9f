//! Programs that somebody chose, and those that are found.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// A program that was chosen.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) path: PathBuf,
    /// As messages name the one who chose: a variable, or the builder's function.
    pub(crate) by: &'static str,
}

impl Chosen {
    /// The application's choice, else the environment's by the variable `name`.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration), with who chose it, if there is no such program.
    pub(crate) fn find(
        given: Option<(PathBuf, &'static str)>,
        name: &'static str,
        value: Option<OsString>,
    ) -> Result<Option<Self>> {
        let set = value.filter(|value| !value.is_empty()).map(|path| (path.into(), name));
        let Some((path, by)) = given.or(set) else { return Ok(None) };
        // A bare name would be looked for in `PATH` later, and another directory be the current one.
        let chosen = Self { path: std::path::absolute(&path).unwrap_or(path), by };
        if !is_program(&chosen.path) {
            return Err(chosen.refused("there is no such program; give the path of one"));
        }
        Ok(Some(chosen))
    }

    pub(crate) fn refused(&self, why: impl std::fmt::Display) -> Error {
        let message = format!("{}: `{}`: {why}", self.by, self.path.display());
        Error::new(ErrorKind::Configuration, message)
    }
}

/// The program of this name in a folder, if there is one.
pub(crate) fn program_in(folder: &Path, name: &str) -> Option<PathBuf> {
    match found_in(folder, name) {
        Found::Program(path) => Some(path),
        Found::Other(..) | Found::Nothing => None,
    }
}

/// The file of a program's name in a folder.
pub(crate) enum Found {
    Program(PathBuf),
    /// A file that cannot be run, and the reason.
    Other(PathBuf, String),
    Nothing,
}

/// Looks for a program in a folder.
pub(crate) fn found_in(folder: &Path, name: &str) -> Found {
    // An empty or relative folder of `PATH` means another place whenever the directory changes.
    if !folder.is_absolute() {
        return Found::Nothing;
    }
    let path = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    if is_program(&path) {
        return Found::Program(path);
    }
    match path.metadata() {
        Ok(metadata) if metadata.is_file() => {
            Found::Other(path, "the file is not executable".to_owned())
        }
        Ok(_) => Found::Nothing,
        Err(error) if path.is_symlink() => {
            Found::Other(path, format!("the link leads to no file: {error}"))
        }
        Err(_) => Found::Nothing,
    }
}

fn is_program(path: &Path) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    #[cfg(unix)]
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o111 == 0 {
        return false;
    }
    metadata.is_file()
}
