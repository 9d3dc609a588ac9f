//! Finds executable programs: those that a setting names, and those in a folder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// A program that the application or the environment has chosen.
#[derive(Clone, Debug)]
pub(crate) struct ChosenProgram {
    pub(crate) path: PathBuf,
    /// The variable or the builder's function that chose the program, as messages name it.
    pub(crate) setting: &'static str,
}

impl ChosenProgram {
    /// Returns the application's choice `given`, else the environment's choice, which is the value of the
    /// variable `name`.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration), with the name of the setting, if there is no such program.
    pub(crate) fn find(
        given: Option<(PathBuf, &'static str)>,
        name: &'static str,
        value: Option<OsString>,
    ) -> Result<Option<Self>> {
        let set = value.filter(|value| !value.is_empty()).map(|path| (path.into(), name));
        let Some((path, setting)) = given.or(set) else { return Ok(None) };
        // Later, a bare name would be searched for in `PATH`, and the current directory may have changed.
        let chosen = Self { path: std::path::absolute(&path).unwrap_or(path), setting };
        if !is_program(&chosen.path) {
            return Err(chosen
                .refused("there is no executable file at this path; give the path of a program"));
        }
        Ok(Some(chosen))
    }

    /// Returns the error for a program that cannot be used.
    pub(crate) fn refused(&self, why: impl std::fmt::Display) -> Error {
        let message = format!("{}: `{}`: {why}", self.setting, self.path.display());
        Error::new(ErrorKind::Configuration, message)
    }
}

/// Returns the path of the program `name` in a folder, if there is one.
pub(crate) fn find_program(folder: &Path, name: &str) -> Option<PathBuf> {
    match search_folder(folder, name) {
        SearchResult::Program(path) => Some(path),
        SearchResult::NotExecutable(..) | SearchResult::Nothing => None,
    }
}

/// The result of a search for a program in a folder.
pub(crate) enum SearchResult {
    Program(PathBuf),
    /// A file that cannot be executed, and the reason.
    NotExecutable(PathBuf, String),
    Nothing,
}

/// Searches a folder for the program `name`.
pub(crate) fn search_folder(folder: &Path, name: &str) -> SearchResult {
    // An empty or relative folder of `PATH` depends on the current directory.
    if !folder.is_absolute() {
        return SearchResult::Nothing;
    }
    let path = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    if is_program(&path) {
        return SearchResult::Program(path);
    }
    match path.metadata() {
        Ok(metadata) if metadata.is_file() => {
            SearchResult::NotExecutable(path, "the file is not executable".to_owned())
        }
        Ok(_) => SearchResult::Nothing,
        Err(error) if path.is_symlink() => {
            SearchResult::NotExecutable(path, format!("the link is broken: {error}"))
        }
        Err(_) => SearchResult::Nothing,
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
