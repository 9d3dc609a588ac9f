//! Files with which a driver compiles, as a part of its device's identity.
//!
//! Packages update a compiler without the driver: its version is then the same, and its programs are not. The
//! files are found from the driver's library: the libraries that it needs, and those that it opens late, which
//! the [table of drivers](crate::device::CompilerFiles) names. What is loaded at the moment is not looked at:
//! a driver that opens its compiler with the first compile has the same files before and after it.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod elf;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod search;
#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests;

use crate::device::CompilerFiles;

#[cfg(all(target_os = "linux", target_env = "gnu", feature = "opencl"))]
pub(super) use linux::of_function;
#[cfg(all(target_os = "linux", target_env = "gnu", feature = "level-zero"))]
pub(super) use linux::of_library;

/// Returns the files of the driver that has a function. They are known on Linux only.
#[cfg(all(not(all(target_os = "linux", target_env = "gnu")), feature = "opencl"))]
pub(super) fn of_function(_: usize, _: &[CompilerFiles]) -> String {
    String::new()
}

/// Returns the files of the driver whose library's name begins with `prefix`. They are known on Linux only.
#[cfg(all(not(all(target_os = "linux", target_env = "gnu")), feature = "level-zero"))]
pub(super) fn of_library(_: &str, _: &[CompilerFiles]) -> String {
    String::new()
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::collections::{BTreeSet, HashMap, HashSet};
    use std::fs::{File, Metadata};
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;
    use std::time::UNIX_EPOCH;

    use super::CompilerFiles;
    use super::search::{FoundLibrary, SearchPath, files_in};
    use crate::backend::loaded;
    use crate::process::file;
    use crate::sync::lock;

    /// Words in the names of libraries that compile, or that are a part of the compiler.
    const WORDS: [&str; 10] =
        ["clang", "comgr", "gallium", "iga64", "igc", "igdfcl", "llvm", "nvvm", "ocl", "spirv"];

    /// Number of bytes of a build id and of a digest that are stated.
    const STATED_BYTES: usize = 8;

    /// Returns the files of the driver that has the function at `address`.
    #[cfg(feature = "opencl")]
    pub(in crate::backend) fn of_function(address: usize, late: &[CompilerFiles]) -> String {
        let mut loaded = loaded::libraries().into_iter();
        let driver =
            loaded.find(|library| library.ranges.iter().any(|range| range.contains(&address)));
        driver.map_or_else(String::new, |driver| of_driver(driver.path, late))
    }

    /// Returns the files of the driver whose library's name begins with `prefix`, if it is loaded.
    #[cfg(feature = "level-zero")]
    pub(in crate::backend) fn of_library(prefix: &str, late: &[CompilerFiles]) -> String {
        let is_named = |path: &Path| {
            path.file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
        };
        let mut loaded = loaded::libraries().into_iter();
        let driver = loaded.find(|library| is_named(&library.path));
        driver.map_or_else(String::new, |driver| of_driver(driver.path, late))
    }

    /// Returns the files of the driver with the library at `path`. They are read once: the library stays loaded.
    fn of_driver(path: PathBuf, late: &[CompilerFiles]) -> String {
        static KNOWN: Mutex<Option<HashMap<PathBuf, String>>> = Mutex::new(None);
        let mut known = lock(&KNOWN);
        let known = known.get_or_insert_default();
        known.entry(path).or_insert_with_key(|path| describe(path, late)).clone()
    }

    /// Describes the files of the driver with the library at `path`: names with build ids or, where there is
    /// none, with sizes and times. Empty if the library cannot be read.
    pub(in crate::backend) fn describe(path: &Path, late: &[CompilerFiles]) -> String {
        let Some(driver) = FoundLibrary::open(path.to_owned()) else { return String::new() };
        let Ok(own) = path.canonicalize() else { return String::new() };
        // A driver may look beside the path by which it was opened, or beside the file that this is a link to.
        let folders: BTreeSet<_> = [path, &own].into_iter().filter_map(Path::parent).collect();
        let search = SearchPath::new();
        let mut items = BTreeSet::new();
        let mut open = Vec::new();
        for files in late {
            match files {
                CompilerFiles::Libraries(prefix) => open.extend(search.find_all(prefix, &driver)),
                CompilerFiles::Beside(beside, prefix) => {
                    let each =
                        folders.iter().filter_map(|folder| folder.join(beside).canonicalize().ok());
                    let each: BTreeSet<_> = each.collect();
                    items.extend(each.iter().filter_map(|folder| describe_files(folder, prefix)));
                }
            }
        }
        // The libraries that the driver opens itself belong to it, whatever their names are.
        let mut chosen: HashSet<PathBuf> =
            open.iter().filter_map(|library| library.path.canonicalize().ok()).collect();
        chosen.insert(own.clone());
        open.push(driver);
        let mut seen = HashSet::new();
        while let Some(library) = open.pop() {
            let Ok(path) = library.path.canonicalize() else { continue };
            if !seen.insert(path.clone()) {
                continue;
            }
            open.extend(library.elf.needed.iter().filter_map(|name| search.find(name, &library)));
            if chosen.contains(&path) || belongs_to_driver(&path, &folders) {
                let id = library.elf.build_id.as_deref();
                items.extend(item(&path, id, &library.file));
            }
        }
        Vec::from_iter(items).join(", ")
    }

    /// Returns whether a library that a driver needs is one of its own: it lies in the driver's folder, unless
    /// that is one of the system's, or its name says that it compiles.
    fn belongs_to_driver(library: &Path, folders: &BTreeSet<&Path>) -> bool {
        let folder = library.parent().filter(|folder| folders.contains(folder));
        let is_beside = folder.is_some_and(|folder| !is_folder_of_system(folder));
        let name = library.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        is_beside || WORDS.iter().any(|word| name.contains(word))
    }

    /// Returns whether a folder has the libraries of many packages: `/usr/lib`, `/usr/local/lib64`,
    /// `/lib/x86_64-linux-gnu` and the like.
    fn is_folder_of_system(folder: &Path) -> bool {
        let Ok(rest) = folder.strip_prefix("/usr/local").or_else(|_| folder.strip_prefix("/usr"))
        else {
            return folder.strip_prefix("/").is_ok_and(is_folder_of_libraries);
        };
        is_folder_of_libraries(rest)
    }

    fn is_folder_of_libraries(folder: &Path) -> bool {
        let parts: Vec<_> = folder.iter().map(|part| part.to_string_lossy()).collect();
        match &parts[..] {
            [lib] => lib.starts_with("lib"),
            [lib, triple] => lib.starts_with("lib") && triple.contains("-linux-"),
            _ => false,
        }
    }

    /// Describes the regular files in a folder whose names begin with `prefix`; all together, if there are
    /// several.
    fn describe_files(folder: &Path, prefix: &str) -> Option<String> {
        let of_file = |path: PathBuf| {
            let (file, _) = file::open(&path, file::reading()).ok()?;
            let library = super::elf::read(&file).unwrap_or_default();
            item(&path, library.build_id.as_deref(), &file)
        };
        let mut items: Vec<_> = files_in(folder, prefix).into_iter().filter_map(of_file).collect();
        if items.len() < 2 {
            return items.pop();
        }
        let digest = blake3::hash(items.join("\n").as_bytes());
        let name = if prefix.is_empty() {
            folder.file_name().unwrap_or_default().to_string_lossy().into_owned() + "/"
        } else {
            prefix.to_owned()
        };
        Some(format!("{name}* ({} files) {}", items.len(), hex(digest.as_bytes())))
    }

    /// Describes a file by its name and its build id, else by its size and the time of its last change.
    fn item(path: &Path, build_id: Option<&[u8]>, file: &File) -> Option<String> {
        let id = match build_id {
            Some(id) => hex(id),
            None => size_and_time(&file.metadata().ok()?),
        };
        Some(format!("{} {id}", path.file_name()?.to_string_lossy()))
    }

    /// Returns the size in bytes and the time in seconds. Images of containers keep no parts of a second.
    fn size_and_time(metadata: &Metadata) -> String {
        let modified = metadata.modified().ok();
        let time = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        format!("{}@{}", metadata.len(), time.unwrap_or_default().as_secs())
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().take(STATED_BYTES).map(|byte| format!("{byte:02x}")).collect()
    }
}
