//! 256-bit digests that name contents and builds.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

macro_rules! digest_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) [u8; 32]);

        impl $name {
            /// Returns the bytes of the digest.
            ///
            /// # Examples
            ///
            /// ```
            /// # use kiln::build::{BuildKey, Digest};
            /// let (digest, key): (Digest, BuildKey) = ("00".repeat(32).parse()?, "ff".repeat(32).parse()?);
            /// assert_eq!(digest.as_bytes(), &[0; 32]);
            /// assert_eq!(key.as_bytes(), &[0xff; 32]);
            /// # Ok::<(), kiln::Error>(())
            /// ```
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&blake3::Hash::from_bytes(self.0).to_hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        /// Parses the 64 hexadecimal digits that the digest is displayed as.
        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                blake3::Hash::from_hex(text).map(|hash| Self(hash.into())).map_err(|error| {
                    Error::invalid(format!("`{text}` is not 64 hexadecimal digits")).with_source(error)
                })
            }
        }
    };
}

digest_type! {
    /// BLAKE3 digest of contents. Displayed as 64 hexadecimal digits, or fewer with a precision: `{digest:.8}`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln::Module;
    /// # use kiln::build::Digest;
    /// let digest = Module::opencl_c("kernel void nothing() {}").digest();
    /// assert_eq!(digest.to_string().parse::<Digest>()?, digest);
    /// assert_eq!(format!("{digest:.8}").len(), 8);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    Digest
}

digest_type! {
    /// Digest of everything that a build depends on:
    ///
    /// * the modules, with the files that their texts include and the libraries that they import from,
    /// * their specialization constants,
    /// * the options for compiling and linking, but not their [sources](crate#build-options),
    /// * the device and its driver,
    /// * the environment variables that can change a driver's compiler, as they were when the runtime was
    ///   built.
    ///
    /// The environment variables are those that begin with `IGC_`, `POCL_` or `CL_CONFIG_`, except some that
    /// only move caches or write diagnostics, and some of AMD's (`AMD_OCL_*`), Intel's and Mesa's.
    /// [`BuildRequest::key_fields`](crate::BuildRequest::key_fields) shows those that are set. To cover another
    /// variable, put a macro of your own into the options.
    ///
    /// A device is identified by its name, vendor, platform and driver with their versions. The host's
    /// processor as a device is also identified by its instructions. See
    /// [`DeviceInfo::identity`](crate::DeviceInfo::identity).
    ///
    /// No key covers the time of a build. A text that names `__TIME__`, `__DATE__` or `__TIMESTAMP__`, in
    /// itself, in a file that it includes or in its options, is built anew for each request. Its program is
    /// kept neither in memory nor on disk nor remotely; only requests made during the build share it.
    ///
    /// Equal keys stand for the same program; they are stable between processes and machines. Displayed as 64
    /// hexadecimal digits, or fewer with a precision: `{key:.8}`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, blur: kiln::Module) -> kiln::Result<()> {
    /// let narrow = rt.build(&blur).options("-D RADIUS=3").key()?;
    /// let wide = rt.build(&blur).options("-D RADIUS=9").key()?;
    /// assert_ne!(narrow, wide); // two programs
    /// println!("the narrow blur is {narrow:.8}");
    /// # Ok(())
    /// # }
    /// ```
    BuildKey
}
