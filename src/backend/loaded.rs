//! Libraries that are loaded into this process.

use std::ffi::{CStr, OsStr};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use libc::{c_int, c_void, dl_phdr_info, size_t};

/// A library, or the program itself.
pub(super) struct LoadedLibrary {
    /// Path from which it was loaded; empty for the program.
    pub(super) path: PathBuf,
    /// Addresses of its segments.
    pub(super) ranges: Vec<Range<usize>>,
}

/// Returns the number of loads and unloads of libraries so far.
pub(super) fn count_loads() -> u64 {
    unsafe extern "C" fn count(info: *mut dl_phdr_info, _: size_t, loads: *mut c_void) -> c_int {
        // SAFETY: the loader passes what the declaration says.
        let info = unsafe { &*info };
        // SAFETY: the caller passes a number.
        unsafe { *loads.cast::<u64>() = info.dlpi_adds + info.dlpi_subs };
        1
    }
    let mut loads = 0u64;
    // SAFETY: the function takes what it is passed.
    unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut loads).cast()) };
    loads
}

/// Returns the program and all libraries.
pub(super) fn libraries() -> Vec<LoadedLibrary> {
    unsafe extern "C" fn add(info: *mut dl_phdr_info, _: size_t, all: *mut c_void) -> c_int {
        // SAFETY: the loader passes what the declaration says.
        let info = unsafe { &*info };
        // SAFETY: the caller passes a list.
        let all = unsafe { &mut *all.cast::<Vec<LoadedLibrary>>() };
        // SAFETY: the library has `dlpi_phnum` headers at this address.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let ranges = segments.map(|header| {
            let start = info.dlpi_addr as usize + header.p_vaddr as usize;
            start..start + header.p_memsz as usize
        });
        let name = match info.dlpi_name.is_null() {
            true => &[],
            // SAFETY: the loader passes text that ends with a zero byte.
            false => unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes(),
        };
        let path = PathBuf::from(OsStr::from_bytes(name));
        all.push(LoadedLibrary { path, ranges: ranges.collect() });
        0
    }
    let mut all = Vec::new();
    // SAFETY: the function takes what it is passed.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut all).cast()) };
    all
}
