//! The 256-bit names of this crate: of contents and of builds.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

macro_rules! digest_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) [u8; 32]);

        impl $name {
            /// Its bytes.
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

        /// From the 64 hexadecimal digits that it is displayed as.
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
    /// A BLAKE3 digest of contents. Displayed as 64 hexadecimal digits, or fewer with a precision:
    /// `{digest:.8}`.
    Digest
}

digest_type! {
    /// Names what a build depends on: the images, with the files that their texts include and the
    /// libraries that they import from, their specialization constants, the options, the device and its
    /// driver, and the environment variables that are known to change a driver's compiler, as they were
    /// when the runtime was built: `IGC_*`, and some of PoCL's (`POCL_*`), Intel's (`CL_CONFIG_*`), AMD's
    /// (`AMD_OCL_*`) and Mesa's ([`BuildRequest::key_fields`](crate::BuildRequest::key_fields) shows those
    /// that are set). For another one, put a macro of your own into the options.
    ///
    /// Equal keys stand for the same program; they are stable between processes and machines.
    /// Displayed as 64 hexadecimal digits, or fewer with a precision: `{key:.8}`.
    BuildKey
}
