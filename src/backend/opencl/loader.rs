//! The OpenCL loader of the system, and the drivers that it opens.
//!
//! A driver is listed by a file `NAME.icd`, whose text is the driver's library. The extension `cl_khr_icd`
//! defines the folder of these files; loaders let environment variables choose others.

use std::env;
use std::path::Path;
use std::sync::Once;

use libloading::Library;
use opencl3::error_codes::{CL_PLATFORM_NOT_FOUND_KHR, DLOPEN_RUNTIME_LOAD_FAILED};

use super::codes::error_of;
use crate::backend::handler_guard;
use crate::error::{Error, ErrorKind, Result};
use crate::process::file;

const LOADER: &str = if cfg!(target_os = "windows") {
    "OpenCL.dll"
} else if cfg!(target_os = "macos") {
    "/System/Library/Frameworks/OpenCL.framework/OpenCL"
} else {
    "libOpenCL.so.1"
};

/// Environment variable that makes the OpenCL bindings open another loader.
const LOADER_VARIABLE: &str = "OPENCL_DYLIB_PATH";

/// Folder of the files that list drivers, and the environment variable that names another one.
const VENDORS: &str = "/etc/OpenCL/vendors";
const VENDORS_VARIABLE: &str = "OCL_ICD_VENDORS";

/// Maximum size of a file that lists a driver, in bytes; more than the longest path.
const MAX_LISTING: u64 = 1 << 14;

pub(super) const INSTALL: &str = "install an OpenCL driver: on Debian and Ubuntu `apt install pocl-opencl-icd` \
     for the CPU, or for a GPU its vendor's driver";

/// Checks that a loader named by the environment is one. Otherwise another loader would be used in its place,
/// silently.
///
/// # Errors
///
/// [`Configuration`](ErrorKind::Configuration) if none of the libraries that it names is a loader.
pub(super) fn check_chosen() -> Result<()> {
    let Some(chosen) = env::var_os(LOADER_VARIABLE) else {
        return Ok(());
    };
    let fail = |reason: String| {
        Err(Error::new(
            ErrorKind::Configuration,
            format!(
                "{LOADER_VARIABLE}: {reason}; give the path of an OpenCL loader, or unset the variable \
                 to use `{LOADER}`"
            ),
        ))
    };
    let Some(paths) = chosen.to_str() else {
        return fail(format!("the path {chosen:?} is not valid Unicode"));
    };
    let mut reasons = Vec::new();
    for path in paths.split(';') {
        match open_chosen(path) {
            Ok(()) => return Ok(()),
            Err(reason) => reasons.push(format!("`{path}` cannot be used: {reason}")),
        }
    }
    fail(reasons.join(", "))
}

fn open_chosen(path: &str) -> Result<(), String> {
    // SAFETY: the user vouches for the library, which is opened in any case.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    // SAFETY: the symbol is only looked up.
    let function = unsafe { library.get::<*const ()>("clGetPlatformIDs") };
    if function.is_err() {
        return Err("it does not export the function `clGetPlatformIDs`".to_owned());
    }
    // Drivers do not support being unloaded.
    std::mem::forget(library);
    Ok(())
}

/// Returns the error if there is no loader.
pub(super) fn no_loader_error() -> Error {
    error_of(
        ErrorKind::NoDevice,
        DLOPEN_RUNTIME_LOAD_FAILED,
        format!("no OpenCL loader can be opened (tried `{LOADER}`); {INSTALL}"),
    )
}

/// Returns the error if the loader finds no driver.
pub(super) fn no_driver_error() -> Error {
    let vendors = env::var(VENDORS_VARIABLE)
        .map_or_else(|_| VENDORS.to_owned(), |path| format!("{VENDORS_VARIABLE} ({path})"));
    error_of(
        ErrorKind::NoDevice,
        CL_PLATFORM_NOT_FOUND_KHR,
        format!("the OpenCL loader `{LOADER}` found no driver in {vendors}; {INSTALL}"),
    )
}

/// Opens the drivers' libraries before the loader does, for the first caller in the process. A library registers
/// thousands of exit handlers when it is opened, and the loader calls it at once: a process that ended in
/// between would run these handlers during the call. Here, handlers are [restored](handler_guard::restore) in between. What
/// cannot be opened is left to the loader. So are all drivers if the environment chooses another loader, which may
/// not open them, or if it must not choose libraries.
pub(super) fn open_drivers() {
    static ONCE: Once = Once::new();
    let has_handlers = cfg!(all(target_os = "linux", target_env = "gnu"));
    if !has_handlers || env::var_os(LOADER_VARIABLE).is_some() || has_more_rights() {
        return;
    }
    ONCE.call_once(|| {
        let vendors = env::var_os(VENDORS_VARIABLE).unwrap_or_else(|| VENDORS.into());
        for path in listed_drivers(Path::new(&vendors)) {
            // SAFETY: the loader opens the library in any case; whoever listed it vouches for it.
            if let Ok(library) = unsafe { Library::new(path) } {
                // Drivers do not support being unloaded.
                std::mem::forget(library);
            }
            handler_guard::restore();
        }
    });
}

/// Returns whether the process has more rights than the user who started it and chose its environment.
fn has_more_rights() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function reads a number that the system passed to the process.
    return unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

/// Returns the libraries that the files in a folder list. None for a path that is not a folder: some loaders
/// accept a single file, or the name of a library.
fn listed_drivers(vendors: &Path) -> Vec<String> {
    let files = vendors.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let listings =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "icd"));
    let texts =
        listings.filter_map(|path| String::from_utf8(file::read(&path, MAX_LISTING).ok()?).ok());
    let libraries = texts.filter_map(|text| Some(text.lines().next()?.trim().to_owned()));
    libraries.filter(|library| !library.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn drivers_are_listed_by_files() {
        let folder = tempfile::tempdir().expect("it can be created");
        let write = |name: &str, text: &[u8]| {
            fs::write(folder.path().join(name), text).expect("it can be written");
        };
        write("a.icd", b"/lib/a.so\n");
        write("b.icd", b"  b.so.1 \nanother line");
        write("empty.icd", b"");
        write("blank.icd", b" \n");
        write("bytes.icd", &[0xff, 0xfe]);
        write("large.icd", &[b'x'; MAX_LISTING as usize + 1]);
        write("c.txt", b"c.so");
        fs::create_dir(folder.path().join("folder.icd")).expect("it can be created");
        let mut listed = listed_drivers(folder.path());
        listed.sort();
        assert_eq!(listed, ["/lib/a.so", "b.so.1"]);
        for other in ["a.icd", "none"] {
            assert_eq!(listed_drivers(&folder.path().join(other)), [""; 0]);
        }
    }

    #[test]
    fn a_missing_driver_is_explained() {
        for error in [no_loader_error(), no_driver_error()] {
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::NoDevice);
            assert!(
                text.contains(LOADER) && text.contains("apt install pocl-opencl-icd"),
                "{text}"
            );
        }
    }
}
