//! The example `plug_in`, built and loaded as a shared library.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the plug-in, and returns its path. `test` is the path of this test program.
pub fn build(test: &Path) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--offline", "--all-features", "--example", "plug_in"])
        .current_dir(crate::ROOT)
        .status();
    assert!(built.expect("cargo is there").success());
    // Tests are in `deps`, beside `examples`.
    test.ancestors().nth(2).expect("it is in `deps`").join("examples/libplug_in.so")
}

/// A plug-in that is loaded until it is dropped.
pub struct PlugIn(*mut c_void);

impl PlugIn {
    pub fn load(path: &str) -> Self {
        let path = CString::new(path).expect("paths contain no NUL");
        // SAFETY: the initializers of the library are Rust's own and Kiln's.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "the plug-in can be loaded");
        Self(library)
    }

    /// Returns the address of a function.
    pub fn function(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is loaded.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!function.is_null(), "the plug-in has the function");
        function
    }
}

impl Drop for PlugIn {
    fn drop(&mut self) {
        // SAFETY: callers use nothing of the library any more.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }
}
