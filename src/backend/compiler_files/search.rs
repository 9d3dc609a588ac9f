//! Search for libraries, in the order of the system's loader, without asking it: what it has loaded depends on
//! whether the driver has compiled before.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::{self, Library};
use crate::process::file;

/// Environment variable with folders of libraries.
const VARIABLE: &str = "LD_LIBRARY_PATH";

/// The loader's list of the libraries in the folders that the system is configured with.
const CACHE: &str = "/etc/ld.so.cache";

/// Maximum size of that list, in bytes.
const MAX_CACHE: u64 = 64 << 20;

/// Folders that are searched last.
const LAST: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// A library's file.
pub(super) struct FoundLibrary {
    /// Path by which it was found.
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) elf: Library,
}

impl FoundLibrary {
    pub(super) fn open(path: PathBuf) -> Option<Self> {
        let (file, _) = file::open(&path, file::reading()).ok()?;
        let elf = elf::read(&file).ok()?;
        Some(Self { path, file, elf })
    }

    /// Returns the folders in a list of the library, in which `$ORIGIN` stands for its own folder.
    fn folders(&self, list: Option<&str>) -> Vec<PathBuf> {
        let origin = self.path.parent().unwrap_or(Path::new("/")).to_string_lossy();
        let each = list.into_iter().flat_map(|list| list.split(':'));
        let expanded = each
            .filter(|folder| !folder.is_empty())
            .map(|folder| folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin).into());
        expanded.collect()
    }
}

/// Folders and files in which libraries are searched.
pub(super) struct SearchPath {
    environment: Vec<PathBuf>,
    configured: Vec<PathBuf>,
}

impl SearchPath {
    /// Returns the search path of this process.
    pub(super) fn new() -> Self {
        let variable = std::env::var_os(VARIABLE).unwrap_or_default();
        let folders = variable.as_bytes().split(|byte| matches!(byte, b':' | b';'));
        let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
        let environment = folders.filter(|folder| !folder.is_empty()).map(path).collect();
        // The list holds numbers, and the paths as text that ends with a zero byte.
        let cache = file::read(Path::new(CACHE), MAX_CACHE).unwrap_or_default();
        let texts = cache.split(|byte| *byte == 0);
        let configured = texts.filter(|text| text.starts_with(b"/")).map(path).collect();
        Self { environment, configured }
    }

    /// Finds a library that another one needs.
    pub(super) fn find(&self, name: &str, needed_by: &FoundLibrary) -> Option<FoundLibrary> {
        let elf = &needed_by.elf;
        if name.contains('/') {
            return open_like(elf, name.into());
        }
        let first = if elf.runpath.is_none() { elf.rpath.as_deref() } else { None };
        let in_folders = |folders: Vec<PathBuf>| {
            folders.into_iter().find_map(|folder| open_like(elf, folder.join(name)))
        };
        let is_named = |path: &&PathBuf| path.file_name().is_some_and(|known| known == name);
        in_folders(needed_by.folders(first))
            .or_else(|| in_folders(self.environment.clone()))
            .or_else(|| in_folders(needed_by.folders(elf.runpath.as_deref())))
            .or_else(|| {
                let mut named = self.configured.iter().filter(is_named);
                named.find_map(|path| open_like(elf, path.clone()))
            })
            .or_else(|| in_folders(LAST.map(PathBuf::from).to_vec()))
    }

    /// Finds all libraries whose names begin with `prefix`, which a driver may open by itself: in its own folder
    /// and the one above, and where the loader searches.
    pub(super) fn find_all(&self, prefix: &str, driver: &FoundLibrary) -> Vec<FoundLibrary> {
        let own = driver.path.ancestors().skip(1).take(2).map(Path::to_owned);
        let [rpath, runpath] =
            [&driver.elf.rpath, &driver.elf.runpath].map(|list| driver.folders(list.as_deref()));
        let folders = own.chain(self.environment.iter().cloned()).chain(rpath).chain(runpath);
        let folders: BTreeSet<_> = folders.collect();
        let listed = folders.iter().flat_map(|folder| files_in(folder, prefix));
        let configured = self.configured.iter().filter(|path| has_prefix(path, prefix)).cloned();
        listed.chain(configured).filter_map(|path| open_like(&driver.elf, path)).collect()
    }
}

/// Opens a library of the same architecture as another.
fn open_like(other: &Library, path: PathBuf) -> Option<FoundLibrary> {
    FoundLibrary::open(path).filter(|found| found.elf.machine == other.machine)
}

/// Returns the paths in a folder whose last parts begin with `prefix`, sorted.
pub(super) fn files_in(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut paths: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| has_prefix(path, prefix)).collect();
    paths.sort_unstable();
    paths
}

fn has_prefix(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(prefix.as_bytes()))
}
